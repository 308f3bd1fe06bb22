"""im2col copies for convolutions of one to three dimensions by TMA, with every option, and their results as expected by NumPy."""

from itertools import cycle, product

import numpy as np
import tilejit as tile
from box_kernels import NAN, REDUCTIONS, tf32
from receivers import SIZES, awaited, masks
from reduced import combined
from values import WHOLE, any_bits

from tests.cases import Case


@tile.jit
def at_filter_position(x, FILTER, k, first, P, C):
    """`P` pixels and `C` channels at position `k` of the filter."""
    if len(FILTER) == 1:
        return x[first:first + P, k, 0:C]
    if len(FILTER) == 2:
        return x[first:first + P, k // FILTER[1], k % FILTER[1], 0:C]
    return x[first:first + P, k // (FILTER[1] * FILTER[2]), k // FILTER[2] % FILTER[1], k % FILTER[2], 0:C]


@tile.jit(num_warps=1)
def patches(X, Y, FILTER: tile.constexpr, STRIDE: tile.constexpr, PADDING: tile.constexpr, DILATION: tile.constexpr, P: tile.constexpr,
            C: tile.constexpr, MODE: tile.constexpr, FILL: tile.constexpr = None, PRECISION: tile.constexpr = None, CACHE: tile.constexpr = None):
    """Block `i` of the pixels of a convolution, at every position of its filter, to Y[position, pixel, channel]."""
    x = tile.im2col(X, FILTER, stride=STRIDE, padding=PADDING, dilation=DILATION)
    first = tile.program_id(0) * P
    s = tile.alloc((P, C), X.dtype, layout=tile.swizzled(X.dtype, (P, C), MODE) if MODE else None)
    bar = tile.mbarrier()
    places = 1
    for f in tile.static_range(len(FILTER)):
        places = places * FILTER[f]
    tile.prefetch(at_filter_position(x, FILTER, 0, first, P, C), cache="evict_last")
    for k in range(places):
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, at_filter_position(x, FILTER, k, first, P, C), mbar=bar, fill=FILL, precision=PRECISION, cache=CACHE)
        bar.wait(phase=k)
        tile.copy(Y[k, first:first + P, 0:C], s)
        tile.fence_proxy_async()
        tile.sync()


def reference_patches(x, filter, stride, padding, dilation, outside=0):
    """The expected im2col matrices: (filter positions, pixels of the result, channels)."""
    rank = len(filter)
    each = lambda v: v if isinstance(v, tuple) else (v,) * rank
    stride, dilation = each(stride), each(dilation)
    pads = [p if isinstance(p, tuple) else (p, p) for p in each(padding)]
    padded = np.full((x.shape[0], *(n + a + b for n, (a, b) in zip(x.shape[1:-1], pads)), x.shape[-1]), outside, x.dtype)
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
# + filter, stride, padding
OF_RANK = {1: ((3, 19, 32), (4,), 1, 2), 2: ((2, 5, 6, 32), (3, 2), (1, 2), 1), 3: ((2, 3, 4, 5, 32), (2, 3, 2), 1, (0, 1, 1))}


#: Views of two-dimensional images.
VIEWED = {"every second line": lambda x: x[:, 1::2], "columns inside": lambda x: x[:, :, 1:8], "channels inside": lambda x: x[..., 16:48],
          "turned": lambda x: x.transpose(0, 2, 1, 3), "every third image": lambda x: x[::3]}


def patches_case(case, fill=0, view=None, **more) -> Case:
    shape, dtype, filter, stride, padding, dilation, p, c, mode = case
    whole = any_bits(dtype, shape, 3)
    x = VIEWED[view](whole) if view else whole
    outside = np.array(NAN[dtype][0], NAN[dtype][1]).view(x.dtype) if fill else np.zeros((), x.dtype)
    want = reference_patches(tf32(x) if more.get("PRECISION") else x, filter, stride, padding, dilation, outside)
    full = np.full((want.shape[0], want.shape[1], c), outside, x.dtype)
    full[:, :, :min(c, x.shape[-1])] = want[:, :, :c]
    options = dict(FILTER=filter, STRIDE=stride, PADDING=padding, DILATION=dilation, P=p, C=c, MODE=mode, FILL=fill, **more)
    return Case(f"{case}, {fill}, {view}, {more}", patches, (-(-want.shape[1] // p),), (whole, np.zeros_like(full)), {1: full}, options,
                {0: VIEWED[view]} if view else {})


def every_patch():
    """The listed cases; every rank with every dtype; fills, rounding and cache policies."""
    yield from map(patches_case, PATCHES)
    for (shape, filter, stride, padding), dtype in product(OF_RANK.values(), WHOLE):
        row = 32 * tile.dtypes.dtype_of(dtype).nbytes
        yield patches_case((shape, dtype, filter, stride, padding, 1, 24, 32, row if row <= 128 else 0))
    for (shape, filter, stride, padding), dtype in product(OF_RANK.values(), NAN):
        yield patches_case((shape, dtype, filter, stride, padding, 2 if len(filter) == 1 else 1, 24, 16, 0), "nan")
    for (shape, filter, stride, padding), fill in product(OF_RANK.values(), (0, "nan")):
        yield patches_case((shape, "float32", filter, stride, padding, 1, 24, 32, 128), fill, PRECISION="tf32", CACHE=("evict_first", 0.5))
    for view in VIEWED:
        yield patches_case(((4, 12, 10, 64), "float16", (3, 2), (1, 2), 1, 1, 48, 32, 64), view=view)


@tile.jit(num_warps=1)
def patches_for_all(X, Y, sender, mask, FILTER: tile.constexpr, STRIDE: tile.constexpr, PADDING: tile.constexpr, P: tile.constexpr, C: tile.constexpr,
                    PLACE: tile.constexpr):
    """One CTA of each cluster loads pixels for those of the mask; the others keep zeros."""
    x = tile.im2col(X, FILTER, stride=STRIDE, padding=PADDING)
    s = tile.alloc((P, C), X.dtype, layout=tile.swizzled(X.dtype, (P, C), 64))
    bar = awaited(s, mask)
    if tile.cta_rank() == sender:
        with tile.elect():
            tile.copy_async(s, at_filter_position(x, FILTER, PLACE, tile.cluster_id(0) * P, P, C), mbar=bar, multicast=mask)
    bar.wait(phase=0)
    tile.copy(Y[tile.program_id(0), 0:P, 0:C], s)


def every_shared_patch():
    """Every cluster size."""
    for ranks, (shape, filter, stride, padding) in zip(SIZES, cycle(OF_RANK.values())):
        x = any_bits("float16", shape, 8)
        place = int(np.prod(filter)) - 1
        all_pixels = reference_patches(x, filter, stride, padding, 1)[place]
        blocks = np.zeros((2 * 24, 32), x.dtype)
        blocks[:min(48, len(all_pixels))] = all_pixels[:48]
        for sender, mask in masks(ranks):
            want = np.stack([blocks[24 * (r // ranks):][:24] if mask >> r % ranks & 1 else np.zeros_like(blocks[:24]) for r in range(2 * ranks)])
            yield Case(f"{shape}, {ranks} CTAs, mask {mask:b}", patches_for_all, (2 * ranks,), (x, np.ones_like(want), sender, mask), {1: want},
                       dict(FILTER=filter, STRIDE=stride, PADDING=padding, P=24, C=32, PLACE=place, cluster=(ranks, 1, 1)))


# -- stores ------------------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=1)
def stored_pixels(X, Y, KIND: tile.constexpr, FILTER: tile.constexpr, PLACE: tile.constexpr, STRIDE: tile.constexpr = 1, PADDING: tile.constexpr = 0,
             DILATION: tile.constexpr = 1, C: tile.constexpr = 16):
    """Stores or reduces rows of `X` to the pixels of images that one filter position covers."""
    y = tile.im2col(Y, FILTER, stride=STRIDE, padding=PADDING, dilation=DILATION)
    first = tile.program_id(0) * 32
    s = tile.alloc((32, C), X.dtype, layout=tile.swizzled(X.dtype, (32, C), C * X.dtype.nbytes))
    tile.copy(s, X[first:first + 32, 0:C])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(at_filter_position(y, FILTER, PLACE, first, 32, C), s, reduce=KIND)
        tile.bulk_commit()
        tile.bulk_wait(0)


def stored_pixels_case(kind, dtype, shape, filter, place, stride=1, padding=0, dilation=1, view=None) -> Case:
    """A filter position at which all pixels are inside; pixels beyond the last are dropped."""
    part = VIEWED[view] if view else lambda x: x
    met = reference_patches(part(np.arange(np.prod(shape)).reshape(shape)), filter, stride, padding, dilation)[place]
    made = tile.dtypes.dtype_of(dtype).np
    if kind is None:
        x, y = any_bits(dtype, met.shape, 4), any_bits(dtype, shape, 5)
    else:
        draw = lambda seed, shape: np.random.default_rng(seed).integers(0 if made.kind == "u" else -50, 50, shape).astype(made)
        x, y = draw(4, met.shape), draw(5, shape)
    want = y.copy()
    flat = want.reshape(-1)
    flat[met] = x if kind is None else combined(kind, x[None], flat[met])
    return Case(f"{kind} of {dtype} to {shape}, {view}, place {place} of {filter}, {stride}, {padding}, {dilation}", stored_pixels,
                (-(-len(met) // 32),), (x, y),
                {1: want}, dict(KIND=kind, FILTER=filter, PLACE=place, STRIDE=stride, PADDING=padding, DILATION=dilation, C=met.shape[-1]),
                {1: part} if view else {})


# images             filter    position
STORED = (((3, 41, 16), (4,), 2), ((3, 5, 6, 16), (3, 2), 3), ((2, 4, 3, 6, 16), (2, 1, 3), 4))


def every_store():
    """Every rank with every dtype and with every reduction; strides, padding, dilation."""
    for (shape, filter, place), dtype in product(STORED, WHOLE):
        if tile.dtypes.dtype_of(dtype).nbytes > 1:  # rows of 16 elements have the width of a swizzle
            yield stored_pixels_case(None, dtype, shape, filter, place)
    for dtype in ("uint8", "bool", "float8_e5m2"):
        yield stored_pixels_case(None, dtype, (3, 5, 6, 32), (3, 3), 5)
    for (shape, filter, place), (kind, dtypes) in product(STORED, REDUCTIONS.items()):
        for dtype in dtypes:
            yield stored_pixels_case(kind, dtype, shape, filter, place)
    for kind in (None, "add"):
        yield stored_pixels_case(kind, "float16", (3, 5, 6, 64), (3, 3), 4, padding=1)
        yield stored_pixels_case(kind, "float16", (3, 9, 8, 64), (3, 3), 5, stride=2)
        yield stored_pixels_case(kind, "float32", (3, 9, 8, 32), (2, 3), 1, stride=(2, 1), dilation=(1, 2))
    for view, kind in zip(VIEWED, cycle((None, "add"))):
        yield stored_pixels_case(kind, "float16", (4, 12, 10, 64), (3, 2), 3, view=view)
