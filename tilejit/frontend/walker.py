"""The walk over a function's syntax tree, which builds the graph.

Source locations, names, and the tables of rules for each kind of syntax node.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Literal, TypeVar

from ..errors import CompilationError, Loc, TileError
from ..ir.builder import Builder, as_value, type_as, type_of
from ..ir.builtin import BoundMethod, Builtin
from ..ir.graph import Node, Operand, Value
from ..ir.op import Op
from ..names import ELSEWHERE, suggest_nearest
from ..ops.language import operators, promotion
from ..types import Scalar, Tile, Uniformity
from .captures import Capture, check_capture, token
from .joins import leaves
from .names import EXITS, ONWARD, RESULT, Entry, Frame, Undefined, is_cell, name_in_messages
from .plain import Function
from .source import Placed, Source

Rule = TypeVar("Rule", bound=Callable[..., Any])
EXPRESSIONS: dict[type, Callable[[Walker, Any], Any]] = {}
# of the walker and a node; the rule of `if` takes the statements after it too
STATEMENTS: dict[type, Callable[..., Any]] = {}


def expression(*kinds: type, placed: bool = True) -> Callable[[Rule], Rule]:
    """Register the rule that evaluates some kinds of expressions. If `placed`, the rule runs with the builder at the
    node's source location; otherwise the rule sets a location where it needs one, which is faster for names and
    constants, the bulk of all expressions."""
    def register(function: Rule) -> Rule:
        for kind in kinds:
            EXPRESSIONS[kind] = _stamp_location(function) if placed else function
        return function
    return register


def _stamp_location(function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(w: Walker, node: ast.expr) -> Any:
        with Place(w.g, w.loc(node)):
            return function(w, node)
    return rule


def statement(*kinds: type) -> Callable[[Rule], Rule]:
    """Register the rule for some kinds of statements."""
    def register(function: Rule) -> Rule:
        STATEMENTS.update(dict.fromkeys(kinds, function))
        return function
    return register


class Cells(MutableMapping[Any, Any]):
    """The builder's hidden variables, such as counters of ring slots. They are stored among the names of the current
    frame, so that loops and branches carry them like variables."""

    def __init__(self, walker: Walker):
        self.walker = walker
        self.initial: dict[Any, Any] = {}

    def setdefault(self, key: Any, default: Any = None) -> Any:
        self.initial.setdefault(key, default)
        if ("cell", key) not in self.walker.frame.env:
            self[key] = default
        return self[key]

    def __getitem__(self, key: Any) -> Any:
        entry = self.walker.frame.env[("cell", key)]
        if isinstance(entry.value, Undefined):
            raise self.walker.g.error(f"{name_in_messages(('cell', key))} {entry.value.why}")
        entry.read = True
        return entry.value

    def __setitem__(self, key: Any, value: Any) -> None:
        self.walker.frame.env[("cell", key)] = Entry(value, self.walker.g.loc, self.walker.home)

    def __delitem__(self, key: Any) -> None:
        del self.walker.frame.env[("cell", key)]

    def __iter__(self) -> Iterator[Any]:
        return (name[1] for name in self.walker.frame.env if is_cell(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def is_callable_of_the_language(x: Any) -> bool:
    """Whether `x` is itself an op, a builtin or a method of the language (rather than the result of calling one)."""
    return isinstance(x, (Op, Builtin, BoundMethod))


@dataclass(eq=False)
class Home:
    """An instance of an execution scope, to which the names assigned in it belong. Divergent branches (partial
    scopes) have no home of their own."""

    loc: Loc | None = None


@dataclass
class Branch:
    """A block that was walked but is not part of a node yet: its nodes, and the values of the names at its end. If
    control certainly does not reach its end, `gone` are the exits of which one was taken."""

    nodes: list[Node]
    env: dict[Any, Entry]
    gone: frozenset[str] = frozenset()


class Place:
    """A context in which the builder is at source location `loc`; errors raised inside without a location get it."""

    __slots__ = ("g", "loc", "outer")

    def __init__(self, g: Builder, loc: Loc):
        self.g, self.loc = g, loc
        self.outer: Loc | None

    def __enter__(self) -> None:
        self.outer, self.g.loc = self.g.loc, self.loc

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if isinstance(error, TileError) and error.loc is None:
            error.loc = self.g.loc
        self.g.loc = self.outer


@dataclass
class Walker:
    """The state of the walk of one compilation."""

    g: Builder
    frame: Frame
    home: Home
    captured: dict[tuple[Source | Function, tuple[str, ...]], tuple[Capture, Any]] = field(default_factory=dict)
    # for each enclosing unrolled loop, the trip that is being walked
    copies: list[int] = field(default_factory=list)
    discarded: ast.expr | None = None                     # the current expression statement, whose value nobody uses
    # (function, call site): its nodes' locations, memoised
    places: dict[tuple[Source, Loc | None], dict[Placed, Loc]] = field(default_factory=dict)
    cells: Cells = field(init=False)
    # what the loops at this level carried after their last walk; their next walk starts there
    loops: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.g.cells = self.cells = Cells(self)

    # -- places ------------------------------------------------------------------------------------------------------

    def loc(self, node: Placed) -> Loc:
        frame = self.frame
        found = frame.places.get(node)
        if found is None:
            found = frame.places[node] = frame.source.loc(node, frame.call_site)
        return found

    def place(self, node: Placed) -> Place:
        """A context in which calls are built, and errors raised, at the location of `node`."""
        return Place(self.g, self.loc(node))

    def error(self, message: str, node: Placed | None = None) -> CompilationError:
        return CompilationError(message, self.g.loc if node is None else self.loc(node))

    # -- the walk ----------------------------------------------------------------------------------------------------

    def expression(self, node: ast.expr) -> Any:
        """The value of an expression: a compile-time object or an operand of the graph."""
        rule = EXPRESSIONS.get(type(node))
        if rule is None:
            raise self.error(refusal(node), node)
        return rule(self, node)

    def value(self, node: ast.expr) -> Any:
        """The value of an expression, which must not be `Undefined`."""
        result = self.expression(node)
        if isinstance(result, Undefined):
            raise self.error(result.why, node)
        return result

    def statements(self, nodes: list[ast.stmt]) -> None:
        """Walk statements in order. After one that may have left the function or loop,
        the rest goes into a branch on the exit flags."""
        for position, node in enumerate(nodes):
            left = self.exits_taken()
            if left is True:
                return
            if left:
                rest = nodes[position:]
                self.guard(left, lambda: self.statements(rest))
                return
            if isinstance(node, (ast.If, ast.Match)):
                with self.place(node):
                    if STATEMENTS[type(node)](self, node, nodes[position + 1:]):
                        return  # the rest was walked in one of the branches
                continue
            rule = STATEMENTS.get(type(node))
            if rule is None:
                raise self.error(refusal(node), node)
            with self.place(node):
                rule(self, node)

    def exits_taken(self) -> Literal[True] | list[str]:
        """True if control certainly does not reach this point; otherwise the names of the exits that may have been
        taken at run time."""
        if self.frame.gone:
            return True
        env = self.frame.env
        perhaps = [name for name in EXITS if env[name].value is not False]
        for name in perhaps:
            env[name].read = True
        return perhaps

    def guard(self, exits: list[str], rest: Callable[[], None]) -> None:
        """Walk `rest` under the condition that none of `exits` was taken."""
        from .branches import append_if  # a branch walks its statements, and a statement may be a branch
        taken = self.frame.env[exits[0]].value
        for name in exits[1:]:
            taken = operators.combine_conditions(self.g, "or", taken, self.frame.env[name].value)

        def stay() -> None:
            for name in exits:
                self.put(name, False)
            for name, entry in self.frame.env.items():
                if entry.lacks:
                    self.put(name, entry.value_past(ONWARD), entry.home, came_out=entry.came_out)
            rest()

        def leave() -> None:
            if len(exits) == 1:
                self.put(exits[0], True)
            self.frame.gone = frozenset(exits)

        append_if(self, as_value(operators.unary(self.g, "not", taken)), stay, leave)

    def leave(self, word: str) -> None:
        """Take an exit: control does not reach what follows."""
        self.put(word, True)
        self.frame.gone = frozenset((word,))

    def rejoin(self, *exits: str) -> None:
        """The point to which `exits` lead: names that have no value past them are undefined from here on."""
        for name in exits:
            self.put(name, False)
        if not self.frame.gone.isdisjoint(exits):
            self.frame.gone = frozenset()
        for name, entry in self.frame.env.items():
            if entry.lacks:
                met = (*exits, ONWARD)
                self.frame.env[name] = replace(entry, value=entry.value_past(*met),
                                               lacks=tuple(p for p in entry.lacks if p[0] not in met))

    def collect(self, body: Callable[[], None]) -> Branch:
        """Walk `body` into a block of its own; the names of the current frame keep their values from before."""
        frame = self.frame
        outer = frame.env, frame.gone
        frame.env = dict(frame.env)
        try:
            with self.g.block() as nodes:
                body()
            return Branch(nodes, frame.env, frame.gone)
        finally:
            frame.env, frame.gone = outer

    def resume(self, branch: Branch, body: Callable[[], None]) -> None:
        """Walk `body` at the end of a block that `collect` made."""
        frame = self.frame
        outer = frame.env, frame.gone
        frame.env, frame.gone = branch.env, branch.gone
        try:
            with self.g.reopen(branch.nodes):
                body()
            branch.env, branch.gone = frame.env, frame.gone
        finally:
            frame.env, frame.gone = outer

    @contextmanager
    def partial_on(self, *conditions: Operand) -> Iterator[None]:
        """A context for code under `conditions`: a partial scope if one of them may differ between the scope's
        threads, else the same scope."""
        scope = self.g.scope
        split = min((c for c in conditions if isinstance(c, Value)), key=_uniformity, default=None)
        known = scope.uniformity if scope.partial is None else min(_uniformity(scope.partial), scope.uniformity)
        if split is None or _uniformity(split) >= known:
            yield
            return
        with self.g.in_scope(replace(scope, partial=split)):
            yield

    # -- names -------------------------------------------------------------------------------------------------------

    def put(self, name: Any, value: Any, home: Home | None = None, lacks: tuple[Any, ...] = (),
            came_out: bool = False) -> None:
        """Bind `name` to `value`, without checks."""
        self.frame.env[name] = Entry(value, self.g.loc, home or self.home, lacks=lacks, came_out=came_out)

    def assign(self, name: str, value: Any) -> None:
        """``name = value`` in the kernel's code. CompilationError if the name belongs to an
        enclosing execution scope."""
        entry = self.frame.env.get(name)
        if (entry is not None and not isinstance(entry.value, Undefined) and entry.home is not self.home
            and not entry.came_out):
            raise self.error(f"{name} is assigned outside the scope opened at {self.home.loc}; "
                             "the threads that do not run this scope would not see an assignment here. "
                             "Use another name, or keep the value in a buffer"
                             + second_location("assigned outside", entry.loc) + "\nassigned inside here:")
        self.put(name, value)

    def lookup(self, node: ast.Name, enters: bool = True) -> Any:
        """The value of a name: a variable of the function, a closure's value, a global or a Python builtin. A
        variable of an enclosing execution scope must be usable in this one (`_check_enters`); `enters` is False where
        only its shape or dtype is read."""
        name = node.id
        entry = self.frame.env.get(name)
        if entry is None:
            known = self.captured.get((self.frame.source, (name,)))
            return self._from_around(node) if known is None else known[1]
        entry.read = True
        if isinstance(entry.value, Undefined):
            raise self.error(f"{name} {entry.value.why}" + ("\nread here:" if "\n" in entry.value.why else ""), node)
        if enters and entry.home is not self.home:
            with self.place(node):
                self._check_enters(name, entry)
        return entry.value

    def _from_around(self, node: ast.Name) -> Any:
        """The value of a name that is not a variable of the current frame."""
        name, source = node.id, self.frame.source
        if name in source.locals:
            raise self.error(f"{name} is read before it is assigned", node)
        try:
            value = source.resolve(name)
        except KeyError:
            known = [n for n in self.frame.env if isinstance(n, str) and n not in (*EXITS, RESULT)]
            hint = (suggest_nearest(name, known + source.known_names())
                    or (f"; write {ELSEWHERE[name]}" if name in ELSEWHERE else ""))
            raise self.error(f"the name {name!r} is not defined{hint}", node) from None
        with self.place(node):
            return self.capture((name,), value)

    def capture(self, path: tuple[str, ...], value: Any, reader: Source | Function | None = None) -> Any:
        """Record that the kernel, or the `reader`, reads `value` from the code around it. Later reads of the same
        path in this compilation give the first value."""
        key = reader or self.frame.source, path
        if key not in self.captured:
            value = check_capture(".".join(path), value)
            self.captured[key] = Capture(*key, token(value)), value
        return self.captured[key][1]

    def enters(self, name: str, entry: Entry) -> bool:
        """Whether the value of a name can be used in the current scope."""
        try:
            if entry.home is not self.home:
                self._check_enters(name, entry)
        except CompilationError:
            return False
        return True

    def _check_enters(self, name: str, entry: Entry) -> None:
        """CompilationError if a value of an enclosing scope cannot be used in this one. Uniform scalars, buffers,
        barriers and tokens can; register tiles belong to the scope that made them."""
        for leaf in leaves(entry.value):
            t = type_of(leaf)
            if isinstance(t, Tile):
                raise self.error(f"{name} is a register tile that belongs to the scope outside this one; "
                                 f"pass it through shared memory{second_location('made', entry.loc)}\nread here:")
            if isinstance(t, Scalar) and t.uniform < min(self.g.scope.uniformity, Uniformity.CTA):
                raise self.error(f"{name} differs between the threads of this scope, and was computed outside it; "
                                 f"compute it inside{second_location('made', entry.loc)}\nread here:")

    def coerce(self, x: Any, type_: Scalar | Tile) -> Operand:
        """`x` as an operand of `type_`."""
        t = type_of(x)
        if isinstance(x, Value) and isinstance(t, (Scalar, Tile)) and t.dtype == type_.dtype:
            if isinstance(t, Tile) and isinstance(type_, Tile):
                same = t.shape == type_.shape
            else:
                same = isinstance(t, Scalar) and isinstance(type_, Scalar)
            if same:
                return x
        return promotion.coerce(self.g, x, type_)


def _uniformity(x: Value) -> Uniformity:
    return type_as(x, Scalar).uniform


def second_location(what: str, loc: Loc | None) -> str:
    """Text that adds a second source location to an error message."""
    return "" if loc is None else f"\n{what} here:\n{loc.render()}"


def runtime(x: Any) -> bool:
    """Whether `x` is a value of the graph, or a tuple that holds one."""
    return any(isinstance(leaf, Value) for leaf in leaves(x))


REFUSED = {
    ast.Await: "a kernel cannot await; tile.copy_async returns a token with .wait()",
    ast.Yield: "a kernel cannot yield; write a loop",
    ast.YieldFrom: "a kernel cannot yield; write a loop",
    ast.FunctionDef: "a function cannot be defined in a kernel; define the helper outside it, under @tile.jit",
    ast.AsyncFunctionDef: "a function cannot be defined in a kernel; define the helper outside it, under @tile.jit",
    ast.ClassDef: "a class cannot be defined in a kernel; define it outside",
    ast.Try: "a kernel has no exceptions; test the condition with `if`, or state it with tile.device_assert",
    ast.Raise: "a kernel has no exceptions; use `assert`, tile.static_assert or tile.device_assert",
    ast.Import: "import modules outside the kernel",
    ast.ImportFrom: "import modules outside the kernel",
    ast.Global: "a kernel cannot assign globals; write to an array argument",
    ast.Nonlocal: "a kernel cannot assign the names of another function; return the value instead",
    ast.Delete: "names cannot be deleted in a kernel; leave the statement out",
    ast.AsyncFor: "a kernel has no `async for`; write `for`",
    ast.AsyncWith: "a kernel has no `async with`; write `with`",
    ast.Starred: "a starred expression can only be in a tuple or in a call's arguments",
    ast.Slice: "a slice can only be inside an index, as in x[0:BLOCK]",
}


def refusal(node: ast.AST) -> str:
    """The error message for syntax that kernels do not support: what to write instead."""
    known = REFUSED.get(type(node))
    return known or f"{type(node).__name__} is not supported in a kernel"
