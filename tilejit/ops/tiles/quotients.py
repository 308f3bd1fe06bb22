"""Division of float tiles whose threads divide several elements by the same value, such as a row by its sum.

ptxas makes of ``div.rn.f32`` a reciprocal, a test of the exponents (``FCHK``) and a branch to a subroutine for the rare
cases. Branches follow each other, so 64 quotients, as a thread of attention has at its end, take 64 times the latency
of that chain. Here the elements share the reciprocal and one branch, and a quotient is a product and two fused
multiply-adds, which overlap with those of the others.

They are correctly rounded (P. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor",
theorem 8): with r the nearest number to 1 / y and q = x * r, ``fma(fma(-q, y, x), r, q)`` is the nearest to x / y if
nothing over- or underflows. Where that is not sure, all of a thread's quotients are ``div.rn.f32``.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...dtypes import bool_, float32, int32
from ...ir.builder import element_type
from .elementwise import div

# elements by one divisor, below which the chain is short: there are two ways of dividing then, which takes a softmax
# with 32 elements in a thread from 260 to 330 ms of compilation
LEAST = 32
# The exponents of divisors: 2**-60 <= abs(y) < 2**61. Those of dividends are 2**-63 <= abs(x) < 2**65, which a shift
# and an addition test together. So abs(x / y) is in 2**-124 to 2**125, and remainders are normal numbers.
LOW, SPAN = 127 - 60 << 23, 121 << 23


@div.emit
def _(e, call, x, y):
    dtype, emit_element = element_type(call.result), div.rules.element
    if not isinstance(x, list):
        return emit_element(e, dtype, x, y)
    shared = _by_divisor(y) if dtype == float32 and not e.fast_math else []
    at = [i for group in shared for i in group]
    made = dict(zip(at, _quotients(e, [x[i] for i in at], [y[i] for i in at]))) if at else {}
    return [made[i] if i in made else emit_element(e, dtype, a, b) for i, (a, b) in enumerate(zip(x, y))]


def _by_divisor(y: list) -> list[list[int]]:
    """For each divisor that is no constant and that `LEAST` elements have: their indices."""
    found: dict[str, list[int]] = {}
    for i, divisor in enumerate(y):
        found.setdefault(divisor.text, []).append(i)
    return [at for text, at in found.items() if len(at) >= LEAST and text.startswith("%")]


def _quotients(e, x: list, y: list) -> list:
    return e.control.emit_either(
        _are_ordinary(e, x, {v.text: v for v in y}.values()),
        lambda: _by_reciprocals(e, x, y),
        lambda: [e.ins(f"fdiv float {a.text}, {b.text}", float32) for a, b in zip(x, y)])


def _are_ordinary(e, x: Iterable, y: Iterable):
    """Whether all elements and divisors have exponents for which the quotients are correctly rounded. 0 has none."""
    beyond = e.const(0, int32)
    for value in x:
        beyond = beyond | (_bits(e, value) << 1) - (1 << 30)  # the highest bit is set unless the exponent is within
    tests = [e.ins(f"icmp sge i32 {beyond.text}, 0", bool_)]
    for value in y:
        above = (_bits(e, value) & 0x7FFFFFFF) - LOW
        tests.append(e.ins(f"icmp ult i32 {above.text}, {SPAN}", bool_))
    return e.all_of(tests)


def _bits(e, value):
    return e.ins(f"bitcast float {value.text} to i32", int32)


def _by_reciprocals(e, x: list, y: list) -> list:
    one, reciprocals, made = e.const(1.0, float32), {}, []
    for a, b in zip(x, y):
        if b.text not in reciprocals:
            reciprocals[b.text] = (e.ins(f"fdiv float {one.text}, {b.text}", float32),
                                   e.ins(f"fneg float {b.text}", float32))
        by, negated = reciprocals[b.text]
        near = e.ins(f"fmul float {a.text}, {by.text}", float32)
        made.append(e.fma(e.fma(near, negated, a), by, near))
    return made


__all__: list[str] = []
