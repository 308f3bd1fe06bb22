"""Which elements of a tile the registers of a thread hold."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .algebra import TileLayout


@lru_cache(maxsize=4096)
def dimension_shards(layout: TileLayout, domain: tuple[int, ...]) -> tuple[tuple[tuple[int, int, str, int], ...], ...]:
    """For each dimension of `domain`, its shards as (extent, stride, axis, weight).

    The digit ``value // stride % extent`` of the value on the axis counts `weight` elements along the dimension.
    """
    dims = []
    for group in layout.dims(domain):
        weight, shards = 1, []
        for extent, stride, axis in reversed(group):
            shards.append((extent, stride, str(axis), weight))
            weight *= extent
        dims.append(tuple(reversed(shards)))
    return tuple(dims)


@lru_cache(maxsize=4096)
def register_table(layout: TileLayout, domain: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The coordinates in `domain` of each register of the thread with lane 0 and warp 0."""
    dims = dimension_shards(layout, domain)
    count = max((1 + sum((x - 1) * s for d in dims for x, s, axis, _ in d if axis == "reg")), 1)
    return tuple(tuple(sum((r // s) % x * w for x, s, axis, w in d if axis == "reg") for d in dims)
                 for r in range(count))
