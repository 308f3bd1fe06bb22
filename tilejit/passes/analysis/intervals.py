"""Interval arithmetic: bounds and divisors of integers computed from other integers.
A bound of None means unbounded."""

from __future__ import annotations

import operator
from collections.abc import Callable

from ...dtypes import DType, integer_range
from ...ir.op import Op
from ...ops.tiles import elementwise as ew
from ...ops.tiles.division import floordiv, mod

Bounds = tuple[int | None, int | None]


def wraps(dtype: DType, low: int | None, high: int | None) -> bool:
    """Whether the bounds show that the exact result does not fit its dtype, so that the computed one wraps."""
    least, most = integer_range(dtype) if dtype.is_int else (0, 1)
    return low is not None and low < least or high is not None and high > most


def divisor_in(dtype: DType, divisor: int) -> int:
    """The divisor of an integer once it is stored in `dtype`.

    Where it exceeds every number of the dtype, the integer may have wrapped,
    which preserves only the power of two in the divisor.
    """
    most = 1 << min(dtype.bits - 2, 62)
    return divisor if divisor <= most else min(divisor & -divisor, most)


def hull(one: Bounds, other: Bounds) -> Bounds:
    """Bounds of a number that lies in one interval or in the other."""
    (a, b), (c, d) = one, other
    return _if_bounded(min, a, c), _if_bounded(max, b, d)


def _if_bounded(f: Callable[[int, int], int], x: int | None, y: int | None) -> int | None:
    """``f(x, y)``, or None if one of them is unbounded."""
    return None if x is None or y is None else f(x, y)


def _sum(one: Bounds, other: Bounds) -> Bounds:
    return _if_bounded(operator.add, one[0], other[0]), _if_bounded(operator.add, one[1], other[1])


def _difference(one: Bounds, other: Bounds) -> Bounds:
    return _if_bounded(operator.sub, one[0], other[1]), _if_bounded(operator.sub, one[1], other[0])


def _minimum(one: Bounds, other: Bounds) -> Bounds:
    return _if_bounded(min, one[0], other[0]), min((x for x in (one[1], other[1]) if x is not None), default=None)


def _maximum(one: Bounds, other: Bounds) -> Bounds:
    return max((x for x in (one[0], other[0]) if x is not None), default=None), _if_bounded(max, one[1], other[1])


def _product(one: Bounds, other: Bounds) -> Bounds:
    (a, b), (c, d) = one, other
    if a is not None and b is not None and c is not None and d is not None:
        corners = (a * c, a * d, b * c, b * d)
        return min(corners), max(corners)
    return (a * c, None) if a is not None and c is not None and a >= 0 and c >= 0 else (None, None)


def _bits_in_both(one: Bounds, other: Bounds) -> Bounds:
    tops = [high for low, high in (one, other) if low is not None and low >= 0]
    return (0, min((x for x in tops if x is not None), default=None)) if tops else (None, None)


def _remainder(one: Bounds, other: Bounds) -> Bounds:
    (a, b), (c, d) = one, other
    if c is not None and c == d:
        if c <= 0:
            return None, None
        return 0, c - 1 if b is None or a is None or a < 0 else min(b, c - 1)
    if c is None or c < 0:
        return None, None
    rest: Bounds = 0, None if d is None else max(d - 1, 0)
    return rest if c else hull(rest, one)  # x % 0 is x


def _quotient(one: Bounds, other: Bounds) -> Bounds:
    (a, b), (c, d) = one, other
    if c is not None and c == d:
        return _floor(one, c)
    return (0, b) if a is not None and c is not None and min(a, c) >= 0 else (None, None)  # x // 0 is 0


def _shifted_right(one: Bounds, other: Bounds) -> Bounds:
    count = other[0]
    return _floor(one, _power(count)) if count is not None and count == other[1] else _quotient(one, other)


def _shifted_left(one: Bounds, other: Bounds) -> Bounds:
    count = other[0]
    step = _power(count) if count is not None and count == other[1] else 0
    if step <= 0:
        return None, None
    return _if_bounded(operator.mul, one[0], step), _if_bounded(operator.mul, one[1], step)


def _floor(one: Bounds, step: int) -> Bounds:
    """Bounds of an integer divided by a constant."""
    if step > 0:
        return _if_bounded(operator.floordiv, one[0], step), _if_bounded(operator.floordiv, one[1], step)
    return None, None


def _power(count: int) -> int:
    """2 ** count; 0 if no shift of 64-bit integers has this count."""
    return 1 << count if 0 <= count < 63 else 0


_INTERVALS: dict[Op, Callable[[Bounds, Bounds], Bounds]] = {
    ew.add: _sum, ew.sub: _difference, ew.minimum: _minimum, ew.maximum: _maximum, ew.mul: _product,
    ew.bit_and: _bits_in_both, mod: _remainder, floordiv: _quotient, ew.shr: _shifted_right, ew.shl: _shifted_left}


def interval(op: Op, one: Bounds, other: Bounds) -> Bounds:
    """Bounds of the operation `op` on two integers with these bounds.

    Index arithmetic is assumed not to wrap, because an index that wraps is an error of the kernel.
    """
    bounds = _INTERVALS.get(op)
    return (None, None) if bounds is None else bounds(one, other)
