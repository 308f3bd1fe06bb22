"""Epilogue arrays that broadcast to the result, as in NumPy: columns, rows, one matrix for a batch."""

from dataclasses import replace

import numpy as np
import pytest
import tilejit as tile
from tilejit import ArraySpec, kernels
from tilejit.errors import LaunchError
from tilejit.kernels.matmul.blackwell.config import BlackwellConfig, choose as choose_blackwell
from tilejit.kernels.matmul.choice import Config, Problem, choose

from tests.chosen_cases import part
from tests.gpu import in_child, needs_gpu
from tests.mma.products import BF16, multiplying_on, planned, product, with_configs

M, N, K = 130, 72, 300
OF_ONE = [(M, N), (1, N), (M, 1), (1, 1), (N,), (1,)]
OF_SEVERAL = [*((*lead, *last) for lead in ((3,), (1,), ()) for last in ((M, N), (1, N), (M, 1), (1, 1))), (N,), (1,)]
ONCE = {(): OF_ONE[:5], (3,): [*OF_SEVERAL[:4], (1, M, N), (1, N), (1, M, 1), (1, 1), (N,)]}  # each extent or 1, as many dimensions or fewer
OF_MANY = [(2, 3, 1, N), (2, 3, M, 1), (1, 1, M, N), (1, M, 1), (M, N), (1, 1)]
EVERY_KERNEL = with_configs(
    [Config.of(128, 64, stages=3), Config.of(64, 64, splits=2, stages=3), Config.of(64, 64, splits=2, stages=3, clustered=False),
     Config.of(64, 32, swapped=True, stages=3), replace(Config.of(64, 64, stages=3), stream=True),
     replace(Config.of(128, 64, stages=2), behind=False, width=32, buffers=2, late=32)],
    [BlackwellConfig.of(64, epilogue=True), BlackwellConfig.of(64, True, epilogue=True), BlackwellConfig.of(32, False, True, epilogue=True),
     BlackwellConfig.of(64, epilogue=True, splits=2)])


@tile.jit
def plus(acc, row, column, x):
    return acc + x


@tile.jit
def plus_of_several(acc, z, row, column, x):
    return acc + x


def small_integers(seed, *shape):
    """Small integers, so that only the result is rounded."""
    return np.random.default_rng(seed).integers(-3, 4, shape)


def operands(batch=()):
    return small_integers(0, *batch, M, K).astype(np.float16), small_integers(1, K, N).astype(np.float16)


def added(a, b, x):
    return (a.astype(np.float32) @ b.astype(np.float32) + x).astype(np.float16)


@EVERY_KERNEL
@pytest.mark.parametrize("batch,shapes", [((), OF_ONE), ((3,), OF_SEVERAL)])
def test_epilogue_arrays_broadcast_to_the_result_in_every_kernel(target, config, batch, shapes):
    """All forms in the kernels that are chosen, a third of them in each of the others."""
    a, b = operands(batch)
    forms = part(ONCE[batch], turn=config.splits + config.bn // 32 + config.swapped) if config else shapes
    with multiplying_on(target):
        for seed, shape in enumerate(forms):
            x = small_integers(seed, *shape).astype(np.float16 if seed % 2 else np.float32)
            got = product(a, b, np.float16, epilogue=plus_of_several if batch else plus, tiles=(x,), config=config)
            np.testing.assert_array_equal(got, added(a, b, x), str(shape))


@pytest.mark.parametrize("shape", OF_MANY)
def test_epilogue_arrays_broadcast_to_a_result_with_several_leading_dimensions(shape):
    a, b = operands((2, 3))
    x = small_integers(5, *shape).astype(np.float32)
    np.testing.assert_array_equal(kernels.matmul(a, b, epilogue=plus_of_several, tiles=(x,)), added(a, b, x))
    config = kernels.tune(a, b, epilogue=plus_of_several, tiles=(x,))
    np.testing.assert_array_equal(kernels.matmul(a, b, epilogue=plus_of_several, tiles=(x,), config=config), added(a, b, x))


@tile.jit
def of_known_shapes(acc, z, row, column, both, line, down, one):
    rows, columns = acc.shape
    tile.static_assert(both.shape == (rows, columns) and line.shape == (1, columns) and down.shape == (rows, 1) and one.shape == (1, 1))
    return acc + both * line - down * one


@with_configs([Config.of(64, 32, swapped=True, stages=3)], [])
def test_an_epilogue_gets_tiles_with_the_extents_of_1_of_its_arrays(target, config):
    """Also for a column of a wider array."""
    a, b = operands((3,))
    both, line, down, one = small_integers(2, M, N), small_integers(3, 3, 1, N), small_integers(4, 3, M, 5)[..., 2:3], small_integers(5, 1, 1)
    got = product(a, b, np.float32, epilogue=of_known_shapes, tiles=(both, line, down, one), config=config)
    np.testing.assert_array_equal(got, a.astype(np.float32) @ b.astype(np.float32) + both * line - down * one)


def test_broadcast_rows_and_a_matrix_for_the_whole_batch_are_prefetched_like_others():
    a, b = operands((3,))
    config, out = replace(Config.of(128, 64, stages=2), width=64, buffers=1), np.zeros((3, M, N), np.float16)
    for shape, comes in (((1, N), (True,)), ((3, 1, N), (True,)), ((M, N), (True,)), ((1, M, N), (True,)), ((M, 1), ()), ((3, M, 1), ()), ((1, 1), ())):
        x = small_integers(6, *shape).astype(np.float16)
        assert planned(a, b, out, plus_of_several, (x,), config).plan.ahead == comes, shape
        np.testing.assert_array_equal(product(a, b, np.float16, epilogue=plus_of_several, tiles=(x,), config=config), added(a, b, x))


def test_an_ambiguous_shape_is_refused_with_both_meanings_in_the_error():
    """Rows [Z, N] for as many matrices as these have rows: by NumPy's rule they are one matrix for all."""
    a, b = small_integers(0, 5, 5, 16).astype(np.float16), small_integers(1, 16, 24).astype(np.float16)
    x = small_integers(2, 5, 24).astype(np.float32)
    with pytest.raises(LaunchError, match=r"tiles\[0\] of shape \(5, 24\) may be a row for each .* reshape it to \(5, 1, 24\) or to \(1, 5, 24\)$"):
        kernels.matmul(a, b, epilogue=plus_of_several, tiles=(x,))
    for seen in (x[:, None], x[None]):
        np.testing.assert_array_equal(kernels.matmul(a, b, epilogue=plus_of_several, tiles=(seen,)), added(a, b, seen))


@pytest.mark.parametrize("batch,shape", [((), (M,)), ((), (N, 1)), ((), (1, M)), ((), (1, M, N)), ((), ()), ((3,), (2, M, N)), ((3,), (2, N)),
                                         ((3,), (3, 1, 1, N)), ((2, 3), (2, 1, M, N)), ((2, 3), (3, M, N)), ((2, 3), (3, N))])
def test_arrays_of_other_shapes_are_refused_with_the_shapes_that_broadcast(batch, shape):
    a, b = operands(batch)
    taken = [(*batch, M, N), (*batch, 1, N), (*batch, M, 1), *([(M, N), (1, N), (M, 1)] if batch else []), (N,), *([(*batch, N)] if batch else [])]
    with pytest.raises(LaunchError) as caught:
        kernels.matmul(a, b, epilogue=plus_of_several if batch else plus, tiles=(np.zeros(shape, np.float32),))
    assert str(caught.value) == (f"tiles must broadcast to the result's shape, as arrays of {', '.join(map(str, taken))} do, and tiles[0] is of {shape}")


@tile.jit
def scaled_by_rows(acc, row, column, down, line):
    return acc * down + line


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_103a"])
def test_columns_and_rows_of_a_large_product_have_the_layout_of_its_accumulators(target):
    n = 4096
    big = np.lib.stride_tricks.as_strided(np.zeros(16, BF16), (n, n), (2 * n, 2))
    down, line = np.zeros((n, 1), np.float32), np.zeros((1, n), np.float32)
    config = choose(Problem(n, n, n, epilogue=True), 132) if target == "sm_90a" else choose_blackwell(Problem(n, n, n, epilogue=True), 148)
    launch = planned(big, big, big, scaled_by_rows, (down, line), config, target=target)
    spec = ArraySpec(big.shape, "bfloat16")
    given = spec, spec, spec, 1.0, 1.0, ArraySpec(down.shape, "float32"), ArraySpec(line.shape, "float32"), 0, 0
    compiled = launch.kernel.compile(*given, target=target, **launch.constants)
    assert compiled.spills == 0 and "convert_layout" not in str(compiled.graph)


@needs_gpu("sm_90a")
@in_child(timeout=100)
def test_epilogue_arrays_broadcast_to_the_result_on_the_gpu():
    """In the chosen kernel, and in one with deferred columns."""
    late = replace(Config.of(128, 64, stages=2), behind=False, width=32, buffers=2, late=32)
    for batch, shapes in (((), OF_ONE), ((3,), OF_SEVERAL), ((2, 3), OF_MANY)):
        a, b = operands(batch)
        for seed, shape in enumerate(shapes):
            x = small_integers(seed, *shape).astype(np.float16 if seed % 2 else np.float32)
            for config in (None, late):
                got = kernels.matmul(*map(tile.to_device, (a, b)), epilogue=plus_of_several if batch else plus, tiles=(tile.to_device(x),), config=config)
                np.testing.assert_array_equal(got.numpy(), added(a, b, x), str(shape))
