"""The configurations of the kernels of matrix products on Hopper."""

from __future__ import annotations

from dataclasses import dataclass

from . import rules
from .rules import HIGH, check_fields, slots_in

SHARED = rules.SHARED - 1024   # bytes of shared memory that tiles and slots may take, barriers aside
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
    whether two CTAs whose tiles lie one above the other each bring half of their columns of B for both; `alone` how many of the last slots of a
    CTA's last tile one consumer multiplies after the other, so that it stores under the other's products;
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
    alone: int = 0

    @staticmethod
    def of(bm: int, bn: int, bk: int = 0, splits: int = 1, swapped: bool = False, itemsize: int = 2, stored: int = 2,
           stages: int = STAGES_AT_MOST, epilogue: bool = False, width: int = 0, least: int = 3, blocks: bool = False,
           clustered: bool = True) -> "Config":
        """The configuration of a tile: buffers for all of its columns, so that no store waits for another, where `least` slots
        fit beside them; as many slots as then fit, but no more than `stages`; room for what an `epilogue` may need to bring its
        operands into the layout of the sums; room for a factor for each row and column in a slot, if there are those of `blocks`;
        registers by need."""
        check_fields(bm=bm, bn=bn, stages=stages, splits=splits, itemsize=itemsize, stored=stored)
        bk = bk or along(bm, bn, itemsize)
        width = width or part(bn, 256 // stored, swapped)
        check_fields(bk=bk, width=width)
        factors = sum(-(-n // 32) * 128 for n in (bm, bn)) if blocks else 0  # slots of them begin at multiples of 128 bytes
        buffers, slot, room = max(bn // width, 1), (bm + bn) * bk * itemsize + factors, SHARED - (bm * narrow(bn, 64) * 4 if epilogue else 0)
        while buffers > 1 and room - bm * width * buffers * stored < least * slot:
            buffers //= 2
        aside = bm * width * buffers * stored if splits == 1 else 4 * bm * bn * (splits - 1) // splits if clustered else 0
        stages = slots_in(room - aside, slot, stages)
        # With setmaxnreg the assembler also knows each role's addresses to be uniform, where there are several consumers.
        regs = {64: (None, None), 128: (40, 232), 192: (32, 160), 256: (40, 232)}[bm]
        return Config(bm, bn, bk, stages, splits, swapped, regs=regs, behind=bm == 64 or bm < HIGH and bn < 256, width=width, buffers=buffers,
                      clustered=clustered)

    @property
    def num_warps(self) -> int:
        return 4 * (1 + self.consumers)

    @property
    def consumers(self) -> int:
        """The warpgroups that multiply: of 64 rows of a tile each, or of 128 of the highest."""
        return 2 if self.bm == HIGH else self.bm // 64

    @property
    def shares(self) -> int:
        """In how many shares the `splits` CTAs of a tile finish its columns."""
        return shares_of(self.bn, self.splits)

    def tiles(self, m: int, n: int) -> int:
        """How many tiles cover a result of m by n, in pairs if CTAs work in these."""
        return rows(m, self.bm, self.pair) * -(-n // self.bn)

    def __str__(self) -> str:
        shared = f" k/{self.splits}{'' if self.clustered else ' in memory'}" if self.splits != 1 else ""
        return f"{self.bm}x{self.bn}x{self.bk}/{self.stages}{shared}" + said(swapped=self.swapped, stream=self.stream, by_pairs=self.pair)


def said(**ways) -> str:
    """The ways that a configuration has, of those that it may have."""
    return "".join(f" {name.replace('_', ' ')}" for name, has in ways.items() if has)


def rows(m: int, bm: int, pair: bool = False) -> int:
    """How many rows of tiles cover `m`: an even number for pairs."""
    return -(-m // (2 * bm)) * 2 if pair else -(-m // bm)


def shares_of(bn: int, splits: int) -> int:
    """In how many equal shares, of whole groups of 8 columns, so many CTAs finish the columns of a tile: one each, at most."""
    return max(count for count in range(1, splits + 1) if bn // 8 % count == 0)


def along(bm: int, bn: int, itemsize: float) -> int:
    """The elements of k in a slot."""
    return int((2 if bm + bn <= 80 else 1) * SLOT / itemsize)


def narrow(bn: int, width: int) -> int:
    """The most columns, `width` or fewer, by which `bn` divides as often as by 2."""
    return min(bn & -bn, width)


def part(bn: int, most: int, swapped: bool) -> int:
    """How many of `bn` columns go to the result at once, up to `most`: a power of 2 or all, or, where they are rows of it, since operands have
    changed places, any part of 32 columns and more; where there is none, the next larger one."""
    if not swapped:
        return narrow(bn, most)
    parts = [width for width in range(32, bn + 1, 8) if bn % width == 0]
    return max((width for width in parts if width <= most), default=min(parts, default=bn))


__all__ = ["Config"]
