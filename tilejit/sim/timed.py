"""The simulator with a clock: chunks and fibers that record who did what when.

The clock counts steps, not cycles. An operation of the lowered graph takes the threads that run it one step; an
asynchronous one is over STEPS_IN_FLIGHT steps after its issue, those of one pipe in turn; a wait ends when what it
waits for has happened. So each scope instance has a clock of its own, and barriers carry the time of their last
arrival.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from ..errors import LaunchError, Loc
from ..ir.graph import Call, Scope
from ..ir.machine_protocol import Wait
from ..timeline import Span, Timeline
from .chunk import Chunk
from .fiber import STEPS, Fiber
from .parting import Frame, Join
from .waits import ChildWait, RowWait
from .world import AsyncOp, World

STEPS_IN_FLIGHT = 20   # of an asynchronous operation
MOST_SPANS = 200_000   # that are recorded
# the agent that executes an operation in flight, by a part of its name; None for what is only a signal
AGENTS = {"commit of": None, "arrive_on_copies": None, "tensor": "TMA", "bulk": "bulk copies", "cp.async": "cp.async",
          "mma_async": "wgmma", "tcgen05.mma": "tcgen05.mma", "tcgen05": "tensor memory",
          "_async": "remote stores"}
KIND_OF_EFFECT = {"pure": "compute", "reads": "memory", "writes": "memory", "syncs": "sync"}


@dataclass(frozen=True)
class Recorded:
    """A span of all CTAs (linear ids) that did the same at the same time."""

    ctas: np.ndarray
    track: str
    name: str
    loc: Loc | None
    start: float
    end: float
    kind: str
    note: str = ""


class Recording:
    """The spans of a simulation."""

    def __init__(self, kernel: str, grid: tuple[int, ...]):
        self.kernel, self.grid = kernel, grid
        self.spans: list[Recorded] = []
        self.left_out = 0
        self.end = 0.0  # when the last chunk so far was over

    def add(self, span: Recorded) -> None:
        if len(self.spans) < MOST_SPANS:
            self.spans.append(span)
        else:
            self.left_out += 1

    def ctas(self) -> list[int]:
        """The CTAs of which something is recorded."""
        together = {id(span.ctas): span.ctas for span in self.spans}  # most spans share theirs with others
        return sorted({int(cta) for ctas in together.values() for cta in ctas})

    def timeline(self, ctas: Iterable[int] | int | None) -> Timeline:
        """The timeline of some CTAs, by default of the first one. LaunchError for CTAs of which nothing is recorded."""
        known = self.ctas()
        wanted: Any = known[:1] if ctas is None else ctas
        chosen = [int(wanted)] if isinstance(wanted, Integral) else list(wanted)
        for cta in chosen:
            if cta not in known:
                raise LaunchError(f"timeline shows CTAs by their linear number in the grid, "
                                  f"{known[0] if known else 0} to {known[-1] if known else 0} here, not {cta!r}")
        notes = ["Steps of the simulator, not cycles: an operation of the lowered kernel is one step of its threads, "
                 f"an asynchronous one takes {STEPS_IN_FLIGHT}."]
        if self.left_out:
            notes.append(f"Only the first {MOST_SPANS} spans are recorded; {self.left_out} are left out.")
        return Timeline(f"{self.kernel} on {self.grid}", self.of(chosen), "steps", notes)

    def of(self, ctas: list[int]) -> list[Span]:
        """The spans of some CTAs."""
        return [Span(f"CTA {cta}", s.track, s.name, s.start, s.end, s.kind, s.loc.line if s.loc else 0,
                     s.note or (s.loc.source_line.strip() if s.loc else ""))
                for cta in ctas for s in self.spans if cta in s.ctas]


def threads_in_words(low: int, high: int) -> str:
    """A range of threads, as warps if it is one of warps."""
    if low % 32 or high % 32:
        return f"thread {low}" if high - low == 1 else f"threads {low}-{high - 1}"
    first, last = low // 32, high // 32 - 1
    return f"warp {first}" if first == last else f"warps {first}-{last}"


class TimedFiber(Fiber):
    """A fiber with a clock: `now`, in steps."""

    sim: TimedChunk
    by_function = False
    now = 0.0
    resuming = False  # whether the call whose results are stored has waited, so that its step is over
    reason = ""       # what the current wait is for, in words
    # name, time and location of the beginning of the named ranges that it is in
    ranges: tuple[tuple[str, float, Loc | None], ...] = ()

    @property
    def track(self) -> str:
        return threads_in_words(self.low, self.high)

    def _timed_call(self, frame: Frame, call: Call) -> None:
        self.sim.time, self.sim.reached = self.now + 1, 0.0
        self._call(frame, call)

    def _timed_scope(self, frame: Frame, scope: Scope) -> None:
        self.sim.time = self.now
        self._scope(frame, scope)

    def _store_results(self, call: Call, outcome: Any) -> None:
        if not self.resuming:
            self._step(call)
        super()._store_results(call, outcome)

    def _step(self, call: Call) -> None:
        """A call has run: it took a step, and as long as what it has waited for."""
        if "range_name" in call.attrs:
            return
        self._record(call, self.now, self.now + 1, KIND_OF_EFFECT[call.op.effect])
        self.now += 1
        if self.sim.reached > self.now:
            self._record(call, self.now, self.sim.reached, "wait")
            self.now = self.sim.reached

    def _record(self, node: Any, start: float, end: float, kind: str, note: str = "") -> None:
        name = "end of the kernel" if node is None else "spin"
        if isinstance(node, Call):
            name = node.op.traits.shown or str(node.op.name).rstrip("_")
        self.sim.recording.add(Recorded(self.m.ctas, self.track, name, getattr(node, "loc", None), start, end, kind,
                                        note))

    def block(self, wait: Wait, call: Call | None = None) -> None:
        self.reason = "" if isinstance(wait, ChildWait) or np.all(wait.ready()) else wait.describe()
        super().block(wait, call)

    def _resume(self) -> None:
        wait, call = self.wait, self.waiting_call
        until = self.sim.time_of_end(wait) if wait is not None else self.now
        if until > self.now:
            # threads whose own scopes are at work wait for nobody
            if not isinstance(wait, ChildWait):
                self._record(call or getattr(wait, "node", None), self.now, until, "wait", self.reason)
            self.now = until
        self.sim.time, self.sim.reached = self.now, 0.0
        self.resuming = call is not None
        super()._resume()
        self.resuming = False

    def fork(self, mask: np.ndarray) -> Fiber:
        new: Any = super().fork(mask)
        new.now, new.ranges = self.now, self.ranges
        return new

    def _meet(self, join: Join) -> None:
        self.now = max(part.now for part in join.parked)
        super()._meet(join)

    def _finish(self) -> None:
        self.sim.time = self.now
        super()._finish()
        if self.done and self.spawn is not None:
            self.spawn.ended = max(self.spawn.ended, self.now)

    STEPS = {**STEPS, Call: _timed_call, Scope: _timed_scope}


class TimedChunk(Chunk):
    """A chunk whose fibers and operations in flight have times. `time` is that of what happens now, and `reached` the
    latest end of an operation that the current call has waited for."""

    FIBER = TimedFiber

    def __init__(self, *args: Any, recording: Recording, **kwargs: Any):
        self.recording, self.time, self.reached, self.last = recording, recording.end, 0.0, recording.end
        self.issued: dict[int, tuple[float, float]] = {}  # an operation's number -> the times of its issue and its end
        self.pipes: dict[tuple, float] = {}               # when the last operation of a pipe is over
        super().__init__(*args, **kwargs)

    def add(self, fiber: Fiber) -> None:
        assert isinstance(fiber, TimedFiber)
        fiber.now = self.time
        super().add(fiber)

    def remove(self, fiber: Fiber) -> None:
        assert isinstance(fiber, TimedFiber)
        self.last = max(self.last, fiber.now)
        super().remove(fiber)

    # -- barriers ------------------------------------------------------------------------------------------------------

    def note_arrival(self, world: World, key: tuple, number: int) -> None:
        """Something has arrived for completion `number` of a barrier."""
        key = "time", *key, number
        world.facts[key] = max(world.facts.get(key, 0.0), self.time)

    def settle_phase(self, world: World, rank: int, number: int) -> None:
        self.note_arrival(world, (rank, number), world.barriers[rank, number].phase + 1)
        super().settle_phase(world, rank, number)

    def time_of_end(self, wait: Any) -> float:
        """When what a wait is for has happened; where that is unknown, when something last happened."""
        if isinstance(wait, ChildWait):
            return max((spawn.ended for spawn in wait.spawns), default=0.0)
        events = list(wait.events()) if isinstance(wait, RowWait) else []
        if not events:
            return self.time
        return max(world.facts.get(("time", *key), 0.0) for world, key in events)

    # -- operations in flight ------------------------------------------------------------------------------------------

    def next_operation(self) -> int:
        number = super().next_operation()
        self.issued[number] = self.time, self.time + STEPS_IN_FLIGHT
        return number

    def _end_of(self, op: AsyncOp) -> float:
        """When an operation is over: after those ahead of it in its pipe, and, for a commit, those that it covers."""
        issue, end = self.issued[op.number]
        return max([end, *(self.issued[n][1] for n in op.covers)]) if op.covers else end

    def mark_range(self, fiber: Fiber, name: str, begins: bool) -> None:
        """A named range of a fiber begins or ends. Marks take no time."""
        assert isinstance(fiber, TimedFiber)
        if begins:
            fiber.ranges += (name, fiber.now, fiber.m.loc),
            return
        at = max((i for i, (own, _, _) in enumerate(fiber.ranges) if own == name), default=None)
        if at is not None:
            _, start, loc = fiber.ranges[at]
            fiber.ranges = fiber.ranges[:at] + fiber.ranges[at + 1:]
            self.recording.add(Recorded(fiber.m.ctas, fiber.track, name, loc, start, fiber.now, "range"))

    def note_issue(self, op: AsyncOp) -> None:
        """An operation joins a pipe."""
        if op.pipe is not None:
            issue, end = self.issued[op.number]
            key = op.pipe, op.rank, op.thread, id(op.world)
            self.pipes[key] = max(end, self.pipes.get(key, 0.0) + 1)
            self.issued[op.number] = issue, self.pipes[key]

    def land(self, op: AsyncOp, tag: tuple | None = None, count: bool = True) -> None:
        end = self._end_of(op)
        self.reached = max(self.reached, end)
        if not op.over:
            self._record(op, end)
            before, self.time = self.time, end
            super().land(op, tag, count)
            self.time = before

    def free_sources(self, op: AsyncOp) -> None:
        self.reached = max(self.reached, self._end_of(op))
        super().free_sources(op)

    def _record(self, op: AsyncOp, end: float) -> None:
        agent = next((agent for part, agent in AGENTS.items() if part in op.what), op.what)
        if agent is not None:
            self.last = max(self.last, end)
            self.recording.add(Recorded(self.ctas[self._rows_of(op)], agent, op.what.removeprefix("the "),
                                        self.locs[op.line], self.issued[op.number][0], end, "async"))

    def _close(self) -> None:
        for op in self._flight():
            self._record(op, self._end_of(op))
        super()._close()

    def run(self) -> None:
        super().run()
        for fiber in self.fibers:  # a deadlock: they wait until the end
            assert isinstance(fiber, TimedFiber)
            if fiber.wait is not None and not isinstance(fiber.wait, ChildWait):
                self.last = max(self.last, fiber.now + 1)
                fiber._record(fiber.waiting_call or getattr(fiber.wait, "node", None), fiber.now, self.last, "wait",
                              f"{fiber.reason}: for ever")
        self.recording.end = self.last
