"""ldmatrix: loads a tile in the layout of an mma fragment from shared memory, as matrices of 8 rows of 16 bytes.

A variant of ``tile.load``. One instruction of a warp loads up to four matrices; its lanes give the addresses of their
rows. Memory may be contiguous along either dimension for 16-bit elements (``.trans``), and along k only for others.
PTX ISA, "Warp-level matrix load instruction: ldmatrix".
"""

from __future__ import annotations

from ...dispatch import Need, Variant
from ...dtypes import int32
from .access import AccessSite
from .matrices import Matrices


class LdMatrix(Matrices):
    """The plan of a load by ldmatrix."""


def plan(s: AccessSite) -> LdMatrix | None:
    """The matrices of a load; None if its tile or its memory does not consist of such."""
    return s.memoize("matrices", lambda: LdMatrix.plan_for(s.g, s.tile, s.memory))


def emit(e, plan: LdMatrix, call, source, other, mask) -> list:
    """Emit the load; returns the tile's registers."""
    t, words = call.result.type, []
    for group, (address, constant) in zip(plan.groups, plan.addresses(e, source, t)):
        text = f"ldmatrix.sync.aligned.m8n8.x{group.count}{'.trans' if plan.transposed else ''}.shared.b16 "
        registers = ", ".join(f"${i}" for i in range(group.count))
        text += f"{{{registers}}}, [${group.count} + {constant}];"
        words += e.asm(text, [int32] * group.count, [address], convergent=True)
    return e.mma.unpacked_words(words, t.dtype)


VARIANT = Variant("load", plan=plan, emit=emit, doc=__doc__, needs=(
    Need("no mask", lambda s: s.mask is None, gate=True),
    Need("a tile in matrices of 8 rows of 16 bytes, and shared memory with such rows in bounds",
         lambda s: plan(s) is not None),
))
