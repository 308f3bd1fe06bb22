"""Which of an epilogue's tiles TMA loads while the products still run."""

from __future__ import annotations

from collections.abc import Sequence

from ...runtime.arrays import ArrayView
from ..operands import comes_ahead, line_comes_ahead, stored_by_tma
from .config import SHARED


def tiles_ahead(tiles: Sequence[ArrayView], axes: tuple[str, ...], z: ArrayView, width: int, bn: int = 256,
                left: int = SHARED) -> tuple[bool, ...]:
    """Which of an epilogue's tiles TMA can load during the products: the first that has both of the result's axes, to
    buffers of `width` columns; and with it, or if there is none, rows, whose `bn` columns at a time take up to `left`
    bytes in total. () if there are none."""
    first, made = next((i for i, along in enumerate(axes) if along[-2:] == "mn"), None), []
    for i, (t, along) in enumerate(zip(tiles, axes)):
        row = along[-1] == "n" and "m" not in along and line_comes_ahead(t, bn) and bn * t.nbytes_per_element <= left
        left -= bn * t.nbytes_per_element if row else 0
        made.append(row or i == first)
    possible = stored_by_tma(z, width) if first is None else comes_ahead(tiles[first], z, width)
    return tuple(made) if possible and any(made) else ()


__all__ = ["tiles_ahead"]
