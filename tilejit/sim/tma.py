"""The tensor memory accelerator: boxes and bytes between global and shared memory, field by field as the hardware does."""

from __future__ import annotations

from typing import Any

import numpy as np

from .atomics import apply_atomic
from .engines import Span
from .global_races import Box, Index, overlapping
from .memory import boxes
from .tensor_maps import describe_faults, elements_of, fill_value, reducible, swizzled_units
from .values import SimBarrier, SimBuffer, SimTensorMap, take


class TensorCopies:
    """The part of the machine that issues tensor and bulk copies."""

    # -- tensor copies -------------------------------------------------------------------------------------------------------

    def tma_load(self, map_: SimTensorMap, coords: tuple, dst: SimBuffer, dst_byte_offset: Any, barrier: SimBarrier, *,
                 multicast: Any = None, positions: np.ndarray | None = None) -> None:
        """Load the box at `coords` (innermost first, (B or 1, 1) each) to `dst` and report its bytes to `barrier`.

        With `multicast`, a mask of cluster ranks, it goes to the same offset and barrier of each of those CTAs. With
        `positions`, only the CTAs there in the batch issue it.
        """
        coords = _columns(coords)
        if not self._legal(map_, coords, dst, dst_byte_offset, load=True):
            return
        box = _Box(map_)
        params = {"coords": coords, "dst": self._absolute(dst, dst_byte_offset), "map": map_,
                  "rank": np.full((1, 1), self.rank) if dst.peer is None else dst.peer}
        self._count("global -> shared (tma)", box.nbytes * (self.batch if positions is None else len(positions)))
        if self.checks and map_.memory.maybe_written:
            self._check_box(map_, coords, False, positions)
        for where, ranks in self._destinations(multicast, dst.peer, positions):
            self._load_to(ranks, box, dst, dst_byte_offset, barrier, params, where)

    def _load_to(self, ranks, box, dst, offset, barrier, params, where) -> None:
        sim, memory = self.sim, dst.memory
        writes, barriers = [], []
        for rank in ranks:
            peer = dst.peer if rank is None else np.full((1, 1), rank)
            span = Span.of(dst, offset, *box.pieces())
            writes.append(Span(span.space, span.start, span.pattern, span.nbytes, peer))
            # The bytes are reported in the destination's CTA, whatever CTA the barrier was named in.
            barriers.append((barrier if peer is None else barrier.of_peer(peer), box.nbytes))

        def collect(rows, params):
            return {"data": load_box(params["map"], params["coords"], len(rows))}

        def land(rows, params):
            for rank in ranks:
                to = params["rank"] if rank is None else np.full((1, 1), rank)
                place_box(memory, _peer_rows(sim, rows, to), params["dst"], box, params["data"])

        self.issue("the tensor load", writes=writes, land=land, collect=collect, params=params, barriers=barriers, positions=where)

    def _destinations(self, multicast, peer, positions=None):
        if multicast is None:
            yield positions, [None]
            return
        for where, (mask,) in self._cases_at(positions, [np.asarray(multicast).reshape(-1, 1)]):
            ranks = [r for r in range(16) if mask >> r & 1]
            if ranks and ranks[-1] >= self.sim.ranks:
                self.finding("descriptor", f"the multicast mask {mask:#x} names CTAs beyond the cluster's {self.sim.ranks}")
                ranks = [r for r in ranks if r < self.sim.ranks]
            if ranks:
                yield where, ranks

    def tma_store(self, map_: SimTensorMap, coords: tuple, src: SimBuffer, src_byte_offset: Any, *,
                  positions: np.ndarray | None = None) -> None:
        """Store shared memory to the box at `coords`, clipped to the map; completes in the thread's bulk group. With
        `positions`, only the CTAs there in the batch issue it."""
        self._store(map_, coords, src, src_byte_offset, None, positions)

    def tma_reduce(self, map_: SimTensorMap, coords: tuple, src: SimBuffer, src_byte_offset: Any, kind: str) -> None:
        """Combine the box at `coords` with shared memory: `kind` is add, min, max, inc, dec, and, or, xor."""
        if not reducible(map_.dtype, kind):
            self.finding("descriptor", f"a tensor reduction cannot {kind} elements of {map_.dtype}")
            return
        self._store(map_, coords, src, src_byte_offset, kind)

    def _store(self, map_: SimTensorMap, coords: tuple, src: SimBuffer, offset: Any, kind: str | None, positions=None) -> None:
        coords = _columns(coords)
        if not self._legal(map_, coords, src, offset, load=False):
            return
        box, memory = _Box(map_), src.memory
        params = {"coords": coords, "src": self._absolute(src, offset), "map": map_}
        self._count("shared -> global (tma)", box.nbytes * (self.batch if positions is None else len(positions)))
        if self.checks:
            self._check_box(map_, coords, True, positions)

        def collect(rows, params):
            return {"data": fetch_box(memory, rows, params["src"], box)}

        def land(rows, params):
            store_box(params["map"], params["coords"], params["data"], len(rows), kind)

        span = Span.of(src, offset, *box.pieces())
        what = "the tensor store" if kind is None else "the tensor reduction"
        self.issue(what, reads=[span], land=land, collect=collect, params=params, queue="bulk", positions=positions)

    def _absolute(self, buffer: SimBuffer, offset: Any) -> np.ndarray:
        return (np.asarray(offset) + np.asarray(buffer.base)).reshape(-1, 1)

    def _legal(self, map_: SimTensorMap, coords, buffer: SimBuffer, offset: Any, load: bool) -> bool:
        """Check the map's fields, the coordinates and the shared address (facts of the hardware, not of the ISA's text)."""
        fine = True
        for fault in self.sim.map_faults(map_, describe_faults):
            self.finding("descriptor", fault)
            fine = False
        if not fine:
            return False
        if len(coords) != map_.rank:
            self.finding("descriptor", f"{len(coords)} coordinates for a map of rank {map_.rank}")
            return False
        if (self._absolute(buffer, offset) % 128).any():
            self.finding("misaligned", f"a tensor copy's shared address is a multiple of 128 bytes, not {int(self._absolute(buffer, offset).flat[0])}")
            fine = False
        step = 16 // np.gcd(16, elements_of(map_).itemsize)
        bad = coords[0] % step != 0
        if bad.any():
            self.finding("misaligned", f"the innermost coordinate times the element's bytes is a multiple of 16, and {int(coords[0][bad].flat[0])} is no "
                         f"multiple of {step}")
            fine = False
        if not load:
            for d, c in enumerate(coords):
                if (c < 0).any():
                    self.finding("descriptor", f"a tensor store starts at the negative coordinate {int(c.min())} of dimension {d}")
                    fine = False
            if (int(np.max(map_.global_dim[0])) * elements_of(map_).itemsize) % 16 and self._clips_inner(map_, coords):
                self.finding("out-of-bounds", "a tensor store clips its innermost dimension in steps of 16 bytes: it writes past the "
                             f"{int(np.max(map_.global_dim[0]))} elements of each row")
        return fine

    def _clips_inner(self, map_: SimTensorMap, coords) -> bool:
        size = np.asarray(map_.global_dim[0]).reshape(-1, 1)
        return bool(((coords[0] < size) & (coords[0] + map_.box[0] > size)).any())

    def _check_box(self, map_: SimTensorMap, coords, writing: bool, positions=None) -> None:
        """The global elements of the box against the shadow of their array."""
        memory = map_.memory
        shadow, itemsize = memory.shadow, elements_of(map_).itemsize
        scale = max(itemsize // shadow.granule, 1)
        ctas = self.ctas
        if positions is not None:
            ctas, coords, map_ = ctas[positions], take(coords, positions), take(map_, positions)
        index, keep = _addresses(map_, coords, len(ctas))
        cells = (index + memory.address - shadow.address) // shadow.granule
        ids = np.broadcast_to((ctas + 1).astype(np.int32).reshape(-1, *(1,) * (cells.ndim - 1)), cells.shape)
        keep = np.broadcast_to(keep, cells.shape) & (cells >= 0) & (cells < shadow.cells)
        access = shadow.write if writing else shadow.read
        del scale
        self._judge(memory, "write" if writing else "read", access(Index(cells[keep]), ids[keep], self.sim.global_clocks, True))

    # -- bulk copies -----------------------------------------------------------------------------------------------------------

    def bulk_copy(self, dst: SimBuffer, dst_byte_offset: Any, src: SimBuffer, src_byte_offset: Any, nbytes: Any,
                  barrier: SimBarrier | None = None) -> None:
        """Copy `nbytes` contiguous bytes between global and shared memory, or to another CTA's shared memory.

        To shared memory the bytes are reported to `barrier`; to global memory it completes in the thread's bulk group.
        """
        for where, (count,) in self.cases(np.asarray(nbytes).reshape(-1, 1)):
            if count % 16:
                self.finding("misaligned", f"a bulk copy moves a multiple of 16 bytes; {count} are silently rounded down")
                count -= count % 16
            if count:
                self._bulk(dst, dst_byte_offset, src, src_byte_offset, count, barrier, where)

    def _bulk(self, dst, to, src, source, count: int, barrier, where) -> None:
        to, source = self._absolute(dst, to), self._absolute(src, source)
        for name, memory, at in (("destination", dst.memory, to), ("source", src.memory, source)):
            address = memory.address + memory.origin * memory.itemsize if memory.scope == "global" else 0
            if ((at + address) % 16).any():
                self.finding("misaligned", f"the {name} of a bulk copy is at a multiple of 16 bytes")
                return
            if memory.scope == "global":
                low = at + memory.origin * memory.itemsize
                if (low < 0).any() or (low + count > memory.bytes.size).any():
                    self.finding("out-of-bounds", f"a bulk copy of {count} bytes leaves {memory.name}")
                    return
        sim = self.sim
        params = {"to": to, "from": source, "rank": np.full((1, 1), self.rank) if dst.peer is None else dst.peer}
        self._count(f"{src.memory.scope} -> {dst.memory.scope} (bulk)", count * (self.batch if where is None else len(where)))

        def collect(rows, params):
            return {"data": _run_bytes(src.memory, rows, params["from"], count)}

        def land(rows, params):
            target = rows if dst.memory.scope == "global" else _peer_rows(sim, rows, params["rank"])
            _put_run(dst.memory, target, params["to"], params["data"])

        reads = [Span.of(src, source - np.asarray(src.base).reshape(-1, 1), count)] if src.memory.scope != "global" else []
        writes = [Span.of(dst, to - np.asarray(dst.base).reshape(-1, 1), count)] if dst.memory.scope != "global" else []
        if self.checks:
            for memory, at, writing in ((src.memory, source, False), (dst.memory, to, True)):
                if memory.scope == "global" and (writing or memory.maybe_written):
                    index = (at + memory.origin * memory.itemsize) // memory.itemsize + np.arange(count // memory.itemsize)
                    self._check_global(memory, index, None, writing, self._bulk_ids(index) if writing else None)
        what = "the bulk copy"
        if barrier is not None:
            barrier = barrier if dst.peer is None else barrier.of_peer(dst.peer)
            self.issue(what, reads=reads, writes=writes, land=land, collect=collect, params=params, barrier=barrier, nbytes=count, positions=where)
        else:
            self.issue(what, reads=reads, writes=writes, land=land, collect=collect, params=params, queue="bulk", positions=where)

    def _bulk_ids(self, index: np.ndarray) -> np.ndarray:
        return np.broadcast_to(self._cta_ids(index, last=True), index.shape)


class _Box:
    """A map's box in shared memory: rows of `inner` bytes at a distance of `pitch`."""

    def __init__(self, map_: SimTensorMap):
        self.element = elements_of(map_)
        self.extents = tuple(-(-b // s) for b, s in zip(map_.box, map_.element_strides))  # innermost first
        self.inner = self.extents[0] * self.element.itemsize
        self.rows = int(np.prod(self.extents[1:], dtype=np.int64))
        self.swizzle = map_.swizzle
        # Rows narrower than a swizzle's span are pitched at the span; the gaps stay untouched.
        self.pitch = max(self.inner, 16 << map_.swizzle) if map_.swizzle else self.inner
        self.nbytes = self.inner * self.rows

    def pieces(self) -> tuple:
        """The box's bytes as a span takes them: (bytes of a piece, offsets). Whole rows of a swizzle stay rows; in
        narrower ones the 16-byte units trade places with the gaps."""
        if self.pitch == self.inner:
            return self.inner, np.arange(self.rows) * self.inner
        return 16, lambda start: self.units(start) * 16 - start

    def units(self, start: int) -> np.ndarray:
        """Numbers of the 16-byte units of shared memory that hold the box, in its order."""
        row = (start + np.arange(self.rows) * self.pitch) // 16
        linear = (row[:, None] + np.arange(self.inner // 16)).reshape(-1)
        return swizzled_units(linear, self.swizzle)


def _columns(coords: tuple) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(c, np.int64).reshape(-1, 1) for c in coords)


def _peer_rows(sim, rows: np.ndarray, rank: np.ndarray) -> np.ndarray:
    return np.broadcast_to(rank[:, 0], (len(rows),)).astype(np.int64) * sim.clusters + rows % sim.clusters


def _geometry(map_: SimTensorMap, coords, outermost_first: bool = True):
    """Starts, extents, sizes and strides (elements) of the box's dimensions, and the base element."""
    element = elements_of(map_)
    strides = [1, *(np.asarray(s) // element.itemsize for s in map_.global_strides)]
    return element, list(coords), [int(b) for b in map_.box], list(map_.global_dim), strides


def _addresses(map_: SimTensorMap, coords, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Byte offsets from the lowest address of the array, and which elements are inside: (B or 1, box outermost first)."""
    element = elements_of(map_)
    rank = map_.rank
    at = np.asarray(map_.base).reshape(-1, *(1,) * rank) + map_.memory.origin * map_.memory.itemsize
    inside = np.ones((1,) * (rank + 1), bool)
    strides = (element.itemsize, *map_.global_strides)
    for d in range(rank):
        n = -(-map_.box[d] // map_.element_strides[d])
        steps = (np.arange(n) * map_.element_strides[d]).reshape(1, *(n if k == rank - 1 - d else 1 for k in range(rank)))
        i = coords[d].reshape(-1, *(1,) * rank) + steps
        inside = inside & (i >= 0) & (i < np.asarray(map_.global_dim[d]).reshape(-1, *(1,) * rank))
        at = at + i * np.asarray(strides[d]).reshape(-1, *(1,) * rank)
    shape = (batch, *at.shape[1:])
    return np.broadcast_to(at, shape), inside


def _units_of(map_: SimTensorMap) -> np.ndarray | None:
    """The array's bytes as the map's elements, if they lie at multiples of their size."""
    unit = elements_of(map_).itemsize
    memory = map_.memory
    return memory.bytes[:memory.bytes.size // unit * unit].view(f"u{unit}")


def load_box(map_: SimTensorMap, coords, batch: int) -> np.ndarray:
    """The box's elements as raw units, (B or 1, box outermost first), out of bounds filled."""
    box = _Box(map_)
    unit = np.dtype(f"u{box.element.itemsize}")
    shape = box.extents[::-1]
    fill = fill_value(map_)
    base = np.asarray(map_.base).reshape(-1) + map_.memory.origin * map_.memory.itemsize
    plain = all(s == 1 for s in map_.element_strides) and all(np.ndim(x) == 0 for x in (*map_.global_dim, *map_.global_strides))
    if plain and not (base % unit.itemsize).any() and not any(s % unit.itemsize for s in map_.global_strides):
        strides = (1, *(s // unit.itemsize for s in map_.global_strides))[::-1]
        starts = [c[:, 0] for c in coords][::-1]
        whole = boxes(starts, shape, tuple(map_.global_dim)[::-1], strides, base // unit.itemsize)
        if whole is not None:
            flat = _units_of(map_)
            count = max(max(len(s) for s in starts), len(base))
            data = np.full((count, *shape), fill, unit)
            for rows, clip, offset, extents, steps in whole:
                data[(rows, *clip)] = map_.memory.box(flat, offset, extents, steps)
            return _rounded(map_, data)
    at, inside = _addresses(map_, coords, batch)
    source = map_.memory.bytes
    safe = inside & (at >= 0) & (at + unit.itemsize <= source.size)
    where = np.where(safe, at, 0)
    raw = source[where[..., None] + np.arange(unit.itemsize)] if source.size >= unit.itemsize else np.zeros((*where.shape, unit.itemsize), np.uint8)
    data = np.ascontiguousarray(raw).view(unit)[..., 0]
    return _rounded(map_, np.where(safe, data, unit.type(fill)))


def _rounded(map_: SimTensorMap, data: np.ndarray) -> np.ndarray:
    """TF32 maps round to 10 bits of mantissa, to nearest even."""
    if "tf32" not in map_.dtype:
        return data
    special = (data & 0x7f800000) == 0x7f800000
    nan = special & ((data & 0x7fffff) != 0)
    rounded = (data + (0xfff + ((data >> 13) & 1))) & np.uint32(0xffffe000)
    return np.where(nan, np.uint32(0x7fffe000), np.where(special, data, rounded)).astype(np.uint32)


def place_box(memory, rows: np.ndarray, start: np.ndarray, box: _Box, data: np.ndarray) -> None:
    """Write a box's elements to shared memory."""
    pieces = np.ascontiguousarray(data).reshape(data.shape[0], -1).view(np.uint8).reshape(data.shape[0], -1, 16)
    units = memory.data.reshape(memory.data.shape[0], -1, 16)
    for where, at in _by_start(start, len(rows)):
        index = box.units(at)
        inside = index < units.shape[1]
        mine = pieces if pieces.shape[0] == 1 or where is None else pieces[where]
        chosen = rows if where is None else rows[where]
        if not inside.all():
            index, mine = index[inside], mine[:, inside]
        units[chosen[:, None], index] = mine


def fetch_box(memory, rows: np.ndarray, start: np.ndarray, box: _Box) -> np.ndarray:
    """Read a box's elements from shared memory as raw units."""
    units = memory.data.reshape(memory.data.shape[0], -1, 16)
    result = np.zeros((len(rows), box.nbytes // 16, 16), np.uint8)
    for where, at in _by_start(start, len(rows)):
        index = np.minimum(box.units(at), units.shape[1] - 1)
        part = units[(rows if where is None else rows[where])[:, None], index]
        result[slice(None) if where is None else where] = part
    return result.reshape(len(rows), -1).view(f"u{box.element.itemsize}").reshape(len(rows), *box.extents[::-1])


def _by_start(start: np.ndarray, batch: int):
    values = start.reshape(-1)
    if (values == values[0]).all():
        return [(None, int(values[0]))]
    values = np.broadcast_to(values, (batch,))
    return [(np.flatnonzero(values == v), int(v)) for v in np.unique(values)]


def store_box(map_: SimTensorMap, coords, data: np.ndarray, batch: int, kind: str | None) -> None:
    """Write a box's elements to global memory, or combine them with what is there."""
    box = _Box(map_)
    memory, itemsize = map_.memory, box.element.itemsize
    base = np.asarray(map_.base).reshape(-1) + memory.origin * memory.itemsize
    exact = np.ndim(map_.global_dim[0]) == 0 and (map_.global_dim[0] * itemsize) % 16 == 0
    plain = exact and all(s == 1 for s in map_.element_strides) and all(np.ndim(x) == 0 for x in (*map_.global_dim, *map_.global_strides))
    if kind is None and plain and not (base % itemsize).any() and not any(s % itemsize for s in map_.global_strides):
        starts = [c[:, 0] for c in coords][::-1]
        strides = (1, *(s // itemsize for s in map_.global_strides))[::-1]
        whole = boxes(starts, box.extents[::-1], tuple(map_.global_dim)[::-1], strides, base // itemsize)
        if whole is not None:
            flat = _units_of(map_)
            for rows, clip, offset, extents, steps in whole:
                part = data[(slice(None), *clip)]
                part = part if extents[0] == 1 and len(starts[0]) == batch == 1 else part[rows] if extents[0] > 1 or batch > 1 and max(map(len, starts)) > 1 else part[-1:]
                memory.box(flat, offset, extents, steps)[...] = part
            return
    at, inside = _addresses(map_, coords, batch)
    # Clipping in the innermost dimension goes by 16 bytes: what shares the last granule with the tensor is written.
    size = -(-np.asarray(map_.global_dim[0]) * itemsize // 16) * 16 // itemsize
    grown = SimTensorMap(**{**map_.__dict__, "global_dim": (size, *map_.global_dim[1:])})
    _, inside = _addresses(grown, coords, batch)
    inside = np.broadcast_to(inside, at.shape) & (at >= 0) & (at + itemsize <= memory.bytes.size)
    where, values = at[inside], data[inside] if data.shape == at.shape else np.broadcast_to(data, at.shape)[inside]
    if kind is None:
        memory.bytes[where[:, None] + np.arange(itemsize)] = np.ascontiguousarray(values)[:, None].view(np.uint8).reshape(-1, itemsize)
        return
    typed = memory.bytes[:memory.bytes.size // itemsize * itemsize].view(box.element)
    apply_atomic(typed, where // itemsize, kind, np.ascontiguousarray(values).view(box.element), None, need_old=False)


def _run_bytes(memory, rows: np.ndarray, start: np.ndarray, count: int) -> np.ndarray:
    """`count` bytes from `start` (B or 1, 1): (B or 1, count)."""
    if memory.scope == "global":
        return memory.bytes[memory.origin * memory.itemsize + start + np.arange(count)]
    return memory.data[rows[:, None], start + np.arange(count)]


def _put_run(memory, rows: np.ndarray, start: np.ndarray, data: np.ndarray) -> None:
    if memory.scope == "global":
        memory.bytes[memory.origin * memory.itemsize + start + np.arange(data.shape[1])] = data if start.shape[0] > 1 else data[-1:]
        return
    memory.data[rows[:, None], start + np.arange(data.shape[1])] = data


__all__ = ["Box", "TensorCopies", "overlapping"]
