"""A persistent matrix product in Triton with tensor descriptors, of operands [M, K] and [N, K], for comparison."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# BM, BN, BK in bytes, stages, warps, whether the result is stored in two halves
CONFIGURATIONS = tuple((bm, bn, 128, stages, warps, parts) for bm, bn, warps in ((128, 256, 8), (128, 128, 4), (128, 128, 8))
                       for stages in (3, 4) for parts in (True, False))


@triton.jit
def persistent(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, CTAS: tl.constexpr, PARTS: tl.constexpr):
    tiles_m, tiles_n, steps = tl.cdiv(M, BM), tl.cdiv(N, BN), tl.cdiv(K, BK)
    for t in tl.range(tl.program_id(0), tiles_m * tiles_n, CTAS, flatten=True):
        above = t // (GROUP * tiles_n) * GROUP
        rows = min(tiles_m - above, GROUP)
        m, n = (above + t % (GROUP * tiles_n) % rows) * BM, t % (GROUP * tiles_n) // rows * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(steps):
            acc = tl.dot(a.load([m, k * BK]), b.load([n, k * BK]).T, acc)
        if PARTS:
            left, right = tl.split(tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1)))
            c.store([m, n], left.to(c.dtype))
            c.store([m, n + BN // 2], right.to(c.dtype))
        else:
            c.store([m, n], acc.to(c.dtype))


def product(a, b, out, configuration) -> None:
    """``out = a @ b``, with b a transposed view [K, N] of an array [N, K]."""
    bm, bn, wide, stages, warps, parts = configuration
    bk, processors = wide // a.element_size(), torch.cuda.get_device_properties(a.device).multi_processor_count
    left, right = TensorDescriptor.from_tensor(a, [bm, bk]), TensorDescriptor.from_tensor(b.t(), [bn, bk])
    result = TensorDescriptor.from_tensor(out, [bm, bn // 2 if parts else bn])
    (m, k), n = a.shape, b.shape[1]
    grid = min(processors, triton.cdiv(m, bm) * triton.cdiv(n, bn))
    persistent[(grid,)](left, right, result, m, n, k, bm, bn, bk, 8, processors, parts, num_stages=stages, num_warps=warps)


def best(sets, seconds) -> tuple | None:
    """The configuration that runs and is fastest by the measurement ``seconds(call)``; None if none runs."""
    found = {}
    for configuration in CONFIGURATIONS:
        try:
            call = lambda a, b, out: product(a, b, out, configuration)
            call(*sets[0])
            torch.cuda.synchronize()
            found[configuration] = seconds(call)
        except triton.runtime.errors.OutOfResources:
            continue
    return min(found, key=found.get) if found else None
