"""Rows that are common to all rows of the result, such as a bias, among an epilogue's arrays: on the simulator compared with NumPy."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from tilejit import ArraySpec, kernels
from tilejit.errors import LaunchError
from tilejit.kernels.matmul.blackwell.config import BlackwellConfig
from tilejit.kernels.matmul.call import PLANS
from tilejit.kernels.matmul.choice import LATE, Config, Problem, choose
from tilejit.kernels.matmul.hopper.persistent import persistent
from tilejit.kernels.matmul.hopper.stream import stream

from tests.chosen_cases import part
from tests.gpu import in_child, needs_gpu
from tests.mma.products import BF16, E4M3, multiplying_on, planned, product, with_configs


@tile.jit
def scaled_plus(acc, row, column, scale, bias, beside, more):
    return acc * scale + tile.cast(bias, tile.float32)[None, :] + beside - tile.cast(more, tile.float32)[None, :]


@tile.jit
def of_several(acc, z, row, column, scale, bias, beside, more):
    return scaled_plus(acc, row, column, scale, bias, beside, more)


def given(shape, k, dtype, batch=(), seed=0):
    """Operands, rows [N] of float32 and [.., N] of `dtype`, and an array of the result's shape: small integers, so that only
    the result is rounded."""
    rng, (m, n) = np.random.default_rng(seed), shape
    few = lambda *extents: rng.integers(0, 2, extents)
    a, b, beside = (few(*batch, *e).astype(np.float16) for e in ((m, k), (k, n), (m, n)))
    return a, b, few(n).astype(np.float32), beside, few(*batch, n).astype(dtype)


def expected(a, b, bias, beside, more):
    return (a.astype(np.float32) @ b.astype(np.float32)) * 2 + bias + beside - more.astype(np.float32)[..., None, :]


def prefetched(config, a, b, out, epilogue, tiles, **options):
    """Which of the epilogue arrays are prefetched."""
    return planned(a, b, out, epilogue, tiles, config, **options).plan.ahead


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n,k,bn,width,late", [(328, 330, 64, 64, 0), (328, 40, 128, 32, 0), (504, 522, 128, 64, 64), (504, 1418, 256, 64, 128)])
def test_rows_are_prefetched_with_a_tile_and_match_each_tile_s_columns(n, k, bn, width, late, stream):
    """Many tiles per CTA, a shared last wave, ragged at both edges; also with deferred columns, which are finished while those of the
    next tile are already being loaded."""
    a, b, *tiles = given((300, n), k, np.int32)
    config = replace(Config.of(128, bn, stages=2), behind=False, width=width, buffers=bn // width, stream=stream, late=late)
    got = product(a, b, np.float16, epilogue=scaled_plus, arguments=(2.0,), tiles=tiles, config=config)
    np.testing.assert_array_equal(got, expected(a, b, *tiles))
    assert planned(a, b, got, scaled_plus, tiles, config).plan.late == late
    assert prefetched(config, a, b, got, scaled_plus, tiles) == (True, True, True)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BF16, E4M3, ml_dtypes.float8_e5m2, np.int64, np.uint32, np.int16, np.int8, np.uint8, bool])
@pytest.mark.parametrize("late", [0, 64])
def test_rows_of_every_dtype_can_be_prefetched(dtype, late):
    a, b, *tiles = given((70, 200), 600, dtype)
    config = replace(Config.of(64, 128, stages=3), behind=False, width=64, buffers=2, late=late)
    got = product(a, b, np.float16, epilogue=scaled_plus, arguments=(2.0,), tiles=tiles, config=config)
    np.testing.assert_array_equal(got, expected(a, b, *tiles))
    assert prefetched(config, a, b, got, scaled_plus, tiles) == (True, True, True)


@pytest.mark.parametrize("seen,comes", [
    (lambda x: np.concatenate([x, np.full(8, 1000, x.dtype)])[:-8], True), (lambda x: np.concatenate([x[:8], x])[8:], True),
    (lambda x: np.concatenate([x[:1], x])[1:], False), (lambda x: np.repeat(x, 2)[::2], False), (lambda x: x[::-1].copy()[::-1], False),
    (lambda x: np.broadcast_to(x[:1], x.shape), False)])
def test_rows_that_tma_cannot_load_are_loaded_by_threads(seen, comes):
    """Rows with unaligned starts, strided, reversed, or broadcast. Elements beyond the end of a row have no effect."""
    a, b, bias, beside, more = given((130, 328), 200, np.float32)
    tiles, config = (bias, beside, seen(more)), Config.of(64, 128, stages=3)
    got = product(a, b, np.float16, epilogue=scaled_plus, arguments=(2.0,), tiles=tiles, config=config)
    np.testing.assert_array_equal(got, expected(a, b, *tiles))
    assert prefetched(config, a, b, got, scaled_plus, tiles) == (True, True, comes)


@tile.jit
def all_rows(acc, row, column, first, second, third, beside):
    return acc + first[None, :] + second[None, :] + third[None, :] + beside


def test_rows_without_room_for_prefetching_are_loaded_by_threads():
    """Three consumers' rows of 192 numbers of 8 bytes are 4.5 KB; stages and buffers leave 10 KB."""
    a, b, _, beside, row = given((200, 264), 200, np.float64)
    config = Config.of(192, 192)
    got = product(a, b, np.float16, epilogue=all_rows, tiles=(row, row, row, beside), config=config)
    np.testing.assert_array_equal(got, a.astype(np.float32) @ b.astype(np.float32) + 3 * row + beside)
    assert prefetched(config, a, b, got, all_rows, (row, row, row, beside)) == (True, True, False, True)


@pytest.mark.parametrize("batch", [(3,), (2, 2)])
@with_configs([Config.of(64, 64, stages=3), Config.of(64, 32, swapped=True, stages=3), replace(Config.of(64, 64, stages=2), late=32, behind=False, width=32)],
              [BlackwellConfig.of(32, False, True, epilogue=True)])
def test_batched_matrices_have_separate_rows_or_one_for_all(batch, target, config):
    a, b, *tiles = given((130, 72), 400, np.float32, batch)
    with multiplying_on(target):
        got = product(a, b, np.float16, epilogue=of_several, arguments=(2.0,), tiles=tiles, config=config)
    np.testing.assert_array_equal(got, expected(a, b, *tiles))


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@with_configs([Config.of(64, 64, splits=2, stages=3), Config.of(64, 32, swapped=True, stages=3), Config.of(64, 64, splits=4, swapped=True, stages=3),
               replace(Config.of(64, 32, swapped=True, stages=3), stream=True)],
              [BlackwellConfig.of(64, epilogue=True), BlackwellConfig.of(64, True, stored=4, epilogue=True), BlackwellConfig.of(32, False, True, epilogue=True),
               BlackwellConfig.of(64, stored=4, epilogue=True, splits=2)])
def test_every_kernel_passes_rows_to_an_epilogue(dtype, target, config):
    a, b, *tiles = given((100, 72), 300, dtype)
    with multiplying_on(target):
        got = product(a, b, np.float32, epilogue=scaled_plus, arguments=(2.0,), tiles=tiles, config=config)
    np.testing.assert_array_equal(got, expected(a, b, *tiles))


@tile.jit
def with_bias(acc, row, column, bias):
    return acc + bias[None, :]


@tile.jit
def with_biases(acc, z, row, column, bias):
    return acc + bias[None, :]


def test_rows_may_be_the_only_arrays_of_an_epilogue():
    a, b, bias, *_ = given((100, 72), 300, np.float32)
    np.testing.assert_array_equal(kernels.matmul(a, b, epilogue=with_bias, tiles=(bias,)), a.astype(np.float32) @ b.astype(np.float32) + bias)
    config = kernels.tune(a, b, epilogue=with_bias, tiles=[bias])
    np.testing.assert_array_equal(kernels.matmul(a, b, epilogue=with_bias, tiles=[bias], config=config), a.astype(np.float32) @ b.astype(np.float32) + bias)
    several = np.stack([[a, a]] * 2)
    config = kernels.tune(several, b, epilogue=with_biases, tiles=[bias])
    np.testing.assert_array_equal(kernels.matmul(several, b, epilogue=with_biases, tiles=[bias], config=config), several.astype(np.float32) @ b.astype(np.float32) + bias)


@pytest.mark.parametrize("shape", [(71,), (73,), (100,), (72, 1), ()])
def test_rows_of_another_length_are_refused(shape):
    a, b, *_ = given((100, 72), 30, np.float32)
    with pytest.raises(LaunchError, match=r"as arrays of \(100, 72\), \(1, 72\), \(100, 1\), \(72,\) do, and tiles\[0\] is of \("):
        kernels.matmul(a, b, epilogue=with_bias, tiles=(np.zeros(shape, np.float32),))


def test_rows_of_batched_matrices_have_their_leading_dimensions_or_none():
    a, b, bias, _, more = given((20, 72), 30, np.float32, (2, 2))
    for wrong in (more.reshape(4, 72), more[0], more[:1], more[..., :71]):
        for call in (kernels.matmul, kernels.tune):
            with pytest.raises(LaunchError, match=r", \(72,\), \(2, 2, 72\) do, and tiles\[0\] is of \("):
                call(a, b, epilogue=with_biases, tiles=(wrong,))


def test_a_result_that_overlaps_a_row_is_refused():
    a, b, *_ = given((72, 72), 30, np.float32)
    out = np.zeros((72, 72), np.float32)
    with pytest.raises(LaunchError, match=r"out overlaps tiles\[0\],"):
        kernels.matmul(a, b, out, with_bias, tiles=(out[3],))


@tile.jit
def bias_gelu(acc, row, column, bias):
    v = acc + bias[None, :]
    return 0.5 * v * (1 + tile.tanh(v * (0.7978845608 + 0.0356774081 * v * v), fast=True))


@tile.jit
def bias_gelu_added(acc, row, column, bias, residual):
    return bias_gelu(acc, row, column, bias) + residual


def chosen(home, m, n, k, dtype, shared, beside):
    """The largest tile, with as many deferred columns as the model chooses: a bias, and perhaps a residual; small integers, so that only the
    result is rounded."""
    rng = np.random.default_rng(9)
    a, b, residual = (rng.integers(-2, 3, shape).astype(BF16) for shape in ((m, k), (k, n), (m, n)))
    bias = rng.integers(-2, 3, n).astype(dtype)
    config = choose(Problem(4096, 4096, 4096, epilogue=True, ahead=True), 132)
    out = home(np.full((m, n), np.nan, BF16))
    PLANS.clear()
    kernels.matmul(home(a), home(np.ascontiguousarray(b.T)).T, out, with_residual if beside else with_bias,
                   tiles=(home(bias), home(residual))[:1 + beside], config=replace(config, stream=shared))
    (launch,) = PLANS.values()
    assert launch.plan.late == LATE and launch.plan.ahead == (True,) * (1 + beside) and launch.kernel is (stream if shared else persistent)
    want = a.astype(np.float32) @ b.astype(np.float32) + bias.astype(np.float32) + residual.astype(np.float32) * beside
    np.testing.assert_array_equal(out if out.__class__ is np.ndarray else out.numpy(), want.astype(BF16))


@tile.jit
def with_residual(acc, row, column, bias, residual):
    return acc + bias[None, :] + residual


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("shared,k", [(False, 840), (True, 1416)])
def test_rows_are_prefetched_alone_or_with_a_tile_in_the_model_s_configuration(shared, k, beside):
    """Several tiles per CTA, ragged at both edges and along k."""
    chosen(np.asarray, 300, 504, k, np.float32, shared, beside)


@needs_gpu("sm_90a")
@in_child(timeout=100)
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("shared,extents", [(False, (5000, 2312, 1096)), (True, (2300, 2312, 4168)), (True, (5000, 2568, 4168))])
def test_rows_are_prefetched_alone_or_with_a_tile_on_the_gpu(shared, extents, beside):
    for dtype in (np.float32, BF16, np.int8):
        chosen(tile.to_device, *extents, dtype, shared, beside)


@needs_gpu("sm_90a")
@in_child(timeout=100)
def test_rows_of_batches_and_with_any_strides_are_right_on_the_gpu():
    """Prefetched, or loaded by threads where TMA cannot, in the chosen kernel, large and small."""
    for shape, k, batch in (((130, 328), 600, (3,)), ((1000, 776), 200, (2, 2)), ((2100, 1032), 2000, ()), ((64, 72), 3000, ()), ((20, 2056), 64, (2,))):
        a, b, *tiles = given(shape, k, BF16, batch)
        for at in (0, 1):
            rows = [tile.to_device(np.concatenate([x.ravel()[:at], x.ravel()]))[at:].reshape(x.shape) for x in (tiles[0], tiles[2])]
            got = kernels.matmul(*map(tile.to_device, (a, b)), tile.to_device(np.full((*batch, *shape), np.nan, np.float16)),
                                 of_several if batch else scaled_plus, (2.0,), tiles=(rows[0], tile.to_device(tiles[1]), rows[1]))
            np.testing.assert_array_equal(got.numpy(), expected(a, b, *tiles))


@tile.jit
def of_several_added(acc, z, row, column, bias, residual):
    return bias_gelu_added(acc, row, column, bias, residual)


@pytest.mark.parametrize("shared,dtype,matrices", [(True, np.float32, 1), (True, BF16, 1), (False, np.float32, 1), (True, BF16, 2)])
def test_a_large_product_prefetches_its_bias_without_spilling(shared, dtype, matrices):
    """Alone and with a residual; each part reads the bias in the layout of its accumulators."""
    n = 8192
    big = np.lib.stride_tricks.as_strided(np.zeros(16, BF16), (matrices, n, n)[matrices == 1:], (2 * n * n, 2 * n, 2)[matrices == 1:])
    bias, config = np.zeros(n, dtype), choose(Problem(n, n, n, epilogue=True, ahead=True), 132)
    spec, flags = ArraySpec(big.shape, "bfloat16"), ArraySpec((1024, 3), "int64")
    both = ((of_several_added if matrices > 1 else bias_gelu_added, (bias, big)), (with_biases if matrices > 1 else bias_gelu, (bias,)))
    for epilogue, tiles in part(both, 2, shared + (dtype == BF16)):
        launch = planned(big, big, big, epilogue, tiles, replace(config, stream=shared))
        c = launch.plan
        assert c.ahead == (True,) * len(tiles) and (c.bm, c.bn, c.buffers, c.late) == (128, 256, 4, LATE)
        room = (*launch.shares, ArraySpec(*launch.room), flags) if shared else ()
        given = (ArraySpec(bias.shape, bias.dtype.name), spec, 0, 0)[:len(tiles)] + (0,) * (4 - len(tiles))
        compiled = launch.kernel.compile(spec, spec, spec, 1.0, 1.0, *given, *room, target="sm_90a", **launch.constants)
        assert compiled.spills == 0 and "convert_layout" not in str(compiled.graph)
