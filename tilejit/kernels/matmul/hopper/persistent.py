"""A matrix product on Hopper by a warp-specialised kernel with one producer and several consumer warpgroups. Each CTA computes several tiles in
turn, and stores one while the ring already fills for the next."""

from __future__ import annotations

import tilejit as tile

from ..epilogue import bring, finished, room_of, rooms, rows_of, staging, store
from .mainloop import added, begun, corner, fill, matrix_and_row, multiplied_in_turn, none, one_loop, slots, tile_rows
from .overlap import (begun_over, finish_but_last, finish_left_over, kept, multiplied_bringing, multiplied_over, none_kept, none_left_over, time_of,
                      under)



@tile.jit
def in_turn(t, total, slots, ALONE: tile.constexpr):
    """How many of tile `t`'s last `slots` slots the consumers multiply one after the other: up to ALONE in a CTA's last tile, whose stores
    no products of a next tile hide; otherwise none."""
    return max(min(slots, ALONE), 0) if t + tile.num_programs(0) >= total else 0


@tile.jit
def persistent_kept(ring, w, stage, C, tiles, steps, how, BM: tile.constexpr, BN: tile.constexpr, ORDER: tile.constexpr, BEHIND: tile.constexpr,
                    A_KM: tile.constexpr, B_KN: tile.constexpr, SUMS: tile.constexpr):
    """A consumer of `persistent` that keeps a tile's results in registers until the first products of its next tile run. Between the
    products of two tiles it only converts the sums."""
    rows, down, across = tiles
    SA, SB, extra, FINISH, MIXED = how[:5]
    acc, before = tile.zeros((64, BN), SUMS), none_kept(C.dtype, BN, stage.shape[2])
    for t in range(tile.program_id(0), rows * across + tile.num_programs(0), tile.num_programs(0)):  # a last turn without slots sends the last tile
        acc, place, turn = multiplied_over(acc, before, ring, w, steps if t < rows * across else 0, t, stage, C, tiles, BM, BN, ORDER, BEHIND,
                                           A_KM, B_KN)
        values = finished(acc, *corner(*place, w, down, BM, BN, len(C.shape) == 3), SA, SB, extra, FINISH, MIXED)
        before = kept(tile.cast(values, C.dtype), place, turn, stage.shape[2])


@tile.jit
def persistent_late(ring, w, stage, ready, C, tiles, steps, how, BM: tile.constexpr, BN: tile.constexpr, ORDER: tile.constexpr, A_KM: tile.constexpr,
                    B_KN: tile.constexpr, LATE: tile.constexpr, WAITING: tile.constexpr):
    """A consumer of `persistent` that finishes the last LATE columns of a tile, deferred in dtype WAITING, under the first products of its
    next."""
    rows, down, across = tiles
    before, phase = none_left_over(LATE, WAITING), 0
    for t in range(tile.program_id(0), rows * across, tile.num_programs(0)):
        acc = begun_over(before, ring, w, stage, C, down, how, BM, BN, A_KM, B_KN)
        place, more = tile.tile_at(t, rows, across, *ORDER), steps - under(LATE) - 1
        acc = multiplied_bringing(acc, ring, w, more, min(time_of(tile.program_id(0), steps), more - 1), stage, ready, C, how,
                                  *corner(*place, w, down, BM, BN, len(C.shape) == 3), A_KM, B_KN)
        before, phase = finish_but_last(acc, ring, w, stage, ready, phase, place, down, C, how, BM, BN, LATE, WAITING, A_KM, B_KN)
    finish_left_over(before, w, stage, C, down, how, BM, BN)


@tile.jit
def persistent(A, B, C, SA, SB, E0, E1, E2, E3, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr,
               ORDER: tile.constexpr, BEHIND: tile.constexpr, REGS: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr, SUMS: tile.constexpr,
               WIDTH: tile.constexpr, BUFFERS: tile.constexpr, ACROSS: tile.constexpr, FINISH: tile.constexpr, EXTRAS: tile.constexpr,
               DEPENDENT: tile.constexpr, AHEAD: tile.constexpr, PROMOTED: tile.constexpr, BLOCKS: tile.constexpr, PASSING: tile.constexpr = False,
               LATE: tile.constexpr = 0, KEPT: tile.constexpr = False, PAIR: tile.constexpr = False, ALONE: tile.constexpr = 0,
               WAITING: tile.constexpr = None):
    """``C = A @ B``, with A as [M, K] or [K, M] (`A_KM`) and B as [N, K] or [K, N] (`B_KN`), each one matrix or several: tiles of BM x BN,
    and BK elements along k in each of STAGES slots.

    - Results are stored by TMA through BUFFERS staging buffers of WIDTH columns in turn, column-major ones if the result is (`ACROSS`), or
      by threads (WIDTH 0); with `KEPT` under the first products of the next tile.
    - `AHEAD` says which of the epilogue's tiles TMA loads during the products; one of the result's shape goes to the staging buffers.
    - The last LATE columns of a tile are finished under the first slots of the next. This needs buffers for all columns of a tile, and
      tiles with enough slots (`most_late`). Until then they wait in dtype WAITING (None: that of the sums).
    - The last ALONE slots of a CTA's last tile are multiplied by one consumer after the other.
    - With `PROMOTED` threads add up the sums of each 128 along k, scaled by SA and SB if there are `BLOCKS`.
    - With `PAIR` the tiles of a cluster of two are neighbours in a column, and the CTAs load its B together: ORDER puts them one after the
      other, and each matrix has an even number of rows of tiles, of which the last may lie below the matrix."""
    M, N, K = C.shape[-2], C.shape[-1], A.shape[-2 if A_KM else -1]
    down, across, steps = tile_rows(M, BM, PAIR), tile.cdiv(N, BN), tile.cdiv(K, BK)
    rows = down * C.shape[0] if len(C.shape) == 3 else down
    ring = slots(STAGES, A, B, BM, BN, BK, A_KM, B_KN, PAIR)
    MIXED: tile.constexpr = A_KM and A.dtype == tile.float32
    CONSUMERS: tile.constexpr = BM // rows_of(BM)
    stage = staging(C.dtype, BM, BUFFERS, WIDTH, ACROSS) if WIDTH else None
    if AHEAD:
        ready = tile.mbarrier(n=CONSUMERS)
    extra = (E0, E1, E2, E3)[:EXTRAS]
    room = rooms(extra, FINISH, AHEAD, CONSUMERS, BN)
    baton = tile.turns(CONSUMERS) if ALONE else None
    with tile.warpgroup(0, regs=REGS[0]):
        with tile.elect():
            turn = -1
            for i, n in tile.tile_order(rows, across, *ORDER):
                z, m = matrix_and_row(i, down, len(C.shape) == 3)
                if DEPENDENT:  # here, since finding the tile takes some hundred cycles, which overlap the grid ahead
                    tile.griddepcontrol_wait()
                    tile.griddepcontrol_launch_dependents()
                fill(ring, A, B, z, m * BM, n * BN, 0, steps, turn, BK, A_KM, B_KN, PASSING, PAIR)
                turn = -1 if BLOCKS else steps - 2 - turn
    with tile.each_warpgroup(range(1, 1 + CONSUMERS), regs=REGS[1]) as warpgroup:
        if DEPENDENT:
            tile.griddepcontrol_wait()
        w, phase, SEVERAL = warpgroup - 1, 0, len(C.shape) == 3
        lines = room_of(room, w)
        how = SA, SB, extra, FINISH, MIXED, AHEAD, lines
        if KEPT:
            persistent_kept(ring, w, stage[w], C, (rows, down, across), steps, how, BM, BN, ORDER, BEHIND, A_KM, B_KN, SUMS)
        elif LATE:
            persistent_late(ring, w, stage[w], ready[w] if AHEAD else None, C, (rows, down, across), steps, how, BM, BN, ORDER, A_KM, B_KN, LATE,
                            WAITING or SUMS)
        else:
            BEGUN = not (BEHIND or PROMOTED)
            ONE: tile.constexpr = one_loop(BM, BEHIND or PROMOTED, FINISH)
            if ONE:
                sums = none(BM, BN, SUMS, PROMOTED)
            for t in range(tile.program_id(0), rows * across, tile.num_programs(0)):
                i, n = tile.tile_at(t, rows, across, *ORDER)
                z, row, column = corner(i, n, w, down, BM, BN, SEVERAL)
                if not ONE:
                    sums = (begun(ring, w, A_KM, B_KN),) if BEGUN else none(BM, BN, SUMS, PROMOTED)
                done = 1 if BEGUN and not ONE else 0
                if AHEAD:
                    first, done = done, min(done + time_of(tile.program_id(0), steps), steps)
                    sums = added(sums, ring, w, first, done, (SA, SB, row, column), BEHIND, A_KM, B_KN, PROMOTED, BLOCKS, MIXED)
                    with tile.elect():
                        bring(stage[w], lines, ready[w], extra, z, row, column, FINISH, AHEAD)
                alone = in_turn(t, rows * across, steps - done - 1, min(ALONE, STAGES)) if ALONE else 0  # the ring has to hold all of them
                sums = added(sums, ring, w, done, steps - alone, (SA, SB, row, column), BEHIND, A_KM, B_KN, PROMOTED, BLOCKS, MIXED, ONE)
                if ALONE:
                    sums = (multiplied_in_turn(sums[0], ring, w, alone, baton, A_KM, B_KN),)
                if AHEAD:
                    ready[w].wait(phase=phase)
                    phase = phase ^ 1
                store(sums, stage[w] if WIDTH else None, C, z, row, column, how)
        if WIDTH:
            with tile.elect():
                tile.bulk_wait(0)


__all__ = ["persistent"]
