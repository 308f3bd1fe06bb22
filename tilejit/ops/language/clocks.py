"""``clock`` and ``globaltimer``: the time, from special registers."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ...dtypes import uint64
from ...ir.builder import Builder
from ...ir.builtin import builtin
from ...ir.op import Op, op
from ...types import Scalar, Uniformity


def _clock(name: str, register: str, doc: str, read: Callable[[], int]) -> Op:
    """Declare a clock, a uint64 scalar. `read` is the simulator's."""
    def declaration(): ...
    declaration.__name__, declaration.__doc__ = name, doc
    declared = op("syncs")(declaration)  # stays where it is among accesses to memory

    @declared.infer
    def _(g):
        return Scalar(uint64, Uniformity.THREAD)

    @declared.simulate
    def _(m, call):
        return np.full((1, 1), read(), np.uint64)

    @declared.emit
    def _(e, call):
        return e.asm(f"mov.u64 $0, %{register};", [uint64])[0]

    return declared


_cycles = _clock("clock", "clock64", "The cycles that the multiprocessor has counted.", time.perf_counter_ns)
_nanoseconds = _clock("globaltimer", "globaltimer", "The GPU's time in nanoseconds.", time.time_ns)


@builtin
def clock(g: Builder):
    """The cycles that this thread's multiprocessor has counted, a uint64; only the difference of two readings on one
    multiprocessor has a meaning. A reading is not moved past memory accesses, but does not wait for them: load results
    arrive later. On the simulator: nanoseconds of the host's clock. PTX ISA, "%clock64"."""
    return g.call(_cycles)


@builtin
def globaltimer(g: Builder):
    """The GPU's time in nanoseconds, a uint64 that all multiprocessors share. How often it advances depends on the GPU.
    On the simulator: the host's time. PTX ISA, "%globaltimer"."""
    return g.call(_nanoseconds)
