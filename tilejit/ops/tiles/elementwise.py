"""Elementwise operations: arithmetic, comparison, selection. All operands have the same dtype and shape.

Python's operators and the functions that users call first promote and broadcast (`language/operators.py`), then add
these ops to the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...dtypes import DType, bool_, int32
from ...ir.builder import Builder, element_type, type_as, type_of
from ...ir.graph import Call, Const, Operand
from ...ir.op import Op, op
from ...ir.op_traits import Traits
from ...types import Scalar, Tile, Uniformity
from .extremes import emit_extreme, extreme_of_arrays


def result_type(g: Builder, dtype: DType, *operands: Operand) -> Scalar | Tile:
    """The type of an elementwise result: a scalar as uniform as the least uniform operand,
    or a tile of the operands' shape."""
    types = [type_of(x) for x in operands]
    if any(isinstance(t, Tile) for t in types):
        shapes = {t.shape for t in types if isinstance(t, Tile)}
        if len(shapes) > 1 or any(isinstance(t, Scalar) for t in types):
            raise g.error(f"operands of one shape are needed, not {', '.join(map(str, types))}")
        return Tile(dtype, shapes.pop())
    scalars = [type_as(x, Scalar) for x in operands]
    # constants do not decide: they adapt to the others
    weak = [t.weak for t, x in zip(scalars, operands) if not isinstance(x, Const)]
    return Scalar(dtype, min([t.uniform for t in scalars], default=Uniformity.GRID), bool(weak) and all(weak))


def same_dtype(g: Builder, *operands: Operand) -> DType:
    dtypes = {element_type(x) for x in operands}
    if len(dtypes) != 1:
        raise g.error(f"operands of one dtype are needed, not {', '.join(sorted(map(str, dtypes)))}")
    return dtypes.pop()


def map_registers(emit: Callable, e, dtype: DType, args: tuple):
    """Apply `emit(e, dtype, *values)` to the values of scalars, or to each register of tiles."""
    if not any(isinstance(a, list) for a in args):
        return emit(e, dtype, *args)
    return [emit(e, dtype, *values) for values in zip(*args)]


def map_words(words: Callable, emit: Callable, e, dtype: DType, args: tuple):
    """`map_registers` for elements of 1 or 2 bytes. Elements packed in 32-bit words are computed word by word by
    `words(e, dtype, *words)`.

    Where that returns None, or the elements are not packed, `emit` computes them one by one.
    """
    per, made = 32 // dtype.bits, []
    for n in range(0, len(args[0]), per):
        groups = [a[n:n + per] for a in args]
        held = [e.word_of(group, dtype) for group in groups]
        word = None
        if None not in held and not all(isinstance(w, int) for w in held):
            word = words(e, dtype, *held)
        if word is not None:
            made += e.from_units([e.word(word)], dtype, per)
        else:
            made += map_registers(emit, e, dtype, tuple(groups))
    return made


def elementwise(name: str, doc: str, sim: Callable, emit: Callable | dict[str, str], kinds: tuple[str, ...],
                arity: int = 2, result: DType | None = None, words: Callable | None = None) -> Op:
    """Declare an elementwise op of `arity` operands.

    `sim` computes it on arrays, and `emit(e, dtype, *values)` on one register of each operand; `emit` may also be a
    dict of the LLVM instruction for each kind of dtype. `kinds` are the kinds that it takes. `result` is the result's
    dtype, if not that of the operands. `words` computes whole words of packed elements (`map_words`).
    """
    names = ("x", "y", "z")[:arity]
    function: dict[str, Any] = {}
    exec(f"def {name}_({', '.join(names)}): ...", function)
    declare = function[f"{name}_"]
    declare.__doc__ = doc
    declare.__name__ = name
    made = Op(declare, "pure", (), traits=Traits(elementwise=True))

    @made.infer
    def _(g: Builder, *operands):
        dtype = same_dtype(g, *operands)
        if dtype.kind not in kinds:
            raise g.error(f"{name} takes {' or '.join(kinds)} elements, not {dtype}")
        return result_type(g, result or dtype, *operands)

    @made.simulate
    def _(m, call, *arrays):
        return np.asarray(sim(*arrays)).astype((result or type_of(call.args[0]).dtype).np, copy=False)

    if isinstance(emit, dict):
        def emit_element(e, dtype, *values):
            return e.ins(f"{emit[dtype.kind]} {dtype.llvm} {', '.join(v.text for v in values)}", result or dtype)
    else:
        emit_element = emit

    @made.emit
    def _(e, call, *args):
        dtype = type_of(call.args[0]).dtype
        if words is not None and dtype.kind != "bool" and dtype.bits < 32 and all(isinstance(a, list) for a in args):
            return map_words(words, emit_element, e, dtype, args)
        return map_registers(emit_element, e, dtype, args)

    made.rules.element = emit_element
    return made


NUMBER = ("int", "uint", "float")
INTEGER = ("int", "uint")
BITS = ("bool", "int", "uint")
ANY = ("bool", "int", "uint", "float")


# -- arithmetic --------------------------------------------------------------------------------------------------

add = elementwise("add", "``x + y``; integers wrap.", np.add, {"float": "fadd contract", "int": "add", "uint": "add"},
                  NUMBER)
sub = elementwise("sub", "``x - y``; integers wrap.", np.subtract,
                  {"float": "fsub contract", "int": "sub", "uint": "sub"}, NUMBER)
mul = elementwise("mul", "``x * y``; integers wrap.", np.multiply,
                  {"float": "fmul contract", "int": "mul", "uint": "mul"}, NUMBER)


@add.linear
def _(g, call):
    return _add_linear(g, call, 1)


@sub.linear
def _(g, call):
    return _add_linear(g, call, -1)


def _add_linear(g: Builder, call: Call, sign: int) -> dict[Any, int]:
    """The first operand plus `sign` times the second."""
    total = g.linear_form(call.args[0])
    for key, coefficient in g.linear_form(call.args[1]).items():
        total[key] = total.get(key, 0) + sign * coefficient
    return {key: n for key, n in total.items() if n}


@mul.linear
def _(g, call):
    for one, other in (call.args, call.args[::-1]):
        factor = g.linear_form(one)
        if set(factor) <= {None}:
            return {key: n * factor.get(None, 0) for key, n in g.linear_form(other).items() if factor}
    return None


def _emit_div(e, dtype, x, y):
    if dtype.bits == 16:
        return e.cast(e.ins(f"fdiv float {e.f32(x).text}, {e.f32(y).text}", e.f32_dtype), dtype)
    if e.fast_math and dtype.bits == 32:
        return e.ins(f"fdiv afn float {x.text}, {y.text}", dtype)
    return e.ins(f"fdiv {dtype.llvm} {x.text}, {y.text}", dtype)


div = elementwise("div", "``x / y`` of floats, correctly rounded; with fast_math, within 2 ulp in float32.",
                  np.true_divide, _emit_div, ("float",))

maximum = elementwise("maximum", "The larger of `x` and `y`; NaN if either is NaN. 0.0 is larger than -0.0.",
                      extreme_of_arrays("max"), emit_extreme("max"), ANY)
minimum = elementwise("minimum", "The smaller of `x` and `y`; NaN if either is NaN. -0.0 is smaller than 0.0.",
                      extreme_of_arrays("min"), emit_extreme("min"), ANY)


# -- bits ----------------------------------------------------------------------------------------------------------

bit_and = elementwise("bit_and", "``x & y``.", np.bitwise_and, dict.fromkeys(BITS, "and"), BITS, words=lambda e, dtype,
                      x, y: x & y)
bit_or = elementwise("bit_or", "``x | y``.", np.bitwise_or, dict.fromkeys(BITS, "or"), BITS, words=lambda e, dtype, x,
                     y: x | y)
bit_xor = elementwise("bit_xor", "``x ^ y``.", np.bitwise_xor, dict.fromkeys(BITS, "xor"), BITS, words=lambda e, dtype,
                      x, y: x ^ y)


def _shift(instruction: dict[str, str], left: bool):
    def emit(e, dtype, x, y):
        """A shift with a defined result for large amounts. LLVM leaves a shift by the width or more undefined; NumPy
        gives 0, or the sign.

        64-bit shifts are written as PTX, which clamps the 32-bit amount. LLVM 22 drops the test for a large amount,
        and with it the upper half of the amount. The amount of ``shl.b64`` is `hidden` from ptxas.
        """
        if dtype.bits == 64 and not y.text.removeprefix("-").isdigit():
            limited = e.ins(f"call i64 @llvm.umin.i64(i64 {y.text}, i64 64)", dtype)
            amount = e.ins(f"trunc i64 {limited.text} to i32", int32)
            right = "shr.s" if dtype.kind == "int" else "shr.u"
            form = f"{'shl.b' if left else right}64 $0, $1, $2;"
            return e.asm(form, [dtype], [x, e.hide(amount) if left else amount], pure=True)[0]
        wide = e.ins(f"icmp uge {dtype.llvm} {y.text}, {dtype.bits}", bool_)
        if dtype.kind == "int" and not left:
            return e.ins(f"ashr {dtype.llvm} {x.text}, {e.select(wide, e.const(dtype.bits - 1, dtype), y).text}", dtype)
        shifted = e.ins(f"{instruction[dtype.kind]} {dtype.llvm} {x.text}, {e.select(wide, e.const(0, dtype), y).text}",
                        dtype)
        return e.select(wide, e.const(0, dtype), shifted)
    return emit


def _shifted_words(left: bool):
    def words(e, dtype, x, y):
        """Shift all elements of a word by the same constant, and mask off the bits that came from
        neighbouring elements.

        None if the amount is not a constant, differs between the elements, or is the width or more.
        """
        ones = (1 << dtype.bits) - 1
        each = 0xFFFFFFFF // ones                         # the lowest bit of each element is set
        def as_signed(n):
            return n - (1 << 32) if n >> 31 else n
        by = y & ones if isinstance(y, int) else dtype.bits
        if isinstance(x, int) or by >= dtype.bits or y != by * each:
            return None
        if left or by == 0:
            return x << by & as_signed((ones << by & ones) * each)
        shifted = x >> by & (ones >> by) * each
        if dtype.kind == "uint":
            return shifted
        sign, top = (ones // 2 + 1 >> by) * each, as_signed((ones // 2 + 1) * each)
        # sign extension by (x ^ sign) - sign; `top` stops borrows between elements
        return ((shifted ^ sign | top) - sign) ^ top
    return words


shl = elementwise("shl", "``x << y``; 0 if `y` is at least the number of bits.", np.left_shift,
                  _shift({"int": "shl", "uint": "shl"}, True), INTEGER, words=_shifted_words(True))
shr = elementwise("shr", "``x >> y``, arithmetic for signed integers.", np.right_shift,
                  _shift({"int": "ashr", "uint": "lshr"}, False), INTEGER, words=_shifted_words(False))


@shr.linear
def _(g, call):
    by = g.linear_form(call.args[1])
    amount = by.get(None, 0)
    if set(by) <= {None} and 0 <= amount < 63:
        return g.quotient(call.result, g.linear_form(call.args[0]), 1 << amount)
    return None


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

@neg.linear
def _(g, call):
    return {key: -n for key, n in g.linear_form(call.args[0]).items()}


bit_not = elementwise("bit_not", "``~x``.", np.invert, _emit_not, BITS, arity=1)
abs_ = elementwise("abs", "The absolute value. That of the most negative integer is itself.", np.abs, _emit_abs, NUMBER,
                   arity=1)


# -- comparison and selection ----------------------------------------------------------------------------------------

def _compare(name: str, sim: Callable, ordered: str, integer: str, doc: str) -> Op:
    def emit(e, dtype, x, y):
        if dtype.is_float:
            return e.ins(f"fcmp {ordered} {dtype.llvm} {x.text}, {y.text}", bool_)
        sign = ""
        if integer not in ("eq", "ne"):
            sign = "s" if dtype.kind == "int" else "u"
        return e.ins(f"icmp {sign}{integer} {dtype.llvm} {x.text}, {y.text}", bool_)
    return elementwise(name, doc, sim, emit, ANY, result=bool_)


eq = _compare("eq", np.equal, "oeq", "eq", "``x == y``.")
ne = _compare("ne", np.not_equal, "une", "ne", "``x != y``; true if either is NaN.")
lt = _compare("lt", np.less, "olt", "lt", "``x < y``.")
le = _compare("le", np.less_equal, "ole", "le", "``x <= y``.")
gt = _compare("gt", np.greater, "ogt", "gt", "``x > y``.")
ge = _compare("ge", np.greater_equal, "oge", "ge", "``x >= y``.")


@op("pure", traits=Traits(elementwise=True))
def select(condition, x, y):
    """`x` where `condition` holds, else `y`."""


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
