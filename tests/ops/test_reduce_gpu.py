"""Reductions, scans and atomics on a GPU agree with the simulator: bit for bit where the plan fixes the order."""

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu


def both(kernel, grid, *arrays, **options):
    """The arrays after a run on the simulator, and after one on the GPU."""
    simulated, launched = ([a.copy() for a in arrays] for _ in range(2))
    kernel[grid](*simulated, backend="sim", **options)
    kernel[grid](*launched, backend="cuda", **options)
    return simulated, launched


def agree(kernel, grid, *arrays, **options):
    for want, got in zip(*both(kernel, grid, *arrays, **options)):
        assert got.tobytes() == want.tobytes()


@needs_gpu()
@pytest.mark.parametrize("name", ["sum", "prod", "max", "argmax", "any"])
@in_child(timeout=300)
def test_reductions_agree_with_the_simulator_bit_for_bit(name):
    from tests.ops.test_reduce import kernel_of

    rng = np.random.default_rng(0)
    dtypes = {"argmax": np.int32, "any": bool}
    cases = [((1000,), None, 4), ((37, 48), 1, 4), ((37, 48), 0, 3), ((5, 33, 16), (0, 2), 8), ((3, 250), -1, 1), ((7, 5), None, 6)]
    for shape, axis, warps in cases:
        axis = axis[0] if name == "argmax" and isinstance(axis, tuple) else axis
        for dtype in ("float32", "float16", "float64", "int32"):
            x = (rng.normal(size=shape) * 3).astype(dtype)
            axes = range(x.ndim) if axis is None else [a % x.ndim for a in (axis if isinstance(axis, tuple) else (axis,))]
            out = tuple(1 if d in axes else n for d, n in enumerate(shape))
            agree(kernel_of(name, x.ndim), (1,), x, np.zeros(out, dtypes.get(name, dtype)), AXIS=axis, S=shape, R=out, num_warps=warps)


@needs_gpu()
@in_child(timeout=300)
def test_scans_agree_with_the_simulator_bit_for_bit():
    from tests.ops.test_scan import kernel_of, later

    rng = np.random.default_rng(0)
    for n, m in [(33, 64), (7, 100), (1, 31), (16, 5)]:
        for axis in (0, 1):
            for reverse in (False, True):
                for warps in (1, 3, 4):
                    options = dict(N=n, M=m, AXIS=axis, REVERSE=reverse, num_warps=warps)
                    agree(kernel_of("cumsum"), (1,), rng.normal(size=(n, m)).astype(np.float32), np.zeros((n, m), np.float32), **options)
                    marks = (rng.integers(1, 99, (n, m)) * (rng.random((n, m)) < 0.2)).astype(np.int32)
                    agree(kernel_of(later), (1,), marks, np.zeros((n, m), np.int32), **options)


@needs_gpu()
@in_child(timeout=300)
def test_reductions_and_scans_by_user_functions_agree_with_the_simulator():
    from tests.ops.test_reduce_combine import farther, gcd, moments, reducer

    rng = np.random.default_rng(0)
    for n in (1, 100, 256):
        agree(reducer(farther), (1,), rng.normal(size=n).astype(np.float32), np.zeros(1, np.float32), N=n, num_warps=3)
        agree(reducer(gcd), (1,), (rng.integers(1, 50, n) * 6).astype(np.int32), np.zeros(1, np.int32), N=n)
    x, y = rng.normal(3, 2, (40, 70)).astype(np.float32), np.zeros((3, 40), np.float32)
    simulated, launched = both(moments, (1,), x, y, N=40, M=70, AXIS=1, K=40)
    np.testing.assert_allclose(launched[1], simulated[1], rtol=1e-5)


@needs_gpu()
@in_child(timeout=300)
def test_atomics_agree_with_the_simulator():
    import ml_dtypes

    from tests.ops.test_atomics import UPDATERS, exchanges, histogram_in_shared, last_block

    rng = np.random.default_rng(0)
    for kind in UPDATERS:
        for dtype in ("int32", "uint32", "int64", "uint64"):
            for n in (1, 3, 200):
                agree(UPDATERS[kind], (5,), rng.integers(0, 1000, (5, n)).astype(dtype), np.full(max(n - 1, 1), 77, dtype), N=n)
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
        for n in (50, 256):
            agree(UPDATERS["add"], (6,), rng.integers(-9, 9, (6, n)).astype(dtype), np.zeros(n, dtype), N=n)
    for dtype in (np.float32, np.float64):
        x = np.array([[1, -3, 0, 5, -2, 7], [2, np.nan, -1, 4, -5, -np.nan]], dtype)
        for kind in ("max", "min"):
            simulated, launched = both(UPDATERS[kind], (2,), x, np.array([0, 0, 0, np.nan, -1, -np.nan], dtype), N=6)
            np.testing.assert_array_equal(launched[1], simulated[1])
    agree(histogram_in_shared, (8,), rng.integers(0, 64, 1024).astype(np.int32), np.zeros(64, np.int32), B=128, N=64)
    for n in (4, 100):
        agree(exchanges, (1,), np.full(n, 7, np.int32), np.zeros((4, n), np.int32), N=n)
    part, counter, y = np.zeros(8, np.float32), np.zeros(1, np.int32), np.zeros(1, np.float32)
    agree(last_block, (8,), rng.random((8, 100)).astype(np.float32), part, counter, y, N=100)


@tile.jit(num_warps=8)
def crowd(total, tickets):
    t = tile.thread_id()
    each = tile.atomic_add(total[t * 0], 1)
    tile.store(tickets[each], each)
    tile.atomic_max(total[t * 0 + 3], each)
    tile.atomic_add(total[1], 1)
    with tile.warp(0):
        tile.atomic_add(total[2], 8)


def test_concurrent_atomic_adds_to_one_location_lose_nothing_on_the_simulator():
    total, tickets = np.zeros(4, np.int32), np.zeros(2 * 256, np.int32)
    crowd[(2,)](total, tickets)
    assert total.tolist() == [2 * 256, 2, 2 * 8, 2 * 256 - 1]
    assert sorted(tickets.tolist()) == list(range(2 * 256))


@needs_gpu()
@in_child(timeout=120)
def test_concurrent_atomic_adds_to_one_location_lose_nothing():
    from tests.ops.test_reduce_gpu import crowd

    total, tickets = np.zeros(4, np.int32), np.zeros(64 * 256, np.int32)
    crowd[(64,)](total, tickets, backend="cuda")
    assert total.tolist() == [64 * 256, 64, 64 * 8, 64 * 256 - 1]
    assert sorted(tickets.tolist()) == list(range(64 * 256))
