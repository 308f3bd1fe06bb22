"""Matrix products on Hopper: a persistent, warp-specialised kernel of one producer and several consumer warpgroups.

The producer's one thread fills a ring of shared-memory slots by TMA; each consumer warpgroup multiplies 64 rows of the
tile by wgmma and stores them by TMA from a staging buffer, while the ring already fills for the next tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import tilejit as tile

from ..errors import LaunchError
from ..runtime import driver
from ..runtime.arrays import describe
from ..runtime.device_array import DeviceArray, empty


@tile.jit
def tile_of(t, tiles_m, tiles_n, GROUP: tile.constexpr):
    """The tile of number `t`: groups of `GROUP` tile rows, column by column, so that neighbours in time share operands."""
    group = t // (GROUP * tiles_n)
    rows = tile.maximum(tile.minimum(tiles_m - group * GROUP, GROUP), 1)
    at = t % (GROUP * tiles_n)
    return group * GROUP + at % rows, at // rows


@tile.jit
def persistent(A, B, C, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr, GROUP: tile.constexpr,
               B_NK: tile.constexpr, PRODUCER_REGS: tile.constexpr, CONSUMER_REGS: tile.constexpr, STORE: tile.constexpr):
    """``C = A @ B``, with A [M, K] and B [N, K] (``B_NK``) or [K, N]: tiles of BM x BN, BK of k in each of STAGES slots."""
    M, K = A.shape
    N = C.shape[1]
    tiles_m, tiles_n, steps = tile.cdiv(M, BM), tile.cdiv(N, BN), tile.cdiv(K, BK)
    first, stride = tile.program_id(0), tile.num_programs(0)
    trips = tile.cdiv(tile.maximum(tiles_m * tiles_n - first, 0), stride)
    ring = tile.ring(STAGES, A=((BM, BK), A.dtype), B=((BN, BK) if B_NK else (BK, BN), B.dtype), consumers=BM // 64)
    WIDTH = 128 if BN % 128 == 0 else 64
    stage = tile.alloc((BM // 64, 64, WIDTH), C.dtype, layout=tile.swizzled(C.dtype, (BM // 64, 64, WIDTH), 128))
    with tile.warpgroup(0, regs=PRODUCER_REGS):
        with tile.elect():
            for i in range(trips):
                m, n = tile_of(first + i * stride, tiles_m, tiles_n, GROUP)
                for k in range(steps):
                    with ring.produce() as slot:
                        tile.copy_async(slot.A, A[m * BM:m * BM + BM, k * BK:k * BK + BK], mbar=slot.full)
                        if B_NK:
                            tile.copy_async(slot.B, B[n * BN:n * BN + BN, k * BK:k * BK + BK], mbar=slot.full)
                        else:
                            tile.copy_async(slot.B, B[k * BK:k * BK + BK, n * BN:n * BN + BN], mbar=slot.full)
    with tile.each_warpgroup(range(1, 1 + BM // 64), regs=CONSUMER_REGS) as warpgroup:
        w = warpgroup - 1
        for i in range(trips):
            m, n = tile_of(first + i * stride, tiles_m, tiles_n, GROUP)
            acc = tile.zeros((64, BN))
            for k in range(steps):
                with ring.consume() as slot:
                    acc = tile.mma_async(acc, slot.A[w * 64:w * 64 + 64, :], slot.B, trans_b=B_NK)
                    tile.mma_commit()
                    tile.mma_wait(0)
            row = m * BM + w * 64
            if STORE == "tma":
                for part in tile.static_range(BN // WIDTH):
                    column = n * BN + part * WIDTH
                    with tile.elect():
                        tile.bulk_wait(0, read=True)
                    tile.sync()
                    tile.store(stage[w], acc[:, part * WIDTH:part * WIDTH + WIDTH])
                    tile.fence_proxy_async()
                    tile.sync()
                    with tile.elect():
                        tile.copy_async(C[row:row + 64, column:column + WIDTH], stage[w])
                        tile.bulk_commit()
            else:
                tile.store(C[row:row + 64, n * BN:n * BN + BN], acc)
        if STORE == "tma":
            with tile.elect():
                tile.bulk_wait(0)


# -- which tile, and the plain call --------------------------------------------------------------------------------------

SHARED = 232448 - 1024   # bytes of shared memory that tiles and slots may take, barriers aside
STAGES_AT_MOST = 8


@dataclass(frozen=True)
class Config:
    """The shape of the kernel: the tile, the slots of the ring, the tile rows of a group, the registers of a producer's and
    of a consumer's thread (None: what the launch gives)."""

    bm: int = 128
    bn: int = 256
    bk: int = 64
    stages: int = 4
    group: int = 8
    regs: tuple[int | None, int | None] = (40, 232)

    @staticmethod
    def of(bm: int, bn: int, bk: int = 64, itemsize: int = 2) -> "Config":
        """The configuration of a tile: as many slots as shared memory holds, the registers split by need."""
        staging = bm * (128 if bn % 128 == 0 else 64) * itemsize
        stages = min((SHARED - staging) // ((bm + bn) * bk * itemsize), STAGES_AT_MOST)
        return Config(bm, bn, bk, stages, regs={64: (None, None), 128: (40, 232), 192: (32, 160)}[bm])

    @property
    def num_warps(self) -> int:
        return 4 * (1 + self.bm // 64)

    def constants(self, b_nk: bool, store: str) -> dict:
        """The kernel's compile-time arguments and options."""
        return dict(BM=self.bm, BN=self.bn, BK=self.bk, STAGES=self.stages, GROUP=self.group, B_NK=b_nk, PRODUCER_REGS=self.regs[0],
                    CONSUMER_REGS=self.regs[1], STORE=store, num_warps=self.num_warps)


# Tiles with the share of the tensor cores' speed that each keeps busy on large matrices, measured on an H200.
TILES = {(128, 256): 1.0, (192, 192): 1.0, (128, 192): 0.96, (192, 128): 0.96, (128, 128): 0.93, (64, 256): 0.92, (64, 128): 0.85, (128, 64): 0.54}
EPILOGUE = 512  # elements of k in whose time a tile is begun and stored


@lru_cache(maxsize=1024)
def choose(m: int, n: int, k: int, processors: int) -> Config:
    """The configuration that a model of waves expects to be the fastest: tiles in turn on all processors, each of a cost."""
    def cost(shape: tuple[int, int]) -> float:
        bm, bn = shape
        waves = -(-(-(-m // bm) * -(-n // bn)) // processors)
        return waves * bm * bn * (k + EPILOGUE) / TILES[shape]
    return Config.of(*min(TILES, key=cost))


def matmul(a, b, out=None, config: Config | None = None):
    """``a @ b`` of two matrices of float16 or bfloat16, accumulated in float32; returns `out`, made if not given.

    Arrays are torch tensors, CuPy arrays, DeviceArrays (on the GPU) or NumPy arrays (on the simulator). `b` may be row-major
    or the transpose of a row-major matrix. Rows are a multiple of 16 bytes apart. Needs a Hopper GPU (sm_90a).
    """
    (m, k), (k2, n) = _matrix(a, "a"), _matrix(b, "b")
    if k != k2:
        raise LaunchError(f"a is [{m}, {k}] and b is [{k2}, {n}]: their inner extents differ")
    x, y = describe(a), describe(b)
    if x.dtype != y.dtype or x.dtype not in ("float16", "bfloat16"):
        raise LaunchError(f"matmul takes two matrices of float16 or two of bfloat16, not {x.dtype} and {y.dtype}")
    out = _empty(a, (m, n)) if out is None else out
    z = describe(out)
    if z.shape != (m, n) or z.dtype != x.dtype:
        raise LaunchError(f"out is a matrix of {x.dtype} and shape {(m, n)}, not of {z.dtype} and shape {z.shape}")
    if 0 in (m, n):
        return out
    if k == 0:
        raise LaunchError("the inner extent is 0: there is nothing to multiply")
    b_nk = not (y.strides[1] == 1 or n == 1) and (y.strides[0] == 1 or k == 1)
    host = x.device == "host"
    processors = 4 if host else driver.multiprocessors(x.device)
    config = config or choose(m, n, k, processors)
    store = "tma" if z.strides[1] == 1 and n * 2 % 16 == 0 and z.strides[0] * 2 % 16 == 0 and z.pointer % 16 == 0 else "direct"
    tiles = -(-m // config.bm) * -(-n // config.bn)
    persistent[(min(tiles, processors),)](a, b.T if b_nk else b, out, **config.constants(b_nk, store))
    return out


def _matrix(x, name: str) -> tuple[int, int]:
    if len(x.shape) != 2:
        raise LaunchError(f"{name} is a matrix, not of shape {tuple(x.shape)}")
    return tuple(x.shape)


def _empty(like, shape: tuple[int, int]):
    """A new array of the same kind, dtype and device."""
    if isinstance(like, DeviceArray):
        return empty(shape, like.dtype.name, like.device)
    if hasattr(like, "new_empty"):
        return like.new_empty(shape)
    import sys
    return sys.modules[type(like).__module__.partition(".")[0]].empty(shape, dtype=like.dtype)


__all__ = ["Config", "choose", "matmul", "persistent", "tile_of"]
