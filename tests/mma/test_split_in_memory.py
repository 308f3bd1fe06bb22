"""Split k through global memory, shared by CTAs that are not a cluster: on the simulator compared with float64, and the generated code."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, example, given, settings, strategies as st
from tilejit import ArraySpec, kernels
from tilejit.errors import LaunchError
from tilejit.kernels.matmul.choice import Config, Problem, choose, rank_configs
from tilejit.kernels.matmul.constants import SplitConstants
from tilejit.kernels.matmul.hopper import split as split_kernel
from tilejit.kernels.matmul.hopper.split import PATIENCE, claim, leave_all, split, through_memory

from tests.chosen_cases import part
from tests.drawn import drawn
from tests.mma.products import (
    BF16,
    LAYOUTS,
    OPERANDS,
    added,
    assert_close,
    bias_gelu_residual,
    plus_one,
    product,
    with_layout,
)


def constants(c: Config) -> SplitConstants:
    return SplitConstants(bm=c.bm, bn=c.bn, bk=c.bk, stages=c.stages, behind=c.behind, regs=c.regs, a_km=False, b_kn=False, sums=tile.float32,
                          splits=c.splits, shares=c.shares, clustered=False, patience=PATIENCE, dependent=True)



EXTENT = st.one_of(st.integers(1, 40), st.sampled_from((64, 65, 130, 200)))
SHAPES = st.sampled_from(((64, 32), (64, 64), (128, 64), (128, 128), (192, 64)))


def in_memory(bm, bn, splits, dtype=BF16, stored=2, **options):
    return Config.of(bm, bn, splits=splits, itemsize=np.dtype(dtype).itemsize, stored=stored, clustered=False, **options)


@settings(max_examples=28, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(m=EXTENT, n=EXTENT, k=st.one_of(st.integers(0, 3), EXTENT, st.just(1000)), dtypes=st.sampled_from(OPERANDS), fast=st.booleans(), shape=SHAPES,
       splits=st.integers(2, 34), swapped=st.booleans(), behind=st.booleans(), pair=st.booleans(), a_is=LAYOUTS, b_is=LAYOUTS,
       batch=st.sampled_from(((), (), (3,))), ctas=st.just(132), seed=st.integers(0, 99))
@example(m=100, n=130, k=2200, dtypes=(BF16, BF16), fast=True, shape=(128, 128), splits=33, swapped=False, behind=True, pair=False, a_is="rows", b_is="rows",
         batch=(), ctas=264, seed=0)
@example(m=130, n=100, k=600, dtypes=(BF16, BF16), fast=True, shape=(64, 64), splits=9, swapped=False, behind=True, pair=True, a_is="rows", b_is="rows",
         batch=(3,), ctas=264, seed=0)
def test_any_number_of_ctas_may_share_k_with_reproducible_bits(m, n, k, dtypes, fast, shape, splits, swapped, behind, pair, a_is, b_is,
                                                                       batch, ctas, seed):
    """As many as an H100 has SMs, or twice as many; more than k-steps, or than groups of columns; in pairs or alone; ragged
    extents, batches, accumulation by tensor cores or by threads."""
    rng, dtype = np.random.default_rng(seed), np.dtype(dtypes[0])
    a, b = with_layout(drawn(rng, (*batch, m, k), dtypes[0]), a_is), with_layout(drawn(rng, (*batch, k, n), dtypes[1]), b_is)
    config = in_memory(*shape, splits, dtype, 4 if dtype.itemsize == 4 or dtype.kind in "iu" else 2, swapped=swapped)
    if dtype.itemsize == 1:
        config = replace(config, bk=128, stages=min(config.stages, 4))
    config = replace(config, pair=pair)
    tiles = config.tiles(*((n, m) if swapped else (m, n))) * math.prod(batch)
    config = replace(config, splits=max(min(splits, ctas // tiles), 2), behind=behind)
    first = product(a, b, config=config, fast_accum=fast)
    assert_close(first, a, b)
    if seed % 2 == 0:
        assert product(a, b, config=config, fast_accum=fast).tobytes() == first.tobytes()


@pytest.mark.parametrize("out", [np.float32, np.float16, BF16])
@pytest.mark.parametrize("swapped", [False, True])
def test_results_of_other_dtypes_are_right(out, swapped):
    rng = np.random.default_rng(1)
    a, b = drawn(rng, (70, 900), BF16), drawn(rng, (900, 90), BF16)
    assert_close(product(a, b, out, config=in_memory(64, 64, 7, swapped=swapped)), a, b)


@pytest.mark.parametrize("swapped", [False, True])
def test_an_epilogue_scales_and_its_tiles_are_applied_once_to_the_complete_sums(swapped):
    """Also if an epilogue tile is the result itself."""
    from math import erf
    rng = np.random.default_rng(3)
    a, b = drawn(rng, (100, 600), np.float16), drawn(rng, (600, 200), np.float16)
    config, exact = in_memory(64, 64, 5, swapped=swapped), a.astype(np.float64) @ b.astype(np.float64)
    bias, residual = drawn(rng, (200,), np.float32), drawn(rng, (100, 200), np.float16)
    got = product(a, b, np.float32, epilogue=bias_gelu_residual, arguments=(bias, residual), config=config)
    np.testing.assert_allclose(got, 0.5 * (v := exact + bias) * (1 + np.vectorize(erf)(v * 0.70710678)) + residual, atol=5e-4, rtol=1e-5)
    out = np.ones((100, 200), np.float32)
    kernels.matmul(a, b, out, added, tiles=(out,), scale_a=0.5, config=config)
    np.testing.assert_allclose(out, exact * 0.5 + 1, atol=5e-4, rtol=1e-5)
    np.testing.assert_array_equal(product(a[:, :0], b[:0], epilogue=plus_one, config=config).astype(np.float32), 1)


@pytest.fixture
def room_for(monkeypatch):
    """Let the simulator run this many CTAs at once; the others start when all of these have ended."""
    return lambda ctas: monkeypatch.setattr("tilejit.sim.launch.chunk_size", lambda program, ranks: ctas)


LAUNCHES = (100, 70, 3, 64, 64), (128, 128, 17, 128, 128), (190, 30, 9, 192, 32), (60, 250, 33, 64, 256), (100, 70, 2, 64, 64)


@pytest.mark.parametrize("at_once,patience", [(264, PATIENCE), (264, 0), (264, 1), (5, 0), (2, 3), (1, 1), (1, 40)])
def test_flags_are_0_after_each_of_several_launches_whichever_cta_comes_first(room_for, at_once, patience):
    """Launches of several shapes with the same flags, each twice: the same bits, whatever the temporary memory contained, and whichever CTA adds
    them up."""
    rng, flags = np.random.default_rng(at_once + patience), np.zeros((9, 3), np.int64)
    for m, n, splits, bm, bn in part(LAUNCHES, 3, at_once + patience):
        a, b, results = drawn(rng, (m, 504), BF16), drawn(rng, (n, 504), BF16), []
        config = in_memory(bm, bn, splits, stages=3)
        tiles = config.tiles(m, n)
        for few, asked in ((264, PATIENCE), (at_once, patience)):
            room_for(few)
            c, partial = np.full((m, n), np.nan, BF16), np.full((tiles, splits, bm // 64, 64 * bn), np.nan, np.float32)
            report = split.simulate((tiles * splits, 1), a, b, c, 1.0, 1.0, 0, 0, 0, 0, partial, flags,
                                    PLAN=replace(constants(config), bk=64, behind=True, patience=asked), num_warps=config.num_warps, pdl=True, seed=int(rng.integers(100)))
            assert not report.findings and not flags.any()
            assert_close(c, a, b.T)
            results.append(c.tobytes())
        assert results[0] == results[1]


@tile.jit(num_warps=4)
def in_turn(partial, flags, turn, ranks, patience, out, times, ALONE: tile.constexpr, SPLITS: tile.constexpr, SHARES: tile.constexpr):
    """CTAs in turn leave 2 to the power of their rank as sums of 64 x 32, and finish their shares: each when the previous one has left its sums,
    or when it has ended (`ALONE`). They count how often each share is finished."""
    place, PART = tile.program_id(0), 32 // SHARES
    rank, room, doing = tile.load(ranks[place]), partial[0:SPLITS, 0:1, 0:64 * 32], tile.alloc((1,), tile.uint32)
    tile.assume((rank >= 0) & (rank < SPLITS))
    while tile.load(turn[0], sem="acquire") != place:
        pass
    leave_all((tile.full((64, 32), tile.cast(1 << rank, tile.int32), tile.int32),), room, 0, rank)
    with tile.elect():
        if not ALONE:
            tile.atomic_add(turn[0], 1, sem="release")
        tile.store(doing[0], claim(flags[0], rank, rank, patience, SPLITS, SHARES))
        if ALONE:
            tile.atomic_add(turn[0], 1, sem="release")
    tile.sync()
    todo = tile.load(doing[0])
    for share in tile.static_range(SHARES):
        if todo >> share & 1 != 0:
            tile.store(out[0:64, share * PART:share * PART + PART], through_memory(room, 0, share, PART, SPLITS, SHARES))
            tile.atomic_add(times[place, share], 1)


@settings(max_examples=60, deadline=None)
@given(ranks=st.integers(2, 7).flatmap(lambda count: st.permutations(range(count))), shares=st.sampled_from((1, 2, 4)), alone=st.booleans(),
       patience=st.sampled_from((0, 1, 2, 5, 40)), seed=st.integers(0, 999))
@example(ranks=[0, 1, 2], shares=2, alone=True, patience=0, seed=0)
@example(ranks=[2, 1, 0], shares=1, alone=True, patience=1, seed=0)
@example(ranks=[3, 0, 2, 1], shares=4, alone=True, patience=0, seed=0)
@example(ranks=[0, 1], shares=2, alone=False, patience=5, seed=33)
def test_each_share_is_finished_once_all_ctas_have_left_their_sums_in_any_order(ranks, shares, alone, patience, seed):
    """By its own CTA, or by the last one to come: all shares, if each CTA ends before the next one comes."""
    splits = len(ranks)
    shares = shares if shares <= splits else 2
    flags, out, times = np.zeros(1, np.int64), np.full((64, 32), -1, np.int32), np.zeros((splits, shares), np.int32)
    report = in_turn.simulate((splits,), np.full((splits, 1, 64 * 32), -1, np.int32), flags, np.zeros(1, np.int32), np.array(ranks, np.int32), patience,
                              out, times, ALONE=alone, SPLITS=splits, SHARES=shares, seed=seed)
    assert not report.findings and (out == 2 ** splits - 1).all() and flags[0] == 0 and (times.sum(0) == 1).all()
    own = np.array([[rank == share for share in range(shares)] for rank in ranks])
    assert (times * ~own).any(1).sum() <= 1
    assert not alone or times[-1].all()


@pytest.mark.parametrize("seed", (1, 2, 3))
def test_a_cta_that_waits_long_enough_does_not_give_up_its_share(seed):
    times, flags = np.zeros((6, 4), np.int32), np.zeros(1, np.int64)
    in_turn.simulate((6,), np.full((6, 1, 64 * 32), -1, np.int32), flags, np.zeros(1, np.int32), np.arange(6, dtype=np.int32), 1 << 30,
                     np.full((64, 32), -1, np.int32), times, ALONE=False, SPLITS=6, SHARES=4, seed=seed)
    assert (times == np.eye(6, 4)).all() and flags[0] == 0


@pytest.mark.parametrize("at_once", [1, 7, 50])
def test_a_launch_of_more_ctas_than_run_at_once_terminates(room_for, monkeypatch, at_once):
    monkeypatch.setattr(split_kernel, "PATIENCE", 20)
    rng = np.random.default_rng(at_once)
    a, b = drawn(rng, (150, 600), BF16), drawn(rng, (600, 150), BF16)
    want = product(a, b, config=in_memory(64, 64, 9))
    room_for(at_once)
    assert product(a, b, config=in_memory(64, 64, 9)).tobytes() == want.tobytes()
    assert_close(want, a, b)


def test_more_tiles_than_there_are_flags_for_are_refused():
    a, b = np.zeros((2100, 64), BF16), np.zeros((64, 2100), BF16)
    with pytest.raises(LaunchError, match="CTAs can share the k of at most 1024 tiles, and there are 1089:"):
        kernels.matmul(a, b, config=in_memory(64, 64, 2))


@pytest.mark.parametrize("bm,bn,splits", [(128, 256, 16), (128, 256, 33), (128, 256, 2), (192, 128, 22), (128, 128, 33), (64, 256, 33), (64, 64, 64)])
def test_partial_sums_are_exchanged_in_the_register_layout_of_threads(bm, bn, splits):
    """16 bytes per thread, without a layout conversion; results of 32 columns or more are converted when they are stored. Nothing spills. A CTA
    first waits for the result of its atomic count; it waits for another one only to give up its share."""
    c, matrix = in_memory(bm, bn, splits), ArraySpec((2560, 2560), "bfloat16")
    partial, flags = ArraySpec((4, splits, bm // 64, 64 * bn), "float32"), ArraySpec((1024, 3), "int64")
    compiled = split.compile(matrix, matrix, matrix, 1.0, 1.0, 0, 0, 0, 0, partial, flags, PLAN=constants(c), num_warps=c.num_warps, pdl=True, spills=0)
    changed, columns = re.findall(r"= convert_layout\(.* : (\w+)\[", compiled.graph), bn // c.shares
    assert compiled.spills == 0 and changed == ["bfloat16"] * (columns % 32 == 0)
    assert compiled.ptx.count("st.global.v4.b32") == bn // 8 + columns // 16 * (columns % 32 == 0) and compiled.ptx.count("ld.global.v4.b32") == splits * bn // c.shares // 8
    assert re.findall(r"\b(?:atom|red)\.\w+\.gpu", compiled.ptx) == ["atom.acq_rel.gpu", "atom.acquire.gpu", "red.relaxed.gpu"]


@pytest.mark.parametrize("extents,tiles,pair", [((512, 512, 32768), 16, True), ((256, 256, 65536), 4, True), ((1024, 1024, 65536), 32, False)])
def test_with_few_tiles_and_long_k_all_sms_share_k(extents, tiles, pair):
    c = choose(Problem(*extents), 132)
    assert not c.clustered and c.pair is pair and c.tiles(*extents[:2]) == tiles and c.splits == 132 // tiles


def test_pairs_share_columns_only_if_there_are_two_rows_of_tiles_and_tensor_cores_accumulate_alone():
    assert not any(c.pair for c in rank_configs(Problem(64, 1024, 8192), 132, False))
    assert not any(c.pair for c in rank_configs(Problem(512, 512, 32768, itemsize=1, promoted=()), 132))
    assert all(not c.clustered for c in rank_configs(Problem(512, 512, 32768), 132) if c.pair)


@pytest.mark.parametrize("extents,splits,ctas,early", [((64, 2560, 9728), 4, 80, False), ((16, 2048, 8192), 2, 64, True), ((16, 4096, 4096), 2, 128, True),
                                                       ((384, 1024, 4096), 2, 96, True)])
def test_a_memory_bound_grid_starts_early_only_if_it_fits_next_to_the_previous_one_or_fills_nearly_all_sms(extents, splits, ctas, early):
    """80 CTAs that started while 80 others ended took 14 to 22 % longer."""
    found = next(c for c in rank_configs(Problem(*extents), 132) if c.splits == splits and c.clustered
                 and c.tiles(*(extents[1::-1] if c.swapped else extents[:2])) * splits == ctas)
    assert found.dependent is early


@pytest.mark.parametrize("m", (24, 40, 56, 72, 88, 100, 120))
def test_the_model_does_not_let_few_of_many_ctas_finish_a_tile(m):
    """A width of 8 times a prime has one share or that many: one of eight CTAs would add up the sums of all, and spill."""
    for n, k in ((2048, 7168), (1024, 4096), (5120, 5120)):
        for c in rank_configs(Problem(m, n, k), 132):
            assert c.clustered or 4 * c.shares >= min(c.splits, c.bn // 8)


@pytest.mark.parametrize("extents", [(64, 64, 128), (512, 512, 512), (256, 8192, 8192), (4096, 4096, 4096)])
def test_with_many_tiles_or_short_k_no_sums_go_through_memory(extents):
    assert choose(Problem(*extents), 132).clustered
