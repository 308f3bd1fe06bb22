"""The uses of values: which nodes take them, and under which names loops and branches hand them on."""

from __future__ import annotations

from typing import Any

from ...ir.graph import Block, For, If, Node, Operand, Value, While, operands, walk


def uses(body: Block) -> dict[Operand, list[tuple[Node, tuple[Value, ...]]]]:
    """For each value its uses: (node, aliases). Where a loop carries the value or a branch yields it,
    the aliases are its names there."""
    found: dict[Operand, list[Any]] = {}
    for node in walk(body):
        same: list[tuple[Operand, tuple[Value, ...]]] = []
        if isinstance(node, (For, While)):
            same = [(x, (c.inner, c.result)) for c, y in zip(node.carried, node.body.yields) for x in (c.init, y)]
        elif isinstance(node, If):
            same = [(x, (result,)) for result, *sides in zip(node.results, node.then.yields, node.orelse.yields)
                    for x in sides]
        for x, values in same or [(x, ()) for x in operands(node)]:
            found.setdefault(x, []).append((node, values))
    return found


__all__ = ["uses"]
