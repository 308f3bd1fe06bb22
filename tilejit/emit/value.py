"""Emitted values: LLVM operand text with a dtype.

Python's operators on integer values emit instructions, so index arithmetic is written once for ints and emitted
values.
"""

from __future__ import annotations

from ..dtypes import DType, bool_, int16, int32, int64

ZEROS = frozenset(("0", "0xH0000", "0xR0000"))  # the spellings of zero of 8 and 16 bits


class V:
    """An LLVM value of the thread. Arithmetic with neutral and absorbing ints folds; ``//`` and ``%`` are unsigned,
    since indices are. `half_of` is the 32-bit word whose upper half is this 16-bit value, if there is one."""

    __slots__ = ("e", "text", "dtype", "half_of")

    def __init__(self, e, text: str, dtype: DType, half_of: V | None = None):
        self.e, self.text, self.dtype, self.half_of = e, text, dtype, half_of

    def __repr__(self) -> str:
        return f"{self.dtype.llvm} {self.text}"

    @property
    def typed_text(self) -> str:
        return f"{self.dtype.llvm} {self.text}"

    def with_dtype(self, dtype: DType) -> V:
        """The same register with another dtype of the same LLVM type."""
        return V(self.e, self.text, dtype)

    def _in_common_dtype(self, other) -> tuple[str, str, DType]:
        """Both operands' texts, extended to the wider of the two types, and that type."""
        if isinstance(other, int):
            dtype = self.dtype if -2**31 <= other < 2**31 else int64
            return self.e.widen(self, dtype).text, str(other), dtype
        dtype = self.dtype if self.dtype.bits >= other.dtype.bits else other.dtype
        return self.e.widen(self, dtype).text, self.e.widen(other, dtype).text, dtype

    def _ins(self, instruction: str, other, swap: bool = False) -> V:
        a, b, dtype = self._in_common_dtype(other)
        a, b = (b, a) if swap else (a, b)
        return self.e.ins(f"{instruction} {dtype.llvm} {a}, {b}", int64 if dtype.bits == 64 else int32)

    def __add__(self, other):
        return self if isinstance(other, int) and other == 0 else self._ins("add", other)

    __radd__ = __add__

    def __sub__(self, other):
        return self if isinstance(other, int) and other == 0 else self._ins("sub", other)

    def __rsub__(self, other):
        return self._ins("sub", other, swap=True)

    def __mul__(self, other):
        if isinstance(other, int) and other in (0, 1):
            return self if other else 0
        return self._ins("mul", other)

    __rmul__ = __mul__

    def __floordiv__(self, other):
        return self if isinstance(other, int) and other == 1 else self._ins("udiv", other)

    def __mod__(self, other):
        return 0 if isinstance(other, int) and other == 1 else self._ins("urem", other)

    def __and__(self, other):
        return 0 if isinstance(other, int) and other == 0 else self._ins("and", other)

    __rand__ = __and__

    def __or__(self, other):
        return self if isinstance(other, int) and other == 0 else self._ins("or", other)

    __ror__ = __or__

    def __xor__(self, other):
        return self if isinstance(other, int) and other == 0 else self._ins("xor", other)

    __rxor__ = __xor__

    def __lshift__(self, other):
        return self if isinstance(other, int) and other == 0 else self._ins("shl", other)

    def __rshift__(self, other):
        return self if isinstance(other, int) and other == 0 else self._ins("lshr", other)

    def equals(self, other) -> V:
        a, b, dtype = self._in_common_dtype(other)
        return self.e.ins(f"icmp eq {dtype.llvm} {a}, {b}", bool_)

    def is_below(self, other) -> V:
        """``0 <= self < other`` in one unsigned comparison."""
        a, b, dtype = self._in_common_dtype(other)
        return self.e.ins(f"icmp ult {dtype.llvm} {a}, {b}", bool_)


class Word:
    """A register that holds `per` elements side by side. Instructions that extract an element are inserted at the
    word's definition, and only for elements used on their own: most words go from a load, a conversion or a loop
    straight to something that takes whole words."""

    __slots__ = ("value", "storage", "per", "lines", "place", "mark", "vector")

    def __init__(self, value: V, storage: str, per: int):
        e = value.e
        self.value, self.storage, self.per, self.vector = value, storage, per, ""
        self.lines, self.place, self.mark = e.lines, len(e.lines), e.debug.mark(e.loc)
        e.lines.append("")

    def parts(self, dtype: DType) -> list[V]:
        """The elements, from the lowest bits up."""
        return [Part(self, i, dtype) for i in range(self.per)]

    def taken_out(self, index: int) -> str:
        """The SSA name of an element; inserts its extraction."""
        kind = f"<{self.per} x {self.storage}>"
        if not self.vector:
            self.vector = self.value.e.name()
            self.lines[self.place] = f"  {self.vector} = bitcast {self.value.typed_text} to {kind}{self.mark}"
        name = self.value.e.name()
        self.lines[self.place] += f"\n  {name} = extractelement {kind} {self.vector}, i32 {index}{self.mark}"
        return name


class Part(V):
    """One element of a `Word`, extracted when its text is first needed."""

    __slots__ = ("word", "index", "_text")

    def __init__(self, word: Word, index: int, dtype: DType):
        self.e, self.dtype, self.half_of = word.value.e, dtype, word.value if (word.per, index) == (2, 1) else None
        self.word, self.index, self._text = word, index, ""

    @property
    def text(self) -> str:  # type: ignore[override]  # extracted when it is first read, and never assigned
        if not self._text:
            self._text = self.word.taken_out(self.index)
        return self._text

    def with_dtype(self, dtype: DType) -> V:
        return Part(self.word, self.index, dtype)


def widening_op(dtype: DType) -> str:
    """The LLVM instruction that widens integers of a dtype."""
    return "sext" if dtype.kind == "int" else "zext"


def word_of(values: list[V], unit: DType) -> V | None:
    """The word of dtype `unit` that consists of exactly these elements in this order, if there is one: the `Word`
    that they are the parts of, two words of 16 bits put together, or 0 if all are zero."""
    if not any(isinstance(v, Part) for v in values):
        return V(values[0].e, "0", unit) if unit.kind == "int" and all(v.text in ZEROS for v in values) else None
    if unit == int32 and len(values) == 4 and all(isinstance(v, Part) and v.word.per == 2 for v in values):
        halves = [word_of(values[i:i + 2], int16) for i in (0, 2)]
        return None if None in halves else values[0].e.asm("mov.b32 $0, {$1, $2};", [int32], halves, pure=True)[0]
    word = values[0].word if isinstance(values[0], Part) else None
    if word is None or len(values) != word.per or word.value.dtype.llvm != unit.llvm:
        return None
    if not all(isinstance(v, Part) and v.word is word and v.index == i for i, v in enumerate(values)):
        return None
    return word.value
