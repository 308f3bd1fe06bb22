"""Elementary functions, with their accuracy in float32 ulp, and fast forms that use the hardware's approximations.

16-bit floats are computed in float32 and rounded once. float64 uses libdevice.
"""

from __future__ import annotations

import math

import numpy as np

from ...dtypes import bool_, dtype_of, float32, float64, int32
from ...ir.builder import flag
from ...ir.builtin import builtin
from ...ir.op import Op
from ..tiles.casts import cast_array
from ..tiles.elementwise import elementwise
from .promotion import float_operand

FUNCTIONS: dict[str, tuple[Op, Op | None]] = {}  # {name: (accurate op, fast op or None)}


def _through_float32(exact):
    """Wrap the emitter `exact` of float32 and float64, so that it computes 16-bit floats in float32."""
    def emit(e, dtype, *values):
        if dtype.bits == 64:
            return exact(e, dtype, *values)
        return e.cast(exact(e, float32, *(e.f32(v) for v in values)), dtype)
    return emit


def _sim(function):
    """Simulate a function by computing it in float64 and rounding to float32,
    which is at least as accurate as the GPU's result.

    16-bit results are rounded once more.
    """
    def run(*arrays):
        if arrays[0].dtype.itemsize < 8:
            return np.asarray(function(*(a.astype(np.float64) for a in arrays))).astype(np.float32)
        return function(*arrays)
    return run


def _sim_exact(function):
    """Simulate a function that is exact, or composed of float32 operations, in float32 (float64 for float64)."""
    def run(*arrays):
        if arrays[0].dtype.itemsize < 4:
            return function(*(a.astype(np.float32) for a in arrays))
        return function(*arrays)
    return run


def _libdevice(name: str):
    """Emit libdevice's function, ``__nv_<name>f`` for float32 and ``__nv_<name>`` for float64."""
    def emit(e, dtype, *values):
        function = f"__nv_{name}" + ("f" if dtype.bits == 32 else "")
        return e.libdevice(function, dtype, *values)
    return emit


def _approx(form: str):
    """Emit one instruction of the special function unit (PTX ISA, "Floating Point Instructions", .approx forms)."""
    def emit(e, dtype, x):
        return e.cast(e.approx(form, e.f32(x)), dtype)
    return emit


# one MUFU; without .ftz, the assembler adds three instructions that square 2^(x/2) for subnormals, doubling their error
EX2 = "ex2.approx.ftz"


def exp2_parts(e, x, scale: float, scale_low: float):
    """2 to the power of ``x * (scale + scale_low)`` in float32, in 8 instructions.

    The integer part of the exponent is added to the exponent field, and the rest (at most 1/2, unless the result
    over- or underflows) goes through ex2.approx. Adding 1.5 * 2**23 leaves the rounded integer in the low mantissa
    bits.
    """
    magic = 12582912.0
    def f(v):
        return e.const(v, float32)
    shifted = e.fma(x, f(scale), f(magic))
    shifted = e.ins(f"call float @llvm.minnum.f32(float {shifted.text}, float {f(magic + 127).text})", float32)
    shifted = e.ins(f"call float @llvm.maxnum.f32(float {shifted.text}, float {f(magic - 126).text})", float32)
    whole = e.ins(f"fsub float {shifted.text}, {f(magic).text}", float32)
    rest = e.fma(x, f(scale), e.ins(f"fneg float {whole.text}", float32))
    if scale_low:
        rest = e.fma(x, f(scale_low), rest)
    bits = e.ins(f"bitcast float {shifted.text} to i32", int32)
    power = e.ins(f"add i32 {e.ins(f'shl i32 {bits.text}, 23', int32).text}, {127 << 23}", int32)
    power = e.ins(f"bitcast i32 {power.text} to float", float32)
    return e.ins(f"fmul float {e.approx(EX2, rest).text}, {power.text}", float32)


LOG2_E = 1.4426950216293335   # float32(log2 e), and below log2 e minus it
LOG2_E_LOW = 1.9259629911266175e-08


def _emit_exp(e, dtype, x):
    if dtype.bits == 64:
        return e.libdevice("__nv_exp", dtype, x)
    return exp2_parts(e, x, LOG2_E, LOG2_E_LOW)


def _emit_exp_fast(e, dtype, x):
    scaled = e.ins(f"fmul contract float {e.f32(x).text}, {e.const(LOG2_E, float32).text}", float32)
    return e.cast(e.approx(EX2, scaled), dtype)


def _emit_exp2(e, dtype, x):
    """2 to the power of x. ex2.approx.ftz flushes subnormal results to 0, so for x < -126 it is given x + 64,
    and scaled by 2^-64."""
    if dtype.bits == 64:
        return e.libdevice("__nv_exp2", dtype, x)
    small = e.ins(f"fcmp olt float {x.text}, {e.const(-126.0, float32).text}", bool_)
    # exact, unless the result is 0
    shifted = e.select(small, e.ins(f"fadd float {x.text}, {e.const(64.0, float32).text}", float32), x)
    power = e.approx(EX2, shifted)
    return e.select(small, e.ins(f"fmul float {power.text}, {e.const(2.0**-64, float32).text}", float32), power)


def _emit_sqrt(e, dtype, x):
    return e.ins(f"call {dtype.llvm} @llvm.sqrt.{e.suffix(dtype)}({dtype.llvm} {x.text})", dtype)


def _rounding(name: str):
    def emit(e, dtype, x):
        return e.ins(f"call {dtype.llvm} @llvm.{name}.{e.suffix(dtype)}({dtype.llvm} {x.text})", dtype)
    return emit


def _emit_log_fast(scale: float):
    def emit(e, dtype, x):
        log2 = e.approx("lg2", e.f32(x))
        return e.cast(e.ins(f"fmul contract float {log2.text}, {e.const(scale, float32).text}", float32) if scale != 1
                      else log2, dtype)
    return emit


def _erf(x):
    """erf of each element, by the C library, since NumPy has none."""
    flat = np.fromiter(map(math.erf, np.ravel(x).astype(np.float64).tolist()), np.float64, np.size(x))
    return flat.reshape(np.shape(x)).astype(x.dtype)


def _sigmoid(x):
    return (1.0 / (1.0 + np.exp(-x.astype(np.float64)))).astype(x.dtype)


def _emit_sigmoid(e, dtype, x):
    if dtype.bits == 64:
        one = e.const(1.0, dtype)
        power = e.libdevice("__nv_exp", dtype, e.ins(f"fneg double {x.text}", dtype))
        return e.ins(f"fdiv double {one.text}, {e.ins(f'fadd double {one.text}, {power.text}', dtype).text}", dtype)
    power = exp2_parts(e, x, -LOG2_E, -LOG2_E_LOW)
    one = e.const(1.0, float32)
    return e.ins(f"fdiv float {one.text}, {e.ins(f'fadd float {one.text}, {power.text}', float32).text}", float32)


def _emit_sigmoid_fast(e, dtype, x):
    """``0.5 * tanh(x / 2) + 0.5`` with the hardware's tanh (sm_75 and later)."""
    half = e.const(0.5, float32)
    t = e.approx("tanh", e.ins(f"fmul contract float {e.f32(x).text}, {half.text}", float32))
    return e.cast(e.fma(t, half, half), dtype)


def _emit_rsqrt(e, dtype, x):
    if dtype.bits == 64:
        return e.libdevice("__nv_rsqrt", dtype, x)
    return e.approx("rsqrt", x)


_LN2 = 0.6931471805599453
_LOG10_2 = 0.30102999566398120

# name, NumPy function, emitter of the accurate form, its error in float32, emitter of the fast form, its error
_TABLE = (
    ("exp",     np.exp,                     _emit_exp,            "2 ulp",    _emit_exp_fast,
     "2.5 + 1.25 |x| ulp; subnormal results become 0"),
    ("exp2",    np.exp2,                    _emit_exp2,           "2.5 ulp",  _approx(EX2),
     "2.5 ulp; subnormal results become 0"),
    ("expm1",   np.expm1,                   _libdevice("expm1"),  "2 ulp",    None,                    ""),
    ("log",     np.log,                     _libdevice("log"),    "1 ulp",    _emit_log_fast(_LN2),
     "2**-21 absolute in [0.5, 2], else 3 ulp"),
    ("log2",    np.log2,                    _libdevice("log2"),   "2 ulp",    _emit_log_fast(1),
     "2**-22 absolute in [0.5, 2], else 2**-22 relative"),
    ("log10",   np.log10,                   _libdevice("log10"),  "2 ulp",    _emit_log_fast(_LOG10_2),
     "2**-22 absolute in [0.5, 2], else 3 ulp"),
    ("log1p",   np.log1p,                   _libdevice("log1p"),  "2 ulp",    None,                    ""),
    ("sqrt",    np.sqrt,                    _emit_sqrt,           "correctly rounded", _approx("sqrt"), "1 ulp"),
    ("rsqrt",   lambda x: (1 / np.sqrt(x.astype(np.float64))).astype(x.dtype), _emit_rsqrt, "2 ulp", _approx("rsqrt"),
     "2 ulp"),
    ("sin",     np.sin,                     _libdevice("sin"),    "2 ulp",    _approx("sin"),
     "2**-20.5 absolute in [-pi, pi]"),
    ("cos",     np.cos,                     _libdevice("cos"),    "2 ulp",    _approx("cos"),
     "2**-20.5 absolute in [-pi, pi]"),
    ("tan",     np.tan,                     _libdevice("tan"),    "4 ulp",    None,                    ""),
    ("asin",    np.arcsin,                  _libdevice("asin"),   "2 ulp",    None,                    ""),
    ("acos",    np.arccos,                  _libdevice("acos"),   "2 ulp",    None,                    ""),
    ("atan",    np.arctan,                  _libdevice("atan"),   "2 ulp",    None,                    ""),
    ("sinh",    np.sinh,                    _libdevice("sinh"),   "3 ulp",    None,                    ""),
    ("cosh",    np.cosh,                    _libdevice("cosh"),   "2 ulp",    None,                    ""),
    ("tanh",    np.tanh,                    _libdevice("tanh"),   "2 ulp",    _approx("tanh"),
     "2**-11 relative"),
    ("erf",     _erf,                       _libdevice("erf"),    "2 ulp",    None,                    ""),
    ("sigmoid", _sigmoid,                   _emit_sigmoid,        "4 ulp",    _emit_sigmoid_fast,
     "2**-11 absolute"),
    ("floor",   np.floor,                   _rounding("floor"),   "exact",    None,                    ""),
    ("ceil",    np.ceil,                    _rounding("ceil"),    "exact",    None,                    ""),
    ("trunc",   np.trunc,                   _rounding("trunc"),   "exact",    None,                    ""),
    ("round",   np.rint,                    _rounding("rint"),    "exact, ties to even", None,         ""),
)

for _name, _numpy, _emit, _ulp, _fast, _fast_ulp in _TABLE:
    _simulated = _sim_exact(_numpy) if _ulp.startswith("exact") else _sim(_numpy)
    _op = elementwise(_name, f"{_name} of each element. Accuracy in float32: {_ulp}.", _simulated,
                      _through_float32(_emit), ("float",), arity=1)
    _fast_op = _fast and elementwise(f"{_name}_fast", f"{_name} by the hardware's approximation. "
                                                      f"Accuracy in float32: {_fast_ulp}.",
                                     _sim(_numpy), _fast, ("float",), arity=1)
    FUNCTIONS[_name] = (_op, _fast_op)


def _function(name: str, ulp: str, fast_ulp: str):
    def call(g, x, *, fast=None):
        accurate, quick = FUNCTIONS[name]
        if fast is not None and flag(g, "fast", fast) and quick is None:
            raise g.error(f"{name} has no fast form")
        x = float_operand(g, x)
        quick = quick if x.type.dtype.bits < 64 else None
        return g.call(quick if quick is not None and (fast or (fast is None and g.launch.fast_math)) else accurate, x)

    call.__name__ = name
    quick = ("\n\n    With ``fast=True`` (or the launch option fast_math): the hardware's approximation, "
             f"accuracy {fast_ulp}." if fast_ulp else "")
    call.__doc__ = (f"{name} of each element of a float tile or scalar; integers become float32. "
                    f"Accuracy in float32: {ulp}.{quick}")
    return builtin(call)


BUILTINS = {name: _function(name, ulp, fast_ulp) for name, _, _, ulp, _, fast_ulp in _TABLE}


def _emit_fma(e, dtype, x, y, z):
    return e.ins(
        f"call {dtype.llvm} @llvm.fma.{e.suffix(dtype)}({', '.join(f'{dtype.llvm} {v.text}' for v in (x, y, z))})",
        dtype)


def _sim_fma(x, y, z):
    """``x * y + z`` with a single rounding.

    Products of 24-bit mantissas are exact in float64. Their sum with `z` is rounded to odd, so that only the last
    rounding counts. For float64 itself see S. Boldo, G. Melquiond, "Emulation of a FMA and correctly rounded sums".
    """
    if x.dtype.itemsize < 8:
        return cast_array(_sum_to_odd(x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)), float64,
                          dtype_of(x.dtype))
    high, low = _exact_product(x, y)
    top, rest = _exact_sum(z, low)
    total, below = _exact_sum(high, top)
    result = total + _sum_to_odd(rest, below)
    return np.where(np.isfinite(result), result, x * y + z)


def _exact_sum(a, b):
    """The sum of two float64 numbers and its rounding error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _exact_product(a, b):
    """The product of two float64 numbers and its rounding error (T. J. Dekker)."""
    (ah, al), (bh, bl) = ((h, v - h) for v in (a, b) for h in [v * 134217729.0 - (v * 134217729.0 - v)])
    product = a * b
    return product, ((ah * bh - product) + ah * bl + al * bh) + al * bl


def _sum_to_odd(a, c):
    """The sum of two float64 numbers, rounded to odd."""
    total, error = _exact_sum(a, c)
    bits = total.view(np.int64)
    adjust = (error != 0) & np.isfinite(total) & ((bits & 1) == 0)
    return np.where(adjust, bits + np.where((error > 0) == (total > 0), 1, -1), bits).view(np.float64)


def _emit_floored(which: str):
    """Emit floor division or its remainder by fmod, which is exact, in the same steps as NumPy (npy_divmod)."""
    def emit(e, dtype, x, y):
        t, zero, one = dtype.llvm, e.const(0.0, dtype), e.const(1.0, dtype)
        def test(word, a, b):
            return e.ins(f"fcmp {word} {t} {a.text}, {b.text}", bool_)
        def sign_of(a, b):
            return e.ins(f"call {t} @llvm.copysign.{e.suffix(dtype)}({a.typed}, {b.typed})", dtype)
        rest = e.libdevice("__nv_fmod" + ("f" if dtype.bits == 32 else ""), dtype, x, y)
        differ = e.ins(f"xor i1 {test('olt', rest, zero).text}, {test('olt', y, zero).text}", bool_)
        crossed = e.all_of([test("une", rest, zero), differ])
        if which == "remainder":
            moved = e.select(crossed, e.ins(f"fadd {t} {rest.text}, {y.text}", dtype), rest)
            return e.select(test("oeq", moved, zero), sign_of(zero, y), moved)
        quotient = e.ins(f"fdiv {t} {e.ins(f'fsub {t} {x.text}, {rest.text}', dtype).text}, {y.text}", dtype)
        quotient = e.select(crossed, e.ins(f"fsub {t} {quotient.text}, {one.text}", dtype), quotient)
        # an integer but for rounding errors
        whole = e.ins(f"call {t} @llvm.rint.{e.suffix(dtype)}({t} {quotient.text})", dtype)
        plain = e.ins(f"fdiv {t} {x.text}, {y.text}", dtype)
        whole = e.select(test("oeq", quotient, zero), sign_of(zero, plain), whole)
        return e.select(test("oeq", y, zero), plain, whole)
    return emit


floor_divide = elementwise("floor_divide", "``x // y`` of floats, rounded towards minus infinity as in NumPy.",
                           _sim_exact(np.floor_divide), _through_float32(_emit_floored("floor_divide")), ("float",))
remainder = elementwise("remainder", "``x % y`` of floats, exact, with the sign of `y` as in NumPy.",
                        _sim_exact(np.remainder), _through_float32(_emit_floored("remainder")), ("float",))
power = elementwise("power", "``x ** y`` of floats. Accuracy in float32: 4 ulp.", _sim(np.power),
                    _through_float32(_libdevice("pow")), ("float",))

fma = elementwise("fma", "``x * y + z`` of floats with a single rounding.", _sim_fma, _emit_fma, ("float",), arity=3)


def _emit_isnan(e, dtype, x):
    return e.ins(f"fcmp uno {dtype.llvm} {x.text}, {x.text}", bool_)


isnan = elementwise("isnan", "Whether each element is NaN.", np.isnan, _emit_isnan, ("float",), arity=1, result=bool_)
