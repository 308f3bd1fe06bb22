"""Names of a kernel's code: which a piece of code assigns, what they hold, and why one may hold nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..errors import Loc
from .source import Source

# Names that no kernel can write: how a function or a loop has been left so far, and what it returns.
EXITS = ("return", "break", "continue")
RESULT = "result of the call"


@dataclass(eq=False, slots=True)
class Entry:
    """What a name holds, where it was assigned, and the scope it lives in. `read` says whether anyone has looked, `came_out`
    that it was assigned in a narrower scope and holds what came out of it."""

    value: Any
    loc: Loc | None
    home: Any
    read: bool = False
    came_out: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Undefined:
    """The value of a name that may hold nothing, and the sentence that says why."""

    why: str


@dataclass(eq=False)
class Frame:
    """A function being walked: the kernel, or a helper at one of its calls."""

    source: Source
    env: dict[Any, Entry]
    home: Any
    call_site: Loc | None = None
    caller: "Frame | None" = None
    loops: list[Any] = field(default_factory=list)  # the scope that each open loop stands in

    def chain(self) -> Iterator["Frame"]:
        frame = self
        while frame is not None:
            yield frame
            frame = frame.caller


def assigned(nodes: Iterable[ast.AST]) -> list[str]:
    """The names that these statements assign, in the order in which they are first met."""
    found: dict[str, None] = {}
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                found[inner.id] = None
    return list(found)


def leaves_early(nodes: Iterable[ast.AST], in_loop: bool = False) -> bool:
    """Whether these statements hold a `return`, or a `break` or `continue` of a loop around them."""
    for node in nodes:
        if isinstance(node, ast.Return):
            return True
        if isinstance(node, (ast.Break, ast.Continue)) and not in_loop:
            return True
        inner = in_loop or isinstance(node, (ast.For, ast.While))
        if leaves_early(ast.iter_child_nodes(node), inner):
            return True
    return False
