"""CTA pairs that share columns of B by multicast: on the simulator compared with NumPy, on the GPU, and the generated code."""

from dataclasses import replace

import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, example, given, settings, strategies as st
from tilejit import ArraySpec, LaunchError, kernels
from tilejit.kernels.matmul.choice import LATE, Config, Problem, choose, rank_configs
from tilejit.kernels.matmul.config import divisor_in_width, rows
from tilejit.kernels.matmul.planning import persistent_grid
from tilejit.kernels.pack import alignment
from tilejit.runtime.arrays import describe

from tests.drawn import drawn
from tests.gpu import in_child, needs_gpu
from tests.mma.products import (
    BF16,
    E4M3,
    E5M2,
    LAYOUTS,
    assert_close,
    planned,
    planned_views,
    plus_one,
    product,
    with_layout,
)

EXTENT = st.one_of(st.integers(1, 40), st.sampled_from((63, 64, 65, 130, 200, 328, 500)))
SHAPES = ((64, 16), (64, 64), (128, 64), (128, 96), (64, 224), (192, 64))
ORDERS = st.sampled_from((("grouped", 16), ("grouped", 2), ("snake", 4), ("column", 3)))


def paired(bm, bn, dtype=BF16, **options):
    size = np.dtype(dtype).itemsize
    return replace(Config.of(bm, bn, itemsize=size, stored=max(size, 2), width=divisor_in_width(bn, 32)), **dict(buffers=2, pair=True) | options)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(m=EXTENT, n=EXTENT, k=st.one_of(st.integers(0, 3), EXTENT, st.just(1000)), dtype=st.sampled_from((BF16, np.float16, np.float32, E4M3, np.int8)),
       shape=st.sampled_from(SHAPES), stages=st.integers(1, 5), behind=st.booleans(), kept=st.booleans(), swapped=st.booleans(), order=ORDERS,
       a_is=LAYOUTS, b_is=LAYOUTS, batch=st.sampled_from(((), (), (3,))), seed=st.integers(0, 99))
@example(m=300, n=500, k=500, dtype=BF16, shape=(64, 64), stages=3, behind=True, kept=True, swapped=False, order=("snake", 4), a_is="columns", b_is="rows",
         batch=(3,), seed=0)
def test_any_product_with_pairs_is_right(m, n, k, dtype, shape, stages, behind, kept, swapped, order, a_is, b_is, batch, seed):
    """Odd numbers of tile rows, so that one CTA of a pair has a tile below the matrix, also in batches; one or several tiles per pair;
    results that TMA cannot store."""
    rng = np.random.default_rng(seed)
    a, b = with_layout(drawn(rng, (*batch, m, k), dtype), a_is), with_layout(drawn(rng, (*batch, k, n), dtype), b_is)
    config = paired(*shape, dtype, stages=stages, behind=behind and stages > 1, kept=kept, swapped=swapped, order=order)
    assert_close(product(a, b, config=config, fast_accum=True), a, b)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("shape", [(64, 64), (128, 256)])
def test_float8_accumulated_by_threads_works_with_pairs_with_and_without_block_scales(shape, stages):
    """Each CTA loads the scales of its own rows, and those of all columns."""
    rng = np.random.default_rng(2)
    m, n, k = 330, 260, 400
    a, b = (rng.integers(-2, 3, s).astype(dtype) for s, dtype in (((m, k), E4M3), ((n, k), E5M2)))
    config = paired(*shape, E4M3, stages=stages, bk=128, behind=False)
    assert_close(product(a, b.T, config=config), a, b.T)
    by_row, by_block = (2.0 ** rng.integers(-1, 2, s).astype(np.float32) for s in ((m, 4), (4, 3)))
    got = product(a, b.T, np.float32, scale_a=by_row, scale_b=by_block, config=config)
    x = a.astype(np.float64) * np.repeat(by_row, 128, axis=1)[:, :k]
    y = b.T.astype(np.float64) * np.repeat(np.repeat(by_block, 128, axis=0), 128, axis=1)[:k, :n]
    np.testing.assert_allclose(got, x @ y, rtol=1e-6)


@tile.jit
def scaled_plus(acc, row, column, scale, beside, line):
    return acc * scale + beside - line[None, :]


@tile.jit
def scaled_plus_of_several(acc, z, row, column, scale, beside, line):
    return acc * scale + beside - line[None, :] + z


@pytest.mark.parametrize("m,n,k,batch", [(300, 328, 570, ()), (130, 136, 590, (3,)), (40, 104, 600, ()), (300, 264, 500, (2,)), (300, 267, 40, ())])
@pytest.mark.parametrize("bm,late", [(64, 0), (64, 64), (128, 0), (128, 96), (192, 64)])
def test_pairs_support_prefetched_epilogue_tiles_and_deferred_columns(m, n, k, batch, bm, late):
    """Ragged at both edges; for a tile below the matrix nothing is prefetched, and nothing is stored."""
    rng = np.random.default_rng(5)
    a, b, beside = (drawn(rng, (*batch, *shape), np.float16) for shape in ((m, k), (k, n), (m, n)))
    line = drawn(rng, (n,), np.float32)
    config = replace(Config.of(bm, 128, stages=2), behind=False, width=32, buffers=4, late=late, pair=True)
    got = product(a, b, np.float16, epilogue=scaled_plus_of_several if batch else scaled_plus, arguments=(0.25,), tiles=(beside, line), config=config)
    number = np.arange(batch[0])[:, None, None] if batch else 0
    want = (a.astype(np.float64) @ b.astype(np.float64)) * 0.25 + beside - line + number
    np.testing.assert_allclose(got, want, atol=4e-3, rtol=1e-3)
    launch = planned(a, b, got, scaled_plus, (beside, line), config)
    assert (launch.plan.ahead == (True, True)) is (n % 8 == 0)


@pytest.mark.parametrize("m,processors,matrices,ctas", [(40 * 128, 132, 1, 116), (5000, 132, 1, 116), (128, 132, 1, 40), (129, 7, 3, 6), (100, 1, 1, 2)])
def test_the_grid_has_no_more_pairs_than_its_number_of_waves_needs(m, processors, matrices, ctas):
    """20 columns of tiles: 400 pairs are 7 waves of at most 66, for which 58 pairs suffice."""
    config = replace(Config.of(128, 256), pair=True)
    tiles = config.tiles(m, 5000)
    assert tiles == rows(m, 128, True) * 20 and rows(m, 128, True) == 2 * -(-m // 256)
    grid = persistent_grid(config, tiles * matrices, processors)
    pairs, at_once = tiles * matrices // 2, max(processors // 2, 1)
    assert grid == (ctas,) and -(-pairs // (ctas // 2)) == -(-pairs // at_once)


A, B = np.ones((64, 96), np.float16), np.ones((96, 80), np.float16)


@pytest.mark.parametrize("options,words", [
    (dict(splits=2), "config.pair with config.splits needs config.clustered=False"),
    (dict(stream=True), "config.pair cannot be combined with config.stream"),
    (dict(order=("row", 16)), "neighbours in a column.*not .'row', 16"), (dict(order=("hilbert", 16)), "neighbours in a column"),
    (dict(order=("grouped", 5)), "even number of rows, not .'grouped', 5"), (dict(order=("snake", 1)), "even number of rows"),
    (dict(bn=8, width=8, buffers=1), "multiples of 16, not 8 and 64"), (dict(bn=24, width=8, buffers=3), "multiples of 16, not 24 and 64")])
def test_configurations_in_which_pairs_cannot_share_columns_are_errors(options, words):
    with pytest.raises(LaunchError, match=words):
        kernels.matmul(A, B, config=replace(paired(64, 64), **options))


@tile.jit
def bias_gelu_residual(acc, row, column, bias, residual):
    v = acc + bias[None, :]
    return v * (0.5 + 0.5 * tile.tanh(v * (0.7978845608 + 0.0356774081 * v * v), fast=True)) + residual


def test_each_cta_of_a_pair_loads_half_of_the_columns_or_of_their_k_and_the_largest_tiles_do_not_spill():
    """With kept results; and with deferred columns, an epilogue and prefetched tiles."""
    big = np.lib.stride_tricks.as_strided(np.zeros(16, BF16), (5000, 5000), (10000, 2))
    spec, bias = ArraySpec((5000, 5000), "bfloat16"), np.zeros(5000, np.float32)
    for b, copies in ((big, 4), (big.T, 1)):
        for bm, bn in ((128, 256), (128, 224), (192, 192)):
            launch = planned(big, b, big, None, (), replace(Config.of(bm, bn, width=divisor_in_width(bn, 64), least=4), kept=True, pair=True))
            made = launch.kernel.compile(spec, spec, spec, 1.0, 1.0, 0, 0, 0, 0, target="sm_90a", **launch.constants)
            assert launch.plan.kept and made.spills == 0 and "mapa.shared::cluster" in made.ptx
            assert made.ptx.count(".multicast::cluster") == (copies if copies == 1 else -(-bn // (64 if bn % 64 == 0 else 32)))
        chosen = replace(choose(Problem(4096, 4096, 4096, epilogue=True, ahead=True), 132), pair=True)
        launch = planned(big, b, big, bias_gelu_residual, (bias, big), chosen)
        made = launch.kernel.compile(spec, spec, spec, 1.0, 1.0, ArraySpec((5000,), "float32"), spec, 0, 0, target="sm_90a", **launch.constants)
        assert launch.plan.late == LATE and made.spills == 0


# -- the model ---------------------------------------------------------------------------------------------------------------

def test_pairs_are_chosen_for_operands_whose_row_pitch_is_an_odd_multiple_of_16_bytes():
    for extents in ((5000, 5000, 5000), (3000, 3000, 3000), (4097, 4095, 4104)):
        assert choose(Problem(*extents, aligned=(16, 16)), 132).pair
        assert not any(c.pair and c.clustered for c in rank_configs(Problem(*extents), 132))
    assert choose(Problem(5000, 5000, 5000, aligned=(16, 16)), 132).kept
    assert Problem(1, 2, 3, aligned=(16, 32)).swap_operands().odd_pitches == (False, True)


@pytest.mark.parametrize("pitch,aligned", [(5000, 16), (4104, 16), (6000, 32), (4000, 64), (4032, 128), (4096, 128), (4100, 128)])
def test_the_row_pitch_that_counts_is_that_of_the_operands_as_they_are_read(pitch, aligned):
    """Rows that TMA cannot read are copied to rows with a pitch that is a multiple of 128 bytes."""
    x = np.lib.stride_tricks.as_strided(np.zeros(16, BF16), (4096, 4000), (2 * pitch, 2))
    assert alignment(describe(x), (2,)) == alignment(describe(x.T), (2,)) == aligned
    assert alignment(describe(x.T), ()) == 128

    def told(problem, processors, by_columns):
        assert problem.aligned == (aligned, 128) and problem.odd_pitches == (aligned == 16, False)
        return choose(problem, processors, by_columns)

    y = np.lib.stride_tricks.as_strided(np.zeros(16, BF16), (4000, 4096), (8192, 2))
    planned_views(describe(x), describe(y), None, None, fast_accum=False, choice=told)


# -- on the GPU --------------------------------------------------------------------------------------------------------------

@needs_gpu("sm_90a")
@in_child(timeout=100)
def test_products_with_pairs_are_right_on_the_gpu():
    """Small integers, so that only the result is rounded; the same bits each time."""
    rng = np.random.default_rng(0)
    for m, n, k, batch in ((3000, 3000, 520, ()), (4097, 4095, 200, ()), (700, 1000, 520, (3,)), (130, 5000, 40, ())):
        a, b = (rng.integers(-2, 3, (*batch, *s)).astype(BF16) for s in ((m, k), (k, n)))
        want = (a.astype(np.float32) @ b.astype(np.float32)).astype(BF16)
        for there in (tile.to_device(b, 0), tile.to_device(np.ascontiguousarray(b.swapaxes(-1, -2)), 0)):
            there = there if there.shape == b.shape else kernels.views.transpose(there)
            for bm, bn in ((128, 256), (128, 224), (192, 192), (64, 128)):
                for kept in (True, False):
                    config = replace(Config.of(bm, bn, width=divisor_in_width(bn, 64), least=4), pair=True, kept=kept)
                    for _ in range(3):
                        out = tile.to_device(np.full(want.shape, np.nan, BF16), 0)
                        kernels.matmul(tile.to_device(a, 0), there, out, config=config)
                        np.testing.assert_array_equal(out.numpy(), want)
        if not batch and n % 8 == 0:
            out = tile.to_device(np.full(want.shape, np.nan, BF16), 0)
            kernels.matmul(tile.to_device(a, 0), tile.to_device(b, 0), out, plus_one, config=paired(128, 256))
            np.testing.assert_array_equal(out.numpy(), (a.astype(np.float32) @ b.astype(np.float32) + 1).astype(BF16))


@needs_gpu("sm_90a")
@in_child(timeout=100)
def test_products_whose_k_is_split_between_pairs_through_memory_are_right_on_the_gpu():
    """Small integers, so that only the result is rounded; many launches with the same flags."""
    rng = np.random.default_rng(0)
    for m, n, k, splits in ((512, 512, 16384, 8), (256, 256, 8200, 33), (130, 200, 2000, 7), (300, 1000, 1000, 3)):
        a, b = (rng.integers(-2, 3, s).astype(BF16) for s in ((m, k), (k, n)))
        want = (a.astype(np.float32) @ b.astype(np.float32)).astype(BF16)
        left, right = tile.to_device(a, 0), tile.to_device(b, 0)
        for bm, bn in ((128, 128), (64, 256), (192, 96)):
            config = replace(Config.of(bm, bn, splits=splits, clustered=False), pair=True, dependent=True)
            for _ in range(20):
                out = tile.to_device(np.full(want.shape, np.nan, BF16), 0)
                kernels.matmul(left, right, out, config=config)
                np.testing.assert_array_equal(out.numpy(), want)
