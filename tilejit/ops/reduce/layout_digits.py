"""A tile's layout as digits in a mixed radix: reductions and scans use them to go through registers, lanes and warps.

Each shard of a dimension is a digit of the coordinate along it, held in some bits of the register number, lane or warp.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from ...layout import TileLayout
from ...types import Tile

LANES = 32


@dataclass(frozen=True, slots=True)
class Digit:
    """One shard of dimension `dim`. Its value is ``coordinate // weight % extent``, and ``x // stride % extent`` of
    the number x on `axis`.

    `axis` is "reg", "laneid" or "warpid".
    """

    axis: str
    extent: int
    stride: int
    dim: int
    weight: int


@lru_cache(maxsize=1024)
def digits(layout: TileLayout, domain: tuple[int, ...]) -> tuple[tuple[Digit, ...], ...]:
    """The digits of each dimension, most significant first. Those of extent 1 are left out."""
    dims = []
    for dim, shards in enumerate(layout.dims(domain)):
        weight, found = 1, []
        for extent, stride, axis in reversed(shards):
            if extent != 1:
                found.append(Digit(str(axis), extent, stride, dim, weight))
            weight *= extent
        dims.append(tuple(reversed(found)))
    return tuple(dims)


def register_count(layout: TileLayout, domain: tuple[int, ...]) -> int:
    """The number of registers per thread, one for each element that it holds."""
    return prod(d.extent for dim in digits(layout, domain) for d in dim if d.axis == "reg")


@lru_cache(maxsize=1024)
def register_coordinates(layout: TileLayout, domain: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The coordinates of each register of lane 0 of warp 0. Other threads add those of their lane and warp."""
    dims = digits(layout, domain)
    return tuple(tuple(sum(r // d.stride % d.extent * d.weight for d in dim if d.axis == "reg") for dim in dims)
                 for r in range(register_count(layout, domain)))


def is_crossable(t: Tile, axes: tuple[int, ...]) -> bool:
    """Whether butterfly shuffles (XOR of lane bits) reach all lanes along `axes`:
    extents and strides must be powers of two."""
    lanes = [d for a in axes for d in digits(t.layout, t.domain)[a] if d.axis == "laneid"]
    return all(n & n - 1 == 0 for d in lanes for n in (d.extent, d.stride))


def lane_masks(found: tuple[Digit, ...]) -> tuple[int, ...]:
    """The masks of the lane id's bits that make up these digits, least significant first."""
    return tuple(sorted(d.stride << bit for d in found if d.axis == "laneid"
                        for bit in range(d.extent.bit_length() - 1)))


def pad_to_domain(x: np.ndarray, shape: tuple[int, ...], domain: tuple[int, ...], fill) -> np.ndarray:
    """An array (B, *shape) padded to (B, *domain) with `fill`."""
    if shape == domain:
        return x
    return np.pad(x, [(0, 0), *((0, n - extent) for extent, n in zip(shape, domain))], constant_values=fill)


def test_inside(e, t: Tile, reg: int, axes: tuple[int, ...]):
    """Emit the test whether register `reg` is within the tile's shape along `axes`, not padding. None if it provably
    is in every thread."""
    tests = []
    at = register_coordinates(t.layout, t.domain)[reg]
    for d in axes:
        reach = sum((digit.extent - 1) * digit.weight for digit in digits(t.layout, t.domain)[d] if digit.axis != "reg")
        if at[d] + reach >= t.shape[d]:
            key = ("inside", t.layout, t.domain, t.shape, d, at[d], e.scope_key())
            tests.append(e.memoize_for_region(
                key, lambda: e.in_bounds(e.tiles.thread_coordinate(t, d) + at[d], t.shape[d])))
    return e.all_of(tests)
