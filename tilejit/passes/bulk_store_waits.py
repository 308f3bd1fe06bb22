"""Waits for the reads of bulk stores, later: a loop that ends its trips with one goes on with the next trip's products meanwhile.

A persistent kernel that stores each tile from a buffer waits until the engine has read that. What needs the wait is the next
store to the buffer; what comes before, the next tile's loop of products, touches only memory that copies with barriers fill.
So the wait, and the barrier of the scope after it, stand behind such a beginning of the trip, and once more after the loop.
PTX ISA, "cp.async.bulk.wait_group" (`.read`); with no group before it, in the first trip, it returns at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from ..ir.builder import Facts
from ..ir.graph import Block, Call, For, Graph, If, Node, Operand, walk, with_blocks
from .context import Context, written_by_threads

WAITS = ("mma_commit", "mma_wait", "mbarrier_wait", "ring_release")  # they order nothing that the wait's barrier would


def delay_bulk_store_waits(graph: Graph, facts: Facts) -> Graph:
    """The graph with waits for reads at the place in the next trip that needs them."""
    if not any(isinstance(n, Call) and n.op.name == "bulk_wait" and n.attrs["read"] for n in walk(graph.body)):
        return graph
    return replace(graph, body=_WaitDelayer(graph, facts).block(graph.body))


class _WaitDelayer:
    def __init__(self, graph: Graph, facts: Facts):
        self.graph, self.facts = graph, facts

    @cached_property
    def written(self) -> Callable[[Operand], bool]:
        return written_by_threads(Context(self.graph, self.facts))

    def block(self, block: Block) -> Block:
        nodes: list[Node] = []
        for node in block.nodes:
            node = with_blocks(node, self.block)
            nodes += self.loop(node) if isinstance(node, For) else [node]
        return replace(block, nodes=tuple(nodes))

    def loop(self, loop: For) -> list[Node]:
        """A loop, and what stands after it."""
        nodes = list(loop.body.nodes)
        last = [n for n in nodes if not _computes(n)][-2:]
        if len(last) < 2 or not _is(last[0], "bulk_wait") or not last[0].attrs["read"] or not _is(last[1], "sync"):
            return [loop]
        first = next((i for i, n in enumerate(nodes) if not self.independent(n)), len(nodes))
        if not any(isinstance(n, For) for n in nodes[:first]):
            return [loop]
        rest = [n for n in nodes[first:] if n not in last]
        return [replace(loop, body=replace(loop.body, nodes=(*nodes[:first], *last, *rest))), *last]

    def independent(self, node: Node) -> bool:
        """Whether a node and those in it touch nothing that threads of the scope have written or will write."""
        return all(isinstance(n, (For, If)) or isinstance(n, Call) and (n.op.effect == "pure" or n.op.name in WAITS or self.multiplies(n))
                   for n in walk(Block((node,))))

    def multiplies(self, call: Call) -> bool:
        return call.op.name == "mma_async" and not any(map(self.written, call.args))


def _computes(node: Node) -> bool:
    return isinstance(node, Call) and node.op.effect == "pure"


def _is(node: Node, name: str) -> bool:
    return isinstance(node, Call) and node.op.name == name


__all__ = ["delay_bulk_store_waits"]
