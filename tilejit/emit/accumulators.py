"""Accumulators of asynchronous products, pinned to PTX registers that are declared by name and that LLVM does not see.

Instructions that write them are marked as convergent, which keeps LLVM from duplicating them: where a loop's test
follows one that is the same, its jump threading would otherwise write the initial values on a path of their own,
which joins that of the loop before the wait for its products (C7515).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..dtypes import DType, float32, int32, int64
from ..ir.builder import type_as
from ..ir.graph import Call, Const, Operand, Value
from ..ops.tiles.generate import splat
from ..ops.tiles.slicing import slice_
from ..passes.products.accumulators import PinnedRegisters, is_product
from ..types import Tile
from .component import Component
from .value import V

AT_ONCE = 32  # registers that one inline asm moves

# How the register {0} of type {2} gets the operand ${1}.
MOVE = "mov.{2} {0}, ${1};"
# For registers that hold a tile that nothing has read. The table selects the new value, and the register is a source
# too, so that ptxas keeps the product that made the tile: ptxas 13.0 removes it otherwise, and may then remove writes
# of the new tile as well.
SELECT = "lop3.b32 {0}, ${1}, {0}, {0}, 0xf0;"
# For what a loop hands on while other sums are in registers: ptxas does not treat this as a copy (`Products.renew`).
PERMUTE = "prmt.b32 {0}, ${1}, 0, 0x3210;"


@dataclass(frozen=True)
class Pins:
    """A set of named 32-bit registers that holds a thread's `elements` elements of a tile;
    16-bit elements are packed in pairs."""

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
        """The registers' names in part `n` of `parts` equal ones."""
        size = self.words // parts
        return [f"{self.name}_{i}" for i in range(n * size, (n + 1) * size)]


class Products(Component):
    """The part of the emitter that keeps accumulators in pinned registers.
    `passes.accumulators` decides which tiles share a set."""

    lines: list[str]
    pinned: Mapping[Operand, int] | None

    def pins_of(self, value: Operand) -> Pins | None:
        """The registers of a pinned tile, declared at the first request; None for any other operand."""
        if self.e.pinned is None:
            found = PinnedRegisters(self.e.graph) if any(map(is_product, self.e.made_by.values())) else None
            self.e.pinned = found.sets if found else {}
            self.unread = found.unread if found else {}
        number = self.e.pinned.get(value)
        if number is None:
            return None
        if number not in self.e.pin_sets:
            t = type_as(value, Tile)
            pins = self.e.pin_sets[number] = Pins(f"acc{number}", t.dtype, self.e.tiles.registers(t))
            body = self.e.lines
            self.e.lines = self.e.entry_lines
            self.e.asm(f".reg .{pins.type} {pins.name}_<{pins.words}>;")
            self.e.lines = body
        return self.e.pin_sets[number]

    def accumulate(self, call: Call) -> tuple[Pins, bool]:
        """Make the registers that a product accumulates in hold its accumulator, by a move if it is elsewhere.
        Returns the registers, and whether the accumulator is zero instead (then they hold anything)."""
        pins, acc = self._own_pins(call.result), call.args[0]
        if acc is None or self._is_zero(acc):
            return pins, True
        if self.pins_of(acc) not in (None, pins):
            self.renew(call)
        elif self.pins_of(acc) is None and self._is_handed_on(acc):
            self._write(pins, self.e.operand(acc), PERMUTE)
        else:
            self.hand_over([acc], [call.result])
        return pins, False

    def _own_pins(self, value: Operand) -> Pins:
        """The registers of a tile that is known to be pinned."""
        pins = self.pins_of(value)
        assert pins is not None, f"{value!r} is not pinned"
        return pins

    def _is_zero(self, value: Operand) -> bool:
        made = self.e.made_by.get(value) if isinstance(value, Value) else None
        return made is not None and made.op is splat and isinstance(made.args[0], Const) and made.args[0].value == 0

    def hand_over(self, operands, targets, over=()) -> list:
        """`operands` in the form that `targets` take over an edge of control flow: a pinned tile in its target's
        registers, anything else as values. It is a parallel copy: all operands are read before a register is written.
        `over` are the tiles whose lives end here."""
        pins = [self.pins_of(t) for t in targets]
        moves = [p is not None and self.pins_of(o) != p for o, p in zip(operands, pins)]
        values: list[Any] = [p if p is not None and not move else self.e.operand(o)
                             for o, p, move in zip(operands, pins, moves)]
        for p, move, value in zip(pins, moves, values):
            if p is not None and move:
                self._write(p, value, SELECT if self._holds_unread(p, over) else MOVE)
        return [p if p is not None else v for p, v in zip(pins, values)]

    def _holds_unread(self, pins: Pins, over) -> bool:
        """Whether the registers may hold a tile that nothing has read: one of `over`,
        or the result of a product or a loop before."""
        return any(self.pins_of(v) == pins and (v in over or not carried and v in self.e.values)
                   for v, carried in self.unread.items())

    def _is_handed_on(self, value: Operand) -> bool:
        """Whether a tile is made of registers that a loop or branch hands on, such as a matrix of a batch of sums."""
        if not isinstance(value, Value):
            return False
        made = self.e.made_by.get(value)
        arranged = made is not None and (made.op.traits.free or made.op is slice_)
        return made is None or arranged and any(map(self._is_handed_on, made.args))

    def _write(self, pins: Pins, values: list[V], write: str) -> None:
        """Write a tile to its registers by an instruction such as `MOVE`."""
        words = values if pins.dtype.bits == 32 else self.packed_words(values)
        for first in range(0, pins.words, AT_ONCE):
            some = words[first:first + AT_ONCE]
            self.e.asm(" ".join(write.format(f"{pins.name}_{first + i}", i, pins.type) for i in range(len(some))), [],
                       some, convergent=True)

    def renew(self, call: Call) -> Pins:
        """Copy the registers of the call's first operand to those of its result, by ``prmt``,
        which ptxas does not treat as a copy.

        If the operand is live after a product in a loop, ptxas 13.0 forwards the source of a plain ``mov`` to the
        product, and then finds no registers to preserve it in (C7511).
        """
        pins, source = self._own_pins(call.result), self._own_pins(call.args[0])
        for first in range(0, pins.words, AT_ONCE):
            some = range(first, min(first + AT_ONCE, pins.words))
            self.e.asm(" ".join(f"prmt.b32 {pins.name}_{i}, {source.name}_{i}, 0, 0x3210;" for i in some),
                       convergent=True)
        return pins

    def read_pins(self, pins: Pins) -> list[V]:
        """Read the tile in pinned registers as values.

        ptxas hoists instructions that unpack a pair of 16-bit elements above the wait, up to the product, and then
        adds a wait there (C7517). Packed words are therefore read by ``prmt``, which it does not look through.
        """
        unit = float32 if pins.dtype == float32 else int32
        read = "mov.{0} ${1}, {2};" if pins.dtype.bits == 32 else "prmt.b32 ${1}, {2}, 0, 0x3210;"
        words: list[V] = []
        for first in range(0, pins.words, AT_ONCE):
            count = min(AT_ONCE, pins.words - first)
            words += self.e.asm(" ".join(read.format(pins.type, i, f"{pins.name}_{first + i}") for i in range(count)),
                                [unit] * count)
        return self.e.from_units(words, pins.dtype, pins.elements)

    def packed_words(self, values: list[V]) -> list[V]:
        """A tile's elements packed into 32-bit words, from the lowest bits up."""
        per = 32 // values[0].dtype.bits
        return [self.e.pack_word(values[i:i + per], values[0].dtype.llvm, int32) for i in range(0, len(values), per)]

    def unpacked_words(self, words: list[V], dtype: DType) -> list[V]:
        """The inverse of `packed_words`."""
        return self.e.from_units(words, dtype, len(words) * 32 // dtype.bits)

    # -- matrices in shared memory -------------------------------------------------------------------------------------

    def matrix_address(self, region):
        """The shared address of a region's first element without the swizzle:
        the hardware applies the swizzle to addresses."""
        buffer = region.buffer
        layout, nbytes = buffer.type.layout.without_swizzle(), buffer.type.dtype.nbytes
        origin = layout.offset_of(*region.starts, shape=buffer.type.shape) * nbytes
        return self.e.shared_base() + (origin if isinstance(origin, int) else self.e.word(origin)) + buffer.offset

    def descriptor(self, address: V, bits: int) -> V:
        """A matrix descriptor (PTX ISA, "Matrix descriptor") of `address`, with the other fields given as `bits`. The
        address is masked to 18 bits, since bits 24 and up of a shared address are the CTA's rank."""
        low = self.e.ins(f"zext i32 {((address & 0x3FFFF) >> 4).text} to i64", int64)
        return self.e.ins(f"or i64 {low.text}, {bits - (bits >> 63 << 64)}", int64)
