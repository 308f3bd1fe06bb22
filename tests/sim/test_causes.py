"""Each fault is one finding, with the kind and line of its cause, in whatever order the scopes run."""

import numpy as np
import tilejit as tile
from faulty import check

A = np.arange(8 * 256, dtype=np.float32).reshape(8, 256)
B = np.zeros_like(A)


@tile.jit(num_warps=8)
def reads_each_slot_without_a_wait(A, B):
    s, full = tile.alloc((3, 256), A.dtype), tile.mbarrier(n=3)
    with tile.warp(0), tile.elect():
        for i in range(3):
            full[i].arrive_expect_tx(1024)
            tile.copy_async(s[i], A[i, 0:256], mbar=full[i])
    with tile.warpgroup(1):
        for i in range(3):
            tile.store(B[i, 0:256], tile.load(s[i]))  # finds: missing-wait
        for i in range(3):
            full[i].wait(phase=0)


@tile.jit(num_warps=8)
def reads_each_slot_behind_a_wait_that_passes_at_once(A, B):
    s, full = tile.alloc((3, 256), A.dtype), tile.mbarrier(n=3)
    with tile.warp(0), tile.elect():
        for i in range(3):
            full[i].arrive_expect_tx(1024)
            tile.copy_async(s[i], A[i, 0:256], mbar=full[i])
    with tile.warpgroup(1):
        for i in range(3):
            full[i].wait(phase=1)  # finds: barrier-phase
            tile.store(B[i, 0:256], tile.load(s[i]))
        for i in range(3):
            full[i].wait(phase=0)


def test_slots_read_before_their_copies_are_issued_have_one_missing_wait():
    """It is not a race of the copies: each slot is read too early."""
    check(reads_each_slot_without_a_wait, (1,), A, B)


def test_a_wait_on_the_wrong_phase_is_the_cause_of_reads_before_the_copies_are_issued():
    check(reads_each_slot_behind_a_wait_that_passes_at_once, (1,), A, B)


@tile.jit(cluster=2)
def never_gives_back(A, B):
    """Each CTA announces what the other sends before it waits for the other's slot."""
    s, full, empty, rank = tile.alloc((2, 256), A.dtype), tile.mbarrier(n=2), tile.mbarrier(n=2), tile.cta_rank()
    for i in range(4):
        full[i % 2].arrive_expect_tx(1024)
        if i > 1:
            empty[i % 2].wait(phase=i // 2 + 1)  # finds: deadlock
        tile.store_async(s.peer(1 - rank)[i % 2], tile.load(A[i, 0:256]), mbar=full[i % 2])
        full[i % 2].wait(phase=i // 2)
        tile.store(B[4 * rank + i, 0:256], tile.load(s[i % 2]))


@tile.jit(cluster=2)
def waits_for_the_next_phase(A, B, AHEAD: tile.constexpr):
    s, full, empty, rank = tile.alloc((2, 256), A.dtype), tile.mbarrier(n=2), tile.mbarrier(n=2), tile.cta_rank()
    for i in range(4):
        full[i % 2].arrive_expect_tx(1024)
        if i > 1:
            empty[i % 2].wait(phase=i // 2 + 1 - AHEAD)  # finds: barrier-phase
        tile.store_async(s.peer(1 - rank)[i % 2], tile.load(A[i, 0:256]), mbar=full[i % 2])
        full[i % 2].wait(phase=i // 2)
        tile.store(B[4 * rank + i, 0:256], tile.load(s[i % 2]))
        empty[i % 2].peer(1 - rank).arrive()
        tile.cluster_sync()


@tile.jit(num_warps=8)
def forgets_the_last_copy(A, B, n):
    s, full, empty = tile.alloc((2, 256), A.dtype), tile.mbarrier(n=2), tile.mbarrier(n=2)
    with tile.warp(0), tile.elect():
        for i in range(n):
            empty[i % 2].wait(phase=i // 2 + 1)
            full[i % 2].arrive_expect_tx(1024)  # finds: transaction-count
            if i + 1 < n:
                tile.copy_async(s[i % 2], A[i, 0:256], mbar=full[i % 2])
    with tile.warpgroup(1):
        for i in range(n):
            full[i % 2].wait(phase=i // 2)
            tile.store(B[i, 0:256], tile.load(s[i % 2]))
            tile.fence_proxy_async()
            empty[i % 2].arrive()


def test_copies_that_a_wait_blocks_for_ever_are_not_reported_as_missing():
    """Their bytes are announced, but the cause is the wait, for a slot that is not released or for the wrong phase."""
    report = check(never_gives_back, (2,), A, B)
    assert "is missing 1 of 1 arrival (empty[0])" in report.findings[0].message
    check(waits_for_the_next_phase, (2,), A, B, 1)
    assert not waits_for_the_next_phase.simulate((2,), A, B, 0).findings


def test_a_copy_missing_only_in_the_last_iteration_is_found():
    check(forgets_the_last_copy, (1,), A, B, 6)
