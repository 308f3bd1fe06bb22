"""Decoding: attention over a cache in pages, latent attention, moves of cache blocks, verification of drafts."""

import numpy as np
import tilejit as tile

from tests.ports.attention import LOG2E, online_softmax
from tests.ports.ports import Machine, bfloat16, exact, float8, integers, normal, permutation, port, softmax, uniform

# The cache of keys and values (vLLM's reshape_and_cache): new tokens go to slots, the value -1 is none. With float8
# caches they are divided by a scale.

@tile.jit
def write_to_cache(key, value, key_cache, value_cache, slots, scale, PAGE: tile.constexpr, HEADS: tile.constexpr,
                   D: tile.constexpr):
    token = tile.program_id(0)
    slot = tile.load(slots[token])
    if slot < 0:
        return
    tile.store(key_cache[slot // PAGE, slot % PAGE, 0:HEADS, 0:D],
               tile.load(key[token, 0:HEADS, 0:D]).to(tile.float32) / scale)
    tile.store(value_cache[slot // PAGE, slot % PAGE, 0:HEADS, 0:D],
               tile.load(value[token, 0:HEADS, 0:D]).to(tile.float32) / scale)


@port
def write_new_tokens_to_cache(on: Machine):
    k, v = normal(5, 2, 24, dtype=bfloat16), normal(5, 2, 24, dtype=bfloat16)
    slots = np.array([9, -1, 2, 3, 15], np.int64)
    kc, vc = on.zeros((4, 4, 2, 24), float8), on.zeros((4, 4, 2, 24), float8)
    write_to_cache[5,](on(k), on(v), kc, vc, on(slots), 0.5, PAGE=4, HEADS=2, D=24)
    for x, cache in ((k, kc), (v, vc)):
        want = np.zeros((16, 2, 24), np.float32)
        want[slots[slots >= 0]] = x[slots >= 0].astype(np.float32) / 0.5
        on.check(cache, want.reshape(4, 4, 2, 24).astype(float8), 0)


@tile.jit
def copy_blocks(caches: list[tile.Array], pairs, N: tile.constexpr):
    """Blocks of every layer's cache to other places of it."""
    pair, i = tile.program_id(0), tile.program_id(1) * N
    source, target = tile.load(pairs[pair, 0]), tile.load(pairs[pair, 1])
    for cache in caches:
        tile.store(cache[target, i:i + N], tile.load(cache[source, i:i + N]))


@port
def copy_cache_blocks(on: Machine):
    caches, pairs = [normal(8, 200, dtype=bfloat16) for _ in range(3)], np.array([[0, 5], [3, 7], [3, 1]], np.int64)
    given = [on(cache) for cache in caches]
    copy_blocks[3, 2](given, on(pairs), N=128)
    for cache, result in zip(caches, given):
        cache[pairs[:, 1]] = cache[pairs[:, 0]]
        on.check(result, cache, 0)


# Paged attention of one token (Kwon et al. 2023), the keys in splits whose results a second kernel merges (flash
# decoding).

@tile.jit
def paged_split(q, key_cache, value_cache, table, lengths, parts, sums, scale, PAGE: tile.constexpr, G: tile.constexpr,
                D: tile.constexpr, SPLIT: tile.constexpr):
    request, head, split = tile.program_id(0), tile.program_id(1), tile.program_id(2)
    length = tile.load(lengths[request])
    query = tile.load(q[request, head * G:head * G + G, 0:D])
    most, total, acc = tile.full((G,), -1e30), tile.zeros((G,)), tile.zeros((G, D))
    for n in tile.pipelined(range(split * SPLIT, min(split * SPLIT + SPLIT, length), PAGE), stages=2):
        page = tile.load(table[request, n // PAGE])
        s = tile.dot(query, tile.load(key_cache[page, 0:PAGE, head, 0:D]).T) * (scale * LOG2E)
        s = tile.where((n + tile.arange(PAGE) < length)[None, :], s, -float("inf"))
        most, total, acc = online_softmax(s, tile.load(value_cache[page, 0:PAGE, head, 0:D]), most, total, acc)
    tile.store(parts[request, split, head * G:head * G + G, 0:D], acc)
    tile.store(sums[request, split, head * G:head * G + G, 0], most)
    tile.store(sums[request, split, head * G:head * G + G, 1], total)


@tile.jit
def merge_splits(parts, sums, o, SPLITS: tile.constexpr, D: tile.constexpr):
    request, head = tile.program_id(0), tile.program_id(1)
    most, total = tile.load(sums[request, 0:SPLITS, head, 0]), tile.load(sums[request, 0:SPLITS, head, 1])
    by = tile.exp2(most - tile.max(most))
    acc = tile.sum(tile.load(parts[request, 0:SPLITS, head, 0:D]) * by[:, None], axis=0)
    tile.store(o[request, head, 0:D], acc / tile.sum(total * by))


@port
def paged_decode(on: Machine):
    requests, heads, g, d, page, pages, split = 3, 2, 3, 20, 8, 24, 24
    q = normal(requests, heads * g, d, dtype=np.float16)
    kc, vc = normal(pages, page, heads, d, dtype=np.float16), normal(pages, page, heads, d, dtype=np.float16)
    lengths, table = np.array([1, 37, 64], np.int32), permutation(pages).reshape(requests, 8)
    splits = tile.cdiv(64, split)
    parts = on.empty((requests, splits, heads * g, d), "float32")
    sums = on.empty((requests, splits, heads * g, 2), "float32")
    o = on.empty(q.shape, np.float16)
    paged_split[requests, heads, splits](on(q), on(kc), on(vc), on(table), on(lengths), parts, sums, 0.25, PAGE=page,
                                         G=g, D=d, SPLIT=split)
    merge_splits[requests, heads * g](parts, sums, o, SPLITS=splits, D=d)
    want = np.empty(q.shape)
    for r, n in enumerate(lengths):
        k, v = (np.repeat(exact(c[table[r]]).reshape(-1, heads, d)[:n], g, 1) for c in (kc, vc))
        want[r] = np.einsum("hn,nhd->hd", softmax(np.einsum("hd,nhd->hn", exact(q[r]), k) * 0.25), v)
    on.check(o, want)


# Latent attention (DeepSeek-V2 2024): all heads share one cached latent, which is key and value, and a rotary part of
# the key.

@tile.jit
def latent_decode(q, q_rope, cache, rope_cache, table, lengths, o, scale, PAGE: tile.constexpr, HEADS: tile.constexpr,
                  LATENT: tile.constexpr, ROPE: tile.constexpr):
    request = tile.program_id(0)
    length = tile.load(lengths[request])
    query, turned = tile.load(q[request, 0:HEADS, 0:LATENT]), tile.load(q_rope[request, 0:HEADS, 0:ROPE])
    most, total, acc = tile.full((HEADS,), -1e30), tile.zeros((HEADS,)), tile.zeros((HEADS, LATENT))
    for n in tile.pipelined(range(0, length, PAGE), stages=2):
        page = tile.load(table[request, n // PAGE])
        latent = tile.load(cache[page, 0:PAGE, 0:LATENT])
        s = tile.dot(turned, tile.load(rope_cache[page, 0:PAGE, 0:ROPE]).T, tile.dot(query, latent.T)) * (scale * LOG2E)
        s = tile.where((n + tile.arange(PAGE) < length)[None, :], s, -float("inf"))
        most, total, acc = online_softmax(s, latent, most, total, acc)
    tile.store(o[request, 0:HEADS, 0:LATENT], acc / total[:, None])


@port
def mla_decode(on: Machine):
    requests, heads, latent, rope, page = 2, 20, 48, 16, 16
    q, turned = normal(requests, heads, latent, dtype=bfloat16), normal(requests, heads, rope, dtype=bfloat16)
    cache = normal(8, page, latent + rope, dtype=bfloat16)  # one array: the latent, and the rotary part beside it
    lengths, table = np.array([50, 17], np.int32), permutation(8).reshape(requests, 4)
    o, given = on.empty(q.shape, bfloat16), on(cache)
    latent_decode[requests,](on(q), on(turned), given[..., :latent], given[..., latent:], on(table), on(lengths), o,
                             0.15, PAGE=page, HEADS=heads, LATENT=latent, ROPE=rope)
    want = np.empty(q.shape)
    for r, n in enumerate(lengths):
        keys = exact(cache[table[r]]).reshape(-1, latent + rope)[:n]
        want[r] = softmax(np.hstack([exact(q[r]), exact(turned[r])]) @ keys.T * 0.15) @ keys[:, :latent]
    on.check(o, want)


# Speculative decoding (Leviathan et al. 2023): a drafted token stays with probability min(1, p / q); the first that
# does not is drawn anew from what p exceeds q by, and the rest are dropped. If all stay, the last row of p gives one
# more.

@tile.jit
def verify_draft(p, q, drafted, uniforms, out, LENGTH: tile.constexpr, WORDS: tile.constexpr):
    request, at, kept = tile.program_id(0), 0, True
    while kept and at < LENGTH:
        token = tile.load(drafted[request, at])
        kept = tile.load(uniforms[request, at]) * tile.load(q[request, at, token]) < tile.load(p[request, at, token])
        if kept:
            tile.store(out[request, at], token)
            at += 1
    target = tile.load(p[request, at, 0:WORDS])
    rest = tile.maximum(target - tile.load(q[request, at, 0:WORDS]), 0.0) if at < LENGTH else target
    sums = tile.cumsum(rest)
    drawn = tile.sum(sums <= tile.load(uniforms[request, LENGTH]) * tile.max(sums))
    tile.store(out[request, at], drawn)
    for i in range(at + 1, LENGTH + 1):
        tile.store(out[request, i], -1)


@port
def speculative_verification(on: Machine):
    requests, length, words = 7, 4, 50
    p, q = softmax(normal(requests, length + 1, words)), softmax(normal(requests, length, words))
    drafted, u = integers(0, words, requests, length), uniform(requests, length + 1)
    drafted[0], u[1] = p[0, :length].argmax(1), 0.5
    u[0, :length] = 0  # all of request 0 stay
    out = on.empty((requests, length + 1), "int32")
    verify_draft[requests,](on(p), on(q), on(drafted), on(u), out, LENGTH=length, WORDS=64)
    want = np.full((requests, length + 1), -1)
    for r in range(requests):
        ratio = u[r, :length] * q[r, np.arange(length), drafted[r]] < p[r, np.arange(length), drafted[r]]
        n = length if ratio.all() else int(np.argmin(ratio))
        rest = p[r, n] if n == length else np.maximum(p[r, n] - q[r, n], 0)
        sums = np.cumsum(exact(rest))
        want[r, :n], want[r, n] = drafted[r, :n], (sums <= u[r, -1] * sums[-1]).sum()
    on.check(out, want)
