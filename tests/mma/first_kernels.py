"""Kernels written in the simplest way, with loaded tiles that are multiplied: in an ordinary loop (`STAGES` = 0), or in a pipelined one."""

import tilejit as tile


@tile.jit
def product(A, B, C, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr = 3, ROLES: tile.constexpr = False):
    """``C = A @ B^T`` of A [M, K] and B [N, K]."""
    m, n = tile.tile_at(tile.program_id(0), tile.cdiv(C.shape[0], BM), tile.cdiv(C.shape[1], BN), group=8)
    m, n = m * BM, n * BN
    acc = tile.zeros((BM, BN))
    for k in tile.pipelined(range(0, A.shape[1], BK), stages=STAGES, warp_specialize=ROLES) if STAGES else range(0, A.shape[1], BK):
        acc = tile.dot(tile.load(A[m:m + BM, k:k + BK]), tile.load(B[n:n + BN, k:k + BK]).T, acc)
    tile.store(C[m:m + BM, n:n + BN], acc)


@tile.jit
def by_bytes(A, W, S, C, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr = 3, ROLES: tile.constexpr = False):
    """``C = A @ W^T`` with 8-bit weights and a scale for each row."""
    m, n = tile.tile_at(tile.program_id(0), tile.cdiv(C.shape[0], BM), tile.cdiv(C.shape[1], BN), group=8)
    m, n = m * BM, n * BN
    acc = tile.zeros((BM, BN))
    for k in tile.pipelined(range(0, A.shape[1], BK), stages=STAGES, warp_specialize=ROLES) if STAGES else range(0, A.shape[1], BK):
        w = tile.load(W[n:n + BN, k:k + BK])
        acc = tile.dot(tile.load(A[m:m + BM, k:k + BK]), w.to(A.dtype).T, acc)
    tile.store(C[m:m + BM, n:n + BN], acc * tile.load(S[n:n + BN])[None, :])


@tile.jit
def by_nibbles(A, W, S, C, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr = 3, ROLES: tile.constexpr = False,
               GROUP: tile.constexpr = 128):
    """``C = A @ W^T`` with 4-bit weights, two of a row per byte, and a scale for each `GROUP` along k."""
    m, n = tile.tile_at(tile.program_id(0), tile.cdiv(C.shape[0], BM), tile.cdiv(C.shape[1], BN), group=8)
    m, n = m * BM, n * BN
    acc = tile.zeros((BM, BN))
    for k in tile.pipelined(range(0, A.shape[1], BK), stages=STAGES, warp_specialize=ROLES) if STAGES else range(0, A.shape[1], BK):
        w = tile.load(W[n:n + BN, k // 2:k // 2 + BK // 2])
        b = tile.stack(((w & 15).to(A.dtype) - 8, (w >> 4).to(A.dtype) - 8), axis=-1).reshape((BN, BK))
        b *= tile.load(S[k // GROUP, n:n + BN])[:, None]
        a = tile.load(A[m:m + BM, k:k + BK])
        acc = tile.dot(a, b.T, acc)
    tile.store(C[m:m + BM, n:n + BN], acc)


@tile.jit
def by_words(A, W, S, C, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, DOWN: tile.constexpr, STAGES: tile.constexpr = 3,
             ROLES: tile.constexpr = False, GROUP: tile.constexpr = 128):
    """``C = A @ W`` of weights of 4 bits [K, N], eight of a column (`DOWN`) or of a row in a word, with a scale for each `GROUP` of k."""
    m, n = tile.tile_at(tile.program_id(0), tile.cdiv(C.shape[0], BM), tile.cdiv(C.shape[1], BN), group=8)
    m, n = m * BM, n * BN
    shifts, acc = 4 * tile.arange(8), tile.zeros((BM, BN))
    for k in tile.pipelined(range(0, A.shape[1], BK), stages=STAGES, warp_specialize=ROLES) if STAGES else range(0, A.shape[1], BK):
        if DOWN:
            words = tile.load(W[k // 8:k // 8 + BK // 8, n:n + BN])[:, None, :] >> shifts[None, :, None]
        else:
            words = tile.load(W[k:k + BK, n // 8:n // 8 + BN // 8])[:, :, None] >> shifts
        b = ((words & 15).reshape((BK, BN)) - 8).to(A.dtype) * tile.load(S[k // GROUP, n:n + BN])[None, :]
        acc = tile.dot(tile.load(A[m:m + BM, k:k + BK]), b, acc)
    tile.store(C[m:m + BM, n:n + BN], acc)


@tile.jit
def attention(Q, K, V, O, scale, BM: tile.constexpr, BN: tile.constexpr, D: tile.constexpr, STAGES: tile.constexpr = 2,
              ROLES: tile.constexpr = False):
    """Softmax in base 2 of `scale` times the products of Q [H, M, D] and K [H, N, D], multiplied by V [H, N, D]."""
    h, m = tile.program_id(1), tile.program_id(0) * BM
    q, most, total, acc = tile.load(Q[h, m:m + BM, 0:D]), tile.full((BM,), -1e30, tile.float32), tile.zeros((BM,)), tile.zeros((BM, D))
    for n in tile.pipelined(range(0, K.shape[1], BN), stages=STAGES, warp_specialize=ROLES) if STAGES else range(0, K.shape[1], BN):
        s = tile.dot(q, tile.load(K[h, n:n + BN, 0:D]).T) * scale
        new = tile.maximum(most, tile.max(s, axis=1))
        p, by = tile.exp2(s - new[:, None]), tile.exp2(most - new)
        total, most = total * by + tile.sum(p, axis=1), new
        acc = tile.dot(p.to(Q.dtype), tile.load(V[h, n:n + BN, 0:D]), acc * by[:, None])
    tile.store(O[h, m:m + BM, 0:D], acc / total[:, None])


@tile.jit
def by_indices(A, B, C, M, N, K, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr = 3,
               ROLES: tile.constexpr = False):
    """The product as in languages with pointers: with index tiles, and a mask on every load."""
    m, n = tile.tile_at(tile.program_id(0), tile.cdiv(M, BM), tile.cdiv(N, BN), group=8)
    rm, rn, rk = m * BM + tile.arange(BM), n * BN + tile.arange(BN), tile.arange(BK)
    acc = tile.zeros((BM, BN))
    for k in tile.pipelined(range(tile.cdiv(K, BK)), stages=STAGES, warp_specialize=ROLES) if STAGES else range(tile.cdiv(K, BK)):
        a = tile.load(A[rm[:, None], k * BK + rk[None, :]], mask=(rm[:, None] < M) & (rk[None, :] < K - k * BK), other=0.0)
        b = tile.load(B[rn[None, :], rk[:, None] + BK * k], mask=(rn[None, :] < N) & (rk[:, None] < K - k * BK), other=0.0)
        acc = tile.dot(a, b, acc)
    tile.store(C[rm[:, None], rn[None, :]], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@tile.jit
def walking(A, B, C, M, N, K, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr = 3,
            ROLES: tile.constexpr = False):
    """The same with indices that each iteration advances, and rows that wrap around at the end of the matrix."""
    m, n = tile.tile_at(tile.program_id(0), tile.cdiv(M, BM), tile.cdiv(N, BN), group=8)
    rm, rn, rk = (m * BM + tile.arange(BM)) % M, (n * BN + tile.arange(BN)) % N, tile.arange(BK)
    acc = tile.zeros((BM, BN))
    for _ in tile.pipelined(range(tile.cdiv(K, BK)), stages=STAGES, warp_specialize=ROLES) if STAGES else range(tile.cdiv(K, BK)):
        a = tile.load(A[rm[:, None], rk[None, :]], mask=rk[None, :] < K, other=0.0)
        b = tile.load(B[rn[None, :], rk[:, None]], mask=rk[:, None] < K, other=0.0)
        acc = tile.dot(a, b, acc)
        rk += BK
    tile.store(C[m * BM:m * BM + BM, n * BN:n * BN + BN], acc)


@tile.jit
def gathered(A, R, B, C, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr = 3, ROLES: tile.constexpr = False):
    """``C = A[R] @ B^T``: the rows of A [M, K] selected by the indices R, like the tokens of an expert."""
    m, n = tile.tile_at(tile.program_id(0), tile.cdiv(C.shape[0], BM), tile.cdiv(C.shape[1], BN), group=8)
    m, n = m * BM, n * BN
    rows = tile.load(R[m:m + BM], other=-1)
    acc = tile.zeros((BM, BN))
    for k in tile.pipelined(range(0, A.shape[1], BK), stages=STAGES, warp_specialize=ROLES) if STAGES else range(0, A.shape[1], BK):
        acc = tile.dot(tile.load(A[rows, k:k + BK]), tile.load(B[n:n + BN, k:k + BK]).T, acc)
    tile.store(C[m:m + BM, n:n + BN], acc)
