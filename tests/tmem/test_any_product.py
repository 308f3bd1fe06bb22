"""Products of any kind into tensor memory, by one CTA and by a CTA pair, A in shared or tensor memory, compared with float64."""

import re

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, given, settings, strategies as st
from tensor_operands import accumulator, memory_dtype, packed
from tilejit.layout import TileLayout, tmem_datapath
from tilejit.ops.mma.tcgen05_kinds import columns_allowed

from tests.drawn import numbers

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
PAIRS = [(np.float16, np.float16, tile.float32), (np.float16, np.float16, tile.float16), (BF16, BF16, tile.float32),
         (np.float32, np.float32, tile.float32),
         *((a, b, acc) for a in (E4M3, E5M2) for b in (E4M3, E5M2) for acc in (tile.float32, tile.float16)),
         *((a, b, tile.int32) for a in (np.int8, np.uint8) for b in (np.int8, np.uint8))]
DATAPATH = {(128, 1): "D", (64, 1): "F", (128, 2): "A", (64, 2): "B"}


@tile.jit
def any_product(A, B, C, ROWS: tile.constexpr, N: tile.constexpr, K: tile.constexpr, GROUP: tile.constexpr, SPANS: tile.constexpr, TA: tile.constexpr,
                TB: tile.constexpr, LEFT: tile.constexpr, ACC: tile.constexpr, LAYOUT: tile.constexpr, PRECISION: tile.constexpr,
                NEGATE: tile.constexpr):
    """Each CTA has ROWS of A and of C, and N of the columns of B. LEFT is the layout of A in tensor memory, or None if it is in
    shared memory."""
    r = tile.cta_rank() if GROUP == 2 else 0
    a_shape: tile.constexpr = (K, ROWS) if TA else (ROWS, K)
    b_shape: tile.constexpr = (N, K) if TB else (K, N)
    sB = tile.alloc(b_shape, B.dtype, layout=tile.swizzled(B.dtype, b_shape, SPANS[1]))
    acc = tile.alloc((ROWS, N * GROUP), ACC, scope="tmem", layout=LAYOUT, cta_group=GROUP)
    bar = tile.mbarrier()
    if LEFT is None:
        a = tile.alloc(a_shape, A.dtype, layout=tile.swizzled(A.dtype, a_shape, SPANS[0]))
        tile.copy(a, A[r, 0:a_shape[0], 0:a_shape[1]])
    else:
        a = tile.alloc((ROWS, K), A.dtype, scope="tmem", layout=LEFT, cta_group=GROUP)
        tile.store(a, tile.load(A[r, 0:ROWS, 0:K]))
    tile.copy(sB, B[r, 0:b_shape[0], 0:b_shape[1]])
    tile.fence_proxy_async()
    tile.tcgen05_fence("before_thread_sync")
    if GROUP == 2:
        tile.cluster_sync()
    else:
        tile.sync()
    if r == 0:
        with tile.elect():
            tile.tcgen05_fence("after_thread_sync")
            for i in range(3):
                tile.mma_async(acc, a, sB, trans_a=TA, trans_b=TB, precision=PRECISION, negate=NEGATE, accumulate=i > 0)
            if GROUP == 2:
                tile.tcgen05_commit(bar, multicast=3)
            else:
                tile.tcgen05_commit(bar)
    bar.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(C[r, 0:ROWS, 0:N * GROUP], tile.load(acc))


@st.composite
def products(draw):
    """Random products that the instructions support, except those with scale factors or elements of less than a byte."""
    one, other, acc = draw(st.sampled_from(PAIRS))
    size, group, rows = np.dtype(one).itemsize, draw(st.sampled_from((1, 2))), draw(st.sampled_from((64, 128)))
    left = not (rows == 64 and group == 2) and draw(st.booleans())
    ta, tb = not left and size < 4 and draw(st.booleans()), size == 4 or draw(st.booleans())
    kind = "i8" if acc == tile.int32 else "other"
    most = 240 // group if rows == 128 else 256 // group  # limited by the registers of the threads that read the accumulator
    fits = [n for n in range(8, most + 1, 8) if columns_allowed(kind, group, n * group, size == 1 and not tb) is True and (tb or n % 16 == 0)]
    n, step = draw(st.sampled_from(fits)), 32 // size
    # Rows of a swizzle, or 16-byte columns without a swizzle, must be whole.
    width = lambda span: (span or 16) // size
    k = step * draw(st.integers(1, 4))
    spans = [draw(st.sampled_from([s for s in (0, 32, 64, 128) if extent % width(s) == 0])) for extent in (rows if ta else k, k if tb else n)]
    return one, other, acc, group, rows, n, k, spans, ta, tb, left, acc != tile.int32 and draw(st.booleans()), draw(st.integers(0, 99))


def arguments(case):
    """The arrays and constants of a launch."""
    one, other, acc, group, rows, n, k, spans, ta, tb, left, negate, seed = case
    a, b = numbers((group, k, rows) if ta else (group, rows, k), one, seed), numbers((group, n, k) if tb else (group, k, n), other, seed + 1)
    datapath = DATAPATH[rows, group]
    layout, per = tmem_datapath(datapath, n * group), 32 // acc.bits
    layout = TileLayout([(e, s * per if axis == "TCol" else s, axis) for e, s, axis in layout.shards])
    constants = dict(ROWS=rows, N=n, K=k, GROUP=group, SPANS=tuple(spans), TA=ta, TB=tb, LEFT=tmem_datapath(datapath, k) if left else None,
                     ACC=acc, LAYOUT=layout,
                     PRECISION="tf32" if one == np.float32 else None, NEGATE=negate, cluster=(2, 1, 1) if group == 2 else None)
    return (a, b, np.zeros((group, rows, n * group), acc.np)), constants


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(products())
def test_random_products_into_tensor_memory_agree_with_float64(case):
    """Every pair of types except the small ones; majors, swizzles, numbers of rows and columns; added and subtracted."""
    one, _, acc, group, _, _, k, _, ta, tb, _, negate, seed = case
    (a, b, c), constants = arguments(case)
    any_product.simulate(group, a, b, c, **constants, seed=seed, target="sm_100a").raise_first()
    x, y = (v.astype(np.float64) for v in (a.swapaxes(1, 2) if ta else a, b.swapaxes(1, 2) if tb else b))
    y = np.concatenate(list(y), axis=1)
    exact, size = (-3 if negate else 3) * (x @ y), 3 * (np.abs(x) @ np.abs(y))
    if acc == tile.int32:
        np.testing.assert_array_equal(c, exact.astype(np.int64).astype(np.int32))
        return
    unit = {"float32": 2.0 ** -23, "float16": 2.0 ** -10}[acc.name]
    rounded = 2.0 ** -9 if one == np.float32 else 0.0  # both operands truncated to 10 mantissa bits
    assert (np.abs(c - exact) <= size * (3 * k * unit + rounded) + 2.0 ** -24 * 3 * k).all()


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("one,other,acc", PAIRS)
def test_every_kind_assembles_for_one_cta_and_for_a_pair(one, other, acc, group, left, target):
    """A in shared or in tensor memory; sm_103a has no integer products."""
    size = np.dtype(one).itemsize
    arrays, constants = arguments((one, other, acc, group, 128, 64, 128 // size, (128, 128), False, True, left, False, 0))
    kind = {2: "f16", 4: "tf32"}.get(size, "i8" if acc == tile.int32 else "f8f6f4")
    if kind == "i8" and target == "sm_103a":
        with pytest.raises(tile.DispatchError, match="kind::i8 on sm_103a"):
            any_product.compile(*arrays, **constants, target=target)
        return
    made = any_product.compile(*arrays, **constants, spills=0, target=target)
    assert f"tcgen05.mma.cta_group::{group}.kind::{kind}" in made.ptx
    several = r"\.multicast::cluster\.b64 \[%r\d+\], %rs\d+;" if group == 2 else r"\.b64 \[%r\d+\];"
    assert re.search(rf"tcgen05\.commit\.cta_group::{group}\.mbarrier::arrive::one\.shared::cluster{several}", made.ptx)


# -- scale factors, elements below one byte ----------------------------------------------------------------------------------

@tile.jit(cluster=(2, 1, 1))
def scaled_by_a_pair(A, B, SA, SB, C, K: tile.constexpr, BYTES: tile.constexpr, N: tile.constexpr, KIND: tile.constexpr, TYPES: tile.constexpr,
                     BLOCK: tile.constexpr, CHUNKS: tile.constexpr, LAYOUT: tile.constexpr):
    """A and B are raw bytes. Each CTA has 128 rows of A with their scale factors, half of the columns of B, and the scale factors of
    all columns."""
    r = tile.cta_rank()
    sA = tile.alloc((128, K), TYPES[0], layout=tile.swizzled(TYPES[0], (128, K), 32))
    sB = tile.alloc((N, K), TYPES[1], layout=tile.swizzled(TYPES[1], (N, K), 32))
    whole = CHUNKS if CHUNKS > 4 else 4
    fA = tile.alloc((128, whole), SA.dtype, scope="tmem", layout=tile.scale_layout(128, whole), cta_group=2)
    fB = tile.alloc((2 * N, whole), SB.dtype, scope="tmem", layout=tile.scale_layout(2 * N, whole), cta_group=2)
    acc = tile.alloc((128, 2 * N), "float32", scope="tmem", layout=LAYOUT, cta_group=2)
    bar = tile.mbarrier()
    tile.copy(sA.view(tile.uint8, (128, BYTES), tile.swizzled(tile.uint8, (128, BYTES), 32)), A[r, 0:128, 0:BYTES])
    tile.copy(sB.view(tile.uint8, (N, BYTES), tile.swizzled(tile.uint8, (N, BYTES), 32)), B[r, 0:N, 0:BYTES])
    tile.store(fA, tile.load(SA[r, 0:128, 0:whole], other=0))
    tile.store(fB, tile.load(SB[0:2 * N, 0:whole], other=0))
    tile.fence_proxy_async()
    tile.tcgen05_fence("before_thread_sync")
    tile.cluster_sync()
    if r == 0:
        with tile.elect():
            tile.tcgen05_fence("after_thread_sync")
            tile.mma_async(acc, sA, sB, trans_b=True, accumulate=False, kind=KIND, scale_a=fA[:, 0:CHUNKS], scale_b=fB[:, 0:CHUNKS], block=BLOCK)
            tile.tcgen05_commit(bar, multicast=3)
    bar.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(C[r, 0:128, 0:2 * N], tile.load(acc))


SCALED = [*(("mxf8f6f4", types, 32, "ue8m0") for types in (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e2m1", "e2m3"), ("e3m2", "e5m2"))),
          ("mxf4", ("e2m1", "e2m1"), 32, "ue8m0"), *(("mxf4nvf4", ("e2m1", "e2m1"), block, factors) for block, factors in ((32, "ue8m0"), (16, "ue8m0"), (16, "ue4m3")))]


@pytest.mark.parametrize("kind,types,block,factors", SCALED)
@pytest.mark.parametrize("n,k", [(32, 128), (48, 256), (80, 64)])
def test_block_scaled_products_of_a_cta_pair_agree_with_float64(kind, types, block, factors, n, k):
    """Every block-scaled kind with cta_group=2, compiled for both targets."""
    held = {"ue8m0": ml_dtypes.float8_e8m0fnu, "ue4m3": E4M3}[factors]
    chunks, rng = k // block, np.random.default_rng(3)
    (a, x), (b, y) = packed((256, k), types[0], kind, 1), packed((2 * n, k), types[1], kind, 2)
    low, high = (120, 134) if factors == "ue8m0" else (0x20, 0x50)
    sa, sb = (rng.integers(low, high, (rows, chunks)).astype(np.uint8).view(held) for rows in (256, 2 * n))
    x, y = x * np.repeat(sa.astype(np.float64), block, 1), y * np.repeat(sb.astype(np.float64), block, 1)
    c, whole = np.zeros((2, 128, 2 * n), np.float32), lambda v, rows: v.reshape(2, rows, -1)
    constants = dict(K=k, BYTES=a.shape[1], N=n, KIND=kind, TYPES=tuple(memory_dtype(t, kind) for t in types), BLOCK=block, CHUNKS=chunks,
                     LAYOUT=tmem_datapath("A", 2 * n))
    arrays = whole(a, 128), whole(b, n), whole(sa, 128), sb, c
    for seed in range(2):
        scaled_by_a_pair.simulate(2, *arrays, **constants, seed=seed, target="sm_100a").raise_first()
        assert (np.abs(c.reshape(256, -1) - x @ y.T) <= np.abs(x) @ np.abs(y.T) * k * 2.0 ** -23 + 1e-12).all()
    if n == 48:
        for target in ("sm_100a", "sm_103a"):
            assert f"tcgen05.mma.cta_group::2.kind::{kind}.block_scale.scale_vec::" in scaled_by_a_pair.compile(*arrays, **constants, target=target).ptx


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("types,acc", [*((types, acc) for types in (("e2m1", "e2m1"), ("e2m1", "e4m3"), ("e2m3", "e3m2"), ("e3m2", "e2m1")) for acc in ("float32", "float16")),
                                       (("e5m2", "e2m3"), "float32")])
def test_products_of_elements_below_one_byte_agree_with_float64(types, acc, target):
    """kind::f8f6f4 with every combination of 4-, 6- and 8-bit elements."""
    @tile.jit
    def kernel(A, B, C, TYPES: tile.constexpr):
        sA = tile.alloc((128, 128), TYPES[0], layout=tile.swizzled(TYPES[0], (128, 128), 128))
        sB = tile.alloc((64, 128), TYPES[1], layout=tile.swizzled(TYPES[1], (64, 128), 128))
        acc = tile.alloc((128, 64), C.dtype, scope="tmem", layout=LAYOUT)
        bar = tile.mbarrier()
        tile.copy(sA.view(tile.uint8, (128, 128), tile.swizzled(tile.uint8, (128, 128), 128)), A[0:128, 0:128])
        tile.copy(sB.view(tile.uint8, (64, 128), tile.swizzled(tile.uint8, (64, 128), 128)), B[0:64, 0:128])
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.mma_async(acc, sA, sB, trans_b=True, accumulate=False)
            tile.tcgen05_commit(bar)
        bar.wait(phase=0)
        tile.tcgen05_fence("after_thread_sync")
        tile.store(C[0:128, 0:64], tile.load(acc))

    LAYOUT = accumulator(128, 64, getattr(tile, acc))
    (a, x), (b, y) = packed((128, 128), types[0], "f8f6f4", 1), packed((64, 128), types[1], "f8f6f4", 2)
    c = np.zeros((128, 64), acc)
    constants = dict(TYPES=tuple(memory_dtype(t, "f8f6f4") for t in types), target=target)
    kernel.simulate(1, a, b, c, **constants).raise_first()
    size, unit = np.abs(x) @ np.abs(y.T), {"float32": 2.0 ** -23, "float16": 2.0 ** -10}[acc]
    held = size < (2.0 ** 15 if acc == "float16" else np.inf)  # larger sums may overflow
    assert held.any() and (np.abs(c - x @ y.T) <= size * 128 * unit)[held].all()
    assert "tcgen05.mma.cta_group::1.kind::f8f6f4" in kernel.compile(a, b, c, **constants).ptx
