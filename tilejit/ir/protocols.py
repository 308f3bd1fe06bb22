"""The two protocols that an op's rules are written against: the simulated `Machine` and the code `Emitter`.

In the simulator a scalar is an array (B or 1, T or 1): B is the batch of CTAs that run in lock step, T the threads of
the scope instance. A register tile is an array (B or 1, *shape) of the dtype's NumPy type. A leading 1 means that all
CTAs have the same. In the emitter a scalar is one emitted value of the thread, and a tile is a list of them, one per
register.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..dtypes import DType
from ..types import Tile


class Wait:
    """What a simulate rule returns to block: `ready()` gives a bool per CTA of the batch (or one for all).

    The machine asks again whenever anything has changed, and goes on when all CTAs are ready. Its own waits
    (`sim.waits.RowWait`) can be split: then some CTAs go on without the others. `describe()` is the sentence for the
    report of a deadlock. `then()` runs for the CTAs that go on and returns the results.
    """

    def __init__(self, ready: Callable[[], Any], describe: Callable[[], str], then: Callable[[], Any] | None = None):
        self.ready, self.describe, self.then = ready, describe, then


class Machine(Protocol):
    """One scope instance of a batch of CTAs, as `simulate` rules see it. `sim.machine.Machine` implements it."""

    batch: int     # B
    threads: int   # T, threads of this scope instance
    active: Any    # the threads that take part, (B or 1, T)
    ctas: Any      # linear ids of the CTAs in the grid, (B,)
    grid: tuple[int, int, int]
    target: str

    def program_id(self, axis: int) -> Any:
        """(B, 1), or (1, 1) where all CTAs have the same."""
    def thread_ids(self) -> Any:
        """Absolute thread ids of the scope instance, (1, T)."""
    def resolve(self, n: Any) -> int:
        """The value of a number that is only known at launch."""
    def owners(self, tile: Tile) -> Any:
        """For each element the thread of the scope that holds it."""
    def read(self, buffer: Any, coords: Any, *, mask: Any = None, other: Any = 0, owner: Any = None,
             region: Any = None) -> Any:
        """Elements of a buffer at `coords` (None: those of `region`), `other` where `mask` is false."""
    def write(self, buffer: Any, coords: Any, values: Any, *, mask: Any = None, owner: Any = None,
              region: Any = None) -> None: ...
    def issue(self, operation: Any, **how: Any) -> None:
        """Start an asynchronous operation, with the spans of shared or tensor memory that it reads and writes."""
    def sync(self) -> Any: ...
    def wait(self, barrier: Any, parity: Any) -> Wait: ...
    def finding(self, kind: str, message: str, **where: Any) -> None: ...


class Emitter(Protocol):
    """LLVM IR for the code of one thread, as `emit` rules see it."""

    target: str
    threads: int   # threads of the current scope instance

    def asm(self, text: str, outputs: Any = (), inputs: Any = (), ties: Any = None, *, pure: bool = False,
            convergent: bool = False) -> Any:
        """One inline asm call: ``$0, $1, ...`` count outputs, then inputs; returns the outputs' values."""
    def ins(self, text: str, dtype: DType) -> Any:
        """One LLVM instruction and its value."""
    def const(self, value: Any, dtype: DType) -> Any: ...
    def thread_id(self) -> Any:
        """The thread's id relative to the scope."""
    def registers(self, t: Tile) -> int:
        """How many elements of a tile each thread holds."""
    def coordinates(self, t: Tile, reg: int) -> Any:
        """The logical coordinates of register `reg` of the calling thread."""
    def sync(self) -> None: ...
