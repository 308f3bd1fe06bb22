"""The bytes and operations of a launch, counted in the kernel's graph: what `bench` divides by the time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from .ir.builder import type_as
from .ir.graph import Block, Call, Const, For, If, Node, Operand, Scope, Value, blocks, walk, written_values
from .jit import Kernel, SeenLaunch
from .runtime.arguments import ArraySpec, Bound
from .types import MEMORY_TYPES, Buffer, Scalar, Sym

TRIPS_AT_MOST = 4096  # of a loop whose body is counted trip by trip


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
    body = kernel.build(bound.without_data(), options, target).graph.body
    return Work(_bytes(body, bound), _Products(bound, grid).count(body))


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

    def __init__(self, bound: Bound, grid: Sequence[int]):
        self.bound, self.grid = bound, tuple(grid)
        self.ids = [axis.reshape(-1, 1).astype(np.int32)
                    for axis in np.unravel_index(np.arange(prod(self.grid)), self.grid[::-1])[::-1]]
        self.known: dict[Value, Any] = {}

    def program_id(self, axis: int) -> Any:
        """The index of each CTA along an axis of the grid."""
        return self.ids[axis]

    def resolve(self, n: int | Sym) -> int:
        """A size or stride of an array of the launch."""
        if not isinstance(n, Sym):
            return n
        spec = self.bound.runtime[n.arg]  # type: ignore[index]  # not of an array made in the kernel, which raises
        return int((spec.shape if n.kind == "size" else spec.strides)[n.dim])

    def count(self, body: Block) -> int | None:
        """The operations of all CTAs; None if unknown."""
        with np.errstate(all="ignore"):
            each = self._block(body)
        return None if each is None else int(np.broadcast_to(each, (prod(self.grid), 1)).sum())

    def _block(self, block: Block) -> Any:
        """The operations of each CTA in one run of a block, as an array; None if unknown."""
        total: Any = np.zeros((1, 1), np.int64)
        for node in block.nodes:
            if isinstance(node, Call):
                self._evaluate(node)
                each = _operations(node)
            elif not any(_operations(c) != 0 for c in _calls_in(node)):
                each = 0
            else:
                each = self._structure(node)
            if each is None:
                return None
            total = total + each
        return total

    def _structure(self, node: Node) -> Any:
        """The operations of a node with products in it."""
        if isinstance(node, Scope):
            return None if self._value(node.first) is None else self._block(node.body)
        if isinstance(node, For):
            return self._loop(node)
        if isinstance(node, If):
            test, then, orelse = self._value(node.test), self._block(node.then), self._block(node.orelse)
            known = not any(part is None for part in (test, then, orelse))
            return np.where(test, then, orelse) if known else None
        return None

    def _loop(self, loop: For) -> Any:
        ends = [self._value(x) for x in (loop.start, loop.stop, loop.step)]
        if any(end is None for end in ends):
            return None
        start, stop, step = (np.asarray(end, np.int64) for end in ends)
        trips = np.maximum(-((start - stop) // step), 0)
        self.known.pop(loop.index, None)
        once = self._block(loop.body)
        if once is not None:
            return trips * once
        most, total = int(trips.max()), np.zeros((1, 1), np.int64)
        if most > TRIPS_AT_MOST:
            return None
        for trip in range(most):  # what the body does depends on the index
            self.known[loop.index] = (start + trip * step).astype(type_as(loop.index, Scalar).dtype.np)
            each = self._block(loop.body)
            if each is None:
                return None
            total = total + np.where(trip < trips, each, 0)
        return total

    def _value(self, operand: Operand) -> Any:
        """A scalar as an array; None if it is unknown."""
        if isinstance(operand, Const):
            return np.full((1, 1), operand.value, operand.dtype.np)
        return None if operand is None else self.known.get(operand)

    def _evaluate(self, call: Call) -> None:
        """Remember the scalar that a call computes, or forget the one of another trip."""
        for result in call.results:
            self.known.pop(result, None)
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
