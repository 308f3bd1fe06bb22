"""Workspace in global memory: partial sums that CTAs pass to each other, and flags."""

from __future__ import annotations

import math

import numpy as np

from ...runtime import driver, streams
from ...runtime.arrays import describe
from ..views import temporary

CTAS, CONSUMERS = 1024, 3  # the most for which there are flags
# (type of array, device, stream, whether it is being captured, shape, dtype) -> (the capture, its memory)
ZEROS: dict = {}


def workspace(like, shape: tuple[int, ...], dtype: str):
    """Room for partial sums, and flags that are 0, for a launch on the current stream of `like`."""
    return temporary(like, shape, dtype), zeros(like, (CTAS, CONSUMERS), "int64")


def zeros(like, shape: tuple[int, ...], dtype: str):
    """Memory that is 0, for a launch on the current stream of `like`, which leaves it at 0.

    So launches on one stream, which run one after the other, share it. Launches that a CUDA graph captures have
    their own, which the graph zeroes before the first of them, since a graph may run on any stream."""
    view = describe(like)
    if view.device == "host":
        return np.zeros(shape, dtype)
    handle = streams.current_stream(view)
    captured = driver.capture_id(handle, view.ordinal)
    place = type(like), view.device, handle, captured > 0, shape, dtype
    capture, made = ZEROS.get(place, (None, None))
    if capture != captured:
        made = temporary(like, shape, dtype)
        driver.fill(describe(made).pointer, 0, math.prod(shape) * np.dtype(dtype).itemsize, view.ordinal, handle)
        ZEROS[place] = captured, made
    return made


__all__ = ["CTAS", "workspace", "zeros"]
