"""Functions on shards, the (extent, stride, axis) triples of a layout, outermost first.

They do not raise. If an operation has no result they return None, and the calling layout reports why.
Extents and strides are ints; where a docstring says so, they may be symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from .axes import Axis

Divides = Callable[[Any, int], bool]  # whether a symbolic value is known to be a multiple of a number

Shard = tuple[Any, Any, Axis]  # (extent, stride, axis)
Shards = tuple[Shard, ...]


def is_same(a: Any, b: Any) -> bool:
    """Whether two extents or strides are known to be equal. Comparing symbols with ``==`` must give a bool."""
    if a is b:
        return True
    equal = a == b
    return equal if isinstance(equal, bool) else False


def known_multiple(value: Any, n: int, divides: Divides | None = None) -> bool:
    """Whether `value` is known to be a multiple of `n`; `divides(value, n)` decides for symbolic values."""
    if n == 1:
        return True
    if isinstance(value, int):
        return value % n == 0
    return divides is not None and bool(divides(value, n))


def fuse(shards: Shards) -> Shards:
    """Drop unit shards, and merge adjacent shards where the outer continues the inner; if all are units,
    one is kept."""
    fused: list[Shard] = []
    for extent, stride, along in shards:
        if isinstance(extent, int) and extent == 1:
            continue
        if fused and fused[-1][2] == along and isinstance(extent, int) and isinstance(fused[-1][0], int):
            outer_extent, outer_stride, _ = fused[-1]
            if is_same(stride * extent, outer_stride):
                fused[-1] = (outer_extent * extent, stride, along)
                continue
        fused.append((extent, stride, along))
    return tuple(fused) if fused else tuple(shards[-1:])


def group(shards: Shards, shape: tuple[Any, ...]) -> tuple[Shards, tuple[int, ...]] | None:
    """Split shards such that each entry of `shape` is a run of whole shards: (shards, separators), or None.

    Symbolic extents are not split, and match only equal entries. An entry of 1 takes a unit shard, or none.
    """
    rest = list(reversed(shards))
    grouped: list[Shard] = []
    separators = [0]
    for need in shape:
        if isinstance(need, int) and need == 1:
            if rest and is_same(rest[-1][0], 1):
                grouped.append(rest.pop())
            separators.append(len(grouped))
            continue
        while not (isinstance(need, int) and need == 1):
            if not rest:
                return None
            extent, stride, along = rest.pop()
            if is_same(extent, need):
                grouped.append((extent, stride, along))
                need = 1
            elif not isinstance(extent, int) or not isinstance(need, int):
                return None
            elif need % extent == 0:
                grouped.append((extent, stride, along))
                need //= extent
            elif extent % need == 0:
                inner = extent // need
                grouped.append((need, stride * inner, along))
                rest.append((inner, stride, along))
                need = 1
            else:
                return None
        separators.append(len(grouped))
    if any(not is_same(extent, 1) for extent, _, _ in rest):
        return None
    if rest and len(separators) > 1:
        grouped.extend(reversed(rest))
        separators[-1] = len(grouped)
    return tuple(grouped), tuple(separators)


def refine(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...] | None:
    """The coarsest common refinement of `shapes`, or None if their boundaries do not divide one another."""
    cuts = {1}
    for shape in shapes:
        cuts.update(prod(shape[i:]) for i in range(len(shape)))
    ordered = sorted(cuts)
    if any(large % small for small, large in zip(ordered, ordered[1:])):
        return None
    return tuple(large // small for small, large in reversed(list(zip(ordered, ordered[1:]))))


def separators_of(extents: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The boundaries of the entries of `shape` among `extents`, which are a refinement of `shape`."""
    separators, position = [0], 0
    for entry in shape:
        covered = 1
        while covered < entry:
            covered *= extents[position]
            position += 1
        separators.append(position)
    separators[-1] = len(extents)
    return tuple(separators)


def slice_dim(shards: Shards, start: Any, extent: int,
              divides: Divides | None = None) -> tuple[Shards, dict[Axis, Any]] | None:
    """The elements [start, start + extent) of one dimension: (shards, offset by axis), or None.

    Inner shards that the range covers whole and aligned are kept. The rest of the range must lie within one
    block of the next shard, or cross a block boundary exactly in its middle. The outermost shard is unbounded,
    so a range may extend beyond the array there. `start` may be symbolic if `divides` knows enough about it.
    """
    shards = fuse(shards)
    offset: dict[Axis, Any] = {}
    if not shards:
        return ((), offset) if is_same(extent, 1) and (not isinstance(start, int) or start == 0) else None
    if not all(isinstance(size, int) for size, _, _ in shards[1:]):
        return None
    inner: list[Shard] = []
    while len(shards) > 1:
        size, stride, along = shards[-1]
        if not known_multiple(start, size, divides) or not known_multiple(extent, size):
            break
        inner.insert(0, (size, stride, along))
        start, extent, shards = start // size, extent // size, shards[:-1]
    size, stride, along = shards[-1]
    whole = len(shards) == 1 or _lies_in_one_block(start, extent, size, divides)
    pivot = ((extent, stride, along),) if whole else _straddle(shards, start, extent)
    if pivot is None:
        return None
    _add_digits(offset, shards, start)
    return pivot + tuple(inner), offset


def _lies_in_one_block(start: Any, extent: int, size: int, divides: Divides | None) -> bool:
    """Whether the range lies in one block of `size` elements."""
    if isinstance(start, int):
        return start // size == (start + extent - 1) // size
    return size % extent == 0 and known_multiple(start, extent, divides)


def _straddle(shards: Shards, start: Any, extent: int) -> Shards | None:
    """The shards of a range whose halves lie in two adjacent blocks of the innermost shard, or None."""
    (outer_size, outer_stride, outer_along), (size, stride, along) = shards[-2:]
    half = extent // 2
    if not isinstance(start, int) or extent % 2 or half > size or (start + half) % size or outer_along != along:
        return None
    if len(shards) > 2 and start // size % outer_size == outer_size - 1:
        return None
    return ((2, outer_stride - (size - half) * stride, along), (half, stride, along))


def _add_digits(offset: dict[Axis, Any], shards: Shards, index: Any) -> None:
    """Add the coordinates of index `index` of `shards` to `offset`."""
    for position in reversed(range(len(shards))):
        size, stride, along = shards[position]
        digit = index % size if position else index
        index = index // size if position else index
        if not isinstance(digit, int) or digit:
            offset[along] = offset[along] + digit * stride if along in offset else digit * stride


def chain(shards: Shards, along: str = "m") -> tuple[int, ...]:
    """The positions of the shards that step through an axis without gaps, innermost first. Unit extents are ignored."""
    found: list[int] = []
    candidates = [i for i, s in enumerate(shards) if s[2] == along and not is_same(s[0], 1)]
    reached: Any = 1
    while candidates:
        following = [i for i in candidates if is_same(shards[i][1], reached)]
        if not following:
            break
        found.append(following[-1])
        candidates.remove(following[-1])
        reached = reached * shards[following[-1]][0]
    return tuple(found)
