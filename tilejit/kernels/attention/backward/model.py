"""Chooses the configuration of the kernels of the backward."""

from __future__ import annotations

from dataclasses import replace

from ..config import BARRIERS, SHARED
from ..problem import Attention
from .config import BackwardConfig
from .problem import BackwardRequest

# columns up to which: (rows, keys of a block, warps, keys of a block where dQ is computed by itself), for products from
# registers by `mma_sync`, and for those of whole warpgroups
BY_WARPS = ((64, 64, 64, 4, 64), (96, 64, 64, 8, 64), (128, 64, 64, 8, 64), (192, 32, 64, 8, 32), (256, 32, 64, 8, 32))
BY_WARPGROUPS = ((128, 64, 64, 4, 64), (256, 64, 64, 8, 64))


def nbytes(config: BackwardConfig, d: int, dv: int) -> int:
    """The bytes of shared memory for K and V, the slots of Q and dO, and the gradients of scores."""
    return (config.bn * (d + dv) + config.stages * config.bm * (d + dv) + config.bm * config.bn) * 2


def choose(problem: Attention, request: BackwardRequest, target: str) -> BackwardConfig:
    """The configuration that is expected to take the least time."""
    table = BY_WARPGROUPS if target in ("sm_90a", "sm_100a", "sm_103a") else BY_WARPS
    d = max(problem.d, problem.dv)
    bm, bn, warps, keys = next(row[1:] for row in table if d <= row[0])
    config = BackwardConfig(bm=bm, bn=bn, warps=warps, keys=keys)
    while nbytes(config, problem.d, problem.dv) > SHARED[target] - BARRIERS and config.bm > 16:
        config = replace(config, bm=config.bm // 2, keys=config.keys // 2)
    return config


__all__ = ["choose", "nbytes"]
