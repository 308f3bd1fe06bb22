"""How the threads of a kernel are grouped into atoms, the units of the vector clocks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from ..ir.builder import type_as, type_of
from ..ir.graph import (
    UNIT,
    Block,
    Call,
    Const,
    For,
    Graph,
    If,
    Node,
    Operand,
    Scope,
    Value,
    While,
    blocks,
    number,
    walk,
)
from ..ops.language.ids import absolute_thread_id, lane_id, relative_thread_id, warp_id, warpgroup_id
from ..ops.sync.barriers import threadfence
from ..types import Region, Scalar, Uniformity

# the unit in which a condition of each uniformity may differ
_UNITS = {Uniformity.THREAD: 1, Uniformity.WARP: 32, Uniformity.WARPGROUP: 128}
_IDS = (absolute_thread_id, relative_thread_id, lane_id, warp_id, warpgroup_id)


class Atoms:
    """The atoms of a graph: the largest groups of consecutive threads of which all or none are in each scope, in each
    mask of a ``bar.warp.sync``, and in each branch and loop that orders accesses. So an arrival, a wait or a fence
    under a condition is that of whole atoms. Where a condition is computed from ids of threads alone, its values
    say which threads are apart; otherwise each unit in which it may differ is. A thread that acquires or releases in
    global memory on its own is apart from all others, and so is one that makes a relaxed access for its scope, which a
    fence may precede."""

    def __init__(self, graph: Graph):
        self.threads = graph.launch.threads
        self.fences = any(map(fences_threads, walk(graph.body)))
        self._ids: dict[Value, np.ndarray] = {}  # scalars computed from ids alone: for each thread
        self.apart: set[Node] = set()            # the branches and loops that were looked at
        everyone = np.ones(self.threads, bool)
        self.bounds = sorted({0, self.threads} | set(self._block(graph.body, 0, self.threads, everyone)))

    # what the rules of ids and of elementwise ops use of the machine

    def thread_ids(self) -> np.ndarray:
        return np.arange(self.threads, dtype=np.int32)[None]

    @property
    def active(self) -> np.ndarray:
        return np.zeros((1, self.threads), bool)  # which promises hold, the run will say

    def _block(self, block: Block, low: int, high: int, reaching: np.ndarray) -> Iterator[int]:
        """The bounds in a block of a scope of the threads [low, high), which those of `reaching` may execute."""
        for node in block.nodes:
            if isinstance(node, Call):
                self._compute(node, low)
                if node.attrs.get("form") == "bar.warp.sync":
                    yield from _lanes_apart(node.args[0], low, high)
                yield from self._alone(node, low, high, reaching)
            elif isinstance(node, Scope):
                for inner in _scopes(node, low, high):
                    yield from inner
                    yield from self._block(node.body, *inner, reaching)
            else:
                for inner_block in blocks(node):
                    yield from self._block(inner_block, low, high, reaching & self._may_execute(node, inner_block))
                yield from self._partings(node, low, high)

    def _may_execute(self, node: Node, block: Block) -> np.ndarray:
        """Whether each thread may execute a block of a node."""
        if not isinstance(node, If) or node.test not in self._ids:
            return np.ones(self.threads, bool)
        return np.broadcast_to(self._ids[node.test], (1, self.threads))[0].astype(bool) == (block is node.then)

    def _alone(self, call: Call, low: int, high: int, reaching: np.ndarray) -> Iterator[int]:
        """The threads that synchronise by an access to global memory, each on its own."""
        if not call.op.traits.atomic and "form" not in call.attrs:
            return
        if orders(call):
            if call.attrs.get("each_thread", True) or isinstance(type_of(call.args[0]), Region):
                for thread in low + np.flatnonzero(reaching[low:high]):
                    yield from (int(thread), int(thread) + 1)
        elif re.match(r"mbarrier\.(test|try)_wait", call.attrs.get("form", "")):  # phases may differ
            unit = _UNITS.get(min((a.type.uniform for a in call.args if isinstance(a, Value)
                                   and isinstance(a.type, Scalar)), default=Uniformity.GRID))
            yield from range(low, high, unit) if unit else ()
        elif self.fences and call.attrs.get("each_thread") is False:
            yield from (low, low + 1)

    def _compute(self, call: Call, low: int) -> None:
        """Note the values of a scalar that is computed from ids alone."""
        rule = call.op.rules.simulate
        if rule is None or not isinstance(type_of(call.results[0]) if call.results else None, Scalar):
            return
        if call.op in _IDS:
            ids = rule(self, call)
            self._ids[call.results[0]] = ids - low if call.op is relative_thread_id else ids
        elif call.op.traits.elementwise and any(a in self._ids for a in call.args):
            known = [self._value_of(a) for a in call.args]
            if all(x is not None for x in known):
                with np.errstate(all="ignore"):
                    self._ids[call.results[0]] = rule(self, call, *known)

    def _value_of(self, operand: Operand | None) -> np.ndarray | None:
        if isinstance(operand, Const):
            return np.full((1, 1), operand.value, operand.dtype.np)
        return None if operand is None else self._ids.get(operand)

    def _partings(self, node: Node, low: int, high: int) -> Iterator[int]:
        """Where threads of [low, high) part at a branch or a loop that orders accesses."""
        uniform = [type_as(test, Scalar).uniform for test in _tests(node) if isinstance(test, Value)]
        unit = _UNITS.get(min(uniform, default=Uniformity.GRID))
        if unit is None or not any(self._orders(inner) for block in blocks(node) for inner in walk(block)):
            return
        self.apart.add(node)
        if isinstance(node, If) and node.test in self._ids:
            taken = np.broadcast_to(self._ids[node.test], (1, self.threads))[0, low:high].astype(bool)
            yield from (low + 1 + np.flatnonzero(taken[1:] != taken[:-1])).tolist()
        else:
            yield from range(low, high, unit)

    def _orders(self, node: Node) -> bool:
        """Whether a node may order accesses of its threads: with each other's, or with their own copies."""
        if not isinstance(node, Call):
            return False
        traits = node.op.traits
        return (node.op.effect == "syncs" or traits.asynchronous or traits.copy or orders(node)
                or traits.atomic and self.fences or (traits.instruction and node.op.effect != "pure"))


def _tests(node: Node) -> Sequence[Operand]:
    """The operands that decide which threads execute the blocks of a node."""
    match node:
        case If():
            return (node.test,)
        case For():
            return (node.start, node.stop, node.step)
        case While():
            return (node.test.yields[0],)
    return ()


def orders(node: Node) -> bool:
    """Whether a node acquires or releases in global memory."""
    return isinstance(node, Call) and (
        node.attrs.get("sem") in ("acquire", "release", "acq_rel")
        or re.match(r"(ld|st|atom|red)\.(acquire|release|acq_rel)\.", node.attrs.get("form", "")) is not None)


def fences_threads(node: Node) -> bool:
    """Whether a node is a fence by which relaxed accesses before or after it synchronise."""
    return isinstance(node, Call) and (node.op is threadfence
                                       or re.match(r"fence(?!\.proxy)|membar", node.attrs.get("form", "")) is not None)


def _scopes(scope: Scope, low: int, high: int) -> Iterator[tuple[int, int]]:
    """The threads of each instance of a scope nested in threads [low, high)."""
    if scope.kind == "elect":
        yield low, low + 1
        return
    unit, first = UNIT[scope.kind], scope.first
    for start in (number(first) * unit,) if isinstance(first, Const) else range(low, high, unit):
        yield start, start + scope.threads


def _lanes_apart(mask: Operand, low: int, high: int) -> Iterator[int]:
    """The threads of [low, high) where the lanes of a warp that `mask` names begin or end; every thread if it is not
    constant."""
    named = [number(mask) >> lane & 1 for lane in range(32)] if isinstance(mask, Const) else None
    for thread in range(low, high):
        lane = thread % 32
        if lane == 0 or named is None or named[lane] != named[lane - 1]:
            yield thread
