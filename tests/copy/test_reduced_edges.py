"""Reductions of the numbers at the edges: zeros of both signs, the smallest and the largest, infinities, NaN, overflowing integers."""

from itertools import product

import box_kernels
import bulk_kernels
import numpy as np
import reduced
from box_kernels import INTEGERS, REDUCTIONS
from tilejit.types import dtype_of

from tests.cases import Case, on_gpu, on_simulator
from tests.gpu import in_child, needs_gpu

#: 16 of each: zero, one, the smallest below the normal numbers and the largest one, the smallest normal and the largest, infinity, NaN.
SPECIAL = {
    "float16": (0x0000, 0x3c00, 0x0001, 0x03ff, 0x0400, 0x7bff, 0x7c00, 0x7e00), "bfloat16": (0x0000, 0x3f80, 0x0001, 0x007f, 0x0080, 0x7f7f, 0x7f80, 0x7fc0),
    "float32": (0x0, 0x3f800000, 0x1, 0x007fffff, 0x00800000, 0x7f7fffff, 0x7f800000, 0x7fc00000),
    "float64": (0x0, 0x3ff << 52, 0x1, (1 << 52) - 1, 1 << 52, (0x7ff << 52) - 1, 0x7ff << 52, 0xfff << 51)}


def special(dtype: str) -> np.ndarray:
    """Eight values and those of the other sign; for integers those beside zero, beside both ends and in the middle."""
    bits = 8 * dtype_of(dtype).nbytes
    if dtype in SPECIAL:
        values = [v | sign << bits - 1 for sign in (0, 1) for v in SPECIAL[dtype]]
    else:
        values = [v % (1 << bits) for v in (0, 1, 2, 3, -1, -2, -3, *((1 << bits - 1) + k for k in range(-3, 4)), 0x55555555, 0xaaaa0000)]
    return np.array(values, f"u{bits // 8}").view(dtype_of(dtype).np)


def combined(kind: str, old: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Of integers NumPy's. Sums of floats keep what is below the normal numbers; of a number and NaN the number is the least and the
    greatest; -0 is below 0."""
    if kind in ("min", "max") and old.dtype.kind not in "iu":
        with np.errstate(invalid="ignore"):
            first = np.where(old == x, np.signbit(old), old < x) == (kind == "min")
        return np.where(np.isnan(x) | first & ~np.isnan(old), old, x)
    with np.errstate(all="ignore"):
        return reduced.combined(kind, [x], old)


def case(way: str, kind: str, dtype: str) -> Case:
    """Every special value with each, 256 pairs; ones in place of those of which a NaN of unknown bits would be made."""
    a, b = (x.reshape(-1) for x in np.meshgrid(special(dtype), special(dtype)))
    want = combined(kind, b, a)
    unknown = np.isnan(want) if dtype in SPECIAL and dtype != "float32" else np.zeros(256, bool)
    a, b = (np.where(unknown, np.ones((), x.dtype), x) for x in (a, b))
    want = combined(kind, b, a)
    if dtype == "float32":
        want = np.where(np.isnan(want), np.array(0x7fffffff, np.uint32).view(np.float32), want)
    if way == "bulk":
        return Case(f"{kind} of {dtype}, bulk", bulk_kernels.reduced, (1,), (a[None], b.copy()), {1: want}, dict(N=256, KIND=kind))
    row = 128 // a.itemsize
    return Case(f"{kind} of {dtype}, tma", box_kernels.reduced, (1,), (a[None], b.reshape(-1, row).copy()), {1: want.reshape(-1, row)},
                dict(N=256, KIND=kind, SHAPE=(256 // row, row), START=(0, 0)))


def cases():
    for kind, dtypes in REDUCTIONS.items():
        for way, dtype in product(("tma", "bulk"), dtypes):
            yield case(way, kind, dtype)


def test_reductions_of_numbers_at_the_edges_are_those_of_the_chip():
    """Every operator and type of both paths."""
    on_simulator(cases())


def test_the_special_integers_are_sixteen_different_ones():
    """None is lost where they wrap."""
    assert all(len(set(special(dtype).tolist())) == 16 for dtype in INTEGERS)


@needs_gpu()
@in_child(timeout=200)
def test_reductions_of_numbers_at_the_edges_on_the_gpu():
    """Every operator and type of both paths."""
    on_gpu(cases())
