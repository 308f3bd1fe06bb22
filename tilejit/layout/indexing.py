"""Index arithmetic: from a coordinate to axis values, for ints, NumPy arrays and emitted values alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

from .axes import Axis
from .shards import Shards, fuse, group, is_same

Source = tuple[tuple[int, Any], ...]     # (dimension, weight)
Term = tuple[int, Any, Any, Any, Axis]   # (source, divisor, modulus or None, stride, axis)
IndexPlan = tuple[tuple[Source, ...], tuple[Term, ...]]

@lru_cache(maxsize=4096)
def index_plan(shards: Shards, shape: tuple[Any, ...]) -> IndexPlan:
    """The computation from a coordinate in `shape` to axis values: (sources, terms).

    A source is a tuple of (dimension, weight) pairs; their weighted sum is an index flattened from one or more
    coordinates. A term (source, divisor, modulus or None, stride, axis) adds ``source // divisor % modulus *
    stride`` to the axis.
    """
    sources: list[Source] = []
    terms: list[Term] = []
    for dims, block in _blocks(shards, shape):
        weights: list[tuple[int, Any]] = []
        of_block: list[Term] = []
        weight = 1
        for dim in reversed(dims):
            weights.insert(0, (dim, weight))
            weight = weight * shape[dim]
        divisor = 1
        block = fuse(block)
        for position in reversed(range(len(block))):
            extent, stride, along = block[position]
            if not is_same(stride, 0) and not is_same(extent, 1):
                of_block.insert(0, (len(sources), divisor, extent if position else None, stride, along))
            divisor = divisor * extent if position else divisor
        sources.append(tuple(weights))
        terms += of_block
    return tuple(sources), tuple(terms)


def _blocks(shards: Shards, shape: tuple[Any, ...]) -> list[tuple[tuple[int, ...], Shards]]:
    """Pair dimensions with their shards: one by one if the shards can be split so,
    otherwise several dimensions together."""
    grouped = group(shards, shape)
    if grouped:
        return _one_by_one(range(len(shape)), *grouped)
    if not all(isinstance(n, int) for n in (*shape, *(s[0] for s in shards))):
        return [(tuple(range(len(shape))), shards)]
    blocks: list[tuple[tuple[int, ...], Shards]] = []
    dim, dim_end, shard, shard_end = len(shape), len(shape), len(shards), len(shards)
    while dim_end or shard_end:
        dim, shard = max(dim_end - 1, 0), max(shard_end - 1, 0)
        while (below := prod(shape[dim:dim_end])) != (count := prod(s[0] for s in shards[shard:shard_end])):
            dim, shard = (dim - 1, shard) if below < count else (dim, shard - 1)
        dims, block = tuple(range(dim, dim_end)), shards[shard:shard_end]
        grouped = group(block, shape[dim:dim_end])
        blocks[:0] = _one_by_one(dims, *grouped) if grouped else [(dims, block)]
        dim_end, shard_end = dim, shard
    return blocks


def _one_by_one(dims: Sequence[int], grouped: Shards,
                separators: tuple[int, ...]) -> list[tuple[tuple[int, ...], Shards]]:
    return [((dim,), grouped[separators[i]:separators[i + 1]]) for i, dim in enumerate(dims)]


def evaluate(plan: IndexPlan, coordinate: tuple[Any, ...]) -> dict[Axis, Any]:
    """The axis values of a coordinate. Its entries are only used with + * // % & >>."""
    sources, terms = plan
    indices = [_flatten(source, coordinate) for source in sources]
    values: dict[Axis, Any] = {}
    for source, divisor, modulus, stride, along in terms:
        term = _digit(indices[source], divisor, modulus)
        if not is_same(stride, 1):
            term = term * stride
        values[along] = add(values[along], term) if along in values else term
    return values


def add(a: Any, b: Any) -> Any:
    """a + b, without emitting an addition if either is a Python 0."""
    if type(a) is int and a == 0:
        return b
    if type(b) is int and b == 0:
        return a
    return a + b


def _flatten(source: Source, coordinate: tuple[Any, ...]) -> Any:
    index: Any = 0
    for dim, weight in source:
        entry = coordinate[dim]
        index = add(index, entry if is_same(weight, 1) else entry * weight)
    return index


def _digit(index: Any, divisor: Any, modulus: Any) -> Any:
    """index // divisor % modulus. Powers of two become shifts and masks, which are cheaper everywhere."""
    if not is_same(divisor, 1):
        index = index >> divisor.bit_length() - 1 if _power_of_two(divisor) else index // divisor
    if modulus is not None:
        index = index & modulus - 1 if _power_of_two(modulus) else index % modulus
    return index


def _power_of_two(n: Any) -> bool:
    return isinstance(n, int) and n > 0 and n & (n - 1) == 0
