"""Draws a layout: the tile's elements with their places, or the memory banks with the elements that lie in them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from math import prod
from typing import TYPE_CHECKING, Any

import numpy

from ..errors import CompilationError
from ..svg import CHARACTER, FAINT, cell, colour, label, page
from .axes import Axis, as_whole_number, axis

if TYPE_CHECKING:
    from .algebra import TileLayout

CELL_WIDTH, CELL_HEIGHT, MARGIN, BANK_WIDTH = 40, 20, 40, 27  # pixels
MOST_ROWS, MOST_COLUMNS = 64, 64
SEPARATE = 32              # so many columns, and fewer, are drawn one by one
BANKS, BANK_BYTES = 32, 4
VECTOR_BITS = 128          # the most that a thread accesses at a time, and that a swizzle keeps together
MOST_ELEMENTS = 1 << 20    # that a bank map looks at


def draw(layout: TileLayout, shape: Iterable[Any] | None = None, bits: int | None = None) -> str:
    """An SVG picture of `layout` for a tile of `shape`. Each cell shows where its element is: the memory offset, the
    thread and register, or the lane and column of tensor memory.

    `shape` and `bits`, the width of an element, are by default those that the layout was made for, or one dimension
    per shard. Memory is coloured by bank if the width is known, otherwise by address. Where rows are longer than 32
    elements, 16 bytes that stay together are one cell. All dimensions except the last are flattened into rows; at most
    64 x 64 cells are drawn.
    """
    shape, bits = _shape_and_bits(layout, shape, bits)
    rows, run = prod(shape[:-1]), _run(layout, shape, bits) if shape[-1] > SEPARATE else 1
    columns = shape[-1] // run
    shown_rows, shown_columns = min(rows, MOST_ROWS), min(columns, MOST_COLUMNS)
    index = numpy.arange(shown_rows)[:, None] * shape[-1] + run * numpy.arange(shown_columns)
    where = layout.apply(*numpy.unravel_index(index, shape), shape=shape)
    where = {name: numpy.broadcast_to(value, index.shape) for name, value in where.items()}
    found = [_cell({name: int(values[at]) for name, values in where.items()}, layout, bits, run)
             for at in numpy.ndindex(index.shape)]
    width = max([CELL_WIDTH, *(CHARACTER * len(text) + 8 for text, _ in found)])
    heads = [_span(run * j, run) for j in range(shown_columns)]
    cells = []
    for (i, j), (text, fill) in zip(numpy.ndindex(index.shape), found):
        title = f"{_element(shape, i, heads[j])}: {text}{_banks(layout, where, (i, j), bits, run)}"
        cells.append(cell(MARGIN + j * width, MARGIN + i * CELL_HEIGHT, width, CELL_HEIGHT, fill, text, title))
    caption = _caption(layout, (shown_rows, shown_columns * run), (rows, shape[-1]))
    return _page(cells, [str(i) for i in range(shown_rows)], heads, width, caption)


def draw_banks(layout: TileLayout, shape: Iterable[Any] | None = None, bits: int | None = None) -> str:
    """An SVG picture of the 32 banks of shared memory with a tile of `layout`. A line is 128 bytes of memory, its
    columns are the banks of 4 bytes, and a cell names the element, or the elements, that lie there: their row and
    columns. Colours show the row modulo 8: a column of the tile is read without conflicts if 8 rows of it have their
    16 bytes in different banks.

    `shape` and `bits`, the width of an element, are by default those that the layout was made for. At most 64 lines
    are drawn. CompilationError if the width is unknown or the layout is not one of memory.
    """
    shape, bits = _shape_and_bits(layout, shape, bits)
    if bits is None:
        raise CompilationError("a bank map needs the width of an element: draw_banks(shape, bits=16)")
    if layout.replicas or any(along != axis.m for along in layout.axes):
        raise CompilationError(f"only a layout of memory has banks, and {layout} is over {', '.join(layout.axes)}")
    run, total = _run(layout, shape, bits), prod(shape)
    starts = numpy.arange(0, min(total, MOST_ELEMENTS), run)
    byte = _bytes(layout, shape, starts, bits)
    while run > 1 and (byte % (run * bits // 8 or 1)).any():  # else a cell might go on in the next line
        run //= 2
        starts = numpy.arange(0, min(total, MOST_ELEMENTS), run)
        byte = _bytes(layout, shape, starts, bits)
    lines = min(int(byte.max()) // (BANKS * BANK_BYTES) + 1, MOST_ROWS) if len(byte) else 0
    order = [k for k in numpy.argsort(byte, kind="stable") if 0 <= byte[k] < lines * BANKS * BANK_BYTES]
    found = []  # line, first bank, banks, row, text, title
    for bank, together in groupby(order, key=lambda k: int(byte[k]) // BANK_BYTES):
        elements = list(together)
        first, width = int(starts[elements[0]]), max(1, run * bits // (8 * BANK_BYTES))
        row, column = divmod(first, shape[-1])
        columns = _span(column, _adjacent([int(starts[k]) for k in elements], run))
        title = (f"{_element(shape, row, columns)}: byte {bank * BANK_BYTES}, bank "
                 f"{_span(bank % BANKS, width)}")
        found.append((bank // BANKS, bank % BANKS, width, row, f"{row},{columns}", title))
    pixels = max([BANK_WIDTH, *((CHARACTER * len(text) + 6) / width for _, _, width, _, text, _ in found)])
    cells = [cell(MARGIN, MARGIN + i * CELL_HEIGHT, BANKS * pixels, CELL_HEIGHT, "#f6f8fa") for i in range(lines)]
    cells += [cell(MARGIN + bank * pixels, MARGIN + line * CELL_HEIGHT, width * pixels, CELL_HEIGHT,
                   colour(row % 8 * 45, 0.8), text, title) for line, bank, width, row, text, title in found]
    whole = total <= MOST_ELEMENTS and (not len(byte) or byte.max() < lines * BANKS * BANK_BYTES)
    caption = f"banks of {_text(layout)}" + ("" if whole else f", the first {lines} lines of 128 bytes")
    return _page(cells, [str(i * BANKS * BANK_BYTES) for i in range(lines)], [str(b) for b in range(BANKS)],
                 pixels, caption)


def _shape_and_bits(layout: TileLayout, shape: Iterable[Any] | None, bits: int | None) -> tuple[tuple[int, ...],
                                                                                               int | None]:
    made_for = layout.made_for or (layout.extents, None)
    if shape is None:
        shape, bits = made_for[0], made_for[1] if bits is None else bits
    shape = tuple(as_whole_number(n) for n in shape) or (1,)
    if not all(isinstance(n, int) for n in shape):
        raise CompilationError(f"only a layout of known extents can be drawn, found shape {shape}")
    if bits is not None and (not isinstance(bits, int) or bits < 1):
        raise CompilationError(f"bits is the width of an element in bits, found {bits!r}")
    return shape, bits


def _run(layout: TileLayout, shape: tuple[int, ...], bits: int | None) -> int:
    """How many elements of a row stay together in 16 bytes of memory, by a power of two; 1 if the width of an element
    is unknown, and outside of memory."""
    if bits is None or any(along != axis.m for along in layout.axes):
        return 1
    together, most = layout.contiguous_run(), VECTOR_BITS // bits
    return max((n for n in (1, 2, 4, 8, 16, 32) if n <= most and together % n == 0 and shape[-1] % n == 0), default=1)


def _bytes(layout: TileLayout, shape: tuple[int, ...], elements: numpy.ndarray, bits: int) -> numpy.ndarray:
    """The offsets in bytes of elements of a tile, given by their row-major index."""
    at = layout.apply(*numpy.unravel_index(elements, shape), shape=shape).get(axis.m, 0)
    return numpy.broadcast_to(at, elements.shape) * bits // 8


def _cell(at: dict[Axis, int], layout: TileLayout, bits: int | None, run: int) -> tuple[str, str]:
    """(label, colour) of one cell."""
    if axis.laneid in at or axis.warpid in at or axis.tid in at or axis.reg in at:
        thread = at.get(axis.tid, 0) + 32 * at.get(axis.warpid, 0) + 128 * at.get(axis.wgid, 0) + at.get(axis.laneid, 0)
        return f"T{thread} r{at.get(axis.reg, 0)}", colour(thread % 32 * 360 / 32, 0.88 - 0.06 * (thread // 32 % 4))
    if axis.TLane in at or axis.TCol in at:
        lane = at.get(axis.TLane, 0)
        return f"{lane}, {at.get(axis.TCol, 0)}", colour(lane * 360 / 128, 0.84)
    offset = at.get(axis.m, 0)
    if bits:
        return _span(offset, run), colour(offset * bits // 8 // BANK_BYTES % BANKS * 360 / BANKS, 0.82)
    return str(offset), colour(200, 0.95 - 0.45 * offset / max(layout.span(axis.m), 1))


def _banks(layout: TileLayout, where: dict[Axis, Any], at: tuple[int, int], bits: int | None, run: int) -> str:
    """The banks of a cell, in words."""
    if bits is None or axis.m not in where or any(along != axis.m for along in layout.axes):
        return ""
    bank = int(where[axis.m][at]) * bits // 8 // BANK_BYTES % BANKS
    return f", bank {_span(bank, max(1, run * bits // (8 * BANK_BYTES)))}"


def _span(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}\u2013{first + count - 1}"


def _adjacent(starts: list[int], run: int) -> int:
    """How many elements follow each other from the first of `starts` on, each of which begins `run` of them."""
    count = run
    for start in starts[1:]:
        if start != starts[0] + count:
            break
        count += run
    return count


def _element(shape: tuple[int, ...], row: int, columns: str) -> str:
    """An element, in words."""
    head = ", ".join(str(int(n)) for n in numpy.unravel_index(row, shape[:-1])) if len(shape) > 1 else ""
    return f"[{head}, {columns}]" if head else f"[{columns}]"


def _text(layout: TileLayout) -> str:
    made_for = layout.made_for
    return f"{layout!r}" if made_for is None else f"{layout!r} of {' x '.join(map(str, made_for[0]))}"


def _caption(layout: TileLayout, shown: tuple[int, int], whole: tuple[int, int]) -> str:
    if shown == whole:
        return _text(layout)
    return f"{_text(layout)}, the first {shown[0]} x {shown[1]} of {whole[0]} x {whole[1]}"


def _page(cells: list[str], lines: list[str], heads: list[str], cell_width: float, caption: str) -> str:
    width, height = MARGIN + len(heads) * cell_width + 4, MARGIN + len(lines) * CELL_HEIGHT + 4
    width = max(width, 8 + CHARACTER * 1.1 * len(caption))
    parts = [label(4, 14, caption, "start", size=11)]
    parts += [label(MARGIN + (j + 0.5) * cell_width, MARGIN - 5, head, fill=FAINT)
              for j, head in enumerate(heads)]
    parts += [label(MARGIN - 5, MARGIN + i * CELL_HEIGHT + 14, line, "end", FAINT)
              for i, line in enumerate(lines)]
    return page([f"<g>{''.join(parts)}</g>", *cells], width, height)
