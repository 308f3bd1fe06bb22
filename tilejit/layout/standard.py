"""The layouts in shared memory that the tensor memory accelerator and the tensor cores read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import CompilationError
from .algebra import TileLayout
from .axes import as_whole_number
from .swizzle import Swizzle

# Bytes of a swizzled row -> number of address bits that its mode XORs (PTX ISA, "Swizzling modes").
SWIZZLE_BITS = {32: 1, 64: 2, 128: 3}
ATOM_ROWS = 8


def standard_layout(bits: int, shape: Iterable[Any], mode_bytes: int) -> TileLayout:
    """The layout in shared memory that TMA and the tensor cores expect, for elements of `bits` bits.

    `shape` is (..., rows, columns). It is covered by atoms of 8 rows of `mode_bytes` (32, 64 or 128) bytes, which
    run down all rows first and then across the columns; the address bits are XORed. With mode 0, there is no
    swizzle: columns of 16 bytes run down all rows, then across; if a row is not a multiple of 16 bytes, the
    layout is row-major. The buffer must be aligned to ATOM_ROWS * mode_bytes bytes.
    """
    shape = tuple(as_whole_number(n) for n in shape)
    if mode_bytes not in (0, *SWIZZLE_BITS):
        raise CompilationError(f"a swizzle mode is 0, 32, 64 or 128 bytes, found {mode_bytes!r}")
    if bits not in (1, 2, 4, 8, 16, 32, 64, 128):
        raise CompilationError(f"a standard layout needs elements that divide 16 bytes, found {bits!r} bits")
    if not shape or not all(isinstance(n, int) and n > 0 for n in shape):
        raise CompilationError(f"a standard layout needs a shape of positive ints, found {shape}")
    width = (mode_bytes or 16) * 8 // bits
    if mode_bytes and (len(shape) < 2 or shape[-1] % width or shape[-2] % ATOM_ROWS):
        raise CompilationError(
            f"a {mode_bytes}-byte swizzle of {bits}-bit elements needs a multiple of {ATOM_ROWS} rows by a multiple "
            f"of {width} columns, found shape {shape}")
    if shape[-1] % width:
        return TileLayout.row_major(shape).made_for_tile(shape, bits)
    column = (*(1 for _ in shape[:-2]), *shape[-2:-1], width)
    plain = TileLayout.row_major(column).tile_to(shape, column)
    if not mode_bytes:
        return plain.made_for_tile(shape, bits)
    swizzle = Swizzle((128 // bits).bit_length() - 1, SWIZZLE_BITS[mode_bytes], 3)
    return plain.with_swizzle(swizzle).made_for_tile(shape, bits)
