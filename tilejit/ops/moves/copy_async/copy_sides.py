"""Checks of the two sides of a copy: regions of memory, with one dtype and equal extents."""

from __future__ import annotations

from ....ir.builder import Builder, describe, memory_type, type_as, type_of
from ....ir.graph import Value
from ....types import Buffer, Points, Region, Rows, Selected, Tile
from ...language.expect_variant import asked_variant
from ...memory.packed import shape_of
from ...memory.regions import refuse_box, whole_region
from ...tmem.ldst import check_region, tmem_store
from .options import HINTS, checked_options
from .tma.selections import Taken


def checked_sides(g: Builder, name: str, dst, src) -> tuple[Value, Value]:
    """Both sides of a copy as regions. CompilationError if one is not memory, if dtypes or extents differ, or if a
    region differs between the threads that share the copy."""
    for x in (dst, src):
        if isinstance(type_of(x), Selected) and name == "copy_async":
            continue
        if not isinstance(type_of(x), (Buffer, Region)):
            raise g.error(f"{name} moves regions of memory, not {describe(x)}{_suggest_other_way(name, x)}")
    dst, src = (x if isinstance(type_of(x), Selected) else whole_region(g, x) for x in (dst, src))
    if name != "copy_async":
        refuse_box(g, name, dst), refuse_box(g, name, src)
    padding = (name == "copy_async" and dst.type.dtype.padded == src.type.dtype.name and isinstance(src.type, Region)
               and src.type.buffer.map is None)
    if dst.type.dtype != src.type.dtype and not padding:
        raise g.error(f"a copy keeps the dtype, and {src.type.dtype} is not {dst.type.dtype}: load, "
                      "cast and store instead")
    shapes = [shape_of(x.type.dtype, tuple(x.type.extents)) for x in (dst, src)]
    if [n for n in shapes[0] if n != 1] != [n for n in shapes[1] if n != 1]:
        raise g.error("a copy's sides have equal extents (other than 1), "
                      f"and {list(shape_of(src.type.dtype, src.type.shape))} is not "
                      f"{list(shape_of(dst.type.dtype, dst.type.shape))}")
    for side in (dst, src):
        if g.scope.partial is None:
            g.require_uniform(f"this {name}", *g.definitions[side].args[1:])
    if dst.type.scope == "global":
        g.state.setdefault("written", set()).add(dst.type.buffer.arg)
    return dst, src


def _suggest_other_way(name: str, x) -> str:
    """What to write instead of a copy of rows, points or a tile, in words; "" for other operands."""
    if isinstance(type_of(x), Tile):
        return "; tile.load and tile.store move tiles to and from registers"
    if isinstance(x, Taken):
        return ": name the columns too, as in A.take(rows)[:, k:k + BLOCK]"
    if isinstance(type_of(x), Points) and name == "copy_async":
        return ": rows of a matrix are named by A.take(rows)[:, k:k + BLOCK], and other elements are loaded and stored"
    if isinstance(type_of(x), (Points, Rows)):
        return ": load and store a tile, as in tile.store(buffer, tile.load(A[rows, k:k + BLOCK]))"
    return ""


def moves_tile(g: Builder, name: str, dst, src, wait: bool, variant, mbar=None, **options) -> bool:
    """If a copy is from a register tile to tensor memory, add it to the graph as ``tcgen05.st``, and return True.

    Of the `options`, it may have hints, which it does not use.
    """
    if getattr(type_of(dst), "scope", None) != "tmem" or not isinstance(type_of(src), Tile):
        return False
    given = checked_options(options, ())
    if (asked_variant(g, variant, ("tcgen05_ldst",)) not in (None, "tcgen05_ldst") or mbar is not None
        or not HINTS.keys() >= given.keys()):
        raise g.error(f"{name} of a register tile to tensor memory is the variant tcgen05_ldst, "
                      "and has no other options than hints")
    region = check_region(g, name, dst, None, None, wait)
    tile, place = type_as(src, Tile), memory_type(region)
    if (tile.dtype, tile.shape) != (place.dtype, place.shape):
        raise g.error(f"a copy keeps dtype and shape, and {describe(src)} is not "
                      f"{place.dtype}{list(place.shape)}")
    g.call(tmem_store, region, src, shape=None, pack=None, wait=wait, options=given or None)
    return True
