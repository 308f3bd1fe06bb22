"""The constraints on integers that a condition implies: of ``tile.assume``, of a branch, of a loop's index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import gcd, lcm
from typing import TYPE_CHECKING, Any

from ...ir.builder import element_type
from ...ir.graph import Const, For, Operand, rises
from ...ir.op import Op
from ...ops.tiles import elementwise as ew
from ...ops.tiles.casts import cast
from ...ops.tiles.division import mod

if TYPE_CHECKING:
    from .integer_analysis import IntegerAnalysis


@dataclass(frozen=True)
class Constraint:
    """What a condition says about one integer: bounds (None: unbounded), a divisor, and upper bounds by other integers.

    `under` holds (what, n) pairs: the integer plus n is at most `what`.
    """

    low: int | None = None
    high: int | None = None
    divisor: int = 1
    under: frozenset[Any] = frozenset()

    def __and__(self, other: Constraint) -> Constraint:
        """Both constraints at once."""
        return Constraint(*intersection((self.low, self.high), (other.low, other.high)),
                          lcm(self.divisor, other.divisor), self.under | other.under)


def intersection(one: tuple[int | None, int | None],
                 other: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    """Bounds of a number that lies in both intervals."""
    (low, high), (other_low, other_high) = one, other
    if other_low is not None:
        low = other_low if low is None else max(low, other_low)
    if other_high is not None:
        high = other_high if high is None else min(high, other_high)
    return low, high


# (key of the integer, function that finds its constraint). Few constraints are ever asked for and most are slow to
# find, so they are found on demand.
Constraints = Iterator[tuple[object, Callable[[], Constraint]]]

NOT = {ew.lt: ew.ge, ew.ge: ew.lt, ew.gt: ew.le, ew.le: ew.gt, ew.eq: ew.ne, ew.ne: ew.eq}


def constraints_of_condition(integers: IntegerAnalysis, condition: Operand, holds: bool, wrapping: bool) -> Constraints:
    """The constraints that follow from `condition` being true (`holds`) or false; `wrapping` as in
    ``IntegerAnalysis.bounds``."""
    # `a and b` with a b that has effects is a branch: b where a holds, else False
    if condition in integers.branch_conditions:
        then, orelse = integers.branch_values[condition]
        decided = orelse if holds else then
        if isinstance(decided, Const) and bool(decided.value) is not holds:
            yield from constraints_of_condition(integers, integers.branch_conditions[condition], holds, wrapping)
            yield from constraints_of_condition(integers, then if holds else orelse, holds, wrapping)
        return
    call = integers.definitions.get(condition)
    if call is None:
        return
    op = call.op
    if op is ew.bit_not:
        yield from constraints_of_condition(integers, call.args[0], not holds, wrapping)
    elif op is (ew.bit_and if holds else ew.bit_or):
        for part in call.args:
            yield from constraints_of_condition(integers, part, holds, wrapping)
    elif op in NOT and element_type(call.args[0]).is_int:
        one, other = call.args
        yield from _of_comparison(integers, op if holds else NOT[op], one, other, wrapping)
    elif op is cast and element_type(call.args[0]).is_int:  # `if n % 8:` tests for != 0
        zero = Const(0, element_type(call.args[0]))
        yield from _of_comparison(integers, ew.ne if holds else ew.eq, call.args[0], zero, wrapping)


def constraints_of_loop(integers: IntegerAnalysis, loop: For, wrapping: bool) -> Constraints:
    """The constraints on a loop's index inside the body: it lies between the start and the stop."""
    low, high = (loop.start, loop.index) if rises(loop) else (loop.index, loop.start)
    yield from _order_constraints(integers, low, high, 0, wrapping)
    low, high = (loop.index, loop.stop) if rises(loop) else (loop.stop, loop.index)
    yield from _order_constraints(integers, low, high, 1, wrapping)


def _of_comparison(integers: IntegerAnalysis, op: Op, one: Operand, other: Operand, wrapping: bool) -> Constraints:
    """The constraints that follow from the comparison `op` of two integers."""
    if op in (ew.lt, ew.le, ew.eq):
        yield from _order_constraints(integers, one, other, int(op is ew.lt), wrapping)
    if op in (ew.gt, ew.ge, ew.eq):
        yield from _order_constraints(integers, other, one, int(op is ew.gt), wrapping)
    for x, rest in ((one, other), (other, one)) if op is ew.eq else ():
        call = integers.definitions.get(x)
        if call is not None and call.op is mod and isinstance(call.args[1], Const):
            by = abs(int(call.args[1].value)) or 1
            yield integers.key(call.args[0]), partial(_multiple, integers, rest, by, wrapping)


def _multiple(integers: IntegerAnalysis, rest: Operand, by: int, wrapping: bool) -> Constraint:
    """The constraint on an integer whose remainder by `by` is `rest`."""
    return Constraint(divisor=by if integers.bounds(rest, wrapping) == (0, 0) else 1)


def _order_constraints(integers: IntegerAnalysis, less: Operand, more: Operand, apart: int,
                       wrapping: bool) -> Constraints:
    """The constraints that follow from ``less + apart <= more``.

    Two multiples of n that differ do so by at least n, so a strict comparison of them yields a gap of n.
    """
    def low() -> int | None:
        return integers.bounds(less, wrapping)[0]

    def high() -> int | None:
        return integers.bounds(more, wrapping)[1]

    if wrapping:
        yield integers.key(less), lambda: Constraint(high=_sum(high(), -apart))
        yield integers.key(more), lambda: Constraint(low=_sum(low(), apart))
        return
    (x, plus), (y, more_plus) = integers.sum_of(less), integers.sum_of(more)
    def gap() -> int:
        return max(apart, gcd(integers.divisor(less), integers.divisor(more))) if apart else 0
    yield x, lambda: Constraint(high=_sum(high(), -gap() - plus), under=frozenset([(y, gap() + plus - more_plus)]))
    yield y, lambda: Constraint(low=_sum(low(), gap() - more_plus))


def _sum(bound: int | None, n: int) -> int | None:
    return None if bound is None else bound + n
