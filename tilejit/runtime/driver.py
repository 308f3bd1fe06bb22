"""The CUDA driver: devices, contexts, modules, memory, streams.

Handles are ints. Everything works in a device's primary context, which torch, CuPy and the CUDA runtime share, and
leaves the calling thread's current context as it was; only where there was none, device 0's stays current."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from numbers import Integral
from typing import Any

from ..errors import LaunchError
from .libcuda import (
    CAPTURE_ACTIVE,
    GRAPH_USER_OBJECT_MOVE,
    USER_OBJECT_NO_DESTRUCTOR_SYNC,
    bindings,
    call,
    entry_point,
    enumerator,
    library,
)
from .tensormap import ALIGNMENT, NBYTES, TensorMap

# compute capability -> the target whose cubins it runs
_TARGETS = {(8, 0): "sm_80", (8, 6): "sm_86", (8, 7): "sm_80", (8, 9): "sm_89", (9, 0): "sm_90a", (10, 0): "sm_100a",
            (10, 3): "sm_103a", (12, 0): "sm_120a"}


def available() -> bool:
    """Whether there is a driver and at least one GPU."""
    try:
        return device_count() > 0
    except LaunchError:
        return False


def version() -> int:
    """The newest CUDA that the driver knows, as 1000 * major + 10 * minor. LaunchError if there is no driver."""
    found: int = call("cuDriverGetVersion", doing="the driver's version")
    return found


@cache
def device_count() -> int:
    """The number of GPUs. LaunchError if there is no driver."""
    return call("cuDeviceGetCount", doing="counting the devices")


def ordinal(device: Any) -> Any:
    """The number of a device that is given by its number or as a ``cuda.core.Device``; anything else as it is."""
    return getattr(device, "device_id", device)


@cache
def _device(device: int):
    count = device_count()
    if isinstance(device, bool) or not isinstance(device, Integral):
        raise LaunchError(f"a device is a number from 0, not {device!r}")
    if not 0 <= device < count:
        raise LaunchError(f"there is no device {device}; there are {count}, numbered from 0")
    return call("cuDeviceGet", device, doing=f"device {device}")


@cache
def attribute(name: str, device: int = 0) -> int:
    """A device attribute by the driver's name without its prefix, such as "MULTIPROCESSOR_COUNT"."""
    return call("cuDeviceGetAttribute", enumerator("CUdevice_attribute", f"CU_DEVICE_ATTRIBUTE_{name}"),
                _device(device), doing=f"attribute {name} of device {device}")


@cache
def name(device: int = 0) -> str:
    """The device's name, such as "NVIDIA H200"."""
    found = call("cuDeviceGetName", 128, _device(device), doing=f"the name of device {device}")
    return found.split(b"\0")[0].decode()


@cache
def target(device: int = 0) -> str:
    """The target to compile for, such as "sm_90a". LaunchError for a device that tilejit does not know."""
    capability = attribute("COMPUTE_CAPABILITY_MAJOR", device), attribute("COMPUTE_CAPABILITY_MINOR", device)
    if capability not in _TARGETS:
        known = ", ".join(f"{major}.{minor}" for major, minor in _TARGETS)
        raise LaunchError(f"{name(device)} has compute capability {capability[0]}.{capability[1]}; "
                          f"kernels run on {known}")
    return _TARGETS[capability]


def multiprocessors(device: int = 0) -> int:
    """Number of streaming multiprocessors."""
    return attribute("MULTIPROCESSOR_COUNT", device)


def shared_limit(device: int = 0) -> int:
    """Bytes of shared memory that a CTA can opt in to."""
    return attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", device)


# -- contexts --------------------------------------------------------------------------------------------------------

@cache
def context(device: int = 0) -> int:
    """The device's primary context, retained for the life of the process."""
    return call("cuDevicePrimaryCtxRetain", _device(device), doing=f"the context of device {device}")


@contextmanager
def in_context(device: int = 0):
    """A context manager in which the device's primary context is current in this thread. Afterwards the one before is,
    or, where there was none, still device 0's."""
    wanted = context(device)
    current = call("cuCtxGetCurrent", doing="the current context")
    if current == wanted:
        yield
        return
    if current == 0 and device == 0:
        # not undone, so that the next call finds it current
        call("cuCtxSetCurrent", wanted, doing="making the context current")
        yield
        return
    call("cuCtxPushCurrent", wanted, doing="making the context current")
    try:
        yield
    finally:
        with suppress(LaunchError):  # if the context is lost, the error of the body says more
            call("cuCtxPopCurrent", doing="going back to the context before")


# -- modules and functions -------------------------------------------------------------------------------------------

def load_module(image: bytes | str, device: int = 0) -> int:
    """Load a cubin, or PTX text that the driver compiles. LaunchError if the device does not take it."""
    data = image.encode() + b"\0" if isinstance(image, str) else image
    what = "compiling the PTX" if isinstance(image, str) else "loading the cubin"
    with in_context(device):
        return call("cuModuleLoadData", data, doing=f"{what} for device {device} ({target(device)})")


def get_function(module: int, name: str, device: int = 0) -> int:
    """The kernel called `name` in a module."""
    with in_context(device):
        return call("cuModuleGetFunction", module, name.encode(), doing=f"finding the kernel {name}")


def global_address(module: int, name: str, device: int = 0) -> int:
    """The address of the variable called `name` in a module."""
    with in_context(device):
        address, _ = call("cuModuleGetGlobal", module, name.encode(), doing=f"finding the variable {name}")
    return address


def function_attribute(function: int, name: str, device: int = 0) -> int:
    """A function attribute by the driver's name without its prefix, such as "NUM_REGS"."""
    with in_context(device):
        return call("cuFuncGetAttribute", _function_attribute(name), function, doing=f"attribute {name} of a kernel")


def _function_attribute(name: str):
    return enumerator("CUfunction_attribute", f"CU_FUNC_ATTRIBUTE_{name}")


def _set_function_attribute(function: int, name: str, value: int, device: int) -> None:
    with in_context(device):
        call("cuFuncSetAttribute", function, _function_attribute(name), value,
             doing=f"setting {name} of a kernel to {value}")


def set_max_dynamic_shared(function: int, nbytes: int, device: int = 0) -> None:
    """Let the kernel be launched with `nbytes` of dynamic shared memory. LaunchError above the device's limit."""
    limit = shared_limit(device)
    if nbytes > limit:
        raise LaunchError(f"the kernel needs {nbytes} bytes of shared memory; {name(device)} has {limit} for a CTA")
    if nbytes > 48 * 1024:
        _set_function_attribute(function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", nbytes, device)


def allow_large_clusters(function: int, device: int = 0) -> None:
    """Let the kernel be launched with clusters of more than 8 CTAs."""
    _set_function_attribute(function, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1, device)


def required_cluster(function: int, device: int = 0) -> tuple[int, int, int]:
    """The cluster shape that the kernel's code requires, (0, 0, 0) if none. Such a kernel is launched without a cluster
    attribute."""
    width, height, depth = (function_attribute(function, f"REQUIRED_CLUSTER_{part}", device)
                            for part in ("WIDTH", "HEIGHT", "DEPTH"))
    return width, height, depth


def active_ctas(function: int, threads: int, shared: int, device: int = 0) -> int:
    """The number of CTAs of the kernel that fit on an SM at the same time."""
    with in_context(device):
        return call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, shared,
                    doing="the kernel's occupancy")


def active_clusters(function: int, threads: int, shared: int, cluster, device: int = 0) -> int:
    """The number of clusters of the kernel that fit on the device at the same time;
    0 if such clusters cannot be placed."""
    cuda = bindings()
    attribute, config = cuda.CUlaunchAttribute(), cuda.CUlaunchConfig()
    attribute.id = enumerator("CUlaunchAttributeID", "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION")
    size = attribute.value.clusterDim
    size.x, size.y, size.z = config.gridDimX, config.gridDimY, config.gridDimZ = cluster
    config.blockDimX, config.blockDimY, config.blockDimZ, config.sharedMemBytes = threads, 1, 1, shared
    config.attrs, config.numAttrs = [attribute], 1
    with in_context(device):
        return call("cuOccupancyMaxActiveClusters", function, config,
                    doing="the kernel's occupancy in clusters")


# -- memory and streams ----------------------------------------------------------------------------------------------

def allocate(nbytes: int, device: int = 0) -> int:
    """Device memory, aligned to at least 256 bytes; return it with `free`."""
    with in_context(device):
        return call("cuMemAlloc", nbytes, doing=f"allocating {nbytes} bytes on device {device}")


def free_memory(device: int = 0) -> int:
    """Bytes of the device's memory that no process uses."""
    with in_context(device):
        free, _ = call("cuMemGetInfo", doing=f"asking for the free memory of device {device}")
    return free


@lru_cache
def unused_address(device: int) -> int:
    """The address of 256 bytes that nothing reads or writes, for tensor maps of arrays without elements."""
    return allocate(256, device)


def free(address: int, device: int = 0) -> None:
    """Return memory of `allocate`. Errors are ignored, since this runs when objects are collected."""
    try:
        with in_context(device):
            call("cuMemFree", address, doing="freeing memory")
    except Exception:  # the driver may be shutting down, or the context be lost
        pass


def copy_to_device(to: int, source: int, nbytes: int, device: int = 0, stream: int | None = None) -> None:
    """Copy host memory at `source` to the device; asynchronous if a stream is given."""
    _copy("cuMemcpyHtoD", to, source, nbytes, device, stream, f"copying {nbytes} bytes to device {device}")


def copy_to_host(to: int, source: int, nbytes: int, device: int = 0, stream: int | None = None) -> None:
    """Copy device memory at `source` to the host; asynchronous if a stream is given."""
    _copy("cuMemcpyDtoH", to, source, nbytes, device, stream, f"copying {nbytes} bytes from device {device}")


def _copy(name: str, to: int, source: int, nbytes: int, device: int, stream: int | None, doing: str) -> None:
    with in_context(device):
        if stream is None:
            call(name, to, source, nbytes, doing=doing)
        else:
            call(name + "Async", to, source, nbytes, stream, doing=doing)


def copy_on_device(to: int, source: int, nbytes: int, device: int = 0, stream: int = 0) -> None:
    """Copy within the device's memory, on a stream."""
    with in_context(device):
        call("cuMemcpyDtoDAsync", to, source, nbytes, stream, doing=f"copying {nbytes} bytes on device {device}")


def fill(address: int, value: int, nbytes: int, device: int = 0, stream: int = 0) -> None:
    """Set `nbytes` bytes of device memory to a byte, on a stream."""
    with in_context(device):
        call("cuMemsetD8Async", address, value, nbytes, stream, doing=f"filling {nbytes} bytes on device {device}")


def device_of_pointer(address: int) -> int:
    """The ordinal of the device that holds an address; 0 for a null pointer."""
    if address == 0:
        return 0
    ordinal = enumerator("CUpointer_attribute", "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL")
    return call("cuPointerGetAttribute", ordinal, address,
                doing=f"finding the device of the address {address:#x}")


def create_stream(device: int = 0, blocking: bool = False) -> int:
    """A new stream. Only a `blocking` one and the legacy default stream wait for each other."""
    with in_context(device):
        return call("cuStreamCreate", 0 if blocking else 1, doing="creating a stream")


def destroy_stream(stream: int, device: int = 0) -> None:
    """Destroy a stream of `create_stream` once its work is done."""
    with in_context(device):
        call("cuStreamDestroy", stream, doing="destroying a stream")


def capture_id(stream: int, device: int = 0) -> int:
    """The CUDA graph capture that a stream is part of, as a number unique to the capture;
    0 if it is not being captured."""
    return _capture(stream, device)[0]


def _capture(stream: int, device: int) -> tuple[int, int | None]:
    """(the number of the capture that a stream is part of, or 0; the graph that it makes)."""
    with in_context(device):
        status, number, graph, *_ = call("cuStreamGetCaptureInfo", stream, doing="asking whether a stream is captured")
    # Whatever follows in a capture that is invalidated fails by itself.
    return (number + 1, graph) if status == CAPTURE_ACTIVE else (0, None)


class GraphLife:
    """The life of the CUDA graph into which a stream is being captured,
    and of all that is instantiated or cloned from it.

    The graph owns a user object. When the last of its owners is gone and their launches have ended, the driver calls
    a function, in a thread of its own where neither CUDA nor Python may be called. It is libc's `time`, which writes
    the time to a number that was 0. CUDA driver API, "Graph Management"; CUDA C++ Programming Guide, "CUDA User
    Objects"."""

    def __init__(self, stream: int, device: int = 0):
        libc = ctypes.CDLL(None)
        libc.calloc.restype = ctypes.c_void_p
        self._ended = libc.calloc(1, 8)  # never freed, since a graph may end after Python
        with in_context(device):
            owned = call("cuUserObjectCreate", self._ended, ctypes.cast(libc.time, ctypes.c_void_p).value, 1,
                         USER_OBJECT_NO_DESTRUCTOR_SYNC, doing="asking when a graph ends")
            call("cuGraphRetainUserObject", _capture(stream, device)[1], owned, 1, GRAPH_USER_OBJECT_MOVE,
                 doing="asking when a graph ends")

    @property
    def has_ended(self) -> bool:
        return ctypes.c_int64.from_address(self._ended).value != 0


class WorkGraph:
    """A CUDA graph of the work that a function puts on a stream, ready to be launched.

    LaunchError if the stream cannot be captured meanwhile, or the function puts nothing on it; and what the function
    raises. On a blocking stream, work of the function on the legacy default stream is such an error (CUDA C++
    Programming Guide, "CUDA Graphs", "Prohibited and Unhandled Operations")."""

    def __init__(self, work: Callable[[], object], stream: int, device: int = 0):
        self.device, self._executable = device, 0
        relaxed = enumerator("CUstreamCaptureMode", "CU_STREAM_CAPTURE_MODE_RELAXED")
        with in_context(device):
            call("cuStreamBeginCapture", stream, relaxed, doing="beginning to capture a stream")
            try:
                work()
            except BaseException:
                with suppress(LaunchError):  # a capture that an error invalidates ends with that error again
                    self._destroy(call("cuStreamEndCapture", stream, doing="capturing a stream"))
                raise
            graph = call("cuStreamEndCapture", stream, doing="capturing a stream")
            try:
                _, nodes = call("cuGraphGetNodes", graph, doing="counting a graph's nodes")
                if not nodes:
                    raise LaunchError("capturing a stream failed: no work was put on it")
                self._executable = call("cuGraphInstantiate", graph, 0, doing="instantiating a graph")
            finally:
                self._destroy(graph)

    def _destroy(self, graph: int) -> None:
        if graph:
            call("cuGraphDestroy", graph, doing="destroying a graph")

    def launch(self, stream: int) -> None:
        """Put the work on a stream, which need not be the one that was captured."""
        with in_context(self.device):
            call("cuGraphLaunch", self._executable, stream, doing="launching a graph")

    def __del__(self):
        try:
            if self._executable:
                with in_context(self.device):
                    call("cuGraphExecDestroy", self._executable, doing="destroying a graph")
        except Exception:  # at interpreter exit, or never made
            pass


def synchronize(device: int = 0, stream: int | None = None) -> None:
    """Wait for a stream, or for everything on the device. LaunchError if a kernel failed meanwhile."""
    with in_context(device):
        if stream is None:
            call("cuCtxSynchronize", doing="a kernel")
        else:
            call("cuStreamSynchronize", stream, doing="a kernel on the stream")


class Event:
    """A point in a stream's work, for ordering streams and for timing."""

    def __init__(self, device: int = 0, timing: bool = True):
        self.device = device
        with in_context(device):
            self._handle = call("cuEventCreate", 0 if timing else 2, doing="creating an event")

    def record(self, stream: int = 0) -> Event:
        with in_context(self.device):
            call("cuEventRecord", self._handle, stream, doing="recording an event")
        return self

    def wait(self) -> Event:
        """Wait on the host until the work before the event is done."""
        with in_context(self.device):
            call("cuEventSynchronize", self._handle, doing="a kernel before an event")
        return self

    def milliseconds_since(self, start: Event) -> float:
        """Milliseconds between two recorded events that have happened."""
        with in_context(self.device):
            return call("cuEventElapsedTime", start._handle, self._handle, doing="timing")

    def __del__(self):
        try:
            with in_context(self.device):
                call("cuEventDestroy", self._handle, doing="destroying an event")
        except Exception:  # at interpreter exit, or never created
            pass


def wait_stream(stream: int, other: int, device: int = 0) -> None:
    """Make later work on `stream` wait for the work issued so far on `other`."""
    event = Event(device, timing=False).record(other)
    with in_context(device):
        call("cuStreamWaitEvent", stream, event._handle, 0, doing="ordering two streams")


# -- tensor maps and entry points ------------------------------------------------------------------------------------

@dataclass(frozen=True)
class EntryPoints:
    """Addresses of the driver functions that a launch calls."""

    launch: int          # cuLaunchKernelEx
    encode_tiled: int    # cuTensorMapEncodeTiled
    encode_im2col: int   # cuTensorMapEncodeIm2col
    encode_im2col_wide: int  # cuTensorMapEncodeIm2colWide, 0 in drivers before 12.8
    get_context: int     # cuCtxGetCurrent
    set_context: int     # cuCtxSetCurrent


@cache
def entry_points() -> EntryPoints:
    """The entry points of the loaded driver. LaunchError if there is none."""
    library()
    return EntryPoints(*map(entry_point, ("cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col",
                                      "cuTensorMapEncodeIm2colWide", "cuCtxGetCurrent", "cuCtxSetCurrent")))


def encode_tensor_map(device: int = 0, **fields) -> bytes:
    """The 128 bytes of a tensor map; the fields are those of `tensormap.TensorMap`."""
    room = ctypes.create_string_buffer(NBYTES + ALIGNMENT)
    start = -ctypes.addressof(room) % ALIGNMENT
    blackwell = target(device) in ("sm_100a", "sm_103a", "sm_120a")
    with in_context(device):
        TensorMap(blackwell=blackwell, **fields).encode(entry_points(), ctypes.addressof(room) + start)
    return room.raw[start: start + NBYTES]
