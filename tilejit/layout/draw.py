"""Draws a layout: a grid of the tile's cells, coloured by bank, by address or by thread."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy

from ..errors import CompilationError
from .axes import Axis, as_whole_number, axis

if TYPE_CHECKING:
    from .algebra import TileLayout

CELL_WIDTH, CELL_HEIGHT, MARGIN = 52, 20, 34  # pixels
MOST_ROWS, MOST_COLUMNS = 64, 64
BANKS, BANK_BITS = 32, 32


def draw(layout: TileLayout, shape: Iterable[Any] | None = None, bits: int | None = None) -> str:
    """An SVG picture of `layout` for a tile of `shape`, by default with one dimension per shard.

    Each cell shows where its element is: the memory offset, the thread and register, or the lane and column of
    tensor memory. Memory is coloured by bank if `bits`, the width of an element, is given, otherwise by address.
    All dimensions except the last are flattened into rows; at most 64 x 64 cells are drawn.
    """
    shape = tuple(as_whole_number(n) for n in (layout.extents if shape is None else shape)) or (1,)
    if not all(isinstance(n, int) for n in shape):
        raise CompilationError(f"only a layout of known extents can be drawn, found shape {shape}")
    rows, columns = prod(shape[:-1]), shape[-1]
    shown_rows, shown_columns = min(rows, MOST_ROWS), min(columns, MOST_COLUMNS)
    index = numpy.arange(shown_rows)[:, None] * columns + numpy.arange(shown_columns)
    where = layout.apply(*numpy.unravel_index(index, shape), shape=shape)
    where = {name: numpy.broadcast_to(value, index.shape) for name, value in where.items()}
    cells = []
    for i, j in numpy.ndindex(index.shape):
        label, hue, light = _cell({name: int(values[i, j]) for name, values in where.items()}, layout, bits)
        x, y = MARGIN + j * CELL_WIDTH, MARGIN + i * CELL_HEIGHT
        cells.append(f'<rect x="{x}" y="{y}" width="{CELL_WIDTH}" height="{CELL_HEIGHT}" '
                     f'fill="hsl({hue:.0f},70%,{light:.0f}%)"/>'
                     f'<text x="{x + CELL_WIDTH // 2}" y="{y + 14}">{label}</text>')
    return _page(cells, shown_rows, shown_columns, _caption(layout, rows, columns))


def _cell(at: dict[Axis, int], layout: TileLayout, bits: int | None) -> tuple[str, float, float]:
    """(label, hue in degrees, lightness in percent) of one cell."""
    if axis.laneid in at or axis.warpid in at or axis.tid in at or axis.reg in at:
        thread = at.get(axis.tid, 0) + 32 * at.get(axis.warpid, 0) + 128 * at.get(axis.wgid, 0) + at.get(axis.laneid, 0)
        return f"T{thread} r{at.get(axis.reg, 0)}", thread % 32 * 360 / 32, 88 - 6 * (thread // 32 % 4)
    if axis.TLane in at or axis.TCol in at:
        lane = at.get(axis.TLane, 0)
        return f"{lane}, {at.get(axis.TCol, 0)}", lane * 360 / 128, 84
    offset = at.get(axis.m, 0)
    if bits:
        return str(offset), offset * bits // BANK_BITS % BANKS * 360 / BANKS, 82
    return str(offset), 200, 95 - 45 * offset / max(layout.span(axis.m), 1)


def _caption(layout: TileLayout, rows: int, columns: int) -> str:
    text = repr(layout).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    if rows <= MOST_ROWS and columns <= MOST_COLUMNS:
        return text
    return f"{text}, the first {min(rows, MOST_ROWS)} x {min(columns, MOST_COLUMNS)} of {rows} x {columns}"


def _page(cells: list[str], rows: int, columns: int, caption: str) -> str:
    width, height = MARGIN + columns * CELL_WIDTH + 4, MARGIN + rows * CELL_HEIGHT + 4
    width = max(width, MARGIN + 7 * len(caption))
    middles = [MARGIN + j * CELL_WIDTH + CELL_WIDTH // 2 for j in range(columns)]
    heads = [f'<text x="{x}" y="{MARGIN - 5}">{j}</text>' for j, x in enumerate(middles)]
    heads += [f'<text x="{MARGIN // 2}" y="{MARGIN + i * CELL_HEIGHT + 14}">{i}</text>' for i in range(rows)]
    style = ("text{font:10px ui-monospace,monospace;text-anchor:middle;fill:#222}"
             "rect{stroke:#fff;stroke-width:1}.head text{fill:#888}.caption{text-anchor:start;font-size:11px}")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
            f'<style>{style}</style><text class="caption" x="4" y="13">{caption}</text>'
            f'<g class="head">{"".join(heads)}</g>{"".join(cells)}</svg>')
