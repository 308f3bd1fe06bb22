"""Kernels in Triton that are as simple as those of `tests/mma/first_kernels.py`: with tiles of pointers, pipelined by `num_stages`. The product
takes B as [K, N], which is faster than [N, K]. M and N must be whole tiles."""

import triton
import triton.language as tl


@triton.jit
def _place(M, N, BM: tl.constexpr, BN: tl.constexpr):
    tiles_m, tiles_n, GROUP = tl.cdiv(M, BM), tl.cdiv(N, BN), 8
    above = tl.program_id(0) // (GROUP * tiles_n) * GROUP
    rows = min(tiles_m - above, GROUP)
    inside = tl.program_id(0) % (GROUP * tiles_n)
    return (above + inside % rows) * BM + tl.arange(0, BM), inside // rows * BN + tl.arange(0, BN)


@triton.jit
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = _place(M, N, BM, BN)
    k = tl.arange(0, BK)
    at_a, at_b = a + m[:, None] * K + k[None, :], b + k[:, None] * N + n[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(at_a), tl.load(at_b), acc)
        at_a += BK
        at_b += BK * N
    tl.store(c + m[:, None] * N + n[None, :], acc.to(c.dtype.element_ty))


@triton.jit
def gathered(a, r, w, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = _place(M, N, BM, BN)
    k = tl.arange(0, BK)
    at_a, at_w = a + tl.load(r + m)[:, None] * K + k[None, :], w + n[None, :] * K + k[:, None]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(at_a), tl.load(at_w), acc)
        at_a += BK
        at_w += BK
    tl.store(c + m[:, None] * N + n[None, :], acc.to(c.dtype.element_ty))


@triton.jit
def by_bytes(a, w, s, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = _place(M, N, BM, BN)
    k = tl.arange(0, BK)
    at_a, at_w = a + m[:, None] * K + k[None, :], w + n[None, :] * K + k[:, None]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(at_a), tl.load(at_w).to(a.dtype.element_ty), acc)
        at_a += BK
        at_w += BK
    tl.store(c + m[:, None] * N + n[None, :], (acc * tl.load(s + n)[None, :]).to(c.dtype.element_ty))


@triton.jit
def by_nibbles(a, w, s, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = _place(M, N, BM, BN)
    k, half = tl.arange(0, BK), tl.arange(0, BK // 2)
    at_a, at_w = a + m[:, None] * K + k[None, :], w + n[:, None] * (K // 2) + half[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K, BK):
        q = tl.load(at_w)
        low, high = (q & 15).to(a.dtype.element_ty) - 8, (q >> 4).to(a.dtype.element_ty) - 8
        b = tl.join(low, high).reshape(BN, BK) * tl.load(s + at // 128 * N + n)[:, None]
        acc = tl.dot(tl.load(at_a), b.trans(1, 0), acc)
        at_a += BK
        at_w += BK // 2
    tl.store(c + m[:, None] * N + n[None, :], acc.to(c.dtype.element_ty))


@triton.jit
def attention(Q, K, V, O, scale, L, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    base, m, d, n = tl.program_id(1) * L * D, tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    q = tl.load(Q + base + m[:, None] * D + d[None, :])
    most, total, acc = tl.full((BM,), -1e30, tl.float32), tl.zeros((BM,), tl.float32), tl.zeros((BM, D), tl.float32)
    for at in range(0, L, BN):
        s = tl.dot(q, tl.load(K + base + (at + n)[None, :] * D + d[:, None])) * scale
        new = tl.maximum(most, tl.max(s, 1))
        p, by = tl.exp2(s - new[:, None]), tl.exp2(most - new)
        total, most = total * by + tl.sum(p, 1), new
        acc = tl.dot(p.to(q.dtype), tl.load(V + base + (at + n)[:, None] * D + d[None, :]), acc * by[:, None])
    tl.store(O + base + m[:, None] * D + d[None, :], (acc / total[:, None]).to(q.dtype))
