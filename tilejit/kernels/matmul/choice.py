"""Chooses the configuration of a matrix product on Hopper.

It is the one that the performance model (`cycles.py`) expects to be the fastest; there is no search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import inf
from operator import attrgetter
from typing import NamedTuple

from .config import SLOT, Config, divisor_in_width, part, rows, shares_of, slot_depth
from .config_rules import HIGH, stored_at_once, try_config
from .hopper.mainloop import BLOCK
from .model import (
    CLUSTERS,
    FILLING,
    LARGE,
    MEMORY,
    SMALL,
    TILES,
    Problem,
    Way,
    cycles,
    order_at_once,
    order_in_rounds,
    places,
    runs_unhindered,
    streamed_cycles,
    takes_turns,
)

WAYS = (*map(Way, CLUSTERS), Way(stream=True), Way(pair=True), Way(0, clustered=False),
        Way(0, pair=True, clustered=False))
WIDEST = {64: 256, 128: 256, 192: 192, 256: 192}   # bm -> the largest bn whose sums registers hold
# Cycles are SM clock cycles. The thresholds and factors were measured on an H200,
# unless docs/lab/matrix_products.md says otherwise.
NARROWEST = 48           # the smallest bn of tiles that are made to fit a matrix (`widths_without_waste`)
WHOLE = 128 * 160        # elements of a tile up to which all of its columns may be stored at once (`part_of`)
ROUNDS = 4               # the most rounds of tiles that are made to fit a matrix
MANY = 64                # the most CTAs that share a tile's k through global memory
# slots of k above which three stages are enough, so that staging buffers for a whole tile pay;
# unless memory is busy, or
LONG = 16
                         # consumers are staggered, so that only one of them waits for its stores
# cycles of a launch below which an early launch (`dependent`) pays, unless memory is busy: CTAs that get an SM as it
SHORT = 400000
                         # becomes free have no neighbours at the same operands, and a launch may take 1.4 times as long
# cycles below which it pays although memory is busy: for tiles of at most SMALL elements,
# which load the most per cycle,
BRIEF = 14000
FULL_BRIEF = 22000       # for larger ones if memory takes more than the fraction FULL of the time,
LARGE_BRIEF = 50000      # and for larger ones otherwise
FULL = 0.6
# fraction of the SMs. If CTAs share tiles' k, memory takes more than FULL of the time, and the grid has fewer CTAs than
NEARLY = 0.7
                         # this, yet too many for two grids to run side by side, then an early launch
                         # is up to 18 % slower
PANEL = 32 << 20         # bytes of A in 16 rows of tiles from which they would fill much of L2
# bytes of L2: an operand larger than this, that all rows of tiles read at the same time, leaves nothing there for later
L2 = 50 << 20
TURN = 6                 # the most slots that a consumer multiplies alone (staggering)
# bytes of a row in a staging buffer where nothing hides its stores, or where columns are deferred
PART = 128
# columns deferred to the next tile: with 64 products are up to 0.3 % slower, with N-major B up to 0.7 %
LATE = 128
# factor on the cycles where bn is no multiple of 64 and B is N-major, since TMA then loads boxes of
# 64 bytes or less: if
NARROW = 1.03, 1.12
                         # CTAs share k or the product is memory-bound, and otherwise, in several rounds
TURNED = 1.02            # factor on the cycles of swapped operands, if the product is memory-bound or has an epilogue
ACROSS = 0.21            # cycles for each sum with swapped operands where CTAs share k, or an epilogue transposes it;
# where neither is so and it goes by way of shared memory; the second if it is 16 bits, under the next tile's products
STAGED = 0.03, 0.005
COPY = 4000              # cycles of a separate kernel that copies operands, apart from its memory traffic


def count_ctas(tiles: int, processors: int) -> int:
    """The smallest number of CTAs that need no more rounds than all `processors` would. Each has about as many tiles
    as another, so CTAs stay at neighbouring tiles until the end: 0.3 to 2.8 % faster than with all."""
    return -(-tiles // -(-tiles // processors))


def group(p: Problem, bm: int, bn: int, processors: int) -> int:
    """The rows of tiles in a group of the order: fewer if the rows of A would fill much of L2 for many rounds."""
    long = 16 * bm * p.k * p.itemsize >= PANEL and 16 * -(-p.n // bn) > 4 * processors
    return 8 if long else 16


@lru_cache(maxsize=4096)
def choose(p: Problem, processors: int, columns_first: bool | None = None) -> Config:
    """The configuration that the model expects to be the fastest. `columns_first` says whether the operands are
    swapped; None leaves that to the model."""
    return next(_by_cost(p, processors, columns_first))


def rank_configs(p: Problem, processors: int, columns_first: bool | None = None) -> list[Config]:
    """All possible configurations, by the expected cycles."""
    return list(_by_cost(p, processors, columns_first))


def _by_cost(p: Problem, processors: int, columns_first: bool | None) -> Iterator[Config]:
    for found in sorted(_candidates(p, processors, columns_first), key=attrgetter("cost")):
        config = _config_of(p, processors, found, columns_first is True)
        if config is not None:
            yield _complete_config(p, processors, found, config)


def _ways(p: Problem, bm: int, bn: int, slots: int, processors: int):
    """The ways in which CTAs can share tiles of bm x bn with `slots` slots of k."""
    for way in WAYS:
        tiles = rows(p.m, bm, way.pair) * -(-p.n // bn) * p.matrices
        way = way if way.splits else way._replace(splits=min(processors // tiles, MANY))
        shared = way.splits > 1 and way.splits * 2 <= slots
        if shared and way.clustered:
            shared = bn % (8 * way.splits) == 0
        # most CTAs must have a share, and none too many columns: a CTA holds the sums of its share in registers
        elif shared:
            shares = shares_of(bn, way.splits)
            shared = 4 * shares >= min(way.splits, bn // 8) and bn <= (128 if p.itemsize < 4 else 96) * shares
        if way.pair:
            possible = (bn % 16 == 0
                        and (shared and p.m > bm and p.promoted is None or any(p.odd_pitches) and way.clustered))
        else:
            possible = shared or way == Way() or way.stream and p.promoted is None
        if possible:
            yield way


def unit(p: Problem) -> int:
    """The granularity of bn: for integers wgmma has fewer widths (PTX ISA, "wgmma", shapes), and rows of N-major B
    are loaded in pieces of 16 bytes or a multiple of 32."""
    return 16 if p.itemsize == 1 and p.n > 32 or p.across[1] and p.n > 8 else 8


def part_of(p: Problem, bm: int, count: int) -> int:
    """The bn with which `count` tiles side by side just cover the matrix, since TMA takes longer for what lies
    outside. In a large tile whose columns would then all be stored at once, it is one unit wider: 8 more columns,
    stored in parts, are 4 to 10 % faster."""
    bn = -(-p.n // count // unit(p)) * unit(p)
    return bn + unit(p) if bm * bn > WHOLE and part(bn, 64, True) == bn else bn


def tiles_for(p: Problem) -> list[tuple[int, int]]:
    """TILES, and tiles as wide as the matrix, or as a half to a fourth of it where it has more than 128 columns."""
    exact = {(bm, part_of(p, bm, count)) for bm in (64, 128) for count in range(1, 5 if p.n > 128 else 2)}
    return [*TILES, *sorted(tile for tile in exact if tile[1] <= 256 and tile not in TILES)]


def widths_without_waste(p: Problem, processors: int) -> Iterator[tuple[int, int]]:
    """For each bm, the three widths that divide the matrix such that a CTA computes the fewest columns in
    all of its rounds."""
    for bm, most in WIDEST.items():
        down = -(-p.m // bm) * p.matrices
        found: dict[int, int] = {}  # the columns of a CTA, by width
        for count in range(-(-p.n // most), min(p.n // NARROWEST, ROUNDS * processors // down) + 1):
            if (bn := part_of(p, bm, count)) <= most:
                found.setdefault(bn, -(-down * -(-p.n // bn) // processors) * bn)
        yield from ((bm, bn) for bn in sorted(found, key=lambda bn: found[bn])[:3])


class Candidate(NamedTuple):
    """A tile and a way to share tiles: the expected cycles, whether the operands are swapped, the tile, the way, and
    the slots of k of each CTA."""

    cost: float
    swapped: bool
    bm: int
    bn: int
    way: Way
    steps: int


def expected_cycles(p: Problem, q: Problem, swapped: bool, bm: int, bn: int, way: Way, processors: int) -> float:
    """The cycles that the model expects of a tile and a way to share tiles. `p` is the problem as given, `q` the same
    with its operands swapped if they are."""
    once, tiles = runs_unhindered(q, bm, bn, way, processors), -(-q.m // bm) * -(-q.n // bn) * p.matrices
    cost = streamed_cycles(q, bm, bn, processors) if way.stream else cycles(q, bm, bn, way, processors)
    if not once:
        cost *= NARROW[way.splits == 1 and not q.waits] if q.across[1] and bn > 64 and bn % 64 else 1
    if swapped:
        cost *= TURNED if q.waits or p.epilogue else 1
        rounds = -(-tiles // processors)
        alone = way.splits == 1 and not p.epilogue
        cost += rounds * bm * bn * (STAGED[rounds > 1 and p.stored == 2] if alone else ACROSS / way.splits)
    return cost + (COPY + 2 * q.copied[0] / (MEMORY * processors / 132) if q.copied[0] else 0)


def _candidates(p: Problem, processors: int, columns_first: bool | None) -> Iterator[Candidate]:
    """Every tile with every way to share tiles that it can have."""
    for swapped in (False, True) if columns_first is None else (columns_first,):
        q = p.swap_operands() if swapped else p
        always = tiles_for(q) if swapped else TILES
        # buffers of wider results leave room for too few slots
        fitted = {*widths_without_waste(q, processors)} if swapped and p.stored == 2 else ()
        for bm, bn in filter(lambda t: q.takes(*t), dict.fromkeys((*always, *fitted, *FILLING))):
            slots = -(-p.k // (SLOT if p.promoted is not None else slot_depth(bm, bn, p.itemsize)))
            for way in _ways(q, bm, bn, slots, processors) if (bm, bn) in always else (Way(),):
                once = runs_unhindered(q, bm, bn, way, processors)
                if not once and (bm == HIGH or (bm, bn) not in always and (bm, bn) not in fitted):
                    continue
                cost = expected_cycles(p, q, swapped, bm, bn, way, processors)
                if cost < inf:
                    yield Candidate(cost, swapped, bm, bn, way, -(-slots // way.splits))


def _config_of(p: Problem, processors: int, found: Candidate, by_rows: bool) -> Config | None:
    """The configuration of a candidate; None if shared memory holds fewer than two of its slots. `by_rows`: the
    operands are swapped because the result is column-major, so that TMA can store its columns."""
    _, swapped, bm, bn, way, _ = found
    q = p.swap_operands() if swapped else p
    tiles = -(-q.m // bm) * -(-q.n // bn) * p.matrices
    stores = _stores(p, q, processors, found, tiles)
    columns = _columns(p, q, processors, found, tiles, stores, by_rows)
    turns = takes_turns(q, bm, bn, way, processors) and not p.epilogue
    least = 3 if (q.ahead or stores.long and not turns) and not (stores.by_columns or stores.kept) else 4
    config = try_config(Config.of, bm, bn, 0 if p.promoted is None else SLOT, splits=way.splits, swapped=swapped,
                        itemsize=p.itemsize, stored=p.stored, epilogue=p.epilogue and not q.ahead, width=columns,
                        least=least, clustered=way.clustered)
    if config is None:
        return None
    buffers = 1 if way.stream and stores.by_columns else config.buffers
    return replace(config, late=stores.late, kept=stores.kept, pair=way.pair, buffers=buffers)


class Stores(NamedTuple):
    """How a tile's results are stored: whether they are `kept` until the next tile's products, how many columns are
    finished only then (`late`), whether three stages are enough since k is `long`, and whether the buffers are
    column-major and of 4-byte elements (`by_columns`), whose addresses take registers that the loop of products
    lacks."""

    kept: bool
    late: int
    long: bool
    by_columns: bool


def _stores(p: Problem, q: Problem, processors: int, found: Candidate, tiles: int) -> Stores:
    """`q` is the problem with its operands swapped if the candidate's are, as in `expected_cycles`."""
    tile, way = (found.bm, found.bn), found.way
    several = p.stored == 2 and tiles > processors
    long = tile == LARGE and p.k * p.itemsize > LONG * SLOT and not p.loads_memory
    kept = several and way.splits == 1 and not p.epilogue and tile != (192, 192) and p.promoted is None
    late = 0
    if several and long and q.ahead:
        late = found.bn if q.narrow else LATE
    return Stores(kept, late, long, found.swapped and p.stored == 4)


def _columns(p: Problem, q: Problem, processors: int, found: Candidate, tiles: int, stores: Stores,
             by_rows: bool) -> int:
    """The columns that are stored at once.

    In one round nothing hides the stores but each other, so the parts are narrow (`alone`); they are also narrow for
    wide elements, and for an epilogue, which then has fewer values at once. An epilogue whose operands TMA loads ends
    sooner without parts, except in the last round."""
    alone = tiles <= processors or p.stored > 2 or p.epilogue and not q.ahead
    if alone or stores.late or stores.kept:
        width = PART
    else:
        width = 512 if q.ahead and tiles > 8 * processors else 256
    most = width // p.stored if p.promoted is None else min(width // p.stored, BLOCK)
    at_once = most
    if found.bm == HIGH:
        at_once = 48 if found.swapped else 32
    columns = part(found.bn, at_once, found.swapped)
    return columns if not by_rows or stored_at_once(columns * p.stored) else divisor_in_width(found.bn, most)


def _complete_config(p: Problem, processors: int, found: Candidate, config: Config) -> Config:
    """The configuration, completed by the fields that follow from its tile, its slots and the expected cycles."""
    q, stream = p.swap_operands() if config.swapped else p, found.way.stream
    # In lockstep (stream-K) rows of A are loaded once. Otherwise "snake" reverses every other group, so that a group
    # begins at the columns of B that the last one has left in L2.
    order = ("grouped", 16) if stream else ("snake", group(q, config.bm, config.bn, processors))
    if found.way == Way():
        order = (order_at_once(q, config.bm, config.bn, found.way, processors)
                 or order_in_rounds(q, config.bm, config.bn, order[1]))
    tiles = config.tiles(q.m, q.n) * p.matrices
    by_columns = order[0] != "row" or tiles <= processors   # each column of B is then loaded at one time only
    stages = min(config.stages, max(found.steps, 2))
    alone = min(stages, TURN) if takes_turns(q, config.bm, config.bn, found.way, processors) else 0
    passing = (p.loads_memory and not stream and by_columns and q.m <= config.bm * order[1]
               and q.n * q.k * q.itemsize > L2)
    return replace(config, stages=stages, order=order, stream=stream, passing=passing, alone=alone,
                   dependent=not stream and _launches_early(p, config, tiles, found.cost, processors))


def _launches_early(p: Problem, config: Config, tiles: int, cost: float, processors: int) -> bool:
    """Whether an early launch pays: one that begins while the grid ahead of it ends."""
    full = p.bytes / (MEMORY * processors / 132) > FULL * cost
    if config.splits > 1:
        ctas, at_once = tiles * config.splits, places(config, processors)
        return not full or cost < BRIEF or ctas * 2 <= at_once or ctas >= NEARLY * processors
    if not p.loads_memory or tiles * 2 <= processors:
        return cost < SHORT
    if config.bm * config.bn <= SMALL:
        return cost < BRIEF
    return cost < (FULL_BRIEF if full else LARGE_BRIEF)


__all__ = ["Config", "Problem", "choose", "count_ctas", "rank_configs"]
