"""Kernels of other forms of TMA copies, and their results as expected by NumPy, for the simulator and the GPU."""

import numpy as np
import tilejit as tile
from patch_kernels import reference_patches
from receivers import awaited


def numbers(shape, dtype, seed=0):
    """Small integers in any dtype."""
    return np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 50, shape).astype(tile.dtypes.dtype_of(dtype).np)


@tile.jit(num_warps=2)
def multicast(A, B, mask, R: tile.constexpr, SENDER: tile.constexpr):
    """One CTA loads a tile for those of the mask; the others keep zeros."""
    s = tile.alloc((32, 64), A.dtype, layout=tile.swizzled(A.dtype, (32, 64), 128))
    bar = awaited(s, mask)
    if tile.cta_rank() == SENDER:
        with tile.elect():
            tile.copy_async(s, A[0:32, 0:64], mbar=bar, multicast=mask, cache=("evict_last", 0.5), prefetch_map=True)
    bar.wait(phase=0)
    tile.copy(B[tile.program_id(0), 0:32, 0:64], s)


@tile.jit(num_warps=5)
def multicast_ring(A, B, R: tile.constexpr):
    """Each CTA of a cluster loads a part of every tile for all of them, through a ring whose slots advance together."""
    r = tile.ring(2, A=((64, 64), A.dtype), multicast=True)
    first = tile.cta_rank() * (64 // R)
    with tile.warp(4):
        for k in range(A.shape[1] // 64):
            with r.produce() as slot:
                tile.copy_async(slot.A[first:first + 64 // R, 0:64], A[first:first + 64 // R, k * 64:k * 64 + 64], mbar=slot.full,
                                multicast=(1 << R) - 1)
    with tile.warpgroup(0):
        for k in range(A.shape[1] // 64):
            with r.consume() as slot:
                tile.store(B[tile.program_id(0), 0:64, k * 64:k * 64 + 64], tile.load(slot.A))


@tile.jit(num_warps=1, cluster=(2, 1, 1))
def to_a_peer(A, B):
    """A load directly into the other CTA's memory, on its barrier."""
    s = tile.alloc((16, 64), A.dtype, layout=tile.swizzled(A.dtype, (16, 64), 128))
    bar = tile.mbarrier()
    rank = tile.cta_rank()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s.peer(1 - rank), A[rank * 16:rank * 16 + 16, 0:64], mbar=bar)
    bar.wait(phase=0)
    tile.copy(B[rank * 16:rank * 16 + 16, 0:64], s)


@tile.jit(num_warps=1)
def prefetched(A, B, N: tile.constexpr):
    """Boxes prefetched to L2 before they are read."""
    i = tile.program_id(0) * 64
    tile.prefetch(A[i:i + 64, 64:64 + N], cache="evict_last")
    tile.copy(B[i:i + 64, 0:N], A[i:i + 64, 64:64 + N])


@tile.jit(num_warps=1, cluster=(2, 1, 1))
def paired(A, B, GROUP: tile.constexpr):
    """Two CTAs load a half each; with cta_group=2 both complete on the first one's barrier."""
    s = tile.alloc((64, 64), A.dtype, layout=tile.swizzled(A.dtype, (64, 64), 128))
    bar = tile.mbarrier()
    rank = tile.cta_rank()
    if GROUP == 2:
        if rank == 0:
            with tile.elect():
                bar.arrive_expect_tx(2 * s.nbytes)
        with tile.elect():
            tile.copy_async(s, A[rank * 64:rank * 64 + 64, 0:64], mbar=bar.peer(0), cta_group=2)
        if rank == 0:
            bar.wait(phase=0)
        tile.cluster_sync()
    else:
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, A[rank * 64:rank * 64 + 64, 0:64], mbar=bar, cta_group=1)
        bar.wait(phase=0)
    tile.copy(B[rank * 64:rank * 64 + 64, 0:64], s)


@tile.jit(num_warps=1, cluster=(4, 1, 1))
def paired_multicast(A, B):
    """CTA 0 loads for all four; the bytes complete on the odd CTA of each pair."""
    s = tile.alloc((32, 64), A.dtype, layout=tile.swizzled(A.dtype, (32, 64), 128))
    bar = tile.mbarrier()
    rank = tile.cta_rank()
    if rank % 2 == 1:
        with tile.elect():
            bar.arrive_expect_tx(2 * s.nbytes)
    if rank == 0:
        with tile.elect():
            tile.copy_async(s, A[0:32, 0:64], mbar=bar.peer(1), multicast=15, cta_group=2)
    if rank % 2 == 1:
        bar.wait(phase=0)
    tile.cluster_sync()
    tile.copy(B[rank * 32:rank * 32 + 32, 0:64], s)


# -- rows selected by index ----------------------------------------------------------------------------------------------------

@tile.jit(num_warps=1)
def gathered_and_scattered(X, I, Y, N: tile.constexpr, C: tile.constexpr, MODE: tile.constexpr):
    """Y[i] = X[I[i]], then scattered back to their rows in the second half of `Y`."""
    first = tile.program_id(0) * N
    s = tile.alloc((N, C), X.dtype, layout=tile.swizzled(X.dtype, (N, C), MODE) if MODE else None)
    bar = tile.mbarrier()
    with tile.elect():
        rows = tile.load(I[first:first + N])
        tile.prefetch(X.take(rows)[:, 16:16 + C])
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, X.take(rows)[:, 16:16 + C], mbar=bar)
        bar.wait(phase=0)
        tile.copy_async(Y.take(rows)[:, 0:C], s)
        tile.bulk_commit()
        tile.bulk_wait(0)


def gathered_and_scattered_case(dtype, n, c):
    """(X, I, Y, expected Y): rows in any order, some outside the matrix on either side."""
    x, y = numbers((40, 16 + c + 16), dtype, 6), numbers((40, c), dtype, 7)
    i = np.random.default_rng(8).permutation(48).astype(np.int32)[:2 * n] - 4
    want = y.copy()
    for row in i:
        if 0 <= row < 40:
            want[row] = x[row, 16:16 + c]
    return x, i, y, want


@tile.jit(num_warps=1)
def im2col_w(X, Y, ALONG: tile.constexpr, P: tile.constexpr, C: tile.constexpr, STRIDE: tile.constexpr):
    """For one line of a 3 x 3 convolution's result, the pixels of all images at every filter position."""
    x = tile.im2col(X, (3, 3), padding=1, stride=STRIDE, along=ALONG)
    s = tile.alloc((P, C), X.dtype, layout=tile.swizzled(X.dtype, (P, C), 128))
    bar = tile.mbarrier()
    line = tile.program_id(0)
    for k in range(9):
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.prefetch(x[0:P, line, k // 3, k % 3, 0:C])
            tile.copy_async(s, x[0:P, line, k // 3, k % 3, 0:C], mbar=bar)
        bar.wait(phase=k)
        tile.copy(Y[line, k, 0:P, 0:C], s)
        tile.fence_proxy_async()
        tile.sync()


def im2col_w_case(stride):
    """(images, target, expected target): (line, position, pixel, channel)."""
    x = numbers((5, 6, 9, 64), "float16", 9)
    lines, width = (6 - 1) // stride + 1, (9 - 1) // stride + 1
    want = reference_patches(x, (3, 3), stride, 1, 1).reshape(9, 5, lines, width, 64)
    full = np.zeros((lines, 9, 128, 64), x.dtype)
    full[:, :, :5 * width] = want.transpose(2, 0, 1, 3, 4).reshape(lines, 9, 5 * width, 64)
    return x, np.ones_like(full), full


@tile.jit(num_warps=1)
def with_halo(X, Y, first, ALONG: tile.constexpr, P: tile.constexpr, HALO: tile.constexpr, STRIDE: tile.constexpr, S: tile.constexpr):
    """For one line of a 3 x 3 convolution's result and the filter's first row, pixels with their halo."""
    x = tile.im2col(X, (3, 3), padding=1, stride=STRIDE, along=ALONG, halo=HALO)
    rows = P + HALO if ALONG == "w" else P + 4 * HALO
    s = tile.alloc((-(-rows // 8) * 8, 64), X.dtype, layout=tile.swizzled(X.dtype, (-(-rows // 8) * 8, 64), 128))
    bar = tile.mbarrier()
    line = tile.program_id(0)
    with tile.elect():
        bar.arrive_expect_tx(rows * 64 * X.dtype.nbytes)
        tile.prefetch(x[first:first + rows, line, 0, S, 0:64])
        tile.copy_async(s[0:rows, 0:64], x[first:first + rows, line, 0, S, 0:64], mbar=bar)
    bar.wait(phase=0)
    tile.copy(Y[line, 0:rows, 0:64], s[0:rows, 0:64])


def with_halo_case(along, p, halo, stride, s, first):
    """(images, target, expected target); undefined values are NaN."""
    x = numbers((40, 6, 9, 64), "float16", 10)
    lines, width = (6 - 1) // stride + 1, (9 - 1) // stride + 1
    groups, size = (4, 32) if along == "w128" else (1, p)

    def pixel(line, image, w):
        h, w = line * stride - 1, w * stride - 1 + s
        return x[image, h, w] if image < 40 and 0 <= h < 6 and 0 <= w < 9 else np.zeros(64, x.dtype)

    want = np.zeros((lines, groups * (size + halo), 64), x.dtype)
    for line in range(lines):
        for g in range(groups):
            for k in range(size + halo):
                own = first + g * size + min(k, size - 1)
                beyond = max(k - size + 1, 0)
                one = pixel(line, *divmod(own + beyond, width))
                other = pixel(line, own // width, own % width + beyond)
                want[line, g * (size + halo) + k] = np.where(one == other, one, np.nan)
    return x, np.ones_like(want), want
