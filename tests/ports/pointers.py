"""Kernels over tables of addresses: Adam of many tensors, grouped products of separate matrices, blocks of caches."""

import numpy as np
import tilejit as tile

from tests.ports.ports import Machine, bfloat16, exact, normal, port, uniform
from tests.ports.training import HYPER, adam_in_numpy, adam_step

# One launch for any number of tensors, in the manner of multi_tensor_apply (Apex): a CTA takes a chunk of one of them.
# The columns of the table are the addresses of the master, the gradient and the two moments.

@tile.jit
def adam_of_table(table, lengths, tensors, chunks, lr, beta1, beta2, eps, decay, step, CHUNK: tile.constexpr,
                  BLOCK: tile.constexpr):
    tensor, first = tile.load(tensors[tile.program_id(0)]), tile.load(chunks[tile.program_id(0)]) * CHUNK
    n = tile.load(lengths[tensor])
    master, grad, m, v = [tile.array(tile.load(table[tensor, j]), tile.float32, n) for j in range(4)]
    for i in range(first, min(first + CHUNK, n), BLOCK):
        state = [tile.load(x[i:i + BLOCK]) for x in (master, grad, m, v)]
        for x, value in zip((master, m, v), adam_step(*state, lr, beta1, beta2, eps, decay, step)):
            tile.store(x[i:i + BLOCK], value)


@port
def multi_tensor_adam_by_addresses(on: Machine):
    lengths, chunk = (300, 1, 77, 128), 128
    lists = [[normal(n) for n in lengths] for _ in range(3)] + [[uniform(n) for n in lengths]]
    given = [[on(x) for x in one] for one in lists]
    table = np.array([[tile.address_of(one[i]) for one in given] for i in range(len(lengths))], np.int64)
    parts = [(i, j) for i, n in enumerate(lengths) for j in range(tile.cdiv(n, chunk))]
    tensors, chunks = (on(np.array(column, np.int32)) for column in zip(*parts))
    adam_of_table[len(parts),](on(table), on(np.array(lengths, np.int32)), tensors, chunks, *HYPER, CHUNK=chunk,
                               BLOCK=64)
    for i in range(len(lengths)):
        want = adam_in_numpy(*(exact(one[i]) for one in lists), *HYPER)
        for one, w in zip((given[0], *given[2:]), want):
            on.check(one[i], w)


# Grouped products of matrices with any extents, whose addresses and extents are in tables; each CTA takes tiles in
# turn.

@tile.jit
def products_of_table(addresses, extents, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr):
    t, before = tile.program_id(0), 0
    for group in range(extents.shape[0]):
        M, N, K = (tile.load(extents[group, d]) for d in range(3))
        a = tile.array(tile.load(addresses[group, 0]), tile.float16, (M, K))
        b = tile.array(tile.load(addresses[group, 1]), tile.float16, (K, N))
        c = tile.array(tile.load(addresses[group, 2]), tile.float16, (M, N))
        columns = tile.cdiv(N, BN)
        after = before + tile.cdiv(M, BM) * columns
        while t < after:
            m, n = (t - before) // columns * BM, (t - before) % columns * BN
            acc = tile.zeros((BM, BN))
            for k in range(0, K, BK):
                acc = tile.dot(tile.load(a[m:m + BM, k:k + BK]), tile.load(b[k:k + BK, n:n + BN]), acc)
            tile.store(c[m:m + BM, n:n + BN], acc)
            t += tile.num_programs(0)
        before = after


@port
def grouped_gemm_by_addresses(on: Machine):
    shapes = (40, 20, 72), (7, 65, 17), (64, 32, 40)
    problems = [(normal(m, k, dtype=np.float16), normal(k, n, dtype=np.float16)) for m, n, k in shapes]
    given = [(on(a), on(b), on.empty((a.shape[0], b.shape[1]), np.float16)) for a, b in problems]
    addresses = np.array([[tile.address_of(x) for x in one] for one in given], np.int64)
    products_of_table[3,](on(addresses), on(np.array(shapes, np.int32)), BM=32, BN=32, BK=32)
    for (a, b), (_, _, c) in zip(problems, given):
        on.check(c, exact(a) @ exact(b))


@tile.jit
def copy_blocks_of_layers(caches, pairs, BLOCKS: tile.constexpr, SIZE: tile.constexpr, N: tile.constexpr):
    cache = tile.array(tile.load(caches[tile.program_id(0)]), tile.bfloat16, (BLOCKS, SIZE), align=2)
    source, target = tile.load(pairs[tile.program_id(1), 0]), tile.load(pairs[tile.program_id(1), 1])
    for i in range(0, SIZE, N):
        tile.store(cache[target, i:i + N], tile.load(cache[source, i:i + N]))


@port
def copy_cache_blocks_by_addresses(on: Machine):
    layers, pairs = [normal(8, 200, dtype=bfloat16) for _ in range(3)], np.array([[0, 5], [3, 7], [3, 1]], np.int64)
    given = [on(cache) for cache in layers]
    copy_blocks_of_layers[3, 3](tile.address_table(given), on(pairs), BLOCKS=8, SIZE=200, N=128)
    for cache, result in zip(layers, given):
        cache[pairs[:, 1]] = cache[pairs[:, 0]]
        on.check(result, cache, 0)
