"""mbarriers, named barriers and pipelines: phases, counts, lifetimes, roles that disagree, deadlocks."""

import numpy as np
import pytest
import tilejit as tile
from engine_ops import test_named as named
from faulty import check

from tests.gpu import in_child, needs_gpu

A = np.arange(8 * 256, dtype=np.float32).reshape(8, 256)
B = np.zeros_like(A)
ROW = 256 * 4


# -- a ring of slots between a producer and a consumer -----------------------------------------------------------------

@tile.jit
def ring(A, B, n, STAGES: tile.constexpr):
    s = tile.alloc((STAGES, 256), A.dtype)
    full = tile.mbarrier(n=STAGES)
    empty = tile.mbarrier(n=STAGES)
    with tile.warp(0):
        with tile.elect():
            for k in range(n):
                i = k % STAGES
                empty[i].wait(phase=k // STAGES + 1)
                full[i].arrive_expect_tx(256 * 4)
                tile.copy_async(s[i], A[k, 0:256], mbar=full[i])
    with tile.warp(1):
        for k in range(n):
            i = k % STAGES
            full[i].wait(phase=k // STAGES)
            tile.store(B[k, 0:256], tile.load(s[i]) + 1)
            tile.fence_proxy_async()
            empty[i].arrive()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 8])
def test_a_ring_of_three_slots_works_for_any_trip_count(n):
    """0, 1, stages - 1, stages, stages + 1 and more iterations."""
    check(ring, (1,), A, B, n, STAGES=3, result=1, expected=np.where(np.arange(8)[:, None] < n, A + 1, 0))


@tile.jit
def ring_that_never_flips(A, B, n):
    s = tile.alloc((2, 256), A.dtype)
    full = tile.mbarrier(n=2)
    empty = tile.mbarrier(n=2)
    with tile.warp(0):
        with tile.elect():
            for k in range(n):
                empty[k % 2].wait(phase=k // 2 + 1)
                full[k % 2].arrive_expect_tx(256 * 4)
                tile.copy_async(s[k % 2], A[k, 0:256], mbar=full[k % 2])
    with tile.warp(1):
        for k in range(n):
            full[k % 2].wait(phase=0)  # finds: barrier-phase
            tile.store(B[k, 0:256], tile.load(s[k % 2]) + 1)
            tile.fence_proxy_async()
            empty[k % 2].arrive()


@tile.jit
def ring_without_empty_wait(A, B, n):
    s = tile.alloc((2, 256), A.dtype)
    full = tile.mbarrier(n=2)
    with tile.warp(0):
        with tile.elect():
            for k in range(n):
                full[k % 2].arrive_expect_tx(256 * 4)  # may find: barrier-phase
                tile.copy_async(s[k % 2], A[k, 0:256], mbar=full[k % 2])  # may find: race, missing-wait
    with tile.warp(1):
        for k in range(n):
            full[k % 2].wait(phase=k // 2)
            tile.store(B[k, 0:256], tile.load(s[k % 2]) + 1)


@tile.jit
def ring_released_before_the_read(A, B, n):
    s = tile.alloc((2, 256), A.dtype)
    full = tile.mbarrier(n=2)
    empty = tile.mbarrier(n=2)
    with tile.warp(0):
        with tile.elect():
            for k in range(n):
                empty[k % 2].wait(phase=k // 2 + 1)
                full[k % 2].arrive_expect_tx(256 * 4)
                tile.copy_async(s[k % 2], A[k, 0:256], mbar=full[k % 2])  # finds: race
    with tile.warp(1):
        for k in range(n):
            full[k % 2].wait(phase=k // 2)
            empty[k % 2].arrive()
            tile.store(B[k, 0:256], tile.load(s[k % 2]) + 1)


def test_misuse_of_a_ring_s_barriers_is_found():
    """A parity that never flips, a slot refilled without waiting, a slot released too early."""
    check(ring_that_never_flips, (1,), A, B, 8)
    check(ring_without_empty_wait, (1,), A, B, 4)
    check(ring_released_before_the_read, (1,), A, B, 8)


def test_a_wait_that_returned_too_early_is_reported_once():
    """By its consequence, in whichever scope that occurs."""
    message = ring_that_never_flips.simulate((1,), A, B.copy(), 8, seed=0).findings[0].message
    assert message.count("the wait returned at once") == 1 and "; after that, phase 1 of the barrier" in message and message.endswith("has not completed yet")
    message = inverted_parity.simulate((1,), A, B.copy(), seed=0).findings[0].message
    assert message.startswith("the wait returned at once, because a phase of that parity had already completed: phase 0 of the barrier")


@tile.jit
def inverted_parity(A, B):
    s = tile.alloc((256,), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(256 * 4)
        tile.copy_async(s, A[0, 0:256], mbar=bar)
    bar.wait(phase=1)  # finds: barrier-phase
    tile.store(B[0, 0:256], tile.load(s))
    bar.wait(phase=0)


def test_a_wait_for_the_wrong_parity_of_a_new_barrier_returns_at_once():
    """The data read after it has not arrived."""
    check(inverted_parity, (1,), A, B)


@tile.jit
def asks_and_counts(A, B):
    s, bar = tile.alloc((1, 256), A.dtype), tile.mbarrier()
    with tile.warp(0), tile.elect():
        bar.arrive_expect_tx(256 * 4)
        tile.copy_async(s, A[0, 0:256], mbar=bar)
    with tile.warp(1):
        asked = 0
        while not tile.uniform(bar.test(phase=0)):
            asked += 1
        tile.store(B[0, 0:256], tile.load(s[0]))


@tile.jit
def counts_for_ever(B):
    bar, asked = tile.mbarrier(), 0
    while not tile.uniform(bar.test(phase=0)):  # finds: deadlock
        asked += 1


def test_a_loop_that_polls_a_barrier_and_counts_ends_when_the_copy_has_landed(monkeypatch):
    """No two of its iterations have the same state. Copies still complete when all else is idle; one that never does is a deadlock."""
    monkeypatch.setattr("tilejit.sim.chunk.LULL", 40_000)
    monkeypatch.setattr("tilejit.sim.chunk.PATIENCE", 100_000)
    check(asks_and_counts, (1,), A, B, result=1, expected=np.where(np.arange(8)[:, None] == 0, A, 0))
    check(counts_for_ever, (1,), B, seeds=[0])


@tile.jit(num_warps=1)
def computes_and_does_not_wait(A, B):
    s, bar, n = tile.alloc((256,), A.dtype), tile.mbarrier(), 0
    with tile.elect():
        bar.arrive_expect_tx(256 * 4)
        tile.copy_async(s, A[1, 0:256], mbar=bar)
    for i in range(60000):
        n = n * 3 + i
    tile.store(B[0, 0:256], tile.load(s) + tile.cast(n & 0, A.dtype))  # finds: missing-wait
    bar.wait(phase=0)


def test_a_long_computation_without_a_wait_does_not_see_the_data_of_a_copy():
    """Without checks the result is wrong, as it may be on the GPU."""
    check(computes_and_does_not_wait, (1,), A, B, seeds=[0])
    got = B.copy()
    computes_and_does_not_wait.simulate((1,), A, got, checks=False)
    assert not (got[0] == A[1]).any()


@tile.jit(num_warps=2)
def a_flag_is_asked_while_another_waits_for_its_copy(A, B, flag):
    s, bar = tile.alloc((256,), A.dtype), tile.mbarrier()
    with tile.warp(0):
        with tile.elect():
            bar.arrive_expect_tx(256 * 4)
            tile.copy_async(s, A[0, 0:256], mbar=bar)
        bar.wait(phase=0)
        tile.store(B[0, 0:256], tile.load(s))
        tile.atomic_add(flag[0], 1)
    with tile.warp(1):
        asked = 0
        while tile.load(flag[0], sem="acquire") == 0:
            asked += 1


def test_a_loop_that_polls_a_flag_and_counts_ends_when_another_warp_s_copy_has_landed(monkeypatch):
    monkeypatch.setattr("tilejit.sim.chunk.LULL", 40_000)
    flag = np.zeros(1, np.int32)
    check(a_flag_is_asked_while_another_waits_for_its_copy, (1,), A, B, flag, seeds=[0], result=1,
          expected=np.where(np.arange(8)[:, None] == 0, A, 0))


@tile.jit
def disagreeing_roles(A, B, n, m):
    s = tile.alloc((2, 256), A.dtype)
    full = tile.mbarrier(n=2)
    empty = tile.mbarrier(n=2)
    with tile.warp(0):
        with tile.elect():
            for k in range(n):
                empty[k % 2].wait(phase=k // 2 + 1)
                full[k % 2].arrive_expect_tx(256 * 4)
                tile.copy_async(s[k % 2], A[k, 0:256], mbar=full[k % 2])
    with tile.warp(1):
        for k in range(m):
            full[k % 2].wait(phase=k // 2)  # finds: deadlock
            tile.store(B[k, 0:256], tile.load(s[k % 2]) + 1)
            tile.fence_proxy_async()
            empty[k % 2].arrive()


def test_roles_that_disagree_about_the_trip_count_deadlock():
    """The report names the barrier and phase, and what is missing."""
    report = check(disagreeing_roles, (1,), A, B, 4, 5)
    message = report.findings[0].message
    assert "phase 2 (parity 0) of mbarrier 0, which is missing 1 of 1 arrival" in message and "threads 32 to 63" in message


@tile.jit(num_warps=2)
def waits_for_two(B):
    full, empty = tile.mbarrier(n=2), tile.mbarrier(count=2)
    with tile.warp(0):
        full[1].wait(phase=0)  # finds: deadlock
    with tile.warp(1):
        empty.arrive()
        empty.wait(phase=0)


def test_a_deadlock_report_uses_the_barrier_names_of_the_kernel():
    message = check(waits_for_two, (1,), B, seeds=[0]).findings[0].message
    assert "is missing 1 of 1 arrival (full[1])" in message and "is missing 1 of 2 arrivals (empty)" in message


@tile.jit(num_warps=2)
def ring_whose_consumer_leaves(x, y):
    r = tile.ring(2, A=((32,), "float32"), filled="stores")
    with tile.warp(0):
        for i in range(4):
            with r.produce() as slot:  # finds: deadlock
                tile.store(slot.A, tile.load(x[0, 0:32]))
    with tile.warp(1):
        for i in range(1):
            with r.consume() as slot:
                tile.store(y[0, 0:32], tile.load(slot.A))


@tile.jit(num_warps=2)
def ring_whose_producer_leaves(x, y):
    r = tile.ring(2, A=((32,), "float32"), filled="stores")
    with tile.warp(0):
        for i in range(1):
            with r.produce() as slot:
                tile.store(slot.A, tile.load(x[0, 0:32]))
    with tile.warp(1):
        for i in range(4):
            with r.consume() as slot:  # finds: deadlock
                tile.store(y[0, 0:32], tile.load(slot.A))


def test_a_deadlock_report_distinguishes_full_and_empty_barriers_of_a_ring():
    for kernel, barrier in ((ring_whose_consumer_leaves, "r.empty[1]"), (ring_whose_producer_leaves, "r.full[1]")):
        assert f"is missing 1 of 1 arrival ({barrier})" in check(kernel, (1,), A, B, seeds=[0]).findings[0].message


@tile.jit
def arrival_forgotten(B):
    bar = tile.mbarrier(count=2)
    with tile.warp(0):
        bar.arrive()
    bar.wait(phase=0)  # finds: deadlock


@tile.jit
def one_arrival_too_many(B):
    bar = tile.mbarrier(count=2)
    with tile.warp(0):
        bar.arrive(3)  # finds: barrier-phase
    bar.wait(phase=0)


def test_too_few_or_too_many_arrivals_are_found():
    """One too few is a deadlock; one beyond the count is an error in hardware."""
    report = check(arrival_forgotten, (2,), B)
    assert "1 of 2 arrivals" in report.findings[0].message
    check(one_arrival_too_many, (2,), B)


# -- cp.async on an mbarrier -----------------------------------------------------------------------------------------------

@tile.jit
def copies_on_a_barrier(A, B):
    s = tile.alloc((8, 256), A.dtype)
    bar = tile.mbarrier(count=32)
    with tile.warp(0):
        tile.copy_async(s, A[0:8, 0:256])
        bar.arrive_on_copies(noinc=True)
    with tile.warp(1):
        bar.wait(phase=0)
        tile.store(B[0:8, 0:256], tile.load(s))


@tile.jit
def copies_on_a_barrier_counted(A, B):
    s = tile.alloc((8, 256), A.dtype)
    bar = tile.mbarrier(count=1)
    with tile.warp(0):
        tile.copy_async(s, A[0:8, 0:256])
        bar.arrive_on_copies()
        bar.arrive()
    with tile.warp(1):
        bar.wait(phase=0)
        tile.store(B[0:8, 0:256], tile.load(s))


@tile.jit
def copies_after_the_arrival(A, B):
    s = tile.alloc((8, 256), A.dtype)
    bar = tile.mbarrier(count=1)
    with tile.warp(0):
        tile.copy_async(s, A[0:8, 0:256])
        bar.arrive()
    with tile.warp(1):
        bar.wait(phase=0)
        tile.store(B[0:8, 0:256], tile.load(s))  # finds: missing-wait


def test_cp_async_arrives_on_an_mbarrier_when_its_bytes_have_landed():
    """With ``.noinc`` it counts as the threads' arrivals, without it as an additional arrival. A plain arrival does not wait for copies."""
    check(copies_on_a_barrier, (1,), A, B, result=1, expected=A)
    check(copies_on_a_barrier_counted, (1,), A, B, result=1, expected=A)
    check(copies_after_the_arrival, (1,), A, B)


@tile.jit
def copies_on_a_barrier_for_the_engine(A, B):
    s = tile.alloc((8, 256), A.dtype)
    bar = tile.mbarrier(count=32)
    with tile.warp(0):
        tile.copy_async(s, A[0:8, 0:256])
        bar.arrive_on_copies(noinc=True)
    with tile.warp(1):
        with tile.elect():
            bar.wait(phase=0)
            tile.fence_proxy_async()
            tile.copy_async(B[0:8, 0:256], s)
            tile.bulk_commit()
            tile.bulk_wait(0)


@tile.jit
def copies_on_a_barrier_unfenced(A, B):
    s = tile.alloc((8, 256), A.dtype)
    bar = tile.mbarrier(count=32)
    with tile.warp(0):
        tile.copy_async(s, A[0:8, 0:256])
        tile.fence_proxy_async()
        bar.arrive_on_copies(noinc=True)
    with tile.warp(1):
        with tile.elect():
            bar.wait(phase=0)
            tile.copy_async(B[0:8, 0:256], s)  # finds: missing-proxy-fence
            tile.bulk_commit()
            tile.bulk_wait(0)


def test_the_async_proxy_may_read_what_cp_async_wrote_after_the_wait_and_a_fence():
    """cp.async is not part of the async proxy; if a barrier tracks it, even the issuing thread must wait to see its completion."""
    check(copies_on_a_barrier_for_the_engine, (1,), A, B, result=1, expected=A)
    report = check(copies_on_a_barrier_unfenced, (1,), A, B)
    message = report.findings[0].message
    assert "cp.async at line" in message and "no fence_proxy_async() between the wait for that copy and this operation" in message


def test_arrive_on_copies_at_a_peer_s_barrier_is_refused():
    @tile.jit(cluster=2)
    def kernel(A):
        bar = tile.mbarrier()
        bar.peer(1).arrive_on_copies()
    with pytest.raises(tile.CompilationError, match="not at a peer's"):
        kernel.compile(A)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
def test_arrive_on_copies_is_an_instruction_of_every_thread(target):
    for kernel, form in ((copies_on_a_barrier, "cp.async.mbarrier.arrive.noinc.shared::cta.b64"),
                         (copies_on_a_barrier_counted, "cp.async.mbarrier.arrive.shared::cta.b64")):
        assert form in kernel.compile(A, B, target=target).ptx


@pytest.mark.misread_by_synccheck
@needs_gpu()
@in_child(timeout=60)
def test_arrive_on_copies_works_on_the_gpu():
    for kernel in (copies_on_a_barrier, copies_on_a_barrier_counted):
        b = tile.to_device(np.zeros_like(B), 0)
        kernel[1,](tile.to_device(A, 0), b)
        np.testing.assert_array_equal(b.numpy(), A)


# -- named barriers ----------------------------------------------------------------------------------------------------------

@tile.jit
def handover(A, B):
    s = tile.alloc((256,), A.dtype)
    with tile.warp(0):
        tile.store(s, tile.load(A[0, 0:256]))
        named(1, 64, wait=False)
    with tile.warp(1):
        named(1, 64)
        tile.store(B[0, 0:256], tile.load(s))


@tile.jit
def handover_short_of_threads(A, B):
    s = tile.alloc((256,), A.dtype)
    with tile.warp(0):
        tile.store(s, tile.load(A[0, 0:256]))
        named(1, 96, wait=False)
    with tile.warp(1):
        named(1, 96)  # finds: deadlock
        tile.store(B[0, 0:256], tile.load(s))


def test_named_barriers_hand_a_buffer_over():
    """Some threads arrive, others wait; the whole count must arrive."""
    check(handover, (1,), A, B)
    check(handover_short_of_threads, (1,), A, B)


# -- many CTAs ---------------------------------------------------------------------------------------------------------------

@tile.jit
def rings_of_different_length(A, B):
    s = tile.alloc((2, 256), A.dtype)
    full = tile.mbarrier(n=2)
    empty = tile.mbarrier(n=2)
    p = tile.program_id(0)
    with tile.warp(0):
        with tile.elect():
            for k in range(p % 5):
                empty[k % 2].wait(phase=k // 2 + 1)
                full[k % 2].arrive_expect_tx(256 * 4)
                tile.copy_async(s[k % 2], A[k, 0:256], mbar=full[k % 2])
    with tile.warp(1):
        for k in range(p % 5):
            full[k % 2].wait(phase=k // 2)
            tile.store(B[p, k, 0:256], tile.load(s[k % 2]) + 1)
            tile.fence_proxy_async()
            empty[k % 2].arrive()


def test_ctas_with_different_trip_counts_diverge_and_finish():
    """The simulator splits a batch where its CTAs diverge, and finishes each part."""
    want = np.zeros((20, 8, 256), np.float32)
    for p in range(20):
        want[p, :p % 5] = A[:p % 5] + 1
    check(rings_of_different_length, (20,), A, np.zeros_like(want), result=1, expected=want, seeds=range(4))
