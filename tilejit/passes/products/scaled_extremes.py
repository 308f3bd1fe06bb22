"""Takes the maximum of scores before they are scaled: ``max(s * c)`` becomes ``max(s) * c`` if c is positive.

Attention scales its scores, and subtracts their maximum. The products with c would be one instruction for each score,
64 of the 531 that a warp issues for a block of 64 x 128: the difference ``s * c - m`` is a fused multiply-add anyway.
Rounding keeps the order of ``s * c``, so the maximum has the same bits.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ...dtypes import float32, is_positive
from ...ir.builder import Facts, element_type
from ...ir.graph import Block, Call, Const, Graph, Node, Operand, Value, walk, with_blocks
from ...ops.reduce.reduce import reduce_
from ...ops.tiles.elementwise import mul, select
from ...ops.tiles.generate import splat
from ...types import Tile
from ..analysis.uses import uses


def scale_extremes(graph: Graph, facts: Facts) -> Graph:
    """The graph in which maxima and minima are scaled instead of the tiles that they are of."""
    extremes = [n for n in walk(graph.body) if isinstance(n, Call) and _is_extreme(n)]
    return _Scaler(graph, facts).run(extremes) if extremes else graph


def _is_extreme(call: Call) -> bool:
    return (call.op is reduce_ and call.attrs["combine"].name in ("max", "min") and len(call.args) == 1
            and element_type(call.args[0]) == float32)


class _Scaler:
    def __init__(self, graph: Graph, facts: Facts):
        self.graph, self.facts = graph, facts
        self.made: dict[Operand | None, Call] = {
            r: n for n in walk(graph.body) if isinstance(n, Call) for r in n.results}
        self.used = uses(graph.body)
        self.written: dict[Node, tuple[Node, ...]] = {}  # what stands in place of a node

    def run(self, extremes: list[Call]) -> Graph:
        for call in extremes:
            self.extreme(call)
        return replace(self.graph, body=self.block(self.graph.body)) if self.written else self.graph

    def block(self, block: Block) -> Block:
        nodes: list[Node] = []
        for node in block.nodes:
            nodes += self.written[node] if node in self.written else (with_blocks(node, self.block),)
        return replace(block, nodes=tuple(nodes))

    def extreme(self, call: Call) -> None:
        """Scale the extreme of a scaled tile, which may be masked."""
        x = call.args[0]
        scaled = self.made.get(x)
        if scaled is not None and scaled.op is select:
            scaled = self.product_after_mask(scaled, inf if call.attrs["combine"].name == "min" else -inf)
        if scaled is None or scaled.op is not mul:
            return
        parts = self.parts(scaled)
        if parts is None:
            return
        tile, _, factor = parts
        of_tile = Value(call.result.name, call.result.type, call.loc)
        kind = call.result.type
        nodes: list[Node] = [replace(call, args=(tile,), results=(of_tile,))]
        if isinstance(kind, Tile):
            spread = Value("splat", replace(kind), call.loc)
            nodes.append(Call(splat, (factor,), {"shape": kind.shape}, (spread,), call.loc))
            factor = spread
        nodes.append(Call(mul, (of_tile, factor), {}, call.results, call.loc))
        self.written[call] = tuple(nodes)
        if scaled.result is x and len(self.used[x]) == 1:
            self.written[scaled] = ()

    def product_after_mask(self, masked: Call, fill: float) -> Call | None:
        """The product with the scale after the mask, which is written before it; None if it cannot be."""
        condition, kept, other = masked.args
        for x, rest in ((kept, other), (other, kept)):
            scaled, filler = self.made.get(x), self.made.get(rest)
            if (scaled is None or scaled.op is not mul or filler is None or filler.op is not splat
                    or not isinstance(filler.args[0], Const) or filler.args[0].value != fill or len(self.used[x]) > 1):
                continue
            parts = self.parts(scaled)
            if parts is None:
                continue
            if masked in self.written:
                after = self.written[masked][1]
                assert isinstance(after, Call)
                return after
            tile, spread, _ = parts
            alone = Value(masked.result.name, masked.result.type, masked.loc)
            args = (condition, tile, rest) if x is kept else (condition, rest, tile)
            after = replace(scaled, args=(alone, spread), results=masked.results)
            self.written[masked] = replace(masked, args=args, results=(alone,)), after
            self.written[scaled] = ()
            return after
        return None

    def parts(self, scaled: Call) -> tuple[Operand, Operand, Operand] | None:
        """The tile, the tile of its factor, and the factor of a product with a positive number; None if it is none."""
        for tile, spread in (scaled.args, scaled.args[::-1]):
            call = self.made.get(spread)
            if call is not None and call.op is splat and self.is_positive(call.args[0]):
                return tile, spread, call.args[0]
        return None

    def is_positive(self, number: Operand) -> bool:
        """Whether a scale is a positive number, or an argument that the launch says is one."""
        if isinstance(number, Const):
            return is_positive(number.value)
        if number not in self.graph.params or element_type(number) != float32:
            return False
        return self.facts.ask("scalar_positive", self.graph.params.index(number))


__all__ = ["scale_extremes"]
