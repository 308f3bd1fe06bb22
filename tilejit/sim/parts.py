"""Typed interfaces of a fiber and a chunk for their own parts: what each uses of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, Protocol

    import numpy as np

    from ..errors import Loc
    from ..ir.graph import Call, Operand, Value
    from ..ir.machine_protocol import Wait
    from .barriers import MBarrier
    from .chunk import Chunk
    from .fiber import Fiber
    from .global_clocks import GlobalClocks
    from .machine import Machine
    from .parting import Frame, Spawn
    from .report import Report
    from .world import World

    class FiberParts(Protocol):
        """A fiber as its parts see it; `Fiber` has all of it."""

        # Fiber, in fiber.py
        rank: int
        rows: np.ndarray
        sim: Chunk
        high: int
        low: int
        env: dict[Value, Any]
        frames: list[Frame]
        after: list[Spawn]
        spawn: Spawn | None
        children: list[Spawn]
        wait: Wait | None
        waiting_call: Any
        polled: int
        parked: bool
        ahead: int
        unjoined: Any
        left: bool
        m: Machine
        node: Any
        budget: int
        @property
        def batch(self) -> int: ...
        def block(self, wait: Wait, call: Call | None=None) -> None: ...
        def value(self, operand: Operand) -> Any: ...
        def define(self, value: Value, x: Any) -> None: ...
        def _advance(self, frame: Frame) -> None: ...

    class ChunkParts(Protocol):
        """A chunk as its parts see it; `Chunk` has all of it."""

        # Verdicts, in verdicts.py
        def _fault(self, world: World, rank: int, kind: str, loc: Loc | None, message: str, threads: tuple=(),
                   protocol: bool=True) -> None: ...
        def note_laggards(self, world: World, barrier: MBarrier) -> None: ...
        # Chunk, in chunk.py
        report: Report
        patient: bool
        rng: np.random.Generator
        clusters: int
        worlds: list[World]
        world_of: np.ndarray
        global_clocks: GlobalClocks | None
        version: int
        tick: int
        flying: int
        operations: int
        locs: list[Loc | None]
        fibers: list[Fiber]
        stuck: bool
        ctas: np.ndarray
        def cells(self, space: str) -> int: ...
        def atom_threads(self, atom: int) -> tuple[int, int]: ...
else:
    FiberParts = ChunkParts = object  # the parts are mixed into one class
