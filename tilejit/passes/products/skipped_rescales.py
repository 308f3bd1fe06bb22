"""Skips the rescaling of results in threads whose factors are all 1, where a kernel chooses them to be.

An online softmax multiplies its sums of values by ``exp(old - new)`` of the maxima in each block, 64 products in a
thread for 128 columns. A kernel that keeps a row's old number until the maximum is far above it writes
``exp2(where(stays, 0.0, old - new))``, which is 1 in most blocks. Where it is for all rows of a thread, the products
change nothing.
"""

from __future__ import annotations

from dataclasses import replace

from ...dtypes import float32
from ...ir.builder import Facts, element_type, type_as
from ...ir.graph import Block, Call, Const, For, Graph, Node, Operand, While, walk, with_blocks
from ...ops.language.math import FUNCTIONS
from ...ops.reduce.layout_digits import register_coordinates
from ...ops.tiles.arrange import broadcast, reshape_
from ...ops.tiles.elementwise import mul, select
from ...ops.tiles.generate import splat
from ...ops.tiles.rescale import rescale
from ...types import Tile

SHARED_BY = 16  # elements of each factor from which on a branch is cheaper than the products, if it skips half of them
POWERS = frozenset(op for name in ("exp", "exp2") for op in FUNCTIONS[name])


def skip_rescales(graph: Graph, facts: Facts) -> Graph:
    """The graph whose loops rescale rows where a factor is not 1."""
    made: dict[Operand, Call] = {
        call.result: call for call in walk(graph.body) if isinstance(call, Call) and len(call.results) == 1}
    if not any(call.op in POWERS for call in made.values()):
        return graph

    def block(old: Block, looped: bool) -> Block:
        return replace(old, nodes=tuple(new for n in old.nodes for new in nodes(n, looped)))

    def nodes(old: Node, looped: bool) -> tuple[Node, ...]:
        if looped and isinstance(old, Call) and old.op is mul:
            return _with_branch(old, made)
        return with_blocks(old, lambda inner: block(inner, looped or isinstance(old, (For, While)))),
    return replace(graph, body=block(graph.body, False))


def _with_branch(call: Call, made: dict[Operand, Call]) -> tuple[Call, ...]:
    """A product with powers of rows as one that threads may skip."""
    t = call.result.type
    if isinstance(t, Tile) and len(t.shape) == 2 and element_type(call.result) == float32:
        for x, y in (call.args, call.args[::-1]):
            steps = _from_power(y, made)
            if steps and not _from_power(x, made) and _are_shared(t, steps):
                exponent, along = steps[0].args[0], []
                for step in steps[1:]:  # the exponents spread as the powers are
                    spread = replace(step.result)
                    along.append(replace(step, args=(exponent, *step.args[1:]), results=(spread,)))
                    exponent = spread
                return *along, replace(call, op=rescale, args=(x, y, exponent))
    return call,


def _are_shared(t: Tile, steps: list[Call]) -> bool:
    """Whether the elements of a thread have few factors. `steps` are those of `_from_power`."""
    along = [d for d, n in enumerate(type_as(steps[-1].args[0], Tile).shape) if n > 1]
    places = register_coordinates(t.layout, t.domain)
    return len({tuple(at[d] for d in along) for at in places}) * SHARED_BY <= len(places)


def _from_power(x: Operand, made: dict[Operand, Call]) -> list[Call]:
    """The calls that make a tile of the powers of rows, the power first; none if it is no such tile, or if no
    exponent is chosen to be 0."""
    steps = [made[x]] if x in made else []
    while steps and steps[0].op in (broadcast, reshape_) and steps[0].args[0] in made:
        steps.insert(0, made[steps[0].args[0]])
    if len(steps) < 2 or steps[0].op not in POWERS or steps[-1].op is not broadcast:
        return []
    return steps if _may_be_zero(steps[0].args[0], made) else []


def _may_be_zero(exponent: Operand, made: dict[Operand, Call]) -> bool:
    """Whether an exponent is chosen to be 0 under a condition."""
    choice = made.get(exponent)
    if choice is None or choice.op is not select:
        return False
    fills = (made[x] for x in choice.args[1:] if x in made)
    return any(fill.op is splat and isinstance(fill.args[0], Const) and fill.args[0].value == 0 for fill in fills)


__all__ = ["skip_rescales"]
