"""The state of tensor maps in memory: fields, edits and fences.

For each 128 bytes that hold a map: its fields, who edited it last, and who has released and acquired that edit.

A map in global memory outlives the launch that made it, as its bytes do. An edit therefore writes a marker to its
bytes; as long as that is there, a later launch recognises the map, and where the bytes have been copied to, a copy of
it. PTX ISA, "Tensors", "tensormap.replace".
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from ..errors import Loc
from .memory import GlobalMemory
from .values import SimTensorMap

BYTES = 128
DIMENSIONS = 5

# The fields that ``tensormap.replace`` sets, by the instruction's names, and how many of each kind a map of the highest
# rank has (0: one field without an index). From zeros, all of them make a map; what a zero means is the hardware's own
# affair.
REPLACED = {"global_address": 0, "rank": 0, "elemtype": 0, "global_dim": DIMENSIONS, "global_stride": DIMENSIONS - 1,
            "box_dim": DIMENSIONS, "element_stride": DIMENSIONS, "interleave_layout": 0, "swizzle_mode": 0,
            "fill_mode": 0}

# Element types by their number in ``tensormap.replace`` (PTX ISA). The host's encoder numbers them differently.
ELEMENTS = ("uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float32_ftz", "float64",
            "bfloat16", "tf32", "tf32_ftz")


@dataclass(frozen=True)
class Fields:
    """The fields of a tiled map, innermost dimension first, with all five dimensions. `address` is that of element 0,
    and strides are in bytes. `unset` are those of a map made from zeros that no instruction has set yet, as (the
    instruction's name, index)."""

    address: int = 0
    rank: int = 1
    dims: tuple[int, ...] = (1,) * DIMENSIONS
    strides: tuple[int, ...] = (0,) * (DIMENSIONS - 1)
    box: tuple[int, ...] = (1,) * DIMENSIONS
    steps: tuple[int, ...] = (1,) * DIMENSIONS
    dtype: str = ELEMENTS[0]
    interleave: int = 0
    swizzle: int = 0
    l2_promotion: int = 0
    oob_fill: int = 0
    unset: frozenset[tuple[str, int | None]] = frozenset()

    @staticmethod
    def of_zeros() -> Fields:
        """The fields of 128 bytes of zeros."""
        return Fields(unset=frozenset((name, i) for name, n in REPLACED.items() for i in (range(n) if n else (None,))))

    @staticmethod
    def of(t: SimTensorMap) -> Fields:
        """The fields of a map that the launch has encoded."""
        def pad(values, n, rest):
            return (*map(int, values), *(rest,) * (n - len(values)))
        address = t.memory.address + t.memory.origin * t.memory.itemsize + int(np.asarray(t.base).flat[0])
        return Fields(address, t.rank, pad(t.global_dim, DIMENSIONS, 1), pad(t.global_strides, DIMENSIONS - 1, 0),
                      pad(t.box, DIMENSIONS, 1), pad(t.element_strides, DIMENSIONS, 1), t.dtype, t.interleave,
                      t.swizzle, t.l2_promotion, t.oob_fill)

    def replace(self, name: str, index: int | None, value: int) -> Fields:
        """The fields after one ``tensormap.replace``; `name` is the instruction's name for the field."""
        at = {"global_dim": "dims", "global_stride": "strides", "box_dim": "box", "element_stride": "steps"}.get(name)
        changes: dict[str, Any] = {"unset": self.unset - {(name, index)}}
        if at is not None:
            assert index is not None
            values = getattr(self, at)
            changes[at] = (*values[:index], value, *values[index + 1:])
            return replace(self, **changes)
        if name == "elemtype":
            return replace(self, **changes, dtype=ELEMENTS[value])
        plain = {"global_address": "address", "interleave_layout": "interleave", "swizzle_mode": "swizzle",
                 "fill_mode": "oob_fill"}
        changes |= {"rank": value + 1} if name == "rank" else {plain[name]: value}
        return replace(self, **changes)

    def rebound(self, address: int, dims: tuple[int, ...], strides: tuple[int, ...]) -> Fields:
        made = self.replace("global_address", None, address)
        for name, values in (("global_dim", dims), ("global_stride", strides)):
            for i, value in enumerate(values):
                made = made.replace(name, i, value)
        return made

    def missing_fields(self) -> list[str]:
        """The fields that a map of this rank needs and that nothing has set, by the instruction's names. As long as
        the rank is one of them, it is taken to be the number of sizes."""
        sizes = max(i + 1 for i in range(DIMENSIONS) if i == 0 or ("global_dim", i) not in self.unset)
        rank = sizes if ("rank", None) in self.unset else self.rank
        def is_needed(name, i):
            return i is None or i < rank - (name == "global_stride")
        def name_field(name, i):
            return name if i is None else f"{name}[{i}]"
        return [name_field(name, i) for name in REPLACED
                for _, i in sorted(u for u in self.unset if u[0] == name) if is_needed(name, i)]

    def batch_key(self) -> tuple:
        """The fields that maps must have in common for one batched copy: all except the address,
        dimensions and strides."""
        return (self.rank, self.box, self.steps, self.dtype, self.interleave, self.swizzle, self.l2_promotion,
                self.oob_fill)


@dataclass(frozen=True)
class Acquired:
    """A CTA's last acquire of a slot: the version acquired, the scope of the edit's release (None: not released), the
    scope of the acquire, and the epoch of each acquiring atom."""

    version: int
    released: str | None
    scope: str
    epochs: dict[int, int]


@dataclass
class Slot:
    """128 bytes that hold a map: its fields (None: unknown), the last edit, and who made it."""

    fields: Fields | None = None
    version: int = 0
    # whether copies would stay inside an array; None: not checked yet
    legal: bool | None = None
    launch: int = 0                                                  # the launch of the last edit
    cta: int = -1
    cluster: tuple = ()
    threads: tuple[int, int] = (0, 0)
    loc: Loc | None = None
    released: str | None = None                                      # the scope at which the last edit was released
    acquired: dict[int, Acquired] = field(default_factory=dict)      # by CTA
    copies: list[tuple[int, int]] = field(default_factory=list)      # operations that read it: (chunk, number)
    seen: int = 0                                                    # the launch that `acquired` and `copies` belong to
    mark: bytes = b""
    # the edit of this launch whose map something else has overwritten
    lost: Loc | None = None

    def known_fields(self) -> Fields:
        """The fields of a map that has been written."""
        assert self.fields is not None
        return self.fields


_SLOTS: dict[int, Slot] = {}      # all slots of this process, by the address of their first byte
_MARKS = count(1)
_MARKED: dict[bytes, Fields | None] = {}  # the fields of the last edited maps, by their markers
REMEMBERED = 4096                         # how many of them, for maps that are copied


def slot_at(memory: GlobalMemory, at: int, launch: int) -> Slot:
    """The slot at byte `at` of a memory. If its bytes have changed since the last edit, they may be a copy of another
    map, which needs no release by a thread of its own then; otherwise nothing is known about it."""
    slot, data = _SLOTS.get(memory.address + at), memory.bytes[at:at + BYTES].tobytes()
    if slot is None or (slot.mark and slot.mark != data):
        fields = _MARKED.get(data)
        if fields is not None:
            slot = Slot(fields, version=1, released="sys", mark=data)
        else:
            slot = Slot(lost=slot.loc if slot is not None and slot.launch == launch else None)
        _SLOTS[memory.address + at] = slot
    if slot.seen != launch:
        slot.seen, slot.legal = launch, None
        slot.acquired.clear()
        slot.copies.clear()
    return slot


def leave_mark(slot: Slot, memory: GlobalMemory, at: int) -> None:
    """Write a unique marker to the bytes of the slot. Nothing else that a kernel or its caller
    writes there equals it."""
    slot.mark = (next(_MARKS).to_bytes(8, "little") + b"tilejit\xff") * (BYTES // 16)
    memory.bytes[at:at + BYTES] = np.frombuffer(slot.mark, np.uint8)
    _MARKED[slot.mark] = slot.fields
    if len(_MARKED) > REMEMBERED:
        _MARKED.pop(next(iter(_MARKED)))


def slots_of(launch: int) -> list[Slot]:
    """The slots in global memory that a launch has edited."""
    return [slot for slot in _SLOTS.values() if slot.launch == launch]
