"""Indexing of register tiles, ``x[...]``: slices and single elements."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import CompilationError
from ...ir.builder import Builder, describe, element_type, extents_of, type_as, type_of
from ...ir.graph import Value
from ...ir.op import op
from ...ir.op_traits import Traits
from ...layout.fragments import register_slice
from ...types import Scalar, Tile, domain_of
from .arrange import reshape_
from .gather import as_index, flip_, gather_
from .generate import splat


@op("pure", attrs=("starts", "shape", "steps"), traits=Traits(in_parts=True))
def slice_(x, starts, shape, steps):
    """The elements of `x` at ``starts + i * steps``, for the indices i of a tile of `shape`."""


@slice_.infer
def _(g, x, starts, shape, steps):
    return Tile(type_of(x).dtype, shape)


@slice_.simulate
def _(m, call, x):
    cut = (slice(s, s + (n - 1) * step + 1 if n else s,
                 step) for s, n, step in zip(call.attrs["starts"], call.attrs["shape"], call.attrs["steps"]))
    places = slice(None), *cut
    return x[places]


@slice_.emit
def _(e, call, x):
    """If every thread holds the elements that it needs, registers are selected. Otherwise scratch memory is used:
    every thread writes its elements of `x`, then reads those of the result."""
    source, target = type_of(call.args[0]), call.result.type
    found = _pick_registers(call, source, target)
    if found is not None:
        return [x[r] for r in found]
    starts, steps = call.attrs["starts"], call.attrs["steps"]
    return e.tiles.move_through_scratch(call, x, source, target, source.shape,
                                        lambda at: tuple(s + c * step for s, c, step in zip(starts, at, steps)))


def _register_slice(call, source: Tile):
    """The slice as a selection of registers in each thread: (layout, domain, registers). None if it is not one.

    A dimension with a step is split into groups of `step` elements, of which the same position is selected in each.
    """
    domain, starts, shape, kept = [], [], [], []
    for n, extent, start, taken, step in zip(domain_of(source), source.shape, call.attrs["starts"], call.attrs["shape"],
                                             call.attrs["steps"]):
        if n % step:
            return None
        taken = n if taken == extent else taken  # the whole dimension, with its padding
        domain += [n] if step == 1 else [n // step, step]
        starts += [start] if step == 1 else [start // step, start % step]
        shape += [taken] if step == 1 else [taken, 1]
        kept.append(taken)
    try:
        found = register_slice(source.layout, tuple(domain), tuple(starts), tuple(shape))
    except CompilationError:  # the layout's shards cannot be split into such groups
        return None
    return found and (found[0], tuple(kept), found[2])


def _pick_registers(call, source: Tile, target: Tile) -> tuple[int, ...] | None:
    found = _register_slice(call, source)
    return found[2] if found is not None and (target.layout, target.domain) == found[:2] else None


def _slice_layout(assigner, call, types):
    t, r = call.args[0].type, call.result.type
    source = types[0] or assigner.default(t.shape, t.dtype)
    found = _register_slice(call, source)
    return (source,), (Tile(r.dtype, r.shape, *found[:2]) if found is not None else assigner.default(r.shape, r.dtype),)


def _slice_scratch(call) -> int:
    source = type_of(call.args[0])
    if _pick_registers(call, source, call.results[0].type) is not None:
        return 0
    return source.size * source.dtype.nbytes


slice_.rules.layout = _slice_layout
slice_.rules.scratch = _slice_scratch


@op("pure")
def item_of(x):
    """The element of a tile of one element, as a scalar."""


@item_of.infer
def _(g, x):
    return Scalar(type_of(x).dtype, g.scope.uniformity)


@item_of.simulate
def _(m, call, x):
    return x.reshape(x.shape[0], 1)


@item_of.emit
def _(e, call, x):
    """In the default layout of a tile of one element, every thread holds the element."""
    return x[0]


@item_of.layout
def _(assigner, call, types):
    t = type_as(call.args[0], Tile)
    return (assigner.default(t.shape, t.dtype),), (None,)


# -- indexing --------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Cut:
    """What one item of an index selects of a dimension: `extent` elements from `start` on, `step` apart, of the
    reversed dimension if `flipped`. A single element is `dropped` as a dimension. `at` is its place, if that is known
    at run time only."""

    start: int
    extent: int
    step: int = 1
    flipped: bool = False
    dropped: bool = False
    at: Value | None = None


def index(g: Builder, x: Value, items: tuple) -> Value:
    """``x[...]`` of a tile, by constant slices, integers (which drop the dimension), None (a new dimension) and
    Ellipsis. An integer tile gives the elements of a one-dimensional tile at its places."""
    shape = type_as(x, Tile).shape
    used = sum(1 for i in items if i is not None and i is not Ellipsis)
    if used > len(shape):
        raise g.error(f"{used} indices for a tile of {len(shape)} dimensions")
    if len(items) == 1 and isinstance(type_of(items[0]), Tile):
        return _at_places(g, x, items[0])
    if Ellipsis in [i for i in items if not isinstance(i, Value)]:
        at = next(n for n, i in enumerate(items) if i is Ellipsis)
        items = items[:at] + (slice(None),) * (len(shape) - used) + items[at + 1:]
    else:
        items += (slice(None),) * (len(shape) - used)
    extents = iter(shape)
    cuts = [None if item is None else _cut(g, item, next(extents)) for item in items]
    result = _select(g, x, [cut for cut in cuts if cut is not None])
    kept = tuple(1 if cut is None else cut.extent for cut in cuts if cut is None or not cut.dropped)
    if not kept:
        return g.call(item_of, result)
    return result if kept == extents_of(result) else g.call(reshape_, result, shape=kept)


def _select(g: Builder, x: Value, cuts: list[Cut]) -> Value:
    """What the cuts select, with all dimensions."""
    if flipped := tuple(d for d, cut in enumerate(cuts) if cut.flipped):
        x = g.call(flip_, x, axes=flipped)
    starts, shape, steps = (tuple(getattr(cut, name) for cut in cuts) for name in ("start", "extent", "step"))
    chosen = tuple(n if cut.at is not None else m for cut, n, m in zip(cuts, extents_of(x), shape))
    if chosen != extents_of(x) or any(n != 1 for n in steps) or any(starts):
        x = g.call(slice_, x, starts=starts, shape=chosen, steps=steps)
    for axis, cut in enumerate(cuts):
        if cut.at is not None:
            place = as_index(g, cut.at, extents_of(x)[axis])
            one = tuple(1 if d == axis else n for d, n in enumerate(extents_of(x)))
            x = g.call(gather_, x, g.call(splat, place, shape=one), axis=axis)
    return x


def _at_places(g: Builder, x: Value, places: Value) -> Value:
    if len(extents_of(x)) != 1 or not element_type(places).is_int:
        raise g.error(f"an integer tile indexes a register tile of one dimension, not {describe(x)} by "
                      f"{describe(places)}; tile.gather takes indices along one axis")
    return g.call(gather_, x, as_index(g, places, extents_of(x)[0]), axis=0)


def _cut(g: Builder, item, extent: int) -> Cut:
    if isinstance(item, slice):
        if any(not isinstance(b, (int, type(None))) for b in (item.start, item.stop, item.step)):
            raise g.error("slices of register tiles are constants; for a run-time place, index memory instead"
                          + g.declared_constant((item.start, item.stop, item.step)))
        if item.step == 0:
            raise g.error("a slice's step is not 0")
        start, stop, step = item.indices(extent)
        count = len(range(start, stop, step))
        if step > 0 or not count:
            return Cut(start if step > 0 else 0, count, abs(step))
        return Cut(extent - 1 - start, count, -step, flipped=True)
    if isinstance(item, int) and not isinstance(item, bool):
        if not -extent <= item < extent:
            raise g.error(f"index {item} is out of range for an extent of {extent}")
        return Cut(item % extent, 1, dropped=True)
    if isinstance(item, Value) and isinstance(item.type, Scalar) and item.type.dtype.is_int:
        return Cut(0, 1, dropped=True, at=item)
    raise g.error(f"a register tile is indexed with constant slices and with integers, not {describe(item)}"
                  + g.declared_constant(item))
