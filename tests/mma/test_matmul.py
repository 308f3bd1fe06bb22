"""The matrix product of tilejit.kernels: on the simulator compared with float64, and the generated code on Hopper."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, given, settings, strategies as st
from tilejit import ArraySpec, kernels
from tilejit.errors import LaunchError
from tilejit.kernels.matmul.blackwell.config import BlackwellConfig
from tilejit.kernels.matmul.choice import (
    NARROWEST,
    ROUNDS,
    TILES,
    WHOLE,
    WIDEST,
    Config,
    Problem,
    choose,
    rank_configs,
    tiles_for,
    widths_without_waste,
)
from tilejit.kernels.matmul.config import part
from tilejit.kernels.matmul.constants import PersistentConstants
from tilejit.kernels.matmul.hopper.persistent import persistent
from tilejit.kernels.matmul.model import FILLING, ORDERS, covered_tiles, in_rounds, requests_per_cta

from tests.chosen_cases import combined
from tests.drawn import drawn
from tests.mma.products import (
    BF16,
    E4M3,
    EXTENT,
    LAYOUTS,
    OPERANDS,
    TARGETS,
    assert_close,
    bias_gelu_added,
    multiplying_on,
    planned,
    plus_one,
    product,
    with_configs,
    with_layout,
)


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(m=EXTENT, n=EXTENT, k=st.one_of(st.integers(0, 20), EXTENT), dtypes=st.sampled_from(OPERANDS), a_is=LAYOUTS, b_is=LAYOUTS,
       batch=st.sampled_from(((), (), (2,), (2, 1))), shared=st.sampled_from(("neither", "a", "b")), seed=st.integers(0, 1 << 16))
def test_products_of_any_extents_strides_and_dtypes_are_right(target, m, n, k, dtypes, a_is, b_is, batch, shared, seed):
    """M, N and K from 0 or 1 on, in every layout, one matrix or a batch, every type that the tensor cores take."""
    rng = np.random.default_rng(seed)
    a = with_layout(drawn(rng, (*(batch if shared != "a" else ()), m, k), dtypes[0]), a_is)
    b = with_layout(drawn(rng, (*(batch if shared != "b" else ()), k, n), dtypes[1]), b_is)
    with multiplying_on(target):
        assert_close(product(a, b), a, b)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtypes", OPERANDS)
def test_products_with_extents_of_one_are_right(dtypes, target):
    """One row, one column, one of k, and one of each."""
    rng = np.random.default_rng(0)
    with multiplying_on(target):
        for m, n, k in ((1, 1, 1), (1, 200, 130), (130, 1, 64), (65, 72, 1)):
            a, b = drawn(rng, (m, k), dtypes[0]), drawn(rng, (k, n), dtypes[1])
            assert_close(product(a, b), a, b)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(m=EXTENT, n=EXTENT, steps=st.integers(0, 7), over=st.integers(-3, 3), dtypes=st.sampled_from(OPERANDS), fast=st.booleans(),
       bm=st.sampled_from((64, 128)),
       bn=st.sampled_from((16, 64, 128)), stages=st.integers(2, 4), splits=st.sampled_from((1, 1, 2, 4)), swapped=st.booleans(), behind=st.booleans(),
       width=st.sampled_from((16, 32, 64, 128)), buffers=st.sampled_from((1, 2, 4)), a_is=LAYOUTS, b_is=LAYOUTS, seed=st.integers(0, 99))
def test_every_configuration_gives_the_product(m, n, steps, over, dtypes, fast, bm, bn, stages, splits, swapped, behind, width, buffers,
                                               a_is, b_is, seed):
    """0, 1, stages - 1, stages, stages + 1 k-steps, tiles larger and smaller than the matrices, any split of k, any number
    of store buffers, every type; float8 accumulated by tensor cores or by threads."""
    rng, size = np.random.default_rng(seed), np.dtype(dtypes[0]).itemsize
    k = max(128 // size * steps + over, 0)
    if splits > 1 and bn // splits < 8:
        splits = 1
    a, b = with_layout(drawn(rng, (m, k), dtypes[0]), a_is), with_layout(drawn(rng, (k, n), dtypes[1]), b_is)
    stored = 4 if size == 4 or np.dtype(dtypes[0]).kind in "iu" else 2
    width = min(width, bn, 256 // stored)
    config = replace(Config.of(bm, bn, 128 // size, splits=splits, swapped=swapped, itemsize=size, stored=stored, stages=stages),
                     behind=behind, width=width,
                     buffers=min(buffers, bn // width))
    assert_close(product(a, b, config=config, fast_accum=fast), a, b)


@pytest.mark.parametrize("shape", list(TILES))
def test_every_tile_that_the_model_may_choose_is_right(shape):
    """And gives the same bits twice."""
    config = Config.of(*shape)
    rng = np.random.default_rng(0)
    a, b = drawn(rng, (shape[0] + 8, 256), BF16), with_layout(drawn(rng, (256, shape[1] + 8), BF16), "columns")
    first = product(a, b, config=config)
    assert_close(first, a, b)
    assert product(a, b, config=config).tobytes() == first.tobytes()


@pytest.mark.parametrize("how", ["columns", "padded", "spaced", "reversed"])
@with_configs([Config.of(64, 64, splits=2)], [BlackwellConfig.of(64), BlackwellConfig.of(64, True), BlackwellConfig.of(64, splits=2)])
def test_results_may_have_any_strides(how, target, config):
    """Column-major, padded, strided and reversed results; the memory between their elements is unchanged."""
    rng = np.random.default_rng(1)
    a, b = drawn(rng, (70, 300), BF16), drawn(rng, (300, 90), BF16)
    out = with_layout(np.full((70, 90), np.nan, BF16), how)
    whole = out if out.base is None else out.base
    before = whole.copy()
    with multiplying_on(target):
        kernels.matmul(a, b, out, config=config)
    assert_close(out, a, b)
    out[...] = np.nan
    assert whole.tobytes() == before.tobytes()


@pytest.mark.parametrize("target", TARGETS)
def test_leading_dimensions_are_flattened(target):
    """Several of them; a result whose leading dimensions cannot be flattened is refused."""
    rng = np.random.default_rng(2)
    a, b = drawn(rng, (2, 3, 20, 40), BF16), drawn(rng, (2, 3, 40, 30), BF16)
    odd = np.zeros((2, 5, 20, 30), BF16)[:, :3]
    with multiplying_on(target):
        assert_close(product(a, b), a, b)
        with pytest.raises(LaunchError, match="cannot be viewed as one dimension"):
            kernels.matmul(a, b, odd)


@pytest.mark.parametrize("target", TARGETS)
def test_empty_results_and_an_inner_extent_of_zero_are_right(target):
    """Without elements nothing is launched; a sum over nothing is 0, and goes through the epilogue."""
    zero = lambda *shape: np.zeros(shape, BF16)
    with multiplying_on(target):
        assert kernels.matmul(zero(0, 8), zero(8, 4)).shape == (0, 4)
        assert kernels.matmul(zero(3, 8), zero(8, 0)).shape == (3, 0)
        assert kernels.matmul(zero(0, 3, 8), zero(8, 4)).shape == (0, 3, 4)
        np.testing.assert_array_equal(product(zero(3, 0), zero(0, 4)).astype(np.float32), 0)
        np.testing.assert_array_equal(product(zero(3, 0), zero(0, 4), epilogue=plus_one).astype(np.float32), 1)


@pytest.mark.parametrize("target", TARGETS)
def test_scales_are_numbers_or_arrays_of_one_element(target):
    """They scale the result before the epilogue; integers become floats."""
    rng = np.random.default_rng(4)
    a, b = drawn(rng, (40, 200), E4M3), with_layout(drawn(rng, (200, 50), E4M3), "columns")
    two, half = np.full(1, 2.5, np.float32), np.full(1, 0.5, np.float32)
    x, y = drawn(rng, (40, 64), np.int8), drawn(rng, (64, 50), np.int8)
    with multiplying_on(target):
        for scales in ((2.5, 0.5), (two, half), (two, 0.5), (None, 1.25)):
            assert_close(product(a, b, scale_a=scales[0], scale_b=scales[1]), a, b, 1.25)
        got = product(x, y, np.float32, scale_a=0.5)
    np.testing.assert_array_equal(got, (x.astype(np.int64) @ y.astype(np.int64)).astype(np.float32) * 0.5)


# -- code and choice ---------------------------------------------------------------------------------------------------------

def test_the_largest_tile_compiles_to_fast_code():
    """No spills, no register moved between products: the assembler's advisories would be errors."""
    specs = [ArraySpec((8192, 8192), "bfloat16") for _ in range(3)]
    c = Config()
    for b_kn in (True, False):
        plan = PersistentConstants(bm=c.bm, bn=c.bn, bk=c.bk, stages=c.stages, order=c.order, behind=c.behind, regs=c.regs, a_km=False, b_kn=b_kn,
                                   sums=tile.float32, width=128)
        compiled = persistent.compile(*specs, 1.0, 1.0, 0, 0, 0, 0, PLAN=plan, num_warps=c.num_warps)
        assert compiled.spills == 0 and compiled.registers <= 168
        assert [c.variant for c in compiled.copies] == ["tma"] * 4
        assert compiled.ptx.count("stmatrix.sync") == 16


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("bm, bn", [(64, 8), (64, 104), (128, 32), (128, 200), (128, 256), (192, 96), (192, 192)])
def test_results_of_swapped_operands_are_transposed_through_shared_memory(bm, bn, kept):
    """Threads hold two elements of a column of the result: stmatrix transposes them, TMA stores rows of 128 bytes, and nothing spills."""
    a, out = np.empty((2, 1024, 1024), BF16)
    launch = planned(a, a.T, out, None, (), replace(Config.of(bm, bn, swapped=True), kept=kept))
    made, width = launch.kernel.compile(*launch.operands(a, a.T, out), 1.0, 1.0, 0, 0, 0, 0, target="sm_90a", **launch.constants), launch.plan.width
    assert made.spills == 0 and "st.global" not in made.ptx and launch.plan.kept is kept
    assert made.ptx.count(".trans.shared") == made.ptx.count("stmatrix.sync") == -(-width // 16) * (2 if kept else bn // width)


@pytest.mark.parametrize("extents,bm,bn,splits,swapped", [
    ((8192, 8192, 8192), 128, 256, 1, False), ((3072, 3072, 3072), 192, 192, 1, False), ((2048, 2048, 2048), 128, 256, 1, False),
    ((512, 512, 512), 64, 32, 1, False), ((64, 4096, 4096), 64, 64, 2, False), ((16, 8192, 8192), 64, 16, 1, True),
    ((64, 64, 65536), 64, 32, 64, False), ((256, 8192, 8192), 128, 128, 1, False), ((512, 28672, 4096), 128, 224, 1, False)])
def test_the_chosen_tile_depends_on_the_waves(extents, bm, bn, splits, swapped):
    """Large matrices get the largest tile, small ones tiles that occupy every SM, few tiles a split of k."""
    c = choose(Problem(*extents), 132)
    assert (c.bm, c.bn, c.splits, c.swapped) == (bm, bn, splits, swapped)


def test_tile_widths_divide_a_matrix_of_few_columns_evenly_in_steps_that_instructions_support():
    """The width is that of the matrix or, with more than 128 columns, of a half, a third or a fourth, with nearly no columns outside, which
    TMA takes longer to fill with zeros than to load columns inside; 72 columns of integers become 80."""
    for m, itemsize, widths in ((100, 2, {104}), (3, 2, set()), (40, 2, {40}), (72, 1, {80}), (200, 2, {200, 104, 72, 56}), (600, 2, {200, 152}),
                                (1100, 2, set())):
        found = tiles_for(Problem(4096, m, 4096, itemsize=itemsize))
        assert {bn for _, bn in found} - {bn for _, bn in TILES} == widths and {bm for bm, bn in found if bn in widths} <= {64, 128}


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("rows", [100, 222, 577, 777, 1500, 2560])
def test_tile_widths_of_swapped_operands_minimise_the_columns_that_each_sm_multiplies(rows, by_rows):
    """Over all its waves; for every tile height, the fewest that any width would give."""
    for columns in (1152, 4096, 8192):
        found = list(widths_without_waste(Problem(columns, rows, 4096, across=(False, by_rows)), 132))
        rounds = lambda bm, bn: -(-(-(-columns // bm) * -(-rows // bn)) // 132)
        for bm, most in WIDEST.items():
            widths = [bn for bn in range(NARROWEST + 16, most + 1, 16 if by_rows else 8)
                      if rounds(bm, bn) <= ROUNDS and (bm * bn <= WHOLE or part(bn, 64, True) < bn)]
            mine = [rounds(bm, bn) * bn for high, bn in found if high == bm]
            assert len(mine) <= 3 and (not widths or min(mine) <= min(rounds(bm, bn) * bn for bn in widths)), (columns, bm)
    for extents, tile_ in (((777, 8192, 8192), (128, 200)), ((2560, 2560, 2560), (128, 200)), ((222, 4096, 4096), (64, 112))):
        config = choose(Problem(*extents), 132)
        assert config.swapped and (config.bm, config.bn) == tile_


def test_in_several_waves_neighbours_are_ordered_along_the_rows_if_they_request_less_that_way():
    """If a few tiles side by side make a row, and not if tiles are grouped by rows."""
    for extents, by_rows in (((577, 10240, 8192), True), ((777, 8192, 8192), True), ((640, 10240, 8192), True), ((8192, 8192, 512), False),
                             ((6000, 2048, 2048), False), ((512, 28672, 4096), False)):
        config = choose(Problem(*extents), 132)
        assert config.swapped == by_rows and config.order == (("row", 16) if by_rows else ("snake", 16)), extents
        p = Problem(*extents).swap_operands() if by_rows else Problem(*extents)
        assert config.tiles(p.m, p.n) > 132 and (requests_per_cta(p, config.bm, config.bn, ("row", 16)) < requests_per_cta(p, config.bm, config.bn, ("snake", 16))) == by_rows


def test_rows_that_are_not_aligned_to_cache_lines_are_estimated_to_be_slower():
    for aligned in (32, 64):
        p = Problem(3000, 1152, 4096, aligned=(aligned, 128))
        assert in_rounds(p, 128, 104, 2, 128, 104) > in_rounds(replace(p, aligned=(128, 128)), 128, 104, 2, 128, 104)


@pytest.mark.parametrize("bn, most, width", [(200, 64, 40), (208, 64, 104), (216, 64, 72), (136, 64, 136), (256, 64, 64), (80, 32, 40), (24, 64, 24)])
def test_results_of_swapped_operands_are_stored_in_the_widest_parts_up_to_a_limit_or_the_next_larger_ones(bn, most, width):
    assert part(bn, most, True) == width and bn % part(bn, most, False) == 0


def test_tiles_fitted_to_the_rows_are_not_chosen_for_4_byte_results_that_leave_room_for_few_stages():
    problem = Problem(1500, 1152, 4304, itemsize=4, stored=4)
    assert {(c.bm, c.bn) for c in rank_configs(problem, 132) if c.swapped} <= {*tiles_for(problem.swap_operands()), *FILLING}
    assert not {(c.bm, c.bn) for c in rank_configs(replace(problem, itemsize=2, stored=2), 132) if c.swapped} <= {*tiles_for(problem.swap_operands()), *FILLING}


@pytest.mark.parametrize("dtype,width", [(BF16, 104), (BF16, 200), (np.float16, 72), (np.float32, 40), (np.float32, 136), (np.int8, 80), (np.int8, 144),
                                         (E4M3, 56)])
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("bm,options", [(64, {}), (128, {}), (64, dict(splits=3, clustered=False))])
def test_products_with_tiles_as_wide_as_the_matrix_are_right(dtype, width, layout, bm, options):
    rng = np.random.default_rng(width)
    a, b = with_layout(drawn(rng, (width - 4, 300), dtype), layout), with_layout(drawn(rng, (300, 210), dtype), layout)
    itemsize = np.dtype(dtype).itemsize
    config = Config.of(bm, width, swapped=True, itemsize=itemsize, stored=4 if itemsize == 4 or dtype is np.int8 else 2, width=width, **options)
    assert_close(product(a, b, config=config), a, b)


def test_memory_bound_products_have_four_stages_and_no_early_launch():
    """Not those bound by tensor cores, if there are store buffers for whole tiles, nor products so short that the start of a launch
    matters."""
    for extents, stages, dependent in (((256, 8192, 8192), 6, False), ((512, 8192, 8192), 4, False), ((4096, 4096, 4096), 4, True), ((64, 4096, 4096), 13, True)):
        c = choose(Problem(*extents), 132)
        assert (c.stages, c.dependent) == (stages, dependent)
    assert choose(Problem(4096, 4096, 4096, epilogue=True, ahead=True), 132).stages == 3


def test_groups_of_tiles_have_fewer_rows_if_these_would_occupy_much_of_l2_for_many_waves():
    """But not in lockstep kernels."""
    even, exact = Problem(16384, 66 * 256, 16384), Problem(16384, 16384, 16384, itemsize=1, promoted=())
    assert choose(even, 132).order == ("snake", 8) and choose(exact, 132).order == ("snake", 8)
    for other in (Problem(16384, 16384, 16384), Problem(16384, 16384, 16384, epilogue=True), Problem(8192, 8192, 8192), Problem(4096, 4096, 16384), Problem(8192, 28672, 4096)):
        assert choose(other, 132).order == ("grouped", 16)


@pytest.mark.parametrize("order", ORDERS)
def test_neighbours_in_an_order_share_as_many_rows_and_columns_of_tiles_as_the_model_assumes(order):
    @tile.jit
    def places(out, DOWN: tile.constexpr, ACROSS: tile.constexpr, ORDER: tile.constexpr):
        for t in range(16):
            m, n = tile.tile_at(t, DOWN, ACROSS, *ORDER)
            tile.store(out[t, 0], m)
            tile.store(out[t, 1], n)

    for down, across in ((16, 8), (4, 32), (32, 2), (1, 64), (64, 1), (2, 16), (8, 8)):
        out = np.empty((16, 2), np.int32)
        places[1](out, DOWN=down, ACROSS=across, ORDER=order)
        assert covered_tiles(order, down, across) == (len({*out[:, 0]}), len({*out[:, 1]})), (down, across)


def test_one_wave_uses_the_order_in_which_neighbours_share_most():
    """Down the columns if no other order helps, or if k is too short for its divisions to pay."""
    for extents, order in (((160, 3072, 3072), "row"), ((3072, 160, 3072), "row"), ((512, 2048, 2048), "snake"), ((2048, 512, 2048), "row"),
                           ((1024, 1024, 1024), "snake"), ((1024, 1024, 4096), "grouped"), ((768, 768, 4096), "grouped"), ((4096, 4096, 4096), "snake")):
        assert choose(Problem(*extents), 132).order[0] == order, extents
    config = choose(Problem(160, 3072, 3072), 132)
    assert config.swapped and config.bn == 80   # 48 rows of tiles of C^T, 2 columns
    a, b = drawn(np.random.default_rng(0), (160, 72), BF16), drawn(np.random.default_rng(1), (72, 3072), BF16)
    assert_close(product(a, b, config=config), a, b)


def test_in_one_wave_operands_are_swapped_if_b_s_tile_columns_would_be_partial_swizzle_rows():
    """If B is N-major; for K-major B, the tile of the same extents is kept."""
    for extents, tile_ in (((1536, 1536, 1536), (192, 96)), ((1024, 2560, 2560), (128, 160)), ((512, 5120, 5120), (128, 160))):
        by_columns, by_rows = (choose(Problem(*extents, across=(False, rows)), 132) for rows in (False, True))
        assert (by_columns.bm, by_columns.bn, by_columns.swapped) == (*tile_, False) and by_rows.swapped, extents


def test_tiles_for_one_wave_are_not_chosen_for_more():
    assert (choose(Problem(1024, 1280, 5120), 132).bm, choose(Problem(1024, 1280, 5120), 132).bn) == (128, 80)   # 8 x 16 tiles
    met = set()
    for extents in itertools.product((64, 300, 1000, 4000), repeat=3):
        for config in rank_configs(Problem(*extents), 132):
            if (config.bm, config.bn) in FILLING and not config.swapped:
                met.add((config.bm, config.bn))
                assert config.splits == 1 and config.tiles(*extents[:2]) <= 132
    assert met == {*FILLING}


ROWS_OF_FILLING = combined(FILLING, ORDERS, (False, True), (False, True))  # B by columns: the last


@pytest.mark.parametrize("bm, bn", FILLING)
def test_tiles_for_one_wave_are_right_in_each_order(bm, bn):
    for i, (_, order, swapped, turned) in enumerate(row for row in ROWS_OF_FILLING if row[0] == (bm, bn)):
        rng = np.random.default_rng(i)
        a, b = drawn(rng, (2 * bm + 9, 72), BF16), drawn(rng, (72, 2 * bn - 16), BF16)
        config = replace(Config.of(bm, bn, stages=3, swapped=swapped), order=order)
        assert_close(product(a, with_layout(b, "columns") if turned else b, config=config), a, b)


def test_an_operand_that_is_read_once_is_evicted_first_from_l2():
    """If it is larger than L2 and read by few rows of tiles; not with few rows of large tiles, nor if L2 may hold it for the
    next launch."""
    for extents, passing in (((256, 8192, 8192), True), ((512, 28672, 4096), True), ((4096, 4096, 4096), False), ((256, 4096, 4096), False)):
        assert choose(Problem(*extents), 132).passing is passing
    a, b = np.ones((70, 256), BF16), with_layout(np.ones((256, 200), BF16), "columns")
    config = replace(Config.of(64, 64), passing=True)
    assert_close(product(a, b, config=config), a, b)
    ptx = persistent.compile(*[ArraySpec((256, 256), "bfloat16")] * 3, 1.0, 1.0, 0, 0, 0, 0, **planned(a, b, np.zeros((70, 200), BF16), None, (), config).constants).ptx
    assert ptx.count("L2::cache_hint") == 1


def test_every_choice_fits_in_shared_memory():
    for itemsize in (1, 2, 4):
        for m, n, k in ((1, 1, 1), (7, 5000, 100000), (300, 300, 300), (4096, 4096, 4096), (100000, 40, 70)):
            c = choose(Problem(m, n, k, 1, itemsize, 4), 132)
            ring = c.stages * (c.bm + c.bn) * c.bk * itemsize
            exchanged = 4 * c.bm * c.bn * (c.splits - 1) // c.splits if c.clustered else 0
            aside = exchanged if c.splits > 1 else c.bm * c.width * c.buffers * 4
            assert c.stages >= 2 and ring + aside <= 232448 and c.width * 4 <= 256


def test_wrong_operands_are_errors():
    """Extents, dtypes and results that do not fit are named."""
    a, b = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16)
    single = np.zeros((64, 64), np.float32)
    for match, call in {
        "inner extents": lambda: kernels.matmul(a, b[:32]),
        "leading extents": lambda: kernels.matmul(np.zeros((2, 4, 4), BF16), np.zeros((3, 4, 4), BF16)),
        "not of shape": lambda: kernels.matmul(a[0], b),
        "two operands of one kind": lambda: kernels.matmul(a, b.astype(BF16)),
        "the tensor cores take": lambda: kernels.matmul(a.astype(np.float64), b.astype(np.float64)),
        "pass precision='tf32' to accept that": lambda: kernels.matmul(single, single),
        "precision is None": lambda: kernels.matmul(a, b, precision="tf32"),
        r"out must be of shape \(64, 64\)": lambda: kernels.matmul(a, b, np.empty((64, 32), np.float16)),
        "out is of int32": lambda: kernels.matmul(a, b, np.empty((64, 64), np.int32)),
        "and out is of int32": lambda: kernels.matmul(a, b, np.empty((64, 64), np.int32), scale_a=0.5),
        "a multiple of 8 columns": lambda: kernels.matmul(a, b, config=Config.of(128, 160, splits=8)),
        "out has several elements at one address": lambda: kernels.matmul(a, b, np.lib.stride_tricks.as_strided(np.zeros(64, np.float16), (64, 64), (0, 2))),
        "several elements at one address": lambda: kernels.matmul(a, b, np.lib.stride_tricks.as_strided(np.zeros(8192, np.float16), (64, 64), (64, 2))),
        "under @tile.jit": lambda: kernels.matmul(a, b, epilogue=abs),
        "none is given": lambda: kernels.matmul(a, b, arguments=(1,)),
        "up to 4 arguments and tiles, not 5": lambda: kernels.matmul(a, b, epilogue=plus_one, arguments=(1, 2, 3), tiles=(a, a)),
        r"tiles must broadcast to the result's shape, as arrays of \(64, 64\), \(1, 64\), \(64, 1\), \(64,\) do, and tiles\[0\] is of \(63,\)$":
            lambda: kernels.matmul(a, b, epilogue=bias_gelu_added, arguments=(single[0],), tiles=(a[0, :63],)),
    }.items():
        with pytest.raises(LaunchError, match=match):
            call()
