"""Records of a kernel's copies, memory accesses, products, layouts, loops and their loads, and their JSON form.

Plans are included.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from .concurrency import cached_property
from .dtypes import DTYPES, DType


@dataclass(frozen=True)
class CopyRecord:
    """How one copy call was lowered: the `variant`, (variant, reason) for those `declined`, `instructions` per
    participating thread, and `bytes`. `unused` has (hint, what takes it) for hints of the call that its lowering does
    not use. `buffers` are the names of the arrays and the kernel's allocations that it copies between."""

    line: int
    op: str
    source: str
    src_scope: str
    dst_scope: str
    exec_scope: str
    variant: str
    declined: tuple[tuple[str, str], ...]
    instructions: int
    bytes: int
    plan: Any = field(repr=False)
    unused: tuple[tuple[str, str], ...] = ()
    buffers: tuple[str, ...] = ()


@dataclass(frozen=True)
class AccessRecord:
    """How one load, store or atomic between registers and memory was lowered. `variant` is "vectorised", "scalar", or
    for matrices in shared memory "ldmatrix" or "stmatrix"; `vec_bytes` are the bytes that one instruction moves per
    thread, `instructions` those that a thread issues, and `declined` the reasons against wider ones. `tile` has dtype
    and extents, `scope` is the memory's, `buffer` its name in the kernel.

    A call that is compiled several times with the same result, in ``tile.static_range`` or in a helper, has one
    record with the instructions and bytes of all.
    """

    line: int
    op: str
    source: str
    tile: str
    buffer: str
    scope: str
    exec_scope: str
    variant: str
    declined: tuple[tuple[str, str], ...]
    vec_bytes: int
    instructions: int
    bytes: int


@dataclass(frozen=True)
class ProductRecord:
    """How one matrix product was lowered: the `variant`, (variant, reason) for those `declined`,
    and `instructions` per warp or thread.

    `a`, `b` and `result` are descriptions with dtype, extents and memory. In a loop over k,
    the instructions are those of one trip. `warps` are those that divide the rows and the columns of a result in
    registers, as (rows, columns).
    """

    line: int
    op: str
    source: str
    a: str
    b: str
    result: str
    exec_scope: str
    variant: str
    declined: tuple[tuple[str, str], ...]
    instructions: int
    warps: tuple[int, ...] | None = None


@dataclass(frozen=True)
class LayoutRecord:
    """The layout that the compiler chose for a shared buffer with ``tile.auto``: as `layout`, in words (`chosen`),
    and (name, reason) for those `declined`."""

    line: int
    source: str
    shape: tuple[int, ...]
    layout: str
    chosen: str
    declined: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class LoopRecord:
    """An ordinary loop that could be pipelined: with ``tile.pipelined`` and that many `stages`, all operands of its
    products, loaded at the lines `loads`, would be prefetched."""

    line: int
    source: str
    loads: tuple[int, ...]
    stages: int


@dataclass(frozen=True)
class LoadRecord:
    """A load of the pipelined loop at the line `loop` that stays in its own iteration, or runs `ahead` and is more than
    its copy; `how` says why, or what is done."""

    line: int
    source: str
    loop: int
    ahead: bool
    how: str


@dataclass(frozen=True)
class RotationRecord:
    """A pipelined loop in which products take what threads made of other products' results. If it is `rotated`, the
    threads work while products run; `how` says what overlaps, or why nothing does."""

    line: int
    source: str
    rotated: bool
    how: str


@dataclass(frozen=True)
class PersistenceRecord:
    """Whether the kernel is `persistent`: its CTAs run several programs, one after the other. `how` says in which
    order, or why not. A kernel has one if it asks for roles that fill a multiprocessor."""

    persistent: bool
    how: str


@dataclass(frozen=True)
class MaskRecord:
    """A mask in the pipelined loop at the line `loop` that is skipped in iterations in which it is true everywhere."""

    line: int
    source: str
    loop: int


# The attributes of a compiled kernel that hold records, and the records' classes.
RECORDS = {"copies": CopyRecord, "accesses": AccessRecord, "products": ProductRecord, "layouts": LayoutRecord,
           "loops": LoopRecord, "loads": LoadRecord, "rotations": RotationRecord,
           "masks": MaskRecord, "persistence": PersistenceRecord}


class Plain(SimpleNamespace):
    """An object read back from JSON, with the public attributes that it had."""


def to_plain(x: Any) -> Any:
    """`x` as data for JSON: a tuple as an array, a dataclass as its fields, and a plan's public properties too."""
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    if isinstance(x, tuple):
        return [to_plain(i) for i in x]
    if isinstance(x, list):
        return {"list": [to_plain(i) for i in x]}
    if isinstance(x, dict):
        return {"dict": [[to_plain(k), to_plain(v)] for k, v in x.items()]}
    if isinstance(x, DType):
        return {"dtype": x.name}
    if hasattr(x, "item") and getattr(x, "shape", None) == ():
        return x.item()
    if dataclasses.is_dataclass(x) or isinstance(x, Plain):
        return {"object": {name: to_plain(value) for name, value in _attributes(x).items()}}
    return {"text": repr(x)}


def _attributes(x: Any) -> dict[str, Any]:
    if isinstance(x, Plain):
        return vars(x)
    found = {f.name: getattr(x, f.name) for f in dataclasses.fields(x)}
    if ".ops." not in type(x).__module__:
        return found
    for kind in type(x).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, (property, cached_property)) and not name.startswith("_"):
                found.setdefault(name, getattr(x, name))
    return found


def from_plain(data: Any) -> Any:
    """The inverse of `to_plain`; dataclasses become `Plain` objects, and other objects text."""
    if isinstance(data, list):
        return tuple(from_plain(i) for i in data)
    if not isinstance(data, dict):
        return data
    (kind, value), = data.items()
    if kind == "list":
        return [from_plain(i) for i in value]
    if kind == "dict":
        return {from_plain(k): from_plain(v) for k, v in value}
    if kind == "dtype":
        return DTYPES[value]
    return value if kind == "text" else Plain(**{name: from_plain(v) for name, v in value.items()})


def to_data(records: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Records as data for JSON."""
    return [{f.name: to_plain(getattr(r, f.name)) for f in dataclasses.fields(r)} for r in records]


def from_data(kind: type, data: list[dict[str, Any]]) -> tuple[Any, ...]:
    """The inverse of `to_data`, for records of class `kind`."""
    return tuple(kind(**{name: from_plain(value) for name, value in entry.items()}) for entry in data)
