"""The matrix product of tilejit.kernels: on the simulator against NumPy in float64, and what the compiler makes of it on Hopper."""

import os
from contextlib import contextmanager
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tilejit import ArraySpec, kernels
from tilejit.errors import LaunchError
from tilejit.kernels.blackwell_plan import BlackwellConfig
from tilejit.kernels.hopper import persistent
from tilejit.kernels.plan import TILES, Config, Problem, choose
from tilejit.kernels.stream import stream
from tilejit.runtime.arrays import describe

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
SMALL = Config.of(128, 64)
PLACES = {"float16": 11, "bfloat16": 8, "float32": 24, "float8_e4m3fn": 4}  # significant bits of a result


TARGETS = ("sm_90a", "sm_100a")


@contextmanager
def on(target: str):
    """NumPy arrays are multiplied as on the target."""
    before = os.environ.get("TILEJIT_TARGET")
    os.environ["TILEJIT_TARGET"] = target
    try:
        yield
    finally:
        os.environ.pop("TILEJIT_TARGET")
        if before is not None:
            os.environ["TILEJIT_TARGET"] = before


def with_configs(hopper, blackwell):
    """Parametrize by target and configuration: None, and those given for either target."""
    return pytest.mark.parametrize("target,config", [*(("sm_90a", c) for c in (None, *hopper)), *(("sm_100a", c) for c in (None, *blackwell))])


def drawn(rng, shape, dtype):
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def laid(x, how: str):
    """The same numbers in other strides: rows or columns side by side, rows padded to 16 bytes, every second element, reversed."""
    *batch, m, n = x.shape
    if how == "columns":
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "padded":
        wide = np.zeros((*batch, m, -(-n // 16) * 16 + 16), x.dtype)
        wide[..., :n] = x
        return wide[..., :n]
    if how == "spaced":
        wide = np.zeros((*batch, m, 2 * n + 1), x.dtype)
        wide[..., 1::2] = x
        return wide[..., 1::2]
    if how == "reversed":
        return np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    return np.ascontiguousarray(x)


def entering(x, rounded=True):
    """float64 of what the multipliers see: TF32 has 10 bits of mantissa, to which TMA rounds to the nearest (even) or the tensor cores cut."""
    if x.dtype == np.float32:
        bits = np.ascontiguousarray(x).view(np.uint32)
        bits = bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1)) if rounded else bits
        x = (bits & np.uint32(0xFFFFE000)).view(np.float32)
    return x.astype(np.float64)


def close(got, a, b, scale=1.0, rounded=True):
    """Exact for integers (which wrap); else within one rounding of the result, and the roundings of k sums in float32."""
    x, y = entering(a, rounded), entering(b, rounded)
    exact = (x @ y) * scale
    if got.dtype.kind in "iu":
        np.testing.assert_array_equal(got, (a.astype(np.int64) @ b.astype(np.int64)).astype(got.dtype))
        return
    bound = np.abs(exact) * 2.0 ** -PLACES[got.dtype.name] + np.abs(x) @ np.abs(y) * scale * (a.shape[-1] + 2) * 2.0 ** -23 + 1e-6
    assert (np.abs(got.astype(np.float64) - exact) <= bound).all()


def product(a, b, out_dtype=None, **options):
    """The result, of an `out` full of NaN (or of the largest integer) before."""
    shape = (*(a.shape[:-2] or b.shape[:-2]), a.shape[-2], b.shape[-1])
    dtype = np.dtype(out_dtype or (np.int32 if a.dtype.kind in "iu" else BF16 if a.dtype.itemsize == 1 else a.dtype))
    out = np.full(shape, np.iinfo(dtype).max if dtype.kind in "iu" else np.nan, dtype)
    precision = "tf32" if a.dtype == np.float32 else None
    assert kernels.matmul(a, b, out, precision=precision, **options) is out
    return out


LAID = ("rows", "columns", "padded", "spaced", "reversed")
LAYOUTS = st.sampled_from(LAID)
EXTENT = st.one_of(st.integers(1, 40), st.sampled_from((63, 64, 65, 96, 128, 130, 200)))
OPERANDS = ((BF16, BF16), (np.float16, np.float16), (np.float32, np.float32), (E4M3, E4M3), (E5M2, E4M3), (np.int8, np.int8), (np.uint8, np.int8))


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(m=EXTENT, n=EXTENT, k=st.one_of(st.integers(0, 20), EXTENT), dtypes=st.sampled_from(OPERANDS), a_is=LAYOUTS, b_is=LAYOUTS,
       batch=st.sampled_from(((), (), (2,), (2, 1))), shared=st.sampled_from(("neither", "a", "b")), seed=st.integers(0, 1 << 16))
def test_products_of_any_extents_strides_and_dtypes_are_right(target, m, n, k, dtypes, a_is, b_is, batch, shared, seed):
    """M, N and K from 0 or 1 on, in every layout, one or several matrices, of every type that the tensor cores take."""
    rng = np.random.default_rng(seed)
    a = laid(drawn(rng, (*(batch if shared != "a" else ()), m, k), dtypes[0]), a_is)
    b = laid(drawn(rng, (*(batch if shared != "b" else ()), k, n), dtypes[1]), b_is)
    with on(target):
        close(product(a, b), a, b)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtypes", OPERANDS)
def test_extents_of_one(dtypes, target):
    """One row, one column, one of k, and one of each."""
    rng = np.random.default_rng(0)
    with on(target):
        for m, n, k in ((1, 1, 1), (1, 200, 130), (130, 1, 64), (65, 72, 1)):
            a, b = drawn(rng, (m, k), dtypes[0]), drawn(rng, (k, n), dtypes[1])
            close(product(a, b), a, b)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(m=EXTENT, n=EXTENT, steps=st.integers(0, 7), over=st.integers(-3, 3), dtypes=st.sampled_from(OPERANDS), fast=st.booleans(), bm=st.sampled_from((64, 128)),
       bn=st.sampled_from((16, 64, 128)), stages=st.integers(2, 4), splits=st.sampled_from((1, 1, 2, 4)), swapped=st.booleans(), behind=st.booleans(),
       width=st.sampled_from((16, 32, 64, 128)), buffers=st.sampled_from((1, 2, 4)), a_is=LAYOUTS, b_is=LAYOUTS, seed=st.integers(0, 99))
def test_every_configuration_gives_the_product(m, n, steps, over, dtypes, fast, bm, bn, stages, splits, swapped, behind, width, buffers, a_is, b_is, seed):
    """Rings that turn 0, 1, stages - 1, stages, stages + 1 times, tiles larger and smaller than the matrices, any split of k, any number
    of buffers for results, every type; sums of float8 by the tensor cores alone or added up by threads."""
    rng, size = np.random.default_rng(seed), np.dtype(dtypes[0]).itemsize
    k = max(128 // size * steps + over, 0)
    if splits > 1 and bn // splits < 8:
        splits = 1
    a, b = laid(drawn(rng, (m, k), dtypes[0]), a_is), laid(drawn(rng, (k, n), dtypes[1]), b_is)
    stored = 4 if size == 4 or np.dtype(dtypes[0]).kind in "iu" else 2
    width = min(width, bn, 256 // stored)
    config = replace(Config.of(bm, bn, 128 // size, splits=splits, swapped=swapped, itemsize=size, stored=stored, stages=stages), behind=behind, width=width,
                     buffers=min(buffers, bn // width))
    close(product(a, b, config=config, fast_accum=fast), a, b)


@pytest.mark.parametrize("shape", list(TILES))
def test_every_tile_of_the_choice(shape):
    """Each tile that the model may choose gives the product, twice the same bits."""
    config = Config.of(*shape)
    rng = np.random.default_rng(0)
    a, b = drawn(rng, (shape[0] + 8, 256), BF16), laid(drawn(rng, (256, shape[1] + 8), BF16), "columns")
    first = product(a, b, config=config)
    close(first, a, b)
    assert product(a, b, config=config).tobytes() == first.tobytes()


@pytest.mark.parametrize("how", ["columns", "padded", "spaced", "reversed"])
@with_configs([Config.of(64, 64, splits=2)], [BlackwellConfig.of(64), BlackwellConfig.of(64, True), BlackwellConfig.of(64, splits=2)])
def test_results_in_any_strides(how, target, config):
    """Column-major, padded, spaced and reversed results; what lies between their elements is left alone."""
    rng = np.random.default_rng(1)
    a, b = drawn(rng, (70, 300), BF16), drawn(rng, (300, 90), BF16)
    out = laid(np.full((70, 90), np.nan, BF16), how)
    whole = out if out.base is None else out.base
    before = whole.copy()
    with on(target):
        kernels.matmul(a, b, out, config=config)
    close(out, a, b)
    out[...] = np.nan
    assert whole.tobytes() == before.tobytes()


@pytest.mark.parametrize("target", TARGETS)
def test_leading_dimensions_are_folded(target):
    """Several of them; a result whose leading dimensions are no one dimension is refused."""
    rng = np.random.default_rng(2)
    a, b = drawn(rng, (2, 3, 20, 40), BF16), drawn(rng, (2, 3, 40, 30), BF16)
    odd = np.zeros((2, 5, 20, 30), BF16)[:, :3]
    with on(target):
        close(product(a, b), a, b)
        with pytest.raises(LaunchError, match="cannot be seen as one"):
            kernels.matmul(a, b, odd)


@pytest.mark.parametrize("target", TARGETS)
def test_empty_results_and_an_inner_extent_of_zero(target):
    """Nothing is launched for no elements; a sum of nothing is 0, and goes through the epilogue."""
    zero = lambda *shape: np.zeros(shape, BF16)
    with on(target):
        assert kernels.matmul(zero(0, 8), zero(8, 4)).shape == (0, 4)
        assert kernels.matmul(zero(3, 8), zero(8, 0)).shape == (3, 0)
        assert kernels.matmul(zero(0, 3, 8), zero(8, 4)).shape == (0, 3, 4)
        np.testing.assert_array_equal(product(zero(3, 0), zero(0, 4)).astype(np.float32), 0)
        np.testing.assert_array_equal(product(zero(3, 0), zero(0, 4), epilogue=plus_one).astype(np.float32), 1)


# -- epilogues and scales --------------------------------------------------------------------------------------------------

@tile.jit
def plus_one(acc, row, column):
    return acc + 1


@tile.jit
def bias_gelu_residual(acc, row, column, bias, residual):
    rows, columns = acc.shape
    v = acc + tile.load(bias[column:column + columns])[None, :]
    v = 0.5 * v * (1 + tile.erf(v * 0.70710678))
    return v + tile.load(residual[row:row + rows, column:column + columns])


@tile.jit
def matrix_and_place(acc, z, row, column, scale):
    rows, columns = acc.shape
    where = (row + tile.arange(rows))[:, None] * 100 + (column + tile.arange(columns))[None, :]
    return acc * 0 + tile.cast(where, tile.float32) * scale + z


@with_configs([Config.of(128, 64, stages=3), Config.of(64, 64, splits=2, stages=3), Config.of(64, 32, swapped=True, stages=3),
               Config.of(64, 64, splits=4, swapped=True, stages=3)],
              [BlackwellConfig.of(64, epilogue=True), BlackwellConfig.of(64, True, stored=4, epilogue=True), BlackwellConfig.of(32, False, True, epilogue=True),
               BlackwellConfig.of(64, True, True, epilogue=True), BlackwellConfig.of(64, stored=4, epilogue=True, splits=2),
               BlackwellConfig.of(32, False, True, epilogue=True, splits=4)])
def test_an_epilogue_sees_sums_and_where_they_are(target, config):
    """Bias, activation and residual, through every kernel, swapped or not."""
    rng = np.random.default_rng(3)
    m, n, k = 100, 72, 300
    a, b = drawn(rng, (m, k), np.float16), drawn(rng, (k, n), np.float16)
    bias, residual = drawn(rng, (n,), np.float32), drawn(rng, (m, n), np.float16)
    with on(target):
        got = product(a, b, np.float32, epilogue=bias_gelu_residual, arguments=(bias, residual), config=config)
    v = a.astype(np.float64) @ b.astype(np.float64) + bias
    from math import erf
    want = 0.5 * v * (1 + np.vectorize(erf)(v * 0.70710678)) + residual
    np.testing.assert_allclose(got, want, atol=2e-4, rtol=1e-5)


@tile.jit
def scaled_plus(acc, row, column, scale, beside, other):
    return acc * scale + beside - tile.cast(other, tile.float32)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("bm,bn,behind,width", [(128, 64, False, 64), (64, 128, True, 32), (64, 128, False, 128)])
@pytest.mark.parametrize("k", [40, 300])
@pytest.mark.parametrize("stream", [False, True])
def test_tiles_of_the_results_shape_come_ahead(dtype, bm, bn, behind, width, k, stream):
    """Many tiles for each CTA, some of which share the last of them, ragged at both edges; by TMA where the dtype is the result's, by loads of
    threads else."""
    rng = np.random.default_rng(5)
    m, n = 600, 328
    a, b = drawn(rng, (m, k), np.float16), drawn(rng, (k, n), np.float16)
    beside, other = drawn(rng, (m, n), dtype), drawn(rng, (m, n), np.float32)
    config = replace(Config.of(bm, bn, stages=3), behind=behind, width=width, buffers=bn // width, stream=stream)
    got = product(a, b, np.float16, epilogue=scaled_plus, arguments=(0.25,), tiles=(beside, other), config=config)
    want = (a.astype(np.float64) @ b.astype(np.float64)) * 0.25 + beside - other
    np.testing.assert_allclose(got, want, atol=2e-3, rtol=1e-3)
    launch = planned(a, b, got, scaled_plus, (beside, other), config)
    assert launch.constants["AHEAD"] == (dtype == np.float16)


def planned(a, b, out, epilogue, tiles, config=None, fast_accum=False, scales=(), target="sm_90a"):
    from tilejit.kernels.matmul import _planned
    from tilejit.kernels.scales import scale
    scaled = tuple(scale("a scale", s) for s in scales)
    return _planned(*map(describe, (a, b, out)), None, scaled, fast_accum, epilogue, 0, [describe(t) for t in tiles], config, target)


@pytest.mark.parametrize("how", LAID)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
@with_configs([Config.of(64, 32, swapped=True, stages=3)], [BlackwellConfig.of(32, False, True, epilogue=True)])
def test_tiles_in_any_strides_and_leading_dimensions(how, batch, target, config):
    rng = np.random.default_rng(6)
    a, b = drawn(rng, (*batch, 130, 40), np.float16), drawn(rng, (*batch, 40, 72), np.float16)
    beside, other = laid(drawn(rng, (*batch, 130, 72), np.float16), how), drawn(rng, (*batch, 130, 72), np.float16)
    with on(target):
        got = product(a, b, np.float16, epilogue=of_several if batch else scaled_plus, arguments=(2.0,), tiles=(beside, other), config=config)
    want = (a.astype(np.float64) @ b.astype(np.float64)) * 2 + beside - other
    np.testing.assert_allclose(got, want, atol=4e-3, rtol=1e-3)


@tile.jit
def of_several(acc, z, row, column, scale, beside, other):
    return scaled_plus(acc, row, column, scale, beside, other)


def test_a_large_product_chooses_to_bring_its_residual_ahead():
    """The largest tile, with buffers for all of its columns, and the last round is shared; no sums spill. In few rounds there are two
    buffers, so that half is stored earlier."""
    assert choose(Problem(4096, 4096, 4096, epilogue=True, ahead=True), 132).buffers == 2
    big = np.lib.stride_tricks.as_strided(np.zeros(16, BF16), (8192, 8192), (16384, 2))
    config = choose(Problem(8192, 8192, 8192, epilogue=True, ahead=True), 132)
    spec, flags = ArraySpec((8192, 8192), "bfloat16"), ArraySpec((1024, 3), "int32")
    for shared in (True, False):
        launch = planned(big, big, big, bias_gelu_added, (big,), replace(config, stream=config.stream and shared))
        c = launch.constants
        assert c["AHEAD"] and (c["BM"], c["BN"], c["WIDTH"], c["BUFFERS"]) == (128, 256, 256, 1) and launch.kernel is (stream if shared else persistent)
        room = (*launch.shares, ArraySpec(*launch.room), flags) if shared else ()
        compiled = launch.kernel.compile(spec, spec, spec, 1.0, 1.0, ArraySpec((8192,), "float32"), spec, 0, 0, *room, **dict(c, EXTRAS=2))
        assert compiled.spills <= (64 if shared else 0) and "convert_layout" not in str(compiled.graph)


def test_groups_of_tiles_have_fewer_rows_where_these_are_much_of_l2_for_many_rounds():
    """But not where all CTAs go at one pace."""
    even, exact = Problem(16384, 66 * 256, 16384), Problem(16384, 16384, 16384, itemsize=1, promoted=())
    assert choose(even, 132).order == ("grouped", 8) and choose(exact, 132).order == ("grouped", 8)
    for other in (Problem(16384, 16384, 16384), Problem(16384, 16384, 16384, epilogue=True), Problem(8192, 8192, 8192), Problem(4096, 4096, 16384), Problem(8192, 28672, 4096)):
        assert choose(other, 132).order == ("grouped", 16)


@tile.jit
def bias_gelu_added(acc, row, column, bias, residual):
    v = acc + tile.load(bias[column:column + acc.shape[1]])[None, :]
    return 0.5 * v * (1 + tile.tanh(v * (0.7978845608 + 0.0356774081 * v * v), fast=True)) + residual


@with_configs([Config.of(64, 32), Config.of(64, 32, swapped=True)], [BlackwellConfig.of(32, stored=4), BlackwellConfig.of(32, False, True, stored=4)])
def test_an_epilogue_of_several_matrices_is_given_their_number(target, config):
    a, b = np.zeros((3, 70, 16), BF16), np.zeros((3, 16, 40), BF16)
    with on(target):
        got = product(a, b, np.float32, epilogue=matrix_and_place, arguments=(0.5,), config=config)
    z, i, j = np.indices((3, 70, 40))
    np.testing.assert_array_equal(got, (i * 100 + j) * 0.5 + z)


@pytest.mark.parametrize("target", TARGETS)
def test_scales_are_numbers_or_arrays_of_one(target):
    """Factors of the result, before the epilogue; integers become floats."""
    rng = np.random.default_rng(4)
    a, b = drawn(rng, (40, 200), E4M3), laid(drawn(rng, (200, 50), E4M3), "columns")
    two, half = np.full(1, 2.5, np.float32), np.full(1, 0.5, np.float32)
    x, y = drawn(rng, (40, 64), np.int8), drawn(rng, (64, 50), np.int8)
    with on(target):
        for scales in ((2.5, 0.5), (two, half), (two, 0.5), (None, 1.25)):
            close(product(a, b, scale_a=scales[0], scale_b=scales[1]), a, b, 1.25)
        got = product(x, y, np.float32, scale_a=0.5)
    np.testing.assert_array_equal(got, (x.astype(np.int64) @ y.astype(np.int64)).astype(np.float32) * 0.5)


# -- code and choice ---------------------------------------------------------------------------------------------------------

def test_the_largest_tile_is_fast_code():
    """No spills, no register moved between products: the assembler's advisories would be errors."""
    specs = [ArraySpec((8192, 8192), "bfloat16") for _ in range(3)]
    c = Config()
    for b_kn in (True, False):
        constants = dict(BM=c.bm, BN=c.bn, BK=c.bk, STAGES=c.stages, ORDER=c.order, BEHIND=c.behind, REGS=c.regs, A_KM=False, B_KN=b_kn,
                         SUMS=tile.float32, WIDTH=128, BUFFERS=1, ACROSS=False, DEPENDENT=False, FINISH=((), None, False, False, 0), EXTRAS=0, AHEAD=False,
                         PROMOTED=False, BLOCKS=())
        compiled = persistent.compile(*specs, 1.0, 1.0, 0, 0, 0, 0, **constants, num_warps=c.num_warps)
        assert compiled.spills == 0 and compiled.registers <= 168
        assert [c.variant for c in compiled.copies] == ["tma"] * 4
        assert compiled.ptx.count("stmatrix.sync") == 16


@pytest.mark.parametrize("extents,bm,bn,splits,swapped", [
    ((8192, 8192, 8192), 128, 256, 1, False), ((3072, 3072, 3072), 192, 192, 1, False), ((2048, 2048, 2048), 128, 256, 1, False),
    ((512, 512, 512), 64, 32, 1, False), ((64, 4096, 4096), 64, 64, 2, False), ((16, 8192, 8192), 64, 16, 1, True),
    ((64, 64, 65536), 64, 64, 8, False), ((256, 8192, 8192), 128, 128, 1, False), ((512, 28672, 4096), 128, 224, 1, False)])
def test_the_choice_follows_the_waves(extents, bm, bn, splits, swapped):
    """Large matrices take the largest tile, small ones tiles that reach every multiprocessor, few tiles a split of k."""
    c = choose(Problem(*extents), 132)
    assert (c.bm, c.bn, c.splits, c.swapped) == (bm, bn, splits, swapped)


def test_where_memory_is_busy_slots_are_four_and_launches_begin_alone():
    """Not where the tensor cores are, nor in products of so few cycles that a launch's begin counts."""
    for extents, stages, dependent in (((256, 8192, 8192), 6, False), ((512, 8192, 8192), 4, False), ((4096, 4096, 4096), 3, True), ((64, 4096, 4096), 13, True)):
        c = choose(Problem(*extents), 132)
        assert (c.stages, c.dependent) == (stages, dependent)


def test_an_operand_that_is_read_once_leaves_l2_first():
    """Where it is larger than L2 and few rows of tiles read it; not one of a few large tiles' rows, nor one that L2 may hold for the next launch."""
    for extents, passing in (((256, 8192, 8192), True), ((512, 28672, 4096), True), ((4096, 4096, 4096), False), ((256, 4096, 4096), False)):
        assert choose(Problem(*extents), 132).passing is passing
    a, b = np.ones((70, 256), BF16), laid(np.ones((256, 200), BF16), "columns")
    config = replace(Config.of(64, 64), passing=True)
    close(product(a, b, config=config), a, b)
    ptx = persistent.compile(*[ArraySpec((256, 256), "bfloat16")] * 3, 1.0, 1.0, 0, 0, 0, 0, **planned(a, b, np.zeros((70, 200), BF16), None, (), config).constants).ptx
    assert ptx.count("L2::cache_hint") == 1


def test_every_choice_fits_in_shared_memory():
    for itemsize in (1, 2, 4):
        for m, n, k in ((1, 1, 1), (7, 5000, 100000), (300, 300, 300), (4096, 4096, 4096), (100000, 40, 70)):
            c = choose(Problem(m, n, k, 1, itemsize, 4), 132)
            ring = c.stages * (c.bm + c.bn) * c.bk * itemsize
            aside = 4 * c.bm * c.bn * (c.splits - 1) // c.splits if c.splits > 1 else c.bm * c.width * c.buffers * 4
            assert c.stages >= 2 and ring + aside <= 232448 and c.width * 4 <= 256


def test_wrong_operands_are_errors():
    """Extents, dtypes and results that do not fit are named."""
    a, b = np.zeros((64, 64), np.float16), np.zeros((64, 64), np.float16)
    single = np.zeros((64, 64), np.float32)
    for match, call in {
        "inner extents": lambda: kernels.matmul(a, b[:32]),
        "leading extents": lambda: kernels.matmul(np.zeros((2, 4, 4), BF16), np.zeros((3, 4, 4), BF16)),
        "not of shape": lambda: kernels.matmul(a[0], b),
        "two of one kind": lambda: kernels.matmul(a, b.astype(BF16)),
        "the tensor cores take": lambda: kernels.matmul(a.astype(np.float64), b.astype(np.float64)),
        "say precision='tf32'": lambda: kernels.matmul(single, single),
        "precision is None": lambda: kernels.matmul(a, b, precision="tf32"),
        r"out is of shape \(64, 64\)": lambda: kernels.matmul(a, b, np.empty((64, 32), np.float16)),
        "out is of int32": lambda: kernels.matmul(a, b, np.empty((64, 64), np.int32)),
        "and out is of int32": lambda: kernels.matmul(a, b, np.empty((64, 64), np.int32), scale_a=0.5),
        "a multiple of 8 columns": lambda: kernels.matmul(a, b, config=Config.of(128, 160, splits=8)),
        "lie in one place": lambda: kernels.matmul(a, b, np.lib.stride_tricks.as_strided(np.zeros(64, np.float16), (64, 64), (0, 2))),
        "under @tile.jit": lambda: kernels.matmul(a, b, epilogue=abs),
        "there is none": lambda: kernels.matmul(a, b, arguments=(1,)),
        "up to 4 arguments and tiles, not 5": lambda: kernels.matmul(a, b, epilogue=plus_one, arguments=(1, 2, 3), tiles=(a, a)),
        r"tiles are arrays of the result's shape, which is \(64, 64\), not \(64,\)": lambda: kernels.matmul(a, b, epilogue=plus_one, tiles=(a[0],)),
    }.items():
        with pytest.raises(LaunchError, match=match):
            call()
