"""The interpreter: runs a scope instance for a batch of CTAs in lock step.

Its frames are explicit, so that it can be split in two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ..ir.builder import element_type
from ..ir.graph import Call, For, If, Node, Operand, Scope, Value, While
from ..ir.machine_protocol import Divided, Wait
from ..ir.op_rules import require_rule
from ..types import Scalar
from .control import Control
from .machine import Machine
from .parting import Frame, Spawn
from .program import scope_threads
from .values import take
from .waits import ChildWait, RowWait

RUN_AHEAD = 64  # how many pending children of a fiber may overlap in threads


class Fiber(Control):
    """Threads `low` to `high` - 1 of the CTAs `rows` (rows of the chunk, all of one cluster rank)."""

    STEPS: ClassVar[dict[type, Callable[..., None]]]  # what executes a node, by its class

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
        self.ahead = RUN_AHEAD          # raised by `overtake_children`
        self.unjoined: Any = None       # a call that may run before the children have ended
        self.left = False               # whether it has arrived at the cluster barrier that ends the kernel
        self.m = Machine(self)
        self.node: Node | None = None
        self.budget = 0                 # nodes that it may still execute in its turn

    @property
    def threads(self) -> int:
        return self.high - self.low

    @property
    def batch(self) -> int:
        return len(self.rows)

    # -- scheduling ----------------------------------------------------------------------------------------------------

    def is_ready(self) -> bool:
        """Whether it can go on with all its CTAs."""
        if self.parked:
            return False
        if self.wait is None:
            return True
        if self.polled == self.sim.version:
            return False
        ready = self.wait.ready()
        if ready is True or ready is not False and np.all(ready):
            return True
        self.polled = self.sim.version
        return False

    def partly_ready(self) -> np.ndarray | None:
        """The CTAs that could go on without the others, as a mask; None if there are none, or if all could."""
        if self.parked or not isinstance(self.wait, RowWait):
            return None
        mask = np.broadcast_to(np.asarray(self.wait.ready(), bool).reshape(-1), (self.batch,))
        return mask if mask.any() and not mask.all() else None

    def run(self, budget: int) -> int:
        """Run until it blocks, parks or ends, or has executed `budget` nodes. Returns what is left of the budget; below
        0, if the last trip of a loop was longer."""
        self.budget = budget
        if self.wait is not None:
            self._resume()
        while not (self.done or self.parked or self.wait is not None) and self.budget > 0:
            self.budget -= 1
            frame = self.frames[-1]
            if frame.pc < len(frame.code.nodes):
                node = frame.code.nodes[frame.pc]
                self.node = node
                self.STEPS[type(node)](self, frame, node)
            else:
                self._leave(frame)
        return self.budget

    def _resume(self) -> None:
        wait, call = self.wait, self.waiting_call
        self.wait = self.waiting_call = None
        if call is not None:
            self.node = call
        outcome = wait.then() if wait is not None and wait.then is not None else None
        if call is not None:
            self._store_results(call, outcome)

    def block(self, wait: Wait, call: Call | None = None) -> None:
        """Wait, unless the condition already holds."""
        self.wait, self.waiting_call = wait, call
        self.polled = -1
        if np.all(wait.ready()):
            self._resume()
        else:
            self.polled = self.sim.version
            self.sim.report.stats["waits"] += call is not None

    # -- children ------------------------------------------------------------------------------------------------------

    def _prune(self) -> None:
        self.children = [s for s in self.children if s.count and s.live[self.rows].any()]

    def join_children(self) -> bool:
        """Whether all children have ended; otherwise block on them."""
        if self.children:
            self._prune()
            if self.children:
                self.block(ChildWait(self, self.children, "the scopes that it opened"))
                return False
        return True

    def overtake_children(self) -> bool:
        """Go on without the children that it waits for, as the threads of hardware would: those outside of the child
        scopes are not held up, unless the next operation is a collective of all of them."""
        if (self.parked or not isinstance(self.wait, ChildWait) or self.waiting_call is not None
            or self.wait.spawns is self.after):
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

    # -- values --------------------------------------------------------------------------------------------------------

    def value(self, operand: Operand) -> Any:
        if isinstance(operand, Value):
            return self.env[operand]
        return None if operand is None else self.sim.constant(operand)

    def define(self, value: Value, x: Any) -> None:
        if isinstance(x, (int, float, np.generic)):
            x = np.asarray(x, element_type(value).np)
        if isinstance(x, np.ndarray) and x.ndim < 2 and isinstance(value.type, Scalar):
            x = x.reshape(-1, 1)
        self.env[value] = x

    def _advance(self, frame: Frame) -> None:
        for value in frame.code.dead[frame.pc]:
            self.env.pop(value, None)
        frame.pc += 1

    def _store_results(self, call: Call, outcome: Any) -> None:
        if isinstance(outcome, Wait):
            self.block(outcome, call)
            return
        if len(call.results) == 1:
            self.define(call.results[0], outcome[0] if isinstance(outcome, tuple) and len(outcome) == 1 else outcome)
        elif call.results:
            for value, x in zip(call.results, outcome):
                self.define(value, x)
        self._advance(self.frames[-1])

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _call(self, frame: Frame, call: Call) -> None:
        if self.children and call.op.effect != "pure" and call is not self.unjoined and not self.join_children():
            return
        args = [self.value(a) for a in call.args]
        self.m.deeds += call.op.effect != "pure"
        rule = call.op.rules.simulate
        executed = self.sim.report.executed
        executed[id(call)] += self.batch
        if rule is not None:
            outcome = rule(self.m, call, *args)
        else:
            choice = call.choice
            assert choice is not None and choice.lowering is not None  # as the pass has chosen
            outcome = require_rule(choice.lowering.simulate)(self.m, choice.plan, call, *args)
        if isinstance(outcome, Divided):
            executed[id(call)] -= self.batch
            self.fork(outcome.mask)
            return
        if call.op.collective and (self.sim.contended or self.sim.program.barriers) and call.op.effect != "syncs":
            self.m.sync.exchange()
        self._store_results(call, outcome)

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
        low, high = scope_threads(scope, start, self.low)
        inside = self.low <= low and high <= self.high
        if inside and not self._enter_scope(scope, low, high, self.rows, None):
            return
        self._end_construct(frame)

    def _scope_of_active(self, frame: Frame, scope: Scope, first) -> None:
        """A scope nested in a partial scope: it runs in the CTAs where all its threads are active."""
        assert frame.active is not None
        active = np.broadcast_to(frame.active, (self.batch, self.threads))
        firsts = np.broadcast_to(first[:, :1] if first is not None else np.zeros((1, 1), int), (self.batch, 1))[:, 0]
        for start in np.unique(firsts):
            low, high = scope_threads(scope, int(start), self.low)
            if self.low <= low and high <= self.high:
                mask = (firsts == start) & active[:, low - self.low:high - self.low].all(axis=1)
                if (mask.any()
                    and not self._enter_scope(scope, low, high, self.rows[mask], None if mask.all() else mask)):
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
        child = type(self)(self.sim, self.rank, rows, low, high, env, [Frame(code, scope)], spawn,
                      _scopes_to_await(ahead, low, high))
        if scope.regs is not None:
            child.m.sync.hold_registers(scope.regs)
        self.children.append(spawn)
        self.sim.add(child)
        return True

    def _leave(self, frame: Frame) -> None:
        """Continue after the end of the frame's block."""
        match frame.node:
            case If():
                self._end_if(frame)
            case For():
                self._end_for(frame)
            case While():
                self._end_while(frame)
            case _:
                if self.join_children():
                    self._finish()

    def _finish(self) -> None:
        if self.spawn is None and self.sim.ranks > 1 and not self.left:
            self.left = True  # a kernel with clusters ends with a barrier of all threads of the cluster
            self.m.sync.cluster_arrive()
            self.block(self.m.sync.cluster_wait())
            if self.wait is not None:
                return
        self.done = True
        if self.spawn is not None:
            self.spawn.end(self.rows)
        self.sim.version += 1
        self.sim.remove(self)


def _scopes_to_await(ahead: tuple[Spawn, ...], low: int, high: int) -> tuple[Spawn, ...]:
    """Among the earlier scopes `ahead`, those to wait for before starting one with threads `low` to `high` - 1. A
    scope whose shared threads a later one covers is left out: that one has waited for it."""
    found: list[Spawn] = []
    for s in reversed(ahead):
        first, stop = max(s.low, low), min(s.high, high)
        if not any(later.low <= first and stop <= later.high for later in found):
            found.append(s)
    return tuple(found)


STEPS: dict[type, Callable[..., None]] = {Call: Fiber._call, Scope: Fiber._scope, If: Fiber._if, For: Fiber._for,
                                          While: Fiber._while}
Fiber.STEPS = STEPS
