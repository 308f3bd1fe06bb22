"""Stride and divisibility analysis of index tiles (Triton's "axis info").

It tells how neighbouring elements along an axis differ.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod

from ...dtypes import DType
from ...ir.builder import type_as, type_of
from ...ir.graph import Call, Operand
from ...ops.tiles import arrange, casts, division, elementwise as ew, generate, layout_change
from ...types import Scalar, Tile
from .integer_analysis import INDICES, REPEATS, IntegerAnalysis
from .intervals import divisor_in

Ramp = tuple[int, int]  # (step, divisor of the first element)

FOLLOWED = 64  # the longest chain of operations that is followed

# comparisons as the sign of a difference: of the operands (1) or of the operands swapped (-1)
FALLS = {ew.lt: 1, ew.ge: 1, ew.gt: -1, ew.le: -1}


class IndexTileAnalysis(IntegerAnalysis):
    """The analysis of one graph's index tiles, and of the masks computed from them."""

    _followed = 0

    def ramp(self, operand: Operand, axis: int, count: int) -> Ramp | None:
        """The (step, divisor) of a tile along `axis`, which is counted from the end.

        Every run of `count` elements that starts at a multiple of `count` is a ramp: it grows by `step` from one
        element to the next, and its first element is a multiple of `divisor`. None where that is not known. For
        floats and bools the only ramps are constant runs, with step 0.
        """
        t = type_of(operand)
        if not isinstance(t, Tile):
            return 0, self.divisor(operand)
        count = 1 if t.shape[axis] == 1 else count
        if count == 1 and not t.dtype.is_int:
            return 0, 1
        key, ramps = (operand, axis, count), self._known.ramps
        if key in self._known.alike:
            supposed: Ramp = self._known.alike[key]
            return supposed
        if key not in ramps:
            self._followed += 1
            found = self._ramp(operand, axis, count) if self._followed <= FOLLOWED else None
            self._followed -= 1
            if found is not None:
                ramps[key] = _ramp_in_dtype(t.dtype, *found, count)
            else:
                ramps[key] = (0, 1) if count == 1 else None
        return ramps[key]

    def _ramp(self, value: Operand, axis: int, count: int) -> Ramp | None:
        if value in self.branch_values:
            one, other = (self.ramp(side, axis, count) for side in self.branch_values[value])
            return (one[0], gcd(one[1], other[1])) if one and other and one[0] == other[0] else None
        if value in self.carried:
            return self._carried_ramp(value, axis, count)
        call = self.definitions.get(value)
        if call is None:
            return None
        match call.op:
            case generate.splat:
                return 0, self.divisor(call.args[0])
            case generate.iota:
                return 1, gcd(call.attrs["start"], count)
            case generate.indices:
                return (1, count) if call.attrs["axis"] == axis + len(call.attrs["shape"]) else (0, 1)
            case casts.cast | layout_change.convert_layout | arrange.broadcast:
                return self.ramp(call.args[0], axis, count)
            case arrange.transpose_:
                return self.ramp(call.args[0], call.attrs["axes"][axis] - len(call.attrs["axes"]), count)
            case arrange.reshape_:
                return self._ramp_of_reshape(call, axis, count)
        elementwise = call.op.rules.element is not None or call.op is ew.select
        return self._ramp_of_elementwise(call, axis, count) if elementwise else None

    def _ramp_of_reshape(self, call: Call, axis: int, count: int) -> Ramp | None:
        """The ramp of a reshape: that of the operand's axis with the same stride in row-major order, if runs are
        whole along both."""
        source, shape = type_as(call.args[0], Tile).shape, call.attrs["shape"]
        def inner_size(shape: tuple[int, ...], d: int) -> int:
            return prod(shape[len(shape) + d + 1:])
        for d in range(-len(source), 0):
            if inner_size(source, d) == inner_size(shape, axis) and source[d] % count == shape[axis] % count == 0:
                return self.ramp(call.args[0], d, count)
        return None

    def _ramp_of_elementwise(self, call: Call, axis: int, count: int) -> Ramp | None:
        """The ramp of an elementwise operation: constant runs give constant runs,
        other steps are followed through some operations."""
        found = [self.ramp(a, axis, count) for a in call.args if a is not None]
        if None in found:
            return None
        steps, parts = zip(*found)
        if not any(steps):
            return 0, self._divisor_of(call, parts)
        if len(steps) != 2:
            return None
        (one, other), known = steps, [self.constant(a) for a in call.args]
        by = known[1]
        if by is None and other == 0 and self._not_negative(call.args[1]):
            by = parts[1]
        match call.op:
            case ew.add | ew.sub:
                return one + other if call.op is ew.add else one - other, gcd(*parts)
            case ew.mul if None in known and known != [None, None]:
                return (one or other) * next(k for k in known if k is not None), parts[0] * parts[1]
            case ew.mul if known == [None, None] and 0 in steps and self.is_one(call.args[steps.index(0)]):
                return one or other, parts[1 - steps.index(0)]
            case division.floordiv if _stays_in_one_multiple(one, count, parts[0], by):
                return 0, self._divisor_of(call, parts)
            case division.mod if _stays_in_one_multiple(one, count, parts[0], by):
                return one, gcd(*parts)
            case ew.lt | ew.ge | ew.gt | ew.le if _stays_in_one_multiple((one - other) * FALLS[call.op], count,
                                                                         gcd(*parts)):
                return 0, 1
        return None

    def is_one(self, operand: Operand) -> bool:
        """Whether an integer, or every element of a tile, is a launch argument that is known to be 1."""
        return False

    def source_of_broadcast(self, operand: Operand) -> Operand:
        """The scalar that a tile was broadcast from; any other operand itself."""
        call = self.definitions.get(operand)
        return self.source_of_broadcast(call.args[0]) if call is not None and call.op in REPEATS else operand

    def _not_negative(self, operand: Operand) -> bool:
        """Whether a scalar, or the one that a tile was broadcast from, is at least 0."""
        scalar = self.source_of_broadcast(operand)
        low, _ = self.bounds(scalar) if isinstance(type_of(scalar), Scalar) else (None, None)
        return low is not None and low >= 0

    def _carried_ramp(self, value: Operand, axis: int, count: int) -> Ramp | None:
        """The ramp of a carried tile, by induction: that of its initial value, as far as every trip preserves it."""
        carried = self.carried[value]
        kept, alike, around = self.ramp(carried.init, axis, count), self._known.alike, self._knowledge_around(value)
        while kept is not None:
            with self._with_knowledge(replace(around, alike=alike | {(carried.inner, axis, count): kept}, ramps={})):
                made = self.ramp(carried.following, axis, count)
            found = (kept[0], gcd(kept[1], made[1])) if made is not None and made[0] == kept[0] else None
            if found == kept:
                break
            kept = found
        return kept


def _stays_in_one_multiple(step: int, count: int, divisor: int, by: int | None = 0) -> bool:
    """Whether a run of `count` elements that starts at a multiple of `divisor` stays between neighbouring multiples
    of `by` (0: of `divisor`)."""
    return by is not None and by >= 0 and 0 <= step * (count - 1) < gcd(divisor, by)


def _ramp_in_dtype(dtype: DType, step: int, divisor: int, count: int) -> Ramp | None:
    """A ramp once it is stored in `dtype`: index arithmetic is assumed not to wrap,
    other integers must not wrap within a run."""
    step = 0 if count == 1 else step
    if not dtype.is_int:
        return (0, 1) if step == 0 else None
    if dtype in INDICES:
        return step, divisor_in(dtype, divisor)
    divisor = gcd(divisor, 1 << dtype.bits - 1)
    return (step, divisor) if _stays_in_one_multiple(step, count, divisor) else None
