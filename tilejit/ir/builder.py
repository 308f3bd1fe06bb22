"""The graph builder that rules and the frontend use.

It appends typed calls to the current block, at the current source location.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar, overload

from ..config import architecture
from ..dtypes import DType, bool_, float32, int32, int64, shown_integer
from ..errors import CompilationError, Loc, at
from ..types import (
    Addressed,
    ArrayId,
    Barrier,
    BarrierRef,
    Buffer,
    Points,
    Region,
    Scalar,
    Selected,
    Tile,
    Type,
    Uniformity,
)
from .graph import UNIT, Call, Const, Launch, Node, Operand, Value
from .op import Op
from .op_rules import require_rule


@dataclass(frozen=True, slots=True)
class ExecScope:
    """Which threads of the CTA run the current code, as one collective.

    `kind` is 'cta', 'warpgroup', 'warp' or 'thread'; `threads` is the number of threads of one instance. `elected`:
    it is one thread chosen by ``elect()``. A `partial` scope is one under a non-uniform condition: any subset of its
    threads may run, so only thread-scope operations are allowed.
    """

    kind: str
    threads: int
    first: int | Value | None = 0  # the first warpgroup, warp or thread, in units of `kind`; None for an elected one
    partial: Value | None = None  # the non-uniform value that opened a partial scope
    elected: bool = False
    parent: ExecScope | None = None
    depth: int = 0                # number of open blocks inside its body
    around: int = 1               # number of blocks of the scope itself: one more than its body for a loop over scopes

    @property
    def uniformity(self) -> Uniformity:
        """How uniform a condition must be for all threads of the scope to take the same path.

        Lanes belong to one warp; a scope of several warps or warpgroups needs uniformity in the CTA.
        """
        if self.threads == UNIT.get(self.kind):
            return Uniformity[self.kind.upper()]
        return Uniformity.WARP if self.kind == "thread" and self.threads <= 32 else Uniformity.CTA


class Facts:
    """Facts about the launch's arguments: asked for by name, answered from the specs, recorded as guards of the kernel.

    A fact is a tuple: ("aligned", arg, nbytes), ("size_multiple", arg, dim, n), ("stride_multiple", arg, dim, n),
    ("stride_is", arg, dim, value), ("stride_at_least", arg, dim, n), ("stride_ratio", arg, dim, dim), ("size_is", arg,
    dim, value), ("size_at_least", arg, dim, n), ("size_within", arg, dim, scalar), ("size_within", arg, dim, arg, dim),
    ("fits32", arg), ("scalar_fits32", arg), ("scalar_multiple", arg, n), ("scalar_between", arg, low, high),
    ("scalar_positive", arg), ("no_overlap", arg, arg).
    `answer(fact)` says what holds for the call being compiled; `values` are its arguments, for messages only.
    """

    def __init__(self, answer: Callable[[tuple[Any, ...]], object], values: Any = ()):
        self._answer = answer
        self.values = values
        self.asked: dict[tuple[Any, ...], bool] = {}

    def ask(self, *fact: Any) -> bool:
        if isinstance(fact[1], Addressed) or isinstance(fact[-1], Addressed):
            return self._about_addressed(*fact)
        if fact not in self.asked:
            self.asked[fact] = bool(self._answer(fact))
        return self.asked[fact]

    @staticmethod
    def _about_addressed(kind: str, array: ArrayId, *rest: Any) -> bool:
        """What is known of an array that the kernel makes from an address: its alignment. The launch knows nothing of
        it."""
        return kind == "aligned" and isinstance(array, Addressed) and bool(array.align % rest[0] == 0)

    @contextmanager
    def without_recording(self) -> Iterator[None]:
        """In the ``with`` block, facts that are asked do not become guards of the kernel."""
        before = dict(self.asked)
        try:
            yield
        finally:
            self.asked = before


@dataclass(frozen=True)
class Warning_:
    """A warning for the kernel's author, with its location."""

    message: str
    loc: Loc | None = None

    def __str__(self) -> str:
        return self.message if self.loc is None else f"{self.message}\n{self.loc.render()}"


@dataclass
class Builder:
    """Appends nodes to the innermost open block. One per compilation."""

    target: str
    launch: Launch
    facts: Facts
    scope: ExecScope = field(init=False)  # the CTA at first
    loc: Loc | None = None
    warnings: list[Warning_] = field(default_factory=list)
    blocks: list[list[Node]] = field(default_factory=lambda: [[]])
    definitions: dict[Operand, Call] = field(default_factory=dict)  # of values; any operand may be looked up
    arguments: dict[Value, int] = field(default_factory=dict)  # scalar parameters -> their numbers
    # State of constructs that span several calls (hoisted barriers, ...): plain containers, so that it can be restored
    # when a loop's body is built again.
    state: dict[str, Any] = field(default_factory=dict)
    # Hidden variables of constructs, such as a ring's cursor. Control flow carries them like the kernel's own names.
    # Read by ``cells.setdefault(key, initial)``, written by ``cells[key] = value``.
    cells: MutableMapping[Any, Any] = field(default_factory=dict)
    entered: list[Any] = field(default_factory=list)  # the constructs whose `with` blocks are open, the innermost last
    # ``invoke(function, args, kwargs)`` calls anything that a kernel may call, including helpers under @tile.jit.
    invoke: Any = None
    discarded: bool = True  # whether the result of the current call is unused

    def __post_init__(self) -> None:
        self.scope = ExecScope("cta", self.launch.threads)

    # -- calls ----------------------------------------------------------------------------------------------------

    def call(self, op: Op, *args: Operand, name: str | None = None, **attrs: Any) -> Any:
        """Infer the types of a call of `op`, append it, and return its result (None, a Value, or a tuple of Values)."""
        with at(self.loc):
            types = require_rule(op.rules.infer)(self, *args, **attrs)
        several = isinstance(types, tuple)
        if not several:
            types = () if types is None else (types,)
        if self.scope.partial is not None and any(isinstance(t, Tile) for t in (*types, *map(type_of, args))):
            raise self.error(f"{op.name} of a tile needs all threads of the {self.scope.kind}, and the condition "
                             f"{source_text(self.scope.partial)} differs between them")
        results = tuple(Value(name or op.name, t, self.loc) for t in types)
        self.append(Call(op, tuple(args), attrs, results, self.loc))
        if several:
            return results
        return results[0] if results else None

    def need(self, instruction: str, sm: int) -> None:
        """CompilationError unless the target has an instruction that PTX supports from `sm` (80, 90, 100, ...) on."""
        if architecture(self.target) < sm:
            raise self.error(f"{instruction} needs sm_{sm} or later, and the target is {self.target}")

    def require_uniform(self, what: str, *operands: Operand) -> None:
        """CompilationError if a scalar operand of `what`, which all threads of the scope execute together,
        differs between them."""
        scope, least = self.scope, self.scope.uniformity
        if scope.threads <= 32 and scope.kind == "cta":
            least = Uniformity.WARP
        elif scope.threads <= 128 and scope.kind == "cta":
            least = Uniformity.WARPGROUP
        for x in operands:
            if isinstance(x, Value) and isinstance(x.type, Scalar) and x.type.uniform < least:
                # which the source need not show
                while x in self.definitions and self.definitions[x].op.traits.conversion:
                    x = as_value(self.definitions[x].args[0])
                raise self.error(f"the threads of the {self.scope.kind} share {what}, and {source_text(x)} differs "
                                 "between them; if it does not, tile.uniform(..) around it promises so")

    def append(self, node: Node) -> None:
        self.blocks[-1].append(node)
        if isinstance(node, Call):
            for result in node.results:
                self.definitions[result] = node

    @contextmanager
    def block(self) -> Iterator[list[Node]]:
        """Open a block: yields the list of nodes that are appended in the ``with`` block."""
        nodes: list[Node] = []
        self.blocks.append(nodes)
        try:
            yield nodes
        finally:
            self.blocks.pop()

    @contextmanager
    def reopen(self, nodes: list[Node]) -> Iterator[None]:
        """Append to a block that had been closed."""
        self.blocks.append(nodes)
        try:
            yield
        finally:
            self.blocks.pop()

    @contextmanager
    def in_scope(self, scope: ExecScope) -> Iterator[ExecScope]:
        outer, self.scope = self.scope, replace(scope, parent=self.scope, depth=len(self.blocks) + 1)
        try:
            yield self.scope
        finally:
            self.scope = outer

    @contextmanager
    def at_location(self, loc: Loc | None) -> Iterator[None]:
        outer, self.loc = self.loc, loc
        try:
            yield
        finally:
            self.loc = outer

    def hoist(self, node: Node) -> None:
        """Insert a node at the kernel's start, after what was hoisted before.
        Shared allocations and barriers are made there once."""
        position = self.state.setdefault("hoisted", 0)
        self.blocks[0].insert(position, node)
        self.state["hoisted"] = position + 1
        if isinstance(node, Call):
            for result in node.results:
                self.definitions[result] = node

    def error(self, message: str) -> CompilationError:
        return CompilationError(message, self.loc)

    def warn(self, message: str) -> None:
        self.warnings.append(Warning_(message, self.loc))

    # -- linear arithmetic -------------------------------------------------------------------------------------------

    def linear_form(self, operand: Operand | int) -> dict[Any, int]:
        """`operand` as a linear combination {value: coefficient}, with the constant under None. Looks through casts
        that keep the integer."""
        if isinstance(operand, Const):
            return {None: int(operand.value)} if operand.value else {}
        if isinstance(operand, int):
            return {None: operand} if operand else {}
        operand = as_value(operand)
        sums = self.state.setdefault("sums", {})
        waiting = [] if operand in sums else [operand]
        # post-order, each value once: long sums nest deeper than Python's stack,
        # and shared terms would make recursion exponential
        while waiting:
            call = self.definitions.get(waiting[-1])
            parts = call.args if call is not None and call.op.rules.linear is not None else ()
            missing = [a for a in parts if isinstance(a, Value) and a not in sums]
            if missing:
                waiting += missing
            else:
                value = waiting.pop()
                sums[value] = self._sum(value)
        return dict(sums[operand])

    def _sum(self, value: Value) -> Mapping[Any, int]:
        """A value as a linear combination, by the rule of the op that computes it; or else as a term of its own."""
        call = self.definitions.get(value)
        terms = call.op.rules.linear(self, call) if call is not None and call.op.rules.linear is not None else None
        return {self._first_of_its_kind(value): 1} if terms is None else terms

    def quotient(self, value: Value, terms: dict[Any, int], by: int) -> dict[Any, int]:
        """`value`, the sum of `terms` divided by a constant, rounded down: their multiples of it, and the quotient of
        the rest, which is expressed by the first value with the same rest."""
        total, rest = {k: c // by for k, c in terms.items()}, frozenset((k, c % by) for k, c in terms.items() if c % by)
        if rest:
            first, beside = self.state.setdefault("quotients",
                                                  {}).setdefault((rest, by),
                                                                 (self._first_of_its_kind(value), dict(total)))
            for key, coefficient in beside.items():
                total[key] = total.get(key, 0) - coefficient
            total[first] = total.get(first, 0) + 1
        return {k: c for k, c in total.items() if c}

    def _first_of_its_kind(self, value: Value) -> Value:
        """The first value that was computed from the same operands in the same way: expressions that are written
        twice, as in ``x[p // 2 * 64:p // 2 * 64 + 64]``, are one term."""
        first: dict[Any, Value] = self.state.setdefault("first_of_its_kind", {})
        call = self.definitions.get(value)
        if (value not in first and call is not None and call.op.effect == "pure" and not call.op.collective
            and len(call.results) == 1):
            args = tuple(self._first_of_its_kind(a) if isinstance(a, Value) else repr(a) for a in call.args)
            first[value] = first.setdefault((call.op.name, value.type, repr(sorted(call.attrs.items())), args), value)
        return first.get(value, value)

    def difference(self, stop: Operand | int, start: Operand | int) -> int | None:
        """``stop - start`` if it does not depend on the operands' values, else None."""
        total = self.linear_form(stop)
        for key, coefficient in self.linear_form(start).items():
            total[key] = total.get(key, 0) - coefficient
        rest = {k: c for k, c in total.items() if c and k is not None}
        return None if rest else total.get(None, 0)

    def declared_constant(self, *found: Any) -> str:
        """``; n is a number of the launch: ...`` if `found`, at a place for constants, is computed from scalar
        arguments of the kernel only; else empty."""
        waiting, seen, names = list(found), set(), set()
        while waiting:
            x = waiting.pop()
            if isinstance(x, (tuple, slice)):
                waiting += x if isinstance(x, tuple) else (x.start, x.stop, x.step)
            if not isinstance(x, Value) or x in seen:
                continue
            seen.add(x)
            call = self.definitions.get(x)
            if x in self.arguments:
                names.add(x.name)
            elif call is None or call.op.effect != "pure" or not call.args:
                return ""  # it would not be a constant either if the arguments were
            else:
                waiting += call.args
        if not names:
            return ""
        what = "are numbers" if len(names) > 1 else "is a number"
        return (f"; {' and '.join(sorted(names))} {what} of the launch: "
                f"declare the parameter as {min(names)}: tile.constexpr")

    # -- operands from Python values -----------------------------------------------------------------------------------

    def operand(self, x: Any, dtype: DType | None = None) -> Operand:
        """`x` (a Value or a Python number) as an operand; a number takes `dtype`, or its own weak one."""
        if isinstance(x, (Value, Const)) or x is None:
            return x
        if isinstance(x, (bool, int, float)) or hasattr(x, "item"):
            x = x.item() if hasattr(x, "item") else x
            return Const(x, dtype or weak_dtype(x))
        raise self.error(f"a number, a tile or a buffer is needed here, not {describe(x)}")


def weak_dtype(x: bool | int | float) -> DType:
    """The dtype of a Python number where nothing else decides it: bool, int32 or int64, float32."""
    if isinstance(x, bool):
        return bool_
    if isinstance(x, int):
        if not -2**63 <= x < 2**64:
            raise CompilationError(f"{shown_integer(x)} does not fit in 64 bits")
        return int32 if -2**31 <= x < 2**31 else int64
    return float32


@overload
def type_of(x: Value) -> Type: ...
@overload
def type_of(x: Const | bool | int | float) -> Scalar: ...
@overload
def type_of(x: object) -> Type | None: ...


def type_of(x: object) -> Type | None:
    """The type of an operand: a Value's type, a constant's scalar type; None for anything else."""
    if isinstance(x, Value):
        return x.type
    if isinstance(x, Const):
        return _of_a_number(x.dtype, False)
    if isinstance(x, (bool, int, float)):
        return _of_a_number(weak_dtype(x), True)
    return None


T = TypeVar("T", bound=Type)


def type_as(x: object, kind: type[T]) -> T:
    """The type of an operand that is known to be of one kind."""
    t = type_of(x)
    assert isinstance(t, kind), f"{describe(x)} is no {kind.__name__}"
    return t


def number_type(x: object) -> Scalar | Tile:
    """The type of an operand that is known to be a number or a tile of numbers."""
    t = type_of(x)
    assert isinstance(t, (Scalar, Tile)), f"{describe(x)} is no number"
    return t


def element_type(x: object) -> DType:
    """The dtype of an operand that has one: a number, a tile, or memory."""
    t = type_of(x)
    assert t is not None and not isinstance(t, (Barrier, BarrierRef)), f"{describe(x)} has no dtype"
    return t.dtype


def memory_type(x: object) -> Buffer | Region | Points | Selected:
    """The type of an operand that is known to be a place in memory."""
    t = type_of(x)
    assert isinstance(t, (Buffer, Region, Points, Selected)), f"{describe(x)} is no place in memory"
    return t


def buffer_type(x: object) -> Buffer:
    """The type of the buffer that a place in memory is, or is part of."""
    t = memory_type(x)
    return t if isinstance(t, Buffer) else t.buffer


def extents_of(x: object) -> tuple[int, ...]:
    """The shape of an operand that is known to be a tile, or a place in memory of known shape."""
    t = type_of(x)
    assert isinstance(t, (Tile, Buffer, Region, Points, Selected)), f"{describe(x)} has no shape"
    return t.shape


def as_value(x: Operand) -> Value:
    """An operand that is known to be a value."""
    assert isinstance(x, Value), f"{describe(x)} is no value"
    return x


@cache
def _of_a_number(dtype: DType, weak: bool) -> Scalar:
    return Scalar(dtype, Uniformity.GRID, weak)


def describe(x: object) -> str:
    """A short description of `x`, for messages."""
    t = type_of(x)
    if isinstance(x, tuple) and any(isinstance(item, (Value, Const)) for item in x):
        return f"a tuple ({', '.join(map(describe, x))})"
    if t is None:
        return f"{type(x).__name__} {x!r}" if isinstance(x, (str, tuple, list)) else type(x).__name__
    match t:
        case Tile():
            return f"a tile {t.dtype}{list(t.shape)}"
        case Scalar():
            if isinstance(x, Const):
                return f"the {x.dtype} number {x.value!r}"
            return f"a scalar {t.dtype}" if isinstance(x, Value) else f"the number {x!r}"
        case Buffer():
            return f"a {t.scope} buffer {t.dtype}[{', '.join(map(str, t.shape))}]"
    return str(t)


def flag(g: Builder, name: str, x: object) -> bool:
    """A keyword argument that must be True or False. CompilationError where it is not constant."""
    if not isinstance(x, int):
        raise g.error(f"{name} is True or False, known at compile time, not {describe(x)}" + g.declared_constant(x))
    return bool(x)


def source_text(value: Value) -> str:
    """A value as it appears in the kernel's source, for messages; its name where the source does not show it."""
    loc = value.loc
    if loc is None or loc.end_line not in (0, loc.line) or loc.end_column <= loc.column:
        return value.name
    return f"`{loc.source_line[loc.column:loc.end_column].strip()}`"
