"""Emits exchanges among the lanes of a warp: shuffles of any dtype, and reductions and votes of one instruction."""

from __future__ import annotations

from ..dtypes import DType, bool_, float32, int32, int64, uint32
from .component import Component
from .value import V, widening_op


class Warp(Component):
    """The part of the emitter for warp-level instructions. PTX ISA, "shfl.sync", "redux.sync", "vote.sync"."""

    def members(self) -> V:
        """The member mask of the current scope: all lanes, unless the scope is part of a warp. In a scope of one
        thread, it is the lanes that are active together here (``activemask``)."""
        if self.e.threads > 1:
            return self.e.const(self.e.scope_lanes(), int32)
        return self.e.memoize_for_region(("members", self.e.scope_key()),
                                         lambda: self.e.ins("call i32 @llvm.nvvm.activemask()", int32))

    def shuffle(self, kind: str, value: V, operand) -> V:
        """The value that another lane has. `kind` selects the lane: 'idx' (lane `operand`), 'bfly' (own lane ^
        `operand`), 'up' or 'down' (own lane - or + `operand`). For a lane outside the warp, the result is the
        thread's own value."""
        operand = self.e.as_value(operand, int32)
        if value.dtype.bits == 64:
            return self._shuffle_wide(kind, value, operand)
        if value.dtype == float32:
            return self._shuffle_word(kind, value, operand, "f32", float32)
        word = self._shuffle_word(kind, self._as_word(value), operand, "i32", int32)
        return self._from_word(word, value.dtype)

    def _shuffle_word(self, kind: str, value: V, operand: V, suffix: str, dtype: DType) -> V:
        clamp = 0 if kind == "up" else 31
        return self.e.ins(f"call {dtype.llvm} @llvm.nvvm.shfl.sync.{kind}.{suffix}(i32 {self.members().text}, "
                          f"{value.typed_text}, i32 {operand.text}, i32 {clamp})", dtype)

    def _shuffle_wide(self, kind: str, value: V, operand: V) -> V:
        bits = value if value.dtype.llvm == "i64" else self.e.ins(f"bitcast {value.typed_text} to i64", int64)
        low = self.e.ins(f"trunc i64 {bits.text} to i32", int32)
        high = self.e.ins(f"trunc i64 {self.e.ins(f'lshr i64 {bits.text}, 32', int64).text} to i32", int32)
        low, high = (self._shuffle_word(kind, half, operand, "i32", int32) for half in (low, high))
        high = self.e.ins(f"shl i64 {self.e.ins(f'zext i32 {high.text} to i64', int64).text}, 32", int64)
        both = self.e.ins(f"or i64 {high.text}, {self.e.ins(f'zext i32 {low.text} to i64', int64).text}", int64)
        if value.dtype.llvm == "i64":
            return V(self.e, both.text, value.dtype)
        return self.e.ins(f"bitcast i64 {both.text} to {value.dtype.llvm}", value.dtype)

    def _as_word(self, value: V) -> V:
        """A value of at most 32 bits as an i32, zero-extended."""
        dtype = value.dtype
        if dtype.llvm == "i32":
            return value
        text = value
        if dtype.llvm in ("half", "bfloat"):
            text = self.e.ins(f"bitcast {value.typed_text} to i16", dtype)
            return self.e.ins(f"zext i16 {text.text} to i32", int32)
        return self.e.ins(f"zext {value.typed_text} to i32", int32)

    def _from_word(self, word: V, dtype: DType) -> V:
        if dtype.llvm == "i32":
            return V(self.e, word.text, dtype)
        if dtype.llvm in ("half", "bfloat"):
            bits = self.e.ins(f"trunc i32 {word.text} to i16", dtype)
            return self.e.ins(f"bitcast i16 {bits.text} to {dtype.llvm}", dtype)
        return self.e.ins(f"trunc i32 {word.text} to {dtype.llvm}", dtype)

    def vote(self, kind: str, condition: V, mask: V | None = None) -> V:
        """Whether `condition` holds in 'any' or 'all' lanes of `mask`, by default the scope's part of the warp, or the
        mask of those where it holds ('ballot')."""
        dtype = uint32 if kind == "ballot" else bool_
        return self.e.ins(f"call {dtype.llvm} @llvm.nvvm.vote.{kind}.sync(i32 {(mask or self.members()).text}, "
                          f"i1 {condition.text})", dtype)

    def match(self, value: V, mask: V | None = None) -> V:
        """The mask of the lanes, of `mask` or else of the scope, that have the same bits in `value`. PTX ISA,
        "match.sync"."""
        if value.dtype.bits < 32 or value.dtype.llvm == "i32":
            bits = self._as_word(value)
        else:
            word = int64 if value.dtype.bits == 64 else int32
            bits = value
            if value.dtype.llvm != word.llvm:
                bits = self.e.ins(f"bitcast {value.typed_text} to {word.llvm}", word)
        return self.e.ins(f"call i32 @llvm.nvvm.match.any.sync.{bits.dtype.llvm}(i32 {(mask or self.members()).text}, "
                          f"{bits.typed_text})", uint32)

    def redux(self, word: str, value: V, mask: V | None = None) -> V:
        """A reduction across the whole warp, or the lanes of `mask` for integers, by one instruction.

        It is 'add', 'min', 'max', 'and', 'or' or 'xor' of integers of at most 32 bits, 'min' or 'max' of float32 that
        propagate NaN (sm_100a and sm_103a), 'and' or 'or' of bools."""
        dtype = value.dtype
        if dtype == bool_:
            kind = "any" if word == "or" else "all"
            return self.e.ins(f"call i1 @llvm.nvvm.vote.{kind}.sync(i32 -1, i1 {value.text})", bool_)
        if dtype == float32:
            return self.e.asm(f"redux.sync.{word}.NaN.f32 $0, $1, -1;", [float32], [value], convergent=True)[0]
        wide = value
        if dtype.llvm != "i32":
            wide = self.e.ins(f"{widening_op(dtype)} {value.typed_text} to i32", int32)
        name = "u" + word if dtype.kind == "uint" and word in ("min", "max") else word
        lanes = "-1" if mask is None else mask.text
        call = f"call i32 @llvm.nvvm.redux.sync.{name}(i32 {wide.text}, i32 {lanes})"
        return self._from_word(self.e.ins(call, int32), dtype)

    def digit(self, axis: str, extent: int, stride: int):
        """The digit ``(id // stride) % extent`` of the thread's id on the axis 'laneid',
        or 'warpid' (within the scope)."""
        if extent == 1:
            return 0
        return self.e.memoize_for_region(("digit", axis, extent, stride, self.e.scope_key()),
                                         lambda: self.e.tiles.axis_digit(axis, extent, stride))

    def as_test(self, digit) -> V | None:
        """Whether a digit is 0; None if it always is."""
        return None if isinstance(digit, int) else digit.equals(0)

    def not_below(self, digit: V, n: int) -> V:
        """``digit >= n``."""
        return self.e.ins(f"icmp uge {digit.typed_text}, {n}", bool_)

    def packed(self, values: list[V]) -> list[V]:
        """16-bit values packed in pairs, the first of each in the low half of an i32."""
        return [self.e.pack_word(values[i:i + 2], values[0].dtype.llvm, int32) for i in range(0, len(values), 2)]
