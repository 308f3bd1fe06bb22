"""Reductions by a user function: one tile or several, with branches and loops, in any layout."""

from typing import NamedTuple

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st


@tile.jit
def welford(a, b):
    """Combines (count, mean, sum of squared differences) of two parts."""
    n, mean, m2 = a
    k, other, o2 = b
    total = n + k
    delta = other - mean
    share = k / total
    return total, mean + delta * share, m2 + o2 + delta * delta * n * share


@tile.jit
def moments(x, y, N: tile.constexpr, M: tile.constexpr, AXIS: tile.constexpr, K: tile.constexpr):
    v = tile.load(x[0:N, 0:M], other=0)
    n, mean, m2 = tile.reduce((tile.ones((N, M)), v, tile.zeros((N, M))), AXIS, welford)
    tile.store(y[0, 0:K], n)
    tile.store(y[1, 0:K], mean)
    tile.store(y[2, 0:K], m2 / n)


class Part(NamedTuple):
    """The statistics of a part of a tile."""

    total: object
    count: object


@tile.jit
def joined(a, b):
    return Part(count=a.count + b.count, total=a.total + b.total)


@tile.jit
def named(x, y, z, N: tile.constexpr):
    parts = Part(tile.load(x[0:N]), tile.ones((N,), tile.int32))
    whole = tile.reduce(parts, 0, joined)
    tile.store(y[0], whole.total / whole.count)
    tile.store(z[0:N], tile.scan(parts, 0, joined).total)


def test_a_named_tuple_of_tiles_is_combined_by_field_names():
    x, y, z = np.arange(100, dtype=np.float32), np.zeros(1, np.float32), np.zeros(100, np.float32)
    named[1,](x, y, z, N=100)
    assert y[0] == x.mean() and (z == np.cumsum(x)).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 70), st.integers(0, 1), st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 99))
def test_welford_s_algorithm_gives_mean_and_variance(n, m, axis, num_warps, seed):
    """Three tiles together; padding must be excluded, since no value is its identity."""
    x = np.random.default_rng(seed).normal(3, 2, (n, m)).astype(np.float32)
    k = x.shape[1 - axis]
    y = np.empty((3, k), np.float32)
    moments[(1,)](x, y, N=n, M=m, AXIS=axis, K=k, num_warps=num_warps)
    np.testing.assert_array_equal(y[0], np.full(k, x.shape[axis]))
    np.testing.assert_allclose(y[1], x.mean(axis=axis, dtype=np.float64), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(y[2], x.var(axis=axis, dtype=np.float64), rtol=1e-3, atol=1e-4)


@tile.jit
def farther(a, b):
    if abs(a) > abs(b):
        return a
    return b


@tile.jit
def gcd(a, b):
    while b != 0:
        a, b = b, a % b
    return a


@tile.jit
def or_bit_by_bit(a, b):
    total = 0
    for k in range(8):
        total += ((a >> k | b >> k) & 1) << k
    return total


def reducer(combine):
    @tile.jit
    def kernel(x, y, N: tile.constexpr):
        tile.store(y[0], tile.reduce(tile.load(x[0:N], other=0), 0, combine))
    return kernel


@pytest.mark.parametrize("num_warps", [1, 3, 4])
@pytest.mark.parametrize("n", [1, 5, 100, 256])
def test_branches_and_loops_in_a_combine_function_are_per_element(n, num_warps):
    """A branch selects per element; a loop ends at a different time for each element."""
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=n).astype(np.float32), np.empty(1, np.float32)
    reducer(farther)[(1,)](x, y, N=n, num_warps=num_warps)
    assert y[0] == x[np.abs(x).argmax()]
    x, y = (rng.integers(1, 50, n) * 6).astype(np.int32), np.empty(1, np.int32)
    reducer(gcd)[(1,)](x, y, N=n, num_warps=num_warps)
    assert y[0] == np.gcd.reduce(x)


def test_a_combine_function_that_is_a_known_operation_is_recognised():
    """``tile.maximum``, and helpers that only add, get the identity and the warp instruction of that operation."""
    @tile.jit
    def plus(a, b):
        return b + a

    x, y = np.arange(100, dtype=np.int32), np.empty(1, np.int32)
    for combine, want, word in ((plus, 4950, "redux.sync.add.s32"), (tile.maximum, 99, "redux.sync.max.s32")):
        kernel = reducer(combine)
        kernel[(1,)](x, y, N=100)
        assert y[0] == want and word in kernel.compile(x, y, N=100).ptx


def test_a_for_loop_in_a_combine_function_runs_once_for_each_pair():
    """A loop over constants with a carried value."""
    x, y = np.array([3, 4, 64, 0, 17], np.int32), np.empty(1, np.int32)
    reducer(or_bit_by_bit)[(1,)](x, y, N=5)
    assert y[0] == 3 | 4 | 64 | 17


@tile.jit
def looks_around(a, b):
    return a + tile.thread_id()


@tile.jit
def widens(a, b):
    return (a + b) * 0.5


@tile.jit
def returns_two(a, b):
    return a, b


@tile.jit
def makes_a_tile(a, b):
    return a + tile.sum(tile.arange(4))


@pytest.mark.parametrize("combine, message", [
    (looks_around, "may only compute from its operands"), (widens, "returns float32 for int32"),
    (returns_two, "returns 2 values, and 1 is needed"), (makes_a_tile, "may only compute from its operands")])
def test_a_combine_function_with_side_effects_is_an_error(combine, message):
    """It runs on other threads and in another order than written, so it may only use its operands."""
    with pytest.raises(tile.CompilationError, match=message):
        reducer(combine).compile(np.zeros(8, np.int32), np.zeros(1, np.int32), N=8)
