"""One fault is one finding, of the kind and at the line that are to blame, in whatever order the scopes run."""

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


def test_slots_that_a_loop_reads_before_their_copies_are_issued_lack_one_wait():
    """The copies race with nothing: it is the reads that come too early, of each slot."""
    check(reads_each_slot_without_a_wait, (1,), A, B)


def test_a_wait_on_the_wrong_phase_is_to_blame_for_reads_before_the_copies_are_issued():
    check(reads_each_slot_behind_a_wait_that_passes_at_once, (1,), A, B)
