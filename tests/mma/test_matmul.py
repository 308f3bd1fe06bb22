"""The matrix product of tilejit.kernels: on the simulator against NumPy, and what the compiler makes of it."""

import ml_dtypes
import numpy as np
import pytest
from tilejit import ArraySpec, kernels
from tilejit.errors import LaunchError
from tilejit.kernels.matmul import TILES, Config, choose, persistent

SMALL = Config.of(128, 64)


def operands(m, n, k, dtype, b_nk, seed=0):
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((m, k), (n, k) if b_nk else (k, n)))
    return a, b.T if b_nk else b


def close(got, a, b):
    """Within one rounding of the result, and the roundings of k sums in float32."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    exact = x @ y
    half_a_place = 2.0 ** (-8 if got.dtype == np.float16 else -8)
    bound = np.abs(exact) * half_a_place + np.abs(x) @ np.abs(y) * a.shape[1] * 2.0 ** -23 + 1e-6
    assert (np.abs(got.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("b_nk", [True, False])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_both_orders_of_b(dtype, b_nk):
    """B as [n, k] and as [k, n], several tiles for each CTA."""
    a, b = operands(256, 192, 256, dtype, b_nk)
    close(kernels.matmul(a, b, np.full((256, 192), np.nan, dtype), SMALL), a, b)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
def test_every_number_of_trips_around_the_ring(steps):
    """1, stages - 1, stages, stages + 1 slots of k, on a ring of 3."""
    config = Config(128, 64, 64, 3, 8, (40, 232))
    a, b = operands(128, 128, 64 * steps, ml_dtypes.bfloat16, True, steps)
    close(kernels.matmul(a, b, config=config), a, b)


@pytest.mark.parametrize("m,n,k", [(1, 8, 8), (130, 72, 40), (200, 264, 200), (65, 56, 136)])
@pytest.mark.parametrize("b_nk", [True, False])
def test_ragged_edges(m, n, k, b_nk):
    """Extents that no tile divides: reads past the edge are zeros, writes past it are dropped."""
    a, b = operands(m, n, k, ml_dtypes.bfloat16, b_nk)
    out = np.full((m, n), np.nan, a.dtype)
    close(kernels.matmul(a, b, out, SMALL), a, b)


def test_rows_that_tma_cannot_store():
    """An N that is no multiple of 16 bytes: the result is stored by ordinary instructions."""
    a, b = operands(100, 61, 64, np.float16, True)
    close(kernels.matmul(a, b, np.full((100, 61), np.nan, np.float16), SMALL), a, b)


@pytest.mark.parametrize("shape", list(TILES))
def test_every_tile_of_the_choice(shape):
    """Each configuration that the wave model may choose gives the product, and is compiled without spills."""
    config = Config.of(*shape)
    a, b = operands(shape[0] + 8, shape[1] + 8, 128, ml_dtypes.bfloat16, True)
    close(kernels.matmul(a, b, config=config), a, b)


def test_the_largest_tile_is_fast_code():
    """No spills, no register moved between products: the assembler's advisories would be errors."""
    specs = [ArraySpec((8192, 8192), "bfloat16") for _ in range(3)]
    for b_nk in (True, False):
        compiled = persistent.compile(*specs, **Config().constants(b_nk, "tma"))
        assert compiled.spills == 0 and compiled.registers <= 168
        assert [c.variant for c in compiled.copies] == ["tma"] * 4
        assert compiled.ptx.count("stmatrix.sync") == 16


def test_the_choice_follows_the_waves():
    """Large matrices take the largest tile, small ones tiles that reach every processor."""
    assert (choose(8192, 8192, 8192, 132).bm, choose(8192, 8192, 8192, 132).bn) == (128, 256)
    small = choose(1024, 1024, 1024, 132)
    assert small.bm * small.bn <= 128 * 128


def test_wrong_operands_are_errors():
    """Extents, dtypes and results that do not fit are named."""
    a, b = operands(64, 64, 64, np.float16, True)
    with pytest.raises(LaunchError, match="inner extents"):
        kernels.matmul(a, b[:32])
    with pytest.raises(LaunchError, match="float16 or two of bfloat16"):
        kernels.matmul(a.astype(np.float32), b)
    with pytest.raises(LaunchError, match="shape"):
        kernels.matmul(a, b, np.empty((64, 32), np.float16))
