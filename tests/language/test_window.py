"""tile.window: bounds narrower than the array's, exact to the element, on every path."""

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu

pytestmark = pytest.mark.usefixtures("assembled_later")


@tile.jit
def shifted(x, y, r, c, m, n, R: tile.constexpr, C: tile.constexpr):
    a = tile.window(x, (r, c), (m, n))
    b = tile.window(y, (r, c), (m, n))
    i = r * 0 - 1
    tile.store(b[i:i + R, i:i + C], tile.load(a[i:i + R, i:i + C], other=-7) * 2)
    tile.sync()
    tile.store(y[0, 0], a.shape[0] * 100 + a.shape[1])


@tile.jit
def moved(x, y, r, c, m, n, R: tile.constexpr, C: tile.constexpr, HOW: tile.constexpr):
    a, b = tile.window(x, (r * 4, c * 4), (m * 4, n * 4)), tile.window(y, (4, 8), (m * 4, n * 4))
    s = tile.alloc((R, C), x.dtype)
    if HOW == "copy":
        tile.copy(s, a[0:R, 0:C])
    else:
        tile.copy_async(s, a[0:R, 0:C]).wait()
    tile.sync()
    tile.copy(b[0:R, 0:C], s)


@tile.jit
def nested(x, y, k, N: tile.constexpr):
    outer = tile.window(x, (k,), (40,))
    inner = tile.window(outer, (-5,), (20,))
    rest = tile.window(tile.window(x, 10, None), 30, None)
    tile.store(y[0, 0:N], tile.load(inner[0:N], other=-1))
    tile.store(y[1, 0:N], tile.load(outer[tile.arange(N) * 2], other=-1))
    tile.store(y[2, 0:N], tile.load(rest[0:N], other=-1))
    tile.atomic_add(tile.window(y, (3, 2), (1, k))[0, 0:N], 5)
    tile.store(y[4, 0], tile.load(outer[39]) + tile.load(outer[40], other=1000) + tile.load(rest[-1]))


def inside(shape, r, c, m, n) -> np.ndarray:
    """The elements of an array that are in a window."""
    i, j = np.indices(shape)
    return (i >= r) & (i < r + m) & (j >= c) & (j < c + n)


def check_shifted(backend: str, dtype: str) -> None:
    for r, c, m, n in [(2, 3, 5, 7), (0, 0, 11, 13), (-2, -1, 6, 5), (8, 9, 90, 90), (3, 3, 0, 4), (20, 2, 4, 4)]:
        x, y = (np.arange(143).reshape(11, 13) % 50 + 1).astype(dtype), np.zeros((11, 13), dtype)
        kept = inside(x.shape, r, c, m, n)
        i, j = np.indices(x.shape)
        want = np.where(kept & (i >= r - 1) & (j >= c - 1) & (i < r + 7) & (j < c + 15), x * 2, 0).astype(dtype)
        want[0, 0] = np.array(m * 100 + n).astype(dtype)
        shifted[1,](x, y, r, c, m, n, R=8, C=16, backend=backend)
        np.testing.assert_array_equal(y, want, err_msg=f"{(r, c, m, n)}")


def check_moved(backend: str, dtype: str, how: str) -> None:
    for r, c, m, n in [(1, 2, 3, 4), (0, 0, 8, 8), (2, 5, 1, 1), (-1, 1, 4, 4)]:
        x, y = (np.arange(1, 32 * 64 + 1).reshape(32, 64) % 100).astype(dtype), np.full((32, 64), 9, dtype)
        want = y.copy()
        for i in range(min(16, 4 * m)):
            for j in range(min(32, 4 * n)):
                if 4 + i < 32 and 8 + j < 64:
                    at = (4 * r + i, 4 * c + j)
                    want[4 + i, 8 + j] = x[at] if min(at) >= 0 and at[0] < 32 and at[1] < 64 else 0
        moved[1,](x, y, r, c, m, n, R=16, C=32, HOW=how, backend=backend)
        np.testing.assert_array_equal(y, want, err_msg=f"{(r, c, m, n)}")


def check_nested(backend: str) -> None:
    x, y, N = np.arange(100, dtype=np.int32), np.zeros((5, 64), np.int32), 64
    nested[1,](x, y, 17, N=N, backend=backend)
    i = np.arange(64)
    np.testing.assert_array_equal(y[0], np.where((i >= 5) & (i < 20), 12 + i, -1))
    np.testing.assert_array_equal(y[1], np.where(2 * i < 40, 17 + 2 * i, -1))
    np.testing.assert_array_equal(y[2], np.where(i < 60, 40 + i, -1))
    np.testing.assert_array_equal(y[3], np.where((i >= 2) & (i < 19), 5, 0))
    assert y[4, 0] == 56 + 1000 + 99


@pytest.mark.parametrize("dtype", ["float32", "int16", "float64"])
def test_elements_outside_a_window_are_neither_read_nor_written(dtype):
    """Windows inside, across the edges, empty and beyond the array; coordinates before and after the window."""
    check_shifted("sim", dtype)


@pytest.mark.parametrize("how", ["copy", "copy_async"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_copies_respect_a_window_s_bounds(dtype, how):
    check_moved("sim", dtype, how)


def test_a_window_of_a_window_has_the_bounds_of_both():
    """Also points, atomics, scalars, open ends and indices from the end."""
    check_nested("sim")


@tile.jit
def far(x, at, y, N: tile.constexpr):
    p = tile.program_id(0)
    t = tile.load(at[p])
    one = tile.window(x, t, 6)
    many = tile.window(x, 2, t)
    inner = tile.window(tile.window(x, 2, 4), t, 6)
    outer = tile.window(tile.window(x, t, t), -1, None)
    tile.store(y[p, 0, 0:N], tile.load(one[0:N], other=-1))
    tile.store(y[p, 1, 0:N], tile.load(many[tile.arange(N)], other=-1))
    tile.store(y[p, 2, 0:N], tile.load(inner[0:N], other=-1))
    tile.store(y[p, 3, 0:N], tile.load(outer[0:N], other=-1))
    tile.store(y[p, 4, 0:N], tile.load(tile.window(x, 1, 2**31 - 1)[t:t + N], other=-1))


def check_far(backend: str, dtype) -> None:
    x, N = np.arange(1, 8, dtype=np.int32), 8
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    places = [most, most - 3, least, least + 5, least + 9, most // 2, least // 2, 0, 3, -2, 6, 7]
    y = np.zeros((len(places), 5, N), np.int32)
    far[len(places),](x, np.array(places, dtype), y, N=N, backend=backend)

    def elements(first, inside):
        return [int(x[first + j]) if inside(j) and 0 <= first + j < 7 else -1 for j in range(N)]

    for t, got in zip(places, y.tolist()):
        assert got == [elements(t, lambda j: j < 6), elements(2, lambda j: j < t), elements(t + 2, lambda j: j < 6 and 0 <= t + j < 4),
                       elements(t - 1, lambda j: 0 < j <= t), elements(t + 1, lambda j: t + j >= 0)], t


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_window_that_ends_beyond_the_range_of_its_dtype_has_the_bounds_of_the_array(dtype):
    """Offsets and extents from the least number to the greatest: no sum of them wraps to a position inside."""
    check_far("sim", dtype)


@needs_gpu()
@in_child(timeout=200)
def test_windows_are_respected_on_a_gpu():
    for dtype in ("float32", "int16", "float64"):
        check_shifted("cuda", dtype)
    for dtype in ("float32", "float16", "int8"):
        for how in ("copy", "copy_async"):
            check_moved("cuda", dtype, how)
    check_nested("cuda")
    for dtype in (np.int32, np.int64):
        check_far("cuda", dtype)


@tile.jit
def by_one_thread(x, y, n):
    s = tile.alloc((8, 64), x.dtype)
    with tile.elect():
        token = tile.copy_async(s, tile.window(x, (0, 0), (8, n))[0:8, 0:64])
    tile.copy(y[0:8, 0:64], s)


@tile.jit
def whole(x, y):
    s, bar = tile.alloc((8, 64), x.dtype), tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, tile.window(x, (0, 0), (x.shape[0], None))[0:8, 0:64], mbar=bar, variant="tma")
    bar.wait(0)
    tile.copy(y[0:8, 0:64], s)


def test_a_tensor_map_cannot_be_of_a_window_unless_it_is_the_whole_array():
    """The error gives the reason; a window with the array's own bounds is the array."""
    x = tile.ArraySpec((64, 64), "float32")
    copies = by_one_thread.compile(x, x, 5).copies
    assert any("a window, whose bounds are not" in reason for _, reason in copies[0].declined), copies[0].declined
    a, b = np.random.default_rng(0).random((8, 64), np.float32), np.zeros((8, 64), np.float32)
    whole[1,](a, b)
    np.testing.assert_array_equal(a, b)


def test_vectors_are_used_if_a_window_s_bounds_are_multiples_of_them():
    @tile.jit
    def kernel(x, y, n, UNIT: tile.constexpr):
        tile.store(y[0:1024], tile.load(tile.window(x, 8 * UNIT, n * UNIT)[0:1024]))

    spec = tile.ArraySpec((4096,), "float32")
    assert "ld.global.v4.b32" in kernel.compile(spec, spec, 5, UNIT=4).ptx
    assert "ld.global.v4.b32" not in kernel.compile(spec, spec, 5, UNIT=1).ptx


@pytest.mark.parametrize("body, said", [
    ("tile.window(x[0:4, 0:4], (0, 0), (1, 1))", "narrows the bounds of an array"),
    ("tile.window(x, 0, 4)", "2 offsets and extents, not 1 and 1"),
    ("tile.window(x, (0, 0), (-1, 4))", "at least 0, not -1"),
    ("tile.window(x, (0, 1.5), (1, 4))", "is an integer"),
    ("tile.window(x, (0, tile.thread_id()), (1, 4))", "must be the same for all threads"),
    ("tile.load(tile.window(x, (0, 0), (4, x.shape[1] - 1))[0:4, :])", "extent of this slice is known at launch only"),
    ("tile.tensor_map(tile.window(x, (0, 0), (4, 4))[0:4, 0:4])", "this is a window"),
])
def test_an_invalid_window_is_an_error_that_says_why(body, said):
    kernel = tile.jit(source=f"def k(x):\n    {body}\n")
    kernel.source.globals["tile"] = tile
    with pytest.raises(tile.CompilationError) as error:
        kernel.compile(tile.ArraySpec((8, 8), "float32"))
    assert said in str(error.value)
