"""Split-K matrix product on Hopper, for few tiles.

Several CTAs, of a cluster or any number, share one tile's slots of k and add up their partial sums.
"""

from __future__ import annotations

import tilejit as tile

from ..epilogue import Finishing, columns, store_finished
from .mainloop import add_slots, by_row, by_thread, fill, slots, tile_rows, zero_sums

# polls of the flag by a CTA that waits for the others of its tile: a quarter of a millisecond on an H200
PATIENCE = 4000
# rows of tiles up to which `split` goes column by column, without an integer division if their number is a power of 2
COLUMN = 128
COUNTED = 30      # low bits of a flag, which count CTAs


@tile.jit
def through_cluster(own, parts, arrived, w, rank, SPLITS: tile.constexpr):
    """Consumer `w`'s share of the tile's columns, summed over all CTAs of a cluster, which send each other their sums
    through shared memory."""
    PART: tile.constexpr = parts.shape[2] // 64
    total = columns(own, 0, PART)
    for s in tile.static_range(SPLITS):
        if s == rank:
            total = columns(own, s * PART, PART)
        else:
            # the limits change nothing, but prove that `parts` holds it
            place = max(min(rank - 1 if rank > s else rank, SPLITS - 2), 0)
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
def claim(flag, rank, share, patience, SPLITS: tile.constexpr, SHARES: tile.constexpr):
    """A bit mask of the shares, of SHARES, that this CTA finishes, once it has written its sums: its own, if it has
    one, when all CTAs of the tile have written theirs. It polls `patience` times, then gives its share up and goes
    on. The last CTA to arrive waits for nobody, and also does the shares that were given up until then.

    The flag counts the CTAs that have arrived in its low COUNTED bits, and has a bit above these for each share whose
    CTA has decided. Rank 0 adds its 1 minus all that the CTAs add together, so the count is 0 exactly when all have
    arrived, and the whole flag is 0 at the end, in any order of arrival."""
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
        # the last CTA came meanwhile, and did not take this share
        elif tile.atomic_add(flag, own << COUNTED, sem="acquire") & COUNT == 0:
            todo = own
    return tile.cast(todo, tile.uint32)


@tile.jit
def through_memory(room, w, share, PART: tile.constexpr, SPLITS: tile.constexpr, SHARES: tile.constexpr):
    """One share, of PART columns, of the sums of consumer `w`, added up over all CTAs of the tile, which have written
    theirs to global memory."""
    tile.assume((share >= 0) & (share < SHARES))
    at = share * (64 * PART)
    total = by_row(tile.load(room[0, w, at:at + 64 * PART]))
    for s in tile.static_range(1, SPLITS):
        total = total + by_row(tile.load(room[s, w, at:at + 64 * PART]))
    return total


@tile.jit
def finish_shares(todo, room, C, z, m, n, w, how, PLAN: tile.constexpr):
    """Add up and store each share of the sums of consumer `w` whose bit is set in `todo`. The tile begins at row `m`
    and column `n`."""
    PART: tile.constexpr = PLAN.bn // PLAN.shares
    while todo != 0:
        share = 31 - tile.cast(tile.ptx.clz.b32(todo), tile.int32)
        todo = todo ^ tile.cast(1 << share, tile.uint32)
        total = through_memory(room, w, share, PART, PLAN.splits, PLAN.shares)
        store_finished(total, C, z, m + w * 64, n + share * PART, how)


@tile.jit
def split(A, B, C, SA, SB, E0, E1, E2, E3, partial, flags, PLAN: tile.constexpr):
    """The product of `persistent` for few tiles, each shared by `splits` CTAs. CTA `rank` of a tile multiplies its
    part of the slots of k, then adds up one of `shares` shares of the columns over all CTAs, in an order that is the
    same each time.

    CTAs of a cluster (`clustered`) send each other their sums. Others write them to `partial`, which has room for a
    tile from each, and wait for the rest of their tile's CTAs, for at most `patience` polls (`claim`). `flags`, of 64
    bits, are 0 before and after the launch. Neighbours then have the same slots of neighbouring tiles, so that L2
    serves what they share once, or, as a pair, each loads half of their columns of B for both. `PLAN` is a
    `SplitConstants`."""
    tiles_m = tile_rows(C.shape[-2], PLAN.bm, PLAN.pair)
    steps, tiles, z = (tile.cdiv(A.shape[-2 if PLAN.a_km else -1], PLAN.bk), tile.num_programs(0) // PLAN.splits,
                       tile.program_id(1))
    if PLAN.clustered:
        t, rank = tile.program_id(0) // PLAN.splits, tile.cta_rank()
    else:
        t, rank = tile.program_id(0) % tiles, tile.program_id(0) // tiles
    i, j = tile.tile_at(t, tiles_m, tile.cdiv(C.shape[-1], PLAN.bn), "grouped", COLUMN)
    m, n = i * PLAN.bm, j * PLAN.bn
    first, stop = rank * steps // PLAN.splits, (rank + 1) * steps // PLAN.splits
    ring = slots(A, B, PLAN)
    PART = PLAN.bn // PLAN.shares
    MIXED: tile.constexpr = PLAN.a_km and A.dtype == tile.float32
    if PLAN.clustered:
        parts = tile.alloc((PLAN.bm // 64, PLAN.splits - 1, 64 * PART), PLAN.sums)
        arrived = tile.mbarrier(n=PLAN.bm // 64)
    else:
        number = z * tiles + t
        tile.assume((number >= 0) & (number < flags.shape[0]) & (number < partial.shape[0]) & (flags.shape[1] == 3))
        tile.assume((partial.shape[1] == PLAN.splits) & (partial.shape[2] == PLAN.bm // 64)
                    & (partial.shape[3] == 64 * PLAN.bn))
        room = partial[number, 0:PLAN.splits, 0:PLAN.bm // 64, 0:64 * PLAN.bn]
        doing = tile.alloc((PLAN.bm // 64,), tile.uint32)
    extra = (E0, E1, E2, E3)[:PLAN.epilogue.extras]
    with tile.warpgroup(0, regs=PLAN.regs[0]):
        with tile.elect():
            if PLAN.dependent:
                tile.griddepcontrol_wait()
                tile.griddepcontrol_launch_dependents()
            fill(ring, A, B, z, m, n, first, stop, -1, PLAN)
    with tile.each_warpgroup(range(1, 1 + PLAN.bm // 64), regs=PLAN.regs[1]) as warpgroup:
        if PLAN.dependent:
            tile.griddepcontrol_wait()
        w = warpgroup - 1
        how = Finishing(SA, SB, extra, PLAN.epilogue, MIXED)
        if PLAN.clustered:
            with tile.elect():
                arrived[w].arrive_expect_tx((PLAN.splits - 1) * 64 * PART * 4)
        own = add_slots(zero_sums(PLAN), ring, w, first, stop, (SA, SB, m + w * 64, n), PLAN, MIXED)
        if PLAN.clustered:
            total = through_cluster(own, parts, arrived, w, rank, PLAN.splits)
            store_finished(total, C, z, m + w * 64, n + rank * PART, how)
        else:
            leave_all(own, room, w, rank)
            with tile.elect():
                # if some CTAs have no share, these differ between consumers
                share = (rank + w * (PLAN.splits - PLAN.shares)) % PLAN.splits
                tile.store(doing[w], claim(flags[number, w], rank, share, PLAN.patience, PLAN.splits, PLAN.shares))
            tile.sync()
            finish_shares(tile.load(doing[w]), room, C, z, m, n, w, how, PLAN)


__all__ = ["split"]
