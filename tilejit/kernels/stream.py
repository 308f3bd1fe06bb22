"""A matrix product on Hopper in which all CTAs share the last partial round of tiles (stream-K), so that few are idle, and go through the full
rounds in lockstep.

Each tile of the last round has a CTA of its own, which begins with the first slots of k. The other CTAs, the helpers, take the last slots of all
these tiles and write their sums to global memory; the tile's own CTA adds them up in the order of the slots, so that the result has the same bits
each time. CTAs at the same slots find each other's operands in L2. Therefore helpers take the rests of neighbouring tiles at the same time,
alternate rounds go backwards along k, and a CTA begins a round when nearly all operands of the round before have been loaded by all CTAs. A CTA
waits for sums of CTAs with lower numbers only, which have started before it, and for rounds no longer than that can pay."""

from __future__ import annotations

import numpy as np
import tilejit as tile

from ..runtime import driver, streams
from ..runtime.arrays import describe
from ..schedule import divided
from .finish import bring, finish_first, finished, room_of, rooms, send_first, staging, store
from .mainloop import begun, by_row, by_thread, corner, fill, matrix_and_row, multiplied, one_loop, slots
from .overlap import (
    begun_over,
    finish_but_last,
    finish_left_over,
    kept,
    left_over,
    multiplied_bringing,
    multiplied_over,
    none_kept,
    none_left_over,
    time_of,
    under,
)
from .views import temporary

NEAR = 8          # slots before the end of a round at which a CTA counts as having loaded it
PATIENCE = 100    # polls, of about a microsecond each, by a CTA that waits until all others have


@tile.jit
def whole_groups(t, tiles_m, tiles_n, group):
    """The order "grouped", always by divisions. The rounds here are long, and the branch in "grouped" keeps more values in registers: with it an
    epilogue spilled 52 bytes."""
    above, m, n = divided(t, tiles_m, tiles_n, group)
    return above + m, n


@tile.jit
def pieces(shared):
    """The number of pieces of tiles that a CTA has after its whole tiles."""
    whole, left, idle, rest, helpers, parts, each, few = shared
    p = tile.program_id(0)
    return (each + (1 if p < few * parts else 0)) if p < helpers else 1 if p >= idle else 0


@tile.jit
def piece(x, steps, shared):
    """The `x`-th piece of work of a CTA: (tile, first slot, slot after the last, place in `partial` for the sums if they are not the
    tile's). Each helper takes the rests of `each` tiles, all helpers at neighbouring tiles at the same time; the last `few` rests, fewer
    than there are helpers, are cut into `parts`."""
    whole, left, idle, rest, helpers, parts, each, few = shared
    p, ctas = tile.program_id(0), tile.num_programs(0)
    t, begin, end, place = x * ctas + p, 0, steps, 0
    if x >= whole:
        if p < helpers:
            place = (x - whole) * helpers + p
            t, begin = t - (x - whole) * (ctas - helpers), steps - rest
            if x - whole == each:
                last = place + few - left
                tile.assume((last >= 0) & (few > 0) & (parts > 0))
                part = last // few
                begin, end = begin + max(rest * part, 0) // parts, begin + max(rest * (part + 1), 0) // parts  # max() for the compiler
                t = t - part * few
        else:
            t, end = t - idle, steps - rest
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
def together(sums, partial, flags, w, is_shared, shared):
    """The sums of consumer `w`; if the tile `is_shared`, with those of the helpers that have slots of it added, once they are there."""
    whole, left, idle, rest, helpers, parts, each, few = shared
    t, count = 0, 0  # t: the tile's number among those that are `left`
    if is_shared:
        t = tile.program_id(0) - idle
        count = parts if t + few >= left else 1
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
def stream_kept(ring, w, stage, C, tiles, steps, how, partial, flags, shared, BM: tile.constexpr, BN: tile.constexpr, ORDER: tile.constexpr,
                BEHIND: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr, SUMS: tile.constexpr):
    """A consumer of `stream` that keeps a tile's results in registers until the first products of its next piece run, as in `persistent_kept`."""
    rows, down, across = tiles
    SA, SB, extra, FINISH, MIXED = how[:5]
    acc, before, count = tile.zeros((64, BN), SUMS), none_kept(C.dtype, BN, stage.shape[2]), shared[0] + pieces(shared)
    for x in range(count + 1):  # a last turn without slots sends the last tile
        t, begin, end, place = 0, 0, 0, 0
        if x < count:
            t, begin, end, place = piece(x, steps, shared)
        acc, at, turn = multiplied_over(acc, before, ring, w, end - begin, t, stage, C, tiles, BM, BN, ORDER, BEHIND, A_KM, B_KN)
        if begin > 0:
            leave(acc, partial, flags, w, place)
            parts, sent, at, turn = kept(tile.cast(acc, C.dtype), at, turn, stage.shape[2])
            before = parts, len(parts), at, turn  # nothing to send; keeping the old `before` would hold its registers during the products
        else:
            acc = together(acc, partial, flags, w, (end > 0) & (end < steps), shared)
            values = finished(acc, *corner(*at, w, down, BM, BN, len(C.shape) == 3), SA, SB, extra, FINISH, MIXED)
            before = kept(tile.cast(values, C.dtype), at, turn, stage.shape[2])


@tile.jit
def stream_late(ring, w, stage, ready, C, tiles, steps, how, partial, flags, shared, BM: tile.constexpr, BN: tile.constexpr, ORDER: tile.constexpr,
                A_KM: tile.constexpr, B_KN: tile.constexpr, LATE: tile.constexpr, WAITING: tile.constexpr):
    """A consumer of `stream` that finishes the last LATE columns of a tile under the first products of its next piece, as in `persistent_late`."""
    rows, down, across = tiles
    before, phase = none_left_over(LATE, WAITING), 0
    for x in range(shared[0] + pieces(shared)):
        acc = begun_over(before, ring, w, stage, C, down, how, BM, BN, A_KM, B_KN)
        t, begin, end, place = piece(x, steps, shared)
        at, more = tile.tile_at(t, rows, across, *ORDER), end - begin - under(LATE) - 1
        acc = multiplied_bringing(acc, ring, w, more, min(time_of(t, end - begin), more - 1) if begin == 0 else -1, stage, ready, C, how,
                                  *corner(*at, w, down, BM, BN, len(C.shape) == 3), A_KM, B_KN)
        if begin > 0:
            acc = multiplied(acc, ring, w, 1, False, A_KM, B_KN)
            leave(acc, partial, flags, w, place)
            before = left_over(acc, LATE, WAITING), False, at  # keeping the old `before` would hold its registers during the products
        else:
            acc = together(acc, partial, flags, w, end < steps, shared)
            before, phase = finish_but_last(acc, ring, w, stage, ready, phase, at, down, C, how, BM, BN, LATE, WAITING, A_KM, B_KN)
    finish_left_over(before, w, stage, C, down, how, BM, BN)


@tile.jit
def keep_pace(flags, rounds, patience):
    """Wait until all CTAs have loaded the operands of `rounds` rounds, for at most `patience` polls. Returns the patience for the next time: 0 if
    it did not suffice, since then other kernels keep some CTAs from running at all."""
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
def load(ring, A, B, flags, extents, shared, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, ORDER: tile.constexpr,
         A_KM: tile.constexpr, B_KN: tile.constexpr, SEVERAL: tile.constexpr):
    """The producer: the slots of all of this CTA's pieces, in lockstep with the other CTAs. `extents` are rows of tiles of all matrices and of
    one, columns of tiles, and slots of k."""
    rows, down, across, steps = extents
    whole, patience = shared[0], PATIENCE
    for x in range(whole + pieces(shared)):
        t, begin, end, place = piece(x, steps, shared)
        i, n = tile.tile_at(t, rows, across, *ORDER)
        z, m = matrix_and_row(i, down, SEVERAL)
        turn, near = begin + end - 1 if x % 2 == 1 else -1, max(end - NEAR, begin)
        if x > 0:
            patience = keep_pace(flags, min(x, whole), patience)
        fill(ring, A, B, z, m * BM, n * BN, begin, near, turn, BK, A_KM, B_KN)
        if x < whole:
            tile.atomic_add(flags[flags.shape[0] - 1, 0], 1)
        fill(ring, A, B, z, m * BM, n * BN, near, end, turn, BK, A_KM, B_KN)
    leave_pace(flags)


@tile.jit
def stream(A, B, C, SA, SB, E0, E1, E2, E3, whole, left, idle, rest, helpers, parts, each, few, partial, flags, BM: tile.constexpr,
           BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr, ORDER: tile.constexpr, BEHIND: tile.constexpr,
           REGS: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr,
           SUMS: tile.constexpr, WIDTH: tile.constexpr, BUFFERS: tile.constexpr, ACROSS: tile.constexpr, FINISH: tile.constexpr,
           EXTRAS: tile.constexpr, AHEAD: tile.constexpr, LATE: tile.constexpr = 0, KEPT: tile.constexpr = False, WAITING: tile.constexpr = None):
    """``C = A @ B``, where the CTAs share the tiles after the last whole round: `helpers` CTAs take the last `rest` slots of each, of some in
    `parts` (see `shares`).

    `partial` has room for the sums of a tile of each CTA. `flags`, one for each consumer of each CTA and a last row for the pace, are 0 before
    and after the launch. Results are stored by TMA through BUFFERS staging buffers of WIDTH columns, column-major ones if the result is
    (`ACROSS`), or by threads (WIDTH 0). `AHEAD` says which of the epilogue's tiles TMA loads, which needs buffers for all columns of a tile. LATE
    columns are finished, or with `KEPT` all results are stored, under the first slots of the CTA's next piece, as in `persistent`."""
    down, across, steps = tile.cdiv(C.shape[-2], BM), tile.cdiv(C.shape[-1], BN), max(tile.cdiv(A.shape[-2 if A_KM else -1], BK), 1)
    rows = down * C.shape[0] if len(C.shape) == 3 else down
    ring = slots(STAGES, A, B, BM, BN, BK, A_KM, B_KN)
    MIXED: tile.constexpr = A_KM and A.dtype == tile.float32
    stage = staging(C.dtype, BM, BUFFERS, WIDTH, ACROSS) if WIDTH else None
    if AHEAD:
        ready = tile.mbarrier(n=BM // 64)
    extra = (E0, E1, E2, E3)[:EXTRAS]
    room = rooms(extra, FINISH, AHEAD, BM // 64, BN)
    shared = whole, left, idle, rest, helpers, parts, each, few
    tile.assume((partial.shape[1] == BM // 64) & (partial.shape[2] == 64 * BN) & (flags.shape[1] == 3) & (down > 0) & (across > 0))
    with tile.warpgroup(0, regs=REGS[0]):
        with tile.elect():
            load(ring, A, B, flags, (rows, down, across, steps), shared, BM, BN, BK, ORDER, A_KM, B_KN,
                 len(C.shape) == 3)
    with tile.each_warpgroup(range(1, 1 + BM // 64), regs=REGS[1]) as warpgroup:
        w, phase, SEVERAL = warpgroup - 1, 0, len(C.shape) == 3
        lines = room_of(room, w)
        how = SA, SB, extra, FINISH, MIXED, AHEAD, lines
        if KEPT:
            stream_kept(ring, w, stage[w], C, (rows, down, across), steps, how, partial, flags, shared, BM, BN, ORDER, BEHIND, A_KM, B_KN, SUMS)
        elif LATE:
            stream_late(ring, w, stage[w], ready[w] if AHEAD else None, C, (rows, down, across), steps, how, partial, flags, shared, BM, BN, ORDER,
                        A_KM, B_KN, LATE, WAITING or SUMS)
        else:
            ONE: tile.constexpr = one_loop(BM, BEHIND, FINISH)
            if ONE:
                acc = tile.zeros((64, BN), SUMS)
            for x in range(whole + pieces(shared)):
                t, begin, end, place = piece(x, steps, shared)
                if not ONE:
                    acc = tile.zeros((64, BN), SUMS) if BEHIND else begun(ring, w, A_KM, B_KN)
                done = begin + (0 if ONE or BEHIND else 1)
                i, n = tile.tile_at(t, rows, across, *ORDER)
                z, row, column = corner(i, n, w, down, BM, BN, SEVERAL)
                if AHEAD:
                    first, done = done, min(done + time_of(t, end - begin), end)
                    acc = multiplied(acc, ring, w, done - first, BEHIND, A_KM, B_KN, MIXED)
                    if begin == 0:
                        with tile.elect():
                            bring(stage[w], lines, ready[w], extra, z, row, column, FINISH, AHEAD)
                acc = multiplied(acc, ring, w, end - done, BEHIND, A_KM, B_KN, MIXED, ONE)
                if begin > 0:
                    leave(acc, partial, flags, w, place)
                else:
                    acc = together(acc, partial, flags, w, end < steps, shared)
                    if AHEAD:
                        ready[w].wait(phase=phase)
                        phase = phase ^ 1
                    if WIDTH and BUFFERS * WIDTH == BN and BM < 192:
                        finish_first(acc, stage[w], z, row, column, how)
                        send_first(BN, stage[w], C, z, row, column)
                    else:
                        store((acc,), stage[w] if WIDTH else None, C, z, row, column, how)
        if WIDTH:
            with tile.elect():
                tile.bulk_wait(0)


# -- partial sums and flags --------------------------------------------------------------------------------------------------

CTAS, CONSUMERS = 1024, 3  # the most for which there are flags
FLAGS: dict = {}           # (type of array, device, stream, whether it is being captured) -> (the capture, its flags)


def shares(tiles: int, ctas: int, rest: int, helpers: int, parts: int) -> tuple[int, ...]:
    """How `ctas` CTAs share `tiles`, as `stream` takes it: whole rounds, tiles left, CTAs without one of these; `rest`, `helpers` and `parts` as
    in `shared_rest`; the tiles of which each helper takes the rest, and the number of those left, fewer than the helpers."""
    left = tiles % ctas
    each, few = divmod(left, helpers) if helpers else (0, 0)
    return tiles // ctas, left, ctas - left, rest, helpers, parts, each, few


def workspace(like, shape: tuple[int, ...], dtype: str):
    """Room for partial sums, and flags that are 0, for a launch on the current stream of `like`.

    A launch leaves the flags at 0, so launches on one stream, which run one after the other, share them. Launches that a CUDA graph captures have
    their own, which the graph zeroes before the first of them, since a graph may run on any stream."""
    view, partial = describe(like), temporary(like, shape, dtype)
    if view.device == "host":
        return partial, np.zeros((CTAS, CONSUMERS), np.int64)
    handle = streams.current_stream(view)
    captured = driver.capturing(handle, view.ordinal)
    place = type(like), view.device, handle, captured > 0
    capture, flags = FLAGS.get(place, (None, None))
    if capture != captured:
        flags = temporary(like, (CTAS, CONSUMERS), "int64")
        driver.fill(describe(flags).pointer, 0, 8 * CTAS * CONSUMERS, view.ordinal, handle)
        FLAGS[place] = captured, flags
    return partial, flags


__all__ = ["shares", "stream", "workspace"]
