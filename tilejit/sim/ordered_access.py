"""Simulates accesses to global memory by which CTAs synchronise.

Atomics, and relaxed, acquiring and releasing loads and stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .atomics import apply_atomic
from .component import Component
from .global_access import kept_threads
from .global_clocks import Group, level_of
from .global_threads import Accessor
from .memory import GlobalMemory
from .values import SimBuffer


class Elements(NamedTuple):
    """Elements of a memory, the CTA + 1 that accesses each, and its thread; a number: that of the first thread of the
    scope, which accesses all."""

    index: np.ndarray
    ids: np.ndarray
    threads: np.ndarray | int


class OrderedAccess(Component):
    """The part of the machine by which CTAs synchronise through global memory."""

    def atomic(self, buffer: SimBuffer, coords: tuple, kind: str, values, compare=None, mask=None, *, owner=None,
               order: str | None = "acq_rel", scope: str = "gpu", need_old: bool = True) -> np.ndarray | None:
        """Read, modify and write elements one after the other, CTA by CTA and element by element.
        Returns the old values.

        `kind` is 'add', 'sub', 'min', 'max', 'minimum', 'maximum' (these two propagate NaN), 'and', 'or', 'xor',
        'exch', 'cas' (with `compare`), 'inc' or 'dec'. In global memory, `order` ('acquire', 'release', 'acq_rel', or
        None for relaxed) orders the CTAs within `scope` that access the same element.
        """
        self.m.sim.asked = True
        dtype = buffer.type.dtype.np
        values = np.asarray(values, dtype)
        compare = None if compare is None else np.asarray(compare, dtype)
        if buffer.memory.scope != "global":
            return self.m.shared.atomic(buffer, coords, kind, values, compare, mask, owner)
        memory = buffer.memory
        index, keep, shape = self.m.global_memory.indices(buffer, coords, mask, True, values)
        shape = (self.m.batch, *shape[1:])
        index, values = np.broadcast_to(index, shape), np.broadcast_to(values, shape)
        compare = None if compare is None else np.broadcast_to(compare, shape)
        keep = None if keep is None else np.broadcast_to(keep, shape)
        ids = np.broadcast_to((self.m.ctas + 1).astype(np.int32).reshape(-1, *(1,) * (len(shape) - 1)), shape)
        flat, changed = memory.elements(dtype), False
        old: np.ndarray | None = np.zeros(shape, dtype)
        at, given, expected, who = index, values, compare, ids
        if keep is not None:
            at, given, who = index[keep], values[keep], ids[keep]
            expected = None if compare is None else compare[keep]
        if shape[1:] == (1,) and (order is not None or need_old):
            self._share_result(order is not None)
        if at.size:
            meets = self.m.checks and self._may_meet(memory, order)
            turns = self._turns(who.reshape(-1))
            at, given, who = (x.reshape(-1)[turns] for x in (at, given, who))
            expected = None if expected is None else expected.reshape(-1)[turns]
            before, changed = apply_atomic(flat, at, kind, given, expected, need_old or meets)
            if before is not None and need_old and old is not None:
                kept = np.empty_like(before)
                kept[turns] = before
                old[... if keep is None else keep] = kept.reshape(shape) if keep is None else kept
            if self.m.checks:
                if meets:
                    threads = kept_threads(self.m.global_memory.threads_of(shape, owner, writing=True), keep, shape)
                    one_each = _one_each(threads, index if keep is None else index[keep])
                    wrote = None if kind != "cas" or before is None or expected is None else before == expected
                    self._meet(memory, Elements(at, who, one_each if np.ndim(one_each) == 0 else one_each[turns]), order,
                               scope, before=before, wrote=wrote)
                self._check_ordered(memory, index, keep, shape, owner, "write", scope)
                if meets:
                    self.end_epoch(self.m.active_atoms)
            self.m.global_memory.count("atomics", at.size * memory.itemsize)
        self.m.sim.version += changed
        return old if need_old else None

    def _turns(self, ids: np.ndarray) -> np.ndarray | slice:
        """The order in which the elements of the CTAs `ids` are accessed: one CTA after the other, in any order."""
        if self.m.sim.patient or ids.size < 2 or (ids == ids[0]).all():
            return slice(None)
        _, number = np.unique(ids, return_inverse=True)
        turn = self.m.sim.rng.permutation(int(number.max()) + 1)
        return np.argsort(turn[number], kind="stable")

    def read(self, buffer: SimBuffer, coords: tuple, other, mask, owner, sem: str, scope: str,
             alone: bool = False) -> np.ndarray:
        """Read elements of global memory by relaxed or acquiring loads, with the arguments of `read`. `alone`:
        without a barrier of the scope."""
        self.m.sim.asked = True
        values = self.m.read(buffer, coords, mask=mask, other=other, owner=owner, atomic=True, bounds=not alone)
        values = self._order(buffer, coords, mask, values, owner, sem, scope, writes=False)
        if sem == "acquire" and self.m.active_mask is None and not alone:
            self._share_result(True)
        return values

    def write(self, buffer: SimBuffer, coords: tuple, values, mask, owner, sem: str, scope: str,
              alone: bool = False) -> None:
        """Write elements of global memory by relaxed or releasing stores, with the arguments of `write`. `alone`:
        without a barrier of the scope."""
        if sem == "release" and self.m.active_mask is None and not alone:
            self._share_result(True)
        self._order(buffer, coords, mask, values, owner, sem, scope, writes=True)
        self.m.write(buffer, coords, values, mask=mask, owner=owner, atomic=True, bounds=not alone)

    def _order(self, buffer: SimBuffer, coords: tuple, mask, values, owner, sem: str, scope: str,
               writes: bool) -> np.ndarray:
        """Synchronise at the elements that are read or written. Returns the values that are read."""
        if not self.m.checks:
            return values
        memory, order = buffer.memory, None if sem == "relaxed" else sem
        index, keep, shape = self.m.global_memory.indices(buffer, coords, mask, True, values if writes else None)
        shape = (self.m.batch, *shape[1:])
        index, keep = np.broadcast_to(index, shape), None if keep is None else np.broadcast_to(keep, shape)
        ids = np.broadcast_to(self.m.ctas.reshape(-1, *(1,) * (len(shape) - 1)) + 1, shape)
        if keep is not None and not keep.any():
            return values
        meets = self._may_meet(memory, order)
        if meets:
            at, of = (index, ids) if keep is None else (index[keep], ids[keep])
            threads = kept_threads(self.m.global_memory.threads_of(shape, owner, writing=True), keep, shape)
            elements = Elements(at.reshape(-1), of.reshape(-1), _one_each(threads, at))
            before = memory.elements(buffer.type.dtype.np)[elements.index] if writes else None
            older = self._meet(memory, elements, order, scope, before=before, reads=not writes)
            if older:
                values = np.array(np.broadcast_to(values, shape))
                places = np.arange(values.size) if keep is None else np.flatnonzero(keep)
                for position, value in older:
                    values.reshape(-1)[places[position]] = value
                self.m.sim.version += 1  # the next read may see another value
        self._check_ordered(memory, index, keep, shape, owner, "write" if writes else "read", scope)
        if meets and writes:
            self.end_epoch(self.m.active_atoms)
        return values

    def _may_meet(self, memory: GlobalMemory, order: str | None) -> bool:
        """Whether threads may synchronise by an access to a memory. One that nobody polls orders nothing."""
        return (self.m.sim.global_clocks is not None and memory.polled
                and (order is not None or self.m.sim.program.fences_threads or memory.ordered))

    def _check_ordered(self, memory: GlobalMemory, index: np.ndarray, keep, shape: tuple, owner, what: str,
                       scope: str) -> None:
        """Check the accesses to the elements `index` (where `keep`) for conflicts with ordinary accesses of others."""
        ids = np.broadcast_to((self.m.ctas + 1).astype(np.int32).reshape(-1, *(1,) * (len(shape) - 1)), shape)
        if keep is None:
            cells, mine = self.m.global_memory.cells(memory, index), ids
        else:
            cells, mine = self.m.global_memory.cells(memory, index[keep]), ids[keep]
        threads = None
        if memory.shadow.threads is not None:
            threads = self.m.global_memory.threads_of(shape, owner, writing=True)
            if keep is None and np.ndim(threads):
                threads = np.broadcast_to(threads, shape)
            else:
                threads = kept_threads(threads, keep, shape)
        cells, mine, threads = self.m.global_memory.cover(memory, cells, mine, threads)
        cells, mine, who = cells.reshape(-1), mine.reshape(-1), None
        if threads is not None:
            who = Accessor(self.m, mine, threads.reshape(-1) if np.ndim(threads) else threads)
        if what == "write":
            found = memory.shadow.atomic(cells, mine, level_of(scope), who)
        else:
            found = memory.shadow.atomic_read(cells, mine, level_of(scope), self.m.sim.global_clocks, who)
        self.m.global_memory.judge(memory, what, found)

    def _share_result(self, ordered: bool) -> None:
        """The result of an access made once for the scope reaches all its threads. An `ordered` access has a barrier
        of the scope before or after it."""
        self.m.sync.exchange()
        if ordered and self.m.sim.contended:
            for world, _ in self.m.worlds():
                world.clocks.sync(self.m.rank, self.m.atoms)

    def groups(self, atoms: np.ndarray) -> Iterator[Group]:
        """These atoms, in each CTA where a thread is active."""
        active, clusters = self.m.active_mask, self.m.sim.cluster_of
        alive = None if active is None else np.broadcast_to(active.any(axis=1), (self.m.batch,))
        for world, where in self.m.peek():
            for position in range(self.m.batch) if where is None else where.tolist():
                if alive is None or alive[position]:
                    cta = int(self.m.ctas[position]) + 1
                    yield Group(world.clocks, self.m.rank, int(clusters[cta]), cta, atoms)

    def end_epoch(self, atoms: np.ndarray) -> None:
        """What these atoms do next comes after what they have published."""
        for world, _ in self.m.peek():
            world.clocks.now[self.m.rank, atoms] += 1

    def _meet(self, memory: GlobalMemory, elements: Elements, order: str | None, scope: str, before: np.ndarray | None,
              wrote: np.ndarray | None = None, reads: bool = True) -> list[tuple[np.ndarray, np.generic]]:
        """Let CTAs synchronise, with those within `scope`, at elements that they read, write (then `before` has the
        values so far), or both; `wrote` says which ones have been written. Returns the older values that a load returns,
        with the numbers of their elements: what a thread reads may be older than the last write as long as it does not
        know of that (PTX ISA, "Causality Order"), and so each sees the value before the last one first."""
        clocks = self.m.sim.global_clocks
        assert clocks is not None
        cells, threads = self.m.global_memory.cells(memory, elements.index), elements.threads
        each = None if np.ndim(threads) == 0 else self.m.sim.atom_of[threads]
        everyone, level = self.m.active_atoms, level_of(scope)
        first = everyone[:1] if each is not None or threads < 0 else self.m.sim.atom_of[[int(threads)]]
        groups, older = {group.cta: group for group in self.groups(everyone)}, []
        acquires, releases = order in ("acquire", "acq_rel"), order in ("release", "acq_rel")
        for cta in dict.fromkeys(elements.ids.tolist()):
            group, mine = groups[cta], np.flatnonzero(elements.ids == cta)
            for cell in dict.fromkeys(cells[mine].tolist()):
                # cells of an address are alike for arrays that lie over each other
                place, at = (memory.shadow.address, cell), mine[cells[mine] == cell]
                by = everyone if each is None else np.array(list(dict.fromkeys(each[at].tolist())))
                if reads:
                    past = None
                    if before is None:
                        past = clocks.find_older(place, group._replace(atoms=first if each is None else by[:1]))
                    if past is not None and past.value.dtype.itemsize == memory.itemsize:
                        older.append((at, past.value))
                    clocks.read(place, group._replace(atoms=by), acquires, level, past)
                if before is None or wrote is not None and not wrote[at].any():
                    continue
                value = before[at if wrote is None else at[wrote[at]]][-1]
                by = first if each is None and threads >= 0 else by
                for parts in [[a] for a in by] if reads else [by]:
                    writing = [group._replace(atoms=np.array([a])) for a in parts]
                    clocks.write(place, writing, releases, level, reads, value)
        return older

    def threadfence(self, scope: str = "gpu") -> None:
        """``fence.acq_rel`` at `scope`: relaxed atomics before and after it then synchronise CTAs."""
        self.m.barriers.note_fence()
        clocks = self.m.sim.global_clocks
        if clocks is not None:
            for group in self.groups(self.m.active_atoms):
                clocks.fence(group, level_of(scope))
            self.end_epoch(self.m.active_atoms)


def _one_each(threads: np.ndarray | int, elements: np.ndarray) -> np.ndarray | int:
    """The thread that accesses each of the elements, or one of them for all."""
    return threads if np.ndim(threads) == 0 else np.broadcast_to(threads, elements.shape).reshape(-1)
