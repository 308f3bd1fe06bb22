"""Integer division, ``x // y`` and ``x % y``: rounded down as in Python, and defined for every divisor."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...dtypes import DType, bool_, integer_range
from ...ir.builder import type_of
from ...ir.graph import Const
from ...ir.op import Op
from ...types import Tile
from .elementwise import INTEGER, elementwise, map_registers


@dataclass(frozen=True)
class Division:
    """Which cases a division has to handle.

    `natural`: both operands are non-negative, so that the unsigned instruction can be used. `by_zero`: the divisor
    may be 0. `wraps`: the least integer may be divided by -1, which overflows.
    """

    natural: bool
    by_zero: bool
    wraps: bool


def _division(context, call) -> Division | None:
    """The plan of a division of scalars, from the operands' value ranges.

    None for tiles, and if the divisor is a constant and an operand may be negative: the emitter then decides by dtype
    and divisor alone (`_general_division`).
    """
    x, y = call.args
    if isinstance(type_of(x), Tile):
        return None
    (low, high), least = context.bounds(y, wrapping=True), context.bounds(x, wrapping=True)[0]
    dtype = type_of(x).dtype
    natural = dtype.kind == "uint" or low > 0 and least >= 0
    wraps = low <= -1 <= high and least == integer_range(dtype)[0]
    return None if isinstance(y, Const) and not natural else Division(natural, low <= 0 <= high, wraps)


def _general_division(dtype: DType, y) -> Division:
    """The cases of a division by `y` if nothing is known of the operands but their dtype and, if it is a
    constant, the divisor."""
    by = int(y.text) if y.text.lstrip("-").isdigit() else None
    return Division(dtype.kind == "uint", by in (None, 0), dtype.kind == "int" and by in (None, -1))


def _divides(op: Op, name: str, signed, by_none) -> None:
    """Register the rules of a division. `signed` emits the plain signed one.

    LLVM leaves division by 0, and of the least integer by -1, undefined. Where they are possible, the division is
    done with a divisor of 1 instead, and `by_none` gives the result for divisors of 0 and -1; it is that of
    `_int_division`.
    """
    def emit_element(e, dtype, x, y, known: Division | None = None):
        known = known or _general_division(dtype, y)
        if known.by_zero or known.wraps:
            if known.wraps:  # -1 or 0
                shifted = e.ins(f"add {dtype.llvm} {y.text}, 1", dtype)
                none = e.ins(f"icmp ult {dtype.llvm} {shifted.text}, 2", bool_)
            else:
                none = e.ins(f"icmp eq {dtype.llvm} {y.text}, 0", bool_)
            known = replace(known, by_zero=False, wraps=False)
            return e.select(none, by_none(e, dtype, x, y),
                            emit_element(e, dtype, x, e.select(none, e.const(1, dtype), y), known))
        if known.natural:
            return e.ins(f"u{name} {dtype.llvm} {x.text}, {y.text}", dtype)
        return signed(e, dtype, x, y)

    @op.emit
    def _(e, call, x, y):
        known, dtype = call.choice and call.choice.plan, type_of(call.args[0]).dtype
        return map_registers(lambda e, dtype, x, y: emit_element(e, dtype, x, y, known), e, dtype, (x, y))

    op.rules.plan, op.rules.element = _division, emit_element


def _emit_floordiv(e, dtype, x, y):
    quotient = e.ins(f"sdiv {dtype.llvm} {x.text}, {y.text}", dtype)
    remainder = e.ins(f"sub {dtype.llvm} {x.text}, {e.ins(f'mul {dtype.llvm} {quotient.text}, {y.text}', dtype).text}",
                      dtype)
    correction = e.ins(f"sext i1 {_rounds_up(e, dtype, remainder, y).text} to {dtype.llvm}", dtype)
    return e.ins(f"add {dtype.llvm} {quotient.text}, {correction.text}", dtype)


def _rounds_up(e, dtype, remainder, y):
    """Whether truncating division rounded up where Python rounds down: the remainder is not 0 and its sign differs
    from the divisor's."""
    signs = e.ins(f"xor {dtype.llvm} {remainder.text}, {y.text}", dtype)
    differ = e.ins(f"icmp slt {dtype.llvm} {signs.text}, 0", bool_)
    nonzero = e.ins(f"icmp ne {dtype.llvm} {remainder.text}, 0", bool_)
    return e.ins(f"and i1 {differ.text}, {nonzero.text}", bool_)


def _emit_mod(e, dtype, x, y):
    remainder = e.ins(f"srem {dtype.llvm} {x.text}, {y.text}", dtype)
    fix = e.ins(f"select i1 {_rounds_up(e, dtype, remainder, y).text}, {dtype.llvm} {y.text}, {dtype.llvm} 0", dtype)
    return e.ins(f"add {dtype.llvm} {remainder.text}, {fix.text}", dtype)


def _none_of(e, dtype, x, y):
    """``x // y`` for y of 0 and -1."""
    return e.ins(f"sub {dtype.llvm} 0, {e.ins(f'and {dtype.llvm} {x.text}, {y.text}', dtype).text}", dtype)


def _rest_of_none(e, dtype, x, y):
    """``x % y`` for y of 0 and -1."""
    return e.ins(f"and {dtype.llvm} {x.text}, {e.ins(f'xor {dtype.llvm} {y.text}, -1', dtype).text}", dtype)


def _int_division(function):
    """NumPy's floor_divide or remainder, but by 0 the quotient is 0 and the remainder `x`. The least integer by -1 is
    itself, as in NumPy."""
    def divide(x, y):
        zero = y == 0
        return np.where(zero, np.zeros_like(x) if function is np.floor_divide else x,
                        function(x, np.where(zero, np.ones_like(y), y)))
    return divide


floordiv = elementwise("floordiv", "``x // y`` of integers, rounded towards minus infinity as in Python; "
                                   "0 where `y` is 0. Overflow wraps.",
                       _int_division(np.floor_divide), _emit_floordiv, INTEGER)
mod = elementwise("mod", "``x % y`` of integers; the sign is that of `y`, as in Python. `x` where `y` is 0.",
                  _int_division(np.remainder), _emit_mod, INTEGER)
_divides(floordiv, "div", _emit_floordiv, _none_of)
_divides(mod, "rem", _emit_mod, _rest_of_none)


@floordiv.linear
def _(g, call):
    by = g.linear_form(call.args[1])
    n = by.get(None, 0)
    return g.quotient(call.result, g.linear_form(call.args[0]), n) if set(by) <= {None} and n > 0 else None
