"""A launcher in machine code: one function per recipe, generated as LLVM IR, that Python calls directly.

It reads arrays through the table of C functions that their library offers (`__dlpack_c_exchange_api__`, torch 2.10
and later), checks types and guards, encodes tensor maps, packs the parameters and calls the driver. All addresses
come from a table of words, so the code depends on the recipe only, and is kept on disk; LLVM is loaded only for a new
recipe.

The function returns True (launched), False (a call that it cannot launch: the Python function decides) or the driver's
error code."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import struct
import sys

from ..errors import TileError
from ..lazy import Lazy
from ..toolchain import executable
from . import dlpack
from .element_types import integer_limits
from .facts import ScalarKind
from .native_ir import WORDS, print_ir
from .recipe import Parameter, Recipe

llvm = Lazy("tilejit.toolchain.llvm")  # most code comes from the store

_METH_FASTCALL = 0x80
_IS_NEG = sys.intern("is_neg")           # kept alive, since tables hold its address
_kept: list = []                         # method definitions, to which Python's function objects keep a pointer only
_loaded: dict[str, int] = {}             # IR text -> address


class _MethodDef(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int),
                ("doc", ctypes.c_char_p)]


def build(launcher, store=None, patient: bool = False):
    """The native function of a launcher, or None if there can be none; the Python function is used then.

    If `patient`, also None if the code is not in the store and LLVM is not loaded."""
    torch = sys.modules.get("torch")
    table = dlpack.exchange_table(torch.Tensor) if torch is not None else None
    arrays = bool(launcher.recipe.arrays)
    if not _supported_python() or not _is_expressible(launcher.recipe) or arrays and not table:
        return None
    try:
        address = _address(print_ir(launcher.recipe), store, patient)
    except TileError:
        return None
    if address is None:
        return None
    borrow, stream_of = (ctypes.c_uint64 * 7).from_address(table)[5:7] if table else (0, 0)
    if arrays and not (borrow and stream_of):
        return None
    data = _table(launcher, torch, borrow, stream_of)
    method = _MethodDef(b"launch", address, _METH_FASTCALL, None)
    _kept.append(method)
    new = ctypes.PyDLL(None).PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    return new(ctypes.addressof(method), data, None)


def _supported_python() -> bool:
    return (sys.implementation.name == "cpython" and sys.byteorder == "little" and struct.calcsize("P") == 8
            and platform.machine() in ("x86_64", "aarch64"))


def _is_expressible(recipe: Recipe) -> bool:
    """Whether machine code can read the scalars, which have the dtypes of their parameters, and encode the maps."""
    kinds = recipe.arguments
    plain = all(_is_plain(kind.dtype) for kind in kinds if isinstance(kind, ScalarKind))
    scalars = [param for param in recipe.params if isinstance(param, Parameter) and param.dtype]
    same = all(param.dtype == kinds[param.value.argument].dtype for param in scalars)
    return plain and same and all(map_.is_direct for map_ in recipe.maps)


def _is_plain(dtype: str) -> bool:
    """Whether a number of this dtype is in one of C's types."""
    return dtype in ("bool", "float32", "float64") or integer_limits(dtype) is not None


def _table(launcher, torch, borrow: int, stream_of: int) -> bytes:
    api = ctypes.pythonapi

    def python(name: str) -> int:
        return ctypes.cast(getattr(api, name), ctypes.c_void_p).value or 0

    points, link = launcher.link.points, launcher.link
    device = dlpack.CUDA | link.device << 32 if link.device >= 0 else dlpack.CPU  # device -1 of a link means the host
    words = dict(
        true=id(True), false=id(False), none=id(None), int_type=id(int), float_type=id(float), tuple_type=id(tuple),
        tensor_type=id(torch.Tensor) if torch else 0, parameter_type=id(torch.nn.Parameter) if torch else 0,
        as_integer=python("PyLong_AsLongLongAndOverflow"), from_integer=python("PyLong_FromLong"),
        incref=python("Py_IncRef"), decref=python("Py_DecRef"), clear_error=python("PyErr_Clear"),
        call_method=python("PyObject_VectorcallMethod"), is_neg=id(_IS_NEG),
        save_thread=python("PyEval_SaveThread"), restore_thread=python("PyEval_RestoreThread"),
        borrow=borrow, stream_of=stream_of, launch=points.launch, encode_tiled=points.encode_tiled,
        get_context=points.get_context, context=link.context, function=launcher.function,
        attributes=ctypes.addressof(launcher.attributes) if launcher.attribute_count else 0,
        attribute_count=launcher.attribute_count, device=device, multiprocessors=link.multiprocessors)
    return struct.pack(f"<{len(WORDS)}Q", *(words[word] for word in WORDS))


def _address(text: str, store, patient: bool) -> int | None:
    """The address of the code: already loaded, from the store, or newly compiled and then stored. None if that would
    load LLVM and `patient`."""
    known = _loaded.get(text)
    if known is None:
        key = hashlib.blake2b(f"{platform.machine()}\n{text}".encode(), digest_size=20).hexdigest()
        code = store.get("launcher", key) if store is not None else None
        if code is None:
            if patient and "llvmlite.binding" not in sys.modules:
                return None
            code = llvm.machine_code(text, "launch")
            if store is not None:
                store.put("launcher", key, code)
        known = _loaded[text] = executable.load(code)
    return known
