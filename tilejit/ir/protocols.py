"""The two protocols that an op's rules are written against: the simulated `Machine` and the code `Emitter`.

In the simulator a scalar is an array (B or 1, T or 1): B the batch of CTAs that run in lock step, T the threads of the
scope instance; a register tile is an array (B or 1, *shape) of the dtype's NumPy type. A leading 1 means the same in
every CTA. In the emitter a scalar is one emitted value of the thread, and a tile is a list of them, one per register.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..types import DType, Region, Tile
from .graph import Call


class Wait:
    """What a simulate rule returns to block: `ready()` gives a bool per CTA of the batch (or one for all).

    The machine asks again whenever anything has changed; CTAs that are ready go on without the others. `describe()` is
    the sentence for a deadlock's report. `then()` runs for the CTAs that go on and gives the results.
    """

    def __init__(self, ready: Callable[[], Any], describe: Callable[[], str], then: Callable[[], Any] | None = None):
        self.ready, self.describe, self.then = ready, describe, then


class Machine(Protocol):
    """One scope instance of a batch of CTAs, as `simulate` rules see it."""

    batch: int     # B
    threads: int   # T, threads of this scope instance
    grid: tuple[int, int, int]

    def program_id(self, axis: int) -> Any: ...
    def thread_ids(self) -> Any:
        """Absolute thread ids of the scope instance, (1, T)."""
    def memory(self, buffer: Any) -> Any:
        """The bytes behind a simulated buffer."""
    def read(self, region: Any, offsets: Any, mask: Any, other: Any, **how: Any) -> Any:
        """Elements of a buffer at element `offsets` (B, ...), `other` where `mask` is false."""
    def write(self, region: Any, offsets: Any, values: Any, mask: Any, **how: Any) -> None: ...
    def finding(self, kind: str, message: str, **where: Any) -> None: ...


class Emitter(Protocol):
    """LLVM IR for the code of one thread, as `emit` rules see it."""

    target: str
    threads: int   # threads of the current scope instance

    def asm(self, form: str, **operands: Any) -> Any:
        """Issue one instruction of the table by name; returns its results."""
    def thread_id(self) -> Any:
        """The thread's id relative to the scope."""
    def element(self, tile: Tile, reg: int) -> tuple:
        """The logical coordinates of register `reg` of the calling thread."""
    def address(self, region: Region, *coordinates: Any) -> Any: ...
    def constant(self, value: Any, dtype: DType) -> Any: ...


SimulateRule = Callable[..., Any]
EmitRule = Callable[..., Any]
__all__ = ["Call", "Emitter", "EmitRule", "Machine", "SimulateRule", "Wait"]
