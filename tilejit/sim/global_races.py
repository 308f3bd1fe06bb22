"""Races between CTAs on global memory: per element, which CTA wrote it last and which read it since."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .global_threads import NOBODY, Accessor, ThreadShadow

MANY = -1    # several CTAs (readers), or atomics of any (writers)


SOME = 16    # so many acquisitions by some threads of a CTA are told apart


class Some(NamedTuple):
    """Threads that synchronise without the others: `atoms` of the CTA; who knows this epoch of the column has met them since."""

    atoms: frozenset[int]
    column: int
    epoch: int


Near = dict[int, Some | None]  # the CTAs of the cluster of threads that synchronise, and which of each one's threads these are (None: all)


class GlobalClocks:
    """What each CTA of a chunk knows of the others through ordered accesses: the epoch up to which their accesses precede its own.

    An access is tagged with its CTA's epoch, which every release and fence ends. Made on the first synchronising access.
    A relaxed access releases what a fence before it covered, and acquires at the next fence (PTX ISA, "Release and
    Acquire Patterns").
    """

    def __init__(self, ctas: int):
        self.ctas = ctas
        self.now = np.ones(ctas, np.int32)
        self.rows: dict[int, np.ndarray] = {}        # CTA -> what it knows of every CTA
        self.fenced: dict[int, np.ndarray] = {}      # CTA -> what it knew and had done at its last fence
        self.pending: dict[int, np.ndarray] = {}     # CTA -> what it has met and knows after the next fence
        self.learnt: dict[int, list[tuple[Some, np.ndarray]]] = {}  # CTA -> what some of its threads know beside `rows`
        self.released: dict[tuple, np.ndarray] = {}  # (memory, element, cluster or None) -> what an acquire there learns

    def _raise(self, table: dict, key, clock: np.ndarray) -> None:
        table[key] = np.maximum(table[key], clock) if key in table else clock.copy()

    def _own(self, cta: int, near: Near) -> np.ndarray:
        """What the CTA knows and those of its cluster have done; what they do next is later."""
        clock = self.rows.get(cta, np.zeros(self.ctas, np.int32)).copy()
        for _, learnt in self.learnt.get(cta, ()):
            np.maximum(clock, learnt, out=clock)
        for other in near:
            clock[other] = self.now[other]
            self.now[other] += 1
        return clock

    def _learn(self, clock: np.ndarray, near: Near) -> None:
        """The CTAs of a cluster acquire `clock`, or some of their threads do. Of many acquisitions the oldest two count as one."""
        for cta, some in near.items():
            if some is None:
                self._raise(self.rows, cta, clock)
                continue
            learnt = self.learnt.setdefault(cta, [])
            if not learnt or learnt[-1][0].atoms != some.atoms or (clock > learnt[-1][1]).any():
                learnt.append((some, clock.copy()))
            if len(learnt) > SOME:
                (first, known), (_, more) = learnt[:2]
                learnt[:2] = [(first, np.maximum(known, more))]

    def meet(self, cta: int, cluster: int, place: tuple, order: str | None, reads: bool, writes: bool, of_grid: bool, near: Near) -> None:
        """Threads of a CTA read, write or do both at a place. `order` is 'acquire', 'release', 'acq_rel' or None (relaxed). Two meet
        if the scope of each holds the other: `of_grid`, or the CTA's own cluster."""
        keys = ((*place, cluster), (*place, None)) if of_grid else ((*place, cluster),)
        for key in keys:
            if reads and key in self.released and order in ("acquire", "acq_rel"):
                self._learn(self.released[key], near)
            elif reads and key in self.released:
                self._raise(self.pending, cta, self.released[key])
        if not writes:
            return
        clock = self._own(cta, near) if order in ("release", "acq_rel") else self.fenced.get(cta)
        if clock is not None:
            for key in keys:
                self._raise(self.released, key, clock)

    def fence(self, cta: int, near: Near) -> None:
        """``fence.acq_rel`` at GPU scope, in threads of a CTA."""
        if cta in self.pending:
            self._learn(self.pending.pop(cta), near)
        self.fenced[cta] = self._own(cta, near)


class GlobalShadow:
    """The shadow of one allocation of global memory (arguments that overlap share it), in cells of `granule` bytes."""

    def __init__(self, address: int, nbytes: int, granule: int, contended: bool = False):
        self.address, self.granule = address, granule
        self.cells = -(-nbytes // granule)
        self.threads = ThreadShadow(self.cells) if contended else None  # where threads of one cluster may race
        self.writer: np.ndarray | None = None  # CTA + 1 of the last write
        self.reader: np.ndarray | None = None  # CTA + 1 of the readers since, or MANY
        self.epoch: np.ndarray | None = None   # the writer's epoch, when clocks are kept

    def _arrays(self, clocks: GlobalClocks | None) -> None:
        if self.writer is None:
            self.writer = np.zeros(self.cells, np.int32)
        if clocks is not None and self.epoch is None:
            self.epoch = np.ones(self.cells, np.int32)

    def read(self, view, ids: np.ndarray, clocks: GlobalClocks | None, overlapping: bool, who: Accessor | None = None):
        """CTAs `ids` (id + 1, broadcastable) read the cells that `view(array)` selects: the first conflict, or None."""
        found = None
        if self.writer is not None:
            found = self._conflict(view, ids, clocks, view(self.writer), who)
        if who is not None:
            found = self.threads.read(view, who) or found
            ids = _readers(who)
        self._mark_readers(view, ids, overlapping)
        return found

    def _mark_readers(self, view, ids: np.ndarray, overlapping: bool) -> None:
        if self.reader is None:
            self.reader = np.zeros(self.cells, np.int32)
        old = view(self.reader)
        new = np.where((old == 0) | (old == ids), ids, MANY)
        view.assign(self.reader, new)
        if overlapping:
            lost = view(self.reader) != new
            if lost.any():
                view.assign(self.reader, np.where(lost, MANY, new))

    def write(self, view, ids: np.ndarray, clocks: GlobalClocks | None, overlapping: bool, who: Accessor | None = None):
        """The same for a write. Two CTAs of one batch that write the same cell conflict too."""
        found = None
        if self.writer is not None:
            found = self._conflict(view, ids, clocks, view(self.writer), who)
        if self.reader is not None and found is None:
            old = view(self.reader)
            found = self._read_before(ids, clocks, old, who)
        if who is not None:
            found = self.threads.write(view, who) or found
        self._arrays(clocks)
        view.assign(self.writer, ids)
        if self.epoch is not None:
            view.assign(self.epoch, clocks.now[ids - 1])
        if overlapping and found is None:
            now = view(self.writer)
            clash = now != ids
            if clash.any():
                at = np.argmax(clash)
                found = "write", int(now.flat[at]) - 1, int(np.broadcast_to(ids, now.shape).flat[at]) - 1
        return found

    def atomic(self, cells: np.ndarray, ids: np.ndarray, clocks: GlobalClocks | None, who: Accessor | None = None):
        """Atomics conflict with ordinary accesses of others, not with each other."""
        found = None if self.writer is None else self._conflict(Index(cells), ids, clocks, self.writer[cells], who)
        if who is not None:
            found = self.threads.write(Index(cells), who, atomic=True) or found
        self._arrays(clocks)
        self.writer[cells] = MANY
        return found

    def atomic_read(self, cells: np.ndarray, ids: np.ndarray, clocks: GlobalClocks | None, who: Accessor | None = None):
        """Reads that conflict with ordinary writes of others, as do such writes after them, but with no atomics."""
        view = Index(cells)
        found = None if self.writer is None else self._conflict(view, ids, clocks, self.writer[cells], who)
        if who is not None:
            found = self.threads.read(view, who, atomic=True) or found
            ids = _readers(who)
        self._mark_readers(view, ids, overlapping=True)
        return found

    def hold_back(self, cta: int, known: np.ndarray, clocks: GlobalClocks) -> None:
        """Writes of the CTA since its last release come after the one to be, where `known`, by columns of atoms, does not have them."""
        marks = self.threads.writes
        if self.writer is None or marks is None:
            return
        self._arrays(clocks)
        cells = np.flatnonzero(self.writer == cta + 1)
        cells = cells[(self.epoch[cells] == clocks.now[cta]) & (marks.cta[cells] == cta + 1) & (marks.thread[cells] != NOBODY)]
        self.epoch[cells[known[marks.column[cells]] < marks.epoch[cells]]] += 1

    def _conflict(self, view, ids, clocks, writer, who):
        bad = (writer > 0) & (writer != ids)
        if not bad.any():
            return None
        if clocks is not None:
            epoch = view(self.epoch) if self.epoch is not None else np.ones(writer.shape, np.int32)
            bad = self._unordered(bad, writer, ids, clocks, epoch, who)
        if who is not None and who.m.sim.ranks > 1 and bad.any():
            bad = self.threads.unordered_write(view, who, bad)
        if not bad.any():
            return None
        at = int(np.argmax(bad))
        return "write", int(writer.flat[at]) - 1, int(np.broadcast_to(ids, writer.shape).flat[at]) - 1

    def _read_before(self, ids, clocks, reader, who):
        if who is not None:
            ids = _readers(who)
            if clocks is not None and who.m.sim.ranks > 1:
                return None  # which CTA of a cluster has read is not kept here
        bad = (reader != 0) & (reader != ids)
        if clocks is not None:
            bad &= reader > 0
            if bad.any():  # a reader's epoch is not kept: any release of it since counts
                bad = self._unordered(bad, reader, ids, clocks, np.ones(reader.shape, np.int32), who)
        if not bad.any():
            return None
        at = int(np.argmax(bad))
        other = int(reader.flat[at]) if who is None or who.m.sim.ranks == 1 else MANY
        return "read", other - 1 if other > 0 else None, int(np.broadcast_to(ids, reader.shape).flat[at]) - 1

    @staticmethod
    def _unordered(bad, other, ids, clocks, epoch, who):
        bad = bad.copy()
        where = np.nonzero(bad)
        me = np.broadcast_to(ids, bad.shape)[where] - 1
        them, epochs = other[where] - 1, epoch[where]
        late, grouped = np.ones(len(me), bool), np.argsort(me, kind="stable")
        for mine in np.split(grouped, np.flatnonzero(np.diff(me[grouped])) + 1):  # the cells of one CTA
            cta = int(me[mine[0]])
            known = clocks.rows.get(cta)
            if known is not None:
                late[mine] = known[them[mine]] < epochs[mine]
            for some, known in clocks.learnt.get(cta, ()):
                told = mine[late[mine] & (known[them[mine]] >= epochs[mine])]
                if len(told):
                    late[told] = who is not None and ~who.has_met(some, tuple(w[told] for w in where), bad.shape)
        bad[where] = late
        return bad


def _readers(who: Accessor) -> np.ndarray:
    """What reads are marked by, where the threads of each cluster are known: the cluster."""
    return who.ids if who.m.sim.ranks == 1 else who.clusters


class Box:
    """Selects a strided box of a shadow."""

    def __init__(self, box, offset, extents, strides):
        self.box, self.args = box, (offset, extents, strides)

    def __call__(self, array: np.ndarray) -> np.ndarray:
        return self.box(array, *self.args)

    def assign(self, array: np.ndarray, values, mine: np.ndarray | None = None) -> None:
        """Set the cells, where the mask `mine` holds."""
        np.copyto(self(array), values, casting="unsafe", where=True if mine is None else mine)


class Index:
    """Selects cells of a shadow by index."""

    def __init__(self, index: np.ndarray):
        self.index = index

    def __call__(self, array: np.ndarray) -> np.ndarray:
        return array[self.index]

    def assign(self, array: np.ndarray, values, mine: np.ndarray | None = None) -> None:
        """Set the cells, where the mask `mine` holds."""
        array[self.index] = values if mine is None else np.where(mine, values, self(array))


def overlapping(extents: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a box may name a cell twice."""
    reach = 0
    for stride, n in sorted((abs(s), n) for s, n in zip(strides, extents) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (n - 1)
    return False
