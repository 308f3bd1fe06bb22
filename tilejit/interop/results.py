"""What an operator of another library is told of a kernel: the arrays that it makes, and its constants."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from ..errors import LaunchError
from ..names import suggest_nearest


def constants_of(constants: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """A call's constants: those that are plain functions are called with the arguments by name."""
    return {name: value(arguments) if isinstance(value, FunctionType) else value for name, value in constants.items()}


def checked_out(kernel: Any, out: Any, like: Callable[[Any], Any]) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """`out` as functions of the dict of arguments; ``like(x)`` makes an array like x. LaunchError if it is none."""
    if out is None:
        return {}
    if not isinstance(out, dict) or not all(isinstance(make, str) or callable(make) for make in out.values()):
        raise LaunchError('out is a dict of the arrays that the operator makes: {"y": "x"} for one like x, or '
                          '{"y": lambda given: ...} for what a function of the dict of arguments returns')
    for name in (*out, *(make for make in out.values() if isinstance(make, str))):
        if isinstance(out.get(name), str) and out[name] in out:
            raise LaunchError(f"out= makes {name} like {out[name]}, which is a result itself: name an argument")
        if name not in kernel.names:
            raise LaunchError(f"{kernel.name} has no parameter {name!r}{suggest_nearest(name, kernel.names)}")

    def made_like(other: str) -> Callable[[dict[str, Any]], Any]:
        return lambda given: like(given[other])

    return {name: made_like(make) if isinstance(make, str) else make for name, make in out.items()}


__all__ = ["checked_out", "constants_of"]
