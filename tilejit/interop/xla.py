"""Kernels as targets of XLA's foreign function interface: a C function that XLA calls with its buffers and its stream.

The structures are those of XLA's ``xla/ffi/api/c_api.h``, version 0 of the interface, of which only fields are used
that all its minor versions have."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass, replace
from typing import Any

from ..lazy import Lazy
from ..runtime.arrays import ArrayView, row_major

ffi = Lazy("jax.ffi")

METADATA, EXECUTE, INVALID_ARGUMENT, INTERNAL = 1, 3, 3, 13
API_FUNCTIONS = 48                                # offset of the table's functions in XLA_FFI_Api
ERROR_CREATE, STREAM_GET, ORDINAL_GET = 0, 4, 17  # their places

# XLA_FFI_DataType -> element type
DTYPES = {1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64",
          10: "float16", 11: "float32", 12: "float64", 16: "bfloat16", 19: "float8_e5m2", 20: "float8_e4m3fn",
          33: "float8_e8m0fnu"}


class _Extension(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("type", c_int), ("next", c_void_p)]


class _Version(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int)]


class _Metadata(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("version", _Version), ("traits", ctypes.c_uint32)]


class _MetadataExtension(ctypes.Structure):
    _fields_ = [("base", _Extension), ("metadata", POINTER(_Metadata))]


class _Buffer(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("dtype", c_int), ("data", c_void_p),
                ("rank", c_int64), ("dims", POINTER(c_int64))]


class _Buffers(ctypes.Structure):
    """XLA_FFI_Args and XLA_FFI_Rets."""

    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("size", c_int64), ("types", POINTER(c_int)),
                ("buffers", POINTER(POINTER(_Buffer)))]


class _CallFrame(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("api", c_void_p), ("context", c_void_p),
                ("stage", c_int), ("arguments", _Buffers), ("results", _Buffers)]


class _StreamArguments(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("context", c_void_p), ("stream", c_void_p)]


class _OrdinalArguments(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("context", c_void_p), ("ordinal", c_int32)]


class _ErrorArguments(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int)]


HANDLER = ctypes.CFUNCTYPE(c_void_p, POINTER(_CallFrame))
_FUNCTION = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_registered: list[Any] = []  # compiled programs hold the addresses of handlers as long as the process lives


@dataclass(frozen=True)
class XlaArray:
    """An array of XLA during a call."""

    view: ArrayView

    def __tilejit_view__(self) -> ArrayView:
        return replace(self.view, owner=self)  # launchers take the array itself

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.shape

    @property
    def dtype(self) -> str:
        return self.view.dtype


def register(name: str, run: Callable[[list[XlaArray], list[XlaArray], int | None], None]) -> None:
    """Make ``run(arguments, results, stream)`` the target `name` of XLA's calls, on the host (without a stream) and on
    NVIDIA's GPUs."""
    for platform, on_gpu in (("cpu", False), ("CUDA", True)):
        handler = HANDLER(_handler(run, on_gpu))
        _registered.append(handler)
        ffi.register_ffi_target(name, ffi.pycapsule(handler), platform=platform)


def _handler(run: Callable[..., None], on_gpu: bool) -> Callable[[Any], int | None]:
    """The function that XLA calls: for the metadata of the target, and to execute it."""
    def handle(frame: Any) -> int | None:
        call = frame.contents
        try:
            if call.extension and _Extension.from_address(call.extension).type == METADATA:
                metadata = _MetadataExtension.from_address(call.extension).metadata.contents
                metadata.version.major, metadata.version.minor, metadata.traits = 0, 1, 0
                return None
            if call.stage != EXECUTE:
                return None
            device, stream = _place(call) if on_gpu else ("host", None)
            run(_arrays(call.arguments, device, True), _arrays(call.results, device, False), stream)
        except BaseException as error:  # none may reach C
            return _error(call, error)
        return None
    return handle


def _function(call: _CallFrame, place: int) -> Any:
    return _FUNCTION(c_void_p.from_address(call.api + API_FUNCTIONS + 8 * place).value or 0)


def _place(call: _CallFrame) -> tuple[int, int]:
    """The ordinal of the GPU and the stream of a call."""
    stream = _StreamArguments(ctypes.sizeof(_StreamArguments), None, call.context, None)
    ordinal = _OrdinalArguments(ctypes.sizeof(_OrdinalArguments), None, call.context, 0)
    for place, arguments in ((STREAM_GET, stream), (ORDINAL_GET, ordinal)):
        if _function(call, place)(ctypes.addressof(arguments)):
            raise RuntimeError("XLA does not tell the stream and the device of a call")
    return ordinal.ordinal, stream.stream or 0


def _arrays(buffers: _Buffers, device: int | str, readonly: bool) -> list[XlaArray]:
    found = []
    for n in range(buffers.size):
        buffer = buffers.buffers[n].contents
        shape = tuple(buffer.dims[:buffer.rank])
        found.append(XlaArray(ArrayView(buffer.data or 0, shape, row_major(shape), DTYPES[buffer.dtype], device,
                                        readonly)))
    return found


def _error(call: _CallFrame, error: BaseException) -> int:
    """An error of XLA with the text of an exception."""
    text = str(error) if type(error).__module__.startswith("tilejit") else f"{type(error).__name__}: {error}"
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, text.encode(), INVALID_ARGUMENT)
    made: int = _function(call, ERROR_CREATE)(ctypes.addressof(arguments))
    return made


__all__ = ["XlaArray", "register"]
