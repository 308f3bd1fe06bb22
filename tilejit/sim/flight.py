"""Asynchronous operations in flight.

When they read their sources, when their bytes land, and what their completion publishes.
"""

from __future__ import annotations

import numpy as np

from .parts import ChunkParts
from .shadow import COPIED, REDUCED, SUMMED
from .vector_clocks import PASSED
from .world import AsyncOp, World

NEVER = float("inf")
LATE = 1e12  # landing times from here on are reached only when everything waits
# what the cells of an operation that completed on a barrier are marked with, by (`generic`, `reducing`)
MARKS = {(False, False): -1, (True, False): COPIED, (False, True): REDUCED, (True, True): SUMMED}


class Flight(ChunkParts):
    """The part of a chunk that takes operations from issue to completion."""

    def next_operation(self) -> int:
        self.operations += 1
        return self.operations

    def landing_time(self) -> float:
        """When an operation issued now lands by itself: as late as possible with seed 0, otherwise at random."""
        if self.patient:
            return LATE + self.operations
        if self.rng.random() < 0.4:
            return self.tick + int(self.rng.integers(1, 6))
        return LATE + float(self.rng.random())

    def coin(self) -> bool:
        """A choice that the hardware leaves open; always False with seed 0."""
        return not self.patient and bool(self.rng.random() < 0.5)

    def _rows_of(self, op: AsyncOp) -> np.ndarray:
        return op.rank * self.clusters + op.world.clusters

    def collect(self, op: AsyncOp) -> None:
        """Let the operation read its sources, unless it has already."""
        if op.collect is not None:
            op.params.update(op.collect(self._rows_of(op), op.params))
            op.collect = None

    def move(self, op: AsyncOp) -> None:
        """Write the operation's bytes. Nobody knows of it yet: its barriers and clocks are left alone."""
        if not op.moved:
            op.moved = True
            self.version += 1
            self.collect(op)
            op.land(self._rows_of(op), op.params)
            op.params = {}

    def free_sources(self, op: AsyncOp) -> None:
        """Record that the issuing thread has waited until the operation's sources have been read."""
        self.collect(op)
        tag = self._thread_tag(op)
        op.world.finish_reads(op, self.cells, lambda rank: tag)

    def end_touches(self, op: AsyncOp, column: int, epoch: int) -> None:
        """The operation's accesses to global memory are over, for those who know `epoch` of `column`."""
        if column not in op.heard:
            op.heard.add(column)
            ctas = self.ctas[self._rows_of(op)] + 1
            for touch in op.touches:
                touch.flight.end(touch, ctas, column, epoch)

    def _thread_tag(self, op: AsyncOp) -> tuple[int, int, int]:
        clocks = op.world.clocks
        return clocks.column(op.rank, op.atom), int(clocks.now[op.rank, op.atom]), op.thread

    def land(self, op: AsyncOp, tag: tuple | None = None, count: bool = True) -> None:
        """Complete the operation: write its bytes and signal its barriers. Its cells are tagged with `tag` (column,
        epoch, thread) if given, else as of its barrier, or of the issuing thread if it has none. ``count=False``
        leaves the barriers' byte counts alone."""
        if op.over:
            return
        op.over = True
        world = op.world
        self.move(op)
        self.version += 1
        world.flight.remove(op)
        self.flying -= 1
        own = {rank: number for rank, number, _ in op.targets}
        if op.generic or op.reducing:
            op.threads = None
        thread = MARKS[op.generic, op.reducing]

        def column_of(rank: int) -> tuple[int, int, int]:
            if tag is not None:
                return tag
            if not own:
                return self._thread_tag(op)
            home = rank if rank in own else next(iter(own))
            return world.clocks.barrier_column(home, own[home]), world.barriers[home, own[home]].phase + 1, thread

        if op.touches and (tag is not None or not own):
            column, epoch, _ = column_of(op.rank)
            self.end_touches(op, column, epoch)
        world.retag(op, self.cells, column_of)
        world.ops.pop(op.number, None)
        for rank, number, nbytes in op.targets:
            barrier = world.barriers[rank, number]
            recent = world.recent.setdefault(world.clocks.barrier_column(rank, number), [])
            recent.append(op)
            if len(recent) > 16 and recent[0].awaited:
                del recent[0]
            if count:
                barrier.tx -= nbytes
                np.maximum(barrier.clock[PASSED], op.clock_at_issue()[PASSED], out=barrier.clock[PASSED])
                self.settle_phase(world, rank, number)
        if op.then is not None:
            op.then(op)

    def arrive(self, op: AsyncOp, rank: int, number: int, count: int, clock: np.ndarray) -> None:
        """Make `count` arrivals on behalf of an operation that has landed, releasing `clock`."""
        world = op.world
        barrier = world.barriers[rank, number]
        if count > barrier.pending:
            self._fault(world, op.rank, "barrier-phase", self.locs[op.line], barrier.too_many(count))
            count = barrier.pending
        barrier.pending -= count
        barrier.engines = True
        barrier.arrived_after(op.clock_at_issue())
        np.maximum(barrier.clock, clock, out=barrier.clock)
        self.settle_phase(world, rank, number)

    def settle_phase(self, world: World, rank: int, number: int) -> None:
        """End a barrier's phase if it is complete. Reports a phase whose announced bytes are not
        those that were sent."""
        barrier = world.barriers[rank, number]
        if not barrier.is_complete:
            return
        if barrier.issued != barrier.expected:
            late = [op for op in world.flight if op.phases.get((rank, number)) == barrier.phase]
            line = barrier.expect_line if barrier.expect_line >= 0 else barrier.line
            self._fault(world, rank, "transaction-count", self.locs[line],
                        f"a phase of the mbarrier completes after the {barrier.expected} bytes that are announced, "
                        f"and its copies transfer {barrier.issued}")
            for op in late:  # so that one miscount is reported once
                self.land(op, count=False)
        for early in barrier.announced:
            self._fault(world, early.rank, "barrier-phase", self.locs[early.line],
                        f"nothing orders this expect_tx before the last arrival of phase {barrier.phase} of the "
                        "mbarrier: its bytes may count toward the next phase. Announce bytes before the arrival, "
                        "as by arrive_expect_tx")
        self.note_laggards(world, barrier)
        barrier.flip()
        self.version += 1

    # -- time ----------------------------------------------------------------------------------------------------------

    def _flight(self) -> list[AsyncOp]:
        return [op for world in self.worlds for op in world.flight] if self.flying else []

    def _land_due(self) -> None:
        if self.patient or not self.flying:
            return
        for op in self._flight():
            if op.due <= self.tick:
                self._land_alone(op)

    def _land_alone(self, op: AsyncOp) -> None:
        """Let the operation land without being waited for."""
        if op.queued:
            self.move(op)
            op.due = NEVER
        else:
            self.land(op)

    def _land_first(self) -> bool:
        """Let time pass until the first operation in flight lands; False if there is none."""
        flight = [op for op in self._flight() if op.due < NEVER]
        if flight:
            first = min(flight, key=lambda op: (op.due, op.number))
            for op in flight:
                if op.number == first.number:
                    self._land_alone(op)
        return bool(flight)
