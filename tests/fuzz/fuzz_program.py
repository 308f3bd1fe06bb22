"""The parts of a random kernel: pieces of source with the values that they compute, and the program made of them.

A value carries an error bound (`slack`). It is 0 if each operation is exact or correctly rounded, so that the bits are
determined; otherwise it covers the order of additions, contraction to a fused multiply-add, and the documented ulp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tilejit as tile


@dataclass
class Node:
    """An expression: its source, its type, and how to compute it. `shape` is None for a scalar, the same for the whole CTA.

    `exact`: its bits are determined. `product`: a multiplication of floats that a following addition may be contracted with.
    """

    text: str
    shape: tuple | None
    dtype: str
    run: Callable[[dict], tuple[np.ndarray, Any]]
    exact: bool = True
    product: bool = False


@dataclass
class Statement:
    """Lines of source, and their effect on the variables."""

    lines: list[str]
    run: Callable[[dict], None]


@dataclass
class Program:
    """A kernel's source, its arguments, its launch, and the outputs expected by NumPy with their slack. Those of `same_bits` have the
    simulator's bits on every backend."""

    seed: int
    source: str
    args: dict[str, Any]
    grid: tuple
    options: dict[str, Any]
    expected: dict[str, np.ndarray]
    slack: dict[str, np.ndarray]
    same_bits: set[str] = field(default_factory=set)
    kernel: Any = field(default=None, repr=False)

    def compiled_kernel(self):
        if self.kernel is None:
            from fuzz_shapes import HELPERS
            from tilejit.frontend import Source
            from tilejit.jit import Kernel
            self.kernel = Kernel(Source.from_text(self.source, {"tile": tile, **HELPERS}, file=f"<seed {self.seed}>"), {})
        return self.kernel

    def outputs(self) -> dict[str, np.ndarray]:
        return {n: np.zeros(w.shape, w.dtype) for n, w in self.expected.items()}

    def simulate(self, side_by_side: bool = False) -> dict[str, np.ndarray]:
        """Run on the simulator; fails on its findings. `side_by_side` gives the arguments the strides that `launch` gives them, which
        determine layouts and therefore the order of sums."""
        outputs = self.outputs()
        args = {n: np.ascontiguousarray(a) if side_by_side and isinstance(a, np.ndarray) else a for n, a in self.args.items()}
        report = self.compiled_kernel().simulate(self.grid, **args, **outputs, **self.options)
        assert not report.findings, f"seed {self.seed}: {report}\n{self.source}"
        return outputs

    def launch(self) -> dict[str, np.ndarray]:
        """Run on the GPU."""
        outputs = self.outputs()
        there = {n: tile.to_device(a) if isinstance(a, np.ndarray) else a for n, a in {**self.args, **outputs}.items()}
        self.compiled_kernel()[self.grid](**there, **self.options)
        return {n: there[n].numpy() for n in outputs}

    def differences(self, got: dict[str, np.ndarray], want: dict[str, np.ndarray] | None = None) -> list[str]:
        """Results that differ from NumPy's (or from `want`, the simulator's) by more than their slack."""
        found = []
        for name, expected in (want or self.expected).items():
            slack = np.zeros(expected.shape) if want and name in self.same_bits else self.slack[name]
            bad = ~_within(got[name], expected, slack)
            if bad.any():
                at = np.unravel_index(int(np.argmax(bad)), bad.shape)
                line = next((line.strip() for line in self.source.splitlines() if f"({name}[" in line), "")
                found.append(f"seed {self.seed}: {name}{list(map(int, at))} is {got[name][at]!r}, not {expected[at]!r} "
                             f"(slack {slack[at]:.3g}; {int(bad.sum())} of {bad.size} differ)  {line}")
        return found


def _within(got: np.ndarray, want: np.ndarray, slack: np.ndarray) -> np.ndarray:
    if got.dtype.kind in "biu":
        return got == want
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
        equal = (a == b) | (np.isnan(a) & np.isnan(b))
        near = np.abs(a - b) <= 2 * slack
        largest = float(np.finfo(got.dtype).max) if got.dtype.kind == "f" and got.dtype.itemsize > 1 else 3.3e38
        unsettled = (slack > 0) & (~np.isfinite(slack) | ~np.isfinite(b) | (np.abs(b) + slack >= largest))
        return equal | near | unsettled


def eps(dtype: str) -> float:
    return {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}.get(dtype, 0.0)


def rounding(dtype: str, values: np.ndarray) -> np.ndarray:
    """Half a unit in the last place, plus the smallest subnormal."""
    tiny = {"float16": 2.0**-25, "bfloat16": 2.0**-134, "float32": 2.0**-150, "float64": 0.0}.get(dtype, 0.0)
    with np.errstate(all="ignore"):
        return np.abs(values.astype(np.float64)) * eps(dtype) + tiny
