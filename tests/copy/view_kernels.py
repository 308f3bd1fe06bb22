"""Copies of parts of views (with steps, offsets, transposed and reversed), in and out, and their results as expected by NumPy."""

from itertools import product

import tilejit as tile
from box_kernels import boxed
from tilejit.layout import TileLayout
from values import UNIT, WHOLE, any_bits

from tests.cases import Case, box_of, part_of


@tile.jit(num_warps=2)
def there_and_back(A, B, AT: tile.constexpr, N: tile.constexpr, WAY: tile.constexpr, LAYOUT: tile.constexpr):
    """A box of a view to the same position of another one: by tensor copies, or in by `WAY` and out by all threads."""
    s = tile.alloc(N, A.dtype, layout=LAYOUT)
    if WAY == "tma":
        bar = tile.mbarrier()
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, boxed(A, AT, N, 0), mbar=bar, variant="tma")
            bar.wait(phase=0)
            tile.copy_async(boxed(B, AT, N, 0), s, variant="tma")
            tile.bulk_commit()
            tile.bulk_wait(0)
    else:
        tile.copy_async(s, boxed(A, AT, N, 0), variant=WAY).wait()
        tile.copy(boxed(B, AT, N, 0), s)


#: An array, a view of it, and a box of the view with its start; columns of the array and of the view in units of 16 bytes.
#: Boxes exceed the array, and the view ends before the array does.
VIEWS = {
    "every second row":     ((23, 6), lambda u: lambda x: x[1:20:2], (8, 4), (6, 3)),
    "columns inside":       ((12, 7), lambda u: lambda x: x[2:, u:5 * u], (8, 3), (4, 2)),
    "transposed":           ((13, 6), lambda u: lambda x: x[:9, u:].T, (4, 8), (2, 3)),
    "steps of planes":      ((7, 14, 5), lambda u: lambda x: x[::3, 1:12:2, u:], (2, 8, 2), (1, 0, 3)),
    "transposed planes":    ((4, 9, 5), lambda u: lambda x: x[1:, :8, u:].T, (2, 8, 2), (1, 4, 2)),
    "one of several planes": ((3, 10, 4), lambda u: lambda x: x[1, 2:], (8, 4), (3, 0)),
    "a row of each plane":  ((10, 3, 4), lambda u: lambda x: x[:, 1, u:], (8, 2), (5, 1)),
    "steps of volumes":     ((5, 6, 28, 6), lambda u: lambda x: x[::2, 1:, ::3, u:], (2, 2, 8, 4), (1, 4, 4, 2)),
    "volumes turned":       ((4, 3, 6, 5), lambda u: lambda x: x.transpose(2, 0, 1, 3)[1:, ::2, :, u:], (2, 2, 2, 2), (4, 1, 0, 3)),
    "transposed volumes":   ((3, 4, 6, 5), lambda u: lambda x: x[:, 1:, :, u:].T, (2, 4, 2, 2), (3, 3, 1, 2)),
    "steps in five dimensions": ((3, 2, 4, 17, 6), lambda u: lambda x: x[::2, :, 1::2, ::2, u:], (1, 2, 2, 8, 4), (1, 1, 0, 5, 2)),
    "five dimensions turned": ((2, 3, 2, 4, 5), lambda u: lambda x: x.transpose(3, 1, 0, 2, 4)[:3, 1:, :, :, u:], (2, 2, 1, 2, 2), (2, 0, 1, 1, 1)),
    "backwards":            ((15, 4), lambda u: lambda x: x[12:2:-1], (8, 4), (4, 0)),
    "volumes backwards":    ((4, 3, 9, 5), lambda u: lambda x: x[::-1, :, 7:0:-2, u:], (2, 2, 2, 2), (1, 2, 1, 3)),
}
BACKWARDS = ("backwards", "volumes backwards")


def view_case(name: str, dtype: str, way: str | None, mode: int = 0) -> Case:
    """Random bits, in and out. `mode`: the swizzle of the shared rows."""
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
    """A layout whose first index is the innermost one."""
    strides = [1]
    for n in extents[:-1]:
        strides.append(strides[-1] * n)
    return TileLayout(tuple((n, s, "m") for n, s in zip(extents, strides)))


def by_size():
    """Every view with each element size."""
    for name, (shape, *_) in VIEWS.items():
        for dtype in ("uint8", "bfloat16", "float32", "int64") if len(shape) < 4 else ("uint8", "float32"):
            yield name, dtype


def tensor_cases():
    """Every view that a tensor map can express with each element size, two of them with every dtype; swizzled rows."""
    for name, dtype in by_size():
        if name not in BACKWARDS:
            yield view_case(name, dtype, "tma")
    for name, dtype in product(("every second row", "transposed"), WHOLE):
        yield view_case(name, dtype, "tma")
    for name, dtype in product(("every second row", "one of several planes", "steps of volumes", "steps in five dimensions"), ("uint8", "float64")):
        yield view_case(name, dtype, "tma", 64)


def other_cases():
    """The same views by copies of all threads, and by the default path."""
    for (name, dtype), way in product(by_size(), ("ldgsts", None)):
        yield view_case(name, dtype, way)
