"""Facts about a call's arguments, and integer expressions over the arguments, as plain data that several readers share.

A fact is a question that compilation asks about arguments, and that a launch then checks as a guard:
``["size_multiple", 0, 1, 64]``. An expression is an int, ``["ptr", i]``, ``["size", i, d]``, ``["stride", i, d]``
(elements), ``["scalar", i]``, or an operation on expressions: add, sub, mul, floordiv, mod, min, max, abs, eq, le, and,
or. `i` counts the call's runtime arguments. This module evaluates expressions and prints them as Python; `native_ir`
prints them as LLVM IR."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any

from ..errors import LaunchError
from .element_types import element_type

INT32_LIMIT = 2 ** 31
LAST_STEP = 2 ** 20  # a loop over an array may overshoot its end by this much without an index beyond INT32_LIMIT

OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "mod": operator.mod, "min": min, "max": max, "abs": abs,
    "eq": operator.eq, "le": operator.le,
    "and": lambda a, b: bool(a and b), "or": lambda a, b: bool(a or b),
}
_PYTHON = {"add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "floordiv": "({} // {})", "mod": "({} % {})",
           "min": "min({}, {})", "max": "max({}, {})", "abs": "abs({})", "eq": "({} == {})", "le": "({} <= {})",
           "and": "({} and {})", "or": "({} or {})"}
LEAVES = ("ptr", "size", "stride", "scalar")


# -- what each fact means --------------------------------------------------------------------------------------------

def condition(fact, arguments) -> list:
    """The expression that is true if `fact` holds.

    `arguments` are the kinds of the runtime arguments, ``["array", dtype, rank]`` or ``["scalar", dtype]``. A stride
    along an extent of at most 1 is never used, nor is any stride or the address of an array without elements, so every
    fact about them holds."""
    kind, i, *rest = fact
    match kind:
        case "aligned":
            held = ["eq", ["mod", ["ptr", i], rest[0]], 0]
            return ["or", held, _empty(i, range(arguments[i][2]))] if arguments[i][2] else held
        case "size_multiple":
            return ["eq", ["mod", ["size", i, rest[0]], rest[1]], 0]
        case "size_is":
            return ["eq", ["size", i, rest[0]], rest[1]]
        case "size_at_least":
            return ["le", rest[1], ["size", i, rest[0]]]
        case "size_within":
            return ["le", ["size", i, rest[0]], ["size", *rest[1:]] if len(rest) > 2 else ["scalar", rest[1]]]
        case "stride_multiple":
            return ["or", ["eq", ["mod", ["stride", i, rest[0]], rest[1]], 0], _unused(i, rest[0], arguments[i][2])]
        case "stride_is":
            return ["or", ["eq", ["stride", i, rest[0]], rest[1]], _unused(i, rest[0], arguments[i][2])]
        case "stride_at_least":
            return ["or", ["le", rest[1], ["stride", i, rest[0]]], _unused(i, rest[0], arguments[i][2])]
        case "fits32":
            return _fits32(i, arguments[i])
        case "scalar_fits32":
            return ["and", ["le", -INT32_LIMIT, ["scalar", i]], ["le", ["scalar", i], INT32_LIMIT - 1]]
        case "scalar_multiple":
            return ["and", ["le", 0, ["scalar", i]], ["eq", ["mod", ["scalar", i], rest[0]], 0]]
        case "scalar_between":
            return ["and", ["le", rest[0], ["scalar", i]], ["le", ["scalar", i], rest[1]]]
        case "no_overlap":
            low, high = _interval(i, arguments[i])
            other_low, other_high = _interval(rest[0], arguments[rest[0]])
            return ["or", ["le", high, other_low], ["le", other_high, low]]
    raise LaunchError(f"{fact!r} is not a fact")


def _empty(i: int, dims) -> list:
    """An expression for whether one of these dimensions has extent 0."""
    return ["eq", reduce(lambda a, b: ["min", a, b], [["size", i, d] for d in dims]), 0]


def _unused(i: int, d: int, rank: int) -> list:
    """An expression for whether a stride is never used: its extent is at most 1, or the array has no elements."""
    few = ["le", ["size", i, d], 1]
    return ["or", few, _empty(i, [k for k in range(rank) if k != d])] if rank > 1 else few


def _fits32(i: int, argument) -> list:
    """Every stride, and the array's span in bytes, is below 2^31, and so is every extent plus LAST_STEP."""
    rank = argument[2]
    parts = []
    for d in range(rank):
        parts += [["le", ["size", i, d], INT32_LIMIT - LAST_STEP], ["le", ["stride", i, d], INT32_LIMIT - 1],
                  ["le", 1 - INT32_LIMIT, ["stride", i, d]]]
    reaches = _reaches(i, rank)
    if rank > 2:  # each product is below 2^62 if the limits above hold: a sum of two fits in 64 bits, one of three may not
        reaches = [["min", reach, 2 ** 40] for reach in reaches]
    span = ["le", _all("add", [1, *reaches]), (INT32_LIMIT - 1) // element_type(argument[1]).nbytes]
    for d in range(rank):
        span = ["or", ["eq", ["size", i, d], 0], span]
    return _all("and", [*parts, span])


def _reaches(i: int, rank: int) -> list:
    """The distance in elements between the lowest and the highest index along each dimension."""
    return [["mul", ["abs", ["stride", i, d]], ["sub", ["size", i, d], 1]] for d in range(rank)]


def _interval(i: int, argument) -> tuple[list, list]:
    """Expressions for the first address of an array's elements and the address after the last; equal if it has no
    elements."""
    nbytes, rank = element_type(argument[1]).nbytes, argument[2]
    below = _all("add", [0, *(["mul", ["min", ["stride", i, d], 0], ["sub", ["size", i, d], 1]] for d in range(rank))])
    low = ["add", ["ptr", i], ["mul", below, nbytes]]
    elements = _all("add", [1, *_reaches(i, rank)])
    filled = _all("mul", [1, *(["min", ["size", i, d], 1] for d in range(rank))])
    return low, ["add", low, ["mul", ["mul", elements, filled], nbytes]]


def _all(name: str, parts: list):
    return reduce(lambda a, b: [name, a, b], parts)


# -- readers ---------------------------------------------------------------------------------------------------------

def evaluate(expression, arguments) -> int:
    """The value of an expression for `arguments`: things with pointer, shape and strides (elements), and numbers."""
    return _function(expression)(arguments)


def _function(expression) -> Callable:
    """An expression as a function of the arguments."""
    if not isinstance(expression, (list, tuple)):
        return lambda arguments: expression
    name, *rest = expression
    if name not in LEAVES:
        operation, parts = OPERATIONS[name], [_function(part) for part in rest]
        if len(parts) == 1:
            return lambda arguments, part=parts[0]: operation(part(arguments))
        return lambda arguments, a=parts[0], b=parts[1]: operation(a(arguments), b(arguments))
    i, d = (*rest, None)[:2]
    if name == "ptr":
        return lambda arguments: arguments[i].pointer
    if name == "size":
        return lambda arguments: arguments[i].shape[d]
    if name == "stride":
        return lambda arguments: arguments[i].strides[d]
    return lambda arguments: arguments[i]


def python(expression) -> str:
    """An expression as Python text over p0 (argument 0's pointer), n0_1 and m0_1 (extent and stride of its dimension 1) and
    x0 (a scalar)."""
    if not isinstance(expression, (list, tuple)):
        return repr(expression)
    name, *rest = expression
    if name in LEAVES:
        return {"ptr": "p", "size": "n", "stride": "m", "scalar": "x"}[name] + "_".join(map(str, rest))
    return _PYTHON[name].format(*map(python, rest))


def kind_of(argument) -> list:
    """``["array", dtype, rank]`` for an array, ``["scalar", dtype]`` for a number."""
    if hasattr(argument, "strides"):
        dtype = argument.dtype
        return ["array", getattr(dtype, "name", None) or str(dtype), len(argument.shape)]
    if isinstance(argument, bool):
        return ["scalar", "bool"]
    if isinstance(argument, int):
        return ["scalar", "int32" if -INT32_LIMIT <= argument < INT32_LIMIT else "int64"]
    if isinstance(argument, float):
        return ["scalar", "float32"]
    return ["scalar", argument.dtype.name]


def evaluate_fact(fact, arguments, kinds: tuple[tuple, ...] | None = None) -> bool:
    """Whether `fact` holds for a call's runtime arguments: arrays with pointer, shape, strides (elements) and dtype, and
    numbers. `kinds` are their kinds, if already known. Compiling and launching share this one definition."""
    return bool(_question(tuple(fact), kinds or tuple(tuple(kind_of(argument)) for argument in arguments))(arguments))


@lru_cache(maxsize=4096)
def _question(fact: tuple, kinds: tuple[tuple, ...]) -> Callable:
    """A fact's condition as a function of the arguments. Each call of a kernel on the simulator asks about ten again."""
    return _function(condition(fact, kinds))


def describe_fact(fact, names=()) -> str:
    """The fact in words, with the arguments called by `names`."""
    kind, i, *rest = fact
    name = _named(i, names)
    match kind:
        case "aligned":
            return f"{name} starts at a multiple of {rest[0]} bytes"
        case "size_multiple":
            return f"{name}.shape[{rest[0]}] is a multiple of {rest[1]}"
        case "size_is":
            return f"{name}.shape[{rest[0]}] is {rest[1]}"
        case "size_at_least":
            return f"{name}.shape[{rest[0]}] is at least {rest[1]}"
        case "size_within":
            return f"{name}.shape[{rest[0]}] is at most {_named(rest[1], names)}" + "".join(f".shape[{d}]" for d in rest[2:])
        case "stride_multiple":
            return f"{name}.strides[{rest[0]}] is a multiple of {rest[1]} elements"
        case "stride_is":
            return f"{name}.strides[{rest[0]}] is {rest[1]}"
        case "stride_at_least":
            return f"{name}.strides[{rest[0]}] is at least {rest[1]}"
        case "fits32":
            return f"offsets in {name} fit in 32 bits"
        case "scalar_fits32":
            return f"{name} fits in 32 bits"
        case "scalar_multiple":
            return f"{name} is a multiple of {rest[0]}, and not negative"
        case "scalar_between":
            return f"{name} is {rest[0]}" + (f" to {rest[1]}" if rest[1] != rest[0] else "")
        case "no_overlap":
            return f"{name} does not overlap {_named(rest[0], names)}"
    return repr(fact)


def _named(i: int, names) -> str:
    return names[i] if i < len(names) else f"argument {i}"
