"""Vector clocks: what each group of threads knows of every other, for a set of clusters whose state is the same.

The state of synchronisation (clocks, shadows, barriers, copies under way) is kept once for all clusters that behave
alike, a `World`, and cut in two where they cease to: the rules below are written for one cluster, and the usual
lock-step launch pays for one, however many CTAs it has.

An access is tagged (column, epoch, thread). A column is an atom of threads of one CTA of the cluster, or one of its
mbarriers, which stands for the asynchronous copies that complete on it; the epoch of these is the phase. What an atom
knows of a column is an epoch: accesses up to it come before whatever the atom does next. Of its own column it keeps
what *all* its threads know of each other (up to their last barrier); a thread's own accesses come first anyway.
"""

from __future__ import annotations

import copy

import numpy as np

ORDER, FENCED, READ, PASSED = range(4)  # planes: known to come before; to be visible to the async proxy as well; to have been read; waits to be over
BEFORE, AFTER = 4, 5  # where there is tensor memory: fenced before it was told of; and after it was learnt


class Clocks:
    """The clocks of one cluster: `known[rank, atom, plane, column]`, `now[rank, atom]`, `fenced[rank, atom]`."""

    def __init__(self, ranks: int, atoms: int, barriers: int, tensor: bool = False):
        self.ranks, self.atoms, self.width = ranks, atoms, atoms + barriers
        self.tensor = tensor
        self.known = np.zeros((ranks, atoms, 6 if tensor else 4, ranks * self.width), np.int32)
        self.now = np.ones((ranks, atoms), np.int32)
        self.fenced = np.zeros((ranks, atoms), np.int32)
        self.before = np.zeros((ranks, atoms), np.int32)  # the epoch at the last tcgen05.fence::before_thread_sync

    def copy(self) -> "Clocks":
        new = copy.copy(self)
        new.known, new.now, new.fenced, new.before = self.known.copy(), self.now.copy(), self.fenced.copy(), self.before.copy()
        return new

    def column(self, rank: int, atom: int) -> int:
        """The column of an atom of threads."""
        return rank * self.width + atom

    def barrier_column(self, rank: int, barrier: int) -> int:
        """The column of the copies that complete on an mbarrier."""
        return rank * self.width + self.atoms + barrier

    def release(self, rank: int, atoms: np.ndarray, alone: bool = False) -> np.ndarray:
        """What these atoms know and have done, as a clock (plane, column); what they do next is later. `alone` says that one thread releases
        what all of them have done, and that not all need be past the waits that it is past."""
        clock = self.known[rank, atoms].max(axis=0)
        columns = rank * self.width + atoms
        clock[ORDER, columns] = clock[READ, columns] = self.now[rank, atoms]
        if not alone:
            clock[PASSED, columns] = self.now[rank, atoms]
        clock[FENCED, columns] = np.maximum(clock[FENCED, columns], self.fenced[rank, atoms])
        if self.tensor:
            clock[BEFORE, columns] = np.maximum(clock[BEFORE, columns], self.before[rank, atoms])
        self.now[rank, atoms] += 1
        return clock

    def acquire(self, rank: int, atoms: np.ndarray, clock: np.ndarray) -> None:
        """These atoms learn what a release knew."""
        if self.tensor:  # what follows a wait is ordered on tensor memory by its own fence alone
            clock = clock.copy()
            clock[AFTER] = 0
        self.known[rank, atoms] = np.maximum(self.known[rank, atoms], clock)

    def sync(self, rank: int, atoms: np.ndarray) -> None:
        """A barrier of these atoms."""
        self.acquire(rank, atoms, self.release(rank, atoms))

    def exchange(self, rank: int, atoms: np.ndarray) -> None:
        """Values made of what these atoms have read pass between them: those reads are over before what any of them does next,
        and the waits before them, but nothing that they have written is visible for it."""
        for plane in (READ, PASSED):
            self.known[rank, atoms[:, None], plane, rank * self.width + atoms] = self.now[rank, atoms]
        self.now[rank, atoms] += 1

    def fence(self, rank: int, atoms: np.ndarray) -> None:
        """A proxy fence in every thread of these atoms: their accesses so far, and the copies that they know to have completed on
        barriers, reach the async proxy in order."""
        copies = np.arange(self.known.shape[-1]) % self.width >= self.atoms
        known = self.known[rank, atoms]
        known[:, FENCED, copies] = known[:, ORDER, copies]
        self.known[rank, atoms] = known
        self.fenced[rank, atoms] = self.now[rank, atoms]
        self.now[rank, atoms] += 1

    def tensor_before(self, rank: int, atoms: np.ndarray) -> None:
        """``tcgen05.fence::before_thread_sync`` in every thread of these atoms."""
        self.before[rank, atoms] = self.now[rank, atoms]
        self.now[rank, atoms] += 1

    def tensor_after(self, rank: int, atoms: np.ndarray) -> None:
        """``tcgen05.fence::after_thread_sync`` in every thread of these atoms."""
        if self.tensor:
            known = self.known[rank, atoms]
            known[:, AFTER] = np.maximum(known[:, AFTER], known[:, BEFORE])
            self.known[rank, atoms] = known


def empty_clock(clocks: Clocks) -> np.ndarray:
    """The clock that knows nothing."""
    return np.zeros((clocks.known.shape[2], clocks.ranks * clocks.width), np.int32)
