"""The forms of the calls in a kernel's graph, by which a run recognizes kernels that need not be lowered for further targets.

A form is a call without what may be any: an op and its lowering with the kinds of its operands and attributes, what
encloses it, and which call computed an operand. A target that accepts each form in some kernel accepts it in others.
Numbers are not part of a form, except 0, 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from tilejit.dtypes import DType
from tilejit.ir.graph import Block, Call, Const, For, Graph, If, Scope, Value, While
from tilejit.types import Buffer, Region, Scalar, Tile


def forms(graph: Graph) -> frozenset[str]:
    """The forms of a lowered graph."""
    return frozenset(_of_block(graph.body, (), {}))


def _of_block(block: Block, around: tuple[str, ...], origin: dict[str, str]) -> Iterator[str]:
    for node in block.nodes:
        if isinstance(node, Call):
            yield from _of_call(node, around, origin)
            continue
        kind = _kind_of_node(node)
        yield " ".join((*around, kind))
        blocks = {If: ("then", "orelse"), While: ("test", "body")}.get(type(node), ("body",))
        for name in blocks:
            yield from _of_block(getattr(node, name), (*around[-1:], kind), origin)


def _of_call(call: Call, around: tuple[str, ...], origin: dict[str, str]) -> Iterator[str]:
    name = call.op.name if call.choice is None else f"{call.op.name}:{call.choice.variant}"
    attrs = ",".join(f"{key}={_of_value(value)}" for key, value in sorted(call.attrs.items()))
    yield f"{name}({','.join(map(_of_operand, call.args))}) {attrs}"
    yield " ".join((*around, name))
    for n, argument in enumerate(call.args):
        if isinstance(argument, Value) and argument.name in origin:
            yield f"{origin[argument.name]} -> {name}.{n}"
    origin.update((result.name, name) for result in call.results)


def _kind_of_node(node: For | If | While | Scope) -> str:
    if isinstance(node, Scope):
        return f"scope {node.kind}"
    if isinstance(node, For):
        return f"for {_of_value(node.unroll)} {_of_operand(node.step)}"
    return type(node).__name__.lower()


def _of_operand(operand: Any) -> str:
    if isinstance(operand, Const):
        return f"{operand.dtype} {_of_value(operand.value)}"
    return _of_type(operand.type) if isinstance(operand, Value) else "none"


def _of_type(kind: Any) -> str:
    if isinstance(kind, Scalar):
        return str(kind.dtype)
    if isinstance(kind, Tile):
        return f"{kind.dtype}[{len(kind.shape)}]"
    if isinstance(kind, Buffer):
        return f"{kind.scope}{' peer' * kind.peer} {kind.dtype}[{len(kind.shape)}]"
    if isinstance(kind, Region):
        return f"region of {_of_type(kind.buffer)}"
    return type(kind).__name__


def _of_value(value: Any) -> str:
    if value is None or isinstance(value, (bool, str, DType, Enum)):
        return str(value)
    if isinstance(value, (int, float)):
        return str(value) if value in (0, 1, 2) else "n"
    if isinstance(value, (tuple, list)):
        return f"({','.join(map(_of_value, value[:4]))})"
    return type(value).__name__
