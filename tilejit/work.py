"""The bytes and operations of a launch, counted in the kernel's graph: what `bench` divides by the time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from .ir.builder import type_as
from .ir.graph import (
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
    walk,
    written_values,
)
from .jit import Kernel, SeenLaunch
from .runtime.arguments import ArraySpec, Bound
from .types import MEMORY_TYPES, Buffer, Scalar, Sym

AT_MOST = 200_000  # calls that are looked at, some of them in each trip of a loop: about a second
CTAS_A_CALL = 1000  # as many CTAs take about as long as one


@dataclass(frozen=True)
class Work:
    """Of a launch: the bytes of the arrays that it reads and of those that it writes, and the operations of its matrix
    products (2 m n k each). None for what cannot be known without running it, or is not there."""

    nbytes: int | None = None
    flops: int | None = None


def total_work(launches: Iterable[SeenLaunch]) -> Work:
    """The work of several launches; a number that one of them does not have, products excepted, is None."""
    works = [work_of(*launch) for launch in launches]
    if not works:
        return Work()
    nbytes, flops = [w.nbytes for w in works], [w.flops for w in works]
    return Work(None if None in nbytes else sum(n for n in nbytes if n is not None),
                None if None in flops or not any(flops) else sum(n for n in flops if n is not None))


def work_of(kernel: Kernel, bound: Bound, options: dict[str, Any], grid: Sequence[int], target: str) -> Work:
    """The work of one launch. Products are counted in the graph before the passes, in the trips that each CTA runs;
    `flops` is 0 without products, and None where loops or conditions around them depend on data."""
    graph = kernel.build(bound.without_data(), options, target).graph
    return Work(_bytes(graph.body, bound), _Products(graph, bound, grid).count())


def _bytes(body: Block, bound: Bound) -> int | None:
    calls = [c for c in walk(body) if isinstance(c, Call) and c.op.effect != "pure"]
    total = 0
    written = list(written_values(calls))
    read = [a for c in calls for a in c.args if isinstance(a, Value) and isinstance(a.type, MEMORY_TYPES)
            and a not in list(written_values([c]))]
    for values in (read, written):
        arrays = {_array(value) for value in values} - {None}
        if not all(isinstance(array, int) for array in arrays):
            return None  # an array that the kernel makes from an address
        total += sum(_size(bound.runtime[array]) for array in arrays if isinstance(array, int))
    return total


def _array(value: Value) -> Any:
    """The array in global memory that a value refers to; None if it is other memory."""
    buffer: Any = value.type if isinstance(value.type, Buffer) else getattr(value.type, "buffer", None)
    return buffer.arg if isinstance(buffer, Buffer) and buffer.scope == "global" else None


def _size(spec: ArraySpec) -> int:
    """The bytes of an array's elements, those that it repeats (by strides of 0) counted once."""
    elements = prod(n for n, stride in zip(spec.shape, spec.strides) if stride or n == 0)
    return int(elements * spec.dtype.bits // 8)


class _Products:
    """Counts the operations of products over all CTAs of a launch. Scalars are evaluated for all CTAs at once, as
    arrays [CTAs, 1], by the ops' own rules for the simulator; they see this object as their machine."""

    active = np.ones((1, 1), bool)

    def __init__(self, graph: Graph, bound: Bound, grid: Sequence[int]):
        self.body, self.bound, self.grid = graph.body, bound, tuple(grid)
        self.ids = [axis.reshape(-1, 1).astype(np.int32)
                    for axis in np.unravel_index(np.arange(prod(self.grid)), self.grid[::-1])[::-1]]
        self.known: dict[Value, Any] = {
            param: np.full((1, 1), value, param.type.dtype.np) for param, value in zip(graph.params, bound.runtime)
            if isinstance(param.type, Scalar)}
        self.left = AT_MOST / max(1, prod(self.grid) / CTAS_A_CALL)

    def program_id(self, axis: int) -> Any:
        """The index of each CTA along an axis of the grid."""
        return self.ids[axis]

    def resolve(self, n: int | Sym) -> int:
        """A size or stride of an array of the launch."""
        if not isinstance(n, Sym):
            return n
        spec = self.bound.runtime[n.arg]  # type: ignore[index]  # not of an array made in the kernel, which raises
        return int((spec.shape if n.kind == "size" else spec.strides)[n.dim])

    def count(self) -> int | None:
        """The operations of all CTAs; None if unknown, or if counting would take long."""
        if all(_operations(call) == 0 for call in walk(self.body) if isinstance(call, Call)):
            return 0
        with np.errstate(all="ignore"):
            each = self._block(self.body)
        return None if each is None else int(np.broadcast_to(each, (prod(self.grid), 1)).sum())

    def _block(self, block: Block) -> Any:
        """The operations of each CTA in one run of a block, as an array; None if unknown."""
        total: Any = np.zeros((1, 1), np.int64)
        for node in block.nodes:
            if self.left < 0:
                return None
            if isinstance(node, Call):
                self.left -= 1
                self._evaluate(node)
                each = _operations(node)
            elif isinstance(node, If):
                each = self._branch(node)
            elif not any(_operations(c) != 0 for c in _calls_in(node)):
                self._forget(node)
                each = 0
            else:
                each = self._structure(node)
            if each is None:
                return None
            total = total + each
        return total

    def _structure(self, node: Node) -> Any:
        """The operations of a loop or scope with products in it."""
        if isinstance(node, Scope):
            return None if self._value(node.first) is None else self._block(node.body)
        return self._loop(node) if isinstance(node, For) else None

    def _forget(self, node: Node) -> None:
        """What a loop carries out of it is unknown."""
        for carry in node.carried if isinstance(node, (For, While)) else ():
            self.known.pop(carry.result, None)

    def _branch(self, node: If) -> Any:
        test = self._value(node.test)
        ends = [(self._block(block), [self._value(x) for x in block.yields]) for block in (node.then, node.orelse)]
        (then, values), (orelse, others) = ends
        for result, one, other in zip(node.results, values, others):
            self._remember(result, None if any(x is None for x in (test, one, other)) else np.where(test, one, other))
        if any(x is None for x in (then, orelse)):
            return None
        if test is None:
            return then if np.array_equal(then, orelse) else None
        return np.where(test, then, orelse)

    def _loop(self, loop: For) -> Any:
        ends = [self._value(x) for x in (loop.start, loop.stop, loop.step)]
        if any(end is None for end in ends):
            return None
        start, stop, step = (np.asarray(end, np.int64) for end in ends)
        trips = np.maximum(-((start - stop) // step), 0)
        for value in (loop.index, *(carry.inner for carry in loop.carried)):
            self.known.pop(value, None)
        self._forget(loop)
        once = self._block(loop.body)
        return trips * once if once is not None else self._trips(loop, start, step, trips)

    def _trips(self, loop: For, start: Any, step: Any, trips: Any) -> Any:
        """The operations of a loop whose body depends on its index or on what it carries, trip by trip."""
        total: Any = np.zeros((1, 1), np.int64)
        carried = [self._value(carry.init) for carry in loop.carried]
        for trip in range(int(trips.max())):
            runs = trip < trips
            self.known[loop.index] = (start + trip * step).astype(type_as(loop.index, Scalar).dtype.np)
            for carry, value in zip(loop.carried, carried):
                self._remember(carry.inner, value)
            each = self._block(loop.body)
            if each is None:
                return None
            total = total + np.where(runs, each, 0)
            after = [self._value(x) for x in loop.body.yields]
            carried = [None if x is None or y is None else np.where(runs, x, y) for x, y in zip(after, carried)]
        for carry, value in zip(loop.carried, carried):
            self._remember(carry.result, value)
        return total

    def _remember(self, value: Value, array: Any) -> None:
        """Note what a scalar is; None: that it is unknown."""
        self.known.pop(value, None)
        if array is not None and isinstance(value.type, Scalar):
            self.known[value] = array

    def _value(self, operand: Operand) -> Any:
        """A scalar as an array; None if it is unknown."""
        if isinstance(operand, Const):
            return np.full((1, 1), operand.value, operand.dtype.np)
        return None if operand is None else self.known.get(operand)

    def _evaluate(self, call: Call) -> None:
        """Remember the scalar that a call computes, or forget the one of another trip."""
        for result in call.results:
            self._remember(result, None)
        rule = call.op.rules.simulate
        is_scalar = len(call.results) == 1 and isinstance(call.result.type, Scalar)
        if not is_scalar or call.op.effect != "pure" or rule is None:
            return
        operands = [self._value(x) for x in call.args]
        if any(value is None and not _is_memory(x) for value, x in zip(operands, call.args)):
            return
        with suppress(AttributeError, TypeError):  # it depends on the thread, or on an array that the kernel makes
            self.known[call.result] = np.asarray(rule(self, call, *operands))


def _is_memory(operand: Operand) -> bool:
    return isinstance(operand, Value) and isinstance(operand.type, MEMORY_TYPES)


def _calls_in(node: Node) -> Iterable[Call]:
    return (inner for block in blocks(node) for inner in walk(block) if isinstance(inner, Call))


def _operations(call: Call) -> int | None:
    """The operations of one call: those of a product, else 0. None for a product of two CTAs, each of which holds a
    part of the operands."""
    if not call.op.traits.product:
        return 0
    if (call.attrs.get("options") or {}).get("cta_group", 1) != 1:
        return None
    types: list[Any] = [operand.type for operand in call.args[1:3] if isinstance(operand, Value)]
    a, b = (t.shape for t in types)
    m, k = a[::-1] if call.attrs.get("trans_a") else a
    n = b[0] if call.attrs.get("trans_b") else b[1]
    return 2 * m * n * k
