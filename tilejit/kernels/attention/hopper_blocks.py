"""The blocks of a tile of attention on Hopper: a consumer's softmax, beside the products of the others."""

from __future__ import annotations

import tilejit as tile

from ...ops.language.derivative import is_linear, with_slope
from .float8 import SHIFT, as_operand
from .listed_blocks import block_at, line_of as line_of_blocks, numbers_of
from .scores import (
    Rules,
    assume_near,
    factor_of,
    late_maxima,
    mask_scores,
    next_maxima,
    next_sums,
    powers_of,
    softmax_step,
    span_of,
    sums_in_parts,
)

# powers of 2 that maxima may rise before sums are rescaled; float16 holds up to 2**15, and sums of bfloat16 values
# beyond 2**118 may overflow
SLACK = 8
# the number of a row before it has seen a column: its exponents are finite, so those of -inf are -inf and not NaN; of
# scores as users' functions return them, it is below all but the lowest
UNSEEN, UNSEEN_SCALED = -2.0 ** 100, -2.0 ** 127
GUESSED = 2.0 ** 13  # up to which sums of a block's powers with a row's old number are taken; float16 holds 2**15
PARTS = 8   # columns that the sums of a row are kept apart in: a thread of an accumulator adds up its own
STEP = 8    # columns from which a thread's others in an accumulator differ by whole steps


@tile.jit
def blocks_of(place, group, rules, ROWS: tile.constexpr, PLAN: tile.constexpr):
    """What `span_of` returns, of listed blocks by their places in the list."""
    if PLAN.scores.listed:
        whole, some = numbers_of(group[1], line_of_blocks(group[1], place, PLAN.bm))
        return 0, whole + some, 0, whole
    return span_of(place.row, place, rules, ROWS, PLAN.bn, PLAN.scores)


@tile.jit
def column_of(i, ends, place, group, PLAN: tile.constexpr):
    """The first column of block `i`; with listed blocks, of the `i`-th of them. `ends`: one past the last whole block,
    and one past the last."""
    if PLAN.scores.listed:
        i = block_at(group[1], line_of_blocks(group[1], place, PLAN.bm), i, *ends)
    return i * PLAN.bn


@tile.jit
def with_steps(rules, place, PLAN: tile.constexpr):
    """The rules with the `steps` of a function that adds as much from each column to the next, 1 over the scale. The
    accumulators of the scores then begin with what it adds, which costs a multiply-add for each, and the scores are
    multiplied by the scale in the exponent, as those without a function are."""
    if not PLAN.scores.stepped:
        return rules
    rows, columns = (place.row + tile.arange(64))[:, None], tile.arange(PLAN.bn)[None, :]
    if is_linear(PLAN.scores.score, tile.zeros((64, PLAN.bn)), columns, place.batch, place.head, rows, columns,
                 *rules.extra):
        return Rules(rules.scale, rules.left, rules.right, rules.cap, rules.extra, rules.values, 1.0 / rules.scale)
    return rules


@tile.jit
def scores_after(rules, SCORES: tile.constexpr):
    """What is still to be done to scores whose products began with what the function adds in `steps`."""
    return SCORES if rules.steps is None else SCORES.without_function


@tile.jit
def added_scores(place, column, rules, PLAN: tile.constexpr):
    """What the products of the block from `column` on begin with: what a function that adds `steps` adds, over the
    scale; None without one."""
    if rules.steps is None:
        return None
    assume_near(place.row, column, PLAN.scores)
    rows, columns = (place.row + tile.arange(64))[:, None], (column + tile.arange(STEP))[None, :]
    first, step = with_slope(PLAN.scores.score, tile.zeros((64, STEP)), columns, place.batch, place.head, rows, columns,
                             *rules.extra)
    steps = (step * rules.steps) * (tile.arange(PLAN.bn // STEP) * STEP).to(tile.float32)
    first = tile.cast(first, tile.float32) * rules.steps
    return tile.reshape(first[:, None, :] + steps[None, :, None], (64, PLAN.bn))


@tile.jit
def added_to_last(place, stop, group, rules, PLAN: tile.constexpr):
    """`added_scores` of the last block, before `stop`."""
    if rules.steps is None:
        return None
    _, _, _, whole_stop = blocks_of(place, group, rules, 64, PLAN)
    return added_scores(place, column_of(stop - 1, (whole_stop, stop), place, group, PLAN), rules, PLAN)


@tile.jit
def scores_of(q, slot, baton, w, begin, PLAN: tile.constexpr):
    """The scores of a tile's last block, which `begin` with what `added_to_last` returns."""
    if PLAN.turns:
        baton.take(w)
    s = tile.mma_async(begin, q, slot.K, trans_b=True)
    tile.mma_commit()
    if PLAN.turns:
        baton.pass_on(w)
    tile.mma_wait(0)
    return s


@tile.jit
def clear_beyond(slot, count, w, together, PLAN: tile.constexpr):
    """Zero all but the first `count` rows of V in a slot. They are another sequence's, whose probabilities are 0 here,
    and 0 times a NaN is one. All consumers call this `together`."""
    if w == 0:
        BN: tile.constexpr = PLAN.bn
        beyond = (tile.arange(BN) >= count)[:, None]
        tile.store(slot.V, tile.zeros((BN, PLAN.dv), slot.V.dtype), mask=beyond)
        tile.fence_proxy_async()
    together.sync()


@tile.jit
def whole_blocks(place, ends, group, rules, PLAN: tile.constexpr):
    """(The first block without masks, one past the last, the `ends` of `column_of`). The last block has masks; the one
    before it stands apart where sequences may end within a block, since the last block's values are cleared there."""
    first, stop = ends
    _, _, whole, whole_stop = blocks_of(place, group, rules, 64, PLAN)
    parts = whole_stop, stop
    whole_stop = min(max(whole_stop, first), stop - 1)
    if PLAN.lengths:
        whole_stop = max(min(whole_stop, stop - 2), first)
    return min(max(whole, first), whole_stop), whole_stop, parts


@tile.jit
def span_of_phase(phase: tile.constexpr, first, stop, whole, whole_stop):
    """Of the blocks from `stop` - 1 down to `first`: those that a bound on the right may cut, with lengths at least one
    (phase 0), whole ones (1), and those that a bound on the left may cut, as the start and the end of a range."""
    if phase == 0:
        return stop - 1, whole_stop - 1
    if phase == 1:
        return whole_stop - 1, whole - 1
    return whole - 1, first - 1


@tile.jit
def number_of_unseen(rules, SCORES: tile.constexpr):
    """The number of a row before it has seen a column. What a function adds over a scale below 1 is larger than what it
    adds, and exponents are to be finite for one above 1."""
    if rules.steps is not None:
        return UNSEEN_SCALED * tile.minimum(rules.steps, 1.0)
    return UNSEEN_SCALED if SCORES.scaled else UNSEEN


@tile.jit
def take_maxima(s, most, factor, LATE: tile.constexpr):
    """(The numbers that are subtracted from the scores of rows, the factor of what was summed before). `LATE`: rows
    keep theirs for some rise."""
    if LATE:
        return late_maxima(s, most, factor, SLACK)
    most, _, by = next_maxima(s, most, factor, False)
    return most, by


@tile.jit
def next_powers(s, acc, total, top, by, factor, dtype: tile.constexpr, POWERS: tile.constexpr,
                CHAINED: tile.constexpr):
    """The results times the factor `by`, the powers of a block as an operand, and the sums with them."""
    acc = acc * by[:, None]  # before the powers, so that their conversions stand between them
    powers = powers_of(s, top, factor, POWERS)
    return acc, as_operand(powers, dtype), next_sums(powers, total, by, CHAINED)


@tile.jit
def check_guess(fits, guess, sums, s, acc, most, total, factor):
    """The results, powers, maxima and sums with a block whose powers were guessed, and are taken again unless they
    fit."""
    p = guess
    if fits:
        total = sums + total
    else:
        most, _, by = next_maxima(s, most, factor, False)
        acc, p, total = next_powers(s, acc, total, most, by, factor, guess.dtype, 0, False)
    return acc, p, most, total


@tile.jit
def await_scores(block_k, keys, values, PLAN: tile.constexpr):
    """Wait for the scores and release their block of K."""
    tile.mma_wait(1)
    block_k.release()
    peek(keys, values, PLAN.peeks.behind_scores)


@tile.jit
def await_values(keys, values, PLAN: tile.constexpr):
    """Wait for the product of the values."""
    peek(keys, values, PLAN.peeks.before_values)
    tile.mma_wait(0)
    peek(keys, values, PLAN.peeks.behind_values)


@tile.jit
def peek(keys, values, RINGS: tile.constexpr):
    """Look at the next slots of the rings that `Peeks` names."""
    if "k" in RINGS:
        keys.peek()
    if "v" in RINGS:
        values.peek()


@tile.jit
def attend(s, q, keys, values, barriers, w, place, ends, group, rules, dtype: tile.constexpr, PLAN: tile.constexpr):
    """From the scores `s` of the last block on: the unscaled results of 64 rows without the first block, its
    probabilities, the maxima and the sums. `ends`: of the CTA's tile, the first block and one past the last.
    `barriers`: the consumers' turns, and the barrier of all of them, for sequences that may end within a
    block.

    If the plan `guesses`, the powers of a block are taken with the old numbers of its rows, before the maxima are
    known, under the product of the values. The sums say whether that was right; if not, they are taken again."""
    baton, together = barriers
    BN: tile.constexpr = PLAN.bn
    SCORES: tile.constexpr = scores_after(rules, PLAN.scores)
    POWERS: tile.constexpr = SHIFT if SCORES.float8 else 0
    factor = factor_of(rules, SCORES)
    first, stop = ends
    whole, whole_stop, parts = whole_blocks(place, ends, group, rules, PLAN)
    last = place.keys - (stop - 1) * BN  # keys of the last block
    acc = tile.zeros((64, PLAN.dv))
    s = mask_scores(s, place, column_of(stop - 1, parts, place, group, PLAN), rules, True, SCORES)
    most, total = tile.full((64,), number_of_unseen(rules, SCORES)), tile.zeros((64, PARTS))
    powers, most, total, by = softmax_step(s, most, total, factor, False, POWERS)
    p = as_operand(powers, dtype)
    # with lengths but no bounds, phase 0 is one block, which all rows see; without either it is empty, and ptxas
    # schedules the next one better behind it: 393 instructions for 128 columns, not 422
    WHOLE: tile.constexpr = PLAN.lengths and not (SCORES.has_bounds or SCORES.listed)
    for phase in tile.static_range(3 if SCORES.left else 2):
        EDGE: tile.constexpr = phase == 2 or phase == 0 and not WHOLE
        begin, end = span_of_phase(phase, first, stop - 1, whole, whole_stop)
        GUESSES: tile.constexpr = PLAN.guesses and not EDGE
        # powers of 8 bits cannot grow, and three consumers lack the registers for a mask besides
        LATE: tile.constexpr = not (EDGE or SCORES.float8 or PLAN.consumers == 3 and SCORES.mask is not None)
        for i in range(begin, end, -1):
            column = column_of(i, parts, place, group, PLAN)
            with keys.consume() as block_k:
                with values.consume() as block_v:
                    if PLAN.lengths and not PLAN.scores.float8 and phase == 0:
                        if (i == stop - 2) & (last < BN):
                            clear_beyond(block_v, last, w, together, PLAN)
                    if PLAN.turns:
                        baton.take(w)
                    s = tile.mma_async(added_scores(place, column, rules, PLAN), q, block_k.K, trans_b=True)
                    tile.mma_commit()
                    acc = tile.mma_async(acc, p, block_v.V, trans_b=SCORES.float8)
                    tile.mma_commit()
                    if PLAN.turns:
                        baton.pass_on(w)
                    await_scores(block_k, keys, values, PLAN)
                    s = mask_scores(s, place, column, rules, EDGE, SCORES)
                    if GUESSES:
                        powers = powers_of(s, most, factor)
                        sums, guess = sums_in_parts(powers, PARTS), as_operand(powers, dtype)
                        fits = tile.all(sums <= GUESSED)
                    else:
                        most, by = take_maxima(s, most, factor, LATE)
                    await_values(keys, values, PLAN)
            if GUESSES:
                acc, p, most, total = check_guess(fits, guess, sums, s, acc, most, total, factor)
            else:
                acc, p, total = next_powers(s, acc, total, most, by, factor, dtype, POWERS, PLAN.chained)
    return acc, p, most, total


__all__ = ["added_to_last", "attend", "blocks_of", "clear_beyond", "column_of", "scores_after", "scores_of",
           "with_steps"]
