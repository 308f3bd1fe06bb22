"""The needs of a ``dot`` that goes through tensor memory, where one thread starts the product by ``tcgen05.mma``.

The compiler allocates the accumulator in tensor memory, and loads it to registers when the product is complete. An
`a` in registers is stored to tensor memory first. PTX ISA, "tcgen05.mma".
"""

from __future__ import annotations

from dataclasses import replace

from ...dispatch import Miss, Need, Variant, result_of
from ...layout import TileLayout, axis
from ...types import Buffer, Region, Tile
from ..tmem.alloc import LANES
from ..tmem.ldst import search
from ..tmem.targets import TENSOR_MEMORY
from . import tcgen05
from .site import MmaSite
from .tcgen05_kinds import TYPES, default_kind
from .tcgen05_operands import a_layout, accumulator_layout
from .tcgen05_site import TensorSite

DATAPATHS = {64: "F", LANES: "D"}  # rows of an accumulator -> its datapath


def sums_layout(rows: int, columns: int, dtype) -> TileLayout:
    """The layout of the accumulator in tensor memory: as the hardware writes it,
    each further 128 rows in further columns."""
    if rows <= LANES:
        return accumulator_layout(DATAPATHS[rows], columns, dtype)
    one = accumulator_layout("D", columns, dtype)
    return TileLayout([(rows // LANES, one.span("TCol") + 32 // dtype.bits - 1, axis.TCol), *one.shards])


def left_layout(rows: int, k: int) -> TileLayout:
    """The layout in tensor memory of an `a` from registers."""
    return a_layout(DATAPATHS[rows], k)


def left_shape(rows: int, bits: int) -> str | None:
    """The ``tcgen05.st`` shape that stores such an `a`; None for the first that fits.

    For 64 rows of 16-bit elements, 16x128b takes them from the threads that hold the sums of the same rows and columns.
    """
    return "16x128b" if rows < LANES and bits == 16 else None


def kind_of(s: MmaSite) -> tuple[str, tuple[str, str]] | str:
    """(kind of the instruction, its element types), or a string that says why there is none."""
    a, b = (TYPES.get(t.dtype.name) for t in (s.a, s.b))
    kind = default_kind(a, b, False) if a is not None and b is not None else None
    if a is None or b is None or kind is None:
        return f"{s.a.dtype} by {s.b.dtype}"
    if kind == "tf32" and s.precision != "tf32":
        return "they would be rounded to 10 bits"
    return kind, (a, b)


def sites(s: MmaSite) -> list[TensorSite] | str:
    """The products of 64 or 128 rows that this one consists of, or a string that says why they are not known."""
    return s.memoize("tensor", lambda: _sites(s))


def _sites(s: MmaSite) -> list[TensorSite] | str:
    kind, types = result_of(kind_of(s))
    assert isinstance(s.b, Region)
    rows = min(s.m, LANES)
    acc = _place(s.dtype, (rows, s.n), sums_layout(rows, s.n, s.dtype))
    found = []
    for first in range(0, s.m, rows):
        if isinstance(s.a, Tile):
            a, starts = _place(s.a.dtype, s.a.shape, left_layout(rows, s.k)), (0, 0)
        else:
            at = s.a.kept[1 if s.trans_a else 0]
            begins = s.a_starts[at]
            begins = begins.value if hasattr(begins, "value") else begins
            if first and not isinstance(begins, int):
                return "rows from a start that is known at run time only"
            starts = tuple(begins + first if d == at and first else x for d, x in enumerate(s.a_starts))
            a = replace(s.a, extents=tuple(rows if d == at else n for d, n in enumerate(s.a.extents)))
        found.append(TensorSite(acc, a, s.b, (None, None), {"acc": (0, 0), "a": starts, "b": s.b_starts}, s.trans_a,
                                s.trans_b, kind, types, None,
                                "thread", 1, s.target, 1, {"a": s.a_align, "b": s.b_align}, s.g))
    return found


def _place(dtype, shape: tuple, layout: TileLayout) -> Region:
    return Region(Buffer(dtype, shape, "tmem", layout), shape, (0, 1))


def _scope(s: MmaSite) -> bool | str:
    if not s.warpgroup_scope:
        return f"one {s.scope} of {s.threads} threads"
    scope = s.g.scope
    while scope is not None:
        if not isinstance(scope.first, int):
            return "a scope whose index is known at run time only"
        scope = scope.parent
    return True


def _left_operand_fits(s: MmaSite) -> bool | str:
    if isinstance(s.a, Region):
        return True
    return ((s.m in DATAPATHS and not s.trans_a)
            or ("trans_a=True of a tile in registers" if s.trans_a else f"{s.m} rows in registers"))


def _types(s: MmaSite) -> bool | str:
    found = kind_of(s)
    return found if isinstance(found, str) else True


def _is_named(s: MmaSite) -> bool | str:
    found = sites(s)
    return found if isinstance(found, str) else True


def _shared_out(s: MmaSite) -> bool | Miss:
    moved: list[tuple[str, Region, str | None]] = [
        ("the sums", _place(s.dtype, (s.m, s.n), sums_layout(s.m, s.n, s.dtype)), None)]
    if isinstance(s.a, Tile):
        moved.append(("a", _place(s.a.dtype, s.a.shape, left_layout(s.m, s.k)), left_shape(s.m, s.a.dtype.bits)))
    for what, region, shape in moved:
        if isinstance(search(region, (0, 0), s.g.divisor, s.threads, shape, None, False), str):
            words = (f"{what}, {' by '.join(map(str, region.shape))} of {region.dtype}, "
                     f"cannot be divided among {s.warpgroups} warpgroups")
            return Miss(words, f"{words}: let fewer of them multiply, in a scope of their own")
    return True


def _of_each(need: Need) -> Need:
    """A need of a tcgen05 product as a need of the `dot`, which holds if it holds for each of the dot's products."""
    def test(s: MmaSite) -> bool | str | Miss:
        return next((found for found in map(need.test, sites(s)) if found is not True and found is not None), True)
    return Need(need.words, test, need.gate)


DOT = Variant("tcgen05", doc=__doc__, needs=(
    TENSOR_MEMORY,
    Need("whole warpgroups as the scope, with indices known at compile time", _scope, gate=True),
    Need("b in shared memory", lambda s: isinstance(s.b, Region) or "in registers", gate=True),
    Need("64 rows or a multiple of 128", lambda s: s.m == 64 or s.m % LANES == 0 or f"{s.m} rows", gate=True),
    Need("a in shared memory, or 64 or 128 rows of it in registers", _left_operand_fits, gate=True),
    Need("types that a kind of tcgen05.mma multiplies (float32 with precision='tf32')", _types, gate=True),
    Need("rows whose start is known at compile time, where there are more than 128", _is_named, gate=True),
    Need("sums, and an a in registers, that can be divided among the warpgroups of the scope", _shared_out, gate=True),
    _of_each(tcgen05.ONE_THREAD),
    _of_each(tcgen05.TARGET),
    _of_each(tcgen05.ELEMENT_TYPES),
    _of_each(tcgen05.SUMS),
    _of_each(tcgen05.NEGATION),
    _of_each(tcgen05.ROWS),
    _of_each(tcgen05.WHOLE_STEPS),
    _of_each(tcgen05.A_PLACE),
    _of_each(tcgen05.B_LAYOUT),
    _of_each(tcgen05.COLUMNS),
    _of_each(tcgen05.MAJOR),
    _of_each(tcgen05.ACCUMULATOR),
    _of_each(tcgen05.A_LANES),
    Need("enough free tensor memory", lambda s: s.g.tensor_room(s)),
))


__all__ = ["DOT", "kind_of", "left_layout", "left_shape", "sums_layout"]
