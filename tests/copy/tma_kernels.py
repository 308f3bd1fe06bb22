"""Kernels of the tensor engine's forms, and what NumPy says of them: for the simulator and for the GPU."""

from math import prod

import numpy as np
import tilejit as tile
from reduced import combined
from values import PACKED, UNIT, WHOLE, any_bits, argument, same  # noqa: F401

DTYPES = WHOLE + PACKED
INTEGERS = ("int32", "uint32", "int64", "uint64")
REDUCTIONS = {"add": (*INTEGERS, "float16", "bfloat16", "float32", "float64"), "min": (*INTEGERS, "float16", "bfloat16"),
              "max": (*INTEGERS, "float16", "bfloat16"), "inc": ("uint32",), "dec": ("uint32",), "and": INTEGERS, "or": INTEGERS, "xor": INTEGERS}


def numbers(shape, dtype, seed=0):
    """Small numbers of any dtype."""
    return np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 50, shape).astype(tile.types.dtype_of(dtype).np)


@tile.jit(num_warps=2)
def multicast(A, B, mask, R: tile.constexpr, SENDER: tile.constexpr):
    """One CTA loads a tile for those of the mask; the others keep zeros."""
    s = tile.alloc((32, 64), A.dtype, layout=tile.swizzled(A.dtype, (32, 64), 128))
    bar = tile.mbarrier()
    rank = tile.cta_rank()
    tile.store(s, tile.zeros((32, 64), A.dtype))
    tile.fence_proxy_async()
    with tile.elect():
        bar.arrive_expect_tx(tile.where((mask >> rank) & 1 == 1, s.nbytes, 0))
    tile.cluster_sync()
    if rank == SENDER:
        with tile.elect():
            tile.copy_async(s, A[0:32, 0:64], mbar=bar, multicast=mask, cache=("evict_last", 0.5), prefetch_map=True)
    bar.wait(phase=0)
    tile.copy(B[tile.program_id(0), 0:32, 0:64], s)


@tile.jit(num_warps=5)
def multicast_ring(A, B, R: tile.constexpr):
    """Each CTA of a cluster loads a part of every tile for all of them, through a ring whose slots turn together."""
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
    """A load straight into the other CTA's memory, on its barrier."""
    s = tile.alloc((16, 64), A.dtype, layout=tile.swizzled(A.dtype, (16, 64), 128))
    bar = tile.mbarrier()
    rank = tile.cta_rank()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s.peer(1 - rank), A[rank * 16:rank * 16 + 16, 0:64], mbar=bar)
    bar.wait(phase=0)
    tile.copy(B[rank * 16:rank * 16 + 16, 0:64], s)


@tile.jit(num_warps=1)
def reduced(A, B, KIND: tile.constexpr, M: tile.constexpr = 16, N: tile.constexpr = 64):
    """Every CTA combines its rows with one place of `B`, 2 rows and 16 bytes of columns off its corner."""
    s = tile.alloc((M, N), A.dtype)
    tile.store(s, tile.load(A[tile.program_id(0), 0:M, 0:N]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(B[2:2 + M, 16:16 + N], s, reduce=KIND, variant="tma", cache="evict_first")
        tile.bulk_commit()
        tile.bulk_wait(0)


def reduction_case(kind: str, dtype: str):
    """(a, b, what `b` becomes): a ragged array, clipped below and to the right."""
    a, b = numbers((3, 16, 64), dtype, 1), numbers((13, 72), dtype, 2)
    if kind in ("inc", "dec"):
        a[:] = 20  # what remains depends on the order of the operands otherwise
    want = b.copy()
    want[2:13, 16:72] = combined(kind, a[:, :11, :56], b[2:13, 16:72])
    return a, b, want


@tile.jit
def box_of(X, AT, N, zero):
    """The box of `N` elements of an array that begins at `AT`; only the last start is known while compiling."""
    if len(N) == 1:
        return X[AT[0]:AT[0] + N[0]]
    i = zero + AT[0]
    if len(N) == 2:
        return X[i:i + N[0], AT[1]:AT[1] + N[1]]
    j = zero + AT[1]
    if len(N) == 3:
        return X[i:i + N[0], j:j + N[1], AT[2]:AT[2] + N[2]]
    k = zero + AT[2]
    if len(N) == 4:
        return X[i:i + N[0], j:j + N[1], k:k + N[2], AT[3]:AT[3] + N[3]]
    m = zero + AT[3]
    return X[i:i + N[0], j:j + N[1], k:k + N[2], m:m + N[3], AT[4]:AT[4] + N[4]]


@tile.jit(num_warps=1)
def there_and_back(A, B, zero, SHAPE: tile.constexpr, START: tile.constexpr, MODE: tile.constexpr):
    """A box of one to five dimensions into shared memory, and to the array's beginning."""
    layout = tile.swizzled(A.dtype, SHAPE, MODE) if MODE else None
    s = tile.alloc(SHAPE, A.dtype, layout=layout)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, box_of(A, START, SHAPE, zero), mbar=bar, variant="tma")
        bar.wait(phase=0)
        tile.copy_async(box_of(B, (0, 0, 0, 0, 0), SHAPE, 0), s, variant="tma")
        tile.bulk_commit()
        tile.bulk_wait(0)


# For each rank an array, a box of it and where that begins (before the array, past its end); columns in units of 16 bytes.
RANKS = {1: ((13,), (8,), (8,)), 2: ((9, 5), (8, 4), (3, 1)), 3: ((3, 9, 4), (2, 8, 4), (-1, 4, 0)),
         4: ((2, 3, 9, 4), (2, 2, 8, 2), (1, -1, 2, 1)), 5: ((2, 2, 3, 5, 3), (2, 2, 2, 4, 2), (1, 0, 2, -2, 1))}
SWIZZLES = (32, 64, 128)


def box_case(rank: int, dtype: str, case=None):
    """(array, target, box, start, what the target becomes)."""
    shape, box, start = ((*x[:-1], x[-1] * UNIT[dtype]) for x in case or RANKS[rank])
    a, b = any_bits(dtype, shape), any_bits(dtype, shape, 1)
    cut = np.zeros(prod(box) * a.itemsize, np.uint8).view(a.dtype).reshape(box)
    inside = tuple(slice(max(-s, 0), max(min(n, m - s), 0)) for s, n, m in zip(start, box, shape))
    cut[inside] = a[tuple(slice(s + i.start, s + i.stop) for s, i in zip(start, inside))]
    want = b.copy()
    edge = tuple(slice(0, min(n, m)) for n, m in zip(box, shape))
    want[edge] = cut[edge]
    return argument(a), argument(b), box, start, argument(want)


SWIZZLED = ((21, 24), (16, 8), (9, 8))  # a box of whole swizzle atoms, two wide for all but the widest


@tile.jit(num_warps=1)
def rounded(A, B):
    """float32 to TF32 on the way in; what is out of bounds becomes NaN."""
    s = tile.alloc((8, 32), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[4:12, 0:32], mbar=bar, precision="tf32", fill="nan")
    bar.wait(phase=0)
    tile.copy(B[0:8, 0:32], s)


def tf32(x):
    """float32 with 10 bits of mantissa, rounded to nearest even."""
    bits = x.view(np.uint32)
    return ((bits + 0xfff + ((bits >> 13) & 1)) & np.uint32(0xffffe000)).view(np.float32)


@tile.jit(num_warps=1)
def fetched(A, B, N: tile.constexpr):
    """Boxes brought to L2 before they are read."""
    i = tile.program_id(0) * 64
    tile.prefetch(A[i:i + 64, 64:64 + N], cache="evict_last")
    tile.copy(B[i:i + 64, 0:N], A[i:i + 64, 64:64 + N])


@tile.jit(num_warps=1, cluster=(2, 1, 1))
def paired(A, B, GROUP: tile.constexpr):
    """Two CTAs load a half each; with a group of two both complete on the first one's barrier."""
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


# -- patches of convolutions -------------------------------------------------------------------------------------------------

@tile.jit(num_warps=1)
def patches(X, Y, FILTER: tile.constexpr, STRIDE: tile.constexpr, PADDING: tile.constexpr, DILATION: tile.constexpr,
            P: tile.constexpr, C: tile.constexpr, MODE: tile.constexpr):
    """Block `i` of the pixels of a convolution, at every place of its filter, to Y[place, pixel, channel]."""
    x = tile.im2col(X, FILTER, stride=STRIDE, padding=PADDING, dilation=DILATION)
    first = tile.program_id(0) * P
    s = tile.alloc((P, C), X.dtype, layout=tile.swizzled(X.dtype, (P, C), MODE) if MODE else None)
    bar = tile.mbarrier()
    places = 1
    for f in tile.static_range(len(FILTER)):
        places = places * FILTER[f]
    if len(FILTER) == 2:
        tile.prefetch(x[first:first + P, 0, FILTER[1] - 1, 0:C], cache="evict_last")
    for k in range(places):
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            if len(FILTER) == 1:
                tile.copy_async(s, x[first:first + P, k, 0:C], mbar=bar)
            elif len(FILTER) == 2:
                tile.copy_async(s, x[first:first + P, k // FILTER[1], k % FILTER[1], 0:C], mbar=bar)
            else:
                tile.copy_async(s, x[first:first + P, k // (FILTER[1] * FILTER[2]), k // FILTER[2] % FILTER[1], k % FILTER[2], 0:C], mbar=bar)
        bar.wait(phase=k)
        tile.copy(Y[k, first:first + P, 0:C], s)
        tile.sync()


def reference_patches(x, filter, stride, padding, dilation):
    """What a convolution multiplies: (places of the filter, pixels of the result, channels)."""
    rank = len(filter)
    each = lambda v: v if isinstance(v, tuple) else (v,) * rank
    stride, dilation = each(stride), each(dilation)
    pads = [p if isinstance(p, tuple) else (p, p) for p in each(padding)]
    padded = np.zeros((x.shape[0], *(n + a + b for n, (a, b) in zip(x.shape[1:-1], pads)), x.shape[-1]), x.dtype)
    padded[(slice(None), *(slice(a, a + n) for n, (a, _) in zip(x.shape[1:-1], pads)))] = x
    out = []
    for place in np.ndindex(*filter):
        reach = [(n - 1) * d for n, d in zip(filter, dilation)]
        cut = tuple(slice(k * d, k * d + m - r, s) for k, d, m, r, s in zip(place, dilation, padded.shape[1:-1], reach, stride))
        out.append(padded[(slice(None), *cut)].reshape(-1, x.shape[-1]))
    return np.stack(out)


#          images             dtype       filter     stride  padding       dilation  pixels  channels  swizzle
PATCHES = [((3, 5, 6, 64), "float16", (3, 3), 1, 1, 1, 32, 64, 128),
           ((2, 9, 8, 16), "float32", (3, 3), 2, 1, 1, 16, 16, 64),
           ((2, 7, 7, 40), "bfloat16", (3, 2), (1, 2), ((1, 0), 2), (2, 1), 64, 48, 0),
           ((5, 21, 32), "uint8", (4,), 3, 2, 2, 40, 32, 32),
           ((2, 4, 5, 6, 128), "float16", (2, 3, 3), 1, (0, 1, 1), 1, 128, 128, 128),
           ((1, 8, 8, 8), "float64", (1, 1), 1, 0, 1, 64, 8, 0)]


def patches_case(case):
    """(kernel's options, images, target, what the target becomes)."""
    shape, dtype, filter, stride, padding, dilation, p, c, mode = case
    x = numbers(shape, dtype, 3)
    want = reference_patches(x, filter, stride, padding, dilation)
    y = np.ones((want.shape[0], want.shape[1], c), x.dtype)
    full = np.zeros_like(y)
    full[:, :, :min(c, shape[-1])] = want[:, :, :c]
    options = dict(FILTER=filter, STRIDE=stride, PADDING=padding, DILATION=dilation, P=p, C=c, MODE=mode)
    return options, x, y, full


@tile.jit(num_warps=1)
def unfolded(X, Y, KIND: tile.constexpr, R: tile.constexpr, S: tile.constexpr):
    """Rows of `X` to the pixels of images where one place of a 3 x 3 filter meets them."""
    y = tile.im2col(Y, (3, 3), padding=1)
    first = tile.program_id(0) * 32
    s = tile.alloc((32, 64), X.dtype, layout=tile.swizzled(X.dtype, (32, 64), 128))
    tile.copy(s, X[first:first + 32, 0:64])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(y[first:first + 32, R, S, 0:64], s, reduce=KIND)
        tile.bulk_commit()
        tile.bulk_wait(0)


def unfolded_case(kind):
    """A store where the whole image is inside: the middle of the filter."""
    x, y = numbers((3 * 5 * 6, 64), "float16", 4), numbers((3, 5, 6, 64), "float16", 5)
    want = x.reshape(y.shape) + (y if kind == "add" else 0)
    return x, y, want.astype(np.float16)


# -- rows named one by one -----------------------------------------------------------------------------------------------------

@tile.jit(num_warps=1)
def taken(X, I, Y, N: tile.constexpr, C: tile.constexpr, MODE: tile.constexpr):
    """Y[i] = X[I[i]], and back to where they came from in the second half of `Y`."""
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


def taken_case(dtype, n, c):
    """(X, I, Y, what Y becomes): rows in any order, some outside of the matrix on either side."""
    x, y = numbers((40, 16 + c + 16), dtype, 6), numbers((40, c), dtype, 7)
    i = np.random.default_rng(8).permutation(48).astype(np.int32)[:2 * n] - 4
    want = y.copy()
    for row in i:
        if 0 <= row < 40:
            want[row] = x[row, 16:16 + c]
    return x, i, y, want


@tile.jit(num_warps=1)
def along_w(X, Y, ALONG: tile.constexpr, P: tile.constexpr, C: tile.constexpr, STRIDE: tile.constexpr):
    """For one line of a 3 x 3 convolution's result, the pixels of all images at every place of the filter."""
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
        tile.sync()


def along_w_case(stride):
    """(images, target, what the target becomes): (line, place, pixel, channel)."""
    x = numbers((5, 6, 9, 64), "float16", 9)
    lines, width = (6 - 1) // stride + 1, (9 - 1) // stride + 1
    want = reference_patches(x, (3, 3), stride, 1, 1).reshape(9, 5, lines, width, 64)
    full = np.zeros((lines, 9, 128, 64), x.dtype)
    full[:, :, :5 * width] = want.transpose(2, 0, 1, 3, 4).reshape(lines, 9, 5 * width, 64)
    return x, np.ones_like(full), full


@tile.jit(num_warps=1)
def with_halo(X, Y, first, ALONG: tile.constexpr, P: tile.constexpr, HALO: tile.constexpr, STRIDE: tile.constexpr, S: tile.constexpr):
    """For one line of a 3 x 3 convolution's result and its first row of the filter, pixels with those that follow them."""
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
    """(images, target, what the target becomes); what the manual leaves open is NaN."""
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
