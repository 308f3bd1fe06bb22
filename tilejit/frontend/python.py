"""Python's builtin functions in kernels.

Python computes them on constants, the language's ops on run-time values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

from ..dtypes import DType, bool_, float32, int32
from ..ir.builder import describe, type_of
from ..ir.builtin import apply, member
from ..ir.graph import Const, Value
from ..ops.language import pointwise, promotion
from ..ops.ptx import on_simulator
from ..types import Buffer, Points, Region, Scalar, Tile
from . import joins
from .containers import Lambda, make_set, put_item, sequence
from .expressions import by_python, fold, operator
from .names import EXITS, Undefined
from .ranges import range_
from .walker import Rule, Walker, runtime

PYTHON: dict[Any, Callable[..., Any]] = {}


def python(function: Any) -> Callable[[Rule], Rule]:
    """Register the rule for a builtin function of Python."""
    def register(rule: Rule) -> Rule:
        PYTHON[function] = rule
        return rule
    return register


def _extreme(name: str, folding: Callable[..., Any], builtin: Any) -> Callable[..., Any]:
    """The rule of `min` or `max`: Python's function on constants, else the language's op, applied pairwise."""
    def rule(w: Walker, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            return by_key(w, folding, args, kwargs)
        args = sequence(w, args[0], name) if len(args) == 1 and isinstance(args[0], (tuple, list, dict)) else args
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
def _(w: Walker, *values: Any, sep: str = " ") -> None:
    operands: list[Value] = []
    parts = tuple(_show(w, x, operands) for x in values)
    for x, part in zip(values, parts):
        if part is _HIDDEN:
            raise w.error(f"print shows scalars, register tiles, and buffers in global and shared memory, "
                          f"not {describe(x)}")
    w.g.call(on_simulator.host_print, *operands, parts=parts, sep=str(sep))


@python(breakpoint)
def _(w: Walker) -> None:
    operands: list[Value] = []
    names = []
    for name, entry in w.frame.env.items():
        known = len(operands)
        shown = _HIDDEN if isinstance(entry.value, Undefined) else _show(w, entry.value, operands)
        if shown is _HIDDEN or not str(name).isidentifier() or name in EXITS or not w.enters(name, entry):
            del operands[known:]
        else:
            names.append((name, shown))
    w.g.call(on_simulator.breakpoint_, *operands, names=tuple(names))


_HIDDEN = object()  # what the host cannot be shown


def _show(w: Walker, x: Any, operands: list[Value]) -> Any:
    """`x` for the host, with its run-time values among `operands`; `_HIDDEN` for what it cannot be shown."""
    t = type_of(x)
    if isinstance(x, Value):
        buffer = t.buffer if isinstance(t, (Region, Points)) else t
        visible = (isinstance(t, (Scalar, Tile)) or isinstance(buffer, Buffer) and buffer.scope in ("global", "shared"))
        if not visible or isinstance(t, Tile) and w.g.scope.partial is not None:
            return _HIDDEN
        operands.append(x)
        return on_simulator.Shown(len(operands) - 1)
    if isinstance(x, Const):
        return x.value
    if isinstance(x, (tuple, list)):
        parts = tuple(_show(w, part, operands) for part in x)
        return _HIDDEN if _HIDDEN in parts else parts
    return x if x is None or isinstance(x, (bool, int, float, str, DType)) else _HIDDEN


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


@python(list)
def _(w: Walker, x: Any = ()) -> list[Any]:
    return list(sequence(w, x, "list"))


@python(dict)
def _(w: Walker, *args: Any, **kwargs: Any) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    if len(args) > 1:
        raise w.error("dict takes a dict, or pairs of keys and values, and values by keyword")
    given = args[0] if args else ()
    pairs = given.items() if isinstance(given, dict) else sequence(w, given, "dict")
    for pair in pairs:
        if not isinstance(pair, (tuple, list)):
            raise w.error(f"dict takes pairs of a key and a value, not {describe(pair)}")
        if len(pair) != 2:
            raise w.error(f"dict takes pairs of a key and a value, and one of these has {len(pair)} parts")
        put_item(w, made, *pair)
    return made | kwargs


@python(set)
def _(w: Walker, x: Any = ()) -> set[Any]:
    return make_set(w, list(x if isinstance(x, (set, frozenset)) else sequence(w, x, "set")))


@python(frozenset)
def _(w: Walker, x: Any = ()) -> frozenset[Any]:
    return frozenset(make_set(w, list(x if isinstance(x, (set, frozenset)) else sequence(w, x, "frozenset"))))


def by_key(w: Walker, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`sorted`, `min` or `max` of compile-time sequences, with `key=` and other keywords."""
    name: str = function.__name__
    parts: Iterable[Any] = args
    if len(args) == 1:
        parts = args[0] if isinstance(args[0], (set, frozenset)) else sequence(w, args[0], name)
    key = kwargs.get("key")
    keys = list(map(key, parts)) if isinstance(key, Lambda) else list(parts)
    if runtime(keys) and (key is None or isinstance(key, Lambda)):
        raise w.error(f"{name} compares while compiling, and some of these are known at run time only")
    with by_python(w):
        return function(parts, **kwargs)


@python(sorted)
def _(w: Walker, x: Any, /, **kwargs: Any) -> list[Any]:
    found: list[Any] = by_key(w, sorted, (x,), kwargs)
    return found


@python(map)
def _(w: Walker, function: Any, *xs: Any) -> tuple[Any, ...]:
    return tuple(w.g.invoke(function, part, {}) for part in zip(*(sequence(w, x, "map") for x in xs)))


@python(filter)
def _(w: Walker, function: Any, x: Any) -> tuple[Any, ...]:
    kept = []
    for part in sequence(w, x, "filter"):
        held = part if function is None else w.g.invoke(function, (part,), {})
        if runtime(held):
            raise w.error("filter decides while compiling, and what its function returns is known at run time only")
        if held:
            kept.append(part)
    return tuple(kept)


@python(getattr)
def _(w: Walker, x: Any, name: Any, *default: Any) -> Any:
    if not isinstance(name, str):
        raise w.error(f"the name of an attribute is a string, not {describe(name)}")
    if joins.is_runtime(x):
        return member(w.g, x, name)
    with by_python(w):
        return getattr(x, name, *default)


@python(hasattr)
def _(w: Walker, x: Any, name: Any) -> bool:
    return not joins.is_runtime(x) and fold(w, hasattr, x, name)


@python(type)
def _(w: Walker, x: Any) -> Any:
    if joins.is_runtime(x):
        raise w.error(f"{describe(x)} has no class of Python; its element type is .dtype")
    return type(x)


def _on_constants(function: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of a function of Python that kernels call on constants only."""
    def rule(w: Walker, *args: Any, **kwargs: Any) -> Any:
        for x in (*args, *kwargs.values()):
            if runtime(x):
                raise w.error(f"{function.__name__} is computed while compiling, and {describe(x)} is known at run "
                              "time only" + w.g.declared_constant(x))
        return fold(w, function, *args, **kwargs)
    return rule


PYTHON.update({f: _on_constants(f) for f in (repr, ascii, format, ord, chr, hex, bin, oct, callable, issubclass)})


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
