"""Races between CTAs on global memory: for each element, which CTA wrote it last and which CTA has read it since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import Loc
from . import element_loops as loops
from .compile_loops import as_loops_take_it, compiled
from .global_clocks import CLUSTER, CTA, GRID, GlobalClocks
from .global_flight import LOAD, STORE, GlobalFlight, Unfenced
from .global_threads import EVERY, Accessor, Index, Marks, ThreadShadow

MANY = -1    # several CTAs (as readers), or atomics of any CTA (as writers)


# seconds that NumPy takes to check and mark an access to a cell by index, to store there as well, and where threads
# are tracked
MARKED, STORED, TRACKED = 4e-8, 6e-8, 1e-7

class GlobalShadow:
    """The shadow of one allocation of global memory, in cells of `granule` bytes. Arguments that overlap share one."""

    def __init__(self, address: int, nbytes: int, granule: int, contended: bool = False):
        self.address, self.granule = address, granule
        self.cells = -(-nbytes // granule)
        self.threads = ThreadShadow(self.cells) if contended else None  # if threads of one cluster may race
        self.flight: GlobalFlight | None = None  # once asynchronous copies access it, if threads are tracked
        self.writer: np.ndarray | None = None  # CTA + 1 of the last write
        # CTA + 1 of the reader (see `_readers`), or MANY; where CTAs synchronise, the shadow of threads has the readers
        self.reader: np.ndarray | None = None

    def of_threads(self) -> ThreadShadow:
        """The shadow of threads, where these are tracked."""
        assert self.threads is not None
        return self.threads

    def _writers_array(self) -> np.ndarray:
        if self.writer is None:
            self.writer = np.zeros(self.cells, np.int32)
        return self.writer

    def read(self, view, ids: np.ndarray, clocks: GlobalClocks | None, overlapping: bool, who: Accessor | None = None):
        """CTAs `ids` (id + 1, broadcastable) read the cells that `view(array)` selects. Returns the first
        conflict, or None."""
        if who is None and clocks is None and self._mark_by_loop(loops.mark_reads, view, ids, MANY):
            return None
        if who is not None and clocks is None and self._mark_threads(loops.mark_thread_reads, view, who):
            return None
        found = self._written_before(view, ids, who)
        if who is not None:
            found = self._in_flight(view, who, "read") or self.of_threads().read(view, who) or found
            ids = _readers(who)
        if clocks is None:
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
        if who is None and clocks is None:
            marked = self._mark_by_loop(loops.mark_writes, view, ids)
            if marked:
                return None if marked == 1 else self.written_together(view, ids)
        if who is not None and clocks is None:
            marked = self._mark_threads(loops.mark_thread_writes, view, who)
            if marked:
                return None if marked == 1 else self.written_together(view, ids)
        found = self._written_before(view, ids, who) or self._read_before(view, ids, clocks, who)
        if who is not None:
            found = self._in_flight(view, who, "write") or self.of_threads().write(view, who) or found
            if self.flight is not None:
                self.flight.forget(view)
        view.assign(self._writers_array(), ids)
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
            writer, reader = self._writers_array(), none if self.reader is None else self.reader
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
            return int(run((self._writers_array(), reader, writes, reads), access, now, known, np.int16(EVERY)))
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
        return int(run(memory, index, values, base, self._writers_array(), reader, ids, first))

    def _readers_array(self) -> np.ndarray:
        if self.reader is None:
            self.reader = np.zeros(self.cells, np.int32)
        return self.reader

    def atomic(self, cells: np.ndarray, ids: np.ndarray, level: int, who: Accessor | None = None):
        """As `read`, for atomics and ordered stores of the scope `level`. They conflict with ordinary accesses by other
        CTAs, and with each other where a scope does not include the other CTA."""
        view = Index(cells)
        found = self._written_before(view, ids, who, level)
        if who is not None:
            found = found or self._read_by_others(view, who, self.of_threads().loads())
            found = self._in_flight(view, who, "atomic") or self.of_threads().write(view, who, level) or found
            found = found or self._narrow_together(view, who, level)
        self._writers_array()[cells] = MANY
        return found

    def _narrow_together(self, view, who: Accessor, level: int):
        """The first cell that several CTAs have just changed at once by an atomic whose scope does not include both."""
        marks = self.of_threads().atomics
        assert marks is not None  # the atomic has just been marked
        clash = (view(marks.cta) != who.ids) & (level < GRID)
        if level == CLUSTER and clash.any():
            clash &= ~who.is_near(view(marks.cta))
        if not clash.any():
            return None
        at = int(np.argmax(clash))
        return "write", int(view(marks.cta)[at]) - 1, int(np.broadcast_to(who.ids, clash.shape)[at]) - 1, who.m.line

    def atomic_read(self, cells: np.ndarray, ids: np.ndarray, level: int, clocks: GlobalClocks | None,
                    who: Accessor | None = None):
        """As `read`, for ordered loads of the scope `level`. They conflict with earlier and later ordinary writes by
        other CTAs, but not with atomics whose scope and theirs include both."""
        view = Index(cells)
        found = self._written_before(view, ids, who, level)
        if who is not None:
            found = self._in_flight(view, who, "atomic read") or self.of_threads().read(view, who, atomic=True) or found
            ids = _readers(who)
        if clocks is None:
            self._mark_readers(view, ids, overlapping=True)
        return found

    def _in_flight(self, view, who: Accessor, kind: str | int):
        return None if self.flight is None else self.flight.conflict(view, who, kind)

    def issue(self, side: int, cells: np.ndarray, clocks: GlobalClocks | None, who: Accessor, proxy: bool):
        """Threads `who` issue an asynchronous access of the kind `side` to cells, one of each `who.ids`. Returns the
        first conflict with an earlier access; with `proxy`, also a missing proxy fence after it. The caller puts the
        access in flight (`GlobalFlight.begin`)."""
        view, ids = Index(cells), who.ids
        if self.flight is None:
            self.flight = GlobalFlight(self.cells)
        found: Any = self.flight.conflict(view, who, side if proxy else "read")
        found = found or self._written_before(view, ids, who)
        found = found or self.of_threads().late_write(view, who)
        if side != LOAD:
            found = found or self._read_before(view, ids, clocks, who)
            found = found or self.of_threads().late_read(view, who)
        elif clocks is None:
            self._mark_readers(view, _readers(who), overlapping=True)
        if proxy:
            found = found or self._find_unfenced_write(view, who, clocks)
        if side != LOAD:
            found = found or self._find_unsettled_load(view, who)
        if side == STORE:
            self._writers_array()[cells] = 0
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
        if clocks is None:
            return None
        for marks in (m for m in (threads.writes, threads.atomics) if m is not None):
            writer = view(marks.cta)
            bad = (writer > 0) & (writer != who.ids) & ~who.is_near(writer)
            if bad.any():
                where = np.nonzero(bad)
                bad[where] = who.find_unknown(where, bad.shape, marks, view, clocks.views)
            if bad.any():
                at = tuple(w[0] for w in np.nonzero(bad))
                ctas = int(np.broadcast_to(who.ids, bad.shape)[at]) - 1, int(writer[at]) - 1
                found = Unfenced(view.cell(at), ctas, int(view(marks.thread)[at]), int(view(marks.line)[at]))
                view.assign(marks.cta, 0, bad)
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

    def last_copy(self, cell: int) -> tuple[Loc | None, int] | None:
        """Where and by which CTA the asynchronous copy was issued that wrote a cell last; None if the last
        write was no such copy."""
        copied = None if self.flight is None else self.flight.last_store(cell)
        return copied if self.writer is not None and self.writer[cell] == 0 else None  # else an atomic came after it

    def _written_before(self, view, ids, who: Accessor | None, level: int | None = None):
        """The first cell that another CTA wrote before, by an ordinary store or by an atomic, which nothing orders.
        `level`: for an atomic or ordered access of that scope, which conflicts only with atomics that are not in each
        other's scope."""
        if self.writer is None:
            return None
        writer = view(self.writer)
        bad = (writer > 0) & (writer != ids)
        if bad.any() and who is not None:
            bad = self.of_threads().find_unordered(view, who, self.of_threads().writes, bad)
        if not bad.any():
            return None if who is None else self._atomics_before(view, who, level)
        at = int(np.argmax(bad))
        me, them = int(np.broadcast_to(ids, writer.shape).flat[at]), int(writer.flat[at])
        return "write", them - 1, me - 1, self._line(view, bad, at, them)

    def _atomics_before(self, view, who: Accessor, level: int | None):
        """`_written_before` of atomics."""
        threads = self.of_threads()
        if threads.atomics is None:
            return None
        for marks in (threads.atomics, *(threads.counted if level is None else ())):
            bad = (view(marks.cta) > 0) & (view(marks.cta) != who.ids)
            if level is not None:
                narrow = np.minimum(view(threads.levels), level)
                bad &= (narrow == CTA) | (narrow == CLUSTER) & ~who.is_near(view(marks.cta))
            found = self._first_unordered(view, who, marks, bad, "write")
            if found is not None:
                return found
        return None

    def _first_unordered(self, view, who: Accessor, marks: Marks, bad: np.ndarray, earlier: str):
        """The first of the cells `bad` whose access by another CTA nothing orders before that of `who`."""
        if bad.any():
            bad = self.of_threads().find_unordered(view, who, marks, bad)
        if not bad.any():
            return None
        at = tuple(w[0] for w in np.nonzero(bad))
        them, line = int(view(marks.cta)[at]), int(view(marks.line)[at])
        return earlier, them - 1, int(np.broadcast_to(who.ids, bad.shape)[at]) - 1, line

    def _read_by_others(self, view, who: Accessor, loads: list[Marks]):
        """The first cell that another cluster has read before, which nothing orders."""
        for marks in loads:
            cta = view(marks.cta)
            found = self._first_unordered(view, who, marks, (cta > 0) & (cta != who.ids) & ~who.is_near(cta), "read")
            if found is not None:
                return found
        return None

    def _read_before(self, view, ids, clocks: GlobalClocks | None, who: Accessor | None):
        if clocks is not None:
            threads = self.of_threads()
            return None if who is None else self._read_by_others(view, who, [*threads.loads(), *threads.polled])
        if self.reader is None:
            return None
        reader = view(self.reader)
        if who is not None:
            ids = _readers(who)
        bad = (reader != 0) & (reader != ids)
        if not bad.any():
            return None
        at = int(np.argmax(bad))
        other = int(reader.flat[at]) if who is None or who.m.sim.ranks == 1 else MANY
        line = self._line(view, bad, at, other, reads=True) if other > 0 else -1
        return "read", other - 1 if other > 0 else None, int(np.broadcast_to(ids, reader.shape).flat[at]) - 1, line

    def _line(self, view, bad: np.ndarray, at: int, cta: int, reads: bool = False) -> int:
        """The line of the last write, or read, by a CTA (+ 1) of a cell; -1 if that is not known."""
        return -1 if self.threads is None else self.threads.line(view, np.unravel_index(at, bad.shape), cta, reads)


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
