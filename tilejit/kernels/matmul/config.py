"""The configurations of the matrix products on Hopper: tile, ring of slots, and how CTAs share the work."""

from __future__ import annotations

from dataclasses import dataclass

from . import config_rules as rules
from .config_rules import HIGH, check_fields, slots_in

SHARED = rules.SHARED - 1024   # bytes of shared memory for slots and buffers; the rest is for barriers
STAGES_AT_MOST = 16
SLOT = 128               # bytes of k in a slot, one row of the widest swizzle


@dataclass(frozen=True)
class Config:
    """The shape of the kernel.

    - `bm`, `bn`: rows and columns of the tile; `bk`: elements along k in each of the ring's `stages` slots
    - `splits`: CTAs that share a tile's k. With `clustered` they are a cluster, of up to 16, and exchange sums
      through shared memory (then `bn` is a multiple of ``8 * splits``); otherwise they are any number, and exchange
      sums through global memory
    - `stream`: all CTAs share the last partial round of tiles (stream-K)
    - `swapped`: the operands change places (C^T = B^T A^T), so `bn` counts rows of A
    - `order`: the order of the tiles and its group
    - `behind`: a product is still in flight while the consumer waits for the next slot
    - `width`, `buffers`: columns of the result in a staging buffer, and the number of these buffers
    - `late`: how many of a tile's last columns are finished under the next tile's products, at most `bn`; an
      epilogue that computes in 16 bits lets them wait in half of the registers
    - `kept`: without an epilogue, the whole tile stays in registers and is stored under the next tile's products
    - `alone`: of a CTA's last tile, the consumers multiply this many last slots one after the other, so that each
      stores under the others' products
    - `pair`: a cluster of two CTAs, whose tiles lie one above the other, loads their columns of B by
      multicast, each half
    - `passing`: loads of B are marked to leave L2 first
    - `dependent`: the launch may begin before the grid ahead has ended
    - `regs`: registers of a thread of the producer and of a consumer (None: what the launch gives)"""

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
           stages: int = STAGES_AT_MOST, epilogue: bool = False, width: int = 0, least: int = 3,
           clustered: bool = True) -> Config:
        """The configuration of a tile. It has staging buffers for all of the tile's columns, so that no store waits
        for another, if `least` slots fit beside them, else fewer; then as many slots as fit, up to `stages`. Shared
        memory is left for an `epilogue` to convert its operands to the layout of the sums."""
        check_fields(bm=bm, bn=bn, stages=stages, splits=splits, itemsize=itemsize, stored=stored)
        bk = bk or slot_depth(bm, bn, itemsize)
        width = width or part(bn, 256 // stored, swapped)
        check_fields(bk=bk, width=width)
        buffers, slot, room = (max(bn // width, 1), (bm + bn) * bk * itemsize,
                               SHARED - (bm * divisor_in_width(bn, 64) * 4 if epilogue else 0))
        while buffers > 1 and room - bm * width * buffers * stored < least * slot:
            buffers //= 2
        exchanged = 4 * bm * bn * (splits - 1) // splits if clustered else 0
        aside = bm * width * buffers * stored if splits == 1 else exchanged
        stages = slots_in(room - aside, slot, stages)
        # With setmaxnreg, and several consumers, the assembler also recognises each role's addresses as uniform.
        regs = {64: (None, None), 128: (40, 232), 192: (32, 160), 256: (40, 232)}[bm]
        return Config(bm, bn, bk, stages, splits, swapped, regs=regs, behind=bm == 64 or bm < HIGH and bn < 256,
                      width=width, buffers=buffers, clustered=clustered)

    @property
    def num_warps(self) -> int:
        return 4 * (1 + self.consumers)

    @property
    def consumers(self) -> int:
        """The number of consumer warpgroups. Each has 64 rows of a tile, or 128 rows in tiles of 256."""
        return 2 if self.bm == HIGH else self.bm // 64

    @property
    def shares(self) -> int:
        """The number of equal shares of a tile's columns that the `splits` CTAs finish."""
        return shares_of(self.bn, self.splits)

    def tiles(self, m: int, n: int) -> int:
        """The number of tiles that cover a result of m by n, with an even number of rows of tiles for pairs of CTAs."""
        return rows(m, self.bm, self.pair) * -(-n // self.bn)

    def __str__(self) -> str:
        place = "" if self.clustered else " in memory"
        shared = f" k/{self.splits}{place}" if self.splits != 1 else ""
        return f"{self.bm}x{self.bn}x{self.bk}/{self.stages}{shared}" + name_options(swapped=self.swapped,
                                                                                     stream=self.stream,
                                                                                     by_pairs=self.pair)


def name_options(**ways) -> str:
    """The names of the options that are on, for `__str__`."""
    return "".join(f" {name.replace('_', ' ')}" for name, has in ways.items() if has)


def rows(m: int, bm: int, pair: bool = False) -> int:
    """The number of rows of tiles that cover `m`; an even number for pairs of CTAs."""
    return -(-m // (2 * bm)) * 2 if pair else -(-m // bm)


def shares_of(bn: int, splits: int) -> int:
    """The largest number of equal shares, of whole groups of 8 columns, into which `splits` CTAs can divide a tile's
    columns, one share each at most."""
    return max(count for count in range(1, splits + 1) if bn // 8 % count == 0)


def slot_depth(bm: int, bn: int, itemsize: float) -> int:
    """The elements along k in a slot: 128 bytes, or twice as many in the smallest tiles."""
    return int((2 if bm + bn <= 80 else 1) * SLOT / itemsize)


def divisor_in_width(bn: int, width: int) -> int:
    """The largest power of 2, up to `width` (itself a power of 2), that divides `bn`."""
    return min(bn & -bn, width)


def part(bn: int, most: int, swapped: bool) -> int:
    """How many of `bn` columns are stored at once, up to `most`: a power of 2. With swapped operands these are rows
    of the result, and any divisor of `bn` from 32 in steps of 8 will do; if none is small enough, it is the smallest
    one."""
    if not swapped:
        return divisor_in_width(bn, most)
    parts = [width for width in range(32, bn + 1, 8) if bn % width == 0]
    return max((width for width in parts if width <= most), default=min(parts, default=bn))


__all__ = ["Config"]
