"""Casts of index tiles to float32: one conversion and additions, where float32 holds all that is added; see `ops/tiles/casts.py`."""

import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.emitted_code import run_emitted
from tests.gpu import in_child, needs_gpu

M, N, MOST = 16, 64, 1 << 24


@tile.jit(num_warps=4)
def between(starts, out, A: tile.constexpr, B: tile.constexpr, LOW: tile.constexpr, HIGH: tile.constexpr):
    """A start that is known to lie between two numbers, plus A for each row and B for each column."""
    i = tile.program_id(0)
    n = tile.load(starts[i])
    tile.assume((n >= LOW) & (n <= HIGH))
    rows, columns = tile.arange(16)[:, None], tile.arange(64)[None, :]
    tile.store(out[i, 0:16, 0:64], (n + A * rows + B * columns).to(tile.float32))


@tile.jit(num_warps=4)
def anywhere(starts, out, A: tile.constexpr, B: tile.constexpr):
    i = tile.program_id(0)
    rows, columns = tile.arange(16)[:, None], tile.arange(64)[None, :]
    tile.store(out[i, 0:16, 0:64], (tile.load(starts[i]) + A * rows + B * columns).to(tile.float32))


def wanted(starts, a: int, b: int):
    """By NumPy, which converts one integer after the other, of sums that wrap."""
    with np.errstate(over="ignore"):
        apart = (a * np.arange(M)[:, None] + b * np.arange(N)).astype(starts.dtype)
        return (starts[:, None, None] + apart).astype(np.float32)


def assert_same_bits(got, want):
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def emitted(kernel, starts, target="sm_90a", **constants):
    """What the emitted code gives for each start, and how many conversions and additions it has."""
    found = []
    for n in starts:
        start, out = np.array([n], starts.dtype), np.zeros((1, M, N), np.float32)
        made = kernel.compile(start, out, **constants, target=target)
        run_emitted(made, [start, out], threads=128)
        found.append(out[0])
    text = made.llvm_ir
    return np.stack(found), (text.count("cvt.rn.f32.s") + text.count("sitofp"), text.count("fadd"))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_one_conversion_and_additions_give_the_bits_of_conversions(target, dtype):
    """Differences of columns and rows around 0, which is positive, and up to the last integer that float32 holds with all below."""
    for a, b, starts in ((-1, 1, [0, 7, -31, 100]), (-1, 1, [MOST - N + 1, 15 - MOST, 12345678]), (3, -5, [315, 0, 16000000]), (0, 1, [-5])):
        starts = np.array(starts, dtype)
        low, high = int(starts.min()), int(starts.max())
        got, (conversions, additions) = emitted(between, starts, target, A=a, B=b, LOW=low, HIGH=high)
        assert_same_bits(got, wanted(starts, a, b))
        assert conversions == 1 and 3 <= additions < 8


HARD = np.array([0, MOST, MOST + 1, MOST + 3, 2 * MOST + 1, 2 * MOST + 2, 2 * MOST + 6, 2**31 - 1, 2**31 - 70, -2**31, -MOST - 1, -2 * MOST - 2, 2**30 + 64],
                np.int32)  # among them ties, to the even number below and above, and sums that wrap


def test_sums_that_may_be_large_or_wrap_are_converted_one_by_one():
    got, (conversions, additions) = emitted(anywhere, HARD, A=-1, B=1)
    assert_same_bits(got, wanted(HARD, -1, 1))
    assert conversions == 8 and not additions


@pytest.mark.parametrize("low, high, shared", [(0, MOST - N + 1, True), (0, MOST - N + 2, False), (15 - MOST, 0, True), (14 - MOST, 0, False)])
def test_bounds_decide_to_the_last_number(low, high, shared):
    starts = np.array([low, high], np.int32)
    got, (conversions, _) = emitted(between, starts, A=-1, B=1, LOW=low, HIGH=high)
    assert_same_bits(got, wanted(starts, -1, 1))
    assert (conversions == 1) is shared


@tile.jit(num_warps=4)
def wrapped_before(starts, out):
    """The difference is small unless the sum has wrapped before it was widened."""
    n = tile.load(starts[0])
    tile.assume(n >= 2147483600)
    high = n + tile.arange(64)[None, :] + tile.arange(16)[:, None]
    tile.store(out[0, 0:16, 0:64], (high.to(tile.int64) - 2147483600).to(tile.float32))


@tile.jit(num_warps=4)
def by_products_of_indices(starts, out):
    """No step along an axis is the same everywhere."""
    rows, columns = tile.arange(16)[:, None], tile.arange(64)[None, :]
    tile.store(out[0, 0:16, 0:64], (rows * columns + tile.load(starts[0]) % 8).to(tile.float32))


@pytest.mark.parametrize("kernel", [wrapped_before, by_products_of_indices])
def test_other_tiles_are_converted_one_by_one(kernel):
    starts = np.array([2**31 - 5], np.int32)
    got, (conversions, additions) = emitted(kernel, starts)
    rows, columns = np.arange(M, dtype=np.int32)[:, None], np.arange(N, dtype=np.int32)
    wrapped = (starts + columns + rows).astype(np.int64) - 2147483600
    assert_same_bits(got[0], (wrapped if kernel is wrapped_before else rows * columns + starts[0] % 8).astype(np.float32))
    assert conversions == 8 and not additions


@tile.jit(num_warps=2)
def rearranged(out, SCALE: tile.constexpr):
    """Index tiles that are transposed, reshaped and of extents that are padded."""
    x = tile.transpose(tile.arange(24)[:, None] - SCALE * tile.arange(40)[None, :], (1, 0))
    tile.store(out[0:40, 0:24], tile.reshape(x, (1, 40, 24)).to(tile.float32)[0])


def test_tiles_may_be_rearranged_and_padded():
    out = np.zeros((40, 24), np.float32)
    made = rearranged.compile(out, SCALE=7, target="sm_90a")
    run_emitted(made, [out], threads=64)
    assert_same_bits(out, (np.arange(24) - 7 * np.arange(40)[:, None]).astype(np.float32))
    assert made.llvm_ir.count("cvt.rn.f32.s32") == 1 and "sitofp" not in made.llvm_ir


@tile.jit
def larger(one, other):
    return tile.where(one[0] > other[0], one[0], other[0]), tile.where(one[0] > other[0], one[1], other[1])


@tile.jit(num_warps=1)
def places_of_largest(x, out):
    """Indices that an op with two results makes, of several rows in each thread."""
    indices = tile.broadcast_to(tile.arange(16)[None, :], (256, 16))
    _, places = tile.reduce((tile.load(x[0:256, 0:16]), indices), 1, larger)
    tile.store(out[0:256], places.to(tile.float32))


def test_indices_of_an_op_with_several_results_are_converted():
    x, out = np.random.default_rng(0).standard_normal((256, 16)).astype(np.float32), np.zeros(256, np.float32)
    places_of_largest.simulate(1, x, out)
    assert_same_bits(out, np.argmax(x, axis=1).astype(np.float32))
    assert "sitofp" in places_of_largest.compile(x, out, target="sm_90a").llvm_ir


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(-2**14, 2**14), st.integers(-2**14, 2**14), st.integers(-2**31, 2**31 - 1), st.integers(0, 2**20), st.data())
def test_any_steps_between_any_bounds_give_the_bits_of_conversions(a, b, low, width, data):
    low = low >> data.draw(st.integers(0, 15))
    high = min(low + width, 2**31 - 1)
    starts = np.array([low, high, data.draw(st.integers(low, high))], np.int32)
    got, (conversions, additions) = emitted(between, starts, A=a, B=b, LOW=low, HIGH=high)
    assert_same_bits(got, wanted(starts, a, b))
    ends = [n + x + y for n in (low, high) for x in (0, a * (M - 1)) for y in (0, b * (N - 1))]
    if additions:
        assert conversions == 1 and max(map(abs, ends)) <= MOST
    elif b and max(map(abs, ends)) <= MOST:
        assert conversions == 8 and a == 0  # with steps of rows alone, a thread may have few different elements


@needs_gpu()
@in_child(timeout=120)
def test_index_tiles_become_the_same_floats_on_the_gpu():
    import sys
    from importlib import import_module
    from pathlib import Path
    sys.path.insert(0, str(Path(__file__).parent))
    own = import_module("test_index_casts")
    near = np.array([0, 7, -31, own.MOST - own.N + 1, 15 - own.MOST, 12345677], np.int32)
    for kernel, starts, known in ((own.between, near, dict(LOW=15 - own.MOST, HIGH=own.MOST - own.N + 1)), (own.anywhere, own.HARD, {})):
        out = np.zeros((len(starts), own.M, own.N), np.float32)
        kernel[len(starts),](starts, out, A=-1, B=1, **known, backend="cuda")
        own.assert_same_bits(out, own.wanted(starts, -1, 1))
