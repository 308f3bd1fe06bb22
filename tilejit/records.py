"""What is told of each copy call, memory access, product and layout, and plans as plain data: written to JSON, read back with the same attributes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from .dtypes import DTYPES, DType


@dataclass(frozen=True)
class CopyRecord:
    """What became of one copy call: the path it took, why the others declined, what it issues; `unused` names the call's hints
    that this path does not have, each with the path that does; `buffers` are the arrays of the call and the kernel's allocations that it copies
    between, by their names."""

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
    plan: object = field(repr=False)
    unused: tuple[tuple[str, str], ...] = ()
    buffers: tuple[str, ...] = ()


@dataclass(frozen=True)
class AccessRecord:
    """What became of one load, store or atomic operation of registers: `variant` says whether its instructions move vectors ("vectorised"), single
    elements ("scalar") or matrices ("ldmatrix", "stmatrix"), `vec_bytes` how much each moves for a thread, `instructions` how many a thread issues,
    and `declined` why none moves more. `tile` says dtype and extents, `scope` where the memory is, `buffer` what the kernel calls it.

    A call that is compiled several times alike, in ``tile.static_range`` or in a helper, counts the instructions and bytes of all.
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
    """What became of one matrix product: the path it took, why the others declined, what a warp or thread issues of it.

    `a`, `b` and `result` say dtype, extents and where they are. A product in a loop over k counts what one trip issues.
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


@dataclass(frozen=True)
class LayoutRecord:
    """The layout that the compiler has chosen for a shared buffer, in its own words and as a `layout`, and why not the others."""

    line: int
    source: str
    shape: tuple[int, ...]
    layout: str
    chosen: str
    declined: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class LoopRecord:
    """An ordinary loop of which all that its products load, at the lines `loads`, would run ahead of a pipelined one, into so many `stages`."""

    line: int
    source: str
    loads: tuple[int, ...]
    stages: int


# What a compiled kernel tells, by the names of its attributes, and the kinds of their records.
RECORDS = {"copies": CopyRecord, "accesses": AccessRecord, "products": ProductRecord, "layouts": LayoutRecord,
           "loops": LoopRecord}


class Plain(SimpleNamespace):
    """An object read back: its public attributes, as it had them."""


def plain(x: Any) -> Any:
    """`x` as data for JSON: a tuple as an array, an object by its fields, a plan by its properties as well."""
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    if isinstance(x, tuple):
        return [plain(i) for i in x]
    if isinstance(x, list):
        return {"list": [plain(i) for i in x]}
    if isinstance(x, dict):
        return {"dict": [[plain(k), plain(v)] for k, v in x.items()]}
    if isinstance(x, DType):
        return {"dtype": x.name}
    if hasattr(x, "item") and getattr(x, "shape", None) == ():
        return x.item()
    if dataclasses.is_dataclass(x) or isinstance(x, Plain):
        return {"object": {name: plain(value) for name, value in _attributes(x).items()}}
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


def unplain(data: Any) -> Any:
    """What `plain` wrote."""
    if isinstance(data, list):
        return tuple(unplain(i) for i in data)
    if not isinstance(data, dict):
        return data
    (kind, value), = data.items()
    if kind == "list":
        return [unplain(i) for i in value]
    if kind == "dict":
        return {unplain(k): unplain(v) for k, v in value}
    if kind == "dtype":
        return DTYPES[value]
    return value if kind == "text" else Plain(**{name: unplain(v) for name, v in value.items()})


def to_data(records: tuple) -> list:
    """Records as data for JSON."""
    return [{f.name: plain(getattr(r, f.name)) for f in dataclasses.fields(r)} for r in records]


def from_data(kind: type, data: list) -> tuple:
    """The records of one kind that `to_data` wrote."""
    return tuple(kind(**{name: unplain(value) for name, value in entry.items()}) for entry in data)
