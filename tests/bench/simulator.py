"""The simulator, compared with Triton's interpreter, on the CPU: vector add of 2^20 elements, softmax of 1024 rows of 1000.

    python tests/bench/simulator.py

The comparison needs torch and triton. The simulator's results are compared with NumPy's.
"""

from __future__ import annotations

import os
import statistics
import time

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
from tilejit.demo import softmax, vector_add


def median(call, runs: int) -> float:
    call()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def ours():
    x, y = np.random.default_rng(0).standard_normal((2, 1 << 20), dtype=np.float32)
    out = np.empty_like(x)
    rows = np.random.default_rng(1).standard_normal((1024, 1000), dtype=np.float32)
    soft = np.empty_like(rows)
    result = {
        "vector add": median(lambda: vector_add[(1024,)](x, y, out, BLOCK=1024, backend="sim"), 7),
        "softmax": median(lambda: softmax[(1024,)](rows, soft, BLOCK=1024, backend="sim"), 7),
    }
    e = np.exp(rows - rows.max(1, keepdims=True))
    assert (out == x + y).all() and np.allclose(soft, e / e.sum(1, keepdims=True), rtol=1e-5)
    return result


def theirs():
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def add(x, y, o, n, B: tl.constexpr):
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(o + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)

    @triton.jit
    def soft(x, o, s, n, B: tl.constexpr):
        r = tl.program_id(0)
        i = tl.arange(0, B)
        v = tl.load(x + r * s + i, mask=i < n, other=-float("inf"))
        v = tl.exp(v - tl.max(v, axis=0))
        tl.store(o + r * s + i, v / tl.sum(v, axis=0), mask=i < n)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = torch.randn(2, 1 << 20, device=device)
    out, rows = torch.empty_like(x), torch.randn(1024, 1000, device=device)
    result = torch.empty_like(rows)
    return {"vector add": median(lambda: add[(1024,)](x, y, out, x.numel(), B=1024), 3),
            "softmax": median(lambda: soft[(1024,)](rows, result, 1000, 1000, B=1024), 3)}


def main() -> None:
    mine = ours()
    try:
        other = theirs()
    except ImportError:
        other = {}
    for name, seconds in mine.items():
        line = f"{name}: simulator {1000 * seconds:.1f} ms"
        if name in other:
            line += f", triton's interpreter {1000 * other[name]:.1f} ms, {other[name] / seconds:.1f} times as long"
        print(line)


if __name__ == "__main__":
    main()
