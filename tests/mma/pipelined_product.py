"""A matrix product in the short form: a persistent kernel around a pipelined loop, for tests and benchmarks."""

import tilejit as tile


@tile.jit(num_warps=8)
def product(A, B, C, BM: tile.constexpr = 128, BN: tile.constexpr = 256, BK: tile.constexpr = 64, STAGES: tile.constexpr = 3,
            GROUP: tile.constexpr = 16, ROLES: tile.constexpr = True):
    """``C = A @ B^T`` of A [M, K] and B [N, K]."""
    sA = tile.alloc((BM, BK), A.dtype, layout=tile.auto)
    sB = tile.alloc((BN, BK), B.dtype, layout=tile.auto)
    sC = tile.alloc((BM, BN), C.dtype, layout=tile.auto)
    tiles_m, tiles_n = tile.cdiv(A.shape[0], BM), tile.cdiv(B.shape[0], BN)
    first, stride, last = tile.program_id(0), tile.num_programs(0), (tile.cdiv(A.shape[1], BK) - 1) * BK
    for i in range(tile.cdiv(tile.maximum(tiles_m * tiles_n - first, 0), stride)):
        m, n = tile.tile_at(first + i * stride, tiles_m, tiles_n, group=GROUP)
        m, n = m * BM, n * BN
        acc = tile.zeros((BM, BN))
        for s in tile.pipelined(range(0, A.shape[1], BK), stages=STAGES, warp_specialize=ROLES):
            k = last - s if i % 2 == 1 else s  # the operands that alternating tiles share are still in L2
            tile.copy_async(sA, A[m:m + BM, k:k + BK])
            tile.copy_async(sB, B[n:n + BN, k:k + BK])
            acc = tile.dot(sA, sB, acc, trans_b=True)
        tile.store(sC, acc)
        tile.sync()
        tile.copy_async(C[m:m + BM, n:n + BN], sC).wait(read=True)
