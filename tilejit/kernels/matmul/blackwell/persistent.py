"""A matrix product on Blackwell (sm_100a, sm_103a), whose sums are in tensor memory.

One thread fills a ring of shared-memory slots by TMA, one thread multiplies them by tcgen05, and a warpgroup loads
the sums from tensor memory and stores them. Two accumulators alternate, if tensor memory has room for both, so that
the products of the next tile run while the last one's sums are stored. The two CTAs of a pair multiply a tile of
twice the rows together: each loads its own rows of A and half of the columns of B, and the even one starts the
products of both."""

from __future__ import annotations

import tilejit as tile

from ..epilogue import Finishing, box, finish_sums, parts_sent_since, send
from ..hopper.mainloop import matrix_and_row
from .mainloop import MULTIPLIER, PRODUCER, ROWS, factors, fill, multiply, slots


@tile.jit
def my_tiles(down, across, ORDER: tile.constexpr, PAIR: tile.constexpr):
    """The tiles of this CTA, or of its pair, one after the other."""
    if PAIR:
        return tile.tile_order(down, across, *ORDER, first=tile.program_id(0) // 2, stride=tile.num_programs(0) // 2)
    return tile.tile_order(down, across, *ORDER)


@tile.jit
def persistent(A, B, C, SA, SB, E0, E1, E2, E3, PLAN: tile.constexpr):
    """``C = A @ B``, with A as [M, K] or [K, M] and B as [N, K] or [K, N], each one matrix or several: tiles of 128
    rows, or 256 for a pair of CTAs. With `block`, SA and SB hold a factor for every `block` elements along k, as [M /
    128, K / (4 block), UNIT] and [N / 128, ..], rounded up. `PLAN` is a `BlackwellPersistentConstants`."""
    M, N, K = C.shape[-2], C.shape[-1], A.shape[-2 if PLAN.a_km else -1]
    GROUP = 2 if PLAN.pair else 1
    COLUMNS = PLAN.bn // GROUP  # columns of B that this CTA loads
    down, across, steps = tile.cdiv(M, ROWS * GROUP), tile.cdiv(N, PLAN.bn), tile.cdiv(K, PLAN.bk)
    rows = down * C.shape[0] if len(C.shape) == 3 else down
    ring = slots(A, B, SA, SB, GROUP, PLAN)
    fA, fB = factors(SA, ROWS, GROUP, PLAN), factors(SB, PLAN.bn, GROUP, PLAN)
    sums = tile.ring(PLAN.places, D=((ROWS, PLAN.bn), PLAN.sums), filled="products", cta_group=GROUP)
    if PLAN.by_tma:
        staged = PLAN.buffers, ROWS, PLAN.width
        stage = tile.alloc(staged, C.dtype,
                           layout=tile.swizzled(C.dtype, staged, min(PLAN.width * C.dtype.nbytes, 128)))
    how = Finishing(SA, SB, (E0, E1, E2, E3)[:PLAN.epilogue.extras], PLAN.epilogue)
    half = tile.cta_rank() % 2 if PLAN.pair else 0
    if PLAN.dependent:
        tile.griddepcontrol_wait()
        tile.griddepcontrol_launch_dependents()
    with tile.warp(PRODUCER):
        with tile.elect():
            for i, n in my_tiles(rows, across, PLAN.order, PLAN.pair):
                z, m = matrix_and_row(i, down, len(C.shape) == 3)
                fill(ring, A, B, SA, SB, z, (m * GROUP + half) * ROWS, n * PLAN.bn + half * COLUMNS, n * PLAN.bn, 0,
                     steps, PLAN)
    if half == 0:
        with tile.warp(MULTIPLIER):
            with tile.elect():
                for i, n in my_tiles(rows, across, PLAN.order, PLAN.pair):
                    multiply(ring, sums, fA, fB, steps, PLAN)
    with tile.warpgroup(0):
        for i, n in my_tiles(rows, across, PLAN.order, PLAN.pair):
            z, m = matrix_and_row(i, down, len(C.shape) == 3)
            row = (m * GROUP + half) * ROWS
            with sums.consume() as acc:
                for part in tile.static_range(PLAN.bn // PLAN.width):
                    column = n * PLAN.bn + part * PLAN.width
                    values = tile.load(acc.D[:, part * PLAN.width:part * PLAN.width + PLAN.width])
                    if part == PLAN.bn // PLAN.width - 1:
                        acc.release()
                    values = finish_sums(values, z, row, column, how)
                    if PLAN.by_tma:
                        send(values, stage[part % PLAN.buffers], box(C, z, row, column, (ROWS, PLAN.width)),
                             parts_sent_since(part, PLAN.bn // PLAN.width, PLAN.buffers))
                    else:
                        tile.store(box(C, z, row, column, (ROWS, PLAN.width)), values)
        if PLAN.by_tma:
            with tile.elect():
                tile.bulk_wait(0)


__all__ = ["persistent"]
