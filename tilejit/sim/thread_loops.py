"""Loops that the threads leave at different trips, as functions that run each thread's trips one after the other.

NumPy runs such a loop for all threads until the last one has left. `ThreadLoop.of` writes a loop of arithmetic on
scalars, with branches, as a function of plain Python, which `compile_loops` hands to numba; other loops are left to
NumPy. The function runs a number of trips: the interpreter counts them as its own, lets the other fibers go on in
between, and finds a loop that never ends as it does otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from ..ir.builder import element_type
from ..ir.graph import Block, Call, Carry, Const, For, If, Node, Operand, Value, While
from ..types import Scalar
from .compile_loops import compiled, function_of
from .thread_arithmetic import NAMES, TYPES, lines_of

NODE, ELEMENT = 4e-6, 1.2e-9  # seconds that NumPy takes for a node, and for each of its elements
HEAD = "alive, count, active, trips, same, seen"  # what each function takes before the loop's own arrays


class _NoLoop(Exception):
    """The loop does what a function for one thread cannot."""


@dataclass
class Branch:
    """A branch of the loop: the number of its `then` among the rows of `seen`; that of its `else` is one more."""

    node: If
    number: int


@dataclass
class ThreadLoop:
    """A loop as a function. `run` runs up to `trips` trips of each thread of ``alive[:count]``, whose numbers it keeps
    there if the thread has not left the loop by then; those that have are no longer `active`. It returns how many are
    left, and how many trips the longest took. ``same[i]`` counts the threads that have their `saved` values again after
    trip i, and ``seen[n, i]`` says whether some thread took branch n in trip i.

    The arrays of `taken` values have an element for each thread, or one for all (with a stride of 0). `carried` values
    change from trip to trip; for a counting loop, its index is the first of them.
    """

    node: For | While
    run: Callable[..., Any]
    taken: list[Operand]
    carried: list[Carry]
    branches: list[Branch]
    nodes: int       # that the interpreter executes in a trip

    @staticmethod
    @lru_cache(maxsize=1024)
    def of(node: For | While) -> ThreadLoop | None:
        """The function of a loop, None if it cannot have one."""
        try:
            return _Writer(node).write()
        except _NoLoop:
            return None


class _Writer:
    """Writes the function of a loop."""

    def __init__(self, node: For | While):
        self.node = node
        self.lines: list[str] = []
        self.depth = 0
        self.names: dict[Value, str] = {}
        self.constants: dict[str, np.generic] = {}
        self.taken: list[Operand] = []
        self.branches: list[Branch] = []
        self.count = 0

    def write(self) -> ThreadLoop:
        node = self.node
        changing = [(c, y) for c, y in zip(node.carried, node.body.yields) if y is not c.inner]
        for carry in node.carried:
            if all(carry is not c for c, _ in changing):
                self._take(carry.inner)
        carried = [c for c, _ in changing]
        values = [c.inner for c in carried]
        if isinstance(node, For):
            values.insert(0, node.index)
        for i, value in enumerate(values):
            self.names[value] = f"c{i}"
            self._type(value)
        if isinstance(node, For) and len({self._type(x) for x in (node.index, node.start, node.stop, node.step)}) > 1:
            raise _NoLoop
        stop, step = (self._name(x) for x in (node.stop, node.step)) if isinstance(node, For) else ("", "")
        self.depth = 3
        self._block(node.body)
        results = [self._name(y) for _, y in changing]
        counter = self._count_up(node, stop, step) if isinstance(node, For) else ""
        if changing:
            self._put(f"{', '.join(self.names[c.inner] for c in carried)} = {', '.join(results)}")
        if isinstance(node, For):
            self._put(f"c0 = {counter}")
            test = "goes_on"
        else:
            self._block(node.test)
            test = self._name(node.test.yields[0])
        text = self._function(len(values), test)
        run = function_of(text, (*NAMES.items(), *self.constants.items()))
        blocks = (node.body,) if isinstance(node, For) else (node.test, node.body)
        return ThreadLoop(node, run, self.taken, carried, self.branches, sum(map(_nodes, blocks)))

    def _function(self, changing: int, test: str) -> str:
        """The whole text, once the lines of a trip are written."""
        numbers, spins = range(changing), isinstance(self.node, While)
        taken = [f"x{i}" for i in range(len(self.taken))]
        saved = [f"z{i}" for i in numbers] if spins else []
        head = ", ".join([HEAD, *taken, *(f"s{i}" for i in range(len(taken))), *(f"a{i}" for i in numbers), *saved])
        load = [f"v{i} = x{i}[t * s{i}]" for i in range(len(taken))] + [f"c{i} = a{i}[t]" for i in numbers]
        load += [f"w{i} = z{i}[t]" for i in numbers if spins]
        check = []
        if spins:  # also without any carried value: then all of them are the same
            check = [f"if {' and '.join(f'c{i} == w{i}' for i in numbers) or 'True'}:", "    same[trip] += 1"]
        before, after = (self.lines, []) if not spins else self._split_test(check)
        trip = [*before, *after, "            done = trip + 1", f"            if not {test}:",
                "                active[t] = False", "                stays = False", "                break"]
        return "\n".join([
            f"def loop({head}):",
            "    left = 0", "    longest = 0",
            "    for i in range(count):", "        t = alive[i]",
            *(f"        {line}" for line in load), "        done = 0", "        stays = True",
            "        for trip in range(trips):", *trip,
            "        if stays:", "            alive[left] = t", "            left += 1",
            "        longest = max(longest, done)", *(f"        a{i}[t] = c{i}" for i in numbers),
            "    return left, longest", ""])

    def _split_test(self, check: list[str]) -> tuple[list[str], list[str]]:
        """The lines of the body and of the check for a cycle, and those of the test."""
        at = self.lines.index("#test")
        return [*self.lines[:at], *(f"            {line}" for line in check)], self.lines[at + 1:]

    def _count_up(self, node: For, stop: str, step: str) -> str:
        """Write what decides whether another trip follows. Returns the index of that."""
        made = TYPES[element_type(node.index).name]
        self._put(f"next_index = {made}(c0 + {step})")
        self._put(f"rises = {step} > 0")
        self._put(f"goes_on = (next_index < {stop} if rises else next_index > {stop}) and (next_index > c0) == rises")
        return "next_index"

    # -- values --------------------------------------------------------------------------------------------------------

    def _type(self, operand: Operand) -> str:
        if isinstance(operand, Value) and not isinstance(operand.type, Scalar):
            raise _NoLoop
        name = element_type(operand).name
        if name not in TYPES:
            raise _NoLoop
        return name

    def _take(self, value: Operand) -> str:
        self._type(value)
        self.taken.append(value)
        assert isinstance(value, Value)
        self.names[value] = f"v{len(self.taken) - 1}"
        return self.names[value]

    def _name(self, operand: Operand) -> str:
        """The name of a value in the function; one from outside of the loop becomes a parameter."""
        if isinstance(operand, Const):
            self._type(operand)
            number = np.array([operand.value]).astype(operand.dtype.np)[0]
            name = f"K{operand.dtype.name}_{number.tobytes().hex()}"
            self.constants[name] = number
            return name
        if operand is None:
            raise _NoLoop
        return self.names.get(operand) or self._take(operand)

    def _name_result(self, value: Value) -> str:
        self._type(value)
        self.count += 1
        self.names[value] = f"r{self.count}"
        return self.names[value]

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def _block(self, block: Block) -> None:
        if isinstance(self.node, While) and block is self.node.test:
            self.lines.append("#test")
        for node in block.nodes:
            self._node(node)

    def _node(self, node: Node) -> None:
        if isinstance(node, If):
            self._branch(node)
            return
        if not isinstance(node, Call) or node.op.effect != "pure" or len(node.results) != 1 or not node.args:
            raise _NoLoop
        args = [self._name(a) for a in node.args]
        lines = lines_of(node, self._name_result(node.result), args)
        if lines is None:
            raise _NoLoop
        for line in lines:
            self._put(line)

    def _branch(self, node: If) -> None:
        number = 2 * len(self.branches)
        self.branches.append(Branch(node, number))
        results = [self._name_result(value) for value in node.results]
        self._put(f"if {self._name(node.test)}:")
        for k, block in enumerate((node.then, node.orelse)):
            self.depth += 1
            self._put(f"seen[{number + k}, trip] = True")
            self._block(block)
            for result, y in zip(results, [self._name(y) for y in block.yields]):
                self._put(f"{result} = {y}")
            self.depth -= 1
            if k == 0:
                self._put("else:")


def _nodes(block: Block) -> int:
    """How many nodes and ends of blocks the interpreter executes in a block, at most."""
    inner = (b for n in block.nodes if isinstance(n, If) for b in (n.then, n.orelse))
    return len(block.nodes) + 1 + sum(map(_nodes, inner))


def calls_in(block: Block) -> Iterator[Call]:
    """The calls of a block that run whenever it does."""
    return (n for n in block.nodes if isinstance(n, Call))


@dataclass
class Trips:
    """A loop that runs by its function: the arrays of the threads that take part, and which of these go on."""

    loop: ThreadLoop
    function: Callable[..., Any]
    shape: tuple[int, int]      # (CTAs or 1, threads)
    active: np.ndarray          # of this shape
    alive: np.ndarray           # the numbers of the active threads; only the first `left` count
    left: int
    taken: list[np.ndarray] = field(default_factory=list)
    strides: list[int] = field(default_factory=list)
    carried: list[np.ndarray] = field(default_factory=list)  # flat; of a counting loop the index first
    saved: list[np.ndarray] = field(default_factory=list)

    @staticmethod
    def begin(loop: ThreadLoop, active: np.ndarray, index: np.ndarray | None, taken: list[np.ndarray],
              carried: list[np.ndarray]) -> Trips | None:
        """Let the threads `active` (CTAs or 1, threads) go on by the loop's function; None if that does not pay, or
        not all values have the shape of these threads."""
        shape, every = active.shape, [*taken, *carried]
        if any(x.ndim != 2 or x.shape[0] not in (1, shape[0]) or x.shape[1] not in (1, shape[1]) for x in every):
            return None
        function = compiled(loop.run, loop.nodes * (NODE + active.size * ELEMENT))
        if function is None:
            return None
        alive = np.flatnonzero(active)
        made = Trips(loop, function, shape, np.array(active), alive, len(alive))
        made.taken = [np.array(x).reshape(1) if x.size == 1 else made.spread(x) for x in taken]
        made.strides = [int(x.size > 1) for x in made.taken]
        made.carried = [made.spread(x) for x in ([] if index is None else [index]) + carried]
        return made

    def spread(self, x: np.ndarray) -> np.ndarray:
        """A value of each thread, as the function takes it: a copy."""
        return np.array(np.broadcast_to(x, self.shape)).reshape(-1)

    def run(self, trips: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Run up to so many trips. Returns how many trips the longest took; whether after each of them all threads had
        their saved values again; and which branches were taken in each."""
        same = np.zeros(trips, np.int64)
        seen = np.zeros((2 * len(self.loop.branches), trips), np.bool_)
        count = self.left
        self.left, longest = self.function(self.alive, count, self.active.reshape(-1), trips, same, seen, *self.taken,
                                           *self.strides, *self.carried, *self.saved)
        return int(longest), same == count, seen

    def values(self) -> list[np.ndarray]:
        """The carried values now, without the index."""
        first = isinstance(self.loop.node, For)
        return [x.reshape(self.shape) for x in self.carried[first:]]


__all__ = ["NAMES", "ThreadLoop", "Trips", "calls_in"]
