"""Random persistent products around pipelined loops: types, majors, tiles, warps, stages, roles, ways to store."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import tilejit as tile

from tests.drawn import numbers
from tests.mma.test_dot import np_dtype

ROOM = 96 << 10  # bytes of shared memory that every target has


@tile.jit
def drawn(A, B, C, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr, ROLES: tile.constexpr, TA: tile.constexpr,
          TB: tile.constexpr, SUMS: tile.constexpr, PRECISION: tile.constexpr, TURN: tile.constexpr, STAGED: tile.constexpr, GROUP: tile.constexpr,
          DEPENDENT: tile.constexpr = False):
    """``C = A @ B`` of A [M, K], or [K, M] with `TA`, and B [K, N], or [N, K] with `TB`."""
    sA = tile.alloc((BK, BM) if TA else (BM, BK), A.dtype, layout=tile.auto)
    sB = tile.alloc((BN, BK) if TB else (BK, BN), B.dtype, layout=tile.auto)
    if STAGED:
        sC = tile.alloc((BM, BN), C.dtype, layout=tile.auto)
    if DEPENDENT:
        tile.griddepcontrol_wait()
        tile.griddepcontrol_launch_dependents()
    K = A.shape[0 if TA else 1]
    tiles_m, tiles_n = tile.cdiv(C.shape[0], BM), tile.cdiv(C.shape[1], BN)
    first, stride, last = tile.program_id(0), tile.num_programs(0), (tile.cdiv(K, BK) - 1) * BK
    for i in range(tile.cdiv(tile.maximum(tiles_m * tiles_n - first, 0), stride)):
        m, n = tile.tile_at(first + i * stride, tiles_m, tiles_n, group=GROUP)
        m, n = m * BM, n * BN
        acc = tile.zeros((BM, BN), SUMS)
        for s in tile.pipelined(range(0, K, BK), stages=STAGES, warp_specialize=ROLES):
            k = last - s if TURN and i % 2 == 1 else s
            tile.copy_async(sA, A[k:k + BK, m:m + BM] if TA else A[m:m + BM, k:k + BK])
            tile.copy_async(sB, B[n:n + BN, k:k + BK] if TB else B[k:k + BK, n:n + BN])
            acc = tile.dot(sA, sB, acc, trans_a=TA, trans_b=TB, precision=PRECISION)
        if STAGED:
            tile.store(sC, acc)
            tile.sync()
            tile.copy_async(C[m:m + BM, n:n + BN], sC).wait(read=True)
        else:
            tile.store(C[m:m + BM, n:n + BN], acc)


# (operands, result, accumulator, precision)
TYPES = [("float16", "float16", "float32", None), ("bfloat16", "bfloat16", "float32", None), ("float16", "float32", "float32", None),
         ("int8", "int32", "int32", None), ("float8_e4m3fn", "float32", "float32", None), ("float32", "float32", "float32", "tf32"),
         ("bfloat16", "float32", "float32", None)]


@dataclass(frozen=True)
class Draw:
    """A kernel: its types, its constants, and its number of warps."""

    types: tuple
    constants: dict
    warps: int

    @staticmethod
    def of(number: int) -> Draw:
        """The kernel with a number. Types, stages, roles and warps cycle, so that about twenty consecutive numbers cover all of them."""
        r = random.Random(number)
        types, stages, warps = TYPES[number % len(TYPES)], 2 + number % 4, (4, 8, 1, 4, 2)[number % 5]
        itemsize, stored = np_dtype(types[0]).itemsize, np_dtype(types[1]).itemsize
        while True:
            bm = r.choice((32, 64) if warps < 4 else (*[16 * warps] * 4, 128, 48))  # wgmma takes 64 rows per warpgroup
            bn, bk, staged = r.choice((16, 32, 64, 96, 128)), r.choice((32, 64, 128)) // itemsize, r.random() < 0.7
            if bm * bn <= 2048 * warps and stages * (bm + bn) * bk * itemsize + staged * bm * bn * stored <= ROOM:
                break
        mostly = 0.6 if itemsize == 2 else 0.8  # the majors that every path supports
        constants = dict(BM=bm, BN=bn, BK=bk, STAGES=stages, ROLES=number % 3 > 0, TA=r.random() < 1 - mostly, TB=r.random() < mostly,
                         SUMS=getattr(tile, types[2]), PRECISION=types[3], TURN=r.random() < 0.5, STAGED=staged, GROUP=r.choice((1, 2, 8)))
        return Draw(types, constants, warps)

    def extents(self, cases: int):
        """(m, n, k): 0, 1, stages - 1, stages and stages + 1 iterations, whole and ragged, several tiles for some CTAs. Most have a multiple
        of 16 columns, as TMA stores need."""
        r, c = random.Random(repr(self)), self.constants
        for at in range(cases):
            trips = (c["STAGES"] + 1, 0, c["STAGES"], 1, c["STAGES"] - 1)[at % 5]
            k = trips * c["BK"] - (r.randrange(c["BK"]) if trips and at % 2 else 0)
            n = r.randint(1, 3 * c["BN"])
            yield r.randint(1, 3 * c["BM"]), n if at % 5 == 4 else -(-n // 16) * 16, k

    def check(self, m: int, n: int, k: int, launch) -> None:
        """Check one product, with bounds from the roundings of its accumulation and result. `launch(grid, *arrays, **options)` runs it."""
        dtype, result, sums, precision = self.types
        a, b = operand(m, k, self.constants["TA"], dtype, 1), operand(k, n, self.constants["TB"], dtype, 2)
        c = np.zeros((m, -(-n // 16) * 16), np_dtype(result))[:, :n]
        launch(1 + (m + n + k) % 5, a, b, c, num_warps=self.warps, **self.constants)
        x, y = a.T if self.constants["TA"] else a, b.T if self.constants["TB"] else b
        if sums == "int32":
            np.testing.assert_array_equal(c, x.astype(np.int32) @ y.astype(np.int32), err_msg=f"{self} {m, n, k}")
            return
        x, y = x.astype(np.float64), y.astype(np.float64)
        exact, size = x @ y, np.abs(x) @ np.abs(y)
        # Products and partial sums round once each; TF32 truncates operands to 10 bits; float8 accumulation keeps 13 bits below the largest term.
        cut = 2.0 ** -9 if precision else 2.0 ** -12 if "float8" in dtype else 0.0
        stored = {"float16": 2.0 ** -11, "bfloat16": 2.0 ** -8}.get(result, 0.0)
        wrong = np.abs(c.astype(np.float64) - exact) > size * (2 * k * 2.0 ** -23 + cut) + np.abs(exact) * stored + 2.0 ** -25
        assert not wrong.any(), (self, (m, n, k), np.argwhere(wrong)[:4])


def operand(rows: int, columns: int, turned: bool, dtype: str, seed: int) -> np.ndarray:
    """A matrix [rows, columns], or its transpose, whose row pitch is a multiple of 16 elements, as TMA needs."""
    rows, columns = (columns, rows) if turned else (rows, columns)
    return numbers((rows, -(-max(columns, 1) // 16) * 16), np_dtype(dtype), seed)[:, :columns]
