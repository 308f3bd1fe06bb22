"""Python's operators on kernel values: the ops that they are translated to."""

from __future__ import annotations

from ...dtypes import DType, bool_, float32, int32, int64, promote, uint64
from ...ir.builder import Builder, describe, number_type, weak_dtype
from ...ir.graph import Const, Operand, Value
from ...types import Scalar
from ..tiles import casts, division, elementwise as ew
from .math import floor_divide, power, remainder
from .promotion import (
    as_condition,
    broadcast_shape,
    coerce,
    common_dtype,
    convert,
    fits,
    match_operands,
    number,
    spread,
)

_BINARY = {"+": ew.add, "-": ew.sub, "*": ew.mul, "//": division.floordiv, "%": division.mod, "&": ew.bit_and,
           "|": ew.bit_or, "^": ew.bit_xor, "<<": ew.shl, ">>": ew.shr}
_COMPARE = {"==": ew.eq, "!=": ew.ne, "<": ew.lt, "<=": ew.le, ">": ew.gt, ">=": ew.ge}


def arithmetic_dtype(dtype: DType, symbol: str) -> DType:
    """The dtype in which an operator computes: bools become int32 (except for bitwise operators),
    float8 becomes float32."""
    if dtype.kind == "bool" and symbol not in ("&", "|", "^"):
        return int32
    return float32 if dtype.is_float and dtype.bits == 8 else dtype


def binary(g: Builder, symbol: str, a, b) -> Operand:
    """``a symbol b``."""
    if symbol == "@":
        raise g.error("matrix products are written tile.dot(a, b)")
    dtype = arithmetic_dtype(common_dtype(g, a, b), symbol)
    if symbol == "/":
        return g.call(ew.div, *match_operands(g, a, b, dtype=dtype if dtype.is_float else float32))
    if symbol == "**":
        return _power(g, a, b, dtype)
    if symbol in ("&", "|", "^", "<<", ">>") and dtype.is_float:
        raise g.error(f"{symbol} needs integers or bools, not {describe(a)} and {describe(b)}")
    if dtype.is_float and symbol in ("//", "%"):
        return g.call(floor_divide if symbol == "//" else remainder, *match_operands(g, a, b, dtype=dtype))
    return g.call(_BINARY[symbol], *match_operands(g, a, b, dtype=dtype))


def _power(g: Builder, a, b, dtype: DType) -> Operand:
    if isinstance(b, int) and 0 <= b <= 64:
        x = convert(g, a, dtype)
        result = None
        for bit in bin(b)[2:]:
            result = result if result is None else g.call(ew.mul, result, result)
            if bit == "1":
                result = x if result is None else g.call(ew.mul, result, x)
        return result if result is not None else coerce(g, 1, number_type(x))
    if dtype.is_int:
        raise g.error("an integer power needs a constant exponent of 0 to 64; for others, cast to a float"
                      + g.declared_constant(b))
    return g.call(power, *match_operands(g, a, b, dtype=dtype))


def unary(g: Builder, symbol: str, x) -> Operand:
    """``-x``, ``+x``, ``~x`` and ``not x``."""
    t = number(g, x)
    if symbol == "not":
        return g.call(ew.bit_not, as_condition(g, x))
    if symbol == "~":
        if t.dtype.is_float:
            raise g.error(f"~ needs integers or bools, not {describe(x)}")
        return g.call(ew.bit_not, x)
    dtype = arithmetic_dtype(t.dtype, symbol)
    return convert(g, x, dtype) if symbol == "+" else g.call(ew.neg, convert(g, x, dtype))


def compare(g: Builder, symbol: str, a, b) -> Value:
    """``a symbol b``, bools of the broadcast shape. Integers of different dtypes compare by value, without wrapping."""
    dtype = common_dtype(g, a, b)
    for x, other in ((a, b), (b, a)):
        t = number(g, x)
        if isinstance(t, Scalar) and t.weak and isinstance(x, Value) and t.dtype.is_int and dtype.is_int:
            dtype = promote(dtype, t.dtype)
        is_number = isinstance(x, int) and not isinstance(x, bool)
        if is_number and isinstance(other, Value) and dtype.is_int and not fits(x, dtype):
            dtype = promote(dtype, weak_dtype(x))
    signed = [number(g, x).dtype.kind == "int" for x in (a, b)]
    if dtype == int64 and signed[0] != signed[1] and uint64 in (number(g, a).dtype, number(g, b).dtype):
        return _compare_signs(g, symbol, a, b, signed[0])
    return g.call(_COMPARE[symbol], *match_operands(g, a, b, dtype=arithmetic_dtype(dtype, "&")))


def _compare_signs(g: Builder, symbol: str, a, b, left: bool) -> Value:
    """Compare a signed integer (`a` if `left`, otherwise `b`) with a uint64: a negative one is less,
    others compare as uint64."""
    shape = broadcast_shape(g, number(g, a), number(g, b))
    x, y = (spread(g, convert(g, v, int64 if s else uint64), shape) for v, s in ((a, left), (b, not left)))
    negative = g.call(ew.lt, x if left else y, spread(g, Const(0, int64), shape))
    same = g.call(_COMPARE[symbol],
                  *(g.call(casts.cast, v, dtype=uint64) if s else v for v, s in ((x, left), (y, not left))))
    if symbol in ("!=", "<", "<=") if left else symbol in ("!=", ">", ">="):
        return g.call(ew.bit_or, same, negative)
    return g.call(ew.bit_and, same, g.call(ew.bit_not, negative))


def combine_conditions(g: Builder, word: str, a, b) -> Value:
    """``a and b`` or ``a or b`` of run-time values. There is no short circuit: both operands are evaluated."""
    x, y = as_condition(g, a), as_condition(g, b)
    return g.call(ew.bit_and if word == "and" else ew.bit_or, *match_operands(g, x, y, dtype=bool_))
