"""Random numbers: Philox 4x32-10 and what is made of its words, uniform and normal numbers.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). Every
function is written in operations of the language, so the simulator and the GPU compute the same integers.
"""

from __future__ import annotations

import math

from ...dtypes import int32, uint32, uint64
from ...ir.builder import Builder, describe
from ...ir.builtin import builtin
from ...ir.graph import Const, Operand, Value
from ..tiles import casts, elementwise as ew
from .math import FUNCTIONS
from .operators import binary
from .promotion import broadcast_shape, match_operands, number, spread, strong_cast

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
    return _philox(g, seed, offset, "philox")


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
    return _uniform(g, _philox(g, seed, offset, "rand")[0])


@builtin
def randn(g: Builder, seed, offset):
    """A random float32 for each element of `offset`, from the normal distribution of mean 0 and variance 1.

    Box and Muller's transform of two uniform numbers, made of the first two words of `tile.philox`: ``sqrt(-2 log u) *
    cos(2 pi v)`` with u of at least 1e-7, so that results lie within 5.68 of 0. The uniform numbers are those of
    Triton's ``tl.randn(seed, offset)``, and the result differs by the errors of log, sqrt and cos. The functions are
    the accurate ones also with the launch option fast_math, whose logarithm could give a NaN near 1.
    """
    first, second, _, _ = _philox(g, seed, offset, "randn")
    u = g.call(ew.maximum, *match_operands(g, _uniform(g, first), LEAST))
    angle = binary(g, "*", _uniform(g, second), 2 * math.pi)
    radius = _accurate(g, "sqrt", binary(g, "*", _accurate(g, "log", u), -2.0))
    return binary(g, "*", radius, _accurate(g, "cos", angle))


def _accurate(g: Builder, name: str, x: Value) -> Value:
    return g.call(FUNCTIONS[name][0], x)


def _uniform(g: Builder, word: Value) -> Value:
    """A uint32 as a float32 in [0, 1). A negative int32 is complemented, so that 31 bits are left."""
    x = g.call(casts.bitcast, word, dtype=int32)
    return binary(g, "*", binary(g, "^", x, binary(g, ">>", x, 31)), SCALE)


def _philox(g: Builder, seed, offset, name: str) -> tuple[Value, ...]:
    """The words of the counter `offset` after all rounds, with the key `seed`."""
    key = _halves(g, _integer(g, seed, f"the seed of {name}", "as in philox(1234, offset)"))
    words = _counter(g, offset, name)
    shape = broadcast_shape(g, *(number(g, x) for x in (*key, *words)))
    c0, c1, c2, c3 = (spread(g, word, shape) for word in words)
    for n in range(ROUNDS):
        k0, k1 = (_add(g, k, n * step & LOW) for k, step in zip(key, KEY_STEPS))
        (high0, low0), (high1, low1) = (_product(g, c, m) for c, m in zip((c0, c2), MULTIPLIERS))
        c0, c2 = (binary(g, "^", binary(g, "^", high, c), k) for high, c, k in ((high1, c1, k0), (high0, c3, k1)))
        c1, c3 = low1, low0
    return c0, c1, c2, c3


def _add(g: Builder, key: Operand, step: int) -> Operand:
    return Const(key.value + step & LOW, uint32) if isinstance(key, Const) else binary(g, "+", key, step)


def _product(g: Builder, word: Operand, multiplier: int) -> tuple[Value, Value]:
    """The upper and the lower half of a product of 64 bits, which is one instruction."""
    product = binary(g, "*", strong_cast(g, word, uint64), multiplier)
    return strong_cast(g, binary(g, ">>", product, 32), uint32), strong_cast(g, product, uint32)


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
        return Const(wide.value & LOW, uint32), Const(wide.value >> 32, uint32)
    return strong_cast(g, wide, uint32), strong_cast(g, binary(g, ">>", wide, 32), uint32)
