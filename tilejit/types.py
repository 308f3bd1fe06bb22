"""What a value in a kernel can be: dtypes, scalars, register tiles, buffers, regions of buffers, barriers."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from math import prod

from .errors import CompilationError
from .layout import TileLayout


# -- dtypes --------------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class DType:
    """An element type. ``kind`` is 'bool', 'int', 'uint' or 'float'; ``bits`` is the size in memory and in registers.

    Elements of less than a byte are packed along the last dimension of what lies in memory, `packing` (elements, bytes) at a
    time: shapes, strides, layouts and regions count bytes there, and a register holds one element. A `padded` dtype, which
    names that of its elements, is how shared memory holds them for the tensor cores: 16 elements, and padding to 16 bytes.
    """

    name: str
    kind: str
    bits: int
    llvm: str         # the type in registers
    mantissa: int = 0  # explicit mantissa bits of a float
    numpy: str = ""   # the name that NumPy (with ml_dtypes) knows it by, if not `name`
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
        """Whether memory has several elements of it in a byte, or padding between them."""
        return self.packing != (1, 1)

    @property
    def unit(self) -> "DType":
        """What memory is counted in: bytes of packed elements, else the elements."""
        return uint8 if self.packed else self

    @property
    def codes(self) -> int:
        """How many values of its bits there are."""
        return 1 << {"float4": 4, "float6": 6}.get(self.name[:6], self.bits)

    @property
    def np(self):
        """The NumPy dtype of an element by itself."""
        import numpy
        name = self.numpy or self.name
        try:
            return numpy.dtype(name)
        except TypeError:
            import ml_dtypes
            return numpy.dtype(getattr(ml_dtypes, name))

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"tile.{self.name}"


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
    float4_e2m1fn, float6_e2m3fn, float6_e3m2fn, float8_e4m3fn, float8_e5m2, float8_e8m0fnu, float16, bfloat16, float32, float64, *_PADDED)}
_ALIASES = {"float4_e2m1fn_x2": "float4_e2m1fn"}  # torch's name of a byte of two


def padded(dtype) -> DType:
    """The dtype of shared memory in which 16 elements of 4 or 6 bits stand in 16 bytes: the elements (8 or 12 bytes), then
    padding. So the tensor cores' kinds f8f6f4 and mxf8f6f4 read them (PTX ISA, ``.b4x16_p64``, ``.b6x16_p32``)."""
    dtype = dtype_of(dtype)
    found = next((d for d in _PADDED if d.padded == dtype.name), None)
    if found is None:
        raise CompilationError(f"elements of 4 and 6 bits are padded, and {dtype} has {dtype.bits}: {', '.join(d.padded for d in _PADDED)}")
    return found


def dtype_of(spec) -> DType:
    """The DType that `spec` names: a DType, a NumPy dtype, a Python type or a name. CompilationError otherwise."""
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, type) and spec in (bool, int, float):
        return {bool: bool_, int: int32, float: float32}[spec]
    name = spec if isinstance(spec, str) else getattr(spec, "name", None) or getattr(spec, "__name__", None) or str(spec)
    name = name.removeprefix("torch.")
    name = _ALIASES.get(name, name)
    if name in DTYPES:
        return DTYPES[name]
    raise CompilationError(f"{spec!r} is not an element type of tilejit; the element types are {', '.join(DTYPES)}")


def counted(dtype: DType) -> str:
    """A dtype as it stands before extents in memory, for messages."""
    return f"{dtype} bytes" if dtype.packed else str(dtype)


def stored(dtype: DType, n: int) -> int | None:
    """The units of memory that `n` elements side by side take; None where they do not fill bytes (or blocks, of padded ones)."""
    elements, units = dtype.packing
    return None if n % elements else n // elements * units


def held(dtype: DType, units: int) -> int:
    """The elements that `units` of memory hold."""
    elements, per = dtype.packing
    return units // per * elements


def arriving(dtype: DType, nbytes: int) -> int:
    """The bytes that a copy to `nbytes` of shared memory reports to its barrier: those of the elements, without their padding."""
    return stored(DTYPES[dtype.padded], nbytes) if dtype.padded else nbytes


def integer_range(dtype: DType) -> tuple[int, int]:
    """The least and the greatest number of an integer dtype."""
    return (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1) if dtype.kind == "int" else (0, (1 << dtype.bits) - 1)


def keeps(source: DType, target: DType) -> bool:
    """Whether a cast leaves an integer what it is. 32-bit index arithmetic that wraps is an error of the kernel."""
    if not source.is_int or not target.is_int:
        return False
    (low, high), (least, most) = integer_range(source), integer_range(target)
    return target in (int32, int64) or least <= low and high <= most


def promote(a: DType, b: DType) -> DType:
    """The dtype of an operation on `a` and `b`: NumPy's, but an int with a float gives that float's dtype."""
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


# -- where and how uniformly a value lives ---------------------------------------------------------------------------

class Uniformity(enum.IntEnum):
    """The widest group of threads over which a scalar surely has one value."""

    THREAD = 0
    WARP = 1
    WARPGROUP = 2
    CTA = 3
    CLUSTER = 4
    GRID = 5


SCOPES = ("thread", "warp", "warpgroup", "cta")  # execution scopes, narrow to wide
MEMORY = ("global", "shared", "tmem", "local")


# -- types of values -------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Scalar:
    """One number per thread; `uniform` says over which threads it is the same. `weak` numbers adapt their dtype."""

    dtype: DType
    uniform: Uniformity = Uniformity.THREAD
    weak: bool = False

    def __str__(self) -> str:
        return f"{self.dtype}{'*' if self.weak else ''}@{self.uniform.name.lower()}"


@dataclass(frozen=True, slots=True)
class Tile:
    """An immutable array in registers. `layout` maps the row-major index over `domain` (the shape, padded) to
    registers, lanes and warps of the scope that made it; both are None until the layout passes have run."""

    dtype: DType
    shape: tuple[int, ...]
    layout: TileLayout | None = None
    domain: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        return prod(self.shape)

    def __str__(self) -> str:
        text = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        if self.layout is None:
            return text
        pad = "" if self.domain == self.shape else f" of {list(self.domain)}"
        return f"{text} in {self.layout}{pad}"


@dataclass(frozen=True, slots=True)
class Sym:
    """A number known at launch: ``kind`` 'size' or 'stride' (in elements) of dimension `dim` of argument `arg`.

    `bits` is 32 when the launch proves that it fits.
    """

    kind: str
    arg: int
    dim: int
    bits: int = 32
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.name or f"{self.kind}({self.arg}, {self.dim})"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory with a scope. Global buffers have `strides` (elements), the others a layout.

    `shape` and `strides` hold ints or Syms. `arg` is the launch argument that a global buffer is. `peer` says that it is
    the shared memory of another CTA of the cluster.
    """

    dtype: DType
    shape: tuple
    scope: str
    layout: TileLayout | None = None
    strides: tuple | None = None
    arg: int | None = None
    peer: bool = False
    narrowed: tuple[int, ...] | None = None  # of a window: for each dimension 0, or what divides its narrower bounds
    map: "TensorMap | None" = None  # the descriptor by which copies reach a global buffer, where the kernel names one

    @property
    def nbytes(self) -> int:
        """Bytes that the buffer takes, with the gaps of its layout (not for global buffers; of tensor memory its elements')."""
        if self.scope == "tmem":
            return self.layout.size() * self.dtype.nbytes
        return self.layout.span("m") * self.dtype.nbytes

    def __str__(self) -> str:
        where = f" in {self.layout}" if self.layout is not None else ""
        if self.strides is not None:
            where = f":({', '.join(map(str, self.strides))})" + (f" by a {self.map}" if self.map is not None else "")
        kind = "window of " if self.narrowed is not None else ""
        return f"{kind}{self.scope}{' of a peer' if self.peer else ''} {counted(self.dtype)}[{', '.join(map(str, self.shape))}]{where}"


class _OfBuffer:
    """What names elements of a `buffer`: it has the buffer's dtype and scope."""

    __slots__ = ()

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def scope(self) -> str:
        return self.buffer.scope


@dataclass(frozen=True, slots=True)
class Region(_OfBuffer):
    """A box of a buffer: for each dimension of `buffer` an extent; `kept` are the dimensions that remain, in order.

    The values that define it (the buffer and one start per dimension) are the arguments of the `region` call.
    A start is an element coordinate; the bounds are the buffer's own.
    """

    buffer: Buffer
    extents: tuple[int, ...]
    kept: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.extents[d] for d in self.kept)

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes * prod(self.extents)

    def __str__(self) -> str:
        return f"region {list(self.shape)} of {self.buffer}"


@dataclass(frozen=True, slots=True)
class Points(_OfBuffer):
    """Elements of a buffer named one by one: an index tile or scalar per dimension, broadcast to `shape`."""

    buffer: Buffer
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"points {list(self.shape)} of {self.buffer}"


@dataclass(frozen=True, slots=True)
class Selected(_OfBuffer):
    """Elements of an array that instructions of the tensor engine find: `extents` are those of the result."""

    buffer: Buffer
    extents: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.extents

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes * prod(self.extents)


@dataclass(frozen=True, slots=True)
class Window:
    """Where a convolution's filter may be: for each spatial dimension, in the order of the array, the first place of its
    corner, how far beyond the last element the last one is, and the steps between them; and from the filter's first element
    to its last. `along` says how pixels follow each other: through all dimensions, or along the last spatial one and on in
    the next image ("w", or "w128" for 128 of them). `halo` pixels more stand after a copy's own, or after each 32 of 128."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    stride: tuple[int, ...]
    reach: tuple[int, ...]
    along: str | None = None
    halo: int = 0

    def pixels(self, rows: int) -> int:
        """The pixels of a copy of so many rows without the halo; 0 where no copy has so many."""
        if self.along == "w128":
            return 128 if rows == 128 + 4 * self.halo else 0
        return max(rows - self.halo, 0)


@dataclass(frozen=True, slots=True)
class Patches(Selected):
    """Pixels of images as rows: what one element of a convolution's filter meets. The values that define it are the array,
    the first pixel (image, places of the filter's corner), the first channel, and the element's place in the filter."""

    window: Window = None

    def __str__(self) -> str:
        return f"patches {list(self.extents)} of {self.buffer}"


@dataclass(frozen=True, slots=True)
class Rows(Selected):
    """Rows of a matrix named one by one. The values that define it are the matrix, the first column, and each row."""

    def __str__(self) -> str:
        return f"rows {list(self.extents)} of {self.buffer}"


@dataclass(frozen=True, slots=True)
class Barrier:
    """`n` mbarriers in shared memory, each initialised with `count` arrivals."""

    n: int
    count: int

    def __str__(self) -> str:
        return f"mbarrier[{self.n}] of {self.count}"


@dataclass(frozen=True, slots=True)
class BarrierRef:
    """One of the barriers of a `Barrier`; `peer` when it is another CTA's."""

    barrier: Barrier
    peer: bool = False

    def __str__(self) -> str:
        return "mbarrier" + (" of a peer" if self.peer else "")


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A descriptor of the tensor memory accelerator that the kernel names: of the global buffer `array`, with a `box` (an
    extent for each dimension; pixels and channels for one of the patches that `window` finds). `slot` says where it lives:
    None for a parameter that the launch encodes, 'global' or 'shared' for one that the kernel makes and edits there."""

    array: Buffer = field(repr=False)   # the graph names it beside the map
    box: tuple[int, ...]
    swizzle: int       # mode: 0 none, 1, 2, 3 for 32, 64, 128 bytes
    oob_fill: int
    l2_promotion: int  # CUtensorMapL2promotion
    stored: str        # the element type of the descriptor
    slot: str | None = None
    window: Window | None = None

    @property
    def dtype(self) -> DType:
        return self.array.dtype

    def __str__(self) -> str:
        what = "box" if self.window is None else "patches"
        return f"tensor map {what} {list(self.box)} swizzle {self.swizzle}" + (f" in {self.slot} memory" if self.slot else "")


MEMORY_TYPES = (Buffer, Region, Points, Selected, TensorMap)

Type = Scalar | Tile | Buffer | Region | Points | Selected | Barrier | BarrierRef | TensorMap
