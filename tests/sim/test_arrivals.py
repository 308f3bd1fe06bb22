"""Arrivals and announced bytes that fall into the wrong phase: of copies by threads, at named barriers, and after the
last arrival."""

import numpy as np
import pytest
import tilejit as tile
from engine_ops import test_tma_load as tma_load
from faulty import check

A = np.arange(8 * 256, dtype=np.float32).reshape(8, 256)
B = np.zeros_like(A)


def first_rows(n):
    return np.where(np.arange(8)[:, None] < n, A, 0)


# -- arrivals of copies ------------------------------------------------------------------------------------------------

@tile.jit(num_warps=4)
def copies_arrive(A, B, COUNT: tile.constexpr):
    s, full = tile.alloc((256,), A.dtype), tile.mbarrier(count=COUNT)
    tile.copy_async(s, A[0, 0:256], variant="ldgsts")
    full.arrive_on_copies(noinc=True)
    full.wait(phase=0)
    tile.store(B[0, 0:256], tile.load(s))


@tile.jit(num_warps=4)
def too_many_copies_arrive(A, B, COUNT: tile.constexpr):
    s, full = tile.alloc((256,), A.dtype), tile.mbarrier(count=COUNT)
    tile.copy_async(s, A[0, 0:256], variant="ldgsts")
    full.arrive_on_copies(noinc=True)  # finds: barrier-phase
    full.wait(phase=0)
    tile.store(B[0, 0:256], tile.load(s))


@tile.jit(num_warps=4)
def too_many_arrive_in_ptx(A, B, COUNT: tile.constexpr):
    s, full = tile.alloc((256,), A.dtype), tile.mbarrier(count=COUNT)
    tile.copy_async(s, A[0, 0:256], variant="ldgsts")
    tile.ptx.cp_async.mbarrier.arrive.noinc.shared_cta.b64(full)  # finds: barrier-phase
    full.wait(phase=0)
    tile.store(B[0, 0:256], tile.load(s))


@pytest.mark.parametrize("count", [1, 64, 127])
def test_more_arrivals_of_copies_than_the_barrier_counts_are_found(count):
    check(too_many_copies_arrive, (1,), A, B, COUNT=count)
    check(too_many_arrive_in_ptx, (1,), A, B, COUNT=count)


def test_as_many_arrivals_of_copies_as_the_barrier_counts_are_right():
    check(copies_arrive, (1,), A, B, COUNT=128, result=1, expected=first_rows(1))


@tile.jit(num_warps=4)
def two_rounds(A, B, WAITS: tile.constexpr):
    s, full = tile.alloc((2, 256), A.dtype), tile.mbarrier(count=128)
    tile.copy_async(s[0], A[0, 0:256], variant="ldgsts")
    full.arrive_on_copies(noinc=True)
    if WAITS:
        full.wait(phase=0)
    tile.copy_async(s[1], A[1, 0:256], variant="ldgsts")
    full.arrive_on_copies(noinc=True)
    if not WAITS:
        full.wait(phase=0)
    full.wait(phase=1)
    tile.copy(B[0:2, 0:256], s)


@tile.jit(num_warps=4)
def two_rounds_unwaited(A, B):
    s, full = tile.alloc((2, 256), A.dtype), tile.mbarrier(count=128)
    tile.copy_async(s[0], A[0, 0:256], variant="ldgsts")
    full.arrive_on_copies(noinc=True)
    tile.copy_async(s[1], A[1, 0:256], variant="ldgsts")
    full.arrive_on_copies(noinc=True)  # finds: barrier-phase
    full.wait(phase=0)
    full.wait(phase=1)
    tile.copy(B[0:2, 0:256], s)


@tile.jit(num_warps=4)
def copies_and_a_thread(A, B, COUNT: tile.constexpr):
    s, full = tile.alloc((256,), A.dtype), tile.mbarrier(count=COUNT)
    tile.copy_async(s, A[0, 0:256], variant="ldgsts")
    full.arrive_on_copies(noinc=True)
    with tile.thread(5):
        full.arrive()
    full.wait(phase=0)
    tile.store(B[0, 0:256], tile.load(s))


@tile.jit(num_warps=4)
def one_thread_more(A, B):
    s, full = tile.alloc((256,), A.dtype), tile.mbarrier(count=128)
    tile.copy_async(s, A[0, 0:256], variant="ldgsts")
    full.arrive_on_copies(noinc=True)
    with tile.thread(5):
        full.arrive()  # finds: barrier-phase
    full.wait(phase=0)
    tile.store(B[0, 0:256], tile.load(s))


def test_arrivals_of_a_second_round_may_not_count_in_the_first():
    """A fast thread's second arrival would stand for a slow thread's first."""
    check(two_rounds, (1,), A, B, WAITS=True, result=1, expected=first_rows(2))
    check(two_rounds_unwaited, (1,), A, B)


def test_arrivals_of_copies_and_of_threads_add_up():
    check(copies_and_a_thread, (1,), A, B, COUNT=129, result=1, expected=first_rows(1))
    check(one_thread_more, (1,), A, B)


@tile.jit(num_warps=4)
def each_half_arrives(A, B, COUNT: tile.constexpr):
    s, full = tile.alloc((128,), A.dtype), tile.mbarrier(count=COUNT)
    i = tile.thread_id()
    if i < 32 + 32 * (tile.program_id(0) % 2):
        tile.ptx.cp_async.ca.shared.global_._4(s[i], A[tile.program_id(0), i])
        full.arrive_on_copies()
    full.arrive()
    full.wait(phase=0)
    if i < 32:
        tile.store(B[tile.program_id(0), i], tile.load(s[i]))


def test_each_cta_counts_the_threads_of_its_own_branch():
    check(each_half_arrives, (4,), A, B, COUNT=1, result=1,
          expected=np.where((np.arange(8)[:, None] < 4) & (np.arange(256) < 32), A, 0))


# -- arrivals left over at named barriers ------------------------------------------------------------------------------

@tile.jit(num_warps=8)
def hands_over(A, B, n):
    s, ready, free = tile.alloc((256,), A.dtype), tile.named_barrier(256), tile.named_barrier(256)
    with tile.warpgroup(0):
        for k in range(n):
            if k > 0:
                free.sync()
            tile.store(s, tile.load(A[k, 0:256]))
            ready.arrive()
    with tile.warpgroup(1):
        for k in range(n):
            ready.sync()
            tile.store(B[k, 0:256], tile.load(s))
            if k + 1 < n:
                free.arrive()


@tile.jit(num_warps=8)
def hands_over_once_more(A, B, n):
    s, ready, free = tile.alloc((256,), A.dtype), tile.named_barrier(256), tile.named_barrier(256)
    with tile.warpgroup(0):
        for k in range(n):
            if k > 0:
                free.sync()
            tile.store(s, tile.load(A[k, 0:256]))
            ready.arrive()
    with tile.warpgroup(1):
        for k in range(n):
            ready.sync()
            tile.store(B[k, 0:256], tile.load(s))
            free.arrive()  # finds: barrier-phase


@tile.jit(num_warps=8)
def produces_once_more(A, B, n):
    s, ready = tile.alloc((8, 256), A.dtype), tile.named_barrier(256, n=4)
    with tile.warpgroup(0):
        for k in range(n + 1):
            tile.store(s[k], tile.load(A[k, 0:256]))
            ready[k % 4].arrive()  # finds: barrier-phase
    with tile.warpgroup(1):
        for k in range(n):
            ready[k % 4].sync()
            tile.store(B[k, 0:256], tile.load(s[k]))


@tile.jit(num_warps=8)
def takes_turns(B, n, LESS: tile.constexpr):
    baton = tile.turns(2)
    for g in tile.static_range(2):
        with tile.warpgroup(g):
            for k in range(n - LESS * g):
                baton.take(g)
                tile.store(B[g, 0:128], tile.float32(k))
                baton.pass_on(g)


def test_arrivals_left_over_at_a_named_barrier_are_found():
    """Roles with different trip counts: the last arrival meets nobody, and would count in the next use."""
    check(hands_over, (1,), A, B, 5, result=1, expected=first_rows(5))
    check(hands_over_once_more, (1,), A, B, 5)
    check(produces_once_more, (1,), A, B, 3)
    assert "128 of the 256 threads" in hands_over_once_more.simulate((1,), A, B.copy(), 5).findings[0].message


@pytest.mark.parametrize("less", [0, 1])
def test_a_baton_may_be_with_any_member_when_the_kernel_ends(less):
    check(takes_turns, (1,), B, 3, LESS=less)


# -- bytes announced after the last arrival ----------------------------------------------------------------------------

@tile.jit
def announces_late(A, B, n):
    s, bar = tile.alloc((256,), A.dtype), tile.mbarrier()
    for k in range(n):
        with tile.elect():
            bar.arrive()
            bar.expect_tx(256 * 4)  # finds: barrier-phase
            tma_load(s, A, bar, 0, k, box=(256, 1))
        bar.wait(phase=k)
        tile.store(B[k, 0:256], tile.load(s))
        tile.fence_proxy_async()
        tile.sync()


@tile.jit
def announces_first(A, B, n):
    s, bar = tile.alloc((256,), A.dtype), tile.mbarrier()
    for k in range(n):
        with tile.elect():
            bar.expect_tx(256 * 4)
            bar.arrive()
            tma_load(s, A, bar, 0, k, box=(256, 1))
        bar.wait(phase=k)
        tile.store(B[k, 0:256], tile.load(s))
        tile.fence_proxy_async()
        tile.sync()


@tile.jit
def announces_late_and_stores(A, B, n):
    s, bar = tile.alloc((256,), A.dtype), tile.mbarrier()
    with tile.elect():
        bar.arrive()
        bar.expect_tx(256 * 4)  # finds: barrier-phase
        tma_load(s, A, bar, 0, 0, box=(256, 1))
    bar.wait(phase=0)
    with tile.elect():
        tile.copy_async(B[0, 0:256], s, variant="bulk")
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit
def announces_late_for_nobody(A, B):
    s, bar = tile.alloc((256,), A.dtype), tile.mbarrier()
    with tile.elect():
        bar.arrive()
        bar.expect_tx(256 * 4)  # finds: barrier-phase
        tma_load(s, A, bar, 0, 0, box=(256, 1))
    bar.wait(phase=0)


@tile.jit
def another_arrives(A, B):
    s, bar, told = tile.alloc((256,), A.dtype), tile.mbarrier(count=2), tile.mbarrier()
    with tile.warp(0), tile.elect():
        bar.arrive()
        bar.expect_tx(256 * 4)
        tma_load(s, A, bar, 0, 0, box=(256, 1))
        told.arrive()
    with tile.warp(1), tile.elect():
        told.wait(phase=0)
        bar.arrive()
    bar.wait(phase=0)
    tile.store(B[0, 0:256], tile.load(s))


@tile.jit
def another_may_arrive_first(A, B):
    s, bar = tile.alloc((256,), A.dtype), tile.mbarrier(count=2)
    with tile.warp(0), tile.elect():
        bar.arrive()
        bar.expect_tx(256 * 4)  # finds: barrier-phase
        tma_load(s, A, bar, 0, 0, box=(256, 1))
    with tile.warp(1), tile.elect():
        bar.arrive()
    bar.wait(phase=0)
    tile.store(B[0, 0:256], tile.load(s))


@tile.jit
def announces_more_bytes_later(A, B):
    s, bar = tile.alloc((2, 256), A.dtype), tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(256 * 4)
        tma_load(s[0], A, bar, 0, 0, box=(256, 1))
        bar.expect_tx(256 * 4)  # finds: barrier-phase
        tma_load(s[1], A, bar, 0, 1, box=(256, 1))
    bar.wait(phase=0)
    tile.copy(B[0:2, 0:256], s)


@tile.jit
def begins_with_the_second_phase(A, B):
    s, bar = tile.alloc((256,), A.dtype), tile.mbarrier()
    with tile.elect():
        bar.arrive()
        bar.expect_tx(256 * 4)
        tma_load(s, A, bar, 0, 0, box=(256, 1))
        bar.arrive()
    tile.sync()
    bar.wait(phase=1)
    tile.store(B[0, 0:256], tile.load(s))


@pytest.mark.parametrize("faulty, args", [(announces_late, (1,)), (announces_late, (4,)),
                                          (announces_late_and_stores, (1,)),
                                          (announces_late_for_nobody, ()), (another_may_arrive_first, ()),
                                          (announces_more_bytes_later, ())])
def test_an_expect_tx_after_the_last_arrival_of_its_phase_is_named_as_that(faulty, args):
    report = check(faulty, (1,), A, B, *args)
    assert "this expect_tx" in report.findings[0].message


def test_an_expect_tx_before_an_arrival_of_its_phase_is_right():
    check(announces_first, (1,), A, B, 4, result=1, expected=first_rows(4))
    check(another_arrives, (1,), A, B, result=1, expected=first_rows(1))
    check(begins_with_the_second_phase, (1,), A, B, result=1, expected=first_rows(1))
