"""A grouped matrix product in Triton, for comparison: one persistent launch, in which each CTA iterates over the tiles of all groups."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(table, groups, CTAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, MAPS: tl.constexpr, EVEN: tl.constexpr):
    t = tl.program_id(0)
    first = 0
    for g in range(groups):
        entry = table + g * 9
        a, lda = tl.load(entry).to(tl.pointer_type(tl.bfloat16)), tl.load(entry + 1)
        b, ldb = tl.load(entry + 2).to(tl.pointer_type(tl.bfloat16)), tl.load(entry + 3)
        c, ldc = tl.load(entry + 4).to(tl.pointer_type(tl.bfloat16)), tl.load(entry + 5)
        m, n, k = tl.load(entry + 6).to(tl.int32), tl.load(entry + 7).to(tl.int32), tl.load(entry + 8).to(tl.int32)
        lda, ldb, ldc = tl.multiple_of(lda, 8), tl.multiple_of(ldb, 8), tl.multiple_of(ldc, 8)
        a, b, c = tl.multiple_of(a, 16), tl.multiple_of(b, 16), tl.multiple_of(c, 16)
        if EVEN:
            n, k = tl.multiple_of(n, 8), tl.multiple_of(k, 8)
        across = tl.cdiv(n, BN)
        tiles = tl.cdiv(m, BM) * across
        if t < first + tiles:
            if MAPS:
                map_a = tl.make_tensor_descriptor(a, shape=[m, k], strides=[lda, 1], block_shape=[BM, BK])
                map_b = tl.make_tensor_descriptor(b, shape=[n, k], strides=[ldb, 1], block_shape=[BN, BK])
                map_c = tl.make_tensor_descriptor(c, shape=[m, n], strides=[ldc, 1], block_shape=[BM, BN])
            while t < first + tiles:
                row, column = (t - first) // across * BM, (t - first) % across * BN
                acc = tl.zeros((BM, BN), tl.float32)
                rows, columns, ks = row + tl.arange(0, BM), column + tl.arange(0, BN), tl.arange(0, BK)
                for s in range(0, k, BK):
                    if MAPS:
                        x, y = map_a.load([row, s]), map_b.load([column, s])
                    else:
                        x = tl.load(a + rows[:, None] * lda + (s + ks)[None, :], mask=(rows < m)[:, None] & (s + ks < k)[None, :], other=0)
                        y = tl.load(b + columns[:, None] * ldb + (s + ks)[None, :], mask=(columns < n)[:, None] & (s + ks < k)[None, :], other=0)
                    acc = tl.dot(x, y.T, acc)
                if MAPS:
                    map_c.store([row, column], acc.to(tl.bfloat16))
                else:
                    tl.store(c + rows[:, None] * ldc + columns[None, :], acc.to(tl.bfloat16), mask=(rows < m)[:, None] & (columns < n)[None, :])
                t += CTAS
        first += tiles


def triton_candidates(a, b, outs, ctas: int) -> dict:
    """Calls of the kernel for each tile configuration, with pointers ("ptr") and with descriptors ("tma"). The table has a row per
    group: the addresses and row strides of A, of B as [N, K] and of C, then M, N and K."""
    triton.set_allocator(lambda size, align, stream: torch.empty(size, device="cuda", dtype=torch.int8))
    entries = [[x.data_ptr(), x.stride(0), y.data_ptr(), y.stride(0), z.data_ptr(), z.stride(0), *z.shape, x.shape[1]] for x, y, z in zip(a, b, outs)]
    table = torch.tensor(entries, device="cuda")
    even = all(n % 8 == 0 and k % 8 == 0 for *_, n, k in (e[6:] for e in entries))
    found = {}
    for bm, bn, bk, warps, stages in ((128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (64, 256, 64, 4, 4), (64, 128, 64, 4, 4)):
        for maps in (False, True):
            found[f"Triton {'tma' if maps else 'ptr'} {bm}x{bn}"] = lambda maps=maps, s=(bm, bn, bk), w=warps, n=stages: kernel[(ctas,)](
                table, len(a), ctas, *s, maps, even, num_warps=w, num_stages=n)
    return found
