"""What the other kernels of the backward need of each row."""

from __future__ import annotations

import tilejit as tile

from ..pipelined import part
from ..scores import LOG2_E
from ..sequences import CHUNK, length_of

ROWS = 64


@tile.jit
def line_of(X, batch, head, row, ROWS: tile.constexpr = ROWS):
    """The numbers of ROWS rows of a head of X [batch, heads, rows], or [heads, rows]."""
    if len(X.shape) == 2:
        return X[head, row:row + ROWS]
    return X[batch, head, row:row + ROWS]


@tile.jit
def sums_of(X, batch, head, row, D: tile.constexpr):
    """The 64 rows from `row` on in the order in which the kernel for Hopper adds up dQ: X [batch, heads, parts, 16,
    256], or without the batch. A part is 64 columns of 64 rows, 8 columns of all these rows after the other."""
    PARTS: tile.constexpr = D // 64
    n = row // 64 * PARTS
    if len(X.shape) == 4:
        return X[head, n:n + PARTS, 0:16, 0:256]
    return X[batch, head, n:n + PARTS, 0:16, 0:256]


@tile.jit(num_warps=4)
def prepare(OUT, DO, L, DL, SUMS, DELTA, DQ, LENGTHS, D: tile.constexpr, DV: tile.constexpr):
    """For each row, in SUMS [batch, heads, rows] its sum's logarithm L to base 2, and in DELTA the sum of OUT * DO,
    less the gradient DL of L if there is one. A row that sees no key, and rows beyond the last, have the logarithm inf,
    so that all their probabilities are 0; with LENGTHS, those of packed sequences, also rows beyond the last sequence.
    DQ, where gradients are added up, becomes 0; it may be None."""
    row, head, batch = tile.program_id(0) * ROWS, tile.program_id(1), tile.program_id(2)
    out = tile.cast(tile.load(part(OUT, batch, head, row, ROWS, DV)), tile.float32)
    delta = tile.sum(out * tile.cast(tile.load(part(DO, batch, head, row, ROWS, DV)), tile.float32), axis=1)
    if DL is not None:
        delta = delta - tile.cast(tile.load(line_of(DL, batch, head, row)), tile.float32)
    sums = tile.load(line_of(L, batch, head, row), other=-float("inf")) * LOG2_E
    none = sums == -float("inf")
    if LENGTHS is not None:
        last = 0
        for c in range(0, LENGTHS.shape[0], CHUNK):
            last += tile.sum(length_of(LENGTHS, c + tile.arange(CHUNK), L.shape[-1]), axis=0)
        none = none | (row + tile.arange(ROWS) >= last)
    tile.store(line_of(SUMS, batch, head, row), tile.where(none, float("inf"), sums))
    tile.store(line_of(DELTA, batch, head, row), tile.where(none, 0.0, delta))
    if DQ is not None and len(DQ.shape) > len(DO.shape):
        tile.store(sums_of(DQ, batch, head, row, D), tile.zeros((D // 64, 16, 256)))
    elif DQ is not None:
        tile.store(part(DQ, batch, head, row, ROWS, D), tile.zeros((ROWS, D)))


__all__ = ["ROWS", "line_of", "prepare", "sums_of"]
