"""Tensor memory as rules use it: allocations and their lifetimes, fences, waits, commits,
and copies to and from registers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..layout.fragments import thread_table
from ..types import layout_of
from .faults import Reporter
from .flight import NEVER
from .memory import TensorMemory as Memory
from .parts import MachineParts
from .shadow import MANY, Access
from .shared_access import Place
from .values import SimBarrier, SimBuffer

LANE = Memory.COLUMNS * 4  # bytes from one lane to the next


class TensorMemoryAccess(MachineParts):
    """The part of the machine that handles tensor memory."""

    # -- allocations ---------------------------------------------------------------------------------------------------

    def tensor_buffer(self, value: Any) -> SimBuffer:
        """The buffer of an allocation, at the graph's place for it."""
        place = self.sim.graph.tensor_memory[value]
        return SimBuffer(value.type, self.sim.tensor_memory(), (place.first + place.column) * 4,
                         tuple(value.type.shape))

    def deallocate(self, buffer: SimBuffer) -> None:
        """``tcgen05.dealloc``: reports operations still in flight there; later uses are findings."""
        if not self.alive(buffer, "deallocated"):
            return
        if self.checks:
            self._still_used(buffer)
        for world, _ in self.worlds():
            world.facts["freed", self.rank, buffer.base] = self.line

    def _still_used(self, buffer: SimBuffer) -> None:
        columns = -(-layout_of(buffer.type).span("TCol") * buffer.type.dtype.bits // 32)
        cells = (np.arange(Memory.LANES)[:, None] * Memory.COLUMNS + buffer.base // 4 + np.arange(columns)).reshape(-1)
        access = Access(cells, self.atoms[:1], np.array([self.low], np.int16), self.line)
        for world, where in self.worlds():
            found = world.shadow("tmem", self.rank, self.sim.cells("tmem")).write(world.clocks, self.rank, access,
                                                                                  keep=False)
            if found is not None and found.what in ("pending", "busy", "async"):
                Reporter(self, world, self.rank, "tmem", where).ordinary(access, found, True)

    def alive(self, buffer: SimBuffer, verb: str) -> bool:
        """Whether a buffer has not been deallocated; if it has, it is a finding."""
        for world, _ in self.worlds():
            line = world.facts.get(("freed", self.rank, buffer.base))
            if line is not None:
                loc = self.sim.locs[line]
                self.finding("tmem",
                             f"tensor memory is {verb} after it was deallocated at line {loc.line if loc else 0}",
                             other=loc)
                return False
        return True

    # -- order ---------------------------------------------------------------------------------------------------------

    def tensor_fence(self, side: str) -> None:
        """``tcgen05.fence`` in every thread of the scope."""
        for world, _ in self.worlds():
            act = world.clocks.tensor_before if side == "before_thread_sync" else world.clocks.tensor_after
            act(self.rank, self.active_atoms)

    def tensor_wait(self, what: str) -> None:
        """``tcgen05.wait::ld`` or ``tcgen05.wait::st`` in every warp of the scope."""
        self.commit("tcgen05." + what)
        self.wait_groups("tcgen05." + what, 0)

    def tensor_commit(self, barrier: SimBarrier, mask: Any = None) -> None:
        """``tcgen05.commit``: arrive on the barrier, or on the same barrier in each CTA of the mask `mask`, when the
        operations are complete."""
        if mask is None:
            self.commit_to_barrier("tcgen05", barrier)
            return
        for _, ranks in self._destinations(mask):
            self.commit_to_barriers("tcgen05", [barrier.of_peer(np.full((1, 1), r)) for r in ranks])

    # -- moves ---------------------------------------------------------------------------------------------------------

    def fragment_place(self, plan, region, tile) -> tuple[Place, np.ndarray, np.ndarray]:
        """For each register of each thread, according to the plan's instructions: its place in tensor memory, the
        first thread of the warp that moves it (it may be moved for any thread of that warp), and the element that it
        holds."""
        lanes, places = plan.hardware(self.threads, self.low)
        owner = np.broadcast_to((np.arange(self.threads) // 32 * 32)[:, None], lanes.shape)
        offsets = self._fragment_base(region) + (lanes * LANE + places).reshape(1, -1)
        table = thread_table(tile.layout, tile.domain, self.threads)  # [thread, register] -> element
        return Place(offsets, (offsets.shape[1],)), owner.reshape(-1).astype(np.int32), table.reshape(-1)

    def _fragment_base(self, region) -> np.ndarray:
        """The byte address of a region's first element, (B or 1, 1)."""
        buffer, t = region.buffer, region.type.buffer
        at = t.layout.apply(*(s[:, :1].astype(np.int64) for s in region.starts), shape=t.shape)
        offset = np.asarray(at.get("TLane", 0)) * LANE + np.asarray(at.get("TCol", 0)) * t.dtype.bits // 8
        return (offset + buffer.base).reshape(-1, 1)

    def tensor_load(self, plan, call, region) -> np.ndarray:
        """``tcgen05.ld``: returns what is in memory now; the source counts as being read until the wait."""
        tile = call.result.type
        self.collective("tcgen05.ld")
        if not self.alive(region.buffer, "read") or not self.in_buffer(region):
            return np.zeros((1, *tile.shape), tile.dtype.np)
        place, owner, elements = self.fragment_place(plan, region, tile)
        dtype = tile.dtype.np
        self._count("tmem -> registers", self.batch * len(elements) * dtype.itemsize)
        if self.checks:
            self.check_shared(region.buffer, place, dtype.itemsize, owner, writing=False)
        values = np.empty((self.batch, tile.size), dtype)
        values[:, elements] = self._gather(region.buffer, place, dtype)
        values = values.reshape(self.batch, *tile.shape)
        self._pending("the tcgen05.ld", place, owner, call, reads=True)
        return values

    def tensor_store(self, plan, call, region, values: np.ndarray) -> None:
        """``tcgen05.st``: writes at once; the destination counts as being written until the wait."""
        tile = call.args[1].type
        self.collective("tcgen05.st")
        if not self.alive(region.buffer, "written") or not self.in_buffer(region):
            return
        self.sim.version += 1
        place, owner, elements = self.fragment_place(plan, region, tile)
        dtype = tile.dtype.np
        self._count("registers -> tmem", self.batch * len(elements) * dtype.itemsize)
        if self.checks:
            self.check_shared(region.buffer, place, dtype.itemsize, owner, writing=True)
        values = np.broadcast_to(values, (values.shape[0], *tile.shape)).reshape(values.shape[0], -1)[:, elements]
        # one narrow element per register: the rest of the word is zeroed
        if not plan.packed and plan.elements == 1 and dtype.itemsize < 4:
            self._scatter(region.buffer, Place(place.offsets // 4 * 4, place.shape), np.dtype(np.uint32),
                          np.zeros((1, len(elements)), np.uint32))
        self._scatter(region.buffer, place, dtype, values)
        self._pending("the tcgen05.st", place, owner, call, reads=False)

    def _pending(self, what: str, place: Place, owner: np.ndarray, call, reads: bool) -> None:
        """Keep the copy in flight until its warps wait for it."""
        queue = "tcgen05.ld" if reads else "tcgen05.st"
        if self.checks:
            for where, offsets, _ in self._alike(place):
                words, first = np.unique(offsets // 4, return_index=True)
                for atom in self.active_atoms:
                    low, high = self.sim.atom_threads(int(atom))
                    threads = self.low + owner[first]
                    mine = (threads >= low) & (threads < high)
                    if not mine.any():
                        continue
                    for world, _ in self.worlds(where):
                        self._launch_move(what, world, int(atom), words[mine], threads[mine], queue, reads)
        if call.attrs["wait"]:
            self.tensor_wait(queue[-2:])

    def _launch_move(self, what: str, world, atom: int, cells: np.ndarray, threads: np.ndarray, queue: str,
                     reads: bool) -> None:
        places = [("tmem", self.rank, cells)]
        op = self._operation(what, world, places if reads else [], [] if reads else places, _nothing, {}, [], MANY,
                             atom)
        op.threads, op.due, op.queued = threads.astype(np.int16), NEVER, True
        world.launch(op, self.sim.cells)
        self.sim.flying += 1
        world.queue(queue, self.rank, ("atom", atom)).open.append(op)


def _nothing(rows, params) -> None:
    """The `land` of a copy whose bytes have been moved already."""
