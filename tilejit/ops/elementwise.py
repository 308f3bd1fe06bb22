"""Operations on each element: arithmetic, comparison, selection, casts. Operands have one dtype and one shape.

The names users call promote and broadcast first (`language.py`); these ops are what that leaves in the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..dtypes import DType, bool_, int32, integer_range
from ..ir.builder import Builder, type_of
from ..ir.graph import Const, Operand
from ..ir.op import Op
from ..types import Scalar, Tile, Uniformity
from .extremes import emit_extreme, extreme_of_arrays


def result_type(g: Builder, dtype: DType, *operands: Operand) -> Scalar | Tile:
    """A scalar as uniform as the least uniform operand, or a tile of the operands' shape."""
    types = [type_of(x) for x in operands]
    if any(isinstance(t, Tile) for t in types):
        shapes = {t.shape for t in types if isinstance(t, Tile)}
        if len(shapes) > 1 or any(isinstance(t, Scalar) for t in types):
            raise g.error(f"operands of one shape are needed, not {', '.join(map(str, types))}")
        return Tile(dtype, shapes.pop())
    weak = [t.weak for t, x in zip(types, operands) if not isinstance(x, Const)]  # a number adapts: it decides nothing
    return Scalar(dtype, min([t.uniform for t in types], default=Uniformity.GRID), bool(weak) and all(weak))


def same_dtype(g: Builder, *operands: Operand) -> DType:
    dtypes = {type_of(x).dtype for x in operands}
    if len(dtypes) != 1:
        raise g.error(f"operands of one dtype are needed, not {', '.join(sorted(map(str, dtypes)))}")
    return dtypes.pop()


def map_registers(emit: Callable, e, dtype: DType, args: tuple):
    """Apply `emit(e, dtype, *values)` to a scalar's value, or to each register of tiles."""
    if not any(isinstance(a, list) for a in args):
        return emit(e, dtype, *args)
    return [emit(e, dtype, *values) for values in zip(*args)]


def elementwise(name: str, doc: str, sim: Callable, emit: Callable | dict[str, str], kinds: tuple[str, ...], arity: int = 2,
                result: DType | None = None) -> Op:
    """Declare an op on elements of one dtype. `sim` works on arrays, `emit(e, dtype, *values)` on one register each;
    a dict gives LLVM's instruction for each kind of dtype. `result` is the dtype if it is not the operands'."""
    names = ("x", "y", "z")[:arity]
    function = {}
    exec(f"def {name}_({', '.join(names)}): ...", function)
    declare = function[f"{name}_"]
    declare.__doc__ = doc
    declare.__name__ = name
    op = Op(declare, "pure", ())

    @op.infer
    def _(g: Builder, *operands):
        dtype = same_dtype(g, *operands)
        if dtype.kind not in kinds:
            raise g.error(f"{name} takes {' or '.join(kinds)} elements, not {dtype}")
        return result_type(g, result or dtype, *operands)

    @op.simulate
    def _(m, call, *arrays):
        return np.asarray(sim(*arrays)).astype((result or type_of(call.args[0]).dtype).np, copy=False)

    if isinstance(emit, dict):
        def one(e, dtype, *values):
            return e.ins(f"{emit[dtype.kind]} {dtype.llvm} {', '.join(v.text for v in values)}", result or dtype)
    else:
        one = emit

    @op.emit
    def _(e, call, *args):
        return map_registers(one, e, type_of(call.args[0]).dtype, args)

    op.rules["element"] = one
    return op


NUMBER = ("int", "uint", "float")
INTEGER = ("int", "uint")
BITS = ("bool", "int", "uint")
ANY = ("bool", "int", "uint", "float")


# -- arithmetic --------------------------------------------------------------------------------------------------

add = elementwise("add", "``x + y``; integers wrap.", np.add, {"float": "fadd contract", "int": "add", "uint": "add"}, NUMBER)
sub = elementwise("sub", "``x - y``; integers wrap.", np.subtract, {"float": "fsub contract", "int": "sub", "uint": "sub"}, NUMBER)
mul = elementwise("mul", "``x * y``; integers wrap.", np.multiply, {"float": "fmul contract", "int": "mul", "uint": "mul"}, NUMBER)


def _emit_div(e, dtype, x, y):
    if dtype.bits == 16:
        return e.cast(e.ins(f"fdiv float {e.f32(x).text}, {e.f32(y).text}", e.f32_dtype), dtype)
    if e.fast_math and dtype.bits == 32:
        return e.ins(f"fdiv afn float {x.text}, {y.text}", dtype)
    return e.ins(f"fdiv {dtype.llvm} {x.text}, {y.text}", dtype)


div = elementwise("div", "``x / y`` of floats, correctly rounded (with fast_math: 2 ulp).", np.true_divide, _emit_div, ("float",))


@dataclass(frozen=True)
class Division:
    """What may be of a division: both sides are `natural`, so that the unsigned instruction serves; a divisor of 0; one of -1 under the
    least integer, which `wraps`."""

    natural: bool
    by_zero: bool
    wraps: bool


def _division(context, call) -> Division | None:
    """What is known of a division of scalars by what is no constant."""
    x, y = call.args
    if isinstance(type_of(x), Tile):
        return None
    (low, high), least = context.bounds(y, wrapping=True), context.bounds(x, wrapping=True)[0]
    dtype = type_of(x).dtype
    natural = dtype.kind == "uint" or low > 0 and least >= 0
    wraps = low <= -1 <= high and least == integer_range(dtype)[0]
    return None if isinstance(y, Const) and not natural else Division(natural, low <= 0 <= high, wraps)


def _unknown(dtype: DType, y) -> Division:
    """What may be of a division by `y`, of which a constant tells itself."""
    by = int(y.text) if y.text.lstrip("-").isdigit() else None
    return Division(dtype.kind == "uint", by in (None, 0), dtype.kind == "int" and by in (None, -1))


def _divides(op: Op, name: str, signed, by_none) -> Op:
    """The rules of a division: LLVM leaves that by 0 undefined, and that of the least integer by -1; here the answers are those that
    `_int_division` gives, and `by_none` for divisors of 0 and -1."""
    def one(e, dtype, x, y, known: Division | None = None):
        known = known or _unknown(dtype, y)
        if known.by_zero or known.wraps:
            shifted = e.ins(f"add {dtype.llvm} {y.text}, 1", dtype) if known.wraps else y
            none = e.ins(f"icmp ult {dtype.llvm} {shifted.text}, 2" if known.wraps else f"icmp eq {dtype.llvm} {y.text}, 0", bool_)
            known = replace(known, by_zero=False, wraps=False)
            return e.select(none, by_none(e, dtype, x, y), one(e, dtype, x, e.select(none, e.const(1, dtype), y), known))
        if known.natural:
            return e.ins(f"u{name} {dtype.llvm} {x.text}, {y.text}", dtype)
        return signed(e, dtype, x, y)

    @op.emit
    def _(e, call, x, y):
        known, dtype = call.choice and call.choice.plan, type_of(call.args[0]).dtype
        return map_registers(lambda e, dtype, x, y: one(e, dtype, x, y, known), e, dtype, (x, y))

    op.rules["plan"], op.rules["element"] = _division, one
    return op


def _emit_floordiv(e, dtype, x, y):
    quotient = e.ins(f"sdiv {dtype.llvm} {x.text}, {y.text}", dtype)
    remainder = e.ins(f"sub {dtype.llvm} {x.text}, {e.ins(f'mul {dtype.llvm} {quotient.text}, {y.text}', dtype).text}", dtype)
    return e.ins(f"add {dtype.llvm} {quotient.text}, {e.ins(f'sext i1 {_crossed(e, dtype, remainder, y).text} to {dtype.llvm}', dtype).text}", dtype)


def _crossed(e, dtype, remainder, y):
    """Whether truncating division rounded towards zero where Python rounds down: a remainder of the other sign."""
    signs = e.ins(f"xor {dtype.llvm} {remainder.text}, {y.text}", dtype)
    differ = e.ins(f"icmp slt {dtype.llvm} {signs.text}, 0", bool_)
    nonzero = e.ins(f"icmp ne {dtype.llvm} {remainder.text}, 0", bool_)
    return e.ins(f"and i1 {differ.text}, {nonzero.text}", bool_)


def _emit_mod(e, dtype, x, y):
    remainder = e.ins(f"srem {dtype.llvm} {x.text}, {y.text}", dtype)
    fix = e.ins(f"select i1 {_crossed(e, dtype, remainder, y).text}, {dtype.llvm} {y.text}, {dtype.llvm} 0", dtype)
    return e.ins(f"add {dtype.llvm} {remainder.text}, {fix.text}", dtype)


def _none_of(e, dtype, x, y):
    """``x // y`` for y of 0 and -1."""
    return e.ins(f"sub {dtype.llvm} 0, {e.ins(f'and {dtype.llvm} {x.text}, {y.text}', dtype).text}", dtype)


def _rest_of_none(e, dtype, x, y):
    """``x % y`` for y of 0 and -1."""
    return e.ins(f"and {dtype.llvm} {x.text}, {e.ins(f'xor {dtype.llvm} {y.text}, -1', dtype).text}", dtype)


def _int_division(function):
    """NumPy's floor division, in which the least integer by -1 is itself; where the divisor is 0, 0, or x for the remainder."""
    def divide(x, y):
        zero = y == 0
        return np.where(zero, np.zeros_like(x) if function is np.floor_divide else x, function(x, np.where(zero, np.ones_like(y), y)))
    return divide


floordiv = _divides(elementwise("floordiv", "``x // y`` of integers, rounded down as in Python; 0 where `y` is 0. It wraps.",
                                _int_division(np.floor_divide), _emit_floordiv, INTEGER),
                    "div", _emit_floordiv, _none_of)
mod = _divides(elementwise("mod", "``x % y`` of integers, with the sign of `y` as in Python; `x` where `y` is 0.",
                           _int_division(np.remainder), _emit_mod, INTEGER),
               "rem", _emit_mod, _rest_of_none)


maximum = elementwise("maximum", "The larger of `x` and `y`; NaN if either is, 0.0 of two zeros.",
                      extreme_of_arrays("max"), emit_extreme("max"), ANY)
minimum = elementwise("minimum", "The smaller of `x` and `y`; NaN if either is, -0.0 of two zeros.",
                      extreme_of_arrays("min"), emit_extreme("min"), ANY)


# -- bits ----------------------------------------------------------------------------------------------------------

bit_and = elementwise("bit_and", "``x & y``.", np.bitwise_and, {k: "and" for k in BITS}, BITS)
bit_or = elementwise("bit_or", "``x | y``.", np.bitwise_or, {k: "or" for k in BITS}, BITS)
bit_xor = elementwise("bit_xor", "``x ^ y``.", np.bitwise_xor, {k: "xor" for k in BITS}, BITS)


def _shift(instruction: dict[str, str], left: bool):
    def emit(e, dtype, x, y):
        """LLVM leaves a shift by the width or more undefined; NumPy's answer is 0, or the sign.

        PTX's 64-bit shifts clamp their 32-bit amount, and LLVM 22 drops the test for it together with the amount's upper
        half, so those are written as PTX.
        """
        if dtype.bits == 64 and not y.text.isdigit():
            amount = e.ins(f"call i64 @llvm.umin.i64(i64 {y.text}, i64 64)", dtype)
            form = f"{'shl.b' if left else 'shr.s' if dtype.kind == 'int' else 'shr.u'}64 $0, $1, $2;"
            return e.asm(form, [dtype], [x, e.ins(f"trunc i64 {amount.text} to i32", int32)], pure=True)[0]
        wide = e.ins(f"icmp uge {dtype.llvm} {y.text}, {dtype.bits}", bool_)
        if dtype.kind == "int" and not left:
            return e.ins(f"ashr {dtype.llvm} {x.text}, {e.select(wide, e.const(dtype.bits - 1, dtype), y).text}", dtype)
        shifted = e.ins(f"{instruction[dtype.kind]} {dtype.llvm} {x.text}, {e.select(wide, e.const(0, dtype), y).text}", dtype)
        return e.select(wide, e.const(0, dtype), shifted)
    return emit


shl = elementwise("shl", "``x << y``; 0 when `y` is the width or more.", np.left_shift, _shift({"int": "shl", "uint": "shl"}, True), INTEGER)
shr = elementwise("shr", "``x >> y``, arithmetic for signed integers.", np.right_shift, _shift({"int": "ashr", "uint": "lshr"}, False), INTEGER)


# -- one operand -----------------------------------------------------------------------------------------------------

def _emit_neg(e, dtype, x):
    return e.ins(f"fneg {dtype.llvm} {x.text}" if dtype.is_float else f"sub {dtype.llvm} 0, {x.text}", dtype)


def _emit_not(e, dtype, x):
    return e.ins(f"xor {dtype.llvm} {x.text}, {'true' if dtype.kind == 'bool' else '-1'}", dtype)


def _emit_abs(e, dtype, x):
    if dtype.is_float:
        return e.ins(f"call {dtype.llvm} @llvm.fabs.{e.suffix(dtype)}({dtype.llvm} {x.text})", dtype)
    if dtype.kind == "uint":
        return x
    return e.ins(f"call {dtype.llvm} @llvm.abs.{dtype.llvm}({dtype.llvm} {x.text}, i1 false)", dtype)


neg = elementwise("neg", "``-x``.", np.negative, _emit_neg, NUMBER, arity=1)
bit_not = elementwise("bit_not", "``~x``.", np.invert, _emit_not, BITS, arity=1)
abs_ = elementwise("abs", "The absolute value; the most negative integer stays.", np.abs, _emit_abs, NUMBER, arity=1)


# -- comparison and selection ----------------------------------------------------------------------------------------

def _compare(name: str, sim: Callable, ordered: str, integer: str, doc: str) -> Op:
    def emit(e, dtype, x, y):
        if dtype.is_float:
            return e.ins(f"fcmp {ordered} {dtype.llvm} {x.text}, {y.text}", bool_)
        sign = "" if integer in ("eq", "ne") else "s" if dtype.kind == "int" else "u"
        return e.ins(f"icmp {sign}{integer} {dtype.llvm} {x.text}, {y.text}", bool_)
    return elementwise(name, doc, sim, emit, ANY, result=bool_)


eq = _compare("eq", np.equal, "oeq", "eq", "``x == y``.")
ne = _compare("ne", np.not_equal, "une", "ne", "``x != y``; true if either is NaN.")
lt = _compare("lt", np.less, "olt", "lt", "``x < y``.")
le = _compare("le", np.less_equal, "ole", "le", "``x <= y``.")
gt = _compare("gt", np.greater, "ogt", "gt", "``x > y``.")
ge = _compare("ge", np.greater_equal, "oge", "ge", "``x >= y``.")


def _select_declaration(condition, x, y): ...


_select_declaration.__name__, _select_declaration.__doc__ = "select", "`x` where `condition` holds, else `y`."
select = Op(_select_declaration, "pure", ())


@select.infer
def _(g, condition, x, y):
    if type_of(condition).dtype != bool_:
        raise g.error(f"a bool condition is needed, not {type_of(condition)}")
    return result_type(g, same_dtype(g, x, y), condition, x, y)


@select.simulate
def _(m, call, condition, x, y):
    return np.where(condition, x, y)


@select.emit
def _(e, call, condition, x, y):
    if isinstance(condition, list):
        return [e.select(c, a, b) for c, a, b in zip(condition, x, y)]
    return e.select(condition, x, y)


# -- casts -------------------------------------------------------------------------------------------------------------

def _cast_declaration(x, dtype, exact): ...


_cast_declaration.__name__ = "cast"
_cast_declaration.__doc__ = """`x` as `dtype`.

Float to a narrower float rounds to nearest even; to floats of 8 bits and less it saturates at the largest finite value (PTX
ISA ``cvt.satfinite``). NaN stays NaN, and becomes the largest value of those of 4 and 6 bits, which have none. float8_e8m0fnu
holds powers of two: the nearest one, of two the larger; 0 becomes the least one, a negative number NaN. Float to integer
truncates and saturates, NaN gives 0 (PTX ISA ``cvt.rzi``). Integer to a narrower integer keeps the low bits. To bool: whether
it is not 0. An `exact` cast, of a weak number that adapts, changes no value: the simulator checks it.
"""
cast = Op(_cast_declaration, "pure", ("dtype", "exact"))


@cast.infer
def _(g, x, dtype, exact=None):
    return result_type(g, dtype, x)


def cast_array(x: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """A cast as the hardware makes it."""
    with np.errstate(all="ignore"):
        if target.kind == "bool":
            return x != 0
        if source.is_float and target.is_int:
            info = np.iinfo(target.np)
            wide = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
            inside = np.clip(np.trunc(wide), float(info.min), float(info.max))
            top = inside >= float(info.max)
            return np.where(top, info.max, np.where(top, 0, inside).astype(target.np)).astype(target.np)
        if target.is_float and target.bits == 8:
            narrow = _rounded_to_odd(x) if source.bits == 64 and source.is_float else x.astype(np.float32)
            return _to_narrow(narrow, target)
        if target.is_float and target.bits <= 16 and (source.bits == 64 or source.is_int and source.bits == 32):
            return _round_once(x, target)
        return x.astype(target.np)


def _to_narrow(x: np.ndarray, target: DType) -> np.ndarray:
    """float32 to a float of at most 8 bits."""
    import ml_dtypes
    largest = float(ml_dtypes.finfo(target.np).max)
    if target.name == "float8_e8m0fnu":
        bits = np.abs(x).view(np.uint32)
        code = np.where(bits < 1 << 23, bits >= 3 << 21, np.minimum(bits + (1 << 22) >> 23, 254))
        return np.where((x < 0) | np.isnan(x), 255, code).astype(np.uint8).view(target.np)
    clipped = np.clip(x, -largest, largest)
    return (clipped if target.codes == 256 else np.where(np.isnan(x), np.float32(largest), clipped)).astype(target.np)


def cast_number(x: bool | int | float, source: DType, target: DType) -> bool | int | float:
    """A cast of a constant, as `cast_array` makes it."""
    with np.errstate(all="ignore"):
        result = cast_array(np.asarray(x).astype(source.np), source, target)
    return bool(result) if target.kind == "bool" else int(result) if target.is_int else float(result)


def _round_once(x: np.ndarray, target: DType) -> np.ndarray:
    """64 bits, or an integer of 32, to 16 through float32 rounded to odd, so that the second rounding is the only one that matters."""
    if target.name == "float16" and x.dtype == np.float64:
        return x.astype(np.float16)
    return _rounded_to_odd(x).astype(target.np)


def _rounded_to_odd(x: np.ndarray) -> np.ndarray:
    """Numbers as float32, inexact ones with an odd last bit."""
    wide = x.astype(np.float64)
    near = wide.astype(np.float32)
    bits = near.view(np.uint32)
    inexact = near.astype(np.float64) != wide
    toward_zero = np.where(np.abs(near.astype(np.float64)) > np.abs(wide), bits - 1, bits)
    odd = np.where(inexact & np.isfinite(near), toward_zero | 1, bits).astype(np.uint32)
    return odd.view(np.float32)


@cast.simulate
def _(m, call, x):
    target = call.attrs["dtype"]
    if call.attrs.get("exact"):
        low, high = integer_range(target)
        fits = (x >= low) & (x <= high) | ~m.active
        if not fits.all():
            value = np.broadcast_to(x, fits.shape)[~fits][0]
            m.assertion(f"{value} does not fit in {target} ({low} to {high}), whose dtype this Python number takes here; "
                        "tile.cast keeps its low bits", ~fits.all(axis=1))
    return cast_array(x, type_of(call.args[0]).dtype, target)


@cast.emit
def _(e, call, x):
    target = call.attrs["dtype"]
    if isinstance(x, list):
        return e.cast_many(x, target)
    return e.cast(x, target)


def _bitcast_declaration(x, dtype): ...


_bitcast_declaration.__name__, _bitcast_declaration.__doc__ = "bitcast", "The bits of `x` as another dtype of as many bits."
bitcast = Op(_bitcast_declaration, "pure", ("dtype",))


@bitcast.infer
def _(g, x, dtype):
    source = type_of(x).dtype
    if "bool" in (source.kind, dtype.kind) or source.packed or dtype.packed or source.bits != dtype.bits:
        raise g.error(f"bitcast keeps the bits: {source} and {dtype} are not two dtypes of as many, in whole bytes; tile.cast converts the number")
    return result_type(g, dtype, x)


@bitcast.simulate
def _(m, call, x):
    return np.ascontiguousarray(x).view(call.attrs["dtype"].np)


def _emit_bitcast(e, call, x):
    dtype = call.attrs["dtype"]
    return e.ins(f"bitcast {x.typed} to {dtype.llvm}", dtype)


@bitcast.emit
def _(e, call, x):
    return [_emit_bitcast(e, call, v) for v in x] if isinstance(x, list) else _emit_bitcast(e, call, x)
