"""Global memory in which CTAs leave each other their sums: room for these, and flags."""

from __future__ import annotations

import numpy as np

from ...runtime import driver, streams
from ...runtime.arrays import describe
from ..views import temporary

CTAS, CONSUMERS = 1024, 3  # the most for which there are flags
FLAGS: dict = {}           # (type of array, device, stream, whether it is being captured) -> (the capture, its flags)


def workspace(like, shape: tuple[int, ...], dtype: str):
    """Room for partial sums, and flags that are 0, for a launch on the current stream of `like`.

    A launch leaves the flags at 0, so launches on one stream, which run one after the other, share them. Launches
    that a CUDA graph captures have their own, which the graph zeroes before the first of them, since a graph may run
    on any stream."""
    view, partial = describe(like), temporary(like, shape, dtype)
    if view.device == "host":
        return partial, np.zeros((CTAS, CONSUMERS), np.int64)
    handle = streams.current_stream(view)
    captured = driver.capturing(handle, view.ordinal)
    place = type(like), view.device, handle, captured > 0
    capture, flags = FLAGS.get(place, (None, None))
    if capture != captured:
        flags = temporary(like, (CTAS, CONSUMERS), "int64")
        driver.fill(describe(flags).pointer, 0, 8 * CTAS * CONSUMERS, view.ordinal, handle)
        FLAGS[place] = captured, flags
    return partial, flags


__all__ = ["CTAS", "workspace"]
