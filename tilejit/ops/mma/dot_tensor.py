"""The needs of a ``dot`` that goes through tensor memory, where one thread starts the product by ``tcgen05.mma``.

The compiler allocates the accumulator in tensor memory, and loads it to registers when the product is complete. An
`a` in registers is stored to tensor memory first. With scale factors both operands come from shared memory, and the
factors go through it to tensor memory, in units of 128 rows and 4 blocks along k, each of which has instructions of its
own. PTX ISA, "tcgen05.mma", "tcgen05.cp".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...dispatch import Miss, Need, Variant, result_of
from ...layout import TileLayout, axis
from ...types import Buffer, Region, Tile
from ..memory.shared import widest_swizzle
from ..tmem.alloc import LANES
from ..tmem.ldst import search
from ..tmem.targets import TENSOR_MEMORY
from . import tcgen05
from .site import MmaSite
from .tcgen05_kinds import KINDS, TYPES, default_kind
from .tcgen05_operands import a_layout, accumulator_layout, scale_layout
from .tcgen05_site import TensorSite, elements_of

DATAPATHS = {64: "F", LANES: "D"}  # rows of an accumulator -> its datapath
UNIT = 512                         # bytes of the factors of 128 rows and 4 blocks, which one tcgen05.cp copies


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


def factors_shape(rows: int, blocks: int) -> tuple[int, int]:
    """The shape of scale factors [rows, blocks] in shared and tensor memory: whole units."""
    return -(-rows // LANES) * LANES, -(-blocks // 4) * 4


def factors_in_shared(shape: tuple[int, int]) -> TileLayout:
    """Their layout in shared memory: 16 bytes hold the factors of rows r, r + 32, r + 64 and r + 96 of a unit."""
    groups, units = shape[0] // LANES, shape[1] // 4
    rows = ((groups, units * UNIT, axis.m), (4, 4, axis.m), (32, 16, axis.m))
    return TileLayout([*rows, (units, UNIT, axis.m), (4, 1, axis.m)])


@dataclass(frozen=True)
class Unit:
    """A part of a product along k: the `first` of its `extent` elements (bytes of packed ones), and of its `blocks`."""

    first: int
    extent: int
    block: int
    blocks: int


def units(s: MmaSite) -> list[Unit]:
    """The parts of a product along k whose instructions take their scale factors from one unit; one without factors."""
    if s.factors is None:
        return [Unit(0, s.k, 0, 0)]
    size = s.factors.block // (2 if KINDS[s.factors.kind].k == 64 else 1)
    blocks = s.k // size
    return [Unit(first * size, min(4, blocks - first) * size, first, min(4, blocks - first))
            for first in range(0, blocks, 4)]


def kind_of(s: MmaSite) -> tuple[str, tuple[str, str]] | str:
    """(kind of the instruction, its element types), or a string that says why there is none."""
    if s.factors is not None:
        return s.factors.kind, s.factors.types
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
    rows = min(s.m, LANES)
    acc = _place(s.dtype, (rows, s.n), sums_layout(rows, s.n, s.dtype))
    found = []
    for first in range(0, s.m, rows):
        for unit in units(s):
            a: tuple[Region, tuple[Any, ...]] | str
            if isinstance(s.a, Tile) and s.factors is None:
                a = _place(s.a.dtype, s.a.shape, left_layout(rows, s.k)), (0, 0)
            else:
                a = _part(s, "a", (first, rows), unit)
            b = _part(s, "b", (0, s.n), unit)
            if isinstance(a, str) or isinstance(b, str):
                return f"{a if isinstance(a, str) else b} from a start that is known at run time only"
            starts = {"acc": (0, 0), "a": a[1], "b": b[1]}
            scales: tuple[Region | None, Region | None] = (None, None)
            if s.factors is not None:
                scales = _factors(s, s.m, rows, unit), _factors(s, s.n, -(-s.n // 32) * 32, unit)
                starts |= {"scale0": (first, unit.block), "scale1": (0, unit.block)}
            found.append(TensorSite(acc, a[0], b[0], scales, starts, s.trans_a, s.trans_b, kind, types,
                                    s.factors.block if s.factors is not None else None,
                                    "thread", 1, s.target, 1, {"a": s.a_align, "b": s.b_align}, s.g))
    return found


def _part(s: MmaSite, name: str, rows: tuple[int, int], unit: Unit) -> tuple[Region, tuple] | str:
    """(region, its starts) of some (first, extent) of the rows of a, or columns of b, and of a part along k; a string
    that names the dimension whose start must be known, and is not."""
    matrix, starts, turned = ((s.a, s.a_starts, s.trans_a) if name == "a" else (s.b, s.b_starts, not s.trans_b))
    if isinstance(matrix, Tile):  # stored to a buffer of its own first
        buffer = Buffer(matrix.dtype, matrix.shape, "shared", widest_swizzle(matrix.dtype, matrix.shape))
        matrix, starts = Region(buffer, matrix.shape, (0, 1)), (0, 0)
    if s.factors is not None:
        matrix = elements_of(matrix, s.factors.kind)
    extents, new = list(matrix.extents), list(starts)
    words = ("rows", "k") if name == "a" else ("columns", "k")
    parts = rows, (unit.first, unit.extent)
    for (first, extent), kept, what in zip(parts, matrix.kept[::-1 if turned else 1], words):
        begins = getattr(new[kept], "value", new[kept])
        if first and not isinstance(begins, int):
            return what
        if first:
            new[kept] = begins + first
        extents[kept] = extent
    return replace(matrix, extents=tuple(extents)), tuple(new)


def _factors(s: MmaSite, rows: int, needed: int, unit: Unit) -> Region:
    """The scale factors of a part along k, in tensor memory, for `needed` of the `rows` of a or columns of b."""
    assert s.factors is not None
    shape = factors_shape(rows, sum(u.blocks for u in units(s)))
    return replace(_place(s.factors.dtype, shape, scale_layout(*shape)), extents=(needed, unit.blocks))


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
    if isinstance(s.a, Region) or s.factors is not None:
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
    if isinstance(s.a, Tile) and s.factors is None:
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
    Need("b in shared memory", lambda s: isinstance(s.b, Region) or s.factors is not None or "in registers", gate=True),
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
    _of_each(tcgen05.SCALE_FACTORS),
    Need("enough free tensor memory", lambda s: s.g.tensor_room(s)),
))


__all__ = ["DOT", "factors_in_shared", "factors_shape", "kind_of", "left_layout", "left_shape", "sums_layout", "units"]
