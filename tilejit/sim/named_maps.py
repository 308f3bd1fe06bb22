"""Tensor maps that a kernel names: their slots, edits and fences, and whether copies that use them may see the edits.

A map is written through the generic proxy and read by the copy engine through another one. A copy sees an edit if the
thread that made it has released it and a thread of the copy's CTA has acquired it since, both at a scope that
includes both CTAs. PTX ISA, "Memory Consistency Model: Proxies", "fence.proxy.tensormap".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..ops.moves.copy_async.tma.named_map import template
from ..types import TensorMap, layout_of
from .component import Component
from .map_slots import BYTES, DIMENSIONS, Acquired, Fields, Slot, leave_mark, slot_at, slots_of
from .tensor_maps import elements_of
from .values import Batched, SimBuffer, SimRegion, SimTensorMap
from .vector_clocks import ORDER

SCOPES = ("cta", "cluster", "gpu", "sys")


@dataclass(frozen=True, eq=False)
class SimMap(Batched):
    """A named map: `template` is what the launch encodes; `slot`, in global memory, and `shared`, in shared memory,
    are where the kernel keeps its own version."""

    type: TensorMap | None
    template: SimTensorMap | None
    slot: SimRegion | None
    shared: SimRegion | None

    def place(self, shared: bool) -> SimRegion:
        """Its place in shared memory, or in global memory, where it is known to have one."""
        region = self.shared if shared else self.slot
        assert region is not None
        return region

def _end(made: SimTensorMap, address: int) -> int:
    """The offset in its memory of the first byte after all that a map at an address reaches."""
    last = sum((n - 1) * s for n, s in zip(made.global_dim[1:], made.global_strides))
    return address - made.memory.address + elements_of(made).itemsize * made.global_dim[0] + last


class NamedMaps(Component):
    """The part of the machine that creates, edits, fences and reads tensor maps."""

    def named_map(self, type_: TensorMap, array: SimBuffer, slot: SimRegion | None, shared: SimBuffer | None) -> SimMap:
        key = "named", type_, id(array.memory)
        if key not in self.m.sim.maps:
            self.m.sim.maps[key] = template(type_)
        place = None
        if shared is not None:  # only its place is used
            place = SimRegion(type_, shared, (np.zeros((1, 1), np.int64),))  # type: ignore[arg-type]
        return SimMap(type_, self.m.tensor_map(array, self.m.sim.maps[key]), slot, place)

    def in_memory(self, place: SimRegion) -> SimMap:
        """The map in 128 bytes of global or shared memory, for instructions that name it by its address."""
        if place.buffer.memory.scope == "shared":
            return SimMap(None, None, None, place)
        return SimMap(None, None, place, None)

    # -- slots ---------------------------------------------------------------------------------------------------------

    def _active_positions(self, positions: np.ndarray | None = None) -> np.ndarray:
        """The positions of the CTAs of the batch (or of those at `positions`) in which some thread is active."""
        alive = np.flatnonzero(np.broadcast_to(self.m.active.any(axis=1), (self.m.batch,)))
        return alive if positions is None else np.intersect1d(alive, positions)

    def _bytes_at(self, region: SimRegion) -> np.ndarray:
        """The first byte of a slot in its memory, for each CTA of the batch."""
        buffer, starts = region.buffer, [s[:, :1].astype(np.int64) for s in region.starts]
        if buffer.memory.scope == "global":
            at = sum((s * k for s, k in zip(starts, buffer.array_strides)), np.zeros((1, 1), np.int64))
            at = (at + buffer.memory.origin) * buffer.memory.itemsize
        else:
            at = (np.asarray(layout_of(buffer.type).offset_of(*starts, shape=buffer.shape)).reshape(-1, 1)
                  * buffer.type.dtype.nbytes)
        return np.broadcast_to(at + np.asarray(buffer.base), (self.m.batch, 1))[:, 0]

    def _places(self, map_: SimMap, shared: bool,
                positions: np.ndarray | None = None) -> Iterator[tuple[int, int, Slot]]:
        """(position in the batch, first byte, slot) for each CTA: of the map in shared memory if `shared`, else of
        that in global memory."""
        region = map_.place(shared)
        at, memory = self._bytes_at(region), region.buffer.memory
        for b in self._active_positions(positions):
            if shared:
                yield int(b), int(at[b]), self.m.sim.shared_maps.setdefault((int(self.m.rows[b]), int(at[b])), Slot())
                continue
            if not 0 <= at[b] <= memory.bytes.size - BYTES:
                self.m.finding("out-of-bounds",
                               f"a slot of a tensor map is outside of {memory.name}{list(memory.shape)}",
                               ctas=self.m.ctas[b:b + 1])
                continue
            if (memory.address + int(at[b])) % BYTES and map_.type is None:
                self.m.finding("misaligned", f"a tensor map must lie at a multiple of {BYTES} bytes, "
                                             f"and byte {int(at[b])} of {memory.name} does not")
            yield int(b), int(at[b]), slot_at(memory, int(at[b]), self.m.sim.report.launch)

    def _slots(self, map_: SimMap, shared: bool, positions: np.ndarray | None = None) -> Iterator[tuple[int, Slot]]:
        for b, _, slot in self._places(map_, shared, positions):
            yield b, slot

    def _touch_bytes(self, map_: SimMap, shared: bool, writing: bool) -> None:
        """Check the access to a slot for races; its first element stands for all its bytes."""
        if not self.m.checks:
            return
        region = map_.place(shared)
        coords = tuple(s[:, :1].astype(np.int64) for s in region.starts)
        if writing:
            self.m.write(region.buffer, coords, np.zeros((1, 1), region.buffer.type.dtype.np))
        else:
            self.m.read(region.buffer, coords)

    def _editors(self, b: int) -> tuple[int, int]:
        """The threads, (first, one past the last), of CTA `b` of the batch that edit: the scope's first, or where
        threads have diverged, each active one."""
        if self.m.active_mask is None:
            return self.m.low, self.m.low + 1
        mine = np.flatnonzero(np.broadcast_to(self.m.active, (self.m.batch, self.m.threads))[b])
        self._check_sole_editor(len(mine), tuple(int(t) + self.m.low for t in mine[:8]), b)
        return self.m.low + int(mine[0]), self.m.low + int(mine[-1]) + 1

    def _check_sole_editor(self, editing: int, threads: tuple[int, ...], b: int) -> None:
        if editing > 1:
            self.m.finding("race", f"{editing} threads of one CTA edit one tensor map at the same time: "
                                   "an edit reads and writes whole words, so other threads' edits are lost",
                           threads=threads, ctas=self.m.ctas[b:b + 1])

    def _edit(self, map_: SimMap, shared: bool, fields, threads=None) -> None:
        """Set the fields of each CTA's slot to ``fields(position, slot)``."""
        places = [(b, at, slot, slot.fields is None and self._blank(map_, shared, b, at))
                  for b, at, slot in self._places(map_, shared)]
        self._touch_bytes(map_, shared, writing=True)
        for b, at, slot, blank in places:
            self._still_read(slot)
            if blank:
                slot.fields = Fields.of_zeros()
            slot.fields = fields(b, slot)
            slot.version += 1
            slot.legal, slot.launch = None, self.m.sim.report.launch
            slot.cta, slot.cluster = int(self.m.ctas[b]), (self.m.sim.serial, int(self.m.rows[b]) % self.m.sim.clusters)
            slot.threads, slot.loc, slot.released = threads or self._editors(b), self.m.loc, None
            if not shared:
                leave_mark(slot, map_.place(shared).buffer.memory, at)

    def _blank(self, map_: SimMap, shared: bool, b: int, at: int) -> bool:
        """Whether the 128 bytes are zeros, from which edits of single fields can build a map."""
        data = self.m.sim.shared.data[int(self.m.rows[b])] if shared else map_.place(shared).buffer.memory.bytes
        return not data[at:at + BYTES].any()

    def _still_read(self, slot: Slot) -> None:
        """Report an edit of a map that a pending copy may still read."""
        for world, _ in self.m.worlds():
            for chunk, number in slot.copies:
                op = world.ops.get(number) if chunk == self.m.sim.serial else None
                if op is not None and not op.awaited:
                    loc = self.m.sim.locs[op.line]
                    self.m.finding("missing-wait",
                                   f"a tensor map is edited while {op.what} at line {loc.line if loc else '?'}, "
                                   "which reads it, has not been waited for")
        slot.copies.clear()

    # -- edits ---------------------------------------------------------------------------------------------------------

    def seed(self, map_: SimMap) -> None:
        """Set the slot to the map that the launch has encoded."""
        template = map_.template
        assert template is not None  # a map by name has one
        self._edit(map_, map_.shared is not None, lambda b, slot: Fields.of(template))

    def rebind(self, map_: SimMap, place, *numbers) -> None:
        """Set a new address, dimensions and strides. `numbers` are the dimensions and the strides (in
        bytes), innermost first."""
        assert map_.type is not None  # a map by name has one
        rank, values = len(map_.type.box), [np.asarray(n) for n in numbers]
        where = self._address_function(place)

        def rebound(b: int, slot: Slot) -> Fields | None:
            if not slot.version:
                self.m.finding("descriptor", "a tensor map that was never seeded is rebound: "
                                             "its other fields hold whatever was in memory",
                               ctas=self.m.ctas[b:b + 1])
                return None
            dims, strides = (tuple(self._value_in(x, b) for x in part) for part in (values[:rank], values[rank:]))
            fields = slot.fields and slot.fields.rebound(where(b), dims, strides)
            return fields if fields and (fields.missing_fields() or self._check_copy_bounds(b, fields)) else None

        self._edit(map_, map_.shared is not None, rebound)

    def replace(self, map_: SimMap, shared: bool, name: str, index: int | None, value) -> None:
        """``tensormap.replace``: set one field of a map, by each thread of the scope."""
        if self.m.threads > 1 and self.m.active_mask is None:
            self._check_sole_editor(self.m.threads, (self.m.low, self.m.low + 1), 0)

        def replace_field(b: int, slot: Slot) -> Fields | None:
            if slot.fields is None:
                self.m.finding("descriptor", "a field of a tensor map that was never seeded is replaced: "
                                             "the others hold whatever was in memory",
                               ctas=self.m.ctas[b:b + 1])
                return None
            return slot.fields.replace(name, index, self._value_in(value, b))

        self._edit(map_, shared, replace_field)

    def _value_in(self, x, b: int) -> int:
        """The value of a number in CTA `b` of the batch, for its first active thread."""
        x = np.asarray(x)
        if not x.ndim:
            return int(x)
        return int(x[b if x.shape[0] > 1 else 0, self._first_active(b) if x.shape[1] > 1 else 0])

    def _first_active(self, b: int) -> int:
        return int(np.argmax(np.broadcast_to(self.m.active, (self.m.batch, self.m.threads))[b]))

    def _address_function(self, place):
        """A function from a position in the batch to the address of `place`, a region or a number."""
        if not isinstance(place, SimRegion):
            return lambda b: self._value_in(place, b) & (1 << 64) - 1
        memory = place.buffer.memory
        at = sum((s.astype(np.int64) * k for s, k in zip(place.starts, place.buffer.strides)),
                 np.zeros((1, 1), np.int64)) + memory.origin
        at = at * memory.itemsize + np.asarray(place.buffer.base)
        return lambda b: memory.address + self._value_in(at, b)

    def _map_over_argument(self, f: Fields) -> SimTensorMap | None:
        """The map with these fields over the launch argument that it points to, preferably one that contains all it
        reaches; None if there is no such argument."""
        rank = f.rank
        def map_over(m):
            return SimTensorMap(m, f.address - m.address - m.origin * m.itemsize, f.dtype, f.dims[:rank],
                                f.strides[:rank - 1], f.box[:rank],
                                              f.steps[:rank], f.interleave, f.swizzle, f.l2_promotion, f.oob_fill)
        holding = [m for m in self.m.sim.arguments
                   if m is not None and m.address <= f.address < m.address + max(m.bytes.size, 1)]
        chosen = max(holding,
                     key=lambda m: (_end(map_over(m), f.address) <= m.bytes.size, f.dtype == str(m.array.dtype),
                                    -m.number),
                     default=None)
        return None if chosen is None else map_over(chosen)

    def _check_copy_bounds(self, b: int, f: Fields) -> bool:
        """Whether a copy would stay inside the array that the map points to; reports a finding if not."""
        where: dict[str, Any] = dict(ctas=self.m.ctas[b:b + 1])
        made = self._map_over_argument(f)
        if not 1 <= f.rank <= DIMENSIONS:
            self.m.finding("descriptor", f"a tensor map has 1 to {DIMENSIONS} dimensions, not {f.rank}", **where)
            return False
        if made is None:
            self.m.finding("descriptor",
                           f"a tensor map points to the address {f.address:#x}, which is in no array of the launch",
                           **where)
            return False
        for d, n in enumerate(made.global_dim):
            if not 1 <= n <= 1 << 32:
                self.m.finding("descriptor", f"a tensor map has {n} elements along its dimension {d} (the innermost is "
                                             "0); it may have 1 to 2**32",
                               **where)
                return False
        for s in made.global_strides:
            if s % 16 or not 0 <= s < 1 << 40:
                self.m.finding("descriptor",
                               f"a tensor map has a stride of {s} bytes; strides are multiples of 16 bytes below 2**40",
                               **where)
                return False
        if f.address % 16:
            self.m.finding("misaligned",
                           f"a tensor map points to the address {f.address:#x}, which is no multiple of 16 bytes",
                           **where)
            return False
        memory, end = made.memory, _end(made, f.address)
        if end > memory.bytes.size:
            self.m.finding("out-of-bounds",
                           f"a tensor map has dimensions {list(made.global_dim)} and strides "
                           f"{list(made.global_strides)} that reach byte {end} of {memory.name}, "
                           f"which has {memory.bytes.size}", **where)
            return False
        return True

    # -- fences --------------------------------------------------------------------------------------------------------

    def release(self, map_: SimMap, scope: str) -> None:
        """``fence_release``: release the edits that the scope's threads made to the map.
        Edits by other threads are not released."""
        for b, slot in self._slots(map_, False):
            self._release(b, slot, scope)

    def release_all(self, scope: str) -> None:
        """The release fence as an instruction: release all edits that the scope's threads have made to any map."""
        for b in self._active_positions():
            for slot in slots_of(self.m.sim.report.launch):
                self._release(int(b), slot, scope)

    def _release(self, b: int, slot: Slot, scope: str) -> None:
        if (slot.launch == self.m.sim.report.launch and slot.cta == int(self.m.ctas[b])
            and self.m.low <= slot.threads[0] and slot.threads[1] <= self.m.high):
            slot.released = max(slot.released or "cta", scope, key=SCOPES.index)

    def publish(self, map_: SimMap, scope: str) -> None:
        """Copy the map in shared memory to its slot and release it, between two barriers of the scope."""
        self.m.sync.scope()
        self.copy_map(map_, map_, scope)
        self.m.sync.scope()

    def copy_map(self, to: SimMap, source: SimMap, scope: str) -> None:
        """A warp copies all 128 bytes of a map in shared memory to a slot and releases it."""
        self._touch_bytes(source, True, writing=False)
        made = dict(self._slots(source, True))
        for b, slot in made.items():
            if slot.fields is None:
                self.m.finding("descriptor", "a tensor map is published from shared memory to which none was written: "
                                             "seed it there first",
                               ctas=self.m.ctas[b:b + 1])
        self._edit(to, False, lambda b, slot: made[b].fields, threads=(self.m.low, self.m.low + 32))
        for _, slot in self._slots(to, False):
            slot.released = scope

    def acquire(self, map_: SimMap, scope: str) -> None:
        self._touch_bytes(map_, False, writing=False)
        for b, slot in self._slots(map_, False):
            (world, _), *_ = self.m.worlds(np.array([b]))
            epochs = {int(a): int(world.clocks.now[self.m.rank, a]) for a in self.m.active_atoms}
            before = slot.acquired.get(int(self.m.ctas[b]))
            if (before is not None and before.version == slot.version
                and SCOPES.index(before.scope) >= SCOPES.index(scope)):
                epochs = {**before.epochs, **epochs}
            slot.acquired[int(self.m.ctas[b])] = Acquired(slot.version, slot.released, scope, epochs)

    def prefetch(self, map_: SimMap) -> None:
        """Prefetch the map. No effect."""

    # -- reading -------------------------------------------------------------------------------------------------------

    @contextmanager
    def open_map(self, map_: SimMap, positions: np.ndarray | None):
        """The maps for a copy: [(map, the positions in the batch that it is for)]. Operations issued inside the
        ``with`` block read the slots."""
        if map_.slot is None:
            yield [(map_.template, positions)]
            return
        before = self.m.sim.operations
        if self.m.checks:
            self._touch_bytes(map_, False, writing=False)
        slots = dict(self._slots(map_, False, positions))
        for b, slot in slots.items():
            self._check_fence(b, slot)
            if slot.legal is None:
                slot.legal = (slot.fields is not None and self._complete(b, slot)
                              and self._check_copy_bounds(b, slot.fields))
        yield list(self._describe_maps(slots))
        for slot in slots.values():
            slot.copies += ((self.m.sim.serial, n) for n in range(before + 1, self.m.sim.operations + 1))

    def _complete(self, b: int, slot: Slot) -> bool:
        """Whether a map that was made from zeros has all its fields; reports a finding if not."""
        missing = slot.known_fields().missing_fields()
        if missing:
            self.m.finding("descriptor", "a copy uses a tensor map that was made from zeros, and nothing has set its "
                                         f"{', '.join(missing)}: tensormap.replace sets each, or seed the map",
                           ctas=self.m.ctas[b:b + 1], other=slot.loc)
        return not missing

    def _check_fence(self, b: int, slot: Slot) -> None:
        """Check that the copy of a CTA sees the last edit of the map."""
        where: dict[str, Any] = dict(ctas=self.m.ctas[b:b + 1], other=slot.loc)
        if not slot.version:
            why = "that nothing has written: seed it, or publish it, first"
            if slot.lost is not None:
                why = f"whose bytes something else has overwritten since its edit at line {slot.lost.line}"
            self.m.finding("descriptor", f"a copy uses a tensor map {why}", **where)
            return
        needed, who = self._scope_between(b, slot)
        edit = "its edit" if slot.loc is None else f"its edit at line {slot.loc.line}"
        if slot.loc is not None and slot.launch != self.m.sim.report.launch:
            edit += " of an earlier launch"
        known = slot.acquired.get(int(self.m.ctas[b]))
        if known is None or known.version != slot.version:
            self.m.finding("missing-proxy-fence",
                           f"a copy uses a tensor map without .fence_acquire(scope) after {edit}: "
                           "the engine may read its old contents", **where)
            return
        if known.released is None:
            self.m.finding("missing-proxy-fence", f"a copy uses a tensor map, and the thread that made {edit} has not "
                                                  "released it: it must call .fence_release(scope)", **where)
            return
        for word, scope in (("released", known.released), ("acquired", known.scope)):
            if SCOPES.index(scope) < SCOPES.index(needed):
                self.m.finding("missing-proxy-fence", f"a copy uses a tensor map, and {edit} in {who} was {word} for "
                                                      f"{scope!r} only: scope {needed!r} is needed", **where)
                return
        self._after_acquire(b, known, where)

    def _scope_between(self, b: int, slot: Slot) -> tuple[str, str]:
        """The scope that includes both the CTA that edited the slot and CTA `b` of the batch,
        and words for the former."""
        if slot.cta >= 0 and slot.launch != self.m.sim.report.launch:
            return "gpu", "a CTA of that launch"
        if slot.cta in (-1, int(self.m.ctas[b])):  # nothing edited a copy: whoever has copied it may be near
            return "cta", "the CTA"
        near = (self.m.sim.serial, int(self.m.rows[b]) % self.m.sim.clusters) == slot.cluster
        return ("cluster", "another CTA") if near else ("gpu", "a CTA of another cluster")

    def _after_acquire(self, b: int, known: Acquired, where: dict) -> None:
        """Check that the copying thread has acquired the map itself, or is ordered after a thread that has."""
        (world, _), *_ = self.m.worlds(np.array([b]))
        atom = int(self.m.active_atoms[0])
        for other, epoch in known.epochs.items():
            if (other == atom
                or world.clocks.known[self.m.rank, atom, ORDER, world.clocks.column(self.m.rank, other)] >= epoch):
                return
        self.m.finding("missing-proxy-fence",
                       "a copy uses a tensor map that only other threads have acquired, and nothing orders it after "
                       "them: add a barrier, or call .fence_acquire(scope) in the copying thread", **where)

    def _describe_maps(self, slots: dict[int, Slot]) -> Iterator[tuple[SimTensorMap, np.ndarray]]:
        """The maps in the slots, as batched maps: one for each array that slots point to and each combination of the
        fields that `Fields.batch_key` lists, with the positions of its CTAs."""
        groups: dict[tuple, list[tuple[int, SimTensorMap]]] = {}
        for b, slot in slots.items():
            made = self._map_over_argument(slot.known_fields()) if slot.legal else None
            if made is not None:
                groups.setdefault((id(made.memory), *slot.known_fields().batch_key()), []).append((b, made))
        for members in groups.values():
            positions, maps = zip(*members)
            first = maps[0]
            if len(members) == self.m.batch and len({(m.base, m.global_dim, m.global_strides) for m in maps}) == 1:
                yield first, np.array(positions)
                continue
            table = dict(members)
            def column_of(pick):
                return np.array([pick(table.get(b, first)) for b in range(self.m.batch)], np.int64).reshape(-1, 1)
            yield replace(first, base=column_of(lambda m: m.base),
                          global_dim=tuple(column_of(lambda m, d=d: m.global_dim[d]) for d in range(first.rank)),
                          global_strides=tuple(column_of(lambda m, d=d: m.global_strides[d])
                                               for d in range(first.rank - 1))), np.array(positions)
