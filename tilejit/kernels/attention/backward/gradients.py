"""The gradients of keys and values on every target, by a pipelined loop.

A CTA has a block of keys of one head, and walks over the rows of all heads of Q that share it. It computes scores
transposed, a line for each key, so that probabilities and their gradients are operands as they are."""

from __future__ import annotations

import tilejit as tile

from ..pipelined import part
from ..scores import Place, Rules
from ..sequences import length_of, search
from .prepare import line_of
from .score_gradients import blocks_of, powers_of, row_of


@tile.jit
def load_once(region, PLAN: tile.constexpr):
    """A block that all products of a CTA have as an operand: in shared memory if it can be copied there."""
    if PLAN.stages == 1:
        return tile.load(region)
    layout = tile.auto
    if region.shape[1] == 192:
        # products that two warpgroups share begin inside of the columns of a wider swizzle
        layout = tile.swizzled(region.dtype, region.shape, 64)
    block = tile.alloc(region.shape, region.dtype, layout=layout)
    tile.copy_async(block, region).wait()
    return block


@tile.jit
def rows_from(X, first, count):
    """The `count` rows from `first` on of all heads of X [heads, rows, ...], or all batches."""
    if len(X.shape) == 4:
        return tile.window(X, (0, 0, first, 0), (None, None, count, None))
    if len(X.shape) == 3:
        return tile.window(X, (0, first, 0), (None, count, None))
    return tile.window(X, (0, first), (None, count))


@tile.jit
def walk(dk, dv, blocks, arrays, place, column, begin, end, rules, EDGE: tile.constexpr, PLAN: tile.constexpr):
    """Continue the sums of gradients of a block of keys and values (`blocks`) with blocks `begin` to `end` of rows."""
    k, v = blocks
    Q, DO, SUMS, DELTA, DQ, table = arrays
    BM: tile.constexpr = PLAN.bm
    for i in tile.pipelined(range(begin, end), stages=PLAN.stages) if PLAN.stages > 1 else range(begin, end):
        m = row_of(i, (0 if EDGE else end, end), column, place, table, BM, PLAN.scores)
        q = tile.load(part(Q, place.batch, place.head, m, BM, PLAN.d))
        do = tile.load(part(DO, place.batch, place.head, m, BM, PLAN.dv))
        sums = tile.load(line_of(SUMS, place.batch, place.head, m, BM), other=float("inf"))
        delta = tile.load(line_of(DELTA, place.batch, place.head, m, BM), other=0.0)
        here = Place(place.batch, place.head, m, place.rows, place.keys)
        p, weights = powers_of(tile.dot(k, q.T), sums, here, column, rules, EDGE, PLAN.scores)
        ds = weights * (tile.dot(v, do.T) - delta[None, :])
        dv = tile.dot(p.to(Q.dtype), do, dv)
        ds = ds.to(Q.dtype)
        dk = tile.dot(ds, q, dk)
        if PLAN.add:
            dq = tile.dot(ds, k, trans_a=True)
            tile.atomic_add(part(DQ, place.batch, place.head, m, BM, PLAN.d), dq)
    return dk, dv


@tile.jit
def gradients(DO, Q, K, V, SUMS, DELTA, DQ, DK, DV, ROWS, KEYS, scale, left, right, cap, E0, E1, E2, E3,
              PLAN: tile.constexpr):
    """DK and DV, and if `add` what they give to DQ [batch, heads, rows, columns], in float32, up to the scale. SUMS and
    DELTA are those of `prepare`; ROWS and KEYS the lengths of sequences, or KEYS is the table of listed blocks. `PLAN`
    is a `BackwardConstants`."""
    BM: tile.constexpr = PLAN.bm
    BN: tile.constexpr = PLAN.bn
    SCORES: tile.constexpr = PLAN.scores
    rules = Rules(scale, left, right, cap, (E0, E1, E2, E3)[:SCORES.extras])
    t, head, batch = tile.program_id(0), tile.program_id(1), tile.program_id(2)
    group = Q.shape[-3] // K.shape[-3]
    rows, keys = Q.shape[-2], K.shape[-2]
    if PLAN.packed:
        batch, t, key, keys, row, rows = search(t, KEYS, ROWS, keys, rows, BN, 1)
        tile.assume((row >= 0) & (key >= 0))
        if batch >= ROWS.shape[0]:
            return
        Q, DO, DQ = rows_from(Q, row, rows), rows_from(DO, row, rows), rows_from(DQ, row, rows) if PLAN.add else 0
        SUMS, DELTA = rows_from(SUMS, row, rows), rows_from(DELTA, row, rows)
        K, V, DK, DV = (rows_from(K, key, keys), rows_from(V, key, keys), rows_from(DK, key, keys),
                        rows_from(DV, key, keys))
    elif PLAN.lengths:
        keys = length_of(KEYS, batch, keys)
        K, V = rows_from(K, 0, keys), rows_from(V, 0, keys)
    column = t * BN
    k = load_once(part(K, batch, head, column, BN, PLAN.d), PLAN)
    v = load_once(part(V, batch, head, column, BN, PLAN.dv), PLAN)
    dk, dv = tile.zeros((BN, PLAN.d)), tile.zeros((BN, PLAN.dv))
    arrays = Q, DO, SUMS, DELTA, DQ, KEYS
    for h in range(group):
        place = Place(batch, head * group + h, 0, rows, keys)
        first, stop, whole, whole_stop = blocks_of(column, place, KEYS, rules, BM, BN, SCORES)
        if not SCORES.listed:
            dk, dv = walk(dk, dv, (k, v), arrays, place, column, first, whole, rules, True, PLAN)
        dk, dv = walk(dk, dv, (k, v), arrays, place, column, whole, whole_stop, rules, False, PLAN)
        if SCORES.cuts_rows or SCORES.listed:
            dk, dv = walk(dk, dv, (k, v), arrays, place, column, whole_stop, stop, rules, True, PLAN)
    tile.store(part(DK, batch, head, column, BN, PLAN.d), tile.cast(dk * scale, DK.dtype))
    tile.store(part(DV, batch, head, column, BN, PLAN.dv), tile.cast(dv, DV.dtype))


__all__ = ["gradients", "load_once", "rows_from"]
