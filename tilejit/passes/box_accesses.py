"""Loads and stores of elements that index tiles name: where these are a box of an array, all that the mask leaves, its region stands for them.

Fewer addresses and tests are computed of a region, and a store's tile may lie in registers as what made it left it.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.builder import Facts, type_of
from ..ir.graph import Block, Call, For, Graph, Node, walk, with_blocks
from ..ops.memory import load_, store_
from ..types import Points, Tile
from .access_patterns import AccessPattern, PatternMismatch
from .context import Context
from .program_slices import more_than_arithmetic, without_dead_code
from .writing import Writer


def write_boxes(graph: Graph, facts: Facts) -> Graph:
    if not any(is_access(n) for n in walk(graph.body)):
        return graph
    pass_ = _Boxes(Context(graph, facts))
    body = pass_.block(graph.body)
    return replace(graph, body=without_dead_code(body, more_than_arithmetic)) if pass_.found else graph


def is_access(node: Node) -> bool:
    """Whether a node loads or stores a tile of points of an array, or as much of a region as a mask leaves."""
    place = node.args[0].type if isinstance(node, Call) and node.op in (load_, store_) else None
    return place is not None and place.scope == "global" and place.shape != () and (isinstance(place, Points) or node.args[2] is not None)


class _Boxes:
    def __init__(self, context: Context):
        self.context = context
        self.loops: list[For] = []  # around the place
        self.found = False

    def block(self, block: Block) -> Block:
        with self.context.inside(block):
            return replace(block, nodes=tuple(n for node in block.nodes for n in self.node(node)))

    def node(self, node: Node) -> tuple[Node, ...]:
        match node:
            case Call() if is_access(node):
                return self.access(node)
            case For():
                self.loops.append(node)
                body = self.block(node.body)
                self.loops.pop()
                return replace(node, body=body),
        with self.context.within(node):
            return with_blocks(node, self.block),

    def access(self, call: Call) -> tuple[Node, ...]:
        """A load or a store, by the region if there is one."""
        g = Writer.of(self.context)
        g.loc, g.scope = call.loc, self.context.scope
        loads, second = call.op is load_, call.args[1]
        try:
            place = AccessPattern(self.context, call, self.loops)
            consecutive = list(place.axes) == list(range(len(place.shape)))
            if not place.is_box or not consecutive and isinstance(type_of(second), Tile) == loads:
                return call,
            with g.block() as nodes:
                region = place.box(g, place.buffer)
                if loads:
                    place.in_tile_order(g, g.call(load_, region, second, None, **call.attrs))
                else:
                    g.call(store_, region, place.in_array_order(g, second), None, **call.attrs)
        except PatternMismatch:
            return call,
        self.found = True
        return *nodes[:-1], replace(nodes[-1], results=call.results)


__all__ = ["write_boxes"]
