"""Names of a kernel's code: their entries, frames, and which names a piece of syntax assigns."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..errors import Loc
from .source import Placed, Source

N = TypeVar("N", bound=ast.AST)
T = TypeVar("T")

# Hidden names, which no kernel can spell: flags for the exits taken so far from the function or loop,
# and the function's result.
EXITS = ("return", "break", "continue")
ONWARD = "no exit"  # where control comes that has taken none of them
RESULT = "result of the call"

BLOCKS = "body", "orelse", "handlers", "finalbody", "cases"  # fields of statements that hold other statements


@dataclass(eq=False, slots=True)
class Entry:
    """The value of a name, the location of its assignment, and the scope instance that it belongs to (`Home`). `read`
    says whether it has been read, `came_out` that it was assigned in an inner scope that has ended. `lacks` pairs
    each exit past which the name has no value (the code that runs if the exit was not taken may read it) with the
    reason; `ONWARD` stands for that code, if only the exits have the value."""

    value: Any
    loc: Loc | None
    home: Any
    read: bool = False
    came_out: bool = False
    lacks: tuple[tuple[str, str], ...] = ()

    def past(self, *exits: str) -> Any:
        """What the name holds where control may have come by `exits`."""
        why = next((why for word, why in self.lacks if word in exits), None)
        return self.value if why is None else Undefined(why)


@dataclass(frozen=True, eq=False, slots=True)
class Undefined:
    """The value of a name that is or may be undefined; `why` continues a sentence that begins with the name."""

    why: str


def is_cell(name: Any) -> bool:
    """Whether a name is that of a cell, a hidden variable of a construct of the language."""
    return type(name) is tuple


CONSTRUCTS = {"copy tokens": "how many copies these threads have issued",
              "ring": "the place of these threads in their ring"}


def name_in_messages(name: Any) -> str:
    """How an error message calls a name or a cell."""
    if is_cell(name):
        return CONSTRUCTS.get(name[1][0], "a cursor of this construct")
    return str(name).partition(" ")[0]


@dataclass(eq=False)
class Frame:
    """A function being walked: the kernel, or a helper at one of its calls."""

    source: Source
    env: dict[Any, Entry]
    home: Any
    call_site: Loc | None = None
    caller: Frame | None = None
    places: dict[Placed, Loc] = field(default_factory=dict)  # the locations of its nodes, memoised
    loops: list[Any] = field(default_factory=list)  # for each loop being walked, the `Home` that it is in
    # if control certainly does not reach this point: the exits of which one was taken
    gone: frozenset[str] = frozenset()
    # what is known of the arguments while compiling, for calls of a helper within itself
    constants: tuple[Any, ...] = ()

    def cells(self) -> dict[Any, Entry]:
        """The entries of cells."""
        return {name: entry for name, entry in self.env.items() if is_cell(name)}

    def chain(self) -> Iterator[Frame]:
        frame: Frame | None = self
        while frame is not None:
            yield frame
            frame = frame.caller


def memoize_on_node(function: Callable[[N], T]) -> Callable[[N], T]:
    """Decorator of a function of a syntax node that memoises its result as an attribute of the node."""
    key = "_" + function.__name__

    def answer(node: N) -> T:
        kept: dict[str, T] = vars(node)
        if key not in kept:
            kept[key] = function(node)
        return kept[key]

    return answer


def assigned_names(nodes: Iterable[ast.AST]) -> list[str]:
    """The names that these statements assign, in order, within each statement breadth first."""
    return list(dict.fromkeys(name for node in nodes
                              for _, name in sorted(_stores_by_depth(node), key=lambda found: found[0])))


@memoize_on_node
def _stores_by_depth(node: ast.AST) -> tuple[tuple[int, str], ...]:
    """(depth, name) of each assignment in a piece of syntax, in the order of the text."""
    if isinstance(node, ast.Name):
        return ((0, node.id),) if isinstance(node.ctx, ast.Store) else ()
    if isinstance(node, ast.comprehension):  # its targets are names of its own
        return tuple((depth + 1, name) for inner in (node.iter, *node.ifs) for depth, name in _stores_by_depth(inner))
    own = tuple((0, name) for name in (_bound_by_pattern(node), changed_in_place(node)) if name is not None)
    return own + tuple((depth + 1, name) for inner in ast.iter_child_nodes(node) if inner._fields
                 for depth, name in _stores_by_depth(inner))


def _bound_by_pattern(node: ast.AST) -> str | None:
    """The name that a pattern of `match` binds itself."""
    if isinstance(node, (ast.MatchAs, ast.MatchStar)):
        return node.name
    return node.rest if isinstance(node, ast.MatchMapping) else None


# methods that change a list, dict or set
CHANGING = frozenset(("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse",
                      "update", "setdefault", "popitem", "add", "discard"))


def changed_in_place(node: ast.AST) -> str | None:
    """The name of the container that ``name[i] = x`` or ``name.append(x)`` changes, if it is one; None for other
    syntax."""
    held: ast.expr
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        held = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
        held = node.func.value
    else:
        return None
    while isinstance(held, ast.Subscript):
        held = held.value
    return held.id if isinstance(held, ast.Name) else None


@memoize_on_node
def assigned_in(loop: ast.For | ast.While) -> tuple[str, ...]:
    """The names that a loop's body assigns."""
    return tuple(assigned_names(loop.body))


def leaves_early(nodes: Iterable[ast.stmt]) -> bool:
    """Whether these statements contain a `return`, or a `break` or `continue` of an enclosing loop."""
    return any(map(_exits, nodes))


@memoize_on_node
def _exits(node: ast.AST) -> frozenset[type]:
    """The kinds of exits in a statement that leave the code around it."""
    if isinstance(node, (ast.Return, ast.Break, ast.Continue)):
        return frozenset((type(node),))
    found: frozenset[type] = frozenset().union(*(_exits(inner) for blocks in BLOCKS
                                                 for inner in getattr(node, blocks, ())))
    return found - {ast.Break, ast.Continue} if isinstance(node, (ast.For, ast.While)) else found
