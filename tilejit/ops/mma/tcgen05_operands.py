"""The tensor-memory layouts that ``tcgen05.mma`` requires, and checks of them.

They are those of the accumulator, of A and of scale factors.

PTX ISA, "Data Path Layout Organization" and "Block Scaling" (9.7.16.10.5, 9.7.16.10.7).
"""

from __future__ import annotations

from ...dispatch import result_of
from ...errors import CompilationError
from ...frames import hide_own_frames
from ...layout import TileLayout, axis, tmem_datapath
from ...layout.axes import as_whole_number
from ...types import Region, layout_of
from ..tmem.ldst_plan import digits_of
from ..tmem.multiples import Multiple


@hide_own_frames
def scale_layout(rows: int, chunks: int) -> TileLayout:
    """The layout in tensor memory of scale factors [rows, chunks],
    one byte for each row of A (or column of B) and each block along k.

    `rows` is a multiple of 32, `chunks` is 1, 2, 3 or a multiple of 4. Row i is in lane i % 32; each further 32 rows
    take the next column. Four blocks along k share a column. The 32 lanes of each warp hold a copy.
    """
    rows, chunks = as_whole_number(rows), as_whole_number(chunks)
    if rows % 32 or rows < 32 or chunks < 1 or (chunks > 4 and chunks % 4):
        raise CompilationError("scale factors are for a multiple of 32 rows and 1, 2, 3 or a multiple of 4 blocks, "
                               f"not {rows} and {chunks}")
    columns = rows // 32
    shards = [(columns, 4, axis.TCol), (32, 1, axis.TLane)]
    if chunks > 4:
        along = [(chunks // 4, 4 * columns, axis.TCol), (4, 1, axis.TCol)]
    else:
        along = [(chunks, 1, axis.TCol)]
    return TileLayout(shards + along, replicas=[(4, 32, axis.TLane)])


def places(t: Region, starts: tuple, divisor) -> tuple[dict[str, list], dict] | str:
    """({axis: [offsets of the region's rows, offsets of its columns]}, offset of the region by axis),
    or a string that says why not.

    The axes are TLane and TCol; offsets of rows and columns are relative to the region's first element.
    """
    read = digits_of(t, starts, divisor)
    if isinstance(read, str):
        return read
    digits, offset = read
    if len(digits) != 2:
        return f"{len(digits)} dimensions"
    found = {}
    for along in ("TLane", "TCol"):
        found[along] = [_walk_digits([(n, s if a == along else 0) for n, s, a in part]) for part in digits]
    return found, offset


def _walk_digits(digits: list[tuple[int, int]]) -> list[int]:
    at = [0]
    for extent, stride in digits:
        at = [a + n * stride for a in at for n in range(extent)]
    return at


def lies_as(t: Region, starts: tuple, divisor, layout: TileLayout, what: str) -> bool | str:
    """Whether a region [rows, columns] has the layout `layout` and starts at a whole column of 32 bits,
    in lane 0 or (if it fits) 16.

    `what` names the layout in the string that says what was found instead.
    """
    mine = places(t, starts, divisor)
    if isinstance(mine, str):
        return mine
    whole = Region(type(t.buffer)(t.dtype, t.shape, "tmem", layout), t.shape, (0, 1))
    wanted, offset = result_of(places(whole, (0, 0), divisor))
    if mine[0] != wanted:
        return f"its layout is {t.buffer.layout}, and that of {what} is {layout}"
    replicas = layout_of(t.buffer).replicas
    if replicas != layout.replicas:
        return f"its replicas are {replicas or 'none'}, and those of {what} {layout.replicas or 'none'}"
    lane, column = mine[1].get("TLane", 0), mine[1].get("TCol", 0)
    if (not isinstance(lane, int) or lane not in (0, 16)
        or (lane == 16 and max(wanted["TLane"][0] + wanted["TLane"][1]) > 111)):
        return f"it begins in lane {lane if isinstance(lane, int) else 'known at run time'}"
    if (column.of if isinstance(column, Multiple) else column) * t.dtype.bits % 32:
        return "it begins inside a column of 32 bits"
    return True


def first_lane(t: Region, starts: tuple, divisor) -> int:
    """The lane in which a region starts that `lies_as` has accepted."""
    _, at = result_of(digits_of(t, starts, divisor))
    return at.get("TLane", 0)


def accumulator_layout(datapath: str, columns: int, dtype) -> TileLayout:
    """The layout of a datapath ("D", "F", ...) for elements of `dtype`,
    each of which has a 32-bit column of its own."""
    layout, per = tmem_datapath(datapath, columns), 32 // dtype.bits
    return TileLayout([(n, s * per if a == axis.TCol else s, a) for n, s, a in layout.shards])


def a_layout(datapath: str, k: int) -> TileLayout:
    """The layout of A in tensor memory: its rows in the lanes of the accumulator, the elements of a row contiguous."""
    rows = tmem_datapath(datapath, 8)
    return TileLayout([*(s for s in rows.shards if s[2] == axis.TLane), (k, 1, axis.TCol)])
