"""Races between CTAs on global memory: for each element, which CTA wrote it last and which CTA has read it since."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from ..errors import Loc
from . import element_loops as loops
from .compile_loops import as_loops_take_it, compiled
from .global_flight import LOAD, STORE, GlobalFlight, Unfenced
from .global_threads import EVERY, NOBODY, Accessor, Index, ThreadShadow, find_unknown

MANY = -1    # several CTAs (as readers), or atomics of any CTA (as writers)


# seconds that NumPy takes to check and mark an access to a cell by index, to store there as well, and where threads
# are tracked
MARKED, STORED, TRACKED = 4e-8, 6e-8, 1e-7

SOME = 16    # how many acquisitions by some threads of a CTA are kept apart


class Some(NamedTuple):
    """Part of the threads of a CTA, which synchronise without the others: its `atoms`. Threads of the cluster that
    know `epoch` of `column` have synchronised with them since."""

    atoms: frozenset[int]
    column: int
    epoch: int


Acquired = list[tuple[Some | None, np.ndarray]]  # what some threads of a CTA (None: all) have acquired: clocks
# of a synchronisation: each CTA of the cluster, and which of its threads take part (None: all)
Near = dict[int, Some | None]


class GlobalClocks:
    """What each CTA knows about the others through atomics and ordered accesses:
    the epoch up to which their accesses precede its own.

    An access is tagged with the epoch of its CTA, which every release and every fence ends. The clocks are created at
    the first synchronising access. A relaxed access releases what an earlier fence covered, and what it acquires
    takes effect at the next fence (PTX ISA, "Release and Acquire Patterns").
    """

    def __init__(self, ctas: int):
        self.ctas = ctas
        self.now = np.ones(ctas, np.int32)
        self.rows: dict[int, np.ndarray] = {}        # CTA -> what all its threads know: an epoch for every CTA
        self.fenced: dict[int, np.ndarray] = {}      # CTA -> the clock of its last fence, released by relaxed writes
        self.pending: dict[int, Acquired] = {}       # CTA -> what its relaxed reads acquire at the next fence
        self.learnt: dict[int, Acquired] = {}        # CTA -> what only some of its threads have acquired
        self.opened = np.ones(ctas, np.int32)        # the first epoch of each CTA that no write has released yet
        # CTA -> what its copy engines see, by its proxy fences
        self.viewed: dict[int, list[tuple[Some | None, np.ndarray]]] = {}
        # (memory, element, cluster or None for the grid) -> the clock released there
        self.released: dict[tuple, np.ndarray] = {}

    def _raise(self, table: dict, key, clock: np.ndarray) -> None:
        table[key] = np.maximum(table[key], clock) if key in table else clock.copy()

    @staticmethod
    def _note(found: Acquired, some: Some | None, clock: np.ndarray) -> None:
        """Record what some threads (None: all) have acquired. Beyond SOME acquisitions, the two oldest are merged into
        one."""
        def atoms(s):
            return s and s.atoms
        if not found or atoms(found[-1][0]) != atoms(some) or (clock > found[-1][1]).any():
            found.append((some, clock.copy()))
        if len(found) > SOME:
            (first, known), (_, more) = found[:2]
            found[:2] = [(first, np.maximum(known, more))]

    def _clock_to_release(self, cta: int, near: Near) -> np.ndarray:
        """The clock that a CTA releases: what it knows, and what all CTAs of `near` have done.
        Their next epoch begins."""
        clock = self.rows.get(cta, np.zeros(self.ctas, np.int32)).copy()
        for _, learnt in self.learnt.get(cta, ()):
            np.maximum(clock, learnt, out=clock)
        return self._join_clocks(clock, near)

    def _join_clocks(self, clock: np.ndarray, near: Near) -> np.ndarray:
        """The clock with all that the CTAs of `near` have done. Their next epoch begins."""
        for other in near:
            clock[other] = self.now[other]
            self.now[other] += 1
        return clock

    def _learn(self, clock: np.ndarray, near: Near) -> None:
        """Let the CTAs of a cluster, or some of their threads, acquire `clock`."""
        for cta, some in near.items():
            if some is None:
                self._raise(self.rows, cta, clock)
            else:
                self._note(self.learnt.setdefault(cta, []), some, clock)

    def known_clocks(self, cta: int) -> list[tuple[Some | None, np.ndarray]]:
        """What a CTA knows, and which of its threads know it (None: all)."""
        rows = self.rows.get(cta)
        return [*([] if rows is None else [(None, rows)]), *self.learnt.get(cta, ())]

    def views(self, cta: int) -> list[tuple[Some | None, np.ndarray]]:
        """What a CTA's copy engines see of others' accesses, for copies of threads that `known_clocks` names."""
        return self.viewed.get(cta, [])

    def proxy_fence(self, cta: int, some: Some | None) -> None:
        """A proxy fence of global memory by threads of a CTA: copy engines now see what these know."""
        known = [clock for _, clock in self.known_clocks(cta)]
        if known:
            views = self.viewed.setdefault(cta, [])
            views.append((some, np.maximum.reduce(known)))
            del views[:len(views) - 1 if some is None else len(views) - SOME]

    def meet(self, cta: int, cluster: int, places: Iterable[tuple], order: str | None, reads: bool, writes: bool,
             of_grid: bool, near: Near) -> None:
        """Synchronise at the elements that threads of a CTA read, write or both in one access. `order` is 'acquire',
        'release', 'acq_rel' or None (relaxed). Two accesses synchronise if the scope of each includes the other: the
        grid (`of_grid`), or the CTA's own cluster."""
        keys = [(*place, who) for place in places for who in ((cluster, None) if of_grid else (cluster,))]
        for key in keys:
            if reads and key in self.released and order in ("acquire", "acq_rel"):
                self._learn(self.released[key], near)
            elif reads and key in self.released:
                self._note(self.pending.setdefault(cta, []), near[cta], self.released[key])
        if not writes:
            return
        if order in ("release", "acq_rel") or cta in self.fenced:
            if order is not None:
                clock = self._clock_to_release(cta, near)
            else:
                clock = self._join_clocks(self.fenced[cta].copy(), near)
            for key in keys:
                self._raise(self.released, key, clock)
            for other in near:
                self.opened[other] = max(self.opened[other], clock[other] + 1)

    def fence(self, cta: int, near: Near) -> None:
        """``fence.acq_rel`` at GPU scope, by threads of a CTA. What a relaxed read has returned before, its threads and
        those that have met them since acquire."""
        for reader, clock in self.pending.pop(cta, ()):
            fencing = near[cta]
            within = reader is None or fencing is not None and fencing.atoms <= reader.atoms
            self._learn(clock, {**near, cta: fencing if within else reader})
        self.fenced[cta] = self._clock_to_release(cta, near)


class GlobalShadow:
    """The shadow of one allocation of global memory, in cells of `granule` bytes. Arguments that overlap share one."""

    def __init__(self, address: int, nbytes: int, granule: int, contended: bool = False):
        self.address, self.granule = address, granule
        self.cells = -(-nbytes // granule)
        self.threads = ThreadShadow(self.cells) if contended else None  # if threads of one cluster may race
        self.flight: GlobalFlight | None = None  # once asynchronous copies access it, if threads are tracked
        self.writer: np.ndarray | None = None  # CTA + 1 of the last write
        self.reader: np.ndarray | None = None  # CTA + 1 of the reader (see `_readers`), or MANY
        self.epoch: np.ndarray | None = None   # the writer's epoch, once there are clocks

    def of_threads(self) -> ThreadShadow:
        """The shadow of threads, where these are tracked."""
        assert self.threads is not None
        return self.threads

    def _arrays(self, clocks: GlobalClocks | None) -> np.ndarray:
        """Make the arrays of writers and, with clocks, of epochs, if there are none yet. Returns the writers."""
        if self.writer is None:
            self.writer = np.zeros(self.cells, np.int32)
        if clocks is not None and self.epoch is None:
            self.epoch = np.ones(self.cells, np.int32)
        return self.writer

    def read(self, view, ids: np.ndarray, clocks: GlobalClocks | None, overlapping: bool, who: Accessor | None = None):
        """CTAs `ids` (id + 1, broadcastable) read the cells that `view(array)` selects. Returns the first
        conflict, or None."""
        found = None
        if who is None and clocks is None and self._mark_by_loop(loops.mark_reads, view, ids, MANY):
            return None
        if who is not None and clocks is None and self._mark_threads(loops.mark_thread_reads, view, who):
            return None
        if self.writer is not None:
            found = self._conflict(view, ids, clocks, view(self.writer), who)
        if who is not None:
            found = self._in_flight(view, who, clocks, "read") or self.of_threads().read(view, who) or found
            ids = _readers(who)
        self._mark_readers(view, ids, overlapping)
        return found

    def _mark_readers(self, view, ids: np.ndarray, overlapping: bool) -> None:
        old = view(self._readers_array())
        new = np.where((old == 0) | (old == ids), ids, MANY)
        view.assign(self.reader, new)
        if overlapping:
            lost = view(self.reader) != new
            if lost.any():
                view.assign(self.reader, MANY, lost)

    def write(self, view, ids: np.ndarray, clocks: GlobalClocks | None, overlapping: bool, who: Accessor | None = None):
        """As `read`, for a write. Two CTAs of one batch that write the same cell conflict too."""
        found = None
        if who is None and clocks is None:
            marked = self._mark_by_loop(loops.mark_writes, view, ids)
            if marked:
                return None if marked == 1 else self.written_together(view, ids)
        if who is not None and clocks is None:
            marked = self._mark_threads(loops.mark_thread_writes, view, who)
            if marked:
                return None if marked == 1 else self.written_together(view, ids)
        if self.writer is not None:
            found = self._conflict(view, ids, clocks, view(self.writer), who)
        if self.reader is not None and found is None:
            found = self._read_before(view, ids, clocks, who)
        if who is not None:
            found = self._in_flight(view, who, clocks, "write") or self.of_threads().write(view, who) or found
            if self.flight is not None:
                self.flight.forget(view)
        self._arrays(clocks)
        view.assign(self.writer, ids)
        if self.epoch is not None:
            assert clocks is not None  # as at the access that made the epochs
            view.assign(self.epoch, clocks.now[ids - 1])
        return self.written_together(view, ids) if overlapping and found is None else found

    def written_together(self, view, ids: np.ndarray) -> tuple | None:
        """The first cell that several of `ids` have just written."""
        now = view(self.writer)
        clash = now != ids
        if not clash.any():
            return None
        at = np.argmax(clash)
        return "write", int(now.flat[at]) - 1, int(np.broadcast_to(ids, now.shape).flat[at]) - 1, -1

    def _mark_by_loop(self, loop: Callable[..., int], view, ids: np.ndarray, *more: int) -> int:
        """Mark an access to cells by index by a compiled loop. Returns 0 if that is left to NumPy, because few cells
        are accessed or one of them conflicts."""
        if not isinstance(view, Index):
            return 0
        mark = compiled(loop, view.index.size * MARKED)
        if mark is None:
            return 0
        none = np.empty(0, np.int32)
        if loop is loops.mark_writes:
            writer, reader = self._arrays(None), none if self.reader is None else self.reader
        else:
            writer, reader = none if self.writer is None else self.writer, self._readers_array()
        cells, ids = (as_loops_take_it(x.reshape(-1)) for x in (view.index, np.broadcast_to(ids, view.index.shape)))
        return int(mark(writer, reader, cells, ids, *more))

    def _mark_threads(self, loop: Callable[..., int], view, who: Accessor) -> int:
        """`_mark_by_loop` where threads are tracked."""
        if not isinstance(view, Index) or self.flight is not None:
            return 0
        run, writing = compiled(loop, view.index.size * TRACKED), loop is loops.mark_thread_writes
        first = self.of_threads().writes is None and not self.of_threads().reads
        found = None if run is None else self.of_threads().marks_for_loop(who, writing)
        if run is None or found is None:
            return 0
        writes, reads, now, known = found
        access = tuple(as_loops_take_it(np.broadcast_to(x, view.index.shape).reshape(-1))
                       for x in (view.index, who.ids, who.threads.astype(np.int16)))
        none = np.empty(0, np.int32)
        if writing:
            reader = none if self.reader is None else self.reader
            return int(run((self._arrays(None), reader, writes, reads), access, now, known, np.int16(EVERY)))
        writer, first = none if self.writer is None else self.writer, first and self.writer is None
        by = access[2] if first else np.empty_like(access[2])
        return int(run((writer, self._readers_array(), writes, reads), access, now, known,
                       (np.int16(EVERY), np.int32(MANY)), by, first))

    def store(self, memory: np.ndarray, index: np.ndarray, values: np.ndarray, base: int, ids: np.ndarray) -> int:
        """Store unsigned `values` at the elements `index` of a memory by a compiled loop, on behalf of the CTAs `ids`,
        and mark the cells, which follow `base`. Returns what `element_loops.store_marked` does; 0 if all is left to
        NumPy."""
        run = compiled(loops.store_marked, index.size * STORED)
        if run is None:
            return 0
        first, reader = self.writer is None and self.reader is None, self.reader
        reader = np.empty(0, np.int32) if reader is None else reader
        index, values, ids = (as_loops_take_it(np.broadcast_to(x, index.shape).reshape(-1))
                              for x in (index, values, ids))
        return int(run(memory, index, values, base, self._arrays(None), reader, ids, first))

    def _readers_array(self) -> np.ndarray:
        if self.reader is None:
            self.reader = np.zeros(self.cells, np.int32)
        return self.reader

    def atomic(self, cells: np.ndarray, ids: np.ndarray, clocks: GlobalClocks | None, who: Accessor | None = None):
        """As `read`, for atomics. They conflict with ordinary accesses by other CTAs, but not with each other."""
        found = None if self.writer is None else self._conflict(Index(cells), ids, clocks, self.writer[cells], who)
        if who is not None:
            found = (self._in_flight(Index(cells), who, clocks, "atomic")
                     or self.of_threads().write(Index(cells), who, atomic=True) or found)
        self._arrays(clocks)[cells] = MANY
        if self.epoch is not None:
            assert clocks is not None  # as at the access that made the epochs
            self.epoch[cells] = clocks.now[ids - 1]
        return found

    def atomic_read(self, cells: np.ndarray, ids: np.ndarray, clocks: GlobalClocks | None, who: Accessor | None = None):
        """As `read`, for ordered loads. They conflict with earlier and later ordinary writes by other CTAs,
        but not with atomics."""
        view = Index(cells)
        found = None if self.writer is None else self._conflict(view, ids, clocks, self.writer[cells], who)
        if who is not None:
            found = (self._in_flight(view, who, clocks, "atomic read") or self.of_threads().read(view, who, atomic=True)
                     or found)
            ids = _readers(who)
        self._mark_readers(view, ids, overlapping=True)
        return found

    def _in_flight(self, view, who: Accessor, clocks: GlobalClocks | None, kind: str | int):
        return None if self.flight is None else self.flight.conflict(view, who, clocks, kind)

    def issue(self, side: int, cells: np.ndarray, clocks: GlobalClocks | None, who: Accessor, proxy: bool):
        """Threads `who` issue an asynchronous access of the kind `side` to cells, one of each `who.ids`. Returns the
        first conflict with an earlier access; with `proxy`, also a missing proxy fence after it. The caller puts the
        access in flight (`GlobalFlight.begin`)."""
        view, ids = Index(cells), who.ids
        if self.flight is None:
            self.flight = GlobalFlight(self.cells)
        found: Any = self.flight.conflict(view, who, clocks, side if proxy else "read")
        if self.writer is not None:
            found = found or self._conflict(view, ids, clocks, view(self.writer), who)
        found = found or self.of_threads().late_write(view, who)
        if side == LOAD:
            self._mark_readers(view, _readers(who), overlapping=True)
        else:
            if self.reader is not None:
                found = found or self._read_before(view, ids, clocks, who)
            found = found or self.of_threads().late_read(view, who)
        if proxy:
            found = found or self._find_unfenced_write(view, who, clocks)
        if side != LOAD:
            found = found or self._find_unsettled_load(view, who)
        if side == STORE:
            self._arrays(clocks)[cells] = 0
            threads = self.of_threads()
            for marks in (threads.writes, threads.atomics):
                if marks is not None:
                    marks.cta[cells] = 0
        return found

    def _find_unfenced_write(self, view, who: Accessor, clocks: GlobalClocks | None) -> Unfenced | None:
        """The first cell that a thread wrote, before the access by a copy engine, without a proxy fence in between:
        anywhere between them within a cluster, and otherwise in the CTA of the copy."""
        threads = self.of_threads()
        near = threads.find_unfenced(view, who)
        if near is not None:
            marks, bad = near
            at = tuple(w[0] for w in np.nonzero(bad))
            def pick(array):
                return int(np.broadcast_to(array, bad.shape)[at])
            found = Unfenced(view.cell(at), (pick(who.ids) - 1, pick(view(marks.cta)) - 1), pick(view(marks.thread)),
                             pick(view(marks.line)))
            view.assign(marks.cta, 0, bad)
            return found
        atomics = None if threads.atomics is None else threads.atomics.cta
        for writers in (self.writer, atomics):
            if writers is None or clocks is None:
                continue
            writer = view(writers)
            bad = (writer > 0) & (writer != who.ids) & ~who.is_near(writer)
            if bad.any():
                epoch = view(self.epoch) if self.epoch is not None else np.ones(writer.shape, np.int32)
                bad = self._unordered_marks(bad, writer, who.ids, clocks.views, epoch, who)
            if bad.any():
                at = tuple(w[0] for w in np.nonzero(bad))
                ctas = int(np.broadcast_to(who.ids, bad.shape)[at]) - 1, int(writer[at]) - 1
                found = Unfenced(view.cell(at), ctas, *threads.mark(view, at))
                view.assign(writers, 0, bad)
                return found
        return None

    def _find_unsettled_load(self, view, who: Accessor) -> Unfenced | None:
        """The first cell that a thread loaded, before a copy engine overwrites it, without a proxy fence in that
        thread since."""
        found = self.of_threads().find_unsettled(view, who)
        if found is None:
            return None
        marks, bad = found
        at = tuple(w[0] for w in np.nonzero(bad))
        def pick(array):
            return int(np.broadcast_to(array, bad.shape)[at])
        ctas = pick(who.ids) - 1, pick(view(marks.cta)) - 1
        result = Unfenced(view.cell(at), ctas, pick(view(marks.thread)), pick(view(marks.line)), reads=True)
        view.assign(marks.cta, 0, bad)  # so that it is reported once
        return result

    def hold_back(self, cta: int, cover: np.ndarray, clocks: GlobalClocks, fenced: np.ndarray | None,
                  own: tuple[int, int, int] | None) -> None:
        """Move writes of a CTA that a coming publication does not include to the next epoch: those since its last one
        that do not lie within `cover` (epoch by column), nor, for `own` (thread, its column, epoch), are by that
        thread up to that epoch. Copies are included unless they come after the fence with the clock `fenced`."""
        if self.flight is not None:
            self.flight.hold_back(cta, cover, clocks, own)
        marks = self.of_threads().writes
        if self.writer is None or marks is None:
            return
        self._arrays(clocks)
        epoch = self.epoch
        assert epoch is not None  # made with clocks
        cells = np.flatnonzero(self.writer == cta + 1)
        cells = cells[(epoch[cells] >= clocks.opened[cta]) & (marks.cta[cells] == cta + 1)]
        late, threads = cover[marks.column[cells]] < marks.epoch[cells], marks.thread[cells]
        if own is not None:
            late &= ((threads != own[0]) & (threads != EVERY)) | (marks.epoch[cells] > own[2])
        copied = False if fenced is None else epoch[cells] > fenced[cta]
        epoch[cells[np.where(threads == NOBODY, copied, late)]] = clocks.now[cta] + 1

    def last_copy(self, cell: int) -> tuple[Loc | None, int] | None:
        """Where and by which CTA the asynchronous copy was issued that wrote a cell last; None if the last
        write was no such copy."""
        copied = None if self.flight is None else self.flight.last_store(cell)
        return copied if self.writer is not None and self.writer[cell] == 0 else None  # else an atomic came after it

    def _conflict(self, view, ids, clocks, writer, who):
        bad = (writer > 0) & (writer != ids)
        if not bad.any():
            return None
        if clocks is not None:
            epoch = view(self.epoch) if self.epoch is not None else np.ones(writer.shape, np.int32)
            bad = self._unordered_marks(bad, writer, ids, clocks.known_clocks, epoch, who)
        if who is not None and who.m.sim.ranks > 1 and bad.any():
            bad = self.threads.unordered_write(view, who, bad)
        if not bad.any():
            return None
        at = int(np.argmax(bad))
        me, them = int(np.broadcast_to(ids, writer.shape).flat[at]), int(writer.flat[at])
        return "write", them - 1, me - 1, self._line(view, bad, at, them)

    def _read_before(self, view, ids, clocks, who):
        reader = view(self.reader)
        if who is not None:
            ids = _readers(who)
            if clocks is not None and who.m.sim.ranks > 1:
                return None  # only the readers' clusters are recorded here, not their CTAs
        bad = (reader != 0) & (reader != ids)
        if clocks is not None:
            bad &= reader > 0
            if bad.any():  # the reader's epoch is not recorded: any release by it counts
                bad = self._unordered_marks(bad, reader, ids, clocks.known_clocks, np.ones(reader.shape, np.int32), who)
        if not bad.any():
            return None
        at = int(np.argmax(bad))
        other = int(reader.flat[at]) if who is None or who.m.sim.ranks == 1 else MANY
        line = self._line(view, bad, at, other, reads=True) if other > 0 else -1
        return "read", other - 1 if other > 0 else None, int(np.broadcast_to(ids, reader.shape).flat[at]) - 1, line

    def _line(self, view, bad: np.ndarray, at: int, cta: int, reads: bool = False) -> int:
        """The line of the last write, or read, by a CTA (+ 1) of a cell; -1 if that is not known."""
        return -1 if self.threads is None else self.threads.line(view, np.unravel_index(at, bad.shape), cta, reads)

    @staticmethod
    def _unordered_marks(bad, other, ids, known, epoch, who):
        bad = bad.copy()
        where = np.nonzero(bad)
        me = np.broadcast_to(ids, bad.shape)[where] - 1
        bad[where] = find_unknown(known, me, other[where] - 1, epoch[where], who, where, bad.shape)
        return bad


def _readers(who: Accessor) -> np.ndarray:
    """The ids by which reads are marked: where threads are tracked and clusters have several CTAs,
    those of the clusters."""
    return who.ids if who.m.sim.ranks == 1 else who.clusters


class Box:
    """A view of a strided box of a shadow."""

    def __init__(self, box, offset, extents, strides):
        self.box, self.args = box, (offset, extents, strides)

    def __call__(self, array: np.ndarray) -> np.ndarray:
        return self.box(array, *self.args)

    @property
    def repeats(self) -> bool:
        """Whether a cell may occur several times."""
        return overlaps_itself(*self.args[1:])

    def cell(self, at: tuple) -> int:
        """The cell at an index into the view."""
        offset, _, strides = self.args
        return offset + sum(int(i) * s for i, s in zip(at, strides))

    def assign(self, array: np.ndarray, values, mine: np.ndarray | None = None) -> None:
        """Set the cells, or those where the mask `mine` is true."""
        np.copyto(self(array), values, casting="unsafe", where=True if mine is None else mine)


def overlaps_itself(extents: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a box may contain a cell twice."""
    reach = 0
    for stride, n in sorted((abs(s), n) for s, n in zip(strides, extents) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (n - 1)
    return False
