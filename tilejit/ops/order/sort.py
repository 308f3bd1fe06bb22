"""Sorting that users call: sort, argsort and topk.

Elements become unsigned integers of the same order (`Keys`), which `sort_keys` sorts. Where places are asked for, each
integer has the element's index below it. So equal elements stay in their order, and all integers differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...dtypes import DType, bool_, dtype_of, float32, int32, uint32, uint64
from ...ir.builder import Builder, as_value, describe, element_type, extents_of, flag
from ...ir.builtin import builtin, method
from ...ir.graph import Operand, Value
from ...types import Tile
from ..language.creation import zeros
from ..language.operators import binary, compare
from ..language.pointwise import bitcast, cast, isnan, where
from ..language.promotion import convert
from ..language.shape import checked_axis, tile_operand
from ..reduce.ragged_warnings import warn_if_ragged
from ..reduce.reductions import flat_index
from .network import bits_for
from .sort_keys import sort_keys


@dataclass(frozen=True)
class Keys:
    """Unsigned integers in the order of a dtype's elements; the lowest `bits` of `word` count.

    NaNs are above all numbers: they have the largest key, whatever their bits. -0.0 is just below 0.0, or equal to it
    if `zeros_equal`. In `descending` order, the keys are complemented.
    """

    dtype: DType
    descending: bool
    zeros_equal: bool = False

    @property
    def bits(self) -> int:
        return 1 if self.dtype == bool_ else self.dtype.bits

    @property
    def word(self) -> DType:
        return uint64 if self.bits == 64 else uint32

    @property
    def unsigned_dtype(self) -> DType:
        return dtype_of(f"uint{self.bits}")

    @property
    def ones(self) -> int:
        return (1 << self.bits) - 1

    @property
    def sign(self) -> int:
        """The sign's bit; 0 if the dtype has none."""
        return 1 << self.bits - 1 if self.dtype.signed and self.dtype.name != "float8_e8m0fnu" else 0

    def encode(self, g: Builder, x: Value) -> Value:
        """The keys of the elements of `x`."""
        if self.dtype == bool_:
            key = cast.function(g, x, self.word)
        else:
            key = cast.function(g, bitcast.function(g, x, self.unsigned_dtype), self.word)
        if not self.dtype.is_float:
            key = binary(g, "^", key, self.number(g, self.sign))
        else:
            if self.sign:
                negative: Operand = compare(g, "!=", binary(g, "&", key, self.number(g, self.sign)), self.number(g, 0))
                if self.zeros_equal:
                    negative = binary(g, "&", negative, compare(g, "!=", key, self.number(g, self.sign)))
                    key = where.function(g, compare(g, "==", key, self.number(g, self.sign)), self.number(g, 0), key)
                key = binary(g, "^", key, where.function(g, negative, self.number(g, self.ones),
                                                         self.number(g, self.sign)))
            key = where.function(g, isnan.function(g, x), self.number(g, self.ones), key)
        return self.reverse_order(g, key)

    def decode(self, g: Builder, key: Value) -> Value:
        """The elements whose keys are `key`."""
        key = self.reverse_order(g, key)
        if self.dtype == bool_:
            return compare(g, "!=", key, self.number(g, 0))
        if self.dtype.is_float and self.sign:
            positive = compare(g, "!=", binary(g, "&", key, self.number(g, self.sign)), self.number(g, 0))
            key = as_value(binary(g, "^", key, where.function(g, positive, self.number(g, self.sign),
                                                              self.number(g, self.ones))))
        elif not self.dtype.is_float:
            key = as_value(binary(g, "^", key, self.number(g, self.sign)))
        return bitcast.function(g, cast.function(g, key, self.unsigned_dtype), self.dtype)

    def reverse_order(self, g: Builder, key: Value) -> Value:
        return as_value(binary(g, "^", key, self.number(g, self.ones))) if self.descending else key

    def number(self, g: Builder, n: int):
        return g.operand(n, self.word)


def _operand(g: Builder, x, what: str, axis, descending: bool = False) -> tuple[Value, int]:
    """(the tile, its axis as a non-negative number), with a warning if elements may be out of bounds."""
    x = tile_operand(g, x, what)
    if not x.type.shape:
        raise g.error(f"{what} takes a tile with a dimension to sort along, not {describe(x)}")
    axis = checked_axis(g, axis, len(x.type.shape))
    warn_if_ragged(g, x, "descending " * descending + what, (axis,))
    return x, axis


def _sortable(x: Value) -> DType:
    """The dtype in which elements are sorted: their own, but float32, which holds them all, for floats of 4 and 6 bits,
    whose bits cannot be taken."""
    dtype = element_type(x)
    return float32 if dtype.packed else dtype


def _sorted_values(g: Builder, x: Value, axis: int, descending: bool) -> Value:
    dtype = _sortable(x)
    keys = Keys(dtype, descending)
    (key,) = g.call(sort_keys, keys.encode(g, as_value(convert(g, x, dtype))), axis=axis, kept=extents_of(x)[axis])
    return as_value(convert(g, keys.decode(g, key), element_type(x)))


def _sorted_places(g: Builder, x: Value, axis: int, descending: bool, kept: int) -> tuple[Value, Value]:
    """The first `kept` elements along `axis` in stable order, and their indices."""
    dtype = _sortable(x)
    keys = Keys(dtype, descending, zeros_equal=True)
    key, place = keys.encode(g, as_value(convert(g, x, dtype))), flat_index(g, extents_of(x), (axis,))
    below = bits_for(extents_of(x)[axis])
    if keys.bits + below > 64:
        key, place = g.call(sort_keys, key, cast.function(g, place, uint32), axis=axis, kept=kept)
    else:
        word = uint32 if keys.bits + below <= 32 else uint64
        low = 16 if word is uint32 and max(keys.bits, below) <= 16 else below
        low = 32 if word is uint64 and below <= 32 and keys.bits <= 32 else low
        both = binary(g, "|", binary(g, "<<", cast.function(g, key, word), g.operand(low, word)),
                      cast.function(g, place, word))
        (both,) = g.call(sort_keys, both, axis=axis, kept=kept)
        key = cast.function(g, binary(g, ">>", both, g.operand(low, word)), keys.word)
        place = as_value(binary(g, "&", both, g.operand((1 << low) - 1, word)))
    return as_value(convert(g, keys.decode(g, key), element_type(x))), cast.function(g, place, int32)


@builtin
def sort(g: Builder, x, axis=-1, descending=False):
    """The elements of `x` sorted along `axis`.

    NaN is above all numbers, as in NumPy: last in ascending order, first in `descending` order. -0.0 is sorted below
    0.0. A bitonic network sorts: in a thread's registers, by shuffles in a warp, and through shared memory where a row
    is longer than a warp holds.
    """
    descending = flag(g, "descending", descending)
    x, axis = _operand(g, x, "sort", axis, descending)
    return _sorted_values(g, x, axis, descending) if x.type.size else x


@builtin
def argsort(g: Builder, x, axis=-1, descending=False):
    """The int32 indices along `axis` that sort `x`, as those of ``numpy.argsort(x, axis, stable=True)``.

    Equal elements stay in their order, also in `descending` order; so do NaNs, which are above all numbers. -0.0 and
    0.0 are equal.
    """
    descending = flag(g, "descending", descending)
    x, axis = _operand(g, x, "argsort", axis, descending)
    if not x.type.size:
        return cast.function(g, x, int32)
    return _sorted_places(g, x, axis, descending, x.type.shape[axis])[1]


@builtin
def topk(g: Builder, x, k, axis=-1):
    """The `k` largest elements along `axis` in descending order, and their int32 indices: (values, indices).

    Of equal elements, those with the lowest indices come first. NaN is above all numbers, and -0.0 equals 0.0, as which
    it is returned. `k` is a constant. Blocks of `k` elements are sorted and then merged, so a small `k` costs less than
    a sort.
    """
    x, axis = _operand(g, x, "topk", axis)
    extent = x.type.shape[axis]
    if isinstance(k, bool) or not isinstance(k, int):
        raise g.error(f"k is a constant integer, not {describe(k)}" + g.declared_constant(k))
    if not extent:
        raise g.error(f"topk of {describe(x)} along an axis without elements has no value")
    if not 1 <= k <= extent:
        raise g.error(f"topk takes 1 to {extent} of {extent} elements, not {k}")
    if not x.type.size:
        shape = tuple(k if d == axis else n for d, n in enumerate(x.type.shape))
        return zeros.function(g, shape, x.type.dtype), zeros.function(g, shape, int32)
    return _sorted_places(g, x, axis, True, k)


@method(Tile, name="sort")
def _sort(g, x, axis=-1, descending=False):
    """As ``tile.sort``: the elements sorted along `axis`."""
    return sort.function(g, x, axis, descending)


@method(Tile, name="argsort")
def _argsort(g, x, axis=-1, descending=False):
    """As ``tile.argsort``: the indices that sort the tile along `axis`."""
    return argsort.function(g, x, axis, descending)
