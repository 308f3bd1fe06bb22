"""The barriers of one cluster: mbarriers with phases and transaction counts, named barriers, the cluster barrier."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np

from .vector_clocks import ORDER, PASSED, READ

# The range of a phase's tx-count is -TX_LIMIT to TX_LIMIT (PTX ISA,
# "Tracking asynchronous operations by the mbarrier object").
TX_LIMIT = (1 << 20) - 1


@dataclass
class LastWait:
    """An atom's last completed wait on a barrier: its line; whether it was stale, that is, for a phase that the atom
    had already waited for; the number of completed phases then; and the atom's epoch (0 if it only tested the
    barrier)."""

    line: int
    stale: bool
    phase: int
    epoch: int


@dataclass(frozen=True)
class Announcement:
    """An ``expect_tx`` that no later arrival is known to follow: the column and epoch of its thread, the thread's rank,
    its line, and whether the previous phase ended by an arrival of the thread, or without bytes, and the thread has not
    waited for it (`late`)."""

    column: int
    epoch: int
    rank: int
    line: int
    late: bool


@dataclass(eq=False)
class MBarrier:
    """An mbarrier. `phase` counts the completed phases; `tx` is the number of bytes still pending (negative: bytes
    came before they were announced).

    Clocks: `clock` collects what the arrivals of the current phase release, and `done` is what a wait for the last
    completed phase acquires. `before` is `done` as of the phase before that, provided that no bytes were announced
    for that phase (None otherwise: then its completion is known only to those that waited for it).

    `expected` and `issued` are the bytes announced and sent in the current phase; `expect_line` is the line of the
    last announcement. `arrived` maps the column of each atom that arrived in the current phase to its epoch, `ended`
    is the same for the last phase. `engines` says whether asynchronous operations take part in the current phase.
    `unseen` says whether they did in the last one: its arrivals alone then do not prove that it is over. `early` is
    the (CTA rank, line) of an arrival that is not ordered after the end of the previous phase. `coming` counts the
    arrivals of copies in flight. `announced` holds the announcements of the current phase after which none of its
    arrivals is known to come. `born` is the column and epoch of the initialisation, None if that was at the kernel's
    entry, and `visible` says whether a ``fence.mbarrier_init`` followed it.
    """

    count: int
    pending: int
    clock: np.ndarray
    done: np.ndarray
    line: int
    before: np.ndarray | None = None
    phase: int = 0
    tx: int = 0
    expected: int = 0
    issued: int = 0
    expect_line: int = -1
    brought: bool = False  # whether bytes were announced for the last phase
    valid: bool = True
    waits: dict[tuple[int, int], LastWait] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    engines: bool = False
    unseen: bool = False
    early: tuple[int, int] | None = None
    coming: int = 0
    born: tuple[int, int] | None = None
    visible: bool = False
    announced: tuple[Announcement, ...] = ()

    def copy(self) -> MBarrier:
        new = copy.copy(self)
        new.clock, new.done, new.waits = self.clock.copy(), self.done.copy(), dict(self.waits)
        new.arrived, new.ended = dict(self.arrived), dict(self.ended)
        return new

    def follows(self, clock: np.ndarray, column: int, own: list[int], epoch: int) -> bool:
        """Whether an arrival by a thread with the clock `clock` is known not to fall into the previous phase.
        `column` is the barrier's.

        This holds if the thread knows that the previous phase is over, or knows of all arrivals that ended it. It
        also holds if the threads that ended it knew of the arriving thread, in its `own` columns, up to `epoch`: see
        `Synchronisation._follow`.
        """
        if not self.phase:
            return True
        past, told = (c[[ORDER, READ, PASSED]].max(axis=0) for c in (clock, self.done))
        if past[column] >= self.phase:
            return True
        return (not self.unseen
                and (all(past[who] >= e for who, e in self.ended.items()) or bool((told[own] >= epoch).all())))

    def announce(self, clock: np.ndarray, column: int, own: int, epoch: int, rank: int, line: int) -> None:
        """Record an ``expect_tx`` by a thread that knows `clock`, in its column `own`. `column` is the barrier's."""
        late = self.phase > 0 and int(clock[ORDER, column]) < self.phase and (own in self.ended or not self.brought)
        self.announced += Announcement(own, epoch, rank, line, late),

    def arrived_after(self, clock: np.ndarray) -> None:
        """An arrival with the clock `clock` comes after the announcements that it knows of: the phase cannot end before
        these."""
        past = clock[[ORDER, READ, PASSED]].max(axis=0)
        self.announced = tuple(a for a in self.announced if past[a.column] < a.epoch)

    @property
    def is_complete(self) -> bool:
        """Whether the current phase is complete: no pending arrivals and no pending bytes."""
        return self.pending == 0 and self.tx == 0

    def flip(self) -> None:
        """Complete the current phase and begin the next."""
        self.before = None if self.brought else self.done.copy()
        self.brought = self.expected > 0
        np.maximum(self.done, self.clock, out=self.done)
        self.clock[:] = 0
        self.phase += 1
        self.pending = self.count
        self.announced = ()
        self.ended, self.arrived = self.arrived, {}
        self.unseen, self.engines = self.engines or self.expected > 0 or self.issued > 0, False
        self.expected = self.issued = 0

    def has_passed(self, parity: int) -> bool:
        """The result of ``mbarrier.test_wait.parity``."""
        return (self.phase & 1) != parity & 1

    def too_many(self, count: int) -> str:
        """In words, the fault of `count` arrivals beyond those that the current phase still needs."""
        left = self.pending - self.coming
        where = f"needs only {left} more of {self.count}"
        if not left and self.tx:
            where = f"has all {self.count} and still waits for {self.describe_pending()}"
        if self.coming:
            where += f", as {self.coming} come with copies in flight"
        return f"{count} arrival{'s' if count > 1 else ''} at an mbarrier whose current phase {where}"

    def describe_pending(self) -> str:
        """What the current phase still waits for, in words."""
        parts = []
        if self.pending:
            parts.append(f"{self.pending} of {self.count} arrival{'s' if self.count > 1 else ''}")
        if self.tx > 0:
            parts.append(f"{self.tx} bytes")
        elif self.tx < 0:
            parts.append(f"the announcement (expect_tx) of {-self.tx} bytes that have already arrived")
        return " and ".join(parts) or "nothing"


@dataclass
class NamedBarrier:
    """A hardware barrier for `threads` threads, or the cluster's barrier. `clock` collects what the arrivals of the
    current generation release, `done` is what those that wait for the last generation acquire. `line` is the line of
    the last arrival; `baton` says that the kernel begins and ends with arrivals here: see `tile.turns`."""

    threads: int
    clock: np.ndarray
    done: np.ndarray
    arrived: int = 0
    generation: int = 0
    line: int = -1
    baton: bool = False

    def copy(self) -> NamedBarrier:
        new = copy.copy(self)
        new.clock, new.done = self.clock.copy(), self.done.copy()
        return new

    def arrive(self, threads: int, clock: np.ndarray) -> None:
        """Count `threads` arrivals; the last ones complete the generation."""
        np.maximum(self.clock, clock, out=self.clock)
        self.arrived += threads
        if self.arrived >= self.threads:
            self.done, self.clock = self.clock, np.zeros_like(self.clock)
            self.arrived -= self.threads
            self.generation += 1
