"""stmatrix: a tile of 16-bit elements in an accumulator's layout, stored to shared memory in 8 by 8 matrices.

A variant of ``tile.store``'s plan: a warp stores four matrices with an instruction, 16 rows by 16 columns, where plain
stores would take four, or eight where memory is contiguous along the rows (``.trans``). PTX ISA, "Warp-level matrix store instruction: stmatrix".
"""

from __future__ import annotations

from ...ir.builder import type_of
from ...types import Region, Tile
from ..access import AccessPlan, plan_access
from ..memory import store_
from ..partition import shared_runs
from . import wgmma
from .matrices import Matrices, groups_of


class StMatrix(Matrices):
    """A tile that stmatrix stores."""


def plan_matrices(g, call) -> StMatrix | None:
    """The plan of a store that stmatrix can make; None for any other."""
    t, target = type_of(call.args[1]), call.args[0].type
    if not isinstance(t, Tile) or not isinstance(target, Region) or target.scope != "shared" or call.args[2] is not None:
        return None
    if t.dtype.bits != 16 or len(t.shape) != 2 or g.scope.threads % 128 or t.shape[1] % 8 or g.target == "sm_80":
        return None
    held = wgmma.accumulator(t.dtype, t.shape, g.scope.threads)
    if held is None or (held.layout, held.domain) != (t.layout, t.domain):
        return None
    starts, buffer = g.definition(call.args[0]).args[1:], target.buffer
    lies = [d for d in (1, 0) if shared_runs(buffer.layout, buffer.shape, target.kept[d], 8) and g.divisor(starts[target.kept[d]]) % 8 == 0]
    access: AccessPlan = plan_access(g, call.args[0], t, False)
    if not lies or access.checked:
        return None
    transposed = lies[0] == 0
    return StMatrix(0, transposed, groups_of(t, target, starts, 0, transposed, g.scope.threads))


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
