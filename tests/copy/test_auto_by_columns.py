"""A buffer with layout=tile.auto is column-major if the array that it is copied from is."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile

pytestmark = pytest.mark.usefixtures("assembled_later")
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "int8": np.int8}
TARGETS = {"sm_80": ("ldgsts", "mma_sync"), "sm_90a": ("tma", "wgmma"), "sm_100a": ("tma", "tcgen05"), "sm_120a": ("tma", "mma_sync")}


@tile.jit
def product(A, B, C, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr):
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    sA, sB = tile.alloc((BM, BK), A.dtype, layout=tile.auto), tile.alloc((BK, BN), B.dtype, layout=tile.auto)
    acc = tile.zeros((BM, BN), C.dtype)
    for k in tile.pipelined(range(0, A.shape[1], BK), stages=2):
        tile.copy_async(sA, A[m:m + BM, k:k + BK])
        tile.copy_async(sB, B[k:k + BK, n:n + BN])
        acc = tile.dot(sA, sB, acc)
    tile.store(C[m:m + BM, n:n + BN], acc)


@pytest.mark.parametrize("target, variant", [("sm_90a", "wgmma"), ("sm_100a", "tcgen05")])
def test_an_operand_b_of_float32_rounded_to_tf32_is_column_major_too(target, variant):
    @tile.jit
    def rounded(A, B, C):
        sA, sB = tile.alloc((64, 32), A.dtype, layout=tile.auto), tile.alloc((32, 64), B.dtype, layout=tile.auto)
        acc = tile.zeros((64, 64))
        for k in tile.pipelined(range(0, A.shape[1], 32), stages=2):
            tile.copy_async(sA, A[0:64, k:k + 32])
            tile.copy_async(sB, B[k:k + 32, 0:64])
            acc = tile.dot(sA, sB, acc, precision="tf32")
        tile.store(C[0:64, 0:64], acc)

    a, b, c = matrices("float32", False, True, 64, 64, 96)
    made = rounded.compile(a, b, c, target=target)
    assert {x.variant for x in made.copies} == {"tma"} and made.products[0].variant == variant and not made.warnings
    rounded[1,](a, b, c)
    assert (c == a @ b).all()


def matrices(dtype, turned_a, turned_b, M=112, N=144, K=192):
    rng, np_dtype = np.random.default_rng(0), DTYPES.get(dtype, dtype)
    lies = lambda x, turned: np.ascontiguousarray(x.T).T if turned else x
    a, b = lies(rng.integers(-3, 4, (M, K)).astype(np_dtype), turned_a), lies(rng.integers(-3, 4, (K, N)).astype(np_dtype), turned_b)
    return a, b, np.empty((M, N), np.int32 if dtype == "int8" else np.float32)


# For one-byte elements, the tensor cores only take K-major operands.
LIE = [(dtype, a, b) for dtype in DTYPES for a, b in ([(False, True), (True, False), (True, True)] if dtype.endswith("16") else [(False, True)])]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype, turned_a, turned_b", LIE)
def test_a_product_of_transposed_views_uses_the_fastest_copies_and_instructions(dtype, turned_a, turned_b, target):
    a, b, c = matrices(dtype, turned_a, turned_b)
    made = product.compile(a, b, c, BM=64, BN=128, BK=64, target=target)
    copies, multiplies = TARGETS[target]
    assert {x.variant for x in made.copies} == {copies} and made.products[0].variant == multiplies
    assert not made.warnings and [x.chosen.endswith("by columns") for x in made.layouts] == [turned_a, turned_b]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned_a, turned_b", [(False, False), (False, True), (True, False), (True, True)])
def test_products_of_transposed_views_agree_with_numpy(dtype, turned_a, turned_b):
    a, b, c = matrices(dtype, turned_a, turned_b)
    report = product.simulate((2, 2), a, b, c, BM=64, BN=128, BK=64)
    assert not report.findings and (c == a.astype(np.float64) @ b.astype(np.float64)).all()


def test_float8_keeps_its_fast_copies_if_a_column_major_layout_would_not_help_the_product():
    """The copy is fast row-major, and the product would be column-major."""
    a, b, c = matrices("float8_e4m3fn", False, False)
    made = product.compile(a, b, c, BM=64, BN=128, BK=64, target="sm_90a")
    assert not any(x.chosen.endswith("by columns") for x in made.layouts) and {x.variant for x in made.copies} == {"tma"}


def test_a_buffer_between_two_transposed_arrays_is_column_major_too():
    @tile.jit
    def moved(x, y):
        s = tile.alloc((32, 64), x.dtype, layout=tile.auto)
        tile.copy_async(s, x[0:32, 0:64]).wait()
        tile.sync()
        tile.copy(y[0:32, 0:64], s)

    x = np.arange(2048, dtype=np.float32).reshape(64, 32).T
    y = np.zeros((64, 32), np.float32).T
    moved[1,](x, y)
    assert (y == x).all()
    made = moved.compile(x, y, target="sm_90a")
    assert made.layouts[0].chosen == "column-major" and {c.variant for c in made.copies} == {"ldgsts", "vectorised"}


def test_ragged_rows_stay_row_major_if_no_layout_helps():
    a, b, c = matrices("float16", False, False, N=77)
    made = product.compile(a, b, c, BM=64, BN=128, BK=64, target="sm_90a")
    assert not any(x.chosen.endswith("by columns") or x.chosen == "column-major" for x in made.layouts)


def test_the_slots_of_a_ring_may_be_column_major():
    @tile.jit(num_warps=8)
    def kernel(A, B, C, K: tile.constexpr):
        ring = tile.ring(2, A=((64, 64), A.dtype), B=((64, 64), B.dtype))
        with tile.warpgroup(0):
            with tile.elect():
                for k in range(0, K, 64):
                    with ring.produce() as slot:
                        tile.copy_async(slot.A, A[0:64, k:k + 64], mbar=slot.full)
                        tile.copy_async(slot.B, B[k:k + 64, 0:64], mbar=slot.full)
        with tile.each_warpgroup(range(1, 2)):
            acc = tile.zeros((64, 64))
            for k in range(0, K, 64):
                with ring.consume() as slot:
                    acc = tile.mma_async(acc, slot.A, slot.B)
                    tile.mma_commit()
                    tile.mma_wait(0)
            tile.store(C[0:64, 0:64], acc)

    a, b, c = matrices("float16", True, True, 64, 64, 192)
    kernel[1,](a, b, c, K=192)
    assert (c == a.astype(np.float64) @ b.astype(np.float64)).all()
    assert {x.variant for x in kernel.compile(a, b, c, K=192, target="sm_90a").copies} == {"tma"}
