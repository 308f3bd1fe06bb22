"""Simulates accesses to global memory by which CTAs synchronise.

Atomics, and relaxed, acquiring and releasing loads and stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .atomics import apply_atomic
from .component import Component
from .global_clocks import Group, Version, level_of
from .global_threads import Accessor
from .memory import GlobalMemory
from .values import SimBuffer


class Elements(NamedTuple):
    """Elements of a memory, the CTA + 1 that accesses each, and its thread; one for all: the first thread of the
    scope."""

    at: np.ndarray
    ids: np.ndarray
    threads: np.ndarray

    def take(self, order: np.ndarray | slice) -> Elements:
        """The elements in another order."""
        return Elements(self.at[order], self.ids[order], self.threads[order] if self.threads.ndim else self.threads)


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
        elements = self._elements(index, keep, shape, owner)
        old: np.ndarray | None = np.zeros(shape, dtype) if need_old else None
        if shape[1:] == (1,) and (order is not None or need_old):
            self._share_result(order is not None)
        if elements.at.size:
            meets, turns = self._may_meet(memory, order), self._turns(elements.ids)
            mine = elements.take(turns)
            given, expected = (None if x is None else _pick(x, keep, shape)[turns] for x in (values, compare))
            assert given is not None  # only `compare` may be
            before, changed = apply_atomic(memory.elements(dtype), mine.at, kind, given, expected, need_old or meets)
            if old is not None and before is not None:
                kept = np.empty_like(before)
                kept[turns] = before
                old[np.ones(shape, bool) if keep is None else np.broadcast_to(keep, shape)] = kept
            if meets:
                wrote = None if expected is None or before is None else before == expected
                self._meet(memory, mine, order, scope, before=before, wrote=wrote)
            self._check_ordered(memory, index, keep, shape, owner, "write", scope)
            if meets:
                self.end_epoch(self.m.active_atoms)
            self.m.global_memory.count("atomics", elements.at.size * memory.itemsize)
            self.m.sim.version += changed
        return old

    def _elements(self, index: np.ndarray, keep: np.ndarray | None, shape: tuple, owner) -> Elements:
        """The elements of an access of this shape."""
        ids = (self.m.ctas + 1).astype(np.int32).reshape(-1, *(1,) * (len(shape) - 1))
        threads = np.asarray(self.m.global_memory.threads_of(shape, owner, writing=True))
        return Elements(_pick(index, keep, shape), _pick(ids, keep, shape),
                        _pick(threads, keep, shape) if threads.ndim else threads)

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
            clocks = self.m.sim.global_clocks
            if clocks is not None and len(self.m.atoms) == len(self.m.sim.atom_start):
                for group in self.groups(self.m.atoms):
                    clocks.merge(group)
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
        elements = self._elements(index, keep, shape, owner)
        if not elements.at.size:
            return values
        meets = self._may_meet(memory, order) and (writes or self.m.sim.program.is_read(self.m.fiber.node))
        if meets:
            before = memory.elements(buffer.type.dtype.np)[elements.at] if writes else None
            older = self._meet(memory, elements, order, scope, before=before, reads=not writes)
            if older:
                values = np.broadcast_to(values, shape).copy()  # in C order
                places = np.flatnonzero(np.ones(shape, bool) if keep is None else np.broadcast_to(keep, shape))
                for position, value in older:
                    values.reshape(-1)[places[position]] = np.asarray(value).view(values.dtype)
                self.m.sim.version += 1  # the next read may see another value
        self._check_ordered(memory, index, keep, shape, owner, "write" if writes else "read", scope)
        if meets and writes:
            self.end_epoch(self.m.active_atoms)
        return values

    def _may_meet(self, memory: GlobalMemory, order: str | None) -> bool:
        """Whether threads may synchronise by an access to a memory. One that nobody polls orders nothing."""
        return (self.m.checks and self.m.sim.global_clocks is not None and memory.polled
                and (order is not None or self.m.sim.program.fences_threads or memory.ordered))

    def _check_ordered(self, memory: GlobalMemory, index: np.ndarray, keep, shape: tuple, owner, what: str,
                       scope: str) -> None:
        """Check the accesses to the elements `index` (where `keep`) for conflicts with accesses of others."""
        if not self.m.checks:
            return
        at, ids, by = self._elements(self.m.global_memory.cells(memory, index), keep, shape, owner)
        threads = None if memory.shadow.threads is None else by
        cells, ids, threads = self.m.global_memory.cover(memory, at, ids, threads)
        who = None if threads is None else Accessor(self.m, ids, threads)
        if what == "write":
            found = memory.shadow.atomic(cells, ids, level_of(scope), who)
        else:
            found = memory.shadow.atomic_read(cells, ids, level_of(scope), self.m.sim.global_clocks, who)
        self.m.global_memory.judge(memory, what, found)

    def _share_result(self, ordered: bool) -> None:
        """The result of an access made once for the scope reaches all its threads. An `ordered` access has a barrier
        of the scope before or after it."""
        if self.m.threads == 1:
            return
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
        values so far), or both; `wrote` says which ones have been written. Returns the older values that a load
        returns, with the numbers of their elements: what a thread reads may be older than the last write as long as it
        does not know of that (PTX ISA, "Causality Order"), and so each sees the value before the last one first."""
        clocks, level, older = self.m.sim.global_clocks, level_of(scope), []
        assert clocks is not None
        acquires, releases = order in ("acquire", "acq_rel"), order in ("release", "acq_rel")
        for group, place, at, writers in self._places(memory, elements):
            if before is None:
                first = group if elements.threads.ndim else group._replace(atoms=writers)
                past = self._older_version(memory, place, first._replace(atoms=first.atoms[:1]))
                if past is None:
                    clocks.observe(place, group)
                else:
                    older.append((at, past.value))
                clocks.read(place, group, acquires, level, self.m.deeds, past)
                continue
            if reads:
                clocks.read(place, group, acquires, level, call=-1)  # no poll
            written = at if wrote is None else at[wrote[at]]
            if not len(written):
                clocks.observe(place, group)
            else:
                writing = [group._replace(atoms=writers[n:n + 1]) for n in range(len(writers))]
                for groups in [[g] for g in writing] if reads else [writing]:
                    clocks.write(place, groups, releases, level, reads, before[written[-1]])
        return older

    def _places(self, memory: GlobalMemory,
                elements: Elements) -> Iterator[tuple[Group, tuple[int, int], np.ndarray, np.ndarray]]:
        """For each CTA and each element: the atoms that read it, its place, its numbers among the elements, and the
        atoms that write it."""
        cells, threads = self.m.global_memory.cells(memory, elements.at), elements.threads
        each = self.m.sim.atom_of[threads] if threads.ndim else None
        everyone = self.m.active_atoms
        first = everyone if each is not None or threads < 0 else self.m.sim.atom_of[[int(threads)]]
        groups = {group.cta: group for group in self.groups(everyone)}
        for cta in dict.fromkeys(elements.ids.tolist()):
            mine = np.flatnonzero(elements.ids == cta)
            for cell in dict.fromkeys(cells[mine].tolist()):
                at, place = mine[cells[mine] == cell], (memory.shadow.address, cell)  # alike in arrays over each other
                if each is None:
                    yield groups[cta], place, at, first
                else:
                    by = np.array(list(dict.fromkeys(each[at].tolist())))
                    yield groups[cta]._replace(atoms=by), place, at, by

    def _older_version(self, memory: GlobalMemory, place: tuple[int, int], group: Group) -> Version | None:
        """The version before the last write that a load by a group returns, if it does."""
        clocks = self.m.sim.global_clocks
        assert clocks is not None
        if not self.m.sim.patient and self.m.sim.rng.random() < 0.5:
            return None
        past = clocks.find_older(place, group)
        return past if past is not None and past.value.dtype.itemsize == memory.itemsize else None

    def threadfence(self, scope: str = "gpu", in_order: bool = False) -> None:
        """``fence.acq_rel`` at `scope`: relaxed atomics before and after it then synchronise CTAs. `in_order`:
        ``fence.sc``."""
        self.m.barriers.note_fence()
        clocks = self.m.sim.global_clocks
        if clocks is not None:
            for group in self.groups(self.m.active_atoms):
                clocks.fence(group, level_of(scope))
                if in_order:
                    clocks.fence_in_order(group, level_of(scope))
            self.end_epoch(self.m.active_atoms)


def _pick(x: np.ndarray, keep: np.ndarray | None, shape: tuple) -> np.ndarray:
    """The values of `x`, of a shape, where the mask `keep` is true, in one row."""
    whole = np.broadcast_to(x, shape)
    return whole.reshape(-1) if keep is None else whole[np.broadcast_to(keep, shape)]
