"""Tables and images: a hash table, selection of elements, non-maximum suppression, bilinear sampling, a fractal."""

import numpy as np
import tilejit as tile

from tests.ports.ports import Machine, exact, integers, normal, permutation, port, uniform

# A hash table with open addressing: every element of a tile tries the next place until it has one, or finds its key.

@tile.jit
def insert(keys, table, places, BLOCK: tile.constexpr):
    at = tile.program_id(0) * BLOCK + tile.arange(BLOCK)
    key, size = tile.load(keys[at]), table.shape[0]
    place = (key.to(tile.uint32) * 2654435761 >> 16).to(tile.int32) % size
    searching = at < keys.shape[0]
    while tile.any(searching):
        found = tile.atomic_cas(table[place], -1, key, mask=searching)
        searching = searching & (found != -1) & (found != key)
        place = tile.where(searching, (place + 1) % size, place)
    tile.store(places[at], place)


@port
def hash_table(on: Machine):
    keys = integers(0, 50, 150)
    table, places = on(np.full(67, -1, np.int32)), on.empty(150, "int32")
    insert[3,](on(keys), table, places, BLOCK=64)
    got = on.get(table)
    on.check(np.sort(got[got >= 0]), np.unique(keys))
    on.check(got[on.get(places)], keys)


# The elements that satisfy a condition, in order: each CTA counts, then writes behind those of the CTAs before it.

@tile.jit
def select(x, limit, out, count, BLOCK: tile.constexpr):
    first = 0
    for i in range(0, x.shape[0], BLOCK):
        v = tile.load(x[i:i + BLOCK], other=limit)
        kept = (v > limit).to(tile.int32)
        tile.store(out[first + tile.cumsum(kept) - kept], v, mask=kept == 1)
        first += tile.sum(kept)
    tile.store(count[0], first)


@port
def stream_compaction(on: Machine):
    x = normal(500)
    out, count = on.empty(500, "float32"), on.empty(1, "int32")
    select[1,](on(x), 0.5, out, count, BLOCK=128)
    want = x[x > 0.5]
    on.check(count, [len(want)])
    on.check(out[:len(want)], want, 0)


# Non-maximum suppression: boxes in descending order of their scores; each that is kept removes those that overlap it.

@tile.jit
def overlap(a, b):
    """The intersection of boxes (x0, y0, x1, y1), over their union."""
    width = tile.minimum(a[2], b[2]) - tile.maximum(a[0], b[0])
    height = tile.minimum(a[3], b[3]) - tile.maximum(a[1], b[1])
    common = tile.maximum(width, 0) * tile.maximum(height, 0)
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)


@tile.jit
def suppress(boxes, scores, kept, limit, N: tile.constexpr):
    n, at = scores.shape[0], tile.arange(N)
    order = tile.argsort(tile.load(scores[0:N], other=-float("inf")), descending=True)
    box = [tile.load(boxes[order, c]) for c in range(4)]
    alive = at < n
    for i in range(n):
        if alive[i]:
            alive &= (at <= i) | (overlap([c[i] for c in box], box) <= limit)
    tile.store(kept[order], alive, mask=at < n)


@port
def non_maximum_suppression(on: Machine):
    corner, size, scores = 4 * uniform(45, 2), 0.5 + uniform(45, 2), permutation(45).astype(np.float32)
    boxes = np.hstack([corner, corner + size])
    kept = on.empty(45, "bool")
    suppress[1,](on(boxes), on(scores), kept, 0.2, N=64)
    order, want = np.argsort(-scores), np.zeros(45, bool)
    for i in order:
        low, high = np.maximum(boxes[:, :2], boxes[i, :2]), np.minimum(boxes[:, 2:], boxes[i, 2:])
        common = np.maximum(high - low, 0).prod(1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        want[i] = not (common / (area + area[i] - common) > 0.2)[want].any()
    on.check(kept, want)


# Bilinear sampling at places between the pixels of an image, 0 around it.

@tile.jit
def sample(image, places, out, BP: tile.constexpr, BC: tile.constexpr):
    i, c = tile.program_id(0) * BP, tile.program_id(1) * BC
    y, x = tile.load(places[i:i + BP, 0]), tile.load(places[i:i + BP, 1])
    top, left = tile.floor(y), tile.floor(x)
    total = tile.zeros((BP, BC))
    for dy, dx in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        row, column = top.to(tile.int32) + dy, left.to(tile.int32) + dx
        share = (1 - tile.abs(y - row)) * (1 - tile.abs(x - column))
        total += share[:, None] * tile.load(image[row, column, c:c + BC])
    tile.store(out[i:i + BP, c:c + BC], total)


@port
def grid_sample(on: Machine):
    image, places = normal(6, 8, 20), (uniform(50, 2) * [8, 10] - 1).astype(np.float32)
    out = on.empty((50, 20), "float32")
    sample[2, 2](on(image), on(places), out, BP=32, BC=16)
    padded, at = np.pad(exact(image), [(2, 3), (2, 3), (0, 0)]), np.floor(places).astype(int)
    want = 0
    for d in np.ndindex(2, 2):
        share = (1 - np.abs(exact(places) - at - d)).prod(1)
        want = want + share[:, None] * padded[tuple((at + d + 2).T)]
    on.check(out, want)


@tile.jit
def escape_times(out, LIMIT: tile.constexpr, BM: tile.constexpr, BN: tile.constexpr):
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    ci = (m + tile.arange(BM))[:, None] * (2.4 / out.shape[0]) - 1.2 + tile.zeros((BM, BN))
    cr = (n + tile.arange(BN))[None, :] * (3.0 / out.shape[1]) - 2.2 + tile.zeros((BM, BN))
    re, im, times, i = tile.zeros((BM, BN)), tile.zeros((BM, BN)), tile.zeros((BM, BN), tile.int32), 0
    while i < LIMIT and tile.any(re * re + im * im <= 4):
        inside = re * re + im * im <= 4
        times += inside
        re, im = tile.where(inside, re * re - im * im + cr, re), tile.where(inside, 2 * re * im + ci, im)
        i += 1
    tile.store(out[m:m + BM, n:n + BN], times)


@port
def mandelbrot(on: Machine):
    out = on.empty((20, 45), "int32")
    escape_times[2, 2](out, LIMIT=12, BM=16, BN=32)
    c = (np.arange(45) * 3.0 / 45 - 2.2) + 1j * (np.arange(20) * 2.4 / 20 - 1.2)[:, None]
    z, times = np.zeros_like(c), np.zeros(c.shape, int)
    for _ in range(12):
        inside = np.abs(z) <= 2
        times += inside
        z[inside] = z[inside] ** 2 + c[inside]
    assert (on.get(out) != times).mean() < 0.01  # float32 beside the edge
    on.check(out[0], times[0])
