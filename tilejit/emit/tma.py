"""Emits tensor maps as kernel parameters, and the TMA copies that read them.

PTX ISA, ``cp.async.bulk.tensor``.
"""

from __future__ import annotations

from ..dtypes import int32, int64
from .barriers import EBarrier
from .bulk import BYTES, HINT, _place
from .component import Component
from .named_maps import EMap
from .value import V


class TensorCopies(Component):
    """The part of the emitter that issues bulk tensor copies. A place is (address,
    constant byte offset) in shared memory."""

    def tensor_map(self, tensor_map) -> V:
        """The generic address of a tensor map: a kernel parameter (``grid_constant``), which equal maps share,
        or a map by name."""
        if isinstance(tensor_map, EMap):
            return self.e.maps.address(tensor_map)
        parameter, n = self.map_parameter(tensor_map)
        return self.e.entry(("map", n), lambda: self.e.ins(f"ptrtoint ptr {parameter.text} to i64", int64))

    def map_parameter(self, tensor_map) -> tuple[V, int]:
        """The kernel parameter that holds a map, and its index among the launch's maps."""
        recipe = tensor_map.recipe()
        if recipe not in self.e.map_recipes:
            self.e.map_recipes.append(recipe)
        n = self.e.map_recipes.index(recipe)
        return self.e.param(("map", n), int64), n

    def prefetch_map(self, tensor_map) -> None:
        """At the kernel's entry, thread 0 prefetches a map to the cache from which copies read it."""
        address = self.tensor_map(tensor_map)
        thread = self.e.absolute_thread()
        text = "{ .reg .pred p; setp.eq.u32 p, $1, 0; @p prefetch.tensormap [$0]; }"
        self.e.entry(("prefetched", address.text), lambda: self.e.asm(text, [], [address, thread]))

    def load(self, tensor_map, coordinates: list, place: tuple[V, int], barrier: EBarrier, *, mode: str = "",
             offsets=(), mask=None, cta_group: int | None = None, space: str = "shared::cluster",
             policy=None) -> None:
        """Global to shared memory. The box's bytes complete on the barrier; with a `mask` of ranks (multicast), on
        that of each of those CTAs.

        `mode` is the load mode ("" for tiles), `offsets` are the im2col offsets.
        """
        inputs, at = self._coordinates([place[0], barrier.address, self.tensor_map(tensor_map)], coordinates)
        text = f"cp.async.bulk.tensor.{tensor_map.rank}d.{space}.global{mode}.{BYTES}"
        text += (".multicast::cluster" if mask is not None else "") + (f".cta_group::{cta_group}" if cta_group else "")
        text += f"{_hint(policy)} {_place(0, place[1])}, [$2, {at}], {_place(1, barrier.offset)}"
        text, inputs = self._offsets(text, inputs, offsets)
        if mask is not None:
            text, inputs = f"{text}, ${len(inputs)}", [*inputs, self.e.bulk.half_word(mask)]
        self.e.bulk.emit_with_policy(text, inputs, policy)

    def store(self, tensor_map, coordinates: list, place: tuple[V, int], *, mode: str = ".tile",
              reduce: str | None = None, policy=None) -> None:
        """Shared to global memory, or a reduction there, as part of the thread's current bulk group."""
        inputs, at = self._coordinates([place[0], self.tensor_map(tensor_map)], coordinates)
        verb, kind = ("cp.reduce", f".{reduce}") if reduce else ("cp", "")
        head = f"{verb}.async.bulk.tensor.{tensor_map.rank}d.global.shared::cta{kind}"
        text = f"{head}{mode}.bulk_group{_hint(policy)} [$1, {at}], {_place(0, place[1])}"
        self.e.bulk.emit_with_policy(text, inputs, policy)

    def prefetch(self, tensor_map, coordinates: list, *, mode: str = ".tile", offsets=(), policy=None) -> None:
        """Prefetch a box to L2."""
        inputs, at = self._coordinates([self.tensor_map(tensor_map)], coordinates)
        text = f"cp.async.bulk.prefetch.tensor.{tensor_map.rank}d.L2.global{mode}{_hint(policy)} [$0, {at}]"
        self.e.bulk.emit_with_policy(*self._offsets(text, inputs, offsets), policy)

    def _coordinates(self, inputs: list[V], coordinates: list) -> tuple[list[V], str]:
        """The inputs with the coordinates appended, and the coordinates' text. Coordinates have 32 bits; 64-bit ones
        saturate, which keeps those that do not fit out of every map's bounds."""
        names = [f"${len(inputs) + i}" for i in range(len(coordinates))]

        def limit(c):
            if isinstance(c, V) and c.dtype.bits == 64:
                return self.e.asm("cvt.sat.s32.s64 $0, $1;", [int32], [c], pure=True)[0]
            return self.e.word(c)

        return [*inputs, *map(limit, coordinates)], "{" + ", ".join(names) + "}"

    def _offsets(self, text: str, inputs: list[V], offsets) -> tuple[str, list[V]]:
        """Append the offsets of an im2col mode, of 16 bits each, to an instruction's text and inputs."""
        if not offsets:
            return text, inputs
        names = ", ".join(f"${len(inputs) + i}" for i in range(len(offsets)))
        return f"{text}, {{{names}}}", [*inputs, *(self.e.bulk.half_word(o) for o in offsets)]


def _hint(policy) -> str:
    return HINT if policy is not None else ""
