"""Tolerances of sums, against sums in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from tilejit.testing import Tolerance, assert_close, tolerance_of

from tests.drawn import numbers

FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e5m2")


@tile.jit
def product(a, b, c, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr):
    acc = tile.zeros((BM, BN))
    for k in range(0, a.shape[1], BK):
        acc = tile.dot(tile.load(a[0:BM, k:k + BK]), tile.load(b[k:k + BK, 0:BN]), acc)
    tile.store(c[0:BM, 0:BN], acc)


def in_order(terms: np.ndarray, dtype) -> np.ndarray:
    """The sums of rows, one addition after the other in `dtype`."""
    total = np.zeros(len(terms), dtype)
    for column in terms.T:
        total = (total + column.astype(dtype)).astype(dtype)
    return total


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("length", [1, 3, 40, 1000])
def test_sums_in_order_are_within_their_tolerance(dtype, length):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    terms = numbers((64, length), np.float64, seed=length).astype(kind)
    exact = terms.astype(np.float64)
    assert_close(in_order(terms, kind), exact.sum(1), length, accumulated=dtype, magnitude=np.abs(exact).sum(1))


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_rounding_is_within_the_tolerance_and_two_units_are_not(dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = numbers((500,), np.float64, seed=1)
    assert_close(x.astype(kind), x)
    far = (np.ones(3) * (1 + 4 * float(ml_dtypes.finfo(kind).eps))).astype(kind)
    with pytest.raises(AssertionError, match=r"element \[0\] is"):
        assert_close(far, np.ones(3))


def test_products_of_a_kernel_are_within_the_tolerance_of_their_dtype_and_length():
    a, b = (numbers(shape, np.float64, seed=2).astype(np.float16) for shape in ((16, 200), (200, 16)))
    wide, magnitude = (np.matmul(f(a.astype(np.float64)), f(b.astype(np.float64))) for f in (lambda v: v, np.abs))
    for dtype in (np.float32, np.float16):
        c = np.zeros((16, 16), dtype)
        product[1](a, b, c, BM=16, BN=16, BK=32)
        assert_close(c, wide, 200, magnitude=magnitude)
        assert_close(c, wide, 200)
        tile.verify(product, 1, a, b, c, BM=16, BN=16, BK=32, reference=lambda a, b, c: wide,
                    **tolerance_of(dtype, 200)._asdict()).raise_first()


def test_a_sum_in_too_narrow_a_dtype_is_beyond_the_tolerance_of_a_wide_one():
    terms = np.abs(numbers((64, 1000), np.float64, seed=3)).astype(np.float16)
    exact = terms.astype(np.float64).sum(1)
    assert_close(in_order(terms, np.float32), exact, 1000, magnitude=exact)
    with pytest.raises(AssertionError, match="is expected within"):
        assert_close(in_order(terms, np.float16).astype(np.float32), exact, 1000, magnitude=exact)


def test_operands_that_are_rounded_have_a_tolerance_of_their_own():
    x, y = (numbers((50,), np.float64, seed).astype(np.float32) for seed in (4, 5))
    wide = x.astype(np.float64) * y
    cut = lambda v: (v.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    rounded = (cut(x).astype(np.float64) * cut(y)).astype(np.float32)
    assert_close(rounded, wide, operands="tf32", magnitude=np.abs(wide))
    with pytest.raises(AssertionError):
        assert_close(rounded, wide, magnitude=np.abs(wide))


def test_integers_and_powers_of_two_are_exact_and_nan_equals_nan():
    assert tolerance_of("int8", 100) == tolerance_of("bool") == tolerance_of("float8_e8m0fnu", 3) == Tolerance(0.0, 0.0)
    assert_close(np.arange(4), np.arange(4), 100)
    with pytest.raises(AssertionError, match=r"element \[2\] is 5, and 2 is expected within 0 \(1 of 4 elements differ\)"):
        assert_close(np.array([0, 1, 5, 3]), np.arange(4), 100)
    odd = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    assert_close(odd, odd.astype(np.float64))
    for wrong in ([0, np.inf, -np.inf, 0], [np.nan, -np.inf, -np.inf, 0], [np.nan, np.inf, 1e30, 0]):
        with pytest.raises(AssertionError):
            assert_close(odd, np.array(wrong))
    assert_close(np.zeros((0, 3), np.float32), np.zeros((0, 3)))


def test_a_tolerance_grows_with_the_length_first_as_it_and_then_as_its_root():
    atol = lambda n: tolerance_of("float32", n, magnitude=1.0).atol
    assert atol(30) == pytest.approx(30 * atol(1)) and atol(6400) == pytest.approx(4 * atol(400))


@pytest.mark.parametrize("call, text", [
    (lambda: tolerance_of("float32", 0), "length is the number of terms, of at least 1, not 0"),
    (lambda: tolerance_of("float32", 2.5), "length is the number of terms, of at least 1, not 2.5"),
    (lambda: tolerance_of("float33"), "'float33' is not an element type"),
    (lambda: tolerance_of("float16", 3, accumulated="int32"), "floats are accumulated in a float dtype, not in int32"),
    (lambda: tolerance_of("float16", 3, magnitude=-1), "magnitude is the sum of the terms' magnitudes, of at least 0, not -1"),
    (lambda: assert_close(np.zeros(3), np.zeros(4)), "the result has the shape (3,), and the expected one (4,)"),
])
def test_a_wrong_call_is_refused(call, text):
    with pytest.raises(tile.TileError) as caught:
        call()
    assert text in str(caught.value)
