"""Block-scaled products of any extents: elements and scale factors in one ring, factors copied to tensor memory between the products."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, given, settings, strategies as st
from tilejit import TileLayout

UNIT = 512  # bytes of the scale factors of 128 rows and 4 blocks: 16 bytes for each four rows r, r + 32, r + 64 and r + 96


@tile.jit(num_warps=6)
def block_scaled(A, B, SA, SB, C, BK: tile.constexpr, BLOCK: tile.constexpr, STAGES: tile.constexpr):
    """C = A @ B^T, where each block of BLOCK along k of A and B has a scale factor, in units of 128 rows and 4 blocks."""
    UNITS = BK // BLOCK // 4
    FACTORS = TileLayout(((4, 4, "m"), (32, 16, "m"), (UNITS, UNIT, "m"), (4, 1, "m")))
    ROWS = TileLayout(((UNITS, UNIT, "m"), (UNIT, 1, "m")))
    ring = tile.ring(STAGES, A=((128, BK), A.dtype), B=((128, BK), B.dtype),
                     SA=((UNITS, UNIT), SA.dtype, ROWS), SB=((UNITS, UNIT), SB.dtype, ROWS))
    sums = tile.ring(2, D=((128, 128), tile.float32), filled="products")
    fA = tile.alloc((128, 4 * UNITS), SA.dtype, scope="tmem", layout=tile.scale_layout(128, 4 * UNITS))
    fB = tile.alloc((128, 4 * UNITS), SB.dtype, scope="tmem", layout=tile.scale_layout(128, 4 * UNITS))
    down, across, steps = tile.cdiv(A.shape[0], 128), tile.cdiv(B.shape[0], 128), tile.cdiv(A.shape[1], BK)
    with tile.warp(4):
        with tile.elect():
            for m, n in tile.tile_order(down, across):
                for k in range(steps):
                    with ring.produce() as slot:
                        tile.copy_async(slot.A, A[m * 128:m * 128 + 128, k * BK:k * BK + BK], mbar=slot.full)
                        tile.copy_async(slot.B, B[n * 128:n * 128 + 128, k * BK:k * BK + BK], mbar=slot.full)
                        tile.copy_async(slot.SA, SA[m, k * UNITS:k * UNITS + UNITS, 0:UNIT], mbar=slot.full)
                        tile.copy_async(slot.SB, SB[n, k * UNITS:k * UNITS + UNITS, 0:UNIT], mbar=slot.full)
    with tile.warp(5):
        with tile.elect():
            for m, n in tile.tile_order(down, across):
                with sums.produce() as acc:
                    for k in range(steps):
                        with ring.consume() as slot:
                            tile.copy_async(fA, slot.SA.view(shape=(128, 4 * UNITS), layout=FACTORS))
                            tile.copy_async(fB, slot.SB.view(shape=(128, 4 * UNITS), layout=FACTORS))
                            tile.mma_async(acc.D, slot.A, slot.B, trans_b=True, accumulate=k > 0, scale_a=fA, scale_b=fB, block=BLOCK)
    with tile.warpgroup(0):
        for m, n in tile.tile_order(down, across):
            with sums.consume() as acc:
                tile.store(C[m * 128:m * 128 + 128, n * 128:n * 128 + 128], tile.load(acc.D))



E8M0, E4M3, E5M2, E2M1 = ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn
FORMS = {"mxf8": (E4M3, E8M0, 32), "mxf8 of e5m2": (E5M2, E8M0, 32), "mxf4": (E2M1, E8M0, 32), "nvf4": (E2M1, E4M3, 16)}


def units(factors):
    """Scale factors [rows, blocks] in the layout that the tensor cores take: (rows / 128, blocks / 4, 512), extents rounded up."""
    rows, blocks = factors.shape
    wide = np.ones((-(-rows // 128) * 128, -(-blocks // 4) * 4), factors.dtype)
    wide[:rows, :blocks] = factors
    parts = wide.reshape(-1, 4, 32, wide.shape[1] // 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(parts).reshape(*parts.shape[:2], UNIT)


def scaled_numbers(x, factors, block):
    return x.astype(np.float64) * np.repeat(factors.astype(np.float64), block, axis=1)[:, :x.shape[1]]


def operand(rng, rows, k, form):
    """(elements as the kernel takes them, their scale factors, the numeric values)."""
    element, factor, block = FORMS[form]
    x = rng.standard_normal((rows, k)).astype(element)
    factors = np.exp2(rng.integers(-3, 4, (rows, -(-k // block)))).astype(factor) if factor is E8M0 else \
        rng.uniform(0.1, 8, (rows, -(-k // block))).astype(factor)
    return tile.pack(x) if element is E2M1 else x, units(factors), scaled_numbers(x, factors, block)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 25), st.sampled_from(sorted(FORMS)), st.integers(1, 3), st.integers(0, 99))
def test_block_scaled_products_of_any_extents_agree_with_float64(m, n, k, form, stages, seed):
    """Ragged rows, columns and blocks, more tiles than CTAs, and any order of events."""
    rng, k = np.random.default_rng(seed), 32 * k
    (a, sa, x), (b, sb, y) = operand(rng, m, k, form), operand(rng, n, k, form)
    c = np.full((m, n), np.nan, np.float32)
    constants = dict(BK=256 if "4" in form else 128, BLOCK=FORMS[form][2], STAGES=stages)
    block_scaled.simulate(2, a, b, sa, sb, c, **constants, seed=seed, target="sm_100a").raise_first()
    assert (np.abs(c - x @ y.T) <= np.abs(x) @ np.abs(y).T * (k + 2) * 2.0 ** -23).all()


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("form", sorted(FORMS))
def test_block_scaled_products_assemble_in_every_form(form, target):
    """Scale factors come by TMA and tcgen05.cp, one copy for 128 rows and 4 blocks each, and one commit releases the ring slot of both."""
    rng = np.random.default_rng(0)
    (a, sa, _), (b, sb, _) = operand(rng, 128, 256, form), operand(rng, 128, 256, form)
    bk = 256 if "4" in form else 128
    made = block_scaled.compile(a, b, sa, sb, np.zeros((128, 128), np.float32), BK=bk, BLOCK=FORMS[form][2], STAGES=4, target=target)
    assert [c.variant for c in made.copies] == ["tma"] * 4 + ["tcgen05_cp"] * 2 + ["tcgen05_ldst"] and made.spills == 0
    assert made.ptx.count("tcgen05.cp.cta_group::1.32x128b.warpx4") == 2 * bk // FORMS[form][2] // 4 and made.ptx.count("tcgen05.commit") == 2
    assert made.ptx.count(f".kind::{ {'nvf4': 'mxf4nvf4', 'mxf4': 'mxf4'}.get(form, 'mxf8f6f4')}.block_scale") == 4
