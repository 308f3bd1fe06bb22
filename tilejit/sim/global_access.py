"""Reads and writes of global memory: in whole boxes where a region allows it, otherwise element by element."""

from __future__ import annotations

import numpy as np

from ..errors import Loc
from .component import Component
from .dropped_stores import dropped_store
from .global_flight import LOAD, REDUCE, STORE, Deed, Late, Moment, Unfenced
from .global_races import Box, overlaps_itself
from .global_threads import EVERY, NOBODY, Accessor, Clash, Index
from .memory import GlobalMemory, boxes
from .values import SimBuffer, SimPoints, SimRegion, coordinates_of


class GlobalAccess(Component):
    """The part of the machine that accesses global memory."""

    def read(self, buffer: SimBuffer, coords, mask, other, owner, bounds, region, atomic) -> np.ndarray:
        memory: GlobalMemory = buffer.memory
        dtype = buffer.type.dtype.np
        if bounds and mask is None and isinstance(region, SimRegion):
            whole = self._region_boxes(buffer, region, other)
            if whole is not None:
                self._count_region(buffer, region, owner)
                return self._read_boxes(buffer, region, whole, other, dtype, owner)
        index, keep, shape = self.indices(buffer, coordinates_of(region) if coords is None else coords, mask, bounds)
        self._count_requests(memory, index, owner)
        count = index.size if keep is None else int(np.count_nonzero(keep))
        self.count("global -> registers", count * self._repeats(index) * memory.itemsize)
        if not count:
            return _fill_array(other, shape, dtype)
        flat = memory.elements(dtype)
        if keep is None:
            values = flat[index]
        else:
            values = np.where(keep, flat[np.where(keep, index, 0)], np.asarray(other, dtype))
        if self.m.checks and memory.maybe_written and not atomic:
            self._check_global(memory, index, keep, writing=False, owner=owner)
        return values

    def write(self, buffer: SimBuffer, coords, values, mask, owner, bounds, region, atomic) -> None:
        memory: GlobalMemory = buffer.memory
        dtype = buffer.type.dtype.np
        values = np.asarray(values)
        if values.dtype != dtype:
            values = values.astype(dtype)
        if bounds and mask is None and isinstance(region, SimRegion):
            # two threads may write the same element
            meets = self.m.checks and overlaps_itself(region.type.extents, buffer.array_strides)
            whole = None if meets else self._region_boxes(buffer, region)
            if whole is not None:
                self._count_region(buffer, region, owner)
                whole = list(whole)
                self._write_boxes(buffer, region, whole, values, dtype, owner)
                self._note_store(buffer, region, bool(whole))
                return
        coords = coordinates_of(region) if coords is None else coords
        index, keep, shape = self.indices(buffer, coords, mask, bounds, values)
        index, values = np.broadcast_to(index, shape), np.broadcast_to(values, shape)
        self._count_requests(memory, index, owner)
        ids = self._cta_ids(index)
        threads = None
        if hasattr(memory, "shadow") and memory.shadow.threads:
            threads = self.threads_of(shape, owner, writing=True)
        if shape[0] == 1 and self.m.batch > 1:  # every CTA writes the same elements
            ids = np.broadcast_to(np.int32(self.m.ctas[-1] + 1), index.shape)
            self._clash_of_all(memory, keep, atomic)
        if keep is not None:
            keep = np.broadcast_to(keep, shape)
            index, values, ids = index[keep], values[keep], np.broadcast_to(ids, shape)[keep]
            threads = kept_threads(threads, keep, shape)
        self.count("registers -> global", index.size * self._times(shape[0]) * memory.itemsize)
        if bounds and mask is None and self.m.active_mask is None:
            self._note_store(buffer, region, index.size > 0)
        if not index.size:
            return
        if atomic or not self.m.checks:
            memory.elements(dtype)[index] = values
        elif not self._store_by_loop(memory, index, values, ids, owner, shape):
            memory.elements(dtype)[index] = values
            self._check_twice(memory, index, values, owner, shape)
            self._check_global(memory, index, None, writing=True, ids=ids, threads=threads)

    def _clash_of_all(self, memory: GlobalMemory, keep: np.ndarray | None, atomic: bool) -> None:
        """Report that every CTA of the batch writes the same elements."""
        if self.m.checks and not atomic and (keep is None or keep.any()):
            self._clash(memory, "write", int(self.m.ctas[0]), int(self.m.ctas[-1]))

    def _store_by_loop(self, memory: GlobalMemory, index, values, ids, owner, shape) -> bool:
        """Whether a store by indices is done and checked, by a compiled loop: where no earlier access conflicts with it
        and threads are not tracked."""
        shadow = memory.shadow
        if shadow.threads is not None or self.m.sim.global_clocks is not None or cells_of_element(memory) > 1:
            return False
        unsigned = np.dtype(f"u{memory.itemsize}")
        done = shadow.store(memory.elements(unsigned), index, np.ascontiguousarray(values).view(unsigned),
                            int(self.cells(memory, np.asarray(0))), ids)
        if done & 4:
            self._check_twice(memory, index, values, owner, shape)
        if done & 2:
            self.judge(memory, "write", shadow.written_together(Index(self.cells(memory, index)), ids))
        return done > 0

    def _note_store(self, buffer: SimBuffer, region: SimRegion | SimPoints | None, reached: bool) -> None:
        """Note whether an unmasked store of the current line has `reached` its array, or was far out of its bounds.
        A line that reaches it in no CTA is a finding."""
        key, dropped = (self.m.line, buffer.memory.name), self.m.report.dropped
        if reached or region is None:
            dropped[key] = None
        elif dropped.get(key, key) is not None:
            dropped[key] = dropped_store(self._format_buffer(buffer), buffer.shape, region, self.m.loc, self.m.ctas)

    # -- boxes ---------------------------------------------------------------------------------------------------------

    def _region_boxes(self, buffer: SimBuffer, region: SimRegion, other=0):
        t = region.type
        if self.m.active_mask is not None or not t.kept or region.buffer is not buffer or buffer.lows is not None:
            return None
        if any(s.shape[1] > 1 for s in region.starts):
            return None
        uniform = max(max(s.shape[0] for s in region.starts), np.size(buffer.base)) == 1 < self.m.batch
        if uniform and self.m.sim.global_clocks is not None and buffer.memory.maybe_written:
            return None  # the CTAs differ in what they know about each other
        if uniform and np.ndim(other) and len(other) > 1:
            return None  # the CTAs differ in the value of elements out of bounds
        base = buffer.memory.origin + np.asarray(buffer.base).reshape(-1) // buffer.memory.itemsize
        starts = [s[:, 0].astype(np.int64) for s in region.starts]
        return boxes(starts, t.extents, buffer.shape, buffer.array_strides, base)

    def _read_boxes(self, buffer: SimBuffer, region: SimRegion, whole, other, dtype, owner) -> np.ndarray:
        memory, t = buffer.memory, region.type
        batch = max(max(s.shape[0] for s in region.starts), np.size(buffer.base))
        shape = (batch, *(t.extents[d] for d in t.kept))
        flat, result, ids = memory.elements(dtype), None, None
        full = tuple(slice(0, n) for n in t.extents)
        for rows, clip, offset, extents, strides in whole:
            view = memory.box(flat, offset, extents, strides).reshape(extents[0], *(extents[1 + d] for d in t.kept))
            self.count("global -> registers", view.size * self._times(batch) * memory.itemsize)
            if result is None and extents[0] == batch and clip == full:
                result = np.array(view)
            else:
                if result is None:
                    result = np.array(_fill_array(other, shape, dtype))
                at = (rows, *(clip[d] for d in t.kept))
                result[at] = view
            if self.m.checks and memory.maybe_written:
                ids = self._cta_ids(np.empty((batch, *(1,) * len(t.extents)), bool)) if ids is None else ids
                over, mine = overlaps_itself(extents, strides), on_cells(memory, ids[rows] if len(ids) > 1 else ids)
                self.judge(memory, "read", memory.shadow.read(
                    self._box(memory, offset, extents, strides), mine, self.m.sim.global_clocks, over,
                    self._box_owners(memory, t, mine, clip, extents, owner)))
        return _fill_array(other, shape, dtype) if result is None else result

    def _write_boxes(self, buffer: SimBuffer, region: SimRegion, whole, values, dtype, owner) -> None:
        memory, t = buffer.memory, region.type
        batch = max(max(s.shape[0] for s in region.starts), np.size(buffer.base))
        flat, ids = memory.elements(dtype), None
        several = batch == 1 and self.m.batch > 1
        if several and values.shape[0] > 1:
            values = values[-1:]
        for rows, clip, offset, extents, strides in whole:
            view = memory.box(flat, offset, extents, strides)
            at = (rows if values.shape[0] > 1 else slice(None), *(clip[d] for d in t.kept))
            part = values[at]
            view[...] = part.reshape(part.shape[0],
                                     *(extents[1 + d] if d in t.kept else 1 for d in range(len(t.extents))))
            self.count("registers -> global", view.size * self._times(batch) * memory.itemsize)
            if not self.m.checks:
                continue
            ids = self._cta_ids(np.empty((batch, *(1,) * len(t.extents)), bool), last=True) if ids is None else ids
            mine = on_cells(memory, ids[rows] if len(ids) > 1 else ids)
            found = memory.shadow.write(self._box(memory, offset, extents, strides), mine, self.m.sim.global_clocks,
                                        overlaps_itself(extents, strides),
                                        self._box_owners(memory, t, mine, clip, extents, owner))
            if several and found is None:
                found = "write", int(self.m.ctas[0]), int(self.m.ctas[-1]), -1
            self.judge(memory, "write", found)

    # -- elements ------------------------------------------------------------------------------------------------------

    def indices(self, buffer: SimBuffer, coords, mask, bounds: bool, values: np.ndarray | None = None):
        """(element indices into the argument's `flat`, mask of those accessed or None for all, their common shape)."""
        memory = buffer.memory
        index = memory.origin + np.asarray(buffer.base) // memory.itemsize
        if isinstance(index, np.ndarray) and index.ndim == 2:
            index = index.reshape(-1, *(1,) * (max((np.ndim(c) for c in coords), default=2) - 1))
        keep = None if mask is None else np.asarray(mask)
        if self.m.active_mask is not None:
            keep = self.m.active_mask if keep is None else keep & self.m.active_mask
        outside = None
        for d, (c, stride) in enumerate(zip(coords, buffer.array_strides)):
            c = np.asarray(c)
            wrong = ~self.inside(buffer, d, c)
            if wrong.any():
                outside = wrong if outside is None else outside | wrong
            index = index + c.astype(np.int64) * stride
        index = np.asarray(index)
        if index.ndim == 0:
            index = index.reshape(1, 1)
        if outside is not None:
            if not bounds:
                bad = outside if keep is None else outside & keep
                if bad.any():
                    self.m.finding("out-of-bounds", f"an element outside of {self._format_buffer(buffer)} is accessed",
                                   bytes=None)
            keep = ~outside if keep is None else keep & ~outside
        shape = np.broadcast_shapes(index.shape, () if keep is None else keep.shape,
                                    () if values is None else values.shape)
        if keep is not None and keep.all():
            keep = None
        return index, keep, shape

    def inside(self, buffer: SimBuffer, d: int, c: np.ndarray) -> np.ndarray:
        """Whether coordinates along dimension `d` are inside a global buffer or window."""
        if buffer.lows is None or buffer.counts is None:
            return (c >= 0) & (c < buffer.shape[d])
        low, count = (x[:, :1].astype(np.int64).reshape(-1, *(1,) * (max(np.ndim(c), 1) - 1))
                      for x in (buffer.lows[d], buffer.counts[d]))
        return (c >= low) & (c < low + count)

    def _format_buffer(self, buffer: SimBuffer) -> str:
        return f"{buffer.memory.name}{list(buffer.shape)}"

    def _repeats(self, index: np.ndarray) -> int:
        return self.m.batch if index.shape[0] == 1 else 1

    def _times(self, batch: int) -> int:
        return self.m.batch if batch == 1 else 1

    def count(self, path: str, nbytes: int) -> None:
        self.m.report.stats["bytes"][path] += int(nbytes)

    def _count_requests(self, memory: GlobalMemory, index: np.ndarray, owner) -> None:
        """Count the requests and sectors of an access by element indices. Arrays count as aligned,
        as they are on a device."""
        if not self.m.checks:
            return
        n = index[0].size
        threads = np.arange(self.m.low, self.m.high)
        if owner is not None:
            threads = self.m.low + np.asarray(owner).reshape(-1)
        if n in (1, len(threads)):
            self.m.traffic.count("global", threads[:n],
                                 lambda: (index[0].reshape(-1) - memory.origin) * memory.itemsize, memory.itemsize)

    def _count_region(self, buffer: SimBuffer, region: SimRegion, owner) -> None:
        """`_count_requests` for a region. Its element indices are computed only if the call has not
        been measured yet."""
        if not self.m.checks or owner is None:
            return
        memory, t = buffer.memory, region.type
        def first_value(x):
            return np.asarray(x, np.int64).reshape(-1)[:1]  # arrays wrap on overflow, as addresses do
        strides = buffer.array_strides
        first = (first_value(buffer.base)
                 + memory.itemsize * sum((first_value(s) * k for s, k in zip(region.starts, strides)),
                                         np.int64(0)))
        n = int(np.prod(t.shape))
        if (id(self.m.fiber.node), "global", int(first[0]) % 128, n) in self.m.sim.traffic:
            offsets = np.broadcast_to(first, (n,))
        else:
            steps = sum((np.arange(t.extents[d]).reshape(-1, *(1,) * (len(t.kept) - 1 - k)) * strides[d]
                         for k, d in enumerate(t.kept)),
                        np.int64(0))
            offsets = first + np.asarray(steps).reshape(-1) * memory.itemsize
        self.m.traffic.count("global", self.m.low + np.asarray(owner).reshape(-1), lambda: offsets, memory.itemsize)

    def _cta_ids(self, like: np.ndarray, last: bool = False) -> np.ndarray:
        """CTA ids + 1 along the batch axis. For one access on behalf of several CTAs, this is MANY,
        or with `last` the last CTA's."""
        ids = (self.m.ctas + 1).astype(np.int32)
        if like.shape[0] == 1 and self.m.batch > 1:
            ids = ids[-1:] if last else np.full(1, -1, np.int32)
        return ids.reshape(-1, *(1,) * (like.ndim - 1))

    # -- races ---------------------------------------------------------------------------------------------------------

    def cells(self, memory: GlobalMemory, index: np.ndarray) -> np.ndarray:
        """The first cell of each element."""
        shadow = memory.shadow
        scale, base = memory.itemsize // shadow.granule, (memory.address - shadow.address) // shadow.granule
        return index if scale == 1 and base == 0 else base + index * scale

    @staticmethod
    def cover(memory: GlobalMemory, cells: np.ndarray, ids: np.ndarray, threads, itemsize: int | None = None):
        """All the cells of the elements, by default of the memory's size, that begin at `cells`, with the CTA and the
        thread of each cell. The three as they are where an element has one cell: where arrays of other element sizes
        lie over the memory, it has several."""
        scale = cells_of_element(memory, itemsize)
        if scale == 1:
            return cells, ids, threads
        def spread(x):
            return x if np.ndim(x) == 0 else np.repeat(np.broadcast_to(x, cells.shape).reshape(-1), scale)
        return (cells.reshape(-1, 1) + np.arange(scale)).reshape(-1), spread(ids), spread(threads)

    def _box(self, memory: GlobalMemory, offset: int, extents, strides) -> Box:
        scale, first = cells_of_element(memory), int(self.cells(memory, np.asarray(offset)))
        inner = ((), ()) if scale == 1 else ((scale,), (1,))
        return Box(memory.box, first, (*extents, *inner[0]), (*(s * scale for s in strides), *inner[1]))

    def _box_owners(self, memory: GlobalMemory, t, ids: np.ndarray, clip, extents, owner) -> Accessor | None:
        """Who accesses a box of a region of type `t`; None if threads are not tracked there."""
        if memory.shadow.threads is None:
            return None
        if owner is None:
            return Accessor(self.m, ids, NOBODY)
        threads = self.m.low + np.asarray(owner).reshape(t.shape)[tuple(clip[d] for d in t.kept)]
        threads = threads.reshape(1, *(extents[1 + d] if d in t.kept else 1 for d in range(len(t.extents))))
        return Accessor(self.m, ids, on_cells(memory, threads))

    def threads_of(self, shape: tuple, owner, writing: bool) -> np.ndarray | int:
        """The thread that accesses each element of `shape` (a batch axis, then elements or threads),
        or one of EVERY and NOBODY."""
        if owner is not None:
            return self.m.low + np.asarray(owner).reshape(1, *shape[1:])
        if len(shape) != 2 or shape[1] not in (1, self.m.threads):
            return NOBODY
        if shape[1] == 1:
            return self.m.low if writing or self.m.fiber.node in self.m.sim.program.for_one_thread else EVERY
        return np.arange(self.m.low, self.m.high).reshape(1, -1)

    def _check_global(self, memory: GlobalMemory, index, keep, writing: bool, ids=None, threads=NOBODY,
                      owner=None) -> None:
        if ids is None:
            if index.shape[0] == 1 < self.m.batch and self.m.sim.global_clocks is not None:
                index = np.broadcast_to(index, (self.m.batch, *index.shape[1:]))
            ids = self._cta_ids(index)
            shape = np.broadcast_shapes(index.shape, () if keep is None else keep.shape)
            index, ids = np.broadcast_to(index, shape), np.broadcast_to(ids, shape)
            threads = self.threads_of(shape, owner, writing) if memory.shadow.threads is not None else None
            if keep is not None:
                keep = np.broadcast_to(keep, shape)
                index, ids, threads = index[keep], ids[keep], kept_threads(threads, keep, shape)
        cells, ids, threads = self.cover(memory, self.cells(memory, index), ids, threads)
        view = Index(cells)
        access = memory.shadow.write if writing else memory.shadow.read
        who = None if memory.shadow.threads is None else Accessor(self.m, ids, threads)
        self.judge(memory, "write" if writing else "read", access(view, ids, self.m.sim.global_clocks, True, who))

    def _check_twice(self, memory: GlobalMemory, index, values, owner, shape) -> None:
        """Report two threads of one CTA that have written different values to the same element in one store: the last
        one's are there."""
        if owner is None and not (len(shape) == 2 and self.m.threads > 1 and shape[-1] > 1):
            return
        unsigned = f"u{values.itemsize}"
        kept = memory.elements(values.dtype).view(unsigned)[index]
        if (kept != np.ascontiguousarray(values).view(unsigned)).any():
            self.m.finding("race",
                           f"two threads write different values to one element of {memory.name} at the same time")

    # -- asynchronous copies -------------------------------------------------------------------------------------------

    def touch(self, memory: GlobalMemory, what: str, side: int, cells: np.ndarray, keep: np.ndarray | None,
              positions: np.ndarray | None, threads: np.ndarray | None = None, proxy: bool = True,
              atom: int | None = None, itemsize: int | None = None) -> tuple:
        """Check an access by the asynchronous operation `what`, which is about to be issued, and put it in flight.

        It accesses the `cells` (where `keep`) of the memory's shadow, (B or 1, ...), or in the CTAs at `positions`
        only; they are the first cells of elements of `itemsize` bytes, by default those of the memory. It is issued by
        the first thread of the scope, or by the threads of an `atom`, with the thread of each cell in `threads`.
        `proxy` says that it accesses memory through the async proxy. Returns what `AsyncOp.touches` takes.
        """
        where = np.arange(self.m.batch) if positions is None else positions
        if self.m.active_mask is not None:
            alive = np.broadcast_to(self.m.active_mask.any(axis=1), (self.m.batch,))[where]
            cells = cells[alive] if len(cells) == len(where) else cells
            keep = keep[alive] if keep is not None and len(keep) == len(where) else keep
            where = where[alive]
        if positions is not None and len(cells) == self.m.batch > len(where):
            cells = cells[where]
        shape = (len(where), *cells.shape[1:])
        ids = np.broadcast_to((self.m.ctas[where] + 1).astype(np.int32).reshape(-1, *(1,) * (cells.ndim - 1)), shape)
        chosen = slice(None) if keep is None else np.broadcast_to(keep, shape)
        cells, ids = np.broadcast_to(cells, shape)[chosen].reshape(-1), ids[chosen].reshape(-1)
        by = self.m.low if threads is None else np.broadcast_to(threads, shape)[chosen].reshape(-1)
        cells, ids, by = self.cover(memory, cells, ids, by, itemsize)
        shadow, clocks, verb = memory.shadow, self.m.sim.global_clocks, "read" if side == LOAD else "write"
        if not len(cells):
            return ()
        if shadow.threads is None:  # nothing else accesses the array; reductions do not race with each other
            if side != REDUCE:
                access = shadow.read if side == LOAD else shadow.write
                self.judge(memory, verb, access(Index(cells), ids, clocks, True), what)
            return ()
        self.judge(memory, verb, shadow.issue(side, cells, clocks, Accessor(self.m, ids, by), proxy),
                   what if proxy else None)
        flight = shadow.flight
        assert flight is not None  # `issue` makes it
        touch = flight.begin(Deed(what, self.m.loc, side), cells, ids, by, self._moments(where, atom))
        last = flight.sides[side].cta[cells]
        if side == STORE and (last != ids).any():
            at = int(np.argmax(last != ids))
            self._clash(memory, "write", int(last[at]) - 1, int(ids[at]) - 1)
        return (touch,)

    def _moments(self, positions: np.ndarray, atom: int | None) -> dict[int, Moment]:
        """Now, in the CTAs at these positions, for the threads of an atom (by default the scope's first)."""
        atom, moments = int(self.m.atoms[0]) if atom is None else atom, {}
        for world, where in self.m.peek(positions):
            column, epoch = world.clocks.column(self.m.rank, atom), int(world.clocks.now[self.m.rank, atom])
            for cta in self.m.ctas[where].tolist():
                moments[cta + 1] = Moment(column, epoch)
        return moments

    # -- findings ------------------------------------------------------------------------------------------------------

    def judge(self, memory: GlobalMemory, what: str, found, name: str | None = None) -> None:
        """Report a conflict that the shadow has found. `name` is that of the asynchronous operation that accesses the
        memory, if it is one."""
        if isinstance(found, Clash):
            self._thread_clash(memory, what, found, name)
        elif isinstance(found, Late):
            self._report_conflict(memory, what, found, name)
        elif isinstance(found, Unfenced):
            self._report_unfenced(memory, what, found, name)
        elif found is not None:
            earlier, other, cta, line = found
            self._clash(memory, what, other, cta, earlier, self.m.sim.locs[line] if line >= 0 else None, name)

    def _clash(self, memory: GlobalMemory, what: str, other: int | None, cta: int | None, earlier: str = "write",
               at: Loc | None = None, name: str | None = None) -> None:
        """Report an access by a CTA that conflicts with an earlier one by another,
        at the location `at` if that is known."""
        loc, word = self.m.loc, "write" if earlier == "write" else "read"
        # blame the line further down
        if name is not None and at is not None and loc is not None and loc.line < at.line:
            loc, at, what, word, cta, other = at, loc, word, what, other, cta
        past = {"write": "wrote", "read": "read"}[word]
        who = f"CTA {other}" if other is not None and other >= 0 else "another CTA"
        me = f"CTA {cta}" if cta is not None and cta >= 0 else "each of several CTAs"
        self.m.finding("race", f"{me} {what}s an element of {memory.name} that {who} {past} in the same "
                               f"launch{f' at line {at.line}' if at else ''}; nothing orders the two",
                       ctas=[c for c in (cta, other) if c is not None and c >= 0], loc=loc, other=at)

    def _thread_clash(self, memory: GlobalMemory, what: str, found: Clash, name: str | None = None) -> None:
        (mine, theirs), loc, other = found.threads, self.m.loc, self.m.sim.locs[found.line]
        def words(thread: int) -> str:
            if thread >= 0:
                return f"thread {thread}"
            return f"each of the threads {self.m.low} to {self.m.high - 1}" if thread == mine else "several threads"

        me, them = words(mine), words(theirs)
        place = "" if found.ctas[0] == found.ctas[1] else f" of CTA {found.ctas[1]}"
        text = (f"{name or me} {what}s an element of {memory.name}, {found.earlier} by {them}{place} at line "
                f"{other.line if other else '?'} without a barrier between the two")
        # blame the line further down
        if name is not None and loc is not None and other is not None and loc.line < other.line:
            does = "reads" if found.earlier == "read" else "writes"
            text = (f"{them}{place} {does} an element of {memory.name}, which {name} at line {loc.line} {what}s; "
                    "nothing orders the two")
            loc, other = other, loc
        self.m.finding("race", text, threads=tuple(n for n in (mine, theirs) if n >= 0), ctas=found.ctas[:1], loc=loc,
                       other=other)

    def _report_conflict(self, memory: GlobalMemory, what: str, found: Late, name: str | None) -> None:
        """Report an access while an asynchronous operation accesses the same element, or may."""
        deed, (cta, theirs) = found.deed, found.ctas
        place = "" if cta == theirs else f" in CTA {theirs}"
        me = name or (f"thread {found.thread}" if found.thread >= 0 else "a thread")
        me += "" if cta == theirs else f" of CTA {cta}"
        does = {LOAD: "reads", STORE: "writes", REDUCE: "writes"}[deed.side]
        element, line = self._element(memory, found.cell), deed.loc.line if deed.loc else "?"
        loc, other = self.m.loc, deed.loc
        if found.known:
            kind, text = ("missing-wait", f"{me} {what}s {element} before {deed.what} at line {line}{place}, "
                                          f"which {does} it, has been waited for")
            text += "" if deed.side == LOAD else "; bulk_wait(n, read=True) waits only until its source has been read"
        else:
            kind, text = ("race", f"{me} {what}s {element}, which {deed.what} at line {line}{place} {does}; "
                                  "nothing orders the two")
            if loc is not None and other is not None and loc.line < other.line:  # blame the line further down
                loc, other = other, loc
        self.m.fault(self._world_of(cta), kind, text, loc=loc, protocol=deed.side == LOAD,
                     ctas=[c for c in found.ctas if c >= 0], threads=(found.thread,) if found.thread >= 0 else (),
                     other=other)

    def _report_unfenced(self, memory: GlobalMemory, what: str, found: Unfenced, name: str | None) -> None:
        """Report that a copy engine accesses what others wrote, or overwrites what they loaded, without a proxy fence
        in between."""
        (cta, theirs), element = found.ctas, self._element(memory, found.cell)
        if found.deed is not None:
            by, earlier = found.deed.what, found.deed.loc
        else:
            by = f"thread {found.thread}" if found.thread >= 0 else "a thread"
            earlier = self.m.sim.locs[found.line] if found.line >= 0 else None
        where = "between the two"
        if cta != theirs:
            by += f" of CTA {theirs}"
            where = f"in CTA {cta}, between its synchronisation with CTA {theirs} and this copy"
        if earlier is not None:
            by += f" at line {earlier.line}"
        fence = 'there is no fence_proxy_async(space="global")'
        past = f"wrote it, and {fence} {where}"
        if found.reads:
            past = (f"loaded it, and may not have its value yet: {fence} in the loading threads, "
                    "between the load and the next barrier or arrival")
        self.m.fault(self._world_of(cta), "missing-proxy-fence",
                     f"{name} {what}s {element} through the async proxy; {by} {past}", protocol=False, ctas=[cta],
                     other=earlier, threads=tuple(t for t in (self.m.low, found.thread) if t >= 0))

    def _world_of(self, cta: int):
        """The world of one of the machine's CTAs."""
        worlds = self.m.peek()
        at = np.flatnonzero(self.m.ctas == cta)
        return next((world for world, where in worlds if where is None or len(at) and at[0] in where), worlds[0][0])

    def _element(self, memory: GlobalMemory, cell: int) -> str:
        """The element of an argument that a cell of its shadow belongs to, in words."""
        at = (memory.shadow.address + cell * memory.shadow.granule - memory.address) // memory.itemsize - memory.origin
        index, order = [0] * len(memory.shape), sorted(range(len(memory.shape)), key=lambda d: -abs(memory.strides[d]))
        for d in order:
            if memory.strides[d]:
                index[d] = min(max(at // memory.strides[d], 0), memory.shape[d] - 1)
                at -= index[d] * memory.strides[d]
        return f"an element of {memory.name}" if at else f"{memory.name}{index}"


def cells_of_element(memory: GlobalMemory, itemsize: int | None = None) -> int:
    """How many cells of a memory's shadow an element has."""
    return max((itemsize or memory.itemsize) // memory.shadow.granule, 1)


def on_cells(memory: GlobalMemory, x: np.ndarray) -> np.ndarray:
    """A value for each element of a box, as one for each of its cells."""
    return x if cells_of_element(memory) == 1 else x[..., None]


def kept_threads(threads, keep: np.ndarray | None, shape: tuple):
    """The threads of the elements that the mask `keep` selects, one for each or one for all."""
    return threads if keep is None or np.ndim(threads) == 0 else np.broadcast_to(threads, shape)[keep]


def _fill_array(other, shape, dtype) -> np.ndarray:
    other = np.asarray(other, dtype)
    return np.broadcast_to(other, np.broadcast_shapes(other.shape, shape))
