"""Inserts fence.proxy.async where the compiler hands a buffer from threads to copies or tensor cores.

The fence stands between a scope's ordinary accesses to the buffer and the barrier or arrival that hands it over.

Pipelined loops and rings mark these places (`hand_over`, `ring_release`); so do rings that threads fill, for the
products and copies that read their slots through that proxy. The pass follows which buffers the threads may have
accessed since their last fence, through branches, loops and scopes; the kernel's own fences count. What only wgmma,
tcgen05 or copy engines read, and what only ``cp.async`` refills, needs no fence and gets none. ops/sync/proxies.py
says why a barrier alone is not enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...config import architecture
from ...dispatch import Choice
from ...ir.builder import Facts
from ...ir.graph import UNIT, Block, Call, Const, For, Graph, If, Node, Operand, Scope, Value, While, number, walk
from ...ir.op_rules import require_rule
from ...ops.mma import mma_wait
from ...ops.structure.ring_release import Release, ring_release
from ...ops.sync.barriers import fence_proxy_async, fences_proxies
from ...ops.sync.proxies import ANYWHERE, accessed_by_engines, accessed_by_threads, allocation_of, hand_over


def insert_proxy_fences(graph: Graph, facts: Facts) -> Graph:
    """The graph without `hand_over`, with the fences that it and the releases of rings need. The releases are
    planned."""
    calls = [node for node in walk(graph.body) if isinstance(node, Call)]
    if not any(call.op.rules.handed_over is not None for call in calls):
        return graph
    definitions = {r: call for call in calls for r in call.results}
    inserter = _FenceInserter(graph, calls, definitions)
    return replace(graph, body=inserter.block(graph.body, _Threads(0, graph.launch.threads), set()))


@dataclass(frozen=True)
class _Threads:
    """The threads of a scope: those from `first` on, before `stop`; one of the first warp if `elected`.

    With `place`, the scope's place among them is known at run time only: it is the one that this value says.
    """

    first: int
    stop: int
    elected: bool = False
    place: Any = None

    def inside(self, node: Scope) -> _Threads:
        """The threads inside a Scope node."""
        if node.kind == "elect":
            return replace(self, elected=True)
        if not isinstance(node.first, Const) or self.place is not None:
            return replace(self, place=(self.place, node.kind, node.first, node.count))
        first = int(node.first.value) * UNIT[node.kind]
        return _Threads(first, first + node.threads)

    def cover(self, other: _Threads) -> bool:
        """Whether these threads certainly include all of the others."""
        same = self == (other if self.elected else replace(other, elected=False))
        return same or self.place is None and not self.elected and self.first <= other.first and other.stop <= self.stop

    def meet(self, other: _Threads) -> bool:
        """Whether these threads may include some of the others."""
        return self.first < other.stop and other.first < self.stop


class _FenceInserter:
    """Follows `pending` through the graph: (allocation, threads that have accessed it since their last fence)."""

    def __init__(self, graph: Graph, calls: list[Call], definitions: dict[Value, Call]):
        self.definitions = definitions
        self.accessed = {call: {self.allocation(p) for p in accessed_by_threads(call)} for call in calls}
        self.touched = set().union(*self.accessed.values())
        by_engines = [accessed_by_engines(call) for call in calls]
        self.refilled = {self.allocation(p) for written, _ in by_engines for p in written}
        self.read = {self.allocation(p) for _, read in by_engines for p in read}
        self.handed = {call: self.buffers(call) for call in calls if call.op.rules.handed_over is not None}
        self.fenced_before = {call: self.for_engines(call) for call in self.handed if architecture(graph.target) >= 90}
        self.followed = set().union(*self.fenced_before.values())

    def allocation(self, place: Operand) -> Value | None:
        return allocation_of(self.definitions, place)

    def buffers(self, call: Call) -> set[Value | None]:
        return {self.allocation(b) for b in require_rule(call.op.rules.handed_over)(call)}

    def for_engines(self, call: Call) -> set[Value | None]:
        """The buffers that a call hands over and the async proxy then accesses."""
        accessed = self.read if call.attrs.get("filled") else self.refilled
        return self.handed[call] if ANYWHERE in accessed else self.handed[call] & accessed

    def block(self, block: Block, threads: _Threads, pending: set[Any]) -> Block:
        """The block with its fences. Updates `pending` to what is pending at the block's end."""
        nodes: list[Node] = []
        for node in block.nodes:
            if isinstance(node, Call):
                self.call(node, threads, pending, nodes)
            else:
                nodes.append(self.insert_in_node(node, threads, pending))
        return replace(block, nodes=tuple(nodes))

    def call(self, call: Call, threads: _Threads, pending: set[Any], nodes: list[Node]) -> None:
        """Append the call to its block's `nodes`, with the fence that it needs before it."""
        if self.is_needed(self.fenced_before.get(call, set()), threads, pending):
            nodes.insert(self.place_of_fence(nodes), Call(fence_proxy_async, (), {}, (), call.loc))
            self.mark_fenced(threads, pending)
        if fences_proxies(call):
            self.mark_fenced(threads, pending)
        pending |= {(a, threads) for a in self.accessed[call] if a is ANYWHERE or a in self.followed}
        if call.op is not hand_over:
            nodes.append(self.plan_release(call))

    def place_of_fence(self, nodes: list[Node]) -> int:
        """Where in a block a fence for what its nodes have accessed stands: at its end; but before a wait for products
        that no such access follows. The fence waits for the loads, and does so while the products run."""
        place = len(nodes)
        for n in range(len(nodes) - 1, -1, -1):
            node = nodes[n]
            if not isinstance(node, Call) or node.op.effect != "pure" and self.accessed.get(node):
                break
            if node.op is mma_wait:
                place = n
        return place

    def plan_release(self, call: Call) -> Call:
        """A release of a ring with its plan; other calls as they are."""
        if call.op is not ring_release:
            return call
        read = ANYWHERE in self.touched or not self.touched.isdisjoint(self.handed[call])
        return replace(call, choice=Choice(call.op.name, Release(after_barrier=read or not call.attrs["met"])))

    @staticmethod
    def is_needed(buffers: set[Any], threads: _Threads, pending: set[Any]) -> bool:
        return any((a is ANYWHERE or a in buffers) and threads.meet(others) for a, others in pending) and bool(buffers)

    @staticmethod
    def mark_fenced(threads: _Threads, pending: set[Any]) -> None:
        pending -= {p for p in pending if threads.cover(p[1])}

    def insert_in_node(self, node: Node, threads: _Threads, pending: set[Any]) -> Node:
        match node:
            case Call():
                return node
            case For(body=body) if single_trip(node):
                return replace(node, body=self.block(body, threads, pending))
            case For(body=body):
                return replace(node, body=self.insert_in_loop((body,), threads, pending)[0])
            case While(test=test, body=body):
                test, body = self.insert_in_loop((test, body), threads, pending)
                return replace(node, test=test, body=body)
            case If(then=then, orelse=orelse):
                other = set(pending)
                then, orelse = self.block(then, threads, pending), self.block(orelse, threads, other)
                pending |= other
                return replace(node, then=then, orelse=orelse)
            case Scope(body=body):
                inner = threads.inside(node)
                body = self.block(body, inner, pending)
                # the value may name a different place in each trip
                if inner.place is not None and inner.place != threads.place:
                    left = {p for p in pending if p[1].place == inner.place}
                    pending -= left
                    pending |= {(a, replace(t, place=node)) for a, t in left}
                return replace(node, body=body)

    def insert_in_loop(self, blocks: tuple[Block, ...], threads: _Threads, pending: set[Any]) -> list[Block]:
        """The blocks of a loop, of which the first one runs at least once if there are two. They are followed until
        what is pending at the loop's start no longer grows."""
        while True:
            state, made, left = set(pending), [], set(pending)
            for n, block in enumerate(blocks):
                made.append(self.block(block, threads, state))
                if n == 0 and len(blocks) == 2:
                    left = set(state)  # the loop ends after its test
            if state <= pending:
                if len(blocks) == 2:
                    pending.clear()
                    pending |= left
                return made
            pending |= state


def single_trip(loop: For) -> bool:
    """Whether a loop is known to run once."""
    if not all(isinstance(b, Const) for b in (loop.start, loop.stop, loop.step)):
        return False
    return len(range(number(loop.start), number(loop.stop), number(loop.step))) == 1
