"""``python -m tilejit demo``: compiles and runs four kernels, and compares them with NumPy.

It also explains how each was lowered.
"""

from __future__ import annotations

import time

import numpy as np
import tilejit as tile

from .errors import fold_lines
from .runtime import driver


@tile.jit
def vector_add(x, y, out, BLOCK: tile.constexpr):
    """Each CTA adds BLOCK elements; those past the end are neither read nor written."""
    i = tile.program_id(0) * BLOCK
    tile.store(out[i:i + BLOCK], tile.load(x[i:i + BLOCK]) + tile.load(y[i:i + BLOCK]))


@tile.jit
def softmax(x, out, BLOCK: tile.constexpr):
    """One CTA per row; the row fits in registers."""
    row = tile.program_id(0)
    v = tile.load(x[row, 0:BLOCK], other=-float("inf"))
    v = tile.exp(v - tile.max(v, axis=0))
    tile.store(out[row, 0:BLOCK], v / tile.sum(v, axis=0))


@tile.jit
def staged_copy(src, out, ROWS: tile.constexpr, COLUMNS: tile.constexpr):
    """All threads of a CTA copy a tile through shared memory with cp.async."""
    row = tile.program_id(0) * ROWS
    stage = tile.alloc((ROWS, COLUMNS), src.dtype)
    tile.copy_async(stage, src[row:row + ROWS, 0:COLUMNS])
    tile.cp_async_commit()
    tile.cp_async_wait(0)
    tile.sync()
    tile.copy(out[row:row + ROWS, 0:COLUMNS], stage)


@tile.jit
def staged_tma(src, out, ROWS: tile.constexpr, COLUMNS: tile.constexpr):
    """One elected thread starts the copy of a swizzled tile by TMA, whose bytes complete a barrier."""
    row = tile.program_id(0) * ROWS
    stage = tile.alloc((ROWS, COLUMNS), src.dtype, layout=tile.swizzled(src.dtype, (ROWS, COLUMNS), 128))
    bar = tile.mbarrier(count=1)
    with tile.elect():
        bar.arrive_expect_tx(stage.nbytes)
        tile.copy_async(stage, src[row:row + ROWS, 0:COLUMNS], mbar=bar)
    bar.wait(phase=0)
    tile.copy(out[row:row + ROWS, 0:COLUMNS], stage)


def _cases():
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(1 << 20, dtype=np.float32) for _ in range(2))
    rows = rng.standard_normal((1024, 1000), dtype=np.float32)
    matrix = rng.standard_normal((4096, 256), dtype=np.float32).astype(np.float16)
    e = np.exp(rows - rows.max(axis=1, keepdims=True), dtype=np.float64)
    return (
        (vector_add, (1024,), (x, y), np.empty_like(x), {"BLOCK": 1024}, x + y, 0.0),
        (softmax, (1024,), (rows,), np.empty_like(rows), {"BLOCK": 1024},
         (e / e.sum(axis=1, keepdims=True)).astype(np.float32), 2e-6),
        (staged_copy, (32,), (matrix,), np.empty_like(matrix), {"ROWS": 128, "COLUMNS": 256}, matrix, 0.0),
        (staged_tma, (64,), (matrix,), np.empty_like(matrix), {"ROWS": 64, "COLUMNS": 256}, matrix, 0.0),
    )


def run() -> int:
    """Compile, explain, run and check; returns the exit status."""
    gpu = driver.available()
    backend = "cuda" if gpu else "sim"
    print(f"tilejit {tile.__version__}: kernels for {driver.target(0) if gpu else 'sm_90a'}, run on "
          f"{'the GPU' if gpu else 'the simulator (no GPU here)'}\n")
    failures = 0
    for kernel, grid, inputs, out, constants, expected, tolerance in _cases():
        started = time.perf_counter()
        compiled = kernel.compile(*inputs, out, **constants)
        seconds = time.perf_counter() - started
        print(fold_lines(compiled.explain()))
        started = time.perf_counter()
        kernel[grid](*inputs, out, backend=backend, **constants)
        ran = time.perf_counter() - started
        error = float(np.max(np.abs(out.astype(np.float64) - expected.astype(np.float64))))
        scale = float(np.max(np.abs(expected.astype(np.float64))))
        good = error <= tolerance * max(scale, 1e-30)
        failures += not good
        print(f"  {'ok' if good else 'WRONG'}: {out.size} elements against NumPy, largest difference {error:.3g} "
              f"(allowed {tolerance * scale:.3g})\n  compiled in {seconds:.3f} s, ran in {ran:.3f} s\n")
    print("all checked" if not failures else f"{failures} kernels are wrong")
    return 1 if failures else 0
