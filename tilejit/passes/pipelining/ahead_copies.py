"""Makes the copies that bring tiles ahead of their pipelined loop, with the repair of what a copy cannot bring.

The repair puts `other=` in place of the zeros that a copy fills in, and of what the mask excludes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...config import architecture
from ...dtypes import DType
from ...ir.builder import as_value, element_type, type_as
from ...ir.graph import Call, Const, For, If, Node, Operand, Value, pipeline_of, results, walk
from ...layout import auto
from ...ops.language.operators import binary, compare
from ...ops.language.promotion import spread
from ...ops.memory.access_ops import load_
from ...ops.memory.packed import as_bytes, bytes_of, shape_of
from ...ops.memory.regions import parts, region, whole_region
from ...ops.memory.shared import allocate_shared
from ...ops.moves.copy_async import copy_async_
from ...ops.tiles import elementwise as ew
from ...ops.tiles.arrange import reshape_
from ...ops.tiles.generate import iota
from ...types import Region, Sym, Tile
from ..analysis.access_patterns import AccessPattern, PatternMismatch, Source
from ..analysis.context import Context, is_column_major
from ..analysis.writing import Writer

SCHEDULERS = 4           # of a multiprocessor: each issues an instruction of a warp in a cycle
LATENCY = 600            # cycles, about, from a load of global memory to its data, where it is not in the caches


@dataclass(eq=False)
class AheadBuffer:
    """A buffer that the copies of `loops` fill, one loop after the other, with slots for each of them.
    `allocations` make it."""

    buffer: Value
    allocations: list[Node]
    stages: int = 0
    loops: list[For] = field(default_factory=list)

    def free_for(self, loop: For) -> bool:
        """Whether a loop may fill the buffer too: it neither is nor contains one that does, nor is it inside one."""
        return not any(loop is other or loop in walk(other.body) or other in walk(loop.body) for other in self.loops)


@dataclass(frozen=True)
class Repair:
    """What a read of a slot does beyond loading it: it puts `other=` in place of elements that are `what`, by
    `instructions` of each thread."""

    what: str
    instructions: int


@dataclass(frozen=True)
class AheadCopy:
    """What replaces a load that runs ahead: `nodes`, which include the copy `copy`, and the buffer that it fills.

    `axes` are the axes of the loaded tile in the order of the buffer's dimensions, of which the first may be divided
    into several. `branches` are those of the loop's body that contain the load, the outermost first.
    """

    nodes: tuple[Node, ...]
    copy: Call
    to: AheadBuffer
    axes: tuple[int, ...]
    repair: Repair | None
    branches: tuple[If, ...]

    @property
    def region(self) -> Value:
        """The region of shared memory that the copy fills."""
        return as_value(self.copy.args[0])

    @property
    def read(self) -> set[Value]:
        """The values from the copy on, up to the tile that the load gave."""
        return {r for n in self.nodes[self.nodes.index(self.copy):] for r in results(n)}


class AheadCopies:
    """Makes the copies of a graph that run ahead."""

    def __init__(self, context: Context):
        self.context = context
        self.buffers: dict[tuple[Any, ...], list[AheadBuffer]] = {}  # keyed by contents and scope

    def make(self, load: Call, loop: For, branches: tuple[If, ...], masked: bool, by_engine: bool,
             padded: DType | None = None) -> AheadCopy:
        """The copy that stands for a load. If it is not `masked`, it also brings what the load's mask excludes;
        `by_engine`: of rows of any array, it is one that TMA may make. `padded`: it pads packed elements, which are
        loaded as bytes, to this dtype. PatternMismatch if there is none."""
        g, t, other = Writer.of(self.context), type_as(load.result, Tile), load.args[1]
        g.loc, g.scope = load.loc, self.context.scope
        pattern = AccessPattern(self.context, load, (loop,))
        with g.block() as nodes:
            source = pattern.source(g, masked, by_engine)
            if padded is not None:
                source = self.of_elements(g, source, padded)
            to = self.buffer(g, source.shape, source.place, loop, padded)
            slot = whole_region(g, to.buffer)
            options = {"ahead": True} if branches else {}
            g.call(copy_async_, slot, source.place, None, options=options, partial=None)
            copy = nodes[-1]
            filled = is_zero_fill(other)
            zero = Const(0.0 if t.dtype.is_float else 0, t.dtype)
            read = slot if padded is None else as_bytes(g, slot)
            x = g.call(load_, read, other if filled else zero, None, cache=None)
            x = pattern.in_tile_order(g, x, source.axes)
            repair = None
            if not filled or not masked and pattern.kept_terms:
                repair = self.repair(g, load, pattern, x, not filled)
        self.context.definitions.update(g.definitions)
        last = nodes[-1]
        assert isinstance(copy, Call) and isinstance(last, Call)  # as they have just been called
        made = (*nodes[:-1], replace(last, results=load.results))
        return AheadCopy(made, copy, to, source.axes, repair, branches)

    def of_elements(self, g: Writer, source: Source, padded: DType) -> Source:
        """A region of bytes in which elements are packed as one of these elements. PatternMismatch if it is none."""
        made = g.definitions[source.place]
        view = g.definitions.get(made.args[0]) if made.op is region else None
        if view is None or view.op is not bytes_of or element_type(view.args[0]) != padded.element:
            raise PatternMismatch("what it loads are not packed elements of an array")
        place = as_value(g.call(region, view.args[0], *made.args[1:], **made.attrs))
        return Source(place, shape_of(padded.element, source.shape), source.axes)

    def buffer(self, g: Writer, shape: tuple[int, ...], source: Value, loop: For, padded: DType | None) -> AheadBuffer:
        """A buffer for a copy of `source`: that of a loop before, unless a producer may copy ahead of the loops,
        or a new one."""
        dtype = padded or element_type(source)
        alike = self.buffers.setdefault((shape, dtype, is_column_major(source.type), self.context.scope), [])
        own = pipeline_of(loop).warp_specialize and architecture(self.context.target) >= 90
        found = next((b for b in alike if b.loops and b.free_for(loop) and not own), None)
        if found is None:
            buffer = allocate_shared(g, shape, dtype, auto)
            found = AheadBuffer(buffer, list(g.blocks[0]))
            alike += () if own else (found,)
        return found

    def repair(self, g: Writer, load: Call, pattern: AccessPattern, x: Value, bounds: bool) -> Repair | None:
        """Append what puts `other` in place of the elements of the tile `x` that the mask excludes and, with `bounds`,
        of those out of bounds. None if there are no such elements."""
        t, mask = type_as(load.result, Tile), load.args[2]
        tests = bounds_tests(self.context, g, pattern) if bounds else []
        what = ["out of bounds"] if tests else []
        if mask is not None and pattern.kept_terms:
            tests.append(mask)
            what.append("masked off")
        if not tests:
            return None
        condition, *others = (spread(g, test, t.shape) for test in tests)
        for test in others:
            condition = g.call(ew.bit_and, condition, test)
        g.call(ew.select, condition, x, spread(g, load.args[1], t.shape))
        each = -(-t.size // self.context.scope.threads)
        return Repair(" or ".join(what), each * (1 + len(tests)))

    def why_costly(self, repair: Repair, loop: For) -> str:
        """Why a repair takes longer than the load that it saves from waiting; "" if it does not."""
        if pipeline_of(loop).stages == 1:
            return "with one stage nothing runs ahead that would make up for a repair of what its copy cannot fill in"
        cycles = repair.instructions * max(self.context.scope.threads // 32, 1) // SCHEDULERS
        if cycles <= LATENCY:
            return ""
        return (f"its copy would fill what is {repair.what} with zeros, and to put other= in when it is read takes "
                f"about {repair.instructions} instructions of each thread, which is longer than a load takes: "
                "use other=0 without such a mask, smaller tiles or more warps")


def is_zero_fill(other: Operand) -> bool:
    """Whether all bits of a load's `other` are zero, as what a copy fills in."""
    return isinstance(other, Const) and not np.array(other.value).astype(other.dtype.np).tobytes().strip(b"\0")


def bounds_tests(context: Context, g: Writer, pattern: AccessPattern) -> list[Operand]:
    """The conditions, scalars or tiles that broadcast to the access's shape, that its elements are in bounds; those
    that are known to hold are left out."""
    tests: list[Operand] = []
    narrowed = pattern.array.narrowed is not None
    _, _, lows, counts = parts(g, pattern.buffer)
    starts = isinstance(pattern.call.result.type, Region)
    for d, (index, low, count) in enumerate(zip(pattern.indices, lows, counts)):
        least, most = context.bounds(index.values)
        values: Any = index.values
        if starts and index.axis is not None:
            extent = pattern.shape[index.axis]
            most = None if most is None else most + extent - 1
            shape = tuple(extent if a == index.axis else 1 for a in range(len(pattern.shape)))
            values = binary(g, "+", g.call(reshape_, g.call(iota, start=0, stop=extent, axis=0), shape=shape), values)
        if narrowed or least is None or least < 0:
            tests.append(compare(g, ">=", values, low))
        if narrowed or not is_below(context, most, pattern.array.shape[d]):
            tests.append(compare(g, "<", values, binary(g, "+", low, count) if narrowed else count))
    return [g.operand(test) for test in tests]


def is_below(context: Context, most: int | None, size: int | Sym) -> bool:
    """Whether an index of at most `most` is below an extent, which the launch is asked."""
    behind = context.extent_behind(size)
    if most is None or isinstance(behind, Value):
        return False
    if isinstance(behind, int):
        return most < behind
    return context.facts.ask("size_at_least", behind.arg, behind.dim, most + 1)


__all__ = ["AheadBuffer", "AheadCopies", "AheadCopy", "Repair"]
