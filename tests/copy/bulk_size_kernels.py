"""Kernels of bulk copies with a runtime size, and of the maximum number of bytes that a barrier can count in one phase."""

import numpy as np
import tilejit as tile

A = np.random.default_rng(0).random(128, np.float32)


@tile.jit(num_warps=1)
def loaded(A, B, n, announced):
    """The first `n` bytes of `A` overwrite ones in a buffer of 256 bytes."""
    s = tile.alloc((64,), A.dtype)
    bar = tile.mbarrier()
    tile.store(s, tile.ones((64,), A.dtype))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        bar.arrive_expect_tx(announced)
        tile.ptx.cp_async.bulk.shared_cluster.global_.mbarrier_complete_tx_bytes(s, A, n, bar)
    bar.wait(phase=0)
    tile.store(B[0:64], tile.load(s))


@tile.jit(num_warps=1)
def stored(A, B, n):
    """The first `n` bytes of a buffer of 256 bytes go to `B`."""
    s = tile.alloc((64,), A.dtype)
    tile.store(s, tile.load(A[0:64]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.ptx.cp_async.bulk.global_.shared_cta.bulk_group(B, s, n)
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit(num_warps=1, cluster=(2, 1, 1))
def to_peer(A, B, n, announced):
    """The first `n` bytes of rank 0's buffer overwrite ones in rank 1's."""
    mine, got = tile.alloc((64,), A.dtype), tile.alloc((64,), A.dtype)
    bar = tile.mbarrier()
    rank = tile.cta_rank()
    tile.store(mine, tile.load(A[0:64]))
    tile.store(got, tile.ones((64,), A.dtype))
    tile.fence_proxy_async()
    tile.cluster_sync()
    if rank == 0:
        with tile.elect():
            tile.ptx.cp_async.bulk.shared_cluster.shared_cta.mbarrier_complete_tx_bytes(got.peer(1), mine, n, bar.peer(1))
    else:
        with tile.elect():
            bar.arrive_expect_tx(announced)
        bar.wait(phase=0)
        tile.store(B[0:64], tile.load(got))


def over_ones(n: int) -> np.ndarray:
    want = np.ones(64, np.float32)
    want[:n // 4] = A[:n // 4]
    return want


LIMIT = (1 << 20) - 1       # the largest tx-count of an mbarrier (PTX ISA, "Tracking asynchronous operations by the mbarrier object")
WORDS = 10240               # per copy
COPIES, REST = divmod(LIMIT // 16 * 4, WORDS)


@tile.jit(num_warps=8, cluster=(2, 1, 1))
def counted(B, N: tile.constexpr, MORE: tile.constexpr, ALONE: tile.constexpr, EARLY: tile.constexpr):
    """Rank 1 adds ones to rank 0's memory, `N` times to all of it and once to its first `MORE` words, in one phase of one barrier;
    the announcing thread itself completes `ALONE` more bytes."""
    mine, total = tile.alloc((WORDS,), "uint32"), tile.alloc((WORDS,), "uint32")
    bar = tile.mbarrier()
    rank = tile.cta_rank()
    tile.store(mine, tile.ones((WORDS,), "uint32"))
    tile.store(total, tile.zeros((WORDS,), "uint32"))
    tile.fence_proxy_async()
    tile.cluster_sync()
    if EARLY:
        if rank == 1:
            add_all(total, mine, bar, N, MORE)
        tile.cluster_sync()
    if rank == 0:
        with tile.elect():
            for i in range(N):
                bar.expect_tx(4 * WORDS)
            bar.arrive_expect_tx(4 * MORE + ALONE)
            if ALONE:
                tile.ptx.mbarrier.complete_tx.relaxed.cta.shared_cta.b64(bar, ALONE)
    if not EARLY:
        tile.cluster_sync()
        if rank == 1:
            add_all(total, mine, bar, N, MORE)
    if rank == 0:
        bar.wait(phase=0)
        tile.store(B[0:WORDS], tile.load(total))


@tile.jit
def add_all(total, mine, bar, N: tile.constexpr, MORE: tile.constexpr):
    with tile.elect():
        for i in range(N):
            tile.copy_async(total.peer(0), mine, mbar=bar, reduce="add")
        if MORE:
            tile.copy_async(total.peer(0)[0:MORE], mine[0:MORE], mbar=bar, reduce="add")


def totals(n: int, more: int) -> np.ndarray:
    want = np.full(WORDS, n, np.uint32)
    want[:more] += 1
    return want
