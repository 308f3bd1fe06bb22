"""The parts of a random kernel: pieces of source with the values that they compute, and the program made of them.

A value carries an error bound (`slack`). It is 0 if each operation is exact or correctly rounded, so that the bits are
determined; otherwise it covers the order of additions, contraction to a fused multiply-add, and the documented ulp.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import tilejit as tile
from tilejit.runtime import driver
from tilejit.sim import launch as sim_launch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "language"))
from language_reference import np_dtype

PACKED = ("float4_", "float6_")


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
    simulator's bits on every backend. `scratch` are shapes and dtypes of arrays of zeros that the kernel uses for itself, `draws` what
    it is known to use, by the names of `fuzz_variants`."""

    seed: int
    source: str
    args: dict[str, Any]
    grid: tuple
    options: dict[str, Any]
    expected: dict[str, np.ndarray]
    slack: dict[str, np.ndarray]
    same_bits: set[str] = field(default_factory=set)
    scratch: dict[str, tuple] = field(default_factory=dict)
    draws: set[str] = field(default_factory=set)
    kernel: Any = field(default=None, repr=False)

    def compiled_kernel(self):
        if self.kernel is None:
            from fuzz_shapes import HELPERS
            from tilejit.frontend import Source
            from tilejit.jit import Kernel
            self.kernel = Kernel(Source.from_text(self.source, {"tile": tile, **HELPERS}, file=f"<seed {self.seed}>"), {})
        return self.kernel

    def outputs(self, replicas: int = 1) -> dict[str, np.ndarray]:
        """The outputs before a launch, and arrays that the kernel needs for itself, of each replica of the grid."""
        made = {n: np.zeros((replicas, *w.shape), w.dtype) for n, w in self.expected.items()}
        return made | {n: aligned((replicas, *shape), dtype) for n, (shape, dtype) in self.scratch.items()}

    def arguments(self, replicas: int = 1) -> dict[str, Any]:
        """The arguments of a launch but for the outputs, with its options."""
        return {**self.args, "REPLICAS": replicas, **self.options}

    def simulate(self, side_by_side: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
        """Run on the simulator; fails on its findings. `side_by_side` gives the arguments the strides that `launch` gives them, which
        determine layouts and therefore the order of sums. Where CTAs run several programs, there are as many of them as there are programs,
        or one, or two."""
        outputs = self.outputs()
        args = {n: np.ascontiguousarray(a) if side_by_side and isinstance(a, np.ndarray) else a for n, a in self.arguments().items()}
        with mock.patch.object(sim_launch, "RESIDENT", (None, 1, 2)[self.seed % 3]):
            report = self.compiled_kernel().simulate((*self.grid, 1), **args, **outputs, seed=seed)
        assert not report.findings, f"seed {self.seed}: {report}\n{self.source}"
        return {n: outputs[n][0] for n in self.expected}

    def launch(self, replicas: int = 1, times: int = 1, device: int = 0) -> dict[str, np.ndarray]:
        """Run on the GPU and return the outputs. Raises `Unequal` if one of the `replicas` of the grid, or of `times` launches, computes
        other bytes than the first."""
        there = {n: tile.to_device(a, device) if isinstance(a, (np.ndarray, tile.Packed)) else a for n, a in self.arguments(replicas).items()}
        shapes = {n: (w.shape, w.dtype.name) for n, w in self.expected.items()}
        outputs = {n: tile.empty((replicas, *shape), dtype, device) for n, (shape, dtype) in (shapes | self.scratch).items()}
        check = Repetitions({n: outputs[n] for n in shapes}, times, device)
        for k in range(times):
            for array in outputs.values():
                driver.fill(array.pointer, 0, array.nbytes, device)
            self.compiled_kernel()[(*self.grid, replicas)](**there, **outputs)
            check.launched(k)
        got = {n: outputs[n][0].numpy() for n in shapes}
        check.finish()
        return got

    # -- to files --------------------------------------------------------------------------------------------------------------

    def save(self, path) -> None:
        """Write the program to an ``.npz`` file that `read` reads, whatever the generator becomes."""
        arrays, kinds = {}, {}
        for group in ("args", "expected", "slack"):
            for name, value in getattr(self, group).items():
                array = np.asarray(value.data if isinstance(value, tile.Packed) else value)
                kinds[f"{group}.{name}"] = value.dtype.name if isinstance(value, tile.Packed) else array.dtype.name
                arrays[f"{group}.{name}"] = array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")
        rest = {"seed": self.seed, "source": self.source, "grid": self.grid, "options": self.options, "same_bits": sorted(self.same_bits),
                "scratch": self.scratch, "kinds": kinds}
        np.savez_compressed(path, program=json.dumps(rest), **arrays)

    @classmethod
    def read(cls, path) -> Program:
        """The program of a file that `save` wrote."""
        held = np.load(path)
        rest = json.loads(str(held["program"]))
        groups: dict[str, dict] = {"args": {}, "expected": {}, "slack": {}}
        for key, kind in rest.pop("kinds").items():
            group, name = key.split(".", 1)
            array = held[key]
            if kind.startswith(PACKED):
                groups[group][name] = tile.Packed(array, kind)
            else:
                groups[group][name] = array.view(np_dtype(kind)) if array.shape else array[()].item()
        rest |= {"grid": tuple(rest["grid"]), "same_bits": set(rest["same_bits"])}
        rest["scratch"] = {n: (tuple(shape), dtype) for n, (shape, dtype) in rest["scratch"].items()}
        rest["options"] = {n: tuple(v) if isinstance(v, list) else v for n, v in rest["options"].items()}
        return cls(**rest, **groups)

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


class Unequal(Exception):
    """Two executions of a kernel on the same arguments gave different bytes."""


@tile.jit(num_warps=4)
def compare(x, first, found, BLOCK: tile.constexpr):
    """Record in ``found[0]`` the least index of an element of a row of `x` that differs from `first`."""
    r, at = tile.program_id(0), tile.program_id(1) * BLOCK + tile.arange(BLOCK)
    n = first.shape[0]
    inside = at < n
    differs = (tile.load(x[r, at], mask=inside, other=0) != tile.load(first[at], mask=inside, other=0)) & inside
    least = tile.min(tile.where(differs, tile.cast(r, tile.int64) * n + at, 1 << 62))
    if least < 1 << 62:
        tile.atomic_min(found[0], least)


class Repetitions:
    """Compares the outputs of several launches of a replicated grid on the device: each replica's bytes with those of the first launch's first."""

    def __init__(self, outputs: dict, times: int, device: int):
        self.outputs, self.device = list(outputs.items()), device
        self.first = [tile.empty(a.shape[1:], a.dtype.name, device) for _, a in self.outputs]
        self.found = tile.to_device(np.full((times, max(len(self.outputs), 1)), 1 << 62, np.int64), device)

    def launched(self, k: int) -> None:
        """After launch `k`."""
        for at, ((_, array), first) in enumerate(zip(self.outputs, self.first)):
            if not k:
                driver.copy_on_device(first.pointer, array.pointer, first.nbytes, self.device)
            x, row = (as_bytes(a, n) for a, n in ((array, array.shape[0]), (first, 1)))
            compare[(array.shape[0], -(-row.shape[1] // 1024))](x, row[0], self.found[k, at:at + 1], BLOCK=1024)

    def finish(self) -> None:
        """Wait for all launches; raises `Unequal` if bytes differed."""
        found = self.found.numpy()
        if (found < 1 << 62).any():
            k, at = map(int, np.argwhere(found < 1 << 62)[0])
            name, array = self.outputs[at]
            row = as_bytes(array, array.shape[0]).shape[1]
            place = int(found[k, at]) % row * (array[0].nbytes // row) // array.dtype.itemsize
            raise Unequal(f"{name}{list(map(int, np.unravel_index(place, array.shape[1:])))} of replica {int(found[k, at]) // row} in launch {k} "
                          f"differs from the first; {int((found < 1 << 62).any(axis=1).sum())} of {len(found)} launches have differences")


def as_bytes(array, rows: int):
    """A device array as rows of words of 4 bytes, or of single bytes if they are no whole number."""
    size = 4 if array.nbytes // rows % 4 == 0 else 1
    n = array.nbytes // rows // size
    return type(array)(array.pointer, (rows, n), (n, 1), np.dtype(f"u{size}"), array.device, array)


def aligned(shape: tuple, dtype: str) -> np.ndarray:
    """Zeros that begin at a multiple of 128 bytes, as tensor maps in memory must."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 128, np.uint8)
    return raw[-raw.ctypes.data % 128:][:nbytes].view(dtype).reshape(shape)


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
    """Half a unit in the last place, plus half the smallest subnormal (for float64 the whole: its half is 0 in float64)."""
    tiny = {"float16": 2.0**-25, "bfloat16": 2.0**-134, "float32": 2.0**-150, "float64": 5e-324}.get(dtype, 0.0)
    with np.errstate(all="ignore"):
        return np.abs(values.astype(np.float64)) * eps(dtype) + tiny
