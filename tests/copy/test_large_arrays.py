"""Copies of arrays of 2^31 bytes and more."""

import numpy as np
import pytest
import tilejit as tile


@tile.jit
def by_one_thread(x, y, row, ROWS: tile.constexpr):
    s = tile.alloc((ROWS, 64), x.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, x[row:row + ROWS, 0:64], mbar=bar)
    bar.wait(0)
    tile.copy(y[0:ROWS, 0:64], s)


@tile.jit
def by_all(x, y, i):
    s = tile.alloc((1024,), x.dtype)
    tile.copy(s, x[i * 1024:i * 1024 + 1024])
    tile.sync()
    tile.copy(y[0:1024], s)


def test_a_row_beyond_32_bit_coordinates_is_out_of_bounds_of_a_tensor_map():
    """TMA's coordinates have 32 bits; they must not wrap to another row."""
    x, y = tile.ArraySpec((10_000_000, 256), "float16"), tile.ArraySpec((8, 64), "float16")
    compiled = by_one_thread.compile(x, y, 3, ROWS=8)
    assert compiled.copies[0].variant == "tma" and compiled.ptx.count("cvt.sat.s32.s64") == 1
    small = np.ones((16, 64), np.float16)
    for row in (1 << 32, -(1 << 32), 5 << 40):
        out = np.full((8, 64), 7, np.float16)
        by_one_thread[1,](small, out, row, ROWS=8)
        assert (out == 0).all()
    assert "cvt.sat" in by_one_thread.compile(x, y, 5 << 40, ROWS=8).ptx


def test_an_extent_beyond_tma_s_coordinates_has_no_tensor_map():
    spec = tile.ArraySpec((3_000_000_000, 64), "int8")
    with pytest.raises(tile.DispatchError, match=r"extents below 2\^31, which coordinates of 32 bits reach: x.shape\[0\] is more"):
        by_one_thread.compile(spec, spec, 3, ROWS=8)


def test_a_copy_by_all_threads_reaches_elements_beyond_2_to_the_31():
    x = np.broadcast_to(np.int8(5), 3_000_000_007)
    y = np.zeros(1024, np.int8)
    by_all[1,](x, y, 2_929_687)
    assert y.sum() == 519 * 5
