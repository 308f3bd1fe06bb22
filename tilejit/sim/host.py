"""What the host sees of a kernel at one of its lines: ``print`` and ``breakpoint`` with NumPy arrays."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import print_text
from ..ir.builder import type_of
from ..layout import TileLayout
from ..types import Points, Region, Scalar, Tile, Uniformity
from .component import Component
from .values import SimBuffer, SimPoints, SimRegion, coordinates_of


class Host(Component):
    """The part of the machine for calls of Python's own functions. They read memory without taking part in races."""

    def print(self, call: Any, values: tuple, text: Callable[[tuple], str]) -> None:
        """Print what `text` makes of the operands, for each CTA."""
        for b, _, arrays in self._by_cta(call, values):
            print_text(f"{self.m.prefix(b, None)}: {text(arrays)}")

    def stop(self, call: Any, values: tuple, names: Callable[[tuple], dict[str, Any]]) -> None:
        """Call ``breakpoint()`` for each CTA, from code that has the place of the call in the kernel and the names that
        `names` makes of the operands."""
        loc = call.loc
        code = compile("\n" * (loc.line - 1) + "breakpoint()", loc.file, "exec")
        code = code.replace(co_name=loc.function or self.m.sim.graph.name)
        for b, threads, arrays in self._by_cta(call, values):
            own = {"__cta__": int(self.m.ctas[b]), "__threads__": self.m.low + threads}
            exec(code, {"__builtins__": builtins, "np": np, **own}, names(arrays))  # noqa: S102 - the call above

    def _by_cta(self, call: Any, values: tuple) -> Iterator[tuple[int, np.ndarray, tuple]]:
        """For each CTA with active threads: its place in the batch, theirs in the scope, and the operands' values."""
        batches = [self._elements(x) if isinstance(x, (SimBuffer, SimRegion, SimPoints)) else x for x in values]
        for b, threads in self.m.active_threads():
            yield b, threads, tuple(self._of_cta(type_of(arg), x, b, threads) for arg, x in zip(call.args, batches))

    def _of_cta(self, t: Any, x: np.ndarray, b: int, threads: np.ndarray) -> Any:
        """The part of a value that belongs to the CTA at `b`: a tile or a buffer as a copy that cannot be written, a
        scalar as a number, or if threads may differ, as an array of those of `threads`."""
        own = x[b % len(x)]
        if isinstance(t, Scalar) or isinstance(t, (Region, Points)) and not t.shape:
            each = np.broadcast_to(own, (self.m.threads,))[threads]
            differ = t.uniform == Uniformity.THREAD if isinstance(t, Scalar) else len(own) > 1
            own = each if differ and len(each) > 1 else each[0]
        if isinstance(t, Tile):
            own = np.broadcast_to(own, t.shape)
        own = own.copy()
        if isinstance(own, np.ndarray):
            own.flags.writeable = False
        return own

    def _elements(self, place: Any) -> np.ndarray:
        """What memory now holds at a place, (B or 1, *shape); 0 outside a buffer's or window's bounds."""
        if isinstance(place, SimBuffer):
            buffer = place
            coords = tuple(c[None] for c in np.indices(buffer.shape, sparse=True))
        else:
            buffer, coords = place.buffer, coordinates_of(place)
        keep: Any = True
        for d, c in enumerate(coords):
            keep = keep & self.m.global_memory.inside(buffer, d, c)
        coords = tuple(np.clip(c, 0, max(n - 1, 0)).astype(np.int64) for c, n in zip(coords, buffer.shape))
        shape = np.broadcast_shapes(*(c.shape for c in coords), np.shape(keep))
        dtype = buffer.type.dtype.np
        if buffer.memory.scope == "global":
            steps = sum(c * stride for c, stride in zip(coords, buffer.array_strides))
        else:
            steps = (buffer.type.layout or TileLayout.row_major(buffer.shape)).offset_of(*coords, shape=buffer.shape)
        offsets = np.broadcast_to(steps, shape).reshape(shape[0], -1) * dtype.itemsize
        offsets = np.where(np.broadcast_to(keep, shape).reshape(shape[0], -1), offsets, 0)
        if not offsets.size:
            return np.zeros(shape, dtype)
        read = self.m.shared.read_bytes(buffer, offsets, dtype.itemsize)
        read = np.ascontiguousarray(read).view(dtype).reshape(-1, *shape[1:])
        return np.where(keep, read, np.zeros((), dtype))
