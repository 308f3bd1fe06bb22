"""Simulates accesses to global memory by which CTAs synchronise.

Atomics, and relaxed, acquiring and releasing loads and stores.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .atomics import apply_atomic
from .component import Component
from .global_access import kept_threads
from .global_clocks import Group, level_of
from .global_threads import Accessor
from .memory import GlobalMemory
from .values import SimBuffer


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
            before, changed = apply_atomic(flat, at.reshape(-1), kind, given.reshape(-1),
                                           None if expected is None else expected.reshape(-1), need_old)
            if keep is None:
                old = before.reshape(shape) if need_old and before is not None else None
            elif need_old and old is not None:
                old[keep] = before
            if self.m.checks:
                threads = kept_threads(self.m.global_memory.threads_of(shape, owner, writing=True), keep, shape)
                self._meet(memory, at.reshape(-1), who.reshape(-1), _one_each(threads, at), order, scope)
                self._check_ordered(memory, index, keep, shape, owner, "write", scope)
            self.m.global_memory.count("atomics", at.size * memory.itemsize)
        self.m.sim.version += changed
        return old

    def read(self, buffer: SimBuffer, coords: tuple, other, mask, owner, sem: str, scope: str,
             alone: bool = False) -> np.ndarray:
        """Read elements of global memory by relaxed or acquiring loads, with the arguments of `read`. `alone`:
        without a barrier of the scope."""
        self.m.sim.asked = True
        values = self.m.read(buffer, coords, mask=mask, other=other, owner=owner, atomic=True, bounds=not alone)
        self._order(buffer, coords, mask, None, owner, sem, scope)
        if sem == "acquire" and self.m.active_mask is None and not alone:
            self._share_result(True)
        return values

    def write(self, buffer: SimBuffer, coords: tuple, values, mask, owner, sem: str, scope: str,
              alone: bool = False) -> None:
        """Write elements of global memory by relaxed or releasing stores, with the arguments of `write`. `alone`:
        without a barrier of the scope."""
        if sem == "release" and self.m.active_mask is None and not alone:
            self._share_result(True)
        self._order(buffer, coords, mask, values, owner, sem, scope)
        self.m.write(buffer, coords, values, mask=mask, owner=owner, atomic=True, bounds=not alone)

    def _order(self, buffer: SimBuffer, coords: tuple, mask, values, owner, sem: str, scope: str) -> None:
        """Synchronise at the elements that are read (`values` None) or written."""
        if not self.m.checks:
            return
        memory, writes = buffer.memory, values is not None
        index, keep, shape = self.m.global_memory.indices(buffer, coords, mask, True, values)
        shape = (self.m.batch, *shape[1:])
        index, keep = np.broadcast_to(index, shape), None if keep is None else np.broadcast_to(keep, shape)
        ids = np.broadcast_to(self.m.ctas.reshape(-1, *(1,) * (len(shape) - 1)) + 1, shape)
        if keep is not None and not keep.any():
            return
        at, of = (index, ids) if keep is None else (index[keep], ids[keep])
        threads = kept_threads(self.m.global_memory.threads_of(shape, owner, writing=True), keep, shape)
        self._meet(memory, at.reshape(-1), of.reshape(-1), _one_each(threads, at), None if sem == "relaxed" else sem,
                   scope, reads=not writes, writes=writes)
        self._check_ordered(memory, index, keep, shape, owner, "write" if writes else "read", scope)

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

    def _meet(self, memory: GlobalMemory, index: np.ndarray, ids: np.ndarray, threads: np.ndarray | int,
              order: str | None, scope: str, reads: bool = True, writes: bool = True) -> None:
        """Let the CTAs `ids` (+ 1) synchronise at elements, with those within `scope`. `threads` access one each; a
        number: the first thread of the scope does for all."""
        clocks = self.m.sim.global_clocks
        if clocks is None:
            return
        cells = self.m.global_memory.cells(memory, index)
        each = None if np.ndim(threads) == 0 else self.m.sim.atom_of[threads]
        readers, level = self.m.active_atoms, level_of(scope)
        writers = readers if each is not None or threads < 0 else self.m.sim.atom_of[[int(threads)]]
        for group in self.groups(readers):
            mine = np.flatnonzero(ids == group.cta)
            for cell in np.unique(cells[mine]).tolist():
                # cells of an address are alike for arrays that lie over each other
                place = memory.shadow.address, cell
                by = writers if each is None else np.unique(each[mine[cells[mine] == cell]])
                if reads:
                    reading = group if each is None else group._replace(atoms=by)
                    clocks.read(place, reading, order in ("acquire", "acq_rel"), level)
                if writes:
                    writing = [group._replace(atoms=by[n:n + 1]) for n in range(len(by))]
                    clocks.write(place, writing, order in ("release", "acq_rel"), level, modifies=reads)
        if writes:
            self.end_epoch(readers)

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
