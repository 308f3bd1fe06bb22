"""Keeps reductions across lanes under the products that run beside them.

A loop that waits for all products but the last, works on the results, and then waits for the last one, is to work while
that product runs. ptxas 13.0 moves the second wait up, before all arithmetic that its registers do not need: behind the
product instead of under it. Within a basic block nothing holds it. So the block ends behind the first reduction across
lanes between the two waits: in an attention loop, behind the maxima of the scores, on which the rest waits. What
follows ptxas may place as it likes.
"""

from __future__ import annotations

from dataclasses import replace

from ...ir.builder import Facts
from ...ir.graph import Block, Call, Graph, Node, choice_of, walk, with_blocks
from ...ops.mma import basic_block_end, mma_wait
from ...ops.reduce.reduce import reduce_


def hold_reductions(graph: Graph, facts: Facts) -> Graph:
    """The graph with the ends of basic blocks."""
    if not any(isinstance(n, Call) and n.op is mma_wait and n.attrs["n"] for n in walk(graph.body)):
        return graph
    return replace(graph, body=_end_blocks(graph.body))


def _end_blocks(block: Block) -> Block:
    """The block with the ends, also in its inner blocks."""
    nodes: list[Node] = []
    found: int | None = None  # where the block is to end, if another wait follows
    under = False             # whether products run beside what follows
    for node in block.nodes:
        node = with_blocks(node, _end_blocks)
        if not isinstance(node, Call):
            under, found = False, None
        elif node.op is mma_wait:
            if found is not None:
                nodes.insert(found, Call(basic_block_end, (), {}, (), node.loc))
            under, found = node.attrs["n"] > 0, None
        nodes.append(node)
        if under and found is None and _crosses_lanes(node):
            found = len(nodes)
    return replace(block, nodes=tuple(nodes))


def _crosses_lanes(node: Node) -> bool:
    return isinstance(node, Call) and node.op is reduce_ and bool(choice_of(node).plan.masks)


__all__ = ["hold_reductions"]
