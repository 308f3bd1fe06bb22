"""Stream-K matrix product on Hopper: all CTAs share the last partial round of tiles, so that few are idle.

They go through the full rounds in lockstep.

Each tile of the last round has a CTA of its own, which begins with the first slots of k. The other CTAs, the helpers,
take the last slots of all these tiles and write their sums to global memory; the tile's own CTA adds them up in the
order of the slots, so that the result has the same bits each time. CTAs at the same slots find each other's operands
in L2. Therefore helpers take the rests of neighbouring tiles at the same time, alternate rounds go backwards along k,
and a CTA begins a round when nearly all operands of the round before have been loaded by all CTAs. A CTA waits for
sums of CTAs with lower numbers only, which have started before it, and for rounds no longer than that can pay."""

from __future__ import annotations

from typing import Any, NamedTuple

import tilejit as tile

from ....schedule import group_by_divisions
from ..epilogue import Finishing, bring, finish_first, finish_sums, room_of, rooms, send_first, staging_buffers, store
from .mainloop import (
    Grid,
    add_products,
    by_row,
    by_thread,
    corner,
    fill,
    first_product,
    matrix_and_row,
    one_loop,
    slots,
)
from .overlap import (
    begun_over,
    count_slots_over,
    finish_but_last,
    finish_left_over,
    left_over,
    multiplied_bringing,
    multiplied_over,
    none_kept,
    none_left_over,
    parts_to_send,
    time_of,
)

NEAR = 8          # slots before the end of a round at which a CTA counts as having loaded it
PATIENCE = 100    # polls, of about a microsecond each, by a CTA that waits until all others have


class Shares(NamedTuple):
    """How CTAs share tiles: the `whole` rounds, the tiles `left` after them, and the CTAs that have none of these
    (`idle`). So many of the CTAs are `helpers`, which take the last `rest` slots of the tiles left: each of them the
    rests of `each` tiles; the `few` that remain, fewer than the helpers, are cut into `parts`."""

    whole: Any
    left: Any
    idle: Any
    rest: Any
    helpers: Any
    parts: Any
    each: Any
    few: Any
    tile_record = True


@tile.jit
def whole_groups(t, tiles_m, tiles_n, group):
    """The order "grouped", always by divisions. The rounds here are long, and the branch in "grouped" keeps more
    values in registers: with it an epilogue spilled 52 bytes."""
    above, m, n = group_by_divisions(t, tiles_m, tiles_n, group)
    return above + m, n


@tile.jit
def pieces_of_helper(p, shared):
    """The pieces of a helper: the rests of `each` tiles, and one of the parts of those that remain if it gets one."""
    return shared.each + (1 if p < shared.few * shared.parts else 0)


@tile.jit
def pieces_of_others(p, shared):
    """The pieces of a CTA that is no helper: one of the tiles left without its rest, or none if it is idle."""
    return 1 if p >= shared.idle else 0


@tile.jit
def pieces(shared):
    """The number of pieces of tiles that a CTA has after its whole tiles."""
    p = tile.program_id(0)
    return pieces_of_helper(p, shared) if p < shared.helpers else pieces_of_others(p, shared)


@tile.jit
def piece(x, steps, shared):
    """The `x`-th piece of work of a CTA: (tile, first slot, slot after the last, place in `partial` for the sums if
    they are not the tile's). Each helper takes the rests of `each` tiles, all helpers at neighbouring tiles at the
    same time; the last `few` rests, fewer than there are helpers, are cut into `parts`."""
    rest, parts, few = shared.rest, shared.parts, shared.few
    p, ctas = tile.program_id(0), tile.num_programs(0)
    t, begin, end, place = x * ctas + p, 0, steps, 0
    if x >= shared.whole:
        if p < shared.helpers:
            place = (x - shared.whole) * shared.helpers + p
            t, begin = t - (x - shared.whole) * (ctas - shared.helpers), steps - rest
            if x - shared.whole == shared.each:
                last = place + few - shared.left
                tile.assume((last >= 0) & (few > 0) & (parts > 0))
                part = last // few
                # max() for the compiler
                begin, end = begin + max(rest * part, 0) // parts, begin + max(rest * (part + 1), 0) // parts
                t = t - part * few
        else:
            t, end = t - shared.idle, steps - rest
    return t, begin, end, place


@tile.jit
def leave(sums, partial, flags, w, place):
    """Write the sums of consumer `w` to global memory for the tile's own CTA, and set its flag."""
    tile.assume((place >= 0) & (place < partial.shape[0]) & (place < flags.shape[0]))
    tile.store(partial[place, w, 0:64 * sums.shape[1]], by_thread(sums))
    tile.sync()
    with tile.elect():
        tile.store(flags[place, w], 1, sem="release")


@tile.jit
def combine_sums(sums, partial, flags, w, is_shared, shared):
    """The sums of consumer `w`; if the tile `is_shared`, with those of the helpers that have slots of it added,
    once they are there."""
    few = shared.few
    t, count = 0, 0  # t: the tile's number among those that are `left`
    if is_shared:
        t = tile.program_id(0) - shared.idle
        count = shared.parts if t + few >= shared.left else 1
        with tile.elect():
            for i in range(count):
                while tile.load(flags[t + i * few, w], sem="acquire") == 0:
                    pass
                tile.store(flags[t + i * few, w], 0)
        tile.sync()
    for i in range(count):  # not within the branch above, so that the sums stay in the same registers on either path
        place = t + i * few
        tile.assume((place >= 0) & (place < partial.shape[0]))
        sums = sums + by_row(tile.load(partial[place, w, 0:64 * sums.shape[1]]))
    return sums


@tile.jit
def store_under_next(ring, w, stage, C, grid, how, partial, flags, shared, PLAN: tile.constexpr):
    """A consumer that keeps a tile's results in registers until the first products of its next piece run."""
    steps = grid.steps
    acc, before, count = (tile.zeros((64, PLAN.bn), PLAN.sums), none_kept(C.dtype, PLAN.bn, stage.shape[2]),
                          shared.whole + pieces(shared))
    for x in range(count + 1):  # a last turn without slots sends the last tile
        t, begin, end, place = 0, 0, 0, 0
        if x < count:
            t, begin, end, place = piece(x, steps, shared)
        acc, at, turn = multiplied_over(acc, before, ring, w, end - begin, t, stage, C, grid, PLAN)
        if begin > 0:
            leave(acc, partial, flags, w, place)
            parts, sent, at, turn = parts_to_send(tile.cast(acc, C.dtype), at, turn, stage.shape[2])
            # nothing to send; keeping the old `before` would hold its registers during the products
            before = parts, len(parts), at, turn
        else:
            acc = combine_sums(acc, partial, flags, w, (end > 0) & (end < steps), shared)
            values = finish_sums(acc, *corner(*at, w, grid.down, len(C.shape) == 3, PLAN), how)
            before = parts_to_send(tile.cast(values, C.dtype), at, turn, stage.shape[2])


@tile.jit
def finish_under_next(ring, w, stage, ready, C, grid, how, partial, flags, shared, PLAN: tile.constexpr):
    """A consumer that finishes the last columns of a tile, which are deferred,
    under the first products of its next piece."""
    steps = grid.steps
    before, phase = none_left_over(PLAN), 0
    for x in range(shared.whole + pieces(shared)):
        acc = begun_over(before, ring, w, stage, C, grid.down, how, PLAN)
        t, begin, end, place = piece(x, steps, shared)
        at, more = tile.tile_at(t, grid.rows, grid.across, *PLAN.order), end - begin - count_slots_over(PLAN.late) - 1
        acc = multiplied_bringing(acc, ring, w, more, min(time_of(t, end - begin), more - 1) if begin == 0 else -1,
                                  stage, ready, C, how, corner(*at, w, grid.down, len(C.shape) == 3, PLAN), PLAN)
        if begin > 0:
            acc = add_products(acc, ring, w, 1, PLAN)
            leave(acc, partial, flags, w, place)
            # keeping the old `before` would hold its registers during the products
            before = left_over(acc, PLAN), False, at
        else:
            acc = combine_sums(acc, partial, flags, w, end < steps, shared)
            before, phase = finish_but_last(acc, ring, w, stage, ready, phase, at, grid.down, C, how, PLAN)
    finish_left_over(before, w, stage, C, grid.down, how, PLAN)


@tile.jit
def store_at_once(ring, w, stage, ready, C, SEVERAL: tile.constexpr, grid, how, partial, flags, shared,
                  PLAN: tile.constexpr):
    """A consumer that stores each tile before it begins the next piece."""
    phase, steps = 0, grid.steps
    ONE: tile.constexpr = one_loop(PLAN)
    if ONE:
        acc = tile.zeros((64, PLAN.bn), PLAN.sums)
    for x in range(shared.whole + pieces(shared)):
        t, begin, end, place = piece(x, steps, shared)
        if not ONE:
            acc = tile.zeros((64, PLAN.bn), PLAN.sums) if PLAN.behind else first_product(ring, w, PLAN)
        done = begin + (0 if ONE or PLAN.behind else 1)
        i, n = tile.tile_at(t, grid.rows, grid.across, *PLAN.order)
        z, row, column = corner(i, n, w, grid.down, SEVERAL, PLAN)
        if PLAN.ahead:
            first, done = done, min(done + time_of(t, end - begin), end)
            acc = add_products(acc, ring, w, done - first, PLAN, how.mixed)
            if begin == 0:
                with tile.elect():
                    bring(stage[w], ready[w], z, row, column, how)
        acc = add_products(acc, ring, w, end - done, PLAN, how.mixed, ONE)
        if begin > 0:
            leave(acc, partial, flags, w, place)
        else:
            acc = combine_sums(acc, partial, flags, w, end < steps, shared)
            if PLAN.ahead:
                ready[w].wait(phase=phase)
                phase = phase ^ 1
            if PLAN.width and PLAN.buffers * PLAN.width == PLAN.bn and PLAN.bm < 192:
                finish_first(acc, stage[w], z, row, column, how)
                send_first(PLAN.bn, stage[w], C, z, row, column)
            else:
                store((acc,), stage[w] if PLAN.width else None, C, z, row, column, how)


@tile.jit
def keep_pace(flags, rounds, patience):
    """Wait until all CTAs have loaded the operands of `rounds` rounds, for at most `patience` polls. Returns the
    patience for the next time: 0 if it did not suffice, since then other kernels keep some CTAs from running at
    all."""
    asked, last = 0, flags.shape[0] - 1
    while (asked < patience) & (tile.load(flags[last, 0], sem="acquire") < rounds * tile.num_programs(0)):
        asked = asked + 1
    return patience if asked < patience else 0


@tile.jit
def leave_pace(flags):
    """Count this CTA as done; the last one resets the counters to 0."""
    last = flags.shape[0] - 1
    if tile.atomic_add(flags[last, 1], 1, sem="acq_rel") == tile.num_programs(0) - 1:
        tile.store(flags[last, 0], 0)
        tile.store(flags[last, 1], 0)


@tile.jit
def load(ring, A, B, flags, grid, shared, SEVERAL: tile.constexpr, PLAN: tile.constexpr):
    """The producer: the slots of all of this CTA's pieces, in lockstep with the other CTAs."""
    patience = PATIENCE
    for x in range(shared.whole + pieces(shared)):
        t, begin, end, place = piece(x, grid.steps, shared)
        i, n = tile.tile_at(t, grid.rows, grid.across, *PLAN.order)
        z, m = matrix_and_row(i, grid.down, SEVERAL)
        turn, near = begin + end - 1 if x % 2 == 1 else -1, max(end - NEAR, begin)
        if x > 0:
            patience = keep_pace(flags, min(x, shared.whole), patience)
        fill(ring, A, B, z, m * PLAN.bm, n * PLAN.bn, begin, near, turn, PLAN)
        if x < shared.whole:
            tile.atomic_add(flags[flags.shape[0] - 1, 0], 1)
        fill(ring, A, B, z, m * PLAN.bm, n * PLAN.bn, near, end, turn, PLAN)
    leave_pace(flags)


@tile.jit
def stream(A, B, C, SA, SB, E0, E1, E2, E3, whole, left, idle, rest, helpers, parts, each, few, partial, flags,
           PLAN: tile.constexpr):
    """``C = A @ B``, where the CTAs share the tiles after the last whole round: `helpers` CTAs take the last `rest`
    slots of each, of some in `parts` (see `shares`).

    `partial` has room for the sums of a tile of each CTA. `flags`, one for each consumer of each CTA and a last row
    for the pace, are 0 before and after the launch. `PLAN` is a `PersistentConstants`."""
    down, across = tile.cdiv(C.shape[-2], PLAN.bm), tile.cdiv(C.shape[-1], PLAN.bn)
    steps = max(tile.cdiv(A.shape[-2 if PLAN.a_km else -1], PLAN.bk), 1)
    grid = Grid(down * C.shape[0] if len(C.shape) == 3 else down, down, across, steps)
    ring = slots(A, B, PLAN)
    MIXED: tile.constexpr = PLAN.a_km and A.dtype == tile.float32
    stage = staging_buffers(C.dtype, PLAN.bm, PLAN.buffers, PLAN.width, PLAN.across) if PLAN.width else None
    ready = tile.mbarrier(n=PLAN.bm // 64) if PLAN.ahead else None
    extra = (E0, E1, E2, E3)[:PLAN.epilogue.extras]
    room = rooms(extra, PLAN.epilogue, PLAN.ahead, PLAN.bm // 64, PLAN.bn)
    shared = Shares(whole, left, idle, rest, helpers, parts, each, few)
    tile.assume((partial.shape[1] == PLAN.bm // 64) & (partial.shape[2] == 64 * PLAN.bn) & (flags.shape[1] == 3)
                & (down > 0) & (across > 0))
    with tile.warpgroup(0, regs=PLAN.regs[0]):
        with tile.elect():
            load(ring, A, B, flags, grid, shared, len(C.shape) == 3, PLAN)
    with tile.each_warpgroup(range(1, 1 + PLAN.bm // 64), regs=PLAN.regs[1]) as warpgroup:
        w, SEVERAL = warpgroup - 1, len(C.shape) == 3
        how = Finishing(SA, SB, extra, PLAN.epilogue, MIXED, PLAN.ahead, room_of(room, w))
        if PLAN.kept:
            store_under_next(ring, w, stage[w], C, grid, how, partial, flags, shared, PLAN)
        elif PLAN.late:
            finish_under_next(ring, w, stage[w], ready[w] if PLAN.ahead else None, C, grid, how, partial, flags, shared,
                              PLAN)
        else:
            store_at_once(ring, w, stage, ready, C, SEVERAL, grid, how, partial, flags, shared, PLAN)
        if PLAN.width:
            with tile.elect():
                tile.bulk_wait(0)


def shares(tiles: int, ctas: int, rest: int, helpers: int, parts: int) -> Shares:
    """How `ctas` CTAs share `tiles`; `rest`, `helpers` and `parts` as in `shared_rest`."""
    left = tiles % ctas
    each, few = divmod(left, helpers) if helpers else (0, 0)
    return Shares(tiles // ctas, left, ctas - left, rest, helpers, parts, each, few)


__all__ = ["Shares", "shares", "stream"]
