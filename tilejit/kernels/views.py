"""Views of arrays of any library, made by that library, and new arrays of the same kind.

Views are transposed, or have leading dimensions folded into one. New arrays are for results and for a launch's
workspace.
"""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext
from functools import lru_cache

from ..errors import LaunchError
from ..runtime import driver, streams
from ..runtime.arrays import describe
from ..runtime.device_array import DeviceArray, empty
from ..runtime.element_types import numpy_dtype
from ..runtime.packed import Packed

HELD: dict = {}  # capture of a CUDA graph -> (the graph's life, what it reads and writes whenever it runs)


@lru_cache(maxsize=256)
def library(kind: type):
    """The module that makes arrays of a type, or of one that it is derived from.
    LaunchError for those of other libraries."""
    for base in kind.__mro__:
        name = base.__module__.partition(".")[0]
        if name in ("torch", "cupy", "numpy", "tilejit"):
            return sys.modules[name]
    raise LaunchError("matrix products make and transpose arrays of torch, CuPy, NumPy and tilejit, "
                      f"and {kind.__name__} is of none of them: pass numpy.asarray(x), "
                      "or on a GPU torch.from_dlpack(x) or cupy.from_dlpack(x)")


def transpose(x):
    """A view with the last two axes exchanged."""
    library(x.__class__)
    return x.T if len(x.shape) == 2 else swap_axes(x, -1, -2)


def swap_axes(x, first: int, second: int):
    """A view with two axes exchanged."""
    library(x.__class__)
    if not isinstance(x, DeviceArray):
        return x.swapaxes(first, second)
    order = list(range(x.ndim))
    order[first], order[second] = order[second], order[first]
    return x.transpose(order)


def fold_batches(x, name: str, writable: bool = False):
    """The array with all dimensions before the last two folded into one. If it is `writable` this has to be a view:
    LaunchError, with its `name`, if it would be a copy."""
    library(x.__class__)
    if len(x.shape) <= 3:
        return x
    made = x.reshape((math.prod(x.shape[:-2]), *x.shape[-2:]))
    if writable and describe(made).pointer != describe(x).pointer:
        raise LaunchError(f"the leading dimensions of {name} cannot be viewed as one dimension: "
                          "their strides do not fit")
    return made


def folded_row(x):
    """The array with all dimensions before the last folded into one."""
    library(x.__class__)
    return x if len(x.shape) == 1 else x.reshape((math.prod(x.shape[:-1]), x.shape[-1]))


def new_array(like, shape, dtype: str):
    """A new array of the same library as `like`, on the same device."""
    if isinstance(like, Packed):
        return new_array(like.data, shape, dtype)
    if isinstance(like, DeviceArray):
        return empty(shape, dtype, like.device)
    module = library(like.__class__)
    if hasattr(like, "new_empty"):
        return like.new_empty(shape, dtype=getattr(module, dtype))
    with like.device if module.__name__ == "cupy" else nullcontext():  # CuPy allocates on the current device
        return module.empty(shape, dtype=numpy_dtype(dtype))


def temporary(like, shape, dtype: str):
    """A `new_array` array for the launches of one call. Where a CUDA graph captures them it lives as long as the graph,
    which uses it whenever it runs; torch's allocator takes care of that by itself."""
    made = new_array(like, shape, dtype)
    if not hasattr(like, "new_empty"):
        hold_if_captured(made, describe(made))
    return made


def hold_if_captured(thing, view) -> bool:
    """Whether a CUDA graph captures the current stream of an array (its `view`). If so,
    `thing` lives as long as the graph."""
    for capture, (life, _) in list(HELD.items()):
        if life.has_ended:
            HELD.pop(capture, None)
    stream = 0 if view.device == "host" else streams.current_stream(view)
    capture = 0 if view.device == "host" else driver.capture_id(stream, view.device)
    if capture:
        if capture not in HELD:
            HELD[capture] = driver.GraphLife(stream, view.device), []
        HELD[capture][1].append(thing)
    return capture > 0


__all__ = ["fold_batches", "folded_row", "hold_if_captured", "new_array", "swap_axes", "temporary", "transpose"]
