"""Reductions of special values: zeros of both signs, subnormals, the smallest and largest numbers, infinities, NaN, overflowing
integers."""

from itertools import product

import box_kernels
import bulk_kernels
import numpy as np
import patch_kernels
import reduced
import tilejit as tile
from box_kernels import INTEGERS, REDUCTIONS
from remote_kernels import TAKEN
from tilejit.dtypes import dtype_of

from tests.cases import Case, on_gpu, on_simulator
from tests.gpu import in_child, needs_gpu

#: 16 of each: zero, one, the smallest and largest subnormal, the smallest normal, the largest number, infinity, NaN; both signs.
SPECIAL = {
    "float16": (0x0000, 0x3c00, 0x0001, 0x03ff, 0x0400, 0x7bff, 0x7c00, 0x7e00),
    "bfloat16": (0x0000, 0x3f80, 0x0001, 0x007f, 0x0080, 0x7f7f, 0x7f80, 0x7fc0),
    "float32": (0x0, 0x3f800000, 0x1, 0x007fffff, 0x00800000, 0x7f7fffff, 0x7f800000, 0x7fc00000),
    "float64": (0x0, 0x3ff << 52, 0x1, (1 << 52) - 1, 1 << 52, (0x7ff << 52) - 1, 0x7ff << 52, 0xfff << 51)}


def special(dtype: str) -> np.ndarray:
    """Eight values with both signs; for integers, those near zero, near both limits and in the middle."""
    bits = 8 * dtype_of(dtype).nbytes
    if dtype in SPECIAL:
        values = [v | sign << bits - 1 for sign in (0, 1) for v in SPECIAL[dtype]]
    else:
        values = [v % (1 << bits) for v in (0, 1, 2, 3, -1, -2, -3, *((1 << bits - 1) + k for k in range(-3, 4)), 0x55555555, 0xaaaa0000)]
    return np.array(values, f"u{bits // 8}").view(dtype_of(dtype).np)


def combined(kind: str, old: np.ndarray, x: np.ndarray) -> np.ndarray:
    """For integers NumPy's. Float additions keep subnormals; min and max of a number and NaN are the number;
    -0 is less than 0."""
    if kind in ("min", "max") and old.dtype.kind not in "iu":
        with np.errstate(invalid="ignore"):
            first = np.where(old == x, np.signbit(old), old < x) == (kind == "min")
        return np.where(np.isnan(x) | first & ~np.isnan(old), old, x)
    with np.errstate(all="ignore"):
        return reduced.combined(kind, [x], old)


@tile.jit(num_warps=1, cluster=(2, 1, 1))
def in_a_peer(A, B, N: tile.constexpr, KIND: tile.constexpr, WAY: tile.constexpr):
    """Rank 1's values are reduced into the memory of rank 0: by a copy, or element by element from registers."""
    mine, total = tile.alloc((N,), A.dtype), tile.alloc((N,), A.dtype)
    bar = tile.mbarrier()
    tile.store(mine, tile.load(A[0:N]))
    tile.store(total, tile.load(B[0:N]))
    tile.fence_proxy_async()
    if tile.cta_rank() == 0:
        bar.arrive_expect_tx(total.nbytes)
    tile.cluster_sync()
    if tile.cta_rank() == 1:
        if WAY == "dsmem":
            with tile.elect():
                tile.copy_async(total.peer(0), mine, mbar=bar, reduce=KIND)
        else:
            tile.reduce_async(total.peer(0), tile.load(mine), KIND, mbar=bar)
    else:
        bar.wait(phase=0)
        tile.store(B[0:N], tile.load(total))


def case(way: str, kind: str, dtype: str) -> Case:
    """Every special value with every other, 256 pairs; pairs that would give a NaN with unspecified bits are replaced by ones."""
    a, b = (x.reshape(-1) for x in np.meshgrid(special(dtype), special(dtype)))
    want = combined(kind, b, a)
    unknown = np.isnan(want) if dtype in SPECIAL and dtype != "float32" else np.zeros(256, bool)
    a, b = (np.where(unknown, np.ones((), x.dtype), x) for x in (a, b))
    want = combined(kind, b, a)
    if dtype == "float32":
        want = np.where(np.isnan(want), np.array(0x7fffffff, np.uint32).view(np.float32), want)
    row = 128 // a.itemsize
    kernel, grid, shapes, options = {
        "bulk": (bulk_kernels.reduced, 1, ((1, 256), (256,)), dict(N=256)),
        "tma": (box_kernels.reduced_box, 1, ((1, 256), (256 // row, row)), dict(N=256, SHAPE=(256 // row, row), START=(0, 0))),
        "im2col": (patch_kernels.stored_pixels, 1, ((16, 16), (1, 16, 16)), dict(FILTER=(1,), PLACE=0)),
        "dsmem": (in_a_peer, 2, ((256,), (256,)), dict(N=256, WAY=way)),
        "registers": (in_a_peer, 2, ((256,), (256,)), dict(N=256, WAY=way))}[way]
    a, b, want = (x.reshape(shape) for x, shape in zip((a, b, want), (*shapes, shapes[1])))
    return Case(f"{kind} of {dtype}, {way}", kernel, (grid,), (a, b.copy()), {1: want}, dict(KIND=kind, **options))


def cases():
    for kind, dtypes in REDUCTIONS.items():
        for way, dtype in product(("tma", "im2col", "bulk"), dtypes):
            yield case(way, kind, dtype)
    for (kind, dtypes), way in product(TAKEN.items(), ("dsmem", "registers")):
        for dtype in dtypes:
            yield case(way, kind, dtype)


def test_reductions_of_special_values_agree_with_the_hardware():
    """Every operator and type of every path: into arrays, into images by im2col, into a peer's memory."""
    on_simulator(cases())


def test_the_special_integers_are_sixteen_different_ones():
    """None coincide by wrapping."""
    assert all(len(set(special(dtype).tolist())) == 16 for dtype in INTEGERS)


@needs_gpu()
@in_child(timeout=200)
def test_reductions_of_special_values_agree_with_numpy_on_the_gpu():
    """Every operator and type of every path: into arrays, into images by im2col, into a peer's memory."""
    on_gpu(cases())
