"""Simple kernels (`tests/mma/first_kernels.py`) with an ordinary and with a pipelined loop, compared with torch and, if it is installed, with
equally simple kernels in Triton.

    PYTHONPATH=. python tests/bench/first.py [--rounds 7] [--only product]

The dtype is float16. Each kernel runs with the best of a few tiles, numbers of warps and stages, with and without warp roles. The candidates
are timed in alternation, twenty calls in a CUDA graph. Prints TFLOP/s of the median round, and the best configurations.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from functools import partial

import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
from timing import rounds  # noqa: E402 - beside this file

from tests.mma import first_kernels  # noqa: E402

TILES = ((128, 128, 64, 4), (128, 128, 64, 8), (128, 256, 64, 8), (64, 64, 128, 4))  # rows, columns, k, warps
PARTS = ((128, 128, 8), (128, 64, 8), (64, 64, 4), (128, 64, 4))                     # queries, keys, warps
NAMES = {"by_bytes": "torch.mm of float16", "by_nibbles": "torch.mm of float16", "gathered": "torch.mm of the rows", "attention": "torch's attention"}
up = lambda a, b: -(-a // b)


def weights(name: str, n: int, k: int) -> tuple[tuple, torch.Tensor]:
    """A kernel's operands besides A, and the matrix [N, K] that they represent."""
    if name in ("product", "by_indices", "walking", "gathered"):
        w = torch.randn(n, k, device="cuda").half()
        return (w,), w
    if name == "by_bytes":
        w, s = torch.randint(-100, 100, (n, k), device="cuda", dtype=torch.int8), torch.rand(n, device="cuda") / 64
        return (w, s), (w * s[:, None]).half()
    w, s = torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8), (torch.rand(k // 128, n, device="cuda") / 8).half()
    return (w, s), (torch.stack((w & 15, w >> 4), -1).reshape(n, k).half() - 8) * s.T.repeat_interleave(128, 1)


def product_case(name: str, m: int, n: int, k: int):
    """(floating-point operations, torch's call, functions that run our and Triton's kernel with a configuration, the result, the expected result)"""
    a, c = torch.randn(m, k, device="cuda").half(), torch.empty(m, n, device="cuda").half()
    rest, wide = weights(name, n, k)
    numbers = (m, n, k) if name in ("by_indices", "walking") else ()
    order = torch.randint(0, m, (m,), device="cuda", dtype=torch.int32) if name == "gathered" else None
    rows = () if order is None else (order,)
    ours = lambda bm, bn, bk, warps, stages, roles: getattr(first_kernels, name)[up(m, bm) * up(n, bn),](
        a, *rows, *rest, c, *numbers, BM=bm, BN=bn, BK=bk, STAGES=stages, ROLES=roles, num_warps=warps)

    as_triton_has_it = (wide.T.contiguous(),) if name == "product" else (*rows, *rest)
    taken = a if order is None else a[order.long()]
    of_torch = lambda: torch.mm(a if order is None else a[order], wide.T, out=c)

    def theirs(bm, bn, bk, warps, stages):
        if m % bm or n % bn or not hasattr(triton_kernels(), name):
            raise ValueError("Triton's kernels have no masks, and not all of ours have one of Triton's beside them")
        kernel = getattr(triton_kernels(), name)[(m // bm * (n // bn),)]
        kernel(a, *as_triton_has_it, c, m, n, k, BM=bm, BN=bn, BK=bk, num_warps=warps, num_stages=stages)

    return 2.0 * m * n * k, of_torch, ours, theirs, c, taken.float() @ wide.float().T


def attention_case(heads: int, length: int, d: int):
    q, k, v = (torch.randn(heads, length, d, device="cuda").half() for _ in range(3))
    o, scale, of_torch = torch.empty_like(q), 1.4426950408889634 / d ** 0.5, torch.nn.functional.scaled_dot_product_attention
    ours = lambda bm, bn, warps, stages, roles: first_kernels.attention[up(length, bm), heads](
        q, k, v, o, scale, BM=bm, BN=bn, D=d, STAGES=stages, ROLES=roles, num_warps=warps)
    theirs = lambda bm, bn, warps, stages: triton_kernels().attention[(up(length, bm), heads)](
        q, k, v, o, scale, length, BM=bm, BN=bn, D=d, num_warps=warps, num_stages=stages)
    return 4.0 * heads * length * length * d, lambda: of_torch(q[None], k[None], v[None]), ours, theirs, o, of_torch(q[None], k[None], v[None])[0]


def triton_kernels():
    import first_triton
    return first_triton


def best(call, configurations, result, expected) -> tuple | None:
    """The configuration that is fastest in two rounds, None if none runs. Also checks the result of each."""
    found = {}
    for configuration in configurations:
        result.zero_()
        try:
            call(*configuration)
        except Exception as error:  # too large for the GPU, no whole tiles, or no Triton
            if type(error).__name__ in ("AssertionError", "AttributeError", "TypeError"):
                raise
            continue
        off = ((result.float() - expected.float()).norm() / expected.float().norm()).item()
        assert off < 3e-3, (configuration, off)
        found[configuration] = rounds({"": lambda: call(*configuration)}, 2)[""]
    return min(found, key=found.get) if found else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose title has this")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = [(f"{name} {m}x{n}x{k}", name, TILES, partial(product_case, name, m, n, k)) for name, m, n, k in (
        ("product", 4096, 4096, 4096), ("product", 8192, 8192, 8192), ("by_indices", 4096, 4096, 4096),
        ("walking", 4096, 4096, 4096), ("gathered", 4096, 4096, 4096), ("by_bytes", 4096, 4096, 4096), ("by_bytes", 64, 8192, 8192),
        ("by_nibbles", 4096, 4096, 4096), ("by_nibbles", 64, 8192, 8192))]
    cases.append(("attention 32x4096x128", "attention", PARTS, partial(attention_case, 32, 4096, 128)))
    print(f"{'':28} {'torch':>7} {'plain':>7} {'ahead':>7} {'triton':>7}   tiles of each")
    for title, name, tiles, case in (c for c in cases if arguments.only in c[0]):
        flop, of_torch, ours, theirs, result, expected = case()
        plain = best(ours, [(*t, 0, False) for t in tiles], result, expected)
        ahead = best(ours, [(*t, stages, roles) for t in tiles for stages in (2, 3, 4) for roles in (False, True)], result, expected)
        triton = best(theirs, [(*t, stages) for t in tiles for stages in (2, 3, 4)], result, expected)
        calls = {"torch": of_torch, "plain": lambda: ours(*plain), "ahead": lambda: ours(*ahead)}
        calls |= {"triton": lambda: theirs(*triton)} if triton else {}
        seconds = rounds(calls, arguments.rounds)
        speed = [f"{flop / seconds[c] / 1e12:7.1f}" if c in seconds else f"{'':7}" for c in ("torch", "plain", "ahead", "triton")]
        print(f"{title:28} {' '.join(speed)}   {plain} {ahead} {triton}; torch: {NAMES.get(name, 'torch.mm')}", flush=True)


if __name__ == "__main__":
    main()
