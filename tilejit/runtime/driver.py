"""The CUDA driver: devices, contexts, modules, memory, streams. The only file that imports cuda.bindings, when first used.

Handles are ints. Everything works in a device's primary context, which torch, CuPy and the CUDA runtime share, and
leaves the calling thread's current context as it was.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from tilejit.errors import LaunchError

# compute capability -> the target whose cubins it runs
_TARGETS = {(8, 0): "sm_80", (8, 6): "sm_86", (8, 7): "sm_80", (8, 9): "sm_89", (9, 0): "sm_90a", (10, 0): "sm_100a",
            (10, 3): "sm_103a", (12, 0): "sm_120a"}

_STICKY = {700, 702, 710, 714, 715, 716, 717, 718, 719, 721}  # errors after which a context is of no more use


@lru_cache(maxsize=None)
def _api():
    """cuda.bindings.driver, initialised. LaunchError when there is no usable driver."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise LaunchError(f"running on a GPU needs cuda-bindings (pip install cuda-bindings): {error}") from None
    try:
        code, = driver.cuInit(0)
    except Exception as error:  # cuda.bindings raises its own kinds where libcuda is absent
        raise LaunchError("no CUDA driver was found (libcuda.so.1). Kernels on host arrays run in the simulator; for a GPU, "
                          f"install NVIDIA's driver or give the container the GPU. ({str(error).splitlines()[0][:200]})") from None
    if int(code):
        raise LaunchError(f"the CUDA driver did not start: {error_text(int(code))}")
    return driver


def error_text(code: int) -> str:
    """``"CUDA_ERROR_INVALID_VALUE (1)"``, with a word on errors that outlive the call."""
    try:
        from cuda.bindings import driver

        name = driver.CUresult(code).name
    except (ImportError, ValueError):
        name = "CUDA error"
    text = f"{name} ({code})"
    if code in _STICKY:
        text += "; a kernel launched earlier failed, and this process can use the GPU no more"
    return text


def _check(result, doing: str):
    """The values of a call of cuda.bindings. LaunchError if it failed."""
    code = int(result[0])
    if code:
        raise LaunchError(f"{doing} failed: {error_text(code)}")
    return result[1] if len(result) == 2 else result[1:]


def available() -> bool:
    """Whether there is a driver and at least one GPU."""
    try:
        return device_count() > 0
    except LaunchError:
        return False


@lru_cache(maxsize=None)
def device_count() -> int:
    """Number of GPUs. LaunchError when there is no driver."""
    return _check(_api().cuDeviceGetCount(), "counting the devices")


@lru_cache(maxsize=None)
def _device(device: int):
    count = device_count()
    if not 0 <= device < count:
        raise LaunchError(f"there is no device {device}; there are {count}, numbered from 0")
    return _check(_api().cuDeviceGet(device), f"device {device}")


@lru_cache(maxsize=None)
def attribute(name: str, device: int = 0) -> int:
    """A device attribute by the driver's name without its prefix, such as "MULTIPROCESSOR_COUNT"."""
    api = _api()
    key = getattr(api.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_" + name)
    return _check(api.cuDeviceGetAttribute(key, _device(device)), f"attribute {name} of device {device}")


@lru_cache(maxsize=None)
def name(device: int = 0) -> str:
    """The device's name, such as "NVIDIA H200"."""
    return _check(_api().cuDeviceGetName(128, _device(device)), f"the name of device {device}").split(b"\0")[0].decode()


@lru_cache(maxsize=None)
def target(device: int = 0) -> str:
    """The target to compile for, such as "sm_90a". LaunchError for a device that tilejit does not know."""
    capability = attribute("COMPUTE_CAPABILITY_MAJOR", device), attribute("COMPUTE_CAPABILITY_MINOR", device)
    if capability not in _TARGETS:
        known = ", ".join(f"{major}.{minor}" for major, minor in _TARGETS)
        raise LaunchError(f"{name(device)} has compute capability {capability[0]}.{capability[1]}; kernels run on {known}")
    return _TARGETS[capability]


def multiprocessors(device: int = 0) -> int:
    """Number of streaming multiprocessors."""
    return attribute("MULTIPROCESSOR_COUNT", device)


def shared_limit(device: int = 0) -> int:
    """Bytes of shared memory that a CTA can opt in to."""
    return attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", device)


# -- contexts --------------------------------------------------------------------------------------------------------

@lru_cache(maxsize=None)
def context(device: int = 0) -> int:
    """The device's primary context, retained for the life of the process."""
    return int(_check(_api().cuDevicePrimaryCtxRetain(_device(device)), f"the context of device {device}"))


@contextmanager
def in_context(device: int = 0):
    """Inside, the device's primary context is current in this thread; afterwards what was before."""
    api = _api()
    wanted = context(device)
    current = int(_check(api.cuCtxGetCurrent(), "the current context"))
    if current == wanted:
        yield
        return
    if current == 0 and device == 0:
        _check(api.cuCtxSetCurrent(wanted), "making the context current")  # left so: the next call finds it
        yield
        return
    _check(api.cuCtxPushCurrent(wanted), "making the context current")
    try:
        yield
    finally:
        api.cuCtxPopCurrent()


# -- modules and functions -------------------------------------------------------------------------------------------

def load_module(image: bytes | str, device: int = 0) -> int:
    """Load a cubin, or PTX text that the driver compiles. LaunchError when the device does not take it."""
    data = image.encode() + b"\0" if isinstance(image, str) else image
    with in_context(device):
        result = _api().cuModuleLoadData(data)
    what = "compiling the PTX" if isinstance(image, str) else "loading the cubin"
    return int(_check(result, f"{what} for device {device} ({target(device)})"))


def unload_module(module: int, device: int = 0) -> None:
    """Unload what `load_module` loaded; its functions may not be in use."""
    with in_context(device):
        _check(_api().cuModuleUnload(module), "unloading a module")


def get_function(module: int, name: str, device: int = 0) -> int:
    """The kernel called `name` in a module."""
    with in_context(device):
        return int(_check(_api().cuModuleGetFunction(module, name.encode()), f"finding the kernel {name}"))


def function_attribute(function: int, name: str, device: int = 0) -> int:
    """A function attribute by the driver's name without its prefix, such as "NUM_REGS"."""
    api = _api()
    key = getattr(api.CUfunction_attribute, "CU_FUNC_ATTRIBUTE_" + name)
    with in_context(device):
        return _check(api.cuFuncGetAttribute(key, function), f"attribute {name} of a kernel")


def _set_function_attribute(function: int, name: str, value: int, device: int) -> None:
    api = _api()
    key = getattr(api.CUfunction_attribute, "CU_FUNC_ATTRIBUTE_" + name)
    with in_context(device):
        _check(api.cuFuncSetAttribute(function, key, value), f"setting {name} of a kernel to {value}")


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
    """The cluster that the kernel's code requires, (0, 0, 0) if none; such a kernel is launched without naming one."""
    return tuple(function_attribute(function, f"REQUIRED_CLUSTER_{part}", device) for part in ("WIDTH", "HEIGHT", "DEPTH"))


def active_ctas(function: int, threads: int, shared: int, device: int = 0) -> int:
    """How many CTAs of the kernel one multiprocessor holds."""
    with in_context(device):
        return _check(_api().cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, shared), "the kernel's occupancy")


def active_clusters(function: int, threads: int, shared: int, cluster, device: int = 0) -> int:
    """How many clusters of the kernel the device holds at once; 0 where such clusters cannot be placed."""
    api = _api()
    config = api.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = cluster
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared
    entry = api.CUlaunchAttribute()
    entry.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    entry.value.clusterDim.x, entry.value.clusterDim.y, entry.value.clusterDim.z = cluster
    config.attrs, config.numAttrs = [entry], 1
    with in_context(device):
        return _check(api.cuOccupancyMaxActiveClusters(function, config), "the kernel's occupancy in clusters")


# -- memory and streams ----------------------------------------------------------------------------------------------

def allocate(nbytes: int, device: int = 0) -> int:
    """Device memory, aligned to 256 bytes at least; give it back with `free`."""
    with in_context(device):
        return int(_check(_api().cuMemAlloc(nbytes), f"allocating {nbytes} bytes on device {device}"))


def free(address: int, device: int = 0) -> None:
    """Give back what `allocate` gave. Errors are ignored: this runs when objects are collected."""
    try:
        with in_context(device):
            _api().cuMemFree(address)
    except Exception:  # the driver may be shutting down, or the context be lost
        pass


def copy_to_device(to: int, source: int, nbytes: int, device: int = 0, stream: int | None = None) -> None:
    """Copy host memory at `source` to the device; asynchronous if a stream is given."""
    with in_context(device):
        api = _api()
        result = api.cuMemcpyHtoD(to, source, nbytes) if stream is None else api.cuMemcpyHtoDAsync(to, source, nbytes, stream)
    _check(result, f"copying {nbytes} bytes to device {device}")


def copy_to_host(to: int, source: int, nbytes: int, device: int = 0, stream: int | None = None) -> None:
    """Copy device memory at `source` to the host; asynchronous if a stream is given."""
    with in_context(device):
        api = _api()
        result = api.cuMemcpyDtoH(to, source, nbytes) if stream is None else api.cuMemcpyDtoHAsync(to, source, nbytes, stream)
    _check(result, f"copying {nbytes} bytes from device {device}")


def copy_on_device(to: int, source: int, nbytes: int, device: int = 0, stream: int = 0) -> None:
    """Copy within the device's memory, on a stream."""
    with in_context(device):
        _check(_api().cuMemcpyDtoDAsync(to, source, nbytes, stream), f"copying {nbytes} bytes on device {device}")


def fill(address: int, value: int, nbytes: int, device: int = 0, stream: int = 0) -> None:
    """Set `nbytes` bytes of device memory to a byte, on a stream."""
    with in_context(device):
        _check(_api().cuMemsetD8Async(address, value, nbytes, stream), f"filling {nbytes} bytes on device {device}")


def device_of_pointer(address: int) -> int:
    """The ordinal of the device that holds an address; 0 for a null pointer."""
    if address == 0:
        return 0
    api = _api()
    key = api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(_check(api.cuPointerGetAttribute(key, address), f"finding the device of the address {address:#x}"))


def create_stream(device: int = 0) -> int:
    """A new stream that does not wait for the legacy default stream."""
    with in_context(device):
        return int(_check(_api().cuStreamCreate(1), "creating a stream"))


def destroy_stream(stream: int, device: int = 0) -> None:
    """Destroy what `create_stream` made, once its work is done."""
    with in_context(device):
        _check(_api().cuStreamDestroy(stream), "destroying a stream")


def synchronize(device: int = 0, stream: int | None = None) -> None:
    """Wait for a stream, or for everything on the device. LaunchError if a kernel failed meanwhile."""
    with in_context(device):
        result = _api().cuCtxSynchronize() if stream is None else _api().cuStreamSynchronize(stream)
    _check(result, "a kernel" if stream is None else "a kernel on the stream")


class Event:
    """A point in a stream's work, for ordering streams and for timing."""

    def __init__(self, device: int = 0, timing: bool = True):
        self.device = device
        with in_context(device):
            self._handle = int(_check(_api().cuEventCreate(0 if timing else 2), "creating an event"))

    def record(self, stream: int = 0) -> "Event":
        with in_context(self.device):
            _check(_api().cuEventRecord(self._handle, stream), "recording an event")
        return self

    def wait(self) -> "Event":
        """Wait on the host until the work before the event is done."""
        with in_context(self.device):
            _check(_api().cuEventSynchronize(self._handle), "a kernel before an event")
        return self

    def since(self, start: "Event") -> float:
        """Milliseconds between two recorded events that have happened."""
        with in_context(self.device):
            return float(_check(_api().cuEventElapsedTime(start._handle, self._handle), "timing"))

    def __del__(self):
        try:
            with in_context(self.device):
                _api().cuEventDestroy(self._handle)
        except Exception:  # at interpreter exit, or never created
            pass


def wait_stream(stream: int, other: int, device: int = 0) -> None:
    """What is issued on `stream` from now on waits for what has been issued on `other`."""
    event = Event(device, timing=False).record(other)
    with in_context(device):
        _check(_api().cuStreamWaitEvent(stream, event._handle, 0), "ordering two streams")


# -- tensor maps and entry points ------------------------------------------------------------------------------------

@dataclass(frozen=True)
class EntryPoints:
    """Addresses of the driver's functions that launching calls without cuda.bindings."""

    launch: int          # cuLaunchKernelEx
    encode_tiled: int    # cuTensorMapEncodeTiled
    encode_im2col: int   # cuTensorMapEncodeIm2col
    get_context: int     # cuCtxGetCurrent
    set_context: int     # cuCtxSetCurrent


@lru_cache(maxsize=None)
def entry_points() -> EntryPoints:
    """The driver's own. LaunchError when there is no driver."""
    _api()
    library = ctypes.CDLL("libcuda.so.1")

    def address(symbol: str) -> int:
        function = getattr(library, symbol, None)
        return ctypes.cast(function, ctypes.c_void_p).value if function is not None else 0

    return EntryPoints(*map(address, ("cuLaunchKernelEx", "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col",
                                      "cuCtxGetCurrent", "cuCtxSetCurrent")))


def encode_tiled(device: int = 0, **fields) -> bytes:
    """The 128 bytes of a tiled tensor map; the fields are those of `tensormap.check_tiled`."""
    return _encode("encode_tiled", device, fields)


def encode_im2col(device: int = 0, **fields) -> bytes:
    """The 128 bytes of an im2col tensor map; the fields are those of `tensormap.check_im2col`."""
    return _encode("encode_im2col", device, fields)


def _encode(kind: str, device: int, fields: dict) -> bytes:
    from tilejit.runtime import tensormap

    room = ctypes.create_string_buffer(tensormap.NBYTES + tensormap.ALIGNMENT)
    start = -ctypes.addressof(room) % tensormap.ALIGNMENT
    blackwell = target(device) in ("sm_100a", "sm_103a", "sm_120a")
    with in_context(device):
        getattr(tensormap, kind)(getattr(entry_points(), kind), ctypes.addressof(room) + start, blackwell=blackwell, **fields)
    return room.raw[start: start + tensormap.NBYTES]
