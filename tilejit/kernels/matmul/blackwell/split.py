"""Split-K matrix product on Blackwell, for few tiles.

The CTAs of a cluster share one tile's slots of k and add up their partial sums.
"""

from __future__ import annotations

import tilejit as tile

from ..epilogue import Finishing, box, finish_sums
from .mainloop import MULTIPLIER, PRODUCER, ROWS, factors, fill, multiply, slots


@tile.jit
def split(A, B, C, SA, SB, E0, E1, E2, E3, PLAN: tile.constexpr):
    """The same product for few tiles, one for each cluster of `splits` CTAs. CTA `rank` multiplies its part of the
    slots of k, then adds up its share of the columns over all CTAs, in the order of their ranks. `PLAN` is a
    `BlackwellSplitConstants`."""
    down, steps = tile.cdiv(C.shape[-2], ROWS), tile.cdiv(A.shape[-2 if PLAN.a_km else -1], PLAN.bk)
    t, rank, z = tile.program_id(0) // PLAN.splits, tile.cta_rank(), tile.program_id(1)
    m, n = t % down * ROWS, t // down * PLAN.bn
    first, stop = rank * steps // PLAN.splits, (rank + 1) * steps // PLAN.splits
    ring = slots(A, B, SA, SB, 1, PLAN)
    fA, fB = factors(SA, ROWS, 1, PLAN), factors(SB, PLAN.bn, 1, PLAN)
    sums = tile.ring(1, D=((ROWS, PLAN.bn), PLAN.sums), filled="products")
    PART = PLAN.bn // PLAN.splits
    sent, parts = tile.alloc((PLAN.splits, ROWS, PART), PLAN.sums), tile.alloc((PLAN.splits, ROWS, PART), PLAN.sums)
    arrived = tile.mbarrier()
    how = Finishing(SA, SB, (E0, E1, E2, E3)[:PLAN.epilogue.extras], PLAN.epilogue)
    tile.griddepcontrol_wait()
    tile.griddepcontrol_launch_dependents()
    with tile.warp(PRODUCER):
        with tile.elect():
            fill(ring, A, B, SA, SB, z, m, n, n, first, stop, PLAN)
    with tile.warp(MULTIPLIER):
        with tile.elect():
            multiply(ring, sums, fA, fB, stop - first, PLAN)
    with tile.warpgroup(0):
        with sums.consume() as acc:
            for s in tile.static_range(PLAN.splits):
                values = tile.zeros((ROWS, PART), PLAN.sums)
                if stop > first:
                    values = tile.load(acc.D[:, s * PART:(s + 1) * PART])
                if s == rank:
                    tile.store(parts[s], values)
                else:
                    tile.store(sent[s], values)
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            arrived.arrive_expect_tx((PLAN.splits - 1) * ROWS * PART * 4)
            for peer in tile.static_range(PLAN.splits):
                if peer != rank:
                    tile.copy_async(parts.peer(peer)[rank], sent[peer], mbar=arrived)
        arrived.wait(phase=0)
        total = tile.load(parts[0])
        for s in tile.static_range(1, PLAN.splits):
            total = total + tile.load(parts[s])
        row, column = m, n + rank * PART
        tile.store(box(C, z, row, column, (ROWS, PART)), finish_sums(total, z, row, column, how))


__all__ = ["split"]
