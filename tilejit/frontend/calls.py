"""Calls: ops and builtins of the language, helpers (inlined), casts, and Python's functions on constants."""

from __future__ import annotations

import ast
import enum
import inspect
import math
from collections.abc import Callable
from types import BuiltinFunctionType, BuiltinMethodType, FunctionType, MethodType
from typing import Any

from ..dtypes import DType
from ..errors import CompilationError
from ..ir.builder import describe, type_of
from ..ir.builtin import BoundMethod, Builtin, apply, signature_of
from ..ir.graph import Const, Value
from ..ir.op import Op
from ..names import ELSEWHERE, InstructionName, counterpart, misspelt
from ..ops.language import pointwise, promotion
from ..ops.ptx import calls as ptx_calls
from . import joins
from .branches import evaluate_condition
from .captures import check_capture, of_tilejit, source_of, token
from .containers import Lambda, change
from .expressions import by_python, describe_value, items
from .names import EXITS, RESULT, Frame, Undefined, changed_in_place
from .plain_calls import PURE, call_folded, call_plain, check_known, checked_result
from .python import PYTHON
from .source import Source
from .walker import Walker, expression, runtime, where

# methods of a dict that also take run-time values, which they only pass on
VIEWS: dict[str, Callable[..., Any]] = {"get": dict.get, "copy": dict.copy, "keys": lambda d: tuple(d),
                                        "values": lambda d: tuple(d.values()), "items": lambda d: tuple(d.items())}
# layers whose functions cannot be called in kernels
OF_THE_HOST = "runtime", "plan", "testing", "jit", "tuning"
# functions whose first argument is a condition
OF_A_CONDITION = bool, pointwise.where, pointwise.device_assert, pointwise.assume


@expression(ast.Call)
def call_(w: Walker, node: ast.Call) -> Any:
    # read before the arguments are walked: helpers in them have expression statements too
    discarded = node is w.discarded
    if changed_in_place(node) is not None and isinstance(node.func, ast.Attribute):
        held = w.value(node.func.value)
        if isinstance(held, (list, dict, set)):
            return change(w, node.func.value, node.func.attr, tuple(items(w, node.args)), keywords(w, node))
    function = w.value(node.func)
    first = []
    if node.args and isinstance(node.args[0], ast.BoolOp) and any(function is f for f in OF_A_CONDITION):
        first = [evaluate_condition(w, node.args[0])]
    elif function is len and node.args and not isinstance(node.args[0], ast.Starred):
        first = [describe_value(w, node.args[0])]
    args = (*first, *items(w, node.args[len(first):]))
    kwargs = keywords(w, node)
    w.g.discarded = discarded
    return call(w, function, args, kwargs)


def keywords(w: Walker, node: ast.Call) -> dict[str, Any]:
    """A call's arguments by keyword; ``**d`` spreads a dict."""
    found: dict[str, Any] = {}
    for keyword in node.keywords:
        value = w.value(keyword.value)
        given = {keyword.arg: value} if keyword.arg is not None else value
        if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
            raise w.error(f"** spreads a dict whose keys are names, not {describe(value)}", keyword.value)
        for name, part in given.items():
            if name in found:
                raise w.error(f"{name!r} is given twice", keyword.value)
            found[name] = part
    return found


def call(w: Walker, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call anything that a kernel may call, at the builder's source location."""
    if isinstance(function, (Op, Builtin, BoundMethod)):
        return apply(w.g, function, args, kwargs)
    if isinstance(function, InstructionName):
        return ptx_calls.call(w.g, function, args, dict(kwargs))
    if isinstance(function, Lambda):
        return function(*args, **kwargs)
    helper = source_of(function)
    if helper is not None:
        return inline(w, helper, args, kwargs)
    if isinstance(function, DType):
        return cast(w, function, *_bound(w, function.name, _CAST, args, kwargs))
    rule = PYTHON.get(function) if _hashable(function) else None
    if rule is not None:
        _bound(w, function.__name__, signature_of(rule), (w, *args), kwargs)
        return rule(w, *args, **kwargs)
    if joins.is_record(function):
        with by_python(w):
            return function(*_bound(w, function.__name__, inspect.signature(function), args, kwargs))
    return _python_call(w, function, args, kwargs)


def _hashable(x: Any) -> bool:
    return isinstance(x, (type, BuiltinFunctionType, FunctionType))


_CAST = inspect.signature(lambda x: None)


def _bound(w: Walker, name: str, signature: inspect.Signature, args: tuple[Any, ...],
           kwargs: dict[str, Any]) -> tuple[Any, ...]:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise _misfit(w, name, signature, kwargs, error) from None
    bound.apply_defaults()
    return tuple(bound.arguments.values())


def _misfit(w: Walker, name: str, signature: inspect.Signature, kwargs: dict[str, Any],
            error: TypeError) -> CompilationError:
    shown = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "w"]
    return w.error(f"{name}{inspect.Signature(shown)}: {error}{misspelt(kwargs, signature.parameters)}")


def cast(w: Walker, dtype: DType, x: Any) -> Any:
    """``tile.float32(x)``: `x` with another element type."""
    x = x.value if isinstance(x, Const) else x
    return promotion.strong_cast(w.g, x, dtype)


# -- Python's own functions --------------------------------------------------------------------------------------------

def _python_call(w: Walker, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function or class of Python or of this package on compile-time arguments.
    CompilationError if a kernel cannot call it."""
    name: str = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or ""
    if not callable(function):
        raise w.error(f"{describe(function)} cannot be called")
    ours = of_tilejit(function) or of_tilejit(type(getattr(function, "__self__", None)))
    short: str = getattr(function, "__name__", "")
    if isinstance(function, (MethodType, BuiltinMethodType)) and isinstance(function.__self__, OF_CONSTANTS):
        return _call_method(w, name, function, args, kwargs)
    if getattr(function, "__module__", None) == "math" and getattr(math, short, None) is function:
        return call_folded(w, "math." + short, function, args, kwargs)
    if isinstance(function, type) and issubclass(function, (str, enum.Enum)):
        return call_folded(w, name, function, args, kwargs)
    if ours:
        if (getattr(function, "__module__", None) or "").removeprefix("tilejit.").partition(".")[0] in OF_THE_HOST:
            raise w.error(f"tile.{name} is called outside of kernels"
                          + (f"; in a kernel write {ELSEWHERE[name]}" if name in ELSEWHERE else ""))
        if not isinstance(function, type) or "__init__" in vars(function):
            _bound(w, f"tile.{name}", inspect.signature(function), args, kwargs)
        check_known(w, f"tile.{name}", (*args, *kwargs.values()))
        return function(*args, **kwargs)
    plain = function.__func__ if isinstance(function, MethodType) else function
    if isinstance(plain, FunctionType) and not counterpart(function):
        return call_plain(w, name, plain, function, args, kwargs)
    if isinstance(function, BuiltinFunctionType | type) and getattr(function, "__module__", None) in PURE:
        return checked_result(w, name, call_folded(w, name, function, args, kwargs))
    unknown = "not part of the language and cannot be called in a kernel"
    raise w.error(f"{name or describe(function)} is {counterpart(function) or unknown}")


OF_CONSTANTS = str, tuple, int, float, list, dict, set, frozenset  # classes whose methods fold


def _call_method(w: Walker, name: str, method: MethodType | BuiltinMethodType, args: tuple[Any, ...],
                 kwargs: dict[str, Any]) -> Any:
    """Call a method of a number, a string or a container."""
    held, short = method.__self__, method.__name__
    if isinstance(held, dict) and short in VIEWS and not runtime(args[:1]):
        with by_python(w):
            return VIEWS[short](held, *args, **kwargs)
    return call_folded(w, name, method, args, kwargs, held)


# -- helpers -----------------------------------------------------------------------------------------------------------

def inline(w: Walker, source: Source, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Walk a helper's body at its call, in a frame of its own; gives what it returns."""
    caller = w.frame
    try:
        taken = source.taken(len(args), tuple(kwargs))
    except TypeError as error:
        raise _misfit(w, source.name, source.signature, kwargs, error) from None
    given = (*args, *kwargs.values())

    def at(n: int | tuple[int, ...]) -> Any:
        return tuple(given[i] for i in n) if isinstance(n, tuple) else given[n]

    values = [param.default if n is None else at(n) for n, param in zip(taken, source.params)]
    places = w.places.setdefault((source, w.g.loc), {})
    frame = Frame(source, caller.cells(), w.home, w.g.loc, caller, places)
    for param, value in zip(source.params, values):
        if param.constexpr and runtime(value):
            raise w.error(f"{param.name} of {source.name} is a tile.constexpr, "
                          f"and {describe(value)} is known at run time only"
                          + w.g.declared_constant(value))
    _check_recursion(w, frame, values)
    w.frame = frame
    try:
        for param, value in zip(source.params, values):
            w.put(param.name,
                  check_capture(f"{param.name} of {source.name}", value) if value is param.default else value)
        result = run(w)
    finally:
        w.frame = caller
    caller.env.update(frame.cells())
    return result


RECURSION = 64  # calls of one helper within each other


def _check_recursion(w: Walker, frame: Frame, values: list[Any]) -> None:
    """CompilationError if a helper calls itself without an end that is known while compiling: with the constants of
    an enclosing call, or too often."""
    source = frame.source
    around = [f for f in frame.chain() if f is not frame and (f.source is source or f.source.tree is source.tree)]
    frame.constants = tuple(map(_constants_of, values))
    advice = "; recursion is over constants, under an `if` on them; at run time write a loop"
    if any(f.constants == frame.constants or f.caller is None for f in around):
        raise w.error(f"{source.name} calls itself without an end that is known while compiling{advice}")
    if len(around) >= RECURSION:
        raise CompilationError(f"{source.name} calls itself more than {RECURSION} times{advice}", around[-1].call_site)


def _constants_of(x: Any) -> Any:
    """What is known of an argument while compiling: a constant's token, a run-time value's type."""
    parts = joins.fields_of(x)
    if parts is not None:
        return joins.kind_of(x), tuple(map(_constants_of, parts))
    return type_of(x) if isinstance(x, Value) else token(x)


def run(w: Walker) -> Any:
    """Walk the body of the current frame's function; gives what it returns."""
    for name in EXITS:
        w.put(name, False)
    w.statements(w.frame.source.tree.body)
    env = w.frame.env
    entry = env.get(RESULT)
    if entry is None:
        return None
    if isinstance(entry.value, Undefined):
        raise CompilationError(f"what {w.frame.source.name} returns {entry.value.why}", w.g.loc)
    if env["return"].value is not True and entry.value is not None and isinstance(env["return"].value, Value):
        raise CompilationError(f"{w.frame.source.name} returns a value on one path and none on another"
                               + where("it returns", entry.loc), w.g.loc)
    return entry.value
