"""How a fiber is split in two where its CTAs diverge, and merged where they reconverge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .machine import Machine
from .parts import FiberParts
from .program import Code
from .values import merge, take

if TYPE_CHECKING:
    from .fiber import Fiber
    from .thread_loops import Trips


class Join:
    """The reconvergence point of the parts of a fiber that was split inside a construct."""

    __slots__ = ("depth", "parts", "parked", "broken")

    def __init__(self, depth: int):
        self.depth = depth      # number of frames at the reconvergence point
        self.parts = 1          # parts that are running or parked
        self.parked: list[Any] = []  # fibers
        self.broken = False


class Spawn:
    """A scope instance that runs concurrently with its parent: its threads, and the CTAs of the chunk in which it has
    not ended. `ended` is when it has, by the clock of `timed.TimedFiber`."""

    __slots__ = ("low", "high", "live", "count", "ended")

    def __init__(self, low: int, high: int, rows: np.ndarray, chunk_rows: int):
        self.low, self.high = low, high
        self.live = np.zeros(chunk_rows, bool)
        self.live[rows] = True
        self.count = len(rows)
        self.ended = 0.0

    def end(self, rows: np.ndarray) -> None:
        """It has ended in these CTAs."""
        self.live[rows] = False
        self.count -= len(rows)


class Spin:
    """A state of a while loop to compare later ones with, for `period` iterations of which some are `left`: the
    values that it carries, and the `version` of all that may end a wait."""

    __slots__ = ("version", "state", "period", "left")

    def __init__(self, version: int, state: list, period: int, left: int):
        self.version, self.state, self.period, self.left = version, state, period, left


class Frame:
    """A block being executed. `node` is the construct it belongs to, `stage` says which of its blocks it is, and
    `state` holds the loop's or branch's own state. `active` is the mask of active threads (B or 1, T), None for
    all."""

    __slots__ = ("code", "pc", "node", "stage", "state", "active", "joins", "spin", "since", "trips")

    def __init__(self, code: Code, node=None, stage: str = "", state: tuple = (), active: np.ndarray | None = None):
        self.code, self.pc, self.node, self.stage, self.state, self.active = code, 0, node, stage, state, active
        self.joins: list[Join] = []
        self.spin: Spin | None = None
        self.trips: Trips | None = None   # of a loop that runs by a function for each thread
        self.since: float | None = None   # when the frame was first seen to be on top of its fiber: see `chunk.NOTICE`

    def take(self, rows: np.ndarray) -> Frame:
        new = Frame(self.code, self.node, self.stage, take(self.state, rows), take(self.active, rows))
        new.pc, new.joins = self.pc, list(self.joins)
        return new


class Parting(FiberParts):
    """The part of a fiber that splits and merges it."""

    rows: np.ndarray
    env: dict[Any, Any]
    frames: list[Frame]
    children: list[Spawn]
    polled: int
    m: Machine
    wait: Any

    def fork(self, mask: np.ndarray) -> Fiber:
        """Split: the CTAs where `mask` is false move to a new fiber, which is returned; this one keeps the others."""
        other = ~mask
        new: Any = type(self).__new__(type(self))
        new.sim, new.rank, new.rows = self.sim, self.rank, self.rows[other]
        new.low, new.high, new.spawn = self.low, self.high, self.spawn
        new.env = {v: take(x, other) for v, x in self.env.items()}
        new.frames = [f.take(other) for f in self.frames]
        new.after, new.children = list(self.after), list(self.children)
        new.polled, new.parked, new.done, new.node, new.left = -1, False, False, self.node, self.left
        new.ahead, new.unjoined, new.budget = self.ahead, self.unjoined, 0
        new.m = Machine(new)
        new.waiting_call = self.waiting_call
        new.wait = self.wait.bound(new, other) if self.wait is not None else None
        wait = self.wait
        self.rows = self.rows[mask]
        self.env = {v: take(x, mask) for v, x in self.env.items()}
        self.frames = [f.take(mask) for f in self.frames]
        self.m = Machine(self)
        self.wait = wait.bound(self, mask) if wait is not None else None
        self.polled = -1
        for frame in self.frames:
            for join in frame.joins:
                join.parts += 1
        self.sim.add(new)
        return new

    def open_join(self) -> None:
        """Let the parts of this fiber reconverge at the end of the construct that begins here."""
        self.frames[-1].joins.append(Join(len(self.frames)))

    def _end_construct(self, frame: Frame) -> None:
        """Go on after the construct at the frame's pc, once all parts of the fiber have reached its end."""
        while frame.joins:
            join = frame.joins[-1]
            if join.broken or join.parts == 1:
                frame.joins.pop()
                continue
            join.parked.append(self)
            if len(join.parked) < join.parts:
                self.parked = True
                return
            self._meet(join)
            frame = self.frames[-1]
            frame.joins.pop()
        self._advance(frame)

    def _meet(self, join: Join) -> None:
        """Merge all parts, which are parked, into this fiber."""
        parts = join.parked
        rows = np.concatenate([p.rows for p in parts])
        order = np.argsort(rows, kind="stable")
        place = np.empty(len(rows), np.int64)
        place[order] = np.arange(len(rows))
        where, at = [], 0
        for p in parts:
            where.append(place[at:at + p.batch])
            at += p.batch
        batch = len(rows)
        common = [v for v in self.env if all(v in p.env for p in parts)]
        env = {v: merge([p.env[v] for p in parts], where, batch) for v in common}
        for i, frame in enumerate(self.frames):
            frame.state = merge([p.frames[i].state for p in parts], where, batch)
            frame.active = merge([p.frames[i].active for p in parts], where, batch)
            for outer in frame.joins:
                outer.parts -= len(parts) - 1
        self.children = list({id(s): s for p in parts for s in p.children}.values())
        for p in parts:
            if p is not self:
                self.sim.remove(p)
        self.rows, self.env = rows[order], env
        self.parked = False
        self.m = Machine(self)
        join.parts = 1

    def release_parked(self) -> bool:
        """Go on without the other parts, because these are stuck. False if this fiber is not parked."""
        if not self.parked:
            return False
        join = self.frames[-1].joins[-1]
        join.broken = True
        for part in join.parked:
            part.parked = False
            part._end_construct(part.frames[-1])
        return True
