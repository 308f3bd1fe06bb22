"""Arrays that a kernel makes from addresses: which of the host's arrays they lie over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import LaunchError
from ..ir.graph import Value
from ..ir.machine_protocol import Divided
from ..types import Addressed, Buffer
from .component import Component
from .global_races import GlobalShadow
from .memory import GlobalMemory
from .values import SimBuffer

SPARE = 1 << 28  # bytes of the longest array that gets memory of its own if it lies over none


@dataclass(frozen=True)
class Placed:
    """An array at an address: its memory, the byte there at which its first element begins, and its shape. `fault` is
    the (kind, message) of the finding if the kernel may not access it there; then the memory is one of its own."""

    memory: GlobalMemory
    base: int
    shape: tuple[int, ...]
    fault: tuple[str, str] | None = None


class AddressSpace:
    """The host's arrays that a launch knows: its arguments first, then those whose addresses the host has taken."""

    def __init__(self, memories: list[GlobalMemory | None], checks: bool):
        self.memories = [m for m in memories if m is not None and m.bytes.size]
        self.checks = checks
        self._placed: dict[tuple[Any, ...], Placed] = {}
        self._views: dict[tuple[Any, ...], GlobalMemory] = {}

    def place(self, t: Buffer, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Placed:
        """Where the array of type `t` lies."""
        key = t.dtype, t.arg, address, shape, strides
        if key not in self._placed:
            self._placed[key] = self._place(t, address, shape, strides)
        return self._placed[key]

    def _place(self, t: Buffer, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Placed:
        nbytes, name = t.dtype.nbytes, str(t.arg)
        if 0 in shape:
            return Placed(self._empty_memory(t), 0, shape)
        if min(shape, default=0) < 0:
            return self._refuse(t, shape, strides, "out-of-bounds", f"{name} has the shape {list(shape)}")
        align = t.arg.align if isinstance(t.arg, Addressed) else nbytes
        if address % align:
            need = "align= promises" if align > nbytes else f"elements of {t.dtype} need"
            found = f"{name} is at the address {address:#x}, which is no multiple of the {align} bytes that {need}"
            return self._refuse(t, shape, strides, "misaligned", found)
        reaches = [(n - 1) * s * nbytes for n, s in zip(shape, strides)]
        low, end = address + sum(min(r, 0) for r in reaches), address + sum(max(r, 0) for r in reaches) + nbytes
        for m in self.memories:
            if m.address <= low and end <= m.address + m.bytes.size:
                memory = self._view(m, t.dtype.np, (address - m.address) % nbytes)
                return Placed(memory, address - memory.address - memory.origin * memory.itemsize, shape)
        return self._refuse(t, shape, strides, "out-of-bounds", self._explain(name, address, low, end))

    def _explain(self, name: str, address: int, low: int, end: int) -> str:
        """Why no known array holds the bytes [low, end) of the array at an address, in words."""
        touched = next((m for m in self.memories if m.address <= address < m.address + m.bytes.size), None)
        if touched is None:
            return (f"{name} is at the address {address:#x}, which is in no array of the launch, and in none that "
                    "lives and whose address the host has taken by tile.address_of or tile.address_table")
        before, over = touched.address - low, end - touched.address - touched.bytes.size
        places = [f"begins {before} bytes before"] * (before > 0) + [f"runs {over} bytes over the end of"] * (over > 0)
        return f"{name}, at the address {address:#x}, {' and '.join(places)} {touched.name}"

    def _view(self, memory: GlobalMemory, dtype: np.dtype, phase: int) -> GlobalMemory:
        """A memory as elements of a dtype, from byte `phase` on; itself if its elements are as large."""
        if memory.itemsize == dtype.itemsize and not phase:
            return memory
        key = id(memory), dtype.itemsize, phase
        if key not in self._views:
            self._views[key] = memory.as_elements(dtype, phase)
        return self._views[key]

    def _empty_memory(self, t: Buffer) -> GlobalMemory:
        """The memory of arrays without elements."""
        key = t.dtype, t.arg
        if key not in self._views:
            self._views[key] = self._make_memory(t, (0,), (1,))
        return self._views[key]

    def _refuse(self, t: Buffer, shape: tuple[int, ...], strides: tuple[int, ...], kind: str, message: str) -> Placed:
        if min(shape, default=0) < 0:
            shape = tuple(max(n, 0) for n in shape)
        reach = sum(abs((n - 1) * s) for n, s in zip(shape, strides)) * t.dtype.nbytes
        shape = shape if reach <= SPARE else (0,) * len(shape)
        memory = self._make_memory(t, shape, strides)
        below = sum(min((n - 1) * s, 0) for n, s in zip(shape, strides)) if 0 not in shape else 0
        return Placed(memory, -below * t.dtype.nbytes, shape, (kind, message))

    def _make_memory(self, t: Buffer, shape: tuple[int, ...], strides: tuple[int, ...]) -> GlobalMemory:
        """Memory that nothing else uses, for an array that lies over no other."""
        count = 1 + sum(abs((n - 1) * s) for n, s in zip(shape, strides)) if 0 not in shape else 1
        memory = GlobalMemory(np.zeros(count, t.dtype.np), str(t.arg), -1)
        if self.checks:
            memory.shadow = GlobalShadow(memory.address, memory.bytes.size, memory.itemsize)
        return memory


class AddressedArrays(Component):
    """The part of the machine that makes arrays from addresses."""

    def at(self, value: Value, address: np.ndarray, numbers: tuple[np.ndarray, ...]) -> SimBuffer | Divided:
        """The array at an address; `numbers` are its extents, then its strides. The CTAs of a batch go on apart unless
        their arrays lie in one memory and have one shape."""
        t, rank = value.type, len(numbers) // 2
        assert isinstance(t, Buffer)
        rows = np.concatenate([self._by_cta(x) for x in np.broadcast_arrays(
            *(np.asarray(x).astype(np.int64) for x in (address, *numbers)))], axis=1)
        space = self.m.sim.address_space
        placed = [space.place(t, first & (1 << 64) - 1, tuple(more[:rank]), tuple(more[rank:]))
                  for first, *more in rows.tolist()]
        keys = [(id(p.memory), p.shape, p.fault is None, *row[1 + rank:]) for p, row in zip(placed, rows.tolist())]
        active = np.broadcast_to(self.m.active.any(axis=1), (len(keys),)) if len(keys) > 1 else np.ones(1, bool)
        leader = int(np.argmax(active))
        same = np.array([key == keys[leader] for key in keys]) | ~active
        if not same.all():
            return Divided(same)
        found = placed[leader]
        if found.fault is not None:
            kind, message = found.fault
            self.m.finding(kind, message, ctas=self.m.ctas[active] if len(keys) > 1 else None)
        elif not found.memory.flat.flags.writeable and value in self.m.sim.program.written:
            raise LaunchError(f"the kernel writes {found.memory.name}, which is read-only, through {t.arg}")
        bases = np.array([[p.base if a else found.base] for p, a in zip(placed, active)], np.int64)
        base = found.base if (bases == found.base).all() else bases
        return SimBuffer(t, found.memory, base, found.shape, tuple(rows[leader, 1 + rank:].tolist()))

    def _by_cta(self, x: np.ndarray) -> np.ndarray:
        """A number that is the same for all threads that take part, (B or 1, 1)."""
        if x.shape[1] == 1:
            return x
        active = np.broadcast_to(self.m.active, (max(len(x), len(self.m.active)), x.shape[1]))
        x = np.broadcast_to(x, active.shape)
        return x[np.arange(len(x)), np.argmax(active, axis=1)][:, None]
