"""Persistent copies of an array, for the benchmark of copies: one thread with TMA both ways, or all threads with cp.async.

The CTAs take the tiles in order from a counter in memory, so that what is read and written at a time stays within a few
hundred kilobytes. With a fixed share of the tiles each, CTAs drift apart, and memory serves them more slowly.
"""

from __future__ import annotations

import tilejit as tile


@tile.jit(num_warps=1)
def through_tma(A, B, counter, ROWS: tile.constexpr, COLUMNS: tile.constexpr, STAGES: tile.constexpr, AHEAD: tile.constexpr,
                KEPT: tile.constexpr = None):
    """Copy the [n, COLUMNS] array A to B, tiles of ROWS rows through STAGES slots of shared memory.

    Loads run AHEAD tiles in front of the stores; a slot is filled again when the store out of it has read it. `counter` is
    one uint32, 0 before and after. KEPT is the L2 policy of what is loaded.
    """
    tiles = tile.cdiv(A.shape[0], ROWS)
    slots = tile.alloc((STAGES, ROWS, COLUMNS), A.dtype)
    full = tile.mbarrier(count=1, n=STAGES)
    with tile.elect():
        i, loaded = 0, 0
        taken = (tile.next_tile(counter[0], tiles),) * (AHEAD + 1)     # the tiles under way, and the next one to load
        while i < loaded + AHEAD:
            following = taken[AHEAD]
            if following < tiles:
                loaded = i + 1
                tile.bulk_wait(STAGES - AHEAD - 1, read=True)
                full[i % STAGES].arrive_expect_tx(slots[0].nbytes)
                row = following * ROWS
                tile.copy_async(slots[i % STAGES], A[row:row + ROWS, 0:COLUMNS], mbar=full[i % STAGES], cache=KEPT)
                following = tile.next_tile(counter[0], tiles)
            if i >= AHEAD:
                slot = (i - AHEAD) % STAGES
                row = tile.maximum(taken[0], 0) * ROWS
                full[slot].wait(phase=(i - AHEAD) // STAGES)
                tile.copy_async(B[row:row + ROWS, 0:COLUMNS], slots[slot])
                tile.bulk_commit()
            taken = (*taken[1:], following)
            i += 1
        tile.bulk_wait(0)


@tile.jit
def through_ldgsts(A, B, counter, ROWS: tile.constexpr, COLUMNS: tile.constexpr, STAGES: tile.constexpr):
    """Copy the [n, COLUMNS] array A to B, tiles of ROWS rows; each thread reads back what it has copied itself."""
    tiles = tile.cdiv(A.shape[0], ROWS)
    slots = tile.alloc((STAGES, ROWS, COLUMNS), A.dtype)
    i, loaded = 0, 0
    taken = (tile.next_tile(counter[0], tiles),) * STAGES
    while i < loaded + STAGES - 1:
        following = taken[STAGES - 1]
        if following < tiles:
            loaded = i + 1
            tile.copy_async(slots[i % STAGES], A[following * ROWS:following * ROWS + ROWS, 0:COLUMNS])
            following = tile.next_tile(counter[0], tiles)
        tile.cp_async_commit()
        if i >= STAGES - 1:
            tile.cp_async_wait(STAGES - 1)
            row = taken[0] * ROWS
            tile.copy(B[row:row + ROWS, 0:COLUMNS], slots[(i + 1) % STAGES])
        taken = (*taken[1:], following)
        i += 1
    tile.cp_async_wait(0)


@tile.jit
def by_vectors(A, B, ROWS: tile.constexpr, COLUMNS: tile.constexpr):
    """The same through registers: a tile a CTA."""
    row = tile.program_id(0) * ROWS
    tile.copy(B[row:row + ROWS, 0:COLUMNS], A[row:row + ROWS, 0:COLUMNS])
