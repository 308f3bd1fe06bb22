"""Kernels of one im2col copy, or of one copy of rows selected by index, in either direction."""

import tilejit as tile


@tile.jit
def patch(X, first, line, place, channel, FILTER, STRIDE, PADDING, DILATION, ALONG, P, C, U):
    """Pixels `first` to `first + P` at a filter position, channels from U * channel on; in W mode those of a line of the result."""
    x = tile.im2col(X, FILTER, stride=STRIDE, padding=PADDING, dilation=DILATION, along=ALONG)
    c = U * channel
    if len(FILTER) == 1:
        return x[first:first + P, place[0], c:c + C]
    if len(FILTER) == 2:
        if ALONG is not None:
            return x[first:first + P, line[0], place[0], place[1], c:c + C]
        return x[first:first + P, place[0], place[1], c:c + C]
    if ALONG is not None:
        return x[first:first + P, line[0], line[1], place[0], place[1], place[2], c:c + C]
    return x[first:first + P, place[0], place[1], place[2], c:c + C]


@tile.jit(num_warps=1)
def load_patch(X, Y, first, k, i, a, b, d, channel, F: tile.constexpr, P: tile.constexpr, C: tile.constexpr, U: tile.constexpr,
               LAYOUT: tile.constexpr,
               STAGE: tile.constexpr):
    """Loads a block of pixels to one of two stages."""
    s = tile.alloc((2, P, C), X.dtype, layout=LAYOUT)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s[0].nbytes)
        tile.copy_async(s[STAGE], patch(X, first, (k, i), (a, b, d), channel, *F, P, C, U), mbar=bar)
    bar.wait(phase=0)
    tile.copy(Y[0:P, 0:C], s[STAGE])


@tile.jit(num_warps=1)
def store_patch(X, Y, first, channel, PLACE: tile.constexpr, F: tile.constexpr, P: tile.constexpr, C: tile.constexpr, U: tile.constexpr,
                LAYOUT: tile.constexpr, STAGE: tile.constexpr):
    """Stores a block of rows from one of two stages to the pixels that a filter position covers."""
    s = tile.alloc((2, P, C), X.dtype, layout=LAYOUT)
    tile.copy(s[STAGE], Y[0:P, 0:C])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.assume(first >= 0)
        tile.assume(channel >= 0)
        for d in tile.static_range(len(PLACE)):  # images that are large enough for the filter
            tile.assume(X.shape[1 + d] > (F[0][d] - 1) * F[3][d] - F[2][d][0] - F[2][d][1])
        tile.copy_async(patch(X, first, (0, 0), PLACE, channel, *F, P, C, U), s[STAGE])
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit(num_warps=1)
def gather(X, I, Y, column, C: tile.constexpr, N: tile.constexpr, U: tile.constexpr, LAYOUT: tile.constexpr, STAGE: tile.constexpr):
    """Rows I of X to one of two stages."""
    s = tile.alloc((2, N, C), X.dtype, layout=LAYOUT)
    bar = tile.mbarrier()
    with tile.elect():
        c = U * column
        bar.arrive_expect_tx(s[0].nbytes)
        tile.copy_async(s[STAGE], X.take(tile.load(I[0:N]))[:, c:c + C], mbar=bar)
    bar.wait(phase=0)
    tile.copy(Y[0:N, 0:C], s[STAGE])


@tile.jit(num_warps=1)
def scatter(X, I, Y, column, C: tile.constexpr, N: tile.constexpr, U: tile.constexpr, LAYOUT: tile.constexpr, STAGE: tile.constexpr):
    """One of two stages to the rows I of X."""
    s = tile.alloc((2, N, C), X.dtype, layout=LAYOUT)
    tile.copy(s[STAGE], Y[0:N, 0:C])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.assume(column >= 0)
        c = U * column
        tile.copy_async(X.take(tile.load(I[0:N]))[:, c:c + C], s[STAGE])
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit(num_warps=1)
def four_rows(x, y, AT: tile.constexpr, N: tile.constexpr):
    """`N` columns from `AT` on of four rows."""
    s = tile.alloc((4, N), x.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, x.take((5, 9, 2, 7))[:, AT:AT + N], mbar=bar)
    bar.wait(phase=0)
    tile.copy(y[0:4, 0:N], s)
