"""A kernel with string annotations, and one whose constants are not annotated."""

from __future__ import annotations

import tilejit as tile

SCALE = 3


@tile.jit
def scaled(y, BLOCK: tile.constexpr, other: int = SCALE):
    tile.store(y[0:BLOCK], tile.full((BLOCK,), SCALE * 1.0))
