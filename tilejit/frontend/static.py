"""Checks and messages at compile time: `static_assert`, `static_print`."""

from __future__ import annotations

from typing import Any

from ..errors import CompilationError
from ..ir.builder import Builder, describe
from ..ir.builtin import builtin
from ..ir.graph import Const, Value

# the key in the builder's state of the printed lines; they are undone when a loop's body is walked again
PRINTED = "static_print"


@builtin
def static_assert(g: Builder, condition: Any, message: str = "") -> None:
    """Fail the compilation, with `message`, unless `condition` holds. It must be known at compile time."""
    if isinstance(condition, Value):
        raise g.error(f"static_assert judges while compiling, and {describe(condition)} is known at run time only; "
                      "use tile.device_assert" + g.declared_constant(condition))
    if not (condition.value if isinstance(condition, Const) else condition):
        raise CompilationError(f"static assertion failed{f': {message}' if message else ''}", g.loc)


@builtin
def static_print(g: Builder, *values: Any, sep: str = " ") -> None:
    """Print compile-time values, and the types of run-time ones, while compiling."""
    if not isinstance(sep, str):
        raise g.error(f"sep is a string, not {describe(sep)}")
    g.state.setdefault(PRINTED, []).append(sep.join(map(format_value, values)))


def format_value(x: Any) -> str:
    """A value as `static_print` shows it."""
    if isinstance(x, tuple):
        return f"({', '.join(map(format_value, x))}{',' if len(x) == 1 else ''})"
    if isinstance(x, Value):
        return str(x.type)
    return str(x.value if isinstance(x, Const) else x)
