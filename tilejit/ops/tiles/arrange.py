"""Ops that arrange the elements of register tiles: broadcast, reshape, transpose."""

from __future__ import annotations

from math import prod

import numpy as np

from ...errors import CompilationError
from ...ir.builder import type_of
from ...ir.op import op
from ...ir.op_traits import Traits
from ...layout import TileLayout, collapse
from ...types import Tile, domain_of, layout_of


@op("pure", attrs=("shape",), traits=Traits(lazy=True))
def broadcast(x, shape):
    """The tile `x` repeated along dimensions of extent 1 to `shape`, which has the same rank."""


@broadcast.infer
def _(g, x, shape):
    return Tile(type_of(x).dtype, shape)


@broadcast.simulate
def _(m, call, x):
    return np.broadcast_to(x, (x.shape[0], *call.attrs["shape"]))


@broadcast.emit
def _(e, call, x):
    """The operand has the result's layout with the repeated dimensions collapsed, so that its registers are
    shared, not moved."""
    source, target = type_of(call.args[0]), call.result.type
    coordinates = (e.tiles.register_coordinates(target, r) for r in range(e.tiles.registers(target)))
    return [x[e.tiles.register_at(source, tuple(min(c, d - 1) for c, d in zip(at, source.domain)))]
            for at in coordinates]


def _broadcast_backward(assigner, call, want):
    """The operand's layout for a wanted layout of the result: the repeated dimensions are collapsed."""
    t, layout, domain = call.args[0].type, want.layout, want.domain
    for d in (d for d, (one, many) in enumerate(zip(t.shape, want.shape)) if one != many):
        layout, domain = collapse(layout, domain, d)
    return (Tile(t.dtype, t.shape, layout, domain),)


broadcast.rules.layout_backward = _broadcast_backward


@op("pure", attrs=("shape",), traits=Traits(free=True, in_parts=True))
def reshape_(x, shape):
    """The tile `x` with another shape and the same row-major order of elements."""


@reshape_.infer
def _(g, x, shape):
    return Tile(type_of(x).dtype, shape)


@reshape_.simulate
def _(m, call, x):
    return x.reshape(x.shape[0], *call.attrs["shape"])


@reshape_.emit
def _(e, call, x):
    """Nothing is emitted if both layouts put the elements, in row-major order, into the same registers;
    otherwise by scratch memory."""
    source, target = type_of(call.args[0]), call.result.type
    if _keeps_registers(source, target):
        return x
    return e.tiles.move_through_scratch(call, x, source, target, target.shape)


def reshape_domain(layout: TileLayout, domain: tuple[int, ...], source: tuple[int, ...],
                   target: tuple[int, ...]) -> tuple | None:
    """The domain with which a tile of shape `target` and the same `layout` has its elements in the same registers;
    None if there is none.

    Dimensions of extent 1 may be added and removed, and padded dimensions must stay as they are. Other dimensions may
    be split and merged if the layout's shards can be cut accordingly.
    """
    if any(n != 1 for n, extent in zip(domain, source) if extent == 1):
        return None
    have, made = ([(extent, n) for extent, n in zip(source, domain) if extent != 1],
                  [extent for extent in target if extent != 1])
    kept: list[int] = []
    while made:
        old, new = [have.pop(0)], [made.pop(0)]
        while prod(extent for extent, _ in old) != prod(new):
            if prod(extent for extent, _ in old) < prod(new):
                old.append(have.pop(0))
            else:
                new.append(made.pop(0))
        if len(new) == len(old) == 1:
            kept.append(old[0][1])
        elif all(extent == n for extent, n in old):
            kept += new
        else:
            return None
    result = tuple(1 if extent == 1 else kept.pop(0) for extent in target)
    try:
        layout.dims(result)
    except CompilationError:
        return None
    return result


def _keeps_registers(source: Tile, target: Tile) -> bool:
    return (source.layout == target.layout
            and reshape_domain(layout_of(source), domain_of(source), source.shape, target.shape) == target.domain)


def _reshape_layout(assigner, call, types):
    t, shape = call.args[0].type, call.result.type.shape
    base = types[0] or assigner.default(t.shape, t.dtype)
    domain = reshape_domain(base.layout, base.domain, t.shape, shape)
    made = assigner.default(shape, t.dtype) if domain is None else Tile(t.dtype, shape, base.layout, domain)
    return (base,), (made,)


def _reshape_backward(assigner, call, want):
    t = call.args[0].type
    domain = reshape_domain(want.layout, want.domain, want.shape, t.shape)
    return None if domain is None else (Tile(t.dtype, t.shape, want.layout, domain),)


def _reshape_scratch(call) -> int:
    source, target = type_of(call.args[0]), call.result.type
    return 0 if _keeps_registers(source, target) else source.size * source.dtype.nbytes


reshape_.rules.layout = _reshape_layout
reshape_.rules.layout_backward = _reshape_backward
reshape_.rules.scratch = _reshape_scratch


@op("pure", attrs=("axes",), traits=Traits(free=True))
def transpose_(x, axes):
    """The tile `x` with its dimensions permuted to the order `axes`."""


@transpose_.infer
def _(g, x, axes):
    t = type_of(x)
    return Tile(t.dtype, tuple(t.shape[a] for a in axes))


@transpose_.simulate
def _(m, call, x):
    return x.transpose(0, *(a + 1 for a in call.attrs["axes"]))


@transpose_.emit
def _(e, call, x):
    """Elements stay in their threads. Their registers are only renumbered to match the result's layout."""
    source, target, axes = type_of(call.args[0]), call.result.type, call.attrs["axes"]
    inverse = [axes.index(d) for d in range(len(axes))]
    result = []
    for r in range(e.tiles.registers(target)):
        at = e.tiles.register_coordinates(target, r)
        result.append(x[e.tiles.register_at(source, tuple(at[i] for i in inverse))])
    return result


def _permute_tile(t: Tile, axes: tuple[int, ...], shape: tuple[int, ...], dtype) -> Tile:
    domain = domain_of(t)
    return Tile(dtype, shape, layout_of(t).permute(axes, domain).canonicalize(), tuple(domain[a] for a in axes))


def _transpose_layout(assigner, call, types):
    t, axes = call.args[0].type, call.attrs["axes"]
    base = types[0] or assigner.default(t.shape, t.dtype)
    return (base,), (_permute_tile(base, axes, call.result.type.shape, t.dtype),)


def _transpose_backward(assigner, call, want):
    t, axes = call.args[0].type, call.attrs["axes"]
    return (_permute_tile(want, tuple(axes.index(d) for d in range(len(axes))), t.shape, t.dtype),)


transpose_.rules.layout = _transpose_layout
transpose_.rules.layout_backward = _transpose_backward
