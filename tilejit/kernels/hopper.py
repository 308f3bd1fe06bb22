"""Matrix products on Hopper: warp-specialised kernels of one producer and several consumer warpgroups.

The producer's one thread fills a ring of shared-memory slots by TMA; each consumer warpgroup multiplies 64 rows of the
tile by wgmma. `persistent` gives each CTA several tiles in turn and stores one by TMA while the ring already fills for the
next; `split` gives the slots of k of one tile to the CTAs of a cluster, which add up their parts.
"""

from __future__ import annotations

import tilejit as tile

from .finish import (PIECE, bring, box, columns, finish_first, finish_last, finish_piece, finished, room_of, rooms, send_first, send_last, staging,
                     store, store_part)

BLOCK = 128  # the rows and the k of a block of scales


@tile.jit
def operand(X, z, row, k, extents, K_FIRST: tile.constexpr):
    """What a slot takes of an operand given as [rows, k], or as [k, rows] (`K_FIRST`)."""
    return box(X, z, k, row, extents) if K_FIRST else box(X, z, row, k, extents)


@tile.jit
def matrix_and_row(i, down, SEVERAL: tile.constexpr):
    """Which matrix the tile row `i` is in, of `down` each, and which row of it."""
    return (i // down, i % down) if SEVERAL else (0, i)


@tile.jit
def corner(i, n, w, down, BM: tile.constexpr, BN: tile.constexpr, SEVERAL: tile.constexpr):
    """Where the rows of consumer `w` of a tile begin: (which matrix, row, column)."""
    tile.assume((i >= 0) & (n >= 0))
    z, m = matrix_and_row(i, down, SEVERAL)
    return z, m * BM + w * 64, n * BN


@tile.jit
def slots(STAGES: tile.constexpr, A, B, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr,
          BLOCKS: tile.constexpr = ()):
    """The ring: BK of k of the tile's rows of A and columns of B in each slot, and their scales where there are those of `BLOCKS`."""
    a, b = ((BK, BM) if A_KM else (BM, BK), A.dtype), ((BK, BN) if B_KN else (BN, BK), B.dtype)
    if BLOCKS:
        return tile.ring(STAGES, A=a, B=b, SA=(scales(BM, BLOCKS[0]), tile.float32), SB=(scales(BN, BLOCKS[1]), tile.float32), consumers=BM // 64)
    return tile.ring(STAGES, A=a, B=b, consumers=BM // 64)


@tile.jit
def scales(extent: tile.constexpr, BY_ROW: tile.constexpr):
    """The shape of a slot's scales of `extent` rows of an operand: one for each; or one for 128 of them, of which TMA brings 16
    bytes along k. Slots begin at multiples of 128 bytes."""
    return (max(extent, 32),) if BY_ROW else (8, 4)


@tile.jit
def scales_of(S, row, k, extents, BY_ROW: tile.constexpr):
    """What a slot takes of the scales [k / 128, rows] or [rows / 128, k / 128] of an operand."""
    block, four = row // BLOCK, k // 4 * 4
    return S[k, row:row + extents[0]] if BY_ROW else S[block:block + extents[0], four:four + extents[1]]


@tile.jit
def rounded(X):
    """How TMA rounds an operand on the way. The tensor cores cut float32 to the 10 bits of TF32. Rounded to the nearest, the error at 8192^3
    is 2.9e-4 of the result's norm where it was 7.9e-4, and the product takes 3 % less time."""
    return "tf32" if X.dtype == tile.float32 else None


@tile.jit
def fill(ring, A, B, z, m, n, first, stop, turn, BK: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr, SA=None, SB=None,
         BLOCKS: tile.constexpr = (), PASSING: tile.constexpr = False):
    """The producer: slots `first` to `stop` of the rows from `m` and the columns from `n` on, along k, or backwards from slot `turn` if
    that is no -1. Where alternate tiles go backwards, what they share is still in L2 from the end of the one before. `PASSING`: what
    comes of B is read at this time only."""
    KEPT, ROUNDED = "evict_first" if PASSING else None, rounded(A)
    for i in range(first, stop):
        k = (turn - i if turn >= 0 else i) * BK
        with ring.produce() as slot:
            tile.copy_async(slot.A, operand(A, z, m, k, slot.A.shape, A_KM), mbar=slot.full, precision=ROUNDED, prefetch_map=True)
            tile.copy_async(slot.B, operand(B, z, n, k, slot.B.shape, B_KN), mbar=slot.full, precision=ROUNDED, cache=KEPT, prefetch_map=True)
            if BLOCKS:
                tile.copy_async(slot.SA, scales_of(SA, m, i, slot.SA.shape, BLOCKS[0]), mbar=slot.full, prefetch_map=True)
                tile.copy_async(slot.SB, scales_of(SB, n, i, slot.SB.shape, BLOCKS[1]), mbar=slot.full, prefetch_map=True)


@tile.jit
def entering(part):
    """64 rows of an operand [k, rows] of float32 for registers, where alone wgmma takes it so: [64, k], rows in an order of their own. In
    that of wgmma's fragments (PTX ISA, "wgmma", the A fragment of .tf32) lanes would read, of four k, 8 rows side by side: 32 bytes that a
    swizzle moves within one half of the banks. So the eight are pairs at places 2, 4 and 16, and half of a warp reads 8 bytes of each bank."""
    bits = tile.reshape(tile.load(part), (part.shape[0], 2, 2, 2, 2, 2, 2))
    return tile.reshape(tile.transpose(bits, (1, 3, 6, 4, 2, 5, 0)), (64, part.shape[0]))


@tile.jit
def product(acc, slot, w, A_KM: tile.constexpr, B_KN: tile.constexpr, accumulate=True):
    """``acc + A @ B`` of the 64 rows of consumer `w`, started; where not `accumulate` it begins at zero."""
    rows = slot.A
    if slot.A.shape[1 if A_KM else 0] > 64:
        rows = slot.A[:, w * 64:w * 64 + 64] if A_KM else slot.A[w * 64:w * 64 + 64, :]
    if A_KM and slot.A.dtype == tile.float32:
        acc = tile.mma_async(acc, entering(rows), slot.B, trans_b=not B_KN, precision="tf32", accumulate=accumulate)
    else:
        acc = tile.mma_async(acc, rows, slot.B, trans_a=A_KM, trans_b=not B_KN, precision="tf32" if slot.A.dtype == tile.float32 else None,
                             accumulate=accumulate)
    tile.mma_commit()
    return acc


@tile.jit
def begun(ring, w, A_KM: tile.constexpr, B_KN: tile.constexpr):
    """A consumer's first slot, whose product begins at zero."""
    with ring.consume() as slot:
        acc = product(None, slot, w, A_KM, B_KN)
        tile.mma_wait(0)
    return acc


@tile.jit
def none_left_over(LATE: tile.constexpr, SUMS: tile.constexpr):
    """No columns, as `finish_but_last` leaves them over."""
    return tile.zeros((64, LATE), SUMS), False, (0, 0)


@tile.jit
def begun_over(before, ring, w, stage, C, down, how, BM: tile.constexpr, BN: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr):
    """A consumer's first slots, as many as `under` says; its sums begin at zero. Under their products it sends the first columns of the tile
    before, and finishes those left over, a piece under each, if there are any."""
    last, there, place = before
    z, row, column = corner(*place, w, down, BM, BN, len(C.shape) == 3)
    LATE: tile.constexpr = last.shape[1]
    with ring.consume() as slot:
        acc = product(None, slot, w, A_KM, B_KN)
        if there:
            send_first(BN - LATE, stage, C, z, row, column)
        tile.mma_wait(0)
    for piece in tile.static_range(LATE // PIECE):
        with ring.consume() as slot:
            acc = product(acc, slot, w, A_KM, B_KN)
            if there:
                finish_piece(last, piece, stage, z, row, column, how)
            tile.mma_wait(0)
    if there:
        send_last(last, stage, C, z, row, column)
    return acc


def under(late: int) -> int:
    """How many slots a consumer has until so many columns are finished under them."""
    return late // PIECE + 1


def most_late(slots: int) -> int:
    """How many columns a consumer can finish so if it has `slots` slots, one of which it keeps for the end, and one to ask for what comes ahead."""
    return max(slots - 3, 0) * PIECE


@tile.jit
def multiplied_bringing(acc, ring, w, steps, when, stage, ready, C, how, z, row, column, A_KM: tile.constexpr, B_KN: tile.constexpr):
    """A consumer: `acc` and its 64 rows over `steps` slots. Under the product of slot `when` it asks for what comes ahead of the epilogue's tiles."""
    SA, SB, extra, FINISH, MIXED, AHEAD, lines = how
    for i in range(steps):
        with ring.consume() as slot:
            acc = product(acc, slot, w, A_KM, B_KN)
            if AHEAD:
                if i == when:
                    with tile.elect():
                        bring(stage, lines, ready, extra, z, row, column, FINISH, AHEAD)
            tile.mma_wait(0)
    return acc


@tile.jit
def finish_but_last(acc, ring, w, stage, ready, phase, place, down, C, how, BM: tile.constexpr, BN: tile.constexpr, LATE: tile.constexpr,
                    A_KM: tile.constexpr, B_KN: tile.constexpr):
    """A consumer's last slot, and its sums finished but for the LATE last columns and not sent yet: (what is left over, the next phase). The
    slot is given back, so that the first that is loaded next is asked for, before ..."""
    z, row, column = corner(*place, w, down, BM, BN, len(C.shape) == 3)
    with ring.consume(behind=True) as slot:
        acc = product(acc, slot, w, A_KM, B_KN)
    if how[5]:
        ready.wait(phase=phase)
        phase = phase ^ 1
    tile.mma_wait(0)
    finish_first(acc[:, 0:BN - LATE], stage, z, row, column, how)
    ring.release()
    return (acc[:, BN - LATE:BN], True, place), phase


@tile.jit
def finish_left_over(before, w, stage, C, down, how, BM: tile.constexpr, BN: tile.constexpr):
    """All of a CTA's last tile that is not sent yet, since no products follow."""
    last, there, place = before
    if there:
        z, row, column = corner(*place, w, down, BM, BN, len(C.shape) == 3)
        send_first(BN - last.shape[1], stage, C, z, row, column)
        finish_last(last, stage, C, z, row, column, how)


@tile.jit
def multiplied(acc, ring, w, steps, BEHIND: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr, MIXED: tile.constexpr = False,
               FRESH: tile.constexpr = False):
    """A consumer: `acc` and its 64 rows over `steps` slots. With `BEHIND` a product still runs while the next slot is awaited,
    which small tiles need to keep the tensor cores busy; large ones have another consumer for that, and use for every free
    slot. `MIXED` operands, those of `entering`, are then in one of two sets of registers in turn. `FRESH`: `acc` does not count."""
    TURNS: tile.constexpr = 2 if BEHIND and MIXED else 1
    for i in range(steps // 2 if TURNS == 2 else steps):
        for turn in tile.static_range(TURNS):
            with ring.consume(behind=BEHIND) as slot:
                acc = product(acc, slot, w, A_KM, B_KN, i > 0 if FRESH else True)
                tile.mma_wait(1 if BEHIND else 0)
    if TURNS == 2:
        for i in range(steps % 2):
            with ring.consume(behind=True) as slot:
                acc = product(acc, slot, w, A_KM, B_KN)
                tile.mma_wait(0)
    tile.mma_wait(0)
    ring.release()
    return acc


@tile.jit
def kept(values, place, turn, WIDTH: tile.constexpr):
    """The finished `values` of a tile at `place`, to be sent under the products of the next: (their parts of WIDTH columns, how many of these are
    sent, the place, the buffer whose turn it is)."""
    parts = ()
    for part in tile.static_range(values.shape[1] // WIDTH):
        parts = (*parts, values[:, part * WIDTH:part * WIDTH + WIDTH])
    return parts, 0, place, turn


@tile.jit
def none_kept(dtype, BN: tile.constexpr, WIDTH: tile.constexpr):
    """No tile, as `kept` has them."""
    return (tile.zeros((64, WIDTH), dtype),) * (BN // WIDTH), BN // WIDTH, (0, 0), 0


@tile.jit
def send_next(before, w, stage, C, down, BM: tile.constexpr, BN: tile.constexpr):
    """Consumer `w` sends the next part of what it has kept (`kept`); what is left."""
    parts, sent, place, turn = before
    z, row, column = corner(*place, w, down, BM, BN, len(C.shape) == 3)
    tile.assume(sent >= 0)
    turn = store_part(parts[0], stage, turn, C, z, row, column + sent * stage.shape[2])
    return (*parts[1:], parts[-1]), sent + 1, place, turn


@tile.jit
def multiplied_over(acc, before, ring, w, steps, t, stage, C, tiles, BM: tile.constexpr, BN: tile.constexpr, ORDER: tile.constexpr,
                    BEHIND: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr):
    """Consumer `w` over the `steps` slots of the `t`-th of the `tiles`: (its sums, the tile's place, the buffer whose turn it is then). Under
    their products it sends what it has kept of the tile `before`: a part under every product of which the others send none, since a
    part takes longer than the products that are on their way."""
    rows, down, across = tiles
    place, PARTS = (0, 0), BN // stage.shape[2]
    for i in range(steps):
        with ring.consume(behind=BEHIND) as slot:
            acc = product(acc, slot, w, A_KM, B_KN, i > 0)
            if i == 0:
                place = tile.tile_at(t, rows, across, *ORDER)
            if (before[1] < PARTS) & (i == 1 + w + before[1] * (BM // 64)):
                before = send_next(before, w, stage, C, down, BM, BN)
            tile.mma_wait(1 if BEHIND else 0)
    tile.mma_wait(0)
    ring.release()
    for part in range(before[1], PARTS):
        before = send_next(before, w, stage, C, down, BM, BN)
    return acc, place, before[3]


@tile.jit
def persistent_kept(ring, w, stage, C, tiles, steps, how, BM: tile.constexpr, BN: tile.constexpr, ORDER: tile.constexpr, BEHIND: tile.constexpr,
                    A_KM: tile.constexpr, B_KN: tile.constexpr, SUMS: tile.constexpr):
    """A consumer of `persistent` whose results stay in registers until the first products of its next tile run: what stands between the
    products of two tiles is the conversion of the sums."""
    rows, down, across = tiles
    SA, SB, extra, FINISH, MIXED = how[:5]
    acc, before = tile.zeros((64, BN), SUMS), none_kept(C.dtype, BN, stage.shape[2])
    for t in range(tile.program_id(0), rows * across + tile.num_programs(0), tile.num_programs(0)):  # the last one, of no slots, sends the one before
        acc, place, turn = multiplied_over(acc, before, ring, w, steps if t < rows * across else 0, t, stage, C, tiles, BM, BN, ORDER, BEHIND,
                                           A_KM, B_KN)
        values = finished(acc, *corner(*place, w, down, BM, BN, len(C.shape) == 3), SA, SB, extra, FINISH, MIXED)
        before = kept(tile.cast(values, C.dtype), place, turn, stage.shape[2])


@tile.jit
def persistent_late(ring, w, stage, ready, C, tiles, steps, how, BM: tile.constexpr, BN: tile.constexpr, ORDER: tile.constexpr, A_KM: tile.constexpr,
                    B_KN: tile.constexpr, SUMS: tile.constexpr, LATE: tile.constexpr):
    """A consumer of `persistent` that finishes the LATE last columns of a tile under the first products of its next."""
    rows, down, across = tiles
    before, phase = none_left_over(LATE, SUMS), 0
    for t in range(tile.program_id(0), rows * across, tile.num_programs(0)):
        acc = begun_over(before, ring, w, stage, C, down, how, BM, BN, A_KM, B_KN)
        place, more = tile.tile_at(t, rows, across, *ORDER), steps - under(LATE) - 1
        acc = multiplied_bringing(acc, ring, w, more, time_of(tile.program_id(0), steps, more), stage, ready, C, how,
                                  *corner(*place, w, down, BM, BN, len(C.shape) == 3), A_KM, B_KN)
        before, phase = finish_but_last(acc, ring, w, stage, ready, phase, place, down, C, how, BM, BN, LATE, A_KM, B_KN)
    finish_left_over(before, w, stage, C, down, how, BM, BN)


@tile.jit
def time_of(p, steps, more):
    """At which of `more` slots, of `steps`, a CTA asks for what comes ahead: each at a time of its own, since memory would else have to give the
    tiles of all at once."""
    return min(steps * (p % 8 + 1) // 16, more - 1)


@tile.jit
def one_loop(BM: tile.constexpr, LATER: tile.constexpr, FINISH: tile.constexpr):
    """Whether the first slot's product, which begins at zero, stands in the loop with the others, where a condition says that it does: the
    assembler takes 10 ms for each wgmma of 256 columns. The sums then stay in registers until the next tile, and an epilogue of the
    user's, or three consumers with fewer registers, would spill."""
    return BM < 192 and not LATER and FINISH[1] is None


@tile.jit
def along(S, first, k, extent, BY_ROW: tile.constexpr):
    """The scales of slot `k` for `extent` rows of the tile from `first` on."""
    return tile.load(S[first:first + extent]) if BY_ROW else tile.load(S[first // BLOCK, k % 4])


@tile.jit
def promoted(sums, ring, w, first, stop, row, BLOCKS: tile.constexpr):
    """A consumer of float8, of which the tensor cores' sums keep fewer bits than float32: those of each slot's 128 of k are added to
    `sums`, tiles of neighbouring columns, by the threads, and are scaled before if `BLOCKS` says how the scales lie."""
    COLUMNS = sums[0].shape[1]
    for i in range(first, stop):
        with ring.consume() as slot:
            for h in tile.static_range(len(sums)):
                rows = slot.A[w * 64:w * 64 + 64, :] if slot.A.shape[0] > 64 else slot.A
                part = tile.mma_async(None, rows, slot.B[h * COLUMNS:h * COLUMNS + COLUMNS, :], trans_b=True)
                tile.mma_commit()
                if BLOCKS:
                    if h == 0:  # the tile's rows may begin within a block
                        a = along(slot.SA, w * 64 if BLOCKS[0] else row - (row - w * 64) // BLOCK * BLOCK, i, 64, BLOCKS[0])
                    b = along(slot.SB, h * COLUMNS, i, COLUMNS, BLOCKS[1])
                tile.mma_wait(0)
                if h == len(sums) - 1:
                    slot.release()
                if BLOCKS:
                    part = scaled(part, a, b, BLOCKS)
                sums = (*sums[:h], sums[h] + part, *sums[h + 1:])
    return sums


@tile.jit
def scaled(part, a, b, BLOCKS: tile.constexpr):
    """Sums times the scales of their rows and columns."""
    if BLOCKS[0] and BLOCKS[1]:
        return part * a[:, None] * b[None, :]
    both = a * b
    return part * (both[:, None] if BLOCKS[0] else both[None, :] if BLOCKS[1] else both)


@tile.jit
def none(BN: tile.constexpr, SUMS: tile.constexpr, PROMOTED: tile.constexpr):
    """No sums yet: one tile, or those of `promoted`, each of as many columns as have one scale."""
    COLUMNS = min(BN, BLOCK) if PROMOTED else BN
    return (tile.zeros((64, COLUMNS), SUMS),) * (BN // COLUMNS)


@tile.jit
def added(sums, ring, w, first, stop, row, BEHIND: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr, PROMOTED: tile.constexpr,
          BLOCKS: tile.constexpr, MIXED: tile.constexpr, FRESH: tile.constexpr = False):
    """A consumer: `sums`, from `row` on, and those of the slots `first` to `stop` along k."""
    if PROMOTED:
        return promoted(sums, ring, w, first, stop, row, BLOCKS)
    return (multiplied(sums[0], ring, w, stop - first, BEHIND, A_KM, B_KN, MIXED, FRESH),)


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
def persistent(A, B, C, SA, SB, E0, E1, E2, E3, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr,
               ORDER: tile.constexpr, BEHIND: tile.constexpr, REGS: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr, SUMS: tile.constexpr,
               WIDTH: tile.constexpr, BUFFERS: tile.constexpr, ACROSS: tile.constexpr, FINISH: tile.constexpr, EXTRAS: tile.constexpr,
               DEPENDENT: tile.constexpr, AHEAD: tile.constexpr, PROMOTED: tile.constexpr, BLOCKS: tile.constexpr, PASSING: tile.constexpr = False,
               LATE: tile.constexpr = 0, KEPT: tile.constexpr = False):
    """``C = A @ B``, with A as [M, K] or [K, M] (`A_KM`) and B as [N, K] or [K, N] (`B_KN`), each perhaps one of several
    matrices: tiles of BM x BN, BK of k in each of STAGES slots. Results go by TMA from BUFFERS buffers of WIDTH columns in
    turn, which lie by columns if the results do (`ACROSS`), or (0) by stores; with `KEPT` under the first products of the next tile. TMA
    brings those of the epilogue's tiles for which `AHEAD` says so during the products, one of the result's shape to the buffers. The LATE
    last columns of a tile, if there are buffers for all of its columns, are finished under the first slots of the next, which all tiles
    have that many pieces of. With `PROMOTED` threads add up the sums of 128 of k, times the scales SA and SB of `BLOCKS`."""
    M, N, K = C.shape[-2], C.shape[-1], A.shape[-2 if A_KM else -1]
    down, across, steps = tile.cdiv(M, BM), tile.cdiv(N, BN), tile.cdiv(K, BK)
    rows = down * C.shape[0] if len(C.shape) == 3 else down
    ring = slots(STAGES, A, B, BM, BN, BK, A_KM, B_KN, BLOCKS)
    MIXED: tile.constexpr = A_KM and A.dtype == tile.float32
    stage = staging(C.dtype, BM // 64, BUFFERS, WIDTH, ACROSS) if WIDTH else None
    if AHEAD:
        ready = tile.mbarrier(n=BM // 64)
    extra = (E0, E1, E2, E3)[:EXTRAS]
    room = rooms(extra, FINISH, AHEAD, BM // 64, BN)
    if DEPENDENT:
        tile.griddepcontrol_wait()
        tile.griddepcontrol_launch_dependents()
    with tile.warpgroup(0, regs=REGS[0]):
        with tile.elect():
            turn = -1
            for i, n in tile.tile_order(rows, across, *ORDER):
                z, m = matrix_and_row(i, down, len(C.shape) == 3)
                fill(ring, A, B, z, m * BM, n * BN, 0, steps, turn, BK, A_KM, B_KN, SA, SB, BLOCKS, PASSING)
                turn = -1 if BLOCKS else steps - 2 - turn
    with tile.each_warpgroup(range(1, 1 + BM // 64), regs=REGS[1]) as warpgroup:
        w, phase, SEVERAL = warpgroup - 1, 0, len(C.shape) == 3
        lines = room_of(room, w)
        how = SA, SB, extra, FINISH, MIXED, AHEAD, lines
        if KEPT:
            persistent_kept(ring, w, stage[w], C, (rows, down, across), steps, how, BM, BN, ORDER, BEHIND, A_KM, B_KN, SUMS)
        elif LATE:
            persistent_late(ring, w, stage[w], ready[w] if AHEAD else None, C, (rows, down, across), steps, how, BM, BN, ORDER, A_KM, B_KN, SUMS, LATE)
        else:
            BEGUN = not (BEHIND or PROMOTED)
            ONE: tile.constexpr = one_loop(BM, BEHIND or PROMOTED, FINISH)
            if ONE:
                sums = none(BN, SUMS, PROMOTED)
            for t in range(tile.program_id(0), rows * across, tile.num_programs(0)):
                i, n = tile.tile_at(t, rows, across, *ORDER)
                z, row, column = corner(i, n, w, down, BM, BN, SEVERAL)
                if not ONE:
                    sums = (begun(ring, w, A_KM, B_KN),) if BEGUN else none(BN, SUMS, PROMOTED)
                done = 1 if BEGUN and not ONE else 0
                if AHEAD:  # each CTA at a time of its own, as in `persistent_late`
                    first, done = done, min(done + steps * (tile.program_id(0) % 8 + 1) // 16, steps)
                    sums = added(sums, ring, w, first, done, row, BEHIND, A_KM, B_KN, PROMOTED, BLOCKS, MIXED)
                    with tile.elect():
                        bring(stage[w], lines, ready[w], extra, z, row, column, FINISH, AHEAD)
                sums = added(sums, ring, w, done, steps, row, BEHIND, A_KM, B_KN, PROMOTED, BLOCKS, MIXED, ONE)
                if AHEAD:
                    ready[w].wait(phase=phase)
                    phase = phase ^ 1
                store(sums, stage[w] if WIDTH else None, C, z, row, column, how)
        if WIDTH:
            with tile.elect():
                tile.bulk_wait(0)


@tile.jit
def split(A, B, C, SA, SB, E0, E1, E2, E3, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr,
          SPLITS: tile.constexpr, BEHIND: tile.constexpr, REGS: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr, SUMS: tile.constexpr,
          FINISH: tile.constexpr, EXTRAS: tile.constexpr, PROMOTED: tile.constexpr, BLOCKS: tile.constexpr):
    """The same product for few tiles, one for each cluster: CTA `rank` of SPLITS takes its share of the slots of k, then adds
    up its share of the columns: its own sums, and those of the other CTAs in the order of their ranks."""
    tiles_m, steps = tile.cdiv(C.shape[-2], BM), tile.cdiv(A.shape[-2 if A_KM else -1], BK)
    t, rank, z = tile.program_id(0) // SPLITS, tile.cta_rank(), tile.program_id(1)
    m, n = t % tiles_m * BM, t // tiles_m * BN
    first, stop = rank * steps // SPLITS, (rank + 1) * steps // SPLITS
    ring = slots(STAGES, A, B, BM, BN, BK, A_KM, B_KN, BLOCKS)
    PART = BN // SPLITS
    MIXED: tile.constexpr = A_KM and A.dtype == tile.float32
    parts = tile.alloc((BM // 64, SPLITS - 1, 64 * PART), SUMS)
    arrived = tile.mbarrier(n=BM // 64)
    extra = (E0, E1, E2, E3)[:EXTRAS]
    tile.griddepcontrol_wait()
    tile.griddepcontrol_launch_dependents()
    with tile.warpgroup(0, regs=REGS[0]):
        with tile.elect():
            fill(ring, A, B, z, m, n, first, stop, -1, BK, A_KM, B_KN, SA, SB, BLOCKS)
    with tile.each_warpgroup(range(1, 1 + BM // 64), regs=REGS[1]) as warpgroup:
        w = warpgroup - 1
        with tile.elect():
            arrived[w].arrive_expect_tx((SPLITS - 1) * 64 * PART * 4)
        own = added(none(BN, SUMS, PROMOTED), ring, w, first, stop, m + w * 64, BEHIND, A_KM, B_KN, PROMOTED, BLOCKS, MIXED)
        total = columns(own, 0, PART)
        for s in tile.static_range(SPLITS):
            if s == rank:
                total = columns(own, s * PART, PART)
            else:
                place = max(min(rank - 1 if rank > s else rank, SPLITS - 2), 0)  # as it is anyway: said for the bounds of `parts`
                tile.store_async(parts.peer(s)[w, place], by_thread(columns(own, s * PART, PART)), mbar=arrived[w])
        arrived[w].wait(phase=0)
        for s in tile.static_range(SPLITS - 1):
            total = total + by_row(tile.load(parts[w, s]))
        row, column = m + w * 64, n + rank * PART
        tile.store(box(C, z, row, column, (64, PART)), finished(total, z, row, column, SA, SB, extra, FINISH, MIXED))


__all__ = ["persistent", "split"]
