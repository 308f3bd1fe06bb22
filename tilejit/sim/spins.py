"""Loops that poll a single call: if that call tests a barrier, the loop counts as a wait for the barrier."""

from __future__ import annotations

from collections.abc import Iterable

from ..dtypes import bool_
from ..ir.builder import element_type
from ..ir.graph import Call, If, Node, Value, While, results, walk


def spins(nodes: Iterable[Node]) -> set[Call]:
    """The calls that alone decide whether a loop ends."""
    return {call for node in nodes if isinstance(node, While) and (call := _deciding_call(node)) is not None}


def _deciding_call(loop: While) -> Call | None:
    """The only call on which a loop's condition depends, directly or through carried flags; None if there is no such
    call, or if the condition depends on anything else that may change."""
    made = {value: node for block in (loop.test, loop.body) for node in walk(block) for value in results(node)}
    carried = {carry.inner: (carry.init, after) for carry, after in zip(loop.carried, loop.body.yields)}
    found, seen, left = set(), set(), list(loop.test.yields)
    while left:
        x = left.pop()
        if not isinstance(x, Value) or x in seen:
            continue
        seen.add(x)
        node = made.get(x)
        match node:
            case None if x in carried and element_type(x) == bool_:
                left += carried[x]
            case If():
                at = node.results.index(x)
                left += node.test, node.then.yields[at], node.orelse.yields[at]
            case Call() if node.op.effect == "pure":
                left += node.args
            case Call():
                found.add(node)
            # a carried number, such as a counter, or the result of another loop
            case _ if node is not None or x in carried:
                return None
    return found.pop() if len(found) == 1 else None


__all__ = ["spins"]
