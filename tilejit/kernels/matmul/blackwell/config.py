"""The configurations of the matrix products on Blackwell, and a performance model that chooses among them.

The model counts SM cycles by what the ISA and data sheets say; nothing of it has been measured on Blackwell. It is
made to rank tiles, not to predict times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from operator import itemgetter

from ..choice import SHORT
from ..config import SHARED, SLOT, STAGES_AT_MOST, divisor_in_width, name_options
from ..config_rules import Rule, check_field, check_fields, slots_in, try_config
from ..model import EXCHANGE, Problem

ROWS = 128     # rows of a CTA's sums
COLUMNS = 512  # columns of tensor memory
ITEMSIZE = Rule("the bytes of an operand's element: 1, 2 or 4, or 0.5 of float4", lambda x: x in (0.5, 1, 2, 4))


@dataclass(frozen=True)
class BlackwellConfig:
    """The shape of the kernel.

    - `bn`: columns of the tile, which has 128 rows, or with `pair` 256 for two CTAs together
    - `bk`: elements along k in each of the ring's `stages` slots
    - `splits`: CTAs of a cluster, up to 16, that share a tile's k; a divisor of `bn`
    - `swapped`: the operands change places (C^T = B^T A^T), so `bn` counts rows of A
    - `order`: the order of the tiles and its group
    - `width`: columns of the result that are stored at a time
    - `dependent`: the launch may begin before the grid ahead has ended"""

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
    def of(bn: int, pair: bool = False, swapped: bool = False, itemsize: float = 2, stored: int = 2,
           stages: int = STAGES_AT_MOST, epilogue: bool = False, splits: int = 1, block: int = 0) -> BlackwellConfig:
        """The configuration of a tile: as many slots as fit in shared memory, up to `stages`, beside two staging
        buffers for results (or the sums that CTAs send each other) and room for a change of layout. Slots include the
        factors of their blocks."""
        check_fields(bn=bn, pair=pair, swapped=swapped, stored=stored, stages=stages, splits=splits, block=block)
        check_field("itemsize", ITEMSIZE, itemsize)
        width = divisor_in_width(bn, 128 // stored)
        aside = 2 * ROWS * width * stored if splits == 1 else 2 * ROWS * bn * 4
        if epilogue or swapped:
            aside += ROWS * max(width, bn // splits if splits > 1 else 0) * 4
        config = BlackwellConfig(bn, int(SLOT / itemsize), stages, pair, splits, swapped, width=width)
        return replace(config, stages=slots_in(SHARED - aside, config.slot(itemsize, block), stages))

    @property
    def rows(self) -> int:
        return 2 * ROWS if self.pair else ROWS

    def slot(self, itemsize: float, block: int) -> int:
        """The bytes of a slot: a CTA's rows of A and columns of B, and the factors of blocks of `block` elements
        along k (0: none)."""
        columns, factors = self.bn // (2 if self.pair else 1), self.bk // block * (ROWS + self.bn) if block else 0
        return int((ROWS + columns) * self.bk * itemsize) + factors

    def places(self, block: int) -> int:
        """The number of accumulators in tensor memory, two or one, beside the factors of a slot's blocks of `block`
        elements along k (0: none)."""
        factors = self.bk // block // 4 * 4 * (ROWS + self.bn) // ROWS if block else 0
        return 2 if 2 * self.bn + factors <= COLUMNS else 1

    def tiles(self, m: int, n: int) -> int:
        """The number of tiles that cover a result of m by n."""
        return -(-m // self.rows) * -(-n // self.bn)

    def __str__(self) -> str:
        shared = f" k/{self.splits}" if self.splits != 1 else ""
        options = f"{name_options(by_pairs=self.pair)}{shared}{name_options(swapped=self.swapped)}"
        return f"{self.rows}x{self.bn}x{self.bk}/{self.stages}{options}"


# -- the model ---------------------------------------------------------------------------------------------------------

TILES = [(bn, pair) for pair in (False, True) for bn in (256, 128, 64, 32, 16) if not pair or bn >= 64]
READ = 128      # bytes of shared memory per cycle that the tensor cores read
LOADED = 50     # bytes per cycle that an SM takes from L2, as on Hopper
MEMORY = 4300   # bytes per cycle that 148 SMs together read from memory
# cluster size -> clusters that 148 SMs hold at once, by what a GPC of 16 or 18 SMs holds on Hopper
CLUSTERS = {1: 148, 2: 74, 4: 34, 8: 16}
BEGIN = 900     # cycles before a tile's first product and after its last, together, as on Hopper


def cycles(p: Problem, bn: int, pair: bool, splits: int, processors: int) -> float:
    """The cycles of the product in tiles of 128 rows, or 256 by two CTAs, and `bn` columns, with the k of each shared
    by `splits` CTAs."""
    group = 2 if pair else 1
    tiles = -(-p.m // (ROWS * group)) * -(-p.n // bn) * p.matrices
    rounds = -(-tiles // max(CLUSTERS[max(group, splits)] * processors // 148, 1))
    brought = (ROWS + bn // group) * SLOT  # bytes that a CTA loads for a slot
    step = max(2 * bn, brought / READ, brought / LOADED)
    # storing a tile's sums; with two accumulators the products of the next tile run meanwhile
    drained = ROWS * bn / 32
    steps = -(-p.k * p.itemsize // (SLOT * splits))
    beside = BlackwellConfig(bn, int(SLOT / p.itemsize)).places(p.block) == 2
    tile = max(steps * step, drained) if beside else steps * step + drained
    if splits == 1:
        computing = rounds * tile + BEGIN + drained
    else:
        computing = rounds * (steps * step + BEGIN + drained + EXCHANGE * ROWS * bn)
    loading = p.bytes / (MEMORY * processors / 148)
    return max(computing, loading) + 0.05 * min(computing, loading)


@lru_cache(maxsize=4096)
def choose(p: Problem, processors: int, columns_first: bool | None = None) -> BlackwellConfig:
    """The configuration that the model expects to be the fastest. `columns_first` says whether the operands are
    swapped; None leaves that to the model."""
    cost, config = min(_candidates(p, processors, columns_first), key=itemgetter(0))
    return replace(config, dependent=cost < SHORT)


def rank_configs(p: Problem, processors: int, columns_first: bool | None = None) -> list[BlackwellConfig]:
    """All possible configurations, by the expected cycles."""
    return [replace(config, dependent=cost < SHORT)
            for cost, config in sorted(_candidates(p, processors, columns_first), key=itemgetter(0))]


def _candidates(p: Problem, processors: int, columns_first: bool | None):
    """(expected cycles, configuration) of each tile and split that fits."""
    for swapped in (False, True) if columns_first is None else (columns_first,):
        q = p.swap_operands() if swapped else p
        for (bn, pair), splits in product(TILES, CLUSTERS):
            config = try_config(BlackwellConfig.of, bn, pair, swapped, p.itemsize, p.stored, epilogue=p.epilogue,
                                splits=splits, block=p.block)
            steps = -(-p.k // int(SLOT / p.itemsize))
            if (splits > 1 and (pair or splits * 2 > steps or bn // splits < 8) or config is None
                or p.block and bn % ROWS):
                continue
            # results are transposed when stored
            cost = cycles(q, bn, pair, splits, processors) + (ROWS * bn * 0.15 if swapped else 0)
            yield cost, replace(config, stages=min(config.stages, max(-(-steps // splits), 2)))


__all__ = ["BlackwellConfig", "choose", "cycles", "rank_configs"]
