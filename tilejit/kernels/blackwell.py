"""Matrix products on Blackwell (sm_100a, sm_103a), whose sums are in tensor memory.

In `persistent` one thread fills a ring of shared-memory slots by TMA, one thread multiplies them by tcgen05, and a warpgroup loads the sums
from tensor memory and stores them. Two accumulators alternate, if tensor memory has room for both, so that the products of the next tile
run while the last one's sums are stored. With PAIR the two CTAs of a cluster multiply a tile of twice the rows together: each loads its own
rows of A and half of the columns of B, and the even one starts the products of both. In `split` the CTAs of a cluster share one tile's
slots of k and add up their partial sums."""

from __future__ import annotations

import tilejit as tile
from tilejit import TileLayout

from .finish import box, finished, newer, send
from .mainloop import matrix_and_row, operand

ROWS = 128             # of each CTA's sums: one for each lane of tensor memory
UNIT = 512             # bytes of the factors of 128 rows and 4 blocks along k: 16 bytes each for the rows r, r + 32, r + 64 and r + 96
PRODUCER, MULTIPLIER = 4, 5  # warps; warps 0 to 3 are the warpgroup that stores
NUM_WARPS = 6


@tile.jit
def my_tiles(down, across, ORDER: tile.constexpr, PAIR: tile.constexpr):
    """The tiles of this CTA, or of its pair, one after the other."""
    if PAIR:
        return tile.tile_order(down, across, *ORDER, first=tile.program_id(0) // 2, stride=tile.num_programs(0) // 2)
    return tile.tile_order(down, across, *ORDER)


@tile.jit
def fill(ring, A, B, SA, SB, z, m, n, column, first, stop, BK: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr, BLOCK: tile.constexpr,
         PAIR: tile.constexpr):
    """The producer: loads slots `first` to `stop` along k of the rows from `m` and the columns from `n`, and with BLOCK their factors:
    those of the rows, and of all columns of the tile, which begins at `column`."""
    GROUP = 2 if PAIR else None
    ROUNDED = "tf32" if A.dtype == tile.float32 else None  # TMA rounds to nearest, the tensor cores would truncate
    for i in range(first, stop):
        with ring.produce() as slot:
            tile.copy_async(slot.A, operand(A, z, m, i * BK, slot.A.shape, A_KM), mbar=slot.full, precision=ROUNDED, cta_group=GROUP,
                            prefetch_map=True)
            tile.copy_async(slot.B, operand(B, z, n, i * BK, slot.B.shape, B_KN), mbar=slot.full, precision=ROUNDED, cta_group=GROUP,
                            prefetch_map=True)
            if BLOCK:
                tile.copy_async(slot.SA, units(SA, m, i, slot.SA.shape), mbar=slot.full, cta_group=GROUP, prefetch_map=True)
                tile.copy_async(slot.SB, units(SB, column, i, slot.SB.shape), mbar=slot.full, cta_group=GROUP, prefetch_map=True)


@tile.jit
def units(S, row, i, shape):
    """The units of factors for slot `i`, of rows from `row` on."""
    first, along = row // ROWS, i * shape[1]
    return S[first:first + shape[0], along:along + shape[1], 0:UNIT]


@tile.jit
def factors(S, ROWS_OF: tile.constexpr, BK: tile.constexpr, BLOCK: tile.constexpr, GROUP: tile.constexpr):
    """Tensor memory for a slot's factors of ROWS_OF rows; None without BLOCK."""
    if BLOCK:
        return tile.alloc((ROWS_OF, BK // BLOCK), S.dtype, scope="tmem", layout=tile.scale_layout(ROWS_OF, BK // BLOCK), cta_group=GROUP)
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
def multiply(ring, sums, fA, fB, steps, A_KM: tile.constexpr, B_KN: tile.constexpr, BLOCK: tile.constexpr):
    """The sums of one tile, over `steps` slots."""
    with sums.produce() as acc:
        for i in range(steps):
            with ring.consume() as slot:
                if BLOCK:
                    by_block(slot.SA, fA)
                    by_block(slot.SB, fB)
                    tile.mma_async(acc.D, slot.A, slot.B, trans_a=A_KM, trans_b=not B_KN, accumulate=i > 0, scale_a=fA, scale_b=fB, block=BLOCK)
                else:
                    tile.mma_async(acc.D, slot.A, slot.B, trans_a=A_KM, trans_b=not B_KN, accumulate=i > 0,
                                   precision="tf32" if slot.A.dtype == tile.float32 else None)


@tile.jit
def slots(STAGES: tile.constexpr, A, B, SA, SB, BN: tile.constexpr, BK: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr,
          BLOCK: tile.constexpr, GROUP: tile.constexpr):
    """The ring: each slot has BK elements along k of the CTA's rows of A and columns of B, and the factors of these rows and of all BN
    columns."""
    COLUMNS = BN // GROUP  # columns of B that this CTA loads
    a, b = ((BK, ROWS) if A_KM else (ROWS, BK), A.dtype), ((BK, COLUMNS) if B_KN else (COLUMNS, BK), B.dtype)
    if BLOCK:
        across, along = BN // ROWS, BK // BLOCK // 4
        return tile.ring(STAGES, A=a, B=b, SA=((1, along, UNIT), SA.dtype, row_major(1, along)),
                         SB=((across, along, UNIT), SB.dtype, row_major(across, along)), cta_group=GROUP)
    return tile.ring(STAGES, A=a, B=b, cta_group=GROUP)


@tile.jit
def persistent(A, B, C, SA, SB, E0, E1, E2, E3, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr, ORDER: tile.constexpr,
               PAIR: tile.constexpr, A_KM: tile.constexpr, B_KN: tile.constexpr, SUMS: tile.constexpr, PLACES: tile.constexpr, WIDTH: tile.constexpr,
               BY_TMA: tile.constexpr, BUFFERS: tile.constexpr, FINISH: tile.constexpr, EXTRAS: tile.constexpr, BLOCK: tile.constexpr,
               DEPENDENT: tile.constexpr):
    """``C = A @ B``, with A as [M, K] or [K, M] (`A_KM`) and B as [N, K] or [K, N] (`B_KN`), each one matrix or several: tiles of 128 rows
    (256 with `PAIR`) by BN columns, and BK elements along k in each of STAGES slots. Tensor memory has room for the sums of PLACES tiles.
    They are loaded WIDTH columns at a time, and stored to C by TMA through BUFFERS staging buffers in turn (`BY_TMA`), or by threads. With
    `BLOCK`, SA and SB hold a factor for every BLOCK elements along k, as [M / 128, K / (4 BLOCK), UNIT] and [N / 128, ..], rounded up."""
    M, N, K = C.shape[-2], C.shape[-1], A.shape[-2 if A_KM else -1]
    GROUP = 2 if PAIR else 1
    COLUMNS = BN // GROUP  # columns of B that this CTA loads
    down, across, steps = tile.cdiv(M, ROWS * GROUP), tile.cdiv(N, BN), tile.cdiv(K, BK)
    rows = down * C.shape[0] if len(C.shape) == 3 else down
    ring = slots(STAGES, A, B, SA, SB, BN, BK, A_KM, B_KN, BLOCK, GROUP)
    fA, fB = factors(SA, ROWS, BK, BLOCK, GROUP), factors(SB, BN, BK, BLOCK, GROUP)
    sums = tile.ring(PLACES, D=((ROWS, BN), SUMS), filled="products", cta_group=GROUP)
    if BY_TMA:
        stage = tile.alloc((BUFFERS, ROWS, WIDTH), C.dtype, layout=tile.swizzled(C.dtype, (BUFFERS, ROWS, WIDTH), min(WIDTH * C.dtype.nbytes, 128)))
    extra = (E0, E1, E2, E3)[:EXTRAS]
    half = tile.cta_rank() % 2 if PAIR else 0
    if DEPENDENT:
        tile.griddepcontrol_wait()
        tile.griddepcontrol_launch_dependents()
    with tile.warp(PRODUCER):
        with tile.elect():
            for i, n in my_tiles(rows, across, ORDER, PAIR):
                z, m = matrix_and_row(i, down, len(C.shape) == 3)
                fill(ring, A, B, SA, SB, z, (m * GROUP + half) * ROWS, n * BN + half * COLUMNS, n * BN, 0, steps, BK, A_KM, B_KN, BLOCK, PAIR)
    if half == 0:
        with tile.warp(MULTIPLIER):
            with tile.elect():
                for i, n in my_tiles(rows, across, ORDER, PAIR):
                    multiply(ring, sums, fA, fB, steps, A_KM, B_KN, BLOCK)
    with tile.warpgroup(0):
        for i, n in my_tiles(rows, across, ORDER, PAIR):
            z, m = matrix_and_row(i, down, len(C.shape) == 3)
            row = (m * GROUP + half) * ROWS
            with sums.consume() as acc:
                for part in tile.static_range(BN // WIDTH):
                    column = n * BN + part * WIDTH
                    values = tile.load(acc.D[:, part * WIDTH:part * WIDTH + WIDTH])
                    if part == BN // WIDTH - 1:
                        acc.release()
                    values = finished(values, z, row, column, SA, SB, extra, FINISH)
                    if BY_TMA:
                        send(values, stage[part % BUFFERS], box(C, z, row, column, (ROWS, WIDTH)), newer(part, BN // WIDTH, BUFFERS))
                    else:
                        tile.store(box(C, z, row, column, (ROWS, WIDTH)), values)
        if BY_TMA:
            with tile.elect():
                tile.bulk_wait(0)


@tile.jit
def split(A, B, C, SA, SB, E0, E1, E2, E3, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr, SPLITS: tile.constexpr,
          A_KM: tile.constexpr, B_KN: tile.constexpr, SUMS: tile.constexpr, FINISH: tile.constexpr, EXTRAS: tile.constexpr, BLOCK: tile.constexpr):
    """The same product for few tiles, one for each cluster of SPLITS CTAs. CTA `rank` multiplies its part of the slots of k, then adds up
    its share of the columns over all CTAs, in the order of their ranks."""
    down, steps = tile.cdiv(C.shape[-2], ROWS), tile.cdiv(A.shape[-2 if A_KM else -1], BK)
    t, rank, z = tile.program_id(0) // SPLITS, tile.cta_rank(), tile.program_id(1)
    m, n = t % down * ROWS, t // down * BN
    first, stop = rank * steps // SPLITS, (rank + 1) * steps // SPLITS
    ring = slots(STAGES, A, B, SA, SB, BN, BK, A_KM, B_KN, BLOCK, 1)
    fA, fB = factors(SA, ROWS, BK, BLOCK, 1), factors(SB, BN, BK, BLOCK, 1)
    sums = tile.ring(1, D=((ROWS, BN), SUMS), filled="products")
    PART = BN // SPLITS
    sent, parts = tile.alloc((SPLITS, ROWS, PART), SUMS), tile.alloc((SPLITS, ROWS, PART), SUMS)
    arrived = tile.mbarrier()
    extra = (E0, E1, E2, E3)[:EXTRAS]
    tile.griddepcontrol_wait()
    tile.griddepcontrol_launch_dependents()
    with tile.warp(PRODUCER):
        with tile.elect():
            fill(ring, A, B, SA, SB, z, m, n, n, first, stop, BK, A_KM, B_KN, BLOCK, False)
    with tile.warp(MULTIPLIER):
        with tile.elect():
            multiply(ring, sums, fA, fB, stop - first, A_KM, B_KN, BLOCK)
    with tile.warpgroup(0):
        with sums.consume() as acc:
            for s in tile.static_range(SPLITS):
                values = tile.zeros((ROWS, PART), SUMS)
                if stop > first:
                    values = tile.load(acc.D[:, s * PART:(s + 1) * PART])
                if s == rank:
                    tile.store(parts[s], values)
                else:
                    tile.store(sent[s], values)
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            arrived.arrive_expect_tx((SPLITS - 1) * ROWS * PART * 4)
            for peer in tile.static_range(SPLITS):
                if peer != rank:
                    tile.copy_async(parts.peer(peer)[rank], sent[peer], mbar=arrived)
        arrived.wait(phase=0)
        total = tile.load(parts[0])
        for s in tile.static_range(1, SPLITS):
            total = total + tile.load(parts[s])
        row, column = m, n + rank * PART
        tile.store(box(C, z, row, column, (ROWS, PART)), finished(total, z, row, column, SA, SB, extra, FINISH))


__all__ = ["persistent", "split"]
