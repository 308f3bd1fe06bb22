"""What a call of `attention_backward` computes: the request, and its check."""

from __future__ import annotations

from dataclasses import dataclass

from ....errors import LaunchError
from ....runtime.arrays import ArrayView
from ..problem import HALF, Attention, Request, check_attention

FLOATS = "float", "bfloat"


@dataclass(frozen=True)
class BackwardRequest:
    """The request of the forward, its results `out` and `lse`, and their gradients `do` and `dlse` (which may be
    None). `tables`: the lists of a mask's blocks by keys and by rows, which have `block` rows and columns."""

    forward: Request
    do: ArrayView
    out: ArrayView
    lse: ArrayView
    dlse: ArrayView | None
    deterministic: bool
    tables: tuple[ArrayView, ArrayView] | None = None
    block: tuple[int, int] | None = None


def check_backward(request: BackwardRequest) -> Attention:
    """The forward's problem. LaunchError says what does not fit."""
    problem = check_attention(request.forward)
    if problem.is_wide:
        raise LaunchError(f"the backward takes rows of up to {HALF} columns, and those of q and k have {problem.d}, "
                          f"those of v {problem.dv}")
    q = request.forward.q
    for name, x in (("do", request.do), ("out", request.out)):
        if x.shape != problem.shape or x.dtype != q.dtype or x.device != q.device:
            raise LaunchError(f"{name} must be {q.dtype} of shape {problem.shape} on {q.device}, as the result of "
                              f"attention is, not {x.dtype} of {x.shape} on {x.device}")
    shape = problem.shape[:-1]
    for name, line in (("lse", request.lse), ("dlse", request.dlse)):
        if line is not None and (line.shape != shape or line.device != q.device or line.dtype != "float32"):
            raise LaunchError(f"{name} must be float32 of shape {shape} on {q.device}, as attention returns the "
                              f"logarithms with lse=True, not {line.dtype} of {line.shape} on {line.device}")
    if request.tables is not None and request.tables[0].device != q.device:
        raise LaunchError(f"the block mask is on {request.tables[0].device}, and q on {q.device}")
    return problem


__all__ = ["BackwardRequest", "check_backward"]
