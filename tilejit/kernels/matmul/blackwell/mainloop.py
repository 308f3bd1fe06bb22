"""The main loop of a matrix product on Blackwell: TMA loads and tcgen05 products.

One thread fills a ring of slots by TMA, and the products read the slots.
"""

from __future__ import annotations

import tilejit as tile
from tilejit import TileLayout

from ..hopper.mainloop import operand

ROWS = 128             # of each CTA's sums: one for each lane of tensor memory
# bytes of the factors of 128 rows and 4 blocks along k: 16 bytes each for the rows r, r + 32, r + 64 and r + 96
UNIT = 512
PRODUCER, MULTIPLIER = 4, 5  # warps; warps 0 to 3 are the warpgroup that stores
NUM_WARPS = 6


@tile.jit
def fill(ring, A, B, SA, SB, z, m, n, column, first, stop, PLAN: tile.constexpr):
    """The producer: loads slots `first` to `stop` along k of the rows from `m` and the columns from `n`, and with
    `block` their factors: those of the rows, and of all columns of the tile, which begins at `column`."""
    GROUP = 2 if PLAN.pair else None
    ROUNDED = "tf32" if A.dtype == tile.float32 else None  # TMA rounds to nearest, the tensor cores would truncate
    for i in range(first, stop):
        with ring.produce() as slot:
            tile.copy_async(slot.A, operand(A, z, m, i * PLAN.bk, slot.A.shape, PLAN.a_km), mbar=slot.full,
                            precision=ROUNDED, cta_group=GROUP, prefetch_map=True)
            tile.copy_async(slot.B, operand(B, z, n, i * PLAN.bk, slot.B.shape, PLAN.b_kn), mbar=slot.full,
                            precision=ROUNDED, cta_group=GROUP, prefetch_map=True)
            if PLAN.block:
                tile.copy_async(slot.SA, units(SA, m, i, slot.SA.shape), mbar=slot.full, cta_group=GROUP,
                                prefetch_map=True)
                tile.copy_async(slot.SB, units(SB, column, i, slot.SB.shape), mbar=slot.full, cta_group=GROUP,
                                prefetch_map=True)


@tile.jit
def units(S, row, i, shape):
    """The units of factors for slot `i`, of rows from `row` on."""
    first, along = row // ROWS, i * shape[1]
    return S[first:first + shape[0], along:along + shape[1], 0:UNIT]


@tile.jit
def factors(S, ROWS_OF: tile.constexpr, GROUP: tile.constexpr, PLAN: tile.constexpr):
    """Tensor memory for a slot's factors of ROWS_OF rows; None without `block`."""
    if PLAN.block:
        return tile.alloc((ROWS_OF, PLAN.bk // PLAN.block), S.dtype, scope="tmem",
                          layout=tile.scale_layout(ROWS_OF, PLAN.bk // PLAN.block), cta_group=GROUP)
    return None


@tile.jit
def row_major(rows: tile.constexpr, along: tile.constexpr):
    """The layout of `rows` by `along` units of factors in a slot."""
    return TileLayout(((rows, along * UNIT, "m"), (along, UNIT, "m"), (UNIT, 1, "m")))


@tile.jit
def by_block(staged, to):
    """Copy a slot's units of factors to tensor memory, for the products that follow."""
    R, U = staged.shape[0], staged.shape[1]
    rows = TileLayout(((R, U * UNIT, "m"), (4, 4, "m"), (32, 16, "m"), (U, UNIT, "m"), (4, 1, "m")))
    tile.copy_async(to, staged.view(shape=(R * ROWS, U * 4), layout=rows))


@tile.jit
def multiply(ring, sums, fA, fB, steps, PLAN: tile.constexpr):
    """The sums of one tile, over `steps` slots."""
    with sums.produce() as acc:
        for i in range(steps):
            with ring.consume() as slot:
                if PLAN.block:
                    by_block(slot.SA, fA)
                    by_block(slot.SB, fB)
                    tile.mma_async(acc.D, slot.A, slot.B, trans_a=PLAN.a_km, trans_b=not PLAN.b_kn, accumulate=i > 0,
                                   scale_a=fA, scale_b=fB, block=PLAN.block)
                else:
                    tile.mma_async(acc.D, slot.A, slot.B, trans_a=PLAN.a_km, trans_b=not PLAN.b_kn, accumulate=i > 0,
                                   precision="tf32" if slot.A.dtype == tile.float32 else None)


@tile.jit
def slots(A, B, SA, SB, GROUP: tile.constexpr, PLAN: tile.constexpr):
    """The ring: each slot has elements along k of the CTA's rows of A and columns of B, and the factors of these rows
    and of all columns of the tile."""
    COLUMNS = PLAN.bn // GROUP  # columns of B that this CTA loads
    a, b = (((PLAN.bk, ROWS) if PLAN.a_km else (ROWS, PLAN.bk), A.dtype),
            ((PLAN.bk, COLUMNS) if PLAN.b_kn else (COLUMNS, PLAN.bk), B.dtype))
    if PLAN.block:
        across, along = PLAN.bn // ROWS, PLAN.bk // PLAN.block // 4
        return tile.ring(PLAN.stages, A=a, B=b, SA=((1, along, UNIT), SA.dtype, row_major(1, along)),
                         SB=((across, along, UNIT), SB.dtype, row_major(across, along)), cta_group=GROUP)
    return tile.ring(PLAN.stages, A=a, B=b, cta_group=GROUP)
