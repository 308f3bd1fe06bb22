"""Simulates accesses to global memory by which CTAs synchronise.

Atomics, and relaxed, acquiring and releasing loads and stores.
"""

from __future__ import annotations

import numpy as np

from .atomics import apply_atomic
from .component import Component
from .global_access import kept_threads
from .global_races import Near, Some
from .global_threads import Accessor
from .memory import GlobalMemory
from .values import SimBuffer
from .vector_clocks import ORDER, Clocks
from .world import World

FENCES = 8  # how many fences of an atom are kept apart


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
        if shape[1:] == (1,):
            self._share_result(order is not None)
        if at.size:
            before, changed = apply_atomic(flat, at.reshape(-1), kind, given.reshape(-1),
                                           None if expected is None else expected.reshape(-1), need_old)
            if keep is None:
                old = before.reshape(shape) if need_old and before is not None else None
            elif need_old and old is not None:
                old[keep] = before
            if self.m.checks:
                if order is not None or shape[1:] == (1,) or self.m.sim.program.fences_threads:
                    self._meet(memory, at.reshape(-1), who.reshape(-1) - 1, order, scope)
                self._check_ordered(memory, index, keep, shape, owner, "write")
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
        ctas = np.broadcast_to(self.m.ctas.reshape(-1, *(1,) * (len(shape) - 1)), shape)
        if keep is not None and not keep.any():
            return
        at, of = (index.reshape(-1), ctas.reshape(-1)) if keep is None else (index[keep], ctas[keep])
        self._meet(memory, at, of, None if sem == "relaxed" else sem, scope, reads=not writes, writes=writes)
        self._check_ordered(memory, index, keep, shape, owner, "write" if writes else "read")

    def _check_ordered(self, memory: GlobalMemory, index: np.ndarray, keep, shape: tuple, owner, what: str) -> None:
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
        access = memory.shadow.atomic if what == "write" else memory.shadow.atomic_read
        self.m.global_memory.judge(memory, what, access(cells, mine, self.m.sim.global_clocks, who))

    def _share_result(self, ordered: bool) -> None:
        """The result of an access made once for the scope reaches all its threads. An `ordered` access has a barrier
        of the scope before or after it."""
        self.m.sync.exchange()
        if ordered and self.m.sim.contended:
            for world, _ in self.m.worlds():
                world.clocks.sync(self.m.rank, self.m.atoms)

    def _meet(self, memory: GlobalMemory, index: np.ndarray, ctas: np.ndarray, order: str | None, scope: str,
              reads=True, writes=True) -> None:
        """Let CTAs synchronise at elements, with those within `scope`."""
        if scope == "cta":
            return
        clocks, of_grid, clusters = self.m.sim.clocks_of_grid(), scope != "cluster", self.m.sim.cluster_of
        near = self.clusters_of(ctas)
        if writes and (order in ("release", "acq_rel") or any(cta in clocks.fenced for cta in near)):
            self._hold_back(near, order in ("release", "acq_rel"), self._only_thread(ctas))
        cells = self.m.global_memory.cells(memory, index)
        for cta in dict.fromkeys(ctas.tolist()):
            # cells of an address are alike for arrays that lie over each other
            places = [(memory.shadow.address, at) for at in np.unique(cells[ctas == cta]).tolist()]
            clocks.meet(cta, int(clusters[cta + 1]), places, order, reads, writes, of_grid, near[cta])

    def clusters_of(self, ctas: np.ndarray) -> dict[int, Near]:
        """For each of `ctas`, the CTAs of its cluster and which of their threads take part."""
        sim, atoms = self.m.sim, self.m.active_atoms
        found: dict[int, Near] = {}
        whole, here = len(atoms) == len(sim.atom_start), frozenset(atoms.tolist())
        if whole and sim.ranks == 1:
            return {cta: {cta: None} for cta in ctas.tolist()}
        wanted = set(ctas.tolist())
        for world, where in self.m.peek():
            met = world.clocks.column(self.m.rank, int(atoms[0])), int(world.clocks.now[self.m.rank, atoms[0]])
            for row in self.m.rows if where is None else self.m.rows[where]:
                cta, cluster = int(sim.ctas[row]), sim.ctas[row % sim.clusters::sim.clusters].tolist()
                if cta in wanted:
                    near: Near = {n: Some(frozenset(), *met) for n in cluster}
                    near[cta] = None if whole else Some(here, *met)
                    found[cta] = near
        return found

    def _only_thread(self, ctas: np.ndarray) -> int | None:
        """The only thread that makes an access to one element in each of `ctas`; None if several do."""
        if len(np.unique(ctas)) < len(ctas):
            return None
        if self.m.active_mask is None:
            return self.m.low
        acting = np.flatnonzero(self.m.active_mask.any(axis=0))
        return self.m.low + int(acting[0]) if len(acting) == 1 else None

    def _hold_back(self, near: dict[int, Near], releases: bool, thread: int | None) -> None:
        """The active threads, or only `thread`, make a write that publishes what precedes it: exclude what does not. A
        write that `releases` comes after all that they know of; a relaxed one after what fences came after."""
        atoms, clocks = self.m.active_atoms, self.m.sim.clocks_of_grid()
        if releases and len(atoms) == len(self.m.sim.atom_start) and self.m.sim.ranks == 1:
            return
        shadows = {id(memory.shadow): memory.shadow for memory in self.m.sim.arguments
                   if memory is not None and memory.shadow.threads is not None}
        for world, where in self.m.peek():
            if releases:
                cover, own = world.clocks.known[self.m.rank, atoms, ORDER].max(axis=0), None
                cover[world.clocks.column(self.m.rank, atoms)] = np.iinfo(cover.dtype).max
            else:
                cover, own = self._covered_by_fences(world, atoms, thread)
            for cta in self.m.ctas if where is None else self.m.ctas[where]:
                for other in near.get(int(cta), ()):
                    for shadow in shadows.values():
                        shadow.hold_back(other, cover, clocks, None if releases else clocks.fenced.get(int(cta)), own)

    def _covered_by_fences(self, world: World, atoms: np.ndarray,
                           thread: int | None) -> tuple[np.ndarray, tuple[int, int, int] | None]:
        """What the fences come after that the active threads, or only `thread`, have made themselves or met at a
        barrier since: an epoch for each column, and (thread, its column,
        epoch) for the accesses of the thread itself."""
        clocks, own = world.clocks, 0
        cover = np.zeros(clocks.ranks * clocks.width, np.int32)
        acting = atoms if thread is None else self.m.sim.atom_of[[thread]]
        known = clocks.known[self.m.rank, acting, ORDER].max(axis=0)
        for rank in range(clocks.ranks):
            for atom in range(clocks.atoms):
                column, mine = clocks.column(rank, atom), rank == self.m.rank and atom in acting
                for epoch, before in world.facts.get(("fences", rank, atom), ()):
                    met = known[column] >= epoch
                    if met or mine:
                        np.maximum(cover, before, out=cover)
                    if met or mine and thread is None:
                        cover[column] = max(cover[column], epoch)
                    elif mine:
                        own = max(own, epoch)
        return cover, None if thread is None else (thread, clocks.column(self.m.rank, int(acting[0])), own)

    def threadfence(self, scope: str = "gpu") -> None:
        """``fence.acq_rel`` at `scope`: relaxed atomics before and after it then synchronise CTAs."""
        self.m.barriers.note_fence()
        if self.m.checks and scope in ("gpu", "sys") and self.m.sim.program.atomics:
            near = self.clusters_of(self.m.ctas)
            for world, _ in self.m.worlds():
                for atom in self.m.active_atoms:
                    self._note_global_fence(world.facts, ("fences", self.m.rank, int(atom)), world.clocks, int(atom))
            for cta, cluster in near.items():
                self.m.sim.clocks_of_grid().fence(cta, cluster)

    def _note_global_fence(self, facts: dict, key: tuple, clocks: Clocks, atom: int) -> None:
        """Record the epoch at which an atom makes a fence, and what it knows there. Of more than FENCES, the two oldest
        are merged."""
        found = (*facts.get(key, ()),
                 (int(clocks.now[self.m.rank, atom]), clocks.known[self.m.rank, atom, ORDER].copy()))
        clocks.now[self.m.rank, atom] += 1
        if len(found) > FENCES:
            (first, _), (_, before), *rest = found
            found = ((first, before), *rest)
        facts[key] = found
