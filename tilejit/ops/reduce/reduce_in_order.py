"""Reduction by a function that need not commute: elements are combined with their neighbours only, in row-major order.

The reduced dimensions are a sequence of digits of registers, lanes and warps (`layout_digits.py`). The reduction goes
from the innermost digit out, and combines along each digit by a tree of neighbours: of n partial results, the first
with the second, the third with the fourth, and so on. Adjacent digits of one kind make one step:

  registers   in each thread
  lanes       a butterfly whose masks are the digits' bits, innermost first: in the first lane, the left operand is
              the earlier
  warps       through scratch memory, where every thread reads and combines the partial results of all warps
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import prod

import numpy as np

from ...dtypes import DType
from ...ir.graph import Call
from ...types import Tile, domain_of, layout_of
from .combine import Combine
from .layout_digits import Digit, digits, pad_to_domain
from .partials import behind_each_other, load_run

SCRATCH = 16384  # bytes of scratch memory for one exchange between warps; more partial results take several exchanges


@dataclass(frozen=True)
class Step:
    """Adjacent digits of one kind, most significant first. When it begins, each thread holds `blocks` partial
    results; those of a block are in `slots` groups of threads that go through the step separately."""

    axis: str
    digits: tuple[Digit, ...]
    blocks: int
    slots: tuple[Digit, ...]

    @property
    def extent(self) -> int:
        return prod(d.extent for d in self.digits)

    def blocks_at_once(self, dtypes: tuple[DType, ...]) -> int:
        """How many blocks are exchanged between warps at once."""
        return min(self.blocks, max(1, SCRATCH // self.offsets(1, dtypes)[-1]))

    def offsets(self, blocks: int, dtypes: tuple[DType, ...]) -> tuple[int, ...]:
        """The byte offset of the array of each dtype in scratch memory, and the end of the last."""
        return behind_each_other(blocks * prod(d.extent for d in self.slots) * self.extent, dtypes)


def steps_in_order(t: Tile, axes: tuple[int, ...]) -> tuple[Step, ...]:
    """The steps of a reduction along `axes`, innermost first."""
    every = digits(t.layout, t.domain)
    along = [d for axis in axes for d in every[axis]][::-1]
    left, found = {d for dim in every for d in dim}, []
    for axis, group in groupby(along, key=lambda d: d.axis):
        own = tuple(group)[::-1]
        blocks = prod(d.extent for d in left if d.axis == "reg")
        left -= {*own}
        slots = tuple(d for dim in every for d in dim if d in left and d.axis != "reg")
        found.append(Step(axis, own, blocks, slots))
    return tuple(found)


def scratch_in_order(steps: tuple[Step, ...], dtypes: tuple[DType, ...]) -> int:
    """The bytes of scratch memory that the steps need."""
    return max((s.offsets(s.blocks_at_once(dtypes), dtypes)[-1] for s in steps if s.axis == "warpid"), default=0)


# -- simulation --------------------------------------------------------------------------------------------------------

def simulate_in_order(m, combine: Combine, t: Tile, steps: tuple[Step, ...], xs: tuple, fills: tuple) -> tuple:
    """Arrays (B, *shape) as reduced arrays (B, *digits of the remaining dimensions)."""
    left: list = [None, *(d for dim in digits(t.layout, t.domain) for d in dim)]
    parts = tuple(pad_to_domain(x, t.shape, domain_of(t), fill).reshape(x.shape[0], *(d.extent for d in left[1:]))
                  for x, fill in zip(xs, fills))
    for step in steps:
        front = [left.index(d) for d in step.digits]
        rest = [n for n in range(len(left)) if n not in front]
        parts = tuple(p.transpose(*front, *rest).reshape(-1, *(p.shape[n] for n in rest)) for p in parts)
        parts = _joined_neighbours(m, combine, parts)
        left = [left[n] for n in rest]
    return parts


def _joined_neighbours(m, combine: Combine, parts: tuple) -> tuple:
    """Combine along the leading dimension, by a tree of neighbours."""
    while (n := len(parts[0])) > 1:
        joined = combine.simulate(m, tuple(p[0:n - 1:2] for p in parts), tuple(p[1::2] for p in parts))
        if n % 2:  # the last element is left over
            joined = tuple(np.concatenate([j, np.broadcast_to(p[n - 1:], (1, *j.shape[1:]))])
                           for j, p in zip(joined, parts))
        parts = joined
    return tuple(p[0] for p in parts)


# -- emission ----------------------------------------------------------------------------------------------------------

class InOrder:
    """Emits a reduction. ``totals[b]`` is the partial result of the block of registers whose lowest is b; `done` are
    the digits of lanes and warps behind it, and `split` the bits of the lane id by which lanes hold it combined in
    another order."""

    def __init__(self, e, call: Call, t: Tile, combine: Combine, items: list[tuple]):
        self.e, self.call, self.t, self.combine = e, call, t, combine
        self.totals = dict(enumerate(items))
        self.done: list[Digit] = []
        self.split: list[int] = []
        self.exchanged = False

    def run(self, steps: tuple[Step, ...]) -> dict[int, tuple]:
        for step in steps:
            {"reg": self.registers, "laneid": self.lanes, "warpid": self.warps}[step.axis](step)
        if self.split:
            self.agree()
        return self.totals

    def neighbours(self, items: list[tuple]) -> tuple:
        while len(items) > 1:
            items = [self.combine.emit(self.e, *items[i:i + 2]) if i + 1 < len(items) else items[i]
                     for i in range(0, len(items), 2)]
        return items[0]

    def registers(self, step: Step) -> None:
        offsets = [0]
        for d in step.digits:
            offsets = [offset + i * d.stride for offset in offsets for i in range(d.extent)]
        bases = [b for b in self.totals if all(b // d.stride % d.extent == 0 for d in step.digits)]
        self.totals = {b: self.neighbours([self.totals[b + offset] for offset in offsets]) for b in bases}

    def lanes(self, step: Step) -> None:
        masks = [d.stride << bit for d in reversed(step.digits) for bit in range(d.extent.bit_length() - 1)]
        for b, item in self.totals.items():
            for mask in masks:
                item = self.combine.emit(self.e, item, tuple(self.e.warp.shuffle("bfly", v, mask) for v in item))
            self.totals[b] = item
        self.split += masks
        self.done += step.digits

    def agree(self) -> None:
        """Give all lanes the result of the first of those that share it."""
        mask = sum(self.split)
        first = self.e.memoize_for_region(("first lane", mask), lambda: self.e.lane_id() & (31 & ~mask))
        self.totals = {b: tuple(self.e.warp.shuffle("idx", v, first) for v in item) for b, item in self.totals.items()}

    def warps(self, step: Step) -> None:
        """Exchange the blocks' partial results, as many at a time as scratch memory holds."""
        e = self.e
        dtypes = tuple(v.dtype for v in next(iter(self.totals.values())))
        replicas = [(str(axis), n, stride) for n, stride, axis in layout_of(self.t).replicas if n > 1 and axis != "reg"]
        writes = e.all_of([e.warp.as_test(e.warp.digit(*at))
                           for at in [(d.axis, d.extent, d.stride) for d in self.done] + replicas])
        count = step.blocks_at_once(dtypes)
        offsets = step.offsets(count, dtypes)
        slot, slots, position = self.number(step.slots), prod(d.extent for d in step.slots), self.number(step.digits)
        blocks = list(self.totals)
        for at in range(0, len(blocks), count):
            self.begin()
            batch = [(b, (n * slots + slot) * step.extent) for n, b in enumerate(blocks[at:at + count])]
            for b, place in batch:
                for value, dtype, offset in zip(self.totals[b], dtypes, offsets):
                    address, constant = e.scratch_address(self.call, (place + position) * dtype.nbytes)
                    e.vector_store("shared", address, offset + constant, dtype, [value], writes, None)
            e.sync.scope()
            for b, place in batch:
                self.totals[b] = self.neighbours(list(zip(*self.columns(place, dtypes, offsets, step.extent))))
        self.done += step.digits
        self.split = []

    def begin(self) -> None:
        if self.exchanged:
            self.e.sync.scope()
        else:
            self.e.begin_scratch(self.call)
        self.exchanged = True

    def columns(self, place, dtypes: tuple[DType, ...], offsets: tuple[int, ...], count: int) -> Iterator[list]:
        for dtype, offset in zip(dtypes, offsets):
            address, constant = self.e.scratch_address(self.call, place * dtype.nbytes)
            yield load_run(self.e, address, offset + constant, dtype, count)

    def number(self, found: tuple[Digit, ...]):
        """The number that digits make, the first the most significant."""
        number = 0
        for d in found:
            number = number * d.extent + self.e.warp.digit(d.axis, d.extent, d.stride)
        return number
