"""Kernels that copy boxes of one to five dimensions by TMA, with every option, and their results as expected by NumPy."""

from itertools import product
from math import prod

import numpy as np
import tilejit as tile
from receivers import SIZES, awaited, masks
from reduced import combined
from values import PACKED, UNIT, WHOLE, any_bits, argument

from tests.cases import Case, box_of, with_corner

INTEGERS = ("int32", "uint32", "int64", "uint64")
REDUCTIONS = {"add": (*INTEGERS, "float16", "bfloat16", "float32", "float64"), "min": (*INTEGERS, "float16", "bfloat16"),
              "max": (*INTEGERS, "float16", "bfloat16"), "inc": ("uint32",), "dec": ("uint32",), "and": INTEGERS, "or": INTEGERS, "xor": INTEGERS}

# For each rank: an array, a box of it and the box's start (before the array, past its end); columns in units of 16 bytes.
RANKS = {1: ((13,), (8,), (8,)), 2: ((9, 5), (8, 4), (3, 1)), 3: ((3, 9, 4), (2, 8, 3), (-1, 4, 2)),
         4: ((2, 3, 9, 4), (2, 2, 8, 2), (1, -1, 2, 1)), 5: ((2, 2, 3, 5, 3), (2, 2, 2, 4, 2), (1, 0, 2, -2, 1))}
# dimensions that can be merged
FULL = {2: ((9, 4), (8, 4), (0, 0)), 3: ((3, 9, 4), (2, 8, 4), (-1, 4, 0)), 5: ((2, 2, 3, 4, 3), (2, 2, 3, 4, 3), (0, 0, 0, 0, 0))}
SWIZZLED = {2: ((21, 24), (16, 8), (9, 8)), 3: ((3, 21, 24), (2, 16, 8), (-1, 9, 8)), 4: ((2, 3, 10, 24), (2, 2, 8, 8), (1, -1, 5, 16))}
SWIZZLES = (32, 64, 128)


@tile.jit
def boxed(X, AT, N, zero):
    """The box of `N` elements of an array that begins at `AT`; only the last start is a compile-time constant."""
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


def scaled(case, dtype: str):
    """The shape of an array, its box and the box's start, in elements, for a case in units of 16 bytes."""
    return [(*x[:-1], x[-1] * UNIT[dtype]) for x in case]


# -- copies in and out -------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=1)
def there_and_back(A, B, zero, SHAPE: tile.constexpr, START: tile.constexpr, MODE: tile.constexpr = 0, CACHE: tile.constexpr = None,
                   L2: tile.constexpr = None, FETCHED: tile.constexpr = False):
    """A box of one to five dimensions to shared memory, and from there to the array's beginning."""
    layout = tile.swizzled(A.dtype, SHAPE, MODE) if MODE else None
    s = tile.alloc(SHAPE, A.dtype, layout=layout)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, boxed(A, START, SHAPE, zero), mbar=bar, variant="tma", cache=CACHE, l2_promotion=L2, prefetch_map=FETCHED)
        bar.wait(phase=0)
        tile.copy_async(boxed(B, (0, 0, 0, 0, 0), SHAPE, 0), s, variant="tma", cache=CACHE, l2_promotion=L2, prefetch_map=FETCHED)
        tile.bulk_commit()
        tile.bulk_wait(0)


def box_case(rank: int, dtype: str, case=None, **options) -> Case:
    shape, box, start = scaled(case or RANKS[rank], dtype)
    x, y = any_bits(dtype, shape), any_bits(dtype, shape, 1)
    a, b, want = map(argument, (x, y, with_corner(y, box_of(x, start, box))))
    return Case(f"{dtype}, {rank} dimensions, {options}", there_and_back, (1,), (a, b, 0), {0: a, 1: want}, dict(SHAPE=box, START=start, **options))


def every_box():
    """Every rank with every dtype; dimensions that the planner merges; every swizzle with every element size."""
    for rank, dtype in product(RANKS, (*WHOLE, *PACKED)):
        yield box_case(rank, dtype)
    for rank, dtype in product(FULL, ("uint8", "int16", "bfloat16", "uint64", "float4_e2m1fn")):
        yield box_case(rank, dtype, FULL[rank])
    for rank, mode, dtype in product(SWIZZLED, SWIZZLES, ("uint8", "float16", "int32", "float64", "float4_e2m1fn")):
        yield box_case(rank, dtype, SWIZZLED[rank], MODE=mode)


POLICIES = ("evict_first", "evict_last", "evict_normal", ("evict_first", 0.5), ("evict_last", 0.25, "evict_first"),
            ("evict_unchanged", 0.5, "evict_first"))


def every_option():
    """L2 cache policies, L2 prefetch sizes, and prefetched maps."""
    for cache, l2 in product((None, *POLICIES), (0, 64, 128, 256)):
        yield box_case(2, "float32", CACHE=cache, L2=l2, FETCHED=l2 == 64)


# -- reductions --------------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=1)
def reduced_box(A, B, KIND: tile.constexpr, SHAPE: tile.constexpr = (16, 64), START: tile.constexpr = (2, 16), N: tile.constexpr = 1024):
    """Every CTA reduces its box into the same region of `B`."""
    s = tile.alloc((N,), A.dtype)
    tile.store(s, tile.load(A[tile.program_id(0), 0:N]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(boxed(B, START, SHAPE, 0), s.reshape(SHAPE), reduce=KIND, variant="tma", cache="evict_first")
        tile.bulk_commit()
        tile.bulk_wait(0)


def reduction_case(kind: str, dtype: str, rank: int = 2) -> Case:
    """A ragged part of an array, clipped below and to the right; the elements around it stay unchanged."""
    shape, box, start = scaled(RANKS[rank], dtype)
    start = tuple(map(abs, start))
    made = tile.dtypes.dtype_of(dtype).np
    draw = lambda seed, shape: np.random.default_rng(seed).integers(0 if made.kind == "u" else -50, 50, shape).astype(made)
    a, b = draw(1, (3, prod(box))), draw(2, (*(n + 2 for n in shape[:-1]), shape[-1] + 32))
    if kind in ("inc", "dec"):
        a[:] = 20  # otherwise the result depends on the order of the operands
    part = (*(slice(1, 1 + n) for n in shape[:-1]), slice(16, 16 + shape[-1]))
    at = tuple(slice(k, min(k + n, m)) for k, n, m in zip(start, box, shape))
    inside = tuple(slice(0, s.stop - s.start) for s in at)
    want = b.copy()
    want[part][at] = combined(kind, a.reshape(3, *box)[(slice(None), *inside)], b[part][at])
    return Case(f"{kind} of {dtype}, {rank} dimensions", reduced_box, (3,), (a, b), {1: want},
                dict(KIND=kind, SHAPE=box, START=start, N=prod(box)), {1: part})


def every_reduction():
    for rank, (kind, dtypes) in product(RANKS, REDUCTIONS.items()):
        for dtype in dtypes:
            yield reduction_case(kind, dtype, rank)


# -- fills, rounding, prefetches, multicasts ---------------------------------------------------------------------------------

@tile.jit(num_warps=1)
def filled_box(A, B, zero, SHAPE: tile.constexpr, START: tile.constexpr, N: tile.constexpr, FILL: tile.constexpr, PRECISION: tile.constexpr = None):
    """A box that exceeds its array, as it is in shared memory."""
    s = tile.alloc(SHAPE, A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, boxed(A, START, SHAPE, zero), mbar=bar, fill=FILL, precision=PRECISION, variant="tma")
    bar.wait(phase=0)
    tile.copy(B[0:N], s.reshape((N,)))


# the hardware's NaN
NAN = {"float16": (0x7ff7, "u2"), "bfloat16": (0x7ff7, "u2"), "float32": (0x7ff77ff7, "u4"), "float64": (0x7ff77ff77ff77ff7, "u8")}


def tf32(x):
    """float32 with 10 mantissa bits, rounded to nearest even, with the hardware's NaN."""
    raw = np.ascontiguousarray(x).view(np.uint32)
    rounded = (raw + 0xfff + ((raw >> 13) & 1)) & np.uint32(0xffffe000)
    return np.where(np.isnan(x), np.uint32(0x7fffe000), np.where(np.isinf(x), raw, rounded)).view(np.float32)


def fill_case(rank: int, dtype: str, fill, precision=None) -> Case:
    """Random bits, including infinities and NaN. The fill values are not rounded."""
    shape, box, start = scaled(RANKS[rank], dtype)
    a = any_bits(dtype, shape, 5)
    nothing = np.array(NAN[dtype][0], NAN[dtype][1]).view(a.dtype) if fill else np.zeros((), a.dtype)
    if precision:
        a.reshape(-1)[:6] = np.array([np.inf, -np.inf, np.nan, np.float32(3.4028235e38), 1 + 2.0 ** -11, 1 + 3 * 2.0 ** -11], np.float32)
    want = box_of(tf32(a) if precision else a, start, box, nothing).reshape(-1)
    return Case(f"{dtype}, {rank} dimensions, fill {fill}, {precision}", filled_box, (1,), (a, np.zeros_like(want), 0), {1: want},
                dict(SHAPE=box, START=start, N=want.size, FILL=fill, PRECISION=precision))


def every_fill():
    for rank, dtype in product(RANKS, NAN):
        yield fill_case(rank, dtype, "nan")
    for rank, fill in product(RANKS, (0, "nan")):
        yield fill_case(rank, "float32", fill, "tf32")


@tile.jit(num_warps=1)
def prefetched_box(A, B, SHAPE: tile.constexpr, START: tile.constexpr, N: tile.constexpr, CACHE: tile.constexpr):
    """A box that is prefetched to L2 before it is read."""
    tile.prefetch(boxed(A, START, SHAPE, 0), cache=CACHE)
    s = tile.alloc(SHAPE, A.dtype)
    tile.copy(s, boxed(A, START, SHAPE, 0))
    tile.sync()
    tile.copy(B[0:N], s.reshape((N,)))


def every_prefetch():
    for rank, dtype, cache in product(RANKS, ("uint8", "float16", "float64"), (None, "evict_last")):
        shape, box, start = scaled(RANKS[rank], dtype)
        start = tuple(map(abs, start))  # TMA does not prefetch boxes that start before an array
        a = any_bits(dtype, shape, 6)
        want = box_of(a, start, box).reshape(-1)
        yield Case(f"{dtype}, {rank} dimensions, {cache}", prefetched_box, (1,), (a, np.zeros_like(want)), {0: a, 1: want},
                   dict(SHAPE=box, START=start, N=want.size, CACHE=cache))


@tile.jit(num_warps=1)
def multicast_box(A, B, sender, mask, zero, SHAPE: tile.constexpr, START: tile.constexpr, N: tile.constexpr):
    """One CTA of a cluster loads a box for those of the mask; the others keep zeros."""
    s = tile.alloc((N,), A.dtype)
    bar = awaited(s, mask)
    if tile.cta_rank() == sender:
        with tile.elect():
            tile.copy_async(s.reshape(SHAPE), boxed(A, START, SHAPE, zero), mbar=bar, multicast=mask, variant="tma")
    bar.wait(phase=0)
    tile.copy(B[tile.program_id(0), 0:N], s)


def every_multicast():
    """Every cluster size; every rank with three element sizes."""
    for ranks, (dtype, rank) in zip(SIZES, product(("uint8", "bfloat16", "int64"), RANKS)):
        shape, box, start = scaled(RANKS[rank], dtype)
        a = any_bits(dtype, shape, 7)
        one = box_of(a, start, box).reshape(-1)
        for sender, mask in masks(ranks):
            want = np.stack([one if mask >> r % ranks & 1 else np.zeros_like(one) for r in range(2 * ranks)])
            yield Case(f"{dtype}, {rank} dimensions, {ranks} CTAs, mask {mask:b}", multicast_box, (2 * ranks,), (a, np.ones_like(want), sender, mask, 0),
                       {1: want}, dict(SHAPE=box, START=start, N=one.size, cluster=(ranks, 1, 1)))
