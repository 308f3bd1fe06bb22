"""The emitted code of warp products, executed register by register: ldmatrix loads the fragments, mma.sync multiplies, stmatrix
stores."""

import numpy as np
import pytest
import tilejit as tile
from tilejit.ir.graph import Call, walk
from tilejit.ops.memory.ldmatrix import LdMatrix
from tilejit.ops.memory.stmatrix import StMatrix

from tests.mma.threads import load_matrices, registers_of, run_product, store_matrices


@tile.jit
def product(C, a_shape: tile.constexpr, b_shape: tile.constexpr, dtype: tile.constexpr, TA: tile.constexpr, TB: tile.constexpr,
            SWIZZLE: tile.constexpr):
    sA = tile.alloc(a_shape, dtype, layout=tile.swizzled(dtype, a_shape, SWIZZLE) if SWIZZLE else None)
    sB = tile.alloc(b_shape, dtype, layout=tile.swizzled(dtype, b_shape, SWIZZLE) if SWIZZLE else None)
    acc = tile.dot(sA, sB, trans_a=TA, trans_b=TB, precision="tf32" if dtype == tile.float32 else None, variant="mma_sync")
    tile.store(C[0:acc.shape[0], 0:acc.shape[1]], acc)


def run(m, n, k, dtype, ta=False, tb=True, swizzle=0, warps=4):
    """The product computed by its code, and how many of the loads were ldmatrix."""
    a_shape, b_shape = (k, m) if ta else (m, k), (n, k) if tb else (k, n)
    rng = np.random.default_rng(m * n + k)
    a, b = (rng.integers(-8, 8, shape).astype(np.float64) for shape in (a_shape, b_shape))
    acc_dtype = {"int8": "int32", "float64": "float64"}.get(dtype, "float32")
    c = np.zeros((m, n), acc_dtype)
    bound, options, _ = product.bind((c,), dict(a_shape=a_shape, b_shape=b_shape, dtype=getattr(tile, dtype), TA=ta, TB=tb,
                                                 SWIZZLE=swizzle, num_warps=warps))
    version = product.version(bound, options, "sm_90a")
    calls = [x for x in walk(version.lowered.graph.body) if isinstance(x, Call)]
    made = {r: x for x in calls for r in x.results}
    buffers = dict(zip([x.result for x in calls if x.op.name == "alloc_shared"], (a, b)))
    values, threads, matrices = {None: None}, 32 * warps, []
    for x in calls:
        if x.op.name == "load":
            region = made[x.args[0]]
            whole = buffers[region.args[0]]
            if isinstance(x.choice.plan, LdMatrix):
                values[x.result] = load_matrices(x, region, whole, threads)
            else:
                starts = [s.value for s in region.args[1:]]
                part = whole[tuple(slice(s, s + e) for s, e in zip(starts, region.result.type.extents))]
                values[x.result] = registers_of(x.result.type, part, threads)
            matrices.append(isinstance(x.choice.plan, LdMatrix))
        elif x.op.name == "mma":
            values[x.result] = run_product(x, *(values[o] for o in x.args), threads)
            last = x.result
    want = registers_of(last.type, (a.T if ta else a) @ (b.T if tb else b), threads)
    for got, expected in zip(values[last], want):
        inside = np.isfinite(expected)
        np.testing.assert_array_equal(got[inside], expected[inside])
    return matrices


@pytest.mark.parametrize("warps", [1, 2, 4, 6])
@pytest.mark.parametrize("ta,tb", [(False, True), (False, False), (True, True), (True, False)])
def test_ldmatrix_loads_16_bit_operands_of_both_majors(ta, tb, warps):
    """Every load is ldmatrix, with .trans if memory is contiguous across k."""
    m = 96 if warps == 6 else 64
    assert all(run(m, 64, 64, "float16", ta, tb, 128 if m == 64 else 0, warps))


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_ldmatrix_follows_the_swizzle(swizzle):
    """Its addresses are those of the swizzled rows."""
    assert all(run(64, 128, 128, "bfloat16", swizzle=swizzle))


@pytest.mark.parametrize("dtype,k", [("int8", 128), ("float8_e4m3fn", 64), ("float32", 32)])
def test_ldmatrix_loads_k_major_8_and_32_bit_operands(dtype, k):
    """Rows of 16 bytes of any type, if k is contiguous."""
    assert all(run(32, 64, k, dtype))


@pytest.mark.parametrize("dtype", ["int8", "float32", "float64"])
@pytest.mark.parametrize("ta,tb", [(True, True), (False, False)])
def test_operands_that_ldmatrix_cannot_load_are_loaded_element_by_element(dtype, ta, tb):
    """MN-major 8- and 32-bit operands, and float64: plain loads into the same fragments."""
    assert not all(run(32, 32, 32, dtype, ta, tb))


@pytest.mark.parametrize("m,n,k", [(1, 1, 1), (17, 9, 5), (50, 37, 21), (16, 8, 24), (130, 24, 40)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "float64"])
def test_extents_of_any_size_are_padded_with_zeros_along_k(m, n, k, dtype):
    """What registers hold beyond the extents, infinities here, does not affect the product."""
    run(m, n, k, dtype)


@tile.jit
def kept(A, B, index, M: tile.constexpr, N: tile.constexpr, LAYOUT: tile.constexpr, ROW: tile.constexpr, COLUMN: tile.constexpr,
         MOVING: tile.constexpr, VARIANT: tile.constexpr = "wgmma", TURNED: tile.constexpr = False):
    """A product, or its transpose, stored to a part of a buffer, whose first column may be a runtime value."""
    sA, sB = tile.alloc((M, 16), A.dtype, layout=tile.auto), tile.alloc((N, 16), B.dtype, layout=tile.auto)
    tile.copy(sA, A[0:M, 0:16])
    tile.copy(sB, B[0:N, 0:16])
    tile.sync()
    s = tile.alloc((3, 256, 128), tile.bfloat16, layout=LAYOUT)
    product = tile.dot(sA, sB, trans_b=True, variant=VARIANT).to(tile.bfloat16)
    column = index % 4 * 8 if MOVING else COLUMN
    if TURNED:
        tile.store(s[index % 3, ROW:ROW + N, column:column + M], product.T)
    else:
        tile.store(s[index % 3, ROW:ROW + M, column:column + N], product)


def kept_as(values, layout, row, column, warps, variant="wgmma", turned=False):
    """The buffer's contents after the code has stored `values` or their transpose, and the plan of the store."""
    m, n = values.shape
    a, b = (tile.ArraySpec((extent, 16), "bfloat16") for extent in (m, n))
    bound, options, _ = kept.bind((a, b, 2), dict(M=m, N=n, LAYOUT=layout, ROW=row, COLUMN=column, MOVING=column is None, TURNED=turned, num_warps=warps,
                                                VARIANT=variant))
    calls = [x for x in walk(kept.version(bound, options, "sm_90a").lowered.graph.body) if isinstance(x, Call)]
    call, = [x for x in calls if isinstance(x.choice and x.choice.plan, StMatrix)]
    region, = [x for x in calls if call.args[0] in x.results]
    return store_matrices(call, region, values.T if turned else values, 32 * warps, (2, 8) if column is None else (2,)), call.choice.plan


@pytest.mark.parametrize("swizzle", [None, 0, 32, 64, 128, "by columns"])
@pytest.mark.parametrize("m,n,warps", [(64, 16, 4), (64, 8, 4), (64, 64, 4), (64, 72, 4), (128, 48, 4), (128, 24, 4), (128, 32, 8)])
@pytest.mark.parametrize("row,column", [(0, 0), (0, 16), (64, 32), (0, 8), (4, 48), (72, 40), (0, None)])
def test_stmatrix_stores_to_any_part_of_a_buffer(swizzle, m, n, warps, row, column):
    """Nothing else is written. The parts begin at multiples of 16 columns of a buffer whose rows or columns are in
    16-byte pieces."""
    if swizzle == "by columns" and row % 8:
        row += 4
    layout = None if swizzle is None else tile.swizzled(tile.bfloat16, (3, 256, 128), 128 if swizzle == "by columns" else swizzle)
    if swizzle == "by columns":
        layout = tile.swizzled(tile.bfloat16, (3, 128, 256), 128).permute((0, 2, 1), shape=(3, 128, 256))
    values = np.random.default_rng(0).standard_normal((m, n))
    found, plan = kept_as(values, layout, row, column, warps)
    want, at = np.zeros((3, 256, 128)), 8 if column is None else column
    want[2, row:row + m, at:at + n] = values
    np.testing.assert_array_equal(found, want)
    if row % 64 == 0 and column is not None and column % 16 == 0 and (n % 16 == 0 or m == 64):
        assert None not in [group.flip for group in plan.groups]


@pytest.mark.parametrize("swizzle", [None, 0, 64, 128])
@pytest.mark.parametrize("variant,m,n,warps", [("wgmma", 64, 24, 4), ("wgmma", 128, 72, 4), ("wgmma", 128, 64, 8), ("mma_sync", 16, 8, 1),
                                               ("mma_sync", 32, 24, 2), ("mma_sync", 96, 48, 6), ("mma_sync", 64, 64, 4)])
@pytest.mark.parametrize("turned", [False, True])
def test_stmatrix_stores_matrices_as_lanes_hold_them_and_transposed_ones_with_trans(swizzle, variant, m, n, warps, turned):
    """Results of warpgroups and of any number of warps."""
    layout = None if swizzle is None else tile.swizzled(tile.bfloat16, (3, 256, 128), swizzle)
    values, want = np.random.default_rng(0).standard_normal((m, n)), np.zeros((3, 256, 128))
    found, plan = kept_as(values, layout, 5, 0, warps, variant, turned)
    given = values.T if turned else values
    want[2, 5:5 + given.shape[0], :given.shape[1]] = given
    np.testing.assert_array_equal(found, want)
    assert plan.transposed == turned and len(plan.groups) == -(-m * n // (256 * warps))
