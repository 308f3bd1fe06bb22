"""The main loop of a matrix product on Hopper: TMA loads and wgmma.

A producer thread fills a ring of slots in shared memory by TMA. Each consumer warpgroup multiplies 64 rows of a
tile by wgmma (128 in tiles of 256 rows).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tilejit as tile

from ..epilogue import box, rows_of

BLOCK = 128  # rows, and elements along k, of a block that has a scale


@dataclass(frozen=True)
class Grid:
    """The tiles of a result: rows of tiles of all matrices (`rows`) and of one (`down`), columns of tiles (`across`),
    and the slots along k of each (`steps`)."""

    rows: Any
    down: Any
    across: Any
    steps: Any
    tile_record = True


@tile.jit
def operand(X, z, row, k, extents, K_FIRST: tile.constexpr):
    """The region that a slot takes of an operand given as [rows, k], or as [k, rows] (`K_FIRST`)."""
    return box(X, z, k, row, extents) if K_FIRST else box(X, z, row, k, extents)


@tile.jit
def tile_rows(M, BM: tile.constexpr, PAIR: tile.constexpr):
    """The number of rows of tiles that cover M rows; an even number for a `PAIR` of CTAs."""
    return tile.cdiv(M, 2 * BM) * 2 if PAIR else tile.cdiv(M, BM)


@tile.jit
def matrix_and_row(i, down, SEVERAL: tile.constexpr):
    """(matrix, row of tiles in it) of row `i` of the tiles of all matrices, which have `down` rows each."""
    return (i // down, i % down) if SEVERAL else (0, i)


@tile.jit
def corner(i, n, w, down, SEVERAL: tile.constexpr, PLAN: tile.constexpr):
    """(matrix, row, column) where the rows of consumer `w` begin in the tile at row `i` and column `n` of tiles."""
    tile.assume((i >= 0) & (n >= 0))
    z, m = matrix_and_row(i, down, SEVERAL)
    return z, m * PLAN.bm + w * rows_of(PLAN.bm), n * PLAN.bn


@tile.jit
def slots(A, B, PLAN: tile.constexpr):
    """The ring: each slot has elements along k of the tile's rows of A and columns of B. The rings of a pair of CTAs
    advance together."""
    CONSUMERS: tile.constexpr = PLAN.bm // rows_of(PLAN.bm)
    a, b = (((PLAN.bk, PLAN.bm) if PLAN.a_km else (PLAN.bm, PLAN.bk), A.dtype),
            ((PLAN.bk, PLAN.bn) if PLAN.b_kn else (PLAN.bn, PLAN.bk), B.dtype))
    return tile.ring(PLAN.stages, A=a, B=b, consumers=CONSUMERS, multicast=PLAN.pair)


@tile.jit
def tma_precision(X):
    """How TMA converts an operand while it copies. The tensor cores truncate float32 to TF32 (10 bits of mantissa).
    With rounding to nearest, the error at 8192^3 is 2.9e-4 of the result's norm instead of 7.9e-4, and the product
    takes 3 % less time."""
    return "tf32" if X.dtype == tile.float32 else None


@tile.jit
def fill(ring, A, B, z, m, n, first, stop, turn, PLAN: tile.constexpr, PASSING: tile.constexpr = False):
    """The producer: loads slots `first` to `stop` along k of the rows from `m` and the columns from `n`. If `turn` is
    not -1 it goes backwards along k: step i loads slot ``turn - i``. Where alternate tiles go backwards, a tile finds
    in L2 what the tile before loaded last of the data that they share. `PASSING`: B is not read again later, so its
    lines may leave L2 first. The CTAs of a pair have the same columns, and each loads half of B's box for both."""
    KEPT, ROUNDED = "evict_first" if PASSING else None, tma_precision(A)
    for i in range(first, stop):
        k = (turn - i if turn >= 0 else i) * PLAN.bk
        with ring.produce() as slot:
            tile.copy_async(slot.A, operand(A, z, m, k, slot.A.shape, PLAN.a_km), mbar=slot.full, precision=ROUNDED,
                            prefetch_map=True)
            if PLAN.pair:
                HALF: tile.constexpr = slot.B.shape[0] // 2
                at = tile.cta_rank() * HALF
                half = operand(B, z, n if PLAN.b_kn else n + at, k + at if PLAN.b_kn else k, (HALF, slot.B.shape[1]),
                               PLAN.b_kn)
                tile.copy_async(slot.B[at:at + HALF, :], half, mbar=slot.full, precision=ROUNDED, cache=KEPT,
                                prefetch_map=True, multicast=0b11)
            else:
                tile.copy_async(slot.B, operand(B, z, n, k, slot.B.shape, PLAN.b_kn), mbar=slot.full, precision=ROUNDED,
                                cache=KEPT, prefetch_map=True)


@tile.jit
def load_transposed(part):
    """64 rows of a float32 operand [k, rows] as a register tile [64, k] with permuted rows: wgmma takes float32 A
    only K-major, or from registers. In the row order of wgmma's fragments (PTX ISA, "wgmma", the A fragment of
    .tf32), the lanes of a load would read 8 adjacent rows, which are 32 bytes, at four k, and the swizzle moves these
    within one half of the banks only. So the bits of the row index are permuted: a lane's two rows are adjacent, and
    the eight of a group differ in bits 1, 2 and 4, so that the 8-byte loads of half a warp touch each bank once.
    `in_order` undoes the permutation."""
    bits = tile.reshape(tile.load(part), (part.shape[0], 2, 2, 2, 2, 2, 2))
    return tile.reshape(tile.transpose(bits, (1, 3, 6, 4, 2, 5, 0)), (64, part.shape[0]))


@tile.jit
def product(acc, slot, w, PLAN: tile.constexpr, accumulate=True):
    """Start ``acc + A @ B`` for the rows of consumer `w`, and commit it;
    the accumulator starts at zero if not `accumulate`."""
    BM, rows = slot.A.shape[1 if PLAN.a_km else 0], slot.A
    ROWS: tile.constexpr = rows_of(BM)
    if BM > ROWS:
        rows = slot.A[:, w * ROWS:w * ROWS + ROWS] if PLAN.a_km else slot.A[w * ROWS:w * ROWS + ROWS, :]
    if PLAN.a_km and slot.A.dtype == tile.float32:
        acc = tile.mma_async(acc, load_transposed(rows), slot.B, trans_b=not PLAN.b_kn, precision="tf32",
                             accumulate=accumulate)
    else:
        acc = tile.mma_async(acc, rows, slot.B, trans_a=PLAN.a_km, trans_b=not PLAN.b_kn,
                             precision="tf32" if slot.A.dtype == tile.float32 else None, accumulate=accumulate)
    tile.mma_commit()
    return acc


@tile.jit
def first_product(ring, w, PLAN: tile.constexpr):
    """A consumer's first slot, with an accumulator that starts at zero; completed when it returns."""
    with ring.consume() as slot:
        acc = product(None, slot, w, PLAN)
        tile.mma_wait(0)
    return acc


@tile.jit
def add_products(acc, ring, w, steps, PLAN: tile.constexpr, MIXED: tile.constexpr = False,
                 FRESH: tile.constexpr = False):
    """A consumer: adds the products of `steps` slots to `acc`. With `behind` a product is still in flight while the
    next slot is awaited. Tiles with a single consumer need this to keep the tensor cores busy; others have another
    consumer for that, and need every free slot. With `behind`, `MIXED` operands (those of `load_transposed`) alternate
    between two sets of registers. `FRESH`: the first product overwrites `acc`."""
    TURNS: tile.constexpr = 2 if PLAN.behind and MIXED else 1
    for i in range(steps // 2 if TURNS == 2 else steps):
        for turn in tile.static_range(TURNS):
            with ring.consume(behind=PLAN.behind) as slot:
                acc = product(acc, slot, w, PLAN, i > 0 if FRESH else True)
                tile.mma_wait(1 if PLAN.behind else 0)
    if TURNS == 2:
        for i in range(steps % 2):
            with ring.consume(behind=True) as slot:
                acc = product(acc, slot, w, PLAN)
                tile.mma_wait(0)
    tile.mma_wait(0)
    ring.release()
    return acc


@tile.jit
def multiplied_in_turn(acc, ring, w, steps, baton, PLAN: tile.constexpr):
    """A consumer's last `steps` slots, all of which fit in the ring, staggered: one consumer at a time multiplies
    them, as fast as all together would, while those before it store their results and those after it wait. Nothing
    happens if `steps` is 0."""
    if steps > 0:
        baton.take(w)
    for i in range(steps):
        with ring.consume(behind=True) as slot:
            acc = product(acc, slot, w, PLAN)
            tile.mma_wait(1)
    if steps > 0:
        baton.pass_on(w)
    tile.mma_wait(0)
    ring.release()
    return acc


@tile.jit
def zero_sums(PLAN: tile.constexpr):
    """The sums of a consumer before the first product: one tile,
    or for `add_promoted` one tile for each block of columns with a scale."""
    COLUMNS = min(PLAN.bn, BLOCK) if PLAN.promoted else PLAN.bn
    return (tile.zeros((rows_of(PLAN.bm), COLUMNS), PLAN.sums),) * (PLAN.bn // COLUMNS)


@tile.jit
def add_slots(sums, ring, w, first, stop, scales, PLAN: tile.constexpr, MIXED: tile.constexpr,
              FRESH: tile.constexpr = False):
    """A consumer: adds the products of slots `first` to `stop` along k to `sums`. `scales` as in `add_promoted`."""
    if PLAN.promoted:
        return add_promoted(sums, ring, w, first, stop, scales, PLAN)
    return (add_products(sums[0], ring, w, stop - first, PLAN, MIXED, FRESH),)


@tile.jit
def add_promoted(sums, ring, w, first, stop, scales, PLAN: tile.constexpr):
    """A consumer of float8 products, in whose accumulators the tensor cores keep fewer bits than float32: threads add
    the products of each slot, of 128 along k, to `sums` (tiles of neighbouring columns), and scale them before if
    there are block scales. `scales` are those of A and of B, and the row and column where the sums begin.

    Threads load the scales from global memory to registers, under the products of the slot before. In shared memory,
    where TMA would overwrite them, each slot would need a proxy fence before its release."""
    COLUMNS = sums[0].shape[1]
    following = factors(scales, first, len(sums), COLUMNS, PLAN.blocks)
    for i in range(first, stop):
        with ring.consume() as slot:
            a, b = following
            for h in tile.static_range(len(sums)):
                rows = slot.A[w * 64:w * 64 + 64, :] if slot.A.shape[0] > 64 else slot.A
                part = tile.mma_async(None, rows, slot.B[h * COLUMNS:h * COLUMNS + COLUMNS, :], trans_b=True)
                tile.mma_commit()
                if h == 0:
                    following = factors(scales, i + 1, len(sums), COLUMNS, PLAN.blocks)
                if h == len(sums) - 1:
                    ring.peek()
                tile.mma_wait(0)
                if h == len(sums) - 1:
                    slot.release()
                if PLAN.blocks:
                    part = apply_scales(part, a, b[h], PLAN.blocks)
                sums = (*sums[:h], sums[h] + part, *sums[h + 1:])
    return sums


@tile.jit
def factors(scales, k, PARTS: tile.constexpr, COLUMNS: tile.constexpr, BLOCKS: tile.constexpr):
    """A consumer's scales at slot `k`: those of its rows of A, and a tuple with those of each of PARTS times COLUMNS
    columns of B; zeros beyond the last slot."""
    if not BLOCKS:
        return (), ()
    SA, SB, row, column = scales
    b = ()
    for h in tile.static_range(PARTS):
        b = (*b, load_scales(SB, column + h * COLUMNS, k, COLUMNS, BLOCKS[1]))
    return load_scales(SA, row, k, 64, BLOCKS[0]), b


@tile.jit
def load_scales(S, row, k, extent: tile.constexpr, BY_ROW: tile.constexpr):
    """The scales at slot `k` for `extent` rows of an operand from `row` on, of those given as [k / 128, rows] or
    [rows / 128, k / 128]."""
    return tile.load(S[k, row:row + extent]) if BY_ROW else tile.load(S[row // BLOCK, k])


@tile.jit
def apply_scales(part, a, b, BLOCKS: tile.constexpr):
    """Sums times the scales of their rows and columns."""
    if BLOCKS[0] and BLOCKS[1]:
        return part * a[:, None] * b[None, :]
    both = a * b
    if BLOCKS[0]:
        both = both[:, None]
    elif BLOCKS[1]:
        both = both[None, :]
    return part * both


@tile.jit
def one_loop(PLAN: tile.constexpr):
    """Whether the first slot's product is in the same loop as the others, with a run-time condition for its zero
    accumulator: each wgmma of 256 columns in the code costs the assembler 10 ms. The accumulator then keeps its
    registers until the next tile, with which a user's epilogue, or three consumers (which have fewer registers),
    would spill."""
    return PLAN.bm < 192 and not (PLAN.behind or PLAN.promoted) and PLAN.epilogue.function is None


@tile.jit
def by_thread(sums):
    """The sums of 64 rows as a vector in which each of 128 threads has 4 adjacent elements at a time, from the
    registers that it holds. wgmma gives thread ``32 w + 4 r + c`` the elements 2 c and 2 c + 1 of each 8 columns in
    the rows 16 w + r and 16 w + r + 8 (PTX ISA, "wgmma", the D fragment)."""
    return tile.reshape(tile.transpose(tile.reshape(sums, (4, 2, 8, sums.shape[1] // 8, 4, 2)), (3, 0, 2, 4, 1, 5)),
                        (64 * sums.shape[1],))


@tile.jit
def by_row(values):
    """The inverse of `by_thread`."""
    eights = values.shape[0] // 512
    return tile.reshape(tile.transpose(tile.reshape(values, (eights, 4, 8, 4, 2, 2)), (1, 4, 2, 0, 3, 5)),
                        (64, eights * 8))
