"""A matrix product on Blackwell (sm_100a, sm_103a), whose sums are in tensor memory.

One thread fills a ring of shared-memory slots by TMA, one thread multiplies them by tcgen05, and a warpgroup loads the sums from tensor memory and
stores them. Two accumulators alternate, if tensor memory has room for both, so that the products of the next tile run while the last one's sums
are stored. The two CTAs of a pair multiply a tile of twice the rows together: each loads its own rows of A and half of the columns of B, and the
even one starts the products of both."""

from __future__ import annotations

import tilejit as tile

from ..epilogue import box, finished, newer, send
from ..hopper.mainloop import matrix_and_row
from .mainloop import MULTIPLIER, PRODUCER, ROWS, factors, fill, multiply, slots


@tile.jit
def my_tiles(down, across, ORDER: tile.constexpr, PAIR: tile.constexpr):
    """The tiles of this CTA, or of its pair, one after the other."""
    if PAIR:
        return tile.tile_order(down, across, *ORDER, first=tile.program_id(0) // 2, stride=tile.num_programs(0) // 2)
    return tile.tile_order(down, across, *ORDER)


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


__all__ = ["persistent"]
