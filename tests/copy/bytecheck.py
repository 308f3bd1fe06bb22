"""Executes a copy's plan as the hardware would, and returns where each byte goes. It knows nothing of how plans are made.

Bytes are identified by their addresses: in the array from its pointer on, in the shared buffer from its base (a multiple of 1024).
"""

from __future__ import annotations

import itertools

import numpy as np

SPAN = (0, 32, 64, 128)
SIZES = {"uint8": 1, "uint16": 2, "float16": 2, "bfloat16": 2, "uint32": 4, "int32": 4, "float32": 4, "tfloat32": 4, "uint64": 8,
         "int64": 8, "float64": 8}
FILL = -1


class Wrong(AssertionError):
    """The plan is illegal, or moves other bytes than the layouts say."""


def need(condition, words: str) -> None:
    if not condition:
        raise Wrong(words)


# -- what the two layouts say ---------------------------------------------------------------------------------------------

def side(spec):
    """Byte addresses and (for an array) whether each element is in bounds, for the region's extents other than 1."""
    region = spec.region if spec.region is not None else tuple(slice(0, n) for n in spec.shape)
    ranges = [np.arange(r.start or 0, n if r.stop is None else r.stop) if isinstance(r, slice) else np.array([r]) for r, n in zip(region, spec.shape)]
    ranges[-1] = ranges[-1][::per_byte(spec)]  # one of the elements that share a byte
    grid = np.meshgrid(*ranges, indexing="ij")
    nbytes = spec.dtype.nbytes
    kept = [len(r) for r in ranges if len(r) != 1]
    if spec.scope == "shared":
        layout = spec.layout
        if layout is None:
            offsets = np.ravel_multi_index(grid, spec.shape)
        else:
            offsets = offsets_of(layout, grid, spec.shape)
        return (offsets // per_byte(spec) * nbytes).reshape(kept), None
    if spec.strides is not None:
        offsets = sum(g * s for g, s in zip(grid, spec.strides))
    elif spec.layout is not None:
        strides = [offsets_of(spec.layout, [np.array(int(k == d)) for k in range(len(spec.shape))], spec.shape)
                   - offsets_of(spec.layout, [np.array(0)] * len(spec.shape), spec.shape) if n > 1 else 0 for d, n in enumerate(spec.shape)]
        offsets = sum(g * s for g, s in zip(grid, strides)) + spec.layout.offset.get("m", 0)
    else:
        strides = [int(np.prod(spec.shape[d + 1:])) for d in range(len(spec.shape))]
        offsets = sum(g * s for g, s in zip(grid, strides))
    inside = np.ones(offsets.shape, bool)
    for g, n in zip(grid, spec.shape):
        inside &= (g >= 0) & (g < n)
    return (offsets // per_byte(spec) * nbytes).reshape(kept), inside.reshape(kept)


def per_byte(spec) -> int:
    return 2 if spec.dtype.name == "float4_e2m1fn" else 1


def offsets_of(layout, grid, shape):
    """Element offsets of coordinates in a layout: digits of the row-major index times strides, then the swizzle."""
    flat = np.zeros(np.shape(grid[0]), np.int64)
    for g, n in zip(grid, shape):
        flat = flat * n + g
    total, rest = np.full(flat.shape, layout.offset.get("m", 0), np.int64), flat
    for extent, stride, _ in reversed(layout.shards):
        total += rest % extent * stride
        rest = rest // extent
    s = layout.swizzle
    if s is not None:
        total = total ^ ((total >> s.atom_len) & (((1 << s.swizzle_len) - 1) << s.per_element))
    return total


def expected(dst, src):
    """{destination byte: source byte or FILL}; bytes that are not written (clipped) do not appear."""
    (to, to_inside), (of, of_inside) = side(dst), side(src)
    nbytes = dst.dtype.nbytes
    to = to.reshape(-1)
    of = of.reshape(-1)
    if of_inside is not None:
        of = np.where(of_inside.reshape(-1), of, np.iinfo(np.int64).min // 2)
    moved = {}
    keep = np.ones(len(to), bool) if to_inside is None else to_inside.reshape(-1)
    for t, o in zip(to[keep], of[keep]):
        for b in range(nbytes):
            moved[int(t) + b] = int(o) + b if o >= -(1 << 60) else FILL
    return moved


# -- tensor copies ---------------------------------------------------------------------------------------------------------

def tensor_moves(plan, span_limit: int = 233_472):
    """[(shared byte, array byte or FILL)] of every element that the plan's instructions access, in order."""
    m = plan.tensor_map
    nbytes = SIZES[m.dtype]
    rank = m.rank
    need(1 <= rank <= 5, f"rank {rank}")
    need(len(m.global_dim) == len(m.box) == len(m.element_strides) == rank and len(m.global_strides) == rank - 1, "fields of different lengths")
    need(all(1 <= n <= 1 << 32 for n in m.global_dim), f"dimensions {m.global_dim}")
    need(all(s % 16 == 0 and 0 <= s < 1 << 40 for s in m.global_strides), f"strides {m.global_strides}")
    need(all(1 <= b <= 256 for b in m.box), f"box {m.box}")
    need(all(s == 1 for s in m.element_strides), "element strides")
    need(m.base_offset % 16 == 0, f"base offset {m.base_offset}")
    inner = m.box[0] * nbytes
    need(inner % 16 == 0, f"inner box of {inner} bytes")
    need(not m.swizzle or inner <= SPAN[m.swizzle], f"inner box of {inner} bytes in swizzle mode {m.swizzle}")
    need(int(np.prod(m.box)) * nbytes <= span_limit, "box too large")
    need(m.interleave == 0 and m.swizzle in (0, 1, 2, 3) and m.l2_promotion in (0, 1, 2, 3), "mode numbers")
    need(m.oob_fill == 0 or m.dtype in ("float16", "bfloat16", "float32", "float64"), f"NaN fill of {m.dtype}")
    pitch = max(inner, SPAN[m.swizzle])
    local = np.indices(m.box[::-1]).reshape(rank, -1)[::-1]  # innermost dimension first, and fastest
    row = np.zeros(local.shape[1], np.int64)
    for d in reversed(range(1, rank)):
        row = row * m.box[d] + local[d]
    packed = row * pitch + local[0] * nbytes
    strides = (nbytes, *m.global_strides)
    shared, array = [], []
    for coordinates, offset in plan.issues:
        need(offset % 128 == 0, f"shared address {offset}")
        need(coordinates[0] * nbytes % 16 == 0, f"innermost coordinate {coordinates[0]}")
        need(all(-(1 << 31) <= c < 1 << 31 for c in coordinates), "coordinates beyond 32 bits")
        need(not plan.store or all(c >= 0 for c in coordinates), f"a store at {coordinates}")
        at = [local[d] + coordinates[d] for d in range(rank)]
        inside = np.ones(local.shape[1], bool)
        for d in range(rank):
            limit = m.global_dim[d]
            if d == 0 and plan.store:  # where stores clip to 16 bytes
                limit = -(-limit * nbytes // 16) * 16 // nbytes
            inside &= (at[d] >= 0) & (at[d] < limit)
        address = m.base_offset + sum(a * s for a, s in zip(at, strides))
        place = packed + offset
        bits = (1 << m.swizzle) - 1
        place = place ^ (((place >> 7) & bits) << 4)
        shared.append(place)
        array.append(np.where(inside, address, np.iinfo(np.int64).min // 2))
    return nbytes, np.concatenate(shared), np.concatenate(array)


def check_tensor_plan(plan, dst, src) -> None:
    """Check that a tma plan is legal and moves exactly the bytes of the two layouts, each once."""
    nbytes, shared, array = tensor_moves(plan)
    moved = {}
    for s, a in zip(shared, array):
        for b in range(nbytes):
            if plan.store:
                if a < -(1 << 60):
                    continue
                need(int(a) + b not in moved, f"array byte {int(a) + b} is written twice")
                moved[int(a) + b] = int(s) + b
            else:
                need(int(s) + b not in moved, f"shared byte {int(s) + b} is written twice")
                moved[int(s) + b] = int(a) + b if a >= -(1 << 60) else FILL
    compare(moved, expected(dst, src))
    need(plan.bytes_per_issue == int(np.prod(plan.tensor_map.box)) * nbytes, "bytes of an instruction")


def compare(moved: dict, wanted: dict) -> None:
    if moved != wanted:
        extra = sorted(set(moved) - set(wanted))[:4]
        missing = sorted(set(wanted) - set(moved))[:4]
        other = [(k, moved[k], wanted[k]) for k in sorted(set(moved) & set(wanted)) if moved[k] != wanted[k]][:4]
        raise Wrong(f"bytes written and not wanted {extra}, wanted and not written {missing}, other (place, from, wanted) {other}")


# -- vectors of threads ------------------------------------------------------------------------------------------------------

def check_partition(plan, dst, src) -> None:
    """Check that a plan of vectors is aligned on both sides and moves exactly the bytes of the two layouts, each once."""
    (to, to_inside), (of, of_inside) = side(dst), side(src)
    extents = to.shape
    moved = {}
    nbytes = dst.dtype.nbytes
    need(plan.vec * nbytes == plan.vec_bytes and plan.vec_bytes in (1, 2, 4, 8, 16), f"vectors of {plan.vec_bytes} bytes")
    for step, thread in itertools.product(range(plan.outer), range(plan.threads)):
        if step * plan.threads + thread >= plan.vectors:
            need(plan.ragged, "threads left over in an even partition")
            continue
        at = plan.coordinates(thread, step * plan.threads)
        run = [tuple(c + (i if k == (plan.order[-1] if plan.order else None) else 0) for k, c in enumerate(at)) for i in range(plan.vec)]
        need(all(0 <= c < n for p in run for c, n in zip(p, extents)), f"vector at {at}")
        t, o = [int(to[p]) for p in run], [int(of[p]) for p in run]
        reads = True
        for addresses, inside, dims in ((o, of_inside, plan.src_checked), (t, to_inside, plan.dst_checked)):
            need(addresses == list(range(addresses[0], addresses[0] + plan.vec_bytes, nbytes)), f"the vector at {at} is not contiguous")
            if inside is not None:
                need(len({bool(inside[p]) for p in run}) == 1, f"the vector at {at} straddles the bounds")
                need(bool(inside[run[0]]) or dims, f"bounds not checked at {at}")
        reads = of_inside is None or bool(of_inside[run[0]])
        if reads:
            need(o[0] % plan.vec_bytes == 0, f"source address {o[0]} of {plan.vec_bytes} bytes")
        if to_inside is None or to_inside[run[0]]:
            need(t[0] % plan.vec_bytes == 0, f"destination address {t[0]} of {plan.vec_bytes} bytes")
            for b in range(plan.vec_bytes):
                need(t[0] + b not in moved, f"byte {t[0] + b} is written twice")
                moved[t[0] + b] = o[0] + b if reads else FILL
    compare(moved, expected(dst, src))


# -- runs of bytes -----------------------------------------------------------------------------------------------------------

def check_runs(plan, dst, src) -> None:
    """Check that a plan of contiguous runs is aligned on both sides and moves exactly the bytes of the two layouts, each once."""
    firsts, dtype = [], dst.dtype.nbytes
    need(plan.chunk_bytes % 16 == 0 and 0 < plan.chunk_bytes * plan.chunks < 1 << 20, f"{plan.chunks} runs of {plan.chunk_bytes} bytes")
    need(len(plan.places) == plan.chunks, "the number of runs")
    for spec in (dst, src):
        firsts.append(_plain_first(spec))
    moved = {}
    for place in plan.places:
        if dst.scope == src.scope == "shared":
            to, of = firsts[0] + place[0], firsts[1] + place[1]
        else:
            at, step = place
            shared = 0 if dst.scope == "shared" else 1
            array = (dst, src)[1 - shared]
            addresses, inside = side(array)
            need(inside.all(), "a region that leaves the array")
            ends = [0, 0]
            ends[shared], ends[1 - shared] = firsts[shared] + step, int(addresses[at])
            to, of = ends
        need(to % 16 == 0 and of % 16 == 0, f"a run from {of} to {to}")
        for b in range(plan.chunk_bytes):
            need(to + b not in moved, f"byte {to + b} is written twice")
            moved[to + b] = of + b
    compare(moved, expected(dst, src))
    need(dtype * int(np.prod(side(dst)[0].shape)) == plan.chunk_bytes * plan.chunks, "the bytes of the plan")


def _plain_first(spec) -> int:
    """The address of a region's first element before the swizzle."""
    if spec.scope != "shared":
        return 0
    layout = spec.layout.without_swizzle() if spec.layout is not None else None
    plain = type(spec)(spec.shape, spec.dtype, spec.scope, layout=layout, region=spec.region)
    return int(side(plain)[0].reshape(-1)[0])


# -- im2col and selected rows ------------------------------------------------------------------------------------------------

CORNERS = {3: (-(1 << 15), (1 << 15) - 1), 4: (-128, 127), 5: (-16, 15)}
PLACES = {3: (1 << 16) - 1, 4: 255, 5: 31}
NOWHERE = np.iinfo(np.int64).min // 2


def walked(m, corner, offsets) -> list:
    """The positions (image first) of the pixels of an instruction that begins at `corner` (w first, the image last): along w from the
    lower to the upper corner of the map with its strides, then a step along the next dimension, then the next image."""
    at, found = list(corner), []
    last = [n - 1 + high for n, high in zip(m.global_dim[1:], m.upper)]
    for c, low, high, step in zip(at, m.lower, last, m.element_strides[1:]):
        need(low <= c <= high and (c - low) % step == 0, f"a walk from {low} to {high} in steps of {step} that begins at {c}")
    for _ in range(m.pixels):
        found.append([c + (offsets[d] if d < len(offsets) else 0) for d, c in enumerate(at)][::-1])
        for d in range(len(m.lower)):
            at[d] += m.element_strides[1 + d]
            if at[d] <= last[d]:
                break
            at[d] = m.lower[d]
        else:
            at[-1] += 1
    return found


def check_selected_map(m, width: int, store: bool) -> None:
    """Check the map's fields that im2col and gather4 instructions depend on."""
    nbytes = SIZES[m.dtype]
    need(2 <= m.rank <= 5 and len(m.global_strides) == m.rank - 1, f"rank {m.rank}")
    need(all(s % 16 == 0 and 0 <= s < 1 << 40 for s in m.global_strides), f"strides {m.global_strides}")
    need(1 <= width <= 256 and width * nbytes % 16 == 0, f"{width} columns")
    need(not m.swizzle or width * nbytes <= SPAN[m.swizzle], f"{width * nbytes} bytes in swizzle mode {m.swizzle}")
    need(m.interleave == 0 and m.base_offset % 16 == 0 and m.l2_promotion in (0, 1, 2, 3), "mode numbers")
    if m.lower is None:
        need(m.rank == 2 and m.box == (width, 1) and m.element_strides == (1, 1), f"a box of {m.box} for rows")
        return
    low, high = CORNERS[m.rank]
    need(len(m.lower) == len(m.upper) == (m.rank - 2 if m.wide is None else 1), "corners")
    need(all(low <= c <= high for c in (*m.lower, *m.upper)), f"corners {m.lower} and {m.upper}")
    need(1 <= m.pixels <= 1024 and (m.wide != 1 or m.pixels == 128), f"{m.pixels} pixels")
    need(m.element_strides[0] == m.element_strides[-1] == 1 and all(1 <= s <= 8 for s in m.element_strides), f"steps {m.element_strides}")
    need(m.wide is None or m.swizzle, "a walk along w without a swizzle")
    need(not store or (m.wide is None and min(m.lower) >= 0 and max(m.upper) <= 0), "a store that leaves the images")


def placed(m, rows: int, width: int, offset: int) -> np.ndarray:
    """The shared bytes of the elements of an instruction, [rows, width]."""
    need(offset % 128 == 0, f"shared address {offset}")
    nbytes = SIZES[m.dtype]
    place = np.arange(rows)[:, None] * max(width * nbytes, SPAN[m.swizzle]) + np.arange(width) * nbytes + offset
    return place ^ (((place >> 7) & ((1 << m.swizzle) - 1)) << 4)


def at_places(m, places, first: int, width: int, store: bool) -> np.ndarray:
    """The array's bytes of `width` elements from `first` on in the rows at `places` (outermost first), [rows, width]; NOWHERE outside."""
    nbytes, sizes, strides = SIZES[m.dtype], m.global_dim[1:][::-1], m.global_strides[::-1]
    column = first + np.arange(width)
    limit = -(-m.global_dim[0] * nbytes // 16) * 16 // nbytes if store else m.global_dim[0]
    row = [sum(int(c) * s for c, s in zip(at, strides)) if all(0 <= c < n for c, n in zip(at, sizes)) else NOWHERE for at in places]
    inside = (np.array(row)[:, None] != NOWHERE) & (column >= 0) & (column < limit)
    return np.where(inside, np.array(row)[:, None] + column * nbytes + m.base_offset, NOWHERE)


def check_patches(plan, m, shared, wanted, starts, offsets) -> None:
    """Check that an im2col plan with map `m` is legal and moves exactly the bytes that a convolution uses: `wanted` are those of the
    array, [pixels, channels], NOWHERE outside. `starts` are the first pixel's image and position and the first channel, as the
    kernel has them, and `offsets` the position in the filter."""
    check_selected_map(m, m.channels, plan.store)
    need(all(0 <= o <= PLACES[m.rank] for o in offsets), f"places {offsets} in the filter")
    places, addresses = [], []
    for issue, offset in plan.issues:
        at = [c + (starts[part[0]] * part[1] // part[2] if part is not None else 0) for c, part in zip(issue, plan.moving)]
        need(at[0] * SIZES[m.dtype] % 16 == 0 and (not plan.store or min(at) >= 0), f"coordinates {at}")
        rows = walked(m, at[1:], () if plan.store else offsets[::-1])
        places.append(placed(m, m.pixels, m.channels, offset))
        addresses.append(at_places(m, rows, at[0], m.channels, plan.store))
    need(plan.bytes_per_issue == m.pixels * m.channels * SIZES[m.dtype], "bytes of an instruction")
    compare_selected(plan, m, shared, wanted, places, addresses)


def check_rows(plan, m, shared, wanted, column: int, rows) -> None:
    """Check that a plan of rows selected by index is legal and moves exactly the bytes `wanted` of the matrix, [rows, columns],
    NOWHERE outside."""
    width = m.box[0]
    check_selected_map(m, width, plan.store)
    places, addresses = [], []
    for (step, first), offset in plan.issues:
        need((column + step) * SIZES[m.dtype] % 16 == 0, f"column {column + step}")
        places.append(placed(m, 4, width, offset))
        addresses.append(at_places(m, [[r] for r in rows[first:first + 4]], column + step, width, plan.store))
    need(plan.bytes_per_issue == 4 * width * SIZES[m.dtype], "bytes of an instruction")
    compare_selected(plan, m, shared, wanted, places, addresses)


def compare_selected(plan, m, shared, wanted, places, addresses) -> None:
    to_shared = dict_of(side(shared)[0], wanted, shared.dtype.nbytes)
    moved = {}
    for s, a in zip(np.concatenate([p.reshape(-1) for p in places]), np.concatenate([a.reshape(-1) for a in addresses])):
        for b in range(SIZES[m.dtype]):
            need(int(s) + b not in moved, f"shared byte {int(s) + b} is met twice")
            moved[int(s) + b] = int(a) + b if a != NOWHERE else FILL
    compare(moved, to_shared)


def dict_of(places: np.ndarray, addresses: np.ndarray, nbytes: int) -> dict:
    """{shared byte: array byte or FILL} of elements."""
    return {int(s) + b: int(a) + b if a != NOWHERE else FILL for s, a in zip(places.reshape(-1), np.broadcast_to(addresses, places.shape).reshape(-1))
            for b in range(nbytes)}
