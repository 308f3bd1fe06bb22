"""Epilogue functions of `matmul`: on the simulator compared with NumPy, and the generated code."""

import warnings
from dataclasses import replace
from math import erf
from unittest import mock

import numpy as np
import pytest
import tilejit as tile
from tilejit import ArraySpec, kernels
from tilejit.errors import SharedMemoryError
from tilejit.kernels.matmul import register_fit
from tilejit.kernels.matmul.blackwell.config import BlackwellConfig
from tilejit.kernels.matmul.call import PLANS
from tilejit.kernels.matmul.choice import LATE, Config, Problem, choose
from tilejit.kernels.matmul.hopper.persistent import persistent
from tilejit.kernels.matmul.hopper.stream import stream
from tilejit.kernels.matmul.register_fit import FEW, fit_registers

from tests.chosen_cases import part
from tests.drawn import drawn
from tests.gpu import in_child, needs_gpu
from tests.mma.products import (
    BF16,
    E4M3,
    LAID,
    added,
    bias_gelu_added,
    bias_gelu_residual,
    multiplying_on,
    of_many_values,
    planned,
    plus_one,
    product,
    with_configs,
    with_layout,
)


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
def test_an_epilogue_receives_the_accumulator_and_its_position(target, config):
    """Bias, activation and residual, in every kernel, with and without swapped operands."""
    rng = np.random.default_rng(3)
    m, n, k = 100, 72, 300
    a, b = drawn(rng, (m, k), np.float16), drawn(rng, (k, n), np.float16)
    bias, residual = drawn(rng, (n,), np.float32), drawn(rng, (m, n), np.float16)
    with multiplying_on(target):
        got = product(a, b, np.float32, epilogue=bias_gelu_residual, arguments=(bias, residual), config=config)
    v = a.astype(np.float64) @ b.astype(np.float64) + bias
    want = 0.5 * v * (1 + np.vectorize(erf)(v * 0.70710678)) + residual
    np.testing.assert_allclose(got, want, atol=2e-4, rtol=1e-5)


@tile.jit
def scaled_plus(acc, row, column, scale, beside, other):
    return acc * scale + beside - tile.cast(other, tile.float32)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("bm,bn,behind,width", [(128, 64, False, 64), (64, 128, True, 32), (64, 128, False, 128)])
@pytest.mark.parametrize("k", [40, 300])
@pytest.mark.parametrize("stream", [False, True])
def test_epilogue_tiles_of_the_result_s_shape_are_prefetched(dtype, bm, bn, behind, width, k, stream):
    """Many tiles per CTA, a shared last wave, ragged at both edges; by TMA if the dtype is the result's, otherwise by loads of
    threads."""
    rng = np.random.default_rng(5)
    m, n = 300, 328
    a, b = drawn(rng, (m, k), np.float16), drawn(rng, (k, n), np.float16)
    beside, other = drawn(rng, (m, n), dtype), drawn(rng, (m, n), np.float32)
    config = replace(Config.of(bm, bn, stages=3), behind=behind, width=width, buffers=bn // width, stream=stream)
    got = product(a, b, np.float16, epilogue=scaled_plus, arguments=(0.25,), tiles=(beside, other), config=config)
    want = (a.astype(np.float64) @ b.astype(np.float64)) * 0.25 + beside - other
    np.testing.assert_allclose(got, want, atol=2e-3, rtol=1e-3)
    launch = planned(a, b, got, scaled_plus, (beside, other), config)
    assert launch.plan.ahead == ((True, False) if dtype == np.float16 else ())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("m,n,k,width,late", [(600, 328, 330, 32, 32), (300, 328, 570, 32, 96), (260, 136, 590, 64, 64), (40, 104, 600, 64, 64),
                                              (300, 264, 500, 64, 64), (300, 264, 40, 64, 64)])
def test_deferred_columns_are_finished_under_the_next_tile(m, n, k, width, late, stream):
    """One tile per CTA and many, ragged at both edges, of 128 x 128. Where the CTA may have fewer stages than the parts take, fewer
    columns are deferred."""
    rng = np.random.default_rng(7)
    a, b = drawn(rng, (m, k), np.float16), drawn(rng, (k, n), np.float16)
    beside, other = drawn(rng, (m, n), np.float16), drawn(rng, (m, n), np.float32)
    config = replace(Config.of(128, 128, stages=2), behind=False, width=width, buffers=128 // width, stream=stream, late=late)
    got = product(a, b, np.float16, epilogue=scaled_plus, arguments=(0.25,), tiles=(beside, other), config=config)
    want = (a.astype(np.float64) @ b.astype(np.float64)) * 0.25 + beside - other
    np.testing.assert_allclose(got, want, atol=2e-3, rtol=1e-3)
    launch = planned(a, b, got, scaled_plus, (beside, other), config)
    rest, parts = (launch.shares[3], launch.shares[5]) if stream else (0, 0)
    steps = -(-k // 64)
    least = min(steps - rest, rest // parts if rest else steps)
    assert launch.plan.late == min(late, max(least - 3, 0) * 16 // width * width)


def test_no_columns_are_deferred_if_a_part_does_not_fit_in_a_buffer():
    rng = np.random.default_rng(8)
    a, b, beside = (rng.integers(-2, 3, shape).astype(dtype) for shape, dtype in (((256, 640), np.float16), ((640, 200), np.float16), ((256, 200), np.float32)))
    for late in (8, 24, 64):
        config = replace(Config.of(64, 64, stages=2, stored=4), behind=False, width=8, buffers=8, late=late)
        got = product(a, b, np.float32, epilogue=added, tiles=(beside,), config=config)
        np.testing.assert_array_equal(got, a.astype(np.float32) @ b.astype(np.float32) + beside)
        assert planned(a, b, got, added, (beside,), config).plan.late == 0


@tile.jit
def plus_rounded(acc, row, column, beside):
    return tile.cast(acc, beside.dtype) + beside


def check_deferred_columns(home, m, n, k, dtype, b_by_rows, shared, narrow):
    """The largest tile with as many deferred columns as the model chooses for this B; small integers, so that only the result is rounded, and
    for an epilogue with 16-bit accumulators, before it the accumulators."""
    rng = np.random.default_rng(9)
    a, b, beside, other = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((m, k), (k, n), (m, n), (m, n)))
    config = choose(Problem(4096, 4096, 4096, epilogue=True, ahead=True, across=(False, b_by_rows), narrow=narrow), 132)
    assert (config.bm, config.bn, config.late) == (128, 256, 256 if narrow else LATE)
    out = home(np.full((m, n), np.nan, dtype))
    PLANS.clear()
    how = dict(epilogue=plus_rounded, tiles=(home(beside),)) if narrow else dict(epilogue=scaled_plus, arguments=(0.25,), tiles=(home(beside), home(other)))
    kernels.matmul(home(a), home(b) if b_by_rows else home(np.ascontiguousarray(b.T)).T, out, **how, config=replace(config, stream=shared))
    (launch,) = PLANS.values()
    assert launch.plan.late == config.late and launch.kernel is (stream if shared else persistent)
    assert getattr(launch.plan.waiting, "name", None) == (np.dtype(dtype).name if narrow else None)
    sums = a.astype(np.float32) @ b.astype(np.float32)
    want = sums.astype(dtype) + beside if narrow else (sums * 0.25 + beside.astype(np.float32) - other.astype(np.float32)).astype(dtype)
    np.testing.assert_array_equal(out if out.__class__ is np.ndarray else out.numpy(), want)


@pytest.mark.parametrize("b_by_rows,dtype", [(False, np.float16), (True, BF16)])
@pytest.mark.parametrize("shared,k,narrow", [(False, 840, False), (True, 1416, False), (False, 1352, True), (True, 2440, True)])
def test_the_number_of_deferred_columns_that_the_model_chooses_is_right(shared, k, narrow, b_by_rows, dtype):
    """Several tiles per CTA, ragged at both edges and along k."""
    check_deferred_columns(np.asarray, 300, 504, k, dtype, b_by_rows, shared, narrow)


@needs_gpu("sm_90a")
@in_child(timeout=100)
@pytest.mark.parametrize("b_by_rows", [False, True])
@pytest.mark.parametrize("shared,extents,narrow", [
    (False, (5000, 2312, 1096), False), (True, (2300, 2312, 4168), False), (True, (5000, 2568, 4168), False),
    (False, (5000, 2312, 1352), True), (True, (2300, 2312, 4168), True), (True, (5000, 2568, 8072), True)])
def test_the_number_of_deferred_columns_that_the_model_chooses_is_right_on_the_gpu(shared, extents, narrow, b_by_rows):
    for dtype in (np.float16, BF16):
        check_deferred_columns(tile.to_device, *extents, dtype, b_by_rows, shared, narrow)


@tile.jit
def doubled(acc, row, column):
    return acc * 2


@pytest.mark.parametrize("b_by_rows", [False, True])
@pytest.mark.parametrize("shared,k", [(False, 840), (True, 1416)])
def test_columns_are_deferred_with_an_epilogue_that_only_takes_the_accumulator(shared, k, b_by_rows):
    """By the model's choice; small integers, so that only the result is rounded."""
    rng = np.random.default_rng(9)
    a, b = (rng.integers(-2, 3, shape).astype(BF16) for shape in ((300, k), (k, 504)))
    config = planned(*([np.lib.stride_tricks.as_strided(np.zeros(16, BF16), (4096, 4096), (8192, 2))] * 3), doubled, ()).plan
    assert (config.bm, config.bn, config.late, config.ahead) == (128, 256, LATE, ())
    chosen = replace(choose(Problem(4096, 4096, 4096, epilogue=True, ahead=True), 132), stream=shared)
    b = b if b_by_rows else np.ascontiguousarray(b.T).T
    got = product(a, b, BF16, epilogue=doubled, config=chosen)
    np.testing.assert_array_equal(got, (2 * (a.astype(np.float32) @ b.astype(np.float32))).astype(BF16))
    assert planned(a, b, got, doubled, (), chosen).plan.late == LATE


def check_deferred_columns_of_batches(home, m, n, k, shared):
    """With the number of the matrix, which may differ from that of the previous tile, one to three consumers, and scales."""
    rng = np.random.default_rng(8)
    a, b = drawn(rng, (3, m, k), np.float16), drawn(rng, (3, k, n), np.float16)
    beside, other = drawn(rng, (3, m, n), np.float16), drawn(rng, (3, m, n), np.float16)
    want = (a.astype(np.float64) @ b.astype(np.float64)) * 0.25 + beside - other
    for bm, late in ((64, 64), (128, 32), (192, 32)):
        config = replace(Config.of(bm, 128, stages=2), behind=False, width=32, buffers=4, late=late, stream=shared)
        out = home(np.full((3, m, n), np.nan, np.float16))
        kernels.matmul(home(a), home(b), out, of_several, (0.5,), tiles=(home(beside), home(other)), scale_a=0.5, config=config)
        got = out if out.__class__ is np.ndarray else out.numpy()
        np.testing.assert_allclose(got, want, atol=4e-3, rtol=1e-3)
        assert planned(a, b, got, of_several, (beside, other), config).plan.late == late


@pytest.mark.parametrize("shared,k", [(False, 450), (True, 1000)])
def test_columns_of_batched_products_can_be_deferred_too(shared, k):
    check_deferred_columns_of_batches(np.asarray, 200, 136, k, shared)


@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_columns_of_batched_products_can_be_deferred_on_the_gpu():
    """A CTA has several tiles."""
    for shared, k in ((False, 450), (True, 2000)):
        check_deferred_columns_of_batches(tile.to_device, 2500, 1032, k, shared)


@pytest.mark.parametrize("how", LAID)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
@with_configs([Config.of(64, 32, swapped=True, stages=3)], [BlackwellConfig.of(32, False, True, epilogue=True)])
def test_epilogue_tiles_may_have_any_strides_and_leading_dimensions(how, batch, target, config):
    rng = np.random.default_rng(6)
    a, b = drawn(rng, (*batch, 130, 40), np.float16), drawn(rng, (*batch, 40, 72), np.float16)
    beside, other = with_layout(drawn(rng, (*batch, 130, 72), np.float16), how), drawn(rng, (*batch, 130, 72), np.float16)
    with multiplying_on(target):
        got = product(a, b, np.float16, epilogue=of_several if batch else scaled_plus, arguments=(2.0,), tiles=(beside, other), config=config)
    want = (a.astype(np.float64) @ b.astype(np.float64)) * 2 + beside - other
    np.testing.assert_allclose(got, want, atol=4e-3, rtol=1e-3)


@tile.jit
def of_several(acc, z, row, column, scale, beside, other):
    return scaled_plus(acc, row, column, scale, beside, other)


def test_a_large_product_prefetches_its_residual_and_defers_columns():
    """The largest tile, with buffers for all of its columns, and a shared last wave; nothing spills."""
    for b_by_rows in (False, True):
        assert choose(Problem(4096, 4096, 4096, epilogue=True, ahead=True, across=(False, b_by_rows)), 132).late == LATE
    assert choose(Problem(4096, 4096, 4096, epilogue=True), 132).late == choose(Problem(1024, 4096, 4096, epilogue=True, ahead=True), 132).late == 0
    big = np.lib.stride_tricks.as_strided(np.zeros(16, BF16), (8192, 8192), (16384, 2))
    config = choose(Problem(8192, 8192, 8192, epilogue=True, ahead=True), 132)
    spec, flags = ArraySpec((8192, 8192), "bfloat16"), ArraySpec((1024, 3), "int64")
    for shared, late in part(((True, LATE), (True, LATE // 2), (False, LATE), (True, 0)), 2):
        launch = planned(big, big, big, bias_gelu_added, (big,), replace(config, stream=config.stream and shared, late=late))
        c = launch.plan
        assert c.ahead and (c.bm, c.bn, c.width, c.buffers, c.late) == (128, 256, 64, 4, late) and launch.kernel is (stream if shared else persistent)
        room = (*launch.shares, ArraySpec(*launch.room), flags) if shared else ()
        compiled = launch.kernel.compile(spec, spec, spec, 1.0, 1.0, ArraySpec((8192,), "float32"), spec, 0, 0, *room, **launch.with_plan(epilogue=replace(c.epilogue, extras=2)).constants)
        assert compiled.spills == 0 and "convert_layout" not in str(compiled.graph)


@tile.jit
def of_many_values_added(acc, row, column, beside):
    return of_many_values(acc, row, column) + beside


def test_columns_are_not_deferred_if_that_spills():
    big = np.lib.stride_tricks.as_strided(np.zeros(16, BF16), (4096, 4096), (8192, 2))
    launch = planned(big, big, big, of_many_values_added, (big,), choose(Problem(4096, 4096, 4096, epilogue=True, ahead=True), 132))
    assert launch.plan.late == LATE
    spec = ArraySpec(big.shape, "bfloat16")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = fit_registers(launch, (spec, spec, spec, 1.0, 1.0, spec, 0, 0, 0), "sm_90a")
    assert chosen == launch.with_plan(late=0)


def test_jitter_changes_no_plan():
    """Its idle time takes registers, which would look like an epilogue that spills."""
    kernel = mock.Mock()
    register_fit.spills(kernel, ("x",), {"PLAN": 1}, "sm_90a", simulated=False)
    kernel.compile.assert_called_once_with("x", PLAN=1, jitter=None, target="sm_90a")


@pytest.mark.parametrize("stream,epilogue,spills", [(False, plus_one, False), (True, of_many_values, True)])
def test_an_epilogue_that_spills_causes_a_warning_with_the_bytes_and_a_remedy(stream, epilogue, spills):
    big = np.lib.stride_tricks.as_strided(np.zeros(16, BF16), (2304, 2304), (4608, 2))
    launch = planned(big, big, big, epilogue, (), replace(Config.of(128, 256, epilogue=True), stream=stream))
    spec = ArraySpec(big.shape, "bfloat16")
    given = (spec, spec, spec, 1.0, 1.0, 0, 0, 0, 0, *launch.shares, *((ArraySpec(*launch.room), ArraySpec((1024, 3), "int64")) if stream else ()))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert fit_registers(launch, given, "sm_90a") is launch
        spilled = launch.kernel.compile(*given, target="sm_90a", **launch.constants).spills
    assert (spilled > FEW) == spills and len(told) == spills
    for warning in told:
        assert warning.category is tile.TileWarning and warning.filename == __file__
        assert f"each thread spills {spilled} bytes" in str(warning.message) and "a config with a bn below 256" in str(warning.message)


@with_configs([Config.of(64, 32), Config.of(64, 32, swapped=True)], [BlackwellConfig.of(32, stored=4), BlackwellConfig.of(32, False, True, stored=4)])
def test_an_epilogue_of_batched_products_gets_the_number_of_the_matrix(target, config):
    a, b = np.zeros((3, 70, 16), BF16), np.zeros((3, 16, 40), BF16)
    with multiplying_on(target):
        got = product(a, b, np.float32, epilogue=matrix_and_place, arguments=(0.5,), config=config)
    z, i, j = np.indices((3, 70, 40))
    np.testing.assert_array_equal(got, (i * 100 + j) * 0.5 + z)


@tile.jit
def times_and_plus(acc, z, row, column, factor, first, second, third):
    return acc * factor + first * second + third


@pytest.mark.parametrize("m,n,k", [(129, 142, 42), (100, 130, 20), (40, 250, 1500)])
def test_epilogue_tiles_of_a_result_stored_by_threads_fit_in_shared_memory(m, n, k):
    """For results whose rows TMA cannot store: 64 columns at a time are converted to the accumulator's layout."""
    rng = np.random.default_rng(11)
    a, b = drawn(rng, (3, m, k), BF16), drawn(rng, (k, n), BF16)
    tiles = [rng.integers(-3, 4, shape).astype(BF16) for shape in ((m, n), (1, m, n), (3, 1, n))]
    out = np.full((3, m, n + 2), np.nan, np.float32)[..., :n]
    assert kernels.matmul(a, b, out, times_and_plus, (0.5,), tiles=tuple(tiles)) is out
    first, second, third = (t.astype(np.float64) for t in tiles)
    want = a.astype(np.float64) @ b.astype(np.float64) * 0.5 + first * second + third
    np.testing.assert_allclose(out, want, atol=2e-3, rtol=1e-5)


@pytest.mark.parametrize("splits,bn", [(1, 160), (2, 256), (1, 104)])
def test_a_tile_stored_by_threads_is_finished_in_parts(splits, bn):
    """Also if the parts have different widths."""
    rng = np.random.default_rng(12)
    a, b = drawn(rng, (70, 300), np.float16), drawn(rng, (300, 243), np.float16)
    residual = drawn(rng, (70, 243), np.float32)
    got = product(a, b, np.float32, epilogue=added, tiles=(residual,), config=Config.of(128, bn, splits=splits, stored=4, stages=2))
    np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64) + residual, atol=2e-3, rtol=1e-5)


@tile.jit
def added_in_another_order(acc, row, column, beside):
    """Adds to each accumulator element that of another thread, which goes through shared memory."""
    return acc + tile.reshape(acc, (acc.shape[1], acc.shape[0])).T + beside


def test_the_model_s_configuration_gets_fewer_stages_if_an_epilogue_needs_their_memory():
    big = lambda shape: np.lib.stride_tricks.as_strided(np.zeros(16, np.float16), shape, (shape[1] * 2, 2))
    a, b, out = big((1271, 2000)), big((232, 2000)).T, big((1271, 232))
    config = Config.of(64, 80, width=16, epilogue=False)
    launch = planned(a, b, out, added_in_another_order, (out,), config)
    given = (a, b.T, out, 1.0, 1.0, out, 0, 0, 0)
    assert launch.plan.stages == 12
    with pytest.raises(SharedMemoryError, match="the kernel needs .* bytes of shared memory, and sm_90a allows 232448"):
        fit_registers(launch, given, "sm_90a", simulated=True)
    assert fit_registers(launch, given, "sm_90a", simulated=True, chosen=True) == launch.with_plan(stages=11)


@pytest.mark.parametrize("stored", [1, 2])
def test_float8_accumulated_by_threads_is_stored_in_parts_as_wide_as_it_is_accumulated(stored):
    """Many tiles of small k with a residual; other kernels store 256 columns at a time."""
    config = choose(Problem(8192, 8192, 512, itemsize=1, stored=stored, epilogue=True, ahead=True, promoted=()), 132)
    assert config.bn == 256 and config.width == 128
    rng = np.random.default_rng(13)
    a, b = drawn(rng, (100, 200), E4M3), drawn(rng, (200, 300), E4M3)
    dtype = E4M3 if stored == 1 else np.float16
    residual = rng.integers(-3, 4, (100, 300)).astype(dtype)
    got = product(a, b, dtype, epilogue=of_residual, tiles=(residual,), config=replace(config, pair=False))
    want = a.astype(np.float64) @ b.astype(np.float64) + residual.astype(np.float64)
    assert (np.abs(got.astype(np.float64) - want) <= np.abs(want) * 2.0 ** (-4 if stored == 1 else -11) + 0.02).all()


@tile.jit
def of_residual(acc, row, column, beside):
    return acc + tile.cast(beside, tile.float32)
