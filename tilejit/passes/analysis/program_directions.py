"""Whether integers grow or fall with a program's index in the grid, such as the iterations of a causal loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...ir.builder import Builder, element_type, type_of
from ...ir.graph import Call, For, Operand, Value, rises
from ...ops.language import ids
from ...ops.tiles import casts, division, elementwise as ew
from ...types import Scalar
from .integer_analysis import INDICES, IntegerAnalysis

# 1: grows or stays, -1: falls or stays, 0: stays, None: not known
Direction = int | None


class ProgramDirections:
    """The directions of integers as ``program_id(axis)`` grows, while the other indices stay. Index arithmetic is
    assumed not to wrap."""

    def __init__(self, g: Builder, analysis: IntegerAnalysis, axis: int):
        """`g` gives the linear forms of integers, `analysis` the bounds."""
        self.g, self.analysis, self.axis = g, analysis, axis
        self._found: dict[Operand, Direction] = {}

    def of_iterations(self, loops: Iterable[For]) -> Direction:
        """That of the number of iterations of loops together. Of loops with the same step, what they count through is
        added up: where one ends at a place at which another begins, the place does not matter."""
        lengths: dict[Any, dict[Any, int]] = {}
        for loop in loops:
            if self(loop.step) != 0:
                return None
            total = lengths.setdefault(frozenset(self.g.linear_form(loop.step).items()), {})
            for end, sign in (loop.stop, 1), (loop.start, -1):
                for term, factor in self.g.linear_form(end).items():
                    total[term] = total.get(term, 0) + (sign if rises(loop) else -sign) * factor
        return combine(map(self.of_sum, lengths.values()))

    def of_sum(self, terms: Mapping[Any, int]) -> Direction:
        """That of the sum of terms, each times a constant; the term None is a number."""
        return combine(_times(self(term), factor) for term, factor in terms.items() if term is not None and factor)

    def __call__(self, operand: Operand) -> Direction:
        if not isinstance(operand, Value):
            return 0
        if operand not in self._found:
            self._found[operand] = None  # of a carried value that depends on itself
            self._found[operand] = self._direction(operand)
        return self._found[operand]

    def _direction(self, value: Value) -> Direction:
        if value in self.analysis.graph.params:
            return 0
        if value in self.analysis.branch_values:
            one, other = self.analysis.branch_values[value]
            return self._of_choice(self.analysis.branch_conditions[value], one, other)
        call = self.analysis.definitions.get(value)
        if call is None or call.op.effect not in ("pure", "reads"):
            return None
        if call.op is ids.program_id:
            return int(call.attrs["axis"] == self.axis)
        if all(self(arg) == 0 for arg in call.args):
            return 0
        if not isinstance(type_of(value), Scalar) or element_type(value) not in INDICES:
            return None
        terms = self.g.linear_form(value)
        return self._of_call(call) if terms.get(value) else self.of_sum(terms)

    def _of_call(self, call: Call) -> Direction:
        """That of an integer that is no sum of others."""
        x, y = (*call.args, None)[:2]
        match call.op:
            case ew.minimum | ew.maximum:
                return combine(map(self, call.args))
            case ew.mul:
                return self._of_product(x, y)
            case division.floordiv if self(y) == 0 and _sign(*self.analysis.bounds(y)) == 1:  # x // 0 is 0
                return self(x)
            case ew.shl | ew.shr if self(y) == 0:
                return self(x)
            case casts.cast if element_type(x) in INDICES:
                return self(x)
            case ew.select:
                return self._of_choice(*call.args)
        return None

    def _of_product(self, x: Operand, y: Operand) -> Direction:
        signs = [_sign(*self.analysis.bounds(factor)) for factor in (x, y)]
        changes = [_times(self(one), sign) for one, sign in zip((x, y), reversed(signs))]
        return combine(changes)

    def _of_choice(self, condition: Operand, one: Operand, other: Operand) -> Direction:
        return combine((self(one), self(other))) if self(condition) == 0 else None


def combine(directions: Iterable[Direction]) -> Direction:
    """That of a function that does not fall with any of its operands."""
    found = set(directions) - {0}
    if len(found) > 1:
        return None
    return found.pop() if found else 0


def _times(direction: Direction, sign: int | None) -> Direction:
    """That of an integer times another one of this sign that stays; None: a sign that is not known."""
    if direction is None or sign is None:
        return 0 if direction == 0 else None
    return direction * ((sign > 0) - (sign < 0))


def _sign(low: int | None, high: int | None) -> int | None:
    """A sign of the integers between two bounds."""
    if low is not None and low >= 0:
        return 1
    return -1 if high is not None and high <= 0 else None


__all__ = ["ProgramDirections"]
