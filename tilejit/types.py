"""What a value in a kernel can be: scalars, register tiles, buffers, regions of buffers, barriers, tensor maps."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from math import prod

from .dtypes import DType, counted
from .layout import TileLayout


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
