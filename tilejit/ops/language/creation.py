"""Creation of tiles: constants, splat, arange, full, zeros, ones."""

from __future__ import annotations

import numpy as np

from ...dtypes import dtype_of, float32, int32
from ...ir.builder import Builder, describe, type_of
from ...ir.builtin import builtin
from ...ir.op import op
from ...types import Scalar, Tile, Uniformity


@op("pure")
def constant(x):
    """A constant as a value of the graph."""


@constant.infer
def _(g, x):
    return Scalar(x.dtype, Uniformity.GRID)


@constant.simulate
def _(m, call, x):
    return x


@constant.emit
def _(e, call, x):
    return x


@op("pure", attrs=("shape",))
def splat(x, shape):
    """A tile that holds the scalar `x` in every element."""


@splat.infer
def _(g, x, shape):
    g.shared("a tile", x)
    return Tile(type_of(x).dtype, shape)


@splat.simulate
def _(m, call, x):
    shape = call.attrs["shape"]
    return np.broadcast_to(x[:, :1].reshape(-1, *(1,) * len(shape)), (x.shape[0], *shape))


@splat.emit
def _(e, call, x):
    return [x] * e.registers(call.result.type)


@op("pure", attrs=("start", "stop", "axis"))
def iota(start, stop, axis):
    """The integers ``start, ..., stop - 1`` as a one-dimensional int32 tile."""


@iota.infer
def _(g, start, stop, axis):
    return Tile(int32, (stop - start,))


@iota.simulate
def _(m, call):
    return np.arange(call.attrs["start"], call.attrs["stop"], dtype=np.int32)[None]


@iota.emit
def _(e, call):
    t = call.result.type
    start = call.attrs["start"]
    return [e.as_value(e.coordinates(t, r)[0] + start, int32) for r in range(e.registers(t))]


@op("pure", attrs=("shape", "axis"))
def indices(shape, axis):
    """An int32 tile of `shape` that holds the index of each element along `axis`."""


@indices.infer
def _(g, shape, axis):
    return Tile(int32, shape)


@indices.simulate
def _(m, call):
    shape, axis = call.attrs["shape"], call.attrs["axis"]
    return np.broadcast_to(np.arange(shape[axis], dtype=np.int32).reshape(-1, *(1,) * (len(shape) - axis - 1)), (1, *shape))


@indices.emit
def _(e, call):
    t = call.result.type
    return [e.as_value(e.coordinates(t, r)[call.attrs["axis"]], int32) for r in range(e.registers(t))]


splat.rules["free"] = iota.rules["free"] = indices.rules["free"] = True  # recomputed in whichever layout a use needs


@builtin
def arange(g: Builder, start, stop=None):
    """The int32 tile ``[start, ..., stop - 1]``, or ``[0, ..., start - 1]`` with one argument. The arguments are constants."""
    start, stop = (0, start) if stop is None else (start, stop)
    for bound in (start, stop):
        constant_integer(g, bound, "a bound of arange", "the bounds of arange are constants; add a run-time start afterwards, as in "
                                                        "start + tile.arange(N)")
    if stop < start:
        raise g.error(f"arange({start}, {stop}) is empty backwards: its stop is below its start")
    return g.call(iota, start=start, stop=stop, axis=0)


@builtin
def fragment_index(g: Builder, t, axis):
    """An int32 tile of the shape of `t` that holds the index of each element along `axis`, for masks and positions.

    Where it is combined with `t` it has the layout of `t`: every thread computes the indices of its own elements, and no
    data are moved.
    """
    tile = type_of(t)
    if not isinstance(tile, Tile):
        raise g.error(f"fragment_index takes a tile, not {describe(t)}")
    if isinstance(axis, bool) or not isinstance(axis, int) or not -len(tile.shape) <= axis < len(tile.shape):
        raise g.error(f"axis {axis!r} of a tile of {len(tile.shape)} dimensions does not exist")
    return g.call(indices, shape=tile.shape, axis=axis % len(tile.shape))


def constant_integer(g: Builder, x, what: str, otherwise: str) -> int:
    """`x`, which must be a constant integer. For a float the error suggests ``//``, for anything else it is `otherwise`."""
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
        constant_integer(g, extent, "an extent", "the extents of a shape are constants: declare them as tile.constexpr parameters")
        if extent < 0:
            raise g.error(f"an extent cannot be negative: {shape}")
    return shape


@builtin
def full(g: Builder, shape, value, dtype=None):
    """A tile of `shape` filled with `value`, in `dtype` or by default that of `value`. If `value` is a tile, it is broadcast as in NumPy."""
    from .promotion import coerce, number
    held, shape = number(g, value).dtype, checked_shape(g, shape)
    return coerce(g, value, Tile(held if dtype is None else dtype_of(dtype), shape))


@builtin
def zeros(g: Builder, shape, dtype=float32):
    """A tile of `shape` filled with 0."""
    from .promotion import converted
    return g.call(splat, converted(g, 0, dtype_of(dtype)), shape=checked_shape(g, shape))


@builtin
def ones(g: Builder, shape, dtype=float32):
    """A tile of `shape` filled with 1."""
    from .promotion import converted
    return g.call(splat, converted(g, 1, dtype_of(dtype)), shape=checked_shape(g, shape))
