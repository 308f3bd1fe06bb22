"""Elementary functions, with their accuracy in ulp, and fast forms that use the hardware's approximations.

16-bit floats are computed in float32 and rounded once. float64 uses libdevice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...dtypes import bool_, dtype_of, float32, float64, int32, int64
from ...ir.builder import Builder, flag
from ...ir.builtin import builtin
from ...ir.graph import Operand
from ...ir.op import Op
from ..tiles.casts import cast_array
from ..tiles.elementwise import elementwise
from . import float64_functions as reference
from .promotion import common_dtype, float_operand, match_operands

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


def _rounding_rule(name: str):
    def emit(e, dtype, x):
        return e.ins(f"call {dtype.llvm} @llvm.{name}.{e.suffix(dtype)}({dtype.llvm} {x.text})", dtype)
    return emit


def _emit_log_fast(scale: float):
    def emit(e, dtype, x):
        log = e.approx("lg2", e.f32(x))
        if scale != 1:
            log = e.ins(f"fmul contract float {log.text}, {e.const(scale, float32).text}", float32)
        return e.cast(log, dtype)
    return emit


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

class Function(NamedTuple):
    """An elementary function: what computes it on float64 arrays, its emitter, and its largest error in float32 and
    in float64, those of libdevice from the CUDA C++ Programming Guide, "Mathematical Functions". `fast` emits its
    fast form, of float32."""

    name: str
    numpy: Callable
    emit: Callable
    float32: str
    float64: str
    fast: Callable | None = None
    fast_error: str = ""

    @property
    def accuracy(self) -> str:
        if self.float32 == self.float64:
            return f"Accuracy in float32 and float64: {self.float32}."
        return f"Accuracy in float32: {self.float32}; in float64: {self.float64}."

    def op(self, arity: int) -> Op:
        """Declare the op of the accurate form."""
        simulate = _sim_exact if self.float32.startswith("exact") else _sim
        return elementwise(self.name, f"{self.name} of each element. {self.accuracy}", simulate(self.numpy),
                           _through_float32(self.emit), ("float",), arity=arity)


_TABLE = (
    Function("exp", np.exp, _emit_exp, "2 ulp", "1 ulp",
             _emit_exp_fast, "2.5 + 1.25 |x| ulp; subnormal results become 0"),
    Function("exp2", np.exp2, _emit_exp2, "2.5 ulp", "1 ulp",
             _approx(EX2), "2.5 ulp; subnormal results become 0"),
    Function("exp10", reference.exp10, _libdevice("exp10"), "2 ulp", "1 ulp"),
    Function("expm1", np.expm1, _libdevice("expm1"), "2 ulp", "1 ulp"),
    Function("log", np.log, _libdevice("log"), "1 ulp", "1 ulp",
             _emit_log_fast(_LN2), "2**-21 absolute in [0.5, 2], else 3 ulp"),
    Function("log2", np.log2, _libdevice("log2"), "2 ulp", "1 ulp",
             _emit_log_fast(1), "2**-22 absolute in [0.5, 2], else 2**-22 relative"),
    Function("log10", np.log10, _libdevice("log10"), "2 ulp", "1 ulp",
             _emit_log_fast(_LOG10_2), "2**-22 absolute in [0.5, 2], else 3 ulp"),
    Function("log1p", np.log1p, _libdevice("log1p"), "2 ulp", "1 ulp"),
    Function("sqrt", np.sqrt, _emit_sqrt, "correctly rounded", "correctly rounded",
             _approx("sqrt"), "1 ulp"),
    Function("rsqrt", lambda x: (1 / np.sqrt(x.astype(np.float64))).astype(x.dtype), _emit_rsqrt, "2 ulp", "1 ulp",
             _approx("rsqrt"), "2 ulp"),
    Function("cbrt", np.cbrt, _libdevice("cbrt"), "1 ulp", "1 ulp"),
    Function("sin", np.sin, _libdevice("sin"), "2 ulp", "2 ulp",
             _approx("sin"), "2**-20.5 absolute in [-pi, pi]"),
    Function("cos", np.cos, _libdevice("cos"), "2 ulp", "2 ulp",
             _approx("cos"), "2**-20.5 absolute in [-pi, pi]"),
    Function("tan", np.tan, _libdevice("tan"), "4 ulp", "2 ulp"),
    Function("asin", np.arcsin, _libdevice("asin"), "2 ulp", "2 ulp"),
    Function("acos", np.arccos, _libdevice("acos"), "2 ulp", "2 ulp"),
    Function("atan", np.arctan, _libdevice("atan"), "2 ulp", "2 ulp"),
    Function("sinh", np.sinh, _libdevice("sinh"), "3 ulp", "2 ulp"),
    Function("cosh", np.cosh, _libdevice("cosh"), "2 ulp", "1 ulp"),
    Function("tanh", np.tanh, _libdevice("tanh"), "2 ulp", "1 ulp",
             _approx("tanh"), "2**-11 relative"),
    Function("asinh", np.arcsinh, _libdevice("asinh"), "3 ulp", "3 ulp"),
    Function("acosh", np.arccosh, _libdevice("acosh"), "4 ulp", "3 ulp"),
    Function("atanh", np.arctanh, _libdevice("atanh"), "3 ulp", "2 ulp"),
    Function("erf", reference.erf, _libdevice("erf"), "2 ulp", "2 ulp"),
    Function("erfc", reference.erfc, _libdevice("erfc"), "4 ulp", "5 ulp"),
    Function("erfinv", reference.erfinv, _libdevice("erfinv"), "2 ulp", "5 ulp"),
    Function("lgamma", reference.lgamma, _libdevice("lgamma"),
             "6 ulp, except in [-10.001, -2.264], where it has zeros",
             "4 ulp, except in [-23.0001, -2.2637], where it has zeros"),
    Function("tgamma", reference.tgamma, _libdevice("tgamma"), "5 ulp", "10 ulp"),
    Function("sigmoid", _sigmoid, _emit_sigmoid, "4 ulp", "4 ulp",
             _emit_sigmoid_fast, "2**-11 absolute"),
    Function("floor", np.floor, _rounding_rule("floor"), "exact", "exact"),
    Function("ceil", np.ceil, _rounding_rule("ceil"), "exact", "exact"),
    Function("trunc", np.trunc, _rounding_rule("trunc"), "exact", "exact"),
    Function("round", np.rint, _rounding_rule("rint"), "exact, ties to even", "exact, ties to even"),
)

_PAIRS = (
    Function("atan2", np.arctan2, _libdevice("atan2"), "3 ulp", "2 ulp"),
    Function("hypot", np.hypot, _libdevice("hypot"), "3 ulp", "2 ulp"),
    Function("fmod", np.fmod, _libdevice("fmod"), "exact", "exact"),
)

_ABOUT_PAIRS = {
    "atan2": "The angle of the point (y, x), from -pi to pi.",
    "hypot": "``sqrt(x * x + y * y)``, without overflow of the squares.",
    "fmod": "The remainder of ``x / y`` rounded towards 0, with the sign of `x`.",
}

for _function in _TABLE:
    _fast_op = _function.fast and elementwise(
        f"{_function.name}_fast", f"{_function.name} by the hardware's approximation. "
                                  f"Accuracy in float32: {_function.fast_error}.",
        _sim(_function.numpy), _function.fast, ("float",), arity=1)
    FUNCTIONS[_function.name] = (_function.op(1), _fast_op)
for _function in _PAIRS:
    FUNCTIONS[_function.name] = (_function.op(2), None)


def _unary(function: Function):
    def call(g, x, *, fast=None):
        if fast is not None and flag(g, "fast", fast) and function.fast is None:
            raise g.error(f"{function.name} has no fast form")
        accurate, quick = FUNCTIONS[function.name]
        x = float_operand(g, x)
        quick = quick if x.type.dtype.bits < 64 else None
        return g.call(quick if quick is not None and (fast or (fast is None and g.launch.fast_math)) else accurate, x)

    call.__name__ = function.name
    call.__doc__ = (f"{function.name} of each element of a float tile or scalar; integers become float32. "
                    f"{function.accuracy}")
    if function.fast_error:
        call.__doc__ += ("\n\n    With ``fast=True`` (or the launch option fast_math): the hardware's approximation, "
                         f"accuracy {function.fast_error}.")
    return builtin(call)


def float_operands(g: Builder, *xs) -> list[Operand]:
    """Operands promoted to one float dtype, float32 for integers and float8, and broadcast to one shape."""
    dtype = common_dtype(g, *xs)
    dtype = dtype if dtype.is_float and dtype.bits > 8 else float32
    return match_operands(g, *xs, dtype=dtype)


def _binary(function: Function):
    op = FUNCTIONS[function.name][0]

    def of_numbers(g, x, y):
        return g.call(op, *float_operands(g, x, y))

    def of_point(g, y, x):
        return g.call(op, *float_operands(g, y, x))

    call = of_point if function.name == "atan2" else of_numbers
    call.__name__ = function.name
    call.__doc__ = (f"{_ABOUT_PAIRS[function.name]} The operands are promoted to one float dtype and broadcast; "
                    f"integers become float32. {function.accuracy}")
    return builtin(call)


def _part_of_sincos(which: int):
    """Emit the sine (0) or the cosine (1) by libdevice's sincos, whose range reduction is common to both.
    The other one of the same value finds its result."""
    def emit(e, dtype, x):
        wide = dtype if dtype.bits == 64 else float32
        both = e.memoize_for_region(("sincos", x.typed_text), lambda: _emit_sincos(e, wide, e.cast(x, wide)))
        return e.cast(both[which], dtype)
    return emit


def _emit_sincos(e, dtype, x):
    function, t = "__nv_sincos" + ("f" if dtype.bits == 32 else ""), dtype.llvm
    rooms = [e.entry(("sincos", t, n), lambda: e.ins(f"alloca {t}", int64)).text for n in range(2)]
    e.uses_libdevice = True
    e.declare(f"declare void @{function}({t}, ptr, ptr)")
    e.stmt(f"call void @{function}({x.typed_text}, ptr {rooms[0]}, ptr {rooms[1]})")
    return [e.ins(f"load {t}, ptr {room}", dtype) for room in rooms]


_SINCOS = [elementwise(f"{name}_of_sincos", f"The {name} of each element, computed together with the other of sin and "
                                            "cos. Accuracy in float32 and float64: 2 ulp.",
                       _sim(function), _part_of_sincos(which), ("float",), arity=1)
           for which, (name, function) in enumerate((("sin", np.sin), ("cos", np.cos)))]


@builtin
def sincos(g, x, *, fast=None):
    """The pair ``(tile.sin(x), tile.cos(x))``, computed together; integers become float32. Accuracy in float32 and
    float64: 2 ulp.

    With ``fast=True`` (or the launch option fast_math): the hardware's approximations, accuracy 2**-20.5 absolute in
    [-pi, pi].
    """
    if fast is not None:
        fast = flag(g, "fast", fast)
    x = float_operand(g, x)
    if x.type.dtype.bits < 64 and (g.launch.fast_math if fast is None else fast):
        return tuple(g.call(FUNCTIONS[name][1], x) for name in ("sin", "cos"))
    return tuple(g.call(part, x) for part in _SINCOS)


BUILTINS = {**{f.name: _unary(f) for f in _TABLE}, **{f.name: _binary(f) for f in _PAIRS}, "sincos": sincos}


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
            return e.ins(f"call {t} @llvm.copysign.{e.suffix(dtype)}({a.typed_text}, {b.typed_text})", dtype)
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
