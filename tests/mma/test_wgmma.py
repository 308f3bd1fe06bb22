"""Matrix products by wgmma: on the simulator against NumPy, as machine code without the assembler's advisories."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile


@tile.jit(num_warps=4)
def product(A, B, C, a_shape: tile.constexpr, b_shape: tile.constexpr, SWIZZLE: tile.constexpr, TA: tile.constexpr, TB: tile.constexpr,
            ACC: tile.constexpr, PRECISION: tile.constexpr):
    sA = tile.alloc(a_shape, A.dtype, layout=tile.swizzled(A.dtype, a_shape, SWIZZLE))
    sB = tile.alloc(b_shape, B.dtype, layout=tile.swizzled(B.dtype, b_shape, SWIZZLE))
    tile.copy(sA, A[0:a_shape[0], 0:a_shape[1]])
    tile.copy(sB, B[0:b_shape[0], 0:b_shape[1]])
    tile.fence_proxy_async()
    tile.sync()
    acc = tile.mma_async(None, sA, sB, trans_a=TA, trans_b=TB, dtype=ACC, precision=PRECISION)
    acc = tile.mma_async(acc, sA, sB, trans_a=TA, trans_b=TB, precision=PRECISION)
    tile.mma_commit()
    tile.mma_wait(0)
    tile.store(C[0:a_shape[1 if TA else 0], 0:b_shape[0 if TB else 1]], acc)


def numbers(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        return rng.integers(low, high, shape, endpoint=True).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def checked(M, N, K, dtype, swizzle=128, ta=False, tb=True, acc=tile.float32, precision=None, other=None, compile=False):
    """One product, twice over, on the simulator and (with `compile`) through the assembler."""
    a = numbers((K, M) if ta else (M, K), dtype, 1)
    b = numbers((N, K) if tb else (K, N), other or dtype, 2)
    c = np.zeros((M, N), acc.np)
    options = dict(a_shape=a.shape, b_shape=b.shape, SWIZZLE=swizzle, TA=ta, TB=tb, ACC=acc, PRECISION=precision)
    product.simulate(1, a, b, c, **options).raise_first()
    x, y = (v.astype(np.float64) for v in (a.T if ta else a, b.T if tb else b))
    expected = 2 * (x @ y)
    if acc == tile.int32:
        np.testing.assert_array_equal(c, expected.astype(np.int64).astype(np.int32))
    else:
        # Each of 2K products is exact in float32; adding them errs by at most 2K roundings of the partial sums' size.
        unit = {"float32": 2.0 ** -23, "float16": 2.0 ** -10}[acc.name]
        rounded = 2.0 ** -9 if precision else 0.0  # both operands cut to 10 bits
        bound = 2 * (np.abs(x) @ np.abs(y)) * (2 * K * unit + rounded) + 1e-6
        assert (np.abs(c.astype(np.float64) - expected) <= bound).all()
    if compile:
        compiled = product.compile(a, b, c, **options)
        assert compiled.spills == 0


@pytest.mark.parametrize("n", [8, 24, 64, 136, 256])
def test_any_number_of_columns(n):
    """N from 8 to 256 in steps of 8."""
    checked(64, n, 64, ml_dtypes.bfloat16, compile=n in (8, 136))


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("ta,tb", [(False, True), (False, False), (True, True), (True, False)])
def test_both_majors_in_every_swizzle(ta, tb, swizzle):
    """16-bit operands lie along k or across it, in each of the four swizzles."""
    checked(128, 192, 128, np.float16, swizzle, ta, tb, compile=(ta, tb) == (True, False))


@pytest.mark.parametrize("dtype,other,acc", [
    (np.float16, None, tile.float32), (np.float16, None, tile.float16), (ml_dtypes.bfloat16, None, tile.float32),
    (ml_dtypes.float8_e4m3fn, None, tile.float32), (ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, tile.float32),
    (ml_dtypes.float8_e4m3fn, None, tile.float16), (np.int8, None, tile.int32), (np.uint8, np.int8, tile.int32)])
@pytest.mark.parametrize("k", [32, 128, 224])
def test_types_and_depths(dtype, other, acc, k):
    """Every pair of operand types with its accumulators, and k of any number of instructions."""
    swizzle = 128 if k * np.dtype(dtype).itemsize % 128 == 0 else 32
    checked(64, 32, k, dtype, swizzle, acc=acc, other=other, compile=k == 128)


def test_float32_enters_as_tf32():
    """float32 operands lose the mantissa bits that TF32 does not have."""
    checked(64, 64, 64, np.float32, precision="tf32", compile=True)
