"""Waits that are not ordered before the end of the phase after the one that they wait for: a warp that lags misses its phase. And arrivals at named
barriers that are not ordered behind the time before."""

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


# -- slots that a warpgroup passes over --------------------------------------------------------------------------------------

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


def test_a_warpgroup_whose_one_thread_gives_back_a_slot_that_the_other_warps_need_not_have_seen():
    """The producer may fill the slot again, and a warp that still waits for the first time finds the phase of the second over as well."""
    for by_third_warp in (False, True):
        check(passes_over, (1,), A, B, 7, by_third_warp)


def test_slots_that_are_not_filled_a_second_time_leave_no_warp_behind():
    assert not passes_over.simulate((1,), A, B, 2, False).findings


@pytest.mark.parametrize("how", ["sync", "sum", "count", "another", "scope"])
def test_warps_that_meet_before_one_thread_arrives_are_all_past_their_wait(how):
    """At a barrier, in a sum over them all, for a number that one of them gets from memory, or before an arrival of their scope."""
    check(meets, (1,), A, B, 7, how)


def test_warps_that_arrive_each_for_itself_are_past_their_own_waits():
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


def test_a_ring_that_did_not_let_the_warps_meet_would_be_found(monkeypatch):
    monkeypatch.setattr("tilejit.ops.ring._met", lambda g, slot: True)
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


def test_a_barrier_that_one_warp_takes_on_before_the_others_have_seen_it():
    check(phases_that_one_warp_goes_through, (1,), B)


@pytest.mark.parametrize("how", ["warps", "copies"])
def test_a_barrier_that_one_warp_takes_on_when_the_others_have_told_it(how):
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


def test_a_barrier_that_another_cta_takes_on():
    """Where it has not been told that the first phase has been seen, some order of theirs misses it."""
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
def test_a_wait_for_the_second_phase_by_who_knows_that_the_first_is_over(told):
    check(waits_for_the_second_phase, (1,), B, told, result=0, expected=np.where(np.arange(8)[:, None] < 1, 1, 0) + np.zeros(256))


def test_a_wait_for_the_second_phase_that_may_come_before_the_first_is_over_is_found_in_any_order():
    """Where it comes early it passes at once, by the parity of a fresh barrier, and reads what is not there."""
    findings = [waits_for_the_second_phase.simulate((1,), B, "", seed=seed).findings for seed in range(8)]
    assert all(findings) and {f.kind for found in findings for f in found} <= {"barrier-phase", "race", "uninitialized-read"}
    late, = {f.message for found in findings for f in found if f.kind == "barrier-phase" and "bar.wait(phase=1)" in f.loc.source_line}
    assert "nothing says that phase 0 of the mbarrier is over when threads 128 to 255 wait for phase 1" in late


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


def test_a_barrier_that_is_only_asked_may_go_on():
    assert not asks_and_does_not_mind.simulate((1,), B).findings


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


def test_arrivals_that_may_come_before_the_barrier_has_let_others_pass_are_found_in_any_order():
    """Two of one warpgroup would complete it without the other."""
    check(runs_ahead, (1,), B, 2)
    check(keeps_step, (1,), B, 2, result=0, expected=np.where(np.arange(8)[:, None] < 2, np.arange(8, dtype=np.float32)[:, None], 0) + np.zeros(256))


# -- tokens ------------------------------------------------------------------------------------------------------------------

@tile.jit
def brought_by_one_warp(A, B, n, MEETS: tile.constexpr):
    """One thread issues, all wait, and only sometimes do they meet by themselves."""
    s = tile.alloc((4, 256), A.dtype)
    for i in range(n):
        with tile.warp(1), tile.elect():
            done = tile.copy_async(s[i % 4], A[i, 0:256], variant="tma")
        done.wait()
        tile.store(B[i, 0:256], tile.load(s[i % 4]))
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
def test_a_token_s_slot_is_not_used_again_before_all_warps_have_waited_for_it(meets):
    """They meet behind the wait, but for those that meet anyway before the next copy, and where there is none."""
    check(brought_by_one_warp, (1,), A, B, 8, meets, result=1, expected=A)
    waits = brought_by_one_warp.compile(A, B, 8, meets, target="sm_90a").graph.split("mbarrier_wait(")[-1]
    assert waits.split("store(")[0].count(" sync()") == (not meets)
    once = brought_once.compile(A, B, target="sm_90a").graph.split("mbarrier_wait(")[-1]
    assert " sync()" not in once
