"""Persistent copies of an array, for the benchmark of copies: by one thread with TMA in both directions, or by all threads with cp.async.

The CTAs take the tiles in order from a counter in memory, so that the addresses accessed at any time stay within a few
hundred kilobytes. With a fixed share of the tiles per CTA, the CTAs drift apart, and memory is slower.
"""

from __future__ import annotations

import tilejit as tile


@tile.jit(num_warps=1)
def through_tma(A, B, counter, ROWS: tile.constexpr, COLUMNS: tile.constexpr, STAGES: tile.constexpr, AHEAD: tile.constexpr,
                KEPT: tile.constexpr = None):
    """Copy the [n, COLUMNS] array A to B, in tiles of ROWS rows through STAGES slots of shared memory.

    Loads run AHEAD tiles ahead of the stores; a slot is filled again once the store from it has read it. `counter` is one
    uint32, 0 before and after. KEPT is the L2 policy of the loads.
    """
    tiles = tile.cdiv(A.shape[0], ROWS)
    slots = tile.alloc((STAGES, ROWS, COLUMNS), A.dtype)
    full = tile.mbarrier(count=1, n=STAGES)
    with tile.elect():
        i, loaded = 0, 0
        taken = (tile.next_tile(counter[0], tiles),) * (AHEAD + 1)     # the tiles in flight, and the next one to load
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
    """Copy the [n, COLUMNS] array A to B, in tiles of ROWS rows; each thread reads from shared memory what it copied there itself."""
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
    """The same through registers, with one tile per CTA."""
    row = tile.program_id(0) * ROWS
    tile.copy(B[row:row + ROWS, 0:COLUMNS], A[row:row + ROWS, 0:COLUMNS])
