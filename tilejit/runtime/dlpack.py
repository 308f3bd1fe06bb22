"""Reads and makes DLPack capsules through ctypes.

It also finds the table of C functions by which a library exports its arrays.

Both kinds of capsule are read: the legacy `dltensor` and `dltensor_versioned` (DLPack 1.0 and later)."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

from ..errors import LaunchError
from .element_types import BY_DLPACK, ELEMENT_TYPES

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
DEVICE_NAMES = {4: "OpenCL", 7: "Vulkan", 8: "Metal", 9: "VPI", 10: "ROCm", 11: "ROCm", 12: "ExtDev", 14: "oneAPI",
                15: "WebGPU", 16: "Hexagon", 17: "MAIA", 18: "Trainium"}
READ_ONLY = 1  # flag of a versioned capsule


class DLTensor(Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
                ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64)]


class Managed(Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", DLTensor), ("context", c_void_p), ("deleter", c_void_p)]


class ManagedVersioned(Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", c_void_p),
                ("flags", c_uint64), ("tensor", DLTensor)]


# functions of our own: those of ctypes.pythonapi are the process's, and JAX gives PyCapsule_New another prototype
_api = ctypes.PyDLL(None)
_api.PyCapsule_IsValid.argtypes = [c_void_p, ctypes.c_char_p]
_api.PyCapsule_IsValid.restype = c_int
_api.PyCapsule_GetPointer.argtypes = [c_void_p, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = c_void_p
_api.PyCapsule_New.argtypes = [c_void_p, ctypes.c_char_p, c_void_p]
_api.PyCapsule_New.restype = ctypes.py_object

_LEGACY, _VERSIONED = b"dltensor", b"dltensor_versioned"


def read_capsule(capsule) -> tuple[DLTensor, bool]:
    """The tensor in a capsule, and whether it is read-only. The tensor is valid as long as the capsule lives."""
    address = id(capsule)
    if _api.PyCapsule_IsValid(address, _VERSIONED):
        managed = ManagedVersioned.from_address(_api.PyCapsule_GetPointer(address, _VERSIONED))
        if managed.major > 1:
            raise LaunchError(f"DLPack {managed.major}.{managed.minor} is newer than what tilejit reads (1.x)")
        return managed.tensor, bool(managed.flags & READ_ONLY)
    if _api.PyCapsule_IsValid(address, _LEGACY):
        return Managed.from_address(_api.PyCapsule_GetPointer(address, _LEGACY)).tensor, False
    raise LaunchError(f"__dlpack__ returned {type(capsule).__name__}, or a capsule that was consumed already")


def dtype_name(tensor: DLTensor) -> str:
    """The name of a tensor's element type. LaunchError for types that kernels do not take."""
    name = BY_DLPACK.get((tensor.code, tensor.bits))
    if name is None or tensor.lanes != (2 if tensor.bits == 4 else 1) or tensor.bits == 6:
        raise LaunchError(f"the DLPack type (code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes) is not an "
                          "element type that a kernel can take")
    return name


def device_of(device_type: int, device_id: int):
    """"host" or the ordinal of a CUDA device. LaunchError for any other."""
    if device_type in (CPU, CUDA_HOST):
        return "host"
    if device_type in (CUDA, CUDA_MANAGED):
        return int(device_id)
    raise LaunchError(f"the array lives on a {DEVICE_NAMES.get(device_type, f'type {device_type}')} device; "
                      "kernels run on NVIDIA GPUs, or on host arrays in the simulator")


def exchange_table(owner: type) -> int | None:
    """The address of the DLPackExchangeAPI (DLPack 1.2 and later) of an array type, or None.

    Its words: version, previous table, allocate, from object (owned), to object, from object (borrowed),
    current stream."""
    capsule = getattr(owner, "__dlpack_c_exchange_api__", None)
    if capsule is None or not _api.PyCapsule_IsValid(id(capsule), b"dlpack_exchange_api"):
        return None
    address = _api.PyCapsule_GetPointer(id(capsule), b"dlpack_exchange_api")
    return address if c_uint32.from_address(address).value == 1 else None


# -- export ----------------------------------------------------------------------------------------------------------

_exported: dict[int, tuple] = {}  # address of the managed tensor -> what must live until its deleter is called


@ctypes.CFUNCTYPE(None, c_void_p)
def _delete(address):
    _exported.pop(address, None)


@ctypes.PYFUNCTYPE(None, c_void_p)
def _drop(capsule):
    """Destructor of a capsule that nobody consumed."""
    for name in (_LEGACY, _VERSIONED):
        if _api.PyCapsule_IsValid(capsule, name):
            _exported.pop(_api.PyCapsule_GetPointer(capsule, name), None)


def make_capsule(owner, pointer: int, shape, strides, dtype: str, device: tuple[int, int], versioned: bool):
    """A capsule over memory that `owner` keeps alive; `strides` are in elements, `device` is DLPack's pair."""
    extents, steps = (c_int64 * len(shape))(*shape), (c_int64 * len(shape))(*strides)
    code, bits = ELEMENT_TYPES[dtype].dlpack
    tensor = DLTensor(pointer, device[0], device[1], len(shape), code, bits, 1, extents, steps, 0)
    deleter = ctypes.cast(_delete, c_void_p).value
    managed = ManagedVersioned(1, 0, None, deleter, 0, tensor) if versioned else Managed(tensor, None, deleter)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, extents, steps, owner)
    return _api.PyCapsule_New(address, _VERSIONED if versioned else _LEGACY, ctypes.cast(_drop, c_void_p))
