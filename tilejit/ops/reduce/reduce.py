"""Reduction of a tile along some of its dimensions: first within each thread, then across lanes, then across warps.

The plan fixes the order in which elements are combined. The emitted code and the simulator both follow it, so that
float results agree to the bit.

  registers   a tree of halves: of n partial results, each of the first n // 2 is combined with the one n - n // 2
              further on
  lanes       a butterfly (``shfl.sync.bfly``): lanes whose ids differ in one bit, least significant bit first
  warps       the first lanes of each warp write to scratch memory; after a barrier, every thread combines what it needs

A function that need not commute is applied in the order of the elements instead (`reduce_in_order.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ...dtypes import DType, bool_
from ...ir.builder import Builder, element_type, type_as, type_of
from ...ir.graph import Call, choice_of
from ...ir.op import op
from ...layout import collapse, drop_dim
from ...types import Scalar, Tile, domain_of, layout_of
from ..language.promotion import collective
from .combine import Combine, Guarded, Known, identity_of
from .layout_digits import Digit, digits, is_crossable, lane_masks, pad_to_domain, register_coordinates, test_inside
from .partials import behind_each_other, load_run
from .reduce_in_order import InOrder, Step, scratch_in_order, simulate_in_order, steps_in_order


@dataclass(frozen=True)
class ReducePlan:
    """How a tile is reduced along `axes`.

    ``registers[j]`` are the registers that are combined, in order, to result register j. `masks` are the lane bits of
    the butterfly, in order. `warps` are the digits of the warp id along the axes, largest stride first, and
    `replicas` the (extent, stride, axis) along which threads hold copies. `kept` are the remaining extents of the
    (padded) domain.

    `of_warp` is the operation of the instruction that reduces a whole warp (redux), or None. `guarded` means that
    there is padding among the elements, and that the combine has no identity to replace it by. A combine that need
    not commute goes by `in_order`, the steps of `reduce_in_order.py`.
    """

    axes: tuple[int, ...]
    registers: tuple[tuple[int, ...], ...]
    masks: tuple[int, ...]
    warps: tuple[Digit, ...]
    replicas: tuple[tuple[int, int, str], ...]
    of_warp: str | None
    guarded: bool
    kept: tuple[int, ...]
    in_order: tuple[Step, ...] = ()

    @property
    def warp_count(self) -> int:
        return prod(d.extent for d in self.warps)

    def of_scope(self, dtypes: tuple[DType, ...]) -> str | None:
        """The operation of the barrier that reduces bools of all threads of the scope (barrier.red), or None."""
        return self.of_warp if dtypes == (bool_,) and self.warps and prod(self.kept) == 1 else None

    def offsets(self, dtypes: tuple[DType, ...]) -> tuple[int, ...]:
        """The byte offset of the array of each dtype in scratch memory, and the end of the last."""
        return behind_each_other(prod(self.kept) * self.warp_count, dtypes)


@op("pure", attrs=("axes", "keepdims", "combine"), collective=True)
def reduce_(*xs, axes, keepdims, combine):
    """Reduce tiles of one shape together along `axes`. The Combine works on tuples of one element of each."""


@reduce_.infer
def _(g: Builder, *xs, axes, keepdims, combine):
    collective(g, "a reduction")
    shape = type_of(xs[0]).shape
    kept = reduced_shape(shape, axes, keepdims)
    if kept == () and not keepdims:
        return tuple(Scalar(type_of(x).dtype, g.scope.uniformity) for x in xs)
    return tuple(Tile(type_of(x).dtype, kept) for x in xs)


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    return tuple(1 if d in axes else n for d, n in enumerate(shape) if keepdims or d not in axes)


# -- layouts and the plan ----------------------------------------------------------------------------------------------

def _layout(assigner, call: Call, types: tuple) -> tuple[tuple, tuple]:
    """Layouts of operands and results: the operands keep theirs, if butterfly shuffles work in it,
    otherwise take the default one.

    The result's layout is that of the operands without the reduced dimensions.
    """
    first = type_as(call.args[0], Tile)
    base = next((t for t in types if t is not None), None)
    axes, keepdims = call.attrs["axes"], call.attrs["keepdims"]
    if base is None or not is_crossable(base, axes):
        base = assigner.default(first.shape, first.dtype)
    layout, domain = base.layout, base.domain
    for d in axes:
        layout, domain = collapse(layout, domain, d)
    for d in () if keepdims else sorted(axes, reverse=True):
        layout, domain = drop_dim(layout, domain, d)
    needs = tuple(Tile(element_type(a), first.shape, base.layout, base.domain) for a in call.args)
    made = tuple(Tile(r.type.dtype, r.type.shape, layout, domain) if isinstance(r.type, Tile) else None
                 for r in call.results)
    return needs, made


def _plan(context, call: Call) -> ReducePlan:
    return plan_reduce(type_as(call.args[0], Tile), call.attrs["axes"], call.attrs["combine"], context.target)


def plan_reduce(t: Tile, axes: tuple[int, ...], combine: Combine, target: str) -> ReducePlan:
    """The plan for a tile whose layout is known."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for reg, at in enumerate(register_coordinates(t.layout, t.domain)):
        groups.setdefault(tuple(c for d, c in enumerate(at) if d not in axes), []).append(reg)
    along = tuple(d for a in axes for d in digits(t.layout, t.domain)[a])
    masks = lane_masks(along)
    warps = tuple(sorted((d for d in along if d.axis == "warpid"), key=lambda d: -d.stride))
    replicas = tuple((n, s, str(a)) for n, s, a in layout_of(t).replicas if n > 1 and a != "reg")
    padding = any(domain_of(t)[d] > t.shape[d] for d in axes)
    of_warp = combine.of_warp(target) if isinstance(combine, Known) and sum(masks) == 31 else None
    kept = tuple(n for d, n in enumerate(domain_of(t)) if d not in axes)
    return ReducePlan(axes, _by_result_register(t, axes, groups), masks, warps, replicas, of_warp,
                      padding and combine.identity is None, kept, steps_in_order(t, axes) if combine.in_order else ())


def _by_result_register(t: Tile, axes, groups: dict) -> tuple[tuple[int, ...], ...]:
    """The groups in the order of the result's registers, which `collapse` renumbers without gaps in the same order."""
    layout, domain = layout_of(t), domain_of(t)
    for d in axes:
        layout, domain = collapse(layout, domain, d)
    return tuple(tuple(groups[tuple(c for d, c in enumerate(at) if d not in axes)])
                 for at in register_coordinates(layout, domain))


def _scratch(call: Call) -> int:
    plan: ReducePlan = choice_of(call).plan
    dtypes = tuple(element_type(a) for a in call.args) + ((bool_,) if plan.guarded else ())
    if plan.in_order:
        return scratch_in_order(plan.in_order, dtypes)
    return plan.offsets(dtypes)[-1] if plan.warps and not plan.of_scope(dtypes) else 0


reduce_.rules.layout = _layout
reduce_.rules.plan = _plan
reduce_.rules.scratch = _scratch


# -- simulation --------------------------------------------------------------------------------------------------------

@reduce_.simulate
def _(m, call, *xs):
    plan: ReducePlan = call.choice.plan
    t, combine = type_of(call.args[0]), call.attrs["combine"]
    fills = combine.identity or (0,) * len(xs)
    if plan.guarded:
        xs, fills, combine = (*xs, np.ones((1, *t.shape), bool)), (*fills, False), Guarded(combine)
    if plan.in_order:
        return _results(call, t, plan, simulate_in_order(m, combine, t, plan.in_order, xs, fills))
    parts = tuple(_arrange_digits(x, t, plan, fill) for x, fill in zip(xs, fills))
    registers, lanes = (_digits_along(t, plan, axis) for axis in ("reg", "laneid"))
    # then each halving of the registers is one of the widest digit left
    if all(d.extent & d.extent - 1 == 0 for d in registers[:-1]):
        for _ in registers:
            parts = _tree(m, combine, parts)
    else:
        parts = _tree(m, combine, _merge_dimensions(parts, len(registers)))
    for k in reversed(range(len(lanes))):
        for _ in range(lanes[k].extent.bit_length() - 1):
            low, high = ((*(slice(None),) * k, slice(i, None, 2)) for i in (0, 1))
            parts = combine.simulate(m, tuple(p[low] for p in parts), tuple(p[high] for p in parts))
    parts = tuple(p[(0,) * len(lanes)] for p in parts)
    return _results(call, t, plan, _tree(m, combine, _merge_dimensions(parts, len(plan.warps))))


def _results(call: Call, t: Tile, plan: ReducePlan, parts: tuple) -> tuple:
    """The parts of the padded domain's remaining elements, as the call's results."""
    kept = tuple(n for d, n in enumerate(t.shape) if d not in plan.axes)
    results, cut = [], (slice(None), *(slice(n) for n in kept))
    for part, result in zip(parts, call.results):
        whole = part.reshape(-1, *plan.kept)[cut]
        results.append(whole.reshape(-1, *result.type.shape) if isinstance(result.type, Tile) else whole.reshape(-1, 1))
    return tuple(results)


def _digits_along(t: Tile, plan: ReducePlan, axis: str) -> list[Digit]:
    """The digits of an axis along the reduced dimensions, largest stride first."""
    return sorted((d for a in plan.axes for d in digits(t.layout, t.domain)[a] if d.axis == axis),
                  key=lambda d: -d.stride)


def _arrange_digits(x: np.ndarray, t: Tile, plan: ReducePlan, fill) -> np.ndarray:
    """An array (B, *shape) as (*registers, *lanes, *warps, B, *remaining): digits along the reduced axes, batch,
    digits of the others."""
    all_digits = [d for dim in digits(t.layout, t.domain) for d in dim]
    x = pad_to_domain(x, t.shape, domain_of(t), fill).reshape(x.shape[0], *(d.extent for d in all_digits))
    place = {d: n + 1 for n, d in enumerate(all_digits)}
    first = [place[d] for axis in ("reg", "laneid", "warpid") for d in _digits_along(t, plan, axis)]
    return x.transpose(*first, 0, *(place[d] for d in all_digits if d.dim not in plan.axes))


def _merge_dimensions(parts: tuple, n: int) -> tuple:
    """Merge the first `n` dimensions."""
    return tuple(p.reshape(-1, *p.shape[n:]) for p in parts)


def _tree(m, combine: Combine, parts: tuple) -> tuple:
    """Combine along the leading dimension, by a tree of halves."""
    while (n := len(parts[0])) > 1:
        low, step = n // 2, n - n // 2
        joined = combine.simulate(m, tuple(p[:low] for p in parts), tuple(p[step:] for p in parts))
        if step > low:  # the element in the middle is left over
            joined = tuple(np.concatenate([j, np.broadcast_to(p[low:step], (1, *j.shape[1:]))])
                           for j, p in zip(joined, parts))
        parts = joined
    return tuple(p[0] for p in parts)


# -- emission ----------------------------------------------------------------------------------------------------------

@reduce_.emit
def _(e, call, *xs):
    plan: ReducePlan = call.choice.plan
    t, combine = type_of(call.args[0]), call.attrs["combine"]
    items = [_element(e, t, plan, combine, reg, tuple(x[reg] for x in xs)) for reg in range(len(xs[0]))]
    combine = Guarded(combine) if plan.guarded else combine
    if plan.in_order:
        totals = InOrder(e, call, t, combine, items).run(plan.in_order)
        parts = [next(totals[r] for r in group if r in totals) for group in plan.registers]
    else:
        parts = [emit_tree(e, combine, [items[r] for r in group]) for group in plan.registers]
        if word := plan.of_scope(tuple(v.dtype for v in parts[0])):
            parts = [(e.sync.vote(word, *p),) for p in parts]
        else:
            parts = [_across_lanes(e, plan, combine, p) for p in parts]
            if plan.warps:
                parts = _across_warps(e, call, plan, combine, t, parts)
    columns = [[p[k] for p in parts] if isinstance(r.type, Tile) else parts[0][k] for k, r in enumerate(call.results)]
    return columns[0] if len(columns) == 1 else tuple(columns)


def _element(e, t: Tile, plan: ReducePlan, combine: Combine, reg: int, values: tuple) -> tuple:
    """A register's values. In padding, they are replaced by the identity or, if there is none, marked as no element."""
    test = test_inside(e, t, reg, plan.axes)
    if plan.guarded:
        return (*values, e.const(True, bool_) if test is None else test)
    if test is None:
        return values
    return tuple(e.select(test, v, e.const(i, v.dtype)) for v, i in zip(values, identity_of(combine)))


def emit_tree(e, combine: Combine, items: list[tuple]) -> tuple:
    """Emit the combination of `items` by a tree of halves."""
    while len(items) > 1:
        low, step = len(items) // 2, len(items) - len(items) // 2
        items = [combine.emit(e, items[i], items[i + step]) for i in range(low)] + items[low:step]
    return items[0]


def _across_lanes(e, plan: ReducePlan, combine: Combine, item: tuple) -> tuple:
    if plan.of_warp is not None:
        return (e.warp.redux(plan.of_warp, item[0]),)
    for mask in plan.masks:
        item = combine.emit(e, item, tuple(e.warp.shuffle("bfly", v, mask) for v in item))
    # the lanes combined in different orders: all take the result of the first one
    if plan.masks and not combine.commutative:
        first = e.memoize_for_region(("first lane", plan.masks), lambda: e.lane_id() & (31 & ~sum(plan.masks)))
        item = tuple(e.warp.shuffle("idx", v, first) for v in item)
    return item


def _across_warps(e, call: Call, plan: ReducePlan, combine: Combine, t: Tile, parts: list[tuple]) -> list[tuple]:
    """Combine partial results through scratch memory, where those of all warps for one element are adjacent."""
    dtypes = tuple(v.dtype for v in parts[0])
    offsets, count = plan.offsets(dtypes), plan.warp_count
    digit, tests = 0, [("laneid", 2, mask)
                       for mask in plan.masks] + [(axis, n, stride) for n, stride, axis in plan.replicas]
    for d in plan.warps:
        digit = digit * d.extent + e.warp.digit("warpid", d.extent, d.stride)
    first = e.all_of([e.warp.as_test(e.warp.digit(axis, n, stride)) for axis, n, stride in tests])
    places = [_kept_index(e, t, plan, group[0]) for group in plan.registers]
    e.begin_scratch(call)
    for place, part in zip(places, parts):
        for k, (value, dtype) in enumerate(zip(part, dtypes)):
            address, offset = e.scratch_address(call, (place * count + digit) * dtype.nbytes)
            e.vector_store("shared", address, offsets[k] + offset, dtype, [value], first, None)
    e.sync.scope()
    result = []
    for place in places:
        columns = []
        for k, dtype in enumerate(dtypes):
            address, offset = e.scratch_address(call, place * count * dtype.nbytes)
            columns.append(load_run(e, address, offsets[k] + offset, dtype, count))
        result.append(emit_tree(e, combine, list(zip(*columns))))
    return result


def _kept_index(e, t: Tile, plan: ReducePlan, reg: int):
    """Emit the row-major index of a register's element over the remaining dimensions of the (padded) domain."""
    at, index = register_coordinates(t.layout, t.domain)[reg], 0
    for d, n in enumerate(domain_of(t)):
        if d not in plan.axes:
            index = index * n + (e.tiles.thread_coordinate(t, d) + at[d])
    return index
