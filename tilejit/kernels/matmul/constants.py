"""The compile-time constants of the products' kernels, one record for each kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilejit as tile


@dataclass(frozen=True)
class Epilogue:
    """What sums go through before they are stored.

    - `scaled`: whether the factor of A, and that of B, is an array; () without factors
    - `function`: the user's function, or None; `extras`: how many arguments and tiles it takes after
      the place of the sums
    - `batched`: it takes the number of the matrix too; `swapped`: the operands have changed places,
      so it gets the transpose
    - `tiles`: the axes of each of its tiles, as named by `axes_of`; its arguments come before the tiles"""

    scaled: tuple[bool, ...] = ()
    function: tile.Kernel[..., Any] | None = None
    batched: bool = False
    swapped: bool = False
    tiles: tuple[str, ...] = ()
    extras: int = 0


@dataclass(frozen=True, kw_only=True)
class HopperProducts:
    """The constants that all kernels on Hopper have.

    - `bm`, `bn`: rows and columns of a tile; `bk`: elements along k in each of the ring's `stages` slots
    - `a_km`: A is [K, M], not [M, K]; `b_kn`: B is [K, N], not [N, K]
    - `sums`: the dtype of the sums; `behind`: a product is still in flight while the consumer awaits the next slot
    - `promoted`: threads add up the sums of each slot; `blocks`: for A and B, whether its block scales are by row;
      () without block scales
    - `pair`: the CTAs of a cluster of two share columns of B
    - `regs`: registers of a thread of the producer and of a consumer"""

    bm: int
    bn: int
    bk: int
    stages: int
    a_km: bool
    b_kn: bool
    sums: tile.dtypes.DType
    behind: bool
    regs: tuple[int | None, int | None]
    epilogue: Epilogue = Epilogue()
    promoted: bool = False
    blocks: tuple[bool, ...] = ()
    pair: bool = False


@dataclass(frozen=True, kw_only=True)
class PersistentConstants(HopperProducts):
    """Those of `persistent` and `stream`.

    - `order`: the order of the tiles and its group
    - `width`, `buffers`: results are stored by TMA through so many staging buffers of `width` columns in turn,
      column-major ones if the result is (`across`), or by threads (`width` 0)
    - `ahead`: for each of the epilogue's tiles, whether TMA loads it during the products; () if none
    - `late`: the last columns of a tile that are finished under the first slots of the next. This needs buffers for
      all columns of a tile, and tiles with enough slots (`most_late`). Until then they wait in dtype `waiting` (None:
      that of the sums)
    - `kept`: results are stored under the first products of the next tile
    - `dependent`: the launch may begin before the grid ahead has ended; `passing`:
      loads of B are marked to leave L2 first
    - `alone`: so many last slots of a CTA's last tile are multiplied by one consumer after the other"""

    order: tuple[Any, int]
    width: int
    buffers: int = 1
    across: bool = False
    ahead: tuple[bool, ...] = ()
    late: int = 0
    waiting: tile.dtypes.DType | None = None
    kept: bool = False
    dependent: bool = False
    passing: bool = False
    alone: int = 0

    @property
    def deferred_dtype(self) -> tile.dtypes.DType:
        """The dtype in which deferred sums wait."""
        return self.waiting or self.sums


@dataclass(frozen=True, kw_only=True)
class SplitConstants(HopperProducts):
    """Those of `split`: so many `splits` CTAs share a tile's k, and finish `shares` shares of its columns. They are a
    cluster (`clustered`), or wait for each other for at most `patience` polls. `dependent`: the launch may begin
    before the grid ahead has ended."""

    splits: int
    shares: int
    clustered: bool
    patience: int
    dependent: bool = False


@dataclass(frozen=True, kw_only=True)
class GroupedConstants(HopperProducts):
    """Those of `grouped`, by the names of `PersistentConstants`."""

    order: tuple[Any, int]
    width: int
    buffers: int
    kept: bool = False


@dataclass(frozen=True, kw_only=True)
class BlackwellProducts:
    """The constants that both kernels on Blackwell have, by the names of `HopperProducts`; `block`: the elements
    along k that a factor counts for, 0 without factors."""

    bn: int
    bk: int
    stages: int
    a_km: bool
    b_kn: bool
    sums: tile.dtypes.DType
    epilogue: Epilogue = Epilogue()
    block: int = 0
    pair: bool = False


@dataclass(frozen=True, kw_only=True)
class BlackwellPersistentConstants(BlackwellProducts):
    """Those of `persistent` on Blackwell. Tensor memory has room for the sums of `places` tiles. They are loaded
    `width` columns at a time, and stored by TMA through so many staging `buffers` in turn (`by_tma`), or by
    threads."""

    order: tuple[Any, int]
    places: int
    width: int
    by_tma: bool
    buffers: int
    dependent: bool = False


@dataclass(frozen=True, kw_only=True)
class BlackwellSplitConstants(BlackwellProducts):
    """Those of `split` on Blackwell: the number of CTAs of a cluster that share a tile's k."""

    splits: int


__all__ = ["BlackwellPersistentConstants", "BlackwellProducts", "BlackwellSplitConstants", "Epilogue",
           "GroupedConstants", "HopperProducts", "PersistentConstants", "SplitConstants"]
