"""Named axes, and the parts of a layout's short form: ``4 @ axis.laneid``, ``R[4 : 32 @ axis.TLane]``."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from ..errors import CompilationError
from ..frames import hide_own_frames

if TYPE_CHECKING:
    from .shards import Shard, Shards


class Axis(str):
    """A named coordinate axis. It is a string, so ``"laneid"`` and ``axis.laneid`` are equal and the same dict key."""

    __slots__ = ()
    __array_ufunc__ = None  # so that `n @ axis` with a NumPy integer calls __rmatmul__

    def __rmatmul__(self, value: Any) -> OnAxis:
        return OnAxis(as_whole_number(value), self)

    def __repr__(self) -> str:
        return f"axis.{self}"


@dataclass(frozen=True)
class OnAxis:
    """A value along an axis, written ``4 @ axis.laneid``: a stride in `S` and `R`, or an offset after ``+``."""

    value: Any
    axis: Axis

    def __repr__(self) -> str:
        return str(self.value) if self.axis == "m" else f"{_atom(self.value)} @ {self.axis!r}"


class AxisNames:
    """All axes, as attributes."""

    m = Axis("m")            # memory, in elements
    laneid = Axis("laneid")  # lane in the warp, 0..31
    warpid = Axis("warpid")  # warp in the scope
    wgid = Axis("wgid")      # warpgroup in the CTA
    tid = Axis("tid")        # thread in the scope
    reg = Axis("reg")        # register of a thread, in elements
    TLane = Axis("TLane")    # tensor memory lane, 0..127
    TCol = Axis("TCol")      # tensor memory column, in elements
    cta = Axis("cta")        # CTA in the cluster


axis = AxisNames()

# All axes, from the widest owner (the CTA) inwards, memory last: the default order in `TileLayout.inverse`.
AXES = (axis.cta, axis.wgid, axis.warpid, axis.laneid, axis.tid, axis.reg, axis.TLane, axis.TCol, axis.m)
_BY_NAME = {str(known): known for known in AXES}


def as_axis(name: str) -> Axis:
    """The axis called `name`."""
    known = _BY_NAME.get(name) if isinstance(name, str) else None
    if known is None:
        near = difflib.get_close_matches(str(name), _BY_NAME, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise CompilationError(f"no axis is called {name!r}{hint} (there are {', '.join(_BY_NAME)})")
    return known


def as_whole_number(value: Any) -> Any:
    """`value` as a Python int if it is an integer. Symbolic values are returned unchanged.

    Raises CompilationError for floats, strings, sequences and None.
    """
    if type(value) is int:
        return value
    if hasattr(value, "__index__") and not getattr(value, "ndim", 0):
        return operator.index(value)
    if value is None or isinstance(value, (float, complex, str, tuple, list, dict)):
        raise CompilationError(f"a layout is made of integers, found {value!r}")
    return value


def as_shard(entry: Any) -> Shard:
    """`entry` as (extent, stride, axis). The stride may be ``n @ axis``; the default axis is ``m``."""
    if not isinstance(entry, (tuple, list)) or len(entry) not in (2, 3):
        raise CompilationError(f"a shard is (extent, stride, axis), found {entry!r}")
    extent, stride = as_whole_number(entry[0]), entry[1]
    if type(stride) is not int and isinstance(stride, OnAxis):
        if len(entry) == 3 and entry[2] != stride.axis:
            raise CompilationError(f"a shard lies on one axis, found {stride!r} and {entry[2]!r}")
        entry = (extent, stride.value, stride.axis)
    if isinstance(extent, int) and extent < 1:
        raise CompilationError(f"an extent is at least 1, found {extent} in {entry!r}")
    return extent, as_whole_number(entry[1]), as_axis(entry[2]) if len(entry) == 3 else axis.m


def as_shards(entries: Any) -> Shards:
    """The shards or replicas in `entries`, each as (extent, stride, axis)."""
    if not isinstance(entries, Iterable):
        raise CompilationError("shards and replicas are lists of (extent, stride, axis), "
                               f"as in TileLayout([(8, 64, 'm'), (64, 1, 'm')]), found {entries!r}")
    return tuple(map(as_shard, entries))


@dataclass(frozen=True)
class Replicas:
    """Further places of each element, added to a layout with ``+``."""

    shards: Shards

    def __repr__(self) -> str:
        return f"R[{format_shards(self.shards)}]"


class ReplicaForm:
    """``R[4 : 32 @ axis.TLane]``: four copies, 32 lanes apart."""

    @hide_own_frames
    def __getitem__(self, key: Any) -> Replicas:
        return Replicas(shards_of(key))


R = ReplicaForm()


def shards_of(key: Any) -> Shards:
    """The shards that ``S[key]`` and ``R[key]`` denote: ``extents:strides``, or extents alone for row-major strides."""
    if isinstance(key, slice):
        extents, strides = _as_tuple(key.start), _as_tuple(key.stop)
        if key.step is not None or len(extents) != len(strides):
            raise CompilationError(f"S[extents:strides] needs as many strides as extents, found {key.start}:{key.stop}"
                                   + ("" if key.step is None else f":{key.step}"))
    else:
        extents = _as_tuple(key)
        strides = row_major_strides(extents)
    return tuple(as_shard(pair) for pair in zip(extents, strides))


def row_major_strides(extents: tuple[Any, ...]) -> tuple[Any, ...]:
    """The strides of a row-major layout without gaps."""
    return tuple(prod(extents[i + 1:]) for i in range(len(extents)))


def format_shards(shards: Shards) -> str:
    """The text in the brackets of ``S[...]`` and ``R[...]``."""
    if not shards:
        return "()"
    extents = [str(extent) for extent, _, _ in shards]
    strides = [repr(OnAxis(stride, along)) for _, stride, along in shards]
    colon = " : " if any("@" in stride for stride in strides) else ":"
    return colon.join(part[0] if len(part) == 1 else f"({', '.join(part)})" for part in (extents, strides))


def _as_tuple(entry: Any) -> tuple[Any, ...]:
    if entry is None:
        raise CompilationError("S[extents:strides] needs both sides of the colon")
    return tuple(entry) if isinstance(entry, (tuple, list)) else (entry,)


def _atom(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"({value})"
