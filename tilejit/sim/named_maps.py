"""Tensor maps that the kernel names: their slots, who edits them, and whether those who copy by them may see the edits.

A map is written by the generic proxy and read by the copy engine in another one. An edit counts for a copy when the thread
that made it has released it and threads of the copy's CTA have acquired it since, both as far as the two are apart. PTX ISA,
"Memory Consistency Model: Proxies", "fence.proxy.tensormap".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import Loc
from ..ops.copy_async.tma_map import template
from ..types import TensorMap
from .clocks import ORDER
from .values import Batched, SimBuffer, SimRegion, SimTensorMap

SCOPES = ("cta", "cluster", "gpu", "sys")


@dataclass(frozen=True, eq=False)
class SimMap(Batched):
    """A named map: what the launch encodes, and the slot (and the shared memory) that hold the kernel's own."""

    type: TensorMap
    template: SimTensorMap
    slot: SimRegion | None
    shared: SimBuffer | None


@dataclass(frozen=True)
class Content:
    """The fields of a map that an edit may change: where it points, sizes, strides in bytes. `memory` None: nowhere."""

    memory: Any
    base: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Acquired:
    """What a CTA knows of a slot: the version it acquired, over which scope, and when its atoms did: {atom: epoch}."""

    version: int
    released: str | None
    scope: str
    epochs: dict[int, int]


@dataclass
class Slot:
    """128 bytes that hold a map: its content, the last edit and who made it."""

    content: Content | None = None
    version: int = 0
    cta: int = -1
    cluster: tuple = ()
    threads: tuple[int, int] = (0, 0)
    loc: Loc | None = None
    released: str | None = None                                      # over which scope the last edit was
    acquired: dict[int, Acquired] = field(default_factory=dict)      # by CTA
    copies: list[tuple[int, int]] = field(default_factory=list)      # the operations that read it: (chunk, number)


class NamedMaps:
    """The part of the machine that makes, edits, fences and reads tensor maps."""

    def named_map(self, type_: TensorMap, array: SimBuffer, slot: SimRegion | None, shared: SimBuffer | None) -> SimMap:
        key = "named", type_, id(array.memory)
        if key not in self.sim.maps:
            self.sim.maps[key] = template(type_)
        return SimMap(type_, self.tensor_map(array, self.sim.maps[key]), slot, shared)

    # -- slots -------------------------------------------------------------------------------------------------------------

    def _here(self, positions: np.ndarray | None = None) -> np.ndarray:
        """The CTAs of the batch in which some thread is active, of those at `positions`."""
        alive = np.flatnonzero(np.broadcast_to(self.active.any(axis=1), (self.batch,)))
        return alive if positions is None else np.intersect1d(alive, positions)

    def _slots(self, map_: SimMap, shared: bool, positions: np.ndarray | None = None) -> Iterator[tuple[int, Slot]]:
        """(position in the batch, slot) of each CTA: the one in global memory, or the one in `shared`."""
        if shared:
            for b in self._here(positions):
                yield int(b), self.sim.shared_maps.setdefault((int(self.rows[b]), int(map_.shared.base)), Slot())
            return
        region = map_.slot
        at = sum((s[:, :1].astype(np.int64) * k for s, k in zip(region.starts, region.buffer.strides)), np.zeros((1, 1), np.int64))
        memory = region.buffer.memory
        at = (at + memory.origin) * memory.itemsize + np.asarray(region.buffer.base)
        if ((at < 0) | (at + 128 > memory.bytes.size)).any():
            self.finding("out-of-bounds", f"a slot of a tensor map is outside of {memory.name}{list(memory.shape)}")
            at = np.clip(at, 0, max(memory.bytes.size - 128, 0))
        at = np.broadcast_to(at, (self.batch, 1))
        for b in self._here(positions):
            yield int(b), memory.maps.setdefault(int(at[b, 0]), Slot())

    def _touch(self, map_: SimMap, shared: bool, writing: bool) -> None:
        """The slot's first element stands for its bytes in the search for races."""
        if not self.checks:
            return
        if shared:
            buffer, coords = map_.shared, (np.zeros((1, 1), np.int64),)
        else:
            buffer, coords = map_.slot.buffer, tuple(s[:, :1].astype(np.int64) for s in map_.slot.starts)
        if writing:
            self.write(buffer, coords, np.zeros((1, 1), buffer.type.dtype.np))
        else:
            self.read(buffer, coords)

    def _editors(self, b: int) -> tuple[int, int]:
        """The threads of CTA `b` of the batch that edit: the scope's first, or each that comes here where they have parted."""
        if self._active is None:
            return self.low, self.low + 1
        mine = np.flatnonzero(np.broadcast_to(self.active, (self.batch, self.threads))[b])
        if len(mine) > 1:
            self.finding("race", f"{len(mine)} threads of one CTA edit one tensor map at the same time: an edit reads and writes whole words, "
                         "so that others are lost", threads=tuple(int(t) + self.low for t in mine[:8]), ctas=self.ctas[b:b + 1])
        return self.low + int(mine[0]), self.low + int(mine[-1]) + 1

    def _edit(self, map_: SimMap, shared: bool, content, threads=None) -> None:
        """Give the slot of each CTA new content: ``content(position, slot)``."""
        self._touch(map_, shared, writing=True)
        for b, slot in self._slots(map_, shared):
            self._still_read(slot)
            slot.content = content(b, slot)
            slot.version += 1
            slot.cta, slot.cluster = int(self.ctas[b]), (id(self.sim), int(self.rows[b]) % self.sim.clusters)
            slot.threads, slot.loc, slot.released = threads or self._editors(b), self.loc, None

    def _still_read(self, slot: Slot) -> None:
        """A map must not change under a copy that is not known to be done."""
        for world, _ in self.worlds():
            for chunk, number in slot.copies:
                op = world.ops.get(number) if chunk == id(self.sim) else None
                if op is not None and not op.awaited:
                    self.finding("missing-wait", f"a tensor map is edited while {op.what} at line {self.sim.locs[op.line].line}, "
                                 "which reads it, has not been waited for")
        slot.copies.clear()

    # -- edits ---------------------------------------------------------------------------------------------------------------

    def map_seed(self, map_: SimMap) -> None:
        """The slot becomes what the launch has encoded."""
        t = map_.template
        self._edit(map_, map_.shared is not None, lambda b, slot: Content(t.memory, int(np.asarray(t.base)), tuple(t.global_dim), tuple(t.global_strides)))

    def map_rebind(self, map_: SimMap, place, *numbers) -> None:
        """New address, dimensions and strides. `numbers` are those, innermost first; strides in bytes."""
        rank, values = len(map_.type.box), [np.asarray(n) for n in numbers]
        thread = lambda x, b: int(x[b if x.shape[0] > 1 else 0, self._first(b) if x.shape[1] > 1 else 0])
        where = self._pointed(place)

        def content(b: int, slot: Slot) -> Content | None:
            if slot.content is None:
                self.finding("descriptor", "a tensor map is rebound that was never seeded: its other fields are what was in memory", ctas=self.ctas[b:b + 1])
                return None
            memory, base = where(b)
            dims, strides = (tuple(thread(x, b) for x in part) for part in (values[:rank], values[rank:]))
            return self._checked(map_, b, Content(memory, base, dims, strides))

        self._edit(map_, map_.shared is not None, content)

    def _first(self, b: int) -> int:
        return int(np.argmax(np.broadcast_to(self.active, (self.batch, self.threads))[b]))

    def _pointed(self, place):
        """For a CTA of the batch, what memory and which byte of it (from its element 0) a place or an address is."""
        if isinstance(place, SimRegion):
            nbytes = place.type.dtype.nbytes
            at = sum((s.astype(np.int64) * k for s, k in zip(place.starts, place.buffer.strides)), np.zeros((1, 1), np.int64)) * nbytes
            at = at + np.asarray(place.buffer.base)
            return lambda b: (place.buffer.memory, int(at[b if at.shape[0] > 1 else 0, self._first(b) if at.shape[1] > 1 else 0]))
        address = np.asarray(place)

        def found(b: int):
            value = int(address[b if address.shape[0] > 1 else 0, self._first(b) if address.shape[1] > 1 else 0]) & (1 << 64) - 1
            for memory in self.sim.arguments:
                if memory is not None and memory.address <= value < memory.address + memory.bytes.size:
                    return memory, value - memory.address - memory.origin * memory.itemsize
            return None, value
        return found

    def _checked(self, map_: SimMap, b: int, c: Content) -> Content | None:
        """The content, unless the engine would leave the array that it points to."""
        where = dict(ctas=self.ctas[b:b + 1])
        if c.memory is None:
            self.finding("descriptor", f"a tensor map is rebound to the address {c.base:#x}, which is in no array of the launch", **where)
            return None
        for d, n in enumerate(c.dims):
            if not 1 <= n <= 1 << 32:
                self.finding("descriptor", f"a tensor map is rebound to {n} elements along its dimension {d} (the innermost is 0); it may have 1 to 2**32", **where)
                return None
        for s in c.strides:
            if s % 16 or not 0 <= s < 1 << 40:
                self.finding("descriptor", f"a tensor map is rebound to a stride of {s} bytes; strides are multiples of 16 bytes below 2**40", **where)
                return None
        address = c.memory.address + c.memory.origin * c.memory.itemsize + c.base
        if address % 16:
            self.finding("misaligned", f"a tensor map is rebound to the address {address:#x}, which is no multiple of 16 bytes", **where)
            return None
        end = c.base + c.memory.origin * c.memory.itemsize + map_.type.dtype.nbytes * c.dims[0] + sum((n - 1) * s for n, s in zip(c.dims[1:], c.strides))
        if c.base + c.memory.origin * c.memory.itemsize < 0 or end > c.memory.bytes.size:
            self.finding("out-of-bounds", f"a tensor map is rebound to dimensions {list(c.dims)} and strides {list(c.strides)} that reach byte {end} of "
                         f"{c.memory.name}, which has {c.memory.bytes.size}", **where)
            return None
        return c

    # -- fences --------------------------------------------------------------------------------------------------------------

    def map_release(self, map_: SimMap, scope: str) -> None:
        """The edits of the scope's threads are released; those of others are not theirs to release."""
        for b, slot in self._slots(map_, False):
            if slot.cta == int(self.ctas[b]) and self.low <= slot.threads[0] and slot.threads[1] <= self.high:
                slot.released = max(slot.released or "cta", scope, key=SCOPES.index)

    def map_publish(self, map_: SimMap, scope: str) -> None:
        """The slot becomes what is in shared memory, released; between barriers of the scope."""
        self.sync()
        self._touch(map_, True, writing=False)
        made = {b: slot.content for b, slot in self._slots(map_, True)}
        self._edit(map_, False, lambda b, slot: made[b], threads=(self.low, self.low + 32))
        for b, slot in self._slots(map_, False):
            slot.released = scope
        self.sync()

    def map_acquire(self, map_: SimMap, scope: str) -> None:
        self._touch(map_, False, writing=False)
        for b, slot in self._slots(map_, False):
            (world, _), *_ = self.worlds(np.array([b]))
            epochs = {int(a): int(world.clocks.now[self.rank, a]) for a in self.active_atoms}
            before = slot.acquired.get(int(self.ctas[b]))
            if before is not None and before.version == slot.version and SCOPES.index(before.scope) >= SCOPES.index(scope):
                epochs = {**before.epochs, **epochs}
            slot.acquired[int(self.ctas[b])] = Acquired(slot.version, slot.released, scope, epochs)

    def map_prefetch(self, map_: SimMap) -> None:
        """Nothing is seen of it."""

    # -- reading ---------------------------------------------------------------------------------------------------------------

    @contextmanager
    def reading_map(self, map_: SimMap, positions: np.ndarray | None):
        """The maps that a copy reads, with the CTAs of the batch that each is for; what the block issues reads them."""
        if map_.slot is None:
            yield [(map_.template, positions)]
            return
        before = self.sim.operations
        if self.checks:
            self._touch(map_, False, writing=False)
        slots = dict(self._slots(map_, False, positions))
        for b, slot in slots.items():
            self._fenced(b, slot)
        yield list(self._described(map_, slots))
        for slot in slots.values():
            slot.copies += ((id(self.sim), n) for n in range(before + 1, self.sim.operations + 1))

    def _fenced(self, b: int, slot: Slot) -> None:
        """Whether the copy of a CTA sees the last edit of the map."""
        where = dict(ctas=self.ctas[b:b + 1], other=slot.loc)
        known = slot.acquired.get(int(self.ctas[b]))
        edit = f"its edit at line {slot.loc.line}" if slot.loc is not None else "its edit"
        if not slot.version:
            self.finding("descriptor", "a copy goes by a tensor map that nothing has made: seed it, or publish it, first", **where)
            return
        if known is None or known.version != slot.version:
            self.finding("missing-proxy-fence", f"a copy goes by a tensor map without .fence_acquire(scope) after {edit}: the engine may use what it was before", **where)
            return
        if known.released is None:
            self.finding("missing-proxy-fence", f"a copy goes by a tensor map, and {edit} was not released by the thread that made it: .fence_release(scope)", **where)
            return
        own = slot.cta == int(self.ctas[b])
        near = (id(self.sim), int(self.rows[b]) % self.sim.clusters) == slot.cluster
        needed = "cta" if own else "cluster" if near else "gpu"
        for word, scope in (("released", known.released), ("acquired", known.scope)):
            if SCOPES.index(scope) < SCOPES.index(needed):
                self.finding("missing-proxy-fence", f"a copy goes by a tensor map of which {edit} in {'another CTA' if near else 'a CTA of another cluster'} "
                             f"was {word} for {scope!r} only: it takes {needed!r}", **where)
                return
        self._after_acquire(b, known, where)

    def _after_acquire(self, b: int, known: Acquired, where: dict) -> None:
        """The copying thread has acquired itself, or comes after a thread that has."""
        (world, _), *_ = self.worlds(np.array([b]))
        atom = int(self.active_atoms[0])
        for other, epoch in known.epochs.items():
            if other == atom or world.clocks.known[self.rank, atom, ORDER, world.clocks.column(self.rank, other)] >= epoch:
                return
        self.finding("missing-proxy-fence", "a copy goes by a tensor map that other threads have acquired, and nothing orders it after them: a barrier, or "
                     ".fence_acquire(scope) in its own thread", **where)

    def _described(self, map_: SimMap, slots: dict[int, Slot]) -> Iterator[tuple[SimTensorMap, np.ndarray]]:
        """Maps with a row for each CTA, one for each array that slots point to."""
        groups: dict[int, list[int]] = {}
        for b, slot in slots.items():
            if slot.content is not None:
                groups.setdefault(id(slot.content.memory), []).append(b)
        t = map_.template
        for members in groups.values():
            contents = [slots[b].content for b in members]
            if len(members) == self.batch and all(c == contents[0] for c in contents):
                at = lambda pick: pick(contents[0])
            else:
                table = [slots[b].content if b in members else contents[0] for b in range(self.batch)]
                at = lambda pick: np.array([pick(c) for c in table], np.int64).reshape(-1, 1)
            rank = len(contents[0].dims)
            yield SimTensorMap(contents[0].memory, at(lambda c: c.base), t.dtype, tuple(at(lambda c, d=d: c.dims[d]) for d in range(rank)),
                               tuple(at(lambda c, d=d: c.strides[d]) for d in range(rank - 1)), t.box, t.element_strides, t.interleave,
                               t.swizzle, t.l2_promotion, t.oob_fill), np.array(members)
