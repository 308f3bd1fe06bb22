"""Converts operands and results of PTX instruction forms (`tilejit.ptx`) to and from their registers."""

from __future__ import annotations

from ..dtypes import DType, bool_, float32, float64, int16, int32, int64
from ..ops.memory.access import Access, AccessPlan
from .barriers import EBarrier
from .component import Component
from .named_maps import EMap
from .value import V

INT128 = DType("int128", "int", 128, "i128")
_REGISTER = {"i1": bool_, "i16": int16, "i32": int32, "i64": int64, "i128": INT128, "float": float32, "double": float64}


class PtxOperands(Component):
    """The part of the emitter for operands of instruction forms."""

    def dtype(self, operand) -> DType:
        """The dtype of the register class of an operand."""
        return _REGISTER[operand.register.llvm]

    def register(self, operand, x: V) -> V:
        """A value in the register class of an operand: floats are bit-cast to integers where it takes those, bytes
        zero-extended to 16 bits."""
        wanted = self.dtype(operand)
        if x.dtype.llvm == wanted.llvm:
            return x
        if x.dtype.llvm == "i8":
            return self.e.ins(f"zext i8 {x.text} to i16", int16)
        return self.e.ins(f"bitcast {x.typed_text} to {wanted.llvm}", wanted)

    def result(self, operand, x: V, dtype: DType) -> list[V]:
        """A result register as values of `dtype`: 128 bits as two 64-bit words, 16 bits truncated to a byte,
        bits as a float."""
        if operand.type == "b128":
            high = self.e.ins(f"lshr i128 {x.text}, 64", INT128)
            return [V(self.e, self.e.ins(f"trunc i128 {part.text} to i64", int64).text, dtype) for part in (x, high)]
        if dtype.llvm == x.dtype.llvm:
            return [V(self.e, x.text, dtype)]
        word = "trunc" if dtype.llvm == "i8" else "bitcast"
        return [self.e.ins(f"{word} {x.typed_text} to {dtype.llvm}", dtype)]

    def widen(self, low: V, high: V) -> V:
        """The 128-bit value of two 64-bit words."""
        low, high = (x if x.dtype.llvm == "i64" else self.e.ins(f"bitcast {x.typed_text} to i64", int64)
                     for x in (low, high))
        low, high = (self.e.ins(f"zext i64 {x.text} to i128", INT128) for x in (low, high))
        return self.e.ins(f"or i128 {low.text}, {self.e.ins(f'shl i128 {high.text}, 64', INT128).text}", INT128)

    def place_address(self, place) -> tuple[V, int]:
        """(address, constant byte offset) of the first element of a region."""
        return Access(self.e, place, None, AccessPlan(1, 0, ())).address(0)

    def address(self, operand, place) -> tuple[V, int]:
        """(address, constant byte offset) for an address operand. `place` is an address, a tensor map,
        an mbarrier or a region."""
        if isinstance(place, V):
            return place, 0
        if isinstance(place, EMap):
            if operand.space != "shared":
                return self.e.maps.address(place), 0
            assert place.shared is not None  # as the call's rule has checked
            return place.shared
        if isinstance(place, EBarrier):
            return place.address, place.offset
        address, offset = self.place_address(place)
        if place.buffer.type.scope == "global":
            return address, offset
        if place.buffer.rank is not None:
            return self.e.bulk.map_to_rank(address, offset, place.buffer.rank), 0
        if operand.space == "generic":
            wide = self.e.ins(f"zext i32 {(address + offset).text} to i64", int64)
            return self.e.asm("cvta.shared.u64 $0, $1;", [int64], [wide], pure=True)[0], 0
        return address, offset
