"""Plans a launch of `attention`: checks the problem, chooses a configuration, and makes the constants of the kernel."""

from __future__ import annotations

from typing import Any

from ...runtime import driver
from ...runtime.arrays import ArrayView
from ..operands import span, stored_by_tma
from .blank import ROWS, blank
from .config import Config, check_config
from .constants import AttentionConstants, HopperConstants
from .hopper import hopper
from .launch import Launch, ordered_by_rows
from .model import choose, heads_at_once
from .pipelined import pipelined
from .problem import Attention, Request, check_attention

# bytes that a kernel may spill without the compiler's warning: outside its loops, or by a user's function
ANY = 1 << 20
REGISTERS = {1: (None, None), 2: (40, 232), 3: (32, 160)}  # of a thread of the producer and of each of the consumers


def plan_launch(request: Request, config: Config | None, target: str) -> Launch:
    """The launch for a request, with `config` or the model's choice. LaunchError says what does not fit."""
    problem = check_attention(request)
    on_host = request.q.device == "host"
    processors = 4 if on_host else driver.multiprocessors(request.q.ordinal)
    by_tma = all(map(loaded_by_tma, (request.q, request.k, request.v)))
    stored = stored_by_tma(problem.out, 32)
    if config is None:
        config = choose(problem, target, by_tma, stored, processors)
    check_config(config, target, problem.d, problem.dv)
    how: dict[str, Any] = dict(by_rows=ordered_by_rows(request.q), bounds=(problem.left, problem.right),
                               spans=tuple(map(span, (request.q, request.k, request.v, problem.out))))
    shape, dtype = problem.shape, request.q.dtype
    if 0 in shape:
        return Launch(shape, dtype, **how)
    if problem.keys == 0:
        grid = -(-problem.rows // ROWS), problem.heads, problem.batches
        return Launch(shape, dtype, blank, grid, dict(LSE=request.lse, SINKS=problem.scores.sinks, D=problem.dv), **how)
    ahead = config.roles or all(map(loaded_by_threads, (request.k, request.v)))
    plan = constants(problem, config, ahead, stored)
    options = dict(PLAN=plan, num_warps=config.num_warps, spills=ANY)
    tiles = -(-problem.rows // config.bm)
    if not config.roles:
        return Launch(shape, dtype, pipelined, (tiles, problem.heads, problem.batches), options, **how)
    ctas = min(processors, tiles * problem.heads * problem.batches)
    return Launch(shape, dtype, hopper, (ctas,), options, counted=True, **how)


def constants(problem: Attention, config: Config, ahead: bool, stored: bool) -> AttentionConstants:
    """The constants of the configuration's kernel. `ahead`: blocks of K and V can be loaded ahead; `stored`: TMA can
    store the result."""
    common: dict[str, Any] = dict(bm=config.bm, bn=config.bn, d=problem.d, dv=problem.dv, scores=problem.scores,
                                  stages=config.stages if ahead else 1, lse=problem.request.lse)
    if not config.roles:
        return AttentionConstants(**common)
    return HopperConstants(**common, consumers=config.consumers, regs=REGISTERS[config.consumers], held=config.held,
                           turns=config.turns and config.consumers > 1, width=config.width if stored else 0,
                           buffers=config.buffers, group=heads_at_once(problem))


def loaded_by_tma(x: ArrayView) -> bool:
    """Whether TMA can load boxes of rows of each head."""
    return (x.strides[-1] == 1 and x.pointer % 16 == 0 and 0 not in x.shape
            and all(s > 0 and s * x.nbytes_per_element % 16 == 0 for s in x.strides[:-1]))


def loaded_by_threads(x: ArrayView) -> bool:
    """Whether `cp.async`, which takes at least 4 bytes, can load rows of each head."""
    return x.strides[-1] == 1 and x.pointer % 4 == 0 and all(s % 2 == 0 for s in x.strides[:-1])


__all__ = ["constants", "plan_launch"]
