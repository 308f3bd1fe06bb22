"""Barriers of one cluster: mbarriers with their phases and bytes, named barriers, the cluster's own."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import numpy as np

from .clocks import ORDER, PASSED, READ

# Bytes that a phase may have pending, either way (PTX ISA, "Tracking asynchronous operations by the mbarrier object").
TX_LIMIT = (1 << 20) - 1


@dataclass
class LastWait:
    """How an atom last got past a wait on a barrier: the line, whether it learnt nothing new there, the phase, and the atom's epoch (0 where it
    only asked)."""

    line: int
    stale: bool
    phase: int
    epoch: int


@dataclass(eq=False)
class MBarrier:
    """An mbarrier. `phase` counts the phases that are over; `tx` the bytes still to come (negative: come too early).

    `done` is what the end of the last phase teaches, `clock` what the arrivals of the current one add; `before` is what the
    end of the phase ahead of the last one taught, if arrivals alone ended it (None: only a wait tells of it). `expected` and
    `issued` are the bytes announced and sent on their way in the current phase; `expect_line` is where they were
    announced last. `arrived` has the column and the epoch of each thread that has arrived in the current phase, `ended` of those
    that ended the last one; `engines` says whether anything asynchronous counts in the current phase, `unseen` whether it did in
    the last one, so that nobody knows its end who has not waited for it, or been told. `early` is (CTA, line) of an arrival that
    nothing orders behind the phase before.
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
    brought: bool = False  # whether the last phase waited for bytes
    valid: bool = True
    waits: dict[tuple[int, int], LastWait] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    engines: bool = False
    unseen: bool = False
    early: tuple[int, int] | None = None

    def copy(self) -> "MBarrier":
        new = copy.copy(self)
        new.clock, new.done, new.waits = self.clock.copy(), self.done.copy(), dict(self.waits)
        new.arrived, new.ended = dict(self.arrived), dict(self.ended)
        return new

    def follows(self, clock: np.ndarray, column: int, own: list[int], epoch: int) -> bool:
        """Whether who knows `clock` comes after the end of the phase before, of a barrier with this column, or those who ended it knew of it, in
        its `own` columns, what they may be told up to this `epoch`."""
        if not self.phase:
            return True
        past, told = (c[[ORDER, READ, PASSED]].max(axis=0) for c in (clock, self.done))
        if past[column] >= self.phase:
            return True
        return not self.unseen and (all(past[who] >= e for who, e in self.ended.items()) or bool((told[own] >= epoch).all()))

    @property
    def over(self) -> bool:
        """Whether the current phase has everything it waits for."""
        return self.pending == 0 and self.tx == 0

    def flip(self) -> None:
        """End the phase."""
        self.before = None if self.brought else self.done.copy()
        self.brought = self.expected > 0
        np.maximum(self.done, self.clock, out=self.done)
        self.clock[:] = 0
        self.phase += 1
        self.pending = self.count
        self.ended, self.arrived = self.arrived, {}
        self.unseen, self.engines = self.engines or self.expected > 0 or self.issued > 0, False
        self.expected = self.issued = 0

    def passed(self, parity: int) -> bool:
        """What ``mbarrier.test_wait.parity`` says."""
        return (self.phase & 1) != parity & 1

    def missing(self) -> str:
        """What the current phase still waits for."""
        parts = []
        if self.pending:
            parts.append(f"{self.pending} of {self.count} arrival{'s' if self.count > 1 else ''}")
        if self.tx:
            parts.append(f"{self.tx} bytes" if self.tx > 0 else f"the announcement (expect_tx) of {-self.tx} bytes that have already arrived")
        return " and ".join(parts) or "nothing"


@dataclass
class NamedBarrier:
    """A hardware barrier for `threads` threads, or the cluster's: arrivals of the current generation, and what they teach."""

    threads: int
    clock: np.ndarray
    done: np.ndarray
    arrived: int = 0
    generation: int = 0

    def copy(self) -> "NamedBarrier":
        new = copy.copy(self)
        new.clock, new.done = self.clock.copy(), self.done.copy()
        return new

    def arrive(self, threads: int, clock: np.ndarray) -> None:
        """Some threads arrive; the last ones end the generation."""
        np.maximum(self.clock, clock, out=self.clock)
        self.arrived += threads
        if self.arrived >= self.threads:
            self.done, self.clock = self.clock, np.zeros_like(self.clock)
            self.arrived -= self.threads
            self.generation += 1
