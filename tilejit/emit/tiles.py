"""Where a thread's registers stand in a tile, and the scratch memory through which tiles change layout."""

from __future__ import annotations

from math import gcd

from ..dtypes import bool_
from ..layout import dimension_shards, register_table
from ..types import Tile
from .value import V


class TileMixin:
    """The part of the emitter that knows where a tile's elements are."""

    def registers(self, t: Tile) -> int:
        """How many registers a thread holds of the tile."""
        return len(register_table(t.layout, t.domain))

    def register_coordinates(self, t: Tile, reg: int) -> tuple[int, ...]:
        """The constant part of register `reg`'s coordinates; `thread_coordinate` is the rest."""
        return register_table(t.layout, t.domain)[reg]

    def register_at(self, t: Tile, at: tuple[int, ...]) -> int:
        """The register whose constant coordinates are `at`."""
        key = ("register_at", t.layout, t.domain)
        if key not in self.tables:
            self.tables[key] = {c: r for r, c in enumerate(register_table(t.layout, t.domain))}
        return self.tables[key][at]

    def thread_coordinate(self, t: Tile, dim: int):
        """The part of the coordinate along `dim` that the calling thread's lane and warp decide (an int if none)."""
        key = ("thread", t.layout, t.domain, dim, self.scope_key())
        return self.cached(key, lambda: self._thread_coordinate(dimension_shards(t.layout, t.domain)[dim]))

    def _thread_coordinate(self, shards):
        total, warps = 0, max(1, self.threads // 32)
        lanes = next((s for s in shards if s[:3] == (32, 1, "laneid")), None)
        whole = lanes and (warps, 1, "warpid", 32 * lanes[3])
        if warps > 1 and whole in shards:  # consecutive lanes, then consecutive warps: the thread's number
            shards = [s for s in shards if s not in (lanes, whole)]
            total = self.thread_id() * lanes[3]
        for extent, stride, axis, weight in shards:
            if axis == "reg" or extent == 1:
                continue
            total = total + self._axis(axis, extent, stride) * weight
        return total

    def warp_coordinate(self, t: Tile, dim: int):
        """The part of the coordinate along `dim` that the calling thread's warp decides (an int if none)."""
        shards = [s for s in dimension_shards(t.layout, t.domain)[dim] if s[2] == "warpid"]
        return self.cached(("warp", t.layout, t.domain, dim, self.scope_key()), lambda: self._thread_coordinate(shards))

    def _axis(self, axis: str, extent: int, stride: int):
        """``(value on the axis / stride) mod extent`` of the calling thread."""
        size = 32 if axis == "laneid" else max(1, self.threads // 32)
        value = self.lane_id() if axis == "laneid" else self.thread_warp()
        value = value // stride if stride > 1 else value
        return value % extent if stride * extent < size else value

    def coordinates(self, t: Tile, reg: int) -> tuple:
        """The logical coordinates of register `reg` of the calling thread."""
        return tuple(self.thread_coordinate(t, d) + c for d, c in enumerate(self.register_coordinates(t, reg)))

    def first_replica(self, t: Tile) -> V | None:
        """Whether the thread holds the first of the tile's replicas; None when each element has one owner."""
        tests = []
        for extent, stride, axis in t.layout.replicas:
            if extent > 1 and axis != "reg":
                tests.append(self._axis(axis, extent, stride).equals(0))
        return self.all_of(tests)

    def ghost(self, t: Tile, reg: int) -> V | None:
        """Whether register `reg` is an element of the tile, not of its padding; None when it surely is."""
        tests = []
        at = self.register_coordinates(t, reg)
        for d, (extent, padded) in enumerate(zip(t.shape, t.domain)):
            if padded > extent:
                tests.append(self.in_bounds(self.thread_coordinate(t, d) + at[d], extent))
        return self.all_of(tests)

    # -- scratch ---------------------------------------------------------------------------------------------------

    def scratch_store(self, call, values: list[V], t: Tile, pitch: int | None = None) -> None:
        """Every thread writes its elements of the tile to the call's scratch, in row-major order of the shape; rows are `pitch`
        elements apart, or side by side."""
        self.begin_scratch(call)
        for word in self._words(t, self._in_a_word(t, pitch)):
            parts = [p for p in (self.first_replica(t), self.ghost(t, word[0])) if p is not None]
            address, offset = self._scratch_place(call, t.shape, self.coordinates(t, word[0]), t.dtype.nbytes, pitch)
            self.vector_store("shared", address, offset, t.dtype, [values[r] for r in word], self.all_of(parts), None)
        self.sync()

    def scratch_load(self, call, t: Tile, shape: tuple[int, ...], place=None, pitch: int | None = None) -> list[V]:
        """Every thread reads its elements of the result; `place` maps coordinates of the result to those of `shape`, where they are others."""
        zero = self.const(False if t.dtype == bool_ else 0, t.dtype)
        found: dict[int, V] = {}
        for word in self._words(t, self._in_a_word(t, pitch) if place is None else 1):
            at = self.coordinates(t, word[0])
            address, offset = self._scratch_place(call, shape, at if place is None else place(at), t.dtype.nbytes, pitch)
            found |= zip(word, self.vector_load("shared", address, offset, t.dtype, [zero] * len(word), self.ghost(t, word[0]), None))
        return [found[r] for r in range(self.registers(t))]

    def _in_a_word(self, t: Tile, pitch: int | None) -> int:
        """How many elements that a thread has side by side in a row lie in one word of scratch."""
        if any(str(axis) == "reg" for _, _, axis in t.layout.replicas):
            return 1
        beside = 1
        for extent, _, axis, _ in reversed(dimension_shards(t.layout, t.domain)[-1]):
            if axis != "reg" and extent > 1:
                break
            beside *= extent
        return gcd(beside, max(1, 4 // t.dtype.nbytes), t.shape[-1], pitch or t.shape[-1])

    def _words(self, t: Tile, count: int) -> list[tuple[int, ...]]:
        """The registers, by `count` whose elements are side by side in a row, from a multiple of `count` on."""
        table = register_table(t.layout, t.domain)
        if count == 1:
            return [(r,) for r in range(len(table))]
        return [tuple(self.register_at(t, (*at[:-1], at[-1] + n)) for n in range(count)) for at in table if at[-1] % count == 0]

    def _scratch_place(self, call, shape, at, nbytes: int, pitch: int | None):
        flat = 0
        for extent, c in zip((*shape[:-1], pitch or shape[-1]), at):
            flat = flat * extent + c
        return self.scratch_address(call, flat * nbytes)
