"""Creation of tiles: arange, fragment_index, full, zeros, ones."""

from __future__ import annotations

from ...dtypes import dtype_of, float32
from ...ir.builder import Builder, describe, type_of
from ...ir.builtin import builtin
from ...types import Scalar, Tile
from ..tiles.generate import indices, iota, splat
from .promotion import coerce, convert, number


@builtin
def arange(g: Builder, start, stop=None):
    """The int32 tile ``[start, ..., stop - 1]``, or ``[0, ..., start - 1]`` with one argument.
    The arguments are constants."""
    start, stop = (0, start) if stop is None else (start, stop)
    for bound in (start, stop):
        constant_integer(g, bound, "a bound of arange", "the bounds of arange are constants; "
                                                        "add a run-time start afterwards, as in start + tile.arange(N)")
    if stop < start:
        raise g.error(f"arange({start}, {stop}) is empty backwards: its stop is below its start")
    return g.call(iota, start=start, stop=stop, axis=0)


@builtin
def fragment_index(g: Builder, t, axis):
    """An int32 tile of the shape of `t` that holds the index of each element along `axis`, for masks and positions.

    Where it is combined with `t` it has the layout of `t`: every thread computes the indices of its own elements,
    and no data are moved.
    """
    tile = type_of(t)
    if not isinstance(tile, Tile):
        raise g.error(f"fragment_index takes a tile, not {describe(t)}")
    if isinstance(axis, bool) or not isinstance(axis, int) or not -len(tile.shape) <= axis < len(tile.shape):
        raise g.error(f"axis {axis!r} of a tile of {len(tile.shape)} dimensions does not exist")
    return g.call(indices, shape=tile.shape, axis=axis % len(tile.shape))


def constant_integer(g: Builder, x, what: str, otherwise: str) -> int:
    """`x`, which must be a constant integer. For a float the error suggests ``//``,
    for anything else it is `otherwise`."""
    if isinstance(x, float):
        raise g.error(f"{what} is an integer, not {x!r}; // divides integers")
    if isinstance(x, bool) or not isinstance(x, int):
        raise g.error(otherwise + g.declared_constant(x))
    return x


def checked_shape(g: Builder, shape) -> tuple[int, ...]:
    """`shape` as a tuple. CompilationError unless its extents are constant integers of at least 0."""
    shape = shape if isinstance(shape, tuple) else (shape,)
    for extent in shape:
        if not isinstance(type_of(extent), Scalar):
            raise g.error(f"an extent is an integer, as in the shape (128, 64), not {describe(extent)}")
        constant_integer(g, extent, "an extent",
                         "the extents of a shape are constants: declare them as tile.constexpr parameters")
        if extent < 0:
            raise g.error(f"an extent cannot be negative: {shape}")
    return shape


@builtin
def full(g: Builder, shape, value, dtype=None):
    """A tile of `shape` filled with `value`, in `dtype` or by default that of `value`. If `value` is a tile, it is
    broadcast as in NumPy."""
    held, shape = number(g, value).dtype, checked_shape(g, shape)
    return coerce(g, value, Tile(held if dtype is None else dtype_of(dtype), shape))


@builtin
def zeros(g: Builder, shape, dtype=float32):
    """A tile of `shape` filled with 0."""
    return g.call(splat, convert(g, 0, dtype_of(dtype)), shape=checked_shape(g, shape))


@builtin
def ones(g: Builder, shape, dtype=float32):
    """A tile of `shape` filled with 1."""
    return g.call(splat, convert(g, 1, dtype_of(dtype)), shape=checked_shape(g, shape))
