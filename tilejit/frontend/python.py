"""Python's builtin functions in kernels: on constants Python computes them,
on run-time values the language's ops do."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from ..dtypes import DType, bool_, float32, int32
from ..ir.builder import describe, type_of
from ..ir.builtin import apply, member
from ..ir.graph import Const
from ..ops.language import pointwise, promotion
from ..types import Buffer, Points, Region, Tile
from . import joins
from .expressions import fold, numbers, operator
from .ranges import LoopRange, StaticRange, range_
from .walker import Rule, Walker, runtime

PYTHON: dict[Any, Callable[..., Any]] = {}


def python(function: Any) -> Callable[[Rule], Rule]:
    """Register the rule for a builtin function of Python."""
    def register(rule: Rule) -> Rule:
        PYTHON[function] = rule
        return rule
    return register


def sequence(w: Walker, x: Any, what: str) -> tuple[Any, ...]:
    """A compile-time sequence as a tuple; `what` names the function that takes it, for the error."""
    if isinstance(x, (LoopRange, StaticRange)):
        return tuple(numbers(w, x))
    if isinstance(x, (tuple, str)):
        return tuple(x)
    raise w.error(f"{what} takes tuples and ranges that are known while compiling, not {describe(x)}")


def _extreme(name: str, folding: Callable[..., Any], builtin: Any) -> Callable[..., Any]:
    """The rule of `min` or `max`: Python's function on constants, else the language's op, applied pairwise."""
    def rule(w: Walker, *args: Any) -> Any:
        args = args if len(args) != 1 or not isinstance(args[0], tuple) else args[0]
        if not args:
            raise w.error(f"{name} of nothing")
        if len(args) == 1 and joins.is_runtime(args[0]):
            raise w.error(f"{name}imum takes several values; the {name}imum of one tile is tile.{name}(x)")
        if not any(map(joins.is_runtime, args)):
            return fold(w, folding, args)
        return reduce(lambda a, b: apply(w.g, builtin, (a, b), {}), args)
    return rule


PYTHON[min], PYTHON[max] = _extreme("min", min, pointwise.minimum), _extreme("max", max, pointwise.maximum)


@python(range)
def _(w: Walker, *args: Any) -> Any:
    return apply(w.g, range_, args, {})


@python(len)
def _(w: Walker, x: Any) -> Any:
    if isinstance(type_of(x), (Buffer, Region, Points, Tile)) and joins.is_runtime(x):
        shape = member(w.g, x, "shape")
        return shape[0] if shape else fold(w, len, x)
    return len(sequence(w, x, "len"))


@python(abs)
def _(w: Walker, x: Any) -> Any:
    return apply(w.g, pointwise.abs, (x,), {}) if runtime(x) else fold(w, abs, x)


@python(pow)
def _(w: Walker, base: Any, exp: Any, mod: Any = None) -> Any:
    if mod is None:
        return operator(w, "**", base, exp)
    if any(map(runtime, (base, exp, mod))):
        raise w.error("pow with a modulus is computed while compiling; at run time write pow(base, exp) % mod, "
                      "or a loop whose products stay in range")
    return fold(w, pow, base, exp, mod)


@python(divmod)
def _(w: Walker, x: Any, y: Any, /) -> tuple[Any, ...]:
    return operator(w, "//", x, y), operator(w, "%", x, y)


@python(print)
def _(w: Walker, *args: Any, **kwargs: Any) -> None:
    raise w.error("print what the kernel computes with tile.device_print(...), and what is known while compiling "
                  "with tile.static_print(...)")


def _conversion(kind: type, dtype: DType) -> Callable[..., Any]:
    def rule(w: Walker, x: Any = 0) -> Any:
        x = x.value if isinstance(x, Const) else x
        if not runtime(x):
            return fold(w, kind, x)
        if kind is bool:
            return promotion.as_condition(w.g, x)
        if promotion.number(w.g, x).dtype.is_int and dtype.is_int:
            return x
        return promotion.convert(w.g, x, dtype)
    return rule


PYTHON[int], PYTHON[float], PYTHON[bool] = (_conversion(int, int32), _conversion(float, float32),
                                            _conversion(bool, bool_))


@python(tuple)
def _(w: Walker, x: Any = ()) -> tuple[Any, ...]:
    return sequence(w, x, "tuple")


@python(slice)
def _(w: Walker, *args: Any) -> slice:
    if not 1 <= len(args) <= 3:
        raise w.error("slice takes a stop, or a start and a stop, or a start, a stop and a step")
    return slice(*args)


@python(enumerate)
def _(w: Walker, x: Any, start: Any = 0) -> tuple[Any, ...]:
    return tuple(fold(w, enumerate, sequence(w, x, "enumerate"), start))


@python(zip)
def _(w: Walker, *xs: Any) -> tuple[Any, ...]:
    return tuple(zip(*(sequence(w, x, "zip") for x in xs)))


@python(reversed)
def _(w: Walker, x: Any) -> tuple[Any, ...]:
    return sequence(w, x, "reversed")[::-1]


@python(sum)
def _(w: Walker, x: Any, start: Any = 0) -> Any:
    if joins.is_runtime(x):
        raise w.error("the sum of a tile is tile.sum(x)")
    return reduce(lambda a, b: operator(w, "+", a, b), sequence(w, x, "sum"), start)


def _fold_predicate(name: str, function: Callable[[Any], bool]) -> Callable[..., Any]:
    def rule(w: Walker, x: Any) -> bool:
        parts = () if joins.is_runtime(x) else sequence(w, x, name)
        if joins.is_runtime(x) or runtime(parts):
            raise w.error(f"{name} decides while compiling; at run time write tile.{name}(x), or `and` and `or`")
        return function(parts)
    return rule


PYTHON[all], PYTHON[any] = _fold_predicate("all", all), _fold_predicate("any", any)


@python(isinstance)
def _(w: Walker, x: Any, kind: Any) -> bool:
    return not joins.is_runtime(x) and bool(fold(w, isinstance, x, kind))


@python(round)
def _(w: Walker, x: Any, digits: Any = None) -> Any:
    if runtime(x):
        raise w.error(f"round is computed while compiling, and {describe(x)} is known at run time only; use tile.round")
    return fold(w, round, x, digits)


@python(str)
def _(w: Walker, x: Any = "") -> str:
    if runtime(x):
        raise w.error(f"str is computed while compiling, and {describe(x)} is known at run time only; "
                      "use tile.device_print")
    return str(x)
