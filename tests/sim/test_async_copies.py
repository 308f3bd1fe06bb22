"""Copies that complete asynchronously: waits, groups, bytes on barriers, proxies. Each faulty kernel has a correct twin."""

import numpy as np
import tilejit as tile
from engine_ops import test_bulk as bulk, test_mma as mma, test_mma_wait as mma_wait, test_tma_load as tma_load
from faulty import check

A = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
B = np.zeros_like(A)


# -- cp.async ------------------------------------------------------------------------------------------------------------

@tile.jit
def unwaited_group(A, B):
    s = tile.alloc((64, 64), A.dtype)
    tile.copy_async(s, A[0:64, 0:64])
    tile.cp_async_commit()
    tile.sync()
    tile.store(B[0:64, 0:64], tile.load(s))  # finds: missing-wait


@tile.jit
def waited_group(A, B):
    s = tile.alloc((64, 64), A.dtype)
    tile.copy_async(s, A[0:64, 0:64])
    tile.cp_async_commit()
    tile.cp_async_wait(0)
    tile.sync()
    tile.store(B[0:64, 0:64], tile.load(s))


@tile.jit
def unsynced_group(A, B):
    s = tile.alloc((64, 64), A.dtype)
    tile.copy_async(s, A[0:64, 0:64])
    tile.cp_async_commit()
    tile.cp_async_wait(0)
    tile.store(B[0:63, 0:64], tile.load(s[1:64, 0:64]))  # finds: race


def test_cp_async_needs_a_wait_and_then_a_barrier():
    """The wait completes a thread's own copies; a barrier makes them visible to the others."""
    check(unwaited_group, (1,), A, B)
    check(waited_group, (1,), A, B, result=1, expected=A)
    check(unsynced_group, (1,), A, B)


@tile.jit
def wrong_group_count(A, B):
    s = tile.alloc((2, 64, 64), A.dtype)
    for i in tile.static_range(2):
        tile.copy_async(s[i], A[0:64, 0:64])
        tile.cp_async_commit()
    tile.cp_async_wait(1)
    tile.sync()
    tile.store(B[0:64, 0:64], tile.load(s[1]))  # finds: missing-wait


@tile.jit
def right_group_count(A, B):
    s = tile.alloc((2, 64, 64), A.dtype)
    for i in tile.static_range(2):
        tile.copy_async(s[i], A[0:64, 0:64])
        tile.cp_async_commit()
    tile.cp_async_wait(1)
    tile.sync()
    tile.store(B[0:64, 0:64], tile.load(s[0]))
    tile.cp_async_wait(0)
    tile.sync()
    tile.store(B[0:64, 0:64], tile.load(s[1]))


def test_waiting_for_all_but_one_group_leaves_the_last_in_flight():
    """Groups complete in order."""
    check(wrong_group_count, (1,), A, B)
    check(right_group_count, (1,), A, B, result=1, expected=A)


# -- tensor loads ----------------------------------------------------------------------------------------------------------

@tile.jit
def load_unwaited(A, B):
    s = tile.alloc((64, 64), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(64 * 64 * 4)
        tile.copy_async(s, A[0:64, 0:64], mbar=bar)
    tile.sync()
    tile.store(B[0:64, 0:64], tile.load(s))  # finds: missing-wait
    bar.wait(phase=0)


@tile.jit
def load_waited(A, B):
    s = tile.alloc((64, 64), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(64 * 64 * 4)
        tile.copy_async(s, A[0:64, 0:64], mbar=bar)
    bar.wait(phase=0)
    tile.store(B[0:64, 0:64], tile.load(s))


@tile.jit
def load_before_expect(A, B):
    s = tile.alloc((64, 64), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        tile.copy_async(s, A[0:64, 0:64], mbar=bar)
        bar.arrive_expect_tx(64 * 64 * 4)
    bar.wait(phase=0)
    tile.store(B[0:64, 0:64], tile.load(s))


@tile.jit
def load_waited_by_one_warp(A, B):
    s = tile.alloc((64, 64), A.dtype)
    bar = tile.mbarrier()
    with tile.warp(0):
        with tile.elect():
            bar.arrive_expect_tx(64 * 64 * 4)
            tile.copy_async(s, A[0:64, 0:64], mbar=bar)
        bar.wait(phase=0)
    with tile.warp(1):
        tile.store(B[0:64, 0:64], tile.load(s))  # finds: missing-wait


@tile.jit
def load_never_waited(A):
    s = tile.alloc((64, 64), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(64 * 64 * 4)
        tile.copy_async(s, A[0:64, 0:64], mbar=bar)  # finds: missing-wait


def test_a_tensor_load_is_complete_after_a_wait_on_its_barrier():
    """Only threads that waited on the barrier, or synchronised with those that did, may read."""
    check(load_unwaited, (1,), A, B)
    check(load_waited_by_one_warp, (1,), A, B)
    check(load_never_waited, (1,), A)
    check(load_waited, (1,), A, B, result=1, expected=A)
    check(load_before_expect, (1,), A, B, result=1, expected=A)


@tile.jit
def one_of_two_barriers(A, B):
    s = tile.alloc((2, 64, 64), A.dtype)
    bars = tile.mbarrier(n=2)
    with tile.elect():
        for i in tile.static_range(2):
            bars[i].arrive_expect_tx(64 * 64 * 4)
            tile.copy_async(s[i], A[0:64, 0:64], mbar=bars[i])
    bars[0].wait(phase=0)
    tile.store(B[0:64, 0:64], tile.load(s[0]) + tile.load(s[1]))  # finds: missing-wait
    bars[1].wait(phase=0)


@tile.jit
def both_barriers(A, B):
    s = tile.alloc((2, 64, 64), A.dtype)
    bars = tile.mbarrier(n=2)
    with tile.elect():
        for i in tile.static_range(2):
            bars[i].arrive_expect_tx(64 * 64 * 4)
            tile.copy_async(s[i], A[0:64, 0:64], mbar=bars[i])
    bars[0].wait(phase=0)
    bars[1].wait(phase=0)
    tile.store(B[0:64, 0:64], tile.load(s[0]) + tile.load(s[1]))


def test_a_wait_on_one_of_two_barriers_covers_only_its_copies():
    check(one_of_two_barriers, (1,), A, B)
    check(both_barriers, (1,), A, B, result=1, expected=A + A)


@tile.jit
def one_element_too_few(A, B):
    s = tile.alloc((64, 64), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(64 * 64 * 4 - 4)  # finds: transaction-count
        tma_load(s, A, bar, 0, 0, box=(64, 64))
    bar.wait(phase=0)
    tile.store(B[0:64, 0:64], tile.load(s))


@tile.jit
def one_element_too_many(A, B):
    s = tile.alloc((64, 64), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(64 * 64 * 4 + 4)  # finds: transaction-count
        tma_load(s, A, bar, 0, 0, box=(64, 64))
    bar.wait(phase=0)
    tile.store(B[0:64, 0:64], tile.load(s))


@tile.jit
def operand_forgotten(A, B):
    s = tile.alloc((2, 64, 64), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(64 * 64 * 4)  # finds: transaction-count
        for i in tile.static_range(2):
            tma_load(s, A, bar, 0, 0, box=(64, 64), offset=i * 64 * 64 * 4)
    bar.wait(phase=0)
    tile.store(B[0:64, 0:64], tile.load(s[0]) + tile.load(s[1]))


def test_the_announced_bytes_must_equal_the_transferred_bytes():
    """Too few or too many by one element, or only one of two operands."""
    check(one_element_too_few, (1,), A, B)
    check(one_element_too_many, (1,), A, B)
    check(operand_forgotten, (1,), A, B)


# -- proxies ---------------------------------------------------------------------------------------------------------------

@tile.jit
def store_unfenced(A, B):
    s = tile.alloc((64, 64), A.dtype)
    tile.store(s, tile.load(A[0:64, 0:64]))
    tile.sync()
    with tile.elect():
        tile.copy_async(B[0:64, 0:64], s)  # finds: missing-proxy-fence
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit
def store_fenced(A, B):
    s = tile.alloc((64, 64), A.dtype)
    tile.store(s, tile.load(A[0:64, 0:64]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(B[0:64, 0:64], s)
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit
def store_fenced_by_one(A, B):
    s = tile.alloc((64, 64), A.dtype)
    tile.store(s, tile.load(A[0:64, 0:64]))
    tile.sync()
    with tile.elect():
        tile.fence_proxy_async()
        tile.copy_async(B[0:64, 0:64], s)  # finds: missing-proxy-fence
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit
def store_unsynced(A, B):
    s = tile.alloc((64, 64), A.dtype)
    tile.store(s, tile.load(A[0:64, 0:64]))
    tile.fence_proxy_async()
    with tile.elect():
        tile.copy_async(B[0:64, 0:64], s)  # finds: race
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit
def store_unwaited(A, B):
    s = tile.alloc((64, 64), A.dtype)
    tile.store(s, tile.load(A[0:64, 0:64]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(B[0:64, 0:64], s)  # finds: missing-wait
        tile.bulk_commit()


def test_a_tensor_store_needs_a_fence_a_barrier_and_a_wait():
    """Ordinary writes become visible to the async proxy by the writer's fence and a barrier; the source must not change until
    it is read."""
    check(store_unfenced, (1,), A, B)
    check(store_fenced_by_one, (1,), A, B)
    check(store_unsynced, (1,), A, B)
    check(store_unwaited, (1,), A, B)
    check(store_fenced, (1,), A, B, result=1, expected=A)


@tile.jit
def source_reused(A, B):
    s = tile.alloc((64, 64), A.dtype)
    for i in range(2):
        tile.store(s, tile.load(A[0:64, 0:64]) + i)  # finds: missing-wait
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(B[i * 64:i * 64 + 64, 0:64], s)
            tile.bulk_commit()
        tile.sync()
    with tile.elect():
        tile.bulk_wait(0)


@tile.jit
def source_freed(A, B):
    s = tile.alloc((64, 64), A.dtype)
    for i in range(2):
        tile.store(s, tile.load(A[0:64, 0:64]) + i)
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(B[i * 64:i * 64 + 64, 0:64], s)
            tile.bulk_commit()
            tile.bulk_wait(0, read=True)
        tile.sync()


def test_the_source_of_a_store_may_be_reused_after_the_read_side_wait():
    """`read=True` waits for the source, not for the destination."""
    both = np.zeros((128, 64), np.float32)
    check(source_reused, (1,), A, both)
    check(source_freed, (1,), A, both, result=1, expected=np.concatenate([A, A + 1]))


@tile.jit
def mma_unfenced(A):
    s = tile.alloc((64, 64), A.dtype)
    tile.store(s, tile.load(A[0:64, 0:64]))
    tile.sync()
    with tile.warpgroup(0):
        mma(s, s, nbytes=64 * 64 * 4)  # finds: missing-proxy-fence
        mma_wait()


@tile.jit
def mma_overwritten(A):
    s = tile.alloc((64, 64), A.dtype)
    tile.store(s, tile.load(A[0:64, 0:64]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.warpgroup(0):
        mma(s, s, nbytes=64 * 64 * 4)
        tile.sync()
        tile.store(s, tile.load(A[0:64, 0:64]))  # finds: missing-wait
        mma_wait()


@tile.jit
def mma_clean(A):
    s = tile.alloc((64, 64), A.dtype)
    tile.store(s, tile.load(A[0:64, 0:64]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.warpgroup(0):
        mma(s, s, nbytes=64 * 64 * 4)
        mma_wait()
        tile.sync()
        tile.store(s, tile.load(A[0:64, 0:64]))


def test_tensor_core_operands_in_shared_memory_need_a_fence_and_stay_in_use_until_the_wait():
    """They are read through the async proxy."""
    check(mma_unfenced, (1,), A)
    check(mma_overwritten, (1,), A)
    check(mma_clean, (1,), A)


# -- bulk copies -------------------------------------------------------------------------------------------------------------

@tile.jit
def bulk_both_ways(A, B):
    s = tile.alloc((64, 64), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(64 * 64 * 4)
        tile.copy_async(s, A[0:64, 0:64], mbar=bar)
        bar.wait(phase=0)
        tile.copy_async(B[0:64, 0:64], s)
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit
def bulk_of_24_bytes(A):
    s = tile.alloc((64, 64), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(16)
        bulk(s, A, bar, nbytes=24)  # finds: misaligned
        bar.wait(phase=0)


def test_bulk_copies_transfer_multiples_of_16_bytes():
    """Data that was loaded through the async proxy may be stored by it without a fence."""
    check(bulk_both_ways, (1,), A, B, result=1, expected=A)
    check(bulk_of_24_bytes, (1,), A)
