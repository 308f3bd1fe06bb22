"""Scores and their gradients, transposed: a line for each key, a column for each row of Q."""

from __future__ import annotations

import tilejit as tile

from ....ops.language.derivative import with_derivative
from ..listed_blocks import block_at, numbers_of
from ..scores import LOG2_E, assume_near


@tile.jit
def seen_by_mask(place, rows, columns, rules, SCORES: tile.constexpr):
    """Where the user's mask lets rows see columns, [columns, rows]."""
    ROWS: tile.constexpr = rows.shape[0]
    COLUMNS: tile.constexpr = columns.shape[0]
    given = SCORES.mask(place.batch, place.head, rows[:, None], columns[None, :], *rules.extra)
    return tile.transpose(tile.broadcast_to(given, (ROWS, COLUMNS)), (1, 0))


@tile.jit
def changed_scores(s, place, column, rules, SCORES: tile.constexpr):
    """The scores after the user's function, [columns, rows] as the scores `s` are, from `column` on, and its
    derivative, which is None where it is 1."""
    assume_near(place.row, column, SCORES)
    rows, columns = place.row + tile.arange(s.shape[1]), column + tile.arange(s.shape[0])
    given, slope = with_derivative(SCORES.score, tile.transpose(s, (1, 0)), place.batch, place.head, rows[:, None],
                                   columns[None, :], *rules.extra)
    tile.static_assert(given is not None and given.shape == (s.shape[1], s.shape[0]),
                       "score must return a tile of the shape of the scores")
    if slope is not None:
        slope = tile.transpose(tile.broadcast_to(slope, given.shape), (1, 0))
    return tile.transpose(tile.cast(given, tile.float32), (1, 0)), slope


@tile.jit
def powers_of(s, sums, place, column, rules, EDGE: tile.constexpr, SCORES: tile.constexpr):
    """(The probabilities, what gradients of probabilities are multiplied by to be those of products, up to the scale)
    of a block of products `s` [columns, rows] of the columns from `column` on, and the rows from `place.row` on. `sums`
    has the logarithms to base 2 of the rows' sums. Without `EDGE` the place alone hides no column."""
    slope = None
    if SCORES.softcap:
        bent = tile.tanh(s * (rules.scale / rules.cap), fast=True)
    if SCORES.score is not None:
        scaled = bent * rules.cap if SCORES.softcap else s * rules.scale
        changed, slope = changed_scores(scaled, place, column, rules, SCORES)
        p = tile.exp2(changed * LOG2_E - sums[None, :], fast=True)
    elif SCORES.softcap:
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
        if SCORES.score is not None:  # whose result for rows beyond the last may be anything
            seen = seen & (rows < place.rows)[None, :]
        p = tile.where(seen, p, 0.0)
    if SCORES.mask is not None and (EDGE or not SCORES.listed):
        p = tile.where(seen_by_mask(place, rows, columns, rules, SCORES), p, 0.0)
    weights = p * (1.0 - bent * bent) if SCORES.softcap else p
    if slope is not None:  # which may be infinite, or no number, where nothing is seen
        weights = tile.where(p == 0.0, 0.0, weights * slope)
    return p, weights


@tile.jit
def rows_of(column, place, rules, BM: tile.constexpr, BN: tile.constexpr, SCORES: tile.constexpr):
    """The blocks of BM rows that see some of BN columns from `column` on: (first, one past the last, the first that
    sees all of them, one past the last of these), in order. There may be none, and none sees all of a block that ends
    beyond the last key; with `cuts_rows`, nor does a block that ends beyond the last row."""
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
    # without `cuts_rows`, the last rows see what all see: those beyond it are zeros
    whole_stop = min(max(max(whole_stop, 0) // BM, whole), stop) if SCORES.cuts_rows else stop
    if column + BN > place.keys:
        whole, whole_stop = stop, stop
    return first, stop, whole, whole_stop


@tile.jit
def line_of_keys(TABLE, place, column, SCORES: tile.constexpr):
    """(The batch, the head, the block of keys from `column` on) in the table of `list_rows`, which may be one for all
    batches, or heads."""
    return min(place.batch, TABLE.shape[0] - 1), min(place.head, TABLE.shape[1] - 1), column // SCORES.listed[1]


@tile.jit
def blocks_of(column, place, table, rules, BM: tile.constexpr, BN: tile.constexpr, SCORES: tile.constexpr):
    """What `rows_of` returns; of listed blocks, which `table` has, their places in the list, of whole ones first."""
    if not SCORES.listed:
        return rows_of(column, place, rules, BM, BN, SCORES)
    PARTS: tile.constexpr = SCORES.listed[0] // BM  # blocks of BM rows in a listed one
    whole, some = numbers_of(table, line_of_keys(table, place, column, SCORES))
    return 0, (whole + some) * PARTS, 0, whole * PARTS


@tile.jit
def row_of(i, ends, column, place, table, BM: tile.constexpr, SCORES: tile.constexpr):
    """The first row of block `i`; of listed blocks, of the `i`-th of them. `ends`: one past the last whole block, and
    one past the last."""
    if not SCORES.listed:
        return i * BM
    PARTS: tile.constexpr = SCORES.listed[0] // BM
    line = line_of_keys(table, place, column, SCORES)
    found = block_at(table, line, i // PARTS, ends[0] // PARTS, ends[1] // PARTS)
    tile.assume(found >= 0)  # of a loaded number: a store's position must be known not to be negative
    return found * SCORES.listed[0] + i % PARTS * BM


__all__ = ["blocks_of", "powers_of", "row_of", "rows_of"]
