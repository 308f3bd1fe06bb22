"""Simulates tcgen05.commit: arrivals on mbarriers once a thread's earlier operations are complete.

What these arrivals publish is here too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .component import Component
from .values import SimBarrier
from .vector_clocks import BEFORE, ORDER, PASSED, empty_clock
from .world import AsyncOp


class Commits(Component):
    """The part of the machine that commits a thread's operations to mbarriers."""

    def to_barrier(self, queue: str, barrier: SimBarrier) -> None:
        """``tcgen05.commit``: arrive on the barrier when all operations that the thread has issued to `queue` so
        far are complete."""
        self.to_barriers(queue, [barrier])

    def to_barriers(self, queue: str, barriers: list[SimBarrier]) -> None:
        """`commit_to_barrier` for several barriers: each gets an arrival."""
        covered: dict[int, tuple] = {}
        for barrier in barriers:
            for world, rank, number, _ in self.m.barriers.each_barrier(barrier):
                if id(world) not in covered:
                    covered[id(world)] = self._cover(world, queue)
                op = self.m.engines.operation(f"commit of {queue}", world, [], [], _write_nothing, {}, [])
                op.covers, landed = covered[id(world)]
                op.then = _commit_completion(self.m, rank, number, op.covers, landed)
                op.pipe = f"commit of {queue}"  # commits of a thread arrive in issue order
                op.due = max([op.due, *(o.due for o in world.flight
                                        if (o.pipe, o.rank, o.atom) == (op.pipe, op.rank, op.atom))])
                world.launch(op, self.m.sim.cells)
                self.m.sim.flying += 1

    def _cover(self, world, queue: str) -> tuple[tuple, np.ndarray]:
        """What a commit by this thread covers: the numbers of its operations in flight, and a clock of those that
        have landed. A commit covers all earlier operations, including those of earlier commits."""
        key = "commits", queue, self.m.rank, self.m.low
        numbers, clock, told = world.facts.get(key, ((), empty_clock(world.clocks), ()))
        for q in self.m.engines.queues(world, queue):
            numbers += tuple(op.number for group in q.groups for op in group) + tuple(op.number for op in q.open)
            q.groups, q.open = [], []
        landed = tuple(n for n in numbers if n not in world.ops and ("tag", n) in world.facts)
        clock = np.maximum.reduce([clock, *(world.facts["tag", n] for n in landed)])
        numbers = tuple(n for n in numbers if n in world.ops)
        # Keep the clocks of landed operations that pending commits will still publish.
        awaited = {n for o in world.flight
                   if (o.pipe, o.rank, o.atom) == (f"commit of {queue}", self.m.rank, int(self.m.atoms[0]))
                   for n in o.covers}
        for n in (*told, *landed):
            if n not in awaited:
                del world.facts["tag", n]
        world.facts[key] = numbers, clock, tuple(n for n in (*told, *landed) if n in awaited)
        return numbers, clock


def _write_nothing(rows, params) -> None:
    """The `land` of an operation that writes nothing."""


def _commit_completion(m, rank: int, number: int, numbers: tuple, landed: np.ndarray) -> Callable:
    """The `complete` of a commit: it lands the operations `numbers` and arrives. Threads that wait learn of these
    operations, of what their issuing thread knew at the issue, and of the clock `landed` of earlier operations."""
    sim, own = m.sim, m.rank

    def complete(op: AsyncOp) -> None:
        world = op.world
        b, column = world.barriers[rank, number], world.clocks.barrier_column(rank, number)
        clock = landed.copy()
        np.maximum(clock[PASSED], op.clock_at_issue()[PASSED], out=clock[PASSED])
        for n in numbers:
            waited = world.ops.get(n)
            if waited is not None:
                waited.awaited = True
                sim.land(waited, tag=(column, b.phase + 1, -1))
                world.facts["tag", n] = _published_clocks(world.clocks, waited, world.clocks.column(own, waited.atom),
                                                          column, b.phase + 1)
            if ("tag", n) in world.facts:
                np.maximum(clock, world.facts["tag", n], out=clock)
        sim.arrive(op, rank, number, 1, clock)

    return complete


def _published_clocks(clocks, op: AsyncOp, issuer: int, column: int, epoch: int) -> np.ndarray:
    """What the completion of an operation publishes: its thread's past, and its own writes under (column, epoch)."""
    clock = op.clock_at_issue().copy()
    clock[ORDER, issuer] = max(clock[ORDER, issuer], op.epoch)
    for plane in (ORDER, BEFORE) if clocks.tensor else (ORDER,):  # tcgen05.commit implies a fence::before_thread_sync
        clock[plane, column] = max(clock[plane, column], epoch)
    return clock
