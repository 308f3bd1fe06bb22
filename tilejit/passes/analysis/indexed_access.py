"""The index tiles and the mask of a load or store: linear combinations of values, and comparisons with bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ...concurrency import cached_property
from ...ir.builder import as_value, element_type, type_as, type_of
from ...ir.graph import Call, Const, For, Operand, Value
from ...ops.tiles import elementwise as ew, generate
from ...ops.tiles.arrange import broadcast, reshape_, transpose_
from ...ops.tiles.casts import cast
from ...ops.tiles.generate import splat
from ...ops.tiles.layout_change import convert_layout
from ...types import Buffer, Points, Region, Sym, Tile
from .context import Context
from .index_tile_analysis import FOLLOWED, Ramp
from .integer_analysis import INDICES

# the result's first element is the operand's
FIRST_ELEMENT_KEPT = frozenset((splat, broadcast, reshape_, transpose_, convert_layout))

# (smaller operand, larger operand, 1 if they may be equal)
COMPARISONS = {ew.lt: (0, 1, 0), ew.le: (0, 1, 1), ew.gt: (1, 0, 0), ew.ge: (1, 0, 1)}

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", bound="IndexedAccess")

LinearSum = dict[Any, int]  # {value: coefficient}; the key 1 has the constant


@dataclass(frozen=True)
class Index:
    """The indices of one array dimension: `values`, which vary along `axes` of the tile (none: a single index).
    `consecutive` if each is one more than the last."""

    values: Operand
    axes: tuple[int, ...]
    consecutive: bool

    @property
    def axis(self) -> int | None:
        """The only axis along which the indices vary; None if there is none, or several."""
        return self.axes[0] if len(self.axes) == 1 else None


@dataclass(frozen=True)
class MaskTerm:
    """One operand of a mask's conjunction: a tile of the mask's rank,
    or (`placed`) a one-dimensional tile along that axis of it."""

    value: Operand
    placed: int | None


class PatternMismatch(Exception):
    """Why an access is neither a box nor rows; the message is shown to the kernel's author."""


def memoize(find: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[A, P], R]:
    """Cache a method by its last argument. PatternMismatch where it recurses through too many operations."""
    @wraps(find)
    def find_once(self: A, /, *args: P.args, **kwargs: P.kwargs) -> R:
        key = find, args[-1]
        if key not in self.found:
            self.followed += 1
            if self.followed > FOLLOWED:
                raise PatternMismatch(f"its index tiles or its mask are made by more than {FOLLOWED} "
                                      "operations in a row")
            self.found[key] = find(self, *args, **kwargs)
            self.followed -= 1
        result: R = self.found[key]
        return result

    return find_once


class IndexedAccess:
    """The indices of a load or store along each dimension of its array, and the terms of its mask.

    Carried values of `loops` stand for themselves here.
    """

    def __init__(self, context: Context, access: Call, loops: Sequence[For]):
        source, self.mask = as_value(access.args[0]), access.args[2]
        t = source.type
        assert isinstance(t, (Points, Region))
        self.context, self.shape = context, t.shape
        self.carried: dict[Operand, For] = {c.inner: loop for loop in loops for c in loop.carried}
        self.found: dict[Any, Any] = {}  # the cache of `memoize`
        self.followed = 0                # its recursion depth
        self.representatives: dict[Any, Any] = {}  # (op, operands, attributes) -> representative
        self.call = context.definition(source)
        buffer, *values = self.call.args
        self.buffer = as_value(buffer)
        self.array = type_as(buffer, Buffer)
        if isinstance(t, Points):
            self.indices = [self.index(x) for x in values]
        else:
            axes = {d: (a,) for a, d in enumerate(t.kept)}
            self.indices = [Index(x, axes.get(d, ()), True) for d, x in enumerate(values)]

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The axis of the tile that each dimension of the box varies along. PatternMismatch if several index tiles vary
        along one axis, or one along several."""
        if isinstance(self.call.result.type, Region):
            return tuple(range(len(self.shape)))
        axes = tuple(a for i in self.indices for a in i.axes)
        if any(len(i.axes) > 1 for i in self.indices):
            raise PatternMismatch("an index tile names elements along several axes; give one for each dimension, as in "
                                  "A[rows[:, None], columns[None, :]]")
        if sorted(axes) != self.long_axes:
            raise PatternMismatch("its index tiles name elements that are neither a box of the array nor parts of rows")
        return axes

    @property
    def long_axes(self) -> list[int]:
        """The axes of the tile that are longer than 1."""
        return [a for a, n in enumerate(self.shape) if n > 1]

    @cached_property
    def kept_terms(self) -> list[MaskTerm]:
        """The terms of the mask that the array's bounds do not imply."""
        return [term for term in self.terms(self.mask) if not self.is_implied(term)]

    @property
    def is_box(self) -> bool:
        """Whether this is a box of more than one element, all of it within the mask."""
        return self.axes != () and all(i.consecutive for i in self.indices) and not self.kept_terms

    def index(self, values: Operand) -> Index:
        """The Index of a scalar or a tile."""
        walked = tuple(a for a, n in enumerate(self.shape) if n > 1 and not self.is_constant_along(values, a))
        return Index(values, walked, not walked or len(walked) == 1 and self.step(values, walked[0]) == 1)

    def step(self, values: Operand, axis: int, placed: int | None = None) -> int | None:
        """The constant by which the elements of a tile grow along an axis; None if there is none. The launch is asked
        whether the arguments that the tile is computed from make it 1."""
        if not isinstance(type_of(values), Tile) or placed is not None and placed != axis:
            return 0
        count, own = self.shape[axis], axis - len(self.shape) if placed is None else -1
        def ramp(x: Operand) -> Ramp | None:
            return self.context.ramp(x, own, count)
        if (found := ramp(values)) is not None:
            return found[0]
        def by_one(x: Operand) -> int:
            return count if (asked := ramp(x)) and asked[0] == 1 else 1
        return 1 if self.context.asked_divisor(values, count, by_one) == count else None

    def is_constant_along(self, values: Operand, axis: int, placed: int | None = None) -> bool:
        """Whether the elements of a tile do not vary along an axis."""
        return self.step(values, axis, placed) == 0

    # -- masks ---------------------------------------------------------------------------------------------------------

    def terms(self, mask: Operand) -> Iterator[MaskTerm]:
        """The terms of the mask's conjunction, each once."""
        seen: set[MaskTerm] = set()
        rank, left = len(self.shape), [MaskTerm(mask, None)] if mask is not None else []
        while left:
            term = left.pop()
            if term in seen:
                continue
            seen.add(term)
            call, shape = self.context.definitions.get(term.value), type_as(term.value, Tile).shape
            source = call.args[0] if call is not None and call.op in (broadcast, reshape_) else None
            inner = type_as(source, Tile).shape if source is not None else None
            axes = [a for a, n in enumerate(shape) if n > 1] if inner is not None else []
            if call is not None and call.op is ew.bit_and:
                left += (MaskTerm(a, term.placed) for a in reversed(call.args))
            elif call is not None and inner is not None and call.op is broadcast and len(inner) == rank:
                left.append(MaskTerm(source, None))
            elif (call is not None and inner is not None and call.op is reshape_ and len(shape) == rank
                  and len(inner) == len(axes) == 1):
                left.append(MaskTerm(source, axes[0]))
            else:
                yield term

    def is_implied(self, term: MaskTerm) -> bool:
        """Whether a term holds for every element within the array's bounds. Where it compares an index with a launch
        argument or with another extent, the launch is asked whether that is at least the extent."""
        return (any(self.at_least(self.sum((stop, 1), (self.bounds(d)[1], -1))) for d, stop in self.mask_limits(term))
                or any(
                    self.at_least(self.sum((self.bounds(d)[0], 1), (first, -1)))
                    for d, first in self.mask_limits(term, from_below=True)))

    def mask_limits(self, term: MaskTerm, from_below: bool = False) -> list[tuple[int, LinearSum]]:
        """A term as (dimension, bound) pairs that all mean the same: it keeps the indices below the bound or,
        `from_below`, those from the bound on. Empty if it is no such comparison."""
        call = self.context.definitions.get(term.value)
        if call is None or call.op not in COMPARISONS or element_type(call.args[0]) not in INDICES:
            return []
        below, above, more = COMPARISONS[call.op]
        low, high = call.args[below], call.args[above]
        walking, fixed, plus = (high, low, 1 - more) if from_below else (low, high, more)
        found = []
        for d, index in enumerate(self.indices):
            if (index.consecutive and index.axis is not None
                and all(self.is_constant_along(fixed, a, term.placed) and self.step(walking, a, term.placed) == by
                        for a, by in self.steps(index.axis))):
                found.append((d, self.sum((index.values, 1), (fixed, 1), (walking, -1), plus=plus)))
        return found

    def steps(self, axis: int) -> list[tuple[int, int]]:
        """For each axis of the tile the step of consecutive indices along `axis`: 1 along that axis,
        0 along the others."""
        return [(a, int(a == axis)) for a, n in enumerate(self.shape) if n > 1]

    def bounds(self, d: int) -> tuple[LinearSum, LinearSum]:
        """The first index of a dimension that is in bounds, and the first one after them."""
        if self.array.narrowed is None:
            size = self.context.extent_behind(self.array.shape[d])
            if isinstance(size, int):
                return {}, {1: size}
            return {}, {size: 1} if isinstance(size, Sym) else self.parts(size)
        rank, given = len(self.indices), self.context.definitions[self.buffer].args[1:]
        low, count = given[2 * rank + d], given[3 * rank + d]
        return self.sum((low, 1)), self.sum((low, 1), (count, 1))

    def sum(self, *parts: tuple[Operand | LinearSum, int], plus: int = 0) -> LinearSum:
        """The linear combination of the parts' first elements."""
        total: LinearSum = {1: plus}
        for part, times in parts:
            for key, n in (part if isinstance(part, dict) else self.parts(part)).items():
                total[key] = total.get(key, 0) + n * times
        return {key: n for key, n in total.items() if n}

    @memoize
    def parts(self, x: Operand) -> LinearSum:
        """The first element of an operand as a linear combination."""
        if isinstance(x, Const):
            return {1: int(x.value)}
        key = self.context.key(x)
        if isinstance(key, (Sym, Const)):
            return {key: 1} if isinstance(key, Sym) else {1: int(key.value)}
        call = self.context.definitions.get(key)
        if call is None:
            return {self.representative(key): 1}
        match call.op:
            case generate.iota:
                return {1: call.attrs["start"]}
            case generate.indices:
                return {}
            case op if op in FIRST_ELEMENT_KEPT:
                return self.parts(call.args[0])
            case ew.add | ew.sub if element_type(key) in INDICES:
                return self.sum((call.args[0], 1), (call.args[1], 1 if call.op is ew.add else -1))
            case ew.mul if element_type(key) in INDICES:
                for factor, by in zip(call.args, map(self.context.constant, call.args[::-1])):
                    if by is not None:
                        return self.sum((factor, by))
        return {self.representative(key): 1}

    @memoize
    def representative(self, x: Operand) -> Operand:
        """The first value found that is computed by the same operations from the same operands (value numbering)."""
        call = self.context.definitions.get(x)
        if (call is None or call.op.effect != "pure"
            or call.args and call.op is not cast and call.op.rules.element is None):
            return x
        key = call.op, tuple(map(self.representative, call.args)), tuple(sorted(call.attrs.items()))
        first: Operand = self.representatives.setdefault(key, x)
        return first

    def at_least(self, x: LinearSum) -> bool:
        """Whether a sum is known to be at least 0; the launch is asked where it is ``argument - extent`` or a
        difference of extents."""
        plus, others = x.get(1, 0), {key: n for key, n in x.items() if key != 1}
        sizes = [key for key, n in others.items() if isinstance(key, Sym) and key.kind == "size" and n == -1]
        numbers = [key for key, n in others.items() if n == 1]
        ask, params = self.context.facts.ask, self.context.graph.params
        match len(others), sizes, numbers:
            case 0, _, _:
                return plus >= 0
            case 1, [size], _:
                return not ask("size_at_least", size.arg, size.dim, plus + 1)
            case 2, [size], [Sym(kind="size") as other] if plus >= 0:
                return ask("size_within", size.arg, size.dim, other.arg, other.dim)
            case 2, [size], [Value() as number] if plus >= 0 and number in params and element_type(number) in INDICES:
                return ask("size_within", size.arg, size.dim, params.index(number))
        return False


__all__ = ["FIRST_ELEMENT_KEPT", "Index", "IndexedAccess", "LinearSum", "MaskTerm", "PatternMismatch", "memoize"]
