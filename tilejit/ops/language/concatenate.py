"""``concatenate``: tiles joined along one of their dimensions."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from ...ir.builder import Builder, describe, type_as, type_of
from ...ir.builtin import builtin
from ...ir.op import op
from ...lazy import Lazy
from ...types import Tile
from ..tiles.arrange import reshape_
from ..tiles.elementwise import same_dtype
from .promotion import collective, common_dtype, convert
from .shape import checked_axis

stacking = Lazy("tilejit.ops.language.stack")


@op("pure", attrs=("axis",), collective=True)
def concatenate_(*tiles, axis):
    """Join tiles of one dtype, whose extents differ along `axis` only, along this axis."""


@concatenate_.infer
def _(g, *tiles, axis):
    shapes = [type_as(t, Tile).shape for t in tiles]
    extent = sum(shape[axis] for shape in shapes)
    return Tile(same_dtype(g, *tiles), (*shapes[0][:axis], extent, *shapes[0][axis + 1:]))


@concatenate_.simulate
def _(m, call, *tiles):
    batch = max(x.shape[0] for x in tiles)
    return np.concatenate([np.broadcast_to(x, (batch, *x.shape[1:])) for x in tiles], call.attrs["axis"] + 1)


@concatenate_.emit
def _(e, call, *tiles):
    """All threads write their elements to scratch memory, then read those of the result."""
    types, axis, target = [type_as(t, Tile) for t in call.args], call.attrs["axis"], call.result.type
    firsts = accumulate((t.shape[axis] for t in types[:-1]), initial=0)
    starts = [tuple(first if d == axis else 0 for d in range(len(target.shape))) for first in firsts]
    e.tiles.scratch_store_joined(call, zip(tiles, types, starts), target.shape)
    return e.tiles.scratch_load(call, target, target.shape)


def _layout(assigner, call, types):
    result = call.result.type
    shapes = [type_as(t, Tile).shape for t in call.args]
    operands = tuple(have or assigner.default(shape, result.dtype) for shape, have in zip(shapes, types))
    return operands, (assigner.default(result.shape, result.dtype),)


def _scratch(call) -> int:
    t: Tile = call.result.type
    return t.size * t.dtype.nbytes


concatenate_.rules.layout = _layout
concatenate_.rules.scratch = _scratch


@builtin
def concatenate(g: Builder, tiles: Any, axis=0):
    """Join a tuple of tiles along one of their dimensions. Their other extents are equal, and they are promoted to one
    dtype."""
    if not isinstance(tiles, tuple) or not tiles or not all(isinstance(type_of(t), Tile) for t in tiles):
        raise g.error(f"concatenate takes a tuple of tiles, as in (a, b), not {describe(tiles)}")
    shapes: list[tuple[int, ...]] = [t.type.shape for t in tiles]
    one = shapes[0]
    if not one:
        raise g.error("tiles that are concatenated have a dimension: join those of no dimension by tile.stack")
    axis, dtype = checked_axis(g, axis, len(one)), common_dtype(g, *tiles)
    for other in shapes:
        if len(other) != len(one) or any(n != k for d, (n, k) in enumerate(zip(other, one)) if d != axis):
            raise g.error(f"tiles that are concatenated along axis {axis} agree in their other extents, and these are "
                          f"{list(one)} and {list(other)}")
    made = [(convert(g, t, dtype), shape) for t, shape in zip(tiles, shapes)]
    made = [(t, shape) for t, shape in made if 0 not in shape] or made[:1]
    operands, shapes = [t for t, _ in made], [shape for _, shape in made]
    if len(operands) == 1:
        return operands[0]
    if len(set(shapes)) == 1:  # registers of a thread become those of the result, unless its extents are padded
        whole = *shapes[0][:axis], shapes[0][axis] * len(operands), *shapes[0][axis + 1:]
        return g.call(reshape_, g.call(stacking.stack_, *operands, axis=axis), shape=whole)
    collective(g, "concatenate")
    return g.call(concatenate_, *operands, axis=axis)


__all__ = ["concatenate"]
