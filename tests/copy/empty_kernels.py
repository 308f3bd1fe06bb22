"""Copies of arrays without elements, for the simulator and the GPU."""

import numpy as np
import tilejit as tile


@tile.jit(num_warps=1)
def loaded(A, B, zero, SHAPE: tile.constexpr, MODE: tile.constexpr, FILL: tile.constexpr):
    """A box of `A` to `B` by TMA."""
    s = tile.alloc(SHAPE, A.dtype, layout=tile.swizzled(A.dtype, SHAPE, MODE) if MODE else None)
    bar = tile.mbarrier()
    i = zero + tile.program_id(0) * SHAPE[0]
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[i:i + SHAPE[0], 0:SHAPE[1]], mbar=bar, fill=FILL, variant="tma", prefetch_map=True)
    bar.wait(phase=0)
    tile.copy(B[i:i + SHAPE[0], 0:SHAPE[1]], s)


@tile.jit(num_warps=1)
def stored(A, B, SHAPE: tile.constexpr, KIND: tile.constexpr):
    """A box of `B` to `A` by TMA, as a store or a reduction."""
    s = tile.alloc(SHAPE, A.dtype)
    i = tile.program_id(0) * SHAPE[0]
    tile.copy(s, B[i:i + SHAPE[0], 0:SHAPE[1]])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(A[i:i + SHAPE[0], 0:SHAPE[1]], s, variant="tma", reduce=KIND)
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit
def any_way(A, B):
    """By any path; the token waits."""
    s = tile.alloc((16, 64), A.dtype)
    tile.copy_async(s, A[0:16, 0:64]).wait()
    tile.copy(B[0:16, 0:64], s)
    tile.prefetch(A[0:16, 0:64])


@tile.jit(num_warps=1, cluster=(2, 1, 1))
def to_both(A, B):
    """Each CTA of a pair loads half of a box for both."""
    s = tile.alloc((16, 64), A.dtype)
    bar = tile.mbarrier()
    half = tile.cta_rank() * 8
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
    tile.cluster_sync()
    with tile.elect():
        tile.copy_async(s[half:half + 8, 0:64], A[half:half + 8, 0:64], mbar=bar, multicast=3)
    bar.wait(phase=0)
    tile.copy(B[tile.program_id(0), 0:16, 0:64], s)


@tile.jit(num_warps=1)
def patch(X, Y, ALONG: tile.constexpr):
    """128 pixels of a 3 x 3 convolution."""
    x = tile.im2col(X, (3, 3), padding=1, along=ALONG)
    s = tile.alloc((128, 64), X.dtype, layout=tile.swizzled(X.dtype, (128, 64), 128))
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        if ALONG is None:
            tile.copy_async(s, x[0:128, 2, 1, 0:64], mbar=bar)
        else:
            tile.copy_async(s, x[0:128, 0, 2, 1, 0:64], mbar=bar)
    bar.wait(phase=0)
    tile.copy(Y[0:128, 0:64], s)


@tile.jit(num_warps=1)
def rows(X, I, Y):
    """Eight rows of `X` to `Y`, and back."""
    s = tile.alloc((8, 64), X.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        which = tile.load(I[0:8])
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, X.take(which)[:, 0:64], mbar=bar)
        bar.wait(phase=0)
        tile.copy_async(X.take(which)[:, 0:64], s)
        tile.bulk_commit()
        tile.bulk_wait(0)
    tile.sync()
    tile.copy(Y[0:8, 0:64], s)


SHAPES = ((0, 64), (64, 0), (0, 0))


def odd(shape, dtype):
    """An array without elements, at an unaligned address and with invalid strides."""
    raw = np.zeros(1000, np.uint8)[1:]
    step = np.dtype(dtype).itemsize
    return np.lib.stride_tricks.as_strided(raw[:0].view(dtype), shape, (5 * step, 3 * step))
