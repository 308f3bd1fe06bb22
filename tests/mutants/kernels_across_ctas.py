"""Kernels to mutate that synchronise CTAs with each other, or global memory with asynchronous copies."""

from __future__ import annotations

import numpy as np
import tilejit as tile

from tests.mma.test_multicast import clustered
from tests.mutants.problem import Problem, blocks, matrices, product_of, unset

# -- clusters --------------------------------------------------------------------------------------------------------


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


@tile.jit(cluster=2)
def stored_to_the_peer(A, B, N: tile.constexpr):
    """Each CTA sends registers to two places of the other one in turn, which it loads and stores by TMA."""
    s = tile.alloc((2, 16, 64), A.dtype)
    full, empty = tile.mbarrier(n=2), tile.mbarrier(n=2)
    rank = tile.cta_rank()
    for i in range(N):
        with tile.elect():
            full[i % 2].arrive_expect_tx(16 * 64 * 4)
        empty[i % 2].wait(phase=i // 2 + 1)
        tile.store_async(s.peer(1 - rank)[i % 2], tile.load(A[i * 16:i * 16 + 16, 0:64]) + rank, mbar=full[i % 2])
        with tile.elect():
            full[i % 2].wait(phase=i // 2)
            tile.fence_proxy_async()
            tile.copy_async(B[tile.program_id(0), i * 16:i * 16 + 16, 0:64], s[i % 2])
            tile.bulk_commit()
            tile.bulk_wait(0, read=True)
            empty[i % 2].peer(1 - rank).arrive()
    with tile.elect():
        tile.bulk_wait(0)
    tile.cluster_sync()


# -- the whole grid --------------------------------------------------------------------------------------------------

@tile.jit
def through_global_memory(A, W, F, B):
    """One CTA of a pair publishes a block in global memory by a flag; the other one waits for the flag and reads it."""
    pair = tile.program_id(0) // 2
    if tile.program_id(0) % 2 == 0:
        tile.store(W[pair, 0:16, 0:64], tile.load(A[0:16, 0:64]) * 3)
        tile.threadfence()
        tile.sync()
        with tile.thread(0):
            tile.atomic_add(F[pair], 1, sem="release")
    else:
        with tile.thread(0):
            while tile.load(F[pair], sem="acquire") == 0:
                pass
        tile.sync()
        tile.store(B[pair, 0:16, 0:64], tile.load(W[pair, 0:16, 0:64]))


@tile.jit
def fixed_up(A, W, F, B):
    """As in a product that is split along k: each CTA of a pair sums half of the blocks. One publishes its sums by a
    TMA store and a flag, the other one loads them by TMA and adds its own."""
    pair, half = tile.program_id(0) // 2, A.shape[0] // 2
    s = tile.alloc((16, 64), A.dtype)
    bar = tile.mbarrier()
    total = tile.zeros((16, 64))
    first = tile.program_id(0) % 2 * half
    for i in range(first, first + half, 16):
        total += tile.load(A[i:i + 16, 0:64])
    if tile.program_id(0) % 2 == 0:
        tile.store(s, total)
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(W[pair, 0:16, 0:64], s)
            tile.bulk_commit()
            tile.bulk_wait(0)
            tile.store(F[pair], 1, sem="release")
    else:
        with tile.elect():
            while tile.load(F[pair], sem="acquire") == 0:
                pass
            tile.fence_proxy_async(space="global")
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, W[pair, 0:16, 0:64], mbar=bar)
        bar.wait(phase=0)
        tile.store(B[pair, 0:16, 0:64], total + tile.load(s))


@tile.jit
def summed_by_the_last(A, W, F, B, HOW: tile.constexpr):
    """Each CTA adds a block to sums in global memory by a reduction of the copy engine; the one that comes last copies
    them elsewhere."""
    at = tile.program_id(0) % 2 * 16
    s = tile.alloc((16, 64), A.dtype)
    last = tile.alloc((1,), tile.int32)
    tile.store(s, tile.load(A[at:at + 16, 0:64]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(W[0, 0:16, 0:64], s, variant=HOW, reduce="add")
        tile.bulk_commit()
        tile.bulk_wait(0)
        tile.store(last[0], tile.atomic_add(F[0], 1, sem="acq_rel"))
    tile.sync()
    if tile.load(last[0]) == tile.num_programs(0) - 1:
        tile.store(B[0, 0:16, 0:64], tile.load(W[0, 0:16, 0:64]))


# -- global memory of one CTA ----------------------------------------------------------------------------------------

@tile.jit
def doubled_in_place(A, B, N: tile.constexpr):
    """Ordinary stores to global memory, which TMA loads; the sums are stored over them by TMA, and read by threads."""
    me = tile.program_id(0)
    s = tile.alloc((16, 64), A.dtype)
    bar = tile.mbarrier()
    tile.store(B[me, 0:16, 0:64], tile.load(A[0:16, 0:64]))
    tile.fence_proxy_async(space="global")
    tile.sync()
    for i in range(N):
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, B[me, 0:16, 0:64], mbar=bar)
        bar.wait(phase=i)
        tile.store(s, tile.load(s) * 2)
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(B[me, 0:16, 0:64], s)
            tile.bulk_commit()
            tile.bulk_wait(0)
    tile.sync()
    tile.store(B[me, 0:16, 0:64], tile.load(B[me, 0:16, 0:64]) + 1)


@tile.jit
def by_made_maps(T, A, S, B, N: tile.constexpr):
    """The sum of matrices of growing height, by a tensor map that the kernel binds to one after another."""
    me = tile.program_id(0)
    s = tile.alloc((16, 64), A.dtype)
    bar = tile.mbarrier()
    m = tile.tensor_map(T[0:16, 0:64], slot=S[me, 0:128])
    total = tile.zeros((16, 64))
    with tile.elect():
        m.seed()
    for i in range(N):
        with tile.elect():
            m.rebind(A[i * 16, 0], shape=(8 + 4 * i, 64))
            m.fence_release("cta")
            m.fence_acquire("cta")
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, m[0:16, 0:64], mbar=bar)
        bar.wait(phase=i)
        total += tile.load(s)
        tile.fence_proxy_async()
        tile.sync()
    tile.store(B[me, 0:16, 0:64], total)


# -- problems --------------------------------------------------------------------------------------------------------

def through_memory(name: str, kernel, n: int, factor: float, **constants) -> Problem:
    """A pair of CTAs with a place in global memory `W` and a flag `F`. The result is `factor` times the sum of the `n`
    blocks of A."""
    def make(copies: int) -> list:
        return [blocks(n), np.zeros((copies, 16, 64), np.float32), np.zeros(copies, np.int32), unset(copies, 16, 64)]

    def expected(arguments: list) -> dict[int, np.ndarray]:
        return {3: np.broadcast_to(factor * total(arguments[0]), arguments[3].shape)}

    return Problem(name, kernel, 2, make, expected, constants)


def by_reductions(name: str, **constants) -> Problem:
    """Each CTA adds one of two blocks. There is one result, whatever the number of CTAs: it is the sum of the first
    argument's blocks, of which there are as many as CTAs."""
    def make(copies: int) -> list:
        a = np.resize(blocks(2), (2 * copies * 16, 64))
        return [a, np.zeros((1, 16, 64), np.float32), np.zeros(1, np.int32), unset(1, 16, 64)]

    return Problem(name, summed_by_the_last, 2, make, lambda arguments: {3: total(arguments[0])[None]}, constants)


def total(a: np.ndarray) -> np.ndarray:
    return a.reshape(-1, 16, 64).sum(axis=0)


def by_rank(arguments: list) -> dict[int, np.ndarray]:
    """What each CTA of a pair got from the other one, which added its rank."""
    a, b = arguments[:2]
    return {1: np.tile(np.stack([a + 1, a]), (len(b) // 2, 1, 1))}


def map_arguments(copies: int) -> list:
    room = np.zeros((2 * copies + 1) * 128, np.uint8)
    slots = room[-room.ctypes.data % 128:][:2 * copies * 128].reshape(2 * copies, 128)
    return [np.zeros((16, 64), np.float32), blocks(3), slots, unset(2 * copies, 16, 64)]


def cut_off(arguments: list) -> dict[int, np.ndarray]:
    heights = np.arange(16)[None, :, None] < (8 + 4 * np.arange(3))[:, None, None]
    return {3: np.broadcast_to((arguments[1].reshape(3, 16, 64) * heights).sum(axis=0), arguments[3].shape)}


PROBLEMS = (
    Problem("cluster that pushes", pushed_to_the_peer, 2, lambda n: [blocks(4), unset(2 * n, 64, 64)],
            by_rank, dict(N=4)),
    Problem("cluster with multicast", multicast, 2, lambda n: [blocks(4), unset(2 * n, 64, 64)],
            lambda a: {1: np.broadcast_to(a[0], a[1].shape)}, dict(N=4)),
    Problem("cluster with st.async", stored_to_the_peer, 2, lambda n: [blocks(5), unset(2 * n, 80, 64)],
            by_rank, dict(N=5)),
    through_memory("flag in global memory", through_global_memory, 1, 3),
    through_memory("fix-up", fixed_up, 4, 1),
    by_reductions("reductions by TMA", HOW="tma"),
    by_reductions("bulk reductions", HOW="bulk"),
    Problem("global memory and TMA", doubled_in_place, 2, lambda n: [blocks(1), unset(2 * n, 16, 64)],
            lambda a: {1: np.broadcast_to(8 * a[0] + 1, a[1].shape)}, dict(N=3)),
    Problem("maps of the kernel", by_made_maps, 2, map_arguments, cut_off, dict(N=3)),
    Problem("product in a cluster", clustered, 2, lambda n: matrices(128 * n, 64, 256), product_of,
            dict(DOWN=2, ACROSS=1, BN=64, BK=64, STAGES=2, CONSUMERS=1, SUMS=tile.float32, ORDER="row", cluster=2,
                 num_warps=8)),
)

__all__ = ["PROBLEMS"]
