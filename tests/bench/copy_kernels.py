"""Persistent copies of an array, for the benchmark of copies: one thread with TMA both ways, or all threads with cp.async."""

from __future__ import annotations

import tilejit as tile


@tile.jit(num_warps=1)
def through_tma(A, B, ROWS: tile.constexpr, COLUMNS: tile.constexpr, STAGES: tile.constexpr, AHEAD: tile.constexpr):
    """Copy the [n, COLUMNS] array A to B, tiles of ROWS rows through STAGES slots of shared memory.

    Loads run AHEAD tiles in front of the stores; a slot is filled again when the store out of it has read it.
    """
    first, stride = tile.program_id(0), tile.num_programs(0)
    trips = tile.cdiv(tile.maximum(tile.cdiv(A.shape[0], ROWS) - first, 0), stride)
    slots = tile.alloc((STAGES, ROWS, COLUMNS), A.dtype)
    full = tile.mbarrier(count=1, n=STAGES)
    with tile.elect():
        for i in tile.static_range(AHEAD):
            if i < trips:
                row = (first + i * stride) * ROWS
                full[i].arrive_expect_tx(slots[0].nbytes)
                tile.copy_async(slots[i], A[row:row + ROWS, 0:COLUMNS], mbar=full[i], cache="evict_first")
        for i in range(trips):
            slot = i % STAGES
            row = (first + i * stride) * ROWS
            full[slot].wait(phase=i // STAGES)
            tile.copy_async(B[row:row + ROWS, 0:COLUMNS], slots[slot], cache="evict_first")
            tile.bulk_commit()
            ahead = i + AHEAD
            if ahead < trips:
                slot = ahead % STAGES
                row = (first + ahead * stride) * ROWS
                tile.bulk_wait(STAGES - AHEAD, read=True)
                full[slot].arrive_expect_tx(slots[0].nbytes)
                tile.copy_async(slots[slot], A[row:row + ROWS, 0:COLUMNS], mbar=full[slot], cache="evict_first")
        tile.bulk_wait(0)


@tile.jit
def through_ldgsts(A, B, ROWS: tile.constexpr, COLUMNS: tile.constexpr, STAGES: tile.constexpr):
    """Copy the [n, COLUMNS] array A to B, tiles of ROWS rows; each thread reads back what it has copied itself."""
    first, stride = tile.program_id(0), tile.num_programs(0)
    trips = tile.cdiv(tile.maximum(tile.cdiv(A.shape[0], ROWS) - first, 0), stride)
    slots = tile.alloc((STAGES, ROWS, COLUMNS), A.dtype)
    for i in tile.static_range(STAGES - 1):
        row = (first + i * stride) * ROWS
        tile.copy_async(slots[i], A[row:row + ROWS, 0:COLUMNS])
        tile.cp_async_commit()
    for i in range(trips):
        ahead = i + STAGES - 1
        row = (first + ahead * stride) * ROWS
        tile.copy_async(slots[ahead % STAGES], A[row:row + ROWS, 0:COLUMNS])
        tile.cp_async_commit()
        tile.cp_async_wait(STAGES - 1)
        row = (first + i * stride) * ROWS
        tile.copy(B[row:row + ROWS, 0:COLUMNS], slots[i % STAGES])
    tile.cp_async_wait(0)


@tile.jit
def by_vectors(A, B, ROWS: tile.constexpr, COLUMNS: tile.constexpr):
    """The same through registers: a tile a CTA."""
    row = tile.program_id(0) * ROWS
    tile.copy(B[row:row + ROWS, 0:COLUMNS], A[row:row + ROWS, 0:COLUMNS])
