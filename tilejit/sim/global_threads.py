"""Detects races on global memory between threads of a cluster, by vector clocks.

For each element: which thread wrote it last, and which threads have read it since.

This is tracked only for memory that a kernel writes and accesses more than once. Races between clusters:
see `global_races`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .global_clocks import Note
from .vector_clocks import GLOBAL, ORDER, READ, SETTLED, Clocks

EVERY = -2     # each thread of the scope accesses the cell
NOBODY = -3    # an asynchronous copy: not checked against the threads of its CTA here


class Index:
    """A view of cells of a shadow by index."""

    repeats = True  # a cell may occur several times

    def __init__(self, index: np.ndarray):
        self.index = index

    def __call__(self, array: np.ndarray) -> np.ndarray:
        return array[self.index]

    def cell(self, at: tuple) -> int:
        """The cell at an index into the view."""
        return int(self.index[at])

    def assign(self, array: np.ndarray, values, mine: np.ndarray | None = None) -> None:
        """Set the cells, or those where the mask `mine` is true: also where another access to such a cell is not."""
        if mine is not None:
            mine = np.broadcast_to(mine, self.index.shape)
            values = np.broadcast_to(values, self.index.shape)[mine]
        array[self.index if mine is None else self.index[mine]] = values


class Marks:
    """The last access of a kind to each cell: CTA + 1 (0: none), thread, column of its atom, epoch,
    and number of the line."""

    def __init__(self, cells: int):
        self.cta, self.column, self.epoch, self.line = (np.zeros(cells, np.int32) for _ in range(4))
        self.thread = np.zeros(cells, np.int16)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """As `element_loops` takes them."""
        return self.cta, self.thread, self.epoch, self.column, self.line


NO_MARKS = Marks(0)
SLOTS = 7


@dataclass
class Clash:
    """Two accesses by threads that nothing orders: `threads` and `ctas` (this one's, the earlier one's; a thread may
    be EVERY), and for the earlier access its line and what it did."""

    threads: tuple[int, int]
    ctas: tuple[int, int]
    line: int
    earlier: str


class Accessor:
    """The threads of machine `m` that access some cells: `ids` (CTA + 1) and `threads` (or EVERY or NOBODY),
    broadcastable to the shape of the cells."""

    def __init__(self, m, ids: np.ndarray, threads: np.ndarray | int):
        self.m, self.ids, self.threads = m, ids, np.asarray(threads)
        self.kind = int(self.threads) if self.threads.ndim == 0 and int(self.threads) < 0 else 0
        if self.kind == EVERY and m.threads == 1:
            self.threads, self.kind = np.asarray(m.low), 0

    def atoms(self) -> np.ndarray:
        """The atom of each access. For EVERY, all atoms of the machine; for NOBODY, the first."""
        if self.kind == EVERY:
            return self.m.atoms
        return self.m.atoms[:1] if self.kind else self.m.sim.atom_of[self.threads]

    @property
    def planes(self) -> int:
        """How many planes the clocks have."""
        return self.m.sim.worlds[0].clocks.known.shape[2]

    def is_near(self, ctas: np.ndarray) -> np.ndarray:
        """Whether accesses by `ctas` (CTA + 1) come from the accessor's own cluster."""
        if self.m.sim.ranks == 1:
            return ctas == self.ids
        return (ctas > 0) & (self.m.sim.cluster_of[ctas] == self.clusters)

    @property
    def clusters(self) -> np.ndarray:
        """The accessor's clusters + 1, or MANY."""
        return np.where(self.ids > 0, self.m.sim.cluster_of[self.ids], self.ids)

    def single_clock(self) -> Clocks | None:
        """The clocks, if the kernel has one atom and one CTA in a cluster, and all CTAs of the machine know the same of
        each other's threads."""
        m = self.m
        one = m.sim.ranks == 1 and len(m.sim.atom_start) == 1 and len(m.peek()) == 1
        return m.peek()[0][0].clocks if one else None

    def epochs(self, atoms: np.ndarray) -> np.ndarray:
        """The current epoch of each of `atoms`, broadcastable to the cells."""
        now, world = self.by_world(self.ids, lambda clocks: clocks.now[self.m.rank], 0)
        return now[world, atoms]

    def is_ordered(self, where: tuple, shape: tuple, plane: int, columns, epochs: np.ndarray) -> np.ndarray:
        """Whether the earlier accesses (column, epoch) to the cells `where` are known to happen before."""
        ids = np.broadcast_to(self.ids, shape)[where]
        mine = None if self.kind else np.broadcast_to(self.atoms(), shape)[where]
        known, world = self.by_world(ids, lambda clocks: clocks.known[self.m.rank, :, plane], -1)
        columns = np.broadcast_to(columns, epochs.shape)
        if mine is not None:
            return known[world, mine, columns] >= epochs
        return (known[world, self.atoms()[:, None], columns] >= epochs).all(axis=0)

    def find_unknown(self, where: tuple, shape: tuple, marks: Marks, view,
                     notes: Callable[[int], Iterable[Note]] | None = None) -> np.ndarray:
        """Of the accesses `marks` to the cells `where`, those that the accessor does not know of by atomics and fences:
        by `notes` of `GlobalClocks`, by default what its threads know."""
        columns, epochs, theirs = (view(a)[where] for a in (marks.column, marks.epoch, marks.cta))
        return self.find_unheard(where, shape, theirs, columns, epochs, notes)

    def find_unheard(self, where: tuple, shape: tuple, theirs: np.ndarray, columns: np.ndarray, epochs: np.ndarray,
                     notes: Callable[[int], Iterable[Note]] | None = None) -> np.ndarray:
        """`find_unknown` of accesses (column, epoch) by the CTAs `theirs` (+ 1)."""
        clocks = self.m.sim.global_clocks
        if clocks is None:
            return np.ones(len(theirs), bool)
        return clocks.find_unknown(notes or clocks.known_by, np.broadcast_to(self.ids, shape)[where], theirs, columns,
                                   epochs, lambda note, some: self._has_met(note, tuple(w[some] for w in where), shape))

    def _has_met(self, note: Note, where: tuple, shape: tuple) -> np.ndarray:
        """Whether the threads that access the cells `where` know a note of their cluster."""
        ids = np.broadcast_to(self.ids, shape)[where]
        met, world = self.by_world(ids, lambda clocks: note.is_known(clocks, self.m.rank), False)
        if self.kind == EVERY:
            return np.broadcast_to(np.asarray(met[:, self.m.atoms].all(axis=1))[world], ids.shape)
        atoms = self.m.atoms[0] if self.kind else np.broadcast_to(self.atoms(), shape)[where]
        return np.broadcast_to(met[world, atoms], ids.shape)

    def by_world(self, ids: np.ndarray, of: Callable[[Clocks], Any],
                 nobody: int) -> tuple[np.ndarray, np.ndarray | int]:
        """What `of` returns for the clocks of each world of the machine's CTAs, stacked; and for each of `ids` the
        index of its world. An id without a world (MANY) gets an entry filled with `nobody`."""
        worlds = self.m.peek()
        found = [of(world.clocks) for world, _ in worlds]
        if len(worlds) == 1:
            return found[0][None], 0
        number = np.zeros(int(self.m.ctas.max()) + 3, np.int64)  # indexed by CTA + 1; the last entry is for MANY
        for n, (_, positions) in enumerate(worlds):
            number[self.m.ctas[positions] + 1] = n + 1
        return np.stack([np.full_like(found[0], nobody), *found]), number[ids]


def _of_rank(epochs: np.ndarray | None, who: Accessor) -> np.ndarray:
    """The epochs of the atoms of the accessor's CTA, of a kind of fences that the kernel has."""
    assert epochs is not None
    return epochs[who.m.rank]


class ThreadShadow:
    """What the threads of each cluster have done to the cells of one allocation."""

    def __init__(self, cells: int):
        self.cells = cells
        self.writes: Marks | None = None
        # since the last ordinary write: they need a fence before a copy, and no order among each other
        self.atomics: Marks | None = None
        self.levels = np.zeros(0, np.int8)  # the scopes of those
        self.reads: dict[int, Marks] = {}  # column of the reading atom -> its last read
        # Where clusters synchronise, up to SLOTS for each cell since the last ordinary write: reads that later ones by
        # other clusters replaced in `reads`, and ordered loads.
        self.more: list[Marks] = []
        self.polled: list[Marks] = []
        self.counted: list[Marks] = []  # the same of atomics

    def marks_for_loop(self, who: Accessor, writing: bool) -> tuple[tuple, ...] | None:
        """For an access by `who`, what `element_loops.mark_thread_writes` takes: the arrays of writes and of reads, and
        its arguments `now` and `known`. None where that takes more than one epoch, or proxy fences count."""
        clocks = who.single_clock() if not who.kind and who.planes <= SETTLED and self.atomics is None else None
        if clocks is None:
            return None
        column = int(clocks.column(0, 0))
        if writing and self.writes is None:
            self.writes = Marks(self.cells)
        if not writing and column not in self.reads:
            self.reads[column] = Marks(self.cells)
        writes, reads = (m.arrays for m in (self.writes or NO_MARKS, self.reads.get(column, NO_MARKS)))
        now = np.int32(clocks.now[0, 0]), np.int32(column), np.int32(who.m.line)
        ordered, seen = (np.int32(clocks.known[0, 0, plane, column]) for plane in (ORDER, READ))
        return writes, reads, now, (ordered, seen, np.int16(NOBODY))

    def loads(self) -> list[Marks]:
        """The ordinary reads."""
        return [*self.reads.values(), *self.more]

    def find_unordered(self, view, who: Accessor, marks: Marks | None, bad: np.ndarray) -> np.ndarray:
        """Of the cells `bad`, where other CTAs made the accesses `marks`, those that neither a barrier of the cluster
        nor a release and an acquire orders before an access by `who`."""
        assert marks is not None  # that of `bad` at least
        where, shape = np.nonzero(bad), bad.shape
        late = who.find_unknown(where, shape, marks, view)
        near = np.asarray(np.broadcast_to(who.is_near(view(marks.cta)), shape)[where] & late)
        if near.any() and who.m.sim.ranks > 1:
            cells = tuple(w[near] for w in where)
            late[near] = ~who.is_ordered(cells, shape, ORDER, view(marks.column)[cells], view(marks.epoch)[cells])
        bad = bad.copy()
        bad[where] = late
        return bad

    def read(self, view, who: Accessor, atomic: bool = False) -> Clash | None:
        """Returns the first cell that another thread of the CTA wrote without order. With `atomic`,
        the read is recorded for other clusters only."""
        found = self.late_write(view, who)
        if not atomic and who.kind != NOBODY:
            self._remember_read(view, who)
        elif who.m.sim.global_clocks is not None:
            self._remember_for_others(view, who, self.polled if atomic else self.more)
        return found

    def late_write(self, view, who: Accessor) -> Clash | None:
        """The first cell that another thread of the CTA wrote without order."""
        return self._find_clash(view, who, self.writes, ORDER, "written", here=True)

    def late_read(self, view, who: Accessor) -> Clash | None:
        """The first cell that another thread of the cluster read without order."""
        found = None
        for marks in self.reads.values():
            found = found or self._find_clash(view, who, marks, READ, "read", here=False)
        return found

    def find_unfenced(self, view, who: Accessor) -> tuple[Marks, np.ndarray] | None:
        """The marks of writes or atomics, and where: threads of the cluster wrote cells, and no proxy fence of global
        memory makes that visible to a copy that `who` issues."""
        for marks in (self.writes, self.atomics):
            if marks is not None and (bad := self._unfenced_cells(view, who, marks)).any():
                return marks, bad
        return None

    def _unfenced_cells(self, view, who: Accessor, marks: Marks) -> np.ndarray:
        cta, thread = view(marks.cta), view(marks.thread)
        bad = who.is_near(cta) & (cta > 0) & (thread != NOBODY)
        where = np.nonzero(bad)
        if len(where[0]) and who.planes > GLOBAL:
            columns, epochs = view(marks.column)[where], view(marks.epoch)[where]
            fenced = who.is_ordered(where, bad.shape, GLOBAL, columns, epochs)
            fences, world = who.by_world(np.broadcast_to(who.ids, bad.shape)[where],
                                         lambda clocks: _of_rank(clocks.fenced_global, who), 0)
            own = (np.broadcast_to(cta == who.ids, bad.shape) & (thread == who.threads))[where]
            fenced |= own & (fences[world, np.broadcast_to(who.atoms(), bad.shape)[where]] >= epochs)
            bad[where] = ~fenced
        return bad

    def find_unsettled(self, view, who: Accessor) -> tuple[Marks, np.ndarray] | None:
        """The marks of an atom that has loaded cells, and where: no proxy fence in its threads followed the load
        before a copy that `who` issues. Of the loads of other clusters, those count that no such fence has followed
        yet."""
        if who.planes <= SETTLED:
            return None
        for marks in self.reads.values():
            cta = view(marks.cta)
            bad, near = cta > 0, who.is_near(cta)
            if not bad.any():
                continue
            where = np.nonzero(bad & near)
            if len(where[0]):
                columns, epochs = view(marks.column)[where], view(marks.epoch)[where]
                settled = who.is_ordered(where, bad.shape, SETTLED, columns, epochs)
                ids = np.broadcast_to(who.ids, bad.shape)[where]
                fences, world = who.by_world(ids, lambda clocks: _of_rank(clocks.settled, who), 0)
                atoms = np.broadcast_to(who.atoms(), bad.shape)[where]
                own = columns == who.m.sim.worlds[0].clocks.column(who.m.rank, atoms)
                bad[where] = ~(settled | own & (fences[world, atoms] >= epochs))
            far = np.nonzero(bad & ~near)
            if len(far[0]):
                bad[far] = view(marks.epoch)[far] > who.m.sim.settled_epochs(view(marks.cta)[far],
                                                                             view(marks.column)[far])
            if bad.any():
                return marks, bad
        return None

    def line(self, view, at: tuple, cta: int, reads: bool) -> int:
        """The line of the last write, or of a read, of the cell `at` by a CTA (+ 1); -1 if that is not known."""
        written = [] if self.writes is None else [self.writes]
        marks = self.reads.values() if reads else written
        return next((int(view(m.line)[at]) for m in marks if view(m.cta)[at] == cta), -1)

    def write(self, view, who: Accessor, level: int | None = None) -> Clash | None:
        """As `read`, for a write, which also conflicts with reads by threads of the cluster. For an atomic of the scope
        `level`, it is recorded for copies and other CTAs only."""
        found = self.late_write(view, who) or self.late_read(view, who)
        if self.writes is None:
            self.writes = Marks(self.cells)
        if level is not None:
            view.assign(self.writes.cta, 0)
            if self.atomics is None:
                self.atomics, self.levels = Marks(self.cells), np.zeros(self.cells, np.int8)
            self._keep_others(view, who, self.atomics, None, self.counted)
            view.assign(self.levels, level)
            self._set(view, self.atomics, who, who.atoms()[:1] if who.kind else who.atoms(), None)
            return found
        for marks in (*([] if self.atomics is None else [self.atomics]), *self.more, *self.polled, *self.counted):
            view.assign(marks.cta, 0)
        if who.planes > SETTLED and who.kind != NOBODY:
            for marks in self.reads.values():  # what comes after this write also comes after the loads before it
                view.assign(marks.cta, 0)
        atoms = who.atoms()[:1] if who.kind else who.atoms()
        self._set(view, self.writes, who, atoms, None)
        return found

    def _find_clash(self, view, who: Accessor, marks: Marks | None, plane: int, earlier: str,
                    here: bool) -> Clash | None:
        if marks is None or who.kind == NOBODY:
            return None
        cta, thread = view(marks.cta), view(marks.thread)
        bad = (cta == who.ids if here else who.is_near(cta)) & (thread != NOBODY)
        if not who.kind:
            bad &= (thread != who.threads) | (cta != who.ids)
        if not bad.any():
            return None
        where = np.nonzero(bad)
        columns = view(marks.column)[where]
        late = ~who.is_ordered(where, bad.shape, plane, columns, view(marks.epoch)[where])
        if late.any():
            late &= who.find_unknown(where, bad.shape, marks, view)
        if not late.any():
            return None
        at = tuple(w[int(np.argmax(late))] for w in where)
        accessing = int(np.broadcast_to(who.threads, bad.shape)[at])
        return Clash((accessing, int(thread[at])), (int(np.broadcast_to(who.ids, bad.shape)[at]) - 1, int(cta[at]) - 1),
                     int(view(marks.line)[at]), earlier)

    def _remember_read(self, view, who: Accessor) -> None:
        atoms = who.atoms()
        for atom in np.unique(atoms):
            column = who.m.sim.worlds[0].clocks.column(who.m.rank, int(atom))
            marks = self.reads.get(column)
            if marks is None:
                marks = self.reads[column] = Marks(self.cells)
            mine = None if who.kind or atoms.min() == atoms.max() else atoms == atom
            self._set(view, marks, who, np.asarray(atom), mine)

    def _set(self, view, marks: Marks, who: Accessor, atoms: np.ndarray, mine: np.ndarray | None) -> None:
        """Mark the cells, or those where the mask `mine` is true. If several threads access a cell at once, or have
        read it since their last barrier, it is marked as accessed by EVERY thread."""
        clocks = who.m.sim.worlds[0].clocks
        cta = view(marks.cta)
        threads = who.threads
        loads = who.m.sim.global_clocks is not None and any(marks is m for m in self.reads.values())
        if loads:
            self._keep_others(view, who, marks, mine, self.more)
        if marks not in (self.writes, self.atomics) and not who.kind:
            again = (cta == who.ids) & (view(marks.thread) != threads)
            if again.any():
                where = np.nonzero(again)
                again[where] = ~who.is_ordered(where, again.shape, READ, view(marks.column)[where],
                                               view(marks.epoch)[where])
                threads = np.where(again, EVERY, threads)
        new = {"cta": who.ids, "thread": threads, "column": clocks.column(who.m.rank, atoms),
               "epoch": who.epochs(atoms), "line": who.m.line}
        for name, value in new.items():
            view.assign(getattr(marks, name), value, mine)
        if (loads or marks is self.atomics) and view.repeats:  # several CTAs access a cell at once
            others = view(marks.cta) != who.ids
            self._keep(self.more if loads else self.counted, view, new, others if mine is None else others & mine)
        if threads.ndim and view.repeats:
            others = (view(marks.cta) == who.ids) & (view(marks.thread) != threads)
            if mine is not None:
                others &= mine
            if others.any():
                view.assign(marks.thread, EVERY, others)

    def _keep_others(self, view, who: Accessor, marks: Marks, mine: np.ndarray | None, slots: list[Marks]) -> None:
        """Keep the accesses by other clusters that one by `who` is about to replace, where it is not ordered after
        them."""
        lost = (view(marks.cta) > 0) & (view(marks.cta) != who.ids) & ~who.is_near(view(marks.cta))
        if mine is not None:
            lost &= mine
        if lost.any():
            where = np.nonzero(lost)
            lost[where] = who.find_unknown(where, lost.shape, marks, view)
            names = ("cta", "thread", "column", "epoch", "line")
            self._keep(slots, view, {name: np.array(view(getattr(marks, name))) for name in names}, lost)

    def _remember_for_others(self, view, who: Accessor, slots: list[Marks]) -> None:
        atoms = who.atoms()[:1] if who.kind else who.atoms()
        new = {"cta": who.ids, "thread": who.threads, "column": who.m.sim.worlds[0].clocks.column(who.m.rank, atoms),
               "epoch": who.epochs(atoms), "line": who.m.line}
        if not slots:
            slots.append(Marks(self.cells))
        self._keep(slots, view, new, np.ones(view(slots[0].cta).shape, bool))

    def _keep(self, slots: list[Marks], view, new: dict[str, Any], lost: np.ndarray) -> None:
        """Put the accesses `new`, where `lost`, into slots that are free or have an earlier one by the same atom."""
        for n in range(SLOTS):
            if not lost.any():
                return
            if n == len(slots):
                slots.append(Marks(self.cells))
            slot = slots[n]
            alike = (view(slot.cta) == new["cta"]) & (view(slot.column) == new["column"])
            free = lost & ((view(slot.cta) == 0) | alike)
            for name, value in new.items():
                view.assign(getattr(slot, name), value, free)
            lost = lost & ((view(slot.cta) != new["cta"]) | (view(slot.column) != new["column"]))
