"""Results of wgmma stored to shared memory by stmatrix: 16 x 16 elements per warp and instruction, in any layout with 16-byte
rows or columns."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from tests.drawn import numbers
from tests.gpu import in_child, needs_gpu, some

pytestmark = pytest.mark.usefixtures("assembled_later")
BF16 = ml_dtypes.bfloat16


@tile.jit
def placed(A, B, C, i, row, M: tile.constexpr, N: tile.constexpr, SHAPE: tile.constexpr, LAYOUT: tile.constexpr, COLUMN: tile.constexpr,
           STEP: tile.constexpr = 1):
    """``A @ B.T`` to a part of buffer number `i` of two, from `row` times STEP and COLUMN on; C is the contents of both buffers."""
    a = tile.alloc((M, 64), A.dtype, layout=tile.swizzled(A.dtype, (M, 64), 128))
    b = tile.alloc((N, 64), B.dtype, layout=tile.swizzled(B.dtype, (N, 64), 128))
    stage = tile.alloc(SHAPE, C.dtype, layout=LAYOUT)
    tile.copy(a, A[0:M, 0:64])
    tile.copy(b, B[0:N, 0:64])
    tile.store(stage, -1.0)
    tile.fence_proxy_async()
    tile.sync()
    acc = tile.mma_async(None, a, b, trans_b=True)
    tile.mma_commit()
    tile.mma_wait(0)
    row = row * STEP
    tile.assume((i >= 0) & (i < SHAPE[0]) & (row >= 0) & (row <= SHAPE[1] - M))
    tile.store(stage[i, row:row + M, COLUMN:COLUMN + N], tile.cast(acc, C.dtype))
    tile.sync()
    tile.copy(C[0:SHAPE[0], 0:SHAPE[1], 0:SHAPE[2]], stage)


def layout_of(kind, dtype, shape):
    two, rows, columns = shape
    if kind == "padded":
        return tile.TileLayout([(two, rows * (columns + 8), tile.axis.m), (rows, columns + 8, tile.axis.m), (columns, 1, tile.axis.m)])
    if kind == "by columns":
        return tile.TileLayout([(two, rows * columns, tile.axis.m), (rows, 1, tile.axis.m), (columns, rows, tile.axis.m)])
    return None if kind == "rows" else tile.swizzled(dtype, shape, kind)


@st.composite
def cases(draw):
    warpgroups, blocks = draw(st.sampled_from(((1, 1), (2, 1), (3, 1), (1, 2), (2, 2))))
    m, n, kind = 64 * warpgroups * blocks, 8 * draw(st.integers(1, 16 // blocks)), draw(st.sampled_from(("rows", "padded", "by columns", 0, 32, 64, 128)))
    column, row, step = 8 * draw(st.integers(0, 4)), draw(st.integers(0, 9)), draw(st.sampled_from((1, 8)))
    rows, columns = -(-(m + row * step) // 8) * 8, -(-(n + column) // 64) * 64
    return m, n, (2, rows, columns), kind, column, row, step, draw(st.integers(0, 1)), draw(st.sampled_from((np.float16, BF16))), warpgroups


def check(case, backend="sim"):
    """Check that the buffers hold the product in its place, and are unchanged elsewhere; by stmatrix if rows or columns are in
    16-byte pieces."""
    m, n, shape, kind, column, row, step, i, dtype, warpgroups = case
    a, b = (np.round(4 * numbers((rows, 64), np.float32, rows)).astype(dtype) / 4 for rows in (m, n))
    c = np.zeros(shape, dtype)
    options = dict(M=m, N=n, SHAPE=shape, LAYOUT=layout_of(kind, tile.float16 if dtype is np.float16 else tile.bfloat16, shape),
                   COLUMN=column, STEP=step, num_warps=4 * warpgroups)
    made = placed.compile(a, b, c, i, row, **options)
    instructions = 0 if kind == "by columns" and step == 1 else -(-m * n // (warpgroups * 64 * 16))
    assert made.ptx.count("stmatrix.sync") == instructions and made.ptx.count(".trans.shared") == instructions * (kind == "by columns")
    if backend == "sim":
        placed.simulate(1, a, b, c, i, row, **options).raise_first()
    else:
        placed[1,](a, b, c, i, row, backend=backend, **options)
    expected = np.full(shape, -1, dtype)
    expected[i, row * step:row * step + m, column:column + n] = (a.astype(np.float32) @ b.astype(np.float32).T).astype(dtype)
    np.testing.assert_array_equal(c, expected)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_a_result_can_be_stored_to_any_part_of_any_layout(case):
    """Swizzled, padded, column-major; one to three warpgroups with one or two blocks of rows; from any row on."""
    check(case)


@needs_gpu("sm_90a")
@in_child(timeout=150)
def test_a_result_can_be_stored_to_any_part_of_any_layout_on_the_gpu():
    @settings(max_examples=len(some(range(60), least=10)), deadline=None, derandomize=True, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(cases())
    def each(case):
        check(case, "cuda")
    each()


@pytest.mark.parametrize("dtype,n,start,why", [("float32", 32, 0, "elements of 32 bits"),
                                               ("float16", 32, 4, "rows that begin inside of 16 bytes")])
def test_other_results_use_plain_stores(dtype, n, start, why):
    shape = (2, 64, 64)
    specs = [tile.ArraySpec(s, d) for s, d in (((64, 64), "float16"), ((n, 64), "float16"), (shape, dtype))]
    made = placed.compile(*specs, 0, 0, M=64, N=n, SHAPE=shape, LAYOUT=None, COLUMN=start)
    assert "stmatrix.sync" not in made.ptx and "wgmma.mma_async" in made.ptx, why


@tile.jit
def turned(A, B, C):
    """``(A @ B).T`` through a buffer of its rows."""
    stage = tile.alloc((32, 64), C.dtype)
    acc = tile.dot(tile.load(A[0:64, 0:16]), tile.load(B[0:16, 0:32]))
    tile.store(stage, acc.to(C.dtype).T)
    tile.sync()
    tile.copy(C[0:32, 0:64], stage)


@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("warps", [1, 4])
def test_results_of_mma_sync_use_stmatrix_where_the_target_has_it(target, warps):
    a, b = numbers((64, 16), np.float16, 0), numbers((16, 32), np.float16, 1)
    c = np.zeros((32, 64), np.float16)
    made = turned.compile(a, b, c, target=target, num_warps=warps)
    assert made.ptx.count("stmatrix.sync") == made.ptx.count(".trans.shared") == (8 // warps if int(target[3:].rstrip("a")) >= 90 else 0)
    turned.simulate(1, a, b, c, target=target, num_warps=warps).raise_first()
    np.testing.assert_allclose(c.astype(float), (a.astype(float) @ b.astype(float)).T, atol=0.02)


@tile.jit
def operand_kept(A, B, C, D):
    """``A @ B``, with a B so small that it stays in registers; D gets A in the form in which the product takes it."""
    a, kept = tile.alloc((64, 64), A.dtype), tile.alloc((64, 64), A.dtype)
    tile.copy(a, A[0:64, 0:64])
    tile.sync()
    left = tile.load(a)
    tile.store(C[0:64, 0:8], tile.dot(left, tile.load(B[0:64, 0:8]), precision="tf32" if A.dtype == tile.float32 else None, variant="mma_sync"))
    tile.store(kept, left)
    tile.sync()
    tile.copy(D[0:64, 0:64], kept)


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32])
def test_operands_of_8_16_and_32_bits_are_stored_by_stmatrix(dtype):
    a, b = (np.random.default_rng(n).integers(-4, 4, (64, n)).astype(dtype) for n in (64, 8))
    c, d = np.zeros((64, 8), np.int32 if dtype is np.int8 else np.float32), np.zeros_like(a)
    made = operand_kept.compile(a, b, c, d)
    assert made.ptx.count("stmatrix.sync") == made.ptx.count("ldmatrix.sync") == 2 * a.itemsize and ".trans.shared" not in made.ptx
    operand_kept.simulate(1, a, b, c, d).raise_first()
    np.testing.assert_array_equal(d, a)
    np.testing.assert_array_equal(c, a.astype(int) @ b.astype(int))
