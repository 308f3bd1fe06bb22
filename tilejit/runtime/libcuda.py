"""Calls the CUDA driver (libcuda) through ctypes.

Importing cuda.bindings would take longer than the rest of a launch from the cache.

Types, and the versions of symbols, are those of cuda.h (CUDA driver API reference, "Modules")."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache
from typing import Any

from ..errors import LaunchError

_STICKY = {700, 702, 710, 714, 715, 716, 717, 718, 719, 721}  # errors after which a context cannot be used any more

_NOT_INITIALIZED = 3

_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int, "u": ctypes.c_uint, "q": ctypes.c_uint64, "z": ctypes.c_size_t,
          "f": ctypes.c_float, "s": ctypes.c_char_p}

# name -> (symbol, type of the result, which is returned through the first parameter, types of the parameters after it).
# p: handle or host address, q: device address, i: int or enumerator, u: unsigned, z: size, f: float, s:
# zero-terminated bytes
_FUNCTIONS = {
    "cuInit": ("cuInit", "", "u"),
    "cuDriverGetVersion": ("cuDriverGetVersion", "i", ""),
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
    "cuModuleGetGlobal": ("cuModuleGetGlobal_v2", "q", "pps"),
    "cuFuncGetAttribute": ("cuFuncGetAttribute", "i", "ip"),
    "cuFuncSetAttribute": ("cuFuncSetAttribute", "", "pii"),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": ("cuOccupancyMaxActiveBlocksPerMultiprocessor", "i", "piz"),
    "cuOccupancyMaxActiveClusters": ("cuOccupancyMaxActiveClusters", "i", "pp"),
    "cuMemAlloc": ("cuMemAlloc_v2", "q", "z"),
    "cuMemGetInfo": ("cuMemGetInfo_v2", "z", "p"),
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
    "cuStreamBeginCapture": ("cuStreamBeginCapture_v2", "", "pi"),
    "cuStreamEndCapture": ("cuStreamEndCapture", "", "pp"),
    "cuGraphGetNodes": ("cuGraphGetNodes", "", "ppp"),
    "cuGraphInstantiate": ("cuGraphInstantiateWithFlags", "p", "pq"),
    "cuGraphLaunch": ("cuGraphLaunch", "", "pp"),
    "cuGraphDestroy": ("cuGraphDestroy", "", "p"),
    "cuGraphExecDestroy": ("cuGraphExecDestroy", "", "p"),
    "cuUserObjectCreate": ("cuUserObjectCreate", "p", "ppuu"),
    "cuGraphRetainUserObject": ("cuGraphRetainUserObject", "", "ppuu"),
    "cuEventCreate": ("cuEventCreate", "p", "u"),
    "cuEventDestroy": ("cuEventDestroy_v2", "", "p"),
    "cuEventRecord": ("cuEventRecord", "", "pp"),
    "cuEventSynchronize": ("cuEventSynchronize", "", "p"),
    "cuEventElapsedTime": ("cuEventElapsedTime", "f", "pp"),
}

DEVICE_ATTRIBUTES = {"COMPUTE_CAPABILITY_MAJOR": 75, "COMPUTE_CAPABILITY_MINOR": 76, "MULTIPROCESSOR_COUNT": 16,
                     "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 97, "L2_CACHE_SIZE": 38}
FUNCTION_ATTRIBUTES = {"NUM_REGS": 4, "MAX_DYNAMIC_SHARED_SIZE_BYTES": 8, "REQUIRED_CLUSTER_WIDTH": 11,
                       "REQUIRED_CLUSTER_HEIGHT": 12,
                       "REQUIRED_CLUSTER_DEPTH": 13, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED": 14}
POINTER_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
CAPTURE_MODE_RELAXED = 2
USER_OBJECT_NO_DESTRUCTOR_SYNC = GRAPH_USER_OBJECT_MOVE = CAPTURE_ACTIVE = 1


def device_files() -> bool:
    """Whether the system has an NVIDIA GPU, judged by its device files. This does not initialise the driver, which
    forked processes could not use then."""
    return any(map(os.path.exists, ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")))


def open_library() -> ctypes.CDLL:
    """libcuda, loaded but not initialised. OSError if there is none."""
    return ctypes.CDLL("libcuda.so.1")


@cache
def library() -> ctypes.CDLL:
    """libcuda, initialised. LaunchError if there is no usable driver."""
    try:
        found = open_library()
    except OSError as error:
        raise LaunchError("no CUDA driver was found (libcuda.so.1). Kernels on host arrays run in the simulator; "
                          "for a GPU, install NVIDIA's driver or give the container the GPU. "
                          f"({str(error)[:200]})") from None
    code = found.cuInit(0)
    if code:
        raise LaunchError(f"the CUDA driver did not start: {error_text(code)}")
    return found


@cache
def _function(name: str):
    """(the function, the ctypes type of its result or None)."""
    symbol, result, parameters = _FUNCTIONS[name]
    function = getattr(library(), symbol, None)
    if function is None:
        raise LaunchError(f"the driver has no {symbol}: it is too old for this; install a newer one")
    function.restype = ctypes.c_int
    function.argtypes = [ctypes.c_void_p] * bool(result) + [_TYPES[kind] for kind in parameters]
    return function, _TYPES.get(result)


def call(name: str, *args, doing: str) -> Any:
    """Call a function of the driver; returns its result, None if it has none. LaunchError if it fails; `doing` names
    the action in the message."""
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
    """``"CUDA_ERROR_INVALID_VALUE (1)"``, with an explanation for errors that outlive the call."""
    text = f"{_error_name(code)} ({code})"
    if code == _NOT_INITIALIZED:
        text += ("; a process that was forked after CUDA had started cannot use it: "
                 "start processes by multiprocessing's \"spawn\"")
    if code in _STICKY:
        text += "; a kernel launched earlier failed, and this process can use the GPU no more"
    return text


def _error_name(code: int) -> str:
    """The driver's name of an error, which it gives also before, or without, initialisation."""
    name = ctypes.c_char_p()
    with suppress(OSError):
        open_library().cuGetErrorName(code, ctypes.byref(name))
    return name.value.decode() if name.value else "CUDA error"
