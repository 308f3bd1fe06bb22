"""Rows taken and put by their numbers, as they are timed."""

from __future__ import annotations

import tilejit as tile


@tile.jit
def taken(W, numbers, y, R: tile.constexpr, C: tile.constexpr):
    """R of the rows of W that are numbered."""
    first = tile.program_id(0) * R
    tile.store(y[first:first + R, 0:C], tile.load(W[tile.load(numbers[first:first + R]), 0:C]))


@tile.jit
def put(W, numbers, y, R: tile.constexpr, C: tile.constexpr):
    """R rows of y to those of W that are numbered."""
    first = tile.program_id(0) * R
    tile.store(W[tile.load(numbers[first:first + R]), 0:C], tile.load(y[first:first + R, 0:C]))
