"""Calls of functions on constants, while compiling: plain functions of the user, those of Python's library, methods."""

from __future__ import annotations

import inspect
import sys
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any

from ..errors import CompilationError, TileError
from ..ir.builder import describe
from . import joins
from .captures import Capture, check_number, of_tilejit
from .expressions import by_python, fold
from .plain import Function, free_paths, is_installed
from .ranges import UNROLLED_AT_MOST
from .walker import Walker, runtime

# modules of Python's library whose functions compute a result from their arguments, and nothing else
PURE = frozenset(("operator", "_operator", "functools", "_functools", "itertools", "fractions", "statistics", "string",
                  "bisect", "_bisect", "cmath", "decimal", "collections", "struct", "_struct"))


def call_plain(w: Walker, name: str, plain: FunctionType, function: Any, args: tuple[Any, ...],
                kwargs: dict[str, Any]) -> Any:
    """Call a plain function of Python with constants; it runs in Python, while compiling. What it reads from the code
    around it is captured, as if the kernel read it."""
    for x in (*args, *kwargs.values()):
        if runtime(x):
            raise w.error(f"{name} is a plain Python function, which runs while compiling, and {describe(x)} is known "
                          "at run time only; decorate it with @tile.jit to call it in a kernel"
                          + w.g.declared_constant(x))
    with by_python(w):
        inspect.signature(function).bind(*args, **kwargs)
    if not is_installed(plain):
        _capture_reads(w, plain, name)
    given = copy_containers((args, kwargs))
    try:
        result = function(*given[0], **given[1])
    except TileError as error:
        if error.loc is not None:
            raise
        raise w.error(f"{name} is a plain Python function, which runs while compiling, and raised: {error}; to use the "
                      "kernel's own functions in it, decorate it with @tile.jit") from None
    except RecursionError:
        raise w.error(f"{name} calls itself too deeply") from None
    except Exception as error:
        raise w.error(f"{name} raised {type(error).__name__}: {error}{_raised_at(error)}") from None
    if not joins.same(given, (args, kwargs)):
        raise w.error(f"{name} changes its arguments, which the kernel would not see; let it return what it makes")
    return checked_result(w, name, result)


def copy_containers(x: Any) -> Any:
    """`x` with copies of the lists, dicts and sets in it, which a function may change."""
    if isinstance(x, set):
        return set(x)
    parts = joins.fields_of(x) if isinstance(x, (tuple, list, dict)) else None
    return x if parts is None else joins.make(joins.kind_of(x), tuple(map(copy_containers, parts)))


def _raised_at(error: BaseException) -> str:
    """The place in the user's code at which an exception was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"


def checked_result(w: Walker, name: str, result: Any) -> Any:
    """What a plain function returned, as a kernel may use it."""
    if isinstance(result, (Iterator, KeysView, ValuesView, ItemsView)):
        result = tuple(islice(result, UNROLLED_AT_MOST + 1))
        if len(result) > UNROLLED_AT_MOST:
            raise w.error(f"{name} gives more than {UNROLLED_AT_MOST} items")
    for leaf in joins.leaves(result):
        if hasattr(leaf, "__array_interface__") and getattr(leaf, "shape", None) != ():
            raise w.error(f"{name} returns an array; pass it as an argument of the kernel")
    return check_number(result)


def _capture_reads(w: Walker, plain: FunctionType, name: str) -> None:
    """Record what a plain function reads from the code around it, and the functions that it calls likewise."""
    waiting, done = [plain], set[FunctionType]()
    while waiting:
        function = waiting.pop()
        if function in done or is_installed(function) or of_tilejit(function):
            continue
        done.add(function)
        reader = Function(function)
        for path in free_paths(function):
            value = Capture(reader, path, None).meaning()
            if isinstance(value, ModuleType) and len(path) == 1 and value.__name__ in sys.stdlib_module_names:
                continue
            try:
                value = w.capture(path, value, reader)
            except CompilationError as error:
                raise w.error(f"{name} reads {'.'.join(path)}: {error.message}") from None
            if isinstance(value, FunctionType):
                waiting.append(value)


def call_folded(w: Walker, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
                 of: Any = None) -> Any:
    check_known(w, name, (of, *args, *kwargs.values()),
                 f"; use tile.{function.__name__}" if name.startswith("math.") else "")
    return fold(w, function, *args, **kwargs)


def check_known(w: Walker, name: str, values: tuple[Any, ...], other: str = "") -> None:
    """CompilationError if one of `values`, the arguments of a compile-time function, is a run-time value; `other`
    says what to write instead."""
    for x in values:
        if runtime(x):
            raise w.error(f"{name} is computed while compiling, and {describe(x)} is known at run time only{other}"
                          + w.g.declared_constant(x))
