"""The gradient of queries in a fixed order, on every target.

A CTA has a tile of rows, and walks over blocks of keys.
"""

from __future__ import annotations

import tilejit as tile

from ..listed_blocks import block_at, line_of as line_of_blocks, numbers_of
from ..pipelined import part
from ..scores import Place, Rules, span_of
from ..sequences import length_of, search
from .gradients import load_once, rows_from
from .prepare import line_of
from .score_gradients import powers_of


@tile.jit
def spans_of(m, place, table, rules, PLAN: tile.constexpr):
    """The blocks of keys of the rows from `m` on: (first, one past the last, the first that all these rows see whole,
    one past the last of these); of listed blocks, which `table` has, their places in the list, of whole ones first."""
    if PLAN.scores.listed:
        PARTS: tile.constexpr = PLAN.scores.listed[1] // PLAN.bn  # blocks of keys in a listed one
        whole, some = numbers_of(table, line_of_blocks(table, place, PLAN.scores.listed[0]))
        return 0, (whole + some) * PARTS, 0, whole * PARTS
    first, stop, whole, whole_stop = span_of(m, place, rules, PLAN.bm, PLAN.bn, PLAN.scores)
    whole_stop = min(max(whole_stop, first), stop)
    return first, stop, min(max(whole, first), whole_stop), whole_stop


@tile.jit
def column_of(i, ends, place, table, PLAN: tile.constexpr):
    """The first key of block `i`; of listed blocks, of the `i`-th of them. `ends`: one past the last whole block, and
    one past the last."""
    if not PLAN.scores.listed:
        return i * PLAN.bn
    PARTS: tile.constexpr = PLAN.scores.listed[1] // PLAN.bn
    line = line_of_blocks(table, place, PLAN.scores.listed[0])
    found = block_at(table, line, i // PARTS, ends[0] // PARTS, ends[1] // PARTS)
    return found * PLAN.scores.listed[1] + i % PARTS * PLAN.bn


@tile.jit
def walk(dq, blocks, lines, held, place, head, begin, end, rules, EDGE: tile.constexpr, PLAN: tile.constexpr):
    """Continue the sums of gradients of a tile's rows with blocks `begin` to `end` of keys of a head of K and V, which
    are `held` with the table of listed blocks."""
    q, do = blocks
    K, V, table = held
    sums, delta = lines
    BN: tile.constexpr = PLAN.bn
    for i in tile.pipelined(range(begin, end), stages=PLAN.stages) if PLAN.stages > 1 else range(begin, end):
        n = column_of(i, (0 if EDGE else end, end), place, table, PLAN)
        k = tile.load(part(K, place.batch, head, n, BN, PLAN.d))
        v = tile.load(part(V, place.batch, head, n, BN, PLAN.dv))
        p, weights = powers_of(tile.dot(k, q, trans_b=True), sums, place, n, rules, EDGE, PLAN.scores)
        ds = weights * (tile.dot(v, do, trans_b=True) - delta[None, :])
        dq = tile.dot(ds.to(K.dtype), k, dq, trans_a=True)
    return dq


@tile.jit
def queries(DO, Q, K, V, SUMS, DELTA, DQ, ROWS, KEYS, scale, left, right, cap, E0, E1, E2, E3, PLAN: tile.constexpr):
    """DQ. SUMS and DELTA are those of `prepare`; ROWS and KEYS the lengths of sequences, or KEYS is the table of listed
    blocks. `PLAN` is a `BackwardConstants`."""
    BM: tile.constexpr = PLAN.bm
    SCORES: tile.constexpr = PLAN.scores
    rules = Rules(scale, left, right, cap, (E0, E1, E2, E3)[:SCORES.extras])
    t, head, batch = tile.num_programs(0) - 1 - tile.program_id(0), tile.program_id(1), tile.program_id(2)
    own = head // (Q.shape[-3] // K.shape[-3])  # of K and V
    rows, keys = Q.shape[-2], K.shape[-2]
    if PLAN.packed:
        batch, t, row, rows, key, keys = search(t, ROWS, KEYS, rows, keys, BM, 1)
        tile.assume((row >= 0) & (key >= 0))
        if batch >= ROWS.shape[0]:
            return
        Q, DO, DQ = rows_from(Q, row, rows), rows_from(DO, row, rows), rows_from(DQ, row, rows)
        SUMS, DELTA = rows_from(SUMS, row, rows), rows_from(DELTA, row, rows)
        K, V = rows_from(K, key, keys), rows_from(V, key, keys)
    elif PLAN.lengths:
        keys = length_of(KEYS, batch, keys)
        K, V = rows_from(K, 0, keys), rows_from(V, 0, keys)
    m = t * BM
    place = Place(batch, head, m, rows, keys)
    q = load_once(part(Q, batch, head, m, BM, PLAN.d), PLAN)
    blocks = q, load_once(part(DO, batch, head, m, BM, PLAN.dv), PLAN)
    sums = tile.load(line_of(SUMS, batch, head, m, BM), other=float("inf"))
    lines = sums, tile.load(line_of(DELTA, batch, head, m, BM), other=0.0)
    held = K, V, KEYS
    first, stop, whole, whole_stop = spans_of(m, place, KEYS, rules, PLAN)
    dq = tile.zeros((BM, PLAN.d))
    if SCORES.left and not SCORES.listed:
        dq = walk(dq, blocks, lines, held, place, own, first, whole, rules, True, PLAN)
    dq = walk(dq, blocks, lines, held, place, own, whole, whole_stop, rules, False, PLAN)
    dq = walk(dq, blocks, lines, held, place, own, whole_stop, stop, rules, True, PLAN)
    tile.store(part(DQ, batch, head, m, BM, PLAN.d), tile.cast(dq * scale, DQ.dtype))


__all__ = ["queries"]
