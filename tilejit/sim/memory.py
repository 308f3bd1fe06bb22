"""The simulated memories: launch arguments, and the shared and tensor memory of each CTA.

Also how regions of an array become strided views.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from ..errors import LaunchError

if TYPE_CHECKING:
    from .global_races import GlobalShadow


def strided_view(x: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...], writeable: bool = True) -> np.ndarray:
    """NumPy's `as_strided`, which does not support float8_e5m2."""
    if x.dtype.kind == "f" and x.itemsize == 1:
        return strided_view(x.view(np.uint8), shape, strides, writeable).view(x.dtype)
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=writeable)


class GlobalMemory:
    """A launch argument that is an array. `flat` holds all elements between its lowest and highest address; element
    (0, ..., 0) is at index `origin` of `flat`. `strides` are in elements."""

    scope = "global"

    def __init__(self, array: np.ndarray, name: str, number: int):
        itemsize = array.dtype.itemsize
        if any(s % itemsize for s in array.strides):
            raise LaunchError(f"argument {name} has strides {array.strides} that are no multiples of its "
                              f"{itemsize}-byte elements")
        self.array, self.name, self.number = array, name, number
        self.itemsize = itemsize
        self.shape = array.shape
        self.strides = tuple(s // itemsize for s in array.strides)
        spans = [(n - 1) * s for n, s in zip(self.shape, self.strides)] if array.size else []
        low, high = sum(min(s, 0) for s in spans), sum(max(s, 0) for s in spans)
        start = array
        for d, s in enumerate(self.strides):
            if s < 0:
                start = np.flip(start, d)
        size = high - low + 1 if array.size else 0
        self.flat = strided_view(start, (size,), (itemsize,), writeable=array.flags.writeable)
        self.bytes = self.flat.view(np.uint8)
        self.origin = -low
        self.address = self.flat.__array_interface__["data"][0]
        self.maybe_written = False
        self.polled = True    # whether threads read it by atomics and ordered loads
        self.ordered = True   # whether they acquire or release there
        self.touched = 0    # how many accesses calls may make to it; a call that may repeat its access counts as 2
        self.shadow: GlobalShadow  # while checks are on

    @staticmethod
    def box(flat: np.ndarray, offset: int, extents: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
        """A strided view into `flat` (the elements, or a shadow of them), whose first element is at index `offset`.
        `as_strided` takes ten times as long, and a launch makes a hundred thousand such views."""
        return np.ndarray(extents, flat.dtype, flat, offset * flat.itemsize, tuple(s * flat.itemsize for s in strides))

    def as_elements(self, dtype: np.dtype, phase: int) -> GlobalMemory:
        """The same memory as elements of another dtype, from byte `phase` on."""
        made, count = copy(self), (self.bytes.size - phase) // dtype.itemsize
        made.bytes = self.bytes[phase:phase + count * dtype.itemsize]
        made.array = made.flat = made.bytes.view(dtype)
        made.itemsize, made.address, made.origin = dtype.itemsize, self.address + phase, 0
        made.shape, made.strides = (count,), (1,)
        return made

    def elements(self, dtype: np.dtype) -> np.ndarray:
        """`flat`, viewed as another dtype of the same size."""
        return self.flat if dtype == self.flat.dtype else self.bytes.view(dtype)


class PerCta:
    """`nbytes` bytes for each CTA of a chunk, (CTAs, bytes), rounded up to a multiple of 128."""

    def __init__(self, ctas: int, nbytes: int, scope: str, fill: int = 0):
        self.scope = scope
        self.nbytes = -(-nbytes // 128) * 128
        self.data = np.empty((ctas, self.nbytes), np.uint8)
        self.data.fill(fill)

    def view(self, dtype: np.dtype) -> np.ndarray:
        """The bytes viewed as elements, (CTAs, elements)."""
        return self.data.view(dtype)


# The byte that memory holds before it is written: all ones is a NaN in the float types and -1 in the signed integers.
GARBAGE = 0xFF


class SharedMemory(PerCta):
    """The shared memory of each CTA of a chunk. Address 0 is aligned to 1024 bytes, as in hardware."""

    def __init__(self, ctas: int, nbytes: int):
        super().__init__(ctas, nbytes, "shared", GARBAGE)


class TensorMemory(PerCta):
    """Tensor memory: 128 lanes of 512 columns of 4 bytes, stored lane by lane."""

    LANES, COLUMNS = 128, 512

    def __init__(self, ctas: int):
        super().__init__(ctas, self.LANES * self.COLUMNS * 4, "tmem", GARBAGE)


def boxes(starts: list[np.ndarray], extents: tuple[int, ...], shape: tuple[int, ...], strides: tuple[int, ...],
          base: np.ndarray | int) -> Iterator[tuple] | None:
    """Decompose a region of a global buffer, with one start (B or 1,) per dimension, into strided boxes.

    Yields (rows, clip, offset, extents, strides). For the CTAs `rows` (a slice of the batch), the part `clip` of the
    region (a slice per dimension) is the view with these extents and strides, which include a leading batch axis,
    from element `offset` on. Parts that are out of bounds are left out. Returns None where access element by element
    is faster: for small boxes, irregularly spaced over many CTAs.
    """
    batch = max([len(s) for s in starts] + [np.size(base)])
    clip, low = [], []
    inside = np.ones(batch, bool)
    for s, n, size in zip(starts, extents, shape):
        if len(s) == 1:
            start = int(s[0])
            first, last = min(max(0, -start), n), min(n, size - start)
            clip.append(slice(first, max(last, first)))
            low.append(s + first)
        else:
            inside &= (s >= 0) & (s <= size - n)
            clip.append(slice(0, n))
            low.append(s)
    if any(c.stop <= c.start for c in clip):
        return iter(())
    inner = tuple(c.stop - c.start for c in clip)
    offsets = np.broadcast_to(sum(s * k for s, k in zip(low, strides)) + base, (batch,))
    if inside.all():
        steps = np.diff(offsets)
        if batch == 1 or (steps == steps[0]).all():
            step = int(steps[0]) if batch > 1 else 0
            return iter([(slice(0, batch), tuple(clip), int(offsets[0]), (batch, *inner), (step, *strides))])
        runs = _runs(offsets)
    else:
        runs = None
    size = int(np.prod(inner))
    if size < 64 and batch > 16:
        return None
    return _row_boxes(inside, runs, offsets, clip, inner, starts, extents, shape, strides)


def _runs(offsets: np.ndarray) -> list[tuple[int, int, int]]:
    """Decompose offsets into arithmetic progressions: (first index, one past the last, step)."""
    steps = np.diff(offsets)
    changes = np.flatnonzero(np.diff(steps))
    runs, at, n = [], 0, len(offsets)
    while at < n:
        k = int(np.searchsorted(changes, at))
        stop = int(changes[k]) + 2 if k < len(changes) else n
        runs.append((at, stop, int(steps[at]) if stop - at > 1 else 0))
        at = stop
    return runs


def _row_boxes(inside, runs, offsets, clip, inner, starts, extents, shape, strides):
    """One box for each of `runs`; or, where the bounds clip some CTAs (`runs` is None), one for each CTA."""
    if runs is not None:
        for first, stop, step in runs:
            yield slice(first, stop), tuple(clip), int(offsets[first]), (stop - first, *inner), (step, *strides)
        return
    for b in range(len(offsets)):
        own, offset, cut = list(clip), int(offsets[b]), inner
        if not inside[b]:
            for d, (s, n, size) in enumerate(zip(starts, extents, shape)):
                if len(s) > 1:
                    start = int(s[b])
                    first, last = max(0, -start), min(n, size - start)
                    own[d] = slice(first, max(first, last))
                    offset += first * strides[d]
            cut = tuple(c.stop - c.start for c in own)
            if min(cut, default=1) <= 0:
                continue
        yield slice(b, b + 1), tuple(own), offset, (1, *cut), (0, *strides)
