"""Corner cases: polling loops, early returns, barriers chosen per CTA, empty tiles, chunks, runs without checks."""

import numpy as np
import pytest
import tilejit as tile
from faulty import check

A = np.arange(8 * 256, dtype=np.float32).reshape(8, 256)


@tile.jit
def polling(A, B):
    s = tile.alloc((256,), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(256 * 4)
        tile.copy_async(s, A[0, 0:256], mbar=bar)
    while not bar.test(phase=0):
        pass
    tile.store(B[0, 0:256], tile.load(s))


def test_a_loop_that_polls_a_barrier_sees_it_complete():
    """test() acquires, like wait()."""
    B = np.zeros_like(A)
    check(polling, (1,), A, B, result=1, expected=np.where(np.arange(8)[:, None] < 1, A, 0))


@tile.jit
def early_return(x, y):
    i = tile.program_id(0)
    if i % 3 == 0:
        return
    for k in range(10):
        if k == i:
            break
        if k % 2 == 1:
            continue
        tile.store(y[i, k], tile.load(x[i]) + k)


def test_return_break_and_continue_may_differ_between_ctas():
    x, y = np.arange(9, dtype=np.int32), np.full((9, 10), -1, np.int32)
    want = y.copy()
    for i in range(9):
        if i % 3:
            for k in range(0, min(i, 10), 2):
                want[i, k] = x[i] + k
    check(early_return, (9,), x, y, result=1, expected=want, seeds=range(3))


@tile.jit
def barrier_by_cta(A, B):
    s = tile.alloc((3, 256), A.dtype)
    full = tile.mbarrier(n=3)
    p = tile.program_id(0)
    with tile.elect():
        for k in range(3):
            i = (p + k) % 3
            full[i].arrive_expect_tx(256 * 4)
            tile.copy_async(s[i], A[k, 0:256], mbar=full[i])
    for k in range(3):
        i = (p + k) % 3
        full[i].wait(phase=0)
        tile.store(B[p, k, 0:256], tile.load(s[i]))


@pytest.mark.parametrize("checks", [True, False])
def test_barriers_and_slots_may_be_chosen_per_cta(checks):
    """CTAs of one batch that use different barriers and different memory."""
    B = np.zeros((7, 8, 256), np.float32)
    want = B.copy()
    want[:, :3] = A[:3]
    check(barrier_by_cta, (7,), A, B, result=1, expected=want, checks=checks, seeds=range(4))


@tile.jit(num_warps=2)
def many(x, y, N: tile.constexpr):
    i = tile.program_id(0)
    s = tile.alloc((N,), x.dtype)
    tile.store(s, tile.load(x[0:N]) + i)
    tile.sync()
    tile.store(y[i, 0:N], tile.load(s))


def test_a_grid_may_be_simulated_in_several_chunks():
    """The simulated shared memory limits how many CTAs run at a time; all of them run."""
    N = 40 * 1024 // 4
    x, y = np.arange(N, dtype=np.float32), np.zeros((7000, 4), np.float32)
    report = many.simulate((7000,), x, y, N=N)
    assert not report.findings and (y == x[:4] + np.arange(7000)[:, None]).all()


@tile.jit
def no_arguments():
    tile.sync()


def test_a_kernel_without_arguments_runs():
    assert not no_arguments.simulate((3, 2)).findings


@tile.jit
def thread_values_in_scopes(y):
    t = tile.thread_id()
    for w in tile.static_range(4):
        with tile.warp(w):
            tile.store(y[tile.thread_id()], tile.thread_id() * 2 + w)
    if t >= 128:
        tile.store(y[0], -1)


def test_thread_ids_in_narrow_scopes_are_absolute():
    """Every warp writes its own threads' elements."""
    y = np.zeros(128, np.int32)
    want = np.arange(128) * 2 + np.arange(128) // 32
    check(thread_values_in_scopes, (1,), y, result=0, expected=want, seeds=range(3))


@tile.jit
def partial_access(x, y):
    s = tile.alloc((128,), x.dtype)
    t = tile.thread_id()
    if t % 2 == 0:
        tile.store(s[t], tile.load(x[t]))
    tile.sync()
    if t % 2 == 1:
        tile.store(y[t], tile.load(s[t - 1]))


@tile.jit
def partial_access_unwritten(x, y):
    s = tile.alloc((128,), x.dtype)
    t = tile.thread_id()
    if t % 2 == 0:
        tile.store(s[t], tile.load(x[t]))
    tile.sync()
    if t % 4 == 1:
        tile.store(y[t], tile.load(s[t]))  # finds: uninitialized-read


def test_masked_threads_touch_only_their_own_elements():
    """The shadow memory records only the participating threads."""
    x, y = A[0], np.zeros(128, np.float32)
    want = np.where(np.arange(128) % 2 == 1, np.arange(128) - 1, 0)
    check(partial_access, (1,), x, y, result=1, expected=want)
    check(partial_access_unwritten, (1,), x, y)


@tile.jit
def partial_in_some_ctas(x, y):
    s = tile.alloc((128,), x.dtype)
    t = tile.thread_id()
    p = tile.program_id(0)
    if t < p:
        tile.store(s[t], tile.load(x[t]) + p)
    tile.sync()
    if t < p:
        tile.store(y[p, t], tile.load(s[p - 1 - t]))


def test_masks_may_differ_between_ctas():
    """Each CTA has its own set of active threads."""
    y = np.zeros((6, 128), np.float32)
    want = y.copy()
    for p in range(6):
        want[p, :p] = A[0, :p][::-1] + p
    check(partial_in_some_ctas, (6,), A[0], y, result=1, expected=want, seeds=range(3))


@tile.jit
def arrivals_of_threads(x, y):
    bar = tile.mbarrier(count=3)
    s = tile.alloc((128,), x.dtype)
    t = tile.thread_id()
    if t < 3:
        tile.store(s[t], tile.load(x[t]))
        bar.arrive()
    bar.wait(phase=0)
    if t < 3:
        tile.store(y[t], tile.load(s[2 - t]))


def test_threads_of_a_partial_scope_arrive_one_by_one():
    """Three arrivals of three threads complete the phase."""
    y = np.zeros(3, np.float32)
    check(arrivals_of_threads, (1,), A[0], y, result=1, expected=[2, 1, 0])


@tile.jit
def others_go_on(x, y):
    s = tile.alloc((32,), x.dtype)
    bar = tile.mbarrier()
    with tile.warp(0):
        bar.wait(phase=0)
        tile.store(y[0, 0:32], tile.load(s))
    v = tile.load(x[1, 0:128])
    with tile.warp(1):
        tile.store(s, tile.load(x[0, 0:32]))
        bar.arrive()
    tile.store(y[1, 0:128], v)


@tile.jit
def all_must_meet(x, y):
    s = tile.alloc((32,), x.dtype)
    bar = tile.mbarrier()
    with tile.warp(0):
        bar.wait(phase=0)  # finds: deadlock
        tile.store(y[0, 0:32], tile.load(s))
    tile.sync()
    with tile.warp(1):
        tile.store(s, tile.load(x[0, 0:32]))
        bar.arrive()


def test_threads_outside_a_scope_do_not_wait_for_it():
    """A warp that waits holds up the others only where all threads synchronise."""
    y = np.zeros((2, 128), np.float32)
    want = y.copy()
    want[0, :32], want[1] = A[0, :32], A[1, :128]
    check(others_go_on, (1,), A, y, result=1, expected=want)
    check(all_must_meet, (1,), A, y)


@tile.jit
def far_ahead(y):
    bar = tile.mbarrier()
    for k in range(100):
        with tile.warp(0):
            if k == 0:
                bar.wait(phase=0)
        with tile.warp(1):
            if k == 99:
                bar.arrive()


def test_a_warp_may_be_a_hundred_iterations_ahead():
    """Only the kernel's own barriers hold a scope back."""
    check(far_ahead, (1,), np.zeros(1, np.float32), seeds=range(3))


@tile.jit(num_warps=1)
def counts_for_ever(y):
    k = 0
    while k >= 0:  # finds: deadlock
        k = (k + 1) % 7
    tile.store(y[0], 1.0)


def test_a_loop_that_counts_for_ever_is_found(monkeypatch):
    """It only changes its own registers."""
    monkeypatch.setattr("tilejit.sim.chunk.PATIENCE", 20_000)
    check(counts_for_ever, (1,), np.zeros(1, np.float32), seeds=[0, 1])


def test_zero_and_negative_zero_are_different_constants():
    @tile.jit
    def zeros(y):
        tile.store(y[0], 0.0)
        tile.store(y[1], -0.0)
        tile.store(y[2:4], tile.full((2,), 0.0))
        tile.store(y[4:6], tile.full((2,), -0.0))

    y = np.ones(6, np.float32)
    zeros[1](y)
    np.testing.assert_array_equal(np.signbit(y), [False, True, False, False, True, True])


# -- a slot that is filled twice --------------------------------------------------------------------------------------------

@tile.jit(num_warps=1)
def filled_again(A, B):
    s, bar = tile.alloc((64,), A.dtype), tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[0, 0:64], mbar=bar)
    bar.wait(phase=0)
    tile.store(B[0, 0:64], tile.load(s))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[1, 0:64], mbar=bar)  # finds: missing-wait
    tile.store(B[1, 0:64], tile.load(s))          # finds: missing-wait


@tile.jit(num_warps=1)
def filled_too_early(A, B):
    s, bar = tile.alloc((64,), A.dtype), tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[0, 0:64], mbar=bar)
    bar.wait(phase=0)
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[1, 0:64], mbar=bar)  # finds: race
    tile.store(B[0, 0:64], tile.load(s))
    bar.wait(phase=1)


def test_reading_a_slot_again_is_a_missing_wait_and_not_having_read_it_yet_is_a_race():
    """The distinction is whether the thread had read the slot when the copy was issued."""
    for kernel in (filled_again, filled_too_early):
        check(kernel, (1,), A, np.zeros_like(A))
