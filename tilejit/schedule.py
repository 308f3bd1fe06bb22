"""Orders of tiles that keep operands in the L2 cache, and persistent loops over them.

CTAs that run at the same time share operands.
"""

from __future__ import annotations

from functools import lru_cache

from .dtypes import int32, uint32
from .frontend.ranges import loop_over
from .frontend.source import MISSING
from .ir.builder import Builder, describe, type_of
from .ir.builtin import builtin
from .ir.graph import Const, Operand
from .jit import Kernel, jit
from .names import suggest_nearest
from .ops.language.ids import is_number_of_ctas, num_programs, program_id
from .ops.language.operators import binary, compare
from .ops.language.pointwise import cast, device_assert, maximum
from .ops.language.promotion import strong_cast
from .ops.memory.atomics import BUILTINS as ATOMICS
from .types import Points, Region, Scalar

LARGEST_GROUP = 1 << 15  # rows of tiles in a group, so that a group of up to 65535 columns has fewer than 2^31 tiles
POWERS = tuple(1 << n for n in range(1, 8))  # powers of 2 by which numbers of tiles are shifted instead of divided

# -- orders: functions of the tile's number t, which is not negative, and the extents of the grid of tiles -------------
# max(extent, 1) changes nothing, since extents are at least 1; it proves that divisions are unsigned,
# which take a third of the code.

def row(t, tiles_m, tiles_n, group):
    """Row by row."""
    n, m = divide_by_count(t, tiles_n)
    return m, n


def column(t, tiles_m, tiles_n, group):
    """Column by column."""
    return divide_by_count(t, tiles_m)


@builtin
def divide_by_count(g: Builder, t, count):
    """(t % count, t // count), without a division if `count` is one of `POWERS`: each division before its first tile
    is known delays the first copy of a CTA by 200 cycles."""
    return g.invoke(helper(by_one_shift), (t, count, POWERS), {})


def by_one_shift(t, count, powers):
    count = max(count, 1)
    if (count & (count - 1) == 0) & (count <= powers[-1]):
        at, above = divide_by_shift(t, count, powers)
    else:
        at, above = t % count, t // count
    return at, above


@builtin
def divide_by_shift(g: Builder, t, count, powers):
    """(t % count, t // count) by a shift, for a `count` that is 1 or in `powers`."""
    return g.invoke(helper(by_shift), (t, count, powers), {})


def by_shift(t, count, powers):
    shift = 0
    for power in powers:
        shift += cast(count >= power, int32)
    return t & (count - 1), t >> shift


@builtin
def in_group(g: Builder, t, tiles_m, tiles_n, group):
    """(first row of the group that contains tile `t`, the tile's row in the group, its column), with groups of
    `group` rows in column-major order."""
    return g.invoke(helper(by_shifts),
                    (t, tiles_m, tiles_n, group, tuple(1 << n for n in range(1, group.bit_length()))), {})


@builtin
def group_by_divisions(g: Builder, t, tiles_m, tiles_n, group):
    """`in_group` by divisions, for any tile."""
    return g.invoke(helper(by_divisions), (t, tiles_m, tiles_n, group), {})


def by_divisions(t, tiles_m, tiles_n, group):
    each = group * max(tiles_n, 1)
    above, at = t // each * group, t % each
    rows = max(min(tiles_m - above, group), 1)
    return above, at % rows, at // rows


def by_shifts(t, tiles_m, tiles_n, group, powers):
    """`in_group` without divisions in the first group, where most CTAs begin, if its number of rows is in `powers`."""
    rows = max(min(tiles_m, group), 1)
    if (t < group * max(tiles_n, 1)) & (rows & (rows - 1) == 0):
        above, (m, n) = 0, divide_by_shift(t, rows, powers)
    else:
        above, m, n = group_by_divisions(t, tiles_m, tiles_n, group)
    return above, m, n


def grouped(t, tiles_m, tiles_n, group):
    """Groups of `group` rows, one after the other; each column by column."""
    above, m, n = in_group(t, tiles_m, tiles_n, group)
    return above + m, n


def snake(t, tiles_m, tiles_n, group):
    """As grouped, but every other group goes from the last column back to the first,
    so that it begins where the last one ended."""
    above, m, n = in_group(t, tiles_m, tiles_n, group)
    back = above // group % 2
    return above + m, max(n + back * (tiles_n - 1 - 2 * n), 0)


def hilbert(t, tiles_m, tiles_n, group):
    """A space-filling (generalised Hilbert) curve through a grid of any extents: each tile is a neighbour of the one
    before it (with odd extents sometimes a diagonal one). The current box has `w` steps along direction a and `h`
    along b. A long box is cut into two halves, any other into three parts that the curve enters and leaves at
    corners, until it is one step wide."""
    wide = tiles_n >= tiles_m
    m, n = 0, 0
    w, h = max(tiles_m, tiles_n), min(tiles_m, tiles_n)
    an = wide * 1
    am = 1 - an
    bm, bn = an, am
    while min(w, h) > 1:
        w2, h2 = w // 2, h // 2
        if 2 * w > 3 * h:
            w2 += w2 % 2 * (w > 2)
            if t < w2 * h:
                w = w2
            else:
                t, m, n, w = t - w2 * h, m + am * w2, n + an * w2, w - w2
        else:
            h2 += h2 % 2 * (h > 2)
            if t < w2 * h2:
                w, h, am, an, bm, bn = h2, w2, bm, bn, am, an
            elif t < w2 * h2 + w * (h - h2):
                t, m, n, h = t - w2 * h2, m + bm * h2, n + bn * h2, h - h2
            else:
                t -= w2 * h2 + w * (h - h2)
                m, n = m + am * (w - 1) + bm * (h2 - 1), n + an * (w - 1) + bn * (h2 - 1)
                w, h, am, an, bm, bn = h2, w - w2, 0 - bm, 0 - bn, 0 - am, 0 - an
    # Starts of stores may not be negative, and the compiler knows nothing about the values after a loop.
    return max(m + t * (am if h == 1 else bm), 0), max(n + t * (an if h == 1 else bn), 0)


ORDERS = {order.__name__: order for order in (row, column, grouped, snake, hilbert)}
helper = lru_cache(jit)  # the functions above become kernels when they are first used


# -- the language's names ----------------------------------------------------------------------------------------------

@builtin
def tile_at(g: Builder, t, tiles_m, tiles_n, order="grouped", group=8):
    """The coordinates (m, n) of the `t`-th tile in a grid of `tiles_m` by `tiles_n` tiles.

    `order` is "row", "column", "grouped" (groups of `group` rows, each column by column), "snake" (the same with
    every other group backwards), "hilbert", or a helper under ``@tile.jit`` that takes (t, tiles_m, tiles_n, group)
    and returns (m, n). A negative `t` counts as 0. From ``tiles_m * tiles_n`` on, the coordinates mean nothing, and
    may even be those of a tile.
    """
    _check_integers(g, t=t)
    _check_order(g, tiles_m, tiles_n, order, group)
    return _place_tile(g, t, tiles_m, tiles_n, order, group)


def _place_tile(g: Builder, t, tiles_m, tiles_n, order, group: int):
    place = g.invoke(helper(ORDERS[order]) if isinstance(order, str) else order,
                     (maximum.function(g, t, 0), tiles_m, tiles_n, group), {})
    if not isinstance(place, tuple) or len(place) != 2 or not all(map(_is_integer, place)):
        raise g.error(f"an order returns (m, n), two integers, not {describe(place)}")
    return place


def _is_integer(x) -> bool:
    t = type_of(x)
    return isinstance(t, Scalar) and t.dtype.is_int


def _check_integers(g: Builder, **given) -> None:
    for what, x in given.items():
        if not _is_integer(x):
            raise g.error(f"{what} is an integer, not {describe(x)}")


def _check_order(g: Builder, tiles_m, tiles_n, order, group) -> None:
    """CompilationError for an invalid grid of tiles, order or group."""
    _check_integers(g, tiles_m=tiles_m, tiles_n=tiles_n)
    for what, x in (("tiles_m", tiles_m), ("tiles_n", tiles_n)):
        if isinstance(x, int) and x < 0:
            raise g.error(f"{what} is a number of tiles, at least 0, not {x}")
    if not isinstance(order, Kernel) and (not isinstance(order, str) or order not in ORDERS):
        raise g.error(f"order is {', '.join(map(repr, ORDERS))} or a helper under @tile.jit, "
                      f"not {describe(order)}{suggest_nearest(order, ORDERS)}")
    if isinstance(order, Kernel):
        params = order.source.params
        if not sum(p.default is MISSING for p in params) <= 4 or len(params) < 4 and order.source.rest is None:
            raise g.error("an order takes (t, tiles_m, tiles_n, group), "
                          f"and {order.source.name} takes ({', '.join(p.name for p in params)})")
    if isinstance(group, bool) or not isinstance(group, int) or not 1 <= group <= LARGEST_GROUP:
        raise g.error(f"group is a constant, 1 to {LARGEST_GROUP} rows of tiles, not {describe(group)}"
                      + g.declared_constant(group))


@builtin
def tile_order(g: Builder, tiles_m, tiles_n, order="grouped", group=8, first=None, stride=None):
    """A persistent loop: ``for m, n in tile.tile_order(tiles_m, tiles_n):`` runs over this CTA's share of the tiles.

    The share is every `stride`-th tile from `first` on; the defaults are ``program_id(0)`` and ``num_programs(0)``. A
    run-time `first` below 0 or `stride` below 1 fails a device_assert. `order` and `group` are as in `tile_at`.
    """
    own = first is None
    first = g.call(program_id, axis=0) if own else first
    stride = g.call(num_programs, axis=0) if stride is None else stride
    _check_order(g, tiles_m, tiles_n, order, group)
    _check_integers(g, first=first, stride=stride)
    if isinstance(tiles_m, int) and isinstance(tiles_n, int):
        total: int | Operand = tiles_m * tiles_n
    else:
        total = binary(g, "*", tiles_m, tiles_n)
    first, stride = (x.value if isinstance(x, Const) else x for x in (first, stride))
    if isinstance(stride, int) and stride < 1:
        raise g.error(f"stride is at least 1, not {stride}")
    if isinstance(first, int) and first < 0:
        raise g.error(f"first is at least 0, not {first}")
    here = g.loc
    for what, x, least, checked in (("first", first, 0, own), ("stride", stride, 1, is_number_of_ctas(g, stride))):
        if not (checked or isinstance(x, int)):
            device_assert.function(g, compare(g, ">=", x, least), f"{what} of tile_order is at least {least}")

    def item(g: Builder, t):
        with g.at_location(here):
            return _place_tile(g, t, tiles_m, tiles_n, order, group)

    return loop_over(g, first, total, stride, item=item, rising=True)


@builtin
def next_tile(g: Builder, counter, tiles):
    """Take the next tile: returns its number, counted by the uint32 element `counter` of global memory. A number of
    at least `tiles` means that none is left.

    One scope of each CTA must call this until no tile is left. The counter must be 0 before the launch, and is 0
    again after it: ``atom.inc`` wraps it around at the last call.
    """
    t = type_of(counter)
    if not isinstance(t, (Region, Points)) or t.shape != () or t.scope != "global" or t.dtype != uint32:
        raise g.error(f"the counter is one uint32 element of global memory, as in counter[0], not {describe(counter)}")
    asking = binary(g, "*", binary(g, "*", g.call(num_programs, axis=0), g.call(num_programs, axis=1)),
                    g.call(num_programs, axis=2))
    last = binary(g, "-", binary(g, "+", tiles, asking), 1)
    return strong_cast(g, ATOMICS["atomic_inc"].function(g, counter, strong_cast(g, last, uint32)), int32)
