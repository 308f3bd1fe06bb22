"""Layouts as maps: inversion and composition."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from ..errors import CompilationError
from .axes import Axis, axis, row_major_strides
from .shards import Shard, Shards, fuse

if TYPE_CHECKING:
    from .algebra import TileLayout


def inverse(layout: TileLayout, axes: tuple[Axis, ...]) -> TileLayout:
    """See `TileLayout.inverse`."""
    _need_ints(layout)
    if layout.offsets or layout.swizzle:
        raise CompilationError(f"{layout} has an offset or a swizzle: invert it without_offset() and "
                               "without_swizzle(); a swizzle is its own inverse")
    if missing := [str(name) for name in layout.axes if name not in axes]:
        raise CompilationError(f"the inverse of {layout} needs axis {', '.join(missing)} too")
    # Steps along replicas stay at the same element: they have weight 0 in the logical index.
    entries = [(*s, weight) for s, weight in zip(layout.shards, row_major_strides(layout.extents))]
    entries += [(*s, 0) for s in layout.replicas]
    inverted = []
    for name in axes:
        steps = sorted((e for e in entries if e[2] == name and e[0] != 1), key=lambda e: e[1])
        for i, (_, stride, _, _) in enumerate(steps):
            if stride != (needed := prod(e[0] for e in steps[:i])):
                raise CompilationError(
                    f"{layout} has no inverse: axis {name} needs a stride of {needed}, found {stride}")
        inverted += [(extent, weight, axis.m) for extent, _, _, weight in reversed(steps)]
    return layout._replace(shards=inverted, replicas=())


def compose(outer: TileLayout, inner: TileLayout) -> TileLayout:
    """See `TileLayout.compose`: the layout x -> outer(inner(x))."""
    if inner.swizzle or any(name != "m" for name in inner.axes):
        raise CompilationError(f"a layout is composed with a plain one on axis m, found {inner}")
    _need_ints(outer)
    _need_ints(inner)
    walked = fuse(outer.shards)
    # Digits add without carries as long as the largest value of each is below its extent.
    lowest = _digits(walked, inner.offset.get(axis.m, 0))
    highest = list(lowest)
    shards = _walk(walked, inner.shards, highest, outer, inner)
    replicas = _walk(walked, inner.replicas, highest, outer, inner)
    if any(top >= extent for top, (extent, _, _) in zip(highest, walked)):
        raise CompilationError(f"{inner} carries from one shard of {outer} into the next, or leaves it")
    offset = outer.offset
    for digit, (_, stride, along) in zip(lowest, walked):
        offset[along] = offset.get(along, 0) + digit * stride
    return outer._replace(shards, (*replicas, *outer.replicas), offset)


def _need_ints(layout: TileLayout) -> None:
    numbers = [n for s in layout.shards + layout.replicas for n in s[:2]] + [value for _, value in layout.offsets]
    if not all(isinstance(n, int) for n in numbers):
        raise CompilationError(f"inverting and composing needs known extents, strides and offsets, found {layout}")


def _walk(walked: Shards, by: Shards, highest: list[int], outer: TileLayout, inner: TileLayout) -> list[Shard]:
    """The shards `by` as steps through the shards `walked`.

    Adds the largest digit that they reach in each of these to `highest`.
    """
    result: list[Shard] = []
    for extent, stride, _ in by:
        if stride == 0 or extent == 1:
            result.append((extent, 0, walked[-1][2] if walked else axis.m))
            continue
        steps = _steps(walked, extent, stride) if stride > 0 else None
        if steps is None:
            raise CompilationError(f"the step {extent}:{stride} of {inner} does not divide the extents of {outer}")
        for position, count, step in steps:
            highest[position] += (count - 1) * step
        result += [(count, step * walked[at][1], walked[at][2]) for at, count, step in reversed(steps)]
    return result


def _digits(shards: Shards, index: int) -> list[int]:
    digits = [0] * len(shards)
    for position in reversed(range(len(shards))):
        size = shards[position][0]
        digits[position], index = (index % size, index // size) if position else (index, 0)
    return digits


def _steps(shards: Shards, extent: int, stride: int) -> list[tuple[int, int, int]] | None:
    """`extent` steps of `stride` through the index space of `shards`.

    Returns pieces (position of the shard, extent, stride in digits of that shard), innermost first; None if
    the steps are not whole digits.
    """
    pieces: list[tuple[int, int, int]] = []
    for position in reversed(range(len(shards))):
        size = shards[position][0]
        if extent == 1:
            break
        if stride % size == 0:
            stride //= size
            continue
        if (extent - 1) * stride < size:
            return [*pieces, (position, extent, stride)]
        if size % stride:
            return None
        available = size // stride
        if extent % available:
            return None
        if available > 1:
            pieces.append((position, available, stride))
        extent, stride = extent // available, 1
    return pieces if extent == 1 else None
