"""``stack``: tiles joined along a new dimension, which lies in the threads' registers."""

from __future__ import annotations

import numpy as np

from ...dtypes import int32
from ...ir.builder import Builder, describe, type_of
from ...ir.builtin import builtin
from ...ir.op import op
from ...ir.op_traits import Traits
from ...layout import TileLayout, axis as axes, collapse, drop_dim, register_table
from ...types import Tile
from ..tiles.elementwise import same_dtype
from .promotion import common_dtype, convert
from .shape import checked_axis


@op("pure", attrs=("axis",), traits=Traits(free=True))
def stack_(*tiles, axis):
    """Join tiles of one dtype and shape along a new dimension `axis`."""


@stack_.infer
def _(g, *tiles, axis):
    shape = type_of(tiles[0]).shape
    return Tile(same_dtype(g, *tiles), (*shape[:axis], len(tiles), *shape[axis:]))


@stack_.simulate
def _(m, call, *tiles):
    return np.stack(np.broadcast_arrays(*tiles), call.attrs["axis"] + 1)


@stack_.emit
def _(e, call, *tiles):
    """Take the operands' registers. If the result's layout distributes the new dimension over threads, each thread
    selects its operand's."""
    source, target, axis = type_of(call.args[0]), call.result.type, call.attrs["axis"]
    mine, last, result = e.tiles.thread_coordinate(target, axis), len(tiles) - 1, []
    for r in range(e.tiles.registers(target)):
        at = e.tiles.register_coordinates(target, r)
        own = e.tiles.register_at(source, at[:axis] + at[axis + 1:])
        if isinstance(mine, int):
            result.append(tiles[min(mine + at[axis], last)][own])
            continue
        chosen = tiles[last][own]
        for n in reversed(range(last)):
            chosen = e.select(e.as_value(mine + at[axis], int32).equals(n), tiles[n][own], chosen)
        result.append(chosen)
    return result


def _stack_layout(assigner, call, types):
    """The operands share one layout. In the result's, each thread has the elements that it has of the operands."""
    operand, t, axis = call.args[0].type, call.result.type, call.attrs["axis"]
    base = next((have for have in types if have is not None), None) or assigner.default(operand.shape, operand.dtype)
    dims = [list(shards) for shards in base.layout.dims(base.domain)]
    dims.insert(axis, [(len(types), len(register_table(base.layout, base.domain)), axes.reg)])
    layout = TileLayout([s for shards in dims for s in shards], base.layout.replicas).canonicalize()
    return ((base,) * len(types),
            (Tile(t.dtype, t.shape, layout, (*base.domain[:axis], len(types), *base.domain[axis:])),))


def _stack_backward(assigner, call, want):
    operand, axis = call.args[0].type, call.attrs["axis"]
    layout, domain = drop_dim(*collapse(want.layout, want.domain, axis), axis)
    return (Tile(operand.dtype, operand.shape, layout, domain),) * len(call.args)


stack_.rules.layout = _stack_layout
stack_.rules.layout_backward = _stack_backward


@builtin
def stack(g: Builder, tiles, axis=0):
    """Join a tuple of tiles of one shape along a new dimension `axis`. They are promoted to one dtype."""
    if not isinstance(tiles, tuple) or not tiles or not all(isinstance(type_of(t), Tile) for t in tiles):
        raise g.error(f"stack takes a tuple of tiles, as in (a, b), not {describe(tiles)}")
    one = tiles[0].type.shape
    for t in tiles:
        if t.type.shape != one:
            raise g.error(f"tiles that are stacked have one shape, not {list(one)} and {list(t.type.shape)}")
    axis, dtype = checked_axis(g, axis, len(one) + 1), common_dtype(g, *tiles)
    return g.call(stack_, *(convert(g, t, dtype) for t in tiles), axis=axis)
