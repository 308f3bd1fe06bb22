"""Waits that are not ordered before the completion of the following phase, so that a warp that lags behind misses its phase.
And arrivals at mbarriers and named barriers that are not ordered after the previous phase."""

import numpy as np
import pytest
import tilejit as tile
from faulty import check

A = np.arange(8 * 256, dtype=np.float32).reshape(8, 256)
B = np.zeros_like(A)


@tile.jit
def filled(s, A, full, empty, n):
    for k in range(n):
        empty[k % 2].wait(phase=k // 2 + 1)
        full[k % 2].arrive_expect_tx(256 * 4)
        tile.copy_async(s[k % 2], A[k, 0:256], mbar=full[k % 2])


# -- slots that one thread of a warpgroup releases ---------------------------------------------------------------------------

@tile.jit(num_warps=8)
def passes_over(A, B, n, BY_THIRD_WARP: tile.constexpr):
    s, full, empty = tile.alloc((2, 256), A.dtype), tile.mbarrier(n=2), tile.mbarrier(n=2)
    with tile.warp(0), tile.elect():
        filled(s, A, full, empty, n)
    with tile.warpgroup(1):
        for k in range(n):
            full[k % 2].wait(phase=k // 2)  # finds: barrier-phase
            if BY_THIRD_WARP:
                with tile.warp(6):
                    empty[k % 2].arrive()
            else:
                with tile.elect():
                    empty[k % 2].arrive()


@tile.jit(num_warps=8)
def meets(A, B, n, HOW: tile.constexpr):
    s, full, empty, seen = tile.alloc((2, 256), A.dtype), tile.mbarrier(n=2), tile.mbarrier(n=2), tile.mbarrier()
    with tile.warp(0), tile.elect():
        filled(s, A, full, empty, n)
    with tile.warpgroup(1):
        total = tile.zeros((256,))
        for k in range(n):
            full[k % 2].wait(phase=k // 2)
            if HOW == "sync":
                tile.sync()
            if HOW == "sum":
                total = total + tile.sum(total + k, axis=0)
            if HOW == "count":
                total = total + tile.atomic_add(B[1, 0], 1.0)
            if HOW == "another":
                seen.arrive()
            if HOW == "scope":
                empty[k % 2].arrive()
            else:
                with tile.elect():
                    empty[k % 2].arrive()
        tile.store(B[0, 0:256], total)


@tile.jit(num_warps=8)
def one_warp_passes_over(A, B, n):
    s, full, empty = tile.alloc((2, 256), A.dtype), tile.mbarrier(n=2), tile.mbarrier(n=2)
    with tile.warp(0), tile.elect():
        filled(s, A, full, empty, n)
    with tile.warp(4):
        for k in range(n):
            full[k % 2].wait(phase=k // 2)
            with tile.elect():
                empty[k % 2].arrive()


@tile.jit(num_warps=8)
def all_warps_arrive(A, B, n):
    s, full, empty = tile.alloc((2, 256), A.dtype), tile.mbarrier(n=2), tile.mbarrier(4, n=2)
    with tile.warp(0), tile.elect():
        filled(s, A, full, empty, n)
    for w in tile.static_range(4, 8):
        with tile.warp(w):
            for k in range(n):
                full[k % 2].wait(phase=k // 2)
                empty[k % 2].arrive()


def test_one_thread_that_releases_a_slot_before_the_other_warps_have_seen_it_full_is_found():
    """The producer may refill the slot, and a warp that still waits for its first phase then finds the second one complete as well."""
    for by_third_warp in (False, True):
        check(passes_over, (1,), A, B, 7, by_third_warp)


def test_slots_that_are_not_refilled_cannot_be_missed():
    assert not passes_over.simulate((1,), A, B, 2, False).findings


@pytest.mark.parametrize("how", ["sync", "sum", "count", "another", "scope"])
def test_warps_that_synchronise_before_one_thread_arrives_are_all_past_their_wait(how):
    """By a barrier, by a reduction over all of them, by a value that one of them loads, or by an arrival of their scope."""
    check(meets, (1,), A, B, 7, how)


def test_warps_that_arrive_separately_are_past_their_own_waits():
    check(one_warp_passes_over, (1,), A, B, 7)
    check(all_warps_arrive, (1,), A, B, 7)


@tile.jit(num_warps=8)
def passed_over_in_a_ring(A, B, n):
    ring = tile.ring(2, A=((256,), A.dtype))
    with tile.warp(0), tile.elect():
        for k in range(n):
            with ring.produce() as slot:
                tile.copy_async(slot.A, A[k, 0:256], mbar=slot.full)
    with tile.warpgroup(1):
        for k in range(n):
            with ring.consume():  # finds: barrier-phase
                tile.static_assert(True)


def test_a_ring_whose_warps_did_not_synchronise_would_be_found(monkeypatch):
    monkeypatch.setattr("tilejit.ops.structure.ring._warps_have_met", lambda g, slot: True)
    check(passed_over_in_a_ring, (1,), A, B, 7)


# -- other barriers ----------------------------------------------------------------------------------------------------------

@tile.jit
def phases_that_one_warp_goes_through(B):
    bar = tile.mbarrier()
    with tile.warp(0):
        bar.arrive()
    bar.wait(phase=0)  # finds: barrier-phase
    with tile.warp(0):
        bar.arrive()
        bar.wait(phase=1)
        tile.store(B[0, 0:256], tile.zeros((256,)))


@tile.jit
def phases_that_one_warp_goes_through_behind_the_others(B, HOW: tile.constexpr):
    bar, other = tile.mbarrier(), tile.mbarrier(128 if HOW == "copies" else 4)
    with tile.warp(0):
        bar.arrive()
    bar.wait(phase=0)
    if HOW == "warps":
        for w in tile.static_range(1, 4):
            with tile.warp(w):
                other.arrive()
    else:
        other.arrive_on_copies(noinc=True)
    with tile.warp(0):
        if HOW == "warps":
            other.arrive()
        other.wait(phase=0)
        bar.arrive()
        bar.wait(phase=1)
        tile.store(B[0, 0:256], tile.zeros((256,)))


def test_a_barrier_that_one_warp_advances_before_the_others_have_seen_its_phase_is_found():
    check(phases_that_one_warp_goes_through, (1,), B)


@pytest.mark.parametrize("how", ["warps", "copies"])
def test_a_barrier_that_one_warp_advances_after_the_others_signalled_it_is_right(how):
    check(phases_that_one_warp_goes_through_behind_the_others, (1,), B, how)


@tile.jit(cluster=(2, 1, 1))
def told_by_the_other_cta(B, TOLD: tile.constexpr):
    first, told = tile.mbarrier(), tile.mbarrier()
    if tile.cta_rank() == 0:
        with tile.elect():
            first.peer(1).arrive()
        if TOLD:
            told.wait(phase=0)
        with tile.elect():
            first.peer(1).arrive()
    else:
        first.wait(phase=0)
        if TOLD:
            told.peer(0).arrive()
        first.wait(phase=1)


def test_a_barrier_that_another_cta_advances_is_checked():
    """If that CTA does not know that the first phase has been seen, some order of execution misses it."""
    check(told_by_the_other_cta, (2,), B, True)
    for seed in range(8):
        assert {f.kind for f in told_by_the_other_cta.simulate((2,), B, False, seed=seed).findings} == {"barrier-phase"}


@tile.jit(num_warps=8)
def waits_for_the_second_phase(B, TOLD: tile.constexpr):
    s, bar, told = tile.alloc((256,), B.dtype), tile.mbarrier(), tile.mbarrier()
    with tile.warpgroup(0):
        bar.arrive()
        if TOLD == "by who has waited":
            bar.wait(phase=0)
        if TOLD:
            told.arrive()
        tile.store(s, tile.ones((256,)))
        bar.arrive()
    with tile.warpgroup(1):
        if TOLD:
            told.wait(phase=0)
        bar.wait(phase=1)
        tile.store(B[0, 0:256], tile.load(s))


@pytest.mark.parametrize("told", ["by who has waited", "by who has arrived"])
def test_waiting_for_the_second_phase_is_right_if_the_first_is_known_to_be_complete(told):
    check(waits_for_the_second_phase, (1,), B, told, result=0, expected=np.where(np.arange(8)[:, None] < 1, 1, 0) + np.zeros(256))


def test_a_wait_for_the_second_phase_that_may_precede_the_end_of_the_first_is_found_in_any_order():
    """If it comes too early, it returns at once, by the parity of a new barrier, and the data is not there."""
    findings = [waits_for_the_second_phase.simulate((1,), B, "", seed=seed).findings for seed in range(8)]
    assert all(findings) and {f.kind for found in findings for f in found} <= {"barrier-phase", "race", "uninitialized-read"}
    late, = {f.message for found in findings for f in found if f.kind == "barrier-phase" and "bar.wait(phase=1)" in f.loc.source_line}
    assert "nothing guarantees that phase 0 of the mbarrier has completed when threads 128 to 255 wait for phase 1" in late


@tile.jit
def asks_and_does_not_mind(B):
    bar, seen = tile.mbarrier(), 0
    with tile.warp(0):
        bar.arrive()
    seen = tile.where(bar.test(phase=0), 1, 0)
    with tile.warp(0):
        bar.arrive()
        bar.wait(phase=1)
    tile.store(B[0, 0:256], tile.zeros((256,)))


def test_a_barrier_that_is_only_polled_may_advance():
    assert not asks_and_does_not_mind.simulate((1,), B).findings


@tile.jit
def spins(B, HOW: tile.constexpr, MEETS: tile.constexpr):
    bar = tile.mbarrier()
    with tile.warp(0):
        bar.arrive()
    if HOW == "test":
        while not bar.test(phase=0):  # may find: barrier-phase
            pass
    elif HOW == "ptx":
        while not tile.ptx.mbarrier.try_wait.parity.shared_cta.b64(bar, 0):  # may find: barrier-phase
            tile.ptx.nanosleep.u32(20)
    elif HOW == "break":
        while True:
            if bar.test(phase=0):  # may find: barrier-phase
                break
    elif HOW == "flag":
        done, turns = False, 0
        while not done:
            turns += 1
            done = bar.test(phase=0)  # may find: barrier-phase
    if MEETS:
        tile.sync()
    with tile.warp(0):
        bar.arrive()
        bar.wait(phase=1)
        tile.store(B[0, 0:256], tile.zeros((256,)))


@tile.jit
def gives_up(B, HOW: tile.constexpr):
    """A loop that can also end for another reason: a counter, another barrier, a value that another thread stores."""
    bar, other, turns = tile.mbarrier(), tile.mbarrier(), 0
    with tile.warp(0):
        bar.arrive()
        other.arrive()
    if HOW == "counter":
        while not bar.test(phase=0) and turns < 1000:
            turns += 1
    elif HOW == "either":
        while not (bar.test(phase=0) or other.test(phase=0)):
            pass
    else:
        while not bar.test(phase=0):
            if tile.atomic_add(B[0, 0], 0.0) > 1:
                break
    with tile.warp(0):
        bar.arrive()
        bar.wait(phase=1)


@pytest.mark.parametrize("how", ["test", "ptx", "break", "flag"])
def test_a_loop_that_only_the_result_of_polling_ends_counts_as_a_wait(how):
    check(spins, (1,), B, how, False)
    assert not spins.simulate((1,), B, how, True).findings


@pytest.mark.parametrize("how", ["counter", "either", "memory"])
def test_a_polling_loop_that_can_end_for_another_reason_may_miss_a_phase(how):
    assert not gives_up.simulate((1,), B, how).findings


# -- arrivals that may precede the end of the previous phase -------------------------------------------------------------------

@tile.jit
def two_arrive_twice(B, BEHIND: tile.constexpr, WAITS: tile.constexpr):
    """Warp 0 continues when either warp 3, or warp 2, which has waited for the first phase, signals it."""
    bar, back, other = tile.mbarrier(2), tile.mbarrier(), tile.mbarrier()
    with tile.warp(0):
        bar.arrive()
        other.wait(phase=0)
        if BEHIND == "its own wait":
            bar.wait(phase=0)
        bar.arrive()  # may find: barrier-phase
    with tile.warp(1):
        bar.arrive()  # may find: barrier-phase
        back.wait(phase=0)
        bar.arrive()
    with tile.warp(2):
        if WAITS:
            bar.wait(phase=0)
        back.arrive()
        if BEHIND == "another's":
            other.arrive()
        if WAITS:
            bar.wait(phase=1)
    if BEHIND != "another's":
        with tile.warp(3):
            other.arrive()


@tile.jit(cluster=(2, 1, 1))
def both_fill_for_one(A, B):
    """The other CTA learns that the slots are free from the bytes that arrive in its own."""
    s, full, empty = tile.alloc((4, 256), A.dtype), tile.mbarrier(), tile.mbarrier(2)
    for k in range(4):
        with tile.warp(0), tile.elect():
            full.arrive_expect_tx(256 * 4)
            if tile.cta_rank() == 0:
                empty.wait(phase=k + 1)
                tile.copy_async(s[k], A[k, 0:256], mbar=full, multicast=3, variant="tma")
        full.wait(phase=k)
        tile.sync()
        with tile.warp(1), tile.elect():
            empty.peer(0).arrive()


@tile.jit
def one_after_the_other(B, n):
    """A different warp arrives each time, and knows that the previous one has arrived."""
    bar = tile.mbarrier()
    for i in range(n):
        with tile.warp(i % 4), tile.elect():
            bar.arrive()
        tile.sync()
    bar.wait(phase=n - 1)


def test_an_arrival_that_may_complete_the_previous_phase_is_found_in_any_order():
    """It would take the place of another arrival, if somebody waits for these phases. Not if it is ordered after a wait for that phase, its own
    or one of a thread that signals it."""
    check(two_arrive_twice, (1,), B, "nothing", True)
    for behind in ("its own wait", "another's"):
        assert not two_arrive_twice.simulate((1,), B, behind, True).findings
    assert not two_arrive_twice.simulate((1,), B, "nothing", False).findings


@tile.jit
def heard_of_elsewhere(B, STORES: tile.constexpr):
    """Warp 1 knows from another barrier that warp 0 has arrived immediately before."""
    told, bar = tile.mbarrier(2), tile.mbarrier(2)
    with tile.warp(0):
        told.arrive()
        if STORES:
            tile.store(B[0, 0:32], tile.zeros((32,)))
        bar.arrive()  # may find: barrier-phase
    with tile.warp(1):
        told.wait(phase=0)
        bar.arrive()  # may find: barrier-phase
    with tile.warp(2):
        bar.arrive()
        told.arrive()
        bar.wait(phase=0)
        bar.arrive()
        bar.wait(phase=1)


def test_an_arrival_may_take_the_place_of_one_that_releases_nothing_more():
    """For example, if a thread arrives in several CTAs, one after the other; what it does between two of them would be released."""
    for seed in range(8):
        assert not heard_of_elsewhere.simulate((1,), B, False, seed=seed).findings
    check(heard_of_elsewhere, (1,), B, True)


def test_arrivals_that_are_ordered_after_each_other_are_after_the_previous_phase():
    check(both_fill_for_one, (2,), A, B)
    check(one_after_the_other, (1,), B, 6)


# -- named barriers ----------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=8)
def runs_ahead(B, n):
    s, full = tile.alloc((2, 256), B.dtype), tile.named_barrier(256)
    with tile.warpgroup(0):
        for i in range(n):
            tile.store(s[i % 2], tile.full((256,), i, B.dtype))
            full.arrive()  # may find: barrier-phase
    with tile.warpgroup(1):
        for i in range(n):
            full.sync()  # may find: deadlock
            tile.store(B[i, 0:256], tile.load(s[i % 2]))


@tile.jit(num_warps=8)
def keeps_step(B, n):
    s, full, empty = tile.alloc((2, 256), B.dtype), tile.named_barrier(256), tile.named_barrier(256)
    with tile.warpgroup(0):
        for i in range(n):
            tile.store(s[i % 2], tile.full((256,), i, B.dtype))
            full.arrive()
            empty.sync()
    with tile.warpgroup(1):
        for i in range(n):
            full.sync()
            empty.arrive()
            tile.store(B[i, 0:256], tile.load(s[i % 2]))


def test_arrivals_that_may_precede_a_named_barrier_s_previous_completion_are_found_in_any_order():
    """Two arrivals of one warpgroup would complete it without the other."""
    check(runs_ahead, (1,), B, 2)
    check(keeps_step, (1,), B, 2, result=0, expected=np.where(np.arange(8)[:, None] < 2, np.arange(8, dtype=np.float32)[:, None], 0) + np.zeros(256))


# -- tokens ------------------------------------------------------------------------------------------------------------------

@tile.jit
def brought_by_one_warp(A, B, n, MEETS: tile.constexpr):
    """One thread issues, all threads wait, and only in some variants do they synchronise anyway."""
    s = tile.alloc((4, 256), A.dtype)
    for i in range(n):
        with tile.warp(1), tile.elect():
            done = tile.copy_async(s[i % 4], A[i, 0:256], variant="tma")
        done.wait()
        tile.store(B[i, 0:256], tile.load(s[i % 4]))
        tile.fence_proxy_async()
        if MEETS:
            tile.sync()
        elif i % 2 == 1:
            tile.sync()


@tile.jit
def brought_once(A, B):
    s = tile.alloc((256,), A.dtype)
    with tile.elect():
        done = tile.copy_async(s, A[0, 0:256], variant="tma")
    done.wait()
    tile.store(B[0, 0:256], tile.load(s))


@pytest.mark.parametrize("meets", [False, True])
def test_a_token_s_slot_is_not_reused_before_all_warps_have_waited_for_it(meets):
    """They synchronise after the wait, unless they synchronise anyway before the next copy, or there is none."""
    check(brought_by_one_warp, (1,), A, B, 8, meets, result=1, expected=A)
    waits = brought_by_one_warp.compile(A, B, 8, meets, target="sm_90a").graph.split("mbarrier_wait(")[-1]
    assert waits.split("store(")[0].count(" sync()") == (not meets)
    once = brought_once.compile(A, B, target="sm_90a").graph.split("mbarrier_wait(")[-1]
    assert " sync()" not in once
