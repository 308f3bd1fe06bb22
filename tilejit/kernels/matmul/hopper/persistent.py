"""Persistent, warp-specialised matrix product on Hopper: one producer, several consumer warpgroups.

Each CTA computes several tiles in turn, and stores one while the ring already fills for the next.
"""

from __future__ import annotations

import tilejit as tile

from ..epilogue import Finishing, bring, finish_sums, room_of, rooms, rows_of, staging_buffers, store
from .mainloop import (
    Grid,
    add_slots,
    corner,
    fill,
    first_product,
    matrix_and_row,
    multiplied_in_turn,
    one_loop,
    slots,
    tile_rows,
    zero_sums,
)
from .overlap import (
    begun_over,
    count_slots_over,
    finish_but_last,
    finish_left_over,
    multiplied_bringing,
    multiplied_over,
    none_kept,
    none_left_over,
    parts_to_send,
    time_of,
)


@tile.jit
def in_turn(t, total, slots, ALONE: tile.constexpr):
    """How many of tile `t`'s last `slots` slots the consumers multiply one after the other: up to ALONE in a CTA's
    last tile, whose stores no products of a next tile hide; otherwise none."""
    return max(min(slots, ALONE), 0) if t + tile.num_programs(0) >= total else 0


@tile.jit
def store_under_next(ring, w, stage, C, grid, how, PLAN: tile.constexpr):
    """A consumer that keeps a tile's results in registers until the first products of its next tile run. Between the
    products of two tiles it only converts the sums."""
    acc, before = tile.zeros((64, PLAN.bn), PLAN.sums), none_kept(C.dtype, PLAN.bn, stage.shape[2])
    # a last turn without slots sends the last tile
    for t in range(tile.program_id(0), grid.rows * grid.across + tile.num_programs(0), tile.num_programs(0)):
        acc, place, turn = multiplied_over(acc, before, ring, w, grid.steps if t < grid.rows * grid.across else 0, t,
                                           stage, C, grid, PLAN)
        values = finish_sums(acc, *corner(*place, w, grid.down, len(C.shape) == 3, PLAN), how)
        before = parts_to_send(tile.cast(values, C.dtype), place, turn, stage.shape[2])


@tile.jit
def finish_under_next(ring, w, stage, ready, C, grid, how, PLAN: tile.constexpr):
    """A consumer that finishes the last columns of a tile, which are deferred, under the first products of its next."""
    before, phase = none_left_over(PLAN), 0
    for t in range(tile.program_id(0), grid.rows * grid.across, tile.num_programs(0)):
        acc = begun_over(before, ring, w, stage, C, grid.down, how, PLAN)
        place, more = tile.tile_at(t, grid.rows, grid.across, *PLAN.order), grid.steps - count_slots_over(PLAN.late) - 1
        acc = multiplied_bringing(acc, ring, w, more, min(time_of(tile.program_id(0), grid.steps), more - 1), stage,
                                  ready, C, how, corner(*place, w, grid.down, len(C.shape) == 3, PLAN), PLAN)
        before, phase = finish_but_last(acc, ring, w, stage, ready, phase, place, grid.down, C, how, PLAN)
    finish_left_over(before, w, stage, C, grid.down, how, PLAN)


@tile.jit
def store_at_once(ring, w, stage, ready, baton, C, SEVERAL: tile.constexpr, grid, how, PLAN: tile.constexpr):
    """A consumer that stores each tile before it begins the next."""
    phase, steps = 0, grid.steps
    BEGUN = not (PLAN.behind or PLAN.promoted)
    ONE: tile.constexpr = one_loop(PLAN)
    if ONE:
        sums = zero_sums(PLAN)
    for t in range(tile.program_id(0), grid.rows * grid.across, tile.num_programs(0)):
        i, n = tile.tile_at(t, grid.rows, grid.across, *PLAN.order)
        z, row, column = corner(i, n, w, grid.down, SEVERAL, PLAN)
        if not ONE:
            sums = (first_product(ring, w, PLAN),) if BEGUN else zero_sums(PLAN)
        done = 1 if BEGUN and not ONE else 0
        if PLAN.ahead:
            first, done = done, min(done + time_of(tile.program_id(0), steps), steps)
            sums = add_slots(sums, ring, w, first, done, (how.SA, how.SB, row, column), PLAN, how.mixed)
            with tile.elect():
                bring(stage[w], ready[w], z, row, column, how)
        alone = 0
        if PLAN.alone:  # the ring has to hold all of them
            alone = in_turn(t, grid.rows * grid.across, steps - done - 1, min(PLAN.alone, PLAN.stages))
        sums = add_slots(sums, ring, w, done, steps - alone, (how.SA, how.SB, row, column), PLAN, how.mixed, ONE)
        if PLAN.alone:
            sums = (multiplied_in_turn(sums[0], ring, w, alone, baton, PLAN),)
        if PLAN.ahead:
            ready[w].wait(phase=phase)
            phase = phase ^ 1
        store(sums, stage[w] if PLAN.width else None, C, z, row, column, how)


@tile.jit
def load(ring, A, B, C, grid, PLAN: tile.constexpr):
    """The producer: loads the slots of all tiles of this CTA. Every other tile goes backwards along k (see `fill`)."""
    turn = -1
    for i, n in tile.tile_order(grid.rows, grid.across, *PLAN.order):
        z, m = matrix_and_row(i, grid.down, len(C.shape) == 3)
        if PLAN.dependent:  # here, since finding the tile takes some hundred cycles, which overlap the grid ahead
            tile.griddepcontrol_wait()
            tile.griddepcontrol_launch_dependents()
        fill(ring, A, B, z, m * PLAN.bm, n * PLAN.bn, 0, grid.steps, turn, PLAN, PLAN.passing)
        turn = -1 if PLAN.blocks else grid.steps - 2 - turn


@tile.jit
def persistent(A, B, C, SA, SB, E0, E1, E2, E3, PLAN: tile.constexpr):
    """``C = A @ B``, with A as [M, K] or [K, M] and B as [N, K] or [K, N], each one matrix or several. `PLAN` is a
    `PersistentConstants`.

    Of the epilogue's tiles that TMA loads during the products, one of the result's shape goes to the staging buffers.
    With block scales, SA and SB hold them. The tiles of a pair of CTAs are neighbours in a column: the order puts
    them one after the other, and each matrix has an even number of rows of tiles, of which the last may lie below the
    matrix."""
    M, N, K = C.shape[-2], C.shape[-1], A.shape[-2 if PLAN.a_km else -1]
    down, across, steps = tile_rows(M, PLAN.bm, PLAN.pair), tile.cdiv(N, PLAN.bn), tile.cdiv(K, PLAN.bk)
    grid = Grid(down * C.shape[0] if len(C.shape) == 3 else down, down, across, steps)
    ring = slots(A, B, PLAN)
    MIXED: tile.constexpr = PLAN.a_km and A.dtype == tile.float32
    CONSUMERS: tile.constexpr = PLAN.bm // rows_of(PLAN.bm)
    stage = staging_buffers(C.dtype, PLAN.bm, PLAN.buffers, PLAN.width, PLAN.across) if PLAN.width else None
    ready = tile.mbarrier(n=CONSUMERS) if PLAN.ahead else None
    extra = (E0, E1, E2, E3)[:PLAN.epilogue.extras]
    room = rooms(extra, PLAN.epilogue, PLAN.ahead, CONSUMERS, PLAN.bn)
    baton = tile.turns(CONSUMERS) if PLAN.alone else None
    with tile.warpgroup(0, regs=PLAN.regs[0]):
        with tile.elect():
            load(ring, A, B, C, grid, PLAN)
    with tile.each_warpgroup(range(1, 1 + CONSUMERS), regs=PLAN.regs[1]) as warpgroup:
        if PLAN.dependent:
            tile.griddepcontrol_wait()
        w, SEVERAL = warpgroup - 1, len(C.shape) == 3
        how = Finishing(SA, SB, extra, PLAN.epilogue, MIXED, PLAN.ahead, room_of(room, w))
        if PLAN.kept:
            store_under_next(ring, w, stage[w], C, grid, how, PLAN)
        elif PLAN.late:
            finish_under_next(ring, w, stage[w], ready[w] if PLAN.ahead else None, C, grid, how, PLAN)
        else:
            store_at_once(ring, w, stage, ready, baton, C, SEVERAL, grid, how, PLAN)
        if PLAN.width:
            with tile.elect():
                tile.bulk_wait(0)


__all__ = ["persistent"]
