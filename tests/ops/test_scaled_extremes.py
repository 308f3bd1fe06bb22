"""Maxima and minima of scaled tiles are scaled instead of the tiles."""

import re

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st

from tests.gpu import in_child, needs_gpu

FLOATS = st.floats(width=32)


@tile.jit
def largest(x, y, factor, LEAST: tile.constexpr, KEEP: tile.constexpr):
    v = tile.load(x[0:16, 0:32]) * factor
    if LEAST:
        tile.store(y[0:16], tile.reshape(tile.min(v, axis=1, keepdims=KEEP), (16,)))
    else:
        tile.store(y[0:16], tile.reshape(tile.max(v, axis=1, keepdims=KEEP), (16,)))


@tile.jit
def softmax(x, y, factor, stop, BEFORE: tile.constexpr):
    """Of rows that end before `stop`; where BEFORE, masked before they are scaled."""
    v = tile.load(x[0:16, 0:32])
    seen = (tile.arange(0, 32) < stop)[None, :]
    v = tile.where(seen, v, -float("inf")) * factor if BEFORE else tile.where(seen, factor * v, -float("inf"))
    p = tile.exp2(v - tile.max(v, axis=1)[:, None])
    tile.store(y[0:16, 0:32], p / tile.sum(p, axis=1)[:, None])


@tile.jit
def alone(x, y, LARGE: tile.constexpr):
    """Of all elements, by a constant; and where the difference of scaled elements is used elsewhere."""
    v = tile.load(x[0:16, 0:32]) * (3.0 if LARGE else -3.0)
    tile.store(y[0:16, 0:32], v - tile.max(v))


def multiplications(kernel, *args, **options):
    """Products of tiles in the graph."""
    graph = kernel.compile(*args, target="sm_90a", **options).graph
    return [line for line in graph.splitlines() if " = mul(" in line and "16, 32]" in line]


def spec(*shape):
    return tile.ArraySpec(shape, "float32")


@settings(max_examples=30, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=70), FLOATS, st.booleans(), st.booleans())
def test_extremes_have_the_bits_of_those_of_scaled_elements(elements, factor, least, keep):
    """For every factor and all special values; a NaN is a NaN."""
    x, y = np.resize(np.array(elements, np.float32), (16, 32)), np.zeros(16, np.float32)
    largest.simulate(1, x, y, float(factor), least, keep).raise_first()
    with np.errstate(all="ignore"):
        scaled = x * np.float32(factor)
    want = scaled.min(axis=1) if least else scaled.max(axis=1)
    assert np.array_equal(y.view(np.int32)[~np.isnan(want) & (want != 0)], want.view(np.int32)[~np.isnan(want) & (want != 0)])
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("factor, held", [(0.125, True), (1e-37, True), (3e38, True), (0.0, False), (-0.125, False), (1e-39, False), (1e-60, False),
                                          (float("inf"), False), (float("nan"), False)])
def test_an_argument_is_taken_as_positive_where_the_launch_says_so(factor, held):
    assert (not multiplications(largest, spec(16, 32), spec(16), factor, False, False)) is held


@pytest.mark.parametrize("stop", [32, 5, 1])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("factor", [0.3, -0.3])
def test_a_masked_softmax_multiplies_once(stop, before, factor):
    """Each element once: as the difference's multiply-add."""
    x, y = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32), np.zeros((16, 32), np.float32)
    if before and factor < 0:
        return  # -inf times a negative number is the largest
    softmax.simulate(1, x, y, factor, stop, before).raise_first()
    v = x[:, :stop] * np.float32(factor)
    p = np.exp2(v - v.max(axis=1, keepdims=True))
    np.testing.assert_allclose(y[:, :stop], p / p.sum(axis=1, keepdims=True), rtol=1e-5)
    assert (y[:, stop:] == 0).all() and len(multiplications(softmax, spec(16, 32), spec(16, 32), factor, stop, before)) == 1


def test_the_emitted_code_multiplies_only_where_the_difference_is_taken():
    def code(factor):
        compiled = softmax.compile(spec(16, 32), spec(16, 32), factor, 32, False, num_warps=1, target="sm_90a")
        return ([["scalar_positive", 2], True] in compiled.recipe["guards"], *(len(re.findall(rf"\t{name}\.\S*f32", compiled.ptx)) for name in ("mul", "sub", "fma")))
    (positive, products, differences, fused), negative = code(0.3), code(-0.3)
    assert positive and negative == (False, products + 12, differences + 16, fused - 16)


@tile.jit
def squared(y, N: tile.constexpr):
    v = tile.full((16, 32), 3.0, tile.float32)
    tile.store(y[0:16], tile.max(tile.where((tile.arange(0, 32) < N)[None, :], v * v, -float("inf")), axis=1))


def test_both_operands_may_be_one_positive_number():
    y = np.zeros(16, np.float32)
    squared.simulate(1, y, 5).raise_first()
    assert (y == 9).all()


@needs_gpu()
@in_child()
def test_scaled_extremes_are_right_on_the_gpu():
    x = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    for factor in (0.3, -0.3, 0.0, 2.0):
        for least in (False, True):
            got = tile.empty((16,), "float32")
            largest[1,](tile.to_device(x, 0), got, factor, least, False)
            scaled = x * np.float32(factor)
            np.testing.assert_array_equal(got.numpy(), scaled.min(axis=1) if least else scaled.max(axis=1))


@pytest.mark.parametrize("large", [True, False])
def test_a_constant_scales_the_extreme_of_all_elements(large):
    x, y = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32), np.zeros((16, 32), np.float32)
    alone.simulate(1, x, y, large).raise_first()
    v = x * np.float32(3 if large else -3)
    np.testing.assert_array_equal(y, v - v.max())
    graph = alone.compile(x, y, large, target="sm_90a").graph
    assert (graph.index("= reduce(") < graph.rindex("= mul(")) is large
