"""Block-scaled products by tcgen05 compared with float64 on the simulator, and through the assembler."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from tensor_operands import BOTH, memory_dtype, packed
from tilejit.layout import TileLayout

pytestmark = pytest.mark.usefixtures("assembled_later")


@tile.jit
def scaled(A, B, SA, SB, C, K: tile.constexpr, BYTES: tile.constexpr, N: tile.constexpr, WIDE: tile.constexpr, KIND: tile.constexpr,
           TYPES: tile.constexpr, BLOCK: tile.constexpr, CHUNKS: tile.constexpr, NEGATE: tile.constexpr = False):
    """A and B are raw bytes."""
    sA = tile.alloc((128, K), TYPES[0], layout=tile.swizzled(TYPES[0], (128, K), 32))
    sB = tile.alloc((N, K), TYPES[1], layout=tile.swizzled(TYPES[1], (N, K), 32))
    whole = CHUNKS if CHUNKS > 4 else 4                                # registers move whole words of four bytes
    fA = tile.alloc((128, whole), SA.dtype, scope="tmem", layout=tile.scale_layout(128, whole))
    fB = tile.alloc((WIDE, whole), SB.dtype, scope="tmem", layout=tile.scale_layout(WIDE, whole))
    acc = tile.alloc((128, N), "float32", scope="tmem")
    bar = tile.mbarrier()
    tile.copy(sA.view(tile.uint8, (128, BYTES), tile.swizzled(tile.uint8, (128, BYTES), 32)), A[0:128, 0:BYTES])
    tile.copy(sB.view(tile.uint8, (N, BYTES), tile.swizzled(tile.uint8, (N, BYTES), 32)), B[0:N, 0:BYTES])
    tile.store(fA, tile.load(SA[0:128, 0:whole], other=0))
    tile.store(fB, tile.load(SB[0:WIDE, 0:whole], other=0))
    tile.fence_proxy_async()
    tile.tcgen05_fence("before_thread_sync")
    tile.sync()
    with tile.elect():
        tile.tcgen05_fence("after_thread_sync")
        tile.mma_async(acc, sA, sB, trans_b=True, accumulate=False, kind=KIND, scale_a=fA[:, 0:CHUNKS],
                       scale_b=fB[:, 0:CHUNKS], block=BLOCK, negate=NEGATE)
        tile.tcgen05_commit(bar)
    bar.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(C[0:128, 0:N], tile.load(acc))


FORMS = [
    ("mxf8f6f4", ("e4m3", "e4m3"), 32, "ue8m0"), ("mxf8f6f4", ("e5m2", "e2m1"), 32, "ue8m0"), ("mxf8f6f4", ("e2m3", "e3m2"), 32, "ue8m0"),
    ("mxf4", ("e2m1", "e2m1"), 32, "ue8m0"), ("mxf4nvf4", ("e2m1", "e2m1"), 32, "ue8m0"), ("mxf4nvf4", ("e2m1", "e2m1"), 16, "ue8m0"),
    ("mxf4nvf4", ("e2m1", "e2m1"), 16, "ue4m3")]


@pytest.mark.parametrize("kind,types,block,factors", FORMS)
@pytest.mark.parametrize("n,k", [(32, 64), (96, 256), (40, 128)])
def test_each_block_along_k_is_scaled(kind, types, block, factors, n, k):
    """Every block-scaled kind, with its scale factors in tensor memory; a word holds those of four blocks."""
    held(kind, types, block, factors, n, k)


@pytest.mark.parametrize("kind,types,block,factors", FORMS)
def test_a_scaled_product_can_be_subtracted(kind, types, block, factors):
    """The bit of the instruction descriptor is that of the kinds without scale factors."""
    held(kind, types, block, factors, 96, 128, negate=True)


def held(kind, types, block, factors, n, k, negate=False):
    """Assert that the product, or 0 minus the product, agrees with NumPy; for n = 96 also assemble it for both targets."""
    wide, chunks = -(-n // 32) * 32, k // block
    (a, x), (b, y) = packed((128, k), types[0], kind, 1), packed((n, k), types[1], kind, 2)
    rng = np.random.default_rng(3)
    low, high = (120, 134) if factors == "ue8m0" else (0x20, 0x50)
    sa, sb = rng.integers(low, high, (128, chunks)).astype(np.uint8), rng.integers(low, high, (wide, chunks)).astype(np.uint8)
    number = lambda s: s.view(ml_dtypes.float8_e8m0fnu if factors == "ue8m0" else ml_dtypes.float8_e4m3fn).astype(np.float64)
    expected = (-1 if negate else 1) * (x * np.repeat(number(sa), block, 1)) @ (y * np.repeat(number(sb), block, 1)[:n]).T
    bound = np.abs(x * np.repeat(number(sa), block, 1)) @ np.abs(y * np.repeat(number(sb), block, 1)[:n]).T * k * 2.0 ** -23
    dtype = ml_dtypes.float8_e4m3fn if factors == "ue4m3" else ml_dtypes.float8_e8m0fnu
    sa, sb, types = sa.view(dtype), sb.view(dtype), tuple(memory_dtype(t, kind) for t in types)
    c = np.zeros((128, n), np.float32)
    options = dict(K=k, BYTES=a.shape[1], N=n, WIDE=wide, KIND=kind, TYPES=types, BLOCK=block, CHUNKS=chunks, NEGATE=negate)
    scaled.simulate(1, a, b, sa, sb, c, **options, target="sm_100a").raise_first()
    assert (np.abs(c - expected) <= bound + 1e-12).all()
    if n == 96:
        for target in BOTH:
            assert f".kind::{kind}.block_scale.scale_vec::" in scaled.compile(a, b, sa, sb, c, **options, target=target).ptx


def test_scale_factors_can_be_copied_by_the_thread_that_multiplies():
    """tcgen05.cp to the lanes of every warp, then the product, with no synchronisation in between."""
    @tile.jit
    def kernel(A, B, SA, SB, C):
        sA = tile.alloc((128, 128), A.dtype, layout=tile.swizzled(A.dtype, (128, 128), 128))
        sB = tile.alloc((128, 128), B.dtype, layout=tile.swizzled(B.dtype, (128, 128), 128))
        gA, gB = tile.alloc((128, 4), SA.dtype, layout=ROWS), tile.alloc((128, 4), SB.dtype, layout=ROWS)
        fA = tile.alloc((128, 4), SA.dtype, scope="tmem", layout=tile.scale_layout(128, 4))
        fB = tile.alloc((128, 4), SB.dtype, scope="tmem", layout=tile.scale_layout(128, 4))
        acc = tile.alloc((128, 128), "float32", scope="tmem")
        bar = tile.mbarrier()
        tile.copy(sA, A[0:128, 0:128])
        tile.copy(sB, B[0:128, 0:128])
        tile.copy(gA, SA[0:128, 0:4])
        tile.copy(gB, SB[0:128, 0:4])
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(fA, gA)
            tile.copy_async(fB, gB)
            tile.mma_async(acc, sA, sB, trans_b=True, accumulate=False, scale_a=fA, scale_b=fB)
            tile.tcgen05_commit(bar)
        bar.wait(phase=0)
        tile.tcgen05_fence("after_thread_sync")
        tile.store(C[0:128, 0:128], tile.load(acc))

    (a, x), (b, y) = packed((128, 128), "e4m3", "mxf8f6f4", 1), packed((128, 128), "e4m3", "mxf8f6f4", 2)
    rng = np.random.default_rng(3)
    sa, sb = (rng.integers(120, 134, (128, 4)).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu) for _ in range(2))
    c = np.zeros((128, 128), np.float32)
    a, b = a.view(ml_dtypes.float8_e4m3fn), b.view(ml_dtypes.float8_e4m3fn)
    for target in BOTH:
        kernel.simulate(1, a, b, sa, sb, c, target=target).raise_first()
        kernel.compile(a, b, sa, sb, c, target=target)
    number = lambda s: np.repeat(s.astype(np.float64), 32, 1)
    exact = (x * number(sa)) @ (y * number(sb)).T
    assert (np.abs(c - exact) <= np.abs(x * number(sa)) @ np.abs(y * number(sb)).T * 128 * 2.0 ** -23).all()


ROWS = TileLayout([(4, 4, "m"), (32, 16, "m"), (4, 1, "m")])  # 32 rows of 16 bytes: the scale factors of rows r, r + 32, r + 64, r + 96
