"""Element types: their representation in memory and registers, their names, and type promotion."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from .errors import CompilationError
from .frames import hide_own_frames
from .lazy import Lazy
from .names import suggest_nearest

if TYPE_CHECKING:
    import ml_dtypes
    import numpy
    from numpy import dtype as NumPyDType

    from . import _Tile, _Value
else:
    ml_dtypes, numpy = Lazy("ml_dtypes"), Lazy("numpy")


MAX_BITS = 8192  # of a constant integer: far beyond any use, and few enough digits for Python to print it

LEAST_NORMAL, LARGEST = 2.0 ** -126, (2 - 2.0 ** -23) * 2.0 ** 127  # of positive float32


def is_positive(x: float) -> bool:
    """Whether a number is positive as a float32, and neither subnormal nor infinite."""
    return LEAST_NORMAL <= x <= LARGEST


def shown_integer(x: int) -> str:
    """An integer for a message; one of thousands of digits, which Python refuses to print, by its size."""
    return str(x) if x.bit_length() <= MAX_BITS else f"an integer of {x.bit_length()} bits"


@cache
def _numpy(name: str) -> NumPyDType[Any]:
    """NumPy's dtype of that name, or that of ml_dtypes."""
    try:
        found: NumPyDType[Any] = numpy.dtype(name)
    except TypeError:
        found = numpy.dtype(getattr(ml_dtypes, name))
    return found


@dataclass(frozen=True, eq=False, slots=True)
class DType:
    """An element type; there is one object per name. ``kind`` is 'bool', 'int', 'uint' or 'float'; ``bits`` is an
    element's size in registers, and in memory too unless elements are packed there (packed ones have 8).

    Elements of fewer than 8 bits are packed in memory along the last dimension: `packing` = (elements, bytes) of one
    group. There, shapes, strides, layouts and regions count bytes; a register holds one element. A dtype with
    `padded`, the name of its elements' dtype, is their form in shared memory for the tensor cores: 16 elements,
    padded to 16 bytes.
    """

    name: str
    kind: str
    bits: int
    llvm: str         # the LLVM type in registers
    mantissa: int = 0  # explicit mantissa bits of a float
    numpy: str = ""   # the name in NumPy or ml_dtypes, if it is not `name`
    packing: tuple[int, int] = (1, 1)
    padded: str = ""

    @property
    def nbytes(self) -> int:
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def signed(self) -> bool:
        return self.kind in ("int", "float")

    @property
    def packed(self) -> bool:
        """Whether elements are packed in memory, several to a byte or with padding between groups."""
        return self.packing != (1, 1)

    @property
    def unit(self) -> DType:
        """The dtype of the units in which memory is counted: uint8 if packed, else the dtype itself."""
        return uint8 if self.packed else self

    @property
    def element(self) -> DType:
        """The dtype of an element in a register: that of padded elements is the one without padding."""
        return DTYPES[self.padded] if self.padded else self

    @property
    def codes(self) -> int:
        """The number of bit patterns of an element."""
        return 1 << {"float4": 4, "float6": 6}.get(self.name[:6], self.bits)

    @property
    def np(self) -> NumPyDType[Any]:
        """The NumPy dtype of a single element."""
        return _numpy(self.numpy or self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype_of, (self.name,)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        if self.padded:
            return f"tile.padded(tile.{self.padded})"
        return "tile.bool_" if self.name == "bool" else f"tile.{self.name}"

    if TYPE_CHECKING:  # in a kernel, a call casts
        def __call__(self, value: _Value, /) -> _Tile: ...


bool_ = DType("bool", "bool", 8, "i1")
int8 = DType("int8", "int", 8, "i8")
int16 = DType("int16", "int", 16, "i16")
int32 = DType("int32", "int", 32, "i32")
int64 = DType("int64", "int", 64, "i64")
uint8 = DType("uint8", "uint", 8, "i8")
uint16 = DType("uint16", "uint", 16, "i16")
uint32 = DType("uint32", "uint", 32, "i32")
uint64 = DType("uint64", "uint", 64, "i64")
float8_e4m3fn = DType("float8_e4m3fn", "float", 8, "i8", 3)
float8_e5m2 = DType("float8_e5m2", "float", 8, "i8", 2)
float8_e8m0fnu = DType("float8_e8m0fnu", "float", 8, "i8")
float6_e2m3fn = DType("float6_e2m3fn", "float", 8, "i8", 3, packing=(4, 3))
float6_e3m2fn = DType("float6_e3m2fn", "float", 8, "i8", 2, packing=(4, 3))
float4_e2m1fn = DType("float4_e2m1fn", "float", 8, "i8", 1, packing=(2, 1))
float16 = DType("float16", "float", 16, "half", 10)
bfloat16 = DType("bfloat16", "float", 16, "bfloat", 7)
float32 = DType("float32", "float", 32, "float", 23)
float64 = DType("float64", "float", 64, "double", 52)

_PADDED = tuple(DType(f"{d.name}_p{pad}", "float", 8, "i8", d.mantissa, "uint8", (16, 16), d.name)
                for d, pad in ((float4_e2m1fn, 64), (float6_e2m3fn, 32), (float6_e3m2fn, 32)))

DTYPES = {d.name: d for d in (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float4_e2m1fn, float6_e2m3fn, float6_e3m2fn, float8_e4m3fn, float8_e5m2, float8_e8m0fnu, float16, bfloat16, float32,
    float64, *_PADDED)}
_ALIASES = {"float4_e2m1fn_x2": "float4_e2m1fn"}  # torch's name, of a byte with two elements


@hide_own_frames
def padded(dtype: Any) -> DType:
    """The dtype of elements of 4 or 6 bits in shared memory that are padded: 16 elements (8 or 12 bytes) and padding
    take 16 bytes. The tensor cores' kinds f8f6f4 and mxf8f6f4 read operands in this form (PTX ISA, ``.b4x16_p64``,
    ``.b6x16_p32``)."""
    dtype = dtype_of(dtype)
    found = next((d for d in _PADDED if d.padded == dtype.name), None)
    if found is None:
        raise CompilationError(f"elements of 4 and 6 bits are padded, and {dtype} has {dtype.bits}: "
                               f"{', '.join(d.padded for d in _PADDED)}")
    return found


def dtype_of(spec: Any) -> DType:
    """The DType that `spec` names: a DType, a NumPy dtype, a Python type or a name. CompilationError otherwise."""
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, type) and spec in (bool, int, float):
        return {bool: bool_, int: int32, float: float32}[spec]
    if isinstance(spec, str):
        name = spec
    else:
        name = getattr(spec, "name", None) or getattr(spec, "__name__", None) or str(spec)
    name = name.removeprefix("torch.")
    name = _ALIASES.get(name, name)
    if name in DTYPES:
        return DTYPES[name]
    if isinstance(spec, int):
        raise CompilationError(f"{spec!r} is not an element type of tilejit; several extents are a tuple, as in "
                               "tile.zeros((M, N))")
    named = [n for n, d in DTYPES.items() if not d.padded]
    raise CompilationError(f"{spec!r} is not an element type of tilejit{suggest_nearest(name, named)}; "
                           f"the element types are {', '.join(named)}")


def named_dtype(x: Any) -> DType | None:
    """The DType that `x` names; None if it names none."""
    try:
        return dtype_of(x)
    except CompilationError:
        return None


def unit_name(dtype: DType) -> str:
    """A dtype as messages name it before extents in memory: "float4_e2m1fn bytes" if packed."""
    return f"{dtype} bytes" if dtype.packed else str(dtype)


def count_units(dtype: DType, n: int) -> int | None:
    """The number of units of memory (`DType.unit`) of `n` consecutive elements;
    None if they do not fill whole groups of `packing`."""
    elements, units = dtype.packing
    return None if n % elements else n // elements * units


def count_elements(dtype: DType, units: int) -> int:
    """The number of elements in `units` units of memory; the inverse of `count_units`."""
    elements, per = dtype.packing
    return units // per * elements


def transaction_bytes(dtype: DType, nbytes: int) -> int:
    """The transaction bytes that a copy to `nbytes` of shared memory reports to its barrier: those of the
    elements, without padding."""
    if not dtype.padded:
        return nbytes
    units = count_units(DTYPES[dtype.padded], nbytes)
    assert units is not None  # a buffer of padded elements has whole groups
    return units


def integer_range(dtype: DType) -> tuple[int, int]:
    """The smallest and largest value of an integer dtype."""
    if dtype.kind == "int":
        return -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1
    return 0, (1 << dtype.bits) - 1


def keeps(source: DType, target: DType) -> bool:
    """Whether a cast preserves integers. Casts to int32 and int64 count as preserving: index arithmetic that wraps is
    an error of the kernel."""
    if not source.is_int or not target.is_int:
        return False
    (low, high), (least, most) = integer_range(source), integer_range(target)
    return target in (int32, int64) or least <= low and high <= most


def promote(a: DType, b: DType) -> DType:
    """The result dtype of an operation on `a` and `b`: as in NumPy,
    but an integer with a float gives the float's dtype."""
    if a == b:
        return a
    if a.kind == "bool":
        return b
    if b.kind == "bool":
        return a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_float:
        if a.bits != b.bits:
            return a if a.bits > b.bits else b
        return float32  # float16 with bfloat16; e4m3 with e5m2
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    return {8: int16, 16: int32, 32: int64, 64: int64}[unsigned.bits]
