"""Writes a rotated loop of the consumer warps.

It is the first iteration's first half, then trips of one iteration's second half and the next one's first half, then
the last iteration's second half. A trip leaves nothing in flight: ptxas 13.0 does not count groups of products across
iterations of a loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from ...dtypes import bool_
from ...ir.graph import Block, Call, Carry, Const, For, If, Node, Operand, Value, number
from ...ops.language.promotion import short_of
from ...ops.mma import mma_commit, mma_wait
from ...ops.sync.barriers import mbarrier_wait, peek_op
from ...types import Scalar, Uniformity
from ..analysis.program_slices import Copier
from ..analysis.staging import StagedLoop
from ..analysis.writing import Writer
from .pipeline_writer import bounded_slot, phase_after, slot_after
from .rotations import Lane, Rotation


class Consumer(Protocol):
    """What a rotated loop asks of the writer of the consumers' code."""

    g: Writer
    new: dict[Value, Operand]
    slot: dict[Operand, tuple[Value, Operand]]

    def all(self, operands: Iterable[Operand]) -> tuple[Operand, ...]: ...
    def node(self, node: Node) -> None: ...
    def index_after(self, loop: For, index: Operand, trips: int) -> Operand: ...
    def trip_exists(self, loop: For, index: Operand, later: int) -> Operand | bool: ...
    def barrier(self, barriers: Value | None, slot: Operand) -> Value: ...
    def release(self, staged: StagedLoop, slot: Operand) -> None: ...


class Half:
    """A copy of half an iteration. `values` are those of the iteration at hand, by their names in the loop."""

    def __init__(self, loop: RotatedLoop, values: Mapping[Value, Operand]):
        self.consumer, self.staged, self.copier = loop.consumer, loop.staged, Copier()
        self.copier.values |= values
        self.new = dict(loop.consumer.new)  # views of this iteration's slot, by those of the staged buffer
        self.stage, self.phase = self.values(self.staged.slot.args)
        self.slot = bounded_slot(self.consumer.g, self.stage, self.staged.stages)

    def values(self, operands: Iterable[Operand]) -> tuple[Operand, ...]:
        return self.copier.all(self.consumer.all(operands))

    def write(self, nodes: Iterable[Node]) -> None:
        """Append copies of nodes, which read this iteration's slot."""
        consumer = self.consumer
        outer = consumer.new, consumer.slot
        consumer.new = self.new
        consumer.slot = consumer.slot | {buffer: (ring, self.slot) for buffer, ring in self.staged.rings.items()}
        with consumer.g.block() as made:
            for node in nodes:
                consumer.node(node)
        consumer.new, consumer.slot = outer
        for node in made:
            consumer.g.append(*self.copier.node(node))

    def start(self, products: Iterable[Call]) -> None:
        """Start products, in one group."""
        self.write(products)
        self.consumer.g.call(mma_commit)

    def await_full(self, lanes: Iterable[Lane], seen: Mapping[Lane, Operand]) -> None:
        """Wait for this iteration's slots of these lanes, except those that were `seen` full."""
        for lane in lanes:
            full = self.consumer.barrier(lane.staged.full, self.slot)
            self.consumer.g.call(mbarrier_wait, full, self.phase, *([seen[lane]] if lane in seen else []))

    def peek(self, lanes: Iterable[Lane], ahead: int = 0) -> Iterator[tuple[Lane, Operand]]:
        """Test whether the slots that these lanes have `ahead` iterations later are full."""
        g, stages = self.consumer.g, self.staged.stages
        slot = bounded_slot(g, slot_after(g, self.stage, ahead, stages), stages)
        phase = phase_after(g, self.stage, self.phase, ahead, stages)
        for lane in lanes:
            yield lane, g.call(peek_op, self.consumer.barrier(lane.staged.full, slot), phase)

    def release(self, lanes: Iterable[Lane], until: str) -> None:
        for lane in lanes:
            if lane.until == until:
                self.consumer.release(lane.staged, self.slot)


class RotatedLoop:
    """A loop to be written."""

    def __init__(self, consumer: Consumer, rotation: Rotation):
        self.consumer, self.rotation = consumer, rotation
        self.staged, self.loop, self.lanes = rotation.staged, rotation.loop, rotation.lanes
        self.handed = list(zip((c.inner for c in self.loop.carried), self.loop.body.yields))

    def write(self, carried: Sequence[Carry]) -> None:
        """Append the loop, and what its results are if it has no trip."""
        consumer, g = self.consumer, self.consumer.g
        any_trip = consumer.trip_exists(self.loop, self.loop.start, 0)
        inits = tuple(c.init for c in carried)
        with g.block() as nodes:
            ends = self.all_trips(dict(zip((c.inner for c in carried), inits)))
        test = Const(any_trip, bool_) if isinstance(any_trip, bool) else any_trip
        g.append(If(test, Block(tuple(nodes), ends), Block((), inits), tuple(c.result for c in carried), self.loop.loc))

    def all_trips(self, inits: dict[Value, Operand]) -> tuple[Operand, ...]:
        """Append all trips of a loop with at least one. Returns what the last one hands on."""
        g, loop, rotation = self.consumer.g, self.loop, self.rotation
        half = self.first_half(inits | {loop.index: loop.start}, {})
        g.call(mma_wait, n=0)
        half.release(self.lanes, "products")
        half.write(rotation.between)
        half.write(rotation.last)
        half.release(self.lanes, "half")
        carried = tuple(Carry(half.copier(v), replace(v), replace(v)) for v in rotation.carried)
        before_last = short_of(g, loop.stop, number(loop.step))
        seen = {lane: _carry_flag(g) for lane in self.lanes}
        with g.block() as nodes:
            following = self.trip({v: c.inner for v, c in zip(rotation.carried, carried)},
                                  {lane: c.inner for lane, c in seen.items()})
        g.append(replace(loop, stop=before_last, carried=(*carried, *seen.values()),
                         body=Block(tuple(nodes), following), pipeline=None))
        half = Half(self, {v: c.result for v, c in zip(rotation.carried, carried)})
        half.write(rotation.anew_in_second())
        self.second_half(half, {lane: c.result for lane, c in seen.items()})
        g.call(mma_wait, n=0)
        half.write(rotation.tail)
        half.release(self.lanes, "trip")
        return half.values(y for _, y in self.handed)

    def trip(self, state: dict[Value, Operand], seen: Mapping[Lane, Operand]) -> tuple[Operand, ...]:
        """Append one trip: the second half of the iteration with these values, and the first half of the next, whose
        values it returns, with whether it has seen that the next trip's slots are full. It has `seen` some of its
        own."""
        g, loop, rotation = self.consumer.g, self.loop, self.rotation
        second = Half(self, state)
        second.write(rotation.anew_in_second())
        index = self.consumer.index_after(loop, loop.index, 1)
        known = {inner: following for inner, following in self.handed if inner not in rotation.late}
        first = self.first_half(dict(zip(known, second.values(known.values()))) | {loop.index: index}, seen)
        self.second_half(second, seen)
        g.call(mma_wait, n=1)
        first.release(self.lanes, "products")
        first.write(rotation.between)
        g.call(mma_wait, n=0)
        # behind that wait: before it, ptxas moves accumulators (`kernels.attention` at D = 64 had 0.85 of its speed)
        full = dict(first.peek((lane for lane in self.lanes if lane.early), ahead=1))
        full |= first.peek(lane for lane in self.lanes if not lane.early)
        second.write(rotation.tail)
        second.release(self.lanes, "trip")
        handed = dict(self.handed)
        first.copier.values |= zip(rotation.late, second.values(handed[v] for v in rotation.late))
        first.write(rotation.last)
        first.release(self.lanes, "half")
        return (*first.values(rotation.carried), *(full[lane] for lane in self.lanes))

    def first_half(self, values: dict[Value, Operand], seen: Mapping[Lane, Operand]) -> Half:
        """Append the start of an iteration's first half, to the start of its products."""
        half = Half(self, values)
        half.await_full((lane for lane in self.lanes if lane.early), seen)
        half.write(self.rotation.anew_in_first())
        half.write(self.rotation.ahead)
        half.start(self.rotation.first)
        return half

    def second_half(self, half: Half, seen: Mapping[Lane, Operand]) -> None:
        """Append the start of the second products."""
        half.await_full((lane for lane in self.lanes if not lane.early), seen)
        half.start(self.rotation.second)


def _carry_flag(g: Writer) -> Carry:
    """What carries a flag that is false before a loop, and may differ between warps."""
    inner, result = (Value("seen", Scalar(bool_, Uniformity.WARP), g.loc) for _ in range(2))
    return Carry(Const(False, bool_), inner, result)


__all__ = ["RotatedLoop"]
