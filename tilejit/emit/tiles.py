"""Coordinates of a thread's registers in a tile, and the scratch memory through which tiles change layout."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd

from ..dtypes import bool_
from ..layout import dimension_shards, register_table
from ..types import Tile, domain_of, layout_of
from .component import Component
from .value import V


class Tiles(Component):
    """The part of the emitter for register tiles: `t.layout` maps elements of `t.domain` (the padded shape) to lane,
    warp and register."""

    def registers(self, t: Tile) -> int:
        """The number of the tile's elements that a thread holds."""
        return len(register_table(t.layout, t.domain))

    def register_coordinates(self, t: Tile, reg: int) -> tuple[int, ...]:
        """The part of register `reg`'s coordinates that is the same in all threads; `thread_coordinate` is the rest."""
        return register_table(t.layout, t.domain)[reg]

    def register_at(self, t: Tile, at: tuple[int, ...]) -> int:
        """The register whose `register_coordinates` are `at`."""
        key = ("register_at", t.layout, t.domain)
        if key not in self.e.tables:
            self.e.tables[key] = {c: r for r, c in enumerate(register_table(t.layout, t.domain))}
        return self.e.tables[key][at]

    def thread_coordinate(self, t: Tile, dim: int):
        """The part of the coordinate along `dim` that depends on the thread's lane and warp (an int if it does not)."""
        key = ("thread", t.layout, t.domain, dim, self.e.scope_key())
        return self.e.memoize_for_region(
            key, lambda: self._thread_coordinate(dimension_shards(t.layout, t.domain)[dim]))

    def _thread_coordinate(self, shards):
        total, warps = 0, max(1, self.e.threads // 32)
        lanes = next((s for s in shards if s[:3] == (32, 1, "laneid")), None)
        whole = lanes and (warps, 1, "warpid", 32 * lanes[3])
        # consecutive lanes, then consecutive warps: one multiplication of the thread's id
        if warps > 1 and whole in shards:
            shards = [s for s in shards if s not in (lanes, whole)]
            total = self.e.thread_id() * lanes[3]
        for extent, stride, axis, weight in shards:
            if axis == "reg" or extent == 1:
                continue
            total = total + self.axis_digit(axis, extent, stride) * weight
        return total

    def warp_coordinate(self, t: Tile, dim: int):
        """The part of the coordinate along `dim` that depends on the thread's warp (an int if it does not)."""
        shards = [s for s in dimension_shards(t.layout, t.domain)[dim] if s[2] == "warpid"]
        return self.e.memoize_for_region(("warp", t.layout, t.domain, dim, self.e.scope_key()),
                                         lambda: self._thread_coordinate(shards))

    def axis_digit(self, axis: str, extent: int, stride: int):
        """``(id // stride) % extent`` of the thread's id on the axis, "laneid" or "warpid"."""
        size = 32 if axis == "laneid" else max(1, self.e.threads // 32)
        value = self.e.lane_id() if axis == "laneid" else self.e.thread_warp()
        value = value // stride if stride > 1 else value
        return value % extent if stride * extent < size else value

    def coordinates(self, t: Tile, reg: int) -> tuple:
        """The coordinates in the tile of the thread's register `reg`."""
        return tuple(self.thread_coordinate(t, d) + c for d, c in enumerate(self.register_coordinates(t, reg)))

    def first_replica(self, t: Tile) -> V | None:
        """Whether the thread holds the first replica of its elements; None if only one thread holds each element."""
        tests = []
        for extent, stride, axis in layout_of(t).replicas:
            if extent > 1 and axis != "reg":
                tests.append(self.axis_digit(axis, extent, stride).equals(0))
        return self.e.all_of(tests)

    def is_element(self, t: Tile, reg: int) -> V | None:
        """Whether register `reg` is an element of the tile rather than padding; None if that is known."""
        tests = []
        at = self.register_coordinates(t, reg)
        for d, (extent, padded) in enumerate(zip(t.shape, domain_of(t))):
            if padded > extent:
                tests.append(self.e.in_bounds(self.thread_coordinate(t, d) + at[d], extent))
        return self.e.all_of(tests)

    # -- scratch ---------------------------------------------------------------------------------------------------

    def move_through_scratch(self, call, values: list[V], source: Tile, target: Tile,
                             shape: tuple[int, ...], place=None, pitch: int | None = None) -> list[V]:
        """The elements of `target`, which threads read from the call's scratch after all have written those of `source`
        there. `shape` and `place` are those of `scratch_load`. Scratch that is smaller than the tile holds a part of it
        at a time."""
        rows = source.size // source.shape[-1] * (pitch or source.shape[-1])
        most = self.e.graph.scratch_limit or rows * source.dtype.nbytes
        whole = most >= rows * source.dtype.nbytes
        found: list[V] | None = None
        for first in range(0, rows, most // source.dtype.nbytes):
            part = None if whole else range(first, first + most // source.dtype.nbytes)
            self.scratch_store(call, values, source, pitch, part)
            found = self.scratch_load(call, target, shape, place, pitch, part, found)
        return found or []

    def scratch_store(self, call, values: list[V], t: Tile, pitch: int | None = None,
                      part: range | None = None) -> None:
        """All threads write their elements of the tile to the call's scratch, row-major, with rows `pitch` elements
        apart (contiguous if None); only those of which the number in this order is in `part`, if given. Ends with a
        barrier of the scope."""
        if part and part.start:
            self.e.sync.scope()  # all have read the part before
        else:
            self.e.begin_scratch(call)
        self._write_scratch(call, values, t, t.shape, (0,) * len(t.shape), pitch, part)
        self.e.sync.scope()

    def scratch_store_joined(self, call, tiles: Iterable[tuple[list[V], Tile, tuple[int, ...]]],
                             shape: tuple[int, ...]) -> None:
        """As `scratch_store`, of tiles (values, type, start) that make up one of `shape`."""
        self.e.begin_scratch(call)
        for values, t, start in tiles:
            self._write_scratch(call, values, t, shape, start)
        self.e.sync.scope()

    def _write_scratch(self, call, values: list[V], t: Tile, shape: tuple[int, ...], start: tuple[int, ...],
                       pitch: int | None = None, part: range | None = None) -> None:
        """Write a tile that begins at `start` of one of `shape`, which the call's scratch holds, or the `part` of
        it."""
        for word in self._words(t, gcd(self._in_a_word(t, pitch), shape[-1], start[-1])):
            own = self.e.all_of([self.first_replica(t), self.is_element(t, word[0])])
            at = tuple(c + s if s else c for c, s in zip(self.coordinates(t, word[0]), start))
            address, offset, inside = self._scratch_place(call, shape, at, t.dtype.nbytes, pitch, part)
            self.e.vector_store("shared", address, offset, t.dtype, [values[r] for r in word],
                                self.e.all_of([own, inside]), None)

    def scratch_load(self, call, t: Tile, shape: tuple[int, ...], place=None, pitch: int | None = None,
                     part: range | None = None, earlier: list[V] | None = None) -> list[V]:
        """All threads read their elements of tile `t` from the call's scratch, which holds a tile of `shape`, or the
        `part` of it. `place` maps coordinates in `t` to coordinates in `shape`, if they differ. What is not read is
        that of the `earlier` parts."""
        zero = self.e.const(False if t.dtype == bool_ else 0, t.dtype)
        other = earlier or [zero] * self.registers(t)
        found: dict[int, V] = {}
        for word in self._words(t, self._in_a_word(t, pitch) if place is None else 1):
            at = self.coordinates(t, word[0])
            address, offset, inside = self._scratch_place(call, shape, at if place is None else place(at),
                                                          t.dtype.nbytes, pitch, part)
            found |= zip(word, self.e.vector_load("shared", address, offset, t.dtype, [other[r] for r in word],
                                                  self.e.all_of([self.is_element(t, word[0]), inside]), None))
        return [found[r] for r in range(self.registers(t))]

    def _in_a_word(self, t: Tile, pitch: int | None) -> int:
        """How many consecutive elements of a row, held by one thread, fit in one word of scratch."""
        if any(str(axis) == "reg" for _, _, axis in layout_of(t).replicas):
            return 1
        beside = 1
        for extent, _, axis, _ in reversed(dimension_shards(t.layout, t.domain)[-1]):
            if axis != "reg" and extent > 1:
                break
            beside *= extent
        return gcd(beside, max(1, 4 // t.dtype.nbytes), t.shape[-1], pitch or t.shape[-1])

    def _words(self, t: Tile, count: int) -> list[tuple[int, ...]]:
        """The registers in groups of `count` whose elements are consecutive in a row, from a column that is a
        multiple of `count`."""
        table = register_table(t.layout, t.domain)
        if count == 1:
            return [(r,) for r in range(len(table))]
        return [tuple(self.register_at(t, (*at[:-1], at[-1] + n)) for n in range(count))
                for at in table if at[-1] % count == 0]

    def _scratch_place(self, call, shape, at, nbytes: int, pitch: int | None, part: range | None):
        """(address, constant byte offset, whether the element is in the part, None if all are)."""
        flat = 0
        for extent, c in zip((*shape[:-1], pitch or shape[-1]), at):
            flat = flat * extent + c
        if part is None:
            return *self.e.scratch_address(call, flat * nbytes), None
        flat = flat - part.start
        return *self.e.scratch_address(call, flat * nbytes), self.e.in_bounds(flat, len(part))
