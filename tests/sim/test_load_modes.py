"""Loads of other kinds than boxes: four rows at once, and the pixels of a convolution."""

import numpy as np
import pytest
import tilejit as tile
from engine_ops import test_four_rows as four_rows, test_im2col as im2col
from faulty import check


@tile.jit(num_warps=1)
def gather(A, B, ROWS: tile.constexpr):
    s = tile.alloc((4, 16), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        four_rows(A, s, bar, 4, rows=ROWS)
    bar.wait(phase=0)
    tile.store(B[0:4, 0:16], tile.load(s))


@tile.jit(num_warps=1)
def scatter(A, B, ROWS: tile.constexpr):
    s = tile.alloc((4, 16), A.dtype)
    tile.store(s, tile.load(A[0:4, 0:16]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        four_rows(B, s, None, 4, rows=ROWS, store=True)
        tile.bulk_commit()
        tile.bulk_wait(0)


def test_gather4_and_scatter4_access_each_row_at_its_index():
    """Rows in any order, repeated, or out of bounds."""
    A = np.arange(32 * 24, dtype=np.float32).reshape(32, 24)
    want = np.zeros((4, 16), np.float32)
    want[:3] = A[[7, 2, 7], 4:20]
    check(gather, (1,), A, np.ones((4, 16), np.float32), ROWS=(7, 2, 7, 40), result=1, expected=want)
    want = np.zeros((32, 24), np.float32)
    want[[7, 2, 9], 4:20] = A[:3, :16]
    check(scatter, (1,), A, np.zeros_like(A), ROWS=(7, 2, 9, 40), result=1, expected=want)


@tile.jit(num_warps=1)
def pixels(X, Y, WALK: tile.constexpr, AT: tile.constexpr, OFFSETS: tile.constexpr, STEPS: tile.constexpr):
    s = tile.alloc((32, 8), X.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        im2col(s, X, bar, walk=WALK, at=AT, offsets=OFFSETS, steps=STEPS)
    bar.wait(phase=0)
    tile.store(Y[0:32, 0:8], tile.load(s))


@pytest.mark.parametrize("offsets", [(0, 0), (1, 2), (2, 0)])
@pytest.mark.parametrize("pad, step", [(1, 1), (0, 1), (1, 2)])
def test_im2col_traverses_w_then_h_then_n(offsets, pad, step):
    """The rows of the matrix that a 3 x 3 convolution multiplies, for one filter position; padding is zero."""
    n, h, w = 3, 5, 6
    X = np.random.default_rng(0).integers(1, 100, (n, h, w, 8)).astype(np.uint16)
    rows = []
    for i in range(n):
        for y in range(-pad, h - 1 + pad - 2 + 1, step):
            for x in range(-pad, w - 1 + pad - 2 + 1, step):
                at = y + offsets[1], x + offsets[0]
                rows.append(X[(i, *at)] if 0 <= at[0] < h and 0 <= at[1] < w else np.zeros(8))
    rows += [np.zeros(8)] * 64
    walk = ((-pad, -pad), (pad - 2, pad - 2), 8, 32)
    check(pixels, (1,), X, np.zeros((32, 8), np.uint16), WALK=walk, AT=(0, -pad, -pad, 0), OFFSETS=offsets, STEPS=(step, step),
          result=1, expected=np.array(rows[:32]), seeds=[0])
