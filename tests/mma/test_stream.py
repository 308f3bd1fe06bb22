"""Products with a shared last wave (stream-K): on the simulator compared with float64, and the generated code."""

from dataclasses import replace

import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, example, given, settings, strategies as st
from tilejit import ArraySpec
from tilejit.kernels.matmul.choice import Config, Problem, choose
from tilejit.kernels.matmul.constants import Epilogue, PersistentConstants
from tilejit.kernels.matmul.hopper.stream import Shares, piece, pieces, shares, stream
from tilejit.kernels.matmul.model import shared_rest

from tests.drawn import drawn
from tests.mma.products import BF16, E4M3, LAYOUTS, assert_close, bias_gelu_residual, product, with_layout

EXTENT = st.one_of(st.integers(1, 40), st.sampled_from((64, 65, 130, 200, 300, 500)))


def shared_config(bm, bn, dtype=BF16, stored=2, **options):
    return replace(Config.of(bm, bn, itemsize=np.dtype(dtype).itemsize, stored=stored, **options), stream=True)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(m=EXTENT, n=EXTENT, k=st.one_of(st.integers(0, 3), EXTENT, st.just(1000)),
       dtype=st.sampled_from((BF16, np.float16, np.float32, E4M3, np.int8)),
       shape=st.sampled_from(((64, 32), (64, 64), (128, 64), (128, 128))), swapped=st.booleans(), a_is=LAYOUTS, b_is=LAYOUTS,
       batch=st.sampled_from(((), (), (3,))), seed=st.integers(0, 99))
def test_any_product_with_shared_tiles_is_right(m, n, k, dtype, shape, swapped, a_is, b_is, batch, seed):
    """One tile and many, fewer k-steps than CTAs, none at all; the flags of a launch serve the next."""
    rng = np.random.default_rng(seed)
    a, b = with_layout(drawn(rng, (*batch, m, k), dtype), a_is), with_layout(drawn(rng, (*batch, k, n), dtype), b_is)
    config = shared_config(*shape, dtype, 4 if np.dtype(dtype).itemsize == 4 or dtype == np.int8 else 2, swapped=swapped)
    assert_close(product(a, b, config=config, fast_accum=True), a, b)


@tile.jit
def plus(acc, row, column, beside):
    return acc + beside


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ahead=st.booleans(), tiles=st.tuples(st.integers(1, 3), st.integers(1, 3)), steps=st.integers(1, 9), ctas=st.integers(1, 12),
       rest=st.integers(0, 8), helpers=st.integers(0, 11), parts=st.integers(1, 4),
       stages=st.integers(2, 4), width=st.sampled_from((0, 32, 64)), behind=st.booleans(), kept=st.booleans(), seed=st.integers(0, 99))
@example(ahead=True, tiles=(2, 3), steps=5, ctas=4, rest=4, helpers=2, parts=1, stages=3, width=32, behind=False, kept=False, seed=0)
@example(ahead=False, tiles=(2, 3), steps=5, ctas=4, rest=4, helpers=2, parts=1, stages=3, width=32, behind=False, kept=True, seed=0)
def test_any_number_of_ctas_may_share_tiles(ahead, tiles, steps, ctas, rest, helpers, parts, stages, width, behind, kept, seed):
    """Helpers of several tiles, tiles of several helpers, helpers without a k-step, whole waves, possibly with a prefetched tile or
    with kept results. The flags are 0 afterwards, and two launches give the same bits."""
    rng = np.random.default_rng(seed)
    left = tiles[0] * tiles[1] % ctas
    helpers = min(helpers, ctas - left)
    parts = max(min(parts, helpers // (left % helpers), steps - 1), 1) if helpers and left % helpers else 1
    rest = max(min(rest, steps - 1), parts) if left and helpers and steps > 1 else 0
    m, n, k = tiles[0] * 64 - 3, tiles[1] * 64, steps * 64 - 8
    ahead = ahead and width > 0
    a, b, beside = drawn(rng, (m, k), BF16), drawn(rng, (n, k), BF16), drawn(rng, (m, n), BF16)
    flags, results = np.zeros((ctas + 1, 3), np.int64), []
    plan = PersistentConstants(bm=64, bn=64, bk=64, stages=stages, order=("grouped", 2), behind=behind, regs=(None, None), a_km=False, b_kn=False,
                               sums=tile.float32, width=width, buffers=2 if width == 32 else 1, ahead=(True,) * ahead,
                               epilogue=Epilogue(function=plus, tiles=("mn",), extras=1) if ahead else Epilogue(),
                               kept=kept and not ahead and width > 0)
    for _ in range(2):
        c, partial = np.full((m, n), np.nan, BF16), np.full((ctas, 1, 64 * 64), np.nan, np.float32)
        stream[ctas,](a, b, c, 1.0, 1.0, beside if ahead else 0, 0, 0, 0, *shares(tiles[0] * tiles[1], ctas, rest, helpers if rest else 0, parts), partial, flags, PLAN=plan, num_warps=8)
        if ahead:
            exact = a.astype(np.float64) @ b.T.astype(np.float64) + beside.astype(np.float64)
            np.testing.assert_allclose(c.astype(np.float64), exact, rtol=2.0 ** -8, atol=2e-3)
        else:
            assert_close(c, a, b.T)
        assert not flags.any()
        results.append(c.tobytes())
    assert results[0] == results[1]


@tile.jit
def divided(out, steps, whole, left, idle, rest, helpers, parts, each, few):
    """The work of each CTA: for each of its pieces the tile, the k-steps, the position in temporary memory."""
    shared = Shares(whole, left, idle, rest, helpers, parts, each, few)
    for x in range(whole + pieces(shared)):
        numbers = piece(x, steps, shared)
        for i in tile.static_range(4):
            tile.store(out[tile.program_id(0), x, i], numbers[i])


@pytest.mark.parametrize("tiles,steps,ctas", [(1, 7, 4), (5, 3, 4), (8, 3, 4), (9, 2, 4), (20, 40, 132), (100, 256, 132), (200, 40, 132),
                                              (288, 48, 132), (511, 256, 132)])
def test_every_k_step_of_every_tile_is_done_once_and_the_rest_are_whole_waves(tiles, steps, ctas):
    rest, helpers, parts, _ = shared_rest(tiles % ctas, steps, ctas, 128, 256) if tiles % ctas else (0, 0, 0, 0)
    out = np.full((ctas, tiles // ctas + 1 + tiles % ctas, 4), -1, np.int32)
    divided[ctas,](out, steps, *shares(tiles, ctas, rest, helpers, parts))
    done, places = np.zeros((tiles, steps), int), []
    for t, begin, end, place in out.reshape(-1, 4):
        if t >= 0:
            assert 0 <= begin < end <= steps
            done[t, begin:end] += 1
            places += [place] if begin else []
    assert (done == 1).all() and len(places) == len(set(places)) and all(0 <= place < ctas for place in places)


@pytest.mark.parametrize("left,steps,ctas", [(116, 256, 132), (68, 128, 132), (8, 256, 132), (40, 64, 132), (1, 2, 132), (131, 8, 132), (3, 1, 4)])
def test_sharing_the_last_wave_is_estimated_to_be_faster_than_not(left, steps, ctas):
    rest, helpers, parts, time = shared_rest(left, steps, ctas, 128, 256)
    assert 0 <= rest < steps and 0 <= helpers <= ctas - left and (rest > 0) == (helpers > 0) == (parts > 0)
    assert time <= shared_rest(left, steps, left, 128, 256)[3]


def test_an_epilogue_and_its_tiles_are_applied_to_the_complete_sums():
    from math import erf
    rng = np.random.default_rng(3)
    a, b = drawn(rng, (100, 600), np.float16), drawn(rng, (600, 200), np.float16)
    bias, residual = drawn(rng, (200,), np.float32), drawn(rng, (100, 200), np.float16)
    got = product(a, b, np.float32, epilogue=bias_gelu_residual, arguments=(bias, residual), config=shared_config(64, 64, np.float16, 4))
    v = a.astype(np.float64) @ b.astype(np.float64) + bias
    np.testing.assert_allclose(got, 0.5 * v * (1 + np.vectorize(erf)(v * 0.70710678)) + residual, atol=5e-4, rtol=1e-5)


@pytest.mark.parametrize("shape", [(128, 256), (192, 192)])
def test_partial_sums_are_exchanged_in_the_register_layout_of_threads(shape):
    """16 bytes per thread, without a layout conversion; nothing spills, also with three consumers."""
    c, matrix = Config.of(*shape), ArraySpec((2560, 2560), "bfloat16")
    partial, flags = ArraySpec((132, c.bm // 64, 64 * c.bn), "float32"), ArraySpec((1024, 3), "int64")
    plan = PersistentConstants(bm=c.bm, bn=c.bn, bk=c.bk, stages=c.stages, order=c.order, behind=c.behind, regs=c.regs, a_km=False, b_kn=False,
                               sums=tile.float32, width=c.width, buffers=c.buffers)
    compiled = stream.compile(matrix, matrix, matrix, 1.0, 1.0, 0, 0, 0, 0, *shares(300, 132, 9, 8, 2), partial, flags, PLAN=plan, num_warps=c.num_warps, spills=0)
    assert compiled.spills == 0 and "convert_layout" not in compiled.graph
    assert compiled.ptx.count("st.global.v4.b32") == compiled.ptx.count("ld.global.v4.b32") == c.bn // 8


@pytest.mark.parametrize("extents,shared", [((3840, 3840, 8192), True), ((2048, 2048, 2048), False), ((3072, 3072, 3072), False),
                                            ((64, 4096, 4096), False)])
def test_tiles_are_shared_if_the_last_wave_is_small_and_k_is_long(extents, shared):
    """450 tiles leave 54 after three waves; with 128, or with 256 in two waves, few SMs are idle. The same holds with an epilogue."""
    for more in ({}, dict(epilogue=True), dict(epilogue=True, ahead=True)):
        assert choose(Problem(*extents, **more), 132).stream == shared
