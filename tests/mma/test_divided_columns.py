"""Products of few rows on several warpgroups: by wgmma, with the columns divided among the warpgroups."""

import re

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import DispatchError
from tilejit.layout.fragments import thread_table, wgmma_a_registers, wgmma_accumulator
from tilejit.ops.mma.wgmma import division

from tests.gpu import in_child, needs_gpu

# name: (m, n, k, warps, a's dtype, dtype of sums, where a is, whether b is [n, k])
PRODUCTS = {
    "two warpgroups": (64, 64, 64, 8, "float16", "float32", "shared", False),
    "three warpgroups": (64, 48, 32, 12, "bfloat16", "float32", "shared", True),
    "two by two": (128, 96, 32, 16, "float16", "float32", "shared", False),
    "three blocks of rows each": (192, 64, 32, 8, "float16", "float16", "shared", True),
    "two instructions' columns": (64, 272, 16, 8, "float16", "float32", "shared", True),
    "a loaded to registers": (64, 64, 32, 8, "bfloat16", "float32", "loaded", False),
    "both from global memory": (64, 64, 64, 8, "float16", "float32", "global", False),
    "float8": (64, 32, 64, 8, "float8_e4m3fn", "float32", "shared", True),
    "float8 in registers": (64, 32, 64, 8, "float8_e5m2", "float16", "loaded", True),
    "int8": (64, 64, 32, 8, "int8", "int32", "shared", True),
    "tf32": (64, 32, 32, 8, "float32", "float32", "loaded", True),
}


@tile.jit
def product(A, B, C, D, SHAPE: tile.constexpr, TB: tile.constexpr, PLACE: tile.constexpr, PRECISION: tile.constexpr = None,
            VARIANT: tile.constexpr = None, LAYOUT: tile.constexpr = tile.auto):
    """D = C + A @ B."""
    m, n, k = SHAPE
    b_shape = (n, k) if TB else (k, n)
    a, b = tile.load(A[0:m, 0:k]), tile.load(B[0:b_shape[0], 0:b_shape[1]])
    if PLACE != "global":
        sA, sB = tile.alloc((m, k), A.dtype, layout=tile.auto), tile.alloc(b_shape, B.dtype, layout=LAYOUT)
        tile.store(sA, a)
        tile.store(sB, b)
        tile.sync()
        a, b = (sA if PLACE == "shared" else tile.load(sA)), sB
    d = tile.dot(a, b, tile.load(C[0:m, 0:n]), trans_b=TB, precision=PRECISION, variant=VARIANT)
    tile.store(D[0:m, 0:n], d)


def operands(m, n, k, a_dtype, sums, tb):
    """(A, B, C, D to fill, the expected D): small integers, whose products and sums are exact."""
    rng = np.random.default_rng(m + n)
    dtype = np.dtype(getattr(ml_dtypes, a_dtype, a_dtype))
    a, b = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((m, k), (n, k) if tb else (k, n)))
    c = rng.integers(-8, 9, (m, n)).astype(sums)
    want = c.astype(np.float64) + a.astype(np.float64) @ (b.T if tb else b).astype(np.float64)
    return a, b, c, np.zeros((m, n), sums), want


def of_case(name):
    """(the arrays, the expected result, the options) of one of the `PRODUCTS`."""
    m, n, k, warps, a_dtype, sums, place, tb = PRODUCTS[name]
    *arrays, want = operands(m, n, k, a_dtype, sums, tb)
    return arrays, want, dict(SHAPE=(m, n, k), TB=tb, PLACE=place, PRECISION="tf32" if a_dtype == "float32" else None, num_warps=warps)


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("name", PRODUCTS)
def test_warpgroups_divide_the_columns_where_the_rows_are_too_few(name):
    """Right on the simulator for every kind of type, and by wgmma."""
    arrays, want, options = of_case(name)
    product.simulate(1, *arrays, target="sm_90a", **options).raise_first()
    np.testing.assert_array_equal(arrays[-1], want)
    record, = product.compile(*arrays, target="sm_90a", **options).products
    m, n, warps = *want.shape, options["num_warps"]
    down, across = division(getattr(tile, str(arrays[-1].dtype)), (m, n), 32 * warps)
    assert record.variant == "wgmma" and record.warps == (4 * down, across) and down * across == warps // 4 and across > 1


@needs_gpu("sm_90a")
@in_child()
def test_warpgroups_divide_the_columns_on_the_gpu():
    for name in PRODUCTS:
        arrays, want, options = of_case(name)
        product[1,](*arrays, backend="cuda", **options)
        assert (arrays[-1] == want).all(), name


def test_the_division_has_as_few_parts_along_the_columns_as_instructions_allow():
    """Rows first; columns only in widths that instructions have; none where a thread cannot hold its sums."""
    expected = {(128, 64, 2): (2, 1), (64, 64, 2): (1, 2), (128, 64, 4): (2, 2), (192, 48, 3): (3, 1), (64, 48, 3): (1, 3),
                (128, 384, 2): (1, 2), (128, 512, 2): (2, 1), (64, 24, 2): None, (96, 64, 2): None, (64, 8, 2): None}
    for (m, n, warpgroups), want in expected.items():
        assert division(tile.float32, (m, n), 128 * warpgroups) == want
    assert division(tile.int32, (64, 80), 256) is None and division(tile.float32, (64, 80), 256) == (1, 2)
    assert division(tile.float16, (128, 512), 256) == (1, 2)


def test_fragments_of_divided_columns_are_those_of_a_warpgroup_for_its_block():
    """Warpgroup ``i * across + j`` has block (i, j) of the sums, and the rows of A of its block."""
    one, sums = thread_table(*wgmma_accumulator(64, 16), 128), thread_table(*wgmma_accumulator(128, 32, 4, across=2), 512)
    a_one, a = thread_table(*wgmma_a_registers(64, 16, 16), 128), thread_table(*wgmma_a_registers(128, 16, 16, 4, across=2), 512)
    for warpgroup in range(4):
        i, j = divmod(warpgroup, 2)
        part = slice(128 * warpgroup, 128 * warpgroup + 128)
        np.testing.assert_array_equal(sums[part], (64 * i + one // 16) * 32 + 16 * j + one % 16)
        np.testing.assert_array_equal(a[part], a_one + 64 * i * 16)


def test_a_layout_chosen_for_divided_columns_lets_each_part_begin_a_row_of_the_swizzle():
    """64 columns of float16 fill 128 bytes, and 32 of them 64; rows along k are not divided."""
    arrays, _, options = of_case("two warpgroups")
    made = product.compile(*arrays, target="sm_90a", **options)
    assert [layout.chosen for layout in made.layouts] == ["a swizzle of 128 bytes", "a swizzle of 64 bytes"]
    with pytest.raises(DispatchError, match="a part of it begins not at one of 1024 bytes"):
        product.compile(*arrays, target="sm_90a", **options | dict(VARIANT="wgmma", LAYOUT=tile.swizzled("float16", (64, 64), 128)))


def test_columns_that_no_instruction_has_are_multiplied_by_warps_with_the_reason_told():
    *arrays, want = operands(64, 24, 32, "float16", "float32", True)
    options = dict(SHAPE=(64, 24, 32), TB=True, PLACE="shared", num_warps=8, target="sm_90a")
    product.simulate(1, *arrays, **options).raise_first()
    np.testing.assert_array_equal(arrays[-1], want)
    made = product.compile(*arrays, **options)
    assert made.products[0].variant == "mma_sync" and "64 rows by 24 columns and 2 warpgroups" in made.explain()


@pytest.mark.usefixtures("assembled_later")
def test_sums_that_a_launch_leaves_no_registers_for_stay_with_the_warps():
    """256 columns over two warpgroups take 128 registers of each thread."""
    *arrays, _ = operands(64, 512, 16, "float16", "float32", True)
    options = dict(SHAPE=(64, 512, 16), TB=True, PLACE="shared", num_warps=8, target="sm_90a")
    assert product.compile(*arrays, **options).products[0].variant == "wgmma"
    declined = dict(product.compile(*arrays, max_registers=144, **options).products[0].declined)
    assert "128 of a thread's 144" in declined["wgmma"]


@tile.jit
def scores_by_values(Q, K, V, O, N: tile.constexpr, BN: tile.constexpr, ROLES: tile.constexpr):
    """softmax(Q @ K.T) @ V over blocks of keys, with the exponentials of one block in registers between two products."""
    m, d = 64, 64
    sK, sV = tile.alloc((BN, d), K.dtype, layout=tile.auto), tile.alloc((BN, d), V.dtype, layout=tile.auto)
    sQ = tile.alloc((m, d), Q.dtype, layout=tile.auto)
    tile.copy(sQ, Q[0:m, 0:d])
    tile.sync()
    out, total, top = tile.zeros((m, d)), tile.zeros((m,)), tile.full((m,), -1e30, tile.float32)
    for n in tile.pipelined(range(0, N, BN), stages=2, warp_specialize=ROLES):
        tile.copy_async(sK, K[n:n + BN, 0:d])
        tile.copy_async(sV, V[n:n + BN, 0:d])
        s = tile.dot(sQ, sK, trans_b=True)
        higher = tile.maximum(top, tile.max(s, axis=1))
        p, shrink = tile.exp(s - higher[:, None]), tile.exp(top - higher)
        total, top = total * shrink + tile.sum(p, axis=1), higher
        out = tile.dot(p.to(V.dtype), sV, out * shrink[:, None])
    tile.store(O[0:m, 0:d], out / total[:, None])


def attention_case():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((64, 64), (96, 64), (96, 64)))
    x, y, z = (t.astype(np.float64) for t in (q, k, v))
    e = np.exp(x @ y.T - (x @ y.T).max(1, keepdims=True))
    return (q, k, v, np.zeros((64, 64), np.float32)), e @ z / e.sum(1, keepdims=True)


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("roles", [False, True])
def test_scores_that_warpgroups_share_go_through_shared_memory_to_the_next_product(roles):
    """Both products by wgmma on 8 warps in a pipelined loop; the second reads the exponentials in memory, as stored by all threads."""
    arrays, want = attention_case()
    scores_by_values.simulate(1, *arrays, N=96, BN=32, ROLES=roles, target="sm_90a", num_warps=8).raise_first()
    np.testing.assert_allclose(arrays[-1], want, atol=2e-3)
    made = scores_by_values.compile(*arrays, N=96, BN=32, ROLES=roles, target="sm_90a", num_warps=8, spills=0)
    assert [p.variant for p in made.products] == ["wgmma", "wgmma"] and "in shared memory by" in made.explain()


@needs_gpu("sm_90a")
@in_child()
def test_scores_by_values_are_right_on_the_gpu():
    for roles in (False, True):
        arrays, want = attention_case()
        scores_by_values[1,](*arrays, N=96, BN=32, ROLES=roles, num_warps=8, backend="cuda")
        np.testing.assert_allclose(arrays[-1], want, atol=2e-3)


@tile.jit
def by_hand(A, B, C):
    """An asynchronous product with A in registers: each of two warpgroups has all rows of it."""
    sA, sB = tile.alloc((64, 32), A.dtype, layout=tile.auto), tile.alloc((32, 32), B.dtype, layout=tile.swizzled(B.dtype, (32, 32), 32))
    tile.copy(sA, A[0:64, 0:32])
    tile.copy(sB, B[0:32, 0:32])
    tile.sync()
    a = tile.load(sA) * 2
    tile.fence_proxy_async()
    tile.sync()
    acc = tile.mma_async(None, a, sB)
    tile.mma_commit()
    tile.mma_wait(0)
    tile.store(C[0:64, 0:32], acc)


def test_an_asynchronous_product_with_a_in_registers_may_divide_its_columns():
    rng = np.random.default_rng(0)
    a, b, c = rng.integers(-2, 3, (64, 32)).astype(np.float16), rng.integers(-2, 3, (32, 32)).astype(np.float16), np.zeros((64, 32), np.float32)
    by_hand.simulate(1, a, b, c, target="sm_90a", num_warps=8).raise_first()
    np.testing.assert_array_equal(c, 2 * a.astype(np.float32) @ b.astype(np.float32))
    ptx = by_hand.compile(a, b, c, target="sm_90a", num_warps=8).ptx
    assert re.search(r"m64n16k16\.f32\.f16\.f16 \{[^}]*\}, *\{", ptx)
