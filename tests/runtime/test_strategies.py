"""The strategies for hypothesis, against NumPy on kernels."""

from __future__ import annotations

import builtins
import subprocess
import sys
from math import prod
from pathlib import Path

import numpy as np
import pytest
import tilejit as tile
from hypothesis import find, given, settings, strategies as st
from tilejit.dtypes import DTYPES
from tilejit.testing import strategies

ROOT = Path(__file__).resolve().parents[2]


@tile.jit
def doubled(x, y, BM: tile.constexpr, BN: tile.constexpr):
    i, j = tile.program_id(0) * BM, tile.program_id(1) * BN
    v = tile.load(x[i:i + BM, j:j + BN])
    tile.store(y[i:i + BM, j:j + BN], v + v)


@tile.jit
def turned(x, y, M: tile.constexpr, N: tile.constexpr, LAYOUT: tile.constexpr):
    buffer = tile.alloc((M, N), x.dtype, layout=LAYOUT)
    tile.store(buffer, tile.load(x[0:M, 0:N]))
    tile.sync()
    tile.store(y[0:N, 0:M], tile.transpose(tile.load(buffer), (1, 0)))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_kernel_gives_numpys_results_for_arrays_of_any_dtype_shape_and_strides(data):
    dtype = data.draw(st.sampled_from((tile.float32, tile.float16, tile.int8, tile.uint64)))
    shape = data.draw(strategies.shapes(2, block=(4, 8)))
    x = data.draw(strategies.arrays(dtype, shape))
    y = data.draw(strategies.arrays(dtype, shape, special=False))
    doubled[tile.cdiv(shape[0], 4), tile.cdiv(shape[1], 8)](x, y, BM=4, BN=8)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y, x + x)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_buffers_of_any_layout_hold_what_was_stored(data):
    dtype = data.draw(st.sampled_from(("float16", "float32", "int8")))
    shape = data.draw(st.sampled_from(((8, 64), (16, 128), (5, 7))))
    layout = data.draw(strategies.layouts(dtype, shape))
    x = data.draw(strategies.arrays(dtype, shape, strides=(), special=False))
    y = np.zeros(shape[::-1], x.dtype)
    turned[1](x, y, M=shape[0], N=shape[1], LAYOUT=layout)
    np.testing.assert_array_equal(y, x.T)


def test_layouts_are_of_every_form():
    forms = {"swizzle": lambda x: x.swizzle is not None, "padded": lambda x: x.span("m") > 16 * 64 and x.swizzle is None,
             "turned": lambda x: x == tile.S[(16, 64):(1, 16)]}
    for wanted in forms.values():
        find(strategies.layouts("float16", (16, 64)), wanted)
    assert find(strategies.layouts("float16", (16, 64)), lambda x: True) == tile.S[(16, 64):(64, 1)]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_drawn_arrays_have_their_dtype_and_shape_and_no_two_elements_in_one_place(data):
    dtype = data.draw(strategies.dtypes())
    shape = data.draw(strategies.shapes((1, 4), block=4, max_elements=200, empty=True))
    x = data.draw(strategies.arrays(dtype, shape, finite=True))
    assert x.dtype == dtype.np and x.shape == shape and prod(shape) <= 200 and x.flags.writeable
    if dtype.is_float:
        assert np.isfinite(x.astype(np.float64)).all()
    places = builtins.sum((np.arange(n).reshape(-1, *[1] * (x.ndim - 1 - d)) * s for d, (n, s) in enumerate(zip(x.shape, x.strides))),
                          np.zeros(shape, int))
    assert len(np.unique(places)) == x.size


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_drawn_numbers_are_of_their_dtype_and_finite_if_asked(data):
    dtype, finite = data.draw(strategies.dtypes()), data.draw(st.booleans())
    x = data.draw(strategies.elements(dtype, finite=finite))
    assert np.asarray(x).dtype == dtype.np
    assert not finite or np.isfinite(float(x))


def test_special_values_are_those_of_the_dtype():
    assert list(strategies.special_values("int8")) == [0, 1, -1, 127, -128]
    assert list(strategies.special_values("uint8")) == [0, 1, 255] and list(strategies.special_values("bool")) == [False, True]
    halves = strategies.special_values("float16").astype(np.float64)
    assert {0.0, 1.0, 65504.0, -65504.0, 2.0 ** -24, np.inf, -np.inf} <= set(halves) and np.isnan(halves).any()
    assert np.signbit(halves[halves == 0]).any()
    for dtype in DTYPES.values():
        if not dtype.packed and not dtype.padded:
            values = strategies.special_values(dtype, finite=True)
            assert values.dtype == dtype.np and len(values) >= 2 and np.isfinite(values.astype(np.float64)).all()


def test_examples_shrink_to_what_is_simple_and_meet_what_is_not():
    assert find(strategies.shapes(2), lambda s: True) == (1, 1)
    assert find(strategies.extents(16), lambda n: n > 16) == 17
    assert 0 in find(strategies.shapes((2, 3), empty=True), lambda s: prod(s) == 0)
    assert find(strategies.strides((3, 4)), lambda s: True) == (4, 1)
    assert find(strategies.strides((3, 4)), lambda s: min(s) < 0)
    assert find(strategies.dtypes("int", bits=(16, 64)), lambda d: True) == tile.int16
    x = find(strategies.arrays("float32", (2, 3)), lambda a: True)
    assert x.strides == (12, 4) and np.isfinite(x).all()
    find(strategies.arrays("float32", (2, 3)), lambda a: np.isnan(a).any())


@pytest.mark.parametrize("call, text", [
    (lambda: strategies.dtypes("floats"), "the kinds of dtypes are bool, int, uint, float, not 'floats'"),
    (lambda: strategies.dtypes("bool", bits=(32, 64)), "no dtype of kind bool has 32 to 64 bits"),
    (lambda: strategies.shapes(3, block=(4, 4)), "block has one number, or one for each dimension, of which there are 3, not (4, 4)"),
    (lambda: strategies.shapes((3, 2)), "dims is a number of dimensions, or the least and the most, not (3, 2)"),
    (lambda: strategies.extents(0), "block is a number of elements, of at least 1, not 0"),
    (lambda: strategies.strides(3), "a shape is a tuple of integers of at least 0, not 3"),
    (lambda: strategies.arrays("float32", (2, -1)), "a shape is a tuple of integers of at least 0, not (2, -1)"),
    (lambda: strategies.arrays("float33", (2, 1)), "'float33' is not an element type"),
    (lambda: strategies.layouts("float16", (0, 4)), "a buffer has extents of at least 1 and elements of whole bytes, not (0, 4) of float16"),
])
def test_a_wrong_call_is_refused(call, text):
    with pytest.raises(tile.TileError) as caught:
        call()
    assert text in str(caught.value)


def test_only_the_strategies_need_hypothesis():
    program = ("import sys\nsys.modules['hypothesis'] = None\nimport importlib.util as u\nu.find_spec = lambda name: None\n"
               "import tilejit as tile\nprint(tile.testing.tolerance_of('int8'))\n"
               "try:\n    tile.testing.strategies\nexcept ModuleNotFoundError as error:\n    print(error)\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout.splitlines() == ["Tolerance(rtol=0.0, atol=0.0)",
                                        "tile.testing.strategies needs hypothesis: pip install 'tilejit[testing]'"], done.stderr
