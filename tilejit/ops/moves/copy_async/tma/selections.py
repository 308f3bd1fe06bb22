"""Selections that the TMA unit gathers: im2col patches, and rows named by index (gather4, scatter4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .....config import architecture
from .....dtypes import int32
from .....ir.builder import Builder, ExecScope, describe, element_type, type_as, type_of
from .....ir.builtin import attribute, builtin, method
from .....ir.graph import Const, Operand, Value, results
from .....ir.op import op
from .....ir.op_traits import Traits
from .....layout import row_lanes, row_numbers
from .....types import Buffer, Patches, Region, Rows, RowsOfArray, Scalar, Tile, Window
from ....language.operators import binary
from ....language.pointwise import maximum, minimum
from ....language.promotion import as_index, uniform_scalar
from ....language.sizes import extent_value
from ....memory.packed import bytes_along, refuse_packed
from ....tiles.slicing import index
from ...load_store import load


@op("pure", attrs=("extents", "window"))
def patches(buffer, *at, extents, window):
    """`extents` (pixels, channels) of the images `buffer`, (image, ..., channel),
    for one element of a convolution's filter.

    `at` is the first pixel (image, position of the filter's corner), the first channel,
    and the element's offsets in the filter.
    """


@patches.infer
def _(g, buffer, *at, extents, window):
    return Patches(type_of(buffer), extents, window)


@op("pure", attrs=("extents",))
def rows(buffer, column, *indices, extents):
    """The rows `indices` of a matrix, from `column` on. `indices` are a scalar for each row, or one tile."""


@rows.infer
def _(g, buffer, column, *indices, extents):
    return Rows(type_of(buffer), extents)


def _rows_layout(assigner, call, types):
    """The layout of a tile of row indices: each thread holds those of the rows that it copies."""
    count, columns = call.attrs["extents"]
    threads = assigner.scope.threads
    lanes = row_lanes(columns * call.args[0].type.dtype.nbytes, threads)
    wanted: list[Tile | None] = []
    for operand in call.args:
        t = type_of(operand)
        wanted.append(Tile(t.dtype, t.shape, *row_numbers(count, threads, lanes)) if isinstance(t, Tile) else None)
        if wanted[-1] is not None:
            assigner.made_in(operand, wanted[-1])
    return tuple(wanted), (None,)


@op("pure", attrs=("extents", "along"))
def rows_of_array(array, column, *indices, extents, along):
    """The runs along dimension `along` of an array, from `column` on, that `indices` name: for each other dimension in
    order a tile with an index for each run, or a scalar for all."""


@rows_of_array.infer
def _(g, array, column, *indices, extents, along):
    return RowsOfArray(type_of(array), extents, along)


rows.rules.layout = rows_of_array.rules.layout = _rows_layout

MOST_ROWS = 2 ** 31 - 1


@op("pure", attrs=("along", "row"), traits=Traits(view=True))
def matrix_of(array, along, row):
    """The runs along dimension `along` of an array as rows of a matrix, as far apart as the elements of dimension
    `row`. It has as many rows as can be numbered: the numbers that are used must be those of elements."""


@matrix_of.infer
def _(g, array, along, row):
    t = type_of(array)
    return Buffer(t.dtype, (MOST_ROWS, t.shape[along]), t.scope, arg=t.arg, strides=(t.strides[row], t.strides[along]))


@matrix_of.simulate
def _(m, call, array):
    t, attrs = call.result.type, call.attrs
    shape, strides = (MOST_ROWS, array.shape[attrs["along"]]), array.array_strides
    return replace(array, type=t, shape=shape, strides=(strides[attrs["row"]], strides[attrs["along"]]))


@matrix_of.emit
def _(e, call, array):
    t, attrs = call.result.type, call.attrs
    sizes = e.as_value(MOST_ROWS, int32), array.sizes[attrs["along"]]
    return replace(array, type=t, sizes=sizes, strides=(array.strides[attrs["row"]], array.strides[attrs["along"]]))


def _simulate(m, call, buffer, *at):
    return m.make_region(call.result.type, buffer, at)


def _emit(e, call, buffer, *at):
    return e.make_region(call.result.type, buffer, at)


for declared in (patches, rows, rows_of_array):
    declared.rules.simulate, declared.rules.emit = _simulate, _emit


# -- patches -----------------------------------------------------------------------------------------------------------

class ImageMatrix:
    """Images as the matrix that a convolution multiplies, indexed by pixel of the result, element of the filter,
    and channel."""

    def __init__(self, images: Value, filter: tuple[int, ...], dilation: tuple[int, ...], window: Window,
                 counts: tuple):
        self.images, self.filter, self.dilation, self.window, self.counts = images, filter, dilation, window, counts

    def tile_getitem(self, g: Builder, index) -> Value:
        index = index if isinstance(index, tuple) else (index,)
        rank = len(self.filter)
        lines = rank - 1 if self.window.along else 0
        if len(index) != lines + rank + 2:
            written = ", ".join(("m:m + BLOCK", *("d", "h")[2 - lines:], *("q", "r", "s")[3 - rank:], "c:c + BLOCK"))
            raise g.error("the matrix of these images is indexed by pixels, "
                          f"{f'{lines} of the other places of the result, ' if lines else ''}{rank} "
                          f"place{'s' if rank > 1 else ''} in the filter, and channels, as in x[{written}], "
                          f"not by {len(index)} indices")
        (first, pixels), (channel, channels) = (_slice(g, i, what)
                                                for i, what in ((index[0], "pixels"), (index[-1], "channels")))
        offsets = []
        for d, (i, n) in enumerate(zip(index[1 + lines:-1], self.filter)):
            if isinstance(i, int) and not 0 <= i < n:
                raise g.error(f"place {i} of a filter's {n} does not exist")
            offsets.append(uniform_scalar(g, _scale(g, i, self.dilation[d]), "a place in the filter"))
        if self.window.along:
            image, *place = self._place(g, first, range(rank - 1, rank))
            other = [self._corner(g, index[1 + d], d) for d in range(lines)]
            moved = (x + o if isinstance(x, int) and isinstance(o, int) else binary(g, "+", x, o)
                     for x, o in zip(other, unwrap_constants(offsets)))
            place = [image, *moved, *place]
            offsets = [Const(self.window.halo, int32), offsets[-1]]
        else:
            place = self._place(g, first, range(rank))
        at = [uniform_scalar(g, x, "a pixel") for x in place]
        return g.call(patches, self.images, *at, uniform_scalar(g, channel, "a channel"), *offsets,
                      extents=(pixels, channels), window=self.window)

    def _place(self, g: Builder, first, dims: range) -> list:
        """[image, position of the filter's corner along each of `dims`] for a pixel of the result."""
        place: list[Any] = []
        for d in reversed(dims):
            if isinstance(first, int) and first == 0:
                place.insert(0, self.window.lower[d])
                continue
            place.insert(0, self._corner(g, binary(g, "%", first, self.counts[d]), d))
            first = binary(g, "//", first, self.counts[d])
        return [first, *place]

    def _corner(self, g: Builder, place, d: int):
        """The position of the filter's corner along dimension `d`, for a position in the result."""
        step, low = self.window.stride[d], self.window.lower[d]
        if isinstance(place, int):
            return place * step + low
        place = binary(g, "*", place, step) if step != 1 else place
        return binary(g, "+", place, low) if low else place


@attribute(ImageMatrix)
def shape(g, x):
    """The extents of the matrix: pixels, with ``along`` the other positions of the result, extents of the
    filter, channels."""
    images = x.images.type.shape
    lines = x.counts[:-1] if x.window.along else ()
    pixels = extent_value(g, x.images, images[0])
    for count in x.counts[-1:] if x.window.along else x.counts:
        pixels = binary(g, "*", pixels, count)
    return (pixels, *lines, *x.filter, extent_value(g, x.images, images[-1]))


@attribute(ImageMatrix)
def dtype(g, x):
    """The element type."""
    return x.images.type.dtype


def unwrap_constants(operands) -> list:
    """The operands, with each Const replaced by its number."""
    return [x.value if isinstance(x, Const) else x for x in operands]


def _scale(g: Builder, x, by: int):
    """``x * by``, without an op if `x` is a number or `by` is 1."""
    if isinstance(x, int):
        return x * by
    return x if by == 1 else binary(g, "*", x, by)


def _slice(g: Builder, item, what: str) -> tuple[Any, int]:
    """(start, extent) of a slice whose extent must be a constant."""
    if not isinstance(item, slice):
        raise g.error(f"{what} are taken by a slice start:stop, not by {describe(item)}")
    if item.stop is None or item.step not in (None, 1):
        lacks = "without a stop" if item.stop is None else "with a step"
        raise g.error(f"{what} are taken by a slice start:stop, not by one {lacks}")
    start = 0 if item.start is None else item.start
    extent = g.difference(item.stop, start)
    if extent is None or extent < 1:
        raise g.error(f"a slice of {what} has a constant extent of at least 1: write it as start:start + BLOCK")
    return start, extent


def _one_per_dimension(g: Builder, what: str, value, rank: int, low: int) -> tuple[int, ...]:
    """`value` as one integer for each spatial dimension. It is one integer for all, or a tuple of them."""
    values = value if isinstance(value, tuple) else (value,) * rank
    if len(values) != rank or any(isinstance(v, bool) or not isinstance(v, int) or v < low for v in values):
        raise g.error(f"{what} is a constant of at least {low}, or {rank} of them, not {value!r}")
    return values


HALOS = {"w": 511, "w128": 31}  # PTX ISA, ``cp.async.bulk.tensor``: the ranges of wHalo


@builtin
def im2col(g: Builder, images, filter, stride=1, padding=0, dilation=1, along=None, halo=0):
    """Images as the matrix that a convolution multiplies. It has a row for each pixel of the result.

    `images` is an array (N, W, C), (N, H, W, C) or (N, D, H, W, C), and `filter` holds the extents of the filter.
    `stride`, `padding` and `dilation` are a number each, or one for each dimension; a padding may also be (before,
    after).

    The matrix is indexed by pixels of the result (images outermost, the last dimension fastest), by an element of the
    filter, and by channels. ``tile.im2col(x, (3, 3), padding=1)[m:m + 128, r, s, c:c + 64]`` is a source of
    copy_async and of prefetch and, without padding, a destination.

    On Blackwell, with ``along="w"`` (or "w128", for 128 pixels), the pixels run along the last spatial dimension and
    continue in the next image; the positions in the other dimensions of the result are separate indices after the
    pixels. A copy may then bring `halo` additional pixels that follow its last one (with "w128", those that follow
    each 32 of its 128), so that it serves several elements of the filter. The slice includes them: ``x[m:m + 64 +
    halo, ...]`` or ``x[m:m + 128 + 4 * halo, ...]``. PTX ISA, "im2col mode", "im2col::w and im2col::w::128 modes".
    """
    t = type_of(images)
    if isinstance(t, Buffer) and t.narrowed is not None:
        raise g.error("patches are read through a tensor map, which has the bounds of a whole array, "
                      "and this is a window: pass the array")
    if isinstance(t, Buffer):
        refuse_packed(g, "im2col", t.dtype)
    if not isinstance(t, Buffer) or t.scope != "global" or not 3 <= len(t.shape) <= 5:
        raise g.error(f"im2col sees an array of 3 to 5 dimensions, (image, ..., channel), not {describe(images)}")
    rank = len(t.shape) - 2
    filter = _one_per_dimension(g, "filter", filter if isinstance(filter, tuple) or rank == 1 else None, rank, 1)
    stride, dilation = (_one_per_dimension(g, "stride", stride, rank, 1),
                        _one_per_dimension(g, "dilation", dilation, rank, 1))
    pads = padding if isinstance(padding, tuple) else (padding,) * rank
    before = _one_per_dimension(g, "padding", tuple(p[0] if isinstance(p, tuple) else p for p in pads), rank, 0)
    after = _one_per_dimension(g, "padding", tuple(p[1] if isinstance(p, tuple) and len(p) == 2 else p for p in pads),
                               rank, 0)
    reach = tuple(s * (n - 1) for s, n in zip(dilation, filter))
    if along not in (None, "w", "w128"):
        raise g.error(f"along is None, 'w' or 'w128', not {along!r}")
    limit = HALOS.get(along, 0)
    if isinstance(halo, bool) or not isinstance(halo, int) or not 0 <= halo <= limit:
        if along is None:
            raise g.error("a halo is for along='w' or 'w128'")
        raise g.error(f"halo is a constant of 0 to {limit} with along={along!r}, not {describe(halo)}")
    window = Window(tuple(-p for p in before), tuple(p - n for p, n in zip(after, reach)), stride, reach, along, halo)
    counts = []
    for d in range(rank):
        beyond = window.upper[d] - window.lower[d]
        last = binary(g, "+", extent_value(g, images, t.shape[d + 1]), beyond - 1)
        # the count is provably positive, and so a quotient by it not negative
        last = maximum.function(g, last, 0) if beyond < 0 else last
        counts.append(binary(g, "+", binary(g, "//", last, stride[d]), 1))
    return ImageMatrix(images, filter, dilation, window, tuple(counts))


# -- rows --------------------------------------------------------------------------------------------------------------

class Taken:
    """Rows of a matrix, named by a scalar each, or by one tile that `scope` holds. If the scalars are elements of a
    tile, it is `tile`."""

    def __init__(self, matrix: Value, indices: tuple, count: int, tile: Value | None = None,
                 scope: ExecScope | None = None):
        self.matrix, self.indices, self.count, self.tile, self.scope = matrix, indices, count, tile, scope

    def tile_getitem(self, g: Builder, index) -> Value:
        index = index if isinstance(index, tuple) else (index,)
        if len(index) != 2 or index[0] is not Ellipsis and index[0] != slice(None, None, None):
            raise g.error("the columns of taken rows are a slice: x.take(rows)[:, start:start + BLOCK]")
        if isinstance(type_of(self.indices[0]), Tile) and g.scope is not self.scope:
            raise g.error("copying rows that a register tile of an outer scope names needs sm_100 or later; "
                          f"on {g.target} threads copy them, by a tile of their own scope: "
                          "take the rows in this scope, by numbers in memory, as in x.take(numbers[0:64])")
        column, columns = _slice(g, index[1], "columns")
        dtype = element_type(self.matrix)
        if dtype.packed:
            column, columns = bytes_along(g, index[1], column, columns, False, dtype)
        return self.part(g, uniform_scalar(g, column, "a column"), columns)

    def part(self, g: Builder, column: Operand, columns: int) -> Value:
        """`columns` columns of the rows, starting at `column`."""
        made = g.call(rows, self.matrix, column, *self.indices, extents=(self.count, columns))
        if self.tile is not None and g.scope is self.scope:
            g.state.setdefault(TILES, {})[made] = self.tile
        return made


TILES, SCALARS, SPARE = "tiles of rows", "scalars of tiles of rows", "values that only another path needs"


def by_threads(g: Builder, taken: Value) -> Value:
    """The rows for a copy by threads, where each thread needs only the indices of its own rows: named by the tile, if
    they come from one."""
    tile = g.state.get(TILES, {}).get(taken)
    if tile is None:
        return taken
    made = g.definitions[taken]
    g.state.setdefault(SPARE, set()).update((taken, *g.state[SCALARS]))
    return g.call(rows, *made.args[:2], tile, **made.attrs)


NAMED = ("rows are named by a tile of integers, by a one-dimensional region of signed integers in global or shared "
         "memory, or by a tuple of scalars")


@method(Buffer, name="take")
def take(g: Builder, x: Value, indices: Any) -> Taken:
    """The rows `indices` of a matrix.

    `indices` is a tile of integers, a tuple of scalars, or a region of signed integers in global or shared memory. A
    region is loaded by this call; elements out of bounds of its array name no row. ``x.take(rows)[:, c:c + 64]`` is a
    source of copy_async, by TMA if the target has that mode (PTX ISA, ``.tile::gather4``), otherwise by ``cp.async``.
    On Blackwell it is also a destination (``.tile::scatter4``). Rows outside of the matrix read as zero.
    """
    array = type_as(x, Buffer)
    if array.narrowed is not None:
        raise g.error("rows can be taken of a whole array only, whose bounds they have, "
                      "and this is a window: pass the array")
    if array.scope != "global" or len(array.shape) != 2:
        raise g.error(f"rows are taken of an array of two dimensions, not of {describe(x)}")
    if isinstance(type_of(indices), (Buffer, Region)):
        t = type_of(indices)
        if t.dtype.kind != "int" or t.dtype.packed or len(t.shape) != 1 or t.scope not in ("global", "shared"):
            raise g.error(f"{NAMED}, not by {describe(indices)}")
        indices = load.function(g, indices, other=-1)
    t = type_of(indices)
    if isinstance(t, Tile):
        if not t.dtype.is_int or len(t.shape) != 1:
            raise g.error(f"{NAMED}, not by {describe(indices)}")
        tile = as_index(g, indices, array.shape[0])
        if architecture(g.target) < 100:
            return Taken(x, (tile,), t.shape[0], scope=g.scope)
        before, named = len(g.blocks[-1]), in_32_bits(g, tile)
        # TMA takes scalars
        scalars = tuple(uniform_scalar(g, index(g, named, (i,)), "a row", int32) for i in range(t.shape[0]))
        g.state.setdefault(SCALARS, set()).update(r for node in g.blocks[-1][before:] for r in results(node))
        return Taken(x, scalars, t.shape[0], tile, g.scope)
    if (not isinstance(indices, tuple) or not indices
        or not all(isinstance(i, int) or isinstance(type_of(i), Scalar) for i in indices)):
        raise g.error(f"{NAMED}, not by {describe(indices)}")
    return Taken(x, tuple(uniform_scalar(g, in_32_bits(g, as_index(g, i)), "a row", int32) for i in indices),
                 len(indices))


def in_32_bits(g: Builder, numbers):
    """Row indices limited so that they fit in 32 bits. Those out of range become -1 or 2^31 - 1,
    which no matrix has as a row."""
    if isinstance(numbers, int) or type_of(numbers).dtype.bits <= 32:
        return numbers
    return maximum.function(g, minimum.function(g, numbers, 2 ** 31 - 1), -1)


__all__ = ["ImageMatrix", "SPARE", "Taken", "by_threads", "im2col", "matrix_of", "patches", "rows", "rows_of_array",
           "take"]
