"""A mixture of experts: routing by topk, alignment of each expert's tokens to blocks, products of the blocks."""

import numpy as np
import tilejit as tile

from tests.ports import ports
from tests.ports.ports import Machine, bfloat16, exact, normal, port, sigmoid


@tile.jit
def route(logits, experts, weights, E: tile.constexpr, K: tile.constexpr, BM: tile.constexpr):
    m = tile.program_id(0) * BM
    x = tile.load(logits[m:m + BM, 0:E]).to(tile.float32)
    best, chosen = tile.topk(x, K)
    best = tile.exp(best - best[:, 0:1])
    tile.store(experts[m:m + BM, 0:K], chosen)
    tile.store(weights[m:m + BM, 0:K], best / tile.sum(best, axis=1, keepdims=True))


# The pairs of token and expert, sorted by expert; each expert's pairs begin a block of BM, and the rest of its last
# block holds the number of pairs, which is none (as in vLLM's moe_align_block_size).

@tile.jit
def align_to_blocks(experts, order, block_expert, blocks, BM: tile.constexpr, E: tile.constexpr, PAIRS: tile.constexpr):
    n = experts.shape[0]
    e = tile.load(experts[0:PAIRS], other=E)
    count = tile.histogram(e, E)
    padded = tile.cdiv(count, BM) * BM
    ends = tile.cumsum(padded)
    sorting = tile.argsort(e)
    of = tile.gather(e, sorting, 0)
    place = tile.arange(PAIRS) - tile.gather(tile.cumsum(count) - count, of, 0) + tile.gather(ends - padded, of, 0)
    tile.store(order[place], sorting, mask=of < E)
    for i in range(0, order.shape[0], BM):
        at = i + tile.arange(BM)
        expert = tile.sum(ends <= i)
        used = tile.gather(count - padded + ends, tile.full((BM,), expert), 0)
        tile.store(order[i:i + BM], n, mask=at >= used)
        tile.store(block_expert[i // BM], expert)
    tile.store(blocks[0], tile.max(ends) // BM)


@tile.jit
def products_of_experts(x, weights, order, block_expert, blocks, factors, out, PER_ROW: tile.constexpr,
                        BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr):
    """out[pair] = x[pair // PER_ROW] @ weights[expert of the block].T, times the pair's factor if there is one."""
    block, n = tile.program_id(0), tile.program_id(1) * BN
    if block >= tile.load(blocks[0]):
        return
    expert, pairs = tile.load(block_expert[block]), tile.load(order[block * BM:block * BM + BM])
    acc = tile.zeros((BM, BN))
    for k in tile.pipelined(range(0, x.shape[1], BK), stages=3):
        a, b = tile.load(x[pairs // PER_ROW, k:k + BK]), tile.load(weights[expert, n:n + BN, k:k + BK])
        acc = tile.dot(a, b.T, acc)
    if factors is not None:
        acc *= tile.load(factors[pairs])[:, None]
    tile.store(out[pairs, n:n + BN], acc)


@tile.jit
def silu_and_multiply(x, out, HALF: tile.constexpr, BLOCK: tile.constexpr):
    row = tile.program_id(0)
    gate = tile.load(x[row, 0:BLOCK]).to(tile.float32)
    tile.store(out[row, 0:BLOCK], gate * tile.sigmoid(gate) * tile.load(x[row, HALF:HALF + BLOCK]))


@tile.jit
def sum_of_experts(x, out, K: tile.constexpr, BLOCK: tile.constexpr):
    row = tile.program_id(0)
    tile.store(out[row, 0:BLOCK], tile.sum(tile.load(x[row, 0:K, 0:BLOCK]), axis=0))


@port
def fused_moe(on: Machine):
    tokens, width, inner, experts, k, bm = 21, 48, 40, 6, 2, 16
    x, logits = normal(tokens, width, dtype=bfloat16), normal(tokens, experts)
    w1, w2 = normal(experts, 2 * inner, width, dtype=bfloat16) / 4, normal(experts, width, inner, dtype=bfloat16) / 4
    pairs, most = tokens * k, tile.cdiv(tokens * k + experts * (bm - 1), bm)
    chosen, factors = on.empty((tokens, k), "int32"), on.empty((tokens, k), "float32")
    route[2,](on(logits), chosen, factors, E=experts, K=k, BM=16)
    want = np.argsort(-logits, 1, kind="stable")[:, :k]
    share = ports.softmax(np.take_along_axis(exact(logits), want, 1))
    on.check(chosen, want)
    on.check(factors, share)

    order, block_expert, blocks = on.empty(most * bm, "int32"), on.empty(most, "int32"), on.empty(1, "int32")
    align_to_blocks[1,](chosen.reshape(pairs), order, block_expert, blocks, BM=bm, E=experts, PAIRS=64)
    used = -(-np.bincount(want.ravel(), minlength=experts) // bm)
    on.check(blocks, [used.sum()])
    on.check(block_expert[:used.sum()], np.repeat(np.arange(experts), used))
    found = on.get(order)
    on.check(np.sort(found[found < pairs]), np.arange(pairs))

    up, gated = on.empty((pairs, 2 * inner), bfloat16), on.empty((pairs, inner), bfloat16)
    down, out = on.empty((tokens, k, width), bfloat16), on.empty((tokens, width), bfloat16)
    tiles = dict(BM=bm, BN=32, BK=32)
    products_of_experts[most, 3](on(x), on(w1), order, block_expert, blocks, None, up, PER_ROW=k, **tiles)
    silu_and_multiply[pairs,](up, gated, HALF=inner, BLOCK=inner)
    products_of_experts[most, 2](gated, on(w2), order, block_expert, blocks, factors.reshape(pairs),
                                 down.reshape(pairs, width), PER_ROW=1, **tiles)
    sum_of_experts[tokens,](down, out, K=k, BLOCK=64)
    h = np.einsum("td,tkfd->tkf", exact(x), exact(w1)[want])
    h = h[..., :inner] * sigmoid(h[..., :inner]) * h[..., inner:]
    on.check(out, np.einsum("tkf,tkdf,tk->td", h, exact(w2)[want], share), 3e-2)
