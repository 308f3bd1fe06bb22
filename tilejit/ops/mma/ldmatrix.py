"""ldmatrix: a tile in the layout of a fragment, loaded from shared memory in 8 by 8 matrices of 32-bit quarters of rows.

A plan of ``tile.load``: an instruction of a warp brings up to four matrices, whose rows of 16 bytes its lanes name. Elements
of 16 bits may lie in memory along either dimension (``.trans``), narrower and wider ones along k. PTX ISA, "Warp-level matrix
load instruction: ldmatrix".
"""

from __future__ import annotations

from ...dtypes import int32
from ...types import Tile
from ..memory import load_
from .matrices import Matrices


class LdMatrix(Matrices):
    """A tile that ldmatrix loads."""


def plan_matrices(g, call) -> LdMatrix | None:
    """The plan of a load that ldmatrix can make; None for any other."""
    return LdMatrix.between(g, call.result.type, call.args[0]) if call.args[2] is None else None


def emit(e, plan: LdMatrix, source, t: Tile) -> list:
    """The tile's registers."""
    words = []
    for group, (address, constant) in zip(plan.groups, plan.addresses(e, source, t)):
        text = f"ldmatrix.sync.aligned.m8n8.x{group.count}{'.trans' if plan.transposed else ''}.shared.b16 "
        registers = ", ".join(f"${i}" for i in range(group.count))
        words += e.asm(f"{text}{{{registers}}}, [${group.count} + {constant}];", [int32] * group.count, [address], convergent=True)
    return e.unpacked_words(words, t.dtype)


_plain_plan, _plain_emit = load_.rules["plan"], load_.rules["emit"]
load_.rules["plan"] = lambda g, call: plan_matrices(g, call) or _plain_plan(g, call)


@load_.emit
def _(e, call, source, other, mask):
    if isinstance(call.choice.plan, LdMatrix):
        return emit(e, call.choice.plan, source, call.result.type)
    return _plain_emit(e, call, source, other, mask)
