"""Operands that TMA or the tensor cores do not read as they lie are copied first: k side by side, rows 16 bytes aligned."""

from __future__ import annotations

import tilejit as tile

from ..runtime.arrays import ArrayView, describe
from .views import new, turned

ROWS, COLUMNS = 64, 64  # of a CTA's part


@tile.jit(num_warps=4)
def packed(X, Y, ROWS: tile.constexpr, COLUMNS: tile.constexpr):
    """``Y = X``, where Y may be larger than X, which counts as 0 beyond its edges."""
    down, across = tile.cdiv(Y.shape[-2], ROWS), tile.cdiv(Y.shape[-1], COLUMNS)
    t = tile.program_id(0)
    z, i, j = t // (down * across), t // across % down * ROWS, t % across * COLUMNS
    if len(X.shape) == 3:
        tile.store(Y[z, i:i + ROWS, j:j + COLUMNS], tile.load(X[z, i:i + ROWS, j:j + COLUMNS]))
    else:
        tile.store(Y[i:i + ROWS, j:j + COLUMNS], tile.load(X[i:i + ROWS, j:j + COLUMNS]))


def readable(x: ArrayView, either: tuple[int, ...]) -> bool:
    """Whether TMA brings boxes of the matrices [.., rows, k] of `x` in a layout that the tensor cores multiply: elements along k
    side by side (or along the rows, for elements of `either` so many bytes), everything else at steps of 16 bytes."""
    size = x.nbytes_per_element
    inner = x.strides[-1] == 1 or size in either and x.strides[-2] == 1
    far = [s for d, s in enumerate(x.strides) if not (s == 1 and d == len(x.strides) - (1 if x.strides[-1] == 1 else 2))]
    return inner and 0 not in x.shape and x.pointer % 16 == 0 and all(s > 0 and s * size % 16 == 0 for s in far)


def as_readable(x, either: tuple[int, ...]):
    """The matrices [.., rows, k] of `x`, copied if they are not `readable`. An extent of 0 along k becomes one zero."""
    return x if readable(describe(x), either) else copied(x)


def copied(x, k_first: bool = False):
    """A copy of the matrices [.., rows, k] of `x` that is `readable`: k side by side, or (`k_first`) the rows."""
    *batch, outer, inner = describe(x).shape
    inner = max(inner, 1)
    if k_first:
        x, outer, inner = turned(x), inner, outer
    unit = 16 // describe(x).nbytes_per_element
    wide = new(x, (*batch, outer, -(-inner // unit) * unit), describe(x).dtype)
    packed[((batch[0] if batch else 1) * -(-outer // ROWS) * -(-wide.shape[-1] // COLUMNS),)](x, wide, ROWS=ROWS, COLUMNS=COLUMNS)
    return turned(wide[..., :inner]) if k_first else wide[..., :inner]


__all__ = ["as_readable", "copied", "packed", "readable", "turned"]
