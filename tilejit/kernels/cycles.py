"""A model of the time of matrix products on Hopper: cycles of a multiprocessor. Its constants were measured on an H200; it ranks tiles, it does not
predict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf, log2
from operator import itemgetter
from typing import NamedTuple

from ..schedule import POWERS
from .config import SLOT, Config, rows
from .rules import HIGH


class Way(NamedTuple):
    """How CTAs take part of a tile: `splits` of them share its k (0: as many as there are for each), in clusters or not; all of them share
    (`stream`) what makes no whole round; two (`pair`) share its columns of B. The fields are those of `Config`."""

    splits: int = 1
    stream: bool = False
    pair: bool = False
    clustered: bool = True


# The tiles, with the share of the tensor cores' cycles, at the clock that their power allows, that each makes use of.
TILES = {(128, 256): 0.852, (192, 192): 0.848, (192, 160): 0.8, (128, 224): 0.82, (128, 192): 0.83, (192, 128): 0.82, (128, 160): 0.775,
         (128, 128): 0.8, (192, 96): 0.75, (128, 96): 0.76, (64, 256): 0.78, (64, 192): 0.77, (64, 128): 0.76, (128, 64): 0.76, (128, 32): 0.7,
         (64, 64): 0.7, (64, 32): 0.7, (64, 16): 0.7, (64, 8): 0.7}
FILLING = (128, 144), (128, 112), (128, 80), (64, 96), (64, 80), (256, 192), (256, 160), (256, 128)   # tiles for one round that may fill it better,
# and the shares there, where they are others
IN_ROUND = {(256, 192): 0.895, (256, 160): 0.868, (256, 128): 0.84, (256, 96): 0.83, (192, 96): 0.84, (128, 96): 0.83, (128, 64): 0.82,
            (64, 192): 0.93, (64, 128): 0.94, (64, 64): 0.68, (64, 32): 0.47, **dict.fromkeys(FILLING[:5], 0.8)}
BUSY = 0.3               # of the tensor cores' time: where memory takes as much, it is busy,
WAITS = 1.2              # and where it takes so many times as much, they wait for it
CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 14}   # of a size that 132 multiprocessors hold at once: they share a group of 16 or 18
LOADED = 60, 47.5        # bytes that a multiprocessor takes from L2 in a cycle where CTAs share k: those that ask for the same columns of B at one
                         # time, and where all are at other places; but
FEW = 384                # columns, all that a product has, are few enough for clusters along k to count as the former
OUTSIDE = 7.7            # cycles for each row of a mean tile's slot that lies outside of the matrix; those of few tiles take no longer
MEMORY = 2330            # bytes that all of them take from memory in a cycle,
APART = 1.075, 1.14      # times what they could where a tile's k is split, and where it is and sums go through memory,
AGAIN = 0.4, 0.19        # and so much of an operand that CTAs ask L2 for again, and in one round that does not wait for memory: of A for each
                         # doubling of the columns of tiles, since their CTAs are no neighbours (of B for that of the rows, if tiles go row by
                         # row), and of B for other rows, if neighbours are at other places along k

# In several rounds, each tile by one CTA, where the tensor cores do not wait for memory
USED = {64: 0.83, 128: 0.912, 192: 0.881}   # the share of the tensor cores' cycles by the rows of a tile: what loads take counts apart here
TAKEN = 80               # bytes that a multiprocessor takes from L2 in a cycle,
GIVEN = 62.5             # and that L2 gives each of them, if all ask: what neighbours share it gives once
ASTRIDE = {32: 1.69, 64: 1.5}   # what a row counts there that is so aligned: TMA asks 1.75 times for one in two lines of L2 at an odd multiple of 32
BEYOND = 10.5            # cycles for each row of a mean tile's slot that lies outside of the matrix
NEXT = 1190              # cycles from one tile to the next, beside those of its sums

# In one round, each tile by one CTA, where the tensor cores do not wait for memory
NEIGHBOURS = 16          # CTAs that started one after the other, whose requests for the same lines of L2 become one if they come at one time
ORDERS = ("snake", 16), ("row", 16), ("grouped", 4), ("grouped", 8), ("grouped", 2)   # of tiles
DIVIDED = 630            # cycles until a CTA knows its tile, by divisions,
BRIEF = 24               # which nothing has to gain that takes fewer slots of k
SERVED = 25.2            # bytes that L2 gives each multiprocessor in a cycle, if all ask: what neighbours share it gives once
ROW = 0.98, 4.77         # cycles of TMA for a row of a slot, and for one that lies outside of the matrix, in the tile that has most of these. Rows
                         # have 128 bytes, or, where columns of B lie side by side and do not fill so many, 64 or 32:
PIECES = 4, 7.5          # so many times more rows of B count then, as measured on an H100
ALONE = 0.955            # and of what these come to a slot is so much, but not of single tiles of up to SMALL nor of sums by threads
SMALL = 64 * 128         # elements
AROUND = 2530            # cycles until the first product, and after the last
MET = 2000               # cycles for which the two of a pair wait for each other
HIGHER = 3000            # cycles that tiles of 256 rows take more until they begin and end
WIDE = 128 * 128         # sums of a tile from which its consumers take the last slots in turn: smaller ones are up to 9 % slower for it,
HIDDEN = 0.038           # and cycles for each that stores of the first consumers then take under the products of the last

ASKED = 4.1              # cycles of a multiprocessor in which L2 serves a row of 128 bytes if rows are an odd multiple of 16 bytes apart: TMA asks
                         # 4.4 times for such a row, L2 answers 0.58 requests a cycle, and neighbours' requests for the same make 0.54 of them
PAIRED = 1.03            # what pairs cost: they are slower by 1.4 to 4 % where L2 has time enough,
ONCE = 0.28              # but for those whose tiles' k is shared through memory: they ask L2 for so much less of a tile's columns of B,
MEET = 1000              # and wait so many cycles for each other
FLAT = 1.06              # what tiles cost in one round that waits for memory if they have fewer rows of the larger matrix than of the other
BEGIN = 900              # cycles until a tile's first product, and after its last
EXCHANGE = 0.38          # cycles for each sum of a tile that the CTAs of a cluster send each other,
JOINED = 1610            # and until all have begun and sent, if none waits for memory; and if sums go through memory instead,
IN_MEMORY = 0.38, 2540   # for each, and until all see that all have left theirs
LARGE = 128, 256         # tiles that are worth sharing: smaller ones take as much from L2 as there is
EVEN = 1.007             # what sharing has to gain at least
UNEVEN = 1.06            # what it costs in few rounds that CTAs are at different places along k at one time
LEFT = 2000              # cycles until another CTA sees that there are sums for it, beside those for the sums themselves:
MOVED = 0.17             # for each sum that it leaves or takes in


@dataclass(frozen=True)
class Problem:
    """A product: its extents, how many matrices, the bytes of an element of the operands and of the result, whether a user's
    function is applied to it and whether all arrays that it is given can come by TMA, how threads scale and add
    up partial sums (None: not at all), of how many elements along k the blocks are that the tensor cores scale (0: none),
    whether A lies by columns and B by rows, k far apart, the bytes of operands that are copied first, in
    their places and in exchanged ones, the power of 2, up to 128, that divides the bytes between rows of A and of B, whether the
    user's function takes its sums in 16 bits."""

    m: int
    n: int
    k: int
    matrices: int = 1
    itemsize: float = 2
    stored: int = 2
    epilogue: bool = False
    ahead: bool = False
    promoted: tuple[bool, ...] | None = None
    block: int = 0
    across: tuple[bool, bool] = False, False
    copied: tuple[int, int] = 0, 0
    aligned: tuple[int, int] = 128, 128
    narrow: bool = False

    def turned(self) -> "Problem":
        return replace(self, m=self.n, n=self.m, ahead=False, promoted=self.promoted and self.promoted[::-1], across=self.across[::-1],
                       copied=self.copied[::-1], aligned=self.aligned[::-1])

    def takes(self, bm: int, bn: int) -> bool:
        """Whether the registers hold the tile: threads that add up partial sums have those and the scales of columns beside it, and a tile
        has columns of one block of scales. Then three consumers of 128 columns, though they fit, are mostly slower than two of 256."""
        if bm == HIGH:
            return bn >= 96 and self.promoted is None and self.itemsize == self.stored == 2 and not self.epilogue
        if self.promoted is None:
            return True
        return (bm, bn) != (192, 128) and (128 % bn == 0 or self.n <= bn <= 128 or bn == 256 and self.promoted[1:] != (True,))

    @property
    def uneven(self) -> tuple[bool, bool]:
        """Whether rows of A and of B are an odd multiple of 16 bytes apart."""
        return self.aligned[0] == 16, self.aligned[1] == 16

    @property
    def busy(self) -> bool:
        """Whether memory takes much of the time that the tensor cores need."""
        return self.memory > BUSY

    @property
    def waits(self) -> bool:
        """Whether the tensor cores wait for memory."""
        return self.memory > WAITS

    @cached_property
    def memory(self) -> float:
        """The time that memory takes, in that of the tensor cores."""
        slots = self.matrices * self.m * self.n / 32 * -(-self.k * self.itemsize // SLOT)
        return self.bytes / MEMORY / (slots / TILES[LARGE] / 132) if slots else inf

    @cached_property
    def bytes(self) -> float:
        return self.matrices * ((self.m + self.n) * self.k * self.itemsize + self.m * self.n * self.stored)


@lru_cache(maxsize=None)
def share(bm: int, bn: int, in_round: bool = False) -> float:
    """The share of the tensor cores' cycles that a tile makes use of: between those that are known, in proportion."""
    known = TILES | IN_ROUND if in_round else TILES
    widths = sorted(wide for high, wide in known if high == bm)
    above = next((wide for wide in widths if wide >= bn), widths[-1])
    below = max((wide for wide in widths if wide <= bn), default=above)
    part = (bn - below) / (above - below) if above > below else 0
    return known[bm, below] + part * (known[bm, above] - known[bm, below])


def step_cycles(bm: int, bn: int, rows: float | None = None, apart: bool = True, outside: float = 0) -> float:
    """The cycles that a CTA takes for one slot of a tile of bm by bn, of whose rows of A and columns of B it loads so many (None:
    all), what others load at one time or (`apart`) not; `outside` of those of a mean tile lie outside of the matrices."""
    rows = bm + bn if rows is None else rows
    return max(bm * max(bn, 32) / 32 / share(bm, bn), rows * SLOT / LOADED[apart] + outside * OUTSIDE)


def tile_cycles(k: int, itemsize: int, bm: int, bn: int, splits: int = 1, rows: float | None = None, apart: bool = True,
                outside: float = 0) -> float:
    """The cycles that a CTA takes for a tile of bm by bn, or for its share of the tile's k; the rest is as in `step_cycles`."""
    return -(-k * itemsize // (SLOT * splits)) * step_cycles(bm, bn, rows, apart, outside) + BEGIN + bm * bn / 40


def both(computing: float, loading: float, asking: float = 0) -> float:
    """The cycles of what goes on at one time: near the longest, and more where they are alike."""
    return (computing ** 3 + loading ** 3 + asking ** 3) ** (1 / 3)


@lru_cache(maxsize=4096)
def shared_rest(left: int, steps: int, ctas: int, bm: int, bn: int) -> tuple[int, int, int, float]:
    """How `left` tiles of `steps` slots, fewer than the CTAs, are done in the least time by all of them: (the last slots of each that other
    CTAs than its own take, how many those are, in how many parts they take the rests that are too few for all of them, cycles). A
    helper leaves sums of each tile that it has slots of, the tile's own CTA takes them in."""
    step, moved = step_cycles(bm, bn), LEFT + bm * bn * MOVED
    best = (0, 0, 0, steps * step)
    for helpers in range(1, ctas - left + 1):
        rounds, more = divmod(left, helpers)
        for parts in range(1, helpers // more + 1) if more else (1,):
            given = rounds + (more > 0)
            rest = min(int((steps * step + (parts - given) * moved) / (step * (1 + rounds + (1 / parts if more else 0)))), steps - 1)
            time = max((steps - rest) * step + parts * moved, (rounds * rest + (-(-rest // parts) if more else 0)) * step + given * moved)
            if rest >= parts and time < best[3]:
                best = rest, helpers, parts, time
    return best


def together(order: tuple[str, int], down: int, across: int) -> tuple[float, float]:
    """How many rows and columns of tiles, of `down` and `across`, neighbours have."""
    name, group = order
    high = min(NEIGHBOURS, group, down)
    wide = min(NEIGHBOURS if name == "row" else NEIGHBOURS / high, across)
    return min(NEIGHBOURS / wide, down) if name == "row" or wide == across else high, wide


def asked(p: Problem, bm: int, bn: int, order: tuple[str, int]) -> float:
    """The rows of a slot for which each of the neighbours asks L2, if they ask for what they share together."""
    high, wide = together(order, -(-p.m // bm), -(-p.n // bn))
    return (high * min(bm, p.m) + wide * min(bn, p.n)) / (high * wide)


def divides(order: tuple[str, int], down: int, across: int) -> bool:
    """Whether a CTA divides until it knows its tile: `schedule` says where it does not."""
    name, group = order
    count = across if name == "row" else min(group, down)
    return count & (count - 1) != 0 or count > POWERS[-1] or name != "row" and down > group


def at_once(p: Problem, bm: int, bn: int, way: Way, processors: int) -> bool:
    """Whether each tile is that of one CTA, and the GPU holds all at one time."""
    return way.splits == 1 and not way.stream and rows(p.m, bm, way.pair) * -(-p.n // bn) * p.matrices <= processors


def unhindered(p: Problem, bm: int, bn: int, way: Way, processors: int) -> bool:
    """Whether the GPU holds all tiles at one time, each that of one CTA, and they do not wait for memory."""
    return not p.waits and at_once(p, bm, bn, way, processors)


def order_in_rounds(p: Problem, bm: int, bn: int, group: int = NEIGHBOURS) -> tuple[str, int]:
    """The order of tiles, each that of one CTA, by which neighbours ask L2 for little in several rounds: up to 1.3 times as fast."""
    return min(("snake", group), ORDERS[1], key=lambda order: asked(p, bm, bn, order))


def order_at_once(p: Problem, bm: int, bn: int, way: Way, processors: int) -> tuple[str, int] | None:
    """The order by which neighbours ask L2 for little then, up to 1.6 times as fast; None if tiles are not at work so."""
    if way.pair or not at_once(p, bm, bn, way, processors):
        return None
    if not p.waits:
        return in_one_round(p, bm, bn, False, processors)[1]
    return min(ORDERS[:2], key=lambda order: asked(p, bm, bn, order))


def takes_turns(p: Problem, bm: int, bn: int, way: Way, processors: int) -> bool:
    """Whether the consumers of such a tile take its last slots one after the other: in one round that does not wait for memory; not where threads
    add up the sums of each slot, nor of float32, which they may load from slots."""
    able = bm > 64 and bm * bn >= WIDE and p.promoted is None and not way.pair and p.itemsize < 4
    return able and unhindered(p, bm, bn, way, processors)


def in_one_round(p: Problem, bm: int, bn: int, pair: bool, processors: int) -> tuple[float, tuple[str, int]]:
    """The cycles that a product takes then, that does not wait for memory, in the fastest order of tiles; and this order."""
    down, across, slots = -(-p.m // bm), -(-p.n // bn), -(-p.k * p.itemsize // SLOT)
    tiles = rows(p.m, bm, pair) * across * p.matrices
    pieces = PIECES[bn % 32 > 0] if p.across[1] and bn % 64 else 1
    outside = (bm if pair and down % 2 else bm * down - p.m) + (bn * across - p.n) * pieces
    brought = (bm + bn * pieces - outside) * ROW[0] + outside * ROW[1]
    multiplied = bm * max(bn, 32) / 32 / share(bm, bn, True)
    part = ALONE if p.promoted is None and (pair or bm * bn > SMALL) else 1
    hidden = HIDDEN * bm * bn * takes_turns(p, bm, bn, Way(pair=pair), processors)
    best = inf, ORDERS[0]
    for order in ORDERS[:1] if pair else ORDERS[:2] if slots < BRIEF and not divides(ORDERS[0], down, across) else ORDERS:
        served = asked(p, bm, bn, order) * SLOT * tiles / (SERVED * processors)
        until = AROUND + HIGHER * (bm == HIGH) + DIVIDED * divides(order, down, across) + MET * pair - hidden
        computing = slots * both(multiplied, brought, served) * part + until
        again = AGAIN[1] * p.matrices * p.k * p.itemsize * (p.n * log2(down) if order[0] == "row" else p.m * log2(across))
        best = min(best, (both(computing, reading_cycles(p, bm, bn, tiles, processors, p.bytes + again, pair)), order), key=itemgetter(0))
    return best


def in_rounds(p: Problem, bm: int, bn: int, rounds: int, rows: float, columns: float) -> float:
    """The cycles that so many tiles take, one after the other, of which a mean one has so many rows of A and columns of B."""
    taken = (rows * ASTRIDE.get(p.aligned[0], 1) + columns * ASTRIDE.get(p.aligned[1], 1)) * SLOT / TAKEN + (bm + bn - rows - columns) * BEYOND
    served = asked(p, bm, bn, order_in_rounds(p, bm, bn)) * SLOT / GIVEN
    step = both(bm * max(bn, 32) / 32 / USED[bm], taken, served)
    return rounds * (-(-p.k * p.itemsize // SLOT) * step + NEXT + bm * bn / 40)


def loading_cycles(p: Problem, bm: int, bn: int, tiles: int, processors: int, way: Way = Way()) -> float:
    """The cycles that memory takes for the product elsewhere, or L2 for what TMA asks it for."""
    shared, by_rows = way.splits > 1, p.waits and order_at_once(p, bm, bn, way, processors) == ORDERS[1]
    far = p.n * log2(-(-p.m // bm)) if by_rows else p.m * log2(-(-p.n // bn))
    again = AGAIN[0] * p.matrices * p.k * p.itemsize * (far + (p.n if shared and p.m > bm else 0))
    return reading_cycles(p, bm, bn, tiles, processors, p.bytes * (APART[not way.clustered] if shared else 1) + again, way.pair)


def reading_cycles(p: Problem, bm: int, bn: int, tiles: int, processors: int, read: float, pair: bool) -> float:
    """The cycles that memory takes for so many bytes, or L2 for what TMA asks it for."""
    uneven = bm * p.uneven[0] + bn / (2 if pair else 1) * p.uneven[1]
    return max(read / MEMORY * 132, tiles * -(-p.k * p.itemsize // SLOT) * uneven * ASKED) / processors


def streamed_cycles(p: Problem, bm: int, bn: int, processors: int) -> float:
    """The cycles that the product takes where all CTAs share what does not make whole rounds of tiles."""
    tiles, steps = -(-p.m // bm) * -(-p.n // bn) * p.matrices, max(-(-p.k * p.itemsize // SLOT), 1)
    if tiles % processors == 0 or tiles < processors or (bm, bn) != LARGE:
        return inf
    shared = shared_rest(tiles % processors, steps, processors, bm, bn)[3] + LEFT
    computing = in_rounds(p, bm, bn, tiles // processors, bm, bn) + shared + BEGIN + bm * bn / 40
    return both(computing, loading_cycles(p, bm, bn, tiles, processors)) * (EVEN if tiles > 3 * processors else UNEVEN)


def places(way: Way | Config, processors: int) -> int:
    """How many CTAs that take part of tiles in this way the GPU holds at once."""
    return CLUSTERS[way.splits] * processors // 132 * way.splits if way.clustered else processors


def cycles(p: Problem, bm: int, bn: int, way: Way, processors: int) -> float:
    """The cycles that the product takes in tiles of bm by bn by CTAs that take part in them in this way."""
    if unhindered(p, bm, bn, way, processors):
        return in_one_round(p, bm, bn, way.pair, processors)[0]
    down, across, shared = rows(p.m, bm, way.pair), -(-p.n // bn), way.splits > 1
    tiles = down * across * p.matrices
    rounds = -(-tiles // max(places(way, processors) // way.splits, 1))
    mean = p.m / down + p.n / across
    if rounds > 1 and way == Way() and not p.waits:
        return both(in_rounds(p, bm, bn, rounds, p.m / down, p.n / across), loading_cycles(p, bm, bn, tiles, processors, way))
    held = mean if rounds > 1 else min(p.m, bm) + min(p.n, bn)
    each, once = (0, 0) if not shared else (EXCHANGE, JOINED * (not p.waits)) if way.clustered else IN_MEMORY
    apart = rounds > 1 or shared and (not way.clustered or down > 1 and p.n > FEW)
    saved, meet, paired = (0, 0, 1) if not way.pair else (ONCE * bn, MEET, 1) if shared else (0, 0, PAIRED)
    tile = tile_cycles(p.k, p.itemsize, bm, bn, way.splits, held - saved, apart, bm + bn - mean) + each * bm * bn + once + meet
    flat = p.waits and rounds == 1 and not shared and (min(p.n, bn) > bm if p.m > p.n else min(p.m, bm) > bn)
    return both(rounds * tile * paired * (FLAT if flat else 1), loading_cycles(p, bm, bn, tiles, processors, way)) * (1 if way.clustered else EVEN)


__all__ = ["Problem", "Way", "cycles", "order_at_once", "streamed_cycles", "takes_turns", "unhindered"]
