"""A performance model of matrix products on Hopper, in SM cycles.

It estimates each tile shape and each way to divide the work among CTAs. Its constants were measured on an H200. It
is made to rank configurations, not to predict times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import inf, log2
from operator import itemgetter
from typing import NamedTuple

from ...concurrency import cached_property
from ...schedule import POWERS
from .config import SLOT, Config, rows
from .config_rules import HIGH


class Way(NamedTuple):
    """How CTAs share tiles. The fields mean the same as those of `Config`: `splits` CTAs share a tile's k (0 stands
    for as many as the GPU has for each tile), as clusters (`clustered`) or through global memory; all CTAs share the
    last partial round (`stream`, stream-K); two CTAs share the columns of B (`pair`)."""

    splits: int = 1
    stream: bool = False
    pair: bool = False
    clustered: bool = True


PLAIN = Way()

# All constants were measured on an H200 (132 multiprocessors, "SMs"), except where noted. Cycles are SM clock cycles. A
# "slot" is one stage of the ring: 128 bytes of k of a tile's rows of A and columns of B. A "round" is one wave of
# tiles.

# Tiles (bm, bn) that are always considered, with the fraction of the tensor cores' peak rate (at the clock that the
# power limit allows) that each reaches. The peak is bm * bn / 32 cycles for a slot.
TILES = {(128, 256): 0.852, (192, 192): 0.848, (192, 160): 0.8, (128, 224): 0.82, (128, 192): 0.83, (192, 128): 0.82,
         (128, 160): 0.775, (128, 128): 0.8, (192, 96): 0.75, (128, 96): 0.76, (64, 256): 0.78, (64, 192): 0.77,
         (64, 128): 0.76, (128, 64): 0.76, (128, 32): 0.7, (64, 64): 0.7, (64, 32): 0.7, (64, 16): 0.7, (64, 8): 0.7}
# Tiles that are considered for a single round only, which they may fill better.
FILLING = (128, 144), (128, 112), (128, 80), (64, 96), (64, 80), (256, 192), (256, 160), (256, 128)
# The fractions of FILLING and of tiles between, and those of TILES that are others in a single round.
IN_ROUND = {(256, 192): 0.895, (256, 160): 0.868, (256, 128): 0.84, (256, 96): 0.83, (192, 96): 0.84, (128, 96): 0.83,
            (128, 64): 0.82, (64, 192): 0.93, (64, 128): 0.94, (64, 64): 0.68, (64, 32): 0.47,
            **dict.fromkeys(FILLING[:5], 0.8)}
# time that memory needs / time that the tensor cores need (`Problem.memory`), above which memory counts as busy,
BUSY = 0.3
WAITS = 1.2              # and above which the product is memory-bound: the tensor cores wait
# cluster size -> clusters that 132 SMs hold at once: a cluster lies within a GPC of 16 or 18 SMs
CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 14}

# General model: products that are memory-bound, or whose tiles several CTAs share along k
# bytes per cycle that an SM takes from L2: where neighbours request the same columns of B at the same time,
# and where all
LOADED = 60, 47.5
                         # CTAs load different parts
FEW = 384                # columns of the whole product up to which clusters along k count as the former
# cycles per slot for each row of A or column of B outside the matrices, averaged over all tiles: if only few tiles have
OUTSIDE = 7.7
                         # such rows, they take no longer
MEMORY = 2330            # bytes per cycle that all SMs together read from memory
# factor on the bytes that memory moves where CTAs share a tile's k: in clusters, and with sums through global memory
APART = 1.075, 1.14
# fraction of an operand's bytes that counts as read again: in general, and in one round that is not memory-bound. A
AGAIN = 0.4, 0.19
                         # counts for each doubling of the columns of tiles, since the CTAs of a row of tiles are not
                         # neighbours (B for each doubling of the rows of tiles, if tiles go row by row), and B once
                         # more if neighbours are at different k

# Several rounds, one CTA per tile, not memory-bound (`in_rounds`)
# bm -> fraction of the tensor cores' peak rate; unlike in TILES, loads are modelled separately
USED = {64: 0.83, 128: 0.912, 192: 0.881}
TAKEN = 80               # bytes per cycle that an SM can take from L2
# bytes per cycle that L2 gives each SM if all SMs load at the same time; data that neighbours share counts once
GIVEN = 62.5
# alignment of rows in bytes -> factor on the bytes taken: 128 bytes at an odd multiple of 32 straddle two lines
ASTRIDE = {32: 1.69, 64: 1.5}
                         # of L2, and TMA makes 1.75 requests for them
BEYOND = 10.5            # the same as OUTSIDE, in this model
NEXT = 1190              # cycles from one tile to the next, apart from the part in proportion to the tile's elements

# A single round, one CTA per tile, not memory-bound (`in_one_round`)
# CTAs that started one after the other: L2 serves their simultaneous requests for a line as one
NEIGHBOURS = 16
ORDERS = ("snake", 16), ("row", 16), ("grouped", 4), ("grouped", 8), ("grouped", 2)   # orders of tiles to choose from
DIVIDED = 630            # cycles for the integer divisions by which a CTA finds its tile, in orders that need them
BRIEF = 24               # slots of k below which a better order gains less than its divisions cost
# bytes per cycle that L2 gives each SM if all SMs load at the same time; data that neighbours share counts once
SERVED = 25.2
# cycles that TMA takes for each row of a slot, and for each that lies outside the matrix,
# in the tile with most of these
ROW = 0.98, 4.77
# factor on the tile's columns of B in ROW, if B is N-major and comes in boxes 64 or 32 bytes wide
# instead of 128 (measured
PIECES = 4, 7.5
                         # on an H100)
# factor on the resulting cycles per slot, except for single tiles of up to SMALL elements, and for sums by threads
ALONE = 0.955
SMALL = 64 * 128         # elements of a tile
AROUND = 2530            # cycles before the first product and after the last, together
MET = 2000               # cycles that the CTAs of a pair wait for each other, in all
HIGHER = 3000            # cycles that tiles of 256 rows take in addition to AROUND
# elements of a tile from which staggering its consumers' last slots pays:
# smaller ones are up to 9 % slower with it (this
WIDE = 128 * 128
                         # and the next measured on an H100)
# cycles saved per element by staggering: stores of the first consumers run under the products of the last
HIDDEN = 0.038

# SM cycles in which L2 serves a row of 128 bytes if the pitch is an odd multiple of 16 bytes.
# TMA makes 4.4 requests for
ASKED = 4.1
                         # such a row, 0.54 of which remain after those of neighbours are merged,
                         # and L2 answers 0.58 per cycle
PAIRED = 1.03            # factor on the cycles of pairs: they are 1.4 to 4 % slower where L2 is not the limit
# but if CTAs share the tiles' k through memory, a pair loads fewer columns of B, by this fraction of bn,
ONCE = 0.28
MEET = 1000              # and its CTAs wait for each other, for this number of cycles
# factor on the cycles of a memory-bound single round whose tiles have fewer rows of the larger
# operand than of the smaller
FLAT = 1.06
BEGIN = 900              # cycles before a tile's first product and after its last, together
EXCHANGE = 0.38          # cycles for each of a tile's sums that the CTAs of a cluster send each other,
JOINED = 1610            # and cycles until all have begun and sent, if the product is not memory-bound
# the same two where sums go through global memory, the second until each CTA sees that all have left theirs
IN_MEMORY = 0.38, 2540
LARGE = 128, 256         # the only tile for stream-K: smaller ones already take all that L2 gives
EVEN = 1.007             # factor on the cycles of sharing: what it has to gain at least to be chosen
UNEVEN = 1.06            # the same where stream-K has few rounds, since CTAs are at different k at the same time
LEFT = 2000              # stream-K: cycles until another CTA sees that partial sums are there for it,
MOVED = 0.17             # and cycles for each sum that it writes or reads


@dataclass(frozen=True)
class Problem:
    """A matrix product as the model sees it.

    - `m`, `n`, `k`, and the number of `matrices`
    - `itemsize`, `stored`: bytes of an element of the operands and of the result
    - `epilogue`: whether there is a user's function; `ahead`: whether TMA can load the arrays that it is given
    - `promoted`: how threads scale and add up partial sums: None if they do not, else whether each operand's block
      scales are by row, () without scales
    - `block`: elements along k of the blocks that the tensor cores scale (Blackwell), 0 for none
    - `across`: whether A is M-major, and B N-major: their elements along k are not adjacent
    - `copied`: bytes of the operands that are copied before the product, as they are given and in swapped places
    - `aligned`: the largest power of 2, up to 128, that divides the bytes between rows of A, and of B
    - `narrow`: whether the user's function begins by casting its sums to a dtype of 16 bits"""

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

    def swap_operands(self) -> Problem:
        return replace(self, m=self.n, n=self.m, ahead=False, promoted=self.promoted and self.promoted[::-1],
                       across=self.across[::-1], copied=self.copied[::-1], aligned=self.aligned[::-1])

    def takes(self, bm: int, bn: int) -> bool:
        """Whether the kernel can hold the tile. If threads add up partial sums, their registers hold those and the
        scales of columns in addition, and all columns of a tile lie in one block of scales. 192 x 128 would fit then,
        but is mostly slower than two consumers of 256 columns."""
        if bm == HIGH:
            return bn >= 96 and self.promoted is None and self.itemsize == self.stored == 2 and not self.epilogue
        if self.promoted is None:
            return True
        return ((bm, bn) != (192, 128)
                and (128 % bn == 0 or self.n <= bn <= 128 or bn == 256 and self.promoted[1:] != (True,)))

    @property
    def odd_pitches(self) -> tuple[bool, bool]:
        """Whether rows of A, and rows of B, are an odd multiple of 16 bytes apart."""
        return self.aligned[0] == 16, self.aligned[1] == 16

    @property
    def loads_memory(self) -> bool:
        """Whether memory needs a considerable part of the time that the tensor cores need."""
        return self.memory > BUSY

    @property
    def waits(self) -> bool:
        """Whether the product is memory-bound: the tensor cores wait for memory."""
        return self.memory > WAITS

    @cached_property
    def memory(self) -> float:
        """The time that memory needs, as a multiple of the time that the tensor cores need."""
        slots = self.matrices * self.m * self.n / 32 * -(-self.k * self.itemsize // SLOT)
        return self.bytes / MEMORY / (slots / TILES[LARGE] / 132) if slots else inf

    @cached_property
    def bytes(self) -> float:
        return self.matrices * ((self.m + self.n) * self.k * self.itemsize + self.m * self.n * self.stored)


@cache
def share(bm: int, bn: int, in_round: bool = False) -> float:
    """The fraction of the tensor cores' peak rate that a tile reaches,
    linearly interpolated between the widths in the tables."""
    known = TILES | IN_ROUND if in_round else TILES
    widths = sorted(wide for high, wide in known if high == bm)
    above = next((wide for wide in widths if wide >= bn), widths[-1])
    below = max((wide for wide in widths if wide <= bn), default=above)
    part = (bn - below) / (above - below) if above > below else 0
    return known[bm, below] + part * (known[bm, above] - known[bm, below])


def step_cycles(bm: int, bn: int, rows: float | None = None, apart: bool = True, outside: float = 0) -> float:
    """The cycles that a CTA takes for one slot of a tile of bm by bn. It loads `rows` rows of A and columns of B in
    total (None: all of the tile's), which differ from what the other CTAs load at that time (`apart`) or are shared;
    `outside` is the mean number of rows and columns of a tile that lie outside the matrices."""
    rows = bm + bn if rows is None else rows
    return max(bm * max(bn, 32) / 32 / share(bm, bn), rows * SLOT / LOADED[apart] + outside * OUTSIDE)


def tile_cycles(k: int, itemsize: float, bm: int, bn: int, splits: int = 1, rows: float | None = None,
                apart: bool = True, outside: float = 0) -> float:
    """The cycles that a CTA takes for a tile of bm by bn, or for its share of the tile's k; the other parameters are
    those of `step_cycles`."""
    return -(-k * itemsize // (SLOT * splits)) * step_cycles(bm, bn, rows, apart, outside) + BEGIN + bm * bn / 40


def overlap_cycles(computing: float, loading: float, asking: float = 0) -> float:
    """The cycles of activities that overlap: about those of the longest,
    and more if several are about as long (a cubic norm)."""
    return (computing ** 3 + loading ** 3 + asking ** 3) ** (1 / 3)


@lru_cache(maxsize=4096)
def shared_rest(left: int, steps: int, ctas: int, bm: int, bn: int) -> tuple[int, int, int, float]:
    """The fastest way in which all `ctas` share `left` tiles, fewer than the CTAs, of `steps` slots each (stream-K).
    Each tile has a CTA of its own for its first slots; the other CTAs, the helpers, take the `rest` last slots of
    every tile. A helper writes partial sums for each tile that it worked on, and the tile's own CTA adds them up.
    Returns (`rest`, the number of helpers, the number of parts into which the rests are cut that do not make a whole
    turn of the helpers, cycles)."""
    step, moved = step_cycles(bm, bn), LEFT + bm * bn * MOVED
    best = (0, 0, 0, steps * step)
    for helpers in range(1, ctas - left + 1):
        rounds, more = divmod(left, helpers)
        for parts in range(1, helpers // more + 1) if more else (1,):
            given = rounds + (more > 0)
            rest = min(int((steps * step + (parts - given) * moved)
                           / (step * (1 + rounds + (1 / parts if more else 0)))), steps - 1)
            time = max((steps - rest) * step + parts * moved,
                       (rounds * rest + (-(-rest // parts) if more else 0)) * step + given * moved)
            if rest >= parts and time < best[3]:
                best = rest, helpers, parts, time
    return best


def covered_tiles(order: tuple[str, int], down: int, across: int) -> tuple[float, float]:
    """The rows and columns of tiles that a group of `NEIGHBOURS` covers at one time, out of `down` and `across`."""
    name, group = order
    high = min(NEIGHBOURS, group, down)
    wide = min(NEIGHBOURS if name == "row" else NEIGHBOURS / high, across)
    return min(NEIGHBOURS / wide, down) if name == "row" or wide == across else high, wide


def requests_per_cta(p: Problem, bm: int, bn: int, order: tuple[str, int]) -> float:
    """The rows of A and columns of B of a slot that each CTA requests from L2 on average, if neighbours' requests for
    the same data count once."""
    high, wide = covered_tiles(order, -(-p.m // bm), -(-p.n // bn))
    return (high * min(bm, p.m) + wide * min(bn, p.n)) / (high * wide)


def divides(order: tuple[str, int], down: int, across: int) -> bool:
    """Whether a CTA needs an integer division to find its tile: see `schedule` for the cases without."""
    name, group = order
    count = across if name == "row" else min(group, down)
    return count & (count - 1) != 0 or count > POWERS[-1] or name != "row" and down > group


def at_once(p: Problem, bm: int, bn: int, way: Way, processors: int) -> bool:
    """Whether each tile has one CTA, and the GPU holds all of them at once."""
    return way.splits == 1 and not way.stream and rows(p.m, bm, way.pair) * -(-p.n // bn) * p.matrices <= processors


def runs_unhindered(p: Problem, bm: int, bn: int, way: Way, processors: int) -> bool:
    """Whether each tile has one CTA, the GPU holds all of them at once, and the product is not memory-bound."""
    return not p.waits and at_once(p, bm, bn, way, processors)


def order_in_rounds(p: Problem, bm: int, bn: int, group: int = NEIGHBOURS) -> tuple[str, int]:
    """The order of tiles in which neighbours request the least from L2, for several rounds with one CTA per tile: up
    to 1.3 times as fast."""
    return min(("snake", group), ORDERS[1], key=lambda order: requests_per_cta(p, bm, bn, order))


def order_at_once(p: Problem, bm: int, bn: int, way: Way, processors: int) -> tuple[str, int] | None:
    """The order of tiles in which neighbours request little from L2, for a single round: up to 1.6 times as fast.
    None if tiles are not all at work at once, one CTA each, or CTAs are pairs."""
    if way.pair or not at_once(p, bm, bn, way, processors):
        return None
    if not p.waits:
        return in_one_round(p, bm, bn, False, processors)[1]
    return min(ORDERS[:2], key=lambda order: requests_per_cta(p, bm, bn, order))


def takes_turns(p: Problem, bm: int, bn: int, way: Way, processors: int) -> bool:
    """Whether the consumers of such a tile are staggered, which means that they multiply its last slots one after the
    other: in a single round that is not memory-bound. Not if threads add up the sums of each slot, and not for
    float32, which threads may load from slots."""
    able = bm > 64 and bm * bn >= WIDE and p.promoted is None and not way.pair and p.itemsize < 4
    return able and runs_unhindered(p, bm, bn, way, processors)


def in_one_round(p: Problem, bm: int, bn: int, pair: bool, processors: int) -> tuple[float, tuple[str, int]]:
    """The cycles of a product of a single round that is not memory-bound, in the fastest order of tiles;
    and that order."""
    down, across, slots = -(-p.m // bm), -(-p.n // bn), -(-p.k * p.itemsize // SLOT)
    tiles = rows(p.m, bm, pair) * across * p.matrices
    pieces = PIECES[bn % 32 > 0] if p.across[1] and bn % 64 else 1
    outside = (bm if pair and down % 2 else bm * down - p.m) + (bn * across - p.n) * pieces
    brought = (bm + bn * pieces - outside) * ROW[0] + outside * ROW[1]
    multiplied = bm * max(bn, 32) / 32 / share(bm, bn, True)
    part = ALONE if p.promoted is None and (pair or bm * bn > SMALL) else 1
    hidden = HIDDEN * bm * bn * takes_turns(p, bm, bn, Way(pair=pair), processors)
    best = inf, ORDERS[0]
    orders = ORDERS[:2] if slots < BRIEF and not divides(ORDERS[0], down, across) else ORDERS
    for order in ORDERS[:1] if pair else orders:
        served = requests_per_cta(p, bm, bn, order) * SLOT * tiles / (SERVED * processors)
        until = AROUND + HIGHER * (bm == HIGH) + DIVIDED * divides(order, down, across) + MET * pair - hidden
        computing = slots * overlap_cycles(multiplied, brought, served) * part + until
        reread = p.n * log2(down) if order[0] == "row" else p.m * log2(across)
        again = AGAIN[1] * p.matrices * p.k * p.itemsize * reread
        best = min(best,
                   (overlap_cycles(computing, reading_cycles(p, bm, bn, tiles, processors, p.bytes + again, pair)),
                    order),
                   key=itemgetter(0))
    return best


def in_rounds(p: Problem, bm: int, bn: int, rounds: int, rows: float, columns: float) -> float:
    """The cycles that a CTA takes for `rounds` tiles one after the other, which have `rows` rows of A and `columns`
    columns of B inside the matrices on average."""
    taken = ((rows * ASTRIDE.get(p.aligned[0], 1) + columns * ASTRIDE.get(p.aligned[1], 1)) * SLOT / TAKEN
             + (bm + bn - rows - columns) * BEYOND)
    served = requests_per_cta(p, bm, bn, order_in_rounds(p, bm, bn)) * SLOT / GIVEN
    step = overlap_cycles(bm * max(bn, 32) / 32 / USED[bm], taken, served)
    return rounds * (-(-p.k * p.itemsize // SLOT) * step + NEXT + bm * bn / 40)


def loading_cycles(p: Problem, bm: int, bn: int, tiles: int, processors: int, way: Way = PLAIN) -> float:
    """The cycles in which memory delivers the product's data, or L2 answers TMA's requests, whichever is more; for
    all but `in_one_round`."""
    shared, by_rows = way.splits > 1, p.waits and order_at_once(p, bm, bn, way, processors) == ORDERS[1]
    far = p.n * log2(-(-p.m // bm)) if by_rows else p.m * log2(-(-p.n // bn))
    again = AGAIN[0] * p.matrices * p.k * p.itemsize * (far + (p.n if shared and p.m > bm else 0))
    return reading_cycles(p, bm, bn, tiles, processors, p.bytes * (APART[not way.clustered] if shared else 1) + again,
                          way.pair)


def reading_cycles(p: Problem, bm: int, bn: int, tiles: int, processors: int, read: float, pair: bool) -> float:
    """The cycles in which memory delivers `read` bytes, or L2 answers TMA's requests for rows at odd multiples of 16
    bytes, whichever is more."""
    uneven = bm * p.odd_pitches[0] + bn / (2 if pair else 1) * p.odd_pitches[1]
    return max(read / MEMORY * 132, tiles * -(-p.k * p.itemsize // SLOT) * uneven * ASKED) / processors


def streamed_cycles(p: Problem, bm: int, bn: int, processors: int) -> float:
    """The cycles of the product if all CTAs share the last partial round of tiles (stream-K);
    infinity where that does not apply."""
    tiles, steps = -(-p.m // bm) * -(-p.n // bn) * p.matrices, max(-(-p.k * p.itemsize // SLOT), 1)
    if tiles % processors == 0 or tiles < processors or (bm, bn) != LARGE:
        return inf
    shared = shared_rest(tiles % processors, steps, processors, bm, bn)[3] + LEFT
    computing = in_rounds(p, bm, bn, tiles // processors, bm, bn) + shared + BEGIN + bm * bn / 40
    return overlap_cycles(computing,
                          loading_cycles(p, bm, bn, tiles, processors)) * (EVEN if tiles > 3 * processors else UNEVEN)


def places(way: Way | Config, processors: int) -> int:
    """How many CTAs that share tiles in this way the GPU holds at once."""
    return CLUSTERS[way.splits] * processors // 132 * way.splits if way.clustered else processors


def cycles(p: Problem, bm: int, bn: int, way: Way, processors: int) -> float:
    """The cycles of the product in tiles of bm by bn, shared by CTAs in this way."""
    if runs_unhindered(p, bm, bn, way, processors):
        return in_one_round(p, bm, bn, way.pair, processors)[0]
    down, across, shared = rows(p.m, bm, way.pair), -(-p.n // bn), way.splits > 1
    tiles = down * across * p.matrices
    rounds = -(-tiles // max(places(way, processors) // way.splits, 1))
    mean = p.m / down + p.n / across
    if rounds > 1 and way == Way() and not p.waits:
        return overlap_cycles(in_rounds(p, bm, bn, rounds, p.m / down, p.n / across),
                              loading_cycles(p, bm, bn, tiles, processors, way))
    held = mean if rounds > 1 else min(p.m, bm) + min(p.n, bn)
    each, once = 0, 0
    if shared:
        each, once = (EXCHANGE, JOINED * (not p.waits)) if way.clustered else IN_MEMORY
    apart = rounds > 1 or shared and (not way.clustered or down > 1 and p.n > FEW)
    saved, meet, paired = 0, 0, 1
    if way.pair:
        saved, meet, paired = (ONCE * bn, MEET, 1) if shared else (0, 0, PAIRED)
    tile = (tile_cycles(p.k, p.itemsize, bm, bn, way.splits, held - saved, apart, bm + bn - mean) + each * bm * bn
            + once + meet)
    flat = p.waits and rounds == 1 and not shared and (min(p.n, bn) > bm if p.m > p.n else min(p.m, bm) > bn)
    return overlap_cycles(rounds * tile * paired * (FLAT if flat else 1),
                          loading_cycles(p, bm, bn, tiles, processors, way)) * (1 if way.clustered else EVEN)


__all__ = ["Problem", "Way", "cycles", "order_at_once", "streamed_cycles", "takes_turns", "runs_unhindered"]
