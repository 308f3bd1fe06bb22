"""Attention over whole sequences: causal with shared heads, in a window, over blocks of a mask, over selected ones."""

import numpy as np
import tilejit as tile

from tests.ports.ports import Machine, bfloat16, exact, normal, port, softmax

LOG2E = 1.4426950408889634


@tile.jit
def online_softmax(s, v, most, total, acc):
    """One step of attention: a block of scores `s`, base 2, and its values `v` join the maximum, sum and result."""
    new = tile.maximum(most, tile.max(s, axis=1))
    p, by = tile.exp2(s - new[:, None]), tile.exp2(most - new)
    return new, total * by + tile.sum(p, axis=1), tile.dot(p.to(v.dtype), v, acc * by[:, None])


# FlashAttention (Dao 2023) with fewer heads of keys than of queries, and the logarithm of the sums for a backward pass.

@tile.jit
def attention_forward(q, k, v, o, lse, scale, WINDOW: tile.constexpr, SHARED: tile.constexpr, BM: tile.constexpr,
                      BN: tile.constexpr, D: tile.constexpr):
    head, m, n_keys = tile.program_id(1), tile.program_id(0) * BM, k.shape[1]
    rows, past = m + tile.arange(BM), n_keys - q.shape[1]
    query = tile.load(q[head, m:m + BM, 0:D])
    most, total, acc = tile.full((BM,), -1e30), tile.zeros((BM,)), tile.zeros((BM, D))
    first = 0
    if WINDOW is not None:
        first = max(m + past - WINDOW + 1, 0) // BN * BN
    for n in tile.pipelined(range(first, min(m + BM + past, n_keys), BN), stages=2):
        s = tile.dot(query, tile.load(k[head // SHARED, n:n + BN, 0:D]).T) * (scale * LOG2E)
        at = (n + tile.arange(BN))[None, :]
        seen = at <= (rows + past)[:, None]
        if WINDOW is not None:
            seen &= at > (rows + past)[:, None] - WINDOW
        s = tile.where(seen, s, -float("inf"))
        most, total, acc = online_softmax(s, tile.load(v[head // SHARED, n:n + BN, 0:D]), most, total, acc)
    tile.store(o[head, m:m + BM, 0:D], acc / total[:, None])
    tile.store(lse[head, m:m + BM], most / LOG2E + tile.log(total))


def attention_in_numpy(q, k, v, seen, scale):
    """The result and the logarithms of the sums, for heads of queries that share those of keys."""
    k, v = (np.repeat(exact(x), len(q) // len(x), 0) for x in (k, v))
    s = np.where(seen, exact(q) @ k.transpose(0, 2, 1) * scale, -np.inf)
    return softmax(s) @ v, np.log(np.exp(s).sum(-1))


@port
def flash_attention(on: Machine):
    heads, kv, rows, keys, d = 4, 2, 45, 70, 24
    q = normal(rows, heads, d, dtype=bfloat16)
    k, v = normal(keys, kv, d, dtype=bfloat16), normal(keys, kv, d, dtype=bfloat16)
    o, lse = on.empty((rows, heads, d), bfloat16), on.empty((heads, rows), "float32")
    by_head = [on(x).transpose(1, 0, 2) for x in (q, k, v)]
    attention_forward[2, heads](*by_head, o.transpose(1, 0, 2), lse, 0.2, WINDOW=None, SHARED=2, BM=32, BN=32, D=d)
    seen = np.arange(keys) <= np.arange(rows)[:, None] + keys - rows
    want, sums = attention_in_numpy(*(x.transpose(1, 0, 2) for x in (q, k, v)), seen, 0.2)
    on.check(o, want.transpose(1, 0, 2))
    on.check(lse, sums, 1e-3)


@port
def sliding_window_attention(on: Machine):
    q, k, v = (normal(2, 90, 16, dtype=np.float16) for _ in range(3))
    o, lse = on.empty((2, 90, 16), np.float16), on.empty((2, 90), "float32")
    attention_forward[3, 2](on(q), on(k), on(v), o, lse, 0.25, WINDOW=20, SHARED=1, BM=32, BN=16, D=16)
    ago = np.arange(90)[:, None] - np.arange(90)
    want, sums = attention_in_numpy(q, k, v, (ago >= 0) & (ago < 20), 0.25)
    on.check(o, want)
    on.check(lse, sums, 1e-3)


# Block-sparse attention: a list of blocks of keys for each block of queries, in the manner of CSR.

@tile.jit
def attention_over_blocks(q, k, v, o, starts, blocks, scale, BM: tile.constexpr, BN: tile.constexpr, D: tile.constexpr):
    block, head = tile.program_id(0), tile.program_id(1)
    query = tile.load(q[head, block * BM:block * BM + BM, 0:D])
    most, total, acc = tile.full((BM,), -1e30), tile.zeros((BM,)), tile.zeros((BM, D))
    for i in tile.pipelined(range(tile.load(starts[block]), tile.load(starts[block + 1])), stages=2):
        n = tile.load(blocks[i]) * BN
        s = tile.dot(query, tile.load(k[head, n:n + BN, 0:D]).T) * (scale * LOG2E)
        s = tile.where((n + tile.arange(BN) < k.shape[1])[None, :], s, -float("inf"))
        most, total, acc = online_softmax(s, tile.load(v[head, n:n + BN, 0:D]), most, total, acc)
    tile.store(o[head, block * BM:block * BM + BM, 0:D], acc / total[:, None])


@port
def block_sparse_attention(on: Machine):
    q, k, v = (normal(2, 84, 32, dtype=bfloat16) for _ in range(3))
    chosen = np.array([[1, 0, 0, 0, 1, 0], [0, 1, 1, 0, 0, 1], [1, 0, 0, 1, 1, 1]], bool)
    starts, blocks = np.cumsum([0, *chosen.sum(1)]), np.nonzero(chosen)[1]
    o = on.empty(q.shape, bfloat16)
    attention_over_blocks[3, 2](on(q), on(k), on(v), o, on(starts), on(blocks.astype(np.int32)), 0.2, BM=32, BN=16,
                                D=32)
    on.check(o, attention_in_numpy(q, k, v, np.repeat(np.repeat(chosen, 32, 0), 16, 1)[:84, :84], 0.2)[0])


# Native sparse attention (Yuan et al. 2025): the blocks of keys with the largest sums of compressed scores over the
# heads of a group, the first and the last ones always, and attention over those of each query.

@tile.jit
def select_blocks(scores, chosen, G: tile.constexpr, BLOCKS: tile.constexpr, SIZE: tile.constexpr, K: tile.constexpr):
    row = tile.program_id(0)
    last, at = row // SIZE, tile.arange(BLOCKS)
    s = tile.sum(tile.load(scores[0:G, row, 0:BLOCKS], other=0.0), axis=0)
    s = tile.where((at == 0) | (at == last), 1e9, s)
    best, found = tile.topk(tile.where(at <= last, s, -float("inf")), K)
    tile.store(chosen[row, 0:K], tile.where(best > -float("inf"), found, -1))


@tile.jit
def attention_over_selection(q, k, v, o, chosen, scale, G: tile.constexpr, SIZE: tile.constexpr, K: tile.constexpr,
                             D: tile.constexpr):
    row = tile.program_id(0)
    query = tile.load(q[row, 0:G, 0:D])
    most, total, acc = tile.full((G,), -1e30), tile.zeros((G,)), tile.zeros((G, D))
    for i in range(K):
        block = tile.load(chosen[row, i])
        if block >= 0:
            n = block * SIZE
            s = tile.dot(query, tile.load(k[n:n + SIZE, 0:D]).T) * (scale * LOG2E)
            s = tile.where((n + tile.arange(SIZE) <= row)[None, :], s, -float("inf"))
            most, total, acc = online_softmax(s, tile.load(v[n:n + SIZE, 0:D]), most, total, acc)
    tile.store(o[row, 0:G, 0:D], acc / total[:, None])


@port
def native_sparse_attention(on: Machine):
    rows, g, size, top, d = 41, 4, 8, 3, 16
    q, k, v = normal(rows, g, d, dtype=bfloat16), normal(rows, d, dtype=bfloat16), normal(rows, d, dtype=bfloat16)
    blocks = tile.cdiv(rows, size)
    scores = np.exp(normal(g, rows, blocks))
    chosen, o = on.empty((rows, top), "int32"), on.empty(q.shape, bfloat16)
    select_blocks[rows,](on(scores), chosen, G=g, BLOCKS=8, SIZE=size, K=top)
    attention_over_selection[rows,](on(q), on(k), on(v), o, chosen, 0.25, G=g, SIZE=size, K=top, D=d)
    last, at = np.arange(rows)[:, None] // size, np.arange(blocks)
    s = np.where((at == 0) | (at == last), 1e9, exact(scores).sum(0))
    order = np.argsort(-np.where(at <= last, s, -np.inf), 1, kind="stable")[:, :top]
    want = np.where(np.take_along_axis(np.broadcast_to(at <= last, s.shape), order, 1), order, -1)
    on.check(chosen, want)
    seen = (want[:, :, None] == np.arange(rows) // size).any(1) & (np.arange(rows) <= np.arange(rows)[:, None])
    on.check(o, attention_in_numpy(q.transpose(1, 0, 2), k[None], v[None], seen, 0.25)[0].transpose(1, 0, 2))
