"""Plans copies of patches and of selected rows by TMA: how they are divided into instructions.

An ``.im2col`` instruction walks over the pixels of images by itself, so that one for each box of channels copies all
pixels. ``.tile::gather4`` and ``.tile::scatter4`` copy a box of columns of four rows of a matrix. PTX ISA, "im2col
mode", "Tiled mode".
"""

from __future__ import annotations

from .....types import Patches, Window
from .boxes import MAX_BOX, MAX_ISSUES, SPAN, Boxes, Im2col, Run, encodable_stride, largest_divisor, runs_of
from .view import Digit, Dim, Start, View, multiple, number, shared_digits, swizzle_mode, times

ROWS, MAX_PIXELS = 4, 1024
# range of a corner, by rank of the images
CORNERS = {3: (-(1 << 15), (1 << 15) - 1), 4: (-(1 << 7), (1 << 7) - 1), 5: (-(1 << 4), (1 << 4) - 1)}
ALONG_OFFSET = 31  # largest wOffset (PTX ISA, ``cp.async.bulk.tensor``)
OFFSETS = {3: (1 << 16) - 1, 4: (1 << 8) - 1, 5: (1 << 5) - 1}  # largest im2col offset, by rank of the images


def column_start(array) -> int:
    """The index of the first column (channel) among the starts of a selection."""
    return len(array.buffer.shape) - 1 if isinstance(array, Patches) else 0


def selected_view(site) -> View | str:
    """The planner's view of a site whose array side is patches or selected rows: two dimensions, rows and columns."""
    array, shared = site.array, site.shared_side
    starts = [getattr(s, "value", s) for s in site.starts(shared)]
    found = shared_digits(shared.buffer.layout, shared.buffer.shape, starts, shared.extents, site.g.divisor)
    if isinstance(found, str):
        return found
    per_dim, offset = found
    moved = dict(zip(site.dims(array), (per_dim[d] for d in site.dims(shared))))
    k = column_start(array)
    column = site.starts(array)[k]
    start = Start(int(column.value) if hasattr(column, "value") else None, k, 1,
                  site.g.asked_divisor(column, 16 // site.itemsize))
    size, stride = array.buffer.shape[-1], array.buffer.strides[-1]
    dims = (Dim(1 << 32, 0, Start(0), array.extents[0], _digits(moved.get(0, ()), site.itemsize)),
            Dim(number(size), times(number(stride), site.itemsize), start, array.extents[1],
                _digits(moved.get(1, ()), site.itemsize)))
    known, divisor = (offset * site.itemsize, 1 << 62) if isinstance(offset, int) else (0, offset.of * site.itemsize)
    return View(site.itemsize, dims, swizzle_mode(shared.buffer.layout, site.itemsize), known, divisor)


def _digits(pairs, itemsize: int) -> tuple[Digit, ...]:
    digits: list[Digit] = []
    weight = 1
    for n, step in reversed(pairs):
        digits.insert(0, Digit(n, weight, step * itemsize))
        weight *= n
    return tuple(digits)


def selected_boxes(site, view: View) -> Boxes | str:
    """The map and the instructions of a site whose array side is patches or selected rows;
    a string says why there are none.

    The first coordinate of an issue is added to the first column; for rows, the second is the position of its four
    rows among the selected ones.
    """
    patches = isinstance(site.array, Patches)
    runs = runs_of(view, 1)
    assert runs is not None  # as a need has seen
    columns, height = [r for r in runs if r.dim == 1], [r for r in runs if r.dim == 0]
    count = site.array.window.pixels(site.array.extents[0]) if patches else 0
    if patches and (count > MAX_PIXELS or len(height) > 1):
        if count > MAX_PIXELS:
            return f"{count} pixels, more than {MAX_PIXELS}"
        return "pixels that are not evenly spaced in shared memory"
    if not patches and (not height or height[0].extent % ROWS):
        return (f"{height[0].extent if height else 1} rows that follow each other in shared memory, "
                f"and {ROWS} go together")
    width = _width(columns[0], height[0].step if height else None, SPAN[view.swizzle], view.itemsize)
    if width is None:
        return "rows that are not laid out in shared memory as boxes of them are: packed, or at the span of the swizzle"
    first = columns[0]
    loops = [(0, width, first.extent // width, width * view.itemsize),
             *((0, r.weight, r.extent, r.step) for r in columns[1:])]
    if not patches:
        loops += [(1, ROWS, height[0].extent // ROWS, ROWS * height[0].step),
                  *((1, r.weight, r.extent, r.step) for r in height[1:])]
    issues = [((0, 0), view.offset)]
    for axis, weight, n, step in loops:
        issues = [((c + j * weight, r) if axis == 0 else (c, r + j * weight),
                   at + j * step) for (c, r), at in issues for j in range(n)]
    if len(issues) > MAX_ISSUES:
        return f"{len(issues)} instructions, more than {MAX_ISSUES}"
    return _add_map(site, width, sorted(issues, key=lambda i: i[1]))


def _width(columns: Run, pitch: int | None, span: int, itemsize: int) -> int | None:
    """The number of columns per instruction, so that its rows have the pitch of those in shared memory;
    None if there is none.

    `pitch` is the distance in bytes between rows in shared memory (None for a single row),
    `span` that of the swizzle (0: none).
    """
    limit = span // itemsize if span else MAX_BOX
    if pitch is None:
        width = largest_divisor(columns.extent, limit)
    elif span:
        width = largest_divisor(columns.extent, limit) if pitch == span else 0
    else:
        width = pitch // itemsize
    fits = 0 < width <= limit and columns.extent % width == 0 and width * itemsize % 16 == 0
    return width if fits else None


def _add_map(site, width: int, issues: list) -> Boxes | str:
    """Complete the issues to `Boxes` with a map that has the array's own dimensions;
    a string names a stride that it cannot have."""
    array, ask = site.array, site.g.facts.ask
    shape, strides = array.buffer.shape, array.buffer.strides
    rank, patches = len(shape), isinstance(array, Patches)
    outer = tuple(times(number(s), site.itemsize) for s in reversed(strides[:-1]))
    for d, stride in zip(reversed(range(rank - 1)), outer):
        if not multiple(stride, 16, ask):
            return f"the stride of dimension {d} is not known to be a multiple of 16 bytes"
    if patches:
        moved = constant_offsets(site) if site.dst is array else (0,) * (rank - 2)
        assert moved is not None  # as a need of stores has seen
        issues = [((c, *reversed(moved), 0), at) for (c, _), at in issues]
    moving = tuple((rank - 1 - d, 1, 1) for d in range(rank)) if patches else ()
    box = () if patches else (width, 1)
    return Boxes(1, 0, tuple(number(n) for n in reversed(shape)), tuple(map(encodable_stride, outer)), box,
                 tuple(issues), moving, width)


# -- the filter --------------------------------------------------------------------------------------------------------

def filter_fits(site) -> bool | str:
    return window_fits(site.array.window, len(site.array.buffer.shape))


def window_fits(window: Window, rank: int) -> bool | str:
    """Whether a map of images of this rank can encode the corners of the window,
    and an instruction the offsets in the filter."""
    window = walked_window(window)
    low, high = CORNERS[rank]
    for name, corner in (("before the first element", window.lower), ("beyond the last element", window.upper)):
        for c in corner:
            if not low <= c <= high:
                return f"a corner {abs(c)} elements {name}; in {rank} dimensions it takes {low} to {high}"
    most = OFFSETS[rank] if window.along is None else ALONG_OFFSET
    if max(window.reach) > most:
        directions = "along w" if window.along else f"in {rank} dimensions"
        return f"a filter that reaches {max(window.reach)} elements; {directions} at most {most}"
    return max(window.stride) <= 8 or f"a step of {max(window.stride)}, and at most 8 are possible"


def walked_window(window: Window) -> Window:
    """The part of a window that the engine walks over: all of it, or the last spatial dimension (w)."""
    if window.along is None:
        return window
    return Window(window.lower[-1:], window.upper[-1:], window.stride[-1:], window.reach[-1:], window.along)


def goes_along(site) -> bool | str:
    """Whether the engine supports the walk: one through all dimensions,
    or a load along w on these targets with this many pixels."""
    along = site.array.window.along
    if along is None:
        return True
    if site.dst is site.array:
        return "a store"
    if site.target not in ("sm_100a", "sm_103a"):
        return site.target
    rows, window = site.array.extents[0], site.array.window
    halo = f", of which {window.halo} are the halo's" if along == "w" else f" with a halo of {window.halo}"
    return window.pixels(rows) > 0 or f"{rows} pixels along {along}{halo if window.halo else ''}"


def constant_offsets(site) -> tuple[int, ...] | None:
    """The offsets in the filter, in the order of the array's dimensions; None if they are known only at run time."""
    offsets = site.starts(site.array)[len(site.array.buffer.shape):]
    return tuple(int(o.value) for o in offsets) if all(hasattr(o, "value") for o in offsets) else None


def stays_inside(site) -> bool | str:
    """Whether all pixels of a store are inside the images, since the engine does not write outside of them."""
    offsets, window = constant_offsets(site), site.array.window
    if offsets is None:
        return "the place in the filter is known at run time only"
    for d, (lower, upper, o) in enumerate(zip(window.lower, window.upper, offsets), 1):
        if lower + o < 0 or upper + o > 0:
            return (f"along dimension {d} its places begin {lower + o} elements after the first and end "
                    f"{upper + o} after the last")
    return True


def walk(site, width: int) -> tuple[Im2col, tuple[int, ...]]:
    """The im2col parameters of a map of patches, and its element strides.
    A store's offsets in the filter are added to the corners."""
    moved = constant_offsets(site) if site.dst is site.array else None
    return walk_of(site.array.window, len(site.array.buffer.shape), width, site.array.extents[0], moved)


def walk_of(window: Window, rank: int, width: int, rows: int,
            moved: tuple[int, ...] | None = None) -> tuple[Im2col, tuple[int, ...]]:
    """The im2col parameters and element strides for copies of `rows` pixels by `width` channels of images of this rank.

    `moved` is added to the corners; it has the order of the array's dimensions.
    """
    taken = walked_window(window)
    moved = moved or (0,) * len(taken.lower)
    lower, upper = (tuple(c + o for c, o in zip(reversed(corner), reversed(moved)))
                    for corner in (taken.lower, taken.upper))
    steps = tuple(reversed(taken.stride)) + (1,) * (rank - 2 - len(taken.stride))
    wide = {None: None, "w": 0, "w128": 1}[window.along]
    return Im2col(lower, upper, width, window.pixels(rows), wide), (1, *steps, 1)
