"""Gather and scatter of rows, for the benchmark of memory."""

from __future__ import annotations

import tilejit as tile


@tile.jit
def taken(W, numbers, y, R: tile.constexpr, C: tile.constexpr):
    """Gather R rows of W per CTA: ``y[i] = W[numbers[i]]``."""
    first = tile.program_id(0) * R
    tile.store(y[first:first + R, 0:C], tile.load(W[tile.load(numbers[first:first + R]), 0:C]))


@tile.jit
def put(W, numbers, y, R: tile.constexpr, C: tile.constexpr):
    """Scatter R rows of y per CTA: ``W[numbers[i]] = y[i]``."""
    first = tile.program_id(0) * R
    tile.store(W[tile.load(numbers[first:first + R]), 0:C], tile.load(y[first:first + R, 0:C]))
