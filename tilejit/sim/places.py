"""How findings name bytes of shared memory: by the element of the kernel's allocation that they belong to."""

from __future__ import annotations

import numpy as np

from ..ir.builder import type_as
from ..ir.graph import Call, Graph, Value, walk
from ..names import allocation_name, is_allocation
from ..types import Buffer, layout_of


class Places:
    """The allocations of a graph in shared memory. Tables of their elements are built only for buffers
    that a finding names."""

    def __init__(self, graph: Graph):
        self.buffers = {v: at for v, at in graph.shared.items()
                        if isinstance(v.type, Buffer) and v.type.scope == "shared"}
        self.sizes = {v: type_as(v, Buffer).nbytes for v in self.buffers}
        self.rings = {v for n in walk(graph.body) if isinstance(n, Call) and n.attrs.get("slots") is True
                      for v in n.results}
        self.offsets: dict[Value, np.ndarray] = {}  # byte offset of each element in its buffer, in row-major order
        self.said: dict[tuple[int, int], str] = {}

    def is_own(self, at: int) -> bool:
        """Whether byte `at` of shared memory belongs to an allocation that the kernel's source makes,
        and not to one of the compiler."""
        return any(first <= at < first + self.sizes[v] and is_allocation(v.loc) for v, first in self.buffers.items())

    def words(self, first: int, nbytes: int) -> str:
        """``bytes 28 to 31 of shared memory (s[7])`` for `nbytes` bytes from `first` on;
        without the element if it is not known."""
        if (first, nbytes) not in self.said:
            element = next((self._element(v, first - at)
                            for v, at in self.buffers.items() if at <= first < at + self.sizes[v]), "")
            self.said[first, nbytes] = (f"bytes {first} to {first + nbytes - 1} of shared memory"
                                        + (f" ({element})" if element else ""))
        return self.said[first, nbytes]

    def _element(self, value: Value, at: int) -> str:
        name, t = allocation_name(value.name, value.loc), type_as(value, Buffer)
        if value not in self.offsets and name:
            offsets = layout_of(t).offset_of(*np.indices(t.shape), shape=t.shape)
            self.offsets[value] = np.broadcast_to(offsets, t.shape).reshape(-1) * t.dtype.nbytes
        if not name:
            return ""
        found = np.flatnonzero((self.offsets[value] <= at) & (at < self.offsets[value] + t.dtype.nbytes))
        if len(found) == 0:
            return ""
        index = [int(i) for i in np.unravel_index(found[0], t.shape)]
        slot = f" in slot {index.pop(0)}" if value in self.rings else ""
        return f"{name}{index}{slot}" if index else f"{name}{slot}"


__all__ = ["Places"]
