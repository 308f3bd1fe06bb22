"""Partition of a copy into vectors, one for each thread and step. Used by ldgsts and the synchronous copy.

The global side determines the partition (the source, if both are global): vectors run along its contiguous dimension,
and consecutive threads move consecutive vectors, so that the accesses of a warp are coalesced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from ...errors import CompilationError
from ...ir.graph import Const
from ...layout import TileLayout, axis


@dataclass(frozen=True)
class Partition:
    """`threads` threads take `outer` steps, and move `vec` elements in each. In step f,
    thread t moves vector ``f * threads + t``.

    `shape` holds the region's extents in vectors, outermost first and the vectorised dimension last; extents of 1 are
    left out. `order` holds the corresponding dimensions of the region. `ragged` means that the last step has fewer
    vectors than threads. `src_checked` and `dst_checked` are the dimensions of global buffers whose bounds are
    tested.
    """

    vec_bytes: int
    vec: int
    outer: int
    threads: int
    order: tuple[int, ...]
    shape: tuple[int, ...]
    ragged: bool
    src_checked: tuple[int, ...]
    dst_checked: tuple[int, ...]

    @property
    def vectors(self) -> int:
        return prod(self.shape)

    @property
    def instructions(self) -> int:
        """Vectors that each participating thread moves."""
        return self.outer

    @property
    def carry_free(self) -> bool:
        """Whether each step adds the same coordinates to those of every thread (no digit carries)."""
        span = self.threads
        for n in reversed(self.shape[1:]):
            if span % n and n % span:
                return False
            span = max(span // n, 1)
        return True

    def coordinates(self, thread, first) -> list:
        """Element coordinates of vector ``first + thread``, in the region's order of dimensions.

        `thread` is below `threads`, and `first` a multiple of `threads`. As long as no digit carries, the
        contributions of `thread` and `first` are computed separately. Works on ints, NumPy arrays and emitted values.
        """
        at = [0] * len(self.order)
        span: int | None = self.threads
        for position in reversed(range(1, len(self.shape))):
            n, d = self.shape[position], self.order[position]
            if span is not None and span % n == 0:
                at[d], thread, first, span = thread % n, thread // n, first // n, span // n
            elif span is not None and n % span == 0:
                at[d], thread, first, span = thread + first % n, 0, first // n, 1
            else:
                vector = thread + first
                at[d], thread, first, span = vector % n, vector // n, 0, None
        if self.order:
            at[self.order[0]] = thread + first
            at[self.order[-1]] = at[self.order[-1]] * self.vec
        return at

    def takes_part(self, thread, first: int):
        """Whether vector ``first + thread`` exists."""
        return thread + first < self.vectors

    def owners(self, shape: tuple[int, ...]) -> np.ndarray:
        """The thread that moves each element of the region, in the region's order of dimensions."""
        return self._numbers(shape) % self.threads

    def steps(self, shape: tuple[int, ...]) -> np.ndarray:
        """The step in which each element of the region is moved."""
        return self._numbers(shape) // self.threads

    def _numbers(self, shape: tuple[int, ...]) -> np.ndarray:
        vector = np.arange(self.vectors).reshape(self.shape)
        spread = np.repeat(vector, self.vec, axis=-1) if self.shape else vector
        return np.transpose(spread, np.argsort(self.order)).reshape(shape) if self.order else spread.reshape(shape)


def make_partition(site, widths: Sequence[int], even: bool = False) -> Partition | None:
    """The partition of a copy site with the widest vectors of `widths` (bytes, widest first) that fit; None if none do.

    With `even`, narrower vectors are tried until no thread idles in the last step; of these partitions, it is the one
    with the fewest steps, and among equals one in which no thread idles.
    """
    order = driving_order(site)
    made = []
    for nbytes in widths:
        vec = nbytes // site.itemsize
        if vec * site.itemsize != nbytes or vec == 0:
            continue
        if vec == 1 or fits(site, order[-1] if order else None, vec):
            made.append(_partition(site, order, vec))
            if not (even and made[-1].ragged):
                break
    return min(made, key=lambda p: (p.outer, p.ragged)) if made else None


def _partition(site, order: tuple[int, ...], vec: int) -> Partition:
    shape = tuple(site.shape[i] for i in order)
    if shape:
        shape = shape[:-1] + (shape[-1] // vec,)
    vectors, threads = site.elements // vec, site.threads
    return Partition(vec * site.itemsize, vec, -(-vectors // threads), threads, order, shape, vectors % threads != 0,
                     unbounded_dimensions(site.src, site.src_starts), unbounded_dimensions(site.dst, site.dst_starts))


def driving_order(site) -> tuple[int, ...]:
    """The region's dimensions from slowest to fastest in the memory that determines the partition.

    Sorted by stride, if all strides are constants; the contiguous dimension is always last.
    """
    region = site.array
    dims = site.dims(region)
    in_array = region.scope == "global"
    strides = [region.buffer.strides[d] for d in dims] if in_array else _innermost_strides(region, dims)
    order = list(range(len(dims)))
    if all(isinstance(s, int) for s in strides):
        order.sort(key=lambda k: -abs(strides[k]))
    unit = [k for k in order if isinstance(strides[k], int) and strides[k] == 1]
    return tuple([k for k in order if k not in unit[-1:]] + unit[-1:])


def _innermost_strides(region, dims) -> list[int]:
    """For each dimension of a region in shared memory, the offset from its first element to the next, in elements."""
    layout, shape = region.buffer.layout.without_swizzle(), region.buffer.shape
    return [layout.offset_of(*(int(k == d) for k in range(len(shape))), shape=shape)
            - layout.offset_of(*(0 for _ in shape), shape=shape) for d in dims]


def unbounded_dimensions(region, starts) -> tuple[int, ...]:
    """The dimensions along which a global region is not known to lie inside its buffer."""
    if region.scope != "global":
        return ()
    narrowed = region.buffer.narrowed or (0,) * len(starts)
    return tuple(d for d, (size, start) in enumerate(zip(region.buffer.shape, starts))
                 if narrowed[d] or not (isinstance(size, int) and isinstance(start, Const)
                                        and 0 <= start.value <= size - region.extents[d]))


def fits(site, k: int | None, vec: int) -> bool:
    """Whether vectors of `vec` elements along dimension `k` are, on both sides, contiguous, aligned, and either
    wholly in bounds or wholly out of bounds."""
    if k is None or site.shape[k] % vec:
        return False
    return all(region_fits(site, region, site.starts(region), site.dims(region)[k], vec)
               for region in (site.src, site.dst))


def region_fits(site, region, starts, d: int, vec: int) -> bool:
    """`fits` for one side's region at `starts`, along dimension `d` of its buffer."""
    g, buffer = site.g, region.buffer
    beside = region.scope != "global" or isinstance(buffer.strides[d], int) and buffer.strides[d] == 1
    if not beside or g.asked_divisor(starts[d], vec) % vec:
        return False
    if region.scope != "global":
        return shared_runs(buffer.layout, buffer.shape, d, vec)
    if buffer.narrowed is not None and buffer.narrowed[d] % vec:
        return False
    def is_multiple(kind, n):
        return n % vec == 0 if isinstance(n, int) else g.facts.ask(kind, n.arg, n.dim, vec)
    return (g.facts.ask("aligned", buffer.arg, vec * site.itemsize)
            and all(is_multiple("stride_multiple", n) for i, n in enumerate(buffer.strides) if i != d)
            and (d not in unbounded_dimensions(region, starts) or is_multiple("size_multiple", buffer.shape[d])))


@lru_cache(maxsize=4096)
def shared_runs(layout: TileLayout, shape: tuple[int, ...], d: int, vec: int) -> bool:
    """Whether a layout maps every aligned run of `vec` elements along dimension `d` to consecutive,
    aligned addresses."""
    if layout.swizzle is not None and layout.swizzle.chunk % vec:
        return False
    try:
        grouped, at = layout.group(shape)
    except CompilationError:  # shards of the layout straddle dimensions; such layouts are not vectorised
        return False
    runs = [s for s in grouped.shards[at[d]:at[d + 1]] if s[0] != 1]
    if not runs or runs[-1][1] != 1 or runs[-1][0] % vec:
        return False
    rest = [s[1] for i, s in enumerate(grouped.shards) if s[0] != 1 and s is not runs[-1]]
    return all(stride % vec == 0 for stride in rest) and layout.offset.get(axis.m, 0) % vec == 0


# -- emission ----------------------------------------------------------------------------------------------------------

class Side:
    """Emits the addresses and bounds tests of the vectors of one side of a copy.

    The part of the address that depends on the thread is computed once (for arrays in 64 bits). What a step adds to
    it is a constant offset in shared memory, wherever the layout allows, and constant multiples of the strides in an
    array.
    """

    def __init__(self, e, plan: Partition, region, bounds: tuple[int, ...], thread):
        self.e, self.plan, self.region, self.bounds, self.thread = e, plan, region, bounds, thread
        buffer = region.buffer
        self.space, self.nbytes = buffer.type.scope, buffer.type.dtype.nbytes
        self.own = self._buffer_coordinates(plan.coordinates(thread, 0))
        if self.space == "global":
            offset = e.sum64(e.mul64(start, stride) for start, stride in zip(region.starts, buffer.strides))
            self.base = e.offset_pointer(buffer.pointer, offset, self.nbytes)
            self.first = e.offset_pointer(self.base, self._elements(self.own), self.nbytes)
        else:
            starts = tuple(s if isinstance(s, int) else None for s in region.starts)
            self.steps = constant_steps(plan, buffer.type.layout, buffer.type.shape, starts, region.type.extents)
            self.first = e.shared_address(buffer, [s + c for s, c in zip(region.starts, self.own)])

    def place(self, first):
        """(address, constant byte offset, predicate or None) of vector ``first + thread``. The predicate is true
        where it is in bounds."""
        e, region, plan = self.e, self.region, self.plan
        apart = isinstance(first, int) and plan.carry_free
        if apart:
            added = self._buffer_coordinates(plan.coordinates(0, first))
            inner = [c + a for c, a in zip(self.own, added)]
        else:
            inner = self._buffer_coordinates(plan.coordinates(self.thread, first))
        coordinates = [start + c for start, c in zip(region.starts, inner)]
        inside = e.all_of([e.inside(region.buffer, d, coordinates[d]) for d in self.bounds])
        if self.space == "global":
            if not apart:
                return e.offset_pointer(self.base, self._elements(inner), self.nbytes), 0, inside
            moved = e.sum64(e.mul64(a, stride) for a, stride in zip(added, region.buffer.strides) if a != 0)
            return e.offset_pointer(self.first, moved, self.nbytes), 0, inside
        if apart and first // plan.threads in self.steps:
            address, offset = self.first
            return address, offset + self.steps[first // plan.threads] * self.nbytes, inside
        return *e.shared_address(region.buffer, coordinates), inside

    def _buffer_coordinates(self, at: list) -> list:
        """Coordinates of the region (without extents of 1) as one for each dimension of the buffer."""
        own = iter(at)
        return [next(own) if n != 1 else 0 for n in self.region.type.extents]

    def _elements(self, inner: list):
        offset = 0
        for c, stride in zip(inner, self.region.buffer.strides):
            if not (isinstance(c, int) and c == 0):
                offset = offset + c * stride
        return offset


@lru_cache(maxsize=1024)
def constant_steps(plan: Partition, layout: TileLayout, shape: tuple[int, ...], starts: tuple,
                   extents: tuple[int, ...]) -> dict[int, int]:
    """The steps in which the offset in a layout is the same distance from step 0 in all threads: {step:
    distance in elements}.

    `starts` are those of the region, None where they are run-time values. A run-time start is possible only along a
    dimension where the region's extent is 1 and all strides are multiples of the swizzle's period.
    """
    if not plan.carry_free or plan.outer > 64:
        return {}
    try:
        grouped, at = layout.group(shape)
    except CompilationError:
        return {}
    period = layout.swizzle.period if layout.swizzle is not None else 1
    for d, start in enumerate(starts):
        if start is None and (extents[d] != 1 or any(s[1] % period for s in grouped.shards[at[d]:at[d + 1]])):
            return {}
    thread = np.arange(plan.threads)

    def offsets(first: int) -> np.ndarray:
        own = iter(plan.coordinates(thread, first))
        inner = [next(own) if n != 1 else 0 for n in extents]
        return np.asarray(layout.offset_of(*((s or 0) + c for s, c in zip(starts, inner)), shape=shape)) + 0 * thread

    origin, steps = offsets(0), {}
    for step in range(plan.outer):
        active = plan.takes_part(thread, step * plan.threads)
        moved = (offsets(step * plan.threads) - origin)[active]
        if (moved == moved[0]).all():
            steps[step] = int(moved[0])
    return steps
