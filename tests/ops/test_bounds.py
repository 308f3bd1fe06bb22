"""Bounds of loads: what is tested at run time, and how often."""

import numpy as np
import pytest
import tilejit as tile
from tests.gpu import in_child, needs_gpu


@tile.jit(num_warps=4)
def biased(A, B, bias, C):
    """A product, and a bias of any length beside it."""
    n = tile.program_id(0) * 64
    sA, sB = tile.alloc((64, 64), A.dtype, layout=tile.auto), tile.alloc((64, 64), B.dtype, layout=tile.auto)
    tile.copy(sA, A[0:64, 0:64])
    tile.copy(sB, B[n:n + 64, 0:64])
    tile.sync()
    tile.store(C[0:64, n:n + 64], tile.dot(sA, sB, trans_b=True) + tile.load(bias[n:n + 64])[None, :])


def arrays(columns, extent):
    rng = np.random.default_rng(extent)
    a, b = (rng.integers(-4, 5, (rows, 64)).astype(np.float16) for rows in (64, columns))
    return a, b, rng.integers(-4, 5, extent).astype(np.float32), np.full((64, columns), np.nan, np.float32)


def exact(a, b, bias):
    """What is beyond the end of the bias is 0."""
    there = min(len(bias), len(b))
    return a.astype(np.float64) @ b.astype(np.float64).T + np.pad(bias[:there], (0, len(b) - there))


@pytest.mark.parametrize("columns,extent", [(192, 192), (192, 128), (192, 64), (150, 192), (192, 190), (192, 96), (64, 1)])
def test_a_load_that_ends_within_its_array_or_beyond_it_gives_zeros_there(columns, extent):
    a, b, bias, c = arrays(columns, extent)
    biased[tile.cdiv(columns, 64),](a, b, bias, c)
    np.testing.assert_array_equal(c, exact(a, b, bias))


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_one_test_serves_all_elements_of_a_thread_where_the_extent_is_a_multiple(target):
    """Threads hold 16 columns or more; where the extent is not known to be one, each pair has a test of its own."""
    predicates = lambda extent: biased.compile(*arrays(192, extent), target=target).ptx.count("setp")
    assert predicates(128) + 7 <= predicates(126)


@needs_gpu()
@in_child(timeout=120)
def test_loads_beyond_an_array_give_zeros_on_the_gpu():
    for columns, extent in ((192, 192), (192, 128), (192, 64), (150, 192), (192, 190), (64, 1)):
        a, b, bias, c = arrays(columns, extent)
        biased[tile.cdiv(columns, 64),](a, b, bias, c, backend="cuda")
        np.testing.assert_array_equal(c, exact(a, b, bias))
