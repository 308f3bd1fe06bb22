"""The compile-time constants of the kernels of the backward."""

from __future__ import annotations

from dataclasses import dataclass

from ..constants import Scores


@dataclass(frozen=True, kw_only=True)
class BackwardConstants:
    """The constants that all kernels have.

    - `bm`, `bn`: the rows and columns of a block of scores; `d`, `dv`: the extents of a key and of a value
    - `stages`: the slots for blocks that are loaded ahead; with 1, none is
    - `add`: dQ is added up in memory, in any order; otherwise `queries` computes it
    - `lengths`: each sequence has a number of keys of its own; `packed`: and of rows, and all lie one after the
      other"""

    bm: int
    bn: int
    d: int
    dv: int
    stages: int
    scores: Scores = Scores()
    add: bool = True
    lengths: bool = False
    packed: bool = False


@dataclass(frozen=True, kw_only=True)
class HopperBackwardConstants(BackwardConstants):
    """Those of `gradients_hopper`.

    - `regs`: registers of a thread of the producer and of a consumer"""

    regs: tuple[int, int]


__all__ = ["BackwardConstants", "HopperBackwardConstants"]
