"""Which configuration a matrix product on Hopper takes: the one that a model of the time (`cycles.py`) expects to be the fastest, without a
search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import inf
from operator import attrgetter
from typing import NamedTuple

from .config import SLOT, Config, along, narrow, part, rows, shares_of
from .cycles import (CLUSTERS, FILLING, LARGE, MEMORY, SMALL, TILES, Problem, Way, cycles, order_at_once, order_in_rounds, places,
                     streamed_cycles, takes_turns, unhindered)
from .mainloop import BLOCK
from .rules import HIGH, possible, stored_at_once

WAYS = *map(Way, CLUSTERS), Way(stream=True), Way(pair=True), Way(0, clustered=False), Way(0, pair=True, clustered=False)
WIDEST = {64: 256, 128: 256, 192: 192, 256: 192}   # columns of tiles of so many rows: registers hold no more
NARROWEST = 48           # and the fewest of those that are chosen to fit a matrix,
WHOLE = 128 * 160        # sums of a tile that may go to the result at one time, and
ROUNDS = 4               # where so many rounds of them, at most, cover it
MANY = 64                # CTAs that share a tile's k without a cluster, at most
LONG = 16                # slots of k from which three at a time are enough, so that buffers for a whole tile pay, unless memory is busy, or
                         # consumers take turns, so that only one of them waits for its stores
SHORT = 400000           # cycles below which it pays that a launch begins while the grid ahead ends, unless memory is busy: CTAs that take
                         # multiprocessors as these come free have no neighbours at the same operands, and a launch may take 1.4 times as long
BRIEF = 14000            # cycles below which it pays all the same with tiles of at most SMALL elements, which ask L2 for most in a cycle,
FULL_BRIEF = 22000       # with larger ones where memory takes more than FULL of the time,
LARGE_BRIEF = 50000      # and with larger ones elsewhere
FULL = 0.6
NEARLY = 0.7             # of the multiprocessors: where fewer CTAs share tiles' k, but too many for two grids side by side, and memory takes more
                         # than FULL, a launch that begins early is up to 18 % slower
PANEL = 32 << 20         # bytes of the rows of A of a group that are much of L2
L2 = 50 << 20            # bytes: a larger operand, which all rows of tiles read at one time, leaves nothing there for later
TURN = 6                 # slots that a consumer has in its turn, at most
LATE = 128               # columns of a tile that are finished under the next one's products: 64 are up to 0.3 % slower, 0.7 % where B lies by rows
NARROW = 1.03, 1.12      # what tiles cost whose columns lie side by side but are no multiple of 64, since TMA goes by rows of 64 bytes then: where
                         # CTAs share k or wait for memory, and in several rounds
TURNED = 1.02            # what tiles cost where operands have changed places and the tensor cores wait for memory, as measured, or for an epilogue
ACROSS = 0.21            # cycles for each sum that is stored across rows, since operands have changed places, or that an epilogue takes,
STAGED = 0.03, 0.005     # and where it is only stored, by way of shared memory, and where that is under the next tile's products
COPY = 4000              # cycles for a kernel of its own that copies operands, beside the bytes that it reads and writes


def evenly(tiles: int, processors: int) -> int:
    """So few CTAs, each with as many of the `tiles` as another, nearly, that these make no more rounds. Those at work at one time are then at
    neighbouring tiles until the end: 0.3 to 2.8 % faster than with all `processors`."""
    return -(-tiles // -(-tiles // processors))


def group(p: Problem, bm: int, bn: int, processors: int) -> int:
    """How many rows of tiles are a group: fewer where the rows of A would be much of L2 for many rounds."""
    long = 16 * bm * p.k * p.itemsize >= PANEL and 16 * -(-p.n // bn) > 4 * processors
    return 8 if long else 16


@lru_cache(maxsize=4096)
def choose(p: Problem, processors: int, columns_first: bool | None = None) -> Config:
    """The configuration that the model expects to be the fastest. `columns_first` says that the operands change places, or
    that they do not; without it the faster way is taken."""
    return next(_by_cost(p, processors, columns_first))


def ranked(p: Problem, processors: int, columns_first: bool | None = None) -> list[Config]:
    """All configurations, those that the model expects to be the fastest first."""
    return list(_by_cost(p, processors, columns_first))


def _by_cost(p: Problem, processors: int, columns_first: bool | None) -> Iterator[Config]:
    for found in sorted(_candidates(p, processors, columns_first), key=attrgetter("cost")):
        config = _fitting(p, processors, found, columns_first is True)
        if config is not None:
            yield _finished(p, processors, found, config)


def _ways(p: Problem, bm: int, bn: int, slots: int, processors: int):
    """The ways in which CTAs can take part of tiles of bm x bn, of so many `slots` of k."""
    for way in WAYS:
        tiles = rows(p.m, bm, way.pair) * -(-p.n // bn) * p.matrices
        way = way if way.splits else way._replace(splits=min(processors // tiles, MANY))
        shared = way.splits > 1 and way.splits * 2 <= slots
        if shared and way.clustered:
            shared = bn % (8 * way.splits) == 0
        elif shared:  # not by few of many CTAs, nor many columns by one: each has the sums of all at once in registers
            shares = shares_of(bn, way.splits)
            shared = 4 * shares >= min(way.splits, bn // 8) and bn <= (128 if p.itemsize < 4 else 96) * shares
        if way.pair:
            possible = bn % 16 == 0 and (shared and p.m > bm and p.promoted is None or any(p.uneven) and way.clustered)
        else:
            possible = shared or way == Way() or way.stream and p.promoted is None
        if possible:
            yield way


def unit(p: Problem) -> int:
    """Columns by which tiles differ: integers have fewer widths of an instruction (PTX ISA, "wgmma", shapes), and rows of B are pieces of 16
    bytes or of multiples of 32."""
    return 16 if p.itemsize == 1 and p.n > 32 or p.across[1] and p.n > 8 else 8


def part_of(p: Problem, bm: int, count: int) -> int:
    """The columns of tiles of which so many side by side have no more than the matrix, since TMA takes longer for what lies outside; but those of a
    large tile make parts that go to the result one after the other: 8 columns more are 4 to 10 % faster than all at one time."""
    bn = -(-p.n // count // unit(p)) * unit(p)
    return bn + unit(p) if bm * bn > WHOLE and part(bn, 64, True) == bn else bn


def tiles_for(p: Problem) -> list[tuple[int, int]]:
    """The tiles, and those as wide as the matrix, or up to a fourth of it where it has more than 128 columns."""
    exact = {(bm, part_of(p, bm, count)) for bm in (64, 128) for count in range(1, 5 if p.n > 128 else 2)}
    return [*TILES, *sorted(tile for tile in exact if tile[1] <= 256 and tile not in TILES)]


def fitting(p: Problem, processors: int) -> Iterator[tuple[int, int]]:
    """The tiles as wide as a part of the matrix by which the fewest columns stand one after the other in a CTA's tiles: three for each height."""
    for bm, most in WIDEST.items():
        down, found = -(-p.m // bm) * p.matrices, {}
        for count in range(-(-p.n // most), min(p.n // NARROWEST, ROUNDS * processors // down) + 1):
            if (bn := part_of(p, bm, count)) <= most:
                found.setdefault(bn, -(-down * -(-p.n // bn) // processors) * bn)
        yield from ((bm, bn) for bn in sorted(found, key=found.get)[:3])


class Candidate(NamedTuple):
    """A tile and a way to take part in tiles, in exchanged places or not, with the slots of k of a CTA and the expected cycles."""

    cost: float
    swapped: bool
    bm: int
    bn: int
    way: Way
    steps: int


def expected(p: Problem, q: Problem, swapped: bool, bm: int, bn: int, way: Way, processors: int) -> float:
    """The cycles that the model expects of a tile and a way to take part in tiles, for a problem as it is then."""
    once, tiles = unhindered(q, bm, bn, way, processors), -(-q.m // bm) * -(-q.n // bn) * p.matrices
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
    """Each tile and way that there is."""
    for swapped in (False, True) if columns_first is None else (columns_first,):
        q = p.turned() if swapped else p
        always = tiles_for(q) if swapped else TILES
        fitted = {*fitting(q, processors)} if swapped and p.stored == 2 else ()   # wider results leave too few slots beside them
        for bm, bn in filter(lambda t: q.takes(*t), dict.fromkeys((*always, *fitted, *FILLING))):
            slots = -(-p.k // (SLOT if p.promoted is not None else along(bm, bn, p.itemsize)))
            for way in _ways(q, bm, bn, slots, processors) if (bm, bn) in always else (Way(),):
                once = unhindered(q, bm, bn, way, processors)
                if not once and (bm == HIGH or (bm, bn) not in always and (bm, bn) not in fitted):
                    continue
                cost = expected(p, q, swapped, bm, bn, way, processors)
                if cost < inf:
                    yield Candidate(cost, swapped, bm, bn, way, -(-slots // way.splits))


def _fitting(p: Problem, processors: int, found: Candidate, by_rows: bool) -> Config | None:
    """The configuration of a candidate; None where shared memory has no two slots of it. `by_rows` says that what are rows of the result once
    the operands have changed places lie in one piece, so that TMA may store them."""
    _, swapped, bm, bn, way, _ = found
    q, tile = p.turned() if swapped else p, (bm, bn)
    # In one round nothing hides the stores but their own parts, which are narrow then. So it is with wide elements,
    # and an epilogue has fewer values at once. One that finds its operands there is over sooner without parts, but for
    # the last round.
    tiles = -(-q.m // bm) * -(-q.n // bn) * p.matrices
    several = p.stored == 2 and tiles > processors
    alone = tiles <= processors or p.stored > 2 or p.epilogue and not q.ahead
    long = tile == LARGE and p.k * p.itemsize > LONG * SLOT and not p.busy
    kept = several and way.splits == 1 and not p.epilogue and tile != (192, 192) and p.promoted is None
    late = (bn if q.narrow else LATE) if several and long and q.ahead else 0
    by_columns = swapped and p.stored == 4  # places in buffers are registers then, which the products' loop lacks
    width = 128 if alone or late or kept else 512 if q.ahead and tiles > 8 * processors else 256
    most = width // p.stored if p.promoted is None else min(width // p.stored, BLOCK)
    columns = part(bn, (48 if swapped else 32) if bm == HIGH else most, swapped)
    columns = columns if not by_rows or stored_at_once(columns * p.stored) else narrow(bn, most)
    turns = takes_turns(q, bm, bn, way, processors) and not p.epilogue
    least = 3 if (q.ahead or long and not turns) and not (by_columns or kept) else 4
    config = possible(Config.of, bm, bn, 0 if p.promoted is None else SLOT, splits=way.splits, swapped=swapped, itemsize=p.itemsize, stored=p.stored,
                      epilogue=p.epilogue and not q.ahead, width=columns, least=least, blocks=bool(p.promoted), clustered=way.clustered)
    return config and replace(config, late=late, kept=kept, pair=way.pair, buffers=1 if way.stream and by_columns else config.buffers)


def _finished(p: Problem, processors: int, found: Candidate, config: Config) -> Config:
    """The configuration with what follows from its tile, its steps and the expected cycles."""
    q, stream = p.turned() if config.swapped else p, found.way.stream
    # At one pace rows of A come once; else every other group ends where the next begins, whose columns of B are still in L2.
    order = ("grouped", 16) if stream else ("snake", group(q, config.bm, config.bn, processors))
    if found.way == Way():
        order = order_at_once(q, config.bm, config.bn, found.way, processors) or order_in_rounds(q, config.bm, config.bn, order[1])
    tiles = config.tiles(q.m, q.n) * p.matrices
    by_columns = order[0] != "row" or tiles <= processors   # that columns of B are asked for at one time only
    stages = min(config.stages, max(found.steps, 2))
    alone = min(stages, TURN) if takes_turns(q, config.bm, config.bn, found.way, processors) else 0
    passing = p.busy and not stream and by_columns and q.m <= config.bm * order[1] and q.n * q.k * q.itemsize > L2
    return replace(config, stages=stages, order=order, stream=stream, passing=passing, alone=alone,
                   dependent=not stream and _early(p, config, tiles, found.cost, processors))


def _early(p: Problem, config: Config, tiles: int, cost: float, processors: int) -> bool:
    """Whether it pays that a launch begins while the grid ahead ends."""
    full = p.bytes / (MEMORY * processors / 132) > FULL * cost
    if config.splits > 1:
        ctas, at_once = tiles * config.splits, places(config, processors)
        return not full or cost < BRIEF or ctas * 2 <= at_once or ctas >= NEARLY * processors
    brief = BRIEF if config.bm * config.bn <= SMALL else FULL_BRIEF if full else LARGE_BRIEF
    return cost < (brief if p.busy and tiles * 2 > processors else SHORT)


__all__ = ["Config", "Problem", "choose", "evenly", "ranked"]
