"""Matrix products by wgmma: on the simulator compared with float64, and assembled without advisories."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, given, settings, strategies as st
from tilejit.errors import DispatchError

from tests.drawn import numbers


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


def checked(M, N, K, dtype, swizzle=128, ta=False, tb=True, acc=tile.float32, precision=None, other=None, compile=False):
    """Check one product, twice, on the simulator and (with `compile`) through the assembler."""
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
        # Each of 2K products is exact in float32; adding them has an error of at most 2K roundings of the partial sums.
        unit = {"float32": 2.0 ** -23, "float16": 2.0 ** -10}[acc.name]
        rounded = 2.0 ** -9 if precision else 0.0  # both operands truncated to 10 mantissa bits
        bound = 2 * (np.abs(x) @ np.abs(y)) * (2 * K * unit + rounded) + 1e-6
        assert (np.abs(c.astype(np.float64) - expected) <= bound).all()
    if compile:
        compiled = product.compile(a, b, c, **options)
        assert compiled.spills == 0


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_products_with_every_number_of_columns_are_right(n):
    """N from 8 to 256 in steps of 8; integers above 32 in steps of 16."""
    checked(64, n, 64, ml_dtypes.bfloat16, compile=n in (8, 136))
    if n <= 32 or n % 16 == 0:
        checked(64, n, 32, np.int8, 32, acc=tile.int32, compile=n == 48)


@pytest.mark.all_cases
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("ta,tb", [(False, True), (False, False), (True, True), (True, False)])
def test_operands_of_both_majors_in_every_swizzle_are_right(ta, tb, swizzle):
    """16-bit operands, K-major and MN-major, in each of the four swizzle modes."""
    checked(128, 192, 128, np.float16, swizzle, ta, tb, compile=(ta, tb) == (True, False))


E4M3, E5M2, BF16 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16
PAIRS = [(np.float16, np.float16, tile.float32), (np.float16, np.float16, tile.float16), (BF16, BF16, tile.float32),
         (np.float32, np.float32, tile.float32),
         *((a, b, acc) for a in (E4M3, E5M2) for b in (E4M3, E5M2) for acc in (tile.float32, tile.float16)),
         *((a, b, tile.int32) for a in (np.int8, np.uint8) for b in (np.int8, np.uint8))]


@pytest.mark.all_cases
@pytest.mark.parametrize("dtype,other,acc", PAIRS)
@pytest.mark.parametrize("k", [32, 128, 224])
def test_every_pair_of_types_with_its_accumulators_is_right(dtype, other, acc, k):
    """k of any number of instructions, all of which appear in the machine code."""
    swizzle = 128 if k * np.dtype(dtype).itemsize % 128 == 0 else 32
    checked(64, 32, k, dtype, swizzle, acc=acc, other=other, precision="tf32" if dtype == np.float32 else None, compile=k == 128)


def test_float32_operands_are_truncated_to_tf32():
    """They lose the mantissa bits that TF32 does not have."""
    checked(64, 64, 64, np.float32, precision="tf32", compile=True)

# -- random products -------------------------------------------------------------------------------------------------------

@tile.jit
def viewed(A, B, C, i, A_SHAPE: tile.constexpr, B_SHAPE: tile.constexpr, A_AT: tile.constexpr, B_AT: tile.constexpr, A_SPAN: tile.constexpr,
           B_SPAN: tile.constexpr,
           A_IS: tile.constexpr, B_IS: tile.constexpr, TA: tile.constexpr, TB: tile.constexpr, ACC: tile.constexpr, PRECISION: tile.constexpr,
           FROM: tile.constexpr, NEGATE: tile.constexpr):
    """Operands are slices, from A_AT and B_AT on, of matrix number i of two; A may be in registers, loaded or computed."""
    sA = tile.alloc((2, *A_SHAPE), A.dtype, layout=tile.swizzled(A.dtype, (2, *A_SHAPE), A_SPAN))
    sB = tile.alloc((2, *B_SHAPE), B.dtype, layout=tile.swizzled(B.dtype, (2, *B_SHAPE), B_SPAN))
    tile.copy(sA, A[0:2, 0:A_SHAPE[0], 0:A_SHAPE[1]])
    tile.copy(sB, B[0:2, 0:B_SHAPE[0], 0:B_SHAPE[1]])
    tile.fence_proxy_async()
    tile.sync()
    a = sA[i, A_AT[0]:A_AT[0] + A_IS[0], A_AT[1]:A_AT[1] + A_IS[1]]
    b = sB[1 - i, B_AT[0]:B_AT[0] + B_IS[0], B_AT[1]:B_AT[1] + B_IS[1]]
    if FROM != "shared":
        a = tile.load(a)
    if FROM == "computed":
        a = tile.cast(tile.cast(a, tile.float32 if ACC != tile.int32 else tile.int32), A.dtype)
    acc = tile.mma_async(None, a, b, trans_a=TA, trans_b=TB, dtype=ACC, precision=PRECISION, negate=NEGATE)
    tile.mma_commit()
    tile.mma_wait(0)
    acc = tile.mma_async(acc * 3, a, b, trans_a=TA, trans_b=TB, precision=PRECISION, negate=NEGATE)
    tile.mma_commit()
    tile.mma_wait(0)
    tile.store(C[0:A_IS[1 if TA else 0], 0:B_IS[0 if TB else 1]], acc)


@st.composite
def products(draw):
    """Random products that wgmma supports: types, extents, memories, majors, swizzles, and where the operands begin in their buffers."""
    one, other, acc = draw(st.sampled_from(PAIRS))
    itemsize, warpgroups = np.dtype(one).itemsize, draw(st.sampled_from((1, 2)))
    step = 32 // itemsize
    blocks = draw(st.sampled_from((1, 1, 2)))
    m, n = 64 * warpgroups * blocks, draw(st.integers(1, 32 // blocks)) * 8  # a thread holds 128 accumulator registers
    n += 8 * (acc == tile.int32 and n > 32 and n % 16 > 0)
    k, source = step * draw(st.integers(1, 5)), draw(st.sampled_from(("shared", "loaded", "computed")))
    ta = itemsize == 2 and source == "shared" and draw(st.booleans())
    tb = itemsize != 2 or draw(st.booleans())

    def placed(extents, along_k_first):
        """(buffer's shape, position, extents, swizzle) of a matrix [mn, k], or [k, mn] with `along_k_first`."""
        span = draw(st.sampled_from((0, 32, 64, 128)))
        across, width = (8 if not along_k_first else step), (span or 16) // itemsize
        inner_unit = step if not along_k_first else width
        at = across * draw(st.integers(0, 2)), inner_unit * draw(st.integers(0, 2))
        rows, columns = (at[d] + extents[d] for d in range(2))
        return (-(-rows // 8) * 8, -(-columns // width) * width), at, extents, span

    a_is, b_is = (k, m) if ta else (m, k), (n, k) if tb else (k, n)
    return one, other, acc, warpgroups, placed(a_is, ta), placed(b_is, not tb), ta, tb, source, acc != tile.int32 and draw(st.booleans()), \
        draw(st.integers(0, 1)), draw(st.integers(0, 99))


def views_case(case, backend="sim"):
    """One of `products` compared with NumPy, on the simulator or the GPU; returns the output."""
    one, other, acc, warpgroups, (a_shape, a_at, a_is, a_span), (b_shape, b_at, b_is, b_span), ta, tb, source, negate, i, seed = case
    a, b = numbers((2, *a_shape), one, seed), numbers((2, *b_shape), other, seed + 1)
    if backend != "sim" and acc != tile.int32 and np.dtype(one).itemsize == 1:  # accumulation keeps 13 bits below the largest term: these are exact
        a, b = (np.random.default_rng(seed + i).integers(-2, 3, v.shape).astype(v.dtype) for i, v in enumerate((a, b)))
    precision = "tf32" if one == np.float32 else None
    x, y = a[i, a_at[0]:a_at[0] + a_is[0], a_at[1]:a_at[1] + a_is[1]], b[1 - i, b_at[0]:b_at[0] + b_is[0], b_at[1]:b_at[1] + b_is[1]]
    x, y = (v.astype(np.float64) for v in (x.T if ta else x, y.T if tb else y))
    c = np.zeros((x.shape[0], y.shape[1]), acc.np)
    options = dict(A_SHAPE=a_shape, B_SHAPE=b_shape, A_AT=a_at, B_AT=b_at, A_SPAN=a_span, B_SPAN=b_span, A_IS=a_is, B_IS=b_is, TA=ta, TB=tb, ACC=acc,
                   PRECISION=precision, FROM=source, NEGATE=negate, num_warps=4 * warpgroups)
    if backend == "sim":
        viewed.simulate(1, a, b, c, i, **options).raise_first()
    else:
        viewed[1,](a, b, c, i, backend=backend, **options)
    exact, size, k = (-4 if negate else 4) * (x @ y), 4 * (np.abs(x) @ np.abs(y)), x.shape[1]
    if acc == tile.int32:
        np.testing.assert_array_equal(c, exact.astype(np.int64).astype(np.int32))
    else:
        unit = {"float32": 2.0 ** -23, "float16": 2.0 ** -10}[acc.name]
        bound = size * ((2 * k + 2) * unit + (2.0 ** -9 if precision else 0.0)) + (2.0 ** -24 * 2 * k if acc == tile.float16 else 0.0)
        assert (np.abs(c.astype(np.float64) - exact) <= bound).all()
    return c


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(products())
def test_slices_of_any_buffers_can_be_multiplied(case):
    """Every type and number of columns, one and several warpgroups, any major and swizzle of either operand, slices that begin inside their
    buffers, A in shared memory or in registers, products added and subtracted."""
    views_case(case)


@tile.jit(num_warps=4)
def by_hand(A, B, C, steps, K: tile.constexpr, SPAN: tile.constexpr, STEP: tile.constexpr):
    """A loop over k in the kernel: each product takes 32 bytes of every row, at some position in the rows of the swizzle. The first `steps` of
    them are in a runtime loop, the others are unrolled."""
    sA = tile.alloc((64, K), A.dtype, layout=tile.swizzled(A.dtype, (64, K), SPAN))
    sB = tile.alloc((32, K), B.dtype, layout=tile.swizzled(B.dtype, (32, K), SPAN))
    tile.copy(sA, A[0:64, 0:K])
    tile.copy(sB, B[0:32, 0:K])
    tile.fence_proxy_async()
    tile.sync()
    acc = tile.zeros((64, 32))
    for i in range(steps):
        k = i * STEP
        acc = tile.mma_async(acc, sA[:, k:k + STEP], sB[:, k:k + STEP], trans_b=True)
        tile.mma_commit()
        tile.mma_wait(0)
    for i in tile.static_range(K // STEP):
        acc = tile.mma_async(acc, sA[:, STEP * i:STEP * i + STEP], sB[:, STEP * i:STEP * i + STEP], trans_b=True)
    tile.mma_commit()
    tile.mma_wait(0)
    tile.store(C[0:64, 0:32], acc)


def by_hand_case(dtype, span, backend="sim"):
    """The arguments of a launch whose result was checked."""
    step = 32 // np.dtype(dtype).itemsize
    a, b, c = numbers((64, 8 * step), dtype, 1), numbers((32, 8 * step), dtype, 2), np.zeros((64, 32), np.float32)
    for steps in (0, 1, 5):
        by_hand[1,](a, b, c, steps, K=8 * step, SPAN=span, STEP=step, backend=backend)
        x, y = (np.concatenate([v, v[:, :steps * step]], axis=1).astype(np.float64) for v in (a, b))
        assert (np.abs(c - x @ y.T) <= np.abs(x) @ np.abs(y.T) * (x.shape[1] * 2.0 ** -23 + (2.0 ** -12 if step == 32 else 0))).all()
    return a, b, c


@pytest.mark.parametrize("dtype", [np.float16, E5M2])
@pytest.mark.parametrize("span", [0, 32, 64, 128])
def test_a_kernel_may_iterate_over_k_itself(dtype, span):
    """With slices that begin inside a row of the swizzle, at compile-time or runtime positions."""
    assert by_hand.compile(*by_hand_case(dtype, span), 5, K=256 // np.dtype(dtype).itemsize, SPAN=span, STEP=32 // np.dtype(dtype).itemsize).spills == 0


@tile.jit(num_warps=4)
def begun_anew(A, B, C, each, K: tile.constexpr):
    """Sums over every `each` slots of 32 bytes along k, one after the other in one accumulator that is never set to zero."""
    sA = tile.alloc((64, K), A.dtype, layout=tile.swizzled(A.dtype, (64, K), 128))
    sB = tile.alloc((32, K), B.dtype, layout=tile.swizzled(B.dtype, (32, K), 128))
    tile.copy(sA, A[0:64, 0:K])
    tile.copy(sB, B[0:32, 0:K])
    tile.fence_proxy_async()
    tile.sync()
    acc = tile.full((64, 32), float("nan"))
    for i in range(K // 16):
        acc = tile.mma_async(acc, sA[:, 16 * i:16 * i + 16], sB[:, 16 * i:16 * i + 16], trans_b=True, accumulate=i % each > 0)
        tile.mma_commit()
        tile.mma_wait(0)
        if i % each == each - 1:
            tile.store(C[i // each, 0:64, 0:32], acc)


def begun_anew_case(backend="sim"):
    """The arguments of a launch whose results were checked."""
    a, b = numbers((64, 128), np.float16, 1), numbers((32, 128), np.float16, 2)
    for each in (1, 2, 4):
        c = np.zeros((8 // each, 64, 32), np.float32)
        begun_anew[1,](a, b, c, each, K=128, backend=backend)
        x, y = (v.astype(np.float64).reshape(v.shape[0], -1, 16 * each).swapaxes(0, 1) for v in (a, b))
        assert (np.abs(c - x @ y.swapaxes(1, 2)) <= np.abs(x) @ np.abs(y).swapaxes(1, 2) * 64 * 2.0 ** -23).all()
    return a, b, c


def test_a_runtime_condition_can_make_a_product_start_from_zero():
    """It is a predicate of the instruction, so the accumulator's old contents do not matter, and no register is cleared."""
    compiled = begun_anew.compile(*begun_anew_case(), 4, K=128)
    assert compiled.spills == 0 and compiled.ptx.count("wgmma.mma_async") == 1


def test_a_subtracted_product_is_one_bit_of_the_instruction():
    """The sign of A; integers have none."""
    a, b = numbers((64, 64), np.float16, 1), numbers((32, 64), np.float16, 2)
    shapes = dict(A_SHAPE=(64, 64), B_SHAPE=(32, 64), A_AT=(0, 0), B_AT=(0, 0), A_SPAN=128, B_SPAN=128, A_IS=(64, 64), B_IS=(32, 64),
                  TA=False, TB=True,
                  PRECISION=None)
    for source in ("shared", "loaded"):
        made = viewed.compile(np.stack([a, a]), np.stack([b, b]), np.zeros((64, 32), np.float32), 0, **shapes, ACC=tile.float32,
                              FROM=source, NEGATE=True)
        products = [line for line in made.ptx.split(";") if "wgmma.mma_async" in line]
        assert products and all(", -1, 1" in line for line in products)
    whole = np.zeros((2, 64, 64), np.int8)
    with pytest.raises(DispatchError, match="floats where the product is subtracted"):
        viewed.compile(whole, whole, np.zeros((64, 32), np.int32), 0, **shapes | dict(A_SPAN=64, B_SPAN=64), ACC=tile.int32,
                       FROM="shared", NEGATE=True)
