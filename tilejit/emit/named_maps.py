"""Emits the tensor maps of ``tile.tensor_map``: how a kernel initialises, edits, publishes and fences them.

PTX ISA, "tensormap.replace", "tensormap.cp_fenceproxy", "fence.proxy.tensormap".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..dtypes import int32, int64
from ..ops.moves.copy_async.tma.named_map import template
from ..types import TensorMap
from .component import Component
from .value import V


@dataclass
class EMap:
    """A tensor map by name. `template` has the fields that the launch encodes. Copies read the map from `slot` in
    global memory, or if that is None from a kernel parameter. `shared` is the place in shared memory where it is
    edited, if not in the slot."""

    type: TensorMap
    template: Any
    slot: V | None = None
    shared: tuple[V, int] | None = None

    @property
    def rank(self) -> int:
        return len(self.type.array.shape)

    def in_global(self) -> V:
        """The address of the map's slot in global memory."""
        assert self.slot is not None, "the map is a kernel parameter"
        return self.slot

class NamedMaps(Component):
    """The part of the emitter for tensor maps by name."""

    def named_map(self, type_: TensorMap, slot, shared) -> EMap:
        fields = template(type_)
        if slot is None:
            return EMap(type_, fields)
        self.e.map_recipes.append({**fields.recipe(), "origin": "device"})
        address, offset = self.e.ptx.place_address(slot)
        return EMap(type_, fields, address + offset, None if shared is None else (self.e.shared_base(), shared.offset))

    def address(self, map_: EMap) -> V:
        """The address from which copies read a map."""
        return map_.slot if map_.slot is not None else self.e.tma.tensor_map(map_.template)

    def seed(self, map_: EMap) -> None:
        """Initialise a map from the one that the launch encoded: one thread copies all 128 bytes, 16 at a time, since
        a driver may have written any of them. The loads name the parameter; by a generic address, each would wait for
        memory, one after the other between the stores."""
        source, _ = self.e.tma.map_parameter(map_.template)
        address, offset, space = self._edit_address(map_)

        def word(at: int) -> V:
            place = self.e.ins(f"getelementptr i8, ptr {source.text}, i64 {at}", int64)
            return self.e.ins(f"load i32, ptr {place.text}, align 4", int32)

        def copy():
            for at in range(0, 128, 16):
                words = [word(at + 4 * i) for i in range(4)]
                self.e.asm(f"st.{space}.v4.b32 [$0 + {offset + at}], {{$1, $2, $3, $4}};", [], [address, *words])
        self.e.control.by_first_thread(copy)

    def rebind(self, map_: EMap, place, *numbers) -> None:
        """Replace the address, the dimensions and the strides (`numbers`: `rank` dimensions, then strides), by 2 *
        rank instructions."""
        address, offset, space = self._edit_address(map_)
        at, rank = f"[$0 + {offset}]" if offset else "[$0]", map_.rank
        base, moved = (place, 0) if isinstance(place, V) else self.e.ptx.place_address(place)
        base = base + moved

        def edit():
            head = "tensormap.replace.tile"
            self.e.asm(f"{head}.global_address.{space}.b1024.b64 {at}, $1;", [], [address, base])
            for d, n in enumerate(numbers[:rank]):
                self.e.asm(f"{head}.global_dim.{space}.b1024.b32 {at}, {d}, $1;", [], [address, n])
            for d, n in enumerate(numbers[rank:]):
                self.e.asm(f"{head}.global_stride.{space}.b1024.b64 {at}, {d}, $1;", [], [address, n])
        self.e.control.by_first_thread(edit)

    def _edit_address(self, map_: EMap) -> tuple[V, int, str]:
        """(address, constant byte offset, state space) of the place where a map is edited."""
        if map_.shared is not None:
            return *map_.shared, "shared::cta"
        return map_.in_global(), 0, "global"

    def release(self, map_: EMap, scope: str) -> None:
        self.e.asm(f"fence.proxy.tensormap::generic.release.{scope};")

    def acquire(self, map_: EMap, scope: str) -> None:
        self.e.asm(f"fence.proxy.tensormap::generic.acquire.{scope} [$0], 128;", [], [map_.in_global()])

    def publish(self, map_: EMap, scope: str) -> None:
        """Copy an edited map from shared memory to its slot and release it: by the scope's first warp, between two
        barriers of the scope."""
        assert map_.shared is not None  # it is edited there
        (address, offset), slot = map_.shared, map_.in_global()
        text = (f"tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{scope}.sync.aligned [$0], "
                f"[$1 + {offset}], 128;")
        self.e.sync.scope()
        warp = self.e.scope_warp()
        if isinstance(warp, int):
            self.e.asm(text, [], [slot, address], convergent=True)
        else:
            inside, done = self.e.label("publish"), self.e.label("published")
            self.e.branch_if(warp.equals(0), inside, done)
            self.e.start(inside)
            with self.e.region_of_code():
                self.e.asm(text, [], [slot, address], convergent=True)
            self.e.branch(done)
            self.e.start(done)
        self.e.sync.scope()

    def prefetch(self, map_: EMap) -> None:
        self.e.asm("prefetch.tensormap [$0];", [], [self.address(map_)])


__all__ = ["EMap", "NamedMaps"]
