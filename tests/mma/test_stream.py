"""Products whose last tiles all CTAs share (stream-K): on the simulator against NumPy in float64, and what the compiler makes of them."""

from dataclasses import replace

import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.mma.test_matmul import BF16, E4M3, LAYOUTS, bias_gelu_residual, close, drawn, laid, product
from tilejit import ArraySpec
from tilejit.kernels.plan import Config, Problem, choose
from tilejit.kernels.stream import run, stream

EXTENT = st.one_of(st.integers(1, 40), st.sampled_from((64, 65, 130, 200, 300, 500)))


def streamed(bm, bn, dtype=BF16, stored=2, **options):
    return replace(Config.of(bm, bn, itemsize=np.dtype(dtype).itemsize, stored=stored, **options), stream=True)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(m=EXTENT, n=EXTENT, k=st.one_of(st.integers(0, 3), EXTENT, st.just(1000)), dtype=st.sampled_from((BF16, np.float16, np.float32, E4M3, np.int8)),
       shape=st.sampled_from(((64, 32), (64, 64), (128, 64), (128, 128))), swapped=st.booleans(), a_is=LAYOUTS, b_is=LAYOUTS,
       batch=st.sampled_from(((), (), (3,))), seed=st.integers(0, 99))
def test_any_product_whose_tiles_are_shared(m, n, k, dtype, shape, swapped, a_is, b_is, batch, seed):
    """One tile and many, fewer slots of k than CTAs, none at all; the flags of a launch serve the next."""
    rng = np.random.default_rng(seed)
    a, b = laid(drawn(rng, (*batch, m, k), dtype), a_is), laid(drawn(rng, (*batch, k, n), dtype), b_is)
    config = streamed(*shape, dtype, 4 if np.dtype(dtype).itemsize == 4 or dtype == np.int8 else 2, swapped=swapped)
    close(product(a, b, config=config, fast_accum=True), a, b)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tiles=st.tuples(st.integers(1, 3), st.integers(1, 3)), steps=st.integers(1, 9), ctas=st.integers(1, 12), stages=st.integers(2, 4),
       width=st.sampled_from((0, 32, 64)), behind=st.booleans(), seed=st.integers(0, 99))
def test_any_number_of_ctas(tiles, steps, ctas, stages, width, behind, seed):
    """Runs shorter than a tile, of several tiles, and of none; tiles of up to twelve CTAs. The flags are 0 afterwards, and each of
    two launches gives the same bits."""
    rng = np.random.default_rng(seed)
    m, n, k = tiles[0] * 64 - 3, tiles[1] * 64, steps * 64 - 8
    a, b = drawn(rng, (m, k), BF16), drawn(rng, (n, k), BF16)
    flags, results = np.zeros((ctas, 3), np.int32), []
    for _ in range(2):
        c, partial = np.full((m, n), np.nan, BF16), np.full((ctas, 1, 64 * 64), np.nan, np.float32)
        stream[ctas,](a, b, c, 1.0, 1.0, 0, 0, 0, 0, partial, flags, BM=64, BN=64, BK=64, STAGES=stages, ORDER=("grouped", 2), BEHIND=behind,
                      REGS=(None, None), A_KM=False, B_KN=False, SUMS=tile.float32, WIDTH=width, BUFFERS=2 if width == 32 else 1, FINISH=((), None, False, False, 0), EXTRAS=0, num_warps=8)
        close(c, a, b.T)
        assert not flags.any()
        results.append(c.tobytes())
    assert results[0] == results[1]


@tile.jit
def divided(out, tiles, steps):
    """What `run` says to each CTA."""
    numbers = run(tiles, steps)
    for i in tile.static_range(5):
        tile.store(out[tile.program_id(0), i], numbers[i])


@pytest.mark.parametrize("tiles,steps,ctas", [(1, 1, 1), (1, 7, 4), (5, 3, 4), (8, 3, 4), (9, 1, 4), (200, 40, 132), (288, 48, 132), (100000, 3, 132)])
def test_the_runs_are_equal_and_the_rest_are_whole_rounds(tiles, steps, ctas):
    out = np.zeros((ctas, 5), np.int32)
    divided[ctas,](out, tiles, steps)
    shared, first, stop, pieces, whole = out.T
    assert (shared[0] + whole[0] * ctas == tiles) and shared[0] < 2 * ctas and (shared[0] == 0 or tiles < ctas or tiles % ctas > 0)
    assert first[0] == 0 and stop[-1] == shared[0] * steps and (first[1:] == stop[:-1]).all()
    assert np.ptp(stop - first) <= 1
    assert (pieces == [len({s // steps for s in range(f, e)}) for f, e in zip(first, stop)]).all()


def test_an_epilogue_and_its_tiles_see_the_whole_sums():
    from math import erf
    rng = np.random.default_rng(3)
    a, b = drawn(rng, (100, 600), np.float16), drawn(rng, (600, 200), np.float16)
    bias, residual = drawn(rng, (200,), np.float32), drawn(rng, (100, 200), np.float16)
    got = product(a, b, np.float32, epilogue=bias_gelu_residual, arguments=(bias, residual), config=streamed(64, 64, np.float16, 4))
    v = a.astype(np.float64) @ b.astype(np.float64) + bias
    np.testing.assert_allclose(got, 0.5 * v * (1 + np.vectorize(erf)(v * 0.70710678)) + residual, atol=5e-4, rtol=1e-5)


@pytest.mark.parametrize("shape", [(128, 256), (192, 192)])
def test_what_is_left_for_others_moves_as_threads_hold_it(shape):
    """16 bytes a thread, without a change of layout; no sums spill, only some addresses."""
    c, matrix = Config.of(*shape), ArraySpec((2560, 2560), "bfloat16")
    partial, flags = ArraySpec((132, c.bm // 64, 64 * c.bn), "float32"), ArraySpec((1024, 3), "int32")
    compiled = stream.compile(matrix, matrix, matrix, 1.0, 1.0, 0, 0, 0, 0, partial, flags, BM=c.bm, BN=c.bn, BK=c.bk, STAGES=c.stages, ORDER=c.order,
                              BEHIND=c.behind, REGS=c.regs, A_KM=False, B_KN=False, SUMS=tile.float32, WIDTH=c.width, BUFFERS=c.buffers,
                              FINISH=((), None, False, False, 0), EXTRAS=0, num_warps=c.num_warps, spills=64)
    assert compiled.spills <= 64 and "convert_layout" not in compiled.graph
    assert compiled.ptx.count("st.global.v4.b32") == compiled.ptx.count("ld.global.v4.b32") == c.bn // 8


@pytest.mark.parametrize("extents,shared", [((2304, 2304, 8192), True), ((2048, 2048, 2048), False), ((3072, 3072, 3072), False), ((64, 4096, 4096), False)])
def test_tiles_are_shared_where_rounds_fit_badly_and_k_is_long(extents, shared):
    """Of 162 tiles a round leaves 30; of 128, or of 256 in two rounds, few places are idle."""
    assert choose(Problem(*extents), 132).stream == shared
