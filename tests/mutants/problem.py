"""A kernel to mutate, with a small problem and its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16


@dataclass(frozen=True)
class Problem:
    """A kernel with its arguments. `make(n)` returns those of `n` equal or similar problems side by side, which `n`
    times as many CTAs solve: `grid` is for one. `expected` gets the arguments, and maps the numbers of those that hold
    results to what they hold afterwards, within `tolerance`."""

    name: str
    kernel: Any
    grid: int
    make: Callable[[int], list]
    expected: Callable[[list], dict[int, np.ndarray]]
    constants: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0

    def bound(self, arguments: list, **options):
        """The arguments and the launch options, bound to the kernel's parameters."""
        named = {**self.constants, **options}
        return self.kernel.bind_alone("a mutant has no launch of its own", tuple(arguments), named)

    def lowered(self, copies: int = 1):
        """The kernel after the passes for sm_90a, as the simulator and the emitter get it."""
        bound, options = self.bound(self.make(copies))
        return self.kernel.version(bound, options, "sm_90a").lowered


def right(problem: Problem, expected: dict[int, np.ndarray], got: list) -> bool:
    """Whether the arguments `got` hold the results that are `expected`."""
    return all(close(got[n], want, problem.tolerance) for n, want in expected.items())


def close(got: np.ndarray, want: np.ndarray, tolerance: float) -> bool:
    with np.errstate(invalid="ignore"):
        return bool((np.abs(got.astype(np.float64) - want) <= tolerance).all())


def blocks(n: int) -> np.ndarray:
    """`n` blocks of 16 x 64 numbers."""
    return np.random.default_rng(n).integers(-8, 8, (n * 16, 64)).astype(np.float32)


def unset(*shape: int) -> np.ndarray:
    """An array for results, where each number that is not written is wrong."""
    return np.full(shape, np.nan, np.float32)


def matrices(rows: int, columns: int, inner: int) -> list[np.ndarray]:
    """The arguments of a product ``C = A @ B.T``."""
    rng = np.random.default_rng(inner)
    return [*(rng.integers(-3, 4, (n, inner)).astype(BF16) for n in (rows, columns)), unset(rows, columns)]


def product_of(arguments: list) -> dict[int, np.ndarray]:
    a, b = (x.astype(np.float32) for x in arguments[:2])
    return {2: a @ b.T}


__all__ = ["BF16", "Problem", "blocks", "close", "matrices", "product_of", "right", "unset"]
