"""What is known of integers where a condition holds: by ``tile.assume``, in a branch, in the trips of a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd, lcm
from typing import TYPE_CHECKING

from ..ir.builder import type_of
from ..ir.graph import Const, For, Operand, rises

if TYPE_CHECKING:
    from .integer_analysis import IntegerAnalysis


@dataclass(frozen=True)
class Constraint:
    """What is said of an integer: bounds (None: none), a divisor, and (what, n) of each integer that it is less than by at least n."""

    low: int | None = None
    high: int | None = None
    divisor: int = 1
    under: frozenset = frozenset()

    def __and__(self, other: "Constraint") -> "Promise":
        return Constraint(*intersection((self.low, self.high), (other.low, other.high)), lcm(self.divisor, other.divisor), self.under | other.under)


def intersection(one: tuple[int | None, int | None], other: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    """Bounds of what lies in both of two intervals."""
    (a, b), (c, d) = one, other
    return (c if a is None else a if c is None else max(a, c)), (d if b is None else b if d is None else min(b, d))


# What stands for an integer in promises, and what finds one of it: few are asked for, and most take long to find.
Constraints = Iterator[tuple[object, Callable[[], Constraint]]]

NOT = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def constraints_of_condition(integers: IntegerAnalysis, condition: Operand, holds: bool, wrapping: bool) -> Constraints:
    """What a condition that holds, or that does not, tells of integers; `wrapping` as in ``Integers.bounds``."""
    if condition in integers.tests:  # `a and b`, where b does more than compute: b where a holds, else False
        then, orelse = integers.ways[condition]
        decided = orelse if holds else then
        if isinstance(decided, Const) and bool(decided.value) is not holds:
            yield from constraints_of_condition(integers, integers.tests[condition], holds, wrapping)
            yield from constraints_of_condition(integers, then if holds else orelse, holds, wrapping)
        return
    call = integers.made.get(condition)
    name = call.op.name if call is not None else ""
    if name == "bit_not":
        yield from constraints_of_condition(integers, call.args[0], not holds, wrapping)
    elif name == ("bit_and" if holds else "bit_or"):
        for part in call.args:
            yield from constraints_of_condition(integers, part, holds, wrapping)
    elif name in NOT and type_of(call.args[0]).dtype.is_int:
        yield from _of_comparison(integers, name if holds else NOT[name], *call.args, wrapping)
    elif name == "cast" and type_of(call.args[0]).dtype.is_int:  # `if n % 8:` holds where that is no 0
        yield from _of_comparison(integers, "ne" if holds else "eq", call.args[0], Const(0, type_of(call.args[0]).dtype), wrapping)


def constraints_of_loop(integers: IntegerAnalysis, loop: For, wrapping: bool) -> Constraints:
    """What a loop's body may know of its index: it is between the start and the stop."""
    low, high = (loop.start, loop.index) if rises(loop) else (loop.index, loop.start)
    yield from _ordered(integers, low, high, 0, wrapping)
    low, high = (loop.index, loop.stop) if rises(loop) else (loop.stop, loop.index)
    yield from _ordered(integers, low, high, 1, wrapping)


def _of_comparison(integers: IntegerAnalysis, name: str, one: Operand, other: Operand, wrapping: bool) -> Constraints:
    if name in ("lt", "le", "eq"):
        yield from _ordered(integers, one, other, int(name == "lt"), wrapping)
    if name in ("gt", "ge", "eq"):
        yield from _ordered(integers, other, one, int(name == "gt"), wrapping)
    for x, rest in ((one, other), (other, one)) if name == "eq" else ():
        call = integers.made.get(x)
        if call is not None and call.op.name == "mod" and isinstance(call.args[1], Const):
            by = abs(int(call.args[1].value)) or 1
            yield integers.key(call.args[0]), lambda rest=rest, by=by: Constraint(divisor=by if integers.bounds(rest, wrapping) == (0, 0) else 1)


def _ordered(integers: IntegerAnalysis, less: Operand, more: Operand, apart: int, wrapping: bool) -> Constraints:
    """``less + apart <= more``. What is below another, and like it a multiple of n, is so by n."""
    low, high = lambda: integers.bounds(less, wrapping)[0], lambda: integers.bounds(more, wrapping)[1]
    if wrapping:
        yield integers.key(less), lambda: Constraint(high=_sum(high(), -apart))
        yield integers.key(more), lambda: Constraint(low=_sum(low(), apart))
        return
    (x, plus), (y, more_plus) = integers.sum_of(less), integers.sum_of(more)
    by = lambda: max(apart, gcd(integers.divisor(less), integers.divisor(more))) if apart else 0
    yield x, lambda: Constraint(high=_sum(high(), -by() - plus), under=frozenset([(y, by() + plus - more_plus)]))
    yield y, lambda: Constraint(low=_sum(low(), by() - more_plus))


def _sum(bound: int | None, n: int) -> int | None:
    return None if bound is None else bound + n
