"""ldmatrix: loads a tile in the layout of an mma fragment from shared memory, as matrices of 8 rows of 16 bytes.

A plan of ``tile.load``. One instruction of a warp loads up to four matrices; its lanes give the addresses of their rows. Memory may be
contiguous along either dimension for 16-bit elements (``.trans``), and along k only for others. PTX ISA, "Warp-level matrix load
instruction: ldmatrix".
"""

from __future__ import annotations

from ...dtypes import int32
from ...types import Tile
from ..memory.access_ops import load_
from .matrices import Matrices


class LdMatrix(Matrices):
    """The plan of a load by ldmatrix."""


def plan_matrices(g, call) -> LdMatrix | None:
    """The plan of a load if ldmatrix can do it, else None."""
    return LdMatrix.between(g, call.result.type, call.args[0]) if call.args[2] is None else None


def emit(e, plan: LdMatrix, source, t: Tile) -> list:
    """Emit the load; returns the tile's registers."""
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
