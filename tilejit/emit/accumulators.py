"""Accumulators of asynchronous products: registers declared once and known by name, which LLVM does not see."""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DType, float32, int32, int64
from ..ir.graph import Call, Const, Operand, Value
from ..passes.accumulators import PinnedRegisters, is_product
from .value import V

AT_ONCE = 32  # registers moved by one asm


@dataclass(frozen=True)
class Pins:
    """A set of named registers that holds a tile of `dtype`: of 32 bits each, so 16-bit elements go in pairs."""

    name: str
    dtype: DType
    elements: int

    @property
    def words(self) -> int:
        return self.elements * self.dtype.bits // 32

    @property
    def type(self) -> str:
        return "f32" if self.dtype == float32 else "b32"

    def part(self, n: int, parts: int) -> list[str]:
        """The names of part `n` of `parts` equal ones."""
        size = self.words // parts
        return [f"{self.name}_{i}" for i in range(n * size, (n + 1) * size)]


class AccumulatorMixin:
    """The part of the emitter that keeps accumulators in pinned registers."""

    def pins_of(self, value: Operand) -> Pins | None:
        """The registers of a pinned tile; None for any other operand."""
        if self.pinned is None:
            self.pinned = PinnedRegisters(self.graph).sets if any(map(is_product, self.made_by.values())) else {}
        number = self.pinned.get(value)
        if number is None:
            return None
        if number not in self.pin_sets:
            t = value.type
            pins = self.pin_sets[number] = Pins(f"acc{number}", t.dtype, self.registers(t))
            body, self.lines = self.lines, self.entry_lines
            self.asm(f".reg .{pins.type} {pins.name}_<{pins.words}>;")
            self.lines = body
        return self.pin_sets[number]

    def accumulate(self, call: Call) -> tuple[Pins, bool]:
        """The registers that a product accumulates in, holding its accumulator; and whether that is zero instead."""
        pins, acc = self.pins_of(call.result), call.args[0]
        if acc is None or self._is_zero(acc):
            return pins, True
        if self.pins_of(acc) not in (None, pins):
            self.renew(call)
        else:
            self.handed([acc], [call.result])
        return pins, False

    def _is_zero(self, value: Value) -> bool:
        made = self.made_by.get(value)
        return made is not None and made.op.name == "splat" and isinstance(made.args[0], Const) and made.args[0].value == 0

    def handed(self, operands, targets) -> list:
        """What control flow hands on, as the targets take it: a pinned tile in its registers, anything else as values.
        All are read before any is written."""
        pins = [self.pins_of(t) for t in targets]
        moves = [p is not None and self.pins_of(o) != p for o, p in zip(operands, pins)]
        values = [p if p is not None and not move else self.operand(o) for o, p, move in zip(operands, pins, moves)]
        for p, move, value in zip(pins, moves, values):
            if move:
                self._write(p, value)
        return [p if p is not None else v for p, v in zip(pins, values)]

    def _write(self, pins: Pins, values: list[V]) -> None:
        words = values if pins.dtype.bits == 32 else self.packed_words(values)
        for first in range(0, pins.words, AT_ONCE):
            some = words[first:first + AT_ONCE]
            self.asm(" ".join(f"mov.{pins.type} {pins.name}_{first + i}, ${i};" for i in range(len(some))), [], some)

    def renew(self, call: Call) -> Pins:
        """The registers of a call, which take what its first operand's hold, by an instruction that ptxas does not look through.

        Where that is still wanted behind a product in a loop, ptxas 13.0 would let the product read a plain copy's source, and then find
        no registers to keep it in (C7511).
        """
        pins, source = self.pins_of(call.result), self.pins_of(call.args[0])
        for first in range(0, pins.words, AT_ONCE):
            some = range(first, min(first + AT_ONCE, pins.words))
            self.asm(" ".join(f"prmt.b32 {pins.name}_{i}, {source.name}_{i}, 0, 0x3210;" for i in some))
        return pins

    def read_pins(self, pins: Pins) -> list[V]:
        """The tile in pinned registers as values.

        ptxas moves what takes a pair of float16 apart up to the product, before the wait, and then waits there too (C7517): such
        words are read by an instruction that it does not look through.
        """
        unit = float32 if pins.dtype == float32 else int32
        read = "mov.{0} ${1}, {2};" if pins.dtype.bits == 32 else "prmt.b32 ${1}, {2}, 0, 0x3210;"
        words: list[V] = []
        for first in range(0, pins.words, AT_ONCE):
            count = min(AT_ONCE, pins.words - first)
            words += self.asm(" ".join(read.format(pins.type, i, f"{pins.name}_{first + i}") for i in range(count)), [unit] * count)
        return self._from_units(words, pins.dtype, pins.elements)

    def packed_words(self, values: list[V]) -> list[V]:
        """A tile's registers in words of 32 bits: the elements side by side, the first lowest."""
        per = 32 // values[0].dtype.bits
        return [self._pack(values[i:i + per], values[0].dtype.llvm, int32) for i in range(0, len(values), per)]

    def unpacked_words(self, words: list[V], dtype: DType) -> list[V]:
        """The elements that `packed_words` has put side by side."""
        return self._from_units(words, dtype, len(words) * 32 // dtype.bits)

    # -- matrices in shared memory -------------------------------------------------------------------------------------

    def matrix_address(self, region):
        """Where a region of a shared buffer begins, before the swizzle, as a shared address."""
        buffer = region.buffer
        layout, nbytes = buffer.type.layout.without_swizzle(), buffer.type.dtype.nbytes
        origin = layout.offset_of(*region.starts, shape=buffer.type.shape) * nbytes
        return self.shared_base() + (origin if isinstance(origin, int) else self.word(origin)) + buffer.offset

    def descriptor(self, address: V, bits: int) -> V:
        """A matrix descriptor (PTX ISA, "Matrix descriptor"). Bits 24 and up of a shared address are the CTA's rank."""
        low = self.ins(f"zext i32 {((address & 0x3FFFF) >> 4).text} to i64", int64)
        return self.ins(f"or i64 {low.text}, {bits - (bits >> 63 << 64)}", int64)
