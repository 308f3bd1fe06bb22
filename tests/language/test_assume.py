"""What the compiler derives from tile.assume: bounds and divisors, where the assumption holds and nowhere else."""

from contextlib import nullcontext

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import SimulationError

from tests.gpu import in_child, needs_gpu

pytestmark = pytest.mark.usefixtures("assembled_later")

SQUARE = tile.ArraySpec((64, 64), "float16")


def stored_by(body):
    kernel = tile.jit(body)
    with pytest.warns(tile.errors.TileWarning) if body.__name__.startswith("not_") else nullcontext():
        compiled = kernel.compile(SQUARE, 3)
    return [c.variant for c in compiled.copies if c.dst_scope == "global"]


@tile.jit
def staged(x):
    s = tile.alloc((8, 64), x.dtype)
    tile.store(s, 1.0)
    tile.fence_proxy_async()
    tile.sync()
    return s


def test_an_assumed_bound_allows_a_store_by_tma():
    def kernel(x, row):
        s = staged(x)
        tile.assume(row >= 0)
        with tile.elect():
            tile.copy_async(x[row:row + 8, 0:64], s)
            tile.bulk_commit()
            tile.bulk_wait(0)
    assert stored_by(kernel) == ["tma"]


@pytest.mark.parametrize("words", ["row > -1", "0 <= row", "-1 < row", "row == 7", "(row < 100) & (row >= 0)", "row * 8 >= 0"])
def test_bounds_are_understood_in_every_form(words):
    source = f'''def kernel(x, row):
    s = staged(x)
    tile.assume({words})
    at = row * 8
    with tile.elect():
        tile.copy_async(x[{"at" if "*" in words else "row"}:{"at" if "*" in words else "row"} + 8, 0:64], s)
        tile.bulk_commit()
        tile.bulk_wait(0)
'''
    from tilejit.frontend import Source
    from tilejit.jit import Kernel
    if "*" in words:
        source = source.replace("tile.assume(row * 8 >= 0)\n    at = row * 8", "at = row * 8\n    tile.assume(at >= 0)")
    kernel = Kernel(Source.from_text(source, {"tile": tile, "staged": staged}), {})
    assert [c.variant for c in kernel.compile(SQUARE, 3).copies if c.dst_scope == "global"] == ["tma"]


def test_an_assumption_holds_only_in_its_block():
    def not_outside(x, row):
        s = staged(x)
        if row > 5:
            tile.assume(row >= 0)
            tile.store(x[0, 0], 2.0)
        with tile.elect():
            tile.copy_async(x[row:row + 8, 0:64], s)
            tile.bulk_commit()
            tile.bulk_wait(0)
    assert stored_by(not_outside) == ["vector"]


def test_an_assumed_divisor_widens_loads():
    @tile.jit
    def kernel(x, y, n, PROMISE: tile.constexpr):
        if PROMISE:
            tile.assume(n % 8 == 0)
        tile.store(y[0:1024], tile.load(x[n:n + 1024]))
    array = tile.ArraySpec((4096,), "float16")
    assert "ld.global.v4.b32" not in kernel.compile(array, array, 9, PROMISE=False).ptx
    assert "ld.global.v4.b32" in kernel.compile(array, array, 9, PROMISE=True).ptx


def test_an_assumption_about_an_extent_holds_wherever_the_extent_is_used():
    @tile.jit
    def kernel(x, y, rows, PROMISE: tile.constexpr):
        if PROMISE:
            tile.assume(rows.shape[0] % 8 == 0)
        n = rows.shape[0] - 1024
        tile.store(y[0:1024], tile.load(x[n:n + 1024]))
    array, rows = tile.ArraySpec((4096,), "float16"), tile.ArraySpec((4001,), "float16")
    assert "ld.global.v4.b32" not in kernel.compile(array, array, rows, PROMISE=False).ptx
    assert "ld.global.v4.b32" in kernel.compile(array, array, rows, PROMISE=True).ptx


def bounds_tested(compiled):
    return compiled.ptx.count("setp.lt.u32") + compiled.ptx.count("setp.gt.u32")


@pytest.mark.parametrize("words,tested", [
    ("row >= 0", True), ("row < x.shape[0]", True), ("(row >= 0) & (row < x.shape[1])", True), ("(row >= 0) & (row <= x.shape[0])", True),
    ("(row >= 0) & (row < x.shape[0])", False), ("(row >= 0) & (row + 1 <= x.shape[0])", False), ("(row >= 0) & (x.shape[0] > row)", False),
    ("(row >= 0) & (row < 7) & (x.shape[0] == 7)", False),
])
def test_bounds_checks_are_omitted_where_an_assumption_implies_them(words, tested):
    from tilejit.frontend import Source
    from tilejit.jit import Kernel
    source = f"""def kernel(x, y, row):
    tile.assume((x.shape[1] == 64) & (y.shape[0] >= 64))
    tile.assume({words})
    tile.store(y[0:64], tile.load(x[row, 0:64]))
"""
    kernel = Kernel(Source.from_text(source, {"tile": tile}), {})
    compiled = kernel.compile(tile.ArraySpec((7, 64), "float32"), tile.ArraySpec((64,), "float32"), 3, num_warps=1)
    assert (bounds_tested(compiled) > 0) == tested
    x, y = np.arange(7 * 64, dtype=np.float32).reshape(7, 64), np.zeros(64, np.float32)
    kernel.simulate(1, x, y, 6, num_warps=1).raise_first()
    assert (y == x[6]).all()


def test_indices_beyond_those_assumed_are_checked():
    @tile.jit
    def kernel(x, y, row, ROWS: tile.constexpr):
        tile.assume((row >= 0) & (row + 4 <= x.shape[0]) & (x.shape[1] == 64) & (y.shape[1] == 64) & (y.shape[0] >= 8))
        tile.store(y[0:ROWS, 0:64], tile.load(x[row:row + ROWS, 0:64]))
    x, y = tile.ArraySpec((64, 64), "float32"), tile.ArraySpec((8, 64), "float32")
    assert [bounds_tested(kernel.compile(x, y, 3, ROWS=rows)) > 0 for rows in (4, 8)] == [False, True]


def test_a_violated_assumption_is_a_finding():
    @tile.jit
    def kernel(x, n):
        tile.assume(n % 8 == 0)
        tile.store(x[0], n)
    with pytest.raises(SimulationError, match="promises does not hold"):
        kernel[1](np.zeros(4, np.int32), 7)


@pytest.mark.parametrize("text", ["n << -1", "n >> -1"])
def test_a_shift_by_a_negative_constant_counts_as_one_by_more_than_the_width(text):
    """The count is taken as unsigned. No bound is derived from the result."""
    kernel = tile.jit(source=f"def k(x, y, n):\n    tile.assume(n >= 5)\n    at = {text}\n    tile.store(y[0:4], tile.load(x[at:at + 4], other=7))\n")
    assert bounds_tested(kernel.compile(tile.ArraySpec((64,), "float32"), tile.ArraySpec((4,), "float32"), 8)) > 0


@tile.jit(num_warps=1)
def by_lane(x, out, LANE: tile.constexpr):
    mine = tile.load(x[tile.thread_id()])
    one = tile.uniform(tile.bitcast(tile.ptx.shfl.sync.idx.b32(mine, LANE, 31, 0xffffffff), tile.float32))
    if one > 0.5:
        tile.store(out[0:50], tile.load(x[0:50]) * one)
    at = tile.uniform(tile.lane_id() // 32)
    tile.store(out[at + 50:at + 60], one)


def of_one_lane(home, back):
    x = np.arange(64, dtype=np.float32) / 32
    for lane in (3, 20):
        out = home(np.full_like(x, -1))
        by_lane[1](home(x), out, LANE=lane)
        whole = x[:50] * x[lane] if x[lane] > 0.5 else np.full(50, -1)
        np.testing.assert_array_equal(back(out), np.concatenate([whole, np.full(10, x[lane]), np.full(4, -1)]).astype(np.float32))


def test_a_value_declared_uniform_can_be_used_with_tiles_regions_and_branches():
    of_one_lane(np.asarray, lambda out: out)
    x = np.zeros(64, np.float32)
    for target in ("sm_80", "sm_90a", "sm_100a"):
        assert by_lane.compile(x, x, LANE=3, target=target).ptx.count("shfl.sync.idx") == 1


@needs_gpu()
@in_child(timeout=60)
def test_assumed_and_uniform_values_work_on_the_gpu():
    of_one_lane(tile.to_device, lambda out: out.numpy())


@tile.jit(num_warps=2)
def of_each_warp(out, BROKEN: tile.constexpr):
    for w in range(2):
        with tile.warp(w):
            number = tile.uniform(tile.thread_id() // (32 - BROKEN))
            tile.store(out[w * 4:w * 4 + 4], tile.full((4,), number))


def test_uniform_refers_to_the_threads_of_the_scope():
    out = np.zeros(8, np.int32)
    of_each_warp[1](out, BROKEN=0)
    assert list(out) == [0] * 4 + [1] * 4
    with pytest.raises(SimulationError, match="tile.uniform promises to be the same in all threads of the scope is not"):
        of_each_warp[1](out, BROKEN=1)


def test_nan_counts_as_equal_to_nan_in_uniform():
    @tile.jit(num_warps=1)
    def kernel(x, out):
        tile.store(out[0:8], tile.full((8,), tile.uniform(tile.load(x[tile.thread_id()]))))

    x, out = np.full(32, np.nan, np.float32), np.zeros(8, np.float32)
    kernel[1](x, out)
    assert np.isnan(out).all()
    x[7] = 0
    with pytest.raises(SimulationError, match="tile.uniform"):
        kernel[1](x, out)


def test_uniform_returns_uniform_values_unchanged_and_refuses_tiles():
    @tile.jit
    def kernel(out, n, WHOLE: tile.constexpr):
        tile.static_assert(tile.uniform(7) == 7)
        tile.store(out[tile.uniform(n)], tile.uniform(tile.load(out[0:4]) if WHOLE else n))

    out = np.zeros(8, np.int32)
    kernel[1](out, 5, WHOLE=False)
    assert list(out) == [0] * 5 + [5, 0, 0]
    with pytest.raises(tile.errors.CompilationError, match="uniform takes a scalar, not a tile int32"):
        kernel.compile(out, 5, WHOLE=True)
