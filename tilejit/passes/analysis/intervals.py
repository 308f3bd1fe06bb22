"""Interval arithmetic: bounds and divisors of integers computed from other integers. A bound of None means unbounded."""

from __future__ import annotations

from typing import Any

from ...dtypes import integer_range


def wraps(dtype, low: int | None, high: int | None) -> bool:
    """Whether the bounds show that the exact result does not fit its dtype, so that the computed one wraps."""
    least, most = integer_range(dtype) if dtype.is_int else (0, 1)
    return low is not None and low < least or high is not None and high > most


def divisor_in(dtype, divisor: int) -> int:
    """The divisor of an integer once it is stored in `dtype`.

    Where it exceeds every number of the dtype, the integer may have wrapped, which preserves only the power of two in the divisor.
    """
    most = 1 << min(dtype.bits - 2, 62)
    return divisor if divisor <= most else min(divisor & -divisor, most)


def hull(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[int | None, int | None]:
    """Bounds of a number that lies in one interval or in the other."""
    (a, b), (c, d) = one, other
    return (None if None in (a, c) else min(a, c)), (None if None in (b, d) else max(b, d))


def interval(name: str, one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[int | None, int | None]:
    """Bounds of the operation `name` on two integers with these bounds.

    Index arithmetic is assumed not to wrap, because an index that wraps is an error of the kernel.
    """
    (a, b), (c, d) = one, other
    def both(f, x, y):
        return None if None in (x, y) else f(x, y)
    if name == "add":
        return both(lambda x, y: x + y, a, c), both(lambda x, y: x + y, b, d)
    if name == "sub":
        return both(lambda x, y: x - y, a, d), both(lambda x, y: x - y, b, c)
    if name == "minimum":
        return both(min, a, c), min((x for x in (b, d) if x is not None), default=None)
    if name == "maximum":
        return max((x for x in (a, c) if x is not None), default=None), both(max, b, d)
    if name == "mul":
        if None not in (a, b, c, d):
            corners = (a * c, a * d, b * c, b * d)
            return min(corners), max(corners)
        return (a * c, None) if None not in (a, c) and a >= 0 and c >= 0 else (None, None)
    if name == "bit_and":
        tops = [high for low, high in (one, other) if low is not None and low >= 0]
        return (0, min((x for x in tops if x is not None), default=None)) if tops else (None, None)
    if c is None or c != d:
        if name == "mod" and c is not None and c >= 0:
            rest = 0, None if d is None else max(d - 1, 0)
            return rest if c else hull(rest, one)  # x % 0 is x
        return (0, b) if name in ("floordiv", "shr") and None not in (a, c) and min(a, c) >= 0 else (None, None)  # x // 0 is 0
    if name == "mod" and c > 0:
        return 0, c - 1 if b is None or a is None or a < 0 else min(b, c - 1)
    step = {"floordiv": c, "shr": 1 << c if 0 <= c < 63 else 0, "shl": 1 << c if 0 <= c < 63 else 0}.get(name, 0)
    if step <= 0:
        return None, None
    if name == "shl":
        return both(lambda x, y: x * y, a, step), both(lambda x, y: x * y, b, step)
    return both(lambda x, y: x // y, a, step), both(lambda x, y: x // y, b, step)
