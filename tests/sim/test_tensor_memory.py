"""Tensor memory: asynchronous writes by the tensor cores, and the lanes that a warp can access."""

import numpy as np
import tilejit as tile
from engine_ops import (
    test_tcgen05_commit as commit,
    test_tcgen05_mma as mma,
    test_tmem as tmem,
    test_tmem_fill as fill,
    test_tmem_sum as lane_sum,
)
from faulty import check

X = np.arange(128, dtype=np.float32) + 3
Y = np.zeros_like(X)


@tile.jit
def accumulate(x, y):
    s = tile.alloc((128,), x.dtype)
    d = tmem()
    bar = tile.mbarrier()
    fill(d, 1.0)
    tile.store(s, tile.load(x[0:128]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        mma(d, s)
        mma(d, s)
        commit(bar)
    bar.wait(phase=0)
    t = tile.thread_id()
    tile.store(y[t], lane_sum(d))


@tile.jit
def accumulate_uncommitted(x, y):
    s = tile.alloc((128,), x.dtype)
    d = tmem()
    bar = tile.mbarrier()
    fill(d, 1.0)
    tile.store(s, tile.load(x[0:128]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        mma(d, s)
        commit(bar)
        mma(d, s)
    bar.wait(phase=0)
    t = tile.thread_id()
    tile.store(y[t], lane_sum(d))  # finds: missing-wait
    with tile.elect():
        commit(bar)
    bar.wait(phase=1)


@tile.jit
def accumulate_unwaited(x, y):
    s = tile.alloc((128,), x.dtype)
    d = tmem()
    bar = tile.mbarrier()
    fill(d, 1.0)
    tile.store(s, tile.load(x[0:128]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        mma(d, s)
        commit(bar)
    t = tile.thread_id()
    tile.store(y[t], lane_sum(d))  # finds: missing-wait
    bar.wait(phase=0)


@tile.jit
def operand_overwritten(x, y):
    s = tile.alloc((128,), x.dtype)
    d = tmem()
    bar = tile.mbarrier()
    fill(d, 1.0)
    tile.store(s, tile.load(x[0:128]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        mma(d, s)
        commit(bar)
    tile.sync()
    tile.store(s, tile.load(x[0:128]) + 1)  # finds: missing-wait
    bar.wait(phase=0)


def test_an_accumulator_may_be_read_after_waiting_for_the_commit():
    """Operations of one thread execute in order; a commit covers those before it."""
    check(accumulate, (1,), X, Y, result=1, expected=np.full(128, 8 * 7.0))
    check(accumulate_uncommitted, (1,), X, Y)
    check(accumulate_unwaited, (1,), X, Y)
    check(operand_overwritten, (1,), X, Y)


@tile.jit
def wrong_quarter(y):
    d = tmem()
    with tile.warp(1):
        fill(d, 1.0, warp=2)  # finds: tmem


@tile.jit
def never_filled(y):
    d = tmem()
    t = tile.thread_id()
    tile.store(y[t], lane_sum(d))  # finds: uninitialized-read


def test_a_warp_accesses_its_own_quarter_of_the_lanes():
    """Warp w of a warpgroup has lanes 32 w to 32 w + 31."""
    check(wrong_quarter, (1,), Y)
    check(never_filled, (1,), Y)
