"""How a fiber runs branches and loops whose conditions may differ among its CTAs and its threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.builder import element_type
from ..ir.graph import Block, For, If, Node, While
from .parting import Frame, Parting, Spin
from .thread_loops import ThreadLoop, Trips, calls_in
from .waits import SpinWait


class Control(Parting):
    """The part of a fiber that runs structural nodes. Where CTAs diverge, the fiber is split in two; where threads of
    a CTA diverge, both sides run one after the other under masks of active threads."""

    by_function = True  # whether a loop may go on by a function for each thread, where nobody looks at single trips

    def decide(self, test: np.ndarray, active: np.ndarray | None):
        """The outcome of a condition: a bool if all agree, a mask over the CTAs (B,) if these differ, a mask (B or 1,
        T) if threads do."""
        test = np.asarray(test, bool)
        if active is not None:
            mask = test & active
            if not mask.any():
                return False
            return True if np.array_equal(mask, np.broadcast_to(active, mask.shape)) else mask
        if test.size == 1:
            return bool(test.flat[0])
        by_cta = test.all(axis=1)
        if test.shape[1] > 1 and (by_cta != test.any(axis=1)).any():
            return test
        if by_cta.all():
            return True
        return by_cta if by_cta.any() else False

    def _find_alike(self, way, node: Node) -> np.ndarray | None:
        """The CTAs (B,) in which the same threads as in the first go a way. None if that holds for all, or if what the
        threads do in the blocks of `node` orders no accesses, which is recorded for all CTAs of a fiber at once."""
        if not isinstance(way, np.ndarray) or way.ndim == 1 or len(way) == 1:
            return None
        if node not in self.sim.program.atoms.apart:
            return None
        alike = (way == way[0]).all(axis=1)
        return None if alike.all() else alike

    def _divide(self, way: np.ndarray) -> list[Any]:
        """Split until the same threads go a way (B, T) in all CTAs of a part. Returns the parts, this one first."""
        which = np.unique(way, axis=0, return_inverse=True)[1].reshape(-1)
        parts = [self]
        while (which != which[0]).any():
            alike = which == which[0]
            parts.append(parts[-1].fork(alike))
            which = which[~alike]
        return parts

    def _if(self, frame: Frame, node: If) -> None:
        way = self.decide(self.value(node.test), frame.active)
        if isinstance(way, np.ndarray) and way.ndim == 1:
            self.open_join()
            self.fork(way)
            return  # both parts evaluate this node again, each with a uniform condition
        alike = self._find_alike(way, node)
        if alike is not None:
            self.open_join()
            self.fork(alike)
            return
        if isinstance(way, np.ndarray):
            outer = True if frame.active is None else frame.active
            self.frames.append(Frame(self.sim.program.code(node.then, node), node, "then", (way,), way & outer))
            return
        block = node.then if way else node.orelse
        self.frames.append(Frame(self.sim.program.code(block, node), node, "whole", (), frame.active))

    def _end_if(self, frame: Frame) -> None:
        node = frame.node
        values = tuple(self.value(y) for y in frame.code.yields)
        self.frames.pop()
        below = self.frames[-1]
        if frame.stage == "then":
            outer = True if below.active is None else below.active
            rest = ~frame.state[0] & outer
            self.frames.append(Frame(self.sim.program.code(node.orelse, node), node, "else", (frame.state[0], values),
                                     rest))
            return
        if frame.stage == "else":
            test, first = frame.state
            values = tuple(_select(test, a, b) for a, b in zip(first, values))
        for value, x in zip(node.results, values):
            self.define(value, x)
        self._end_construct(below)

    def _for(self, frame: Frame, node: For) -> None:
        start, stop, step = (self.value(x) for x in (node.start, node.stop, node.step))
        for carry in node.carried:
            self.env[carry.inner] = self.value(carry.init)
        dtype = element_type(node.index).np
        index = start.astype(dtype)
        loop = Frame(self.sim.program.code(node.body, node), node, "body", (index, stop, step, np.False_), frame.active)
        loop.pc = len(loop.code.nodes)
        self.open_join()
        self.frames.append(loop)
        self._begin_next_iteration(loop)

    def _begin_next_iteration(self, frame: Frame) -> None:
        """Begin the next iteration of a for loop, for those that have one left."""
        index, stop, step, wrapped = frame.state
        test = np.where(step > 0, index < stop, index > stop) & ~wrapped
        way = self.decide(test, frame.active)
        if self._find_alike(way, frame.node) is not None:
            for part in self._divide(way):
                part._begin_next_iteration(part.frames[-1])
            return
        if isinstance(way, np.ndarray):
            if way.ndim == 1 and frame.active is None:
                rest = self.fork(way)
                rest._exit_loop(rest.frames[-1])
                frame = self.frames[-1]
                index = frame.state[0]
            else:
                frame.active = way
                if self._go_on_by_function(frame, index):
                    return
        elif not way:
            self._exit_loop(frame)
            return
        frame.pc = 0
        self.env[frame.node.index] = index

    def _exit_loop(self, frame: Frame) -> None:
        for carry in frame.node.carried:
            self.env[carry.result] = self.env.pop(carry.inner)
        self.frames.pop()
        self._end_construct(self.frames[-1])

    def _carry(self, frame: Frame) -> None:
        node = frame.node
        values = [self.value(y) for y in frame.code.yields]
        for carry, x in zip(node.carried, values):
            self.env[carry.inner] = x if frame.active is None else _select(frame.active, x, self.env[carry.inner])

    def _end_for(self, frame: Frame) -> None:
        if frame.trips is not None:
            self._run_trips(frame, frame.trips)
            return
        self._carry(frame)
        index, stop, step, _ = frame.state
        following = (index + step).astype(index.dtype)
        frame.state = following, stop, step, (following > index) != (step > 0)
        self._begin_next_iteration(frame)

    def _while(self, frame: Frame, node: While) -> None:
        for carry in node.carried:
            self.env[carry.inner] = self.value(carry.init)
        self.open_join()
        self.frames.append(Frame(self.sim.program.code(node.test, node), node, "test", (), frame.active))

    def _end_while(self, frame: Frame) -> None:
        node = frame.node
        if frame.trips is not None:
            self._run_trips(frame, frame.trips)
            return
        if frame.stage == "body":
            self._carry(frame)
            frame.stage, frame.code, frame.pc = "test", self.sim.program.code(node.test, node), 0
            self._notice_spinning(frame)
            return
        way = self.decide(self.value(frame.code.yields[0]), frame.active)
        if self._find_alike(way, node) is not None:
            for part in self._divide(way):
                part._end_while(part.frames[-1])
            return
        if isinstance(way, np.ndarray):
            if way.ndim == 1 and frame.active is None:
                rest = self.fork(way)
                rest._exit_loop(rest.frames[-1])
                frame = self.frames[-1]
            else:
                frame.active = way
                if self._go_on_by_function(frame):
                    return
        elif not way:
            self._exit_loop(frame)
            return
        frame.stage, frame.code, frame.pc = "body", self.sim.program.code(node.body, node), 0

    # -- loops that threads leave at different trips -------------------------------------------------------------------

    def _go_on_by_function(self, frame: Frame, index: np.ndarray | None = None) -> bool:
        """Whether a loop, which some threads have left and the others are about to run again, goes on by a function for
        each thread from here; `index` is that of a counting loop."""
        loop = ThreadLoop.of(frame.node) if self.by_function else None
        if loop is None:
            return False
        assert frame.active is not None  # those that have not left
        taken, carried = [self.value(x) for x in loop.taken], [self.env[c.inner] for c in loop.carried]
        trips = Trips.begin(loop, frame.active, index, taken, carried)
        if trips is None:
            return False
        if frame.spin is not None:
            changing = [c in loop.carried for c in frame.node.carried]
            frame.spin.state = [trips.spread(x).reshape(trips.shape) for x, c in zip(frame.spin.state, changing) if c]
        frame.trips, frame.pc = trips, len(frame.code.nodes)
        return True

    def _run_trips(self, frame: Frame, trips: Trips) -> None:
        """Run as many trips as are left of the budget by the loop's function. For a while loop, this stands before the
        body, as do the trips that `_notice_spinning` counts."""
        loop, spin, spins = trips.loop, frame.spin, isinstance(frame.node, While)
        count = max(1, -(-self.budget // loop.nodes))
        if spins and (spin is None or spin.version != self.sim.version):
            spin = None
        if spins:
            count = min(count, spin.left) if spin is not None else 1
            trips.saved = [x.reshape(-1) for x in spin.state] if spin is not None else trips.carried
        longest, same, seen = trips.run(count)
        self.budget -= longest * loop.nodes
        self._count_calls(frame.node, trips, longest, seen)
        frame.active = trips.active
        for carry, x in zip(loop.carried, trips.values()):
            self.env[carry.inner] = x
        if spin is not None and same.any():
            frame.trips = frame.spin = None
            frame.stage, frame.code, frame.pc = "test", self.sim.program.code(frame.node.test, frame.node), 0
            self.block(SpinWait(self, frame.node, spin.version))
        elif not trips.left:
            frame.trips = None
            self._exit_loop(frame)
        elif spins:
            self._note_trips(frame, trips, longest)

    def _note_trips(self, frame: Frame, trips: Trips, count: int) -> None:
        """`_notice_spinning` after trips whose states are all different from the one to compare with."""
        old = frame.spin
        renewed = old is None or old.version != self.sim.version
        if old is not None and not renewed:
            old.left -= count
            if old.left:
                return
        period = 1 if old is None or renewed else 2 * old.period
        frame.spin = Spin(self.sim.version, [np.array(x) for x in trips.values()], period, period)

    def _count_calls(self, node: For | While, trips: Trips, count: int, seen: np.ndarray) -> None:
        """Count the calls of so many trips as executed."""
        executed = self.sim.report.executed
        def add(block: Block, times: int) -> None:
            for call in calls_in(block):
                executed[id(call)] += self.batch * times
        for block in (node.body,) if isinstance(node, For) else (node.test, node.body):
            add(block, count)
        for branch in trips.loop.branches:
            add(branch.node.then, int(seen[branch.number].sum()))
            add(branch.node.orelse, int(seen[branch.number + 1].sum()))

    def _notice_spinning(self, frame: Frame) -> None:
        """Block after iterations that changed nothing, here or elsewhere, until something changes: when the loop has
        the state again that it had at one of its iterations 1, 2, 4, ... (R. P. Brent, "An improved Monte Carlo
        factorization algorithm", finds a cycle so)."""
        state = [self.env[c.inner] for c in frame.node.carried]
        version, old = self.sim.version, frame.spin
        if old is not None and old.version == version:
            if all(_is_equal(a, b) for a, b in zip(old.state, state)):
                self.block(SpinWait(self, frame.node, version))
                return
            old.left -= 1
            if old.left:
                return
        period = 1 if old is None or old.version != version else 2 * old.period
        frame.spin = Spin(version, state, period, period)


def _is_equal(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape
                      and np.array_equal(a, b))


def _select(test: np.ndarray, a: Any, b: Any) -> Any:
    """`a` where `test` holds, `b` elsewhere."""
    if a is b or not isinstance(a, np.ndarray):
        return a
    return np.where(test, a, b)
