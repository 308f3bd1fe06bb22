"""Tensor maps that the kernel names, in emitted code: seeded, edited, published and fenced. PTX ISA, "tensormap.replace",
"tensormap.cp_fenceproxy", "fence.proxy.tensormap"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..dtypes import int32, int64
from ..ops.copy_async.tma_map import template
from ..types import TensorMap
from .value import V


@dataclass
class EMap:
    """A named map: what the launch encodes for it, and where copies read it: a parameter (None), or a slot in global memory.
    `shared` is where it is edited, if not in the slot."""

    type: TensorMap
    template: Any
    slot: V | None = None
    shared: tuple[V, int] | None = None

    @property
    def rank(self) -> int:
        return len(self.type.array.shape)


class NamedMapMixin:
    """The part of the emitter that makes and edits tensor maps."""

    def named_map(self, type_: TensorMap, slot, shared) -> EMap:
        fields = template(type_)
        if slot is None:
            return EMap(type_, fields)
        self.maps.append({**fields.recipe(), "origin": "device"})
        address, offset = self.place_address(slot)
        return EMap(type_, fields, address + offset, None if shared is None else (self.shared_base(), shared.offset))

    def map_address(self, map_: EMap) -> V:
        """Where copies read a map."""
        return map_.slot if map_.slot is not None else self.tensor_map(map_.template)

    def map_seed(self, map_: EMap) -> None:
        """One thread copies all 128 bytes, 16 at a time: more than the hardware reads, and all that a driver may have written. They are loaded
        as what they are, a parameter: by an address in any memory each load would wait for memory, one after the other between the stores."""
        source, _ = self.map_parameter(map_.template)
        address, offset, space = self._edited(map_)

        def word(at: int) -> V:
            place = self.ins(f"getelementptr i8, ptr {source.text}, i64 {at}", int64)
            return self.ins(f"load i32, ptr {place.text}, align 4", int32)

        def copy():
            for at in range(0, 128, 16):
                words = [word(at + 4 * i) for i in range(4)]
                self.asm(f"st.{space}.v4.b32 [$0 + {offset + at}], {{$1, $2, $3, $4}};", [], [address, *words])
        self.by_first_thread(copy)

    def map_rebind(self, map_: EMap, place, *numbers) -> None:
        """Address, dimensions, strides, in this order: 2 * rank instructions."""
        address, offset, space = self._edited(map_)
        at, rank = f"[$0 + {offset}]" if offset else "[$0]", map_.rank
        base, moved = (place, 0) if isinstance(place, V) else self.place_address(place)
        base = base + moved

        def edit():
            head = "tensormap.replace.tile"
            self.asm(f"{head}.global_address.{space}.b1024.b64 {at}, $1;", [], [address, base])
            for d, n in enumerate(numbers[:rank]):
                self.asm(f"{head}.global_dim.{space}.b1024.b32 {at}, {d}, $1;", [], [address, n])
            for d, n in enumerate(numbers[rank:]):
                self.asm(f"{head}.global_stride.{space}.b1024.b64 {at}, {d}, $1;", [], [address, n])
        self.by_first_thread(edit)

    def _edited(self, map_: EMap) -> tuple[V, int, str]:
        """(address, constant byte offset, state space) of where a map is edited."""
        return (map_.slot, 0, "global") if map_.shared is None else (*map_.shared, "shared::cta")

    def map_release(self, map_: EMap, scope: str) -> None:
        self.asm(f"fence.proxy.tensormap::generic.release.{scope};")

    def map_acquire(self, map_: EMap, scope: str) -> None:
        self.asm(f"fence.proxy.tensormap::generic.acquire.{scope} [$0], 128;", [], [map_.slot])

    def map_publish(self, map_: EMap, scope: str) -> None:
        """By the first warp of the scope, between barriers of all of it."""
        address, offset = map_.shared
        text = f"tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{scope}.sync.aligned [$0], [$1 + {offset}], 128;"
        self.sync()
        warp = self.scope_warp()
        if isinstance(warp, int):
            self.asm(text, [], [map_.slot, address], convergent=True)
        else:
            inside, done = self.label("publish"), self.label("published")
            self.branch_if(warp.equals(0), inside, done)
            self.start(inside)
            with self.region_of_code():
                self.asm(text, [], [map_.slot, address], convergent=True)
            self.branch(done)
            self.start(done)
        self.sync()

    def map_prefetch(self, map_: EMap) -> None:
        self.asm("prefetch.tensormap [$0];", [], [self.map_address(map_)])


__all__ = ["EMap", "NamedMapMixin"]
