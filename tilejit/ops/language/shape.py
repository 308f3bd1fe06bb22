"""Shapes of tiles: the functions and methods of broadcast, reshape, transpose."""

from __future__ import annotations

from math import prod

from ...dtypes import dtype_of
from ...ir.builder import Builder, describe, type_of
from ...ir.builtin import attribute, builtin, method
from ...ir.graph import Value
from ...types import Scalar, Tile
from ..tiles.arrange import reshape_, transpose_
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
    CompilationError for an extent that is not constant."""
    for n in shape:
        constant_integer(g, n, "an extent",
                         "the extents of a shape are constants: declare them as tile.constexpr parameters")
    if shape.count(-1) == 1:
        rest = prod(n for n in shape if n != -1)
        shape = tuple(size // rest if n == -1 and rest else n for n in shape)
    return shape


@builtin
def reshape(g: Builder, x, *shape):
    """`x` with another shape and as many elements, in row-major order. One extent may be -1."""
    x = tile_operand(g, x, "reshape")
    size = x.type.size
    shape = complete_shape(g, as_tuple(shape), size)
    if prod(shape) != size or any(n < 0 for n in shape):
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
    """`x` with a dimension of extent 1 inserted at `axis`."""
    x = tile_operand(g, x, "expand_dims")
    axis = checked_axis(g, axis, len(x.type.shape) + 1)
    return g.call(reshape_, x, shape=x.type.shape[:axis] + (1,) + x.type.shape[axis:])


@builtin
def broadcast_to(g: Builder, x, shape):
    """`x` broadcast to `shape` by NumPy's rules."""
    shape = checked_shape(g, shape)
    if broadcast_shape(g, number(g, x), Tile(number(g, x).dtype, shape)) != shape:
        raise g.error(f"{describe(x)} does not broadcast to {list(shape)}")
    return spread(g, g.operand(x), shape)


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
def _to(g, x, dtype):
    """The value converted to `dtype`, as by ``tile.cast``."""
    return strong_cast(g, x, dtype_of(dtype))


@method(Tile, Scalar, name="astype")
def _astype(g, x, dtype):
    """The same as `to`."""
    return _to(g, x, dtype)


@method(Tile, name="reshape")
def _reshape(g, x, *shape):
    """As ``tile.reshape``: the elements in row-major order with another shape. One extent may be -1."""
    return reshape.function(g, x, *shape)


@method(Tile, name="transpose")
def _transpose(g, x, *axes):
    """The tile with its dimensions permuted to the order `axes`, by default reversed."""
    return transpose.function(g, x, as_tuple(axes) or None)
