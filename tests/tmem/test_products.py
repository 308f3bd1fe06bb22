"""Products by tcgen05 compared with float64 on the simulator, which decodes both descriptors; and through the assembler."""

import re

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from faulty import check
from tensor_operands import BOTH, accumulator
from tilejit.layout import TileLayout, tmem_datapath
from tilejit.ops.mma.tcgen05_kinds import KINDS, Instruction

from tests.drawn import numbers

pytestmark = pytest.mark.usefixtures("assembled_later")


@tile.jit
def product(A, B, C, A_SMEM: tile.constexpr, B_SMEM: tile.constexpr, ACC: tile.constexpr, LAYOUT: tile.constexpr, TA: tile.constexpr,
            TB: tile.constexpr, PRECISION: tile.constexpr, TIMES: tile.constexpr, NEGATE: tile.constexpr = False):
    sA = tile.alloc(A_SMEM[0], A.dtype, layout=A_SMEM[1])
    sB = tile.alloc(B_SMEM[0], B.dtype, layout=B_SMEM[1])
    rows, columns = A_SMEM[0][1 if TA else 0], B_SMEM[0][0 if TB else 1]
    acc = tile.alloc((rows, columns), ACC, scope="tmem", layout=LAYOUT)
    bar = tile.mbarrier()
    tile.copy(sA, A[0:A_SMEM[0][0], 0:A_SMEM[0][1]])
    tile.copy(sB, B[0:B_SMEM[0][0], 0:B_SMEM[0][1]])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        for i in range(TIMES):
            tile.mma_async(acc, sA, sB, trans_a=TA, trans_b=TB, precision=PRECISION, negate=NEGATE, accumulate=i > 0)
        tile.tcgen05_commit(bar)
    bar.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    part = columns // 2 if columns > 136 else columns
    for i in range(columns // part):
        tile.store(C[0:rows, part * i:part * i + part], tile.load(acc[:, part * i:part * i + part]))


def checked(m, n, k, dtype, swizzle=128, ta=False, tb=True, acc=tile.float32, precision=None, other=None, targets=(), times=2, negate=False):
    a, b = numbers((k, m) if ta else (m, k), dtype, 1), numbers((n, k) if tb else (k, n), other or dtype, 2)
    c = np.zeros((m, n), acc.np)
    shared = lambda x: (x.shape, tile.swizzled(tile.ArraySpec(x.shape, x.dtype).dtype, x.shape, swizzle))
    options = dict(A_SMEM=shared(a), B_SMEM=shared(b), ACC=acc, LAYOUT=accumulator(m, n, acc), TA=ta, TB=tb, PRECISION=precision,
                   TIMES=times, NEGATE=negate, spills=0)
    product.simulate(1, a, b, c, **options, target="sm_100a").raise_first()
    x, y = (v.astype(np.float64) for v in (a.T if ta else a, b.T if tb else b))
    expected = (-times if negate else times) * (x @ y)
    if acc == tile.int32:
        np.testing.assert_array_equal(c, expected.astype(np.int64).astype(np.int32))
    else:
        unit = {"float32": 2.0 ** -23, "float16": 2.0 ** -10}[acc.name]
        rounded = 2.0 ** -9 if precision else 0.0  # both operands truncated to 10 mantissa bits
        bound = times * (np.abs(x) @ np.abs(y)) * (times * k * unit + rounded) + 1e-6
        assert (np.abs(c.astype(np.float64) - expected) <= bound).all()
    for target in targets:
        product.compile(a, b, c, **options, target=target)


@pytest.mark.parametrize("m", [64, 128])
@pytest.mark.parametrize("n", range(8, 257, 8))
def test_products_with_64_or_128_rows_and_every_number_of_columns_are_right(m, n):
    """N from 8 to 256 in steps of 8; 64 rows use half of each warp's lanes."""
    checked(m, n, 64, ml_dtypes.bfloat16, targets=BOTH if n == 24 else ())


@pytest.mark.all_cases
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("ta,tb", [(False, True), (False, False), (True, True), (True, False)])
def test_operands_of_both_majors_in_every_swizzle_are_right(ta, tb, swizzle):
    """16-bit operands, K-major and MN-major, in each of the four swizzle modes."""
    checked(128, 192, 128, np.float16, swizzle, ta, tb, targets=("sm_100a",) if swizzle == 64 else ())


@pytest.mark.parametrize("swizzle", [0, 64, 128])
@pytest.mark.parametrize("ta,tb", [(True, True), (False, False)])
def test_operands_of_8_bits_may_be_mn_major(ta, tb, swizzle):
    """Unlike for wgmma."""
    checked(128, 128, 128, ml_dtypes.float8_e4m3fn, swizzle, ta, tb, targets=BOTH if swizzle == 64 else ())


@pytest.mark.all_cases
@pytest.mark.parametrize("dtype,other,acc", [
    (np.float16, None, tile.float32), (np.float16, None, tile.float16), (ml_dtypes.bfloat16, None, tile.float32),
    *((a, b, acc) for a in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2) for b in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
      for acc in (tile.float32, tile.float16)),
    *((a, b, tile.int32) for a in (np.int8, np.uint8) for b in (np.int8, np.uint8))])
@pytest.mark.parametrize("k", [32, 128, 224])
def test_products_of_all_operand_types_and_depths_are_right(dtype, other, acc, k):
    """Every pair of operand types with its accumulators, and k of any number of instructions."""
    integers = np.dtype(dtype).kind in "iu"
    checked(128, 32, k, dtype, 128 if k * np.dtype(dtype).itemsize % 128 == 0 else 32, acc=acc, other=other,
            targets=() if k != 128 else ("sm_100a",) if integers else BOTH)


def test_float32_operands_are_truncated_to_tf32():
    """They lose the mantissa bits that TF32 does not have."""
    checked(128, 64, 64, np.float32, precision="tf32", targets=BOTH)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, ml_dtypes.float8_e5m2])
def test_a_product_can_be_subtracted(dtype):
    """By a bit of the instruction descriptor; integers have none."""
    checked(128, 64, 64, dtype, 64, precision="tf32" if dtype == np.float32 else None, negate=True, targets=BOTH)
    with pytest.raises(tile.DispatchError, match="a kind that negates.*: kind::i8"):
        checked(128, 64, 64, np.int8, 64, acc=tile.int32, negate=True)


# -- A in tensor memory, pairs ---------------------------------------------------------------------------------------------

@tile.jit
def by_tensor_memory(A, B, C, ROWS: tile.constexpr, OF_A: tile.constexpr, OF_SUMS: tile.constexpr):
    a = tile.alloc((ROWS, 64), A.dtype, scope="tmem", layout=OF_A)
    acc = tile.alloc((ROWS, 64), "float32", scope="tmem", layout=OF_SUMS)
    sB = tile.alloc((64, 64), B.dtype, layout=tile.swizzled(B.dtype, (64, 64), 128))
    bar = tile.mbarrier()
    tile.copy(sB, B[0:64, 0:64])
    tile.store(a, tile.load(A[0:ROWS, 0:64]))
    tile.fence_proxy_async()
    tile.tcgen05_fence("before_thread_sync")
    tile.sync()
    with tile.elect():
        tile.tcgen05_fence("after_thread_sync")
        tile.mma_async(acc, a, sB, trans_b=True, accumulate=False)
        tile.tcgen05_commit(bar)
    bar.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(C[0:ROWS, 0:64], tile.load(acc))


def multiplied_there(rows, of_a, of_sums, dtype, target):
    """The PTX of the product for the target, after checking it on the simulator and assembling it."""
    a, b, c = numbers((rows, 64), dtype, 1), numbers((64, 64), dtype, 2), np.zeros((rows, 64), np.float32)
    layouts = dict(ROWS=rows, OF_A=of_a, OF_SUMS=of_sums)
    made = by_tensor_memory.compile(a, b, c, target=target, **layouts)
    by_tensor_memory.simulate(1, a, b, c, target=target, **layouts).raise_first()
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-5, atol=1e-4)
    return made.ptx


@pytest.mark.parametrize("m", [64, 128])
@pytest.mark.parametrize("target", BOTH)
def test_operand_a_can_be_in_tensor_memory(m, target):
    """Stored there from registers, like the probabilities in attention: both A and the accumulator are tensor memory addresses."""
    lay = tmem_datapath("D" if m == 128 else "F", 64)
    assert re.search(r"tcgen05\.mma\.\S+ \[%r\d+\], \[t\], y, ", multiplied_there(m, lay, lay, ml_dtypes.bfloat16, target))


@pytest.mark.parametrize("left", [0, 16])
@pytest.mark.parametrize("sums", [0, 16])
def test_with_64_rows_a_is_in_the_same_half_of_the_lanes_as_the_accumulator(left, sums):
    """Each lane multiplies what it holds itself, so A in the other half of the lanes would give wrong results."""
    half = lambda lane: TileLayout([(4, 32, "TLane"), (16, 1, "TLane"), (64, 1, "TCol")], offset={"TLane": lane})
    if left == sums:
        multiplied_there(64, half(left), half(sums), np.float16, "sm_103a")
        return
    with pytest.raises(tile.DispatchError, match=f"in the accumulator's lanes: it begins in lane {left}, and the accumulator in lane {sums}"):
        multiplied_there(64, half(left), half(sums), np.float16, "sm_100a")


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("target", BOTH)
def test_one_thread_multiplies_for_a_cta_pair(rows, target):
    """cta_group=2: each CTA has its rows of A and C and half of the columns of B; with 128 rows, halves of the columns are
    folded over the lanes."""
    lay = tmem_datapath("A" if rows == 128 else "B", 128)

    @tile.jit(cluster=(2, 1, 1))
    def kernel(A, B, C):
        r = tile.cta_rank()
        sA = tile.alloc((rows, 64), A.dtype, layout=tile.swizzled(A.dtype, (rows, 64), 128))
        sB = tile.alloc((64, 64), B.dtype, layout=tile.swizzled(B.dtype, (64, 64), 128))
        acc = tile.alloc((rows, 128), "float32", scope="tmem", layout=lay, cta_group=2)
        bar = tile.mbarrier()
        tile.copy(sA, A[rows * r:rows * r + rows, 0:64])
        tile.copy(sB, B[64 * r:64 * r + 64, 0:64])
        tile.fence_proxy_async()
        tile.cluster_sync()
        if r == 0:
            with tile.elect():
                tile.mma_async(acc, sA, sB, trans_b=True, accumulate=False)
                tile.mma_async(acc, sA, sB, trans_b=True)
                tile.tcgen05_commit(bar, multicast=3)
        bar.wait(phase=0)
        tile.tcgen05_fence("after_thread_sync")
        tile.store(C[rows * r:rows * r + rows, 0:128], tile.load(acc))

    a, b, c = numbers((2 * rows, 64), np.float16, 1), numbers((128, 64), np.float16, 2), np.zeros((2 * rows, 128), np.float32)
    for seed in range(3):
        kernel.simulate(2, a, b, c, seed=seed, target=target).raise_first()
        np.testing.assert_allclose(c, 2 * (a.astype(np.float64) @ b.astype(np.float64).T), rtol=1e-5, atol=1e-4)
    assert "tcgen05.mma.cta_group::2.kind::f16" in kernel.compile(a, b, c, target=target).ptx


# -- instruction descriptors -----------------------------------------------------------------------------------------------

def test_instruction_descriptors_match_the_isa_manual():
    """Fields derived by hand from the manual's tables; every descriptor decodes to its fields."""
    bits = lambda kind, m, n, a, b, acc, *rest: Instruction(kind, m, n, a, b, acc, *rest).bits
    assert bits("f16", 128, 256, "bf16", "bf16", "float32") == 1 << 4 | 1 << 7 | 1 << 10 | 32 << 17 | 8 << 24
    assert bits("f16", 64, 8, "f16", "f16", "float16", True, True) == 1 << 15 | 1 << 16 | 1 << 17 | 4 << 24
    assert bits("tf32", 128, 64, "tf32", "tf32", "float32") == 1 << 4 | 2 << 7 | 2 << 10 | 8 << 17 | 8 << 24
    assert bits("i8", 128, 32, "s8", "u8", "int32") == 2 << 4 | 1 << 7 | 4 << 17 | 8 << 24
    assert bits("f8f6f4", 256, 128, "e5m2", "e2m1", "float32") == 1 << 4 | 1 << 7 | 5 << 10 | 16 << 17 | 16 << 24
    assert bits("mxf8f6f4", 128, 128, "e4m3", "e4m3", "float32", False, False, "ue8m0", (3, 1)) == 1 << 4 | 16 << 17 | 1 << 23 | 1 << 27 | 3 << 29
    assert bits("mxf4nvf4", 256, 64, "e2m1", "e2m1", "float32", False, False, "ue4m3", (0, 0)) == 1 << 7 | 1 << 10 | 8 << 17 | 2 << 27
    assert Instruction("f16", 64, 8, "f16", "f16", "float16", negated=True).bits == 1 << 13 | 1 << 17 | 4 << 24
    assert bits("mxf4", 128, 64, "e2m1", "e2m1", "float32", False, False, "ue8m0", (2, 2), True) == (
        2 << 4 | 1 << 7 | 1 << 10 | 1 << 13 | 8 << 17 | 1 << 23 | 1 << 27 | 2 << 29)
    for kind in KINDS.values():
        for a in kind.types:
            made = Instruction(kind.name, 128, 64, a, a, kind.accumulators[-1] if not kind.scales else "float32", False, False,
                               "ue8m0" if kind.scales else None, (2, 2) if kind.scales else (0, 0), kind.negates)
            assert Instruction.decode(made.bits, kind.name) == made
    assert "bits 13 and 14" in Instruction.decode(Instruction("i8", 64, 8, "s8", "s8", "int32").bits | 1 << 13, "i8")


# -- findings and errors ---------------------------------------------------------------------------------------------------

X = np.zeros((128, 64), np.float16)
SWIZZLED = tile.swizzled("float16", (128, 64), 128)
HALF = tile.swizzled("float16", (64, 64), 128)


@tile.jit
def unwaited(x, y):
    sA, sB = tile.alloc((128, 64), x.dtype, layout=SWIZZLED), tile.alloc((64, 64), x.dtype, layout=HALF)
    acc = tile.alloc((128, 64), "float32", scope="tmem")
    bar = tile.mbarrier()
    tile.copy(sA, x[0:128, 0:64])
    tile.copy(sB, x[0:64, 0:64])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.mma_async(acc, sA, sB, accumulate=False)
        tile.tcgen05_commit(bar)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(y[0:128, 0:64], tile.load(acc))  # finds: missing-wait
    bar.wait(phase=0)


@tile.jit
def unfenced(x, y):
    sA, sB = tile.alloc((128, 64), x.dtype, layout=SWIZZLED), tile.alloc((64, 64), x.dtype, layout=HALF)
    acc = tile.alloc((128, 64), "float32", scope="tmem")
    bar = tile.mbarrier()
    tile.copy(sA, x[0:128, 0:64])
    tile.copy(sB, x[0:64, 0:64])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.mma_async(acc, sA, sB, accumulate=False)
        tile.tcgen05_commit(bar)
    bar.wait(phase=0)
    tile.store(y[0:128, 0:64], tile.load(acc))  # finds: tmem


@tile.jit
def never_zeroed(x, y):
    sA, sB = tile.alloc((128, 64), x.dtype, layout=SWIZZLED), tile.alloc((64, 64), x.dtype, layout=HALF)
    acc = tile.alloc((128, 64), "float32", scope="tmem")
    bar = tile.mbarrier()
    tile.copy(sA, x[0:128, 0:64])
    tile.copy(sB, x[0:64, 0:64])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.mma_async(acc, sA, sB)  # finds: uninitialized-read
        tile.tcgen05_commit(bar)
    bar.wait(phase=0)


@tile.jit
def next_tile_too_early(x, y):
    sA, sB = tile.alloc((128, 64), x.dtype, layout=SWIZZLED), tile.alloc((64, 64), x.dtype, layout=HALF)
    acc = tile.alloc((128, 64), "float32", scope="tmem")
    bar = tile.mbarrier()
    tile.copy(sA, x[0:128, 0:64])
    tile.copy(sB, x[0:64, 0:64])
    tile.fence_proxy_async()
    tile.sync()
    for i in range(2):
        with tile.elect():
            tile.mma_async(acc, sA, sB, accumulate=False)  # finds: race
            tile.tcgen05_commit(bar)
        bar.wait(phase=i)
        tile.tcgen05_fence("after_thread_sync")
        tile.store(y[0:128, 0:64], tile.load(acc))


@tile.jit
def sums_over_a(x, y):
    a = tile.alloc((128, 64), x.dtype, scope="tmem")
    sB = tile.alloc((64, 64), x.dtype, layout=HALF)
    rest = tile.alloc((128, 64), "float32", scope="tmem")
    bar = tile.mbarrier()
    tile.store(a, tile.load(x[0:128, 0:64]))
    tile.copy(sB, x[0:64, 0:64])
    tile.fence_proxy_async()
    tile.tcgen05_fence("before_thread_sync")
    tile.sync()
    with tile.elect():
        tile.tcgen05_fence("after_thread_sync")
        tile.mma_async(rest, a, sB, accumulate=False)
        tile.mma_async(a.view(tile.float32, (128, 32)), a, sB[:, 0:32], accumulate=False)  # finds: tmem
        tile.tcgen05_commit(bar)
    bar.wait(phase=0)


def test_missing_synchronisation_around_a_product_is_found():
    """Its commit, the fence after the wait, an uninitialised accumulator, and readers that the next product overtakes."""
    y = np.zeros((128, 64), np.float32)
    for kernel in (unwaited, unfenced, never_zeroed, next_tile_too_early):
        check(kernel, (1,), X, y, target="sm_100a")


def test_accumulators_that_overwrite_the_product_s_own_operand_are_found():
    """An instruction writes what the next one along k has yet to read."""
    check(sums_over_a, (1,), X, np.zeros((128, 64), np.float32), target="sm_100a")


def test_wrong_products_are_errors_at_their_line():
    """Targets, types, shapes, layouts and options, checked before the assembler runs."""
    def refused(words, line, acc='(128, 64), "float32"', a="(128, 64)", b="(64, 64)", dtype="float16", target="sm_100a",
                scope="with tile.elect():\n        ",
                swizzle=64):
        layout = lambda shape: f', layout=tile.swizzled("{dtype}", {shape}, {swizzle})' if swizzle else ""
        source = (f'def kernel(x):\n    a = tile.alloc({a}, "{dtype}"{layout(a)})\n'
                  f'    b = tile.alloc({b}, "{dtype}"{layout(b)})\n'
                  f'    acc = tile.alloc({acc}, scope="tmem")\n    {scope}{line}')
        with pytest.raises(tile.CompilationError, match=words):
            tile.jit(source=source).compile(X, target=target)

    plain = "tile.mma_async(acc, a, b)"
    refused("needs one thread: 128 threads of a cta", plain, scope="")
    refused("kind::i8 on sm_103a", plain, '(128, 64), "int32"', dtype="int8", target="sm_103a")
    refused("float32 from kind::i8", plain, dtype="int8")
    refused("pass precision='tf32' to accept that", plain, dtype="float32")
    refused("32 rows", "tile.mma_async(acc[0:32], a[0:32], b)")
    refused("12 columns, and there are 8 to 256 in steps of 8|multiple of the instruction", "tile.mma_async(acc[:, 0:12], a, b[:, 0:12])")
    refused("40 columns, and there are 8, 24 and 16 to 256 in steps of 16", "tile.mma_async(acc, a, b, trans_b=True)", dtype="int8",
            acc='(128, 40), "int32"', b="(40, 64)")
    refused("their k differ", "tile.mma_async(acc, a[:, 0:32], b)")
    refused(r"so the accumulator is \[128, 64\], not \[128, 32\]", "tile.mma_async(acc[:, 0:32], a, b)")
    refused("its layout is", "tile.mma_async(acc[0:64], a[0:64], b)")
    refused("the variant tcgen05, not 'wgmma'", "tile.mma_async(acc, a, b, variant='wgmma')")
    refused("scale_a= and scale_b= go together", "tile.mma_async(acc, a, b, scale_a=acc)")
    refused("do not multiply int32", plain, dtype="int32")
    refused("no scale_a= and scale_b= in kind::mxf4", "tile.mma_async(acc, a, b, kind='mxf4', trans_b=True)", dtype="float4_e2m1fn", swizzle=32)
    refused("float4_e2m1fn in kind::f8f6f4, which takes elements of 4 bits as tile.padded", "tile.mma_async(acc, a, b, kind='f8f6f4', trans_b=True)",
            dtype="float4_e2m1fn", swizzle=32)
    refused("do not multiply float6_e2m3fn: they read it as tile.padded", "tile.mma_async(acc, a, b, trans_b=True)",
            dtype="float6_e2m3fn", swizzle=None)
    refused("b of float4_e2m1fn has its k along the rows: give b as", "tile.mma_async(acc, a, b, kind='mxf4')", dtype="float4_e2m1fn", swizzle=32)
    refused("packed float4_e2m1fn is multiplied with scale factors", "tile.mma_async(acc, a, b, trans_b=True)", dtype="float4_e2m1fn", swizzle=32)
    refused("a matrix in tensor memory|a matrix in shared memory", "tile.mma_async(acc, a, acc)")
