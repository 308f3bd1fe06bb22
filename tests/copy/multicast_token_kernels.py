"""Multicasts awaited by tokens, for the simulator and the GPU."""

import numpy as np
import tilejit as tile
from receivers import SIZES

from tests.cases import Case


@tile.jit
def loaded_for_all(A, B, R: tile.constexpr, PATH: tile.constexpr):
    """Every CTA of a cluster loads 16 rows of each tile for all of them, one tile ahead."""
    s = tile.alloc((2, 16 * R, 64), A.dtype)
    first = tile.cta_rank() * 16
    count = A.shape[0] // (16 * R)
    now = tile.copy_async(s[0, first:first + 16, 0:64], A[first:first + 16, 0:64], multicast=(1 << R) - 1, variant=PATH)
    for k in range(count):
        following = tile.copy_async(s[(k + 1) % 2, first:first + 16, 0:64], A[(k + 1) * 16 * R + first:(k + 1) * 16 * R + first + 16, 0:64],
                                    multicast=(1 << R) - 1, variant=PATH)
        now.wait()
        tile.copy(B[tile.program_id(0), k * 16 * R:k * 16 * R + 16 * R, 0:64], s[k % 2])
        now = following
    now.wait()


@tile.jit(num_warps=2, cluster=(4, 1, 1))
def loaded_for_rows(A, B):
    """A cluster as a 2 x 2 grid: each CTA loads its half for both CTAs of its row; the mask is computed from the rank."""
    s = tile.alloc((32, 64), A.dtype)
    rank = tile.cta_rank()
    half = rank % 2 * 16
    row = rank // 2
    for k in range(3):
        tile.copy_async(s[half:half + 16, 0:64], A[k, row, half:half + 16, 0:64], multicast=3 << row * 2).wait()
        tile.copy(B[k, tile.program_id(0), 0:32, 0:64], s)


@tile.jit(num_warps=2, cluster=(4, 1, 1))
def loaded_for_mask(A, B, mask):
    """Each CTA loads a quarter for those of a runtime mask; the others keep their zeros."""
    s = tile.alloc((64, 64), A.dtype)
    tile.store(s, tile.zeros((64, 64), A.dtype))
    first = tile.cta_rank() * 16
    tile.copy_async(s[first:first + 16, 0:64], A[first:first + 16, 0:64], multicast=mask).wait()
    tile.copy(B[tile.program_id(0), 0:64, 0:64], s)


@tile.jit(num_warps=2, cluster=(2, 1, 1))
def in_turns(A, B, n):
    """The same shared memory many times over: no CTA may overwrite what another one still reads."""
    s = tile.alloc((16, 64), A.dtype)
    first = tile.cta_rank() * 8
    total = tile.zeros((16, 64))
    for k in range(n):
        tile.copy_async(s[first:first + 8, 0:64], A[k, first:first + 8, 0:64], multicast=3).wait()
        total += tile.load(s)
    tile.store(B[tile.program_id(0), 0:16, 0:64], total)


def together_case(tiles: int, ranks: int, dtype="float16", seed=0):
    """The case for two clusters."""
    a = np.random.default_rng(seed).integers(-50, 50, (tiles * 16 * ranks, 64)).astype(dtype)
    return a, np.zeros((2 * ranks, *a.shape), dtype)


def every_together():
    """Every cluster size, by a named variant or the default."""
    for ranks in SIZES:
        a, b = together_case(20, ranks)
        yield Case(f"{ranks} CTAs", loaded_for_all, (2 * ranks,), (a, b), {1: np.stack([a] * (2 * ranks))},
                   dict(R=ranks, PATH="tma" if ranks % 2 else None, cluster=(ranks, 1, 1)))
