"""The integer expressions over a call's arguments, of which facts, kernel parameters and tensor maps are made.

An expression is an int, a `Leaf` (a number of one argument) or an `Operation` on expressions. As JSON these are ``7``,
``["size", 0, 1]`` and ``["mul", ["stride", 0, 0], 4]``. `fold` alone walks them. It is told what each part becomes: a
number here, Python text for the launch function (`writer`), LLVM IR for the native one (`native_ir`). `OPERATIONS` says
what the operations mean."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ..dtypes import LARGEST, LEAST_NORMAL, is_positive
from ..errors import LaunchError

T = TypeVar("T")

LEAVES = ("ptr", "size", "stride", "scalar")

OPERATIONS: dict[str, tuple[Callable[..., int], str]] = {  # what each operation is: a function, and Python text
    "add": (operator.add, "({} + {})"),
    "sub": (operator.sub, "({} - {})"),
    "mul": (operator.mul, "({} * {})"),
    "floordiv": (operator.floordiv, "({} // {})"),
    "mod": (operator.mod, "({} % {})"),
    "min": (min, "min({}, {})"),
    "max": (max, "max({}, {})"),
    "abs": (abs, "abs({})"),
    "positive": (is_positive, f"({LEAST_NORMAL!r} <= {{}} <= {LARGEST!r})"),  # of a float
    "eq": (operator.eq, "({} == {})"),
    "le": (operator.le, "({} <= {})"),
    "and": (operator.and_, "({} and {})"),  # of conditions
    "or": (operator.or_, "({} or {})"),
}


class Leaf(NamedTuple):
    """A number of argument `argument`: "ptr" (its address), "size" or "stride" (in elements) of dimension `axis`, or
    "scalar" (its value). Arguments are counted among the call's runtime arguments."""

    kind: str
    argument: int
    axis: int | None = None


class Operation(NamedTuple):
    """An operation of `OPERATIONS` on one or two expressions."""

    name: str
    operands: tuple[Expression, ...]


Expression = int | Leaf | Operation


def expression(data: Any) -> Expression:
    """The expression that JSON data stands for. LaunchError if there is no such operation."""
    if not isinstance(data, (list, tuple)):
        return int(data)
    name, *rest = data
    if name in LEAVES:
        return Leaf(name, *rest)
    if name not in OPERATIONS:
        raise LaunchError(f"{name!r} is not an operation of a recipe")
    return Operation(name, tuple(map(expression, rest)))


def fold(x: Expression, constant: Callable[[int], T], leaf: Callable[[Leaf], T], operation: Callable[..., T]) -> T:
    """What an expression becomes if ints, leaves and operations become `constant(n)`, `leaf(x)` and
    `operation(name, *operands)`, operands first and from left to right."""
    if isinstance(x, Operation):
        return operation(x.name, *[fold(y, constant, leaf, operation) for y in x.operands])
    return leaf(x) if isinstance(x, Leaf) else constant(x)


def leaves(x: Expression) -> set[Leaf]:
    """The leaves that occur in an expression."""
    found: set[Leaf] = set()
    fold(x, lambda n: None, found.add, lambda name, *parts: None)
    return found


def python_text(x: Expression, leaf: Callable[[Leaf], str]) -> str:
    """An expression as Python text, in which `leaf` names the leaves."""
    return fold(x, repr, leaf, lambda name, *parts: OPERATIONS[name][1].format(*parts))


def evaluate(x: Expression, arguments: Sequence[Any]) -> int:
    """The value of an expression for `arguments`: things with pointer, shape and strides (elements), and numbers."""
    return as_function(x)(arguments)


def as_function(x: Expression) -> Callable[[Sequence[Any]], int]:
    """An expression as a function of the arguments."""
    return fold(x, lambda n: lambda arguments: n, _reader, _apply)


def _reader(leaf: Leaf) -> Callable[[Any], int]:
    kind, i, d = leaf
    if kind == "scalar":
        return operator.itemgetter(i)
    if kind == "ptr":
        return lambda arguments: arguments[i].pointer
    if kind == "size":
        return lambda arguments: arguments[i].shape[d]
    return lambda arguments: arguments[i].strides[d]


def _apply(name: str, *operands: Callable[[Any], int]) -> Callable[[Any], int]:
    function, a = OPERATIONS[name][0], operands[0]
    if len(operands) == 1:
        return lambda arguments: function(a(arguments))
    b = operands[1]
    return lambda arguments: function(a(arguments), b(arguments))
