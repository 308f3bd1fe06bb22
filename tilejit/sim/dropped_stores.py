"""Stores that are far out of bounds: what is dropped without a word elsewhere is a finding if nothing is left of it."""

from __future__ import annotations

import numpy as np

from ..errors import Loc
from .report import Finding
from .values import SimPoints, SimRegion

FAR = 16  # regions of the store's size; what a tile or a grid that is rounded up leaves over is nearer to the array


def far_from(shape: tuple[int, ...], region: SimRegion | SimPoints) -> tuple[int, int] | None:
    """(dimension, least index) where a store is far out of an array: beyond twice its extent and FAR times that of the
    store. None if it is near, or the array is empty."""
    if isinstance(region, SimRegion):
        places = [(int(np.min(s)), int(np.max(s)) + n - 1, n) for s, n in zip(region.starts, region.type.extents)]
    else:
        places = [(int(np.min(i)), int(np.max(i)), int(np.ptp(i)) + 1) for i in region.indices]
    if 0 in shape:
        return None
    for d, ((low, high, count), extent) in enumerate(zip(places, shape)):
        if low >= 2 * extent + FAR * count or high < -extent - FAR * count:
            return d, low
    return None


def dropped_store(name: str, shape: tuple[int, ...], region: SimRegion | SimPoints, loc: Loc | None,
                  ctas: np.ndarray) -> Finding | None:
    """The finding of a store all of which is out of bounds of the array `name`; None if it is near."""
    at = far_from(shape, region)
    if at is None:
        return None
    message = (f"all that is stored here is out of the bounds of {name}, from index {at[1]} of dimension {at[0]} on; "
               "writes out of bounds are dropped")
    return Finding("dropped-store", loc.line if loc else 0, message, loc, (), tuple(int(c) for c in ctas[:8]))
