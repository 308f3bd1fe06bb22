"""Which tile a matrix product takes on Blackwell: configurations of the kernel, and a model of their time that chooses among them.

The model counts cycles of a multiprocessor from what the ISA and data sheets say; nothing of it has been measured on Blackwell. It
ranks tiles, it does not predict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from operator import itemgetter

from .config import SHARED, SLOT, STAGES_AT_MOST, narrow, said
from .cycles import EXCHANGE, Problem
from .plan import SHORT
from .rules import Rule, check_field, check_fields, possible, slots_in

ROWS = 128     # of a CTA's sums
COLUMNS = 512  # of tensor memory
ITEMSIZE = Rule("the bytes of an operand's element: 1, 2 or 4, or 0.5 of float4", lambda x: x in (0.5, 1, 2, 4))


@dataclass(frozen=True)
class BlackwellConfig:
    """The shape of the kernel.

    The tile is 128 by `bn`, or with `pair` 256 by `bn` for two CTAs together; `bk` the elements of k in each of `stages` slots;
    `splits` how many CTAs of a cluster share a tile's k; `swapped` whether the operands change places (C^T = B^T A^T, so that `bn` counts
    rows of A); `order` the order of the tiles and its group; `width` how many columns go to the result at a time; `dependent` whether the
    launch may begin before the grid ahead has ended.
    """

    bn: int = 256
    bk: int = 64
    stages: int = 4
    pair: bool = False
    splits: int = 1
    swapped: bool = False
    order: tuple[str, int] = ("grouped", 16)
    width: int = 64
    dependent: bool = False

    @staticmethod
    def of(bn: int, pair: bool = False, swapped: bool = False, itemsize: float = 2, stored: int = 2, stages: int = STAGES_AT_MOST,
           epilogue: bool = False, splits: int = 1, block: int = 0) -> "BlackwellConfig":
        """The configuration of a tile: as many slots as shared memory holds, but no more than `stages`, beside the results' two
        buffers (or the sums that CTAs send each other) and what a change of layout needs. Slots have the factors of their blocks."""
        check_fields(bn=bn, pair=pair, swapped=swapped, stored=stored, stages=stages, splits=splits, block=block)
        check_field("itemsize", ITEMSIZE, itemsize)
        width = narrow(bn, 128 // stored)
        aside = 2 * ROWS * width * stored if splits == 1 else 2 * ROWS * bn * 4
        aside += ROWS * max(width, bn // splits if splits > 1 else 0) * 4 if epilogue or swapped else 0
        config = BlackwellConfig(bn, int(SLOT / itemsize), stages, pair, splits, swapped, width=width)
        return replace(config, stages=slots_in(SHARED - aside, config.slot(itemsize, block), stages))

    @property
    def rows(self) -> int:
        return 2 * ROWS if self.pair else ROWS

    def slot(self, itemsize: float, block: int) -> int:
        """The bytes of a slot: the k of a CTA's rows of A and columns of B, and the factors of its blocks of `block`, if these are not 0."""
        columns, factors = self.bn // (2 if self.pair else 1), self.bk // block * (ROWS + self.bn) if block else 0
        return int((ROWS + columns) * self.bk * itemsize) + factors

    def places(self, block: int) -> int:
        """How many tiles' sums have a place in tensor memory, beside the factors of a slot's blocks of `block` along k: two or one."""
        factors = self.bk // block // 4 * 4 * (ROWS + self.bn) // ROWS if block else 0
        return 2 if 2 * self.bn + factors <= COLUMNS else 1

    def tiles(self, m: int, n: int) -> int:
        """How many tiles cover a result of m by n."""
        return -(-m // self.rows) * -(-n // self.bn)

    def __str__(self) -> str:
        shared = f" k/{self.splits}" if self.splits != 1 else ""
        return f"{self.rows}x{self.bn}x{self.bk}/{self.stages}{said(by_pairs=self.pair)}{shared}{said(swapped=self.swapped)}"


# -- the model -------------------------------------------------------------------------------------------------------------

TILES = [(bn, pair) for pair in (False, True) for bn in (256, 128, 64, 32, 16) if not pair or bn >= 64]
READ = 128      # bytes of shared memory that the tensor cores read in a cycle
LOADED = 50     # bytes that a multiprocessor takes from L2 in a cycle, as on Hopper
MEMORY = 4300   # bytes that all of 148 multiprocessors take from memory in a cycle
CLUSTERS = {1: 148, 2: 74, 4: 34, 8: 16}  # of a size that 148 multiprocessors hold at once, by what a group of 16 or 18 holds on Hopper
BEGIN = 900     # cycles until a tile's first product, and after its last, as on Hopper


def cycles(p: Problem, bn: int, pair: bool, splits: int, processors: int) -> float:
    """The cycles that the product takes in tiles of 128, or 256 by two CTAs, by `bn`, the k of each shared by `splits` CTAs."""
    group = 2 if pair else 1
    tiles = -(-p.m // (ROWS * group)) * -(-p.n // bn) * p.matrices
    rounds = -(-tiles // max(CLUSTERS[max(group, splits)] * processors // 148, 1))
    brought = (ROWS + bn // group) * SLOT  # bytes of a slot
    step = max(2 * bn, brought / READ, brought / LOADED)
    drained = ROWS * bn / 32               # storing one tile's sums, beside the products of the next where these have a place
    steps = -(-p.k * p.itemsize // (SLOT * splits))
    beside = BlackwellConfig(bn, int(SLOT / p.itemsize)).places(p.block) == 2
    tile = max(steps * step, drained) if beside else steps * step + drained
    computing = rounds * tile + BEGIN + drained if splits == 1 else rounds * (steps * step + BEGIN + drained + EXCHANGE * ROWS * bn)
    loading = p.bytes / (MEMORY * processors / 148)
    return max(computing, loading) + 0.05 * min(computing, loading)


@lru_cache(maxsize=4096)
def choose(p: Problem, processors: int, columns_first: bool | None = None) -> BlackwellConfig:
    """The configuration that the model expects to be the fastest. `columns_first` says that the operands change places, or
    that they do not; without it the faster way is taken."""
    cost, config = min(_candidates(p, processors, columns_first), key=itemgetter(0))
    return replace(config, dependent=cost < SHORT)


def ranked(p: Problem, processors: int, columns_first: bool | None = None) -> list[BlackwellConfig]:
    """All configurations, those that the model expects to be the fastest first."""
    return [replace(config, dependent=cost < SHORT) for cost, config in sorted(_candidates(p, processors, columns_first), key=itemgetter(0))]


def _candidates(p: Problem, processors: int, columns_first: bool | None):
    """(expected cycles, the configuration) of each tile and split that fits."""
    for swapped in (False, True) if columns_first is None else (columns_first,):
        q = p.turned() if swapped else p
        for (bn, pair), splits in product(TILES, CLUSTERS):
            config = possible(BlackwellConfig.of, bn, pair, swapped, p.itemsize, p.stored, epilogue=p.epilogue, splits=splits, block=p.block)
            steps = -(-p.k // int(SLOT / p.itemsize))
            if splits > 1 and (pair or splits * 2 > steps or bn // splits < 8) or config is None or p.block and bn % ROWS:
                continue
            cost = cycles(q, bn, pair, splits, processors) + (ROWS * bn * 0.15 if swapped else 0)  # stored across rows
            yield cost, replace(config, stages=min(config.stages, max(-(-steps // splits), 2)))


__all__ = ["BlackwellConfig", "choose", "cycles", "ranked"]
