"""A small example program for each path of copy_async, shared by the tests of plans, PTX, the simulator and the GPU."""

from __future__ import annotations

import tilejit as tile


@tile.jit
def staged(A, B, ROWS: tile.constexpr = 128, COLUMNS: tile.constexpr = 32):
    """ldgsts: 128 threads load a tile, commit, wait, and store it."""
    sA = tile.alloc((ROWS, COLUMNS), A.dtype)
    tile.copy_async(sA, A[0:ROWS, 0:COLUMNS])
    tile.cp_async_commit()
    tile.cp_async_wait(0)
    tile.sync()
    tile.copy(B[0:ROWS, 0:COLUMNS], sA)


@tile.jit(num_warps=1, cluster=(2, 1, 1))
def handed_over(A, B, ROWS: tile.constexpr = 128, COLUMNS: tile.constexpr = 64):
    """dsmem: CTA 0 stages a tile and copies it to CTA 1, which waits for its bytes and stores it."""
    mine, theirs = tile.alloc((ROWS, COLUMNS), A.dtype), tile.alloc((ROWS, COLUMNS), A.dtype)
    bar = tile.mbarrier(count=1)
    if tile.cta_rank() == 0:
        tile.copy(mine, A[0:ROWS, 0:COLUMNS])
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(theirs.peer(1), mine, mbar=bar)
    else:
        with tile.elect():
            bar.arrive_expect_tx(theirs.nbytes)
        bar.wait(phase=0)
        tile.copy(B[0:ROWS, 0:COLUMNS], theirs)


@tile.jit(num_warps=1)
def boxed(A, B, ROWS: tile.constexpr = 8, COLUMNS: tile.constexpr = 256, MODE: tile.constexpr = 128):
    """tma load: one thread issues the copy and then announces its bytes; all wait for them and store the tile."""
    sA = tile.alloc((ROWS, COLUMNS), A.dtype, layout=tile.swizzled(A.dtype, (ROWS, COLUMNS), MODE))
    bar = tile.mbarrier(count=1)
    with tile.elect():
        tile.copy_async(sA, A[0:ROWS, 0:COLUMNS], mbar=bar)
        bar.arrive_expect_tx(sA.nbytes)
    bar.wait(phase=0)
    tile.copy(B[0:ROWS, 0:COLUMNS], sA)


@tile.jit(num_warps=1)
def boxed_out(A, B, ROWS: tile.constexpr = 8, COLUMNS: tile.constexpr = 256, MODE: tile.constexpr = 128):
    """tma store: all threads write the tile to shared memory, and one issues the store."""
    sA = tile.alloc((ROWS, COLUMNS), A.dtype, layout=tile.swizzled(A.dtype, (ROWS, COLUMNS), MODE))
    tile.copy(sA, A[0:ROWS, 0:COLUMNS])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(B[0:ROWS, 0:COLUMNS], sA)
        tile.bulk_commit()
        tile.bulk_wait(0)


S, R, axis = tile.S, tile.R, tile.axis
REPEATED = S[(32, 16) : (1 @ axis.TLane, 1 @ axis.TCol)] + R[4 : 32 @ axis.TLane]


@tile.jit
def repeated(A, B, LAYOUT: tile.constexpr = REPEATED):
    """tcgen05_cp: one thread copies 32 rows of 16 bytes to tensor memory, replicated to the lanes of each warp; they are read back."""
    sA = tile.alloc((32, 16), A.dtype)
    tmem = tile.alloc((32, 16), A.dtype, scope="tmem", layout=LAYOUT)
    bar = tile.mbarrier(count=1)
    tile.copy(sA, A[0:32, 0:16])
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(tmem, sA)
        tile.tcgen05_commit(bar)
    bar.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(B[0:32, 0:16], tile.load(tmem))
