"""Reductions that users call, with NumPy's semantics: sum, prod, mean, max, min, any, all, argmax, ..."""

from __future__ import annotations

import math
from typing import Any

from ...dtypes import DType, bool_, dtype_of, float32, int32, uint32
from ...ir.builder import Builder, describe, element_type, flag, number_type, type_of
from ...ir.builtin import builtin, method
from ...ir.graph import Const, Operand, Value
from ...types import Scalar, Tile
from ..language import math as elementary
from ..language.promotion import convert, number
from ..language.shape import checked_axis
from ..tiles import casts, elementwise as ew, generate
from ..tiles.arrange import broadcast, reshape_
from .combine import Combine, Known, group_parts, trace
from .ragged_warnings import warn_if_ragged
from .reduce import reduce_, reduced_shape


def checked_axes(g: Builder, axis, rank: int) -> tuple[int, ...]:
    """The axes to reduce, sorted. `axis` is an int, a tuple of ints, or None for all axes."""
    if axis is None:
        return tuple(range(rank))
    axes = tuple(checked_axis(g, a, rank) for a in (axis if isinstance(axis, tuple) else (axis,)))
    if len(set(axes)) != len(axes):
        raise g.error(f"an axis is named twice: {axis}")
    return tuple(sorted(axes))


def sum_dtype(dtype: DType) -> DType:
    """The dtype of a sum: that of the elements, but at least 32 bits for integers, and int32 for bools,
    which are counted."""
    if dtype.is_float or dtype.bits >= 32:
        return dtype
    return uint32 if dtype.kind == "uint" else int32


def accumulator_dtype(dtype: DType) -> DType:
    """The dtype in which a sum is accumulated. 8- and 16-bit floats are accumulated in float32,
    and rounded once at the end."""
    return float32 if dtype.is_float and dtype.bits < 32 else dtype


OF_TWO = {"max": "the larger of two values is tile.maximum(x, y)",
          "min": "the smaller of two values is tile.minimum(x, y)"}


def _operand(g: Builder, x, axis, what: str) -> tuple[Operand, tuple[int, ...]]:
    """(operand, axes to reduce), with a warning if the operand may be out of bounds. A scalar has no axes."""
    t = number(g, x)
    rank = len(t.shape) if isinstance(t, Tile) else 0
    if what in OF_TWO and axis is not None and not (rank and isinstance(axis, (int, tuple))):
        raise g.error(f"an axis is a constant integer, not {describe(axis)}"
                      f"{g.declared_constant(axis) or '; ' + OF_TWO[what]}")
    axes = checked_axes(g, axis, rank)
    if isinstance(t, Tile):
        warn_if_ragged(g, x, what, axes)
        return x, axes
    return g.operand(x), axes


def reduce_by_name(g: Builder, name: str, x: Operand, axes: tuple[int, ...], keepdims: bool, dtype: DType) -> Operand:
    """`x` cast to `dtype` and reduced by a known operation."""
    x, t, keepdims = convert(g, x, dtype), number_type(x), flag(g, "keepdims", keepdims)
    if not axes or not isinstance(t, Tile):
        return x
    combine = Known(name, dtype)
    if math.prod(t.shape[a] for a in axes) == 0:
        if name in ("max", "min"):
            raise g.error(f"{name} of {describe(x)} along an axis without elements has no value")
        shape = reduced_shape(t.shape, axes, keepdims)
        empty = Const(0.0 if name == "sum" and dtype.is_float else combine.identity[0], dtype)
        return g.call(generate.splat, empty, shape=shape) if shape else g.call(generate.constant, empty)
    (result,) = g.call(reduce_, x, axes=axes, keepdims=keepdims, combine=combine, name=name)
    return result


def _accumulate_by_name(g: Builder, name: str, x, axis, keepdims: bool, dtype) -> Operand:
    x, axes = _operand(g, x, axis, name)
    target = sum_dtype(type_of(x).dtype) if dtype is None else dtype_of(dtype)
    return convert(g, reduce_by_name(g, name, x, axes, keepdims, accumulator_dtype(target)), target)


def sum_(g: Builder, x, axis=None, keepdims=False, dtype=None):
    """The sum along `axis`: an int, a tuple of ints, or None for all axes (a scalar, the same in every thread).

    8- and 16-bit floats are accumulated in float32 and rounded once. Integer sums have at least 32 bits, and wrap.
    `dtype` selects another dtype to accumulate in and return. The layout determines the order of the additions: first
    a tree of halves of each thread's registers, then lanes, then warps.
    """
    return _accumulate_by_name(g, "sum", x, axis, keepdims, dtype)


def prod(g: Builder, x, axis=None, keepdims=False, dtype=None):
    """The product along `axis`. The dtypes are those of `sum`."""
    return _accumulate_by_name(g, "prod", x, axis, keepdims, dtype)


def mean(g: Builder, x, axis=None, keepdims=False, dtype=None):
    """The mean along `axis`: the sum, divided once. The mean of integers or bools is float32."""
    x, axes = _operand(g, x, axis, "mean")
    t = type_of(x)
    if dtype is not None:
        target = dtype_of(dtype)
    else:
        target = t.dtype if t.dtype.is_float else float32
    if not target.is_float:
        raise g.error(f"a mean is a float, not {target}")
    total = reduce_by_name(g, "sum", x, axes, keepdims, accumulator_dtype(target))
    count = math.prod(t.shape[a] for a in axes) if axes else 1
    s = number_type(total)
    divisor = Const(float(count), s.dtype)
    divided = g.call(ew.div, total,
                     divisor if isinstance(s, Scalar) else g.call(generate.splat, divisor, shape=s.shape))
    return convert(g, divided, target)


def _extreme(name: str, word: str):
    def call(g: Builder, x, axis=None, keepdims=False):
        x, axes = _operand(g, x, axis, name)
        dtype = type_of(x).dtype
        return convert(g, reduce_by_name(g, name, x, axes, keepdims,
                                         float32 if dtype.is_float and dtype.bits == 8 else dtype), dtype)
    call.__name__ = name + "_"
    call.__doc__ = (f"The {word} element along `axis` (an int, a tuple of ints, or None for all axes); "
                    "NaN if any element is NaN.")
    return call


max_, min_ = _extreme("max", "largest"), _extreme("min", "smallest")


def _truth(name: str, which: str, word: str):
    def call(g: Builder, x, axis=None, keepdims=False):
        x, axes = _operand(g, x, axis, name)
        return reduce_by_name(g, which, x, axes, keepdims, bool_)
    call.__name__ = name + "_"
    call.__doc__ = f"Whether {word} along `axis` (an int, a tuple of ints, or None for all axes) is nonzero."
    return call


any_, all_ = _truth("any", "or", "any element"), _truth("all", "and", "every element")


# -- argmax, argmin ----------------------------------------------------------------------------------------------------

def _place(name: str, which: str, word: str):
    def call(g: Builder, x, axis=None, keepdims=False):
        x, axes = _operand(g, x, axis, name)
        return place(g, name, which, x, axes if axis is None else (_single_axis(g, name, axis, x),), keepdims)
    call.__name__ = name
    call.__doc__ = (f"The int32 index of the {word} element along `axis`: the first one, if several are equal; "
                    "the first NaN, if there is one. With ``axis=None``, the row-major index among all elements.")
    return call


def _single_axis(g: Builder, name: str, axis, x: Operand) -> int:
    t = type_of(x)
    if isinstance(axis, tuple):
        raise g.error(f"{name} takes one axis, or None for all")
    return checked_axis(g, axis, len(t.shape) if isinstance(t, Tile) else 0)


def place(g: Builder, name: str, which: str, x: Operand, axes: tuple[int, ...], keepdims: bool) -> Operand:
    """The smallest index of an element that equals the extreme (or is NaN), by two reductions."""
    t = number_type(x)
    if not axes or not isinstance(t, Tile):
        return g.call(generate.constant, Const(0, int32))
    if math.prod(t.shape[a] for a in axes) == 0:
        raise g.error(f"{name} of {describe(x)} along an axis without elements has no value")
    if t.dtype.is_float and t.dtype.bits == 8:
        x = g.call(casts.cast, x, dtype=float32)
    extreme = g.call(broadcast, reduce_by_name(g, which, x, axes, True, element_type(x)), shape=t.shape)
    hit = g.call(ew.eq, x, extreme)
    if t.dtype.is_float:
        hit = g.call(ew.bit_or, hit, g.call(elementary.isnan, x))
    none = g.call(generate.splat, Const(2**31 - 1, int32), shape=t.shape)
    return reduce_by_name(g, "min", g.call(ew.select, hit, flat_index(g, t.shape, axes), none), axes, keepdims, int32)


def flat_index(g: Builder, shape: tuple[int, ...], axes: tuple[int, ...]) -> Value:
    """An int32 tile of `shape` that holds each element's row-major index over `axes`."""
    total: Value | None = None
    weight = 1
    for a in reversed(axes):
        ramp = g.call(generate.iota, start=0, stop=shape[a], axis=0)
        if len(shape) > 1:
            ramp = g.call(reshape_, ramp, shape=tuple(n if d == a else 1 for d, n in enumerate(shape)))
        if ramp.type.shape != shape:
            ramp = g.call(broadcast, ramp, shape=shape)
        if weight != 1:
            ramp = g.call(ew.mul, ramp, g.call(generate.splat, Const(weight, int32), shape=shape))
        total = ramp if total is None else g.call(ew.add, ramp, total)
        weight *= shape[a]
    assert total is not None  # there is an axis
    return total


argmax, argmin = _place("argmax", "max", "largest"), _place("argmin", "min", "smallest")


# -- reduction by a user's function ------------------------------------------------------------------------------------

def reduce(g: Builder, x, axis, combine, keepdims=False, commutative=False):
    """Reduce `x` along `axis` by ``combine(earlier, later)``, a @tile.jit helper of two scalars or a function
    such as tile.maximum.

    A tuple of tiles (also a named tuple) is reduced together: `combine` then takes two tuples of scalars and returns
    one, and `reduce` returns a tuple. `combine` must be associative. It is applied to neighbours in the order of the
    elements (row-major over several axes). With ``commutative=True`` any order will do, which may take fewer
    instructions.
    """
    xs = x if isinstance(x, tuple) else (x,)
    if not xs:
        raise g.error("reduce takes a tile, or a tuple of tiles")
    for item in xs:
        if not isinstance(type_of(item), Tile):
            raise g.error(f"reduce takes tiles, not {describe(item)}")
        if item.type.shape != xs[0].type.shape:
            raise g.error("tiles that are reduced together have one shape, "
                          f"not {list(xs[0].type.shape)} and {list(item.type.shape)}")
    shape = xs[0].type.shape
    axes = checked_axes(g, axis, len(shape))
    for item in xs:
        warn_if_ragged(g, item, "reduce", axes)
    traced: Combine = trace(g, combine, x, "reduce", in_order=not flag(g, "commutative", commutative))
    if axes and math.prod(shape[a] for a in axes) == 0:
        raise g.error(f"reduce of {describe(xs[0])} along an axis without elements has no value")
    if axes:
        results = g.call(reduce_, *xs, axes=axes, keepdims=flag(g, "keepdims", keepdims), combine=traced, name="reduce")
    else:
        results = xs
    return group_parts(x, results)


BUILTINS: dict[str, Any] = {f.__name__.rstrip("_"): builtin(f) for f in (
    sum_, prod, mean, max_, min_, any_, all_, argmax, argmin, reduce)}

for _name, _builtin in BUILTINS.items():
    if _name != "reduce":
        method(Tile, name=_name)(_builtin.function)
