"""Copies of parts of views: steps, offsets, transposed and turned arrays, there and back, and what NumPy says of them."""

from itertools import product

import numpy as np
import tilejit as tile
from tilejit.layout import TileLayout
from values import UNIT, WHOLE, any_bits

from tests.cases import Case, box_of, part_of


@tile.jit
def box(X, AT, N):
    """The box of `N` elements that begins at `AT`."""
    if len(N) == 2:
        return X[AT[0]:AT[0] + N[0], AT[1]:AT[1] + N[1]]
    return X[AT[0]:AT[0] + N[0], AT[1]:AT[1] + N[1], AT[2]:AT[2] + N[2]]


@tile.jit(num_warps=2)
def there_and_back(A, B, AT: tile.constexpr, N: tile.constexpr, WAY: tile.constexpr, LAYOUT: tile.constexpr):
    """A box of a view to the same place of another one, by tensor copies, or in by `WAY` and out by all threads."""
    s = tile.alloc(N, A.dtype, layout=LAYOUT)
    if WAY == "tma":
        bar = tile.mbarrier()
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, box(A, AT, N), mbar=bar, variant="tma")
            bar.wait(phase=0)
            tile.copy_async(box(B, AT, N), s, variant="tma")
            tile.bulk_commit()
            tile.bulk_wait(0)
    else:
        tile.copy_async(s, box(A, AT, N), variant=WAY).wait()
        tile.copy(box(B, AT, N), s)


#: An array, a view of it, and a box of the view with its start; columns of the array in units of 16 bytes, those of a view too.
#: Boxes leave the array, and the view ends before the array does.
VIEWS = {
    "every second row":     ((23, 6), lambda u: lambda x: x[1:20:2], (8, 4), (6, 3)),
    "columns inside":       ((12, 7), lambda u: lambda x: x[2:, u:5 * u], (8, 3), (4, 2)),
    "transposed":           ((13, 6), lambda u: lambda x: x[:9, u:].T, (4, 8), (2, 3)),
    "steps of planes":      ((7, 14, 5), lambda u: lambda x: x[::3, 1:12:2, u:], (2, 8, 2), (1, 0, 3)),
    "transposed planes":    ((4, 9, 5), lambda u: lambda x: x[1:, :8, u:].T, (2, 8, 2), (1, 4, 2)),
    "one of several planes": ((3, 10, 4), lambda u: lambda x: x[1, 2:], (8, 4), (3, 0)),
    "a row of each plane":  ((10, 3, 4), lambda u: lambda x: x[:, 1, u:], (8, 2), (5, 1)),
    "backwards":            ((15, 4), lambda u: lambda x: x[12:2:-1], (8, 4), (4, 0)),
}
BACKWARDS = ("backwards",)


def view_case(name: str, dtype: str, way: str | None, mode: int = 0) -> Case:
    """Random bits there and back. `mode`: the swizzle of the shared rows."""
    shape, view, extents, start = VIEWS[name]
    u = UNIT[dtype]
    turned = name.startswith("transposed")
    inner = 0 if turned else -1
    view = view(u)
    shape = (*shape[:-1], shape[-1] * u)
    scaled = lambda x: tuple(n * u if i == inner % len(x) else n for i, n in enumerate(x))
    extents, start = scaled(extents), scaled(start)
    a, b = any_bits(dtype, shape), any_bits(dtype, shape, 1)
    want = b.copy()
    there = tuple(slice(k, k + n) for k, n in zip(start, extents))
    into = part_of(want, view)[there]
    into[...] = box_of(part_of(a, view), start, extents)[tuple(slice(n) for n in into.shape)]
    layout = tile.swizzled(dtype, extents, mode) if mode else column_major(extents) if turned else None
    return Case(f"{name}, {dtype}, by {way}, swizzle {mode}", there_and_back, (1,), (a, b), {0: a, 1: want},
                dict(AT=start, N=extents, WAY=way, LAYOUT=layout), {0: view, 1: view})


def column_major(extents) -> TileLayout:
    """The first index is the innermost one."""
    strides = [1]
    for n in extents[:-1]:
        strides.append(strides[-1] * n)
    return TileLayout(tuple((n, s, "m") for n, s in zip(extents, strides)))


def tensor_cases():
    """Every view that a tensor map can name by sizes of elements, two of them by every dtype; swizzled rows."""
    for name, dtype in product(VIEWS, ("uint8", "bfloat16", "float32", "int64")):
        if name not in BACKWARDS:
            yield view_case(name, dtype, "tma")
    for name, dtype in product(("every second row", "transposed"), WHOLE):
        yield view_case(name, dtype, "tma")
    for name, dtype in product(("every second row", "one of several planes"), ("uint8", "float16", "float64")):
        yield view_case(name, dtype, "tma", 64)


def other_cases():
    """The same views by the copies of all threads, and by what is chosen without a name."""
    for name, dtype, way in product(VIEWS, ("uint8", "bfloat16", "float32", "int64"), ("ldgsts", None)):
        yield view_case(name, dtype, way)
