"""stmatrix: a tile in the layout of a fragment, stored to shared memory in 8 by 8 matrices of 32-bit quarters of rows (sm_90 and later).

A plan of ``tile.store``: a warp stores four matrices with an instruction, of 16-bit elements 16 rows by 16 columns, where plain
stores would take four, or eight where memory is contiguous along the rows (``.trans``). PTX ISA, "Warp-level matrix store
instruction: stmatrix".
"""

from __future__ import annotations

from ...config import architecture
from ...ir.builder import type_of
from ...types import Tile
from ..memory import store_
from .matrices import Matrices


class StMatrix(Matrices):
    """A tile that stmatrix stores."""


def plan_matrices(g, call) -> StMatrix | None:
    """The plan of a store that stmatrix can make; None for any other."""
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
