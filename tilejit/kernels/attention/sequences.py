"""Attention of sequences with lengths of their own, of keys in pages, and of few rows: on every target.

A CTA has a tile of rows of one head, or of all heads that share one head of K and V, and a part of the keys if these
are split. Parts are put together by `combine`."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import tilejit as tile

from .float8 import add_values, rules_of
from .pipelined import part
from .scores import LN_2, LOG2_E, Place, Rules, factor_of, finish, lines_of, mask_scores, softmax_step, span_of
from .tile_table import length_of

CHUNK = 128   # sequences that are searched at once


@dataclass(frozen=True)
class Keys:
    """K and V, or the rows of their pages, and the `pages` of each sequence; the head, where a sequence begins, and the
    slots for boxes of pages: of keys, or of their columns behind the values, and of values."""

    K: Any
    V: Any
    pages: Any
    head: Any
    start: Any
    slots: Any
    tile_record = True


@tile.jit
def search(t, row_lengths, key_lengths, rows, keys, BM: tile.constexpr, SHARED: tile.constexpr):
    """Of packed sequences, that of tile `t`: (its number, the tile in it, its first row, its rows, its first key, its
    keys). The number is that of the sequences if there are fewer tiles."""
    sequence, before, row, key = 0, 0, 0, 0
    for c in range(0, row_lengths.shape[0], CHUNK):
        i = c + tile.arange(CHUNK)
        n = length_of(row_lengths, i, rows)
        ends = tile.cumsum(tile.cdiv(n * SHARED, BM), axis=0) + before
        over = (ends <= t) & (i < row_lengths.shape[0])
        sequence += tile.sum(tile.where(over, 1, 0), axis=0)
        row += tile.sum(tile.where(over, n, 0), axis=0)
        key += tile.sum(tile.where(over, length_of(key_lengths, i, keys), 0), axis=0)
        before = tile.max(tile.where(over, ends, before), axis=0)
    own = length_of(row_lengths, sequence, rows), length_of(key_lengths, sequence, keys)
    return sequence, t - before, row, tile.minimum(own[0], rows - row), key, tile.minimum(own[1], keys - key)


@tile.jit
def line_in_pages(held, place, at, exists, PLAN: tile.constexpr):
    """The line of the key `at` of a sequence in the matrix of all pages."""
    page = tile.load(held.pages[place.batch, at // PLAN.page], mask=exists, other=0)
    if not PLAN.rows_first:
        page = page * PLAN.kv_heads + held.head
    return page * PLAN.page + at % PLAN.page


@tile.jit
def lines_in_pages(held, place, i, PLAN: tile.constexpr, EDGE: tile.constexpr):
    """Where block `i` is in the matrix of all pages: the first line of each of its boxes, or all lines. None without
    pages."""
    if PLAN.page == 0:
        return None
    if PLAN.box:
        starts = [i * PLAN.bn + n for n in tile.static_range(0, PLAN.bn, PLAN.box)]
        return [line_in_pages(held, place, at, at < place.keys if EDGE else None, PLAN) for at in starts]
    at = i * PLAN.bn + tile.arange(PLAN.bn)
    return line_in_pages(held, place, at, at < place.keys, PLAN)


@tile.jit
def block(X, slot, lines, held, place, i, PLAN: tile.constexpr, EDGE: tile.constexpr, WIDTH: tile.constexpr,
          FIRST: tile.constexpr, STOP: tile.constexpr):
    """Columns FIRST to STOP of block `i` of the rows of a sequence in X, which is K or V with rows of WIDTH columns;
    zeros beyond its last row. Without EDGE, the sequence has all rows of the block. `lines` are where it is in pages,
    whose boxes are copied to the `slot`, which is returned."""
    head = held.head
    if PLAN.page:  # X is a matrix: its lines are the rows of all pages, with all heads if these lie beside each other
        column = head * WIDTH + FIRST if PLAN.rows_first else FIRST
        if PLAN.box:
            for n in tile.static_range(len(lines)):
                if EDGE:
                    there = tile.minimum(tile.maximum(place.keys - i * PLAN.bn - n * PLAN.box, 0), PLAN.box)
                    rows = tile.window(X, (lines[n], column), (there, STOP - FIRST))[0:PLAN.box, 0:STOP - FIRST]
                else:
                    rows = X[lines[n]:lines[n] + PLAN.box, column:column + (STOP - FIRST)]
                tile.copy_async(slot[n * PLAN.box:(n + 1) * PLAN.box, 0:STOP - FIRST], rows)
            return slot  # of which products read in place
        exists = (i * PLAN.bn + tile.arange(PLAN.bn) < place.keys)[:, None]
        return tile.load(X[lines[:, None], column + tile.arange(STOP - FIRST)[None, :]], mask=exists, other=0.0)
    if PLAN.packed:
        X = tile.window(X, (head, held.start, 0), (1, place.keys, None))
        return tile.load(X[0, i * PLAN.bn:i * PLAN.bn + PLAN.bn, FIRST:STOP])
    if PLAN.lengths:
        X = tile.window(X, (place.batch, head, 0, 0), (1, 1, place.keys, None))
        return tile.load(X[0, 0, i * PLAN.bn:i * PLAN.bn + PLAN.bn, FIRST:STOP])
    return tile.load(part(X, place.batch, head, i * PLAN.bn, PLAN.bn, STOP - FIRST, FIRST))


@tile.jit
def products(q, latent, slot, lines, held, place, i, PLAN: tile.constexpr, EDGE: tile.constexpr):
    """The scores of the rows `q` (their parts, if `latent` has the first columns of the keys already) and block `i`."""
    if not PLAN.inner:
        return tile.dot(q, block(held.K, slot, lines, held, place, i, PLAN, EDGE, PLAN.d, 0, PLAN.d), trans_b=True)
    s = tile.dot(q[0], latent, trans_b=True)
    if PLAN.d > PLAN.dv:
        more = block(held.K, slot, lines, held, place, i, PLAN, EDGE, PLAN.d, PLAN.dv, PLAN.d)
        s = tile.dot(q[1], more, s, trans_b=True)
    return s


@tile.jit
def values(latent, slot, lines, held, place, i, PLAN: tile.constexpr, EDGE: tile.constexpr):
    """Block `i` of the values, which `latent` has already if they are in the keys."""
    v = latent
    if not PLAN.inner:
        v = block(held.V, slot, lines, held, place, i, PLAN, EDGE, PLAN.dv, 0, PLAN.dv)
    if PLAN.box and v.dtype.nbytes == 1:  # values of 8 bits are converted
        v = tile.load(v)
    return v


@tile.jit
def attend(state, q, held, place, begin, end, rules, EDGE: tile.constexpr, PLAN: tile.constexpr):
    """Continue the softmax and the sums of values (the `state`) with blocks `begin` to `end`."""
    acc, most, total = state
    SCORES: tile.constexpr = PLAN.scores
    factor = factor_of(rules, SCORES)
    slots = held.slots
    for i in (tile.pipelined(range(begin, end), stages=PLAN.stages) if PLAN.stages > 1 else range(begin, end)):
        lines = lines_in_pages(held, place, i, PLAN, EDGE)
        latent = None
        if PLAN.inner:
            latent = block(held.K, slots[1], lines, held, place, i, PLAN, EDGE, PLAN.d, 0, PLAN.dv)
        s = products(q, latent, slots[0], lines, held, place, i, PLAN, EDGE)
        s = mask_scores(s, place, i * PLAN.bn, rules, EDGE, SCORES)
        p, most, total, by = softmax_step(s, most, total, factor, EDGE or SCORES.may_hide_all)
        v = values(latent, slots[1], lines, held, place, i, PLAN, EDGE)
        acc = add_values(p, v, acc * by[:, None])
    return acc, most, total


@tile.jit
def store_lines(X, lines, columns, values, exists):
    """Store `values` to X at the given columns of lines, each of which is the indices before the column."""
    if len(lines) == 2:
        tile.store(X[lines[0], lines[1], columns], tile.cast(values, X.dtype), mask=exists)
    else:
        tile.store(X[lines[0], lines[1], lines[2], columns], tile.cast(values, X.dtype), mask=exists)


@tile.jit
def put(acc, lse, OUT, L, place, first, split, PLAN: tile.constexpr):
    """Store results and logarithms of a tile's lines, whose sequence begins at row `first`: to OUT and L, or as rows of
    the matrices of parts of the `split`."""
    BM: tile.constexpr = PLAN.bm
    heads, rows = lines_of(place, BM)
    heads = heads + tile.zeros((BM,), tile.int32)
    exists = rows < place.rows
    rows = rows + first
    batch = place.batch + tile.zeros((BM,), tile.int32)
    if PLAN.splits > 1:
        lines = split + tile.zeros((BM,), tile.int32), (place.batch * PLAN.heads + heads) * place.rows + rows
    elif len(OUT.shape) == 3:
        lines = heads, rows
    else:
        lines = batch, heads, rows
    if PLAN.pieces == 0:
        store_lines(OUT, [n[:, None] for n in lines], tile.arange(PLAN.dv)[None, :], acc, exists[:, None])
    else:
        PART: tile.constexpr = PLAN.dv // PLAN.pieces
        STEP: tile.constexpr = gcd(PART, 32)
        acc = tile.reshape(acc, (BM, PLAN.pieces, PART))
        for c in tile.static_range(0, PART, STEP):
            columns = (tile.arange(PLAN.pieces) * PART)[None, :, None] + (c + tile.arange(STEP))[None, None, :]
            store_lines(OUT, [n[:, None, None] for n in lines], columns, acc[:, :, c:c + STEP], exists[:, None, None])
    if PLAN.splits > 1 or PLAN.lse:
        if len(lines) == 2:
            tile.store(L[lines[0], lines[1]], lse, mask=exists)
        else:
            tile.store(L[lines[0], lines[1], lines[2]], lse, mask=exists)


@tile.jit
def queries(Q, place, first, PLAN: tile.constexpr, FIRST: tile.constexpr, STOP: tile.constexpr):
    """Columns FIRST to STOP of the lines of a tile of Q, whose sequence begins at row `first`; zeros beyond its last
    row."""
    heads, rows = lines_of(place, PLAN.bm)
    exists, columns = (rows < place.rows)[:, None], FIRST + tile.arange(STOP - FIRST)[None, :]
    heads = (heads + tile.zeros((PLAN.bm,), tile.int32))[:, None]
    rows = (rows + first)[:, None]
    if len(Q.shape) == 3:
        return tile.load(Q[heads, rows, columns], mask=exists, other=0.0)
    at = (place.batch + tile.zeros((PLAN.bm,), tile.int32))[:, None]
    return tile.load(Q[at, heads, rows, columns], mask=exists, other=0.0)


@tile.jit
def sequences(Q, K, V, OUT, L, S, ROWS, KEYS, pages, scale, left, right, cap, E0, E1, E2, E3, PLAN: tile.constexpr):
    """``OUT = softmax(Q @ K.T * scale) @ V`` of each head of each sequence, and L, the logarithms of the sums. `PLAN`
    is a `SequenceConstants`; S holds the sinks, ROWS and KEYS the lengths, `pages` the pages of each sequence."""
    BM: tile.constexpr = PLAN.bm
    SCORES: tile.constexpr = PLAN.scores
    SHARED: tile.constexpr = PLAN.shared
    rules = Rules(scale, left, right, cap, (E0, E1, E2, E3)[:SCORES.extras])
    HEADS: tile.constexpr = PLAN.heads // SHARED
    # the heads of a tile are beside each other, as are their rows in a page
    head, n = tile.program_id(0) % HEADS, tile.program_id(0) // HEADS
    t, split = n // PLAN.splits, n % PLAN.splits
    batch, row, start = tile.program_id(2), 0, 0
    if PLAN.packed:
        batch, t, row, rows, start, keys = search(t, ROWS, KEYS, Q.shape[-2], K.shape[-2], BM, SHARED)
        tile.assume((row >= 0) & (start >= 0))
        if batch >= ROWS.shape[0]:
            return
    else:
        rows, keys = Q.shape[-2], pages.shape[-1] * PLAN.page if PLAN.page else K.shape[-2]
        if PLAN.lengths:
            keys = length_of(KEYS, batch, keys)
    place = Place(batch, head, t * BM, rows, keys, SHARED)
    # of K and V
    TILES: tile.constexpr = PLAN.heads // PLAN.kv_heads // SHARED
    own = head // TILES if TILES > 1 else head
    slots = None, None
    if PLAN.box:
        WIDTH: tile.constexpr = PLAN.d - PLAN.dv if PLAN.inner else PLAN.d
        slots = (tile.alloc((PLAN.bn, WIDTH), K.dtype, layout=tile.auto) if WIDTH else None,
                 tile.alloc((PLAN.bn, PLAN.dv), V.dtype, layout=tile.auto))
    held = Keys(K, V, pages, own, start, slots)
    if SCORES.float8:
        rules = rules_of(rules, batch, lines_of(place, BM)[0][:, None] if SHARED > 1 else head, own, SCORES)
    first, stop, whole, whole_stop = span_of(t * BM, place, rules, BM, PLAN.bn, SCORES)
    PARTS: tile.constexpr = PLAN.splits > 1
    if PARTS:
        each = tile.cdiv(stop - first, PLAN.splits)
        first, stop = first + split * each, min(stop, first + (split + 1) * each)
    whole_stop = min(max(whole_stop, first), stop)
    whole = min(max(whole, first), whole_stop)
    if PLAN.inner:
        q = queries(Q, place, row, PLAN, 0, PLAN.dv), None
        if PLAN.d > PLAN.dv:
            q = q[0], queries(Q, place, row, PLAN, PLAN.dv, PLAN.d)
    else:
        q = queries(Q, place, row, PLAN, 0, PLAN.d)
    state = tile.zeros((BM, PLAN.dv)), tile.full((BM,), -float("inf")), tile.zeros((BM, 8))
    if SCORES.left:
        state = attend(state, q, held, place, first, whole, rules, True, PLAN)
    state = attend(state, q, held, place, whole, whole_stop, rules, False, PLAN)
    acc, most, total = attend(state, q, held, place, whole_stop, stop, rules, True, PLAN)
    heads, _ = lines_of(place, BM)
    by, lse = finish(most, total, factor_of(rules, SCORES), S, heads, SCORES, SCORES.sinks and not PARTS)
    if SCORES.float8:
        by = by * rules.values
    put(acc * by[:, None], lse, OUT, L, place, row, split, PLAN)


@tile.jit(num_warps=4)
def combine(PARTS, SUMS, S, OUT, L, PLAN: tile.constexpr):
    """Put together the parts of `sequences`, PARTS [splits, lines, columns], by the logarithms of their sums, SUMS
    [splits, lines], and count the sinks S. A line is a row of a head of a batch."""
    LINES: tile.constexpr = PLAN.lines
    at = tile.program_id(0) * LINES
    lines = at + tile.arange(LINES)
    rows = OUT.shape[-2]
    sums = tile.load(SUMS[0:PLAN.splits, at:at + LINES], other=-float("inf")) * LOG2_E
    largest = tile.max(sums, axis=0)
    heads = lines // rows % PLAN.heads
    if PLAN.scores.sinks:
        sink = tile.cast(tile.load(S[heads]), tile.float32) * LOG2_E
        largest = tile.maximum(largest, sink)
    top = tile.where(largest == -float("inf"), 0.0, largest)
    weights = tile.exp2(sums - top[None, :])
    total = tile.sum(weights, axis=0)
    if PLAN.scores.sinks:
        total += tile.exp2(sink - top)
    lse = (top + tile.log2(total)) * LN_2
    parts = tile.load(PARTS[0:PLAN.splits, at:at + LINES, 0:PLAN.dv], other=0.0)
    parts = tile.sum(parts * weights[:, :, None], axis=0) * tile.where(total == 0.0, 0.0, 1.0 / total)[:, None]
    exists, columns = lines < SUMS.shape[1], tile.arange(PLAN.dv)[None, :]
    r, made = lines % rows, tile.cast(parts, OUT.dtype)
    if len(OUT.shape) == 3:
        tile.store(OUT[heads[:, None], r[:, None], columns], made, mask=exists[:, None])
        if PLAN.lse:
            tile.store(L[heads, r], lse, mask=exists)
    else:
        b = lines // (rows * PLAN.heads)
        tile.store(OUT[b[:, None], heads[:, None], r[:, None], columns], made, mask=exists[:, None])
        if PLAN.lse:
            tile.store(L[b, heads, r], lse, mask=exists)


__all__ = ["combine", "sequences"]
