"""Vector clocks: what each group of threads knows about the accesses of every other group.

Clocks, shadow memory, barriers and operations in flight are stored once for all clusters whose synchronisation state is
the same. Such a set of clusters is a `World`; it is split when clusters diverge. Everything below is therefore written
for a single cluster, and a launch whose clusters all behave alike costs no more than one, however many CTAs it has.

An access is tagged (column, epoch, thread). A column of the clocks is either an atom, a group of threads of one CTA
of the cluster (see `program.Program`), or an mbarrier of one of its CTAs, which stands for the asynchronous copies
that complete on it; the epoch of an mbarrier is its phase. For each column, an atom knows an epoch: accesses up to
that epoch happen before anything that the atom does next. For its own column it keeps the epoch up to which *all* its
threads know of each other's accesses, that is, up to their last barrier. The earlier accesses of a thread itself
always come first.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

# The planes of a clock. Up to their epochs, a column's accesses happen before (ORDER), and are visible to the async
# proxy too (FENCED); its reads are done (READ); its waits are over (PASSED).
ORDER, FENCED, READ, PASSED = range(4)
# For kernels with tensor memory: accesses followed by a tcgen05.fence::before_thread_sync before their release; and of
# these, those whose acquire was followed by a tcgen05.fence::after_thread_sync.
BEFORE, AFTER = 4, 5
# For kernels whose copies write global memory: accesses that a proxy fence of any space followed, in their own threads.
# Loads are over by then.
SETTLED = 6
# For kernels with proxy fences of global memory: accesses that such a fence orders before those of copy engines.
GLOBAL = 7
# For clusters: accesses to the shared memory of other CTAs that a proxy fence orders before those of copy engines.
# FENCED stands for those to the own CTA's, to which fence.proxy.async.shared::cta is restricted.
PEERS = 8


class Clocks:
    """The clocks of one cluster: `known[rank, atom, plane, column]`, `now[rank, atom]` (the current epoch of an atom)
    and `fenced[rank, atom]` (its epoch at its last proxy fence)."""

    def __init__(self, ranks: int, atoms: int, barriers: int, tensor: bool = False, fences_global: bool = False,
                 settles: bool = False):
        self.ranks, self.atoms, self.width = ranks, atoms, atoms + barriers
        self.tensor = tensor
        planes = max(4, 6 * tensor, 7 * settles, 8 * fences_global, 9 * (ranks > 1))
        self.known = np.zeros((ranks, atoms, planes, ranks * self.width), np.int32)
        self.now = np.ones((ranks, atoms), np.int32)
        self.fenced = np.zeros((ranks, atoms), np.int32)
        # the same for fences of global memory
        self.fenced_global = np.zeros((ranks, atoms), np.int32) if fences_global else None
        # the same for fences of the cluster's memory
        self.fenced_peers = np.zeros((ranks, atoms), np.int32) if ranks > 1 else None
        # The same for fences of any space.
        self.settled = np.zeros((ranks, atoms), np.int32) if fences_global or settles else None
        self.before = np.zeros((ranks, atoms), np.int32)  # the epoch at the last tcgen05.fence::before_thread_sync

    def copy(self) -> Clocks:
        new = copy.copy(self)
        new.known, new.now, new.fenced, new.before = (self.known.copy(), self.now.copy(), self.fenced.copy(),
                                                      self.before.copy())
        new.fenced_global = None if self.fenced_global is None else self.fenced_global.copy()
        new.fenced_peers = None if self.fenced_peers is None else self.fenced_peers.copy()
        new.settled = None if self.settled is None else self.settled.copy()
        return new

    def column(self, rank: int, atom: Any) -> Any:
        """The column of an atom of threads, or of several."""
        return rank * self.width + atom

    def barrier_column(self, rank: int, barrier: int) -> int:
        """The column of the asynchronous copies that complete on an mbarrier."""
        return rank * self.width + self.atoms + barrier

    def release(self, rank: int, atoms: np.ndarray, alone: bool = False) -> np.ndarray:
        """The clock (plane, column) that these atoms publish, all that they know and have done;
        their next epoch begins.

        With `alone`, one thread releases on behalf of all of them, and the others need not have passed the waits that
        it has passed: plane PASSED is then not raised.
        """
        clock = self.known[rank, atoms].max(axis=0)
        columns = rank * self.width + atoms
        clock[ORDER, columns] = clock[READ, columns] = self.now[rank, atoms]
        if not alone:
            clock[PASSED, columns] = self.now[rank, atoms]
        clock[FENCED, columns] = np.maximum(clock[FENCED, columns], self.fenced[rank, atoms])
        if self.tensor:
            clock[BEFORE, columns] = np.maximum(clock[BEFORE, columns], self.before[rank, atoms])
        if self.fenced_global is not None:
            clock[GLOBAL, columns] = np.maximum(clock[GLOBAL, columns], self.fenced_global[rank, atoms])
        if self.fenced_peers is not None:
            clock[PEERS, columns] = np.maximum(clock[PEERS, columns], self.fenced_peers[rank, atoms])
        if self.settled is not None:
            clock[SETTLED, columns] = np.maximum(clock[SETTLED, columns], self.settled[rank, atoms])
        self.now[rank, atoms] += 1
        return clock

    def acquire(self, rank: int, atoms: np.ndarray, clock: np.ndarray) -> None:
        """Add a released clock to what these atoms know."""
        if self.tensor:  # each acquiring thread needs its own after_thread_sync fence: AFTER is not passed on
            clock = clock.copy()
            clock[AFTER] = 0
        self.known[rank, atoms] = np.maximum(self.known[rank, atoms], clock)

    def sync(self, rank: int, atoms: np.ndarray) -> None:
        """A barrier among these atoms."""
        self.acquire(rank, atoms, self.release(rank, atoms))

    def exchange(self, rank: int, atoms: np.ndarray) -> None:
        """These atoms exchange values computed from what they have read, as in a reduction. Their reads, and the
        waits before them, thus precede whatever any of them does next. Their writes do not become visible to each
        other."""
        for plane in (READ, PASSED):
            self.known[rank, atoms[:, None], plane, rank * self.width + atoms] = self.now[rank, atoms]
        self.now[rank, atoms] += 1

    def fence(self, rank: int, atoms: np.ndarray, peers: bool = False) -> None:
        """A proxy fence in all threads of these atoms: it orders the copies that they know to have completed on
        barriers before later accesses through the async proxy, and also the threads' own accesses so far: those to the
        shared memory of their CTA, and with `peers` to that of the whole cluster."""
        copies = np.arange(self.known.shape[-1]) % self.width >= self.atoms
        both = [(FENCED, self.fenced)]
        if peers and self.fenced_peers is not None:
            both.append((PEERS, self.fenced_peers))
        known = self.known[rank, atoms]
        for plane, fenced in both:
            known[:, plane, copies] = known[:, ORDER, copies]
            fenced[rank, atoms] = self.now[rank, atoms]
        self.known[rank, atoms] = known
        self.now[rank, atoms] += 1

    def fence_plane(self, column: int, rank: int) -> int:
        """The plane of the fences that count for an access by a column to the shared memory of CTA `rank`."""
        return FENCED if self.fenced_peers is None or column // self.width == rank else PEERS

    def fences_of(self, rank: int, memory: int) -> np.ndarray:
        """The epochs of the atoms of CTA `rank` at their last proxy fence that counts for the shared
        memory of CTA `memory`."""
        return self.fenced[rank] if self.fenced_peers is None or memory == rank else self.fenced_peers[rank]

    def settle(self, rank: int, atoms: np.ndarray) -> None:
        """A proxy fence of any space in every thread of these atoms: their loads so far are over. The fence itself
        ends the epoch."""
        if self.settled is not None:
            self.settled[rank, atoms] = self.now[rank, atoms]

    def fence_global(self, rank: int, atoms: np.ndarray) -> None:
        """A proxy fence of global memory in every thread of these atoms: it orders all accesses that they know of
        before later ones of copy engines. It may thus stand before a barrier, in the threads that wrote, or after
        it."""
        assert self.fenced_global is not None  # the kernel has such fences
        known = self.known[rank, atoms]
        known[:, GLOBAL] = np.maximum(known[:, GLOBAL], known[:, ORDER])
        self.known[rank, atoms] = known
        self.fenced_global[rank, atoms] = self.now[rank, atoms]
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
    """A clock that knows nothing, (plane, column)."""
    return np.zeros((clocks.known.shape[2], clocks.ranks * clocks.width), np.int32)
