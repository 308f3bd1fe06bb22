"""Elementwise functions that users call, promises to the compiler (``assume``, ``uniform``), and ``device_assert``."""

from __future__ import annotations

from builtins import abs as abs_of_number
from operator import index

import numpy as np

from ...dtypes import bool_, dtype_of, float32, int32, int64
from ...errors import CompilationError
from ...ir.builder import Builder, describe, type_as, type_of
from ...ir.builtin import builtin
from ...ir.graph import Operand, Value
from ...ir.op import op
from ...ir.op_traits import Registers
from ...types import Scalar, Tile
from ..tiles import casts, elementwise as ew
from . import math as elementary
from .ids import is_number_of_ctas
from .operators import binary, compare
from .promotion import (
    as_condition,
    broadcast_shape,
    common_dtype,
    convert,
    float_operand,
    match_operands,
    number,
    spread,
    strong_cast,
)
from .truth_values import may_be_truth_values


@builtin
def where(g: Builder, condition, x, y):
    """`x` where `condition` holds, otherwise `y`. The operands are broadcast together,
    and `x` and `y` promoted to one dtype."""
    test = as_condition(g, condition)
    dtype = common_dtype(g, x, y)
    shape = broadcast_shape(g, number(g, test), number(g, x), number(g, y))
    return g.call(ew.select, spread(g, test, shape), spread(g, convert(g, x, dtype), shape),
                  spread(g, convert(g, y, dtype), shape))


def _extreme(which):
    def call(g: Builder, x, y):
        if all(isinstance(v, (int, float)) for v in (x, y)):
            return max(x, y) if which is ew.maximum else min(x, y)
        dtype = common_dtype(g, x, y)
        dtype = float32 if dtype.is_float and dtype.bits == 8 else dtype
        return g.call(which, *match_operands(g, x, y, dtype=dtype))
    call.__name__, call.__doc__ = which.name, f"{which.__doc__} The operands are promoted to one dtype and broadcast."
    return builtin(call)


maximum, minimum = _extreme(ew.maximum), _extreme(ew.minimum)


@builtin
def clip(g: Builder, x, low, high):
    """`x` limited to the range from `low` to `high`, of which one may be None. NaN stays NaN."""
    x = x if low is None else maximum.function(g, x, low)
    return x if high is None else minimum.function(g, x, high)


def abs_(g: Builder, x):
    """The absolute value. That of the most negative integer is itself."""
    if isinstance(x, (int, float)):
        return abs_of_number(x)
    t = number(g, x)
    if t.dtype.kind == "bool":
        return x
    return g.call(ew.abs_, convert(g, x, float32) if t.dtype.is_float and t.dtype.bits == 8 else x)


abs_.__name__ = "abs"
abs = builtin(abs_)


@builtin
def fma(g: Builder, x, y, z):
    """``x * y + z`` of floats with one rounding."""
    return g.call(elementary.fma, *elementary.float_operands(g, x, y, z))


@builtin
def isnan(g: Builder, x):
    """Whether each element is NaN."""
    return g.call(elementary.isnan, float_operand(g, x))


def _against_infinity(g: Builder, compare, x):
    return g.call(compare, *match_operands(g, abs.function(g, float_operand(g, x)), float("inf")))


@builtin
def isinf(g: Builder, x):
    """Whether each element is an infinity."""
    return _against_infinity(g, ew.eq, x)


@builtin
def isfinite(g: Builder, x):
    """Whether each element is neither an infinity nor NaN."""
    return _against_infinity(g, ew.lt, x)


@builtin
def bitcast(g: Builder, x, dtype):
    """Reinterpret the bits of each element of `x` as another dtype of the same width, like NumPy's
    ``x.view(dtype)``."""
    t = number(g, x)
    x = x if isinstance(x, Value) else convert(g, x, t.dtype)
    dtype = dtype_of(dtype)
    if dtype.is_float and type_of(x).dtype.is_int and may_be_truth_values(g, x):
        return g.call(casts.bitcast, x, dtype=dtype, hidden=True)
    return g.call(casts.bitcast, x, dtype=dtype)


@builtin
def cast(g: Builder, x, dtype):
    """Convert `x` to `dtype`. Floats round to nearest even; to float8 finite numbers also saturate; to integers they
    truncate and saturate."""
    return strong_cast(g, x, dtype_of(dtype))


@builtin
def cdiv(g: Builder, a, b):
    """Integer division ``a / b``, rounded up. The result is a constant if both are constants.
    Also works outside kernels, for grids.

    The result is 0 where a run-time `b` is 0; a constant 0 is an error. If `a` is an int32 or int64 scalar, and `b` a
    positive constant or `tile.num_programs()`, then ``a + b - 1`` must not overflow the dtype.
    """
    if isinstance(b, int) and b == 0:
        raise g.error("cdiv divides by zero")
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    dtype = common_dtype(g, a, b)
    if dtype.is_float:
        raise g.error(_no_integers(a, b) + "tile.ceil")
    positive = b > 0 if isinstance(b, int) else is_number_of_ctas(g, b)
    if dtype in (int32, int64) and all(isinstance(number(g, x), Scalar) for x in (a, b)) and positive:
        return binary(g, "//", binary(g, "+", a, binary(g, "-", b, 1) if not isinstance(b, int) else b - 1), b)
    rest: Operand = compare(g, "!=", binary(g, "%", a, b), 0)  # unlike a + b - 1, this cannot overflow
    if not isinstance(b, int):
        rest = binary(g, "&", rest, compare(g, "!=", b, 0))
    return binary(g, "+", binary(g, "//", a, b), rest)


def _no_integers(a, b) -> str:
    return f"cdiv divides integers, not {describe(a)} and {describe(b)}; divide with / and round up with "


def _plain_cdiv(a, b) -> int:
    if not all(hasattr(x, "__index__") for x in (a, b)):
        raise CompilationError(_no_integers(a, b) + "math.ceil")
    if index(b) == 0:
        raise CompilationError("cdiv divides by zero")
    return -(-index(a) // index(b))


cdiv.plain = _plain_cdiv


# -- facts and checks --------------------------------------------------------------------------------------------------

@op("syncs")
def assumed(condition: Registers):
    """A promise that `condition` holds."""


@assumed.infer
def _(g, condition):
    return None


@assumed.simulate
def _(m, call, condition):
    if not np.all(condition | ~m.active):
        m.assertion("the fact that tile.assume promises does not hold", ~np.all(condition | ~m.active, axis=1))


@assumed.emit
def _(e, call, condition):
    e.declare("declare void @llvm.assume(i1)")
    e.stmt(f"call void @llvm.assume(i1 {condition.text})")


@builtin
def assume(g: Builder, fact):
    """Promise that `fact`, a bool scalar, is true. The compiler relies on it, and the simulator checks it.

    ``tile.assume(n % 16 == 0)`` makes 16 a known divisor of `n`.
    """
    if isinstance(fact, bool):
        if not fact:
            raise g.error("the assumed fact is false")
        return
    if not isinstance(type_of(fact), Scalar) or type_of(fact).dtype != bool_:
        raise g.error(f"assume takes a bool scalar, not {describe(fact)}")
    g.call(assumed, fact)


@op("pure")
def the_same(x):
    """`x`, with the promise that it is the same in all threads of the scope."""


@the_same.infer
def _(g, x):
    return Scalar(x.type.dtype, g.scope.uniformity, x.type.weak)


@the_same.simulate
def _(m, call, x):
    """The value of the scope's first active thread. An assertion fails if others differ; NaN equals NaN here."""
    if x.shape[1] == 1:
        return x
    here = np.broadcast_to(m.active, (m.batch, m.threads))
    x = np.broadcast_to(x, here.shape)
    first = np.take_along_axis(x, here.argmax(axis=1)[:, None], axis=1)
    differs = here & (x != first) & ((x == x) | (first == first))
    if differs.any():
        m.assertion("the number that tile.uniform promises to be the same in all threads of the scope is not",
                    differs.any(axis=1))
    return first


@the_same.emit
def _(e, call, x):
    return x


@builtin
def uniform(g: Builder, x):
    """`x`, with the promise that this scalar is the same in all threads of the scope. The compiler relies on it, the
    simulator checks it.

    Uniform scalars are required where the threads of a scope work together: as an element that fills a tile, the
    start of a region, or the condition of a branch that contains operations on tiles. The compiler cannot prove
    uniformity of values computed from a thread's id; what a warp's lanes vote, or all read from one lane, is uniform
    in the warp only.
    """
    if not isinstance(type_of(x), Scalar):
        raise g.error(f"uniform takes a scalar, not {describe(x)}")
    if isinstance(x, Value) and type_as(x, Scalar).uniform < g.scope.uniformity:
        return g.call(the_same, x)
    return x


@op("syncs", attrs=("message",))
def assert_(condition: Registers, message):
    """Stop the kernel with an error if `condition` is false."""


@assert_.infer
def _(g, condition, message):
    return None


@assert_.simulate
def _(m, call, condition):
    scalar = isinstance(type_of(call.args[0]), Scalar)
    failed = ~np.all(condition | ~m.active if scalar else condition, axis=tuple(range(1, condition.ndim)))
    if failed.any():
        m.assertion(call.attrs["message"] or "assertion failed", failed)


@assert_.emit
def _(e, call, condition):
    """Execute ``trap`` in the threads that hold a false element. If none does,
    this costs one instruction for each register."""
    t = type_of(call.args[0])
    parts = condition if isinstance(condition, list) else [condition]
    for r, value in enumerate(parts):
        ghost = e.tiles.is_element(t, r) if isinstance(t, Tile) else None
        false = e.ins(f"xor i1 {value.text}, true", bool_)
        e.asm("@$0 trap;", [], [e.all_of([false, ghost]) if ghost is not None else false])


@builtin
def device_assert(g: Builder, condition, message=""):
    """Stop the kernel with an error if `condition`, or an element of it if it is a tile, is false.

    On the simulator, the error names the line and the CTA. On the GPU,
    the error appears when the host next synchronises.
    """
    if not isinstance(message, str):
        raise g.error("an assertion's message is a plain string")
    g.call(assert_, as_condition(g, condition), message=message)
