"""A matrix product on Hopper in which all CTAs share what does not make whole rounds of tiles (stream-K), so that none is idle.

These tiles, fewer than two rounds, are one row of slots of k, of which each CTA takes an equal run. Where a run begins or ends
within a tile, the CTA of the tile's last slots begins with what the CTAs before it have left in memory, added up in the order of
their numbers, so that the same bits come each time. A CTA takes the end of its run first, for which others wait, and waits for
CTAs of lower numbers only, which have started before it.
"""

from __future__ import annotations

import numpy as np

import tilejit as tile

from ..runtime import driver, streams
from ..runtime.arrays import describe
from .hopper import box, fill, finished, matrix_and_row, multiplied, send, slots
from .views import new


@tile.jit
def run(tiles, steps):
    """How the work is divided: (shared tiles, first and last slot of this CTA's run, its pieces of shared tiles, its whole tiles)."""
    p, ctas = tile.program_id(0), tile.num_programs(0)
    whole = 0 if tiles < ctas else tiles // ctas - (1 if tiles % ctas > 0 else 0)
    shared = tiles - whole * ctas
    each, more = shared * steps // ctas, shared * steps % ctas
    first = p * each + min(p, more)
    stop = first + each + (1 if p < more else 0)
    pieces = (stop - 1) // steps - first // steps + 1 if stop > first else 0
    return shared, first, stop, pieces, whole


@tile.jit
def holder(slot, shared, steps):
    """The CTA in whose run a slot is."""
    ctas = tile.num_programs(0)
    each, more = shared * steps // ctas, shared * steps % ctas
    longer = more * (each + 1)
    return slot // (each + 1) if slot < longer else more + (slot - longer) // max(each, 1)


@tile.jit
def piece(i, steps, shared, first, stop, pieces):
    """The CTA's piece `i`: (tile, first slot, slot after the last). Shared tiles come first, from the end of the run on."""
    t = (stop - 1) // steps - i if i < pieces else shared + (i - pieces) * tile.num_programs(0) + tile.program_id(0)
    begin = max(first - t * steps, 0) if i < pieces else 0
    end = min(stop - t * steps, steps) if i < pieces else steps
    return t, begin, end


@tile.jit
def by_thread(sums):
    """Sums of 64 rows in a row, 4 of each of 128 threads after the other, as the threads hold them: wgmma gives thread ``32 w + 4 r + c``
    the elements 2 c and 2 c + 1 of each 8 columns, of the rows 16 w + r and 16 w + r + 8 (PTX ISA, "wgmma", the D fragment)."""
    return tile.reshape(tile.transpose(tile.reshape(sums, (4, 2, 8, sums.shape[1] // 8, 4, 2)), (3, 0, 2, 4, 1, 5)), (64 * sums.shape[1],))


@tile.jit
def by_row(values):
    """The other way around."""
    eights = values.shape[0] // 512
    return tile.reshape(tile.transpose(tile.reshape(values, (eights, 4, 8, 4, 2, 2)), (1, 4, 2, 0, 3, 5)), (64, eights * 8))


@tile.jit
def left(partial, flags, w, first, stop, BN: tile.constexpr, SUMS: tile.constexpr):
    """The sums of consumer `w` that the CTAs `first` to `stop` have left, added up once they are there."""
    sums = tile.zeros((64, BN), SUMS)
    for p in range(first, stop):
        with tile.elect():
            while tile.load(flags[p, w], sem="acquire") == 0:
                pass
            tile.store(flags[p, w], 0)
        tile.sync()
        sums = sums + by_row(tile.load(partial[p, w, 0:64 * BN]))
    return sums


@tile.jit
def leave(sums, partial, flags, w):
    """Leave the sums of consumer `w` to another CTA."""
    p = tile.program_id(0)
    tile.store(partial[p, w, 0:64 * sums.shape[1]], by_thread(sums))
    tile.sync()
    with tile.elect():
        tile.store(flags[p, w], 1, sem="release")


@tile.jit
def stream(A, B, C, SA, SB, E0, E1, E2, E3, partial, flags, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr,
           ORDER: tile.constexpr, BEHIND: tile.constexpr, REGS: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr, SUMS: tile.constexpr,
           WIDTH: tile.constexpr, BUFFERS: tile.constexpr, FINISH: tile.constexpr, EXTRAS: tile.constexpr):
    """``C = A @ B``. `partial` has room for the sums of a tile of each CTA; `flags`, one for each consumer of each CTA, are 0
    before the launch and after it. Results go by TMA from BUFFERS buffers of WIDTH columns in turn, or (0) by stores."""
    down, across, steps = tile.cdiv(C.shape[-2], BM), tile.cdiv(C.shape[-1], BN), max(tile.cdiv(A.shape[-2 if A_KM else -1], BK), 1)
    rows = down * C.shape[0] if len(C.shape) == 3 else down
    ring = slots(STAGES, A, B, BM, BN, BK, A_KM, B_KN)
    if WIDTH:
        staged = (BM // 64, BUFFERS, 64, WIDTH)
        stage = tile.alloc(staged, C.dtype, layout=tile.swizzled(C.dtype, staged, min(WIDTH * C.dtype.nbytes, 128)))
    extra = (E0, E1, E2, E3)[:EXTRAS]
    shared, first, stop, pieces, whole = run(rows * across, steps)
    with tile.warpgroup(0, regs=REGS[0]):
        with tile.elect():
            for x in range(pieces + whole):
                t, begin, end = piece(x, steps, shared, first, stop, pieces)
                i, n = tile.tile_at(t, rows, across, *ORDER)
                z, m = matrix_and_row(i, down, len(C.shape) == 3)
                fill(ring, A, B, z, m * BM, n * BN, begin, end, BK, A_KM, B_KN)
    with tile.each_warpgroup(range(1, 1 + BM // 64), regs=REGS[1]) as warpgroup:
        w = warpgroup - 1
        for x in range(pieces + whole):
            t, begin, end = piece(x, steps, shared, first, stop, pieces)
            other = holder(t * steps, shared, steps) if (begin > 0) & (end == steps) else tile.program_id(0)
            acc = left(partial, flags, w, other, tile.program_id(0), BN, SUMS)
            acc = multiplied(acc, ring, w, end - begin, BEHIND, A_KM, B_KN)
            if end < steps:
                leave(acc, partial, flags, w)
            else:
                i, n = tile.tile_at(t, rows, across, *ORDER)
                tile.assume((i >= 0) & (n >= 0))
                z, m = matrix_and_row(i, down, len(C.shape) == 3)
                row, column = m * BM + w * 64, n * BN
                if WIDTH:
                    for part in tile.static_range(BN // WIDTH):
                        at = column + part * WIDTH
                        values = finished(acc[:, part * WIDTH:part * WIDTH + WIDTH], z, row, at, SA, SB, extra, FINISH)
                        send(values, stage[w, part % BUFFERS], box(C, z, row, at, (64, WIDTH)), BUFFERS)
                else:
                    tile.store(box(C, z, row, column, (64, BN)), finished(acc, z, row, column, SA, SB, extra, FINISH))
        if WIDTH:
            with tile.elect():
                tile.bulk_wait(0)


# -- memory ------------------------------------------------------------------------------------------------------------------

CTAS, CONSUMERS = 1024, 3  # at most
FLAGS: dict = {}           # by the kind of array, the device and the stream


def workspace(like, shape: tuple[int, ...], dtype: str):
    """Room for partial sums, and flags that are 0, for a launch on the stream of `like`.

    A launch leaves the flags at 0, so launches on one stream, which come one after the other, have the same ones. What a CUDA
    graph launches has its own, zeroed in the graph, since a graph may run on any stream.
    """
    view, partial = describe(like), new(like, shape, dtype)
    if view.device == "host":
        return partial, np.zeros((CTAS, CONSUMERS), np.int32)
    handle = streams.current_stream(view)
    captured = driver.capturing(handle, view.device)
    flags = None if captured else FLAGS.get((type(like), view.device, handle))
    if flags is None:
        flags = new(like, (CTAS, CONSUMERS), "int32")
        driver.fill(describe(flags).pointer, 0, 4 * CTAS * CONSUMERS, view.device, handle)
        if not captured:
            FLAGS[type(like), view.device, handle] = flags
    return partial, flags


__all__ = ["stream", "workspace"]
