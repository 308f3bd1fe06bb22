"""What all CTAs of a cluster execute alike.

Blocks that all of them run equally often, and values that depend on the rank alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from ...ir.builder import type_as
from ...ir.graph import Block, Call, Const, For, If, Operand, Scope
from ...ir.op import Op
from ...ops.language.ids import cta_rank
from ...ops.tiles import elementwise as ew
from ...ops.tiles.casts import cast
from ...ops.tiles.division import floordiv, mod
from ...ops.tiles.generate import constant
from ...types import Scalar, Uniformity


def cluster_uniform_blocks(body: Block) -> set[Block]:
    """The blocks of a kernel that every CTA of a cluster runs equally often."""
    uniform: set[Block] = set()
    _collect_uniform(body, uniform)
    return uniform


def _collect_uniform(block: Block, uniform: set[Block]) -> None:
    uniform.add(block)
    for node in block.nodes:
        match node:
            case Scope(body=body):
                _collect_uniform(body, uniform)
            case For(start=start, stop=stop, step=step, body=body) if all(map(is_cluster_uniform, (start, stop, step))):
                _collect_uniform(body, uniform)
            case If(test=test, then=then, orelse=orelse) if is_cluster_uniform(test):
                _collect_uniform(then, uniform)
                _collect_uniform(orelse, uniform)


def is_cluster_uniform(x: Operand) -> bool:
    """Whether a value is known to be the same in all CTAs of a cluster."""
    return isinstance(x, Const) or type_as(x, Scalar).uniform >= Uniformity.CLUSTER


def value_at_rank(x: Operand, made: Mapping[Operand, Call], own: int, ranks: int) -> int | None:
    """The value of an integer in the CTA of rank `own`; None unless it is computed from the rank
    and constants alone."""
    if isinstance(x, Const):
        return int(x.value)
    call = made.get(x)
    if call is None:
        return None
    op = call.op
    if op is cta_rank:
        return own
    if op not in _OPERATIONS:
        return None
    parts = [value_at_rank(a, made, own, ranks) for a in call.args]
    return None if None in parts or (op in (mod, floordiv) and not parts[1]) else _OPERATIONS[op](*parts)


_OPERATIONS: dict[Op, Callable[..., int]] = {
    cast: lambda x: x, constant: lambda x: x, ew.add: operator.add, ew.sub: operator.sub, ew.mul: operator.mul,
    mod: operator.mod, floordiv: operator.floordiv, ew.bit_xor: operator.xor, ew.bit_and: operator.and_,
    ew.bit_or: operator.or_, ew.shl: lambda x, n: x << n if 0 <= n < 32 else 0,
    ew.shr: lambda x, n: x >> min(n, 31) if n >= 0 else 0}
