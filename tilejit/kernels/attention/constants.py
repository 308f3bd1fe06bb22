"""The compile-time constants of the attention kernels, one record for each kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tilejit as tile

NEAR = 1 << 23


@dataclass(frozen=True)
class Scores:
    """What happens to the scores of a block of rows and columns before the softmax.

    - `left`, `right`: a row sees no column more than so many (arguments of the kernel) to this side of its position
    - `softcap`: scores go through ``cap * tanh(score / cap)``
    - `score`, `mask`: the user's functions, or None; `extras`: how many arguments both take after the place
    - `scaled`: the scale is multiplied in first, instead of into the exponent: what follows needs it, or it is not
      positive
    - `float8`: Q, K and V are, and their factors come with the scale
    - `near`: there are at most `NEAR` rows and keys, so that float32 holds the differences of their numbers
    - `sinks`: each head has a logit that counts in the sums of its rows, and has no value
    - `stepped`: what the function adds to scores may stand in the accumulators of their products: only the scale comes
      between, which is positive, and all are `near`
    - `listed`: a table says which blocks the mask and the bounds hide, and which they leave whole; in the backward,
      the rows and columns of these blocks"""

    left: bool = False
    right: bool = False
    softcap: bool = False
    score: tile.Kernel[..., Any] | None = None
    mask: tile.Kernel[..., Any] | None = None
    extras: int = 0
    scaled: bool = False
    float8: bool = False
    sinks: bool = False
    near: bool = False
    stepped: bool = False
    listed: bool | tuple[int, int] = False

    @property
    def without_function(self) -> Scores:
        """These with scores that have been changed by the function already, before the scale."""
        return replace(self, score=None, scaled=False)

    @property
    def has_bounds(self) -> bool:
        """Whether rows see only some of the columns by their place alone."""
        return self.left or self.right

    @property
    def cuts_rows(self) -> bool:
        """Whether the backward has to mask blocks with rows beyond the last, which see what the user's function says,
        or no column."""
        return self.left or self.score is not None

    @property
    def may_hide_all(self) -> bool:
        """Whether the user's functions may hide whole blocks of a row from it, wherever these are."""
        return self.score is not None or self.mask is not None and not self.listed


@dataclass(frozen=True, kw_only=True)
class AttentionConstants:
    """The constants that all kernels have.

    - `bm`, `bn`: the rows and columns of a block of scores; `d`, `dv`: the extents of a key and of a value
    - `stages`: the slots of the rings of keys and of values
    - `lse`: the logarithm of each row's sum is stored"""

    bm: int
    bn: int
    d: int
    dv: int
    stages: int
    scores: Scores = Scores()
    lse: bool = False


@dataclass(frozen=True)
class Peeks:
    """Of which rings consumers look at the next slot ("k", "v", "kv" or ""): behind the wait for a block's scores,
    before the wait for the product of its values, and behind that."""

    behind_scores: str = ""
    before_values: str = ""
    behind_values: str = ""


@dataclass(frozen=True, kw_only=True)
class HopperConstants(AttentionConstants):
    """Those of `hopper`.

    - `consumers`: warpgroups of 64 rows each; `regs`: registers of a thread of the producer and of a consumer
    - `held`: the rows of Q stay in registers while the blocks of a tile are walked, not in shared memory
    - `ahead`: two tiles of Q are in shared memory, and results are stored under the next tile's first product
    - `guesses`: powers are taken before the maxima are known
    - `chained`: the powers of a block are added to the sums one after the other
    - `turns`: only one consumer at a time issues its products
    - `peeks`: where consumers look at next slots
    - `skips`: consumers leave out the last blocks of a tile if a bound hides them from all of their rows
    - `width`, `buffers`: columns of the result in a staging buffer and the number of these for each consumer; 0 columns
      are stored by threads
    - `lengths`: sequences have numbers of keys of their own; `packed`: and of rows, and all lie one after the other"""

    consumers: int
    regs: tuple[int | None, int | None]
    held: bool
    turns: bool
    width: int
    buffers: int
    ahead: bool = False
    guesses: bool = False
    chained: bool = False
    peeks: Peeks = Peeks()
    skips: bool = False
    lengths: bool = False
    packed: bool = False

    @property
    def fields(self) -> int:
        """How many numbers the producer hands over for a tile."""
        return 7 if self.lengths else 4


@dataclass(frozen=True, kw_only=True)
class SequenceConstants(AttentionConstants):
    """Those of `sequences` and `combine`.

    - `heads`, `kv_heads`: the heads of Q, and of K and V; `shared`: how many of them a tile has
    - `lengths`: each sequence has a number of keys of its own; `packed`: and of rows, and all lie one after the other
    - `page`: the keys of a page, 0 without pages; `rows_first`: a page has the heads of a key beside each other
    - `box`: rows of a page that are copied at once to a block or a part of it; 0: there are none, or rows are gathered
    - `inner`: the values are the first columns of the keys, and are read once
    - `pieces`: a wide result is stored a few columns of each of so many parts at a time, each of which a warpgroup has;
      0: all of it at once
    - `splits`: CTAs that share the keys of a tile; `lines`: lines that a CTA of `combine` puts together"""

    heads: int
    kv_heads: int
    shared: int = 1
    lengths: bool = False
    packed: bool = False
    page: int = 0
    rows_first: bool = False
    box: int = 0
    inner: bool = False
    pieces: int = 0
    splits: int = 1
    lines: int = 1


__all__ = ["NEAR", "AttentionConstants", "HopperConstants", "Scores", "SequenceConstants"]
