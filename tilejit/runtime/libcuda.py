"""libcuda's functions, called through ctypes. Importing cuda.bindings for them would take longer than all else in a launch
from the cache.

Types and the versions of symbols are those of cuda.h (CUDA driver API reference, "Modules").
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from typing import Any

from ..errors import LaunchError

_STICKY = {700, 702, 710, 714, 715, 716, 717, 718, 719, 721}  # errors after which a context is of no more use

_NOT_INITIALIZED = 3

_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int, "u": ctypes.c_uint, "q": ctypes.c_uint64, "z": ctypes.c_size_t, "f": ctypes.c_float,
          "s": ctypes.c_char_p}

# name: (symbol, the result that comes back through the first parameter, the parameters after it): p a handle or host
# address, q a device address, i an int or enumerator, u an unsigned, z a size, f a float, s bytes that end in 0
_FUNCTIONS = {
    "cuInit": ("cuInit", "", "u"),
    "cuDeviceGetCount": ("cuDeviceGetCount", "i", ""),
    "cuDeviceGet": ("cuDeviceGet", "i", "i"),
    "cuDeviceGetAttribute": ("cuDeviceGetAttribute", "i", "ii"),
    "cuDeviceGetName": ("cuDeviceGetName", "", "pii"),
    "cuDevicePrimaryCtxRetain": ("cuDevicePrimaryCtxRetain", "p", "i"),
    "cuCtxGetCurrent": ("cuCtxGetCurrent", "p", ""),
    "cuCtxSetCurrent": ("cuCtxSetCurrent", "", "p"),
    "cuCtxPushCurrent": ("cuCtxPushCurrent_v2", "", "p"),
    "cuCtxPopCurrent": ("cuCtxPopCurrent_v2", "p", ""),
    "cuCtxSynchronize": ("cuCtxSynchronize", "", ""),
    "cuModuleLoadData": ("cuModuleLoadData", "p", "s"),
    "cuModuleUnload": ("cuModuleUnload", "", "p"),
    "cuModuleGetFunction": ("cuModuleGetFunction", "p", "ps"),
    "cuFuncGetAttribute": ("cuFuncGetAttribute", "i", "ip"),
    "cuFuncSetAttribute": ("cuFuncSetAttribute", "", "pii"),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": ("cuOccupancyMaxActiveBlocksPerMultiprocessor", "i", "piz"),
    "cuOccupancyMaxActiveClusters": ("cuOccupancyMaxActiveClusters", "i", "pp"),
    "cuMemAlloc": ("cuMemAlloc_v2", "q", "z"),
    "cuMemFree": ("cuMemFree_v2", "", "q"),
    "cuMemcpyHtoD": ("cuMemcpyHtoD_v2", "", "qpz"),
    "cuMemcpyHtoDAsync": ("cuMemcpyHtoDAsync_v2", "", "qpzp"),
    "cuMemcpyDtoH": ("cuMemcpyDtoH_v2", "", "pqz"),
    "cuMemcpyDtoHAsync": ("cuMemcpyDtoHAsync_v2", "", "pqzp"),
    "cuMemcpyDtoDAsync": ("cuMemcpyDtoDAsync_v2", "", "qqzp"),
    "cuMemsetD8Async": ("cuMemsetD8Async", "", "quzp"),
    "cuPointerGetAttribute": ("cuPointerGetAttribute", "i", "iq"),
    "cuStreamCreate": ("cuStreamCreate", "p", "u"),
    "cuStreamDestroy": ("cuStreamDestroy_v2", "", "p"),
    "cuStreamSynchronize": ("cuStreamSynchronize", "", "p"),
    "cuStreamGetCaptureInfo": ("cuStreamGetCaptureInfo_v2", "", "pppppp"),
    "cuStreamWaitEvent": ("cuStreamWaitEvent", "", "ppu"),
    "cuEventCreate": ("cuEventCreate", "p", "u"),
    "cuEventDestroy": ("cuEventDestroy_v2", "", "p"),
    "cuEventRecord": ("cuEventRecord", "", "pp"),
    "cuEventSynchronize": ("cuEventSynchronize", "", "p"),
    "cuEventElapsedTime": ("cuEventElapsedTime", "f", "pp"),
}

DEVICE_ATTRIBUTES = {"COMPUTE_CAPABILITY_MAJOR": 75, "COMPUTE_CAPABILITY_MINOR": 76, "MULTIPROCESSOR_COUNT": 16,
                     "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 97}
FUNCTION_ATTRIBUTES = {"NUM_REGS": 4, "MAX_DYNAMIC_SHARED_SIZE_BYTES": 8, "REQUIRED_CLUSTER_WIDTH": 11, "REQUIRED_CLUSTER_HEIGHT": 12,
                       "REQUIRED_CLUSTER_DEPTH": 13, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED": 14}
POINTER_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


def device_files() -> bool:
    """Whether the system shows a GPU of NVIDIA's. This leaves the driver alone: where it has started, forked processes cannot use it."""
    return any(map(os.path.exists, ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")))


def opened() -> ctypes.CDLL:
    """libcuda as it lies on the system, which may not have started. OSError where there is none."""
    return ctypes.CDLL("libcuda.so.1")


@lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """libcuda, initialised. LaunchError when there is no usable driver."""
    try:
        found = opened()
    except OSError as error:
        raise LaunchError("no CUDA driver was found (libcuda.so.1). Kernels on host arrays run in the simulator; for a GPU, "
                          f"install NVIDIA's driver or give the container the GPU. ({str(error)[:200]})") from None
    code = found.cuInit(0)
    if code:
        raise LaunchError(f"the CUDA driver did not start: {error_text(code)}")
    return found


@lru_cache(maxsize=None)
def _function(name: str):
    """(the function, the type of its result)."""
    symbol, result, parameters = _FUNCTIONS[name]
    function = getattr(library(), symbol, None)
    if function is None:
        raise LaunchError(f"the driver has no {symbol}: it is too old for this; install a newer one")
    function.restype = ctypes.c_int
    function.argtypes = [ctypes.c_void_p] * bool(result) + [_TYPES[kind] for kind in parameters]
    return function, _TYPES.get(result)


def call(name: str, *args, doing: str) -> Any:
    """The result of a function of the driver, None if it gives none. LaunchError if it fails: `doing` says at what."""
    function, kind = _function(name)
    if kind is None:
        code, result = function(*args), None
    else:
        result = kind()
        code, result = function(ctypes.addressof(result), *args), result
    if code:
        raise LaunchError(f"{doing} failed: {error_text(code)}")
    return None if result is None else result.value or 0


def error_text(code: int) -> str:
    """``"CUDA_ERROR_INVALID_VALUE (1)"``, with a word on errors that outlive the call."""
    text = f"{_error_name(code)} ({code})"
    if code == _NOT_INITIALIZED:
        text += "; a process that was forked after CUDA had started cannot use it: start processes by multiprocessing's \"spawn\""
    if code in _STICKY:
        text += "; a kernel launched earlier failed, and this process can use the GPU no more"
    return text


def _error_name(code: int) -> str:
    """What the driver calls an error; it knows that before it has started, and also where it does not start."""
    name = ctypes.c_char_p()
    try:
        opened().cuGetErrorName(code, ctypes.byref(name))
    except OSError:
        pass
    return name.value.decode() if name.value else "CUDA error"
