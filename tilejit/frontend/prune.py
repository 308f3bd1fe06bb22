"""Removes results of branches, and values carried by loops, that nothing reads.

Calls are kept, except those that make tiles of a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..ir.graph import Block, Call, Carry, For, If, Node, Operand, Scope, Value, While, blocks, operands, results
from ..ops.tiles.generate import splat


def prune(block: Block) -> Block:
    """`block` without the results and carries on which no call, loop bound or condition depends."""
    return _block(block, needed_values(block))


def needed_values(block: Block) -> set[Value]:
    """Every value that a call, loop bound or condition reads, directly or through joins and carries."""
    needed: set[Value] = set()
    handed: dict[Value, list[Operand]] = {}   # a result or carried value -> the operands that may become it
    _collect(block, needed, handed)
    waiting = list(needed)
    while waiting:
        for operand in handed.get(waiting.pop(), ()):
            if isinstance(operand, Value) and operand not in needed:
                needed.add(operand)
                waiting.append(operand)
    return needed


def _collect(block: Block, needed: set[Value], handed: dict[Value, list[Operand]]) -> None:
    for node in block.nodes:
        match node:
            case Call() | Scope():
                read: tuple[Operand, ...] = operands(node)
            case For(start=start, stop=stop, step=step):
                read = (start, stop, step)
            case If(test=test):
                read = (test,)
            case While(test=test):
                read = test.yields
        needed.update(o for o in read if isinstance(o, Value))
        match node:
            case If(then=then, orelse=orelse):
                for n, result in enumerate(results(node)):
                    handed[result] = [then.yields[n], orelse.yields[n]]
            case For(carried=carried, body=body) | While(carried=carried, body=body):
                for c, following in zip(carried, body.yields):
                    handed[c.inner] = handed[c.result] = [c.init, following, c.inner]
        for inner in blocks(node):
            _collect(inner, needed, handed)


def _block(block: Block, needed: set[Value]) -> Block:
    return replace(block, nodes=tuple(_node(n, needed) for n in block.nodes if not _is_unread_splat(n, needed)))


def _is_unread_splat(node: Node, needed: set[Value]) -> bool:
    """Whether a node makes a tile of one constant that nothing reads,
    such as the first value of a carry that is removed."""
    return isinstance(node, Call) and node.op is splat and node.result not in needed


def _node(node: Node, needed: set[Value]) -> Node:
    match node:
        case Call():
            return node
        case Scope(body=body):
            return replace(node, body=_block(body, needed))
        case If(then=then, orelse=orelse):
            kept = [n for n, r in enumerate(node.results) if r in needed]
            return replace(node, then=_select_yields(then, kept, needed), orelse=_select_yields(orelse, kept, needed),
                           results=tuple(node.results[n] for n in kept))
        case For(body=body, carried=carried):
            kept = _kept_positions(carried, needed)
            return replace(node, carried=tuple(carried[n] for n in kept), body=_select_yields(body, kept, needed))
        case While(test=test, body=body, carried=carried):
            kept = _kept_positions(carried, needed)
            return replace(node, test=_block(test, needed), carried=tuple(carried[n] for n in kept),
                           body=_select_yields(body, kept, needed))


def _kept_positions(carried: Sequence[Carry], needed: set[Value]) -> list[int]:
    return [n for n, c in enumerate(carried) if c.inner in needed or c.result in needed]


def _select_yields(block: Block, kept: list[int], needed: set[Value]) -> Block:
    return replace(_block(block, needed), yields=tuple(block.yields[n] for n in kept))
