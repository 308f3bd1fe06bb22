"""``tile.concatenate`` agrees with NumPy, on the simulator and in the emitted code."""

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st

from tests.emitted_code import run_emitted
from tests.gpu import in_child, needs_gpu


def kernel_of(shapes, axis, out):
    """A kernel that joins the parts of an array x[n, ...], each cut to one of `shapes`."""
    regions = [", ".join(f"0:{n}" for n in shape) for shape in shapes]
    parts = "".join(f"tile.load(x[{i}, {region}]), " for i, region in enumerate(regions))
    place = ", ".join(f"0:{n}" for n in out)
    return tile.jit(source=f"def k(x, y):\n    tile.store(y[{place}], tile.concatenate(({parts}), {axis}))\n")


def case(shape, extents, axis, dtype):
    """(kernel, x, y, the expected y)"""
    shapes = [(*shape[:axis], n, *shape[axis:]) for n in extents]
    x = np.random.default_rng(0).integers(0, 100, (len(extents), *(max(s[d] for s in shapes) for d in range(len(shapes[0]))))).astype(dtype)
    want = np.concatenate([part[tuple(map(slice, s))] for part, s in zip(x, shapes)], axis)
    return kernel_of(shapes, axis, want.shape), x, np.zeros_like(want), want


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=1), st.lists(st.integers(1, 40), min_size=1, max_size=4), st.data(),
       st.sampled_from(("float32", "int8", "float16", "bool", "int64")), st.integers(1, 4))
def test_joined_tiles_agree_with_numpy(shape, extents, data, dtype, warps):
    kernel, x, y, want = case(shape, extents, data.draw(st.integers(0, len(shape))), dtype)
    kernel.simulate(1, x, y, num_warps=warps).raise_first()
    np.testing.assert_array_equal(y, want)


JOINED = [((), (32, 20, 100), 0, "float32", 2), ((), (64, 64), 0, "int8", 1), ((16,), (24, 8), 1, "int8", 4),
          ((12,), (5, 7, 4), 0, "float16", 2)]


@pytest.mark.parametrize("shape, extents, axis, dtype, warps", JOINED)
def test_the_emitted_code_joins_tiles(shape, extents, axis, dtype, warps):
    """Elements of one and two bytes are stored several at a time where their places allow it."""
    kernel, x, y, want = case(shape, extents, axis, dtype)
    compiled = kernel.compile(x, y, num_warps=warps, target="sm_90a")
    for seed in range(2):
        y[...] = 0
        run_emitted(compiled, [x, y], 32 * warps, seed)
        np.testing.assert_array_equal(y, want)


@needs_gpu()
@in_child()
def test_joined_tiles_are_right_on_the_gpu():
    for shape, extents, axis, dtype, warps in [*JOINED, ((3,), (5, 1, 40), 1, "int64", 4), ((40,), (9, 2), 0, "bool", 3)]:
        kernel, x, y, want = case(shape, extents, axis, dtype)
        kernel[1,](x, y, num_warps=warps, backend="cuda")
        np.testing.assert_array_equal(y, want)


def test_tiles_of_one_shape_stay_in_registers_where_rows_are_joined_whole():
    @tile.jit
    def joined(x, y, out):
        tile.store(out[0:128, 0:32], tile.concatenate((tile.load(x[0:64, 0:32]), tile.load(y[0:64, 0:32]))))
    x, y = (np.full((64, 32), n, np.float32) for n in (1, 2))
    out = np.zeros((128, 32), np.float32)
    compiled = joined.compile(x, y, out, target="sm_90a")
    assert "shared" not in compiled.ptx and "shfl" not in compiled.ptx
    joined.simulate(1, x, y, out).raise_first()
    np.testing.assert_array_equal(out, np.concatenate((x, y)))


def test_dtypes_are_promoted_and_tiles_without_elements_add_nothing():
    @tile.jit
    def mixed(x, y, out):
        v = tile.load(x[0:32])
        s = tile.concatenate((v, tile.load(y[0:8]), tile.zeros((0,))), axis=-1)
        tile.static_assert(s.dtype == tile.float32 and s.shape == (40,))
        tile.store(out[0:40], s)
    x, y, out = np.arange(32, dtype=np.int8), np.arange(8, dtype=np.float32) / 2, np.zeros(40, np.float32)
    mixed.simulate(1, x, y, out).raise_first()
    np.testing.assert_array_equal(out, np.concatenate((x, y)))


@pytest.mark.parametrize("text, words", [
    ("tile.concatenate(v)", "concatenate takes a tuple of tiles"), ("tile.concatenate((v, 1))", "concatenate takes a tuple of tiles"),
    ("tile.concatenate((v, tile.zeros((2, 32))))", "agree in their other extents, and these are [32] and [2, 32]"),
    ("tile.concatenate((tile.zeros((2, 4)), tile.zeros((2, 8))))", "along axis 0 agree in their other extents, and these are [2, 4] and [2, 8]"),
    ("tile.concatenate((v, v), 1)", "axis 1 is out of range")])
def test_invalid_operands_of_concatenate_are_refused(text, words):
    with pytest.raises(tile.CompilationError) as caught:
        tile.jit(source=f"def k(x):\n    v = tile.load(x[0:32])\n    w = {text}\n").compile(tile.ArraySpec((32,), "float32"))
    assert words in str(caught.value)
