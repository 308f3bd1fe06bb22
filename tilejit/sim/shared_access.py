"""Ordinary accesses to the shared and tensor memory of the batch's CTAs, checked against the shadows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from ..layout import TileLayout, axis
from ..types import layout_of
from .atomics import apply_atomic
from .component import Component
from .faults import Reporter
from .memory import TensorMemory
from .shadow import ANYONE, MANY, Access, Conflict
from .shared_units import read_units, units_at, write_units
from .values import SimBuffer, SimRegion, coordinates_of


@dataclass
class Place:
    """Where elements lie: byte offsets (B or 1, n) in a memory, the shape of the elements (without the batch axis),
    and a mask of those that are accessed (None: all)."""

    offsets: np.ndarray
    shape: tuple[int, ...]
    keep: np.ndarray | None = None
    # of places that are kept for later, the same in every CTA: the indices of the elements if they are contiguous, and
    # the numbers of the 16-byte units that they form
    run: slice | None = None
    units: np.ndarray | None = None


class SharedAccess(Component):
    """The part of the machine that accesses shared and tensor memory."""

    # -- reads and writes of elements ----------------------------------------------------------------------------------

    def read(self, buffer: SimBuffer, coords, mask, other, owner, region, atomic, tile=None) -> np.ndarray:
        dtype = buffer.type.dtype.np
        place = self.place(buffer, coords, mask, region, dtype.itemsize)
        shape = (self.m.batch, *place.shape)
        self.m.global_memory.count(f"{buffer.memory.scope} -> registers", self.count_access(place) * dtype.itemsize)
        if self.m.checks and not atomic:
            self.check(buffer, place, dtype.itemsize, owner, writing=False, tile=tile)
        values = self.gather(buffer, place, dtype).reshape(shape)
        if place.keep is not None:
            values = np.where(place.keep.reshape(-1, *place.shape), values, np.asarray(other, dtype))
        return values

    def write(self, buffer: SimBuffer, coords, values, mask, owner, region) -> None:
        dtype = buffer.type.dtype.np
        values = np.asarray(values)
        if values.dtype != dtype:
            values = values.astype(dtype)
        place = self.place(buffer, coords, mask, region, dtype.itemsize, values.shape[1:])
        self.m.global_memory.count(f"registers -> {buffer.memory.scope}", self.count_access(place) * dtype.itemsize)
        values = np.broadcast_to(values, (values.shape[0], *place.shape)).reshape(values.shape[0], -1)
        if buffer.type.layout is not None and buffer.type.layout.replicas and buffer.memory.scope == "tmem":
            place, values, owner = self._write_replicas(buffer, place, values, owner)
        if self.m.checks:
            self.check(buffer, place, dtype.itemsize, owner, writing=True, values=values)
        self.scatter(buffer, place, dtype, values)

    def atomic(self, buffer: SimBuffer, coords, kind, values, compare, mask, owner) -> np.ndarray:
        """See `Machine.atomic`."""
        dtype = buffer.type.dtype.np
        place = self.place(buffer, coords, mask, None, dtype.itemsize, values.shape[1:])
        if self.m.checks:
            self.check(buffer, place, dtype.itemsize, owner, writing=True, atomic=True, combines=kind != "exch")
        shape = (self.m.batch, *place.shape)
        memory = buffer.memory.view(dtype)
        flat = memory.reshape(-1)
        rows = self.m.rows_of(buffer.peer)
        rows = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        index = np.broadcast_to(rows[:, None] * memory.shape[1] + place.offsets // dtype.itemsize,
                                (self.m.batch, place.offsets.shape[1]))
        def spread(x):
            return np.broadcast_to(x, shape).reshape(self.m.batch, -1)
        keep = None if place.keep is None else np.broadcast_to(place.keep, index.shape)
        def kept_part(x):
            return x.reshape(-1) if keep is None else x[keep]
        at = kept_part(index)
        old = np.zeros(index.shape, dtype)
        if at.size:
            before, changed = apply_atomic(flat, at, kind, kept_part(spread(values)),
                                           None if compare is None else kept_part(spread(compare)))
            if keep is None and before is not None:
                old = before.reshape(index.shape)
            else:
                old[keep] = before
            self.m.sim.version += changed
        self.m.global_memory.count("atomics", at.size * dtype.itemsize)
        return old.reshape(shape)

    # -- raw bytes -----------------------------------------------------------------------------------------------------

    def read_bytes(self, buffer, offsets: np.ndarray, nbytes: int) -> np.ndarray:
        """`nbytes` bytes from each of `offsets` (B or 1, n), relative to the buffer: uint8 (B, n, nbytes). Not
        checked against the shadow."""
        if isinstance(buffer, SimBuffer):
            memory, base, peer = buffer.memory, buffer.base, buffer.peer
        else:
            memory, base, peer = buffer, 0, None
        offsets = np.asarray(offsets) + base
        at = offsets[..., None] + np.arange(nbytes)
        if memory.scope == "global":
            return memory.bytes[memory.origin * memory.itemsize + at]
        rows = self.m.rows_of(peer)
        if at.shape[0] == 1:
            return memory.data[rows][:, at[0]]
        rows = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        return memory.data[rows.reshape(-1, *(1,) * (at.ndim - 1)), at]

    # -- where elements are --------------------------------------------------------------------------------------------

    def place(self, buffer: SimBuffer, coords, mask, region, itemsize: int, extra: tuple[int, ...] = ()) -> Place:
        key = None
        plain = mask is None and self.m.active_mask is None and np.ndim(buffer.base) == 0
        if (plain and isinstance(region, SimRegion) and all(s.size == 1 for s in region.starts)
                and extra in ((), region.type.shape)):
            key = (region.type, buffer.base, tuple(int(s.flat[0]) for s in region.starts), itemsize)
            if key in self.m.sim.places:
                return self.m.sim.places[key]
        coords = coordinates_of(region) if coords is None else coords
        place = self._compute_place(buffer, coords, mask, itemsize, extra)
        if key is not None:
            first = place.offsets[0] // itemsize
            if len(first) and place.keep is None and (np.diff(first) == 1).all():
                place.run = slice(int(first[0]), int(first[-1]) + 1)
            elif place.keep is None:
                place.units = units_at(place.offsets[0], itemsize)
            if len(self.m.sim.places) > 512:
                self.m.sim.places.clear()
            if place.keep is None:
                self.m.sim.places[key] = place
        return place

    def _compute_place(self, buffer: SimBuffer, coords, mask, itemsize: int, extra: tuple[int, ...]) -> Place:
        keep = None if mask is None else np.asarray(mask)
        if self.m.active_mask is not None:
            keep = self.m.active_mask if keep is None else keep & self.m.active_mask
        wrong = None
        clipped = []
        for c, size in zip(coords, buffer.shape):
            c = np.asarray(c)
            bad = (c < 0) | (c >= size)
            if bad.any():
                wrong = bad if wrong is None else wrong | bad
                c = np.clip(c, 0, size - 1)
            clipped.append(c.astype(np.int64))
        if wrong is not None:
            bad = wrong if keep is None else wrong & keep
            if bad.any():
                self._report_outside(buffer, coords, np.asarray(bad))
            keep = ~wrong if keep is None else keep & ~wrong
        layout = buffer.type.layout
        if buffer.memory.scope == "tmem":
            return self._tmem_place(buffer, clipped, keep, itemsize, extra)
        layout = layout or TileLayout.row_major(buffer.shape)
        at = layout.offset_of(*clipped, shape=buffer.shape)
        at = np.asarray(at, np.int64)
        shape = np.broadcast_shapes(*(c.shape for c in clipped), at.shape, (1, *extra) if extra else (),
                                    () if keep is None else keep.shape)
        base = np.asarray(buffer.base, np.int64).reshape(-1, *(1,) * (len(shape) - 1))
        at = at * itemsize + base
        at = np.broadcast_to(at, (at.shape[0] if at.ndim == len(shape) else 1, *shape[1:]))
        if keep is not None:
            if keep.all():
                keep = None
            else:
                keep = np.broadcast_to(keep, (keep.shape[0], *shape[1:])).reshape(keep.shape[0], -1)
        return Place(at.reshape(at.shape[0], -1), tuple(shape[1:]), keep)

    def _tmem_place(self, buffer: SimBuffer, coords, keep, itemsize: int, extra: tuple[int, ...]) -> Place:
        """The place of elements of tensor memory, where each lane is a row of 512 columns of 4 bytes. Layouts count
        columns in elements."""
        at = layout_of(buffer.type).apply(*coords, shape=buffer.shape)
        offset = (np.asarray(at.get(axis.TLane, 0) * TensorMemory.COLUMNS * 4 + at.get(axis.TCol, 0) * itemsize)
                  + buffer.base)
        shape = np.broadcast_shapes(offset.shape, (1, *extra) if extra else ())
        offset = np.broadcast_to(offset, (offset.shape[0], *shape[1:])).reshape(offset.shape[0], -1)
        if keep is not None:
            if keep.all():
                keep = None
            else:
                keep = np.broadcast_to(keep, (keep.shape[0], *shape[1:])).reshape(keep.shape[0], -1)
        return Place(offset, tuple(shape[1:]), keep)

    def _write_replicas(self, buffer: SimBuffer, place: Place, values: np.ndarray, owner):
        """Extend a write to all replicas of elements in tensor memory, not only the first."""
        shifts = [0]
        for extent, stride, along in layout_of(buffer.type).replicas:
            step = stride * (TensorMemory.COLUMNS * 4 if along == axis.TLane else buffer.type.dtype.nbytes)
            shifts = [s + k * step for k in range(extent) for s in shifts]
        n = len(shifts)
        offsets = np.concatenate([place.offsets + s for s in shifts], axis=1)
        keep = None if place.keep is None else np.tile(place.keep, (1, n))
        owner = None if owner is None else np.tile(np.asarray(owner).reshape(-1), n)
        return Place(offsets, (offsets.shape[1],), keep), np.tile(values, (1, n)), owner

    def check_quarters(self, place: Place, owner) -> None:
        """Check that each warp accesses only its quarter of tensor memory:
        the 32 lanes that its number modulo 4 selects."""
        if owner is None or place.offsets.shape[0] != 1:
            return
        lanes = place.offsets[0] // (TensorMemory.COLUMNS * 4)
        warps = (self.m.low + np.asarray(owner).reshape(-1)) // 32
        bad = lanes // 32 != warps % 4
        if bad.any():
            at = int(np.argmax(bad))
            self.m.finding("tmem",
                           f"warp {int(warps[at])} accesses lane {int(lanes[at])} of tensor memory, and a warp reaches "
                           f"its own quarter, lanes {int(warps[at]) % 4 * 32} to {int(warps[at]) % 4 * 32 + 31}",
                           threads=(int(self.m.low + np.asarray(owner).reshape(-1)[at]),))

    def matrix_origin(self, region: SimRegion) -> np.ndarray:
        """The first byte of a region in shared memory, before the swizzle, (B or 1, 1)."""
        buffer, t = region.buffer, region.type.buffer
        origin = layout_of(t).without_swizzle().offset_of(*(s[:, :1].astype(np.int64) for s in region.starts),
                                                          shape=t.shape)
        return np.asarray(np.asarray(origin) * t.dtype.nbytes + buffer.base).reshape(-1, 1)

    def in_buffer(self, region: SimRegion, starts: tuple | None = None) -> bool:
        """Whether a region that the hardware accesses without clipping lies inside its buffer; if not, it is a
        finding. `starts`, (B or 1,
        1) each, default to those of the region."""
        starts = starts or tuple(s[:, :1].astype(np.int64) for s in region.starts)
        beyond = [(s < 0) | (s + n > size) for s, n, size in zip(starts, region.type.extents, region.buffer.shape)]
        if not any(b.any() for b in beyond):
            return True
        first = [np.where(b & (s >= 0), np.maximum(s, size),
                          s) for s, b, size in zip(starts, beyond, region.buffer.shape)]
        self._report_outside(region.buffer, first, reduce(np.logical_or, beyond))
        return False

    def _report_outside(self, buffer: SimBuffer, coords, bad: np.ndarray) -> None:
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        at = [int(np.broadcast_to(c, np.broadcast_shapes(np.shape(c), bad.shape))[where]) for c in coords]
        self.m.finding("out-of-bounds",
                       f"element {at} is outside of the {buffer.type.scope} buffer of shape {list(buffer.shape)}",
                       ctas=self.m.ctas[where[0]:where[0] + 1] if bad.shape[0] > 1 else None)

    def count_access(self, place: Place) -> int:
        if place.keep is None:
            return self.m.batch * place.offsets.shape[1]
        return int(np.count_nonzero(place.keep)) * (self.m.batch if place.keep.shape[0] == 1 else 1)

    def _check_alignment(self, place: Place, dtype) -> bool:
        if dtype.itemsize == 1 or not (place.offsets % dtype.itemsize).any():
            return True
        self.m.finding("misaligned", f"{dtype.itemsize}-byte elements are accessed at byte offset "
                                     f"{int(place.offsets.flat[0])} of shared memory")
        return False

    def gather(self, buffer: SimBuffer, place: Place, dtype) -> np.ndarray:
        rows = self.m.rows_of(buffer.peer)
        data = buffer.memory.view(dtype)
        if place.run is not None and isinstance(rows, slice):
            return data[rows, place.run].copy()
        if place.units is not None:
            return read_units(buffer.memory, rows, place.units).view(dtype)
        if not self._check_alignment(place, dtype):
            return np.zeros((self.m.batch, place.offsets.shape[1]), dtype)
        index = place.offsets // dtype.itemsize
        if index.shape[0] == 1:
            return np.take(data[rows], index[0], axis=1) if isinstance(rows, slice) else data[rows[:, None], index]
        rows = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        return data[rows[:, None], index]

    def scatter(self, buffer: SimBuffer, place: Place, dtype, values: np.ndarray) -> None:
        rows = self.m.rows_of(buffer.peer)
        data = buffer.memory.view(dtype)
        if place.run is not None and isinstance(rows, slice):
            data[rows, place.run] = values
            return
        if place.units is not None:
            write_units(buffer.memory, rows, place.units, values)
            return
        if not self._check_alignment(place, dtype):
            return
        index = place.offsets // dtype.itemsize
        if place.keep is None and index.shape[0] == 1 and isinstance(rows, slice):
            data[rows][:, index[0]] = values
            return
        rows = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        shape = (self.m.batch, index.shape[1])
        rows, index, values = (np.broadcast_to(x, shape) for x in (rows[:, None], index, values))
        if place.keep is None:
            data[rows, index] = values
        else:
            keep = np.broadcast_to(place.keep, shape)
            data[rows[keep], index[keep]] = values[keep]

    # -- checks --------------------------------------------------------------------------------------------------------

    def check(self, buffer: SimBuffer, place: Place, itemsize: int, owner, writing: bool, atomic: bool = False,
              values: np.ndarray | None = None, combines: bool = False, tile=None) -> None:
        """Check accesses to elements against the shadow, and record them there. `combines` says that the write
        depends on the old contents. A read of a `tile` is by all threads that hold an element."""
        if buffer.memory.scope == "tmem":
            self.check_quarters(place, owner)
        atoms, threads, repeat = self._who(place, owner, writing)
        if owner is not None and self.m.threads > 1:
            self.m.sim.laid_out.add(self.m.line)
        if buffer.memory.scope == "shared" and threads[0] >= 0 and len(threads) in (1, place.offsets.shape[1]):
            self.m.traffic.count(buffer.memory.scope, threads, lambda: place.offsets[0], itemsize,
                                 None if place.keep is None else place.keep[0])
        holders = self.m.sim.holders(tile, self.m.low) if tile is not None else None
        scope = int(self.m.atoms[0]), int(self.m.atoms[-1]) + 1
        for positions, offsets, keep in self.group_alike(place):
            if keep is not None:
                offsets = offsets[keep]
            if not len(offsets):
                continue
            cells = self.cells_of(offsets, itemsize, buffer.memory.scope)
            width = len(cells) // len(offsets)

            def spread(x):
                if len(x) == 1:
                    return x[0]
                return np.repeat(x if keep is None else x[keep], width)

            who = [spread(x) for x in (atoms, threads)]
            if repeat is not None:
                cells, who = np.tile(cells, len(repeat[0])), [np.repeat(x, len(cells)) for x in repeat]
            access = Access(cells, who[0], who[1], self.m.line, scope)
            for holding, of in holders or ():
                self._check_access(buffer, positions, Access(cells, spread(holding), spread(of), self.m.line, scope),
                                   writing, exact=access)
            if not holders:
                self._check_access(buffer, positions, access, writing, atomic, combines)
            if writing and not atomic and values is not None and np.ndim(who[1]):
                self._written_twice(buffer, cells, np.asarray(who[1]), values, keep, width)

    def _check_access(self, buffer: SimBuffer, positions, access: Access, writing: bool, atomic: bool = False,
                      combines: bool = False, exact: Access | None = None) -> None:
        """Check an access of the CTAs at `positions`, and record it. `exact` is a part of a read by MANY that says
        which thread it is: if this part has a fault already, it is reported."""
        space = buffer.memory.scope
        for rank_positions, rank in self._memory_ranks(buffer.peer, positions):
            for world, where in self.m.worlds(rank_positions):
                shadow = world.shadow(space, rank, self.m.sim.cells(space))
                access.lucky = access.lucky_read = None
                if writing:
                    found = shadow.write(world.clocks, self.m.rank, access, atomic=atomic, combines=combines)
                else:
                    found = shadow.read(world.clocks, self.m.rank, access)
                if found is not None:
                    if exact is not None:
                        again = shadow.read(world.clocks, self.m.rank, exact, keep=False)
                        access, found = (access, found) if again is None else (exact, again)
                    Reporter(self.m, world, rank, space, where).report_access(access, found, writing)
                    if writing:
                        shadow.write(world.clocks, self.m.rank, access, atomic=atomic)
                elif access.lucky is not None and space == "shared" and self._by_layout(access, access.lucky):
                    Reporter(self.m, world, rank, space, where).depends_on_layout(access, access.lucky, writing)

    def _by_layout(self, access: Access, earlier: Conflict) -> bool:
        """Whether only layouts that the compiler chose give two accesses to one thread. Not if a store depends on
        what was loaded: then another layout brings a barrier with it."""
        if not {access.line, earlier.line} & self.m.sim.laid_out:
            return False
        locs = self.m.sim.locs
        return (earlier.what != "reader"
                or not self.m.sim.program.dependences.depends(locs[access.line], locs[earlier.line]))

    def _who(self, place: Place, owner, writing: bool):
        """Who accesses the elements: (atoms, threads, repeat), the first two with one entry per element or one for
        all. If several atoms access one and the same element, `repeat` is (their numbers, a thread of each),
        otherwise None."""
        if owner is not None:
            threads = self.m.low + np.asarray(owner).reshape(-1)
            return self.m.sim.atom_of[threads], threads.astype(np.int16), None
        n = place.offsets.shape[1]
        if len(place.shape) == 1 and n == self.m.threads:
            threads = np.arange(self.m.low, self.m.high, dtype=np.int16)
            return self.m.sim.atom_of[self.m.low:self.m.high], threads, None
        if len(place.shape) == 1 and n == 1 and writing:
            return np.array([self.m.sim.atom_of[self.m.low]]), np.array([self.m.low], np.int16), None
        if len(place.shape) == 1 and n == 1:
            sizes = np.diff(np.append(self.m.sim.atom_start, self.m.sim.program.threads))
            alone = np.where(sizes[self.m.atoms] == 1, self.m.sim.atom_start[self.m.atoms], MANY).astype(np.int16)
            return self.m.atoms[:1], alone[:1], (self.m.atoms, alone)
        return self.m.atoms[:1], np.array([ANYONE], np.int16), None

    def group_alike(self, place: Place):
        """Group the CTAs by the elements that they access: (positions or None, offsets, mask) per group."""
        offsets, keep = place.offsets, place.keep
        if offsets.shape[0] == 1 and (keep is None or keep.shape[0] == 1):
            yield None, offsets[0], None if keep is None else keep[0]
            return
        parts = [np.broadcast_to(offsets, (self.m.batch, offsets.shape[1]))]
        if keep is not None:
            parts.append(np.broadcast_to(keep, parts[0].shape).astype(np.int64))
        table = np.concatenate(parts, axis=1)
        if (table == table[:1]).all():
            yield None, parts[0][0], None if keep is None else parts[1][0] != 0
            return
        key = np.ascontiguousarray(table).view(f"V{table.shape[1] * 8}").reshape(-1)
        groups: dict[bytes, list[int]] = {}
        for i, k in enumerate(key):
            groups.setdefault(k.tobytes(), []).append(i)
        for members in groups.values():
            at = np.array(members)
            yield at, parts[0][at[0]], None if keep is None else parts[1][at[0]] != 0

    def _memory_ranks(self, peer, positions):
        """The cluster ranks whose memory is accessed: [(positions or None, rank)]."""
        if peer is None:
            return [(positions, self.m.rank)]
        ranks = np.broadcast_to(peer[:, 0], (self.m.batch,))
        at = np.arange(self.m.batch) if positions is None else positions
        if (ranks[at] == ranks[at[0]]).all():
            return [(positions, int(ranks[at[0]]))]
        return [(at[ranks[at] == r], int(r)) for r in np.unique(ranks[at])]

    def cells_of(self, offsets: np.ndarray, nbytes: int, space: str = "shared") -> np.ndarray:
        """The shadow cells of `nbytes` bytes at each byte offset of a memory."""
        granule = self.m.sim.granule(space)
        if nbytes <= granule:
            return offsets // granule
        return (offsets[:, None] // granule + np.arange(-(-nbytes // granule))).reshape(-1)

    def _written_twice(self, buffer: SimBuffer, cells, threads, values, keep, width: int) -> None:
        """Report two threads of the scope that write different values to the same bytes in one store."""
        order = np.arange(len(cells))
        scratch = self.m.sim.scratch(self.m.sim.cells(buffer.memory.scope))
        scratch[cells] = order
        winner = scratch[cells]
        clash = (winner != order) & (threads[winner] != threads)
        if not clash.any():
            return
        element = np.flatnonzero(keep) if keep is not None else np.arange(values.shape[1])
        mine, other = element[order[clash] // width], element[winner[clash] // width]
        raw = np.ascontiguousarray(values).view(f"V{values.dtype.itemsize}").reshape(values.shape)
        if (raw[:, mine] != raw[:, other]).any():
            at = int(np.argmax(clash))
            self.m.finding("race",
                           f"threads {int(threads[winner[at]])} and {int(threads[at])} write different values to "
                           f"the same bytes of {buffer.memory.scope} memory at the same time",
                           threads=(threads[winner[at]], threads[at]))
