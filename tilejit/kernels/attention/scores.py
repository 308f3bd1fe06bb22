"""What every attention kernel does with a block of scores.

The cap, the user's functions, masks, and the online softmax, which continues from block to block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilejit as tile

from .constants import NEAR

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
LAST = 2 * NEAR - 4096  # a row or column that a block may begin at if all are near


@dataclass(frozen=True)
class Place:
    """Where a tile of scores is: the batch and the head, its `row` in Q, and the rows of Q and of K. If several heads
    are `shared` in a tile, which have one head of K, `head` is that one, and each row of Q stands there that often."""

    batch: Any
    head: Any
    row: Any
    rows: Any
    keys: Any
    shared: int = 1
    tile_record = True


@dataclass(frozen=True)
class Rules:
    """The arguments of a call that decide about scores: the scale, how far a row sees to the `left` and `right` of its
    position, the softcap, and what the user's functions get; of float8 also the factor of the values; the `steps` of a
    function of the scores (`with_steps`)."""

    scale: Any
    left: Any
    right: Any
    cap: Any
    extra: Any
    values: Any = None
    steps: Any = None
    tile_record = True


@tile.jit
def factor_of(rules, SCORES: tile.constexpr):
    """What the scores, as `mask_scores` returns them, are multiplied by to be exponents of two."""
    return LOG2_E if SCORES.scaled else rules.scale * LOG2_E


@tile.jit
def lines_of(place, ROWS: tile.constexpr):
    """(The heads, the rows) of a tile's lines: the head is a number if there is only one."""
    at = place.row + tile.arange(ROWS)
    if place.shared == 1:
        return place.head, at
    return place.head * place.shared + at % place.shared, at // place.shared


@tile.jit
def assume_near(row, column, SCORES: tile.constexpr):
    """Say that a block of scores begins at a row and a column that are `near`, so that a function of the scores
    converts the differences of its index tiles to float32 by additions."""
    if SCORES.near:
        tile.assume((row >= 0) & (row <= LAST) & (column >= 0) & (column <= LAST))


@tile.jit
def mask_scores(s, place, column, rules, EDGE: tile.constexpr, SCORES: tile.constexpr):
    """The scores `s` from `column` on, scaled if `scaled`, with -inf where a row does not see a column. Without `EDGE`
    the place alone hides no column."""
    if SCORES.scaled:
        s = s * rules.scale
    if SCORES.softcap:
        s = rules.cap * tile.tanh(s / rules.cap, fast=True)
    heads, rows = lines_of(place, s.shape[0])
    rows, columns = rows[:, None], column + tile.arange(s.shape[1])[None, :]
    if place.shared > 1:
        heads = heads[:, None]
    if SCORES.score is not None:
        assume_near(place.row, column, SCORES)
        given = SCORES.score(s, place.batch, heads, rows, columns, *rules.extra)
        tile.static_assert(given is not None and given.shape == s.shape,
                           "score must return a tile of the shape of the scores")
        s = tile.cast(given, tile.float32)
    if EDGE:
        at = rows + (place.keys - place.rows)
        seen = columns < (tile.minimum(at + (rules.right + 1), place.keys) if SCORES.right else place.keys)
        if SCORES.left:
            seen = seen & (columns >= at - rules.left)
        s = tile.where(seen, s, -float("inf"))
    if SCORES.mask is not None and (EDGE or not SCORES.listed):
        s = tile.where(SCORES.mask(place.batch, heads, rows, columns, *rules.extra), s, -float("inf"))
    return s


@tile.jit
def span_of(row, place, rules, ROWS: tile.constexpr, BN: tile.constexpr, SCORES: tile.constexpr):
    """The blocks of BN columns of the rows from `row` on: (first, one past the last, the first that all these rows see
    whole, one past the last of these). There is at least one, which may be wholly masked."""
    first, stop = 0, place.keys
    whole, whole_stop = 0, place.keys // BN
    at = row // place.shared + place.keys - place.rows    # the first and the last position of these rows
    end = min((row + ROWS - 1) // place.shared, place.rows - 1) + place.keys - place.rows
    if SCORES.right:
        stop = min(stop, end + rules.right + 1)
        whole_stop = min(whole_stop, max(at + rules.right + 1, 0) // BN)
    if SCORES.left:
        first = max(min(at - rules.left, place.keys - 1), 0) // BN
        whole = tile.cdiv(max(end - rules.left, 0), BN)
    return first, max(tile.cdiv(max(stop, 0), BN), first + 1), whole, whole_stop


@tile.jit
def softmax_step(s, most, total, factor, HIDES: tile.constexpr, SHIFT: tile.constexpr = 0):
    """Continue a softmax with a block of scores: (its powers, the new maximum, the new sum, the factor of what was
    summed before). `total` is [rows, parts], whose parts are added after the last block. `HIDES`: a row may have seen
    no column yet. The powers, and so the sums, are ``2 ** SHIFT`` times those of the softmax."""
    largest, top, by = next_maxima(s, most, factor, HIDES)
    p = powers_of(s, top, factor, SHIFT)
    return p, largest, next_sums(p, total, by), by


@tile.jit
def next_sums(p, total, by, CHAINED: tile.constexpr = False):
    """The sums with a block of powers.

    `CHAINED`: powers are added to the sums one after the other, from what was summed before times its factor on.
    Otherwise ptxas computes that factor behind all powers, and all that it multiplies comes after them; a chain brings
    it forward, and the multiplications stand between the powers."""
    PARTS: tile.constexpr = total.shape[1]
    if not CHAINED:  # the sum has the layout of its first operand, and `total` may begin with zeros of any
        return sums_in_parts(p, PARTS) + total * by[:, None]
    total = total * by[:, None]
    for n in tile.static_range(p.shape[1] // PARTS):
        total = p[:, n * PARTS:(n + 1) * PARTS] + total
    return total


@tile.jit
def next_maxima(s, most, factor, HIDES: tile.constexpr):
    """(The maxima with a block of scores, what is subtracted from them, the factor of what was summed before)."""
    largest = tile.maximum(most, tile.max(s, axis=1))
    top = largest
    if HIDES:
        top = tile.where(largest == -float("inf"), 0.0, largest)   # else -inf - -inf
    return largest, top, tile.exp2((most - top) * factor, fast=True)


@tile.jit
def late_maxima(s, most, factor, SLACK: tile.constexpr):
    """(What is subtracted from the scores of a row, the factor of what was summed before). A row keeps what it had
    until its maximum is more than `SLACK` powers of 2 above. So a power is at most ``2 ** SLACK``, and the factor is
    seldom other than 1; threads skip products with factors whose exponents are chosen to be 0."""
    largest = tile.maximum(most, tile.max(s, axis=1))
    rise = (largest - most) * factor
    stays = rise <= SLACK  # not with a NaN
    return tile.where(stays, most, largest), tile.exp2(tile.where(stays, 0.0, -rise), fast=True)


@tile.jit
def powers_of(s, top, factor, SHIFT: tile.constexpr = 0):
    """The powers of a block of scores, times ``2 ** SHIFT``."""
    zero = top * factor  # the exponent that becomes 0
    if SHIFT:
        zero = zero - SHIFT
    return tile.exp2(s * factor - zero[:, None], fast=True)


@tile.jit
def sums_in_parts(p, PARTS: tile.constexpr):
    """The sums of rows of powers, in so many parts."""
    return tile.sum(tile.reshape(p, (p.shape[0], p.shape[1] // PARTS, PARTS)), axis=1)


@tile.jit
def finish(most, total, factor, sinks, heads, SCORES: tile.constexpr,
           SINKS: tile.constexpr = None, SHIFT: tile.constexpr = 0):
    """(What the sums of a row's values are multiplied by, the logarithm of its sum) at the end of a softmax. Both are 0
    and -inf for a row that saw no column. `SINKS`: sinks count, by default if there are some. `SHIFT` is that of the
    sum; the sums of values have to be divided by it besides."""
    total = tile.sum(total, axis=1)
    if SHIFT:
        total = total * 2.0 ** -SHIFT
    top = tile.where(total == 0.0, -float("inf"), most * factor)
    if SCORES.sinks if SINKS is None else SINKS:
        sink = tile.cast(tile.load(sinks[heads]), tile.float32) * LOG2_E
        new = tile.maximum(top, sink)
        new = tile.where(new == -float("inf"), 0.0, new)
        scaled = tile.where(total == 0.0, 0.0, tile.exp2(top - new))
        total = total * scaled + tile.exp2(sink - new)
        return tile.where(total == 0.0, 0.0, scaled / total), (new + tile.log2(total)) * LN_2
    return tile.where(total == 0.0, 0.0, 1.0 / total), (top + tile.log2(total)) * LN_2


__all__ = ["Place", "Rules", "assume_near", "factor_of", "finish", "late_maxima", "lines_of", "mask_scores",
           "next_maxima", "next_sums", "powers_of", "softmax_step", "span_of", "sums_in_parts"]
