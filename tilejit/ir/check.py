"""The structural checker: the invariants that every graph keeps, whatever pass made it.
A GraphError is a mistake of the compiler."""

from __future__ import annotations

from collections.abc import Iterator

from ..types import Barrier, BarrierRef, Scalar, Tile, Type, Uniformity
from .builder import type_of
from .graph import (
    UNIT,
    Block,
    Call,
    Carry,
    Const,
    For,
    Graph,
    If,
    Node,
    Operand,
    Scope,
    Value,
    While,
    operands,
    results,
    walk,
)

KINDS = ("thread", "warp", "warpgroup", "elect")


class GraphError(AssertionError):
    """A graph that breaks an invariant."""


def check(graph: Graph) -> None:
    """GraphError unless every value is defined once and before its use, yields fit what they become, and scopes nest
    and use their own tiles."""
    checker = _Checker(graph.launch.threads)
    for param in graph.params:
        checker.define(param, None)
    checker.block(graph.body, graph.launch.threads)
    if graph.body.yields:
        raise GraphError("the body of a kernel yields nothing")


class _Checker:
    """Walks a graph with the values that are visible, each with the scope that defined it."""

    def __init__(self, threads: int):
        self.threads = threads
        self.visible: dict[Value, object] = {}
        self.defined: set[Value] = set()
        self.scope: object = None

    # -- values ------------------------------------------------------------------------------------------------------

    def define(self, value: Value, node: Node | None) -> None:
        if not isinstance(value, Value):
            raise GraphError(f"{value!r} is no value{_location_of(node)}")
        if value in self.defined:
            raise GraphError(f"{value!r} is defined twice{_location_of(node)}")
        self.defined.add(value)
        self.visible[value] = self.scope

    def use(self, operand: Operand, node: Node | None) -> None:
        if operand is None or isinstance(operand, Const):
            return
        if not isinstance(operand, Value):
            raise GraphError(f"{operand!r} is no operand{_location_of(node)}")
        if operand not in self.visible:
            state = "after the block that defines it has ended" if operand in self.defined else "before it is defined"
            raise GraphError(f"{operand!r} is used {state}{_location_of(node)}")
        if isinstance(operand.type, Tile) and self.visible[operand] is not self.scope:
            raise GraphError(f"the tile {operand!r} is used in another scope than made it{_location_of(node)}")

    def leave(self, count: int) -> None:
        """End a block: only the first `count` values stay visible."""
        while len(self.visible) > count:
            self.visible.popitem()

    # -- nodes -------------------------------------------------------------------------------------------------------

    def block(self, block: Block, threads: int, node: Node | None = None) -> None:
        """Check the nodes of a block. What they define is visible to its yields and to nothing after it."""
        before = len(self.visible)
        for inner in block.nodes:
            for operand in operands(inner):
                self.use(operand, inner)
            self.node(inner, threads)
            for value in results(inner):
                self.define(value, inner)
        for operand in block.yields:
            self.use(operand, node)
        self.leave(before)

    def node(self, node: Node, threads: int) -> None:
        match node:
            case Call():
                if type(node.args) is not tuple or type(node.results) is not tuple:
                    raise GraphError(f"the operands and results of {node.op} are tuples{_location_of(node)}")
            case If(test=test, then=then, orelse=orelse):
                _condition(test, node)
                for branch in (then, orelse):
                    self.block(branch, threads, node)
                    _fit(branch.yields, [r.type for r in node.results], node)
            case For():
                self._bounds(node)
                self._loop(node, (node.index,), (node.body,), threads)
            case While(test=test):
                if len(test.yields) != 1:
                    raise GraphError(f"the test of a loop yields its condition alone{_location_of(node)}")
                _condition(test.yields[0], node)
                self._loop(node, (), (test, node.body), threads)
            case Scope():
                self._scope(node, threads)

    def _bounds(self, node: For) -> None:
        t = node.index.type
        if not isinstance(t, Scalar) or not t.dtype.is_int:
            raise GraphError(f"the index of a loop is an integer scalar, not {t}{_location_of(node)}")
        for bound in (node.start, node.stop, node.step):
            found = type_of(bound)
            if found is None or isinstance(found, (Barrier, BarrierRef)) or found.dtype != t.dtype:
                raise GraphError(f"a bound of a loop over {t.dtype} is {bound!r}{_location_of(node)}")
        if isinstance(node.step, Const) and node.step.value == 0:
            raise GraphError(f"the step of a loop is not 0{_location_of(node)}")

    def _loop(self, node: For | While, own: tuple[Value, ...], blocks: tuple[Block, ...], threads: int) -> None:
        outer = len(self.visible)
        for value in (*own, *(c.inner for c in node.carried)):
            self.define(value, node)
        for block in blocks:
            self.block(block, threads, node)
        self.leave(outer)
        for carry in node.carried:
            _carry(carry, node)
        _fit(node.body.yields, [c.inner.type for c in node.carried], node)

    def _scope(self, node: Scope, threads: int) -> None:
        if node.kind not in KINDS:
            raise GraphError(f"no scope is a {node.kind!r}{_location_of(node)}")
        if node.body.yields:
            raise GraphError(f"a scope yields nothing{_location_of(node)}")
        inner = node.threads
        if node.kind == "elect" and (node.count != 1 or node.first is not None):
            raise GraphError(f"elect is one thread and has no first{_location_of(node)}")
        if node.kind != "elect" and node.first is None:
            raise GraphError(f"a scope of {node.kind} has a first{_location_of(node)}")
        if inner > threads:
            raise GraphError(f"a scope of {inner} threads stands in one of {threads}{_location_of(node)}")
        if isinstance(node.first, Const) and not 0 <= node.first.value <= self.threads // UNIT[node.kind] - node.count:
            raise GraphError(f"{node.kind} {node.first.value} is outside the CTA{_location_of(node)}")
        outer, self.scope = self.scope, node
        self.block(node.body, inner, node)
        self.scope = outer


# -- types that must fit -----------------------------------------------------------------------------------------------

def _condition(test: Operand, node: Node) -> None:
    t = None if test is None else type_of(test)
    if not isinstance(t, Scalar) or t.dtype.kind != "bool":
        raise GraphError(f"a condition is a bool scalar, not {test!r}{_location_of(node)}")


def _fit(yields: tuple[Operand, ...], types: list[Type], node: Node) -> None:
    if len(yields) != len(types):
        raise GraphError(f"a block yields {len(yields)} operands where {len(types)} are needed{_location_of(node)}")
    for operand, t in zip(yields, types):
        _becomes(operand, t, node)


def _carry(carry: Carry, node: Node) -> None:
    if carry.inner.type != carry.result.type:
        raise GraphError(f"{carry.inner!r} is {carry.result.type} after the loop{_location_of(node)}")
    _becomes(carry.init, carry.inner.type, node)


def _becomes(operand: Operand, t: Type, node: Node) -> None:
    """GraphError unless an operand may become a value of type `t`: the same type, or for scalars a less uniform one."""
    found = None if operand is None else type_of(operand)
    if isinstance(found, Scalar) and isinstance(t, Scalar):
        uniform = Uniformity.GRID if isinstance(operand, Const) else found.uniform
        fits = found.dtype == t.dtype and uniform >= t.uniform
    else:
        fits = found == t
    if not fits:
        raise GraphError(f"{operand!r} becomes a value of type {t}{_location_of(node)}")


def _location_of(node: Node | None) -> str:
    """The location of a node, for a message."""
    return "" if node is None or node.loc is None else f" ({type(node).__name__} at {node.loc})"


def values(graph: Graph) -> Iterator[Value]:
    """Every value that a graph defines: parameters, results, and what loops define for their bodies."""
    yield from graph.params
    for node in walk(graph.body):
        yield from results(node)
        if isinstance(node, (For, While)):
            yield from (c.inner for c in node.carried)
        if isinstance(node, For):
            yield node.index
