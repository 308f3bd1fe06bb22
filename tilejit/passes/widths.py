"""How wide the vectors of register tiles are, and along which dimension they run: what moves their elements most cheaply.

A warp's load or store costs the sectors of 32 bytes that its lanes touch, and a constant. Vectors save requests where memory is
contiguous; where it is not, they part neighbouring lanes, and each of more requests touches more sectors. So the accesses of
one shape are weighed together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from ..ir.builder import type_of
from ..ir.graph import Block, Call, Const, For, Graph, Operand, Value, While, blocks
from ..layout import TileLayout, thread_table
from ..ops.layout_change import register_moves
from ..types import Points, Region, Scalar, Tile
from .context import Context

THROUGH_REGISTERS = ("load", "store", "atomic", "ordered_load", "ordered_store")
SECTOR, LANES = 32, 32
REQUEST = 4     # what a request costs beside its sectors: the L1 cache moves four of them a cycle, and takes one request
WRITTEN = 4     # what a sector costs that is written: the L2 cache takes one in the time in which the L1 cache moves so many
WASTED = 4      # how many times the sectors that it needs a store touches for its tile to be worth a change of layout
BARRIERS = 240  # what the two barriers of a change of layout through scratch memory cost, in the same unit
LOOP = 8        # how often a loop is thought to turn
FAR = 1 << 20   # stands for a stride that is known at launch only
NEAR = 2        # the same along the last dimension of an array that is contiguous along none: every second element, most likely


@dataclass(frozen=True)
class Access:
    """A region or points as a tile meets them: strides in elements along the tile's dimensions, bytes of an element, and the
    widest provable vector with its dimension (None: no dimension is contiguous)."""

    strides: tuple[int, ...]
    nbytes: int
    vector: int
    axis: int | None


def vector_widths(graph: Graph, context: Context) -> dict[tuple, tuple[int, tuple | None]]:
    """For each shape that meets global memory the vector's extent, and the order of the dimensions, the vector's first."""
    accesses: dict[tuple, dict[Access, int]] = {}
    found: dict[tuple, tuple[int, tuple | None]] = {}
    for place, weight in _places(context, graph.body, 1):
        call = context.made[place]
        t = place.type
        if t.scope != "global" or not prod(t.shape) or not t.shape:
            continue
        access = _of_region(context, call) if isinstance(t, Region) else _of_points(context, call)
        if access is not None:
            met = accesses.setdefault(t.shape, {})
            met[access] = met.get(access, 0) + weight
    for shape, met in accesses.items():
        found[shape] = _cheapest(shape, met)
    for call in context.made.values():
        if isinstance(call.results[0].type, Points) and call.results[0].type.shape:
            found.setdefault(call.results[0].type.shape, (1, None))
    return found


def way_of(context: Context, place: Value) -> tuple[int, tuple | None]:
    """The vector's extent and the order of the dimensions that suit a region by itself."""
    access = _of_region(context, context.made[place])
    return _way(place.type.shape, (access.vector, access.axis))


def _places(context: Context, body: Block, weight: int):
    """The places that loads and stores name, in order, each with how often it may be met; meanwhile its block's promises hold."""
    with context.inside(body):
        for node in body.nodes:
            if isinstance(node, Call) and node.op.name in THROUGH_REGISTERS:
                yield node.args[0], weight
            for block in blocks(node):
                yield from _places(context, block, weight * LOOP if isinstance(node, (For, While)) else weight)


# -- choosing --------------------------------------------------------------------------------------------------------------

def _cheapest(shape: tuple[int, ...], met: dict[Access, int]) -> tuple[int, tuple | None]:
    ways = [(a.vector, a.axis) for a in met]
    widest = max(ways, key=lambda way: way[0])  # the first of them
    if len(set(met)) == 1:
        return _way(shape, widest)
    candidates = [widest]
    for vector, axis in sorted(set(ways), key=lambda way: -way[0]):
        while vector:
            candidates.append((vector, axis))
            vector //= 2
    cost = lambda way: sum(n * _cost(shape, a, *_way(shape, way)) for a, n in met.items())
    best, least = widest, cost(widest)
    for way in dict.fromkeys(candidates):
        price = cost(way)
        if price < 0.99 * least:
            best, least = way, price
    return _way(shape, best)


def _way(shape: tuple[int, ...], way: tuple[int, int | None]) -> tuple[int, tuple | None]:
    vector, axis = way
    return vector, None if axis is None else (axis, *(k for k in reversed(range(len(shape))) if k != axis))


def _cost(shape: tuple[int, ...], access: Access, vector: int, order: tuple | None) -> float:
    """The cost of an element, in sectors, where a warp's lanes stand side by side in vectors as `layout.blocked` puts them."""
    order = order or tuple(reversed(range(len(shape))))
    run = min(vector, access.vector) if access.axis == order[0] else 1
    steps = [(-(-shape[d] // vector) if d == order[0] else shape[d], access.strides[d] * (vector if d == order[0] else 1)) for d in order]
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


# -- layouts that are no vectors side by side ------------------------------------------------------------------------------

def cost_of_load(context: Context, place: Value, t: Tile, threads: int) -> float:
    """What loads of a region into a layout cost the first warp, in sectors."""
    requests, sectors = _traffic(context, place, t, threads)
    return float(REQUEST * requests + sectors)


def wasteful(context: Context, place: Value, have: Tile, want: Tile, threads: int) -> bool:
    """Whether to change a tile's layout before it is stored to a region: nothing gathers the parts of a sector on the way to the
    L2 cache, so each part costs what the whole does. An H200 transposes tiles of 64 x 64 floats at 4.0 TB/s so, and at 1.2 TB/s in
    parts of sectors."""
    (_, sectors), (_, fewest) = (_traffic(context, place, t, threads) for t in (have, want))
    return sectors >= WASTED * fewest and WRITTEN * (sectors - fewest) > cost_of_change(have, want)


def _traffic(context: Context, place: Value, t: Tile, threads: int) -> tuple[int, int]:
    """How many requests the first warp makes for a tile, and how many sectors they touch."""
    access = _of_region(context, context.made[place])
    run = 1 if access.axis is None else min(access.vector, context.register_run(t, access.axis))
    return _counted(access, t.layout, t.domain, t.shape, threads, run)


@lru_cache(maxsize=4096)
def _counted(access: Access, layout: TileLayout, domain: tuple, shape: tuple, threads: int, run: int) -> tuple[int, int]:
    """The same where each register takes a vector of `run` elements."""
    table = thread_table(layout, domain, threads)[:LANES]
    at = np.unravel_index(table, domain)
    inside = np.logical_and.reduce([c < extent for c, extent in zip(at, shape)])
    leaders = np.arange(table.shape[1]) if run == 1 else np.flatnonzero(at[access.axis][0] % run == 0)
    sectors = sum(c * stride for c, stride in zip(at, access.strides)) * access.nbytes // SECTOR
    apart = sectors + np.arange(table.shape[1]) * (np.ptp(sectors) + 1)  # those of each request have numbers of their own
    return len(leaders), len(np.unique(apart[:, leaders][inside[:, leaders]]))


def cost_of_change(source: Tile, target: Tile) -> float:
    """What a tile's change of layout costs a warp in the same unit: shuffles, or stores and loads of scratch memory."""
    moves = register_moves(source, target)
    words = max(1, source.dtype.nbytes // 4)
    if moves is not None:
        return float(words * (REQUEST + LANES * 4 // SECTOR) * sum(not m.local for m in moves))
    registers = [prod(s[0] for s in t.layout.shards if str(s[2]) == "reg") for t in (source, target)]
    return BARRIERS + sum(n * source.dtype.nbytes * LANES / SECTOR + REQUEST * max(n * source.dtype.nbytes / 16, 1) for n in registers)


# -- strides ---------------------------------------------------------------------------------------------------------------

def _strides(buffer) -> list[int]:
    """The strides of a buffer's dimensions, with guesses for those that are known at launch."""
    strides, known = buffer.strides, 1 in buffer.strides
    return [s if isinstance(s, int) else NEAR if not known and d == len(strides) - 1 else FAR * (d + 1) for d, s in enumerate(strides)]


def _of_region(context: Context, call: Call) -> Access:
    t: Region = call.result.type
    strides = _strides(t.buffer)
    return Access(tuple(strides[d] for d in t.kept), t.dtype.nbytes, *_provable(context, t, call.args[1:]))


def _of_points(context: Context, call: Call) -> Access | None:
    """Points whose indices are sums of multiples of ``arange``; None for others, which cost the same in any layout."""
    t: Points = call.result.type
    strides, total, known = _strides(t.buffer), [0] * len(t.shape), {}
    for stride, index in zip(strides, call.args[1:]):
        steps = _steps(context, index, len(t.shape), known)
        if steps is None:
            return None
        total = [a + stride * b for a, b in zip(total, steps)]
    return Access(tuple(total), t.dtype.nbytes, 1, None)


def _steps(context: Context, index: Operand, rank: int, known: dict) -> list[int] | None:
    """By how much an index grows along each dimension of a tile of `rank`, where that is a constant; `known` of others already."""
    if not isinstance(type_of(index), Tile):
        return [0] * rank
    if (index, rank) not in known:
        known[index, rank] = _steps_of(context, index, rank, known)
    return known[index, rank]


def _steps_of(context: Context, index: Operand, rank: int, known: dict) -> list[int] | None:
    call, shape = context.made.get(index), type_of(index).shape
    name = call.op.name if call is not None else ""
    if name == "splat":
        return [0] * rank
    if name == "iota":
        return [0] * (rank - 1) + [1] if len(shape) == 1 else None
    if name == "cast" or name == "broadcast":
        return _steps(context, call.args[0], rank, known)
    if name == "reshape":
        return _reshaped(context, call.args[0], shape, rank, known)
    if name in ("add", "sub"):
        one, other = (_steps(context, a, rank, known) for a in call.args)
        sign = 1 if name == "add" else -1
        return None if one is None or other is None else [a + sign * b for a, b in zip(one, other)]
    if name == "mul":
        for x, by in (call.args, call.args[::-1]):
            factor, steps = _constant(context, by), _steps(context, x, rank, known)
            if factor is not None and steps is not None:
                return [factor * a for a in steps]
    return None


def _reshaped(context: Context, source: Operand, shape: tuple[int, ...], rank: int, known: dict) -> list[int] | None:
    """The steps of a reshape that only adds or drops extents of 1."""
    old = type_of(source).shape
    steps = _steps(context, source, len(old), known)
    long = [d for d, n in enumerate(shape) if n != 1]
    if steps is None or [shape[d] for d in long] != [n for n in old if n != 1]:
        return None
    found = [0] * rank
    for d, step in zip(long, (s for s, n in zip(steps, old) if n != 1)):
        found[rank - len(shape) + d] = step
    return found


def _constant(context: Context, operand: Operand) -> int | None:
    call = context.made.get(operand)
    if call is not None and call.op.name in ("splat", "cast", "broadcast"):
        return _constant(context, call.args[0])
    return int(operand.value) if isinstance(operand, Const) and isinstance(type_of(operand), Scalar) and type_of(operand).dtype.is_int else None


# -- what is provable ------------------------------------------------------------------------------------------------------

def _provable(context: Context, t: Region, starts) -> tuple[int, int | None]:
    """The widest provable vector of a region and the tile's dimension along which it runs."""
    for axis in reversed(range(len(t.kept))):
        d = t.kept[axis]
        if t.buffer.strides[d] != 1:
            continue
        vector = 16 // t.dtype.nbytes
        while vector > 1 and not _divides(context, t, starts, d, vector):
            vector //= 2
        return vector, axis
    return 1, None


def _divides(context: Context, t: Region, starts, d: int, vector: int) -> bool:
    multiple = lambda kind, n: n % vector == 0 if isinstance(n, int) else context.facts.ask(kind, n.arg, n.dim, vector)
    narrowed = t.buffer.narrowed[d] if t.buffer.narrowed is not None else 0
    return (t.extents[d] % vector == 0 and narrowed % vector == 0 and context.divisor(starts[d]) % vector == 0
            and context.facts.ask("aligned", t.buffer.arg, vector * t.dtype.nbytes)
            and all(multiple("stride_multiple", s) for k, s in enumerate(t.buffer.strides) if k != d)
            and multiple("size_multiple", t.buffer.shape[d]))
