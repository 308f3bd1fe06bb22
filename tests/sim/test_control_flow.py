"""Kernels executed as written: scalars, tiles, and loops and branches that differ between threads and CTAs."""

import numpy as np
import pytest
import tilejit as tile
from faulty import check


@tile.jit(num_warps=1)
def collatz(n, steps):
    i = tile.program_id(0)
    x = tile.load(n[i])
    count = 0
    while x != 1:
        if x % 2 == 0:
            x = x // 2
        else:
            x = 3 * x + 1
        count += 1
    tile.store(steps[i], count)


def test_ctas_that_diverge_in_loops_and_branches_reconverge():
    """Each CTA has its own trip count; all of them execute the store."""
    n = np.arange(1, 65, dtype=np.int32)
    want = []
    for x in n.tolist():
        c = 0
        while x != 1:
            x, c = (x // 2 if x % 2 == 0 else 3 * x + 1), c + 1
        want.append(c)
    check(collatz, (64,), n, np.zeros(64, np.int32), result=1, expected=want, seeds=range(3))


@tile.jit(num_warps=1)
def per_thread(x, y):
    t = tile.thread_id()
    v = tile.load(x[t])
    if v > 10:
        v = v * 2
        if v > 30:
            v = v - 100
    else:
        v = v + 1
    n = 0
    for i in range(v % 5):
        n += i
    tile.store(y[t], v + n)


def test_branches_and_loops_that_differ_between_threads_are_masked():
    """Threads of one warp take different branches; each gets its own result."""
    x = np.arange(32, dtype=np.int32)
    want = []
    for v in x.tolist():
        v = (v * 2 - 100 if v * 2 > 30 else v * 2) if v > 10 else v + 1
        want.append(v + sum(range(v % 5)))
    check(per_thread, (1,), x, np.zeros(32, np.int32), result=1, expected=want, seeds=[0])


@tile.jit
def scale(x, y, n, BLOCK: tile.constexpr):
    i = tile.program_id(0)
    for k in range(i + 1):
        v = tile.load(x[k * BLOCK:(k + 1) * BLOCK])
        tile.store(y[i, k * BLOCK:(k + 1) * BLOCK], v * n)


def test_trip_counts_may_differ_between_ctas():
    """A triangular loop nest writes exactly its triangle."""
    x = np.arange(8 * 32, dtype=np.float32)
    want = np.zeros((8, 8 * 32), np.float32)
    for i in range(8):
        want[i, :(i + 1) * 32] = x[:(i + 1) * 32] * 3
    check(scale, (8,), x, np.zeros_like(want), 3, BLOCK=32, result=1, expected=want, seeds=range(3))


@tile.jit
def ragged(x, y, BLOCK: tile.constexpr):
    i = tile.program_id(0)
    j = tile.program_id(1)
    v = tile.load(x[i * BLOCK - 3:(i + 1) * BLOCK - 3, j * BLOCK:(j + 1) * BLOCK], other=7)
    tile.store(y[i * BLOCK - 3:(i + 1) * BLOCK - 3, j * BLOCK:(j + 1) * BLOCK], v + 1)


@pytest.mark.parametrize("shape", [(13, 29), (16, 32), (5, 5)])
@pytest.mark.parametrize("order", ["C", "F", "reversed"])
def test_regions_are_clipped_at_every_edge(shape, order):
    """Halo starts, ragged ends, Fortran order, negative strides: reads fill, writes are dropped."""
    x = np.random.default_rng(0).integers(0, 100, shape).astype(np.int32)
    x = {"C": x, "F": np.asfortranarray(x), "reversed": x[::-1, ::-1]}[order]
    y = np.zeros_like(x)
    report = ragged.simulate((4, 4), x, y, BLOCK=8)
    assert not report.findings, report
    np.testing.assert_array_equal(y, x + 1)


def test_an_empty_grid_and_an_empty_array_run_without_effect():
    x = np.zeros((0, 5), np.int32)
    assert not ragged.simulate((0,), x, x.copy(), BLOCK=8).findings
    assert not ragged.simulate((1, 1), x, x.copy(), BLOCK=8).findings


@tile.jit
def gather(x, index, y, BLOCK: tile.constexpr):
    i = tile.load(index[0:BLOCK])
    tile.store(y[0:BLOCK], tile.load(x[i], other=-1))


def test_gathers_with_out_of_bounds_indices_give_other():
    x = np.arange(50, dtype=np.int32)
    index = np.array([3, 49, 50, -1, 0, 7, 1000, 2] * 8, np.int32)
    want = np.where((index >= 0) & (index < 50), x[np.clip(index, 0, 49)], -1)
    check(gather, (1,), x, index, np.zeros(64, np.int32), BLOCK=64, result=2, expected=want, seeds=[0])
