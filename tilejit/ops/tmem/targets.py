"""The targets that have tensor memory."""

from __future__ import annotations

from ...dispatch import Need
from ...ir.builder import Builder

TARGETS = ("sm_100a", "sm_103a")  # the targets that have tensor memory


TENSOR_MEMORY = Need("tensor memory: sm_100a or sm_103a", lambda s: s.target in TARGETS or s.target, gate=True)


def needs_tensor_memory(g: Builder, what: str) -> None:
    """Raise CompilationError if the target has no tensor memory; `what` is the subject of the message."""
    if g.target not in TARGETS:
        raise g.error(f"{what} needs {' or '.join(TARGETS)}, and the target is {g.target}")
