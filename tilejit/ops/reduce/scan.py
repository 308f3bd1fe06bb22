"""Inclusive scans along one dimension of a tile: cumsum, cumprod, and scan with a user's function.

The dimension is a sequence of digits of registers, lanes and warps (`layout_digits.py`). The scan goes from the
innermost digit out.
At each digit, blocks of elements have been scanned, and their totals are known. The blocks' totals are scanned along
the digit, each block's elements are combined with the total of the blocks before, and the next digit continues with
the larger blocks:

  registers   sequentially
  lanes       inclusive totals by doubling distances (``shfl.sync.up``), then that of the lane before
  warps       totals through scratch memory, combined sequentially in every thread

The emitted code and the simulator follow the same order, so that float results agree to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ...dtypes import DType, bool_, dtype_of
from ...ir.builder import Builder, as_value, describe, element_type, flag, type_as, type_of
from ...ir.builtin import builtin, method
from ...ir.graph import Call, choice_of
from ...ir.op import op
from ...types import Tile, domain_of, layout_of
from ..language.promotion import collective, convert
from ..language.shape import checked_axis, tile_operand
from .combine import Combine, Guarded, Known, group_parts, identity_of, trace
from .layout_digits import Digit, digits, is_crossable, pad_to_domain, register_coordinates, test_inside
from .partials import behind_each_other, load_run
from .ragged_warnings import warn_if_scanned_ragged
from .reductions import accumulator_dtype, sum_dtype


@dataclass(frozen=True)
class ScanPlan:
    """How a tile is scanned along `axis`. `digits` are those of the axis, innermost first.

    `padding` means that padding precedes the elements (in reverse scans). It is replaced by the identity, or
    `guarded` if the combine has none.
    """

    axis: int
    reverse: bool
    digits: tuple[Digit, ...]
    padding: bool
    guarded: bool
    domain: tuple[int, ...]
    replicas: tuple[tuple[int, int, str], ...]

    def offsets(self, digit: Digit, dtypes: tuple[DType, ...]) -> tuple[int, ...]:
        """The byte offsets in scratch memory of the totals of each dtype at a digit of warps,
        and the end of the last."""
        return behind_each_other(prod(self.domain) // digit.weight, dtypes)


@op("pure", attrs=("axis", "reverse", "combine"), collective=True)
def scan_(*xs, axis, reverse, combine):
    """Scan tiles of one shape together along `axis`. The Combine works on tuples of one element of each."""


@scan_.infer
def _(g: Builder, *xs, axis, reverse, combine):
    collective(g, "a scan")
    return tuple(Tile(type_of(x).dtype, type_of(x).shape) for x in xs)


def _layout(assigner, call: Call, types: tuple) -> tuple[tuple, tuple]:
    """Operands and results keep the operands' layout, if its lane digits are powers of two;
    otherwise they take the default one."""
    first = type_as(call.args[0], Tile)
    base = next((t for t in types if t is not None), None)
    if base is None or not is_crossable(base, (call.attrs["axis"],)):
        base = assigner.default(first.shape, first.dtype)
    needs = tuple(Tile(element_type(a), first.shape, base.layout, base.domain) for a in call.args)
    return needs, tuple(Tile(element_type(r), first.shape, base.layout, base.domain) for r in call.results)


def plan_scan(t: Tile, axis: int, reverse: bool, combine: Combine) -> ScanPlan:
    """The plan for a tile whose layout is known."""
    padding = reverse and domain_of(t)[axis] > t.shape[axis]
    replicas = tuple((n, s, str(a)) for n, s, a in layout_of(t).replicas if n > 1 and a != "reg")
    return ScanPlan(axis, reverse, digits(t.layout, t.domain)[axis][::-1], padding,
                    padding and combine.identity is None, domain_of(t), replicas)


def _plan(context, call: Call) -> ScanPlan:
    return plan_scan(type_as(call.args[0], Tile), call.attrs["axis"], call.attrs["reverse"], call.attrs["combine"])


def _scratch(call: Call) -> int:
    plan: ScanPlan = choice_of(call).plan
    dtypes = tuple(element_type(a) for a in call.args) + ((bool_,) if plan.guarded else ())
    return max((plan.offsets(d, dtypes)[-1] for d in plan.digits if d.axis == "warpid"), default=0)


scan_.rules.layout = _layout
scan_.rules.plan = _plan
scan_.rules.scratch = _scratch


# -- simulation --------------------------------------------------------------------------------------------------------

@scan_.simulate
def _(m, call, *xs):
    plan: ScanPlan = call.choice.plan
    t, combine = type_of(call.args[0]), call.attrs["combine"]
    batch = max(x.shape[0] for x in xs)
    values = tuple(_arrange_for_scan(np.broadcast_to(x, (batch, *t.shape)), t, plan, fill)
                   for x, fill in zip(xs, combine.identity or (0,) * len(xs)))
    if plan.guarded:
        values += (_arrange_for_scan(np.ones((batch, *t.shape), bool), t, plan, False),)
        combine = Guarded(combine)
    scanned = _scan_digits(m, combine, plan, values)
    return tuple(_restore_order(x, t, plan) for x in scanned[:len(xs)])


def _arrange_for_scan(x: np.ndarray, t: Tile, plan: ScanPlan, fill) -> np.ndarray:
    """An array (B, *shape), padded, as (B, ..., axis) in the order of the scan."""
    x = np.moveaxis(pad_to_domain(x, t.shape, domain_of(t), fill), plan.axis + 1, -1)
    return np.array(x[..., ::-1] if plan.reverse else x)


def _restore_order(x: np.ndarray, t: Tile, plan: ScanPlan) -> np.ndarray:
    x = np.moveaxis(x[..., ::-1] if plan.reverse else x, -1, plan.axis + 1)
    cut = slice(None), *(slice(n) for n in t.shape)
    return np.ascontiguousarray(x[cut])


def _scan_digits(m, combine: Combine, plan: ScanPlan, values: tuple) -> tuple:
    """Scan along the last dimension, digit by digit."""
    whole, inner = values[0].shape, 1
    totals = tuple(v.copy() for v in values)
    for digit in plan.digits:
        shape = (*whole[:-1], -1, digit.extent, inner)
        values = tuple(v.reshape(shape) for v in values)
        totals = tuple(t.reshape(shape[:-1]) for t in totals)
        if digit.axis == "laneid":
            values, totals = _lanes(m, combine, digit.extent, values, totals, first=inner == 1)
        else:
            values, totals = _scan_digit_in_order(m, combine, digit.extent, values, totals)
        inner *= digit.extent
    return tuple(v.reshape(whole) for v in values)


def _scan_digit_in_order(m, combine: Combine, extent: int, values: tuple, totals: tuple) -> tuple[tuple, tuple]:
    """Scan a digit sequentially: `values` of shape (..., extent, inner), and the blocks' totals (..., extent)."""
    running = tuple(t[..., 0] for t in totals)
    for i in range(1, extent):
        before = tuple(r[..., None] for r in running)
        for v, x in zip(values, combine.simulate(m, before, tuple(v[..., i, :] for v in values))):
            v[..., i, :] = x
        running = combine.simulate(m, running, tuple(t[..., i] for t in totals))
    return values, running


def _lanes(m, combine: Combine, extent: int, values: tuple, totals: tuple, first: bool) -> tuple[tuple, tuple]:
    """Scan a digit of lanes: inclusive totals by doubling distances; each block is then combined with the total of
    the block before."""
    totals = tuple(t.copy() for t in totals)
    distance = 1
    while distance < extent:
        joined = combine.simulate(m, tuple(t[..., :-distance] for t in totals),
                                  tuple(t[..., distance:] for t in totals))
        for t, x in zip(totals, joined):
            t[..., distance:] = x
        distance *= 2
    if first:
        values = tuple(t[..., None].copy() for t in totals)
    else:
        before = tuple(t[..., :-1, None] for t in totals)
        for v, x in zip(values, combine.simulate(m, before, tuple(v[..., 1:, :] for v in values))):
            v[..., 1:, :] = x
    return values, tuple(t[..., -1] for t in totals)


# -- emission ----------------------------------------------------------------------------------------------------------

@scan_.emit
def _(e, call, *xs):
    plan: ScanPlan = call.choice.plan
    t, combine = type_of(call.args[0]), call.attrs["combine"]
    items = [_element(e, t, plan, combine, reg, tuple(x[reg] for x in xs)) for reg in range(len(xs[0]))]
    scanned = _Scan(e, call, plan, t, Guarded(combine) if plan.guarded else combine, items).run()
    columns = tuple([item[k] for item in scanned] for k in range(len(xs)))
    return columns[0] if len(columns) == 1 else columns


def _element(e, t: Tile, plan: ScanPlan, combine: Combine, reg: int, values: tuple) -> tuple:
    test = test_inside(e, t, reg, (plan.axis,)) if plan.padding else None
    if plan.guarded:
        return (*values, e.const(True, bool_) if test is None else test)
    if test is None:
        return values
    return tuple(e.select(test, v, e.const(i, v.dtype)) for v, i in zip(values, identity_of(combine)))


class _Scan:
    """Emits a scan. ``values[r]`` is register r, scanned within its current block; ``totals[b]`` is the total of the
    block whose lowest register is b."""

    def __init__(self, e, call: Call, plan: ScanPlan, t: Tile, combine: Combine, items: list[tuple]):
        self.e, self.call, self.plan, self.t, self.combine = e, call, plan, t, combine
        self.values = items
        self.totals = dict(enumerate(items))
        self.block = list(range(len(items)))  # the block that each register is in

    def run(self) -> list[tuple]:
        for level, digit in enumerate(self.plan.digits):
            last = level == len(self.plan.digits) - 1
            if digit.axis == "reg":
                self.registers(digit)
            elif digit.axis == "laneid":
                self.lanes(digit, first=level == 0, last=last)
            else:
                self.warps(digit)
        return self.values

    def join(self, a: tuple, b: tuple) -> tuple:
        return self.combine.emit(self.e, a, b)

    def choose(self, test, a: tuple, b: tuple) -> tuple:
        return tuple(self.e.select(test, x, y) for x, y in zip(a, b))

    def members(self, block: int) -> list[int]:
        return [r for r, b in enumerate(self.block) if b == block]

    def registers(self, digit: Digit) -> None:
        """Scan a digit of registers: join the blocks sequentially, each with the total of those before."""
        order = range(digit.extent)[::-1] if self.plan.reverse else range(digit.extent)
        for base in [b for b in self.totals if b // digit.stride % digit.extent == 0]:
            blocks = [base + i * digit.stride for i in order]
            running = self.totals.pop(blocks[0])
            for block in blocks[1:]:
                single = self.members(block) == [block] and self.totals[block] is self.values[block]
                for r in self.members(block):
                    self.values[r] = self.join(running, self.values[r])
                total = self.totals.pop(block)
                running = self.values[block] if single else self.join(running, total)
            self.totals[base] = running
        self.block = [b - b // digit.stride % digit.extent * digit.stride for b in self.block]

    def lanes(self, digit: Digit, first: bool, last: bool) -> None:
        """Scan a digit of lanes. In the `first` digit a block is one element, whose scan is the total so far; the
        `last` needs no total."""
        e, back = self.e, self.plan.reverse
        kind, mask = "down" if back else "up", (digit.extent - 1) * digit.stride
        position = e.warp.digit("laneid", digit.extent, digit.stride)
        def is_after(n):
            return position.is_below(digit.extent - n) if back else e.warp.not_below(position, n)
        for block, total in list(self.totals.items()):
            distance = 1
            while distance < digit.extent:
                other = tuple(e.warp.shuffle(kind, v, distance * digit.stride) for v in total)
                total = self.choose(is_after(distance), self.join(other, total), total)
                distance *= 2
            if first:
                self.values[block] = total
            else:
                before = tuple(e.warp.shuffle(kind, v, digit.stride) for v in total)
                for r in self.members(block):
                    self.values[r] = self.choose(is_after(1), self.join(before, self.values[r]), self.values[r])
            if not last:
                lane = e.lane_id() & (31 & ~mask) if back else e.lane_id() | mask
                total = tuple(e.warp.shuffle("idx", v, lane) for v in total)
            self.totals[block] = total

    def warps(self, digit: Digit) -> None:
        """Scan a digit of warps: one thread of each warp writes its block's total to scratch memory, and every thread
        reads all of them."""
        e, plan, extent = self.e, self.plan, digit.extent
        dtypes = tuple(v.dtype for v in self.values[0])
        offsets = plan.offsets(digit, dtypes)
        inner = [(d.axis, d.extent, d.stride) for d in plan.digits if d.weight < digit.weight and d.axis != "reg"]
        mine = e.all_of([e.warp.as_test(e.warp.digit(axis, n, s))
                         for axis, n, s in inner + [(a, n, s) for n, s, a in plan.replicas]])
        position = e.warp.digit("warpid", extent, digit.stride)
        places = {block: self.line(block, digit) for block in self.totals}
        if digit is next(d for d in plan.digits if d.axis == "warpid"):
            e.begin_scratch(self.call)
        else:
            e.sync.scope()
        for block, total in self.totals.items():
            for value, dtype, offset in zip(total, dtypes, offsets):
                address, constant = e.scratch_address(self.call, (places[block] * extent + position) * dtype.nbytes)
                e.vector_store("shared", address, offset + constant, dtype, [value], mine, None)
        e.sync.scope()
        for block in self.totals:
            columns = []
            for dtype, offset in zip(dtypes, offsets):
                address, constant = e.scratch_address(self.call, places[block] * extent * dtype.nbytes)
                columns.append(load_run(e, address, offset + constant, dtype, extent))
            self.totals[block] = self.follow(block, list(zip(*columns)), position)

    def follow(self, block: int, totals: list[tuple], position) -> tuple:
        """Combine a block's registers with the total of the warps before. Returns the total of all warps."""
        order = range(len(totals))[::-1] if self.plan.reverse else range(len(totals))
        running = before = totals[order[0]]
        for i in order[1:]:
            before = running if before is running else self.choose(position.equals(i), running, before)
            running = self.join(running, totals[i])
        later = self.e.warp.not_below(position, 1) if not self.plan.reverse else position.is_below(len(totals) - 1)
        for r in self.members(block):
            self.values[r] = self.choose(later, self.join(before, self.values[r]), self.values[r])
        return running

    def line(self, block: int, digit: Digit):
        """The index of a block's row of warp totals in scratch memory,
        from its coordinates without the digit and those inside it."""
        t, index = self.t, 0
        at = register_coordinates(t.layout, t.domain)[block]
        unit = digit.weight * digit.extent
        for d, n in enumerate(domain_of(t)):
            if d != self.plan.axis:
                index = index * n + (self.e.tiles.thread_coordinate(t, d) + at[d])
                continue
            index = index * (n // unit) + at[d] // unit
            for outer in self.plan.digits:
                if outer.weight >= unit and outer.axis != "reg":
                    index = index + self.e.warp.digit(outer.axis, outer.extent, outer.stride) * (outer.weight // unit)
        return index


# -- user functions ----------------------------------------------------------------------------------------------------

def _make_cumulative(name: str, which: str, word: str):
    def call(g: Builder, x, axis=0, reverse=False, dtype=None):
        x = tile_operand(g, x, name)
        target = sum_dtype(x.type.dtype) if dtype is None else dtype_of(dtype)
        axis = checked_axis(g, axis, len(x.type.shape))
        reverse, scanned = flag(g, "reverse", reverse), convert(g, x, accumulator_dtype(target))
        if x.type.size:
            (scanned,) = g.call(scan_, scanned, axis=axis, reverse=reverse, combine=Known(which, element_type(scanned)),
                                name=name)
        warn_if_scanned_ragged(g, x, name, axis, reverse, (as_value(scanned),))
        return convert(g, scanned, target)
    call.__name__ = name
    call.__doc__ = (f"The cumulative {word} along `axis`, including each element itself; from the end if `reverse`. "
                    "8- and 16-bit floats are accumulated in float32, and each result is rounded once. "
                    "Integer results have at least 32 bits, and wrap.")
    return call


def scan(g: Builder, x, axis, combine, reverse=False):
    """Inclusive scan along `axis`: each element combined with all before it (after it, if `reverse`).

    ``combine(earlier, later)`` is an associative @tile.jit helper of two scalars, or a function such as tile.maximum;
    in a reverse scan, `earlier` is what follows in the tile. A tuple of tiles (also a named tuple) is scanned
    together: `combine` then takes two tuples of scalars and returns one, and `scan` returns a tuple.
    """
    xs = x if isinstance(x, tuple) else (x,)
    if not xs:
        raise g.error("scan takes a tile, or a tuple of tiles")
    for item in xs:
        if not isinstance(type_of(item), Tile):
            raise g.error(f"scan takes tiles, not {describe(item)}")
        if item.type.shape != xs[0].type.shape:
            raise g.error("tiles that are scanned together have one shape, "
                          f"not {list(xs[0].type.shape)} and {list(item.type.shape)}")
    axis = checked_axis(g, axis, len(xs[0].type.shape))
    reverse, traced = flag(g, "reverse", reverse), trace(g, combine, x, "scan")
    if xs[0].type.size:
        results = g.call(scan_, *xs, axis=axis, reverse=reverse, combine=traced, name="scan")
    else:
        results = xs
    for item in xs:
        warn_if_scanned_ragged(g, item, "scan", axis, reverse, tuple(results))
    return group_parts(x, results)


BUILTINS = {f.__name__: builtin(f)
            for f in (_make_cumulative("cumsum", "sum", "sum"), _make_cumulative("cumprod", "prod", "product"), scan)}

for _name in ("cumsum", "cumprod"):
    method(Tile, name=_name)(BUILTINS[_name].function)
