"""Names of a kernel's code: which a piece of code assigns, what they hold, and why one may hold nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..errors import Loc
from .source import Source

# Names that no kernel can write: how a function or a loop has been left so far, and what it returns.
EXITS = ("return", "break", "continue")
RESULT = "result of the call"

BLOCKS = "body", "orelse", "handlers", "finalbody", "cases"  # where statements hold others


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


def is_cell(name: Any) -> bool:
    """Whether it is no name of the code but a hidden variable of a construct."""
    return type(name) is tuple


CONSTRUCTS = {"copy tokens": "how many copies these threads have issued", "ring": "the place of these threads in their ring"}


def called(name: Any) -> str:
    """What an error calls a name, or a hidden variable."""
    return CONSTRUCTS.get(name[1][0], "a cursor of this construct") if is_cell(name) else name.partition(" ")[0]


@dataclass(eq=False)
class Frame:
    """A function being walked: the kernel, or a helper at one of its calls."""

    source: Source
    env: dict[Any, Entry]
    home: Any
    call_site: Loc | None = None
    caller: "Frame | None" = None
    places: dict[ast.AST, Loc] = field(default_factory=dict)  # of its nodes, those asked for
    loops: list[Any] = field(default_factory=list)  # the scope that each open loop stands in

    def cells(self) -> dict[Any, Entry]:
        """What hidden variables hold (`is_cell`)."""
        return {name: entry for name, entry in self.env.items() if is_cell(name)}

    def chain(self) -> Iterator["Frame"]:
        frame = self
        while frame is not None:
            yield frame
            frame = frame.caller


def remembered(function: Callable[[ast.AST], Any]) -> Callable[[ast.AST], Any]:
    """A question about a piece of syntax, answered once: the node keeps the answer."""
    key = "_" + function.__name__

    def answer(node: ast.AST) -> Any:
        kept = vars(node)
        if key not in kept:
            kept[key] = function(node)
        return kept[key]

    return answer


def assigned(nodes: Iterable[ast.AST]) -> list[str]:
    """The names that these statements assign, in the order in which they are first met, breadth first."""
    return list(dict.fromkeys(name for node in nodes for _, name in sorted(_stored(node), key=lambda found: found[0])))


@remembered
def _stored(node: ast.AST) -> tuple[tuple[int, str], ...]:
    """The names that a piece of syntax assigns, in the order in which they stand, each with how deep in it."""
    if isinstance(node, ast.Name):
        return ((0, node.id),) if isinstance(node.ctx, ast.Store) else ()
    return tuple((depth + 1, name) for inner in ast.iter_child_nodes(node) if inner._fields for depth, name in _stored(inner))


@remembered
def assigned_in(loop: ast.For | ast.While) -> tuple[str, ...]:
    """The names that a loop's body assigns."""
    return tuple(assigned(loop.body))


def leaves_early(nodes: Iterable[ast.stmt]) -> bool:
    """Whether these statements hold a `return`, or a `break` or `continue` of a loop around them."""
    return any(map(_exits, nodes))


@remembered
def _exits(node: ast.AST) -> frozenset[type]:
    """The kinds of exits in a statement that leave what is around it."""
    if isinstance(node, (ast.Return, ast.Break, ast.Continue)):
        return frozenset((type(node),))
    found = frozenset().union(*(_exits(inner) for blocks in BLOCKS for inner in getattr(node, blocks, ())))
    return found - {ast.Break, ast.Continue} if isinstance(node, (ast.For, ast.While)) else found
