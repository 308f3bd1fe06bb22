"""What the compiler makes of tile.assume: bounds and divisors, where the promise holds and nowhere else."""

from contextlib import nullcontext

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import SimulationError

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


def test_a_promised_bound_lets_a_store_go_by_tma():
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


def test_a_promise_holds_in_its_block_only():
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


def test_a_promised_divisor_widens_loads():
    @tile.jit
    def kernel(x, y, n, PROMISE: tile.constexpr):
        if PROMISE:
            tile.assume(n % 8 == 0)
        tile.store(y[0:1024], tile.load(x[n:n + 1024]))
    array = tile.ArraySpec((4096,), "float16")
    assert "ld.global.v4.b32" not in kernel.compile(array, array, 8, PROMISE=False).ptx
    assert "ld.global.v4.b32" in kernel.compile(array, array, 8, PROMISE=True).ptx


def test_a_promise_about_a_size_holds_wherever_the_size_is_named():
    @tile.jit
    def kernel(x, y, PROMISE: tile.constexpr):
        if PROMISE:
            tile.assume(x.shape[0] % 8 == 0)
        n = x.shape[0] - 1024
        tile.store(y[0:1024], tile.load(x[n:n + 1024]))
    array = tile.ArraySpec((4096,), "float16")
    assert "ld.global.v4.b32" not in kernel.compile(array, array, PROMISE=False).ptx
    assert "ld.global.v4.b32" in kernel.compile(array, array, PROMISE=True).ptx


def bounds_tested(compiled):
    return compiled.ptx.count("setp.lt.u32") + compiled.ptx.count("setp.gt.u32")


@pytest.mark.parametrize("words,tested", [
    ("row >= 0", True), ("row < x.shape[0]", True), ("(row >= 0) & (row < x.shape[1])", True), ("(row >= 0) & (row <= x.shape[0])", True),
    ("(row >= 0) & (row < x.shape[0])", False), ("(row >= 0) & (row + 1 <= x.shape[0])", False), ("(row >= 0) & (x.shape[0] > row)", False),
    ("(row >= 0) & (row < 7) & (x.shape[0] == 7)", False),
])
def test_bounds_are_not_tested_where_a_promise_says_that_they_hold(words, tested):
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


def test_more_indices_than_promised_are_tested():
    @tile.jit
    def kernel(x, y, row, ROWS: tile.constexpr):
        tile.assume((row >= 0) & (row + 4 <= x.shape[0]) & (x.shape[1] == 64) & (y.shape[1] == 64) & (y.shape[0] >= 8))
        tile.store(y[0:ROWS, 0:64], tile.load(x[row:row + ROWS, 0:64]))
    x, y = tile.ArraySpec((64, 64), "float32"), tile.ArraySpec((8, 64), "float32")
    assert [bounds_tested(kernel.compile(x, y, 3, ROWS=rows)) > 0 for rows in (4, 8)] == [False, True]


def test_a_broken_promise_is_a_finding():
    @tile.jit
    def kernel(x, n):
        tile.assume(n % 8 == 0)
        tile.store(x[0], n)
    with pytest.raises(SimulationError, match="promises does not hold"):
        kernel[1](np.zeros(4, np.int32), 7)


@pytest.mark.parametrize("text", ["n << -1", "n >> -1"])
def test_a_shift_by_a_negative_constant_is_by_more_than_the_width(text):
    """Its count is an unsigned number; what it makes is no bound of what follows."""
    kernel = tile.jit(source=f"def k(x, y, n):\n    tile.assume(n >= 5)\n    at = {text}\n    tile.store(y[0:4], tile.load(x[at:at + 4], other=7))\n")
    assert bounds_tested(kernel.compile(tile.ArraySpec((64,), "float32"), tile.ArraySpec((4,), "float32"), 8)) > 0
