"""A matrix product on Blackwell for few tiles: the CTAs of a cluster share one tile's slots of k and add up their partial sums."""

from __future__ import annotations

import tilejit as tile

from ..epilogue import box, finished
from .mainloop import MULTIPLIER, PRODUCER, ROWS, factors, fill, multiply, slots


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


__all__ = ["split"]
