"""Shapes of tiles: the functions and methods of broadcast, reshape, transpose."""

from __future__ import annotations

from math import prod

from ...dtypes import dtype_of, int32
from ...ir.builder import Builder, describe, type_of
from ...ir.builtin import attribute, builtin, method
from ...ir.graph import Value
from ...types import Scalar, Tile
from ..tiles.arrange import reshape_, transpose_
from ..tiles.gather import as_index, flip_, gather_
from .creation import checked_shape, constant_integer
from .promotion import broadcast_shape, number, spread, strong_cast


def tile_operand(g: Builder, x, what: str) -> Value:
    if not isinstance(type_of(x), Tile):
        raise g.error(f"{what} takes a tile, not {describe(x)}")
    return x


def checked_axis(g: Builder, axis, rank: int) -> int:
    """`axis` as a non-negative number; a negative one counts from the end. CompilationError if it is out of range."""
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise g.error(f"an axis is a constant integer, not {describe(axis)}" + g.declared_constant(axis))
    if not -rank <= axis < rank:
        raise g.error(f"axis {axis} is out of range for a tile of {rank} dimension{'s' if rank != 1 else ''}")
    return axis % rank


def as_tuple(items: tuple) -> tuple:
    """Arguments that NumPy's methods accept either as one tuple or as separate items, as a tuple."""
    return items[0] if len(items) == 1 and isinstance(items[0], tuple) else items


def complete_shape(g: Builder, shape: tuple, size: int) -> tuple:
    """`shape` with an extent of -1 replaced by that which `size` elements need.
    CompilationError for an extent that is not constant, for a second -1 and for other negative extents."""
    for n in shape:
        constant_integer(g, n, "an extent",
                         "the extents of a shape are constants: declare them as tile.constexpr parameters")
    if shape.count(-1) > 1 or any(n < -1 for n in shape):
        raise g.error(f"one extent of a shape may be -1, and the others are at least 0, not {list(shape)}")
    if -1 in shape:
        rest = prod(n for n in shape if n != -1)
        shape = tuple(size // rest if n == -1 and rest else n for n in shape)
    return shape


@builtin
def reshape(g: Builder, x, *shape):
    """`x` with another shape and as many elements, in row-major order. One extent may be -1."""
    x = tile_operand(g, x, "reshape")
    size = x.type.size
    shape = complete_shape(g, as_tuple(shape), size)
    if prod(shape) != size or -1 in shape:
        raise g.error(f"a tile of {size} elements, {list(x.type.shape)}, has no shape {list(shape)}")
    return x if shape == x.type.shape else g.call(reshape_, x, shape=shape)


@builtin
def transpose(g: Builder, x, axes=None):
    """`x` with its dimensions permuted to the order `axes`, by default reversed."""
    x = tile_operand(g, x, "transpose")
    rank = len(x.type.shape)
    if axes is not None and not isinstance(axes, tuple):
        raise g.error(f"axes is a tuple, as in (1, 0), not {describe(axes)}")
    axes = tuple(range(rank))[::-1] if axes is None else tuple(checked_axis(g, a, rank) for a in axes)
    if sorted(axes) != list(range(rank)):
        raise g.error(f"axes {axes} are not a permutation of the {rank} dimensions")
    return x if axes == tuple(range(rank)) else g.call(transpose_, x, axes=axes)


@builtin
def expand_dims(g: Builder, x, axis):
    """`x` with a dimension of extent 1 inserted at `axis`. Several are inserted at the places that a tuple gives, which
    count in the result."""
    x = tile_operand(g, x, "expand_dims")
    given = axis if isinstance(axis, tuple) else (axis,)
    rank = len(x.type.shape) + len(given)
    axes = {checked_axis(g, a, rank) for a in given}
    if len(axes) < len(given):
        raise g.error(f"expand_dims inserts each axis once, not {list(given)}")
    extents = iter(x.type.shape)
    return g.call(reshape_, x, shape=tuple(1 if d in axes else next(extents) for d in range(rank)))


@builtin
def broadcast_to(g: Builder, x, shape):
    """`x` broadcast to `shape` by NumPy's rules."""
    shape = checked_shape(g, shape)
    if broadcast_shape(g, number(g, x), Tile(number(g, x).dtype, shape)) != shape:
        raise g.error(f"{describe(x)} does not broadcast to {list(shape)}")
    return spread(g, g.operand(x), shape)


@builtin
def flip(g: Builder, x, axis=None):
    """The elements of `x` in reverse along `axis`: an int, a tuple of ints, or None for all axes. ``x[::-1]`` is the
    same for the first axis."""
    x = tile_operand(g, x, "flip")
    rank = len(x.type.shape)
    if axis is None:
        axes = tuple(range(rank))
    else:
        axes = tuple(checked_axis(g, a, rank) for a in (axis if isinstance(axis, tuple) else (axis,)))
    if len(set(axes)) != len(axes):
        raise g.error(f"an axis is named twice: {axis}")
    axes = tuple(sorted(a for a in axes if x.type.shape[a] > 1))
    return g.call(flip_, x, axes=axes) if axes and x.type.size else x


@builtin
def gather(g: Builder, x, index, axis):
    """The elements of `x` at the places `index` along `axis`, as by ``numpy.take_along_axis``.

    `index` is an integer tile of as many dimensions, which broadcast with those of `x` except along `axis`; if `x` has
    one dimension, of any shape. An index out of bounds, also a negative one, gives 0. The elements go through shared
    memory.
    """
    x = tile_operand(g, x, "gather")
    t = type_of(index)
    if not isinstance(t, Tile) or not t.dtype.is_int:
        raise g.error(f"the index of a gather is an integer tile, not {describe(index)}")
    shape, rank = x.type.shape, len(x.type.shape)
    axis = checked_axis(g, axis, rank)
    if 0 in shape or 0 in t.shape:
        raise g.error(f"gather takes tiles with elements, not {describe(x)} and {describe(index)}")
    index = as_index(g, index, shape[axis])
    if rank > 1:
        if len(t.shape) != rank:
            raise g.error(f"the index of a gather has as many dimensions as the tile: {rank}, not {len(t.shape)}")
        others = broadcast_shape(g, Tile(x.type.dtype, (*shape[:axis], 1, *shape[axis + 1:])),
                                 Tile(int32, (*t.shape[:axis], 1, *t.shape[axis + 1:])))
        assert others is not None  # of two tiles
        x = spread(g, x, (*others[:axis], shape[axis], *others[axis + 1:]))
        index = spread(g, index, (*others[:axis], t.shape[axis], *others[axis + 1:]))
    return g.call(gather_, x, index, axis=axis)


@attribute(Tile, name="shape")
def _shape(g, x):
    """The extents, constants."""
    return x.type.shape


@attribute(Tile, Scalar, name="dtype")
def _dtype(g, x):
    """The element type."""
    return type_of(x).dtype


@attribute(Tile, name="T")
def _reverse_dimensions(g, x):
    """The tile with its dimensions reversed."""
    return transpose.function(g, x)


@attribute(Tile, name="ndim")
def _ndim(g, x):
    """The number of dimensions."""
    return len(x.type.shape)


@attribute(Tile, name="size")
def _size(g, x):
    """The number of elements."""
    return x.type.size


@method(Tile, Scalar, name="to")
def _cast_to(g, x, dtype):
    """The value converted to `dtype`, as by ``tile.cast``."""
    return strong_cast(g, x, dtype_of(dtype))


@method(Tile, Scalar, name="astype")
def _astype(g, x, dtype):
    """The same as `to`."""
    return _cast_to(g, x, dtype)


@method(Tile, name="reshape")
def _reshape(g, x, *shape):
    """As ``tile.reshape``: the elements in row-major order with another shape. One extent may be -1."""
    return reshape.function(g, x, *shape)


@method(Tile, name="transpose")
def _transpose(g, x, *axes):
    """The tile with its dimensions permuted to the order `axes`, by default reversed."""
    return transpose.function(g, x, as_tuple(axes) or None)
