"""wgmma called as PTX instructions: both operands in shared memory without a swizzle, or A in registers; integer values."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
from ptx_copies import called, forms, kernel

from tests.cases import Case

KINDS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
         "s8": np.int8, "u8": np.uint8, "b1": np.uint8}
ROW = 32                                   # bytes along k of one instruction
A, B = 64 * ROW, 256 * ROW                 # bytes of the operands
ONES = np.array([byte.bit_count() for byte in range(256)])


def sample(step: int, first: int = 0) -> list:
    """A sample of the thousand forms that includes all types and all widths."""
    return forms(r"wgmma\.mma_async\..*")[first::step]


def cores(rows: np.ndarray) -> np.ndarray:
    """Rows of 32 bytes in the no-swizzle layout: 8x16-byte core matrices, two side by side."""
    return np.ascontiguousarray(rows.reshape(-1, 8, 2, 16).transpose(0, 2, 1, 3)).ravel()


def operands(form, seed: int):
    """(bytes of A's rows, bytes of B's rows, their product)."""
    rng, n = np.random.default_rng(seed), int(re.search(r"m64n(\d+)", form.name)[1])
    names = re.search(r"k\d+(?:\.satfinite)?\.(?:f32|f16|s32)\.(\w+)\.(\w+)", form.name).groups()
    if names[0] == "b1":
        a, b = (rng.integers(0, 256, (m, ROW)).astype(np.uint8) for m in (64, n))
        return a, b, ONES[a[:, None] & b[None]].sum(axis=2, dtype=np.float64)
    made = []
    for name, m in zip(names, (64, n)):
        low = 0 if name == "u8" else -2
        made.append(rng.integers(low, 3, (m, ROW // np.dtype(KINDS[name]).itemsize)).astype(KINDS[name]))
    a, b = made
    return a.view(np.uint8), b.view(np.uint8), a.astype(np.float64) @ b.astype(np.float64).T


def place(n: int):
    """(row, column) of each thread's accumulator elements: (128, n / 2)."""
    t, j = np.arange(128)[:, None], np.arange(n // 2)
    return t // 32 * 16 + t % 32 // 4 + 8 * (j // 2 % 2), j // 4 * 8 + t % 4 * 2 + j % 2


def product(form) -> Case:
    """One form's product, added to an initial accumulator."""
    a, b, d = operands(form, len(form.name))
    x, t = np.zeros(A + B, np.uint8), np.arange(128)
    x[:A], x[A:A + b.size] = cores(a), cores(b)
    row, halves = t // 32 * 16 + t % 32 // 4, a.reshape(64, 2, 4, 4)      # of 16 bytes, by lane
    r = np.stack([np.ascontiguousarray(halves[row + up, half, t % 4]).view(np.uint32).ravel() for half in (0, 1) for up in (0, 8)])
    n, result = d.shape[1], form.results[0]
    rows, columns = place(n)
    if re.search(r"k\d+\.f16\.", form.name):
        start = np.full(n // 4, 0x40003c00, np.uint32)                    # 1 and 2
        want = np.ascontiguousarray((d[rows, columns] + np.arange(n // 2) % 2 + 1).astype(np.float16)).view(np.uint32)
    else:
        made = np.float32 if result.type == "f32" else np.int32
        start = np.arange(n // 2).astype(made) % 5
        want = (d[rows, columns] + np.arange(n // 2) % 5).astype(made)
        want, start = (want, start) if result.type == "f32" else (want.view(np.uint32), start.view(np.uint32))
    call = called(form, d="held", a="ra" if "a_regs" in form.name else "da", b="db", scale_d="i >= 0", scale_a="1", scale_b="1",
                  trans_a="0", trans_b="0")
    lines = ["i = tile.thread_id()", f"s = tile.alloc(({A + B},), tile.uint8, align=1024)", "at = tile.ptx.cvta.to.shared.u64(s[0])",
             f"da, db = at >> 4 | {128 >> 4 << 16 | 256 >> 4 << 32}, at + {A} >> 4 | {128 >> 4 << 16 | 256 >> 4 << 32}",
             f"tile.store(s, tile.load(x[0:{A + B}]))", "tile.fence_proxy_async()", "tile.sync()",
             f"ra = ({''.join(f'tile.load(r[{m}, i]), ' for m in range(4))})",  # registers are written before wgmma.fence
             f"held = ({''.join(f'tile.load(c[{j}]), ' for j in range(result.count))})", "tile.ptx.wgmma.fence.sync.aligned()",
             f"d = {call}", "tile.ptx.wgmma.commit_group.sync.aligned()", "tile.ptx.wgmma.wait_group.sync.aligned(0)",
             *(f"tile.store(y[i, {j}], d[{j}])" for j in range(result.count))]
    return Case(form.name, kernel("def product(x, r, c, y):", lines, num_warps=4), (1,), (x, r, start, np.zeros_like(want)), {3: want})


def every_product(step: int, first: int = 0):
    """One kernel per form, since the assembler keeps the registers of several products separate."""
    yield from map(product, sample(step, first))
