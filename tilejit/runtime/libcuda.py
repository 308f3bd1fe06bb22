"""Reaches the CUDA driver through `cuda.bindings`, which is loaded at the first GPU work: it takes 0.08 s.

Handles and addresses are ints on our side."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from ..errors import LaunchError

_STICKY = {700, 702, 710, 714, 715, 716, 717, 718, 719, 721}  # errors after which a context cannot be used any more

_NOT_INITIALIZED = 3

USER_OBJECT_NO_DESTRUCTOR_SYNC = GRAPH_USER_OBJECT_MOVE = CAPTURE_ACTIVE = 1

# The functions that the native launcher calls, and the versions of CUDA whose forms of them it calls (cudaTypedefs.h).
ENTRY_POINTS = {"cuLaunchKernelEx": 11060, "cuTensorMapEncodeTiled": 12000, "cuTensorMapEncodeIm2col": 12000,
                "cuTensorMapEncodeIm2colWide": 12080, "cuCtxGetCurrent": 4000, "cuCtxSetCurrent": 4000}


def device_files() -> bool:
    """Whether the system has an NVIDIA GPU, judged by its device files. This does not initialise the driver, which
    forked processes could not use then."""
    return any(map(os.path.exists, ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")))


@cache
def bindings() -> Any:
    """`cuda.bindings.driver`, whether or not there is a driver. LaunchError if the package is not installed."""
    try:
        return import_module("cuda.bindings.driver")
    except ImportError as error:
        raise LaunchError(f"the CUDA driver is reached through cuda.bindings: pip install cuda-bindings "
                          f"({str(error)[:200]})") from None


@cache
def library() -> Any:
    """`cuda.bindings.driver`, with the driver initialised. LaunchError if there is no usable driver."""
    found = bindings()
    try:
        code, = found.cuInit(0)
    except RuntimeError as error:  # it is not found, or none
        raise LaunchError("no CUDA driver was found (libcuda.so.1). Kernels on host arrays run in the simulator; "
                          "for a GPU, install NVIDIA's driver or give the container the GPU. "
                          f"({str(error)[:200]})") from None
    if code:
        raise LaunchError(f"the CUDA driver did not start: {error_text(int(code))}")
    return found


def enumerator(kind: str, name: str) -> Any:
    """A member of one of the driver's enumerations."""
    return getattr(getattr(bindings(), kind), name)


def call(name: str, *args: Any, doing: str) -> Any:
    """Call a function of the driver by its name and with the arguments that cuda.bindings gives it. Returns what it
    returns after the code: None, a value, or a list. LaunchError if it fails; `doing` names the action in the
    message."""
    try:
        code, *results = getattr(library(), name)(*args)
    except RuntimeError:  # the driver has no such function
        raise LaunchError(f"the driver has no {name}: it is too old for this; install a newer one") from None
    if code:
        raise LaunchError(f"{doing} failed: {error_text(int(code))}")
    results = [x if isinstance(x, (bytes, float, list, tuple)) or x is None else int(x) for x in results]
    if len(results) < 2:
        return results[0] if results else None
    return results


def entry_point(name: str) -> int:
    """The address of one of `ENTRY_POINTS`; 0 if the driver does not have it."""
    with suppress(LaunchError):
        address, _ = call("cuGetProcAddress", name.encode(), ENTRY_POINTS[name], 0, doing=f"looking for {name}")
        return address or 0
    return 0


def error_text(code: int) -> str:
    """``"CUDA_ERROR_INVALID_VALUE (1)"``, with an explanation for errors that outlive the call."""
    text = f"{_error_name(code)} ({code})"
    if code == _NOT_INITIALIZED:
        text += ("; a process that was forked after CUDA had started cannot use it: "
                 "start processes by multiprocessing's \"spawn\"")
    if code in _STICKY:
        text += "; a kernel launched earlier failed, and this process can use the GPU no more"
    return text


def _error_name(code: int) -> str:
    """The name of an error that cuda.bindings knows."""
    with suppress(LaunchError, ValueError):
        return str(bindings().CUresult(code).name)
    return "CUDA error"
