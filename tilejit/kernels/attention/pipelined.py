"""Attention on every target, by a pipelined loop.

A CTA has a tile of rows of one head, and walks over blocks of columns.
"""

from __future__ import annotations

import tilejit as tile

from .float8 import add_values, rules_in
from .scores import Place, Rules, factor_of, finish, mask_scores, softmax_step, span_of


@tile.jit
def part(X, batch, head, row, ROWS: tile.constexpr, COLUMNS: tile.constexpr, FIRST: tile.constexpr = 0):
    """ROWS x COLUMNS of a head of X [batch, heads, rows, columns], or [heads, rows, columns]."""
    if len(X.shape) == 3:
        return X[head, row:row + ROWS, FIRST:FIRST + COLUMNS]
    return X[batch, head, row:row + ROWS, FIRST:FIRST + COLUMNS]


@tile.jit
def put_sums(lse, L, batch, head, row):
    """Store the logarithms of the sums of rows from `row` on to L [batch, heads, rows], or [heads, rows]."""
    ROWS: tile.constexpr = lse.shape[0]
    if len(L.shape) == 2:
        tile.store(L[head, row:row + ROWS], lse)
    else:
        tile.store(L[batch, head, row:row + ROWS], lse)


@tile.jit
def attend(state, q, K, V, place, head, begin, end, rules, EDGE: tile.constexpr, PLAN: tile.constexpr):
    """Continue the softmax and the sums of values (the `state`) with blocks `begin` to `end`."""
    acc, most, total = state
    SCORES: tile.constexpr = PLAN.scores
    BN: tile.constexpr = PLAN.bn
    factor = factor_of(rules, SCORES)
    for i in tile.pipelined(range(begin, end), stages=PLAN.stages) if PLAN.stages > 1 else range(begin, end):
        s = tile.dot(q, tile.load(part(K, place.batch, head, i * BN, BN, PLAN.d)).T)
        s = mask_scores(s, place, i * BN, rules, EDGE, SCORES)
        HIDES: tile.constexpr = EDGE and SCORES.has_bounds or SCORES.may_hide_all
        p, most, total, by = softmax_step(s, most, total, factor, HIDES)
        v = tile.load(part(V, place.batch, head, i * BN, BN, PLAN.dv))
        acc = add_values(p, v, acc * by[:, None])
    return acc, most, total


@tile.jit
def pipelined(Q, K, V, OUT, L, S, scale, left, right, cap, E0, E1, E2, E3, PLAN: tile.constexpr):
    """``OUT = softmax(Q @ K.T * scale) @ V`` of each head, and L, the logarithms of the sums. `PLAN` is an
    `AttentionConstants`; S holds the sinks."""
    BM: tile.constexpr = PLAN.bm
    SCORES: tile.constexpr = PLAN.scores
    rules = Rules(scale, left, right, cap, (E0, E1, E2, E3)[:SCORES.extras])
    m = (tile.num_programs(0) - 1 - tile.program_id(0)) * BM
    place = Place(tile.program_id(2), tile.program_id(1), m, Q.shape[-2], K.shape[-2])
    head = place.head // (Q.shape[-3] // K.shape[-3])
    rules = rules_in(rules, place, Q, K, SCORES)
    q = tile.load(part(Q, place.batch, place.head, m, BM, PLAN.d))
    first, stop, whole, whole_stop = span_of(m, place, rules, BM, PLAN.bn, SCORES)
    whole_stop = min(max(whole_stop, first), stop)
    whole = min(max(whole, first), whole_stop)
    state = tile.zeros((BM, PLAN.dv)), tile.full((BM,), -float("inf")), tile.zeros((BM, 8))
    if SCORES.left:
        state = attend(state, q, K, V, place, head, first, whole, rules, True, PLAN)
    state = attend(state, q, K, V, place, head, whole, whole_stop, rules, False, PLAN)
    acc, most, total = attend(state, q, K, V, place, head, whole_stop, stop, rules, True, PLAN)
    by, lse = finish(most, total, factor_of(rules, SCORES), S, place.head, SCORES)
    if SCORES.float8:
        by = by * rules.values
    tile.store(part(OUT, place.batch, place.head, m, BM, PLAN.dv), tile.cast(acc * by[:, None], OUT.dtype))
    if PLAN.lse:
        put_sums(lse, L, place.batch, place.head, m)


__all__ = ["pipelined"]
