"""Products of float8 with a scale for each block of 128 along k, and float32 accumulation by threads after each 128 of k."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, given, settings, strategies as st
from tilejit import ArraySpec, kernels
from tilejit.errors import LaunchError
from tilejit.kernels.matmul.choice import CLUSTERS, TILES, Config, Problem, choose, rank_configs
from tilejit.kernels.matmul.hopper.persistent import persistent
from tilejit.kernels.matmul.hopper.split import split

from tests.drawn import drawn
from tests.mma.products import EXTENT, LAYOUTS, planned, product, with_layout

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


def up(extent: int) -> int:
    return -(-extent // 128)


def scales(rng, extent: int, k: int, by_row: bool) -> np.ndarray:
    """Random scales [extent or extent / 128, k / 128]: not powers of two, of both signs."""
    return (rng.uniform(0.5, 2, (extent if by_row else up(extent), up(k))) * rng.choice((-1, 1))).astype(np.float32)


def per_element(s: np.ndarray, extent: int, k: int) -> np.ndarray:
    """The scale of each element [extent, k]."""
    s = s if len(s) == extent else np.repeat(s, 128, 0)[:extent]
    return np.repeat(s.astype(np.float64), 128, 1)[:, :k]


def close(got, x, y):
    """Assert an error within one rounding of the result, the roundings of k float32 additions, and those of two scale factors."""
    exact, k = x @ y, x.shape[1]
    places = 8 if got.dtype.name == "bfloat16" else 24
    bound = np.abs(exact) * 2.0 ** -places + np.abs(x) @ np.abs(y) * (k + 6) * 2.0 ** -23 + 1e-6
    assert (np.abs(got.astype(np.float64) - exact) <= bound).all()


def checked(rng, m, n, k, by_row, by_column, a_is="rows", b_is="columns", dtypes=(E4M3, E4M3), scales_are="rows", out=None, **options):
    a, b = (with_layout(rng.standard_normal(shape).astype(dtype), how) for shape, dtype, how in (((m, k), dtypes[0], a_is), ((k, n), dtypes[1], b_is)))
    sa, sb = scales(rng, m, k, by_row), scales(rng, n, k, by_column)
    got = product(a, b, out, scale_a=with_layout(sa, scales_are), scale_b=with_layout(sb.T, scales_are), **options)
    close(got, a.astype(np.float64) * per_element(sa, m, k), b.astype(np.float64) * per_element(sb, n, k).T)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(m=EXTENT, n=EXTENT, k=st.one_of(st.integers(1, 20), st.sampled_from((127, 128, 129, 300, 640))), by_row=st.booleans(), by_column=st.booleans(),
       a_is=LAYOUTS, b_is=LAYOUTS, scales_are=LAYOUTS, dtypes=st.sampled_from(((E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3))), seed=st.integers(0, 99))
def test_block_scaled_products_of_any_extents_and_both_kinds_of_scales_are_right(m, n, k, by_row, by_column, a_is, b_is, scales_are, dtypes, seed):
    """Ragged blocks at every edge, scales per row or per 128 rows, with any strides."""
    checked(np.random.default_rng(seed), m, n, k, by_row, by_column, a_is, b_is, dtypes, scales_are)


@pytest.mark.parametrize("by_row,by_column", [(True, False), (False, True), (False, False), (True, True)])
@pytest.mark.parametrize("bm,bn,splits,swapped",
                         [(128, 256, 1, False), (192, 128, 1, False), (192, 64, 1, True), (128, 64, 1, True), (64, 64, 2, False),
                                                  (64, 32, 4, True), (64, 128, 1, False)])
def test_block_scaled_tiles_split_k_and_swapped_operands_are_right(bm, bn, splits, swapped, by_row, by_column):
    """Tiles with one or two blocks of columns, and one or one and a half of rows; split k, swapped operands; results stored by
    TMA or by threads, each with scales per row and per 128 rows of either operand."""
    config = Config.of(bm, bn, 128, itemsize=1, stored=4, splits=splits, swapped=swapped, stages=3)
    checked(np.random.default_rng(1), 200, 331 if by_row == by_column else 384, 600, by_row, by_column, config=config, out=np.float32)
    if splits > 1:
        config = replace(config, splits=5, clustered=False)
        checked(np.random.default_rng(1), 200, 331, 600, by_row, by_column, config=config, out=np.float32)


@pytest.mark.parametrize("m", [36, 70, 120])
def test_scale_rows_of_swapped_operands_may_take_any_number_of_bytes_in_a_slot(m):
    """The model chooses tiles as wide as the few rows."""
    checked(np.random.default_rng(1), m, 331, 400, True, False, out=np.float32)


def test_scales_of_a_tile_whose_width_is_not_a_multiple_of_32_are_right():
    for m, n in ((33, 130), (200, 331)):
        checked(np.random.default_rng(1), m, n, 300, True, True, config=Config.of(64, 48, 128, itemsize=1, stored=4, stages=3))


def test_scaled_accumulators_go_through_the_epilogue_with_prefetched_tiles():
    rng = np.random.default_rng(2)
    m, n, k = 300, 328, 520
    a, b = rng.standard_normal((m, k)).astype(E4M3), with_layout(rng.standard_normal((k, n)).astype(E4M3), "columns")
    sa, sb = scales(rng, m, k, True), scales(rng, n, k, False)
    bias, residual = rng.standard_normal(n).astype(np.float32), rng.standard_normal((m, n)).astype(np.float16)
    got = kernels.matmul(a, b, np.empty((m, n), np.float16), linear, (bias,), tiles=(residual,), scale_a=sa, scale_b=sb.T,
                         config=Config.of(128, 128, itemsize=1, stages=3))
    want = (a.astype(np.float64) * per_element(sa, m, k)) @ (b.astype(np.float64) * per_element(sb, n, k).T) + bias + residual
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-2)


@tile.jit
def linear(acc, row, column, bias, residual):
    return acc + tile.load(bias[column:column + acc.shape[1]])[None, :] + residual


def test_float8_is_accumulated_by_threads_unless_fast_accum_is_set():
    """The default, `fast_accum`, and other dtypes, which the tensor cores accumulate in float32 themselves."""
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((70, 700)).astype(E4M3), with_layout(rng.standard_normal((700, 90)).astype(E4M3), "columns")
    for fast in (False, True):
        close(product(a, b, np.float32, fast_accum=fast), a.astype(np.float64), b.astype(np.float64))
    float8, half = np.zeros((64, 64), E4M3), np.zeros((64, 64), np.float16)
    config = Config.of(64, 64, 128, itemsize=1, stages=3)
    assert planned(float8, float8, half, None, (), config).plan.promoted
    assert not planned(float8, float8, half, None, (), config, fast_accum=True).plan.promoted
    assert not planned(half, half, half, None, (), config).plan.promoted


def test_configurations_with_accumulation_by_threads_do_not_spill():
    """The model's choices for large products, with and without scales."""
    array = ArraySpec((8192, 8192), "float8_e4m3fn")
    for promoted in ((), (True, False), (False, False), (True, True)):
        config = choose(Problem(8192, 8192, 8192, 1, 1, 2, promoted=promoted), 132)
        launch = planned(*[np.zeros((64, 64), E4M3)] * 2, np.zeros((64, 64), ml_dtypes.bfloat16), None, (), config).with_plan(blocks=promoted)
        by = [ArraySpec((64, 8192 if row else 64), "float32") for row in promoted] or [1.0, 1.0]
        compiled = persistent.compile(array, array, ArraySpec((8192, 8192), "bfloat16"), *by, 0, 0, 0, 0, **launch.constants)
        assert compiled.spills == 0 and "convert_layout" not in str(compiled.graph)
    assert not Problem(1, 1, 1, promoted=(True, False)).swap_operands().takes(128, 256)
    assert all(Problem(1, 1, 1).takes(*t) for t in TILES) and 1 in CLUSTERS


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("promoted", [(True, False), (False, False), (True, True), (False, True)])
def test_block_scales_bring_no_proxy_fence_since_threads_read_nothing_that_tma_overwrites(promoted, splits):
    """Threads load the scales from global memory; the fences that remain are for the results, as without scales."""
    half, config = np.zeros((64, 64), ml_dtypes.bfloat16), Config.of(128, 128, 128, itemsize=1, stages=3, splits=splits)
    launch = planned(*[np.zeros((64, 64), E4M3)] * 2, half, None, (), config)
    array, result = ArraySpec((8192, 8192), "float8_e4m3fn"), ArraySpec((8192, 8192), "bfloat16")
    kernel, room = (split, (0, 0)) if splits > 1 else (persistent, ())

    def fences_and_copies(blocks: tuple) -> tuple[int, int]:
        scales_ = [ArraySpec((64, 8192 if row else 64), "float32") for row in blocks] or [1.0, 1.0]
        ptx = kernel.compile(array, array, result, *scales_, 0, 0, 0, 0, *room, **launch.with_plan(blocks=blocks).constants).ptx
        return ptx.count("fence.proxy.async"), ptx.count("cp.async.bulk.tensor")
    assert fences_and_copies(promoted) == fences_and_copies(())


@pytest.mark.parametrize("promoted", [(), (True, False), (False, False), (True, True), (False, True)])
def test_tiles_that_the_model_chooses_have_the_columns_of_one_scale_block(promoted):
    """Except narrow tiles that cover all columns, with no other tile next to them."""
    for extents in ((64, 96, 512), (384, 300, 4096), (768, 1536, 4096), (96, 768, 16384), (3000, 5000, 1000)):
        for c in rank_configs(Problem(*extents, itemsize=1, promoted=promoted), 132):
            assert 128 % c.bn == 0 or c.bn == 256 or extents[not c.swapped] <= c.bn <= 128


def test_tiles_across_scale_blocks_are_refused_unless_the_product_has_only_one_block_of_columns():
    rng = np.random.default_rng(0)
    a, b = drawn(rng, (70, 256), E4M3), drawn(rng, (256, 120), E4M3)
    sa, sb = rng.random((70, 2), np.float32) + 0.5, rng.random((2, 1), np.float32) + 0.5
    config = Config.of(64, 40, 128, itemsize=1)
    want = (a.astype(float) * np.repeat(sa, 128, 1)) @ (b.astype(float) * np.repeat(sb, 128, 0))
    assert np.abs(kernels.matmul(a, b, scale_a=sa, scale_b=sb, config=config).astype(float) - want).max() <= np.abs(want).max() * 2.0 ** -8
    with pytest.raises(LaunchError, match="scale of one block of 128: the configuration's bn must be a divisor of it, not 40"):
        kernels.matmul(a, np.tile(b, 2), scale_a=sa, scale_b=np.tile(sb, 2), config=config)


def test_scales_of_the_wrong_shape_are_errors():
    a, b = np.zeros((300, 260), E4M3), np.zeros((260, 200), E4M3)
    sa, sb = np.ones((300, 3), np.float32), np.ones((3, 2), np.float32)
    half = np.zeros((64, 64), np.float16)
    for match, call in {
        r"scale_a must be \[M or M/128, K/128\]: of shape \(300, 3\) or \(3, 3\) here, not \(3, 300\)": lambda: kernels.matmul(a, b, scale_a=sa.T, scale_b=sb),
        r"scale_b must be \[K/128, N or N/128\]: of shape \(3, 200\) or \(3, 2\) here, not \(2, 3\)": lambda: kernels.matmul(a, b, scale_a=sa, scale_b=sb.T),
        r"scale_b must be \[K/128, N or N/128\]: .*, not \(\)": lambda: kernels.matmul(a, b, scale_a=sa, scale_b=2.0),
        r"scale_a must be a number, an array of one element, or .*, not of shape \(3,\)": lambda: kernels.matmul(a, b, scale_a=sa[0]),
        "two matrices of float8": lambda: kernels.matmul(half, half, scale_a=np.ones((64, 1), np.float32), scale_b=np.ones((1, 64), np.float32)),
        "config.width must be at most 128, not 256": lambda: kernels.matmul(a, b, config=Config.of(128, 256, itemsize=1, width=256)),
        "bn must be at most 128 or a multiple of it, not 192": lambda: kernels.matmul(a, b, scale_a=sa, scale_b=sb, config=Config.of(128, 192, itemsize=1)),
        "where threads add up the sums of each slot, the configuration's bk must be 128, not 256":
            lambda: kernels.matmul(a, b, scale_a=sa, scale_b=sb, config=Config.of(64, 16, itemsize=1)),
        "scale_a must be of float32, .* not of float64": lambda: kernels.matmul(a, b, scale_a=sa.astype(np.float64), scale_b=sb),
    }.items():
        with pytest.raises(LaunchError, match=match):
            call()


@pytest.mark.parametrize("dtype", [np.float16, E4M3, np.int8])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_scale_is_a_number_or_an_array_of_one_element_of_any_rank(dtype, batch):
    """As in torch: of rank 0, 1 or 2; for two float8 matrices, the latter could also be block scales."""
    a, b = np.ones((*batch, 40, 200), dtype), np.ones((200, 24), dtype)
    for shape in ((), (1,), (1, 1), (1, 1, 1)):
        for given in (dict(scale_a=np.full(shape, 0.5, np.float32)), dict(scale_a=np.float32(0.25), scale_b=np.full(shape, 2, np.float32)),
                      dict(scale_a=np.full(shape, 0.25, np.float32), scale_b=np.full((1, 1), 2, np.float32))):
            got = kernels.matmul(a, b, np.full((*batch, 40, 24), np.nan, np.float32), **given)
            assert (got == 100).all()
    with pytest.raises(LaunchError, match="scale_a must be a number or an array of factors, not bool"):
        kernels.matmul(a, b, scale_a=np.bool_(True))
