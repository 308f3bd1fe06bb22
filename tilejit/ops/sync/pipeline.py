"""The cursor of a ring of slots, and the marker of the slot that a pipelined iteration uses.

passes/pipelining/pipeline.py does the rest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from ...dtypes import int32
from ...ir.builder import Builder
from ...ir.op import op
from ...ir.op_traits import Registers
from ..language.operators import binary, compare
from ..language.pointwise import where


@op("syncs", attrs=("stages",), collective=True)
def pipeline_slot(stage: Registers, phase: Registers, stages):
    """Start of an iteration that uses slot `stage` of the ring;
    the current phase of the slot's barriers has parity `phase`."""


@pipeline_slot.infer
def _(g, stage, phase, stages):
    if g.scope.partial is not None:
        raise g.error(f"a pipelined loop needs all threads of the {g.scope.kind}, "
                      f"and the condition on {g.scope.partial.name} differs between them")


def pipeline_turn(g: Builder, name: Hashable, stages: int) -> Iterator[None]:
    """Mark the start of an iteration; when resumed at its end, advance the cursor (slot and phase) to the next.

    The cursor is kept from one run of the loop to the next, as when an outer loop repeats it.
    """
    key = "pipeline", name
    stage, phase = g.cells.setdefault(key, (0, 0))
    g.call(pipeline_slot, g.operand(stage, int32), g.operand(phase, int32), stages=stages)
    yield
    g.cells[key] = advance_cursor(g, stages, stage, phase)


def flip_phase(g: Builder, phase):
    return phase ^ 1 if isinstance(phase, int) else binary(g, "^", phase, 1)


def advance_cursor(g: Builder, stages: int, stage, phase, n=1) -> tuple:
    """The cursor advanced by `n` slots. The parity flips each time it wraps around."""
    if isinstance(stage, int) and isinstance(phase, int) and isinstance(n, int):
        return (stage + n) % stages, phase ^ (stage + n) // stages & 1
    if n != 1:
        place = binary(g, "+", stage, n)
        return binary(g, "%", place, stages), binary(g, "^", phase, binary(g, "&", binary(g, "//", place, stages), 1))
    following = binary(g, "+", stage, 1)
    around = compare(g, "==", following, stages)
    return where.function(g, around, 0, following), where.function(g, around, flip_phase(g, phase), phase)
