"""The loop of a matrix product on Hopper: a ring of slots of operands in shared memory, the producer's thread that fills it by TMA, and the
consumer warpgroups, of which each multiplies 64 rows of a tile by wgmma, or 128 of the highest.
"""

from __future__ import annotations

import tilejit as tile

from .finish import box, rows_of

BLOCK = 128  # the rows and the k of a block of scales


@tile.jit
def operand(X, z, row, k, extents, K_FIRST: tile.constexpr):
    """What a slot takes of an operand given as [rows, k], or as [k, rows] (`K_FIRST`)."""
    return box(X, z, k, row, extents) if K_FIRST else box(X, z, row, k, extents)


@tile.jit
def tile_rows(M, BM: tile.constexpr, PAIR: tile.constexpr):
    """How many rows of tiles cover M rows: an even number for a `PAIR` of CTAs."""
    return tile.cdiv(M, 2 * BM) * 2 if PAIR else tile.cdiv(M, BM)


@tile.jit
def matrix_and_row(i, down, SEVERAL: tile.constexpr):
    """Which matrix the tile row `i` is in, of `down` each, and which row of it."""
    return (i // down, i % down) if SEVERAL else (0, i)


@tile.jit
def corner(i, n, w, down, BM: tile.constexpr, BN: tile.constexpr, SEVERAL: tile.constexpr):
    """Where the rows of consumer `w` of a tile begin: (which matrix, row, column)."""
    tile.assume((i >= 0) & (n >= 0))
    z, m = matrix_and_row(i, down, SEVERAL)
    return z, m * BM + w * rows_of(BM), n * BN


@tile.jit
def slots(STAGES: tile.constexpr, A, B, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr,
          BLOCKS: tile.constexpr = (), PAIR: tile.constexpr = False):
    """The ring: BK of k of the tile's rows of A and columns of B in each slot, and their scales where there are those of `BLOCKS`. The rings
    of a `PAIR` of CTAs turn together."""
    CONSUMERS: tile.constexpr = BM // rows_of(BM)
    a, b = ((BK, BM) if A_KM else (BM, BK), A.dtype), ((BK, BN) if B_KN else (BN, BK), B.dtype)
    if BLOCKS:
        return tile.ring(STAGES, A=a, B=b, SA=(scales(BM, BLOCKS[0]), tile.float32), SB=(scales(BN, BLOCKS[1]), tile.float32), consumers=CONSUMERS,
                         multicast=PAIR)
    return tile.ring(STAGES, A=a, B=b, consumers=CONSUMERS, multicast=PAIR)


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
         BLOCKS: tile.constexpr = (), PASSING: tile.constexpr = False, PAIR: tile.constexpr = False):
    """The producer: slots `first` to `stop` of the rows from `m` and the columns from `n` on, along k, or backwards from slot `turn` if
    that is no -1. Where alternate tiles go backwards, what they share is still in L2 from the end of the one before. `PASSING`: what
    comes of B is read at this time only. `PAIR`: the two CTAs of a cluster have the same columns, and each brings half of B's box for both."""
    KEPT, ROUNDED = "evict_first" if PASSING else None, rounded(A)
    for i in range(first, stop):
        k = (turn - i if turn >= 0 else i) * BK
        with ring.produce() as slot:
            tile.copy_async(slot.A, operand(A, z, m, k, slot.A.shape, A_KM), mbar=slot.full, precision=ROUNDED, prefetch_map=True)
            if PAIR:
                HALF: tile.constexpr = slot.B.shape[0] // 2
                at = tile.cta_rank() * HALF
                half = operand(B, z, n if B_KN else n + at, k + at if B_KN else k, (HALF, slot.B.shape[1]), B_KN)
                tile.copy_async(slot.B[at:at + HALF, :], half, mbar=slot.full, precision=ROUNDED, cache=KEPT, prefetch_map=True, multicast=0b11)
            else:
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
    """``acc + A @ B`` of the rows of consumer `w`, started; where not `accumulate` it begins at zero."""
    BM, rows = slot.A.shape[1 if A_KM else 0], slot.A
    ROWS: tile.constexpr = rows_of(BM)
    if BM > ROWS:
        rows = slot.A[:, w * ROWS:w * ROWS + ROWS] if A_KM else slot.A[w * ROWS:w * ROWS + ROWS, :]
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
def multiplied(acc, ring, w, steps, BEHIND: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr, MIXED: tile.constexpr = False,
               FRESH: tile.constexpr = False):
    """A consumer: `acc` and its rows over `steps` slots. With `BEHIND` a product still runs while the next slot is awaited,
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
def multiplied_in_turn(acc, ring, w, steps, baton, A_KM: tile.constexpr, B_KN: tile.constexpr):
    """A consumer's last `steps` slots, of which the ring has room for all: while one consumer multiplies them, as fast as all would, the ones
    before store their results, and the ones behind wait. Without any, nothing."""
    if steps > 0:
        baton.take(w)
    for i in range(steps):
        with ring.consume(behind=True) as slot:
            acc = product(acc, slot, w, A_KM, B_KN)
            tile.mma_wait(1)
    if steps > 0:
        baton.pass_on(w)
    tile.mma_wait(0)
    ring.release()
    return acc


@tile.jit
def none(BM: tile.constexpr, BN: tile.constexpr, SUMS: tile.constexpr, PROMOTED: tile.constexpr):
    """No sums of a consumer yet: one tile, or those of `promoted`, each of as many columns as have one scale."""
    COLUMNS = min(BN, BLOCK) if PROMOTED else BN
    return (tile.zeros((rows_of(BM), COLUMNS), SUMS),) * (BN // COLUMNS)


@tile.jit
def added(sums, ring, w, first, stop, row, BEHIND: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr, PROMOTED: tile.constexpr,
          BLOCKS: tile.constexpr, MIXED: tile.constexpr, FRESH: tile.constexpr = False):
    """A consumer: `sums`, from `row` on, and those of the slots `first` to `stop` along k."""
    if PROMOTED:
        return promoted(sums, ring, w, first, stop, row, BLOCKS)
    return (multiplied(sums[0], ring, w, stop - first, BEHIND, A_KM, B_KN, MIXED, FRESH),)


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
def along(S, first, k, extent, BY_ROW: tile.constexpr):
    """The scales of slot `k` for `extent` rows of the tile from `first` on."""
    return tile.load(S[first:first + extent]) if BY_ROW else tile.load(S[first // BLOCK, k % 4])


@tile.jit
def scaled(part, a, b, BLOCKS: tile.constexpr):
    """Sums times the scales of their rows and columns."""
    if BLOCKS[0] and BLOCKS[1]:
        return part * a[:, None] * b[None, :]
    both = a * b
    return part * (both[:, None] if BLOCKS[0] else both[None, :] if BLOCKS[1] else both)


@tile.jit
def one_loop(BM: tile.constexpr, LATER: tile.constexpr, FINISH: tile.constexpr):
    """Whether the first slot's product, which begins at zero, stands in the loop with the others, where a condition says that it does: the
    assembler takes 10 ms for each wgmma of 256 columns. The sums then stay in registers until the next tile, and an epilogue of the
    user's, or three consumers with fewer registers, would spill."""
    return BM < 192 and not LATER and FINISH[1] is None


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
