"""Which tiles of integers grow evenly along their axes, as index tiles do, and between which bounds.

Unlike the ramps of `index_tile_analysis`, a progression is one of exact numbers: nothing in its computation wraps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...dtypes import integer_range
from ...ir.builder import element_type, type_as
from ...ir.graph import Call, Operand
from ...ops.tiles import arrange, elementwise as ew, generate
from ...ops.tiles.casts import cast
from ...ops.tiles.layout_change import convert_layout
from ...types import Tile
from .integer_analysis import IntegerAnalysis
from .intervals import interval

FOLLOWED = 64  # the longest chain of operations that is followed
KEEPS_VALUES = (arrange.broadcast, arrange.reshape_, arrange.transpose_, convert_layout, cast)


@dataclass(frozen=True)
class Progression:
    """A tile whose elements are one number plus the products of their coordinates and `steps`. They lie from `low` to
    `high`."""

    steps: tuple[int, ...]
    low: int
    high: int


def progression(integers: IntegerAnalysis, operand: Operand) -> Progression | None:
    """The progression that a tile is, from the bounds that `integers` knows here; None where none is known."""
    return _Finder(integers).find(operand)


class _Finder:
    def __init__(self, integers: IntegerAnalysis):
        self.integers, self.found = integers, dict[Operand, Progression | None]()
        self.followed = 0

    def find(self, operand: Operand) -> Progression | None:
        call, dtype = self.integers.definitions.get(operand), element_type(operand)
        if call is None or not dtype.is_int:
            return None
        if operand not in self.found:
            self.followed += 1
            made = self.of_call(call, type_as(operand, Tile).shape) if self.followed <= FOLLOWED else None
            self.followed -= 1
            least, most = integer_range(dtype)
            self.found[operand] = made if made is not None and least <= made.low and made.high <= most else None
        return self.found[operand]

    def of_call(self, call: Call, shape: tuple[int, ...]) -> Progression | None:
        """The progression of a call's result, a tile of `shape`, if it does not wrap."""
        if call.op is generate.iota:
            return Progression((1,), call.attrs["start"], call.attrs["stop"] - 1)
        if call.op is generate.indices:
            axis = call.attrs["axis"]
            return Progression(tuple(int(d == axis) for d in range(len(shape))), 0, shape[axis] - 1)
        if call.op is generate.splat:
            low, high = self.integers.bounds(call.args[0], wrapping=True)
            return None if low is None or high is None else Progression((0,) * len(shape), low, high)
        if call.op in (ew.add, ew.sub, ew.mul):
            one, other = map(self.find, call.args)
            return None if one is None or other is None else _of_arithmetic(call, one, other)
        if call.op not in KEEPS_VALUES:
            return None
        kept = self.find(call.args[0])
        steps = None if kept is None else _steps_after(call, kept.steps)
        return None if kept is None or steps is None else replace(kept, steps=steps)


def _of_arithmetic(call: Call, one: Progression, other: Progression) -> Progression | None:
    """The progression of a sum, a difference, or a product with a constant."""
    low, high = interval(call.op, (one.low, one.high), (other.low, other.high))
    assert low is not None and high is not None
    if call.op is ew.mul:
        constant, varying = (one, other) if one.low == one.high else (other, one)
        if constant.low != constant.high:
            return None
        return Progression(tuple(constant.low * step for step in varying.steps), low, high)
    sign = 1 if call.op is ew.add else -1
    return Progression(tuple(a + sign * b for a, b in zip(one.steps, other.steps)), low, high)


def _steps_after(call: Call, steps: Sequence[int]) -> tuple[int, ...] | None:
    """The steps of a tile once its elements are moved or repeated; None where it does not grow evenly then."""
    if call.op is arrange.transpose_:
        return tuple(steps[axis] for axis in call.attrs["axes"])
    shape = type_as(call.args[0], Tile).shape
    if call.op is not arrange.reshape_:
        return tuple(step if extent > 1 else 0 for step, extent in zip(steps, shape))
    kept, made = ([n for n in extents if n > 1] for extents in (shape, call.attrs["shape"]))
    if kept != made:
        return None
    left = iter([step for step, extent in zip(steps, shape) if extent > 1])
    return tuple(next(left) if extent > 1 else 0 for extent in call.attrs["shape"])


__all__ = ["Progression", "progression"]
