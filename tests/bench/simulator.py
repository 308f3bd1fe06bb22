"""The simulator on the CPU, compared with Triton's interpreter, and its loops by numba with those by NumPy.

    python tests/bench/simulator.py

The comparisons need torch and triton, and numba. The results are compared with NumPy's.
"""

from __future__ import annotations

import os
import statistics
import time

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import tilejit as tile
from tilejit.demo import softmax, vector_add


@tile.jit
def product(a, b, c, BLOCK: tile.constexpr):
    m, n = tile.program_id(0) * BLOCK, tile.program_id(1) * BLOCK
    acc = tile.zeros((BLOCK, BLOCK), tile.float32)
    for k in range(0, a.shape[1], 64):
        acc = tile.dot(tile.load(a[m:m + BLOCK, k:k + 64]), tile.load(b[k:k + 64, n:n + BLOCK]), acc)
    tile.store(c[m:m + BLOCK, n:n + BLOCK], acc)


@tile.jit
def ranks(keys, bins, place, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK
    tile.store(place[i:i + BLOCK], tile.atomic_add(bins[tile.load(keys[i:i + BLOCK])], 1))


@tile.jit
def collatz(x, steps):
    i = tile.program_id(0) * 128 + tile.thread_id()
    n = tile.load(x[i])
    count = 0
    while n != 1:
        n = tile.where(n % 2 == 0, n // 2, 3 * n + 1)
        count += 1
    tile.store(steps[i], count)


@tile.jit
def scatter(x, at, out, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK
    tile.store(out[tile.load(at[i:i + BLOCK])], tile.load(x[i:i + BLOCK]))


@tile.jit
def twice(x, at, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK
    place = tile.load(at[i:i + BLOCK])
    tile.store(x[place], 2 * tile.load(x[place]))


@tile.jit
def sort_rows(x, out, N: tile.constexpr):
    row = tile.program_id(0)
    tile.store(out[row, 0:N], tile.sort(tile.load(x[row, 0:N])))


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
    for n in (512, 1024):
        a, b = np.random.default_rng(n).integers(-2, 3, (2, n, n)).astype(np.float16)
        c = np.empty((n, n), np.float32)
        result[f"product of {n}^3"] = median(lambda: product[n // 128, n // 128](a, b, c, BLOCK=128, backend="sim"), 5)
        assert (c == a.astype(np.float32) @ b.astype(np.float32)).all()
    return result


def loops() -> dict[str, float]:
    """Milliseconds of CPU time of what numba compiles, for 2^20 elements."""
    rng, count = np.random.default_rng(0), 1 << 20
    keys, place = rng.integers(0, 256, count).astype(np.int32), np.empty(count, np.int32)
    starts, steps = rng.integers(1, 1000, count).astype(np.int32), np.empty(count, np.int32)
    x, at = rng.standard_normal(count, dtype=np.float32), rng.permutation(count).astype(np.int32)
    out, rows, sorted_rows = np.empty_like(x), x.reshape(1024, 1024), np.empty((1024, 1024), np.float32)
    near = (np.arange(count).reshape(-1, 1024)[:, rng.permutation(1024)]).astype(np.int32).reshape(-1)
    grid = (count // 1024,)
    calls = {
        "atomic_add with its old values, 256 bins":
            lambda: ranks[grid](keys, np.zeros(256, np.int32), place, BLOCK=1024, backend="sim"),
        "Collatz steps of numbers below 1000": lambda: collatz[count // 128,](starts, steps, backend="sim"),
        "tile.sort of 1024 rows of 1024": lambda: sort_rows[1024,](rows, sorted_rows, N=1024, backend="sim"),
        "a store by a permutation": lambda: scatter[grid](x, at, out, BLOCK=1024, backend="sim"),
        "in place, by a permutation within each CTA": lambda: twice[grid](x, near, BLOCK=1024, backend="sim")}
    return {name: least(call, 4) for name, call in calls.items()}


def least(call, runs: int) -> float:
    """Milliseconds of CPU time, after one call that compiles."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        call()
        times.append(1000 * (time.process_time() - start))
    return min(times[1:])


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

    @triton.jit
    def multiply(a, b, c, N: tl.constexpr, B: tl.constexpr):
        m, n, k = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B), tl.arange(0, 64)
        acc = tl.zeros((B, B), tl.float32)
        for start in range(0, N, 64):
            acc += tl.dot(tl.load(a + m[:, None] * N + start + k[None, :]),
                          tl.load(b + (start + k[:, None]) * N + n[None, :]))
        tl.store(c + m[:, None] * N + n[None, :], acc)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = torch.randn(2, 1 << 20, device=device)
    out, rows = torch.empty_like(x), torch.randn(1024, 1000, device=device)
    result = torch.empty_like(rows)
    # NumPy, by which the interpreter multiplies, is fastest with float32
    a, b, c = torch.randn(3, 512, 512, device=device)
    return {"product of 512^3": median(lambda: multiply[4, 4](a, b, c, N=512, B=128), 3),
            "vector add": median(lambda: add[(1024,)](x, y, out, x.numel(), B=1024), 3),
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
    found = []
    for setting in ("0", "1"):
        os.environ["TILEJIT_NUMBA"] = setting
        found.append(loops())
    for name, by_numpy in found[0].items():
        print(f"{name}: {by_numpy:.0f} ms of CPU time by NumPy, {found[1][name]:.0f} ms by numba")


if __name__ == "__main__":
    main()
