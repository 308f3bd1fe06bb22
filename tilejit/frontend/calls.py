"""Calls: ops and builtins of the language, helpers (inlined), casts, and Python's functions on constants."""

from __future__ import annotations

import ast
import enum
import inspect
import math
from types import BuiltinFunctionType, BuiltinMethodType, FunctionType, MethodType
from typing import Any

from ..dtypes import DType
from ..errors import CompilationError
from ..ir.builder import describe
from ..ir.builtin import BoundMethod, Builtin, apply, signature_of
from ..ir.graph import Const, Value
from ..ir.op import Op
from ..names import ELSEWHERE, InstructionName, counterpart, misspelt
from ..ops.language import pointwise, promotion
from ..ops.ptx import calls as ptx_calls
from . import joins
from .branches import evaluate_condition
from .captures import check_capture, of_tilejit, source_of
from .expressions import by_python, describe_value, fold, items
from .names import EXITS, RESULT, Frame, Undefined
from .python import PYTHON
from .source import Source
from .walker import Walker, expression, runtime, where

# layers whose functions cannot be called in kernels
OF_THE_HOST = "runtime", "plan", "testing", "jit", "tuning"
# functions whose first argument is a condition
OF_A_CONDITION = bool, pointwise.where, pointwise.device_assert, pointwise.assume


@expression(ast.Call)
def call_(w: Walker, node: ast.Call) -> Any:
    # read before the arguments are walked: helpers in them have expression statements too
    discarded = node is w.discarded
    function = w.value(node.func)
    first = []
    if node.args and isinstance(node.args[0], ast.BoolOp) and any(function is f for f in OF_A_CONDITION):
        first = [evaluate_condition(w, node.args[0])]
    elif function is len and node.args and not isinstance(node.args[0], ast.Starred):
        first = [describe_value(w, node.args[0])]
    args = (*first, *items(w, node.args[len(first):]))
    kwargs = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise w.error("** arguments are not supported; write them one by one", keyword.value)
        kwargs[keyword.arg] = w.value(keyword.value)
    w.g.discarded = discarded
    return call(w, function, args, kwargs)


def call(w: Walker, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call anything that a kernel may call, at the builder's source location."""
    if isinstance(function, (Op, Builtin, BoundMethod)):
        return apply(w.g, function, args, kwargs)
    if isinstance(function, InstructionName):
        return ptx_calls.call(w.g, function, args, dict(kwargs))
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
    if (isinstance(function, (MethodType, BuiltinMethodType))
        and isinstance(getattr(function, "__self__", None), (str, tuple, int, float))):
        return _folded_call(w, name, function, args, kwargs, function.__self__)
    short: str = getattr(function, "__name__", "")
    if getattr(function, "__module__", None) == "math" and getattr(math, short, None) is function:
        return _folded_call(w, "math." + short, function, args, kwargs)
    if isinstance(function, type) and issubclass(function, (str, enum.Enum)):
        return _folded_call(w, name, function, args, kwargs)
    if ours:
        if (getattr(function, "__module__", None) or "").removeprefix("tilejit.").partition(".")[0] in OF_THE_HOST:
            raise w.error(f"tile.{name} is called outside of kernels"
                          + (f"; in a kernel write {ELSEWHERE[name]}" if name in ELSEWHERE else ""))
        if not isinstance(function, type) or "__init__" in vars(function):
            _bound(w, f"tile.{name}", inspect.signature(function), args, kwargs)
        _check_known(w, f"tile.{name}", (*args, *kwargs.values()))
        return function(*args, **kwargs)
    if isinstance(function, FunctionType):
        plain = "a plain Python function; decorate it with @tile.jit to call it in a kernel"
        raise w.error(f"{name} is {counterpart(function) or plain}")
    unknown = "not part of the language and cannot be called in a kernel"
    raise w.error(f"{name or describe(function)} is {counterpart(function) or unknown}")


def _folded_call(w: Walker, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
                 of: Any = None) -> Any:
    _check_known(w, name, (of, *args, *kwargs.values()),
                 f"; use tile.{function.__name__}" if name.startswith("math.") else "")
    return fold(w, function, *args, **kwargs)


def _check_known(w: Walker, name: str, values: tuple[Any, ...], other: str = "") -> None:
    """CompilationError if one of `values`, the arguments of a compile-time function, is a run-time value; `other`
    says what to write instead."""
    for x in values:
        if runtime(x):
            raise w.error(f"{name} is computed while compiling, and {describe(x)} is known at run time only{other}"
                          + w.g.declared_constant(x))


# -- helpers -----------------------------------------------------------------------------------------------------------

def inline(w: Walker, source: Source, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Walk a helper's body at its call, in a frame of its own; gives what it returns."""
    caller = w.frame
    if any(frame.source is source or frame.source.tree is source.tree for frame in caller.chain()):
        raise w.error(f"{source.name} calls itself; kernels have no recursion, write a loop")
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
