"""Chooses the configuration of the kernels of the backward."""

from __future__ import annotations

from dataclasses import replace

from ..config import BARRIERS, SHARED
from ..model import L2
from ..problem import Attention
from .config import BackwardConfig

# columns up to which: (rows, keys of a block, warps, keys of a block where dQ is computed by itself), for products from
# registers by `mma_sync`, and for those of whole warpgroups
BY_WARPS = ((64, 64, 64, 4, 64), (96, 64, 64, 8, 64), (128, 64, 64, 8, 64), (192, 32, 64, 8, 32), (256, 32, 64, 8, 32))
BY_WARPGROUPS = ((128, 64, 64, 4, 64), (256, 64, 64, 8, 64))


def nbytes(config: BackwardConfig, d: int, dv: int) -> int:
    """The bytes of shared memory for K and V, the slots of Q and dO, and the gradients of scores; with roles also for a
    second buffer of these, and the staging buffers of gradients."""
    if config.roles:
        staged = 64 * d * config.bm // 64 * 4 + 2 * 64 * 64 * 2
        return (config.bn * 2 * d + config.stages * config.bm * 2 * d + 2 * config.bm * config.bn) * 2 + staged
    return (config.bn * (d + dv) + config.stages * config.bm * (d + dv) + config.bm * config.bn) * 2


def fits_roles(problem: Attention, by_tma: bool) -> bool:
    """Whether the kernel for Hopper takes the problem. `by_tma`: TMA can load Q, K, V and dO."""
    return (by_tma and problem.d == problem.dv and problem.d in (64, 128) and problem.request.key_lengths is None)


def heads_at_once(problem: Attention) -> int:
    """How many heads of K have blocks that are taken together."""
    rows = max(problem.rows * problem.group * (problem.d + problem.dv) * 2, 1)
    return max(min(L2 // rows, problem.batches * problem.kv_heads), 1)


def choose(problem: Attention, target: str, by_tma: bool) -> BackwardConfig:
    """The configuration that is expected to take the least time. `by_tma`: TMA can load Q, K, V and dO."""
    if target == "sm_90a" and fits_roles(problem, by_tma):
        return BackwardConfig(roles=True, bm=128 if problem.d == 64 else 64, bn=128, stages=2)
    table = BY_WARPGROUPS if target in ("sm_90a", "sm_100a", "sm_103a") else BY_WARPS
    d = max(problem.d, problem.dv)
    bm, bn, warps, keys = next(row[1:] for row in table if d <= row[0])
    config = BackwardConfig(bm=bm, bn=bn, warps=warps, keys=keys)
    while nbytes(config, problem.d, problem.dv) > SHARED[target] - BARRIERS and config.bm > 16:
        config = replace(config, bm=config.bm // 2, keys=config.keys // 2)
    return config


__all__ = ["choose", "fits_roles", "heads_at_once", "nbytes"]
