"""Lowering of loads and stores to vector instructions, with bounds checks as predicates.

Vectors run along the contiguous dimension of memory.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ...dispatch import Site, Variant
from ...ir.builder import as_value, number_type, type_of
from ...ir.graph import Call, Operand, Value
from ...layout import register_table
from ...types import Points, Region, Scalar, Tile, Uniformity, domain_of
from .vector_proofs import explain_narrowness, is_inside, shares_bounds, widest_of, widest_vector

# Where a thread's registers have at least so many different coordinates along a dimension, the launch is asked whether
# the extent is a multiple of the region's: if so, one test of the region's start replaces one test for each coordinate.
MANY = 16


@dataclass(frozen=True)
class AccessPlan:
    """How a tile is loaded from or stored to a region or points: `vector` elements per instruction,
    along dimension `axis` of the tile.

    `checked` are the dimensions of the buffer whose bounds are tested at run time. Along those also in `whole`, the
    region is wholly inside or wholly outside the buffer, so that one test serves for all its elements.
    """

    vector: int
    axis: int
    checked: tuple[int, ...]
    whole: tuple[int, ...] = ()

    def groups(self, tile: Tile):
        """For each instruction of a thread, the list of registers that it moves, in the order of memory."""
        table = register_table(tile.layout, tile.domain)
        by_coordinates = {at: r for r, at in enumerate(table)}
        done = set()
        for r, at in enumerate(table):
            if r in done:
                continue
            run = [r]
            if tile.shape:
                run = [by_coordinates[at[:self.axis] + (at[self.axis] + i,) + at[self.axis + 1:]]
                       for i in range(self.vector)]
            done.update(run)
            yield run


def plan_access(g, source: Value, tile: Tile | Scalar, mask: Operand = None, most: int | None = None) -> AccessPlan:
    """The plan with the widest vectors of at most `most` elements.

    The elements of a vector must provably be contiguous, aligned, either all or none in bounds,
    and either all or none masked out.
    """
    t, starts = source.type, g.definition(source).args[1:]
    assert isinstance(t, (Region, Points))
    rank = len(t.shape)
    checked = tuple(d for d in range(len(t.buffer.shape))
                    if not isinstance(t, Region) or not is_inside(g, t, starts, d))
    whole = tuple(d for d in checked
                  if isinstance(t, Region) and isinstance(tile, Tile) and _has_many_coordinates(g, t, tile, d)
                  and g.divisor(starts[d]) % t.extents[d] == 0 and shares_bounds(g, source, d, t.extents[d]))
    for axis in reversed(range(rank)) if isinstance(tile, Tile) else ():
        vector = widest_vector(g, source, axis, min(most or widest_of(t.dtype), g.register_run(tile, axis)), mask)
        if vector > 1:
            return AccessPlan(vector, axis, checked, whole)
    return AccessPlan(1, rank - 1, checked, whole)


def _has_many_coordinates(g, t: Region, tile: Tile, d: int) -> bool:
    """Whether a thread has elements at so many coordinates along `d` that the tests saved are worth a
    guard on the extent."""
    if d not in t.kept or t.buffer.scope != "global":
        return False
    k = t.kept.index(d)
    return len({at[k] for at in register_table(tile.layout, tile.domain)}) >= MANY


@dataclass(frozen=True)
class AccessSite(Site):
    """One load, store or atomic operation: a call whose first operand is memory and whose last is a mask."""

    g: Any
    call: Call

    def __str__(self) -> str:
        return f"{self.memory.type}, by one {self.g.scope.kind} of {self.g.scope.threads} threads, for {self.g.target}"

    @property
    def memory(self) -> Value:
        return as_value(self.call.args[0])

    @property
    def tile(self) -> Tile | Scalar:
        """What is moved from or to registers."""
        return number_type(self.call.result if self.call.results else self.call.args[1])

    @property
    def mask(self) -> Operand:
        return self.call.args[-1]

    def without_recording(self) -> AbstractContextManager[Any]:
        return self.g.facts.without_recording()


def plan(site: AccessSite, most: int | None = None) -> AccessPlan:
    """The plan with the widest vectors of at most `most` elements."""
    return plan_access(site.g, site.memory, site.tile, site.mask, most)


def explain_width(site: AccessSite, plan: AccessPlan, most: int | None = None) -> tuple[tuple[str, str], ...]:
    """Why an access has no wider instructions, as (width in words, needs that do not hold); empty if none could be."""
    return explain_narrowness(site.g, site.memory, site.tile, site.mask, plan.vector, most)


# -- emission ----------------------------------------------------------------------------------------------------------

class Access:
    """Emits the addresses and predicates of a tile's registers in a region or points. Equal ones are emitted once."""

    def __init__(self, e, source, tile: Tile | None, plan: AccessPlan):
        self.e, self.source, self.tile, self.plan = e, source, tile, plan
        self.points = isinstance(source.type, Points)
        self.memo: dict = {}
        if tile is not None and not self.points:
            self.thread = [e.tiles.thread_coordinate(tile, k) for k in range(len(tile.shape))]
        buffer = source.buffer
        if buffer.type.scope == "global" and not self.points:
            self.base = self._global_base(buffer)

    def _global_base(self, buffer):
        """The address of the thread's first element. The offset of the tile is computed in 64 bits, that within the
        tile in 32 if they suffice."""
        e, source = self.e, self.source
        tile_offset = e.sum64(e.mul64(start, stride) for start, stride in zip(source.starts, buffer.strides))
        inner = 0
        if self.tile is not None:
            for k, d in enumerate(source.type.kept):
                inner = inner + self.thread[k] * buffer.strides[d]
        return e.offset_pointer(e.offset_pointer(buffer.pointer, tile_offset, buffer.type.dtype.nbytes), inner,
                                buffer.type.dtype.nbytes)

    def address(self, reg: int):
        """(address, constant byte offset) of register `reg`."""
        e, source = self.e, self.source
        buffer, nbytes = source.buffer, source.buffer.type.dtype.nbytes
        if self.points:
            indices = [i[reg] if isinstance(i, list) else i for i in source.indices]
            if buffer.type.scope == "global":
                return e.offset_pointer(buffer.pointer, e.sum64(e.mul64(i, s) for i, s in zip(indices, buffer.strides)),
                                        nbytes), 0
            return e.shared_address(buffer, indices)
        at = e.tiles.register_coordinates(self.tile, reg) if self.tile is not None else ()
        if buffer.type.scope != "global":
            return self._shared_address(at)
        constant, moving = 0, []
        for k, d in enumerate(source.type.kept if self.tile is not None else ()):
            if isinstance(buffer.strides[d], int):
                constant += at[k] * buffer.strides[d]
            elif at[k]:
                moving.append((at[k], d))
        key = ("address", tuple(moving))
        if key not in self.memo:
            offset = sum((c * buffer.strides[d] for c, d in moving), 0)
            self.memo[key] = e.offset_pointer(self.base, offset, nbytes)
        return self.memo[key], constant * nbytes

    def _shared_address(self, at: tuple):
        """(address, constant byte offset) of the element at the constant coordinates `at`,
        in addition to those of the thread.

        In a linear layout (without swizzle) all registers share one address and differ only in the constant offset.
        """
        e, source, buffer = self.e, self.source, self.source.buffer
        layout, shape, starts = buffer.type.layout, buffer.type.shape, list(source.starts)
        constant, linear = [0] * len(starts), layout.is_linear(shape)
        if linear:
            constant = [start if isinstance(start, int) else 0 for start in starts]
            starts = [start - c for start, c in zip(starts, constant)]
        for k, d in enumerate(source.type.kept if self.tile is not None else ()):
            starts[d] = starts[d] + self.thread[k]
            constant[d] += at[k]
        if not linear:
            return e.shared_address(buffer, [start + c for start, c in zip(starts, constant)])
        address, offset = self._memoize("shared", lambda: e.shared_address(buffer, starts))
        moved = layout.offset_of(*constant, shape=shape) - layout.offset_of(*[0] * len(constant), shape=shape)
        return address, offset + moved * buffer.type.dtype.nbytes

    def predicate(self, reg: int, mask=None, owned: bool = False):
        """Whether register `reg` takes part in the access; None if it always does. It must be in bounds, no
        padding, and unmasked.

        With `owned` (stores and atomics), only the thread with the first replica of an element takes part.
        """
        e = self.e
        parts = list(self._points_bounds(reg) if self.points else self._region_bounds(reg))
        if self.tile is not None:
            parts += self._ghosts(reg)
            if owned:
                parts.append(self._memoize("owner", lambda: e.tiles.first_replica(self.tile)))
        if mask is not None:
            parts.append(mask)
        parts = [p for p in parts if p is not None]
        key = ("all", tuple(p.text for p in parts))
        return self._memoize(key, lambda: e.all_of(parts))

    def _memoize(self, key, make):
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    def _region_bounds(self, reg: int):
        e, source = self.e, self.source
        at = e.tiles.register_coordinates(self.tile, reg) if self.tile is not None else ()
        for d in self.plan.checked:
            k = source.type.kept.index(d) if self.tile is not None and d in source.type.kept else None
            if d in self.plan.whole:
                k = None
            c = at[k] if k is not None else 0
            yield self._memoize(("bound", d, c), lambda: e.inside(source.buffer, d,
                source.starts[d] + self.thread[k] + c if k is not None else source.starts[d]))

    def _points_bounds(self, reg: int):
        for d, i in enumerate(self.source.indices):
            yield self.e.inside(self.source.buffer, d, i[reg] if isinstance(i, list) else i)

    def _ghosts(self, reg: int):
        """Tests that exclude padding: elements of the domain beyond the tile's shape."""
        e, t = self.e, self.tile
        assert t is not None
        at = e.tiles.register_coordinates(t, reg)
        for k, (extent, padded) in enumerate(zip(t.shape, domain_of(t))):
            if padded > extent:
                yield self._memoize(("ghost", k, at[k]),
                                    lambda: e.in_bounds(e.tiles.thread_coordinate(t, k) + at[k], extent))


def emit_load(e, plan: AccessPlan, call, source, other, mask):
    t = call.result.type
    dtype, cache = source.type.dtype, call.attrs["cache"]
    space = source.buffer.type.scope
    if isinstance(t, Scalar):
        access = Access(e, source, None, plan)
        address, offset = access.address(0)
        value = e.vector_load(space, address, offset, dtype, [other], access.predicate(0, mask), cache)[0]
        # The assembler keeps loop bounds, and what is computed from them, in uniform registers only if it can prove
        # that all lanes have the same value. It knows that of the result of a shuffle from one lane.
        steers = dtype.is_int and t.uniform >= Uniformity.WARP and e.threads >= 32 and not e.partial
        return e.warp.shuffle("idx", value, 0) if steers else value
    access, result = Access(e, source, t, plan), [None] * e.tiles.registers(t)
    for run in plan.groups(t):
        address, offset = access.address(run[0])
        fill = [other[r] if isinstance(other, list) else other for r in run]
        values = e.vector_load(space, address, offset, dtype, fill, access.predicate(run[0], mask and mask[run[0]]),
                               cache)
        for r, v in zip(run, values):
            result[r] = v
    return result


def emit_store(e, plan: AccessPlan, call, target, value, mask):
    t = type_of(call.args[1])
    dtype, cache = target.type.dtype, call.attrs["cache"]
    space = target.buffer.type.scope
    if isinstance(t, Scalar):
        access = Access(e, target, None, plan)
        address, offset = access.address(0)
        predicate = access.predicate(0, mask)
        if not call.attrs["each_thread"]:
            predicate = e.all_of([p for p in (predicate, e.first_thread()) if p is not None])
        e.vector_store(space, address, offset, dtype, [value], predicate, cache)
        return
    access = Access(e, target, t, plan)
    for run in plan.groups(t):
        address, offset = access.address(run[0])
        e.vector_store(space, address, offset, dtype, [value[r] for r in run],
                       access.predicate(run[0], mask and mask[run[0]], owned=True), cache)


LOAD = Variant("load", needs=(), plan=plan, emit=emit_load, wider=explain_width, doc=__doc__)
STORE = Variant("store", needs=(), plan=plan, emit=emit_store, wider=explain_width, doc=__doc__)
