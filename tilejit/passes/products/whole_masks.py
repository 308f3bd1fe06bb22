"""Skips the masks of products' results in iterations in which they are true everywhere.

The causal mask of attention compares every row with every column, but only the blocks on the diagonal need it: for
64 x 128 scores it is 160 of the 690 instructions that a warp issues for a block. In a pipelined loop, a mask that
compares numbers which rise along rows or columns becomes a branch on their extremes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ...dtypes import int64, integer_range
from ...errors import line_of
from ...ir.builder import Facts, element_type, type_of
from ...ir.graph import (
    Block,
    Call,
    Const,
    For,
    Graph,
    If,
    Node,
    Operand,
    Value,
    blocks,
    operands,
    results,
    walk,
    with_blocks,
)
from ...ops.language.operators import binary, compare
from ...ops.language.promotion import convert
from ...ops.tiles import elementwise as ew
from ...ops.tiles.arrange import broadcast, reshape_, transpose_
from ...ops.tiles.generate import indices, iota, splat
from ...records import MaskRecord
from ...types import Scalar, Tile, Uniformity
from ..analysis.context import Context
from ..analysis.program_slices import Copier, more_than_arithmetic, without_dead_code
from ..analysis.writing import Writer

LEAST_ELEMENTS = 8  # of a thread: a branch costs about as much as the masks of so many
COMPARISONS = {ew.ge: ">=", ew.gt: ">", ew.le: "<=", ew.lt: "<"}
REARRANGED = (broadcast, reshape_, transpose_)

Extreme = Operand | int
Extremes = tuple[Extreme, Extreme]  # the least and the greatest element, as int64


def skip_whole_masks(graph: Graph, facts: Facts) -> Graph:
    """The graph with a branch around each such mask."""
    loops = [n for n in walk(graph.body) if isinstance(n, For) and n.pipeline]
    if not any(isinstance(n, Call) and n.op is ew.select and isinstance(n.result.type, Tile)
               for loop in loops for n in walk(loop.body)):
        return graph
    skipper = _MaskSkipper(Context(graph, facts))
    body = skipper.block(graph.body)
    return replace(graph, body=body, masks=tuple(skipper.records)) if skipper.records else graph


class _MaskSkipper:
    def __init__(self, context: Context):
        self.context, self.g = context, Writer.of(context)
        self.records: list[MaskRecord] = []
        self.bounds: list[Operand | bool] = []  # conditions under which the arithmetic at hand does not wrap

    def block(self, block: Block) -> Block:
        return replace(block, nodes=tuple(self.node(n) for n in block.nodes))

    def node(self, node: Node) -> Node:
        with self.context.in_scope_of(node):
            node = with_blocks(node, self.block)
        return self.loop(node) if isinstance(node, For) and node.pipeline else node

    def loop(self, loop: For) -> For:
        """The loop with its masks in branches."""
        varying = _dependents(loop.body.nodes, {loop.index}, lambda call: False)
        products = _dependents(loop.body.nodes, set(), lambda call: call.op.traits.product)
        nodes: list[Node] = []
        for node in loop.body.nodes:
            made = None
            if isinstance(node, Call) and node.op is ew.select and node.args[0] in varying and node.args[1] in products:
                made = self.branch(loop, node)
            nodes += made or [node]
        if len(nodes) == len(loop.body.nodes):
            return loop
        return replace(loop, body=without_dead_code(replace(loop.body, nodes=tuple(nodes)), more_than_arithmetic))

    def branch(self, loop: For, select: Call) -> list[Node] | None:
        """The nodes in place of a mask; None if it stays."""
        condition, kept, _ = select.args
        t = type_of(condition)
        if not isinstance(t, Tile) or t.size < LEAST_ELEMENTS * self.context.scope.threads:
            return None
        self.g.loc, self.bounds = select.loc, []
        with self.g.block() as nodes:
            test = self.is_whole(condition)
            for bound in self.bounds:
                test = _conjunction(self.g, test, bound)
        if not isinstance(test, Value):
            return None
        copier = Copier()
        masked = copier.block(Block((*self.nodes_behind(loop, condition), select), select.results))
        nodes.append(If(test, Block((), (kept,)), masked, select.results, select.loc))
        line, source = line_of(select.loc), select.loc.source_line.strip() if select.loc else ""
        self.records.append(MaskRecord(line, source, line_of(loop.loc)))
        return nodes

    def nodes_behind(self, loop: For, condition: Operand) -> list[Call]:
        """The arithmetic of tiles in the loop that a mask follows from, in order."""
        wanted, found = {condition}, []
        for node in reversed(loop.body.nodes):
            if (isinstance(node, Call) and node.op.effect == "pure" and not wanted.isdisjoint(node.results)
                and isinstance(node.result.type, Tile)):
                wanted.update(node.args)
                found.append(node)
        return found[::-1]

    def is_whole(self, mask: Operand) -> Operand | bool:
        """Whether a mask is true everywhere; False where that cannot be said by its extremes."""
        made = self.context.definitions.get(mask)
        if made is None:
            return False
        if made.op in REARRANGED:
            return self.is_whole(made.args[0])
        if made.op is ew.bit_and:
            return _conjunction(self.g, *map(self.is_whole, made.args))
        if made.op not in COMPARISONS or not element_type(made.args[0]).is_int:
            return False
        one, other = map(self.extremes, made.args)
        if one is None or other is None:
            return False
        falls = made.op in (ew.le, ew.lt)
        return _comparison(self.g, COMPARISONS[made.op], one[1] if falls else one[0], other[0] if falls else other[1])

    def extremes(self, x: Operand) -> Extremes | None:
        """The extremes of an integer, or of a tile of integers; None if they are not known before the threads compute
        it. `bounds` gets the conditions under which they are right."""
        if isinstance(x, Const):
            return int(x.value), int(x.value)
        t, made = type_of(x), self.context.definitions.get(x)
        if isinstance(t, Scalar):
            if t.uniform < Uniformity.CTA or not t.dtype.is_int:
                return None
            number = convert(self.g, x, int64)
            return number, number
        if made is None:
            return None
        if made.op is iota:
            return made.attrs["start"], made.attrs["stop"] - 1
        if made.op is indices:
            return 0, made.attrs["shape"][made.attrs["axis"]] - 1
        if made.op is splat or made.op in REARRANGED:
            return self.extremes(made.args[0])
        if made.op in (ew.add, ew.sub) and element_type(x).bits <= 32:
            return self.extremes_of_sum(made)
        return None

    def extremes_of_sum(self, call: Call) -> Extremes | None:
        one, other = map(self.extremes, call.args)
        if one is None or other is None:
            return None
        if call.op is ew.sub:
            other = other[1], other[0]
        low, high = (_sum(self.g, "+" if call.op is ew.add else "-", a, b) for a, b in zip(one, other))
        least, most = integer_range(element_type(call.result))
        self.bounds += _comparison(self.g, ">=", low, least), _comparison(self.g, "<=", high, most)
        return low, high


def _dependents(nodes: Iterable[Node], values: set[Operand], begins: Callable[[Call], bool]) -> set[Operand]:
    """`values`, the results of calls that ``begins(call)`` accepts, and what `nodes` compute from these."""
    found = set(values)
    for node in nodes:
        inside = [n for b in blocks(node) for n in walk(b)]
        if (any(v in found for n in (node, *inside) for v in operands(n))
            or any(isinstance(n, Call) and begins(n) for n in (node, *inside))):
            found.update(results(node))
    return found


def _sum(g: Writer, symbol: str, a: Extreme, b: Extreme) -> Extreme:
    if isinstance(a, int) and isinstance(b, int):
        return a + b if symbol == "+" else a - b
    if isinstance(b, int) and b == 0:
        return a
    return binary(g, symbol, a, b)


def _comparison(g: Writer, symbol: str, a: Extreme, b: Extreme) -> Operand | bool:
    if isinstance(a, int) and isinstance(b, int):
        return {">=": a >= b, ">": a > b, "<=": a <= b, "<": a < b}[symbol]
    return compare(g, symbol, a, b)


def _conjunction(g: Writer, a: Operand | bool, b: Operand | bool) -> Operand | bool:
    """Whether both hold."""
    if isinstance(a, bool):
        return b if a else False
    if isinstance(b, bool):
        return a if b else False
    return binary(g, "&", a, b)


__all__ = ["skip_whole_masks"]
