"""Tensor memory as `simulate` rules use it.

Allocations and their lifetimes, fences, waits, commits, and copies to and from registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..layout.fragments import thread_table
from ..types import layout_of
from .component import Component
from .faults import Reporter
from .flight import NEVER
from .memory import TensorMemory as Memory
from .shadow import MANY, Access
from .shared_access import Place
from .values import SimBarrier, SimBuffer

LANE = Memory.COLUMNS * 4  # bytes from one lane to the next


class TensorMemoryAccess(Component):
    """The part of the machine that handles tensor memory."""

    # -- allocations ---------------------------------------------------------------------------------------------------

    def buffer(self, value: Any) -> SimBuffer:
        """The buffer of an allocation, at the graph's place for it."""
        place = self.m.sim.graph.tensor_memory[value]
        return SimBuffer(value.type, self.m.sim.tensor_memory(), (place.first + place.column) * 4,
                         tuple(value.type.shape))

    def deallocate(self, buffer: SimBuffer) -> None:
        """``tcgen05.dealloc``: reports operations still in flight there; later uses are findings."""
        if not self.is_alive(buffer, "deallocated"):
            return
        if self.m.checks:
            self._still_used(buffer)
        for world, _ in self.m.worlds():
            world.facts["freed", self.m.rank, buffer.base] = self.m.line

    def _still_used(self, buffer: SimBuffer) -> None:
        columns = -(-layout_of(buffer.type).span("TCol") * buffer.type.dtype.bits // 32)
        cells = (np.arange(Memory.LANES)[:, None] * Memory.COLUMNS + buffer.base // 4 + np.arange(columns)).reshape(-1)
        access = Access(cells, self.m.atoms[:1], np.array([self.m.low], np.int16), self.m.line)
        for world, where in self.m.worlds():
            found = world.shadow("tmem", self.m.rank, self.m.sim.cells("tmem")).write(world.clocks, self.m.rank, access,
                                                                                      keep=False)
            if found is not None and found.what in ("pending", "busy", "async"):
                Reporter(self.m, world, self.m.rank, "tmem", where).report_access(access, found, True)

    def is_alive(self, buffer: SimBuffer, verb: str) -> bool:
        """Whether a buffer has not been deallocated; if it has, it is a finding."""
        for world, _ in self.m.worlds():
            line = world.facts.get(("freed", self.m.rank, buffer.base))
            if line is not None:
                loc = self.m.sim.locs[line]
                self.m.finding("tmem",
                               f"tensor memory is {verb} after it was deallocated at line {loc.line if loc else 0}",
                               other=loc)
                return False
        return True

    # -- order ---------------------------------------------------------------------------------------------------------

    def fence(self, side: str) -> None:
        """``tcgen05.fence`` in every thread of the scope."""
        for world, _ in self.m.worlds():
            act = world.clocks.tensor_before if side == "before_thread_sync" else world.clocks.tensor_after
            act(self.m.rank, self.m.active_atoms)

    def wait(self, what: str) -> None:
        """``tcgen05.wait::ld`` or ``tcgen05.wait::st`` in every warp of the scope."""
        self.m.engines.commit("tcgen05." + what)
        self.m.engines.wait_groups("tcgen05." + what, 0)

    def commit(self, barrier: SimBarrier, mask: Any = None) -> None:
        """``tcgen05.commit``: arrive on the barrier, or on the same barrier in each CTA of the mask `mask`, when the
        operations are complete."""
        if mask is None:
            self.m.commits.to_barrier("tcgen05", barrier)
            return
        for _, ranks in self.m.tma.destinations(mask):
            self.m.commits.to_barriers("tcgen05", [barrier.of_peer(np.full((1, 1), r)) for r in ranks])

    # -- moves ---------------------------------------------------------------------------------------------------------

    def fragment_place(self, plan, region, tile) -> tuple[Place, np.ndarray, np.ndarray]:
        """For each register of each thread, according to the plan's instructions: its place in tensor memory, the
        first thread of the warp that moves it (it may be moved for any thread of that warp), and the element that it
        holds."""
        lanes, places = plan.hardware(self.m.threads, self.m.low)
        owner = np.broadcast_to((np.arange(self.m.threads) // 32 * 32)[:, None], lanes.shape)
        offsets = self.fragment_base(region) + (lanes * LANE + places).reshape(1, -1)
        table = thread_table(tile.layout, tile.domain, self.m.threads)  # [thread, register] -> element
        return Place(offsets, (offsets.shape[1],)), owner.reshape(-1).astype(np.int32), table.reshape(-1)

    def fragment_base(self, region) -> np.ndarray:
        """The byte address of a region's first element, (B or 1, 1)."""
        buffer, t = region.buffer, region.type.buffer
        at = t.layout.apply(*(s[:, :1].astype(np.int64) for s in region.starts), shape=t.shape)
        offset = np.asarray(at.get("TLane", 0)) * LANE + np.asarray(at.get("TCol", 0)) * t.dtype.bits // 8
        return (offset + buffer.base).reshape(-1, 1)

    def load(self, plan, call, region) -> np.ndarray:
        """``tcgen05.ld``: returns what is in memory now; the source counts as being read until the wait."""
        tile = call.result.type
        self.m.sync.collective("tcgen05.ld")
        if not self.is_alive(region.buffer, "read") or not self.m.shared.in_buffer(region):
            return np.zeros((1, *tile.shape), tile.dtype.np)
        place, owner, elements = self.fragment_place(plan, region, tile)
        dtype = tile.dtype.np
        self.m.global_memory.count("tmem -> registers", self.m.batch * len(elements) * dtype.itemsize)
        if self.m.checks:
            self.m.shared.check(region.buffer, place, dtype.itemsize, owner, writing=False)
        values = np.empty((self.m.batch, tile.size), dtype)
        values[:, elements] = self.m.shared.gather(region.buffer, place, dtype)
        values = values.reshape(self.m.batch, *tile.shape)
        self._keep_in_flight("the tcgen05.ld", place, owner, call, reads=True)
        return values

    def store(self, plan, call, region, values: np.ndarray) -> None:
        """``tcgen05.st``: writes at once; the destination counts as being written until the wait."""
        tile = call.args[1].type
        self.m.sync.collective("tcgen05.st")
        if not self.is_alive(region.buffer, "written") or not self.m.shared.in_buffer(region):
            return
        self.m.sim.version += 1
        place, owner, elements = self.fragment_place(plan, region, tile)
        dtype = tile.dtype.np
        self.m.global_memory.count("registers -> tmem", self.m.batch * len(elements) * dtype.itemsize)
        if self.m.checks:
            self.m.shared.check(region.buffer, place, dtype.itemsize, owner, writing=True)
        values = np.broadcast_to(values, (values.shape[0], *tile.shape)).reshape(values.shape[0], -1)[:, elements]
        # one narrow element per register: the rest of the word is zeroed
        if not plan.packed and plan.elements == 1 and dtype.itemsize < 4:
            self.m.shared.scatter(region.buffer, Place(place.offsets // 4 * 4, place.shape), np.dtype(np.uint32),
                                  np.zeros((1, len(elements)), np.uint32))
        self.m.shared.scatter(region.buffer, place, dtype, values)
        self._keep_in_flight("the tcgen05.st", place, owner, call, reads=False)

    def _keep_in_flight(self, what: str, place: Place, owner: np.ndarray, call, reads: bool) -> None:
        """Keep the copy in flight until its warps wait for it."""
        queue = "tcgen05.ld" if reads else "tcgen05.st"
        if self.m.checks:
            for where, offsets, _ in self.m.shared.group_alike(place):
                words, first = np.unique(offsets // 4, return_index=True)
                for atom in self.m.active_atoms:
                    low, high = self.m.sim.atom_threads(int(atom))
                    threads = self.m.low + owner[first]
                    mine = (threads >= low) & (threads < high)
                    if not mine.any():
                        continue
                    for world, _ in self.m.worlds(where):
                        self._launch_move(what, world, int(atom), words[mine], threads[mine], queue, reads)
        if call.attrs["wait"]:
            self.wait(queue[-2:])

    def _launch_move(self, what: str, world, atom: int, cells: np.ndarray, threads: np.ndarray, queue: str,
                     reads: bool) -> None:
        places = [("tmem", self.m.rank, cells)]
        op = self.m.engines.operation(what, world, places if reads else [], [] if reads else places, _write_nothing, {},
                                      [], MANY, atom)
        op.threads, op.due, op.queued = threads.astype(np.int16), NEVER, True
        world.launch(op, self.m.sim.cells)
        self.m.sim.flying += 1
        world.queue(queue, self.m.rank, ("atom", atom)).open.append(op)


def _write_nothing(rows, params) -> None:
    """The `land` of a copy whose bytes have been moved already."""
