"""Simulated values, and how they are split and merged along the batch axis when CTAs diverge and reconverge."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from ..types import Barrier, BarrierRef, Buffer, Points, Region


def take(x: Any, rows: np.ndarray) -> Any:
    """`x` for the CTAs selected by `rows` (a mask or indices).
    An array with a leading extent of 1 is the same for all and is kept."""
    if isinstance(x, np.ndarray):
        return x if x.ndim == 0 or x.shape[0] == 1 else x[rows]
    if isinstance(x, (tuple, list)):
        return type(x)(take(item, rows) for item in x)
    return x.take_rows(rows) if hasattr(x, "take_rows") else x


def merge(parts: list, rows: list[np.ndarray], batch: int) -> Any:
    """The value of a batch in which the CTAs ``rows[i]`` have ``parts[i]``.
    The leading extent stays 1 if all parts agree."""
    first = parts[0]
    if all(p is first for p in parts):
        return first
    if isinstance(first, np.ndarray):
        return _merge_arrays(parts, rows, batch)
    if isinstance(first, (tuple, list)):
        return type(first)(merge([p[i] for p in parts], rows, batch) for i in range(len(first)))
    return type(first).merge_rows(parts, rows, batch) if hasattr(first, "merge_rows") else first


def _merge_arrays(parts: list[np.ndarray], rows: list[np.ndarray], batch: int) -> np.ndarray:
    first = parts[0]
    small = all(p.shape[0] == 1 and p.size <= 4096 for p in parts)
    if small and all(p.shape == first.shape and np.array_equal(p, first) for p in parts):
        return first
    shape = np.broadcast_shapes(*(p.shape[1:] for p in parts))
    result = np.empty((batch, *shape), first.dtype)
    for part, index in zip(parts, rows):
        result[index] = part
    return result


class Batched:
    """A frozen dataclass whose array fields have a leading batch axis."""

    def take_rows(self, rows: np.ndarray) -> Any:
        changed = {}
        own: Any = self  # a dataclass, as all subclasses are
        kind: Any = type(self)
        for name in _names(kind):
            old = getattr(self, name)
            new = take(old, rows)
            if new is not old and not _is_same(new, old):
                changed[name] = new
        return replace(own, **changed) if changed else self

    @classmethod
    def merge_rows(cls, parts: list, rows: list[np.ndarray], batch: int) -> Any:
        kind: Any = cls
        merged = {name: merge([getattr(p, name) for p in parts], rows, batch) for name in _names(kind)}
        return replace(parts[0], **merged)


@cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


def _is_same(new: Any, old: Any) -> bool:
    return isinstance(old, tuple) and all(a is b for a, b in zip(new, old))


@dataclass(frozen=True, eq=False)
class SimBuffer(Batched):
    """A buffer: `memory`, and the byte offset `base` of its first element there (an int, or (B, 1) ints).

    `strides` (in elements) are those of a global buffer. `peer` is the cluster rank (B or 1, 1) of the CTA whose shared
    memory this is, None for the CTA's own.
    """

    type: Buffer
    memory: Any
    base: int | np.ndarray
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    peer: np.ndarray | None = None
    lows: tuple | None = None    # for a window: the first element and the number of elements per dimension
    counts: tuple | None = None

    @property
    def array_strides(self) -> tuple[int, ...]:
        """The strides of a global buffer."""
        assert self.strides is not None
        return self.strides


@dataclass(frozen=True, eq=False)
class SimRegion(Batched):
    """A region: one start per dimension of `buffer`, (B or 1, T or 1) each."""

    type: Region
    buffer: SimBuffer
    starts: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class SimPoints(Batched):
    """Points: one index per dimension of `buffer`, (B or 1, T or 1) or (B or 1, *shape) each."""

    type: Points
    buffer: SimBuffer
    indices: tuple[np.ndarray, ...]


def coordinates_of(region: SimRegion | SimPoints | None) -> tuple[np.ndarray, ...]:
    """The coordinates of the elements of a region or of points, one array per dimension of the buffer."""
    assert region is not None  # required where there are no coordinates
    if isinstance(region, SimPoints):
        rank = len(region.type.shape)
        return tuple(i if i.ndim == rank + 1 or not rank else i[:, :1].reshape(-1, *(1,) * rank)
                     for i in region.indices)
    t = region.type
    assert isinstance(t, Region)
    rank = len(t.shape)
    if not t.kept:
        return tuple(s.astype(np.int64) for s in region.starts)
    coords = []
    for d, start in enumerate(region.starts):
        start = start[:, 0].astype(np.int64).reshape(-1, *(1,) * rank)
        if d in t.kept:
            axis = t.kept.index(d)
            start = start + np.arange(t.extents[d]).reshape(1, *(t.extents[d] if k == axis else 1 for k in range(rank)))
        coords.append(start)
    return tuple(coords)


@dataclass(frozen=True, eq=False)
class SimBarrier(Batched):
    """One or several mbarriers: `first` is the number of the first one in its CTA, `index` (B or 1, 1) selects one of
    them, and `peer` is the cluster rank (B or 1, 1) of their CTA, None for the CTA's own."""

    type: Barrier | BarrierRef | None  # None for one that a kernel makes in its own memory
    first: int
    index: np.ndarray | None = None
    peer: np.ndarray | None = None
    lows: tuple | None = None    # for a window: the first element and the number of elements per dimension
    counts: tuple | None = None

    def select(self, index: np.ndarray) -> SimBarrier:
        """The barrier at `index`."""
        return replace(self, index=index)

    def of_peer(self, rank: np.ndarray) -> SimBarrier:
        """The same barrier of another CTA of the cluster."""
        return replace(self, peer=rank)


@dataclass(frozen=True, eq=False)
class SimTensorMap(Batched):
    """A tensor map, with the fields that ``cuTensorMapEncodeTiled`` takes, innermost dimension first.

    It points to byte `base` of `memory`. Base, dimensions and strides (in bytes, rank - 1 of them) are ints, or (B or
    1, 1) arrays after a rebind. `dtype` is the encoder's name of the element type.
    """

    memory: Any
    base: int | np.ndarray
    dtype: str
    global_dim: tuple
    global_strides: tuple
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int = 0
    swizzle: int = 0
    l2_promotion: int = 0
    oob_fill: int = 0
    im2col: Any = None  # corners, channels and pixels: a `copy_async.tma.boxes.Im2col`

    @property
    def rank(self) -> int:
        return len(self.global_dim)
