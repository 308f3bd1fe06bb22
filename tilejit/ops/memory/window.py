"""``window``: views of arrays with narrower bounds, which every access respects exactly, to the element."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, prod

from ...dtypes import int32, integer_range
from ...ir.builder import Builder, describe, type_as, type_of
from ...ir.builtin import builtin
from ...ir.graph import Const, Operand, Value
from ...types import Buffer
from ..language.operators import binary
from ..language.promotion import as_index, common_dtype, match_operands, number, uniform_scalar
from ..language.sizes import size_of
from ..tiles import elementwise as ew
from ..tiles.casts import cast
from .packed import refuse_packed
from .regions import parts, window_


@builtin
def window(g: Builder, array, offsets, extents):
    """A view of an array or of another window: `extents` elements from `offsets` on,
    one number of each for every dimension.

    Its coordinates begin at 0. Elements outside of the window or of the array are read as `other`, and not written.
    Offsets and extents may be run-time numbers that are the same for all threads of the scope. An extent of None is
    the rest of the dimension. Regions of a window have constant extents, like those of an array.
    """
    if not isinstance(type_of(array), Buffer) or type_of(array).scope != "global" or type_of(array).map is not None:
        raise g.error("window narrows the bounds of an array, as in tile.window(A, (0, start), (M, n)), "
                      f"not of {describe(array)}")
    refuse_packed(g, "a window", array.type.dtype)
    rank = len(array.type.shape)
    offsets, extents = (x if isinstance(x, tuple) else (x,) for x in (offsets, extents))
    if (len(offsets), len(extents)) != (rank, rank):
        raise g.error(f"an array of {rank} dimensions has a window of {rank} offsets and extents, "
                      f"not {len(offsets)} and {len(extents)}")
    return narrow_window(g, array, offsets, extents, lambda d, x: _divisor(g, x))


def narrow_window(g: Builder, array: Value, offsets: tuple, extents: tuple,
                  divisor: Callable[[int, Operand | int], int]) -> Value:
    """The window of `offsets` and `extents`. ``divisor(d, x)`` is a known divisor of x,
    an offset or extent of dimension d."""
    t = type_as(array, Buffer)
    made, narrowed = [], []
    for d, (origin, size, low, count) in enumerate(zip(*parts(g, array))):
        offset, extent = (None if x is None and what == "an extent" else _uniform_index(g, x, what, t.shape[d])
                          for x, what in ((offsets[d], "an offset"), (extents[d], "an extent")))
        if isinstance(extent, int) and extent < 0:
            raise g.error(f"the extent of a window is at least 0, not {extent}")
        own = t.narrowed[d] if t.narrowed is not None else 0
        if (isinstance(offset, int) and offset == 0
            and (extent is None or not own and _is_size(g, extent, t.shape[d]))):
            made.append((origin, size, low, count))
            narrowed.append(own)
            continue
        begin, end = _sum(g, origin, offset), _sum(g, low, count)
        first = _extreme(g, "minimum", _extreme(g, "maximum", low, begin), end)
        if extent is None:
            last = end
        else:
            last = _extreme(g, "maximum", first, _extreme(g, "minimum", end, _stop(g, begin, extent)))
        extent = _sum(g, size, offset, "-") if extent is None else extent
        made.append((begin, extent, first, _sum(g, last, first, "-")))
        steps = gcd(divisor(d, begin), 0 if extents[d] is None else divisor(d, extent), own)
        narrowed.append(min(steps, 1 << 20) or 1 << 20)
    if not any(narrowed):
        return array
    base = array if t.narrowed is None else g.definitions[array].args[0]
    return g.call(window_, base, *(g.operand(x, int32) for group in zip(*made) for x in group),
                  narrowed=tuple(narrowed))


def _uniform_index(g: Builder, x, what: str, size):
    if x is None or not number(g, x).dtype.is_int:
        raise g.error(f"{what} of a window is an integer, not {describe(x)}")
    x = as_index(g, x, size)
    x = uniform_scalar(g, x, f"{what} of a window", type_of(x).dtype)
    return x.value if isinstance(x, Const) else x


def _is_size(g: Builder, extent, size) -> bool:
    """Whether an extent is the size of the whole dimension."""
    call = g.definitions.get(extent) if isinstance(extent, Value) else None
    return extent == size if call is None else call.op is size_of and call.attrs["sym"] == size


def _sum(g: Builder, a, b, symbol: str = "+"):
    if isinstance(a, int) and isinstance(b, int):
        return a + b if symbol == "+" else a - b
    if isinstance(b, int) and b == 0:
        return a
    if isinstance(a, int) and a == 0 and symbol == "+":
        return b
    return binary(g, symbol, a, b)


def _stop(g: Builder, begin, extent):
    """``begin + extent`` with negative extents taken as 0, saturated at the largest number of their dtype."""
    if isinstance(begin, int) and isinstance(extent, int):
        return begin + extent
    most, extent = integer_range(common_dtype(g, begin, extent))[1], _extreme(g, "maximum", extent, 0)
    return _sum(g, _extreme(g, "minimum", begin, _sum(g, most, extent, "-")), extent)


def _extreme(g: Builder, name: str, a, b):
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b) if name == "maximum" else min(a, b)
    return g.call(getattr(ew, name), *match_operands(g, a, b))


_KEEP_DIVISORS = ew.add, ew.sub, ew.minimum, ew.maximum  # what divides both operands divides the result


def _divisor(g: Builder, x: Operand | int, known: dict | None = None) -> int:
    """A divisor of an integer, derived from the operations that compute it (0 for the number 0).
    `known` caches those of operands."""
    if isinstance(x, (int, Const)):
        return abs(int(x.value if isinstance(x, Const) else x))
    known = {} if known is None else known
    if x not in known:
        call = g.definitions.get(x)
        op = call.op if call is not None else None
        followed = call is not None and op in (cast, *_KEEP_DIVISORS, ew.mul)
        parts = [_divisor(g, a, known) for a in call.args] if call is not None and followed else [1]
        known[x] = prod(parts) if op is ew.mul else gcd(*parts)
    return known[x]
