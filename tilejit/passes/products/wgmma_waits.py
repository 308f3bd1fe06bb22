"""Inserts waits for wgmma where paths of control flow merge.

They are for products in flight on one path, into registers that another path accesses.

The hardware needs none, since a thread takes one path. But ptxas 13.0 treats wgmma as one pipeline stage, from the
fence to the wait, across all paths that merge; where other instructions write an accumulator's registers within the
stage, or read them, it serialises all products of the kernel (notes C7515, C7514). Nor does it count groups from one
trip of a loop to the next. A wait ends the stage before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ...errors import Loc
from ...ir.builder import Facts, Warning_
from ...ir.graph import (
    Block,
    Call,
    Carry,
    For,
    Graph,
    If,
    Node,
    Operand,
    Scope,
    Value,
    While,
    blocks,
    operands,
    results,
    walk,
)
from ...ops.mma import mma_commit, mma_wait, renewed
from .accumulators import PinnedRegisters, is_product
from .mma_hazards import ROUNDS

REASON = ("all products in flight are waited for {}, so that every product ends before the next begins: "
          "write mma_wait(0) at this place if that is intended")


@dataclass
class _State:
    """What is true of sets of pinned registers at one place in the program.

    flight:   sets with a product in flight -> groups closed since it was issued (None: since any group)
    before:   of these, the products issued in the previous trip
    counted:  sets of such products, once awaited -> the waits, which left other groups pending
    written:  sets written inside the loop or branch at hand
    products: sets that had products inside the loop or branch at hand
    early:    sets written while something was in flight that still may be
    either:   sets that, after a loop or branch, hold either a product's result or what threads have written
    """

    flight: dict[int | None, int] = field(default_factory=dict)
    before: set[int | None] = field(default_factory=set)
    counted: dict[int | None, frozenset[Call]] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)
    products: set[int] = field(default_factory=set)
    early: set[int] = field(default_factory=set)
    either: set[int] = field(default_factory=set)

    def copy(self) -> _State:
        return _State(dict(self.flight), set(self.before), dict(self.counted),
                      *map(set, (self.written, self.products, self.early, self.either)))

    def inside(self) -> _State:
        """The state at the start of a loop's or branch's block."""
        return replace(self.copy(), written=set(), products=set())

    def update_after(self, before: _State, written: set[int]) -> None:
        """Update the state after a loop or branch; `written` are the sets that it wrote to hand values on."""
        self.either |= written & self.products
        self.written |= before.written
        self.products |= before.products

    def join(self, other: _State) -> _State:
        """What may be true where two paths merge."""
        flight = {s: min(x.flight[s] for x in (self, other) if s in x.flight) for s in {**self.flight, **other.flight}}
        counted = {s: self.counted.get(s, frozenset()) | other.counted.get(s, frozenset())
                   for s in {**self.counted, **other.counted}}
        return _State(flight, self.before | other.before, counted, self.written | other.written,
                      self.products | other.products, self.early | other.early, self.either | other.either)

    def start(self, product: int) -> None:
        self.flight[product] = 0
        self.counted.pop(product, None)
        self.products.add(product)
        for sets in (self.before, self.written, self.early, self.either):
            sets.discard(product)

    def close(self) -> None:
        self.flight = {s: age + 1 for s, age in self.flight.items()} | {None: 1}  # an empty group opens a stage as well

    def wait(self, n: int, call: Call | None = None) -> None:
        over = {s for s, age in self.flight.items() if age > n}
        counted = dict.fromkeys(over & self.before, frozenset((call,) if call is not None else ()))
        self.counted = self.counted | counted if n else {}
        self.flight = {s: age for s, age in self.flight.items() if s not in over}
        self.before -= over
        if not self.flight:
            self.early = set()

    def write(self, sets: set[int]) -> None:
        self.written |= sets
        self.either -= sets
        if self.flight:
            self.early |= sets


def insert_wgmma_waits(graph: Graph, facts: Facts) -> Graph:
    """The graph with the waits, and a warning for each."""
    if not any(map(is_product, walk(graph.body))):
        return graph
    pinned = PinnedRegisters(graph)
    counted: set[Call] = set()
    while True:
        inserter = _WaitInserter(pinned.sets, frozenset(counted))
        body, _ = inserter.block(graph.body, _State())
        if inserter.counted <= counted:
            break
        counted |= inserter.counted
    made = tuple(Warning_(inserter.reasons[n], n.loc) for n in walk(body) if n in inserter.reasons)
    return replace(graph, body=body, warnings=graph.warnings + made)


class _WaitInserter:
    """Rewrites a graph while it follows the state of pinned registers.
    Waits in `widened` become waits for all groups."""

    def __init__(self, sets: Mapping[Operand, int], widened: frozenset[Call]):
        self.sets, self.widened = sets, widened
        self.relevant: dict[Node, bool] = {}    # the cache of `is_relevant`
        # waits that leave groups pending, whose count the assembler would not follow
        self.counted: set[Call] = set()
        self.reasons: dict[Node, str] = {}      # the waits that this pass writes, with its warnings

    def block(self, block: Block, state: _State) -> tuple[Block, _State]:
        nodes: list[Node] = []
        for node in block.nodes:
            if not self.is_relevant(node):
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

    def is_relevant(self, node: Node) -> bool:
        """Whether a node involves products or their registers. Others leave the state as it is."""
        if node not in self.relevant:
            inside = [n for block in blocks(node)
                      for n in (*map(self.is_relevant, block.nodes), *(y in self.sets for y in block.yields))]
            own = is_product(node) or isinstance(node, Call) and node.op in (mma_commit, mma_wait)
            self.relevant[node] = own or any(inside) or any(v in self.sets for v in (*operands(node), *results(node)))
        return self.relevant[node]

    def call(self, call: Call, state: _State) -> Call:
        if state.counted:
            read, own = (call.args[:1], call.results) if is_product(call) else (call.args, ())
            self.access({self.sets[v] for v in read if v in self.sets} - {self.sets[v] for v in own}, state)
        if call in self.widened:
            call = replace(call, attrs={"n": 0})
            self.reasons[call] = REASON.format("by this wait, since the assembler does not count groups across "
                                               "iterations of a loop")
        if is_product(call):
            state.start(self.sets[call.result])
        elif call.op is mma_commit:
            state.close()
        elif call.op is mma_wait:
            state.wait(call.attrs["n"], call)
        return call

    def access(self, sets: Iterable[int | None], state: _State) -> None:
        """Note that the threads themselves read or write these sets here."""
        self.counted |= {wait for s in sets for wait in state.counted.get(s, ())}

    def sets_copied(self, operands: tuple[Operand, ...], targets: tuple[Value, ...], state: _State) -> set[int]:
        """The sets written where `operands` are passed on as `targets` in other registers."""
        moves = [(self.sets.get(o),
                  self.sets.get(t)) for o, t in zip(operands, targets) if self.sets.get(o) != self.sets.get(t)]
        self.access({s for move in moves for s in move}, state)
        return {target for _, target in moves if target is not None}

    def branch(self, node: If, state: _State) -> tuple[If, _State]:
        """A branch. If a side has a product in flight into registers that it copies, or that the other side writes,
        the sides wait at their ends."""
        inner = (node.then, node.orelse)
        blocks, paths = zip(*(self.block(block, state.inside()) for block in inner))
        moved = [self.sets_copied(block.yields, node.results, path) for block, path in zip(inner, paths)]
        met = {self.sets[r] for r in node.results if r in self.sets}
        writes = [(path.written | path.early | sets) & met for path, sets in zip(paths, moved)]
        wait = any(path.flight.keys() & (own | other) for path, own, other in zip(paths, moved, reversed(writes)))
        ends = []
        for block, path, own in zip(blocks, paths, moved):
            if wait and path.flight:
                block = self.with_wait(block, path, node.loc, "where one path of this branch ends, since the assembler "
                                                              "would see the other one write their registers")
            ends.append(block)
            path.write(own)
        after = paths[0].join(paths[1])
        after.update_after(state, after.written)
        return replace(node, then=ends[0], orelse=ends[1]), after

    def loop(self, node: For | While, state: _State) -> tuple[list[Node], _State]:
        """A loop, after a wait if it writes registers of a product in flight,
        and after `renewed` where the assembler needs that."""
        inner = tuple(c.inner for c in node.carried)
        begins, met = (self.sets_copied(tuple(c.init for c in node.carried), inner, state),
                       {self.sets[v] for v in inner if v in self.sets})
        made, first, left, back = self.trips(node, state, begins)
        waits: list[Node] = []
        if state.flight.keys() & (begins | back.written & met) or back.flight.keys() & first.early & met:
            waits = self.wait_nodes(state, node.loc,
                                    "before this loop, since the assembler would see it write their registers")
            made, first, left, back = self.trips(node, state, begins)
        anew = {s for s in state.either - begins if s in back.flight and s not in state.flight}
        left.update_after(state, back.written)
        left.written |= begins
        left.before = state.before & left.flight.keys()
        return [*waits, *self.written_anew(made, anew)], left

    def written_anew(self, loop: For | While, sets: set[int]) -> list[Node]:
        """A loop, after instructions that rewrite its initial values in `sets`.

        ptxas 13.0 takes a register that either a product or another instruction has written, depending on the path,
        for one that is written while the loop's products are in flight (C7515).
        """
        nodes: list[Node] = []
        carried: list[Carry] = []
        for c in loop.carried:
            if isinstance(c.init, Value) and self.sets.get(c.inner) in sets:
                anew = Value(c.init.name, c.init.type, c.init.loc)
                nodes.append(Call(renewed, (c.init,), {}, (anew,), loop.loc))
                c = replace(c, init=anew)
            carried.append(c)
        return [*nodes, replace(loop, carried=tuple(carried))]

    def trips(self, node: For | While, state: _State, begins: set[int]) -> tuple[For | While, _State, _State, _State]:
        """A loop with the waits in it, and the states where its first trip starts, where it is left,
        and where a trip ends."""
        first = state.copy()
        first.write(begins)
        first = head = first.inside()
        for _ in range(ROUNDS):
            path = head.copy()
            if isinstance(node, While):
                test, path = self.block(node.test, path)
            left = path.copy()
            body, path = self.block(node.body, path)
            ends = self.sets_copied(node.body.yields, tuple(c.inner for c in node.carried), path)
            if path.flight.keys() & ends:
                body = self.with_wait(body, path, node.loc, "where an iteration of this loop ends, "
                                                            "since the assembler would see it write their registers")
            path.write(ends)
            following = head.join(path)
            following.before |= path.flight.keys()
            if following == head:
                break
            head = following
        made = replace(node, test=test, body=body) if isinstance(node, While) else replace(node, body=body)
        return made, first, left, path

    def with_wait(self, block: Block, state: _State, loc: Loc | None, where: str) -> Block:
        """A block that waits at its end for all that is in flight."""
        return replace(block, nodes=(*block.nodes, *self.wait_nodes(state, loc, where)))

    def wait_nodes(self, state: _State, loc: Loc | None, where: str) -> list[Node]:
        """The nodes that wait for all that is in flight."""
        nodes = [Call(mma_commit, (), {}, (), loc)] if 0 in state.flight.values() else []
        wait = Call(mma_wait, (), {"n": 0}, (), loc)
        self.reasons[wait] = REASON.format(where)
        state.flight = {}
        state.wait(0)
        state.before = set()
        return [*nodes, wait]


__all__ = ["insert_wgmma_waits"]
