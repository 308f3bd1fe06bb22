"""Indexing of register tiles, ``x[...]``: slices and single elements."""

from __future__ import annotations

from ...errors import CompilationError
from ...ir.builder import Builder, describe, type_as, type_of
from ...ir.graph import Value
from ...ir.op import op
from ...layout.fragments import register_slice
from ...types import Scalar, Tile, domain_of
from .arrange import reshape_


@op("pure", attrs=("starts", "shape", "steps"))
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
    e.scratch_store(call, x, source)
    return e.scratch_load(call, target, source.shape,
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

def index(g: Builder, x: Value, items: tuple) -> Value:
    """``x[...]`` of a tile, by constant slices, constant integers (which drop the dimension),
    None (a new dimension) and Ellipsis."""
    shape = type_as(x, Tile).shape
    used = sum(1 for i in items if i is not None and i is not Ellipsis)
    if used > len(shape):
        raise g.error(f"{used} indices for a tile of {len(shape)} dimensions")
    if Ellipsis in [i for i in items if not isinstance(i, Value)]:
        at = next(n for n, i in enumerate(items) if i is Ellipsis)
        items = items[:at] + (slice(None),) * (len(shape) - used) + items[at + 1:]
    else:
        items += (slice(None),) * (len(shape) - used)
    starts, extents, steps, kept, d = [], [], [], [], 0
    for item in items:
        if item is None:
            kept.append(1)
            continue
        start, extent, step, drop = _cut(g, item, shape[d])
        starts.append(start)
        extents.append(extent)
        steps.append(step)
        if not drop:
            kept.append(extent)
        d += 1
    result = x
    if tuple(extents) != shape or any(s != 1 for s in steps) or any(starts):
        result = g.call(slice_, x, starts=tuple(starts), shape=tuple(extents), steps=tuple(steps))
    if not kept:
        return g.call(item_of, result)
    return result if tuple(kept) == tuple(extents) else g.call(reshape_, result, shape=tuple(kept))


def _cut(g: Builder, item, extent: int) -> tuple[int, int, int, bool]:
    if isinstance(item, slice):
        if any(not isinstance(b, (int, type(None))) for b in (item.start, item.stop, item.step)):
            raise g.error("slices of register tiles are constants; for a run-time place, index memory instead"
                          + g.declared_constant((item.start, item.stop, item.step)))
        if item.step is not None and item.step < 1:
            raise g.error(f"a tile's slice has a positive step, not {item.step}")
        start, stop, step = item.indices(extent)
        return start, max(0, -(-(stop - start) // step)), step, False
    if isinstance(item, int) and not isinstance(item, bool):
        if not -extent <= item < extent:
            raise g.error(f"index {item} is out of range for an extent of {extent}")
        return item % extent, 1, 1, True
    raise g.error(f"a register tile is indexed with constant slices and integers, not {describe(item)}; "
                  "for a run-time index, index memory"
                  + g.declared_constant(item))
