"""Maximum and minimum of two elements, on arrays and in emitted code: NaN if either is NaN, and -0.0 is less than 0.0.

These are the semantics of PTX's ``max.NaN`` and ``min.NaN`` (PTX ISA, "Floating point instructions: max"), which do not
exist for float64.
"""

from __future__ import annotations

import numpy as np

from ...dtypes import DType, bool_, int64


def extreme_of_arrays(which: str):
    """NumPy's ``maximum`` ('max') or ``minimum`` ('min'), but with -0.0 less than 0.0."""
    function = {"max": np.maximum, "min": np.minimum}[which]

    def extreme(x, y):
        found = function(x, y)
        if np.asarray(found).dtype.kind in "biu":
            return found
        zeros = (x == 0) & (y == 0)
        if not np.any(zeros):
            return found
        return np.where(zeros, x + y if which == "max" else -(-x - y), found)
    return extreme


def emit_extreme(which: str):
    """The function that emits the maximum ('max') or minimum ('min') of two values of a dtype."""
    def emit(e, dtype: DType, x, y):
        if dtype.is_float:
            if dtype.bits == 64:
                return _of_float64(e, which, x, y)
            return e.ins(f"call {dtype.llvm} @llvm.{which}imum.{e.suffix(dtype)}({x.typed_text}, {y.typed_text})",
                         dtype)
        if dtype.kind == "bool":
            return e.ins(f"{'or' if which == 'max' else 'and'} i1 {x.text}, {y.text}", dtype)
        sign = "s" if dtype.kind == "int" else "u"
        return e.ins(f"call {dtype.llvm} @llvm.{sign}{which}.{dtype.llvm}({x.typed_text}, {y.typed_text})", dtype)
    return emit


def _of_float64(e, which: str, x, y):
    ordered = e.ins(f"fcmp {'ogt' if which == 'max' else 'olt'} double {x.text}, {y.text}", bool_)
    nan = e.ins(f"fcmp uno double {x.text}, {x.text}", bool_)
    chosen = e.select(e.ins(f"or i1 {ordered.text}, {nan.text}", bool_), x, y)
    bits = [e.ins(f"bitcast double {v.text} to i64", int64) for v in (x, y)]
    # equal floats differ only in a zero's sign
    joined = e.ins(f"{'and' if which == 'max' else 'or'} i64 {bits[0].text}, {bits[1].text}", int64)
    equal = e.ins(f"fcmp oeq double {x.text}, {y.text}", bool_)
    return e.select(equal, e.ins(f"bitcast i64 {joined.text} to double", x.dtype), chosen)
