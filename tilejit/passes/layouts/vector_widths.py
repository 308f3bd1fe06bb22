"""Chooses the vectors of register tiles, so that memory accesses cost least.

How wide they are, and along which dimension they run.

A warp's load or store costs the 32-byte sectors that its lanes touch, plus a constant for the request. Vectors save
requests where memory is contiguous; elsewhere they move neighbouring lanes apart, and each of the more requests
touches more sectors. So all accesses of tiles of one shape are weighed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from ...ir.builder import as_value, memory_type, type_of
from ...ir.graph import Block, Call, For, Graph, Operand, Scope, Value, While, blocks, walk
from ...layout import TileLayout, thread_table
from ...ops.memory.atomics import atomic_, most_at_once
from ...ops.memory.vector_proofs import widest_of, widest_vector
from ...ops.tiles.layout_change import register_exchange, register_moves
from ...types import Points, Region, Tile, domain_of, layout_of
from ..analysis.context import Context

SECTOR, LANES = 32, 32
# Costs are in sectors moved by the L1 cache.
# cost of a request beside its sectors: the L1 cache takes one request a cycle, and moves four sectors in it
REQUEST = 4
WRITTEN_SECTOR = 4   # cost of a sector that is written: the L2 cache takes one while the L1 cache moves four
# a store that touches this many times the sectors it needs is worth a change of layout through shared memory
WASTEFUL_FACTOR = 4
BARRIERS = 240       # cost of the two barriers of a layout change through scratch memory
LONGEST = 16         # elements of the longest vector, of a byte each
TRIPS = 8            # assumed trip count of a loop
FAR = 1 << 20        # stands for a stride that only the launch knows
# the same along the last dimension of an array that is contiguous along none: most likely every second element
NEAR = 2


@dataclass(frozen=True)
class Access:
    """A memory access as a tile sees it: strides in elements along the tile's dimensions, bytes of an element, and
    the widest vector that is provably right, with its dimension (None: no dimension is contiguous)."""

    strides: tuple[int, ...]
    nbytes: int
    vector: int
    axis: int | None


def vector_widths(graph: Graph, context: Context,
                  fragments: set[Operand]) -> dict[tuple[int, ...], tuple[int, tuple[int, ...] | None]]:
    """For each shape of tiles that are loaded from or stored to arrays: the vector's extent, and the order of the
    dimensions, the vector's first.

    The `fragments` of tensor cores are stored in the layout that these give them, and do not count for other tiles of
    their shape. Facts of the launch are asked for vectors of at most as many elements as a thread holds, unless
    accesses that differ are weighed against each other.
    """
    threads = min([context.scope.threads, *(n.threads for n in walk(graph.body) if isinstance(n, Scope))])
    def elements_per_thread(shape: tuple[int, ...]) -> int:
        return 1 << max(prod(shape) // threads, 1).bit_length() - 1
    accesses = _accesses_by_shape(graph, context, fragments, elements_per_thread)
    differing = {shape for shape, met in accesses.items() if len(met) > 1}
    if differing:
        accesses |= _accesses_by_shape(graph, context, fragments, lambda shape: LONGEST if shape in differing else 0)
    found = {shape: _find_cheapest(shape, met) for shape, met in accesses.items()}
    for call in context.definitions.values():
        points = call.results[0].type
        shape: tuple[int, ...] = points.shape if isinstance(points, Points) else ()
        if shape and 0 not in shape and shape not in found:  # the accesses of points tell more than the points
            access = _access_to(context, call.result, most=elements_per_thread(shape))
            found[shape] = (1, None) if access is None else _with_order(shape, (access.vector, access.axis))
    return found


def _accesses_by_shape(graph: Graph, context: Context, fragments: set[Operand],
                       most: Callable[[tuple[int, ...]], int]) -> dict[tuple[int, ...], dict[Access, int]]:
    """{shape: {access: weight}} with vectors of at most ``most(shape)`` elements;
    shapes for which that is 0 are left out."""
    accesses: dict[tuple[int, ...], dict[Access, int]] = {}
    for call, weight in _weighted_accesses(context, graph.body, 1):
        t = memory_type(call.args[0])
        if (t.scope != "global" or not prod(t.shape) or not t.shape or not fragments.isdisjoint(call.args[1:])
            or not most(t.shape)):
            continue
        access = _access_of(context, call, most(t.shape))
        if access is not None:
            met = accesses.setdefault(t.shape, {})
            met[access] = met.get(access, 0) + weight
    return accesses


def vector_and_order(context: Context, call: Call) -> tuple[int, tuple[int, ...] | None]:
    """The vector's extent and the order of the dimensions that suit one load or store of a region best."""
    access = _access_to_region(context, call)
    return _with_order(memory_type(call.args[0]).shape, (access.vector, access.axis))


def vector_axis(context: Context, call: Call) -> int | None:
    """The dimension along which a load or store of a region moves vectors."""
    return _access_to_region(context, call).axis


def _weighted_accesses(context: Context, body: Block, weight: int) -> Iterator[tuple[Call, int]]:
    """The accesses in order, each with how often it is assumed to run. The constraints of an access's block are in
    force while it is yielded."""
    with context.in_block(body):
        for node in body.nodes:
            if isinstance(node, Call) and node.op.traits.access:
                yield node, weight
            for block in blocks(node):
                yield from _weighted_accesses(context, block,
                                              weight * TRIPS if isinstance(node, (For, While)) else weight)


# -- choosing ----------------------------------------------------------------------------------------------------------

def _find_cheapest(shape: tuple[int, ...], met: dict[Access, int]) -> tuple[int, tuple[int, ...] | None]:
    """The vector and order with the lowest total cost of all accesses of a shape; the widest,
    unless another saves at least 1 %."""
    pairs = [(a.vector, a.axis) for a in met]
    widest = max(pairs, key=lambda pair: pair[0])  # the first one among equals
    if len(set(met)) == 1:
        return _with_order(shape, widest)
    candidates = [widest]
    for vector, axis in sorted(set(pairs), key=lambda pair: -pair[0]):
        while vector:
            candidates.append((vector, axis))
            vector //= 2
    def cost(pair: tuple[int, int | None]) -> float:
        return sum(n * _cost(shape, a, *_with_order(shape, pair)) for a, n in met.items())
    best, least = widest, cost(widest)
    for pair in dict.fromkeys(candidates):
        price = cost(pair)
        if price < 0.99 * least:
            best, least = pair, price
    return _with_order(shape, best)


def _with_order(shape: tuple[int, ...], pair: tuple[int, int | None]) -> tuple[int, tuple[int, ...] | None]:
    """A (vector, axis) pair with the axis extended to an order of all dimensions, the other ones last to first."""
    vector, axis = pair
    return vector, None if axis is None else (axis, *(k for k in reversed(range(len(shape))) if k != axis))


def _cost(shape: tuple[int, ...], access: Access, vector: int, order: tuple[int, ...] | None) -> float:
    """The cost of an element, in sectors, where a warp's lanes hold vectors side by side as
    `layout.blocked` arranges them."""
    order = order or tuple(reversed(range(len(shape))))
    run = min(vector, access.vector) if access.axis == order[0] else 1
    steps = [(-(-shape[d] // vector) if d == order[0] else shape[d],
              access.strides[d] * (vector if d == order[0] else 1)) for d in order]
    starts = set()
    for lane in range(LANES):
        at = 0
        for count, stride in steps:
            power = 1 << (count - 1).bit_length()
            lane, digit = divmod(lane, power)
            if digit >= count:
                break
            at += digit * stride
        else:
            starts.add(at * access.nbytes)
    sectors = {s for at in starts for s in range(at // SECTOR, (at + run * access.nbytes - 1) // SECTOR + 1)}
    taken = min(LANES, prod(count for count, _ in steps))
    return (REQUEST + len(sectors)) / (taken * run)


# -- layouts other than blocked ones -----------------------------------------------------------------------------------

def cost_of_load(context: Context, call: Call, t: Tile, threads: int) -> float:
    """The cost of loading a region into a layout, for the first warp, in sectors."""
    requests, sectors = _traffic(context, call, t, threads)
    return float(REQUEST * requests + sectors)


def worth_changing_layout(context: Context, call: Call, have: Tile, want: Tile, threads: int) -> bool:
    """Whether a tile should change to the layout `want` before it is stored to a region.

    Nothing merges parts of a sector on the way to the L2 cache, so each part costs as much as a whole sector. On an
    H200, tiles of 64 x 64 floats are transposed at 4.0 TB/s with the change, and at 1.2 TB/s in parts of sectors; a
    product of 4096^3 that stores tiles of 128 x 256 halves takes 6 % less time where lanes exchange words first.
    """
    (_, sectors), (_, fewest) = (_traffic(context, call, t, threads) for t in (have, want))
    least = WASTEFUL_FACTOR if register_exchange(have, want) is None else 2
    return sectors >= least * fewest and WRITTEN_SECTOR * (sectors - fewest) > cost_of_change(have, want)


def _traffic(context: Context, call: Call, t: Tile, threads: int) -> tuple[int, int]:
    """The requests that the first warp makes for a tile, and the sectors that they touch."""
    access = _access_to_region(context, call)
    run = 1 if access.axis is None else min(access.vector, context.register_run(t, access.axis))
    return _count_traffic(access, layout_of(t), domain_of(t), t.shape, threads, run)


@lru_cache(maxsize=4096)
def _count_traffic(access: Access, layout: TileLayout, domain: tuple[int, ...], shape: tuple[int, ...], threads: int,
                   run: int) -> tuple[int, int]:
    """The same, where each register takes a vector of `run` elements."""
    table = thread_table(layout, domain, threads)[:LANES]
    at = np.unravel_index(table, domain)
    inside = np.logical_and.reduce([c < extent for c, extent in zip(at, shape)])
    leaders = np.arange(table.shape[1])
    if run > 1 and access.axis is not None:
        leaders = np.flatnonzero(at[access.axis][0] % run == 0)
    sectors = sum(c * stride for c, stride in zip(at, access.strides)) * access.nbytes // SECTOR
    # numbered per request, so that sectors of different requests differ
    apart = sectors + np.arange(table.shape[1]) * (np.ptp(sectors) + 1)
    # np.unique would import numpy.ma, which takes 6 ms
    return len(leaders), len(set(apart[:, leaders][inside[:, leaders]].tolist()))


def cost_of_change(source: Tile, target: Tile) -> float:
    """The cost of a layout change for a warp, in sectors: of shuffles,
    or of stores to and loads from scratch memory."""
    moves = register_moves(source, target)
    words, shuffle = source.dtype.nbytes / 4, float(REQUEST + LANES * 4 // SECTOR)
    if moves is not None:
        return max(1, words) * shuffle * sum(not m.stays_in_lane for m in moves)
    exchange = register_exchange(source, target)
    if exchange is not None:  # half of the words are shuffled, with three selections, a quarter of a cycle each
        return exchange.bits * words * len(exchange.order) / 2 * (shuffle + 3)
    registers: list[int] = [prod(s[0] for s in layout_of(t).shards if str(s[2]) == "reg") for t in (source, target)]
    return BARRIERS + sum(n * source.dtype.nbytes * LANES / SECTOR + REQUEST * max(n * source.dtype.nbytes / 16, 1)
                          for n in registers)


# -- accesses ----------------------------------------------------------------------------------------------------------

def _access_of(context: Context, call: Call, most: int = LONGEST) -> Access | None:
    """The access of a load, a store or an atomic operation, with vectors of at most `most` elements."""
    most = min(most, most_at_once(context, call)) if call.op is atomic_ else most
    return _access_to(context, as_value(call.args[0]), call.args[-1], most)


def _access_to_region(context: Context, call: Call) -> Access:
    """The access of a load or a store of a region, which is known to have one."""
    access = _access_of(context, call)
    assert access is not None
    return access


def _access_to(context: Context, place: Value, mask: Operand = None, most: int = LONGEST) -> Access | None:
    """The access to a region or to points, with vectors of at most `most` elements.

    None for points that no vector fits and that grow by no constants: they cost the same in any layout.
    """
    t = memory_type(place)
    strides, vector = _strides(context, place), 1
    axis: int | None = None
    for k in reversed(range(len(strides))):
        wide = widest_vector(context, place, k, min(most, widest_of(t.dtype)), mask)
        if axis is None and strides[k] == 1 or wide > vector:
            vector, axis = wide, k
    if vector == 1 and all(s is None for s in strides):
        return None
    return Access(tuple(FAR * (k + 1) if s is None else s for k, s in enumerate(strides)), t.dtype.nbytes, vector, axis)


def _strides(context: Context, place: Value) -> list[int | None]:
    """The distance in elements between neighbours along each dimension of the tile: a guess where the launch decides
    it, None where it varies."""
    t = type_of(place)
    assert isinstance(t, (Region, Points))
    if t.scope != "global":
        return [None] * len(t.shape)
    given = t.buffer.strides
    assert given is not None  # arrays have strides
    guesses = [FAR * (d + 1) for d in range(len(given))]
    if guesses and 1 not in given:
        guesses[-1] = NEAR
    strides = [s if isinstance(s, int) else guess for s, guess in zip(given, guesses)]
    if isinstance(t, Region):
        return [strides[d] for d in t.kept]
    found: list[int | None] = []
    for axis, extent in enumerate(t.shape):
        ramps = [context.ramp(i, axis - len(t.shape), extent) for i in context.definition(place).args[1:]]
        regular = [r for r in ramps if r is not None]
        found.append(sum(s * step for s, (step, _) in zip(strides, regular)) if len(regular) == len(ramps) else None)
    return found
