"""stmatrix: stores a tile in the layout of an mma fragment to shared memory, as matrices of 8 rows of 16 bytes.

A variant of ``tile.store`` for sm_90 and later. One instruction of a warp stores up to four matrices, such as 16 rows
by 16 columns of 16-bit elements, for which plain stores take four instructions, or eight if memory is contiguous along
the rows (``.trans``). PTX ISA, "Warp-level matrix store instruction: stmatrix".
"""

from __future__ import annotations

from ...config import architecture
from ...dispatch import Need, Variant
from ...ir.builder import type_of
from ...types import Tile, layout_of
from .access import AccessSite
from .matrices import Matrices


class StMatrix(Matrices):
    """The plan of a store by stmatrix."""


def plan(s: AccessSite) -> StMatrix | None:
    """The matrices of a store; None if its tile or its memory does not consist of such."""
    return s.memoize("matrices", lambda: StMatrix.plan_for(s.g, s.tile, s.memory))


def emit(e, plan: StMatrix, call, target, value: list, mask) -> None:
    words = e.mma.packed_words(value)
    for group, (address, constant) in zip(plan.groups, plan.addresses(e, target, type_of(call.args[1]))):
        registers = ", ".join(f"${1 + i}" for i in range(group.count))
        text = f"stmatrix.sync.aligned.m8n8.x{group.count}{'.trans' if plan.transposed else ''}.shared.b16"
        e.asm(f"{text} [$0 + {constant}], {{{registers}}};", [], [address, *words[group.word:group.word + group.count]],
              convergent=True)


VARIANT = Variant("store", plan=plan, emit=emit, doc=__doc__, needs=(
    Need("no mask", lambda s: s.mask is None, gate=True),
    Need("sm_90 or later", lambda s: architecture(s.g.target) >= 90 or s.g.target, gate=True),
    Need("a tile whose elements are each in one thread",
         lambda s: not (isinstance(s.tile, Tile) and layout_of(s.tile).replicas), gate=True),
    Need("a tile in matrices of 8 rows of 16 bytes, and shared memory with such rows in bounds",
         lambda s: plan(s) is not None),
))
