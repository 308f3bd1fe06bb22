"""Scans and reductions of long arrays: the scan with decoupled look-back, sums of segments, histograms."""

import numpy as np
import tilejit as tile

from tests.ports.ports import Machine, exact, integers, normal, port

# The scan in one pass (Merrill and Garland 2016). A CTA publishes the sum of its part, then the sum up to its end;
# until then those after it look back over the parts before them, 32 at a time. A word holds a state and a sum.
PART, ALL = 1 << 32, 2 << 32


@tile.jit
def scan_with_look_back(x, out, counter, words, BLOCK: tile.constexpr):
    part = tile.atomic_add(counter[0], 1)
    v = tile.load(x[part * BLOCK:part * BLOCK + BLOCK])
    total, before = tile.sum(v), 0
    if part > 0:
        tile.store(words[part], PART | total.to(tile.uint32).to(tile.int64), sem="release")
        at, found = part - 32, False
        while not found:
            seen = tile.load(words[at:at + 32], other=ALL, sem="acquire")
            if tile.all(seen >= PART):
                last = tile.max(tile.where(seen >= ALL, tile.arange(32), -1))
                before += tile.sum(tile.where(tile.arange(32) >= last, seen.to(tile.int32), 0))
                found = last >= 0
                at -= 32
    tile.store(words[part], ALL | (before + total).to(tile.uint32).to(tile.int64), sem="release")
    tile.store(out[part * BLOCK:part * BLOCK + BLOCK], tile.cumsum(v) + before)


@port
def decoupled_look_back(on: Machine):
    x = integers(-50, 100, 5001)
    out, counter, words = on.empty(5001, "int32"), on.zeros(1, "int32"), on.zeros(40, "int64")
    scan_with_look_back[40,](on(x), out, counter, words, BLOCK=128)
    on.check(out, np.cumsum(x))


# Sums by key, of sorted keys: a segmented scan in a block, whose ends are added to the results.

@tile.jit
def join(a, b):
    (head, x), (head_b, y) = a, b
    return head | head_b, tile.where(head_b, y, x + y)


@tile.jit
def sums_by_key(keys, x, out, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK
    key = tile.load(keys[i:i + BLOCK], other=-1)
    head = key != tile.load(keys[i - 1:i - 1 + BLOCK], other=-1)
    _, sums = tile.scan((head, tile.load(x[i:i + BLOCK], other=0)), 0, join)
    last = (key != tile.load(keys[i + 1:i + 1 + BLOCK], other=-1)) | (tile.arange(BLOCK) == BLOCK - 1)
    tile.atomic_add(out[key], sums, mask=last)


@port
def segment_reduce(on: Machine):
    keys, x = np.sort(integers(0, 60, 1100)), normal(1100)
    keys[keys == 7] = 8
    out = on.zeros(60, "float32")
    sums_by_key[5,](on(keys), on(x), out, BLOCK=256)
    on.check(out, np.bincount(keys, exact(x), 60))


@tile.jit
def histogram_of_bytes(x, counts, BLOCK: tile.constexpr):
    total = tile.zeros((256,), tile.int32)
    for i in range(tile.program_id(0) * BLOCK, x.shape[0], tile.num_programs(0) * BLOCK):
        at = i + tile.arange(BLOCK)
        total += tile.histogram(tile.where(at < x.shape[0], tile.load(x[at]).to(tile.int32), -1), 256)
    tile.atomic_add(counts[0:256], total)


@port
def histogram(on: Machine):
    x = integers(0, 256, 6005, dtype=np.uint8)
    counts = on.zeros(256, "int32")
    histogram_of_bytes[2,](on(x)[::2], counts, BLOCK=512)
    on.check(counts, np.bincount(x[::2], minlength=256))
