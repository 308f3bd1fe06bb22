"""Tensor cores: wgmma on the bytes that its matrix descriptors name."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from ..dtypes import float16, int32
from ..ops.mma.descriptor import Derived, Descriptor, encode_descriptor
from ..types import Tile
from .component import Component
from .engines import Operation, Span
from .shared_units import Elements

ROWS, CHUNK = 64, 16  # rows of an instruction; bytes that a swizzle keeps contiguous
TF32 = np.uint32(0xFFFFE000)


@lru_cache(maxsize=256)
def addresses(made: Derived, start: int, mn: int, itemsize: int, rows: tuple[int, ...]) -> np.ndarray:
    """The byte addresses of a matrix's elements, (len(rows) * mn, k), from the descriptors of its instructions: one
    for each block of rows (at byte offsets `rows`) and each step along k."""
    blocks = []
    for row in rows:
        steps = []
        for k in made.ks:
            bits = encode_descriptor(made.descriptor, start + row + k)
            descriptor, at = Descriptor.decode(bits, made.descriptor.major)
            steps.append(descriptor.addresses(at, mn, itemsize))
        blocks.append(np.concatenate(steps, axis=1))
    return np.concatenate(blocks, axis=0)


@lru_cache(maxsize=256)
def elements(made: Derived, start: int, mn: int, itemsize: int, rows: tuple[int, ...]) -> Elements:
    """A matrix's elements, to be read from the memory of CTAs."""
    return Elements.at(addresses(made, start, mn, itemsize, rows), itemsize)


@lru_cache(maxsize=256)
def chunks(made: Derived, start: int, mn: int, itemsize: int, rows: tuple[int, ...]) -> np.ndarray:
    """The sorted byte addresses of the CHUNK-byte pieces that contain these elements."""
    return np.unique(addresses(made, start, mn, itemsize, rows) // CHUNK) * CHUNK


class TensorCores(Component):
    """The part of the machine that multiplies matrices."""

    def wgmma(self, plan, call, acc: np.ndarray | None, a: Any, b: Any) -> np.ndarray:
        """``acc + a @ b`` by wgmma. The result is computed at once from what is in memory now; the clocks treat the
        operands as being read until the wait."""
        t: Tile = call.result.type
        if not all(self.m.shared.in_buffer(r) for r in ((b,) if plan.a is None else (a, b))):
            return np.zeros((1, *t.shape), t.dtype.np) if acc is None else acc
        left, right = call.args[1].type, call.args[2].type
        reads: list[Span] = []
        if plan.a is None:
            x = a
        else:
            down = self.m.threads // 128 // plan.across
            rows = tuple(w * plan.a_rows + plan.a.rows[i] for w in range(down) for i in range(plan.tiles))
            x = self._matrix(a, left, plan.a, ROWS, rows, reads)
        y = self._matrix(b, right, plan.b, plan.n, plan.b.rows, reads)
        self.m.engines.issue(Operation("the mma_async", reads=reads, land=lambda rows, params: None, params={},
                                       queue="wgmma", collective=True))
        x, y = _truncate_to_tf32(x), _truncate_to_tf32(y)
        return _product(acc, x if plan.sign == 1 else plan.sign * x, y, plan.steps, t)

    def multiply(self, acc: np.ndarray | None, a: np.ndarray, b: np.ndarray, k: int, t: Tile) -> np.ndarray:
        """``acc + a @ b`` for tiles (B, m, k) and (B, k, n), by instructions that take `k` elements along k."""
        steps = -(-a.shape[2] // k)
        def padded(x):
            missing = steps * k - x.shape[2]
            return np.concatenate([x, np.zeros((*x.shape[:2], missing), x.dtype)], axis=2) if missing else x

        return _product(acc, _truncate_to_tf32(padded(a)), _truncate_to_tf32(padded(b.swapaxes(1, 2))), steps, t)

    def _matrix(self, region, type_, made: Derived, mn: int, rows: tuple[int, ...], reads: list) -> np.ndarray:
        """The elements (B, mn, k) of an operand in shared memory. Appends the bytes that are read to `reads`."""
        buffer, itemsize = region.buffer, type_.dtype.nbytes
        start = self.m.shared.matrix_origin(region)
        reads.append(Span(buffer.memory.scope, start, lambda at: chunks(made, int(at), mn, itemsize, rows) - at, CHUNK,
                          buffer.peer))
        found: np.ndarray | None = None
        own = self.m.rows_of(buffer.peer)
        for positions, (at,) in self.m.cases(start):
            these = elements(made, at, mn, itemsize, rows)
            if positions is None:
                return these.read(buffer.memory, own, type_.dtype.np)
            if isinstance(own, slice):
                own = np.arange(own.start, own.stop)
            values = these.read(buffer.memory, own[positions], type_.dtype.np)
            if found is None:
                found = np.empty((self.m.batch, *values.shape[1:]), values.dtype)
            found[positions] = values
        assert found is not None  # there is a CTA
        return found


def _truncate_to_tf32(x: np.ndarray) -> np.ndarray:
    """Elements as they enter the multipliers: float32 is truncated to TF32."""
    if x.dtype == np.float32:
        return (np.ascontiguousarray(x).view(np.uint32) & TF32).view(np.float32)
    return x.astype(np.float64 if x.dtype.kind in "iu" or x.dtype == np.float64 else np.float32)


def _product(acc: np.ndarray | None, x: np.ndarray, y: np.ndarray, steps: int, t: Tile) -> np.ndarray:
    """``acc + x @ y^T`` in the accumulator's arithmetic: float32, float16 rounded after each instruction,
    or wrapping int32."""
    if t.dtype == int32:
        total = np.matmul(x, y.swapaxes(1, 2)).astype(np.int64) + (0 if acc is None else acc.astype(np.int64))
        return total.astype(np.int32)
    if t.dtype == float16:
        total = np.zeros((1, *t.shape), np.float16) if acc is None else acc
        for part, other in zip(np.split(x, steps, axis=2), np.split(y, steps, axis=2)):
            total = (total.astype(np.float32) + np.matmul(part, other.swapaxes(1, 2))).astype(np.float16)
        return total
    product = np.matmul(x, y.swapaxes(1, 2))
    if acc is None:
        return product
    into = product if acc.dtype == product.dtype and acc.shape[0] <= product.shape[0] else None
    return np.add(acc, product, out=into)
