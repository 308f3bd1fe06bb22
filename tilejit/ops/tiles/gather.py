"""Elements of a register tile at run-time indices, and the tile in reverse: each thread needs elements of others."""

from __future__ import annotations

import numpy as np

from ...dtypes import int32
from ...ir.builder import Builder, number_type, type_of
from ...ir.graph import Const, Operand
from ...ir.op import op
from ...ir.op_traits import Traits
from ...types import Tile
from . import elementwise as ew
from .casts import cast
from .generate import splat
from .layout_change import emit_moves, register_moves

# -- gather ------------------------------------------------------------------------------------------------------------

@op("pure", attrs=("axis",), collective=True)
def gather_(x, index, axis):
    """The elements of `x` whose coordinate along `axis` is that in the int32 tile `index`, and 0 where it is out of
    bounds. The other coordinates are those of the index; of a one-dimensional `x`, it has none."""


@gather_.infer
def _(g, x, index, axis):
    return Tile(type_of(x).dtype, type_of(index).shape)


@gather_.simulate
def _(m, call, x, index):
    axis, extent, batch = call.attrs["axis"] + 1, x.shape[call.attrs["axis"] + 1], max(x.shape[0], index.shape[0])
    at = np.clip(index, 0, extent - 1)
    at = np.broadcast_to(at, (batch, *at.shape[1:]))
    x = np.broadcast_to(x, (batch, *x.shape[1:]))
    if x.ndim == 2:
        found = np.take_along_axis(x, at.reshape(batch, -1), 1).reshape(at.shape)
    else:
        found = np.take_along_axis(x, at, axis)
    return np.where((index >= 0) & (index < extent), found, np.zeros((), x.dtype))


@gather_.emit
def _(e, call, x, index):
    """All threads write their elements to scratch memory, then read those at their indices."""
    source, target, axis = type_of(call.args[0]), call.result.type, call.attrs["axis"]
    e.tiles.scratch_store(call, x, source)
    zero, result = e.const(0, source.dtype), []
    for r, place in enumerate(index):
        own = e.tiles.coordinates(target, r) if len(source.shape) > 1 else (0,)
        flat = 0
        for d, extent in enumerate(source.shape):
            flat = flat * extent + (place if d == axis else own[d])
        address, offset = e.scratch_address(call, flat * source.dtype.nbytes)
        inside = e.all_of([e.in_bounds(place, source.shape[axis]), e.tiles.is_element(target, r)])
        result += e.vector_load("shared", address, offset, source.dtype, [zero], inside, None)
    return result


def _gather_layout(assigner, call, types):
    """The result has the index's layout."""
    x, index = ((have or assigner.default(a.type.shape, a.type.dtype)) for have, a in zip(types, call.args))
    return (x, index), (Tile(x.dtype, index.shape, index.layout, index.domain),)


def _gather_scratch(call) -> int:
    t = type_of(call.args[0])
    return t.size * t.dtype.nbytes


gather_.rules.layout = _gather_layout
gather_.rules.scratch = _gather_scratch


def as_index(g: Builder, index: Operand, extent: int) -> Operand:
    """An integer scalar or tile as int32; what is out of bounds stays so."""
    t = number_type(index)
    if t.dtype.bits == 64:
        def number(n: int) -> Operand:
            return g.call(splat, Const(n, t.dtype), shape=t.shape) if isinstance(t, Tile) else Const(n, t.dtype)
        index = g.call(ew.minimum, index, number(extent))
        index = g.call(ew.maximum, index, number(-1)) if t.dtype.signed else index
    return index if t.dtype == int32 else g.call(cast, index, dtype=int32)


# -- flip --------------------------------------------------------------------------------------------------------------

@op("pure", attrs=("axes",), collective=True, traits=Traits(in_parts=True))
def flip_(x, axes):
    """The elements of `x` in reverse along `axes`."""


@flip_.infer
def _(g, x, axes):
    return Tile(type_of(x).dtype, type_of(x).shape)


@flip_.simulate
def _(m, call, x):
    return np.flip(x, tuple(a + 1 for a in call.attrs["axes"]))


@flip_.emit
def _(e, call, x):
    """By renaming registers and by shuffles where elements stay in their warp; otherwise by scratch memory."""
    source, axes = type_of(call.args[0]), call.attrs["axes"]
    moves = register_moves(source, call.result.type, axes)
    if moves is not None:
        return emit_moves(e, x, moves)
    return e.tiles.move_through_scratch(call, x, source, call.result.type, source.shape,
                                        lambda at: tuple(n - 1 - c if d in axes else c
                                                         for d, (n, c) in enumerate(zip(source.shape, at))))


def _flip_scratch(call) -> int:
    t = type_of(call.args[0])
    moved = register_moves(t, call.results[0].type, call.attrs["axes"]) is not None
    return 0 if moved else t.size * t.dtype.nbytes


flip_.rules.scratch = _flip_scratch
