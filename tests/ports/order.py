"""Sorting and selection: a bitonic sort over several CTAs, the k largest by radix selection, top-p sampling."""

import numpy as np
import tilejit as tile

from tests.ports.ports import Machine, exact, normal, port, softmax

# Bitonic sort (Batcher 1968) of more than a CTA holds: blocks in alternating directions, then exchanges at distances of
# a block and more in memory, and within the blocks again.

@tile.jit
def sort_blocks(x, LENGTH: tile.constexpr, BLOCK: tile.constexpr):
    """Sorts each block, downwards where it lies in an odd run of `LENGTH`."""
    i = tile.program_id(0) * BLOCK
    v = tile.sort(tile.load(x[i:i + BLOCK], other=float("inf")))
    tile.store(x[i:i + BLOCK], v if i // LENGTH % 2 == 0 else tile.flip(v))


@tile.jit
def exchange(x, LENGTH: tile.constexpr, DISTANCE: tile.constexpr, BLOCK: tile.constexpr):
    t = tile.program_id(0) * BLOCK
    i = t // DISTANCE * 2 * DISTANCE + t % DISTANCE
    a, b = tile.load(x[i:i + BLOCK]), tile.load(x[i + DISTANCE:i + DISTANCE + BLOCK])
    low, high = tile.minimum(a, b), tile.maximum(a, b)
    up = i // LENGTH % 2 == 0
    tile.store(x[i:i + BLOCK], low if up else high)
    tile.store(x[i + DISTANCE:i + DISTANCE + BLOCK], high if up else low)


@port
def bitonic_sort(on: Machine):
    block, n = 64, 200
    x = np.full(256, np.inf, np.float32)
    x[:n] = normal(n)
    given = on(x)
    sort_blocks[4,](given, LENGTH=block, BLOCK=block)
    for length in (128, 256):
        distance = length // 2
        while distance >= block:
            exchange[2,](given, LENGTH=length, DISTANCE=distance, BLOCK=block)
            distance //= 2
        sort_blocks[4,](given, LENGTH=length, BLOCK=block)
    on.check(given[:n], np.sort(x[:n]), 0)


# The places of the k largest of each row, eight bits of the keys at a time (as in sparse attention's indexers).

@tile.jit
def key_of(x):
    """An integer of 32 bits in the order of the floats."""
    bits = tile.bitcast(x.to(tile.float32), tile.uint32)
    return bits ^ tile.where(bits >> 31 != 0, 0xffffffff, 0x80000000).to(tile.uint32)


@tile.jit
def places_of_largest(x, places, lengths, K: tile.constexpr, BLOCK: tile.constexpr):
    row, at = tile.program_id(0), tile.arange(BLOCK)
    n = tile.load(lengths[row])
    prefix, wanted = tile.uint32(0), K
    for shift in tile.static_range(24, -8, -8):
        counts = tile.zeros((256,), tile.int32)
        for i in range(0, n, BLOCK):
            key = key_of(tile.load(x[row, i:i + BLOCK], other=0.0))
            mine = (i + at < n) & (key >> shift >> 8 == prefix)
            counts += tile.histogram(tile.where(mine, (key >> shift & 255).to(tile.int32), -1), 256)
        from_above = tile.cumsum(counts, reverse=True)
        digit = tile.sum(from_above >= wanted) - 1
        wanted -= tile.sum(tile.where(tile.arange(256) > digit, counts, 0))
        prefix = prefix << 8 | digit.to(tile.uint32)
    larger, equal = 0, K - wanted
    for i in range(0, n, BLOCK):
        key, inside = key_of(tile.load(x[row, i:i + BLOCK], other=0.0)), i + at < n
        above, same = (inside & (key > prefix)).to(tile.int32), (inside & (key == prefix)).to(tile.int32)
        tile.store(places[row, larger + tile.cumsum(above) - above], i + at, mask=above == 1)
        to = equal + tile.cumsum(same) - same
        tile.store(places[row, to], i + at, mask=(same == 1) & (to < K))
        larger += tile.sum(above)
        equal += tile.sum(same)


@port
def radix_select(on: Machine):
    rows, n, k = 3, 300, 20
    x, lengths = np.round(4 * normal(rows, n)), np.array([300, 177, 20], np.int32)  # with many equal ones
    places = on.empty((rows, k), "int32")
    places_of_largest[rows,](on(x.astype(np.float32)), places, on(lengths), K=k, BLOCK=128)
    want = [np.sort(np.argsort(-x[r, :m], kind="stable")[:k]) for r, m in enumerate(lengths)]
    on.check(np.sort(on.get(places), 1), want)


# Sampling from the smallest set of tokens whose probabilities reach p (Holtzman et al. 2019).

@tile.jit
def sample_nucleus(logits, temperatures, top_p, tokens, seed, N: tile.constexpr):
    row = tile.program_id(0)
    x = tile.load(logits[row, 0:N], other=-float("inf")).to(tile.float32) / tile.load(temperatures[row])
    x = tile.exp(x - tile.max(x))
    p, order = tile.topk(x / tile.sum(x), N)
    before = tile.cumsum(p) - p
    kept = tile.where(before < tile.load(top_p[row]), p, 0.0)
    drawn = tile.rand(seed, row) * tile.sum(kept)
    place = tile.sum(tile.cumsum(kept) <= drawn)
    tile.store(tokens[row], order[place])


@port
def top_p_sampling(on: Machine):
    rows, words = 200, 30
    one = 2 * normal(words)
    tokens = on.empty(rows, "int32")
    temperatures, top_p = np.full(rows, 0.7, np.float32), np.full(rows, 0.8, np.float32)
    temperatures[:2], top_p[:2] = 1e-2, 1e-3  # these take the most likely token
    logits = np.broadcast_to(one, (rows, words))
    sample_nucleus[rows,](on(logits), on(temperatures), on(top_p), tokens, 5, N=32)
    p = np.sort(softmax(exact(one) / 0.7))[::-1]
    nucleus = np.argsort(-one)[:int((np.cumsum(p) - p < 0.8).sum())]
    got = on.get(tokens)
    assert set(got[2:]) <= set(nucleus) and len(set(got)) > 1
    share = np.bincount(got[2:], minlength=words)[nucleus[0]] / (rows - 2)
    assert abs(share - p[0] / p[:len(nucleus)].sum()) < 0.15
    on.check(got[:2], [one.argmax()] * 2)
