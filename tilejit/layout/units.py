"""Layouts in other units: groups of adjacent elements as one element, and elements as their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import CompilationError
from .axes import Axis, axis
from .shards import Shard, Shards, fuse
from .swizzle import Swizzle

if TYPE_CHECKING:
    from .algebra import TileLayout


def pack(layout: TileLayout, n: int, along: Axis) -> TileLayout:
    """See `TileLayout.pack`."""
    if n == 1:
        return layout
    if n < 1:
        raise CompilationError(f"elements are packed in groups of at least 1, found {n}")
    fused = fuse(layout.shards)
    extent, stride, innermost = fused[-1] if fused else (1, 1, along)
    others = [s[1] for s in fused[:-1] + layout.replicas if s[2] == along] + [layout.offset.get(along, 0)]
    whole_chunks = not layout.swizzle or along != "m" or n <= layout.swizzle.chunk and n & (n - 1) == 0
    if innermost != along or stride != 1 or extent % n or any(other % n for other in others) or not whole_chunks:
        raise CompilationError(f"{layout} does not fall into groups of {n} neighbours on axis {along}")
    shards = (*fused[:-1], (extent // n, n, along))
    return _scale_axis(layout, along, lambda value: value // n, shards, 1 - n.bit_length())


def unpack(layout: TileLayout, n: int, along: Axis) -> TileLayout:
    """See `TileLayout.unpack`."""
    if layout.swizzle and along == "m" and n & (n - 1):
        raise CompilationError(f"a swizzled layout unpacks into a power of two of parts, found {n}")
    parts = _scale_axis(layout, along, lambda value: value * n, layout.shards, n.bit_length() - 1)
    return parts._replace(shards=(*parts.shards, (n, 1, along)))


def _scale_axis(layout: TileLayout, along: Axis, scale: Callable[[Any], Any], shards: Shards, bits: int) -> TileLayout:
    """The layout with `shards` instead of its own, its strides and offset along an axis scaled.

    The swizzle is shifted by `bits` address bits.
    """
    def scale_shard(s: Shard) -> Shard:
        return (s[0], scale(s[1]), s[2]) if s[2] == along else s
    swizzle = layout.swizzle
    if swizzle and along == axis.m:
        swizzle = Swizzle(swizzle.per_element + bits, swizzle.swizzle_len, swizzle.atom_len, swizzle.inner)
    offset = {name: scale(value) if name == along else value for name, value in layout.offsets}
    return layout._replace([scale_shard(s) for s in shards], [scale_shard(s) for s in layout.replicas], offset, swizzle)
