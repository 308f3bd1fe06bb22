"""The last kernels of the backward: the gradient of queries in its dtype, that of sinks, and zeros."""

from __future__ import annotations

import tilejit as tile

from ..pipelined import part
from ..scores import LOG2_E
from .prepare import sums_of

ROWS = 64
LINES = 256


@tile.jit(num_warps=4)
def finish(SUMMED, DQ, scale, D: tile.constexpr):
    """DQ: the sums of `add`, scaled and rounded."""
    row, head, batch = tile.program_id(0) * ROWS, tile.program_id(1), tile.program_id(2)
    if len(SUMMED.shape) > len(DQ.shape):
        given = tile.reshape(tile.load(sums_of(SUMMED, batch, head, row, D)), (D // 8, ROWS, 8))
        given = tile.reshape(tile.transpose(given, (1, 0, 2)), (ROWS, D))
    else:
        given = tile.load(part(SUMMED, batch, head, row, ROWS, D))
    tile.store(part(DQ, batch, head, row, ROWS, D), tile.cast(given * scale, DQ.dtype))


@tile.jit(num_warps=4)
def sink_gradient(S, SUMS, DELTA, DS):
    """The gradients of the sinks S: a CTA has a head of SUMS and DELTA [batch, heads, rows], or [heads, rows]."""
    head = tile.program_id(0)
    sink = tile.cast(tile.load(S[head]), tile.float32) * LOG2_E
    total = tile.zeros((LINES,))
    for batch in range(SUMS.shape[0] if len(SUMS.shape) == 3 else 1):
        for row in range(0, SUMS.shape[-1], LINES):
            if len(SUMS.shape) == 3:
                sums = tile.load(SUMS[batch, head, row:row + LINES], other=float("inf"))
                delta = tile.load(DELTA[batch, head, row:row + LINES])
            else:
                sums = tile.load(SUMS[head, row:row + LINES], other=float("inf"))
                delta = tile.load(DELTA[head, row:row + LINES])
            # of a row that sees nothing, not even the sink, the logarithm is inf
            total = total - tile.exp2(sink - sums) * delta
    tile.store(DS[head], tile.sum(total, axis=0))


@tile.jit(num_warps=4)
def clear(X, ROWS: tile.constexpr, D: tile.constexpr):
    """Fill X with zeros."""
    if len(X.shape) == 1:
        tile.store(X[0:D], tile.zeros((D,), X.dtype))
    else:
        head, batch = tile.program_id(1), tile.program_id(2)
        tile.store(part(X, batch, head, tile.program_id(0) * ROWS, ROWS, D), tile.zeros((ROWS, D), X.dtype))


__all__ = ["LINES", "ROWS", "clear", "finish", "sink_gradient"]
