"""Matrix products on Hopper: warp-specialised kernels with one producer and several consumer warpgroups.

In `persistent` each CTA computes several tiles in turn, and stores one while the ring already fills for the next. In `split` several CTAs,
of a cluster or any number, share one tile's slots of k and add up their partial sums."""

from __future__ import annotations

import tilejit as tile

from .finish import bring, columns, finished, room_of, rooms, rows_of, staging, store, store_finished
from .mainloop import (
    added,
    begun,
    by_row,
    by_thread,
    corner,
    fill,
    matrix_and_row,
    multiplied_in_turn,
    none,
    one_loop,
    slots,
    tile_rows,
)
from .overlap import (
    begun_over,
    finish_but_last,
    finish_left_over,
    kept,
    multiplied_bringing,
    multiplied_over,
    none_kept,
    none_left_over,
    time_of,
    under,
)

PATIENCE = 4000   # polls of the flag by a CTA that waits for the others of its tile: a quarter of a millisecond on an H200
COLUMN = 128      # rows of tiles up to which `split` goes column by column, without an integer division if their number is a power of 2
COUNTED = 30      # low bits of a flag, which count CTAs


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
    ring = slots(STAGES, A, B, BM, BN, BK, A_KM, B_KN, BLOCKS, PAIR)
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
                fill(ring, A, B, z, m * BM, n * BN, 0, steps, turn, BK, A_KM, B_KN, SA, SB, BLOCKS, PASSING, PAIR)
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
                    sums = added(sums, ring, w, first, done, row, BEHIND, A_KM, B_KN, PROMOTED, BLOCKS, MIXED)
                    with tile.elect():
                        bring(stage[w], lines, ready[w], extra, z, row, column, FINISH, AHEAD)
                alone = in_turn(t, rows * across, steps - done - 1, min(ALONE, STAGES)) if ALONE else 0  # the ring has to hold all of them
                sums = added(sums, ring, w, done, steps - alone, row, BEHIND, A_KM, B_KN, PROMOTED, BLOCKS, MIXED, ONE)
                if ALONE:
                    sums = (multiplied_in_turn(sums[0], ring, w, alone, baton, A_KM, B_KN),)
                if AHEAD:
                    ready[w].wait(phase=phase)
                    phase = phase ^ 1
                store(sums, stage[w] if WIDTH else None, C, z, row, column, how)
        if WIDTH:
            with tile.elect():
                tile.bulk_wait(0)


@tile.jit
def through_cluster(own, parts, arrived, w, rank, SPLITS: tile.constexpr):
    """Consumer `w`'s share of the tile's columns, summed over all CTAs of a cluster, which send each other their sums through shared
    memory."""
    PART: tile.constexpr = parts.shape[2] // 64
    total = columns(own, 0, PART)
    for s in tile.static_range(SPLITS):
        if s == rank:
            total = columns(own, s * PART, PART)
        else:
            place = max(min(rank - 1 if rank > s else rank, SPLITS - 2), 0)  # the limits change nothing, but prove that `parts` holds it
            tile.store_async(parts.peer(s)[w, place], by_thread(columns(own, s * PART, PART)), mbar=arrived[w])
    arrived[w].wait(phase=0)
    for s in tile.static_range(SPLITS - 1):
        total = total + by_row(tile.load(parts[w, s]))
    return total


@tile.jit
def leave_all(own, room, w, rank):
    """Write the sums of consumer `w` to global memory for all CTAs of the tile."""
    COLUMNS: tile.constexpr = own[0].shape[1]
    for h in tile.static_range(len(own)):
        tile.store(room[rank, w, h * 64 * COLUMNS:(h + 1) * 64 * COLUMNS], by_thread(own[h]))
    tile.sync()


@tile.jit
def taken(flag, rank, share, patience, SPLITS: tile.constexpr, SHARES: tile.constexpr):
    """A bit mask of the shares, of SHARES, that this CTA finishes, once it has written its sums: its own, if it has one, when all CTAs of
    the tile have written theirs. It polls `patience` times, then gives its share up and goes on. The last CTA to arrive waits for nobody,
    and also does the shares that were given up until then.

    The flag counts the CTAs that have arrived in its low COUNTED bits, and has a bit above these for each share whose CTA has decided. Rank
    0 adds its 1 minus all that the CTAs add together, so the count is 0 exactly when all have arrived, and the whole flag is 0 at the end,
    in any order of arrival."""
    ALL: tile.constexpr = (1 << SHARES) - 1
    COUNT: tile.constexpr = (1 << COUNTED) - 1
    here, todo = tile.cast(1 - SPLITS - (ALL << COUNTED) if rank == 0 else 1, tile.int64), tile.cast(0, tile.int64)
    here = here + tile.atomic_add(flag, here, sem="acq_rel")
    if here & COUNT == 0:
        todo = (here >> COUNTED) + ALL
    if share < SHARES:
        own, asked = tile.cast(1, tile.int64) << share, 0
        while (here & COUNT != 0) & (asked < patience):
            here, asked = tile.load(flag, sem="acquire"), asked + 1
        if here & COUNT == 0:
            tile.atomic_add(flag, own << COUNTED)
            todo = todo | own
        elif tile.atomic_add(flag, own << COUNTED, sem="acquire") & COUNT == 0:  # the last CTA came meanwhile, and did not take this share
            todo = own
    return tile.cast(todo, tile.uint32)


@tile.jit
def through_memory(room, w, share, PART: tile.constexpr, SPLITS: tile.constexpr, SHARES: tile.constexpr):
    """One share, of PART columns, of the sums of consumer `w`, added up over all CTAs of the tile, which have written theirs to global
    memory."""
    tile.assume((share >= 0) & (share < SHARES))
    at = share * (64 * PART)
    total = by_row(tile.load(room[0, w, at:at + 64 * PART]))
    for s in tile.static_range(1, SPLITS):
        total = total + by_row(tile.load(room[s, w, at:at + 64 * PART]))
    return total


@tile.jit
def split(A, B, C, SA, SB, E0, E1, E2, E3, partial, flags, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr,
          SPLITS: tile.constexpr, SHARES: tile.constexpr, CLUSTERED: tile.constexpr, BEHIND: tile.constexpr, REGS: tile.constexpr,
          A_KM: tile.constexpr, B_KN: tile.constexpr, SUMS: tile.constexpr, FINISH: tile.constexpr, EXTRAS: tile.constexpr,
          PROMOTED: tile.constexpr, BLOCKS: tile.constexpr, DEPENDENT: tile.constexpr, PATIENCE: tile.constexpr, PAIR: tile.constexpr = False):
    """The same product for few tiles, each shared by SPLITS CTAs. CTA `rank` of a tile multiplies its part of the slots of k, then adds up
    one of SHARES shares of the columns over all CTAs, in an order that is the same each time.

    CTAs of a cluster (`CLUSTERED`) send each other their sums. Others write them to `partial`, which has room for a tile from each, and
    wait for the rest of their tile's CTAs, for at most PATIENCE polls (`taken`). `flags`, of 64 bits, are 0 before and after the launch.
    Neighbours then have the same slots of neighbouring tiles, so that L2 serves what they share once, or, with `PAIR`, each loads half of
    their columns of B for both."""
    tiles_m = tile_rows(C.shape[-2], BM, PAIR)
    steps, tiles, z = tile.cdiv(A.shape[-2 if A_KM else -1], BK), tile.num_programs(0) // SPLITS, tile.program_id(1)
    if CLUSTERED:
        t, rank = tile.program_id(0) // SPLITS, tile.cta_rank()
    else:
        t, rank = tile.program_id(0) % tiles, tile.program_id(0) // tiles
    i, j = tile.tile_at(t, tiles_m, tile.cdiv(C.shape[-1], BN), "grouped", COLUMN)
    m, n = i * BM, j * BN
    first, stop = rank * steps // SPLITS, (rank + 1) * steps // SPLITS
    ring = slots(STAGES, A, B, BM, BN, BK, A_KM, B_KN, BLOCKS, PAIR)
    PART = BN // SHARES
    MIXED: tile.constexpr = A_KM and A.dtype == tile.float32
    if CLUSTERED:
        parts = tile.alloc((BM // 64, SPLITS - 1, 64 * PART), SUMS)
        arrived = tile.mbarrier(n=BM // 64)
    else:
        number = z * tiles + t
        tile.assume((number >= 0) & (number < flags.shape[0]) & (number < partial.shape[0]) & (flags.shape[1] == 3))
        tile.assume((partial.shape[1] == SPLITS) & (partial.shape[2] == BM // 64) & (partial.shape[3] == 64 * BN))
        room = partial[number, 0:SPLITS, 0:BM // 64, 0:64 * BN]
        doing = tile.alloc((BM // 64,), tile.uint32)
    extra = (E0, E1, E2, E3)[:EXTRAS]
    with tile.warpgroup(0, regs=REGS[0]):
        with tile.elect():
            if DEPENDENT:
                tile.griddepcontrol_wait()
                tile.griddepcontrol_launch_dependents()
            fill(ring, A, B, z, m, n, first, stop, -1, BK, A_KM, B_KN, SA, SB, BLOCKS, PAIR=PAIR)
    with tile.each_warpgroup(range(1, 1 + BM // 64), regs=REGS[1]) as warpgroup:
        if DEPENDENT:
            tile.griddepcontrol_wait()
        w = warpgroup - 1
        how = SA, SB, extra, FINISH, MIXED
        if CLUSTERED:
            with tile.elect():
                arrived[w].arrive_expect_tx((SPLITS - 1) * 64 * PART * 4)
        own = added(none(BM, BN, SUMS, PROMOTED), ring, w, first, stop, m + w * 64, BEHIND, A_KM, B_KN, PROMOTED, BLOCKS, MIXED)
        if CLUSTERED:
            total = through_cluster(own, parts, arrived, w, rank, SPLITS)
            store_finished(total, C, z, m + w * 64, n + rank * PART, how)
        else:
            leave_all(own, room, w, rank)
            with tile.elect():
                share = (rank + w * (SPLITS - SHARES)) % SPLITS  # if some CTAs have no share, these differ between consumers
                tile.store(doing[w], taken(flags[number, w], rank, share, PATIENCE, SPLITS, SHARES))
            tile.sync()
            todo = tile.load(doing[w])
            while todo != 0:
                share = 31 - tile.cast(tile.ptx.clz.b32(todo), tile.int32)
                todo = todo ^ tile.cast(1 << share, tile.uint32)
                total = through_memory(room, w, share, PART, SPLITS, SHARES)
                store_finished(total, C, z, m + w * 64, n + share * PART, how)


__all__ = ["persistent", "split"]
