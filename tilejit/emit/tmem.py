"""Emits tensor memory: allocations and addresses. PTX ISA, "Tensor Memory Allocation and Management Instructions"."""

from __future__ import annotations

from ..dtypes import int32
from ..ir.builder import type_as
from ..ir.graph import Value
from ..passes.placement.tensor_memory import leaders
from ..types import Buffer
from .buffers import EBuffer
from .parts import EmitterParts
from .value import V

GROUP = ".cta_group::{}.sync.aligned"


class TensorMemoryMixin(EmitterParts):
    """The part of the emitter for tensor memory. An address has the lane in its upper 16 bits, and in its lower 16
    the column (columns are 32 bits wide)."""

    def init_tensor_memory(self) -> None:
        """At the kernel's entry, the first warp allocates, which writes the addresses to shared memory, and after a
        barrier all threads read them."""
        made = leaders(self.graph)
        self.tensor_addresses: dict[Value, V] = {}
        if not made:
            return
        base = self.shared_base()

        def allocate():
            for value, place in made:
                self.asm(f"tcgen05.alloc{GROUP.format(place.cta_group)}.shared::cta.b32 [$0 + "
                         f"{self.graph.shared[value]}], {place.columns};",
                         [], [base], convergent=True)
            self.asm(f"tcgen05.relinquish_alloc_permit{GROUP.format(made[0][1].cta_group)};", convergent=True)

        self._by_first_warp(allocate)
        self.tcgen05_fence("before_thread_sync")
        self.cta_barrier()
        self.tcgen05_fence("after_thread_sync")
        for value, _ in made:
            self.tensor_addresses[value] = self.asm(f"ld.shared.b32 $0, [$1 + {self.graph.shared[value]}];", [int32],
                                                    [base])[0]

    def _remaining_allocations(self) -> list[Value]:
        """The allocations that the kernel's own code does not deallocate."""
        return [value for value, place in leaders(self.graph) if not place.freed]

    def leave_tensor_memory(self) -> None:
        """At the kernel's end, the fence before the barrier after which tensor memory is deallocated."""
        if self._remaining_allocations():
            self.tcgen05_fence("before_thread_sync")

    def free_tensor_memory(self) -> None:
        """At the kernel's end, deallocate what is left: after the cluster's barrier,
        or without a cluster after one of the CTA."""
        left = self._remaining_allocations()
        if left and not self.graph.launch.cluster:
            self.cta_barrier()
        for value in left:
            self.deallocate(value)

    def deallocate(self, value: Value) -> None:
        """``tcgen05.dealloc`` of the allocation that holds a buffer, by the first warp."""
        place = self.graph.tensor_memory[value]
        address = self.tensor_addresses[place.leader]
        self._by_first_warp(lambda: self.asm(f"tcgen05.dealloc{GROUP.format(place.cta_group)}.b32 $0, {place.columns};",
                                             [], [address], convergent=True))

    def _by_first_warp(self, then) -> None:
        inside, done = self.label("warp"), self.label("all")
        self.branch_if(self.warp_id().equals(0), inside, done)
        self.start(inside)
        with self.region_of_code():
            then()
        self.branch(done)
        self.start(done)

    def narrowed(self, word: V, dtype) -> V:
        """The element of fewer than 32 bits in the low bits of a register."""
        bits = self.ins(f"trunc i32 {word.text} to i{dtype.bits}", dtype)
        if dtype.llvm == f"i{dtype.bits}":
            return bits
        return self.ins(f"bitcast i{dtype.bits} {bits.text} to {dtype.llvm}", dtype)

    def widened_bits(self, value: V) -> V:
        """An element of fewer than 32 bits, zero-extended to a register."""
        n = value.dtype.bits
        if value.dtype.llvm == f"i{n}":
            text = value.text
        else:
            text = self.ins(f"bitcast {value.typed} to i{n}", int32).text
        return self.ins(f"zext i{n} {text} to i32", int32)

    def tcgen05_fence(self, side: str) -> None:
        self.asm(f"tcgen05.fence::{side};")

    def tensor_buffer(self, value: Value):
        place = self.graph.tensor_memory[value]
        t = type_as(value, Buffer)
        return EBuffer(t, self.tensor_addresses[place.leader], t.shape, offset=place.column)

    def tensor_address(self, region) -> V:
        """The address of a region's first element, which must begin a 32-bit column."""
        buffer, dtype = region.buffer, region.buffer.type.dtype
        at = buffer.type.layout.apply(*region.starts, shape=buffer.type.shape)
        lane = at.get("TLane", 0)
        column = at.get("TCol", 0)
        column = column * dtype.bits // 32 if isinstance(column, int) else self.word(column) * dtype.bits // 32
        return (buffer.pointer + (lane * 65536 if isinstance(lane, int) else self.word(lane) * 65536) + column
                + buffer.offset)
