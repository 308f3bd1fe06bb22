"""Epilogues that begin by casting their accumulators to 16 bits; deferred columns then wait in that dtype for the next tile's products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tilejit as tile
from tilejit import ArraySpec
from tilejit.kernels.matmul.call import PLANS
from tilejit.kernels.matmul.choice import LATE, PART, Config, Problem, choose
from tilejit.kernels.matmul.constants import Epilogue
from tilejit.kernels.matmul.narrow_epilogues import dtype_taken

from tests.chosen_cases import part
from tests.drawn import drawn
from tests.mma.products import BF16, planned, plus_one, product


@tile.jit
def narrow_biased(acc, row, column, bias, beside):
    return tile.cast(acc, beside.dtype) * 2 + tile.cast(bias, beside.dtype)[None, :] + beside


@tile.jit
def narrow_halved(acc, row, column):
    return tile.maximum(tile.cast(acc, tile.float16), 0) * 0.5


@tile.jit
def narrow_in_a_loop(acc, row, column, turns, beside):
    v = tile.cast(acc, tile.float16)
    for i in range(turns):
        v = v + tile.cast(acc, tile.float16)
    return v - beside


@tile.jit
def wide_biased(acc, row, column, bias, beside):
    return tile.cast(acc + bias[None, :], beside.dtype) + beside


@tile.jit
def rounded_and_wide(acc, row, column, bias):
    return tile.cast(acc, tile.float16) + bias[None, :]


@tile.jit
def wide_and_narrow(acc, row, column):
    return tile.cast(acc, tile.float16) + tile.cast(acc, tile.bfloat16)


@tile.jit
def carried_wide(acc, row, column, turns):
    v = acc
    for i in range(turns):
        v = v * 2
    return v + tile.cast(acc, tile.float16)


@tile.jit
def narrow_from_a_column_on(acc, row, column):
    v = acc
    if column < 64:
        v = tile.cast(tile.cast(acc, tile.float16), tile.float32) * 3
    return v


@tile.jit
def ignoring(acc, row, column, beside):
    return beside


def test_the_dtype_in_which_an_epilogue_takes_its_accumulators():
    """The one that it casts them to before anything else, and computes in; with several, or none, the accumulators' own."""
    bias, beside = np.ones(128, np.float32), np.ones((128, 128), np.float16)
    for epilogue, extras, axes, dtype in (
            (narrow_biased, (bias, beside), ("n", "mn"), tile.float16), (narrow_halved, (), (), tile.float16),
            (narrow_in_a_loop, (3, beside), ("mn",), tile.float16), (wide_biased, (bias, beside), ("n", "mn"), None), (plus_one, (), (), None),
            (wide_and_narrow, (), (), None), (rounded_and_wide, (bias,), ("n",), None), (carried_wide, (2,), (), None), (ignoring, (beside,), ("mn",), None), (narrow_from_a_column_on, (), (), None),
            (narrow_biased, (bias, None), ("n", "mn"), None)):
        taken = dtype_taken(Epilogue(function=epilogue, tiles=axes), tile.float32, extras, "sm_90a", 64)
        assert (None if taken is None else taken.dtype) == dtype, epilogue.name
    assert dtype_taken(Epilogue((True, False), narrow_halved), tile.float32, (), "sm_90a", 64) is None  # scaled first


@tile.jit
def narrow_if_wide(acc, row, column):
    if acc.shape[1] >= 64:
        acc = tile.cast(acc, tile.float16)
    return acc * 1.0009765625 + 1


@tile.jit
def narrow_if_thin(acc, row, column):
    if acc.shape[1] == 16:
        acc = tile.cast(acc, tile.float16)
    return acc * 1.0009765625 + 1


@tile.jit
def narrow_as_wide_as_it_is(acc, row, column):
    return tile.cast(acc, tile.float16 if acc.shape[1] == 16 else tile.bfloat16) + 1


@tile.jit
def narrow_but_for_64(acc, row, column):
    return (acc if acc.shape[1] == 64 else tile.cast(acc, tile.float16)) + 1


@pytest.mark.parametrize("epilogue, width, dtype", [
    (narrow_if_wide, 64, None), (narrow_if_wide, 16, None), (narrow_if_thin, 64, None), (narrow_if_thin, 16, tile.float16),
    (narrow_as_wide_as_it_is, 32, None), (narrow_as_wide_as_it_is, 16, tile.float16), (narrow_but_for_64, 64, None),
    (narrow_but_for_64, 32, tile.float16), (narrow_halved, 32, tile.float16)])
def test_an_epilogue_is_judged_for_the_widths_of_the_tiles_that_it_gets(epilogue, width, dtype):
    """Deferred columns are finished 16 at a time, those of a CTA's last tile as many at a time as a staging buffer has."""
    taken = dtype_taken(Epilogue(function=epilogue), tile.float32, (), "sm_90a", width)
    assert (None if taken is None else taken.dtype) == dtype
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-40, 41, shape).astype(np.float16) for shape in ((140, 800), (800, 136)))  # sums that float32 has and float16 has not
    config = replace(Config.of(128, 128, stages=2), behind=False, width=width, buffers=128 // width, late=128)
    PLANS.clear()
    got = product(a, b, np.float16, epilogue=epilogue, config=config)
    (launch,) = PLANS.values()
    assert launch.plan.late == 128 and launch.plan.waiting == dtype
    sums = a.astype(np.float32) @ b.astype(np.float32)  # exact
    first, last = (epilogue_of(epilogue, sums, columns) for columns in (16, width))
    assert ((got == first) | (got == last)).all()


@tile.jit
def narrow_and_more_if_wide(acc, row, column):
    return tile.cast(acc, tile.float16) + (1 if acc.dtype == tile.float32 else 2)


@tile.jit
def narrow_and_back_to_its_dtype(acc, row, column):
    return tile.cast(tile.cast(acc, tile.float16) * 0.5 + 1, acc.dtype)


@pytest.mark.parametrize("epilogue, dtype", [(narrow_and_more_if_wide, None), (narrow_and_back_to_its_dtype, tile.float16)])
def test_an_epilogue_that_asks_for_the_dtype_of_its_sums_is_judged_with_the_one_in_which_they_would_wait(epilogue, dtype):
    a, b = (np.random.default_rng(5).integers(-40, 41, shape).astype(np.float16) for shape in ((140, 800), (800, 136)))
    config = replace(Config.of(128, 128, stages=2), behind=False, width=64, buffers=2, late=128)
    PLANS.clear()
    got = product(a, b, np.float16, epilogue=epilogue, config=config)
    (launch,) = PLANS.values()
    assert launch.plan.waiting == dtype
    np.testing.assert_array_equal(got, product(a, b, np.float16, epilogue=epilogue, config=replace(config, late=0)))


def epilogue_of(epilogue, sums, columns: int) -> np.ndarray:
    """What the epilogue makes of the sums if it gets so many columns of them at a time."""
    @tile.jit
    def apply(S, Z, COLUMNS: tile.constexpr, EPILOGUE: tile.constexpr):
        m, n = tile.program_id(0) * 64, tile.program_id(1) * COLUMNS
        tile.store(Z[m:m + 64, n:n + COLUMNS], tile.cast(EPILOGUE(tile.load(S[m:m + 64, n:n + COLUMNS]), m, n), Z.dtype))

    made = np.empty(sums.shape, np.float16)
    apply[-(-sums.shape[0] // 64), -(-sums.shape[1] // columns)](sums, made, columns, epilogue)
    return made


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("m,n,k,late", [(600, 328, 890, 128), (300, 136, 1200, 128), (40, 104, 890, 128), (300, 328, 570, 64), (300, 264, 40, 128)])
def test_deferred_columns_in_the_epilogue_s_dtype_have_the_same_bits(m, n, k, late, ahead, stream):
    """All columns of a tile or some, one tile per CTA and many, ragged at both edges."""
    rng = np.random.default_rng(11)
    a, b, bias, beside = (drawn(rng, shape, np.float16) for shape in ((m, k), (k, n), (n,), (m, n)))
    epilogue, tiles = (narrow_biased, (bias, beside)) if ahead else (narrow_halved, ())
    config = replace(Config.of(128, 128, stages=2), behind=False, width=64, buffers=2, stream=stream, late=late)
    PLANS.clear()
    got = product(a, b, np.float16, epilogue=epilogue, tiles=tiles, config=config)
    (launch,) = PLANS.values()
    assert launch.plan.waiting == (tile.float16 if launch.plan.late else None)
    assert stream or launch.plan.late == min(late, max(-(-k // 64) - 3, 0) * 16 // 64 * 64)
    np.testing.assert_array_equal(got, product(a, b, np.float16, epilogue=epilogue, tiles=tiles, config=replace(config, late=0)))


NARROW = "float16"


@tile.jit
def narrow_as_a_global_says(acc, row, column):
    if NARROW == "float16":
        acc = tile.cast(acc, tile.float16)
    if NARROW == "bfloat16":
        acc = tile.cast(acc, tile.bfloat16)
    return acc + 1


@tile.jit
def narrow_as_an_argument_is(acc, row, column, x):
    return tile.cast(acc, x.dtype) + 1


def test_the_dtype_follows_the_globals_that_an_epilogue_reads(monkeypatch):
    """An epilogue with arguments takes its accumulators as they are, since the key of a launch plan lacks the arguments' dtypes."""
    rng = np.random.default_rng(13)
    a, b = drawn(rng, (300, 640), np.float16), drawn(rng, (640, 264), np.float16)
    config = replace(Config.of(128, 128, stages=2), behind=False, width=64, buffers=2, late=64)
    waits = lambda: {launch.plan.waiting for launch in PLANS.values()}
    PLANS.clear()
    multiply = lambda config: product(a, b, np.float16, epilogue=narrow_as_a_global_says, config=config)
    for dtype in (tile.float16, tile.bfloat16, None):
        monkeypatch.setitem(globals(), "NARROW", str(dtype and dtype.name))
        got = multiply(config)
        assert waits() == {dtype}
        np.testing.assert_array_equal(got, product(a, b, np.float16, epilogue=narrow_as_a_global_says, config=replace(config, late=0)))
        PLANS.popitem()
    PLANS.clear()
    product(a, b, np.float16, epilogue=narrow_as_an_argument_is, arguments=(np.zeros(1, np.float16),), config=config)
    assert waits() == {None}


def test_all_columns_are_deferred_if_the_epilogue_takes_its_accumulators_in_16_bits():
    """In the largest tile they need half of the registers, so that nothing spills; in others, as many columns as before."""
    big = np.lib.stride_tricks.as_strided(np.zeros(16, BF16), (8192, 8192), (16384, 2))
    spec, flags, bias = ArraySpec((8192, 8192), "bfloat16"), ArraySpec((1024, 3), "int64"), np.zeros(8192, np.float32)
    for narrow in (True, False):
        chosen = choose(Problem(8192, 8192, 8192, epilogue=True, ahead=True, narrow=narrow), 132)
        assert (chosen.late, chosen.width) == (256 if narrow else LATE, PART // 2)
    for shared in part((True, False), 2):
        config = replace(choose(Problem(8192, 8192, 8192, epilogue=True, ahead=True, narrow=True), 132), stream=shared)
        launch = planned(big, big, big, narrow_biased, (bias, big), config)
        launch = launch.with_plan(waiting=tile.bfloat16, epilogue=replace(launch.plan.epilogue, extras=2))
        assert launch.plan.late == 256 and launch.plan.ahead == (True, True)
        room = (*launch.shares, ArraySpec(*launch.room), flags) if shared else ()
        compiled = launch.kernel.compile(spec, spec, spec, 1.0, 1.0, ArraySpec((8192,), "float32"), spec, 0, 0, *room, **launch.constants)
        assert compiled.spills == 0 and "convert_layout" not in str(compiled.graph)
