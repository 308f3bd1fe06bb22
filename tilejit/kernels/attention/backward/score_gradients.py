"""Scores and their gradients, transposed: a line for each key, a column for each row of Q."""

from __future__ import annotations

import tilejit as tile

from ..scores import LOG2_E


@tile.jit
def seen_by_mask(place, rows, columns, rules, SCORES: tile.constexpr):
    """Where the user's mask lets rows see columns, [columns, rows]."""
    ROWS: tile.constexpr = rows.shape[0]
    COLUMNS: tile.constexpr = columns.shape[0]
    given = SCORES.mask(place.batch, place.head, rows[:, None], columns[None, :], *rules.extra)
    return tile.transpose(tile.broadcast_to(given, (ROWS, COLUMNS)), (1, 0))


@tile.jit
def powers_of(s, sums, place, column, rules, EDGE: tile.constexpr, SCORES: tile.constexpr):
    """(The probabilities, what gradients of probabilities are multiplied by to be those of products, up to the scale)
    of a block of products `s` [columns, rows] of the columns from `column` on, and the rows from `place.row` on. `sums`
    has the logarithms to base 2 of the rows' sums. Without `EDGE` the place alone hides no column."""
    if SCORES.softcap:
        bent = tile.tanh(s * (rules.scale / rules.cap), fast=True)
        p = tile.exp2(bent * (rules.cap * LOG2_E) - sums[None, :], fast=True)
    else:
        p = tile.exp2(s * (rules.scale * LOG2_E) - sums[None, :], fast=True)
    rows, columns = place.row + tile.arange(s.shape[1]), column + tile.arange(s.shape[0])
    if EDGE:
        at = (rows + (place.keys - place.rows))[None, :]
        line = columns[:, None]
        seen = line < (tile.minimum(at + (rules.right + 1), place.keys) if SCORES.right else place.keys)
        if SCORES.left:
            seen = seen & (line >= at - rules.left)
        p = tile.where(seen, p, 0.0)
    if SCORES.mask is not None:
        p = tile.where(seen_by_mask(place, rows, columns, rules, SCORES), p, 0.0)
    return p, p * (1.0 - bent * bent) if SCORES.softcap else p


@tile.jit
def rows_of(column, place, rules, BM: tile.constexpr, BN: tile.constexpr, SCORES: tile.constexpr):
    """The blocks of BM rows that see some of BN columns from `column` on: (first, one past the last, the first that
    sees all of them, one past the last of these), in order. There may be none, and none sees all of a block that ends
    beyond the last key."""
    first, stop = 0, place.rows
    apart = place.keys - place.rows           # the position of the first row
    last = min(column + BN, place.keys) - 1
    whole, whole_stop = 0, place.rows
    if SCORES.right:
        first = max(column - rules.right - apart, 0)
        whole = max(last - rules.right - apart, 0)
    if SCORES.left:
        stop = min(stop, last + rules.left + 1 - apart)
        whole_stop = min(whole_stop, column + rules.left + 1 - apart)
    first, stop = first // BM, tile.cdiv(max(stop, 0), BM)
    stop = first if column >= place.keys else max(stop, first)
    whole = min(max(tile.cdiv(whole, BM), first), stop)
    # the last rows see what all see: those beyond it are zeros
    whole_stop = min(max(max(whole_stop, 0) // BM, whole), stop) if SCORES.left else stop
    if column + BN > place.keys:
        whole, whole_stop = stop, stop
    return first, stop, whole, whole_stop


__all__ = ["powers_of", "rows_of", "seen_by_mask"]
