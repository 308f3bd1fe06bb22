"""Kernels to mutate whose threads synchronise within a CTA. Each CTA solves the whole problem, or tiles of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tilejit as tile

from tests.mma.attention import attention
from tests.mma.first_kernels import product
from tests.mma.test_attention import reference
from tests.mutants.problem import BF16, Problem, blocks, matrices, product_of, unset

# -- copies that threads read ------------------------------------------------------------------------------------------

@tile.jit
def sum_of_blocks(A, B, STAGES: tile.constexpr, ROLES: tile.constexpr):
    """The compiler's pipeline: threads read slots that TMA fills."""
    s = tile.alloc((16, 64), A.dtype)
    total = tile.zeros((16, 64))
    for i in tile.pipelined(range(0, A.shape[0], 16), stages=STAGES, warp_specialize=ROLES):
        tile.copy_async(s, A[i:i + 16, 0:64])
        total = total + tile.load(s)
    tile.store(B[tile.program_id(0), 0:16, 0:64], total)


@tile.jit
def sum_by_ring(A, B, N: tile.constexpr):
    r = tile.ring(2, A=((16, 64), A.dtype), consumers=2)
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(N):
                with r.produce() as slot:
                    tile.copy_async(slot.A, A[i * 16:i * 16 + 16, 0:64], mbar=slot.full)
    with tile.each_warpgroup(range(1, 3)) as w:
        total = tile.zeros((16, 64))
        for i in range(N):
            with r.consume() as slot:
                total = total + tile.load(slot.A)
        tile.store(B[tile.program_id(0), w - 1, 0:16, 0:64], total)


@tile.jit
def sum_by_pairs(A, B, N: tile.constexpr):
    """A pair of barriers for each of two slots, made by hand."""
    s = tile.alloc((2, 16, 64), A.dtype)
    full, empty = tile.mbarrier(n=2), tile.mbarrier(n=2)
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(N):
                empty[i % 2].wait(phase=i // 2 + 1)
                full[i % 2].arrive_expect_tx(16 * 64 * 4)
                tile.copy_async(s[i % 2], A[i * 16:i * 16 + 16, 0:64], mbar=full[i % 2])
    with tile.warpgroup(1):
        total = tile.zeros((16, 64))
        for i in range(N):
            full[i % 2].wait(phase=i // 2)
            total = total + tile.load(s[i % 2])
            tile.fence_proxy_async()
            empty[i % 2].arrive()
        tile.store(B[tile.program_id(0), 0:16, 0:64], total)


@tile.jit
def sum_of_one_buffer(A, B, N: tile.constexpr):
    s = tile.alloc((16, 64), A.dtype)
    bar = tile.mbarrier()
    total = tile.zeros((16, 64))
    for i in range(N):
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, A[i * 16:i * 16 + 16, 0:64], mbar=bar)
        bar.wait(phase=i)
        total = total + tile.load(s)
        tile.fence_proxy_async()
        tile.sync()
    tile.store(B[tile.program_id(0), 0:16, 0:64], total)


@tile.jit
def sum_by_groups(A, B, N: tile.constexpr):
    """cp.async in groups, one group ahead."""
    s = tile.alloc((2, 16, 64), A.dtype)
    tile.copy_async(s[0], A[0:16, 0:64])
    tile.cp_async_commit()
    total = tile.zeros((16, 64))
    for i in range(N):
        if i + 1 < N:
            tile.copy_async(s[(i + 1) % 2], A[i * 16 + 16:i * 16 + 32, 0:64])
        tile.cp_async_commit()
        tile.cp_async_wait(1)
        tile.sync()
        total = total + tile.load(s[i % 2])
        tile.sync()
    tile.store(B[tile.program_id(0), 0:16, 0:64], total)


@tile.jit
def sum_by_arrivals(A, B, N: tile.constexpr):
    """cp.async by one warpgroup, whose threads arrive at an mbarrier, for another one."""
    s = tile.alloc((2, 16, 64), A.dtype)
    full, empty = tile.mbarrier(count=128, n=2), tile.mbarrier(n=2)
    with tile.warpgroup(0):
        for i in range(N):
            empty[i % 2].wait(phase=i // 2 + 1)
            tile.copy_async(s[i % 2], A[i * 16:i * 16 + 16, 0:64])
            full[i % 2].arrive_on_copies(noinc=True)
        tile.cp_async_wait(0)
    with tile.warpgroup(1):
        total = tile.zeros((16, 64))
        for i in range(N):
            full[i % 2].wait(phase=i // 2)
            total = total + tile.load(s[i % 2])
            empty[i % 2].arrive()
        tile.store(B[tile.program_id(0), 0:16, 0:64], total)


@tile.jit
def sum_by_tokens(A, B, N: tile.constexpr, HOW: tile.constexpr):
    s = tile.alloc((16, 64), A.dtype)
    total = tile.zeros((16, 64))
    for i in range(N):
        with tile.elect():
            arrived = tile.copy_async(s, A[i * 16:i * 16 + 16, 0:64], variant=HOW)
        arrived.wait()
        total = total + tile.load(s)
        if HOW == "tma":
            tile.fence_proxy_async()
        tile.sync()
    tile.store(B[tile.program_id(0), 0:16, 0:64], total)


# -- stores, roles and turns -------------------------------------------------------------------------------------------

@tile.jit
def stored_by_bulk(A, B, N: tile.constexpr):
    """Two staging buffers, from which TMA stores while the next one is filled."""
    s = tile.alloc((2, 16, 64), A.dtype)
    for i in range(N):
        with tile.elect():
            tile.bulk_wait(1, read=True)
        tile.sync()
        tile.store(s[i % 2], tile.load(A[i * 16:i * 16 + 16, 0:64]) * 2)
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(B[tile.program_id(0), i * 16:i * 16 + 16, 0:64], s[i % 2])
            tile.bulk_commit()
    with tile.elect():
        tile.bulk_wait(0)


@tile.jit
def in_turn(A, B, N: tile.constexpr):
    """Two warpgroups add to one buffer alternately."""
    s = tile.alloc((16, 64), A.dtype)
    baton = tile.turns(2)
    with tile.warpgroup(0):
        tile.store(s, tile.load(A[0:16, 0:64]))
    tile.sync()
    with tile.each_warpgroup(range(2)) as w:
        for i in range(N):
            baton.take(w)
            tile.store(s, tile.load(s) * 2 + w)
            baton.pass_on(w)
    tile.sync()
    with tile.warpgroup(0):
        tile.store(B[tile.program_id(0), 0:16, 0:64], tile.load(s))


@tile.jit
def by_named_barriers(A, B, N: tile.constexpr):
    """A warpgroup fills a buffer by stores, another one reads it."""
    s = tile.alloc((16, 64), A.dtype)
    filled, read = tile.named_barrier(256), tile.named_barrier(256)
    with tile.warpgroup(0):
        for i in range(N):
            if i > 0:
                read.sync()
            tile.store(s, tile.load(A[i * 16:i * 16 + 16, 0:64]))
            filled.arrive()
    with tile.warpgroup(1):
        for i in range(N):
            filled.sync()
            tile.store(B[tile.program_id(0), i * 16:i * 16 + 16, 0:64], tile.load(s))
            if i + 1 < N:
                read.arrive()


# -- products ----------------------------------------------------------------------------------------------------------

@tile.jit
def persistent(A, B, C, BK: tile.constexpr, STAGES: tile.constexpr):
    """Tiles in turn: a ring across tiles, and results that TMA stores while the next tile begins."""
    ring = tile.ring(STAGES, A=((64, BK), A.dtype), B=((64, BK), B.dtype))
    stage = tile.alloc((64, 64), C.dtype)
    steps, across = tile.cdiv(A.shape[1], BK), tile.cdiv(C.shape[1], 64)
    tiles = tile.cdiv(C.shape[0], 64) * across
    with tile.warpgroup(0):
        with tile.elect():
            for t in range(tile.program_id(0), tiles, tile.num_programs(0)):
                for k in range(steps):
                    with ring.produce() as slot:
                        m, n, at = t // across * 64, t % across * 64, k * BK
                        tile.copy_async(slot.A, A[m:m + 64, at:at + BK], mbar=slot.full)
                        tile.copy_async(slot.B, B[n:n + 64, at:at + BK], mbar=slot.full)
    with tile.warpgroup(1):
        for t in range(tile.program_id(0), tiles, tile.num_programs(0)):
            acc = tile.zeros((64, 64))
            for k in range(steps):
                with ring.consume() as slot:
                    acc = tile.mma_async(acc, slot.A, slot.B, trans_b=True)
                    tile.mma_commit()
                    tile.mma_wait(0)
            with tile.elect():
                tile.bulk_wait(0, read=True)
            tile.sync()
            tile.store(stage, acc)
            tile.fence_proxy_async()
            tile.sync()
            with tile.elect():
                m, n = t // across * 64, t % across * 64
                tile.copy_async(C[m:m + 64, n:n + 64], stage)
                tile.bulk_commit()
        with tile.elect():
            tile.bulk_wait(0)


@tile.jit
def product_by_groups(A, B, C, BK: tile.constexpr):
    """cp.async in groups fills three slots; a product is in flight while the next slot is waited for."""
    a = tile.alloc((3, 64, BK), A.dtype, layout=tile.swizzled(A.dtype, (3, 64, BK), 128))
    b = tile.alloc((3, 64, BK), B.dtype, layout=tile.swizzled(B.dtype, (3, 64, BK), 128))
    m, steps = tile.program_id(0) * 64, tile.cdiv(A.shape[1], BK)
    for k in tile.static_range(2):
        tile.copy_async(a[k], A[m:m + 64, k * BK:k * BK + BK], variant="ldgsts")
        tile.copy_async(b[k], B[0:64, k * BK:k * BK + BK], variant="ldgsts")
        tile.cp_async_commit()
    acc = tile.zeros((64, 64))
    for k in range(steps):
        tile.cp_async_wait(1)
        tile.fence_proxy_async()
        tile.sync()
        acc = tile.mma_async(acc, a[k % 3], b[k % 3], trans_b=True)
        tile.mma_commit()
        tile.mma_wait(1)
        tile.sync()
        if k + 2 < steps:
            ahead = (k + 2) * BK
            tile.copy_async(a[(k + 2) % 3], A[m:m + 64, ahead:ahead + BK], variant="ldgsts")
            tile.copy_async(b[(k + 2) % 3], B[0:64, ahead:ahead + BK], variant="ldgsts")
        tile.cp_async_commit()
    tile.mma_wait(0)
    tile.store(C[m:m + 64, 0:64], acc)


@tile.jit
def product_of_stores(A, B, C, N: tile.constexpr):
    """A warpgroup makes operands by ordinary stores to a ring, another one multiplies them."""
    ring = tile.ring(2, A=((64, 64), A.dtype), B=((64, 64), B.dtype), filled="stores")
    m = tile.program_id(0) * 64
    with tile.warpgroup(0):
        for k in range(N):
            with ring.produce() as slot:
                tile.store(slot.A, tile.load(A[m:m + 64, k * 64:k * 64 + 64]))
                tile.store(slot.B, tile.load(B[0:64, k * 64:k * 64 + 64]))
    with tile.warpgroup(1):
        acc = tile.zeros((64, 64))
        for k in range(N):
            with ring.consume() as slot:
                acc = tile.mma_async(acc, slot.A, slot.B, trans_b=True)
                tile.mma_commit()
                tile.mma_wait(0)
        tile.store(C[m:m + 64, 0:64], acc)


# -- problems --------------------------------------------------------------------------------------------------------

def copied(name: str, kernel, n: int, shape: tuple, result: Callable[[np.ndarray], np.ndarray], warps: int = 4,
           **constants) -> Problem:
    """Two CTAs, each of which maps `n` blocks of 16 x 64 numbers to an array of `shape`."""
    return Problem(name, kernel, 2, lambda copies: [blocks(n), unset(2 * copies, *shape)],
                   lambda arguments: {1: np.broadcast_to(result(arguments[0]), arguments[1].shape)},
                   dict(num_warps=warps, **constants))


def summed(a: np.ndarray) -> np.ndarray:
    return a.reshape(-1, 16, 64).sum(axis=0)


def alternated(a: np.ndarray) -> np.ndarray:
    for _ in range(3):
        a = (a * 2) * 2 + 1
    return a


def multiplied(name: str, kernel, rows: int, inner: int, ctas: int = 1, columns: int = 64, **constants) -> Problem:
    return Problem(name, kernel, ctas, lambda copies: matrices(rows * copies, columns, inner), product_of, constants)


def attention_arguments(copies: int) -> list:
    """As many rows and columns as it takes for both loops of the causal kernel to run, and four tiles for each CTA."""
    heads = 2 * copies
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((heads, 256, 64)).astype(BF16) for _ in range(3))
    return [q, k, v, np.full(q.shape, np.nan, BF16), np.zeros(1, np.uint32), 0.125]


PROBLEMS = (
    copied("pipelined sum", sum_of_blocks, 6, (16, 64), summed, STAGES=3, ROLES=False),
    copied("pipelined sum with roles", sum_of_blocks, 6, (16, 64), summed, STAGES=2, ROLES=True),
    copied("ring of two consumers", sum_by_ring, 6, (2, 16, 64), summed, 12, N=6),
    copied("pairs of barriers", sum_by_pairs, 6, (16, 64), summed, 8, N=6),
    copied("one buffer", sum_of_one_buffer, 4, (16, 64), summed, N=4),
    copied("groups of cp.async", sum_by_groups, 5, (16, 64), summed, N=5),
    copied("arrivals of cp.async", sum_by_arrivals, 6, (16, 64), summed, 8, N=6),
    copied("tokens of TMA", sum_by_tokens, 4, (16, 64), summed, N=4, HOW="tma"),
    copied("tokens of cp.async", sum_by_tokens, 4, (16, 64), summed, N=4, HOW="ldgsts"),
    copied("stores by TMA", stored_by_bulk, 5, (80, 64), lambda a: 2 * a, N=5),
    copied("turns", in_turn, 1, (16, 64), alternated, 8, N=3),
    copied("named barriers", by_named_barriers, 4, (64, 64), lambda a: a, 8, N=4),
    multiplied("persistent product", persistent, 128, 128, ctas=2, columns=128, BK=64, STAGES=2, num_warps=8),
    multiplied("pipelined product", product, 64, 320, BM=64, BN=64, BK=64, STAGES=3),
    multiplied("pipelined product with roles", product, 64, 320, BM=64, BN=64, BK=64, STAGES=2, ROLES=True),
    multiplied("product by groups of cp.async", product_by_groups, 64, 320, BK=64),
    multiplied("product of what threads store", product_of_stores, 64, 256, N=4, num_warps=8),
    Problem("attention", attention, 1, attention_arguments,
            lambda a: {3: reference(a[0], a[1], a[2], a[5], True)},
            dict(BN=64, D=64, NC=2, CAUSAL=True, STAGES=2, num_warps=12), 0.05),
)

__all__ = ["PROBLEMS"]
