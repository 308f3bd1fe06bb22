"""Turn loads and stores by index tiles into accesses of a region, where the tiles and the mask name a box of an array.

A region needs fewer addresses and bounds tests, and the stored tile may keep the register layout
that it was computed in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from ...ir.builder import Facts, as_value, memory_type, type_of
from ...ir.graph import Block, Call, For, Graph, Node, walk, with_blocks
from ...ops.memory.access_ops import load_, store_
from ...types import Points, Tile
from ..analysis.access_patterns import AccessPattern, PatternMismatch
from ..analysis.context import Context
from ..analysis.program_slices import more_than_arithmetic, without_dead_code
from ..analysis.writing import Writer


def write_boxes(graph: Graph, facts: Facts) -> Graph:
    """The graph with regions in place of index tiles that name boxes."""
    if not any(is_access(n) for n in walk(graph.body)):
        return graph
    pass_ = _Boxes(Context(graph, facts))
    body = pass_.block(graph.body)
    return replace(graph, body=without_dead_code(body, more_than_arithmetic)) if pass_.found else graph


def is_access(node: Node) -> TypeGuard[Call]:
    """Whether a node loads or stores a tile of an array by index tiles, or a region under a mask."""
    if not isinstance(node, Call) or node.op not in (load_, store_):
        return False
    place = memory_type(node.args[0])
    return place.scope == "global" and place.shape != () and (isinstance(place, Points) or node.args[2] is not None)


class _Boxes:
    """The walk that rewrites accesses, with the scope and the constraints of where each stands."""

    def __init__(self, context: Context):
        self.context = context
        self.loops: list[For] = []  # around the node at hand, outermost first
        self.found = False

    def block(self, block: Block) -> Block:
        with self.context.in_block(block):
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
        with self.context.in_scope_of(node):
            return with_blocks(node, self.block),

    def access(self, call: Call) -> tuple[Node, ...]:
        """A load or store, rewritten to its box if it has one."""
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
                    g.call(store_, region, place.in_array_order(g, as_value(second)), None, **call.attrs)
        except PatternMismatch:
            return call,
        self.found = True
        access = nodes[-1]
        assert isinstance(access, Call)
        return *nodes[:-1], replace(access, results=call.results)


__all__ = ["write_boxes"]
