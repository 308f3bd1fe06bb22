"""The interpreter: a scope instance of a batch of CTAs in lock step, with explicit frames so that it can be cut in two."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.graph import Call, For, If, Operand, Scope, Value, While
from ..ir.protocols import Wait
from ..types import Scalar
from .machine import Machine
from .parting import Frame, Parting, Spawn
from .program import scope_threads
from .values import take
from .waits import ChildWait, RowWait, SpinWait

RUN_AHEAD = 64  # pending children of a fiber per set of threads


class Fiber(Parting):
    """Threads `low` to `high` of the CTAs `rows` (numbers in the chunk, of one cluster rank)."""

    def __init__(self, sim, rank: int, rows: np.ndarray, low: int, high: int, env: dict, frames: list[Frame],
                 spawn: Spawn | None = None, after: tuple[Spawn, ...] = ()):
        self.sim, self.rank, self.rows = sim, rank, rows
        self.low, self.high = low, high
        self.env, self.frames = env, frames
        self.spawn, self.after = spawn, list(after)
        self.children: list[Spawn] = []
        self.wait: Wait | None = ChildWait(self, self.after, "the scope before it") if after else None
        self.waiting_call: Any = None   # the call that returned `wait`
        self.polled = -1
        self.parked = False
        self.done = False
        self.spin: tuple | None = None
        self.ahead = RUN_AHEAD          # pending children that a set of threads may have
        self.unjoined: Any = None       # a call that goes on beside the children that stand in its way
        self.left = False               # whether it has arrived at the barrier that ends a cluster
        self.m = Machine(self)
        self.node = None

    @property
    def threads(self) -> int:
        return self.high - self.low

    @property
    def batch(self) -> int:
        return len(self.rows)

    # -- scheduling ------------------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether it can go on with all its CTAs."""
        if self.parked:
            return False
        if self.wait is None:
            return True
        if self.polled == self.sim.version:
            return False
        if np.all(self.wait.ready()):
            return True
        self.polled = self.sim.version
        return False

    def partly_ready(self) -> np.ndarray | None:
        """The CTAs that could go on without the others, if there are any."""
        if self.parked or not isinstance(self.wait, RowWait):
            return None
        mask = np.broadcast_to(np.asarray(self.wait.ready(), bool).reshape(-1), (self.batch,))
        return mask if mask.any() and not mask.all() else None

    def run(self, budget: int) -> int:
        """Run until it blocks, parks, ends or has used up its budget of nodes. Returns what is left of it."""
        if self.wait is not None:
            self._resume()
        while not (self.done or self.parked or self.wait is not None) and budget > 0:
            budget -= 1
            frame = self.frames[-1]
            if frame.pc < len(frame.code.nodes):
                node = frame.code.nodes[frame.pc]
                self.node = node
                _STEP[type(node)](self, frame, node)
            else:
                self._leave(frame)
        return budget

    def _resume(self) -> None:
        wait, call = self.wait, self.waiting_call
        self.wait = self.waiting_call = None
        if call is not None:
            self.node = call
        outcome = wait.then() if wait.then is not None else None
        if call is not None:
            self._returned(call, outcome)

    def block(self, wait: Wait, call: Call | None = None) -> None:
        """Wait, unless everything is ready already."""
        self.wait, self.waiting_call = wait, call
        self.polled = -1
        if np.all(wait.ready()):
            self._resume()
        else:
            self.polled = self.sim.version
            self.sim.report.stats["waits"] += call is not None

    # -- children ------------------------------------------------------------------------------------------------------------

    def _prune(self) -> None:
        self.children = [s for s in self.children if s.count and s.live[self.rows].any()]

    def joined(self) -> bool:
        """Whether all children are done; blocks on them otherwise."""
        if self.children:
            self._prune()
            if self.children:
                self.block(ChildWait(self, self.children, "the scopes that it opened"))
                return False
        return True

    def overtake_children(self) -> bool:
        """Go on beside the children that it waits for, where the machine would: their threads do not hold up the others,
        unless all of them meet in a collective."""
        if self.parked or not isinstance(self.wait, ChildWait) or self.waiting_call is not None or self.wait.spawns is self.after:
            return False
        frame = self.frames[-1]
        if frame.pc >= len(frame.code.nodes):
            return False
        if isinstance(self.node, Call) and self.node.op.effect in ("reads", "writes") and not self.node.op.collective:
            self.unjoined = self.node
        elif isinstance(self.node, Scope):
            self.ahead *= 2
        else:
            return False
        self.wait = None
        return True

    # -- values ------------------------------------------------------------------------------------------------------------

    def value(self, operand: Operand) -> Any:
        if isinstance(operand, Value):
            return self.env[operand]
        return None if operand is None else self.sim.constant(operand)

    def define(self, value: Value, x: Any) -> None:
        if isinstance(x, (int, float, np.generic)) and not isinstance(x, np.ndarray):
            x = np.asarray(x, value.type.dtype.np)
        if isinstance(x, np.ndarray) and isinstance(value.type, Scalar) and x.ndim < 2:
            x = x.reshape(-1, 1)
        self.env[value] = x

    def _advance(self, frame: Frame) -> None:
        for value in frame.code.dead[frame.pc]:
            self.env.pop(value, None)
        frame.pc += 1

    def _returned(self, call: Call, outcome: Any) -> None:
        if isinstance(outcome, Wait):
            self.block(outcome, call)
            return
        if len(call.results) == 1:
            self.define(call.results[0], outcome[0] if isinstance(outcome, tuple) and len(outcome) == 1 else outcome)
        elif call.results:
            for value, x in zip(call.results, outcome):
                self.define(value, x)
        self._advance(self.frames[-1])

    # -- nodes ---------------------------------------------------------------------------------------------------------------

    def _call(self, frame: Frame, call: Call) -> None:
        if self.children and call.op.effect != "pure" and call is not self.unjoined and not self.joined():
            return
        args = [self.value(a) for a in call.args]
        rule = call.op.rules.get("simulate")
        stats = self.sim.report.stats["calls"]
        stats[call.op.name] += self.batch
        if rule is not None:
            outcome = rule(self.m, call, *args)
        else:
            outcome = call.choice.lowering.simulate(self.m, call.choice.plan, call, *args)
        if call.op.collective and self.sim.contended:
            self.m.exchange()
        self._returned(call, outcome)

    def _scope(self, frame: Frame, scope: Scope) -> None:
        first = self.value(scope.first)
        if frame.active is not None:
            self._scope_of_active(frame, scope, first)
            return
        if first is not None and first.size > 1:
            starts = first[:, 0]
            if (starts != starts[0]).any():
                self.open_join()
                self.fork(starts == starts[0])
                return
        start = int(first.flat[0]) if first is not None else 0
        low, high = scope_threads(scope, start, self.low, self.high)
        if self.low <= low and high <= self.high:
            if not self._enter_scope(scope, low, high, self.rows, None):
                return
        self._end_construct(frame)

    def _scope_of_active(self, frame: Frame, scope: Scope, first) -> None:
        """A scope of one thread inside a partial scope: only where that thread is active."""
        active = np.broadcast_to(frame.active, (self.batch, self.threads))
        firsts = np.broadcast_to(first[:, :1] if first is not None else np.zeros((1, 1), int), (self.batch, 1))[:, 0]
        for start in np.unique(firsts):
            low, high = scope_threads(scope, int(start), self.low, self.high)
            if self.low <= low and high <= self.high:
                mask = (firsts == start) & active[:, low - self.low:high - self.low].all(axis=1)
                if mask.any() and not self._enter_scope(scope, low, high, self.rows[mask], None if mask.all() else mask):
                    return
        self._advance(frame)

    def _enter_scope(self, scope: Scope, low: int, high: int, rows: np.ndarray, mask: np.ndarray | None) -> bool:
        self._prune()
        ahead = tuple(s for s in self.children if s.low < high and low < s.high)
        if len(ahead) >= self.ahead:
            self.block(ChildWait(self, list(ahead), "the scopes that it opened"))
            return False
        env = {}
        for v in self.sim.program.scope_reads(scope):
            x = self.env[v]
            if isinstance(v.type, Scalar) and isinstance(x, np.ndarray) and x.shape[1] > 1:
                x = x[:, low - self.low:high - self.low]
            env[v] = x if mask is None else take(x, mask)
        spawn = Spawn(low, high, rows, self.sim.rows)
        code = self.sim.program.code(scope.body, scope)
        child = Fiber(self.sim, self.rank, rows, low, high, env, [Frame(code, scope)], spawn, _last(ahead, low, high))
        self.children.append(spawn)
        self.sim.add(child)
        return True

    def _leave(self, frame: Frame) -> None:
        """The frame's block has ended."""
        match frame.node:
            case If():
                self._end_if(frame)
            case For():
                self._end_for(frame)
            case While():
                self._end_while(frame)
            case _:
                if self.joined():
                    self._finish()

    def _finish(self) -> None:
        if self.spawn is None and self.sim.ranks > 1 and not self.left:
            self.left = True  # a kernel with a cluster ends with a barrier of all its threads
            self.m.cluster_arrive()
            self.block(self.m.cluster_wait())
            if self.wait is not None:
                return
        self.done = True
        if self.spawn is not None:
            self.spawn.end(self.rows)
        self.sim.version += 1
        self.sim.remove(self)

    # -- conditions ------------------------------------------------------------------------------------------------------------

    def decide(self, test: np.ndarray, active: np.ndarray | None):
        """True or False when all agree, a mask over CTAs when those differ, a mask (B or 1, T) when threads do."""
        test = np.asarray(test, bool)
        if active is not None:
            mask = test & active
            return False if not mask.any() else True if np.array_equal(mask, np.broadcast_to(active, mask.shape)) else mask
        if test.size == 1:
            return bool(test.flat[0])
        by_cta = test.all(axis=1)
        if test.shape[1] > 1 and (by_cta != test.any(axis=1)).any():
            return test
        return True if by_cta.all() else by_cta if by_cta.any() else False

    def _if(self, frame: Frame, node: If) -> None:
        way = self.decide(self.value(node.test), frame.active)
        if isinstance(way, np.ndarray) and way.ndim == 1:
            self.open_join()
            self.fork(way)
            return  # both come back here, each of one mind
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
            self.frames.append(Frame(self.sim.program.code(node.orelse, node), node, "else", (frame.state[0], values), rest))
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
        dtype = node.index.type.dtype.np
        index = start.astype(dtype)
        loop = Frame(self.sim.program.code(node.body, node), node, "body", (index, stop, step), frame.active)
        loop.pc = len(loop.code.nodes)
        self.open_join()
        self.frames.append(loop)
        self._next(loop)

    def _next(self, frame: Frame) -> None:
        """Begin the next trip of a for loop with those that still have one."""
        index, stop, step = frame.state
        with np.errstate(over="ignore"):
            test = np.where(step > 0, index < stop, index > stop)
        way = self.decide(test, frame.active)
        if isinstance(way, np.ndarray):
            if way.ndim == 1 and frame.active is None:
                rest = self.fork(way)
                rest._exit_loop(rest.frames[-1])
                frame = self.frames[-1]
                index = frame.state[0]
            else:
                frame.active = way
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
        self._carry(frame)
        index, stop, step = frame.state
        with np.errstate(over="ignore"):
            frame.state = ((index + step).astype(index.dtype), stop, step)
        self._next(frame)

    def _while(self, frame: Frame, node: While) -> None:
        for carry in node.carried:
            self.env[carry.inner] = self.value(carry.init)
        self.open_join()
        self.spin = None
        self.frames.append(Frame(self.sim.program.code(node.test, node), node, "test", (), frame.active))

    def _end_while(self, frame: Frame) -> None:
        node = frame.node
        if frame.stage == "body":
            self._carry(frame)
            frame.stage, frame.code, frame.pc = "test", self.sim.program.code(node.test, node), 0
            self._notice_spinning(node)
            return
        way = self.decide(self.value(frame.code.yields[0]), frame.active)
        if isinstance(way, np.ndarray):
            if way.ndim == 1 and frame.active is None:
                rest = self.fork(way)
                rest._exit_loop(rest.frames[-1])
                frame = self.frames[-1]
            else:
                frame.active = way
        elif not way:
            self._exit_loop(frame)
            return
        frame.stage, frame.code, frame.pc = "body", self.sim.program.code(node.body, node), 0

    def _notice_spinning(self, node: While) -> None:
        """A trip that changed nothing, here or anywhere: the next one waits until something has changed."""
        state = [self.env[c.inner] for c in node.carried]
        version = self.sim.version
        old = self.spin
        self.spin = (node, version, state)
        if old is not None and old[0] is node and old[1] == version and all(_equal(a, b) for a, b in zip(old[2], state)):
            self.block(SpinWait(self, node, version))


def _last(ahead: tuple[Spawn, ...], low: int, high: int) -> tuple[Spawn, ...]:
    """Of the scopes before threads `low` to `high`, those that no later one stands behind for the same threads."""
    found: list[Spawn] = []
    for s in reversed(ahead):
        first, stop = max(s.low, low), min(s.high, high)
        if not any(later.low <= first and stop <= later.high for later in found):
            found.append(s)
    return tuple(found)


def _equal(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape and np.array_equal(a, b))


def _select(test: np.ndarray, a: Any, b: Any) -> Any:
    """`a` where threads took the one way, `b` where they took the other."""
    if a is b or not isinstance(a, np.ndarray):
        return a
    return np.where(test, a, b)


_STEP = {Call: Fiber._call, Scope: Fiber._scope, If: Fiber._if, For: Fiber._for, While: Fiber._while}
