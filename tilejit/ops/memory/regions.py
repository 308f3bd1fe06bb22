"""Places in memory: regions (boxes of buffers), and points (elements that index tiles address one by one)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...dtypes import count_elements, int32
from ...ir.builder import Builder, as_value, describe, element_type, extents_of, type_as, type_of
from ...ir.graph import Const, Value
from ...ir.op import op
from ...ir.op_traits import Traits
from ...types import Buffer, Points, Region, Scalar, Sym, Tile
from ..language.operators import binary
from ..language.promotion import as_index, broadcast_shape, spread
from ..language.sizes import elements_value, extent_value
from ..tiles import arrange, generate
from . import packed


@op("pure", attrs=("extents", "kept"), traits=Traits(view=True))
def region(buffer, *starts, extents, kept):
    """A box of `buffer`, with a start and a constant extent for each dimension.
    Dimensions not in `kept` are dropped."""


@region.infer
def _(g, buffer, *starts, extents, kept):
    return Region(type_of(buffer), extents, kept)


@region.simulate
def _(m, call, buffer, *starts):
    return m.make_region(call.result.type, buffer, starts)


@region.emit
def _(e, call, buffer, *starts):
    return e.make_region(call.result.type, buffer, starts)


@op("pure", attrs=("shape",), traits=Traits(view=True))
def points(buffer, *indices, shape):
    """Elements of `buffer` addressed one by one. The index along each dimension is a tile of the result's `shape`,
    or a scalar."""


@points.infer
def _(g, buffer, *indices, shape):
    return Points(type_of(buffer), shape)


@points.simulate
def _(m, call, buffer, *indices):
    return m.make_points(call.result.type, buffer, indices)


@points.emit
def _(e, call, buffer, *indices):
    return e.make_points(call.result.type, buffer, indices)


def whole_region(g: Builder, x: Value) -> Value:
    """The region of all of a buffer. A region is returned as it is."""
    if isinstance(x.type, Region):
        return x
    t = type_as(x, Buffer)
    if t.narrowed is not None:
        return index(g, x, (...,))
    shape = t.shape
    if any(isinstance(n, Sym) for n in shape):
        raise g.error(f"the extents of {describe(x)} are known at launch only: name a box, "
                      f"as in {x.name}[{', '.join('0:BLOCK' for _ in shape)}]")
    zero = Const(0, int32)
    return g.call(region, x, *(zero for _ in shape), extents=tuple(shape), kept=tuple(range(len(shape))))


def refuse_box(g: Builder, what: str, x: Value) -> Value:
    """`x`, which must not be a box of a tensor map: only copy_async moves those."""
    if isinstance(x.type, Region) and x.type.buffer.map is not None:
        raise g.error(f"{what} cannot use a tensor map: move its boxes with tile.copy_async, or name the array itself")
    return x


def index(g: Builder, x: Value, items: tuple) -> Value:
    """``x[...]`` of a buffer or region. Slices and integers give a region, integer tiles give points."""
    base, starts, extents, dims = _unpack(g, refuse_box(g, "a further index", x))
    items = _expand_ellipsis(g, x, items, len(dims))
    if any(isinstance(type_of(i), Tile) for i in items):
        return _points(g, x, base, starts, extents, dims, items)
    firsts, kept, box = list(starts), [], list(extents)
    for item, d in zip(items, dims):
        start, extent, drop = _part(g, x, item, extents[d], base, d)
        firsts[d] = _add_start(g, firsts[d], start)
        box[d] = extent
        if not drop:
            kept.append(d)
    for d, extent in enumerate(box):
        if not isinstance(extent, int):  # a dimension that an earlier slice dropped always has extent 1
            box[d] = 1
    args = [g.operand(s, int32) for s in firsts]
    for a in args:
        if isinstance(t := type_of(a), Scalar) and not t.dtype.is_int:
            raise g.error(f"an index is an integer, not {describe(a)}")
    return g.call(region, base, *args, extents=tuple(box), kept=tuple(kept))


def _unpack(g: Builder, x: Value) -> tuple[Value, tuple, tuple, tuple[int, ...]]:
    """The buffer that `x` is a region of (or is), a start and an extent (int or Sym) for each dimension,
    and the dimensions kept."""
    if isinstance(x.type, Region):
        call = g.definitions[x]
        return as_value(call.args[0]), call.args[1:], x.type.extents, x.type.kept
    t = type_as(x, Buffer)
    if t.narrowed is not None:
        origins, extents, *_ = parts(g, x)
        return x, origins, extents, tuple(range(len(origins)))
    rank = len(t.shape)
    return x, (0,) * rank, t.shape, tuple(range(rank))


def _expand_ellipsis(g: Builder, x: Value, items: tuple, rank: int) -> tuple:
    if any(i is None for i in items):
        raise g.error("a buffer has no new dimensions: index the loaded tile with None instead")
    dots = [n for n, i in enumerate(items) if i is Ellipsis]
    if len(items) - len(dots) > rank:
        raise g.error(f"{len(items) - len(dots)} indices for {describe(x)}, "
                      f"which has {rank} dimension{'s' if rank != 1 else ''}")
    at = dots[0] if dots else len(items)
    return items[:at] + (slice(None),) * (rank - len(items) + len(dots)) + items[at + 1:]


def _part(g: Builder, x: Value, item, size: int | Sym, base: Value, d: int) -> tuple:
    """The index along dimension `d` of the buffer `base` as (start, extent, dropped),
    in bytes if the elements are packed."""
    dtype = element_type(base)
    if dtype.packed and d == len(extents_of(base)) - 1:
        start, extent, dropped = _elements_part(g, x, item,
                                                count_elements(dtype, size) if isinstance(size, int) else size, base, d)
        return *packed.bytes_along(g, item, start, extent, dropped, dtype), dropped
    return _elements_part(g, x, item, size, base, d)


def _elements_part(g: Builder, x: Value, item, size: int | Sym, base: Value, d: int) -> tuple:
    """`_part` in elements."""
    if not isinstance(item, slice):
        t = type_of(item)
        if not isinstance(t, Scalar) or not t.dtype.is_int:
            raise g.error(f"a buffer is indexed with integers, slices and integer tiles, not {describe(item)}")
        return as_index(g, _from_end(g, item, size, base, d), extents_of(base)[d]), 1, True
    _check_slice(g, item)
    start = 0 if item.start is None else _from_end(g, item.start, size, base, d)
    if item.stop is None and isinstance(item.start, int) and item.start < 0:
        return as_index(g, start, extents_of(base)[d]), -item.start, False
    stop = size if item.stop is None else _from_end(g, item.stop, size, base, d)
    if isinstance(stop, Sym) or item.stop is None and not isinstance(stop, int):
        rank = len(extents_of(base))
        each = f": {x.name} has {rank} dimensions, and this is number {d}" if rank > 1 else ""
        example = ", ".join("0:BLOCK" if n == d else "i" for n in range(rank))
        raise g.error("the extent of this slice is known at launch only; write a constant one, "
                      f"as in {x.name}[{example}]{each}")
    return as_index(g, start, extents_of(base)[d]), _constant_extent(g, item, start, stop), False


def _check_slice(g: Builder, item: slice) -> None:
    """CompilationError unless the bounds of a slice are integers and its step is 1."""
    if item.step not in (None, 1):
        raise g.error("a region of memory has step 1; index with an integer tile, as in x[tile.arange(N) * 2]")
    for bound in (item.start, item.stop):
        t = type_of(bound)
        if bound is not None and not (isinstance(t, Scalar) and t.dtype.is_int):
            hint = "; // divides integers" if isinstance(t, Scalar) and t.dtype.is_float else ""
            raise g.error(f"the bounds of a slice are integers, not {describe(bound)}{hint}")


def _constant_extent(g: Builder, item: slice, start, stop) -> int:
    """``stop - start`` of a slice whose bounds, counted from 0, these are. CompilationError if it is not a constant, or
    negative."""
    extent = g.difference(stop, start)
    if extent is None:
        terms = g.linear_form(item.stop), g.linear_form(item.start or 0)
        varies = tuple(key for key in dict.fromkeys((*terms[0], *terms[1])) if terms[0].get(key) != terms[1].get(key))
        proposal = ": write it as x[i * BLOCK:(i + 1) * BLOCK] or x[start:start + BLOCK]"
        raise g.error("the extent of a slice (stop - start) must be a constant"
                      + (g.declared_constant(varies) or proposal))
    if extent < 0:
        raise g.error(f"the slice's stop is {-extent} below its start")
    return extent


def _from_end(g: Builder, bound, size: int | Sym, base: Value, d: int):
    """A bound of a slice, or an index. A negative constant counts from the end."""
    if not isinstance(bound, int) or bound >= 0:
        return bound
    if isinstance(size, int):
        return size + bound
    return binary(g, "+", elements_value(g, base, size, d) if isinstance(size, Sym) else size, bound)


def _add_start(g: Builder, start, by):
    """``start + by``, without an op if one is 0 or both are constants."""
    start = start.value if isinstance(start, Const) else start
    if isinstance(by, int) and by == 0:
        return start
    if isinstance(start, int) and (start == 0 or isinstance(by, int)):
        return by if start == 0 else start + by
    return binary(g, "+", start, by)


def _points(g: Builder, x, base, starts, extents, dims, items) -> Value:
    """Advanced indexing. Index tiles are broadcast together, and their dimensions stand at the
    position of the first one.

    Otherwise slices and integers behave as in NumPy.
    """
    tiles = [i for i in items if isinstance(type_of(i), Tile)]
    for t in tiles:
        if not t.type.dtype.is_int:
            raise g.error(f"an index tile holds integers, not {t.type.dtype}")
    joint = broadcast_shape(g, *(t.type for t in tiles))
    assert joint is not None  # the shape of tiles
    parts: list[Any] = [None if isinstance(type_of(i), Tile) else _part(g, x, i, extents[d], base, d)
                        for i, d in zip(items, dims)]
    if base.type.dtype.packed and any(p is None and d == len(base.type.shape) - 1 for p, d in zip(parts, dims)):
        packed.refuse_packed(g, "indexing the last dimension with a tile", base.type.dtype)
    shape, axes, tile_shape = _shape_of_points(parts, joint)
    indices = [g.operand(s, int32) for s in starts]
    for n, (item, part, d) in enumerate(zip(items, parts, dims)):
        if part is None:
            value = spread(g, as_index(g, item, base.type.shape[d]), joint)
            if axes:
                value = g.call(arrange.reshape_, value, shape=tile_shape)
        elif n in axes:
            value = _slice_indices(g, part[0], part[1], axes[n], len(shape))
        else:
            value = part[0]
        value = _add_start(g, starts[d], value)
        indices[d] = spread(g, value, shape) if isinstance(type_of(value), Tile) else g.operand(value, int32)
    return g.call(points, base, *indices, shape=shape)


def _shape_of_points(parts: list[Any], joint: tuple[int, ...]) -> tuple[tuple, dict[int, int], tuple]:
    """The shape of points indexed by `parts`, where None stands for an index tile: the slices' extents around the
    tiles' `joint` shape. With it, the axis of each slice, and the shape of the tiles with 1 along these axes."""
    slices, first = [n for n, part in enumerate(parts) if part and not part[2]], parts.index(None)
    before, after = [n for n in slices if n < first], [n for n in slices if n > first]
    shape = (*(parts[n][1] for n in before), *joint, *(parts[n][1] for n in after))
    axes = {n: axis for axis, n in enumerate(before)}
    axes |= {n: len(before) + len(joint) + axis for axis, n in enumerate(after)}
    return shape, axes, (*(1,) * len(before), *joint, *(1,) * len(after))


def _slice_indices(g: Builder, start, extent: int, axis: int, rank: int) -> Value:
    """The indices ``start, start + 1, ...`` of a slice, as a tile of `rank` dimensions that extends along `axis`."""
    ramp = g.call(generate.iota, start=0, stop=extent, axis=0)
    ramp = g.call(arrange.reshape_, ramp, shape=tuple(extent if d == axis else 1 for d in range(rank)))
    return ramp if isinstance(start, int) and start == 0 else as_value(binary(g, "+", ramp, start))


# -- simulation --------------------------------------------------------------------------------------------------------

def coordinates(m, source) -> tuple[np.ndarray, ...]:
    """The coordinates of the elements of a simulated region or points: an array for each dimension of the buffer."""
    t = source.type
    if isinstance(t, Points):
        rank = max(len(t.shape), 1)
        return tuple(i.reshape(*i.shape[:1], *(1,) * rank) if t.shape and i.ndim != rank + 1 else i
                     for i in source.indices)
    arrays = []
    for d, start in enumerate(source.starts):
        if not t.kept:
            arrays.append(start)
            continue
        axis = t.kept.index(d) if d in t.kept else None
        ramp = np.arange(t.extents[d], dtype=np.int64) if axis is not None else np.zeros(1, np.int64)
        ramp = ramp.reshape(1, *(t.extents[d] if k == axis else 1 for k in range(len(t.kept))))
        arrays.append(start.astype(np.int64)[:, :1].reshape(-1, *(1,) * len(t.kept)) + ramp)
    return tuple(arrays)


@op("pure", attrs=("narrowed",))
def window_(array, *bounds, narrowed):
    """`array` with narrower bounds.

    `bounds` holds, for all dimensions each: the origins of the window's coordinates, their extents, the first
    elements in bounds, and the numbers of elements in bounds. Regions of the window keep coordinates of the array.
    """


@window_.infer
def _(g, array, *bounds, narrowed):
    return replace(type_of(array), narrowed=narrowed)


@window_.simulate
def _(m, call, array, *bounds):
    rank = len(array.shape)
    return replace(array, type=call.result.type, lows=bounds[2 * rank:3 * rank], counts=bounds[3 * rank:])


@window_.emit
def _(e, call, array, *bounds):
    rank = len(array.sizes)
    return replace(array, type=call.result.type, lows=bounds[2 * rank:3 * rank], sizes=bounds[3 * rank:])


def parts(g: Builder, array: Value) -> tuple[tuple, ...]:
    """The `bounds` of a window or an array, as four tuples: origins and extents of its coordinates, first elements in
    bounds, and numbers of elements in bounds."""
    t = type_as(array, Buffer)
    rank = len(t.shape)
    if t.narrowed is None:
        sizes = tuple(extent_value(g, array, n) for n in t.shape)
        return (0,) * rank, sizes, (0,) * rank, sizes
    made = [a.value if isinstance(a, Const) else a for a in g.definitions[array].args[1:]]
    return tuple(tuple(made[k * rank:(k + 1) * rank]) for k in range(4))
