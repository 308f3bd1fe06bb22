"""Kernels whose barriers are mutated, each with a small problem and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import tilejit as tile
from tests.mma.attention import attention
from tests.mma.first_kernels import product
from tests.mma.test_attention import reference
from tests.mma.test_multicast import clustered

BF16 = ml_dtypes.bfloat16


@dataclass(frozen=True)
class Problem:
    """A kernel with its arguments. `results` are the numbers of the arguments that hold results, and `expected` what they hold afterwards."""

    name: str
    kernel: Any
    grid: tuple[int, ...]
    make: Callable[[], list]
    expected: Callable[[list], dict[int, np.ndarray]]
    constants: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0


# -- copies that threads read ------------------------------------------------------------------------------------------------

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
def sum_by_tokens(A, B, N: tile.constexpr):
    s = tile.alloc((16, 64), A.dtype)
    total = tile.zeros((16, 64))
    for i in range(N):
        with tile.elect():
            arrived = tile.copy_async(s, A[i * 16:i * 16 + 16, 0:64])
        arrived.wait()
        total = total + tile.load(s)
        tile.fence_proxy_async()
        tile.sync()
    tile.store(B[tile.program_id(0), 0:16, 0:64], total)


# -- stores, roles and turns ---------------------------------------------------------------------------------------------------

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


# -- clusters and the whole grid -------------------------------------------------------------------------------------------------

@tile.jit(cluster=2)
def pushed_to_the_peer(A, B, N: tile.constexpr):
    """Each CTA sends its buffer to the other one, which frees the place by an arrival at the sender."""
    s, t = tile.alloc((16, 64), A.dtype), tile.alloc((16, 64), A.dtype)
    full, empty = tile.mbarrier(), tile.mbarrier()
    rank = tile.cta_rank()
    for i in range(N):
        tile.store(s, tile.load(A[i * 16:i * 16 + 16, 0:64]) + rank)
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            full.arrive_expect_tx(t.nbytes)
            empty.wait(phase=i + 1)
            tile.copy_async(t.peer(1 - rank), s, mbar=full)
        full.wait(phase=i)
        tile.store(B[tile.program_id(0), i * 16:i * 16 + 16, 0:64], tile.load(t))
        tile.fence_proxy_async()
        tile.cluster_sync()
        with tile.elect():
            empty.peer(1 - rank).arrive()


@tile.jit(cluster=2)
def multicast(A, B, N: tile.constexpr):
    """One CTA loads for both, once both have freed the place."""
    s = tile.alloc((16, 64), A.dtype)
    full, empty = tile.mbarrier(), tile.mbarrier(count=2)
    rank = tile.cta_rank()
    for i in range(N):
        with tile.elect():
            full.arrive_expect_tx(s.nbytes)
            if rank == 0:
                empty.wait(phase=i + 1)
                tile.copy_async(s, A[i * 16:i * 16 + 16, 0:64], mbar=full, multicast=3)
        full.wait(phase=i)
        tile.store(B[tile.program_id(0), i * 16:i * 16 + 16, 0:64], tile.load(s))
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            empty.peer(0).arrive()


@tile.jit
def through_global_memory(A, W, F, B):
    """CTA 0 publishes a block in global memory by a flag, CTA 1 waits for the flag and reads the block."""
    if tile.program_id(0) == 0:
        tile.store(W[0:16, 0:64], tile.load(A[0:16, 0:64]) * 3)
        tile.threadfence()
        tile.sync()
        with tile.thread(0):
            tile.atomic_add(F[0], 1, sem="release")
    else:
        with tile.thread(0):
            while tile.load(F[0], sem="acquire") == 0:
                pass
        tile.sync()
        tile.store(B[0:16, 0:64], tile.load(W[0:16, 0:64]))


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
                        tile.copy_async(slot.A, A[t // across * 64:t // across * 64 + 64, k * BK:k * BK + BK], mbar=slot.full)
                        tile.copy_async(slot.B, B[t % across * 64:t % across * 64 + 64, k * BK:k * BK + BK], mbar=slot.full)
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
                tile.copy_async(C[t // across * 64:t // across * 64 + 64, t % across * 64:t % across * 64 + 64], stage)
                tile.bulk_commit()
        with tile.elect():
            tile.bulk_wait(0)


# -- problems ----------------------------------------------------------------------------------------------------------------------

def blocks(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(-8, 8, (n * 16, 64)).astype(np.float32)


def copied(name: str, kernel, n: int, shape: tuple, expected: Callable[[np.ndarray], np.ndarray], warps: int = 4, grid: int = 2, **constants) -> Problem:
    """A problem that maps `n` blocks of 16 x 64 numbers to an array of `shape`."""
    return Problem(name, kernel, (grid,), lambda: [blocks(n), np.full(shape, np.nan, np.float32)],
                   lambda arguments: {1: np.broadcast_to(expected(arguments[0]), shape)}, dict(num_warps=warps, **constants))


def summed(a: np.ndarray) -> np.ndarray:
    return a.reshape(-1, 16, 64).sum(axis=0)


def alternated(n: int) -> Callable[[np.ndarray], np.ndarray]:
    def result(a: np.ndarray) -> np.ndarray:
        s = a[:16]
        for _ in range(n):
            s = (s * 2) * 2 + 1
        return s
    return result


def matrices(rows: int, columns: int, inner: int) -> list[np.ndarray]:
    rng = np.random.default_rng(inner)
    a, b = (rng.integers(-3, 4, (n, inner)).astype(BF16) for n in (rows, columns))
    return [a, b, np.full((rows, columns), np.nan, np.float32)]


def product_of(arguments: list) -> dict[int, np.ndarray]:
    a, b = (x.astype(np.float32) for x in arguments[:2])
    return {2: a @ b.T}


def attention_arguments() -> list:
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, n, 64)).astype(BF16) for n in (256, 256, 256))  # both loops of a causal kernel run
    return [q, k, v, np.full(q.shape, np.nan, BF16), np.zeros(1, np.uint32), 0.125]


PROBLEMS = (
    copied("pipelined sum", sum_of_blocks, 6, (2, 16, 64), summed, STAGES=3, ROLES=False),
    copied("pipelined sum with roles", sum_of_blocks, 6, (2, 16, 64), summed, STAGES=2, ROLES=True),
    copied("ring of two consumers", sum_by_ring, 6, (2, 2, 16, 64), summed, 12, N=6),
    copied("pairs of barriers", sum_by_pairs, 6, (2, 16, 64), summed, 8, N=6),
    copied("one buffer", sum_of_one_buffer, 4, (2, 16, 64), summed, N=4),
    copied("groups of cp.async", sum_by_groups, 5, (2, 16, 64), summed, N=5),
    copied("arrivals of cp.async", sum_by_arrivals, 6, (2, 16, 64), summed, 8, N=6),
    copied("tokens", sum_by_tokens, 4, (2, 16, 64), summed, N=4),
    copied("stores by TMA", stored_by_bulk, 5, (2, 80, 64), lambda a: 2 * a, N=5),
    copied("turns", in_turn, 1, (2, 16, 64), alternated(3), 8, N=3),
    copied("named barriers", by_named_barriers, 4, (2, 64, 64), lambda a: a, 8, N=4),
    copied("cluster that pushes", pushed_to_the_peer, 4, (2, 64, 64), lambda a: np.stack([a + 1, a]), N=4),
    copied("cluster with multicast", multicast, 4, (2, 64, 64), lambda a: a, N=4),
    Problem("flag in global memory", through_global_memory, (2,),
            lambda: [blocks(1), np.zeros((16, 64), np.float32), np.zeros(1, np.int32), np.full((16, 64), np.nan, np.float32)],
            lambda arguments: {3: 3 * arguments[0]}),
    Problem("persistent product", persistent, (2,), lambda: matrices(128, 128, 128), product_of, dict(BK=64, STAGES=2, num_warps=8)),
    Problem("pipelined product", product, (1, 1), lambda: matrices(64, 64, 320), product_of, dict(BM=64, BN=64, BK=64, STAGES=3)),
    Problem("pipelined product with roles", product, (1, 1), lambda: matrices(64, 64, 320), product_of, dict(BM=64, BN=64, BK=64, STAGES=2, ROLES=True)),
    Problem("product in a cluster", clustered, (2,), lambda: matrices(128, 64, 256), product_of,
            dict(DOWN=2, ACROSS=1, BN=64, BK=64, STAGES=2, CONSUMERS=1, SUMS=tile.float32, ORDER="row", cluster=2, num_warps=8)),
    Problem("attention", attention, (1,), attention_arguments,
            lambda a: {3: reference(a[0], a[1], a[2], a[5], True)}, dict(BN=64, D=64, NC=2, CAUSAL=True, STAGES=2, num_warps=12), 0.05),
)
