"""Powers of 2 that products and sums take: their subnormal results become 0, as ``ex2.approx.ftz`` makes them.

A softmax inside attention computes one for each score. ``exp2`` in float32 keeps subnormal results by three more
instructions, a comparison, an addition and a multiplication, which were 192 of the 690 instructions that a warp issues
for a block of 64 x 128 scores. A sum of products that takes a number below 2**-126 as 0 changes by less than 2**-126
for each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ...dtypes import float32
from ...ir.builder import Facts, element_type
from ...ir.graph import Block, Call, Graph, Node, Operand, Value, walk, with_blocks
from ...ops.language.math import FUNCTIONS
from ...ops.mma.dot import dot_
from ...ops.reduce.reduce import reduce_
from ...ops.tiles.arrange import broadcast, reshape_, transpose_
from ...ops.tiles.casts import cast
from ...ops.tiles.elementwise import select
from ...ops.tiles.slicing import slice_
from ...types import Tile
from ..analysis.uses import uses

ACCURATE, FLUSHED = FUNCTIONS["exp2"]
HANDED_ON = (broadcast, cast, reshape_, slice_, transpose_)  # ops whose results are elements of their first operand


def flush_powers(graph: Graph, facts: Facts) -> Graph:
    """The graph in which an ``exp2`` of a tile of float32, whose result only products and sums take, flushes subnormal
    results."""
    powers = [n for n in walk(graph.body) if isinstance(n, Call) and n.op is ACCURATE
              and isinstance(n.result.type, Tile) and element_type(n.result) == float32]
    if not powers:
        return graph
    used = uses(graph.body)
    flushed = {power for power in powers if _feeds_products_alone(power.result, used)}
    return replace(graph, body=_with_flushed(graph.body, flushed)) if flushed else graph


def _feeds_products_alone(power: Value, used: Mapping[Operand, Any]) -> bool:
    """Whether a product takes the elements of a tile as an operand, and nothing but products and sums does."""
    waiting, multiplied = [power], False
    while waiting:
        x = waiting.pop()
        for node, _ in used.get(x, ()):
            if not isinstance(node, Call):
                return False
            as_it_is = node.op in HANDED_ON and element_type(node.result).is_float
            if node.op is dot_ and x in node.args[1:3] and x is not node.args[0]:
                multiplied = True
            elif as_it_is or node.op is select and x is not node.args[0]:
                waiting.append(node.result)
            elif node.op is not reduce_ or node.attrs["combine"].name != "sum":
                return False
    return multiplied


def _with_flushed(block: Block, flushed: Collection[Node]) -> Block:
    def flush(node: Node) -> Node:
        if node in flushed and isinstance(node, Call):
            assert FLUSHED is not None
            return replace(node, op=FLUSHED)
        return with_blocks(node, lambda inner: _with_flushed(inner, flushed))
    return replace(block, nodes=tuple(map(flush, block.nodes)))


__all__ = ["flush_powers"]
