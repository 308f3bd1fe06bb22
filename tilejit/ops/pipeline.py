"""What marks the trips of a pipelined loop: which slot of its buffers each takes. passes/pipeline.py writes the rest."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from ..dtypes import int32
from ..ir.builder import Builder
from ..ir.op import op
from .ring import advanced


@op("syncs", attrs=("stages",), collective=True)
def pipeline_slot(stage, phase, stages):
    """From here on a trip works on slot `stage`, whose barriers' phase has the parity `phase`."""


@pipeline_slot.infer
def _(g, stage, phase, stages):
    if g.scope.partial is not None:
        raise g.error(f"a pipelined loop needs all threads of the {g.scope.kind}, and the condition on {g.scope.partial.name} differs between them")


def pipeline_turn(g: Builder, name: Hashable, stages: int) -> Iterator[None]:
    """Mark a trip's begin and, at the second step, its end. The cursor goes on from loop to loop around."""
    key = "pipeline", name
    stage, phase = g.cells.setdefault(key, (0, 0))
    g.call(pipeline_slot, g.operand(stage, int32), g.operand(phase, int32), stages=stages)
    yield
    g.cells[key] = advanced(g, stages, stage, phase)
