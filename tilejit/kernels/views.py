"""Views of any library's arrays, made by that library: transposed, with leading dimensions folded, and new ones like them."""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext

from ..errors import LaunchError
from ..runtime.arrays import describe
from ..runtime.device_array import DeviceArray, empty
from ..runtime.element_types import numpy_dtype
from ..runtime.packed import Packed


def turned(x):
    """The view with its last two axes exchanged."""
    if len(x.shape) == 2:
        return x.T
    if isinstance(x, DeviceArray):
        swap = lambda t: (*t[:-2], t[-1], t[-2])
        return DeviceArray(x.pointer, swap(x.shape), swap(x.strides), x.dtype, x.device, x._memory)
    return x.swapaxes(-1, -2)


def folded(x, name: str, writable: bool = False):
    """The array with all dimensions before the last two as one: a view of it, if it is to be written."""
    if len(x.shape) <= 3:
        return x
    made = x.reshape((math.prod(x.shape[:-2]), *x.shape[-2:]))
    if writable and describe(made).pointer != describe(x).pointer:
        raise LaunchError(f"the leading dimensions of {name} cannot be viewed as one dimension: their strides do not fit")
    return made


def folded_row(x):
    """Rows of an array with all dimensions before the last as one."""
    return x if len(x.shape) == 1 else x.reshape((math.prod(x.shape[:-1]), x.shape[-1]))


def new(like, shape, dtype: str):
    """A new array of the same kind, on the same device."""
    if isinstance(like, Packed):
        return new(like.data, shape, dtype)
    if isinstance(like, DeviceArray):
        return empty(shape, dtype, like.device)
    library = sys.modules[type(like).__module__.partition(".")[0]]
    if hasattr(like, "new_empty"):
        return like.new_empty(shape, dtype=getattr(library, dtype))
    with like.device if library.__name__ == "cupy" else nullcontext():  # CuPy allocates on the current device
        return library.empty(shape, dtype=numpy_dtype(dtype))


__all__ = ["folded", "folded_row", "new", "turned"]
