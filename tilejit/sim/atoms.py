"""How the threads of a kernel are grouped into atoms, the units of the vector clocks."""

from __future__ import annotations

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
from ..types import Scalar, Uniformity

# the unit in which a condition of each uniformity may differ
_UNITS = {Uniformity.THREAD: 1, Uniformity.WARP: 32, Uniformity.WARPGROUP: 128}
_IDS = (absolute_thread_id, relative_thread_id, lane_id, warp_id, warpgroup_id)


class Atoms:
    """The atoms of a graph: the largest groups of consecutive threads of which all or none are in each scope, in each
    mask of a ``bar.warp.sync``, and in each branch and loop that orders accesses. So an arrival, a wait or a fence
    under a condition is that of whole atoms. Where a condition is computed from ids of threads alone, its values
    say which threads are apart; otherwise each unit in which it may differ is."""

    def __init__(self, graph: Graph):
        self.threads = graph.launch.threads
        self._ids: dict[Value, np.ndarray] = {}  # scalars computed from ids alone: for each thread
        self.apart: set[Node] = set()            # the branches and loops that were looked at
        self.bounds = sorted({0, self.threads} | set(self._block(graph.body, 0, self.threads)))

    # what the rules of ids and of elementwise ops use of the machine

    def thread_ids(self) -> np.ndarray:
        return np.arange(self.threads, dtype=np.int32)[None]

    @property
    def active(self) -> np.ndarray:
        return np.zeros((1, self.threads), bool)  # which promises hold, the run will say

    def _block(self, block: Block, low: int, high: int) -> Iterator[int]:
        for node in block.nodes:
            if isinstance(node, Call):
                self._compute(node, low)
                if node.attrs.get("form") == "bar.warp.sync":
                    yield from _lanes_apart(node.args[0], low, high)
            elif isinstance(node, Scope):
                for inner in _scopes(node, low, high):
                    yield from inner
                    yield from self._block(node.body, *inner)
            else:
                for inner_block in blocks(node):
                    yield from self._block(inner_block, low, high)
                yield from self._partings(node, low, high)

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
        if unit is None or not any(_orders(inner) for block in blocks(node) for inner in walk(block)):
            return
        self.apart.add(node)
        if isinstance(node, If) and node.test in self._ids:
            taken = np.broadcast_to(self._ids[node.test], (1, self.threads))[0, low:high].astype(bool)
            yield from (low + 1 + np.flatnonzero(taken[1:] != taken[:-1])).tolist()
        else:
            yield from range(low, high, unit)


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


def _orders(node: Node) -> bool:
    """Whether a node may order accesses of its threads: with each other's, or with their own copies."""
    if not isinstance(node, Call):
        return False
    traits = node.op.traits
    return (node.op.effect == "syncs" or traits.atomic or traits.asynchronous or traits.copy
            or node.attrs.get("sem") is not None or (traits.instruction and node.op.effect != "pure"))


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
