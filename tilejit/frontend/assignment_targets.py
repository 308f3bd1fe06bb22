"""Targets of assignments: names and tuples of names. Errors say what to write instead of other targets."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, NoReturn

from ..ir.builder import describe, type_of
from ..types import Buffer, Points, Region, Tile
from . import joins
from .walker import Walker

# what binds a target that is not a name; registered where containers are
TARGETS: dict[type, Callable[[Walker, Any, Any], None]] = {}


def bind(w: Walker, target: ast.expr, value: Any, anew: bool = False) -> None:
    """Assign `value` to a target: a name, or a tuple of targets. With `anew`, as for the target of a `for`, the names
    are new here, whatever their value and scope before."""
    match target:
        case ast.Name(id=name):
            (w.put if anew else w.assign)(name, value)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            _unpack(w, target, targets, value, anew)
        case ast.Subscript() if isinstance(w.value(target.value), (list, dict)):
            TARGETS[ast.Subscript](w, target, value)
        case _:
            refuse_target(w, target)


def _unpack(w: Walker, node: ast.expr, targets: list[ast.expr], value: Any, anew: bool) -> None:
    parts = joins.fields_of(value)
    if parts is None:
        raise w.error(f"{describe(value)} cannot be unpacked; only tuples can", node)
    starred = [n for n, t in enumerate(targets) if isinstance(t, ast.Starred)]
    if not starred and len(parts) != len(targets) or starred and len(parts) < len(targets) - 1:
        raise w.error(f"{len(targets)} names for a tuple of {len(parts)}", node)
    if starred:
        at, after = starred[0], len(targets) - starred[0] - 1
        parts = (*parts[:at], parts[at:len(parts) - after], *parts[len(parts) - after:])
    for target, part in zip(targets, parts):
        bind(w, target.value if isinstance(target, ast.Starred) else target, part, anew)


def refuse_target(w: Walker, target: ast.expr) -> NoReturn:
    """Raise CompilationError for a target that is not a name."""
    if isinstance(target, ast.Attribute):
        raise w.error("attributes cannot be assigned in a kernel; use a name", target)
    held = w.value(target.value) if isinstance(target, ast.Subscript) else None
    match type_of(held):
        case Buffer() | Region() | Points():
            raise w.error("memory is written with tile.store(x[...], value), not by assigning to x[...]", target)
        case Tile():
            raise w.error("a register tile cannot be changed in place; "
                          "make another with tile.where(condition, value, x)", target)
    if held is not None:
        raise w.error(f"{describe(held)} cannot be changed in place; make another", target)
    raise w.error(f"{type(target).__name__} cannot be assigned", target)
