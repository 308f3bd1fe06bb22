"""Where the registers of a thread stand in a tile."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def dimension_shards(layout, domain: tuple[int, ...]) -> tuple[tuple[tuple[int, int, str, int], ...], ...]:
    """For each dimension of `domain` its shards as (extent, stride, axis, weight): coordinate value / stride mod extent
    on the axis counts `weight` elements along the dimension."""
    dims = []
    for group in layout.dims(domain):
        weight, shards = 1, []
        for extent, stride, axis in reversed(group):
            shards.append((extent, stride, str(axis), weight))
            weight *= extent
        dims.append(tuple(reversed(shards)))
    return tuple(dims)


@lru_cache(maxsize=4096)
def register_table(layout, domain: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The coordinates of each register of the thread whose lane and warp are 0."""
    dims = dimension_shards(layout, domain)
    count = max((1 + sum((x - 1) * s for d in dims for x, s, axis, _ in d if axis == "reg")), 1)
    return tuple(tuple(sum((r // s) % x * w for x, s, axis, w in d if axis == "reg") for d in dims) for r in range(count))
