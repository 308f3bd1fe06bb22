"""Emits tensor memory: allocations and addresses. PTX ISA, "Tensor Memory Allocation and Management Instructions"."""

from __future__ import annotations

from ..dtypes import int32
from ..ir.builder import type_as
from ..ir.graph import Value
from ..passes.placement.tensor_memory import leaders
from ..types import Buffer
from .buffers import EBuffer
from .component import Component
from .value import V

GROUP = ".cta_group::{}.sync.aligned"


class TensorMemory(Component):
    """The part of the emitter for tensor memory. An address has the lane in its upper 16 bits, and in its lower 16
    the column (columns are 32 bits wide)."""

    def allocate(self) -> None:
        """At the kernel's entry, the first warp allocates, which writes the addresses to shared memory, and after a
        barrier all threads read them."""
        made = leaders(self.e.graph)
        self.addresses: dict[Value, V] = {}
        if not made:
            return
        base = self.e.shared_base()

        def allocate():
            for value, place in made:
                self.e.asm(f"tcgen05.alloc{GROUP.format(place.cta_group)}.shared::cta.b32 [$0 + "
                           f"{self.e.graph.shared[value]}], {place.columns};",
                           [], [base], convergent=True)
            self.e.asm(f"tcgen05.relinquish_alloc_permit{GROUP.format(made[0][1].cta_group)};", convergent=True)

        self._by_first_warp(allocate)
        self.fence("before_thread_sync")
        self.e.sync.cta()
        self.fence("after_thread_sync")
        for value, _ in made:
            self.addresses[value] = self.e.asm(f"ld.shared.b32 $0, [$1 + {self.e.graph.shared[value]}];", [int32],
                                               [base])[0]

    def _remaining_allocations(self) -> list[Value]:
        """The allocations that the kernel's own code does not deallocate."""
        return [value for value, place in leaders(self.e.graph) if not place.freed]

    def leave(self) -> None:
        """At the kernel's end, the fence before the barrier after which tensor memory is deallocated."""
        if self._remaining_allocations():
            self.fence("before_thread_sync")

    def free(self) -> None:
        """At the kernel's end, deallocate what is left: after the cluster's barrier,
        or without a cluster after one of the CTA."""
        left = self._remaining_allocations()
        if left and not self.e.graph.launch.cluster:
            self.e.sync.cta()
        for value in left:
            self.deallocate(value)

    def deallocate(self, value: Value) -> None:
        """``tcgen05.dealloc`` of the allocation that holds a buffer, by the first warp."""
        place = self.e.graph.tensor_memory[value]
        address = self.addresses[place.leader]
        text = f"tcgen05.dealloc{GROUP.format(place.cta_group)}.b32 $0, {place.columns};"
        self._by_first_warp(lambda: self.e.asm(text, [], [address], convergent=True))

    def _by_first_warp(self, then) -> None:
        inside, done = self.e.label("warp"), self.e.label("all")
        self.e.branch_if(self.e.warp_id().equals(0), inside, done)
        self.e.start(inside)
        with self.e.region_of_code():
            then()
        self.e.branch(done)
        self.e.start(done)

    def narrow(self, word: V, dtype) -> V:
        """The element of fewer than 32 bits in the low bits of a register."""
        bits = self.e.ins(f"trunc i32 {word.text} to i{dtype.bits}", dtype)
        if dtype.llvm == f"i{dtype.bits}":
            return bits
        return self.e.ins(f"bitcast i{dtype.bits} {bits.text} to {dtype.llvm}", dtype)

    def widened_bits(self, value: V) -> V:
        """An element of fewer than 32 bits, zero-extended to a register."""
        n = value.dtype.bits
        if value.dtype.llvm == f"i{n}":
            text = value.text
        else:
            text = self.e.ins(f"bitcast {value.typed_text} to i{n}", int32).text
        return self.e.ins(f"zext i{n} {text} to i32", int32)

    def fence(self, side: str) -> None:
        self.e.asm(f"tcgen05.fence::{side};")

    def buffer(self, value: Value):
        place = self.e.graph.tensor_memory[value]
        t = type_as(value, Buffer)
        return EBuffer(t, self.addresses[place.leader], t.shape, offset=place.column)

    def address(self, region) -> V:
        """The address of a region's first element, which must begin a 32-bit column."""
        buffer, dtype = region.buffer, region.buffer.type.dtype
        at = buffer.type.layout.apply(*region.starts, shape=buffer.type.shape)
        lane = at.get("TLane", 0)
        column = at.get("TCol", 0)
        column = column * dtype.bits // 32 if isinstance(column, int) else self.e.word(column) * dtype.bits // 32
        return (buffer.pointer + (lane * 65536 if isinstance(lane, int) else self.e.word(lane) * 65536) + column
                + buffer.offset)
