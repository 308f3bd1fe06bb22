"""Slices of a graph, copies of nodes under new names, and dead code elimination.

A slice is the part that some operands depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from ...ir.graph import Block, Call, Carry, For, If, Node, Operand, Rewriter, Scope, Value, While, blocks, results, walk
from ...ops.memory.ordered import ordered_load

REMOVABLE = ("pure", "reads")


def backward_slice(block: Block, calls: Iterable[Call]) -> tuple[tuple[Node, ...], set[Value]]:
    """The nodes directly in `block` that the operands of `calls` depend on, in order and each pruned to what they
    need of it; and the values that these nodes take from outside of the block."""
    asked = replace(block, yields=tuple(o for c in calls for o in c.args))
    live = live_values(asked, _nothing_acts)
    kept = _prune_block(asked, live, _nothing_acts).nodes
    return kept, live - {v for node in walk(Block(kept)) for v in defined_values(node)}


def slice_around(block: Block, calls: Collection[Node]) -> tuple[tuple[Node, ...], set[Value]]:
    """The nodes of `block` that perform `calls`, which may stand in its branches: these themselves, the branches around
    them, and what their operands and the branches' conditions depend on; and the values taken from outside of the
    block."""
    def is_kept(call: Call) -> bool:
        return call in calls
    asked = replace(block, yields=())
    live = live_values(asked, is_kept)
    kept = _prune_block(asked, live, is_kept).nodes
    return kept, live - {v for node in walk(Block(kept)) for v in defined_values(node)}


def defined_values(node: Node) -> Iterator[Value]:
    """What a node defines: its results, and what it defines for its own blocks."""
    yield from results(node)
    if isinstance(node, (For, While)):
        yield from (c.inner for c in node.carried)
    if isinstance(node, For):
        yield node.index


def has_effect(call: Call) -> bool:
    """Whether a call does more than compute its results."""
    return call.op.effect not in REMOVABLE


def has_effect_or_waits(call: Call) -> bool:
    """Whether a call has an effect, or reads what others may write meanwhile:
    an otherwise empty loop may wait for that."""
    return has_effect(call) or call.op is ordered_load or call.op.traits.instruction and call.op.effect == "reads"


def more_than_arithmetic(call: Call) -> bool:
    """Whether a call reads memory or has an effect."""
    return call.op.effect != "pure" or not call.results


def _nothing_acts(call: Call) -> bool:
    """The predicate of a slice that keeps calls for their results alone."""
    return False


class Copier(Rewriter):
    """Copies nodes, with new values for all that they define. ``change(call)`` gives the calls to copy
    in place of a call."""

    def __init__(self, change: Callable[[Call], Iterable[Call]] = lambda call: (call,)):
        super().__init__()
        self.change = change
        self.copy_block: Callable[[Block], Block] = self.block  # what stands for a block inside a node

    def copy_values(self, values: Iterable[Value]) -> tuple[Value, ...]:
        return tuple(self._copy_value(v) for v in values)

    def _copy_value(self, value: Value) -> Value:
        self.values[value] = new = replace(value)
        return new

    def call(self, call: Call) -> Call:
        return replace(call, args=self.all(call.args), results=self.copy_values(call.results))

    def block(self, block: Block) -> Block:
        nodes = tuple(copy for node in block.nodes for copy in self.node(node))
        return Block(nodes, self.all(block.yields))

    def node(self, node: Node) -> list[Node]:
        match node:
            case Call():
                return [self.call(c) for c in self.change(node)]
            case For() | While():
                inits = [self(c.init) for c in node.carried]
                if isinstance(node, For):
                    node = replace(node, start=self(node.start), stop=self(node.stop), step=self(node.step),
                                   index=self._copy_value(node.index))
                inner = [self._copy_value(c.inner) for c in node.carried]
                test = self.copy_block(node.test) if isinstance(node, While) else None
                body = self.copy_block(node.body)
                carried = tuple(map(Carry, inits, inner, self.copy_values(c.result for c in node.carried)))
                node = replace(node, carried=carried, body=body)
                return [replace(node, test=test) if isinstance(node, While) and test is not None else node]
            case If():
                condition, then, orelse = self(node.test), self.copy_block(node.then), self.copy_block(node.orelse)
                return [replace(node, test=condition, then=then, orelse=orelse, results=self.copy_values(node.results))]
            case Scope():
                return [replace(node, first=self(node.first), body=self.copy_block(node.body))]


def without_dead_code(block: Block, has_effect: Callable[[Call], bool] = has_effect_or_waits) -> Block:
    """`block` without the calls, carried values, branches and loops that neither have an effect nor
    contribute to one that has.

    `has_effect` is the predicate of the calls that must stay.
    """
    return _prune_block(block, live_values(block, has_effect), has_effect)


def live_values(block: Block, has_effect: Callable[[Call], bool] = has_effect_or_waits) -> set[Value]:
    """Every value that the block's yields, or a call with an effect, depend on."""
    behind: dict[Value, tuple[Operand, ...]] = {}  # a value -> the operands that it depends on
    waiting: list[Operand] = []

    def visit(node: Node) -> bool:
        """Note what the node's values depend on. Returns whether there is an effect in it."""
        inside = [visit(inner) for b in blocks(node) for inner in b.nodes]
        match node:
            case Call(args=args, results=made):
                behind.update((r, args) for r in made)
                if has_effect(node):
                    waiting.extend(args)
                return has_effect(node)
            case For(start=start, stop=stop, step=step):
                steers: tuple[Operand, ...] = (start, stop, step)
                behind[node.index] = steers
            case While(test=test):
                steers = test.yields
            case If(test=test):
                steers = (test,)
                behind.update((r, (test, a, b)) for r, a, b in zip(node.results, node.then.yields, node.orelse.yields))
            case Scope(first=first):
                steers = (first,)
        if isinstance(node, (For, While)):
            for c, following in zip(node.carried, node.body.yields):
                behind[c.inner] = behind[c.result] = (c.init, following, *steers)
        if any(inside):
            waiting.extend(steers)
        return any(inside)

    for node in block.nodes:
        visit(node)
    live: set[Value] = set()
    waiting.extend(block.yields)
    while waiting:
        o = waiting.pop()
        if isinstance(o, Value) and o not in live:
            live.add(o)
            waiting.extend(behind.get(o, ()))
    return live


def _prune_block(block: Block, live: set[Value], has_effect: Callable[[Call], bool]) -> Block:
    """A block without what is neither live nor has an effect."""
    nodes: list[Node] = []
    for node in block.nodes:
        match node:
            case Call(results=made):
                gone = not has_effect(node) and not any(r in live for r in made)
            case Scope():
                node = replace(node, body=_prune_block(node.body, live, has_effect))
                gone = not node.body.nodes
            case If(then=then, orelse=orelse, results=made):
                at = [n for n, r in enumerate(made) if r in live]
                node = replace(node, then=_pruned_yields(then, at, live, has_effect),
                               orelse=_pruned_yields(orelse, at, live, has_effect), results=tuple(made[n] for n in at))
                gone = not at and not node.then.nodes and not node.orelse.nodes
            case For(carried=carried) | While(carried=carried):
                at = [n for n, c in enumerate(carried) if c.inner in live or c.result in live]
                node = replace(node, carried=tuple(carried[n] for n in at),
                               body=_pruned_yields(node.body, at, live, has_effect))
                gone = not at and not node.body.nodes
                if isinstance(node, While):
                    node = replace(node, test=_prune_block(node.test, live, has_effect))
                    gone = gone and not any(isinstance(c, Call) and has_effect(c) for c in walk(node.test))
        if not gone:
            nodes.append(node)
    return replace(block, nodes=tuple(nodes))


def _pruned_yields(block: Block, at: list[int], live: set[Value], has_effect: Callable[[Call], bool]) -> Block:
    return replace(_prune_block(block, live, has_effect), yields=tuple(block.yields[n] for n in at))


__all__ = ["Copier", "backward_slice", "defined_values", "has_effect", "has_effect_or_waits", "live_values",
           "more_than_arithmetic", "without_dead_code"]
