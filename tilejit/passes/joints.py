"""Waits where ways of control flow meet: for products in flight on one of them, into registers that another one writes or reads.

The hardware needs none there, since a thread goes one way. But ptxas 13.0 has one stage of its pipeline of wgmma, from the fence to the wait,
for all ways that meet; where other instructions write an accumulator's registers within it, or read them, it lets all products of the kernel
follow one another (C7515, C7514). It does not count groups from one trip of a loop to the next either. With a wait the stage ends before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..errors import Loc
from ..ir.builder import Facts, Warning_
from ..ir.graph import Block, Call, For, Graph, If, Node, Operand, Scope, Value, While, blocks, operands, results, walk
from ..ops.mma import mma_commit, mma_wait, renewed
from .accumulators import Pinned, is_product
from .pending import ROUNDS

REASON = ("all products in flight are waited for {}, so that every product ends before the next begins: write mma_wait(0) at this place if "
          "that is intended")


@dataclass
class _State:
    """What is true of sets of registers at one place: how many groups were closed since a product into one was started (by None: since any
    group); which of these products are of the trip before; by which waits that leave groups pending such ones were awaited; which sets were
    written inside the loop or branch at hand, and which had products there; which were written while something was in flight that may still be;
    which hold either, behind a loop or branch that has both."""

    flight: dict[int | None, int] = field(default_factory=dict)
    before: set[int | None] = field(default_factory=set)
    counted: dict[int | None, frozenset[Call]] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    products: set[int] = field(default_factory=set)
    early: set[int] = field(default_factory=set)
    either: set[int] = field(default_factory=set)

    def copy(self) -> "_State":
        return _State(dict(self.flight), set(self.before), dict(self.counted), *map(set, (self.written, self.products, self.early, self.either)))

    def inside(self) -> "_State":
        """At the beginning of a loop or a branch."""
        return replace(self.copy(), written=set(), products=set())

    def behind(self, before: "_State", written: set[int]) -> None:
        """Behind a loop or branch, that has `written` what it hands on."""
        self.either |= written & self.products
        self.written |= before.written
        self.products |= before.products

    def join(self, other: "_State") -> "_State":
        """What may be true where two ways meet."""
        flight = {s: min(x.flight[s] for x in (self, other) if s in x.flight) for s in {**self.flight, **other.flight}}
        counted = {s: self.counted.get(s, frozenset()) | other.counted.get(s, frozenset()) for s in {**self.counted, **other.counted}}
        return _State(flight, self.before | other.before, counted, self.written | other.written, self.products | other.products,
                      self.early | other.early, self.either | other.either)

    def start(self, product: int) -> None:
        self.flight[product] = 0
        self.counted.pop(product, None)
        self.products.add(product)
        for sets in (self.before, self.written, self.early, self.either):
            sets.discard(product)

    def close(self) -> None:
        self.flight = {s: age + 1 for s, age in self.flight.items()} | {None: 1}  # a group of nothing begins a stage as well

    def wait(self, n: int, call: Call | None = None) -> None:
        over = {s for s, age in self.flight.items() if age > n}
        self.counted = self.counted | dict.fromkeys(over & self.before, frozenset((call,))) if n else {}
        self.flight = {s: age for s, age in self.flight.items() if s not in over}
        self.before -= over
        if not self.flight:
            self.early = set()

    def write(self, sets: set[int]) -> None:
        self.written |= sets
        self.either -= sets
        if self.flight:
            self.early |= sets


def await_joints(graph: Graph, facts: Facts) -> Graph:
    """The graph with the waits, and a warning for each."""
    if not any(map(is_product, walk(graph.body))):
        return graph
    pinned, counted = Pinned(graph), set()
    while True:
        joints = _Joints(pinned.sets, frozenset(counted))
        body, _ = joints.block(graph.body, _State())
        if joints.counted <= counted:
            break
        counted |= joints.counted
    made = tuple(Warning_(joints.reasons[n], n.loc) for n in walk(body) if n in joints.reasons)
    return replace(graph, body=body, warnings=graph.warnings + made)


class _Joints:
    def __init__(self, sets: Mapping[Value, int], whole: frozenset[Call]):
        self.sets, self.whole = sets, whole
        self.touching: dict[Node, bool] = {}    # whether a node has to do with products or their sets: others leave the state as it is
        self.counted: set[Call] = set()         # waits for all but some groups, which the assembler would not count
        self.reasons: dict[Node, str] = {}      # of the waits that this pass writes

    def block(self, block: Block, state: _State) -> tuple[Block, _State]:
        nodes: list[Node] = []
        for node in block.nodes:
            if not self.touches(node):
                nodes.append(node)
                continue
            match node:
                case Call():
                    nodes.append(self.call(node, state))
                case For() | While():
                    made, state = self.loop(node, state)
                    nodes += made
                case If():
                    node, state = self.branch(node, state)
                    nodes.append(node)
                case Scope():
                    body, inner = self.block(node.body, state.inside())
                    nodes.append(replace(node, body=body))
                    state = state.join(inner)
        return replace(block, nodes=tuple(nodes)), state

    def touches(self, node: Node) -> bool:
        if node not in self.touching:
            inside = [n for block in blocks(node) for n in (*map(self.touches, block.nodes), *(y in self.sets for y in block.yields))]
            own = is_product(node) or isinstance(node, Call) and node.op in (mma_commit, mma_wait)
            self.touching[node] = own or any(inside) or any(v in self.sets for v in (*operands(node), *results(node)))
        return self.touching[node]

    def call(self, call: Call, state: _State) -> Call:
        if state.counted:
            read, own = (call.args[:1], call.results) if is_product(call) else (call.args, ())
            self.touch({self.sets[v] for v in read if v in self.sets} - {self.sets[v] for v in own}, state)
        if call in self.whole:
            call = replace(call, attrs={"n": 0})
            self.reasons[call] = REASON.format("by this wait, since the assembler does not count groups across iterations of a loop")
        if is_product(call):
            state.start(self.sets[call.result])
        elif call.op is mma_commit:
            state.close()
        elif call.op is mma_wait:
            state.wait(call.attrs["n"], call)
        return call

    def touch(self, sets: set[int | None], state: _State) -> None:
        """The threads themselves read or write sets here."""
        self.counted |= {wait for s in sets for wait in state.counted.get(s, ())}

    def handed(self, operands: tuple[Operand, ...], targets: tuple[Value, ...], state: _State) -> set[int]:
        """The sets that are written where operands are handed on as targets."""
        moves = [(self.sets.get(o), self.sets.get(t)) for o, t in zip(operands, targets) if self.sets.get(o) != self.sets.get(t)]
        self.touch({s for move in moves for s in move}, state)
        return {target for _, target in moves if target is not None}

    def branch(self, node: If, state: _State) -> tuple[If, _State]:
        inner = (node.then, node.orelse)
        blocks, ways = zip(*(self.block(block, state.inside()) for block in inner))
        moved = [self.handed(block.yields, node.results, way) for block, way in zip(inner, ways)]
        met = {self.sets[r] for r in node.results if r in self.sets}
        writes = [(way.written | way.early | sets) & met for way, sets in zip(ways, moved)]
        wait = any(way.flight.keys() & (own | other) for way, own, other in zip(ways, moved, reversed(writes)))
        ends = []
        for block, way, own in zip(blocks, ways, moved):
            if wait and way.flight:
                block = self.ended(block, way, node.loc, "where one path of this branch ends, since the assembler would see the other one write "
                                                         "their registers")
            ends.append(block)
            way.write(own)
        after = ways[0].join(ways[1])
        after.behind(state, after.written)
        return replace(node, then=ends[0], orelse=ends[1]), after

    def loop(self, node: For | While, state: _State) -> tuple[list[Node], _State]:
        inner = tuple(c.inner for c in node.carried)
        begins, met = self.handed(tuple(c.init for c in node.carried), inner, state), {self.sets[v] for v in inner if v in self.sets}
        made, first, left, back = self.trips(node, state, begins)
        waits: list[Node] = []
        if state.flight.keys() & (begins | back.written & met) or back.flight.keys() & first.early & met:
            waits = self.awaited(state, node.loc, "before this loop, since the assembler would see it write their registers")
            made, first, left, back = self.trips(node, state, begins)
        anew = {s for s in state.either - begins if s in back.flight and s not in state.flight}
        left.behind(state, back.written)
        left.written |= begins
        left.before = state.before & left.flight.keys()
        return [*waits, *self.written_anew(made, anew)], left

    def written_anew(self, loop: For | While, sets: set[int]) -> list[Node]:
        """A loop behind instructions that write anew what it begins with in `sets`. ptxas 13.0 takes a register that either a product or another
        instruction has written, whichever way the threads came, for one that is written while the loop's products are in flight (C7515)."""
        nodes, carried = [], []
        for c in loop.carried:
            if isinstance(c.init, Value) and self.sets.get(c.inner) in sets:
                c = replace(c, init=Value(c.init.name, c.init.type, c.init.loc))
                nodes.append(Call(renewed, (loop.carried[len(carried)].init,), {}, (c.init,), loop.loc))
            carried.append(c)
        return [*nodes, replace(loop, carried=tuple(carried))]

    def trips(self, node: For | While, state: _State, begins: set[int]) -> tuple[For | While, _State, _State, _State]:
        """A loop with the waits in it, and what is true where its first trip begins, where it is left, and where a trip ends."""
        first = state.copy()
        first.write(begins)
        first = head = first.inside()
        for _ in range(ROUNDS):
            way = head.copy()
            if isinstance(node, While):
                test, way = self.block(node.test, way)
            left = way.copy()
            body, way = self.block(node.body, way)
            ends = self.handed(node.body.yields, tuple(c.inner for c in node.carried), way)
            if way.flight.keys() & ends:
                body = self.ended(body, way, node.loc, "where an iteration of this loop ends, since the assembler would see it write their registers")
            way.write(ends)
            following = head.join(way)
            following.before |= way.flight.keys()
            if following == head:
                break
            head = following
        made = replace(node, test=test, body=body) if isinstance(node, While) else replace(node, body=body)
        return made, first, left, way

    def ended(self, block: Block, state: _State, loc: Loc, where: str) -> Block:
        """A block that awaits what is in flight where it ends."""
        return replace(block, nodes=(*block.nodes, *self.awaited(state, loc, where)))

    def awaited(self, state: _State, loc: Loc, where: str) -> list[Node]:
        """The nodes that await all that is in flight."""
        nodes = [Call(mma_commit, (), {}, (), loc)] if 0 in state.flight.values() else []
        wait = Call(mma_wait, (), {"n": 0}, (), loc)
        self.reasons[wait] = REASON.format(where)
        state.flight = {}
        state.wait(0)
        state.before = set()
        return [*nodes, wait]


__all__ = ["await_joints"]
