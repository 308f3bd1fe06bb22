"""Bounds checks of loads: what is tested at run time, and how often."""

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu


@tile.jit(num_warps=4)
def biased(A, B, bias, C):
    """A product with a bias of any length added to it."""
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
    """The expected result: the bias is 0 beyond its end."""
    there = min(len(bias), len(b))
    return a.astype(np.float64) @ b.astype(np.float64).T + np.pad(bias[:there], (0, len(b) - there))


@pytest.mark.parametrize("columns,extent", [(192, 192), (192, 128), (192, 64), (150, 192), (192, 190), (192, 96), (64, 1)])
def test_a_load_that_crosses_or_lies_beyond_the_end_of_its_array_gives_zeros_there(columns, extent):
    a, b, bias, c = arrays(columns, extent)
    biased[tile.cdiv(columns, 64),](a, b, bias, c)
    np.testing.assert_array_equal(c, exact(a, b, bias))


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_one_bounds_test_covers_all_elements_of_a_thread_if_the_extent_is_a_suitable_multiple(target):
    """Threads hold 16 columns or more; if no multiple is known, each pair of elements has its own test."""
    predicates = lambda extent: biased.compile(*arrays(192, extent), target=target).ptx.count("setp")
    assert predicates(128) + 7 <= predicates(126)


@tile.jit
def from_afar(x, at, y, N: tile.constexpr):
    p = tile.program_id(0)
    t = tile.load(at[p])
    tile.store(y[p, 0, 0:N], tile.load(x[t:t + N], other=-1))
    tile.store(y[p, 1, t:t + N], tile.load(x[0:N]))
    buffer = tile.alloc((N,), x.dtype)
    tile.copy(buffer, x[t:t + N])
    tile.sync()
    tile.copy(y[p, 2, 0:N], buffer)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_region_that_starts_at_the_smallest_or_largest_integer_is_out_of_bounds(dtype, together):
    """In one launch, in which CTAs run in lockstep, and one by one."""
    x, N = np.arange(1, 301, dtype=np.int32), 256
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    places = np.array([most, most - 3, least, least + 5, most // 2, least // 2, 0, 50, -2, -255], dtype)
    for at in [places] if together else places[:, None]:
        y = np.zeros((len(at), 3, N), np.int32)
        from_afar[len(at),](x, at, y, N=N)
        for t, (loaded, stored, copied) in zip(at.tolist(), y):
            inside = [j for j in range(N) if 0 <= t + j < len(x)]
            want = np.zeros(N, np.int32)
            want[inside] = [x[t + j] for j in inside]
            np.testing.assert_array_equal(copied, want)
            np.testing.assert_array_equal(loaded, np.where(want == 0, -1, want))
            np.testing.assert_array_equal(stored, [x[j - t] if 0 <= j - t < N else 0 for j in range(N)])


@needs_gpu()
@in_child(timeout=120)
def test_loads_beyond_an_array_give_zeros_on_the_gpu():
    for columns, extent in ((192, 192), (192, 128), (192, 64), (150, 192), (192, 190), (64, 1)):
        a, b, bias, c = arrays(columns, extent)
        biased[tile.cdiv(columns, 64),](a, b, bias, c, backend="cuda")
        np.testing.assert_array_equal(c, exact(a, b, bias))
