"""Delays a bulk store's wait into the next trip of its loop, behind the products there.

A persistent kernel that stores each tile from a staging buffer waits until the copy engine has read the buffer. Only
the next store to the buffer needs that wait. What comes first in the next trip, its loop of products, touches only
memory that copies with barriers fill. So the wait, and the scope's barrier after it, move behind the part of the next
trip that does not depend on them, and a copy of both stands after the loop. In the first trip there is no group yet,
and the wait returns at once. PTX ISA, "cp.async.bulk.wait_group" (`.read`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...concurrency import cached_property
from ...ir.builder import Facts
from ...ir.graph import Block, Call, For, Graph, If, Node, Operand, walk, with_blocks
from ...ir.op import Op
from ...ops.memory.shared import sync
from ...ops.mma import mma_async_, mma_commit, mma_wait
from ...ops.structure.ring_release import ring_release
from ...ops.sync.barriers import bulk_wait, mbarrier_wait, peek_op
from ..analysis.context import Context, written_by_threads

# synchronisation that may come before the wait and its barrier as well
WAITS = (mma_commit, mma_wait, mbarrier_wait, peek_op, ring_release)


def delay_bulk_store_waits(graph: Graph, facts: Facts) -> Graph:
    """The graph with waits for a bulk store's reads moved to where the next trip needs them."""
    if not any(isinstance(n, Call) and n.op is bulk_wait and n.attrs["read"] for n in walk(graph.body)):
        return graph
    return replace(graph, body=_WaitDelayer(graph, facts).block(graph.body))


class _WaitDelayer:
    def __init__(self, graph: Graph, facts: Facts):
        self.graph, self.facts = graph, facts

    @cached_property
    def is_written(self) -> Callable[[Operand], bool]:
        return written_by_threads(Context(self.graph, self.facts))

    def block(self, block: Block) -> Block:
        nodes: list[Node] = []
        for node in block.nodes:
            node = with_blocks(node, self.block)
            nodes += self.loop(node) if isinstance(node, For) else [node]
        return replace(block, nodes=tuple(nodes))

    def loop(self, loop: For) -> list[Node]:
        """The loop with its wait moved, and what then stands after it."""
        nodes = list(loop.body.nodes)
        last = [n for n in nodes if not _computes(n)][-2:]
        if len(last) < 2 or not _waits_for_reads(last[0]) or not _is(last[1], sync):
            return [loop]
        first = next((i for i, n in enumerate(nodes) if not self.is_independent(n)), len(nodes))
        if not any(isinstance(n, For) for n in nodes[:first]):
            return [loop]
        rest = [n for n in nodes[first:] if n not in last]
        return [replace(loop, body=replace(loop.body, nodes=(*nodes[:first], *last, *rest))), *last]

    def is_independent(self, node: Node) -> bool:
        """Whether a node, with all in it, accesses nothing that threads of the scope have written or will write."""
        return all(isinstance(n, (For, If)) or isinstance(n, Call)
                   and (n.op.effect == "pure" or n.op in WAITS or self.multiplies(n)) for n in walk(Block((node,))))

    def multiplies(self, call: Call) -> bool:
        return call.op is mma_async_ and not any(map(self.is_written, call.args))


def _computes(node: Node) -> bool:
    return isinstance(node, Call) and node.op.effect == "pure"


def _waits_for_reads(node: Node) -> bool:
    return isinstance(node, Call) and node.op is bulk_wait and bool(node.attrs["read"])


def _is(node: Node, op: Op) -> bool:
    return isinstance(node, Call) and node.op is op


__all__ = ["delay_bulk_store_waits"]
