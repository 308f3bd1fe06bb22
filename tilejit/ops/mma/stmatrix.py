"""stmatrix: stores a tile in the layout of an mma fragment to shared memory, as matrices of 8 rows of 16 bytes (sm_90 and later).

A plan of ``tile.store``. One instruction of a warp stores up to four matrices, such as 16 rows by 16 columns of 16-bit elements, for
which plain stores take four instructions, or eight if memory is contiguous along the rows (``.trans``). PTX ISA, "Warp-level matrix
store instruction: stmatrix".
"""

from __future__ import annotations

from ...config import architecture
from ...ir.builder import type_of
from ...types import Tile
from ..memory.access_ops import store_
from .matrices import Matrices


class StMatrix(Matrices):
    """The plan of a store by stmatrix."""


def plan_matrices(g, call) -> StMatrix | None:
    """The plan of a store if stmatrix can do it, else None."""
    t = type_of(call.args[1])
    if call.args[2] is not None or architecture(g.target) < 90 or isinstance(t, Tile) and t.layout.replicas:
        return None
    return StMatrix.between(g, t, call.args[0])


def emit(e, plan: StMatrix, target, t: Tile, values: list) -> None:
    words = e.packed_words(values)
    for group, (address, constant) in zip(plan.groups, plan.addresses(e, target, t)):
        registers = ", ".join(f"${1 + i}" for i in range(group.count))
        e.asm(f"stmatrix.sync.aligned.m8n8.x{group.count}{'.trans' if plan.transposed else ''}.shared.b16 [$0 + {constant}], {{{registers}}};", [],
              [address, *words[group.word:group.word + group.count]], convergent=True)


_plain_plan, _plain_emit = store_.rules["plan"], store_.rules["emit"]
store_.rules["plan"] = lambda g, call: plan_matrices(g, call) or _plain_plan(g, call)


@store_.emit
def _(e, call, target, value, mask):
    plan = call.choice.plan
    if isinstance(plan, StMatrix):
        emit(e, plan, target, type_of(call.args[1]), value)
    else:
        _plain_emit(e, call, target, value, mask)
