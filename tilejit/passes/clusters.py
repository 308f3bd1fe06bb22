"""What the CTAs of a cluster do alike: the blocks that all of them run equally often, and what of each depends on its rank."""

from __future__ import annotations

import operator

from ..ir.graph import Block, Const, For, If, Scope
from ..types import Uniformity


def blocks_alike(body: Block) -> set[Block]:
    """The blocks of a kernel that every CTA of a cluster runs equally often."""
    alike: set[Block] = set()
    _find_alike(body, alike)
    return alike


def _find_alike(block: Block, alike: set[Block]) -> None:
    alike.add(block)
    for node in block.nodes:
        match node:
            case Scope(body=body):
                _find_alike(body, alike)
            case For(start=start, stop=stop, step=step, body=body) if all(map(of_cluster, (start, stop, step))):
                _find_alike(body, alike)
            case If(test=test, then=then, orelse=orelse) if of_cluster(test):
                _find_alike(then, alike)
                _find_alike(orelse, alike)


def of_cluster(x) -> bool:
    """Whether a value is surely the same in all CTAs of a cluster."""
    return isinstance(x, Const) or x.type.uniform >= Uniformity.CLUSTER


def at_rank(x, made: dict, own: int, ranks: int) -> int | None:
    """The value of an integer in the CTA of rank `own`, where the rank and constants are all it is made of."""
    if isinstance(x, Const):
        return int(x.value)
    call = made.get(x)
    name = call.op.name if call is not None else None
    if name == "cta_rank":
        return own
    parts = [at_rank(a, made, own, ranks) for a in call.args] if name in _OPERATIONS else [None]
    return None if None in parts or (name in ("mod", "floordiv") and not parts[1]) else _OPERATIONS[name](*parts)


_OPERATIONS = {"cast": lambda x: x, "constant": lambda x: x, "add": operator.add, "sub": operator.sub, "mul": operator.mul,
               "mod": operator.mod, "floordiv": operator.floordiv, "bit_xor": operator.xor, "bit_and": operator.and_, "bit_or": operator.or_,
               "shl": lambda x, n: x << n if 0 <= n < 32 else 0, "shr": lambda x, n: x >> min(n, 31) if n >= 0 else 0}
