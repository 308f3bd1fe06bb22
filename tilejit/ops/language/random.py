"""Random numbers: Philox 4x32-10 and what is made of its words, uniform and normal numbers.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). The rounds
are written once, and run on the simulator's arrays and on emitted values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ...dtypes import int32, uint32, uint64
from ...ir.builder import Builder, as_value, describe
from ...ir.builtin import builtin
from ...ir.graph import Const, Operand, Value
from ...ir.op import op
from ...ir.op_traits import Traits
from ..tiles import casts, elementwise as ew
from .math import FUNCTIONS
from .operators import binary
from .promotion import match_operands, number, strong_cast

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # the golden ratio, and the square root of 3 minus 1, times 2^32
LOW = 0xFFFFFFFF

SCALE = 4.6566127342e-10  # in float32 the number below 2^-31, so that 2^31 - 1 (rounded to 2^31) stays below 1
LEAST = 1e-7              # the least uniform number whose logarithm is taken


@builtin
def philox(g: Builder, seed, offset):
    """Four random uint32 words for each element of `offset`, in a tuple: Philox 4x32-10, keyed by `seed`.

    They depend on nothing but `seed` and `offset`, so an element has the same words in whichever CTA, layout or launch
    it is computed. `seed` is an integer of up to 64 bits, whose halves are the key; `offset` an integer tile or scalar.
    32 bits of an offset are the counter's first word, and the upper half of a 64-bit one is the second. A tuple of up
    to four integers of at most 32 bits gives the words of the counter themselves. Seed and words broadcast as in NumPy.

    The words are those of Triton's ``tl.randint4x(seed, offset)`` and ``tl.philox(seed, c0, c1, c2, c3)``.
    """
    return _philox(g, seed, offset, "philox", 4)


@builtin
def randint(g: Builder, seed, offset):
    """A random uint32 for each element of `offset`: the first word of `tile.philox`.

    The bits are those of Triton's ``tl.randint(seed, offset)``.
    """
    return _philox(g, seed, offset, "randint")[0]


@builtin
def rand(g: Builder, seed, offset):
    """A random float32 for each element of `offset`, uniform in [0, 1), made of the first word of `tile.philox`.

    There are 2^31 equally likely integers, rounded to float32 and scaled; the largest result is 1 - 2^-24. The bits are
    those of Triton's ``tl.rand(seed, offset)``.
    """
    return _unit_interval_from(g, _philox(g, seed, offset, "rand")[0])


@builtin
def randn(g: Builder, seed, offset):
    """A random float32 for each element of `offset`, from the normal distribution of mean 0 and variance 1.

    Box and Muller's transform of two uniform numbers, made of the first two words of `tile.philox`: ``sqrt(-2 log u) *
    cos(2 pi v)`` with u of at least 1e-7, so that results lie within 5.68 of 0. The uniform numbers are those of
    Triton's ``tl.randn(seed, offset)``, and the result differs by the errors of log, sqrt and cos. The functions are
    the accurate ones also with the launch option fast_math, whose logarithm could give a NaN near 1.
    """
    first, second = _philox(g, seed, offset, "randn", 2)
    u = g.call(ew.maximum, *match_operands(g, _unit_interval_from(g, first), LEAST))
    angle = binary(g, "*", _unit_interval_from(g, second), 2 * math.pi)
    radius = _call_accurate(g, "sqrt", binary(g, "*", _call_accurate(g, "log", u), -2.0))
    return as_value(binary(g, "*", radius, _call_accurate(g, "cos", angle)))


def _call_accurate(g: Builder, name: str, x: Operand) -> Value:
    return g.call(FUNCTIONS[name][0], x)


def _unit_interval_from(g: Builder, word: Value) -> Value:
    """A uint32 as a float32 in [0, 1). A negative int32 is complemented, so that 31 bits are left."""
    x = g.call(casts.bitcast, word, dtype=int32)
    return as_value(binary(g, "*", binary(g, "^", x, binary(g, ">>", x, 31)), SCALE))


def rounds(words: Sequence, key: Sequence, product: Callable, constant: Callable) -> tuple:
    """The words of a counter after all rounds. They are uint32 arrays, or emitted values: ``product(word, multiplier)``
    gives the upper and the lower half of a product of 64 bits, and ``constant(n)`` an operand of an addition."""
    c0, c1, c2, c3 = words
    for n in range(ROUNDS):
        k0, k1 = (k + constant(n * step & LOW) for k, step in zip(key, KEY_STEPS))
        (high0, low0), (high2, low2) = product(c0, MULTIPLIERS[0]), product(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
    return c0, c1, c2, c3


@op("pure", attrs=("word",), traits=Traits(elementwise=True))
def philox_(c0, c1, c2, c3, k0, k1, word):
    """One of the four words that Philox 4x32-10 makes of the counter ``c0, c1, c2, c3`` with the key ``k0, k1``.

    A thread computes one element after the other, so that only one counter at a time takes registers. What the ops of
    several words have in common is computed once, by LLVM.
    """


@philox_.infer
def _(g, *operands, word):
    return ew.result_type(g, ew.same_dtype(g, *operands), *operands)


@philox_.simulate
def _(m, call, *operands):
    def product(word, multiplier):
        wide = word.astype(np.uint64) * np.uint64(multiplier)
        return (wide >> np.uint64(32)).astype(np.uint32), wide.astype(np.uint32)
    return rounds(operands[:4], operands[4:], product, np.uint32)[call.attrs["word"]]


@philox_.emit
def _(e, call, *operands):
    def product(word, multiplier):
        wide = e.ins(f"mul i64 {e.ins(f'zext i32 {word.text} to i64', uint64).text}, {multiplier}", uint64)
        return tuple(e.ins(f"trunc i64 {half.text} to i32", uint32) for half in (wide >> 32, wide))

    def emit_element(e, dtype, *values):
        return rounds(values[:4], values[4:], product, lambda n: e.const(n, uint32))[call.attrs["word"]]
    return ew.map_registers(emit_element, e, uint32, operands)


def _philox(g: Builder, seed, offset, name: str, count: int = 1) -> tuple[Value, ...]:
    """The first `count` words that the counter `offset` gives with the key `seed`."""
    key = _halves(g, _integer(g, seed, f"the seed of {name}", "as in philox(1234, offset)"))
    operands = match_operands(g, *_counter(g, offset, name), *key, dtype=uint32)
    return tuple(g.call(philox_, *operands, word=n) for n in range(count))


def _counter(g: Builder, offset, name: str) -> tuple[Operand, ...]:
    """The four words of a counter."""
    zero = Const(0, uint32)
    if not isinstance(offset, tuple):
        offset = _integer(g, offset, f"the offset of {name}", "as in start + tile.arange(N)")
        low, high = _halves(g, offset)
        return low, (high if number(g, offset).dtype.bits == 64 else zero), zero, zero
    if not 1 <= len(offset) <= 4:
        raise g.error(f"the counter of {name} has one to four words, not {len(offset)}")
    words = [_integer(g, word, f"a word of the counter of {name}", "as in (offset, step)") for word in offset]
    for word in words:
        if number(g, word).dtype.bits == 64 and not (isinstance(word, int) and 0 <= word <= LOW):
            raise g.error(f"a word of the counter of {name} has at most 32 bits, unlike {describe(word)}; "
                          "write tile.cast(x, tile.uint32), and x >> 32 for the upper half")
    return (*(_halves(g, word)[0] for word in words), *[zero] * (4 - len(words)))


def _integer(g: Builder, x, what: str, example: str):
    """`x`, which must be an integer."""
    dtype = number(g, x).dtype
    if not dtype.is_int:
        raise g.error(f"{what} is an integer, {example}, not {describe(x)}")
    return x


def _halves(g: Builder, x) -> tuple[Operand, Operand]:
    """The lower and the upper 32 bits of an integer, whose sign is extended to 64 bits."""
    wide = strong_cast(g, x, uint64)
    if isinstance(wide, Const):
        return Const(int(wide.value) & LOW, uint32), Const(int(wide.value) >> 32, uint32)
    return strong_cast(g, wide, uint32), strong_cast(g, binary(g, ">>", wide, 32), uint32)
