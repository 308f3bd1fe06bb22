"""The arithmetic of one thread as lines of Python, with the bits that NumPy's arrays have.

Each line says what dtype its result has, so that it does the same by NumPy's scalars and compiled by numba, which would
compute in 64 bits. A float operation has the NaN of its first operand that is one, made quiet, and otherwise the
negative NaN, as x86 has them. (Of two NaNs that differ, NumPy's own sums and products take either.)
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ..dtypes import DType, integer_range
from ..ir.builder import element_type
from ..ir.graph import Call
from ..ops.language.math import FUNCTIONS, isnan
from ..ops.tiles import elementwise as ops
from ..ops.tiles.casts import bitcast, cast
from ..ops.tiles.division import floordiv, mod

#: The dtypes that the lines may have: their names as NumPy's scalars.
TYPES = {"bool": "np.bool_", **{f"{kind}{bits}": f"np.{kind}{bits}" for kind in ("int", "uint")
                                for bits in (8, 16, 32, 64)}, "float32": "np.float32", "float64": "np.float64"}

#: The names that the lines use.
NAMES = {"np": np, "NAN32": np.array(0xFFC00000, np.uint32).view(np.float32)[()],
         "NAN64": np.array(0xFFF8 << 48, np.uint64).view(np.float64)[()]}

_COMPARE = {ops.eq: "==", ops.ne: "!=", ops.lt: "<", ops.le: "<=", ops.gt: ">", ops.ge: ">="}
_SYMBOLS = {ops.add: "+", ops.sub: "-", ops.mul: "*"}
_BITS = {ops.bit_and: "&", ops.bit_or: "|", ops.bit_xor: "^"}
_OF_BOOLS = {ops.bit_and: "a and b", ops.bit_or: "a or b", ops.bit_xor: "a != b", ops.minimum: "a and b",
             ops.maximum: "a or b", ops.bit_not: "not a", ops.eq: "a == b", ops.ne: "a != b"}
_ROUND = {FUNCTIONS[name][0]: function for name, function in
          {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "rint"}.items()}

_OF_INTEGERS: dict[Any, str] = {
    **{op: f"T(a {symbol} b)" for op, symbol in {**_SYMBOLS, **_BITS}.items()},
    ops.neg: "T(ZERO - a)", ops.bit_not: "T(~a)",
    ops.maximum: "a if a > b else b", ops.minimum: "a if a < b else b"}
_OF_SIGNED = {
    ops.abs_: "a if a >= 0 else T(ZERO - a)",
    ops.shl: "T(a << b) if 0 <= b < BITS else ZERO",
    ops.shr: "T(a >> b) if 0 <= b < BITS else T(-1) if a < 0 else ZERO",
    floordiv: "ZERO if b == 0 else T(ZERO - a) if b == -1 else T(a // b)",
    mod: "a if b == 0 else ZERO if b == -1 else T(a % b)"}
_OF_UNSIGNED = {
    ops.abs_: "a", ops.shl: "T(a << b) if b < BITS else ZERO", ops.shr: "T(a >> b) if b < BITS else ZERO",
    floordiv: "ZERO if b == 0 else T(a // b)", mod: "a if b == 0 else T(a % b)"}

_FIRST_NAN = "T((a if a != a else b if b != b else NAN) + ZERO)"
_EXTREME = "a if a != a else b if b != b else {zero} if a == 0 and b == 0 else a if a {sign} b else b"
_OF_FLOATS: dict[Any, str] = {
    ops.neg: "-a", ops.abs_: "abs(a)", isnan: "a != a", FUNCTIONS["sqrt"][0]: "T(np.sqrt(np.float64(a)))",
    ops.maximum: _EXTREME.format(zero="T(a + b)", sign=">"),
    ops.minimum: _EXTREME.format(zero="T(-(-a - b))", sign="<"),
    **{op: f"T(np.{function}(a))" for op, function in _ROUND.items()}}


def lines_of(call: Call, result: str, args: list[str]) -> list[str] | None:
    """The lines that compute a call of a thread; None if there are none with the same bits as its rule."""
    source, target = element_type(call.args[0]), element_type(call.result)
    if source.name not in TYPES or target.name not in TYPES:
        return None
    if call.op is ops.select:
        return [f"{result} = {args[1]} if {args[0]} else {args[2]}"]
    if call.op is bitcast:
        # numba wants to see the dtype
        return [f"{result} = {TYPES[source.name]}({args[0]}).view({TYPES[target.name]})"]
    if call.op is cast:
        return None if call.attrs.get("exact") else _lines_of_cast(source, target, result, args[0])
    def fill(text: str) -> str:
        return _fill(text, source, dict(zip("ab", args)))
    if source.kind == "float" and (call.op in _SYMBOLS or call.op is ops.div):
        a, b = args
        return [f"{result} = {a} {_SYMBOLS.get(call.op, '/')} {b}", f"if {result} != {result}:",
                f"    {result} = {fill(_FIRST_NAN)}"]
    text = _expression(call.op, source)
    return None if text is None else [f"{result} = {fill(text)}"]


def _expression(op: Any, dtype: DType) -> str | None:
    """The result of an op of operands `a` and `b` in terms of T (the dtype), BITS, ZERO and NAN."""
    if dtype.kind == "bool":
        return _OF_BOOLS.get(op)
    if op in _COMPARE:
        return f"a {_COMPARE[op]} b"
    if dtype.kind == "float":
        return _OF_FLOATS.get(op)
    signed = _OF_SIGNED if dtype.kind == "int" else _OF_UNSIGNED
    return signed.get(op) or _OF_INTEGERS.get(op)


def _fill(text: str, dtype: DType, args: dict[str, str]) -> str:
    names = {**args, "T": TYPES[dtype.name], "BITS": str(dtype.bits), "ZERO": f"{TYPES[dtype.name]}(0)",
             "NAN": f"NAN{dtype.bits}"}
    return re.sub(r"\b(a|b|T|BITS|ZERO|NAN)\b", lambda found: names[found[0]], text)


def _lines_of_cast(source: DType, target: DType, result: str, x: str) -> list[str]:
    """See `casts.cast_array`."""
    made = TYPES[target.name]
    if target.kind == "bool":
        return [f"{result} = {x} != 0"]
    if not (source.is_float and target.is_int):
        return [f"{result} = {made}({x})"]
    low, high = integer_range(target)
    wide = f"{result}_wide"
    return [f"{wide} = np.float64({x})", f"{result} = {made}(0)",
            f"if {wide} >= {float(high)!r}:", f"    {result} = {made}({high})",
            f"elif {wide} <= {float(low)!r}:", f"    {result} = {made}({low})",
            f"elif {wide} == {wide}:", f"    {result} = {made}({wide})"]

