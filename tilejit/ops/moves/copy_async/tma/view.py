"""The tensor-map planner's view of a copy between an array and a shared buffer, in bytes.

Each dimension of the array has digits, the factors of the region's extent as in a mixed-radix number: an extent with
a step in the array (`weight` elements of the dimension) and a step in shared memory. Dimensions are merged if the
array has no gap between them and the region takes the inner one in full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd

from .....dtypes import DType, count_elements
from .....errors import CompilationError
from .....ir.graph import Operand, Value
from .....layout import TileLayout, axis
from .....layout.shards import slice_dim
from .....types import Sym
from ....memory.packed import byte_of
from ....tmem.multiples import Multiple

# elements along the rows of a box, if they have 4 or 6 bits and are padded (CUDA Driver API, cuTensorMapEncodeTiled)
PADDED = 128

# An expression that the launch evaluates, as plain data: an int, ("size", argument, dimension), ("stride", argument,
# dimension) in elements, or (operation, operand, operand) with mul, floordiv, min or max.
Number = int | tuple


def number(n: int | Sym) -> Number:
    return n if isinstance(n, int) else (n.kind, n.arg, n.dim)


def times(a: Number, factor: int) -> Number:
    if isinstance(a, int):
        return a * factor
    if factor == 1:
        return a
    if a[0] == "mul" and isinstance(a[2], int):
        return ("mul", a[1], a[2] * factor)
    return ("mul", a, factor)


def divide(a: Number, divisor: int) -> Number:
    """``a // divisor``."""
    if isinstance(a, int):
        return a // divisor
    if divisor == 1:
        return a
    if a[0] == "mul" and isinstance(a[2], int) and a[2] % divisor == 0:
        return times(a[1], a[2] // divisor)
    return ("floordiv", a, divisor)


def multiple(a: Number, n: int, ask: Callable[..., bool]) -> bool:
    """Whether `a` is a multiple of `n`. What is not known at compile time becomes a fact asked of the launch."""
    if isinstance(a, int):
        return a % n == 0
    if n == 1:
        return True
    if a[0] == "mul":
        return multiple(a[1], n // gcd(n, a[2]), ask)
    if a[0] == "floordiv":
        return multiple(a[1], n * a[2], ask)
    return ask(f"{a[0]}_multiple", a[1], a[2], n)


@dataclass(frozen=True)
class Start:
    """Where a region starts along a dimension: the constant `value`; or, if that is None, the run-time start along
    dimension `dim` of the array times `factor` / `over`, of which only a `divisor` is known."""

    value: int | None
    dim: int = 0
    factor: int = 1
    divisor: int = 1
    over: int = 1

    def multiple_of(self, n: int) -> bool:
        return (self.divisor if self.value is None else self.value) % n == 0


@dataclass(frozen=True)
class Digit:
    """`extent` steps of the region along one dimension: each `weight` elements of the dimension,
    and `step` bytes in shared memory."""

    extent: int
    weight: int
    step: int


@dataclass(frozen=True)
class Dim:
    """A dimension of the array, with its `stride` in bytes, and the region's `start`, `extent` and `digits` along it.

    Digits are outermost first; an extent of 1 has none. `packing` is (elements, bytes they take in the array) for
    packed elements that get a byte each in shared memory.
    """

    size: Number
    stride: Number
    start: Start
    extent: int
    digits: tuple[Digit, ...]
    packing: tuple[int, int] = (1, 1)

    def steps(self, n: int) -> Number:
        """The bytes in the array from an element to the one `n` after it."""
        elements, per = self.packing
        return divide(times(self.stride, n * per), elements)

    def inside(self, size: int | None = None) -> bool:
        """Whether the region is known to lie within the first `size` elements of the dimension (by default,
        all of it)."""
        within: Number = self.size if size is None else size
        return (isinstance(within, int) and self.start.value is not None
                and 0 <= self.start.value <= within - self.extent)


@dataclass(frozen=True)
class View:
    """A copy for the planner: the array's dimensions and the swizzle `mode` of the shared buffer (None: one that the
    engine does not have).

    The region starts `offset` bytes into the shared buffer (before the swizzle), plus a run-time part that
    `offset_divisor` divides. With `padded`, elements are packed in the array but not in shared memory.
    """

    itemsize: int
    dims: tuple[Dim, ...]
    mode: int | None
    offset: int
    offset_divisor: int
    padded: bool = False

    @property
    def swizzle(self) -> int:
        """The mode, of a swizzle that the engine is known to have."""
        assert self.mode is not None
        return self.mode

    @property
    def unit(self) -> int:
        """The bytes of which the strides of the map must be multiples."""
        return 32 if self.padded else 16


def swizzle_mode(layout: TileLayout, itemsize: int) -> int | None:
    """The swizzle mode (0 none, 1, 2, 3 for 32, 64, 128 bytes) of a shared layout;
    None if the engine has no such swizzle.

    The engine XORs the address bits from 4 on with those from 7 on (PTX ISA, "Swizzling modes").
    """
    s = layout.swizzle
    if s is None or s.swizzle_len == 0:
        return 0
    standard = s.inner and s.atom_len == 3 and s.chunk * itemsize == 16 and s.swizzle_len <= 3
    return s.swizzle_len if standard else None


def shared_digits(layout: TileLayout, shape, starts, extents, divisor: Callable) -> tuple[list, int | Multiple] | str:
    """(digits (extent, stride) of each dimension of a shared region, the region's offset),
    or a string that says why there are none.

    `starts` are ints, or operands of which `divisor` gives a known divisor. Strides and offset are in
    elements, before the swizzle.
    """
    if layout.replicas or any(name != "m" for name in layout.axes):
        return f"the layout {layout}"
    try:
        grouped, at = layout.group(shape)
    except CompilationError as error:  # its message is the reason
        return error.message
    offset = layout.offset.get(axis.m, 0)
    digits = []
    for d, (start, extent) in enumerate(zip(starts, extents)):
        shards = grouped.shards[at[d]:at[d + 1]]
        if not isinstance(start, int):
            start = Multiple(divisor(start))
        sliced = slice_dim(shards, start, extent, lambda shard, n: shard.of % n == 0)
        if sliced is None:
            return (f"elements {'' if isinstance(start, Multiple) else start} to +{extent} of dimension {d} cut across "
                    "the layout's blocks")
        digits.append([(n, stride) for n, stride, _ in sliced[0] if n != 1])
        offset = offset + sliced[1].get(axis.m, 0)
    return digits, offset


def view_of(site, merge: bool = True) -> View | str:
    """The planner's view of a copy site, or a string that says what about the shared layout does not fit.

    Without `merge`, the dimensions of the array are not merged.
    """
    array, shared = site.array, site.shared_side
    starts = [s.value if hasattr(s, "value") else s for s in site.starts(shared)]
    found = shared_digits(shared.buffer.layout, shared.buffer.shape, starts, shared.extents, site.g.divisor)
    if isinstance(found, str):
        return found
    per_dim, offset = found
    itemsize, padded = site.itemsize, site.src.dtype != site.dst.dtype
    merge = merge and not padded
    moved = iter([per_dim[d] for d in site.dims(shared)])
    dims = []
    shape, strides = settle_short_rows(site) if merge else (site.array.buffer.shape, site.array.buffer.strides)
    for d, (size, stride, start, extent) in enumerate(zip(shape, strides, site.starts(array), array.extents)):
        value = int(start.value) if hasattr(start, "value") else None
        n, packing = number(size), (1, 1)
        if padded and d == len(shape) - 1:
            packing = elements, per = array.dtype.packing
            n, extent = times(divide(n, per), elements), count_elements(array.dtype, extent)
            begin = Start(None if value is None else count_elements(array.dtype, value), d, elements,
                          divisor_in_elements(site, start, array.dtype), per)
        else:
            begin = Start(value, d, 1, site.g.asked_divisor(start, 16 // itemsize if stride == 1 else 1))
        pairs: list[tuple[int, int]] = next(moved) if extent != 1 else []
        digits: list[Digit] = []
        weight = 1
        for count, step in reversed(pairs):
            digits.insert(0, Digit(count, weight, step * itemsize))
            weight *= count
        dims.append(Dim(n, times(number(stride), itemsize), begin, extent, tuple(digits), packing))
    known, divisor = (offset * itemsize, 1 << 62) if isinstance(offset, int) else (0, offset.of * itemsize)
    return View(itemsize, merge_dims(dims) if merge else tuple(dims), swizzle_mode(shared.buffer.layout, itemsize),
                known, divisor, padded)


def divisor_in_elements(site, start: Operand, dtype: DType) -> int:
    """A divisor of the element at which a region of packed elements begins, from the `start` in bytes."""
    made = site.g.definitions.get(start) if isinstance(start, Value) else None
    if made is not None and made.op is byte_of:
        divisor: int = site.g.asked_divisor(made.args[0], PADDED)
        return divisor
    return max(count_elements(dtype, site.g.asked_divisor(start, 16)), 1)


def settle_short_rows(site) -> tuple[list, list]:
    """The array's sizes and strides, with some run-time ones replaced by constants so that `merge_dims`
    can merge short rows.

    If the innermost extent is not a multiple of 16 bytes, as the engine needs (a (…, 128, 4) array of bytes), the
    launch is asked whether the region takes the rows in full and they have no gaps between them.
    """
    array, ask = site.array, site.g.facts.ask
    shape, strides, starts = list(array.buffer.shape), list(array.buffer.strides), site.starts(array)
    d = next((k for k in reversed(range(len(shape))) if isinstance(strides[k], int) and strides[k] == 1), None)
    row, joined_up = 1, set()
    while d is not None and row * array.extents[d] * site.itemsize % 16:
        if getattr(starts[d], "value", None) != 0:
            break
        if isinstance(shape[d], Sym) and ask("size_is", shape[d].arg, shape[d].dim, array.extents[d]):
            shape[d] = array.extents[d]
        if shape[d] != array.extents[d]:
            break
        joined_up.add(d)
        row *= array.extents[d]
        outer = None
        for k in reversed(range(len(shape))):
            s = strides[k]
            if (outer is None and k not in joined_up
                and (ask("stride_is", s.arg, s.dim, row) if isinstance(s, Sym) else s == row)):
                outer, strides[k] = k, row
        d = outer
    return shape, strides


def merge_dims(dims: list[Dim]) -> tuple[Dim, ...]:
    """Merge each dimension that the region takes in full with the dimension that continues it,
    which keeps bounds exact."""
    dims = list(dims)
    again = True
    while again:
        again = False
        for inner in dims:
            if not (isinstance(inner.size, int) and inner.extent == inner.size and inner.start.value == 0):
                continue
            whole = times(inner.stride, inner.size)
            outer = next((d for d in dims if d is not inner and d.stride == whole), None)
            if inner.size == 1 and len(dims) > 1:
                dims.remove(inner)
            elif outer is not None:
                dims[dims.index(outer)] = join_dims(outer, inner)
                dims.remove(inner)
            else:
                continue
            again = True
            break
    return tuple(dims)


def join_dims(outer: Dim, inner: Dim) -> Dim:
    n, s = inner.size, outer.start
    assert isinstance(n, int)  # as of a dimension that is taken in full
    start = Start(None if s.value is None else s.value * n, s.dim, s.factor * n, s.divisor * n)
    digits = tuple(replace(d, weight=d.weight * n) for d in outer.digits) + inner.digits
    return Dim(times(outer.size, n), inner.stride, start, outer.extent * n, digits)
