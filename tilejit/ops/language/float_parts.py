"""Functions of the sign, the exponent and the bits of floats: ``copysign``, ``nextafter``, ``frexp``, ``ldexp``.
They are exact."""

from __future__ import annotations

import numpy as np

from ...dtypes import bool_, float32, int16, int32, int64, uint32, uint64
from ...ir.builder import Builder, describe, type_of
from ...ir.builtin import builtin
from ...ir.graph import Operand
from ...ir.op import op
from ...ir.op_traits import Traits
from ..tiles import elementwise as ew
from ..tiles.elementwise import elementwise, map_registers, result_type
from .math import float_operands
from .promotion import broadcast_shape, convert, float_operand, match_operands, number, spread

_WORDS = {16: int16, 32: int32, 64: int64}
_NAN = {"half": 0x7E00, "bfloat": 0x7FC0, "float": 0x7FC00000, "double": 0x7FF8000000000000}


# -- copysign, nextafter -----------------------------------------------------------------------------------------------

def _emit_copysign(e, dtype, x, y):
    return e.ins(f"call {dtype.llvm} @llvm.copysign.{e.suffix(dtype)}({x.typed_text}, {y.typed_text})", dtype)


def _emit_nextafter(e, dtype, x, y):
    """Step the bits, as an integer, away from 0 or towards it. From 0, the next number is the least subnormal with the
    sign of `y`."""
    word = _WORDS[dtype.bits]
    bits, towards = (e.ins(f"bitcast {v.typed_text} to {word.llvm}", word) for v in (x, y))
    wide = float32 if dtype.bits == 16 else dtype  # sm_80 does not compare bfloat16
    x, y = (e.cast(v, wide) for v in (x, y))

    def test(word, a, b):
        return e.ins(f"fcmp {word} {a.typed_text}, {b.text}", bool_)

    zero = e.const(0.0, wide)
    inwards = e.ins(f"xor i1 {test('olt', x, y).text}, {test('ogt', x, zero).text}", bool_)
    step = e.select(inwards, e.const(-1, word), e.const(1, word))
    moved = e.ins(f"add {bits.typed_text}, {step.text}", word)
    sign = e.ins(f"and {towards.typed_text}, {-1 << dtype.bits - 1}", word)
    least = e.ins(f"or {sign.typed_text}, 1", word)
    result = e.select(test("oeq", x, zero), least, moved)
    result = e.select(test("oeq", x, y), towards, result)
    result = e.select(test("uno", x, y), e.const(_NAN[dtype.llvm], word), result)
    return e.ins(f"bitcast {result.typed_text} to {dtype.llvm}", dtype)


copysign_ = elementwise("copysign", "`x` with the sign of `y`.", np.copysign, _emit_copysign, ("float",))
nextafter_ = elementwise("nextafter", "The number of the dtype next to `x` towards `y`.", np.nextafter, _emit_nextafter,
                         ("float",))


@builtin
def copysign(g: Builder, x, y):
    """`x` with the sign of `y`, also of zeros and NaN. The operands are promoted to one float dtype and broadcast;
    integers become float32."""
    return g.call(copysign_, *float_operands(g, x, y))


@builtin
def nextafter(g: Builder, x, y):
    """The number next to `x` towards `y`, in the float dtype to which the operands are promoted; integers become
    float32. `y` if they are equal, NaN if either is."""
    return g.call(nextafter_, *float_operands(g, x, y))


# -- frexp, ldexp ------------------------------------------------------------------------------------------------------

def _emit_frexp(e, dtype, x):
    """The bits of the mantissa and the exponent. Subnormals are first scaled by 2**64."""
    wide = float32 if dtype.bits == 16 else dtype
    x = e.cast(x, wide)
    t, word = wide.llvm, _WORDS[wide.bits]
    digits, bias = (23, 126) if word is int32 else (52, 1022)
    largest = 2 * bias + 3  # the exponent field of infinities and NaN

    def field(v):
        bits = e.ins(f"bitcast {v.typed_text} to {word.llvm}", word)
        shifted = e.ins(f"lshr {bits.typed_text}, {digits}", word)
        return bits, e.ins(f"and {shifted.typed_text}, {largest}", word)

    _, exponent = field(x)
    tiny = e.ins(f"icmp eq {exponent.typed_text}, 0", bool_)
    scaled = e.ins(f"fmul {x.typed_text}, {e.const(2.0**64, wide).text}", wide)
    bits, exponent = field(e.select(tiny, scaled, x))
    below = e.select(tiny, e.const(bias + 64, word), e.const(bias, word))
    kept = e.ins(f"and {bits.typed_text}, {-1 << word.bits - 1 | (1 << digits) - 1}", word)
    mantissa = e.ins(f"or {kept.typed_text}, {bias << digits}", word)
    mantissa = e.ins(f"bitcast {mantissa.typed_text} to {t}", wide)
    zero = e.ins(f"fcmp oeq {x.typed_text}, {e.const(0.0, wide).text}", bool_)
    special = e.ins(f"icmp eq {exponent.typed_text}, {largest}", bool_)
    special = e.ins(f"or {special.typed_text}, {zero.text}", bool_)
    exponent = e.ins(f"sub {exponent.typed_text}, {below.text}", word)
    return (e.cast(e.select(special, x, mantissa), dtype),
            e.cast(e.select(special, e.const(0, word), exponent), int32))


def _sim_mantissa(x):
    return np.frexp(x.astype(np.float64))[0]


def _sim_exponent(x):
    x = x.astype(np.float64)
    return np.where(np.isfinite(x), np.frexp(x)[1], 0)


mantissa_ = elementwise("frexp_mantissa", "The mantissa of each element, from 1/2 to 1 in size.", _sim_mantissa,
                        lambda e, dtype, x: _emit_frexp(e, dtype, x)[0], ("float",), arity=1)
exponent_ = elementwise("frexp_exponent", "The exponent of 2 that belongs to the mantissa.", _sim_exponent,
                        lambda e, dtype, x: _emit_frexp(e, dtype, x)[1], ("float",), arity=1, result=int32)


@builtin
def frexp(g: Builder, x):
    """The pair ``(mantissa, exponent)`` with ``x == mantissa * 2**exponent``: the mantissa has the dtype of `x`, and is
    from 1/2 to below 1 in size, and the exponent is an int32. Of 0, infinities and NaN, ``(x, 0)``. Integers become
    float32."""
    x = float_operand(g, x)
    return g.call(mantissa_, x), g.call(exponent_, x)


@op("pure", traits=Traits(elementwise=True))
def ldexp_(x, n):
    """``x * 2**n``, rounded once."""


@ldexp_.infer
def _(g, x, n):
    if type_of(n).dtype != int32:
        raise g.error(f"an int32 exponent is needed, not {type_of(n)}")
    return result_type(g, type_of(x).dtype, x, n)


@ldexp_.simulate
def _(m, call, x, n):
    dtype = type_of(call.args[0]).dtype
    product = np.ldexp(x.astype(np.float64), n)
    return (product if dtype.bits == 64 else product.astype(np.float32)).astype(dtype.np)


def _emit_ldexp(e, dtype, x, n):
    """By libdevice. For 16-bit floats, float32 has all bits of the result that are not rounded to 0."""
    if dtype.bits == 64:
        return e.libdevice("__nv_ldexp", dtype, x, n)
    return e.cast(e.libdevice("__nv_ldexpf", float32, e.f32(x), n), dtype)


@ldexp_.emit
def _(e, call, x, n):
    return map_registers(_emit_ldexp, e, type_of(call.args[0]).dtype, (x, n))


_BEYOND = 4096  # times 2 to this power, every float64 overflows


def _limit_exponents(g: Builder, n) -> Operand:
    """The exponents `n` as int32, those of wider dtypes limited first."""
    if isinstance(n, int):
        return convert(g, max(-_BEYOND, min(n, _BEYOND)), int32)
    dtype = number(g, n).dtype
    if dtype in (uint32, int64, uint64):
        n = g.call(ew.minimum, *match_operands(g, n, _BEYOND, dtype=dtype))
    if dtype == int64:
        n = g.call(ew.maximum, *match_operands(g, n, -_BEYOND, dtype=dtype))
    return convert(g, n, int32)


@builtin
def ldexp(g: Builder, x, n):
    """``x * 2**n`` with integers `n`, rounded once, also if the result is subnormal. The operands are broadcast; an
    integer `x` becomes float32."""
    if number(g, n).dtype.kind not in ("int", "uint"):
        raise g.error(f"the exponent of ldexp is an integer, not {describe(n)}")
    x, n = float_operand(g, x), _limit_exponents(g, n)
    shape = broadcast_shape(g, number(g, x), number(g, n))
    return g.call(ldexp_, spread(g, x, shape), spread(g, n, shape))
