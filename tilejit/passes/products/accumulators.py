"""Pins the accumulators of asynchronous products to registers.

Which register tiles are such accumulators, and which of them share a set of registers.

The result of an asynchronous product exists before its data does, so it is kept in registers that are known by name.
Tiles that are one accumulator at different times (operand and result of a product; initial value, inside and result
of what a loop carries) are coalesced into one set wherever their live ranges do not overlap; where they do, the
emitter copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from ...ir.builder import type_of
from ...ir.graph import Block, Call, For, Graph, If, Node, Operand, Scope, Value, While
from ...ops.mma import mma_async_, renewed
from ...types import Tile

Interval = tuple[int, int]


def is_product(node: Node) -> TypeGuard[Call]:
    """Whether a node is an asynchronous product into registers."""
    return isinstance(node, Call) and node.op is mma_async_


@dataclass
class _LiveRanges:
    """Positions of the tiles' definitions and uses in program order, and what control flow merges."""

    start: dict[Value, int] = field(default_factory=dict)
    ends: dict[Value, set[int]] = field(default_factory=dict)
    loops: list[Interval] = field(default_factory=list)
    branches: list[tuple[Interval, Interval]] = field(default_factory=list)  # the two sides of a branch
    products: list[tuple[Value, Operand]] = field(default_factory=list)      # (result, accumulator); also of `renewed`
    # each carried value: inner, result, init, following
    carries: list[tuple[Value, Value, Operand, Operand]] = field(default_factory=list)
    joins: list[tuple[Value, tuple[Operand, ...]]] = field(default_factory=list)
    uses: list[tuple[Value, int]] = field(default_factory=list)
    taken: set[Operand] = field(default_factory=set)  # operands of calls, and what a loop takes over
    at: int = 0

    def step(self) -> int:
        self.at += 1
        return self.at

    def define(self, values: Iterable[Value]) -> None:
        for v in values:
            if isinstance(v.type, Tile):
                self.start[v] = self.at

    def use(self, operands: Iterable[Operand], certain: bool = True) -> None:
        """Note uses here. Those that are not `certain` hand a tile on along one of two ways that meet."""
        tiles = [o for o in operands if isinstance(o, Value) and isinstance(o.type, Tile)]
        self.uses += [(o, self.at) for o in tiles]
        if certain:
            self.taken.update(tiles)

    def block(self, block: Block) -> None:
        for node in block.nodes:
            self.step()
            match node:
                case Call(args=args, results=results):
                    if is_product(node) or node.op is renewed:
                        self.products.append((node.result, args[0]))
                    self.use(args)
                    self.define(results)
                case For() | While():
                    self.loop(node)
                case If(then=then, orelse=orelse, results=results):
                    self.branches.append((self.arm(then), self.arm(orelse)))
                    self.define(results)
                    self.joins += [(r, (a, b)) for r, a, b in zip(results, then.yields, orelse.yields)]
                case Scope(body=body):
                    self.block(body)

    def arm(self, block: Block) -> Interval:
        """One side of a branch. Returns its interval of positions."""
        first = self.step()
        self.block(block)
        self.step()
        self.use(block.yields, certain=False)
        return first, self.at

    def loop(self, node: For | While) -> None:
        self.use(c.init for c in node.carried)
        first = self.step()  # a carried value's init is used before the loop, not in each trip
        self.define(c.inner for c in node.carried)
        if isinstance(node, While):
            self.block(node.test)
            self.step()
            # where the test ends the loop, they become its results
            self.use((c.inner for c in node.carried), certain=False)
        self.block(node.body)
        self.step()
        self.use(node.body.yields)
        self.loops.append((first, self.at))
        self.define(c.result for c in node.carried)
        self.carries += [(c.inner, c.result, c.init, y) for c, y in zip(node.carried, node.body.yields)]

    def extend_over_loops(self) -> None:
        """A use inside a loop that the value enters from outside keeps it live until the loop's end."""
        for value, at in self.uses:
            born = self.start.get(value, 0)
            for first, last in self.loops:
                if first <= at <= last and not first <= born <= last:
                    at = max(at, last)
            self.ends.setdefault(value, set()).add(at)

    def taken_with_joins(self) -> set[Operand]:
        """What is used for certain, with what branches yield as results of which that is true."""
        taken, size = set(self.taken), -1
        while size != len(taken):
            size = len(taken)
            taken.update(y for result, yields in self.joins if result in taken for y in yields)
        return taken

    def live_after(self, value: Value, at: int) -> bool:
        """Whether a value is used after a position, on a path that leads there."""
        def lies_in_other_branch(end: int) -> bool:
            return any(a <= at <= b and c <= end <= d for (a, b), (c, d) in self.branches)
        return (self.start[value] > at
                or any(end > at and not lies_in_other_branch(end) for end in self.ends.get(value, ())))


class PinnedRegisters:
    """The pinned tiles of a graph: `sets` gives each of them the number of its set of registers.

    `unread` are those that nothing uses for certain: True for what a loop carries into its body, which ends at the
    body's end, False for a result, which is left in its registers.
    """

    def __init__(self, graph: Graph):
        lives = _LiveRanges()
        lives.block(graph.body)
        lives.extend_over_loops()
        self.lives = lives
        self.parent: dict[Value, Value] = {v: v for v in self._tiles(lives)}
        self.members: dict[Value, list[Value]] = {v: [v] for v in self.parent}
        for inner, result, _, _ in lives.carries:
            if inner in self.parent:
                self._merge(inner, result)
        for inner, _, init, following in lives.carries:
            self._coalesce(inner, following)
            self._coalesce(inner, init)
        for result, accumulator in lives.products:
            self._coalesce(result, accumulator)
        for result, yields in lives.joins:
            for y in yields:
                self._coalesce(result, y)
        # Let consecutive products share a set where they can. Otherwise the assembler starts one while registers of the
        # last are still read, and takes part of a second set beside them.
        for i, (result, _) in enumerate(lives.products):
            for before, _ in lives.products[:i]:
                self._coalesce(result, before)
        inners = {inner for inner, *_ in lives.carries}
        taken = lives.taken_with_joins()
        self.unread: dict[Value, bool] = {v: v in inners for v in self.parent if v not in taken}
        numbers: dict[Value, int] = {}
        self.sets: Mapping[Operand, int] = {v: numbers.setdefault(self._root(v), len(numbers)) for v in self.parent}

    @staticmethod
    def _tiles(lives: _LiveRanges) -> dict[Value, None]:
        """The pinned tiles: results of products, and what control flow passes them on as or turns into
        their accumulators."""
        found = dict.fromkeys(r for r, _ in lives.products)
        taken = {a for _, a in lives.products}
        size = -1
        while size != len(found):
            size = len(found)
            for inner, result, init, following in lives.carries:
                if following in found or init in found or inner in taken and isinstance(type_of(inner), Tile):
                    found |= dict.fromkeys((inner, result))
            for result, yields in lives.joins:
                if any(y in found for y in yields):
                    found[result] = None
        return found

    def _root(self, v: Value) -> Value:
        while self.parent[v] is not v:
            v = self.parent[v]
        return v

    def _merge(self, a: Value, b: Value) -> None:
        a, b = self._root(a), self._root(b)
        if a is not b:
            self.parent[b] = a
            self.members[a] += self.members.pop(b)

    def _coalesce(self, a: Value, b: Operand) -> None:
        """Let both values share registers, if their live ranges allow it."""
        if b not in self.parent or a not in self.parent or a.type != b.type or self._root(a) is self._root(b):
            return
        if not any(self._overlap(x, y) for x in self.members[self._root(a)] for y in self.members[self._root(b)]):
            self._merge(a, b)

    def _overlap(self, x: Value, y: Value) -> bool:
        """Whether two values are live at once. Values that control flow passes on together are,
        even if only to be passed on again."""
        start, live_after = self.lives.start, self.lives.live_after
        return start[x] == start[y] or live_after(x, start[y]) and live_after(y, start[x])


__all__ = ["PinnedRegisters", "is_product"]
