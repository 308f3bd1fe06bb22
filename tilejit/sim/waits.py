"""Waits that can be split together with their fiber.

Each evaluates its condition for the CTAs of the machine it is bound to.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..ir.machine_protocol import Wait
from .values import take


class RowWait(Wait):
    """A wait per CTA. `ready(m, *params)` returns a bool per CTA (or one for all), `describe(m, *params)` the words
    for a deadlock's message, and `then(m, *params)` the results of the waiting call. `params` are arrays and buffers
    with a leading batch axis."""

    def __init__(self, m, ready: Callable, describe: Callable, then: Callable | None = None, params: tuple = (),
                 loc=None):
        self.m, self._ready, self._describe, self._then, self.params = m, ready, describe, then, params
        self.loc = loc

    def ready(self) -> Any:
        return self._ready(self.m, *self.params)

    def describe(self) -> str:
        return self._describe(self.m, *self.params)

    def then(self) -> Any:
        return None if self._then is None else self._then(self.m, *self.params)

    def events(self) -> Iterator[tuple[Any, tuple]]:
        """(world, key) of the completions that are waited for, as `timed.TimedChunk` notes them; none if that is not
        known."""
        return iter(())

    def bound(self, fiber, rows: np.ndarray) -> RowWait:
        """The same wait for the part `rows` of its CTAs, which `fiber` now runs."""
        new = copy.copy(self)
        new.m, new.params = fiber.m, take(self.params, rows)
        return new


class BarrierWait(RowWait):
    """A wait on an mbarrier. `params` are the barrier, the parity and the number of completed phases
    when the wait began."""

    def __init__(self, *args):
        super().__init__(*args)
        self._forget()

    def _forget(self) -> None:
        self._cuts = -1
        self._places: list[tuple[Any, tuple[int, int]]] = []
        self._states: list[tuple[Any, Any, Any] | None] | None = None
        self._answer: Any = False

    def ready(self) -> Any:
        """As `RowWait.ready`. The condition is evaluated again only if a barrier was replaced or has
        changed its phase."""
        if self._cuts != self.m.sim.cuts:
            self._forget()
            self._cuts = self.m.sim.cuts
            self._places = [(world.barriers, (rank, number)) for world, rank, number, _ in self._awaited_phases()]
        states: list[tuple[Any, Any, Any] | None] = []
        for barriers, key in self._places:
            b = barriers.get(key)
            states.append(None if b is None else (b, b.phase, b.valid))
        if states != self._states:
            ready = super().ready()
            self._states = states
            if ready.all():
                self._answer = True
            else:
                self._answer = ready if ready.any() else False
        return self._answer

    def bound(self, fiber, rows: np.ndarray) -> RowWait:
        new = super().bound(fiber, rows)
        if isinstance(new, BarrierWait):
            new._forget()
        return new

    def _awaited_phases(self):
        """(world, rank, number, completed phases when the wait began) for each barrier that is waited for."""
        barrier, parity, begun = self.params
        for positions, (index, peer, old) in self.m.cases(barrier.index, barrier.peer, begun):
            for world, _ in self.m.peek(positions):
                yield world, self.m.rank if peer is None else peer, barrier.first + (index or 0), old

    def events(self) -> Iterator[tuple[Any, tuple]]:
        """As `RowWait.events`: the phase that is waited for, which may have been over when the wait began."""
        barrier, parity, begun = self.params
        for positions, (index, peer, old, wanted) in self.m.cases(barrier.index, barrier.peer, begun, parity):
            rank, number = self.m.rank if peer is None else peer, barrier.first + (index or 0)
            for world, _ in self.m.peek(positions):
                yield world, (rank, number, old if (old ^ wanted) & 1 else old + 1)

    def barriers(self):
        """(world, rank, number, MBarrier) for each barrier that is still waited for."""
        for world, rank, number, old in self._awaited_phases():
            b = world.barriers.get((rank, number))
            if b is not None and b.phase == old:
                yield world, rank, number, b


class ChildWait(RowWait):
    """A wait until other scope instances have ended."""

    def __init__(self, fiber, spawns: list, what: str):
        self.fiber, self.spawns, self.what = fiber, spawns, what
        self.loc = None

    def ready(self) -> Any:
        waiting = [s for s in self.spawns if s.count]
        if not waiting:
            return True
        live = np.zeros(self.fiber.batch, bool)
        for spawn in waiting:
            live |= spawn.live[self.fiber.rows]
        return ~live

    def describe(self) -> str:
        return f"waits for {self.what}"

    def then(self) -> None:
        return None

    def bound(self, fiber, rows: np.ndarray) -> ChildWait:
        return ChildWait(fiber, self.spawns, self.what)


class SpinWait(RowWait):
    """The wait of a loop whose last iteration changed nothing: it goes on when something else has changed."""

    def __init__(self, fiber, node, version: int):
        self.fiber, self.node, self.version = fiber, node, version
        self.loc = node.loc

    def ready(self) -> bool:
        return self.fiber.sim.version != self.version

    def describe(self) -> str:
        return "spins in a loop whose condition nothing will change"

    def then(self) -> None:
        return None

    def bound(self, fiber, rows: np.ndarray) -> SpinWait:
        return SpinWait(fiber, self.node, self.version)
