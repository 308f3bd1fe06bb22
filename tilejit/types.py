"""Types of the values in a kernel: scalars, register tiles, buffers, regions of buffers, barriers, tensor maps."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from math import prod
from typing import Any

from .dtypes import DType, unit_name
from .layout import TileLayout

# -- uniformity and scopes -------------------------------------------------------------------------------------------

class Uniformity(enum.IntEnum):
    """The widest group of threads in which a scalar is known to have the same value."""

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
    """One number per thread; it is the same in all threads of a group `uniform`. A `weak` number, like a Python
    number, takes the dtype of what it is combined with."""

    dtype: DType
    uniform: Uniformity = Uniformity.THREAD
    weak: bool = False

    def __str__(self) -> str:
        return f"{self.dtype}{'*' if self.weak else ''}@{self.uniform.name.lower()}"


@dataclass(frozen=True, slots=True)
class Tile:
    """An immutable array in registers. `layout` maps the row-major index in `domain` (the padded shape) to registers,
    and to lanes and warps of the scope that made it; both are None until the pass `layouts` has run."""

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
        pad = "" if self.domain is None or self.domain == self.shape else f" of {list(self.domain)}"
        return f"{text} in {self.layout}{pad}"


@dataclass(frozen=True, slots=True)
class Addressed:
    """Stands, where an argument's number does for an argument, for an array that a kernel makes from an address: the
    kernel's `number`-th one. It starts at a multiple of `align` bytes."""

    number: int
    align: int
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.name or f"array {self.number}"


ArrayId = int | Addressed  # the number of an argument, or what stands for it


@dataclass(frozen=True, slots=True)
class Sym:
    """A number known at launch: the 'size' or 'stride' (`kind`; in elements) of dimension `dim` of argument `arg`. For
    an array that the kernel makes it is an operand of the call that makes it.

    `bits` is 32 if a guard of the launch, or the operand's dtype, ensures that it fits, else 64.
    """

    kind: str
    arg: ArrayId
    dim: int
    bits: int = 32
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.name or f"{self.kind}({self.arg}, {self.dim})"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer in memory of `scope` (one of `MEMORY`). Global buffers have `strides` in elements, the others a layout.

    `shape` and `strides` hold ints or Syms. `arg` is the index of a global buffer's launch argument, or stands for an
    array that the kernel makes. `peer` says that the buffer is in the shared memory of another CTA of the cluster.
    """

    dtype: DType
    shape: tuple[Any, ...]
    scope: str
    layout: TileLayout | None = None
    strides: tuple[Any, ...] | None = None
    arg: ArrayId | None = None
    peer: bool = False
    # of a window: for each dimension a divisor of its bounds, or 0 if they are the array's
    narrowed: tuple[int, ...] | None = None
    map: TensorMap | None = None  # the tensor map by name that copies of a global buffer use, if there is one

    @property
    def nbytes(self) -> int:
        """The size in bytes, including gaps in the layout; for tensor memory, that of the elements.
        Not for global buffers."""
        assert self.layout is not None  # only global buffers have none
        elements: int = self.layout.size() if self.scope == "tmem" else self.layout.span("m")
        return elements * self.dtype.nbytes

    def __str__(self) -> str:
        where = f" in {self.layout}" if self.layout is not None else ""
        if self.strides is not None:
            where = f":({', '.join(map(str, self.strides))})" + (f" by a {self.map}" if self.map is not None else "")
        kind = "window of " if self.narrowed is not None else ""
        return (f"{kind}{self.scope}{' of a peer' if self.peer else ''} "
                f"{unit_name(self.dtype)}[{', '.join(map(str, self.shape))}]{where}")


class _OfBuffer:
    """Base class of types that refer to elements of a `buffer`, whose dtype and scope they have."""

    __slots__ = ()

    buffer: Buffer

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def scope(self) -> str:
        return self.buffer.scope


@dataclass(frozen=True, slots=True)
class Region(_OfBuffer):
    """A box in a buffer, with an extent for each of its dimensions; `kept` are the dimensions that the region has,
    in order.

    The values that define it (the buffer, and for each dimension the coordinate of its start) are the arguments of the
    `region` call. The bounds are those of the buffer.
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
    """Individual elements of a buffer: for each dimension an index tile or scalar, broadcast to `shape`."""

    buffer: Buffer
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"points {list(self.shape)} of {self.buffer}"


@dataclass(frozen=True, slots=True)
class Selected(_OfBuffer):
    """Elements of an array that TMA instructions select (im2col and gather modes);
    `extents` are those of the result."""

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
    """The positions of a convolution's filter. For each spatial dimension, in the order of the array: `lower` is the
    first position of the filter's corner, `upper` the distance of the last one from the last element, `stride` the
    step between positions, and `reach` the distance from the filter's first element to its last. `along` says how
    pixels follow each other: through all dimensions (None), or along the last spatial one and on in the next image
    ("w", or "w128" for 128 pixels). `halo` is the number of additional pixels after those of a copy, or with "w128"
    after each 32 of 128."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    stride: tuple[int, ...]
    reach: tuple[int, ...]
    along: str | None = None
    halo: int = 0

    def pixels(self, rows: int) -> int:
        """The number of pixels, without the halo, of a copy of `rows` rows; 0 if no copy has that many rows."""
        if self.along == "w128":
            return 128 if rows == 128 + 4 * self.halo else 0
        return max(rows - self.halo, 0)


@dataclass(frozen=True, slots=True)
class Patches(Selected):
    """Pixels of images as rows: the input elements for one element of a convolution's filter (im2col). The values
    that define it are the array, the first pixel (image, position of the filter's corner), the first channel, and the
    element's position in the filter."""

    window: Window | None = None
    def __str__(self) -> str:
        return f"patches {list(self.extents)} of {self.buffer}"


@dataclass(frozen=True, slots=True)
class Rows(Selected):
    """Rows of a matrix in any order (gather and scatter). The values that define it are the matrix, the first
    column, and each row."""

    def __str__(self) -> str:
        return f"rows {list(self.extents)} of {self.buffer}"


@dataclass(frozen=True, slots=True)
class RowsOfArray(Rows):
    """Runs along dimension `along` of an array, in any order. The values that define them are the array, the first
    index along that dimension, and for each other dimension a tile with an index for each run, or one for all."""

    along: int = -1

    def __str__(self) -> str:
        return f"rows {list(self.extents)} along dimension {self.along} of {self.buffer}"


@dataclass(frozen=True, slots=True)
class Barrier:
    """`n` mbarriers in shared memory, each initialised with `count` arrivals."""

    n: int
    count: int

    def __str__(self) -> str:
        return f"mbarrier[{self.n}] of {self.count}"


@dataclass(frozen=True, slots=True)
class BarrierRef:
    """One of the mbarriers of a `Barrier`; `peer` says that it is another CTA's."""

    barrier: Barrier
    peer: bool = False

    def __str__(self) -> str:
        return "mbarrier" + (" of a peer" if self.peer else "")


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor map by name (``tile.tensor_map``) of the global buffer `array`, with a `box` (an extent for each
    dimension; with a `window`, of im2col patches, pixels and channels). `slot` is None for a kernel parameter that
    the launch encodes, or 'global' or 'shared': the memory in which the kernel makes and edits the map."""

    array: Buffer = field(repr=False)   # the printed graph shows it apart from the map
    box: tuple[int, ...]
    swizzle: int       # 0: none; 1, 2, 3: 32, 64, 128 bytes
    oob_fill: int
    l2_promotion: int  # CUtensorMapL2promotion
    stored: str        # the element type in the map
    slot: str | None = None
    window: Window | None = None

    @property
    def dtype(self) -> DType:
        return self.array.dtype

    def __str__(self) -> str:
        what = "box" if self.window is None else "patches"
        return (f"tensor map {what} {list(self.box)} swizzle {self.swizzle}"
                + (f" in {self.slot} memory" if self.slot else ""))


def layout_of(x: Tile | Buffer) -> TileLayout:
    """The layout of a register tile or buffer that has one."""
    assert x.layout is not None, f"{x} has no layout"
    return x.layout


def argument_number(x: Buffer) -> int:
    """The number of the argument that an array is."""
    assert isinstance(x.arg, int), f"{x} is no argument"
    return x.arg


def strides_of(x: Buffer) -> tuple[Any, ...]:
    """The strides of an array."""
    assert x.strides is not None, f"{x} has no strides"
    return x.strides


def domain_of(t: Tile) -> tuple[int, ...]:
    """The domain of a register tile that has a layout."""
    assert t.domain is not None, f"{t} has no layout"
    return t.domain


MEMORY_TYPES = (Buffer, Region, Points, Selected, TensorMap)

Type = Scalar | Tile | Buffer | Region | Points | Selected | Barrier | BarrierRef | TensorMap
