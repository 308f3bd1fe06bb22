"""Shapes of tiles: broadcast, reshape, transpose."""

from __future__ import annotations

from math import prod

import numpy as np

from ..dtypes import dtype_of
from ..errors import CompilationError
from ..ir.builder import Builder, describe, type_of
from ..ir.builtin import attribute, builtin, method
from ..ir.graph import Value
from ..ir.op import op
from ..layout import TileLayout, collapse
from ..types import Scalar, Tile
from .creation import constant_integer


@op("pure", attrs=("shape",))
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
    """The operand has the result's layout with the repeated dimensions collapsed, so that its registers are shared, not moved."""
    source, target = type_of(call.args[0]), call.result.type
    return [x[e.register_at(source, tuple(min(c, d - 1) for c, d in zip(e.register_coordinates(target, r), source.domain)))]
            for r in range(e.registers(target))]


def _broadcast_backward(assigner, call, want):
    """The operand's layout for a wanted layout of the result: the repeated dimensions are collapsed."""
    t, layout, domain = call.args[0].type, want.layout, want.domain
    for d in (d for d, (one, many) in enumerate(zip(t.shape, want.shape)) if one != many):
        layout, domain = collapse(layout, domain, d)
    return (Tile(t.dtype, t.shape, layout, domain),)


broadcast.rules.update(lazy=True, layout_backward=_broadcast_backward)  # computed at each use, in the layout that the use needs


@op("pure", attrs=("shape",))
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
    """Nothing is emitted if both layouts put the elements, in row-major order, into the same registers; otherwise by scratch memory."""
    source, target = type_of(call.args[0]), call.result.type
    if _keeps_registers(source, target):
        return x
    e.scratch_store(call, x, source)
    return e.scratch_load(call, target, target.shape)


def reshaped(layout: TileLayout, domain: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...]) -> tuple | None:
    """The domain with which a tile of shape `target` and the same `layout` has its elements in the same registers; None if there is none.

    Dimensions of extent 1 may be added and removed, and padded dimensions must stay as they are. Other dimensions may be split
    and merged if the layout's shards can be cut accordingly.
    """
    if any(n != 1 for n, extent in zip(domain, source) if extent == 1):
        return None
    have, made = [(extent, n) for extent, n in zip(source, domain) if extent != 1], [extent for extent in target if extent != 1]
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
    return source.layout == target.layout and reshaped(source.layout, source.domain, source.shape, target.shape) == target.domain


def _reshape_layout(assigner, call, types):
    t, shape = call.args[0].type, call.result.type.shape
    base = types[0] or assigner.default(t.shape, t.dtype)
    domain = reshaped(base.layout, base.domain, t.shape, shape)
    made = assigner.default(shape, t.dtype) if domain is None else Tile(t.dtype, shape, base.layout, domain)
    return (base,), (made,)


def _reshape_backward(assigner, call, want):
    t = call.args[0].type
    domain = reshaped(want.layout, want.domain, want.shape, t.shape)
    return None if domain is None else (Tile(t.dtype, t.shape, want.layout, domain),)


def _reshape_scratch(call) -> int:
    source, target = type_of(call.args[0]), call.result.type
    return 0 if _keeps_registers(source, target) else source.size * source.dtype.nbytes


reshape_.rules.update(free=True, layout=_reshape_layout, layout_backward=_reshape_backward, scratch=_reshape_scratch)


@op("pure", attrs=("axes",))
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
    for r in range(e.registers(target)):
        at = e.register_coordinates(target, r)
        result.append(x[e.register_at(source, tuple(at[i] for i in inverse))])
    return result


def _permuted(t: Tile, axes: tuple[int, ...], shape: tuple[int, ...], dtype) -> Tile:
    return Tile(dtype, shape, t.layout.permute(axes, t.domain).canonicalize(), tuple(t.domain[a] for a in axes))


def _transpose_layout(assigner, call, types):
    t, axes = call.args[0].type, call.attrs["axes"]
    base = types[0] or assigner.default(t.shape, t.dtype)
    return (base,), (_permuted(base, axes, call.result.type.shape, t.dtype),)


def _transpose_backward(assigner, call, want):
    t, axes = call.args[0].type, call.attrs["axes"]
    return (_permuted(want, tuple(axes.index(d) for d in range(len(axes))), t.shape, t.dtype),)


transpose_.rules.update(free=True, layout=_transpose_layout, layout_backward=_transpose_backward)


# -- user functions --------------------------------------------------------------------------------------------------

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


def completed(g: Builder, shape: tuple, size: int) -> tuple:
    """`shape` with an extent of -1 replaced by that which `size` elements need. CompilationError for an extent that is not constant."""
    for n in shape:
        constant_integer(g, n, "an extent", "the extents of a shape are constants: declare them as tile.constexpr parameters")
    if shape.count(-1) == 1:
        rest = prod(n for n in shape if n != -1)
        shape = tuple(size // rest if n == -1 and rest else n for n in shape)
    return shape


@builtin
def reshape(g: Builder, x, *shape):
    """`x` with another shape and as many elements, in row-major order. One extent may be -1."""
    x = tile_operand(g, x, "reshape")
    size = x.type.size
    shape = completed(g, as_tuple(shape), size)
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
    from .creation import checked_shape
    from .language import broadcast_shape, number, spread
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
def _transposed(g, x):
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
    from .language import strong_cast
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
