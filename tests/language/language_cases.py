"""Kernels with their inputs and the results expected by NumPy: run on the simulator, compiled for each target, run on the GPU."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tilejit as tile
from language_reference import difference
from tilejit.runtime.device_array import DeviceArray

from tests.gpu import some

TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


@dataclass(frozen=True)
class View:
    """A strided part of an array: ``base[index]``, with its dimensions reversed if `transposed`."""

    base: np.ndarray
    index: tuple = (Ellipsis,)
    transposed: bool = False

    def of(self, base):
        """The same part of another array, on the host or on the GPU."""
        part = base[self.index]
        return part.T if self.transposed else part


@dataclass(frozen=True)
class Strided(View):
    """A view with arbitrary strides of a flat array: element (i, j, ...) is number ``offset + i * strides[0] + j * strides[1] + ...``."""

    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0

    def of(self, base):
        nbytes = base.dtype.itemsize
        if not isinstance(base, np.ndarray):
            return DeviceArray(base.pointer + self.offset * nbytes, self.shape, self.strides, base.dtype, base.device, base._memory)
        view = np.ndarray(self.shape, base.dtype, base, self.offset * nbytes, [s * nbytes for s in self.strides])
        view.flags.writeable = 0 not in self.strides
        return view


def host(x):
    return x.of(x.base) if isinstance(x, View) else x


@dataclass
class Case:
    """A kernel: its source, its arguments, and for each output (by parameter name) the expected values and the comparison
    ("bits", "value", or a number of ulp). Outputs are not among the arguments; `start` gives their initial values. An
    argument or a start may be a View; for an output that is one, the whole base is compared."""

    name: str
    source: str
    args: dict[str, Any]
    expected: dict[str, np.ndarray]
    how: dict[str, Any] = field(default_factory=dict)
    grid: tuple = (1,)
    options: dict[str, Any] = field(default_factory=dict)
    start: dict[str, np.ndarray] = field(default_factory=dict)
    namespace: dict[str, Any] = field(default_factory=dict)
    refused: str = ""     # the error expected when compiling for sm_80
    warm: Any = None

    def kernel(self):
        if self.warm is None:
            from tilejit.frontend import Source
            from tilejit.jit import Kernel
            self.warm = Kernel(Source.from_text(self.source, {"tile": tile, **self.namespace}), {})
        return self.warm

    def arguments(self) -> dict[str, Any]:
        """Fresh arguments by name."""
        outputs = {n: _fresh(self.start[n]) if n in self.start else np.zeros_like(w) for n, w in self.expected.items()}
        return {**self.args, **outputs}

    def problems(self, arguments: dict[str, Any]) -> list[str]:
        """The differences from the expected results."""
        found = []
        for name, want in self.expected.items():
            got = arguments[name].base if isinstance(arguments[name], View) else arguments[name]
            text = difference(got, want, self.how.get(name, "bits"))
            if text:
                found.append(f"{self.name}: {name} ({self.line_of(name)}): {text}")
        return found

    def line_of(self, output: str) -> str:
        return next((line.strip() for line in self.source.splitlines() if f"store({output}[" in line), "")

    def simulate(self) -> list[str]:
        """Run on the simulator; returns differences and findings."""
        arguments = self.arguments()
        report = self.kernel().simulate(self.grid, **{n: host(a) for n, a in arguments.items()}, **self.options)
        return [f"{self.name}: {f}" for f in report.findings] + self.problems(arguments)

    def compile(self, target: str):
        return self.kernel().compile(**{n: host(a) for n, a in self.arguments().items()}, **self.options, target=target)

    def launch(self, copies: bool = False) -> list[str]:
        """Run on the GPU, on device arrays (or on host arrays, which the launch copies); returns differences."""
        arguments = self.arguments()
        if copies:
            self.kernel()[self.grid](**{n: host(a) for n, a in arguments.items()}, **self.options, backend="cuda")
            return self.problems(arguments)
        there = {n: tile.to_device(_whole(a)) if isinstance(a, (np.ndarray, View)) else a for n, a in arguments.items()}
        parts = {n: arguments[n].of(a) if isinstance(arguments[n], View) else a for n, a in there.items()}
        self.kernel()[self.grid](**parts, **self.options)
        return self.problems({n: there[n].numpy() for n in self.expected})


def _fresh(x):
    return replace(x, base=x.base.copy()) if isinstance(x, View) else x.copy()


def _whole(x):
    return x.base if isinstance(x, View) else x


def check_on_simulator(cases) -> None:
    """Fail with the differences of all cases."""
    found = [problem for case in cases for problem in case.simulate()]
    assert not found, f"{len(found)} problems\n" + "\n".join(found[:40])


def check_on_gpu(cases, copies: bool = False) -> str:
    """Run all cases on the GPU, even after failures; returns a summary, or fails with the differences."""
    import time
    begin, found, count = time.perf_counter(), [], 0
    for case in some(cases):
        count += 1
        try:
            found += case.launch(copies)
        except tile.TileError as error:
            found.append(f"{case.name}: {type(error).__name__}: {str(error)[:600]}")
    summary = f"{count} kernels on the GPU in {time.perf_counter() - begin:.1f} s, {len(found)} problems"
    print(summary)
    assert not found, summary + "\n" + "\n".join(found[:60])
    return summary
