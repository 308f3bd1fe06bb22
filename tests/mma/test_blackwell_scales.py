"""Block-scaled matmul with the scale formats of Blackwell's tensor cores: mxfp8, mxfp4, nvfp4, with arguments as for torch._scaled_mm."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, given, settings, strategies as st
from tilejit import kernels
from tilejit.errors import LaunchError
from tilejit.kernels.matmul.blackwell.config import COLUMNS, BlackwellConfig, choose
from tilejit.kernels.matmul.choice import Problem
from tilejit.kernels.matmul.config import SHARED
from tilejit.runtime.packed import Packed

from tests.mma.products import multiplying_on, planned, with_layout
from tests.tmem.test_block_scaled import E2M1, FORMS, operand

E8M0, E4M3 = ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fn


@pytest.fixture(autouse=True, scope="module")
def blackwell():
    """Multiply NumPy arrays as on Blackwell."""
    with multiplying_on("sm_100a"):
        yield


def config_of(form, bn, pair=False, **options):
    element, _, block = FORMS[form]
    return BlackwellConfig.of(bn, pair, itemsize=0.5 if element is E2M1 else 1, stored=4, block=block, **options)


def checked(m, n, k, form, seed=0, a_is="rows", b_is="rows", dtype=np.float32, flat=False, **options):
    rng = np.random.default_rng(seed)
    (a, sa, x), (b, sb, y) = operand(rng, m, k, form), operand(rng, n, k, form)
    if FORMS[form][0] is not E2M1:
        a, b = with_layout(a, a_is), with_layout(b, b_is)
    if flat:
        sa, sb = sa.reshape(-1), sb.reshape(len(sb), -1)
    c = np.full((m, n), np.nan, dtype)
    assert kernels.matmul(a, b.T, c, scale_a=sa, scale_b=sb, **options) is c
    bound = np.abs(x @ y.T) * 2.0 ** -(24 if dtype == np.float32 else 8) + np.abs(x) @ np.abs(y).T * (k + 2) * 2.0 ** -23
    assert (np.abs(c - x @ y.T) <= bound).all()


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(m=st.integers(1, 300), n=st.integers(1, 300), k=st.integers(1, 12), form=st.sampled_from(sorted(FORMS)), seed=st.integers(0, 99),
       flat=st.booleans(),
       a_is=st.sampled_from(("rows", "columns", "padded", "spaced")), b_is=st.sampled_from(("rows", "columns", "reversed")),
       dtype=st.sampled_from((np.float32, ml_dtypes.bfloat16)))
def test_block_scaled_products_of_any_extents_and_formats_are_right(m, n, k, form, seed, flat, a_is, b_is, dtype):
    """Ragged rows, columns and blocks, one-byte elements with any strides, scale factors flat or in any equivalent shape."""
    k = 32 * k if FORMS[form][0] is E2M1 else 32 * k - seed % 32
    checked(m, n, k, form, seed, a_is, b_is, dtype, flat)


@pytest.mark.parametrize("form,bn,pair,splits,swapped", [("mxf8", 256, False, 1, False), ("nvf4", 128, True, 1, True), ("mxf8", 256, True, 1, False),
                                                          ("nvf4", 256, True, 1, False), ("mxf8", 128, False, 2, False),
                                                         ("nvf4", 128, False, 4, True)])
def test_tiles_cta_pairs_and_split_k_with_scale_factors_are_right(form, bn, pair, splits, swapped):
    """One or two accumulators next to the factors, two CTAs per tile, several for its k, swapped operands."""
    checked(200, 270, 416, form, config=config_of(form, bn, pair, splits=splits, swapped=swapped, stages=2))


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("form", sorted(FORMS))
@pytest.mark.parametrize("bn,pair", [(256, False), (128, True)])
def test_every_format_assembles_without_spills(bn, pair, form, target):
    """Elements and factors by TMA, factors then by tcgen05.cp, one commit for the slot of both."""
    from tilejit.kernels.matmul.blackwell.persistent import persistent
    rng = np.random.default_rng(0)
    (a, sa, _), (b, sb, _) = operand(rng, 256, 1024, form), operand(rng, 256, 1024, form)
    c = np.zeros((256, 256), np.float32)
    launch = planned(a, b.T, c, None, (), config_of(form, bn, pair), scales=(sa, sb), target=target)
    made = persistent.compile(a, b, c, sa, sb, 0, 0, 0, 0, **launch.constants, target=target)
    kind = {"nvf4": "mxf4nvf4", "mxf4": "mxf4"}.get(form, "mxf8f6f4")
    copies = made.ptx.count(f"tcgen05.cp.cta_group::{1 + pair}.32x128b.warpx4")
    assert made.spills == 0 and made.ptx.count(f"tcgen05.mma.cta_group::{1 + pair}.kind::{kind}.block_scale") == 4
    assert copies == (1 + bn // 128) * launch.plan.bk // launch.plan.block // 4 and made.ptx.count("tcgen05.commit") == 2


def test_scale_factors_and_accumulators_fit_in_tensor_memory():
    for itemsize, block in ((1, 32), (0.5, 32), (0.5, 16)):
        for extents in ((1, 1, 32), (4096, 4096, 4096), (16, 8192, 8192), (100000, 40, 96), (64, 64, 65536)):
            c = choose(Problem(*extents, 1, itemsize, 2, block=block), 148)
            units = c.bk // block // 4
            assert c.bn % 128 == 0 and c.stages >= 2 and c.bk % (4 * block) == 0
            assert c.places(block) * c.bn + units * (128 + c.bn) // 32 <= COLUMNS
            assert c.stages * ((128 + c.bn // (2 if c.pair else 1)) * 128 + units * 512 * (1 + c.bn // 128)) <= SHARED


def test_scaled_accumulators_go_through_an_epilogue():
    """A scale for the whole result, as nvfp4 has in addition to those of blocks, is an argument."""
    rng = np.random.default_rng(4)
    (a, sa, x), (b, sb, y) = operand(rng, 70, 128, "nvf4"), operand(rng, 90, 128, "nvf4")
    c = kernels.matmul(a, b.T, None, times, (0.25,), scale_a=sa, scale_b=sb)
    assert c.dtype == ml_dtypes.bfloat16 and np.allclose(c.astype(np.float64), x @ y.T * 0.25, rtol=2.0 ** -7, atol=1e-2)


def test_products_with_k_of_zero_are_zero():
    a, b, none = np.zeros((5, 0), E4M3), np.zeros((0, 7), E4M3), np.zeros(0, E8M0)
    assert (kernels.matmul(a, b, np.ones((5, 7), np.float32), scale_a=none, scale_b=none) == 0).all()


@tile.jit
def times(acc, row, column, factor):
    return acc * factor


def test_invalid_operands_and_scales_are_named():
    rng = np.random.default_rng(5)
    (a, sa, _), (b, sb, _) = operand(rng, 200, 160, "mxf8"), operand(rng, 130, 160, "mxf8")
    (p, sp, _), (q, sq, _) = operand(rng, 200, 160, "nvf4"), operand(rng, 130, 160, "nvf4")
    mul = lambda a, b, sa=None, sb=None, **options: (lambda: kernels.matmul(a, b, scale_a=sa, scale_b=sb, **options))
    wide = np.zeros((2, 2, 1024), E8M0)
    for match, call in {
        r"scale_a must be contiguous units of 512 bytes, each the factors of 128 of M and 4 blocks of 32 along k: 2 x 2 of them here, 2048 elements, not an array of "
        r"shape \(200, 5\)": mul(a, b.T, np.ones((200, 5), E8M0), sb),
        "scale_b .* 128 of N .* 2 x 2 .* shape \\(1, 2, 512\\)": mul(a, b.T, sa, sb[:1]),
        "with gaps or in another order": mul(a, b.T, wide[:, :, ::2], sb),
        "scale_a for float8_e4m3fn must be of float8_e8m0fnu for blocks of 32 on Blackwell, not of float8_e4m3fn": mul(a, b.T, sa.view(E4M3), sb),
        "scale_b for float8_e4m3fn must be of .*, not a number": mul(a, b.T, sa, 2.0),
        "scale_a for float8_e4m3fn must be of float8_e8m0fnu .*, not of float32": mul(a, b.T, np.ones((200, 2), np.float32), np.ones((2, 130), np.float32)),
        "one dtype, not of float8_e4m3fn and float8_e8m0fnu": mul(p, q.T, sp, np.ones(2 * 2 * 512, E8M0)),
        "only with a scale factor for each block along k: give scale_a and scale_b": mul(p, q.T),
        "b has a stride of 64 bytes there": mul(p, tile.pack(np.zeros((160, 128), E2M1)), sp, sq),
        "a is of float4_e2m1fn and b of float8_e4m3fn": mul(p, b[:, :80].T, sp, sq),
        "two matrices of float8 or of float4, and a is of float16": mul(np.zeros((200, 160), np.float16), np.zeros((160, 130), np.float16), sa, sb),
        "two matrices .* shape \\(1, 200, 160\\)": mul(a[None], b.T, sa, sb),
        "begin at multiples of 16 bytes": mul(Packed(p.data[:, :40][:, 4:36], p.dtype), Packed(q.data[:, :32], q.dtype).T,
                                              np.ones(1024, E4M3), np.ones(1024, E4M3)),
        "units of 128 columns and 4 blocks of 32 along k: the configuration's bn and bk must be multiples of 128 and 128, not 64 and 128":
            mul(a, b.T, sa, sb, config=BlackwellConfig.of(64, itemsize=1)),
        "scale_a must be of float32, or of .* not of float64": mul(a, b.T, np.ones((200, 2)), sb),
    }.items():
        with pytest.raises(LaunchError, match=match):
            call()
    with multiplying_on("sm_90a"):
        with pytest.raises(LaunchError, match="float4 is multiplied by the tensor cores of sm_100a and sm_103a, and the target is sm_90a"):
            kernels.matmul(p, q.T, scale_a=sp, scale_b=sq)
        with pytest.raises(LaunchError, match=r"scale_a must be \[M or M/128, K/128\]"):
            kernels.matmul(a, b.T, scale_a=sa, scale_b=sb)


def test_a_transposed_packed_matrix_can_only_be_an_operand_of_products():
    x = tile.pack(np.arange(12).reshape(2, 6) % 6, "float4_e2m1fn")
    assert x.T.shape == (6, 2) and x.T.T.shape == (2, 6)
    np.testing.assert_array_equal(x.T.unpack().astype(np.float32), x.unpack().T.astype(np.float32))
    y = np.zeros((6, 2), np.float32)
    cast[1,](tile.pack(np.arange(12).reshape(6, 2) % 6, "float4_e2m1fn"), y)
    np.testing.assert_array_equal(y, [[0, 1], [2, 3], [4, 4], [0, 1], [2, 3], [4, 4]])  # 5 is between 4 and 6, and rounds to the even one
    with pytest.raises(LaunchError, match=r"packed float4_e2m1fn needs a contiguous last dimension; this array has shape \(3, 2\) and strides \(1, 3\)"):
        cast[1,](x.T, np.zeros((6, 2), np.float32))
    with pytest.raises(LaunchError, match="a matrix has a transpose"):
        tile.pack(np.zeros((2, 2, 2)), "float4_e2m1fn").T


@tile.jit
def cast(x, y):
    tile.store(y[0:6, 0:2], tile.cast(tile.load(x[0:6, 0:2]), tile.float32))
