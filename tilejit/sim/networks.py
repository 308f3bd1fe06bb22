"""Runs sorting networks (`ops.order.network`) on the elements of tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import element_loops as loops
from .compile_loops import compiled

LOOPS: dict[int, Callable] = {1: loops.exchange_keys, 2: loops.exchange_pairs}  # by the numbers of an element
STEP = 1e-8   # seconds that NumPy takes for a step on one element


def run_network(values: list[np.ndarray], steps: Sequence[Any], kept: int) -> list[np.ndarray]:
    """The lowest ``2**kept`` elements along the last axis, which `steps` sort. An element is a tuple of one integer of
    each of `values`."""
    run = None
    if len(values) in LOOPS:
        run = compiled(LOOPS[len(values)], values[0].size * len(steps) * STEP)
    if run is None:
        return run_by_numpy(values, steps, kept)
    rows = [np.ascontiguousarray(v).reshape(-1, v.shape[-1]) for v in values]
    rows = [np.array(r) if r.base is not None and np.shares_memory(r, v) else r for r, v in zip(rows, values)]
    run(*rows, *step_tables(steps, kept))
    return [r.reshape(v.shape)[..., :1 << kept] for r, v in zip(rows, values)]


def step_tables(steps: Sequence[Any], kept: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The steps as the loops take them: whether each halves the number of blocks, the bit that tells its partners
    apart, and the bit of a position that makes it go downwards."""
    halves = np.array([step.halves for step in steps], bool)
    bits = np.array([kept if step.halves else step.bit for step in steps], np.int64)
    return halves, bits, np.array([min(step.stage, kept) for step in steps], np.int64)


def run_by_numpy(values: list[np.ndarray], steps: Sequence[Any], kept: int) -> list[np.ndarray]:
    for step in steps:
        if step.halves:
            low, high = _pairs(values, kept)
            values = [v.reshape(*v.shape[:-2], -1) for v in _choose(_is_below(high, low), high, low)]
            continue
        low, high = _pairs(values, step.bit)
        upwards = np.arange(values[0].shape[-1]) >> min(step.stage, kept) & 1 == 0
        swap = _is_below(high, low) == upwards.reshape(-1, 2, 1 << step.bit)[:, 0]
        values = [np.stack(both, -2).reshape(v.shape) for v, *both in
                  zip(values, _choose(swap, high, low), _choose(swap, low, high))]
    return values


def _pairs(values: list, bit: int) -> tuple[list, list]:
    """The elements at positions where `bit` is 0, and their partners, both (..., blocks, 2**bit)."""
    split = [v.reshape(*v.shape[:-1], -1, 2, 1 << bit) for v in values]
    return [v[..., 0, :] for v in split], [v[..., 1, :] for v in split]


def _is_below(a: list, b: list) -> np.ndarray:
    test = a[-1] < b[-1]
    for x, y in zip(a[-2::-1], b[-2::-1]):
        test = (x < y) | (x == y) & test
    return test


def _choose(test: np.ndarray, a: list, b: list) -> list:
    return [np.where(test, x, y) for x, y in zip(a, b)]
