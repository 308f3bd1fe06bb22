"""Ops that make register tiles: constants, splat, iota, indices."""

from __future__ import annotations

import numpy as np

from ...dtypes import int32
from ...ir.builder import type_of
from ...ir.op import op
from ...ir.op_traits import Traits
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


@op("pure", attrs=("shape",), traits=Traits(free=True))
def splat(x, shape):
    """A tile that holds the scalar `x` in every element."""


@splat.infer
def _(g, x, shape):
    g.require_uniform("a tile", x)
    return Tile(type_of(x).dtype, shape)


@splat.simulate
def _(m, call, x):
    shape = call.attrs["shape"]
    return np.broadcast_to(x[:, :1].reshape(-1, *(1,) * len(shape)), (x.shape[0], *shape))


@splat.emit
def _(e, call, x):
    return [x] * e.tiles.registers(call.result.type)


@op("pure", attrs=("start", "stop", "axis"), traits=Traits(free=True))
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
    return [e.as_value(e.tiles.coordinates(t, r)[0] + start, int32) for r in range(e.tiles.registers(t))]


@op("pure", attrs=("shape", "axis"), traits=Traits(free=True))
def indices(shape, axis):
    """An int32 tile of `shape` that holds the index of each element along `axis`."""


@indices.infer
def _(g, shape, axis):
    return Tile(int32, shape)


@indices.simulate
def _(m, call):
    shape, axis = call.attrs["shape"], call.attrs["axis"]
    return np.broadcast_to(np.arange(shape[axis], dtype=np.int32).reshape(-1, *(1,) * (len(shape) - axis - 1)),
                           (1, *shape))


@indices.emit
def _(e, call):
    t = call.result.type
    return [e.as_value(e.tiles.coordinates(t, r)[call.attrs["axis"]], int32) for r in range(e.tiles.registers(t))]
