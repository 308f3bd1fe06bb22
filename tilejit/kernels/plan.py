"""Which tile a matrix product takes: the configurations of the kernels, and a model of their time that chooses without a search.

The model counts cycles of a multiprocessor. Its constants were measured on an H200; it ranks tiles, it does not predict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, log2
from operator import itemgetter
from typing import NamedTuple

from .rules import check_fields

SHARED = 232448 - 1024   # bytes of shared memory that tiles and slots may take, barriers aside
STAGES_AT_MOST = 16
SLOT = 128               # bytes of k in a slot: a row of the widest swizzle


@dataclass(frozen=True)
class Config:
    """The shape of the kernel.

    `bm` x `bn` is the tile; `bk` the elements of k in each of `stages` slots; `splits` how many CTAs share a tile's k, `clustered`
    whether these are a cluster (2, 4 or 8) and exchange their sums through shared memory, or any number, and exchange them through
    global memory; `swapped` whether the operands change places (C^T = B^T A^T, so that `bn` counts rows of A);
    `order` the order of the tiles and its group; `behind` whether a product runs on while the next slot is awaited; `width` how many columns go
    through each of `buffers` to the result; `late` how many of a tile's last columns are finished under the next tile's products, `kept`
    whether without an epilogue all are stored under those; `dependent` whether the launch may begin before the grid ahead has ended;
    `stream` whether all CTAs share what does not make whole rounds of tiles; `passing` whether B goes through L2 without a stay; `pair`
    whether two CTAs whose tiles lie one above the other each bring half of their columns of B for both;
    `regs` the registers of a producer's and of a consumer's thread (None: what the launch gives).
    """

    bm: int = 128
    bn: int = 256
    bk: int = 64
    stages: int = 3
    splits: int = 1
    swapped: bool = False
    order: tuple[str, int] = ("grouped", 16)
    regs: tuple[int | None, int | None] = (40, 232)
    behind: bool = False
    width: int = 128
    buffers: int = 2
    dependent: bool = False
    stream: bool = False
    passing: bool = False
    late: int = 0
    kept: bool = False
    pair: bool = False
    clustered: bool = True

    @staticmethod
    def of(bm: int, bn: int, bk: int = 0, splits: int = 1, swapped: bool = False, itemsize: int = 2, stored: int = 2,
           stages: int = STAGES_AT_MOST, epilogue: bool = False, width: int = 0, least: int = 3, blocks: bool = False,
           clustered: bool = True) -> "Config":
        """The configuration of a tile: buffers for all of its columns, so that no store waits for another, where `least` slots
        fit beside them; as many slots as then fit, but no more than `stages`; room for what an `epilogue` may need to bring its
        operands into the layout of the sums; room for a factor for each row and column in a slot, if there are those of `blocks`;
        registers by need."""
        check_fields(bm=bm, bn=bn, stages=stages, splits=splits)
        bk = bk or (2 if bm + bn <= 80 else 1) * SLOT // itemsize
        width = width or narrow(bn, 256 // stored)
        check_fields(bk=bk, width=width)
        buffers, slot, room = max(bn // width, 1), (bm + bn) * (bk * itemsize + 4 * blocks), SHARED - (bm * narrow(bn, 64) * 4 if epilogue else 0)
        while buffers > 1 and room - bm * width * buffers * stored < least * slot:
            buffers //= 2
        aside = bm * width * buffers * stored if splits == 1 else 4 * bm * bn * (splits - 1) // splits if clustered else 0
        stages = min((room - aside) // slot, stages)
        # With setmaxnreg the assembler also knows each role's addresses to be uniform, where there are several consumers.
        regs = {64: (None, None), 128: (40, 232), 192: (32, 160)}[bm]
        return Config(bm, bn, bk, stages, splits, swapped, regs=regs, behind=bn < 256 or bm == 64, width=width, buffers=buffers,
                      clustered=clustered)

    @property
    def num_warps(self) -> int:
        return 4 * (1 + self.bm // 64)

    @property
    def shares(self) -> int:
        """In how many shares the `splits` CTAs of a tile finish its columns."""
        return shares_of(self.bn, self.splits)

    def tiles(self, m: int, n: int) -> int:
        """How many tiles cover a result of m by n, in pairs if CTAs work in these."""
        return rows(m, self.bm, self.pair) * -(-n // self.bn)

    def __str__(self) -> str:
        shared = f" k/{self.splits}{'' if self.clustered else ' in memory'}" if self.splits > 1 else ""
        return f"{self.bm}x{self.bn}x{self.bk}/{self.stages}{shared}" + " swapped" * self.swapped + " stream" * self.stream + " by pairs" * self.pair


def rows(m: int, bm: int, pair: bool = False) -> int:
    """How many rows of tiles cover `m`: an even number for pairs."""
    return -(-m // (2 * bm)) * 2 if pair else -(-m // bm)


def shares_of(bn: int, splits: int) -> int:
    """In how many equal shares, of whole groups of 8 columns, so many CTAs finish the columns of a tile: one each, at most."""
    return max(count for count in range(1, splits + 1) if bn // 8 % count == 0)


def narrow(bn: int, width: int) -> int:
    """The most columns, `width` or fewer, by which `bn` divides as often as by 2."""
    return min(bn & -bn, width)


# -- the model -------------------------------------------------------------------------------------------------------------

class Way(NamedTuple):
    """How CTAs take part of a tile: `splits` of them share its k (0: as many as there are for each), in clusters or not; all of them share
    (`stream`) what makes no whole round; two (`pair`) share its columns of B. The fields are those of `Config`."""

    splits: int = 1
    stream: bool = False
    pair: bool = False
    clustered: bool = True


# The tiles, with the share of the tensor cores' cycles, at the clock that their power allows, that each makes use of.
TILES = {(128, 256): 0.85, (192, 192): 0.84, (192, 160): 0.8, (128, 224): 0.825, (128, 192): 0.82, (192, 128): 0.82, (128, 160): 0.785,
         (128, 128): 0.79, (192, 96): 0.74, (128, 96): 0.76, (64, 256): 0.78, (64, 192): 0.77, (64, 128): 0.76, (128, 64): 0.76, (128, 32): 0.7,
         (64, 64): 0.7, (64, 32): 0.7, (64, 16): 0.7, (64, 8): 0.7}
OTHERS = 0.75            # and of those that are as wide as the matrix has columns
LONG = 16                # slots of k from which three of them at a time are enough, so that buffers for a whole tile pay, unless
BUSY = 0.3               # of the tensor cores' time is less than memory takes: then more slots have to be on their way
CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 14}   # of a size that 132 multiprocessors hold at once: they share a group of 16 or 18
WAYS = *map(Way, CLUSTERS), Way(stream=True), Way(pair=True), Way(0, clustered=False), Way(0, pair=True, clustered=False)
LOADED = 68, 54          # bytes that a multiprocessor takes from L2 in a cycle: in one round of tiles, whose CTAs ask for the same columns of B
                         # at one time, and where all are at other places, in rounds or along k; but
FEW = 384                # columns, all that a product has, are few enough for clusters along k to count as the former
OUTSIDE = 5.5            # cycles for each row of a mean tile's slot that lies outside of the matrix; those of few tiles take no longer
MEMORY = 2330            # bytes that all of them take from memory in a cycle,
APART = 1.075, 1.14      # times what they could where a tile's k is split, and where it is and sums go through memory,
AGAIN = 0.4              # and so much of an operand that CTAs ask L2 for again: of A for each doubling of the columns of tiles, since their CTAs are
                         # no neighbours (of B for that of the rows, if tiles go row by row), and of B for other rows, if neighbours are at other
                         # places along k
ASKED = 4.1              # cycles of a multiprocessor in which L2 serves a row of 128 bytes if rows are an odd multiple of 16 bytes apart: TMA asks
                         # 4.4 times for such a row, L2 answers 0.58 requests a cycle, and neighbours' requests for the same make 0.54 of them
PAIRED = 1.03            # what pairs cost: they are slower by 1.4 to 4 % where L2 has time enough,
ONCE = 0.2               # but for those whose tiles' k is shared through memory: they ask L2 for so much less of a tile's columns of B,
MEET = 1000              # and wait so many cycles for each other
BEGIN = 900              # cycles until a tile's first product, and after its last
SHORT = 400000           # cycles below which it pays that a launch begins while the grid ahead ends, unless memory is busy: CTAs that take
                         # multiprocessors as these come free have no neighbours at the same operands, and a launch may take 1.4 times as long
BRIEF = 14000            # cycles below which it pays all the same with tiles of at most SMALL elements, which ask L2 for most in a cycle,
FULL_BRIEF = 22000       # with larger ones where memory takes more than FULL of the time,
LARGE_BRIEF = 50000      # and with larger ones elsewhere
SMALL = 64 * 128
FULL = 0.6
NEARLY = 0.7             # of the multiprocessors: where fewer CTAs share tiles' k, but too many for two grids side by side, and memory takes more
                         # than FULL, a launch that begins early is up to 18 % slower
EXCHANGE = 0.36          # cycles for each sum of a tile that the CTAs of a cluster send each other, and, if it goes through memory instead,
IN_MEMORY = 0.38, 2400   # for each, and until all see that all have left theirs
MANY = 64                # CTAs that share a tile's k without a cluster, at most
LARGE = 128, 256         # tiles that are worth sharing: smaller ones take as much from L2 as there is
PANEL = 32 << 20         # bytes of the rows of A of a group that are much of L2
L2 = 50 << 20            # bytes: a larger operand, which all rows of tiles read at one time, leaves nothing there for later
NEIGHBOURS = 16          # CTAs that started one after the other, whose requests for the same lines of L2 become one if they come at one time
LATE = 128               # columns of a tile that are finished under the next one's products: 64 are up to 0.3 % slower, 0.7 % where B lies by rows
EVEN = 1.007             # what sharing has to gain at least
UNEVEN = 1.05            # what it costs in few rounds that CTAs are at different places along k at one time
NARROW = 1.03, 1.12      # what tiles cost whose columns lie side by side but are no multiple of 64, since TMA goes by rows of 64 bytes then:
MANY_ROWS = 1024         # with fewer rows of A, or some CTAs for each tile; and with so many
TURNED = 1.03            # what tiles of more than 64 columns cost where operands have changed places, as measured,
ACROSS = 0.2             # cycles for each sum that is stored across rows, since operands have changed places,
STAGED = 0.03            # and where that goes through shared memory, for elements of 4 bytes
LEFT = 2000              # cycles until another CTA sees that there are sums for it, beside those for the sums themselves:
MOVED = 0.17             # for each sum that it leaves or takes in
COPY = 4000              # cycles for a kernel of its own that copies operands, beside the bytes that it reads and writes


@dataclass(frozen=True)
class Problem:
    """A product: its extents, how many matrices, the bytes of an element of the operands and of the result, whether a user's
    function is applied to it and whether all arrays that it is given can come by TMA, how threads scale and add
    up partial sums (None: not at all), of how many elements along k the blocks are that the tensor cores scale (0: none),
    whether A lies by columns and B by rows, k far apart, the bytes of operands that are copied first, in
    their places and in exchanged ones, whether rows of A and of B are an odd multiple of 16 bytes apart."""

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
    uneven: tuple[bool, bool] = False, False

    def turned(self) -> "Problem":
        return replace(self, m=self.n, n=self.m, ahead=False, promoted=self.promoted and self.promoted[::-1], across=self.across[::-1],
                       copied=self.copied[::-1], uneven=self.uneven[::-1])

    def takes(self, bm: int, bn: int) -> bool:
        """Whether the registers hold the tile: threads that add up partial sums have those and the scales of columns beside it, and a tile
        has columns of one block of scales. Then three consumers of 128 columns, though they fit, are mostly slower than two of 256."""
        if self.promoted is None:
            return True
        return (bm, bn) != (192, 128) and (128 % bn == 0 or self.n <= bn <= 128 or bn == 256 and self.promoted[1:] != (True,))

    @property
    def busy(self) -> bool:
        """Whether memory takes much of the time that the tensor cores need."""
        slots = self.matrices * self.m * self.n / 32 * -(-self.k * self.itemsize // SLOT)
        return self.bytes / MEMORY > BUSY * slots / TILES[LARGE] / 132

    @property
    def bytes(self) -> float:
        return self.matrices * ((self.m + self.n) * self.k * self.itemsize + self.m * self.n * self.stored)


def evenly(tiles: int, processors: int) -> int:
    """So few CTAs, each with as many of the `tiles` as another, nearly, that these make no more rounds. Those at work at one time are then at
    neighbouring tiles until the end: 0.3 to 2.8 % faster than with all `processors`."""
    return -(-tiles // -(-tiles // processors))


def step_cycles(bm: int, bn: int, rows: float | None = None, apart: bool = True, outside: float = 0) -> float:
    """The cycles that a CTA takes for one slot of a tile of bm by bn, of whose rows of A and columns of B it loads so many (None: all), what others
    load at one time or (`apart`) not; `outside` of those of a mean tile lie outside of the matrices."""
    rows = bm + bn if rows is None else rows
    return max(bm * max(bn, 32) / 32 / TILES.get((bm, bn), OTHERS), rows * SLOT / LOADED[apart] + outside * OUTSIDE)


def tile_cycles(k: int, itemsize: int, bm: int, bn: int, splits: int = 1, rows: float | None = None, apart: bool = True,
                outside: float = 0) -> float:
    """The cycles that a CTA takes for a tile of bm by bn, or for its share of the tile's k; the rest is as in `step_cycles`."""
    return -(-k * itemsize // (SLOT * splits)) * step_cycles(bm, bn, rows, apart, outside) + BEGIN + bm * bn / 40


def both(computing: float, loading: float) -> float:
    """The cycles of what goes on at one time: near the longer of the two, and more where they are alike."""
    return (computing ** 3 + loading ** 3) ** (1 / 3)


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


def by_rows(p: Problem, bm: int, bn: int, way: Way, processors: int) -> bool:
    """Whether tiles go row by row: those that neighbours have in one round are together of fewer rows of A and columns of B then. That is up to
    1.6 times as fast where columns are few, as in a C^T."""
    down, across = -(-p.m // bm), -(-p.n // bn)
    if way != Way() or down * across * p.matrices > processors:
        return False
    down, across = min(down, NEIGHBOURS), min(across, NEIGHBOURS)
    return bm * NEIGHBOURS / across + bn * across < bm * down + bn * NEIGHBOURS / down


def loading_cycles(p: Problem, bm: int, bn: int, tiles: int, processors: int, way: Way = Way()) -> float:
    """The cycles that memory takes for the product, or L2 for what TMA asks it for."""
    shared = way.splits > 1
    far = p.n * log2(-(-p.m // bm)) if by_rows(p, bm, bn, way, processors) else p.m * log2(-(-p.n // bn))
    again = AGAIN * p.matrices * p.k * p.itemsize * (far + (p.n if shared and p.m > bm else 0))
    read = p.bytes * (APART[not way.clustered] if shared else 1) + again
    asked = bm * p.uneven[0] + bn / (2 if way.pair else 1) * p.uneven[1]
    return max(read / MEMORY * 132, tiles * -(-p.k * p.itemsize // SLOT) * asked * ASKED) / processors


def streamed_cycles(p: Problem, bm: int, bn: int, processors: int) -> float:
    """The cycles that the product takes where all CTAs share what does not make whole rounds of tiles."""
    tiles, steps = -(-p.m // bm) * -(-p.n // bn) * p.matrices, max(-(-p.k * p.itemsize // SLOT), 1)
    if tiles % processors == 0 or tiles < processors or (bm, bn) != LARGE:
        return inf
    shared = shared_rest(tiles % processors, steps, processors, bm, bn)[3] + LEFT
    computing = tiles // processors * tile_cycles(p.k, p.itemsize, bm, bn) + shared + BEGIN + bm * bn / 40
    return both(computing, loading_cycles(p, bm, bn, tiles, processors)) * (EVEN if tiles > 3 * processors else UNEVEN)


def places(way: Way | Config, processors: int) -> int:
    """How many CTAs that take part of tiles in this way the GPU holds at once."""
    return CLUSTERS[way.splits] * processors // 132 * way.splits if way.clustered else processors


def cycles(p: Problem, bm: int, bn: int, way: Way, processors: int) -> float:
    """The cycles that the product takes in tiles of bm by bn by CTAs that take part in them in this way."""
    down, across = rows(p.m, bm, way.pair), -(-p.n // bn)
    tiles = down * across * p.matrices
    rounds = -(-tiles // max(places(way, processors) // way.splits, 1))
    mean = p.m / down + p.n / across
    held = mean if rounds > 1 else min(p.m, bm) + min(p.n, bn)
    shared = way.splits > 1
    each, once = (0, 0) if not shared else (EXCHANGE, 0) if way.clustered else IN_MEMORY
    apart = rounds > 1 or shared and (not way.clustered or down > 1 and p.n > FEW)
    saved, meet, paired = (0, 0, 1) if not way.pair else (ONCE * bn, MEET, 1) if shared else (0, 0, PAIRED)
    tile = tile_cycles(p.k, p.itemsize, bm, bn, way.splits, held - saved, apart, bm + bn - mean) + each * bm * bn + once + meet
    computing = rounds * tile * paired
    return both(computing, loading_cycles(p, bm, bn, tiles, processors, way)) * (1 if way.clustered else EVEN)


def group(p: Problem, bm: int, bn: int, processors: int) -> int:
    """How many rows of tiles are a group: fewer where the rows of A would be much of L2 for many rounds."""
    long = 16 * bm * p.k * p.itemsize >= PANEL and 16 * -(-p.n // bn) > 4 * processors
    return 8 if long else 16


@lru_cache(maxsize=4096)
def choose(p: Problem, processors: int, columns_first: bool | None = None) -> Config:
    """The configuration that the model expects to be the fastest. `columns_first` says that the operands change places, or
    that they do not; without it the faster way is taken."""
    return _finished(p, processors, *min(_candidates(p, processors, columns_first), key=itemgetter(0)))


def ranked(p: Problem, processors: int, columns_first: bool | None = None) -> list[Config]:
    """All configurations, those that the model expects to be the fastest first."""
    return [_finished(p, processors, *found) for found in sorted(_candidates(p, processors, columns_first), key=itemgetter(0))]


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
            shared = 4 * shares >= min(way.splits, bn // 8) and bn <= 128 * shares
        if way.pair:
            possible = bn % 16 == 0 and (shared and p.m > bm and p.promoted is None or any(p.uneven) and way.clustered)
        else:
            possible = shared or way == Way() or way.stream and p.promoted is None
        if possible:
            yield way


def tiles_for(p: Problem) -> list[tuple[int, int]]:
    """The tiles, and those of which one, two or three side by side have no more columns than the matrix: TMA takes longer for what lies outside."""
    # columns of an instruction: integers have fewer widths (PTX ISA, "wgmma", shapes); rows of B are pieces of 16 bytes or of multiples of 32
    step = 16 if p.itemsize == 1 and p.n > 32 or p.across[1] and p.n > 8 else 8
    exact = {-(-p.n // count // step) * step for count in (1, 2, 3)}
    return [*TILES, *((bm, bn) for bm in (64, 128) for bn in sorted(exact) if bn <= 256 and (bm, bn) not in TILES)]


def _candidates(p: Problem, processors: int, columns_first: bool | None):
    """(expected cycles, configuration, whether CTAs share tiles, slots of k of a CTA) of each tile and way that fits."""
    busy = p.busy
    for swapped in (False, True) if columns_first is None else (columns_first,):
        q = p.turned() if swapped else p
        for bm, bn in filter(lambda t: q.takes(*t), tiles_for(q) if swapped else TILES):
            # In one round nothing hides the stores but their own parts, which are narrow then. So it is with wide elements,
            # and an epilogue has fewer values at once. One that finds its operands there is over sooner without parts, but for
            # the last round.
            tiles = -(-q.m // bm) * -(-q.n // bn) * p.matrices
            alone = tiles <= processors or p.stored > 2 or p.epilogue and not q.ahead
            long = (bm, bn) == LARGE and p.k * p.itemsize > LONG * SLOT and not busy
            keeps = p.stored == 2 and tiles > processors and not p.epilogue and (bm, bn) != (192, 192) and p.promoted is None
            late = LATE if long and q.ahead and p.stored == 2 and tiles > processors else 0
            by_columns = swapped and p.stored == 4  # places in buffers are registers then, which the products' loop lacks
            slots = -(-p.k // (SLOT if p.promoted is not None else Config.of(bm, bn, itemsize=p.itemsize).bk))
            for way in _ways(q, bm, bn, slots, processors):
                kept = keeps and way.splits == 1
                width = 128 if alone or late or kept else 512 if q.ahead and tiles > 8 * processors else 256
                config = Config.of(bm, bn, 0 if p.promoted is None else SLOT, splits=way.splits, swapped=swapped, itemsize=p.itemsize,
                                   stored=p.stored, epilogue=p.epilogue and not q.ahead,
                                   width=narrow(bn, width // p.stored) if (bm, bn) in TILES else bn,
                                   least=3 if (long or q.ahead) and not by_columns and not kept else 4, blocks=bool(p.promoted),
                                   clustered=way.clustered)
                if config.stages < 2:
                    continue
                config = replace(config, late=late, kept=kept, pair=way.pair, buffers=1 if way.stream and by_columns else config.buffers)
                cost = streamed_cycles(q, bm, bn, processors) if way.stream else cycles(q, bm, bn, way, processors)
                cost *= NARROW[way.splits == 1 and q.m >= MANY_ROWS] if q.across[1] and bn > 64 and bn % 64 else 1
                cost *= TURNED if swapped and bn > 64 else 1
                cost += -(-tiles // processors) * bm * bn * (STAGED if p.stored == 4 else ACROSS) / way.splits if swapped else 0
                cost += COPY + 2 * q.copied[0] / (MEMORY * processors / 132) if q.copied[0] else 0
                if cost < inf:
                    yield cost, config, way.stream, -(-slots // way.splits)


def _finished(p: Problem, processors: int, cost: float, config: Config, stream: bool, steps: int) -> Config:
    """The configuration with what follows from its tile, its `steps` and the expected `cost`."""
    q, busy = p.turned() if config.swapped else p, p.busy
    # At one pace rows of A come once; else every other group ends where the next begins, whose columns of B are still in L2.
    order = ("grouped", 16) if stream else ("snake", group(q, config.bm, config.bn, processors))
    if by_rows(q, config.bm, config.bn, Way(config.splits, stream, config.pair, config.clustered), processors):
        order = ("row", 16)
    passing = busy and not stream and q.m <= config.bm * order[1] and q.n * q.k * q.itemsize > L2
    return replace(config, stages=min(config.stages, max(steps, 2)), order=order, stream=stream, passing=passing,
                   dependent=not stream and _early(p, config, config.tiles(q.m, q.n) * p.matrices, cost, processors))


def _early(p: Problem, config: Config, tiles: int, cost: float, processors: int) -> bool:
    """Whether it pays that a launch begins while the grid ahead ends."""
    full = p.bytes / (MEMORY * processors / 132) > FULL * cost
    if config.splits > 1:
        ctas, at_once = tiles * config.splits, places(config, processors)
        return not full or cost < BRIEF or ctas * 2 <= at_once or ctas >= NEARLY * processors
    brief = BRIEF if config.bm * config.bn <= SMALL else FULL_BRIEF if full else LARGE_BRIEF
    return cost < (brief if p.busy and tiles * 2 > processors else SHORT)


__all__ = ["Config", "Problem", "TILES", "choose", "cycles", "evenly", "ranked", "tile_cycles"]
