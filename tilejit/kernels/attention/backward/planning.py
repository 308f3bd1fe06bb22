"""Plans the launches of `attention_backward`: checks the problem, chooses a configuration, and makes the constants."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ....errors import LaunchError
from ....runtime import driver
from ....runtime.arrays import ArrayView
from ..launch import ordered_by_rows
from ..planning import loaded_by_threads, loaded_by_tma
from ..problem import Attention
from .config import BARRIERS, SHARED, BackwardConfig, check_config
from .constants import BackwardConstants, HopperBackwardConstants
from .finish import ROWS as FINISHED_ROWS, clear, finish, sink_gradient
from .gradients import gradients
from .gradients_hopper import gradients_hopper
from .launch import BackwardLaunch, Step
from .model import choose, fits_roles, heads_at_once, nbytes
from .prepare import ROWS, prepare
from .problem import BackwardRequest, check_backward
from .queries import queries

ANY = 1 << 20      # bytes that a kernel may spill without the compiler's warning, as for the forward
REGISTERS = 24, 240  # of a thread of the producer and of a consumer
TILE = 64           # rows of a tile where dQ is computed by itself beside the kernel with roles
ROUNDED = 128      # rows that workspaces are rounded up to: the most of a block


def choose_config(request: BackwardRequest, config: BackwardConfig | None, target: str) -> BackwardConfig:
    """The configuration that is given, or that of the model. LaunchError if the kernels do not take it."""
    problem, forward = check_backward(request), request.forward
    by_tma = all(map(loaded_by_tma, (forward.q, forward.k, forward.v, request.do)))
    if config is None:
        config = choose(problem, target, by_tma)
    check_config(config, target)
    if config.roles and (not fits_roles(problem, by_tma) or config.bm * problem.d != 8192):
        raise LaunchError("the kernel with roles is for D of 64 and 128 in q, k and v, arrays that TMA can load, and "
                          "no lengths, and has 128 and 64 rows: config.roles must be False")
    return config


def smaller(request: BackwardRequest, config: BackwardConfig, target: str) -> BackwardConfig | None:
    """A configuration that needs less shared memory than another; None if there is none."""
    forward = request.forward
    if forward.mask is None and forward.score is None:
        return None
    if config.roles:
        return choose(check_backward(request), target, False)
    if min(config.bm, config.keys) <= 16:
        return None
    return replace(config, bm=config.bm // 2, keys=config.keys // 2)


def with_listed_blocks(problem: Attention, request: BackwardRequest, config: BackwardConfig) -> Attention:
    """The problem, for kernels that take the lists of a mask's blocks if there are some that their blocks divide."""
    block = request.block
    if block is None or request.forward.key_lengths is not None:
        return problem
    if block[0] % config.bm or block[1] % config.bn or block[1] % config.keys:
        return problem
    return replace(problem, scores=replace(problem.scores, listed=block))


def plan_backward(request: BackwardRequest, config: BackwardConfig, target: str) -> BackwardLaunch:
    """The launches for a request."""
    problem = with_listed_blocks(check_backward(request), request, config)
    forward = request.forward
    given = [x for x in (forward.q, forward.k, forward.v, forward.sinks) if x is not None]
    processors = 4 if forward.q.device == "host" else driver.multiprocessors(forward.q.ordinal)
    lead, rows = problem.shape[:-2], -(-problem.rows // ROUNDED) * ROUNDED
    heads = problem.heads, problem.batches
    summed = (rows * problem.d // 4096, 16, 256) if config.roles else (rows, problem.d)
    missing = problem.rows == 0 or problem.keys == 0 or forward.packed and not forward.sequences
    how: dict[str, Any] = dict(
        shapes=tuple(x.shape for x in given), dtypes=tuple(x.dtype for x in given),
        by_rows=tuple(len(x.shape) > 1 and ordered_by_rows(x.shape, x.strides) for x in given),
        lines=(*lead, rows), summed=(*lead, *summed), bounds=(problem.left, problem.right),
        lengths=forward.key_lengths is not None, packed=forward.packed, listed=bool(problem.scores.listed),
        group=heads_at_once(problem) if config.roles else 0,
        clears=tuple(_clear(x) if missing or forward.packed or 0 in problem.shape else None for x in given))
    if 0 in problem.shape:
        return BackwardLaunch(**how)
    dims = dict(D=problem.d, DV=problem.dv)
    how["prepare"] = Step(prepare, (rows // ROWS, *heads), dims)
    if forward.sinks is not None:
        how["sinks"] = Step(sink_gradient, (problem.heads,))
    if missing:
        return BackwardLaunch(**how)
    return BackwardLaunch(**how, **_steps(problem, request, config, target, processors))


def _steps(problem: Attention, request: BackwardRequest, config: BackwardConfig, target: str,
           processors: int) -> dict[str, Any]:
    """The launches that compute gradients."""
    forward, add = request.forward, not request.deterministic
    ahead = all(map(loaded_by_threads, (forward.q, forward.k, forward.v, request.do)))
    check_memory(config, target, problem)
    common: dict[str, Any] = dict(d=problem.d, dv=problem.dv, stages=config.stages if ahead else 1, add=add,
                                  scores=problem.scores, lengths=forward.key_lengths is not None, packed=forward.packed)
    sequences = forward.sequences if forward.packed else 0
    tiles = -(-problem.keys // config.bn)
    if config.roles:
        plan = HopperBackwardConstants(bm=config.bm, bn=config.bn, regs=REGISTERS, **common)
        found = dict(main=Step(gradients_hopper, (min(processors, tiles * problem.kv_heads * problem.batches),),
                               dict(PLAN=plan, num_warps=12, spills=ANY)))
    else:
        # a sequence may end with a part of a tile
        plan = BackwardConstants(bm=config.bm, bn=config.bn, **common)
        found = dict(main=Step(gradients, (tiles + sequences, problem.kv_heads, problem.batches),
                               dict(PLAN=plan, num_warps=config.warps, spills=ANY)))
    if add:
        tiles = -(-problem.rows // FINISHED_ROWS)
        found["finish"] = Step(finish, (tiles, problem.heads, problem.batches), dict(D=problem.d))
    else:
        bm = TILE if config.roles else config.bm
        tiles = -(-problem.rows // bm) + sequences
        plan = BackwardConstants(bm=bm, bn=config.keys, **common)
        found["queries"] = Step(queries, (tiles, problem.heads, problem.batches),
                                dict(PLAN=plan, num_warps=4, spills=ANY))
    return found


def check_memory(config: BackwardConfig, target: str, problem: Attention) -> None:
    """LaunchError if the blocks do not fit in shared memory."""
    if (needed := nbytes(config, problem.d, problem.dv)) > SHARED[target] - BARRIERS:
        raise LaunchError(f"K, V, dS and {config.stages} slots of Q and dO take {needed} bytes of shared memory, and "
                          f"{target} has {SHARED[target] - BARRIERS}: lower config.bm, config.bn or config.stages")


def _clear(x: ArrayView) -> Step | None:
    """What fills a gradient with zeros."""
    if 0 in x.shape:
        return None
    if len(x.shape) == 1:
        return Step(clear, (1, 1, 1), dict(ROWS=1, D=x.shape[0]))
    lead = math.prod(x.shape[:-3])
    return Step(clear, (-(-x.shape[-2] // FINISHED_ROWS), x.shape[-3], lead), dict(ROWS=FINISHED_ROWS, D=x.shape[-1]))


__all__ = ["choose_config", "plan_backward", "smaller"]
