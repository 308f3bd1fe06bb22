"""The bytes of tensor copies: boxes of an array, their place in shared memory, fill values, clipping and rounding."""

from __future__ import annotations

import numpy as np

from .atomics import apply_atomic
from .memory import GARBAGE, boxes
from .tensor_maps import elements_of, fill_value, packed_bits, swizzled_units
from .values import SimTensorMap


class Box:
    """The bytes of one copy in shared memory: rows of `inner` bytes, `pitch` bytes apart. `extents` (innermost first)
    are those of the map's box unless given."""

    def __init__(self, map_: SimTensorMap, extents: tuple[int, ...] | None = None):
        self.element = elements_of(map_)
        self.extents = extents or tuple(-(-b // s) for b, s in zip(map_.box, map_.element_strides))  # innermost first
        self.inner = self.extents[0] * self.element.itemsize
        self.rows = int(np.prod(self.extents[1:], dtype=np.int64))
        self.swizzle = map_.swizzle
        # Rows narrower than the swizzle's span are still a span apart; the gaps are not written.
        self.pitch = max(self.inner, 16 << map_.swizzle) if map_.swizzle else self.inner
        self.nbytes = self.inner * self.rows
        self.span = self.pitch * (self.rows - 1) + self.inner  # including gaps
        bits = packed_bits(map_)
        self.arriving = self.nbytes if bits is None else self.nbytes * bits // 8  # bytes that a barrier counts

    def pieces(self) -> tuple:
        """The box's bytes as arguments of `Span.of`: (bytes per piece, offsets). Rows as wide as the swizzle's span
        are whole pieces; the 16-byte units of narrower rows may swap with the gaps between rows."""
        if self.pitch == self.inner:
            return self.inner, np.arange(self.rows) * self.inner
        return 16, lambda start: self.units(start) * 16 - start

    def units(self, start: int) -> np.ndarray:
        """The numbers of the 16-byte units of shared memory that hold the box, in its order."""
        row = (start + np.arange(self.rows) * self.pitch) // 16
        linear = (row[:, None] + np.arange(self.inner // 16)).reshape(-1)
        return swizzled_units(linear, self.swizzle)


def columns(coords: tuple) -> tuple[np.ndarray, ...]:
    """Coordinates as (B or 1, 1) integers."""
    return tuple(np.asarray(c, np.int64).reshape(-1, 1) for c in coords)


def peer_rows(sim, rows: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """The rows of the CTAs of cluster rank `rank` in the clusters of `rows`."""
    return np.broadcast_to(rank[:, 0], (len(rows),)).astype(np.int64) * sim.clusters + rows % sim.clusters


def addresses(map_: SimTensorMap, coords, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """The byte offsets of the box's elements from the lowest address of the array, and which elements are in bounds:
    (B or 1, *box), outermost dimension first."""
    element = elements_of(map_)
    rank = map_.rank
    at = np.asarray(map_.base).reshape(-1, *(1,) * rank) + map_.memory.origin * map_.memory.itemsize
    inside = np.ones((1,) * (rank + 1), bool)
    strides, bits = (element.itemsize, *map_.global_strides), packed_bits(map_)
    for d in range(rank):
        n = -(-map_.box[d] // map_.element_strides[d])
        steps = (np.arange(n) * map_.element_strides[d]).reshape(1,
                                                                 *(n if k == rank - 1 - d else 1 for k in range(rank)))
        i = coords[d].reshape(-1, *(1,) * rank) + steps
        inside = inside & (i >= 0) & (i < np.asarray(map_.global_dim[d]).reshape(-1, *(1,) * rank))
        # 16 elements are packed in 2 * bits bytes; positions in the padding map to the last of these
        if d == 0 and bits is not None:
            i = i // 16 * (2 * bits) + np.minimum(i % 16, 2 * bits - 1)
        at = at + i * np.asarray(strides[d]).reshape(-1, *(1,) * rank)
    shape = (batch, *at.shape[1:])
    return np.broadcast_to(at, shape), inside


def units_of(map_: SimTensorMap) -> np.ndarray | None:
    """The array's bytes as unsigned integers of the size of the map's elements."""
    unit = elements_of(map_).itemsize
    memory = map_.memory
    return memory.bytes[:memory.bytes.size // unit * unit].view(f"u{unit}")


def load_box(map_: SimTensorMap, batch: int, coords) -> np.ndarray:
    """The box's elements as unsigned integers, (B or 1, *box), outermost dimension first;
    those out of bounds have the fill value."""
    box = Box(map_)
    bits = packed_bits(map_)
    if bits is not None:
        data = _elements(map_, *addresses(map_, coords, batch))
        return np.where(np.arange(box.extents[0]) % 16 < 2 * bits, data, np.uint8(GARBAGE))
    unit = np.dtype(f"u{box.element.itemsize}")
    shape = box.extents[::-1]
    fill = fill_value(map_)
    base = np.asarray(map_.base).reshape(-1) + map_.memory.origin * map_.memory.itemsize
    plain = (all(s == 1 for s in map_.element_strides)
             and all(np.ndim(x) == 0 for x in (*map_.global_dim, *map_.global_strides)))
    if plain and not (base % unit.itemsize).any() and not any(s % unit.itemsize for s in map_.global_strides):
        strides = (1, *(s // unit.itemsize for s in map_.global_strides))[::-1]
        starts = [c[:, 0] for c in coords][::-1]
        whole = boxes(starts, shape, tuple(map_.global_dim)[::-1], strides, base // unit.itemsize)
        if whole is not None:
            flat = units_of(map_)
            count = max(max(len(s) for s in starts), len(base))
            data = np.full((count, *shape), fill, unit)
            for rows, clip, offset, extents, steps in whole:
                at = (rows, *clip)
                data[at] = _round_to_tf32(map_, map_.memory.box(flat, offset, extents, steps))
            return data
    return _elements(map_, *addresses(map_, coords, batch))


def locate(map_: SimTensorMap, mode: str, coords, offsets, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """`addresses` for any mode: of a box, of rows with one coordinate each, or of pixels."""
    if mode == "rows":
        x, *rows = coords
        parts = [addresses(map_, (x, row), batch) for row in rows]
        at = np.concatenate([p[0] for p in parts], axis=1)
        return at, np.concatenate(np.broadcast_arrays(*(p[1] for p in parts)), axis=1)
    if mode.startswith("im2col"):
        return pixels(map_, coords, offsets, batch)
    return addresses(map_, coords, batch)


def load_elements(map_: SimTensorMap, mode: str, coords, offsets, batch: int) -> np.ndarray:
    """The elements that a load brings, as unsigned integers, (B or 1, ...), outermost dimension first.

    The manual leaves open what the halo at the end of a line contains: the pixels that the walk visits next, in the
    next image, or those beyond the line. Where the two differ, the result is the meaningless byte OPEN.
    """
    if mode == "tile":
        return load_box(map_, batch, coords)
    data = _elements(map_, *locate(map_, mode, coords, offsets, batch))
    if mode in ("im2col::w", "im2col::w::128") and offsets and offsets[0].any():
        beyond = _elements(map_, *pixels(map_, coords, offsets, batch, around=False))
        data = np.where(data == beyond, data, np.array([OPEN] * data.dtype.itemsize, np.uint8).view(data.dtype)[0])
    return data


OPEN = 0xa5  # stands for bytes that the manual leaves open


def steps_of(walk, offsets) -> tuple[np.ndarray, np.ndarray]:
    """The pixels of a copy by their steps along the walk from its first one; and for each, the step of the last pixel
    up to it that is not in a halo (its own if it is not in one)."""
    halo = int(np.asarray(offsets[0]).flat[0]) if walk.wide is not None and len(offsets) else 0
    size, count = (32, 4) if walk.wide == 1 else (walk.pixels, 1)
    steps = (np.arange(count)[:, None] * size + np.arange(size + halo)).reshape(-1)
    last = (np.arange(count)[:, None] * size + np.minimum(np.arange(size + halo), size - 1)).reshape(-1)
    return steps, last


def pixels(map_: SimTensorMap, coords, offsets, batch: int, around: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """The byte offsets of the pixels of an im2col copy, and which are in bounds: (B, pixels, channels).

    The walk goes along w, then h, ..., then n. In w it runs from the lower corner to W - 1 plus the upper corner, in
    steps of the element stride, and likewise in h and so on. The element loaded is `offsets` away from there. The
    im2col::w modes walk along w only, and then continue in the next image on the same line. Their halo continues
    along the walk (`around`), or else along the line.
    """
    walk, spatial = map_.im2col, map_.rank - 2 if map_.im2col.wide is None else 1
    channel, *place, n = coords
    lines = place[spatial:]
    steps, own = steps_of(walk, offsets)
    beyond = np.zeros_like(steps) if around else steps - own
    offsets = offsets if walk.wide is None or not offsets else offsets[1:]
    counts = [(int(size) - 1 + high - low) // step + 1
              for size, low, high, step in zip(map_.global_dim[1:-1], walk.lower, walk.upper,
                                               map_.element_strides[1:-1])]
    index = n
    for d in reversed(range(spatial)):
        index = index * counts[d] + (place[d] - walk.lower[d]) // map_.element_strides[1 + d]
    index = index + (steps - beyond)
    at = np.asarray(map_.base).reshape(-1, 1) + map_.memory.origin * map_.memory.itemsize
    inside = np.ones((1, 1), bool)
    for d in range(spatial):
        position = (walk.lower[d] + (index % counts[d] + beyond) * map_.element_strides[1 + d]
                    + (offsets[d] if offsets else 0))
        index = index // counts[d]
        inside = inside & (position >= 0) & (position < map_.global_dim[1 + d])
        at = at + position * map_.global_strides[d]
    for d, line in enumerate(lines, spatial):
        inside = inside & (line >= 0) & (line < map_.global_dim[1 + d])
        at = at + line * map_.global_strides[d]
    inside = inside & (index >= 0) & (index < map_.global_dim[-1])
    at = at + index * map_.global_strides[-1]
    channels = channel[:, :, None] + np.arange(walk.channels)
    inside = inside[:, :, None] & (channels >= 0) & (channels < np.asarray(map_.global_dim[0]))
    at = at[:, :, None] + channels * elements_of(map_).itemsize
    return np.broadcast_to(at, (batch, *at.shape[1:])), inside


def _elements(map_: SimTensorMap, at: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """The elements at byte offsets, as unsigned integers; the fill value where they are not inside."""
    unit, source = np.dtype(f"u{elements_of(map_).itemsize}"), map_.memory.bytes
    safe = inside & (at >= 0) & (at + unit.itemsize <= source.size)
    where = np.where(safe, at, 0)
    if source.size >= unit.itemsize:
        raw = source[where[..., None] + np.arange(unit.itemsize)]
    else:
        raw = np.zeros((*where.shape, unit.itemsize), np.uint8)
    data = np.ascontiguousarray(raw).view(unit)[..., 0]
    return np.where(safe, _round_to_tf32(map_, data), unit.type(fill_value(map_)))


def _round_to_tf32(map_: SimTensorMap, data: np.ndarray) -> np.ndarray:
    """For TF32 maps, round to 10 mantissa bits, to nearest even. Fill values are not rounded (measured on an H200)."""
    if "tf32" not in map_.dtype and "tfloat32" not in map_.dtype:
        return data
    special = (data & 0x7f800000) == 0x7f800000
    nan = special & ((data & 0x7fffff) != 0)
    rounded = (data + (0xfff + ((data >> 13) & 1))) & np.uint32(0xffffe000)
    return np.where(nan, np.uint32(0x7fffe000), np.where(special, data, rounded)).astype(np.uint32)


def place_box(memory, rows: np.ndarray, start: np.ndarray, box: Box, data: np.ndarray) -> None:
    """Write the elements of a box to shared memory."""
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


def fetch_box(memory, rows: np.ndarray, start: np.ndarray, box: Box) -> np.ndarray:
    """Read the elements of a box from shared memory, as unsigned integers."""
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


def store_elements(map_: SimTensorMap, mode: str, coords, data: np.ndarray, batch: int, kind: str | None) -> None:
    """Write the elements of a copy to global memory, or combine them with what is there (`kind`)."""
    box = Box(map_)
    memory, itemsize = map_.memory, box.element.itemsize
    base = np.asarray(map_.base).reshape(-1) + memory.origin * memory.itemsize
    exact = np.ndim(map_.global_dim[0]) == 0 and (map_.global_dim[0] * itemsize) % 16 == 0
    plain = (exact and all(s == 1 for s in map_.element_strides)
             and all(np.ndim(x) == 0 for x in (*map_.global_dim, *map_.global_strides)))
    if (mode == "tile" and kind is None and plain and not (base % itemsize).any()
        and not any(s % itemsize for s in map_.global_strides)):
        starts = [c[:, 0] for c in coords][::-1]
        strides = (1, *(s // itemsize for s in map_.global_strides))[::-1]
        whole = boxes(starts, box.extents[::-1], tuple(map_.global_dim)[::-1], strides, base // itemsize)
        if whole is not None:
            flat = units_of(map_)
            for rows, clip, offset, extents, steps in whole:
                chosen = (slice(None), *clip)
                part = data[chosen]
                # if all CTAs write the same box, the last one's remains
                part = part[rows] if max(map(len, starts)) > 1 else part[-1:]
                memory.box(flat, offset, extents, steps)[...] = part
            return
    at, _ = locate(map_, mode, coords, (), batch)
    # The hardware clips the innermost dimension in steps of 16 bytes:
    # elements in the tensor's last step are written too.
    size = -(-np.asarray(map_.global_dim[0]) * itemsize // 16) * 16 // itemsize
    grown = SimTensorMap(**{**map_.__dict__, "global_dim": (size, *map_.global_dim[1:])})
    _, inside = locate(grown, mode, coords, (), batch)
    inside = np.broadcast_to(inside, at.shape) & (at >= 0) & (at + itemsize <= memory.bytes.size)
    where, values = at[inside], data[inside] if data.shape == at.shape else np.broadcast_to(data, at.shape)[inside]
    if kind is None:
        memory.bytes[where[:, None] + np.arange(itemsize)] = np.ascontiguousarray(values)[:, None].view(
            np.uint8).reshape(-1, itemsize)
        return
    typed = memory.bytes[:memory.bytes.size // itemsize * itemsize].view(box.element)
    apply_atomic(typed, where // itemsize, kind, np.ascontiguousarray(values).view(box.element), None, need_old=False)


def run_bytes(memory, rows: np.ndarray, start: np.ndarray, count: int) -> np.ndarray:
    """`count` bytes from byte `start` (B or 1, 1) on: (B or 1, count)."""
    if memory.scope == "global":
        return memory.bytes[memory.origin * memory.itemsize + start + np.arange(count)]
    return memory.data[rows[:, None], start + np.arange(count)]


def put_run(memory, rows: np.ndarray, start: np.ndarray, data: np.ndarray, chosen: np.ndarray | None = None) -> None:
    """Write bytes from byte `start` on, or only the `chosen` ones of them."""
    at, data = (np.arange(data.shape[1]), data) if chosen is None else (chosen, data[:, chosen])
    if memory.scope == "global":
        memory.bytes[memory.origin * memory.itemsize + start + at] = data if start.shape[0] > 1 else data[-1:]
        return
    memory.data[rows[:, None], start + at] = data
