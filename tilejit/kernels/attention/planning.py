"""Plans a launch of `attention`: checks the problem, chooses a configuration, and makes the constants of the kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...errors import LaunchError
from ...runtime import driver
from ...runtime.arrays import ArrayView
from ..operands import span, stored_by_tma
from .blank import ROWS, blank
from .config import PARTS, Config, check_config, check_kind
from .constants import AttentionConstants, HopperConstants, SequenceConstants
from .float8 import KEYS
from .hopper import hopper
from .launch import Launch, ordered_by_rows
from .model import (
    box_rows,
    chains_sums,
    choose,
    choose_sequences,
    few_rows,
    heads_at_once,
    heads_in_tile,
    peeks_of,
    skips_blocks,
)
from .pipelined import pipelined
from .problem import Attention, Request, check_attention, page_order
from .sequences import sequences

ANY = 1 << 20  # bytes that a kernel may spill without the compiler's warning: once in a tile, or by a user's function
REGISTERS = {1: (None, None), 2: (40, 232), 3: (32, 160)}  # of a thread of the producer and of each of the consumers


def plan_launch(request: Request, config: Config | None, target: str) -> Launch:
    """The launch for a request, with `config` or the model's choice. LaunchError says what does not fit."""
    problem = check_attention(request)
    processors = 4 if request.q.device == "host" else driver.multiprocessors(request.q.ordinal)
    float8 = problem.scores.float8  # the values are copied, whatever their strides
    by_tma = all(map(loaded_by_tma, (request.q, request.k, *(() if float8 else (request.v,)))))
    stored = stored_by_tma(problem.out, 32) and problem.out.nbytes_per_element == 2
    config, by_sequences = _choose_config(problem, config, target, processors, by_tma, stored)
    check_config(config, target, problem.d, 0 if by_sequences and problem.is_inner else problem.dv, problem.itemsize)
    by_rows = ordered_by_rows(request.q.shape, request.q.strides)
    how: dict[str, Any] = dict(by_rows=by_rows, bounds=(problem.left, problem.right), float8=float8,
                               turned=_shape_of_values(problem, config),
                               spans=tuple(map(span, (request.q, request.k, request.v, problem.out))))
    shape, dtype = problem.shape, problem.out.dtype
    if 0 in shape:
        return Launch(shape, dtype, **how)
    if problem.keys == 0 or packed_nothing(request):
        grid = -(-problem.rows // ROWS), problem.heads, problem.batches
        return Launch(shape, dtype, blank, grid, dict(LSE=request.lse, SINKS=problem.scores.sinks, D=problem.dv), **how)
    if by_sequences:
        return _by_sequences(problem, config, how)
    ahead = config.roles or all(map(loaded_by_threads, (request.k, request.v)))
    if config.roles:
        problem = _with_listed_blocks(problem, config)
    plan = constants(problem, config, ahead, stored)
    options = dict(PLAN=plan, num_warps=config.num_warps, spills=ANY)
    tiles = -(-problem.rows // config.bm)
    if not config.roles:
        return Launch(shape, dtype, pipelined, (tiles, problem.heads, problem.batches), options, **how)
    tiles *= problem.batches
    if request.packed:
        tiles = problem.rows // config.bm + request.sequences  # at most, since each may end with a part of a tile
    ctas = min(processors, tiles * problem.heads)
    return Launch(shape, dtype, hopper, (ctas,), options, group=heads_at_once(problem),
                  listed=(request.sequences, tiles) if _has_lengths(request) else None, **how)


def _choose_config(problem: Attention, config: Config | None, target: str, processors: int, by_tma: bool,
                   stored: bool) -> tuple[Config, bool]:
    """The configuration, and whether it is one of `sequences`."""
    request, lengths = problem.request, _has_lengths(problem.request)
    alone = request.pages is not None or problem.is_wide  # for `sequences` alone
    if config is None and (alone or few_rows(problem) or lengths and not (target == "sm_90a" and by_tma)):
        return choose_sequences(problem, target, by_tma, processors), True
    if config is None:
        config = choose(problem, target, by_tma, stored, processors)
        if config.roles and request.block is not None:
            config = replace(config, bm=request.block[0], bn=request.block[1], turns=request.block[0] > 64)
    check_kind(config)
    by_sequences = alone or config.splits > 1 or lengths and not config.roles
    if by_sequences and config.roles:
        raise LaunchError("keys in pages, keys that CTAs share, and rows of over 256 columns need a kernel without "
                          "roles: config.roles must be False")
    return config, by_sequences


def _with_listed_blocks(problem: Attention, config: Config) -> Attention:
    """The problem for a kernel with roles, which takes the list of a mask's blocks, if there is one."""
    request = problem.request
    if request.blocks is None or request.block is None or _has_lengths(request):
        return problem
    if (config.bm, config.bn) != request.block:
        raise LaunchError(f"the mask's blocks have {request.block[0]} rows and {request.block[1]} columns: config.bm "
                          f"and config.bn must be these, not {config.bm} and {config.bn}")
    return replace(problem, scores=replace(problem.scores, listed=True))


def _by_sequences(problem: Attention, config: Config, how: dict[str, Any]) -> Launch:
    """The launch of the kernel for sequences with lengths, pages, or few rows."""
    request = problem.request
    shared = heads_in_tile(problem)
    scores = problem.scores
    if scores.float8:  # the lines of a tile may have factors of their own
        scores = replace(scores, scaled=True)
    packed, splits = request.packed, config.splits
    if packed and splits > 1:
        raise LaunchError(f"packed sequences are not split: config.splits must be 1, not {splits}")
    if splits > 1 and splits * problem.dv > PARTS:
        raise LaunchError(f"a CTA holds up to {PARTS} floats of a line's parts: config.splits must be at most "
                          f"{PARTS // problem.dv} for {problem.dv} columns, not {splits}")
    order = page_order(request.k) if problem.page else False
    ahead = problem.page or all(map(loaded_by_threads, (request.k, request.v)))
    box = box_rows(problem.page, config.bn)
    if config.stages == 1 or not all(map(loaded_by_tma, (request.k, request.v))):
        box = 0
    plan = SequenceConstants(
        bm=config.bm, bn=config.bn, d=problem.d, dv=problem.dv, stages=config.stages if ahead else 1, lse=request.lse,
        scores=scores, heads=problem.heads, kv_heads=problem.kv_heads, shared=shared,
        lengths=request.key_lengths is not None, packed=packed, page=problem.page,
        rows_first=bool(order), box=box, splits=splits,
        inner=problem.is_inner,
        pieces=config.warps // 4 if problem.is_wide and config.bm == 64 else int(problem.is_wide))
    tiles = -(-problem.rows * shared // config.bm)
    if packed:
        tiles += request.sequences  # at most, since each may end with a part of a tile
    grid = tiles * splits * (problem.heads // shared), 1, problem.batches
    return Launch(problem.shape, problem.out.dtype, sequences, grid,
                  dict(PLAN=plan, num_warps=config.warps, spills=ANY), lengths=True, splits=splits, **how)


def constants(problem: Attention, config: Config, ahead: bool, stored: bool) -> AttentionConstants:
    """The constants of the configuration's kernel. `ahead`: blocks of K and V can be loaded ahead; `stored`: TMA can
    store the result."""
    common: dict[str, Any] = dict(bm=config.bm, bn=config.bn, d=problem.d, dv=problem.dv, scores=problem.scores,
                                  stages=config.stages if ahead else 1, lse=problem.request.lse)
    if not config.roles:
        return AttentionConstants(**common)
    return HopperConstants(**common, consumers=config.consumers, regs=REGISTERS[config.consumers],
                           held=config.held, ahead=config.ahead and not config.held, chained=chains_sums(problem),
                           guesses=config.guesses, peeks=peeks_of(problem, config),
                           skips=skips_blocks(problem, config),
                           turns=config.turns and config.consumers > 1, width=config.width if stored else 0,
                           buffers=config.buffers, lengths=_has_lengths(problem.request),
                           packed=problem.request.packed)


def _has_lengths(request: Request) -> bool:
    """Whether sequences have numbers of keys of their own."""
    return request.key_lengths is not None


def _shape_of_values(problem: Attention, config: Config) -> tuple[int, ...] | None:
    """The shape of the values as `turn_values` makes them; None if the kernel takes them as they are."""
    request, keys = problem.request, -(-problem.keys // KEYS) * KEYS
    if not (config.roles and problem.scores.float8 and keys) or packed_nothing(request):
        return None
    if request.packed:
        keys = (problem.keys // config.bn + request.sequences) * config.bn
    return *request.v.shape[:-2], problem.dv, keys


def packed_nothing(request: Request) -> bool:
    """Whether there are no packed sequences."""
    return request.packed and request.sequences == 0


def loaded_by_tma(x: ArrayView) -> bool:
    """Whether TMA can load boxes of rows of each head."""
    return (x.strides[-1] == 1 and x.pointer % 16 == 0 and 0 not in x.shape
            and all(s > 0 and s * x.nbytes_per_element % 16 == 0 for s in x.strides[:-1]))


def loaded_by_threads(x: ArrayView) -> bool:
    """Whether `cp.async`, which takes at least 4 bytes, can load rows of each head."""
    return (x.strides[-1] == 1 and x.pointer % 4 == 0
            and all(s * x.nbytes_per_element % 4 == 0 for s in x.strides[:-1]))


__all__ = ["constants", "plan_launch"]
