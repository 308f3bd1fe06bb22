"""Asynchronous reductions to one place in shared memory: unordered among each other, and ordered with everything
else."""

import numpy as np
import pytest
import tilejit as tile
from faulty import check

A = np.arange(4 * 128, dtype=np.int32).reshape(4, 128)
B = np.zeros_like(A)
TOTAL = np.where(np.arange(4)[:, None] < 1, A[:2].sum(0, dtype=np.int32), 0)


@tile.jit
def add(total, own, bar, BULK: tile.constexpr):
    """One thread's bulk reduction, or each thread's reduction of an element, to the first CTA."""
    if BULK:
        with tile.elect():
            tile.copy_async(total.peer(0), own, mbar=bar, reduce="add")
    else:
        tile.reduce_async(total.peer(0), tile.load(own), "add", mbar=bar)


# Two warps of the second CTA add to the first CTA's total, each on its own barrier.

@tile.jit(cluster=(2, 1, 1))
def two_add(A, B, BULK: tile.constexpr):
    rank, own, total = tile.cta_rank(), tile.alloc((2, 128), A.dtype), tile.alloc((128,), A.dtype)
    first, second = tile.mbarrier(), tile.mbarrier()
    tile.store(own, tile.load(A[0:2, 0:128]))
    tile.store(total, 0)
    tile.fence_proxy_async()
    if rank == 0:
        first.arrive_expect_tx(512)
        second.arrive_expect_tx(512)
    tile.cluster_sync()
    if rank == 1:
        with tile.warp(0):
            add(total, own[0], first, BULK)
        with tile.warp(1):
            add(total, own[1], second, BULK)
    else:
        first.wait(phase=0)
        second.wait(phase=0)
        tile.store(B[0, 0:128], tile.load(total))


@tile.jit(cluster=(2, 1, 1))
def one_is_not_awaited(A, B, BULK: tile.constexpr, FIRST: tile.constexpr):
    rank, own, total = tile.cta_rank(), tile.alloc((2, 128), A.dtype), tile.alloc((128,), A.dtype)
    first, second = tile.mbarrier(), tile.mbarrier()
    tile.store(own, tile.load(A[0:2, 0:128]))
    tile.store(total, 0)
    tile.fence_proxy_async()
    if rank == 0:
        first.arrive_expect_tx(512)
        second.arrive_expect_tx(512)
    tile.cluster_sync()
    if rank == 1:
        with tile.warp(0):
            if BULK:
                with tile.elect():
                    tile.copy_async(total.peer(0), own[0], mbar=first, reduce="add")  # may find: race
            else:
                tile.reduce_async(total.peer(0), tile.load(own[0]), "add", mbar=first)  # may find: race
        with tile.warp(1):
            if BULK:
                with tile.elect():
                    tile.copy_async(total.peer(0), own[1], mbar=second, reduce="add")  # may find: race
            else:
                tile.reduce_async(total.peer(0), tile.load(own[1]), "add", mbar=second)  # may find: race
    elif FIRST:
        second.wait(phase=0)
        tile.store(B[0, 0:128], tile.load(total))  # may find: missing-wait
        first.wait(phase=0)
    else:
        first.wait(phase=0)
        tile.store(B[0, 0:128], tile.load(total))  # may find: missing-wait
        second.wait(phase=0)


@tile.jit(cluster=(2, 1, 1))
def one_is_overwritten(A, B, BULK: tile.constexpr, FIRST: tile.constexpr):
    rank, own, total = tile.cta_rank(), tile.alloc((2, 128), A.dtype), tile.alloc((128,), A.dtype)
    first, second = tile.mbarrier(), tile.mbarrier()
    tile.store(own, tile.load(A[0:2, 0:128]))
    tile.store(total, 0)
    tile.fence_proxy_async()
    if rank == 0:
        first.arrive_expect_tx(512)
        second.arrive_expect_tx(512)
    tile.cluster_sync()
    if rank == 1:
        with tile.warp(0):
            if BULK:
                with tile.elect():
                    tile.copy_async(total.peer(0), own[0], mbar=first, reduce="add")  # may find: race
            else:
                tile.reduce_async(total.peer(0), tile.load(own[0]), "add", mbar=first)  # may find: race
        with tile.warp(1):
            if BULK:
                with tile.elect():
                    tile.copy_async(total.peer(0), own[1], mbar=second, reduce="add")  # may find: race
            else:
                tile.reduce_async(total.peer(0), tile.load(own[1]), "add", mbar=second)  # may find: race
    elif FIRST:
        second.wait(phase=0)
        tile.store(total, 7)  # may find: missing-wait
        first.wait(phase=0)
    else:
        first.wait(phase=0)
        tile.store(total, 7)  # may find: missing-wait
        second.wait(phase=0)


# The second CTA clears a total of its own in two halves, and one of its warps knows of its own half only.

@tile.jit(cluster=(2, 1, 1))
def clears_and_adds(A, B, BULK: tile.constexpr):
    rank, own, total = tile.cta_rank(), tile.alloc((2, 128), A.dtype), tile.alloc((128,), A.dtype)
    first, second, cleared = tile.mbarrier(), tile.mbarrier(), tile.mbarrier()
    tile.store(own, tile.load(A[0:2, 0:128]))
    tile.fence_proxy_async()
    if rank == 0:
        first.arrive_expect_tx(512)
        second.arrive_expect_tx(512)
    tile.cluster_sync()
    if rank == 0:
        with tile.warp(0):
            tile.store(total, 0)
            tile.fence_proxy_async()
            tile.sync()
            with tile.elect():
                cleared.arrive()
                cleared.peer(1).arrive()
    with tile.warp(1):
        cleared.wait(phase=0)
        if rank == 1:
            add(total, own[0], first, BULK)
    with tile.warp(2):
        cleared.wait(phase=0)
        if rank == 1:
            add(total, own[1], second, BULK)
    if rank == 0:
        first.wait(phase=0)
        second.wait(phase=0)
        tile.store(B[0, 0:128], tile.load(total))


@tile.jit(cluster=(2, 1, 1))
def one_adds_before_it_is_cleared(A, B, BULK: tile.constexpr):
    rank, own, total = tile.cta_rank(), tile.alloc((2, 128), A.dtype), tile.alloc((128,), A.dtype)
    first, second, cleared = tile.mbarrier(), tile.mbarrier(), tile.mbarrier()
    tile.store(own, tile.load(A[0:2, 0:128]))
    tile.store(total, 0)
    tile.fence_proxy_async()
    if rank == 0:
        first.arrive_expect_tx(512)
        second.arrive_expect_tx(512)
    tile.cluster_sync()
    if rank == 0:
        with tile.warp(0):
            tile.store(total, 1)  # may find: race, missing-wait
            tile.fence_proxy_async()
            tile.sync()
            with tile.elect():
                cleared.arrive()
                cleared.peer(1).arrive()
    with tile.warp(1):
        cleared.wait(phase=0)
        if rank == 1:
            with tile.elect():
                tile.copy_async(total.peer(0), own[0], mbar=first, reduce="add")
    with tile.warp(2):
        if rank == 1:
            with tile.elect():
                tile.copy_async(total.peer(0), own[1], mbar=second, reduce="add")  # may find: race
    if rank == 0:
        first.wait(phase=0)
        second.wait(phase=0)
        tile.store(B[0, 0:128], tile.load(total))


@tile.jit(cluster=(2, 1, 1))
def rounds(A, B, n, BULK: tile.constexpr):
    """Each round adds twice, and the total is read and not cleared in between."""
    rank, own, total = tile.cta_rank(), tile.alloc((2, 128), A.dtype), tile.alloc((128,), A.dtype)
    full = tile.mbarrier(n=2)
    tile.store(own, tile.load(A[0:2, 0:128]))
    tile.store(total, 0)
    tile.fence_proxy_async()
    tile.cluster_sync()
    for k in range(n):
        if rank == 0:
            full[0].arrive_expect_tx(512)
            full[1].arrive_expect_tx(512)
        tile.cluster_sync()
        if rank == 1:
            with tile.warp(0):
                add(total, own[0], full[0], BULK)
            with tile.warp(1):
                add(total, own[1], full[1], BULK)
        else:
            full[0].wait(phase=k)
            full[1].wait(phase=k)
            tile.store(B[k, 0:128], tile.load(total))
            tile.fence_proxy_async()
        tile.cluster_sync()


@pytest.mark.parametrize("bulk", [True, False])
def test_reductions_to_one_place_need_no_order_among_each_other(bulk):
    check(two_add, (2,), A, B, BULK=bulk, result=1, expected=TOTAL)
    check(clears_and_adds, (2,), A, B, BULK=bulk, result=1, expected=TOTAL)
    check(rounds, (2,), A, B, 3, BULK=bulk, result=1,
          expected=np.where(np.arange(4)[:, None] < 3, TOTAL[0] * (1 + np.arange(4)[:, None]), 0),
          seeds=range(4))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("bulk", [True, False])
def test_every_reduction_is_waited_for_before_the_place_is_read_or_written(bulk, first):
    check(one_is_not_awaited, (2,), A, B, BULK=bulk, FIRST=first, seeds=range(12))
    check(one_is_overwritten, (2,), A, B, BULK=bulk, FIRST=first, seeds=range(12))


def test_every_reduction_comes_after_the_writes_before_it():
    check(one_adds_before_it_is_cleared, (2,), A, B, BULK=True, seeds=range(24))
