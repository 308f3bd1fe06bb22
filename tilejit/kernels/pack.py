"""Copies operands that TMA or the tensor cores cannot read in place.

The copy is contiguous along k, in rows that are multiples of 128 bytes.
"""

from __future__ import annotations

import math

import tilejit as tile

from ..runtime.arrays import ArrayView, describe
from .views import temporary, transpose

ROWS, NBYTES = 64, 128  # of the part that a CTA copies: its rows, and the bytes of a row


@tile.jit
def part(X, z, i, j, ROWS: tile.constexpr, COLUMNS: tile.constexpr):
    """The ROWS x COLUMNS of X (of matrix `z` of X, if it holds several) from row `i` and column `j` on."""
    return X[z, i:i + ROWS, j:j + COLUMNS] if len(X.shape) == 3 else X[i:i + ROWS, j:j + COLUMNS]


@tile.jit(num_warps=4)
def packed(X, Y, ROWS: tile.constexpr, COLUMNS: tile.constexpr, TURNED: tile.constexpr):
    """``Y = X``, or Y is each matrix of X transposed (`TURNED`). Y may be larger than X, and is 0 beyond X's edges.

    With `TURNED`, each thread writes 16 bytes of a row of Y, and 8 neighbouring threads write 128. These elements
    come from as many rows of X, which are placed in shared memory in an order for which the swizzle puts the rows of
    the eight threads in different banks."""
    down, across = tile.cdiv(Y.shape[-2], ROWS), tile.cdiv(Y.shape[-1], COLUMNS)
    t = tile.program_id(0)
    z, i, j = t // (down * across), t // across % down * ROWS, t % across * COLUMNS
    if TURNED:
        UNIT: tile.constexpr = 16 // X.dtype.nbytes
        shape = (COLUMNS, ROWS)
        stage = tile.alloc(shape, X.dtype, layout=tile.swizzled(X.dtype, shape, min(ROWS * X.dtype.nbytes, 128)))
        stage = stage.reshape((UNIT, COLUMNS // UNIT, ROWS)).permute((1, 0, 2)).reshape(shape)
        tile.copy(stage, part(X, z, j, i, COLUMNS, ROWS))
        tile.sync()
        tile.store(part(Y, z, i, j, ROWS, COLUMNS), tile.load(stage.permute((1, 0))))
    else:
        tile.store(part(Y, z, i, j, ROWS, COLUMNS), tile.load(part(X, z, i, j, ROWS, COLUMNS)))


def pack(x, y) -> None:
    """Copy the matrices `x` to `y`, which may be larger and is then filled up with zeros."""
    view, (*batch, outer, inner) = describe(x), describe(y).shape
    across = view.strides[-1] != 1 and view.strides[-2] == 1
    columns = NBYTES // view.nbytes_per_element
    grid = (batch[0] if batch else 1) * -(-outer // ROWS) * -(-inner // columns)
    packed[grid,](transpose(x) if across else x, y, ROWS=ROWS, COLUMNS=columns, TURNED=across)


def is_readable(x: ArrayView, either: tuple[int, ...]) -> bool:
    """Whether TMA can load boxes of the matrices [.., rows, k] of `x` in a layout that the tensor cores take:
    contiguous along k (or along the rows, if elements have one of the sizes `either`, in bytes), with all other
    strides, and the address, multiples of 16 bytes."""
    size = x.nbytes_per_element
    inner = x.strides[-1] == 1 or size in either and x.strides[-2] == 1
    far = [s for d, s in enumerate(x.strides)
           if not (s == 1 and d == len(x.strides) - (1 if x.strides[-1] == 1 else 2))]
    return inner and 0 not in x.shape and x.pointer % 16 == 0 and all(s > 0 and s * size % 16 == 0 for s in far)


def copied_bytes(x: ArrayView, y: ArrayView, either: tuple[tuple[int, ...], ...]) -> int:
    """The bytes of the operands [.., rows, k] that have to be copied before a product."""
    return sum(math.prod(v.shape) * v.nbytes_per_element
               for v, sizes in zip((x, y), either) if not is_readable(v, sizes))


def alignment(x: ArrayView, either: tuple[int, ...]) -> int:
    """The largest power of 2, 16 to 128, that divides the bytes between lines of the matrices [.., rows, k] of `x` as
    the kernel reads them. Operands that are copied first have lines of a multiple of 128 bytes."""
    apart = [s * x.nbytes_per_element for s in x.strides[-2:] if s != 1] if is_readable(x, either) else []
    return min([NBYTES, *(a & -a for a in apart)])


def as_readable(x, either: tuple[int, ...]):
    """The matrices [.., rows, k] of `x`, or a copy if they are not `is_readable`. An extent of 0 along k becomes 1,
    a zero."""
    return x if is_readable(describe(x), either) else copy_readable(x)


def copy_readable(x, k_first: bool = False):
    """A `is_readable` copy of the matrices [.., rows, k] of `x`, contiguous along k, or along the rows (`k_first`). Its
    lines are multiples of 128 bytes, so TMA requests each line of L2 once."""
    *batch, outer, inner = describe(x).shape
    inner = max(inner, 1)
    if k_first:
        x, outer, inner = transpose(x), inner, outer
    unit = NBYTES // describe(x).nbytes_per_element
    wide = temporary(x, (*batch, outer, -(-inner // unit) * unit), describe(x).dtype)
    pack(x, wide)
    return transpose(wide[..., :inner]) if k_first else wide[..., :inner]


__all__ = ["as_readable", "copy_readable", "copied_bytes", "pack", "is_readable", "transpose"]
