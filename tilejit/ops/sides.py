"""What every copy asks of its two sides: regions of memory, one dtype, equal extents."""

from __future__ import annotations

from ..ir.builder import Builder, describe, type_of
from ..ir.graph import Value
from ..types import Buffer, Region
from .memory import whole


def checked_sides(g: Builder, name: str, dst, src) -> tuple[Value, Value]:
    """Both sides of a copy as regions. CompilationError says what does not fit."""
    for x in (dst, src):
        if not isinstance(type_of(x), (Buffer, Region)):
            raise g.error(f"{name} moves regions of memory, not {describe(x)}")
    dst, src = whole(g, dst), whole(g, src)
    if dst.type.dtype != src.type.dtype:
        raise g.error(f"a copy keeps the dtype, and {src.type.dtype} is not {dst.type.dtype}: load, cast and store instead")
    sides = [tuple(n for n in x.type.extents if n != 1) for x in (dst, src)]
    if sides[0] != sides[1]:
        raise g.error(f"a copy's sides have equal extents (other than 1), and {list(src.type.shape)} is not {list(dst.type.shape)}")
    if dst.type.scope == "global":
        g.state.setdefault("written", set()).add(dst.type.buffer.arg)
    return dst, src
