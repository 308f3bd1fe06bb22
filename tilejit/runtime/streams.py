"""CUDA streams of other libraries, and which of them a launch on their arrays goes to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from ..errors import LaunchError
from .arrays import LEGACY_STREAM, ArrayView


def torch_stream(device: int) -> int:
    """The handle of torch's current stream on a device; 0 if torch was built without CUDA."""
    current = getattr(sys.modules["torch"]._C, "_cuda_getCurrentRawStream", None)
    return current(device) if current is not None and device >= 0 else 0


def current_stream(view: ArrayView) -> int:
    """The handle of the stream that `view`'s library currently works on; 0, the legacy default stream, if that is
    unknown.

    A launch on that stream is ordered after the work that made the array and before the library's next work on it."""
    if view.stream is not None:
        return view.stream
    owner = view.owner
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(owner, torch.Tensor):
        return torch_stream(view.ordinal)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(owner, cupy.ndarray):
        return cupy.cuda.get_current_stream(view.device).ptr
    return 0


@contextmanager
def made_current(stream: int, device: int) -> Iterator[None]:
    """A context in which torch and CuPy, where they are loaded, work on a stream; 0 is the legacy default stream."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    with ExitStack() as entered:
        if torch is not None and torch.cuda.is_available():
            default = torch.cuda.default_stream(device)
            entered.enter_context(torch.cuda.stream(
                torch.cuda.ExternalStream(stream, device=device) if stream else default))
        if cupy is not None:
            entered.enter_context(cupy.cuda.Device(device))
            entered.enter_context(cupy.cuda.ExternalStream(stream, device) if stream else cupy.cuda.Stream.null)
        yield


def choose(handles) -> tuple[int, tuple[int, ...]]:
    """Given the streams on which a launch's arrays are ready: (the one to launch on, those that it must wait for).

    The first that is not the legacy default stream is chosen (torch's, if its tensors come first)."""
    streams = dict.fromkeys(0 if handle == LEGACY_STREAM else handle for handle in handles)
    if len(streams) == 1:
        return next(iter(streams)), ()
    chosen = next(filter(None, streams), 0)
    return chosen, tuple(stream for stream in streams if stream != chosen)


def stream_handle(stream) -> int:
    """The handle of a stream: an int, a stream of torch, CuPy or numba, or one with ``__cuda_stream__`` (cuda.core)."""
    if stream is None:
        return 0
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        described = protocol() if callable(protocol) else protocol
        return int(described[1])
    for attribute in ("cuda_stream", "ptr", "handle"):  # torch, CuPy, numba and cuda.core
        handle = getattr(stream, attribute, None)
        if handle is not None:
            return int(getattr(handle, "value", handle) or 0)
    raise LaunchError(f"{type(stream).__name__} is not a CUDA stream: pass its handle as an int, "
                      "or an object of torch, CuPy, numba or cuda.core")
