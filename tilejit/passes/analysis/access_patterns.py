"""The access pattern of a load or store by index tiles and a mask: a box of an array, or contiguous rows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from math import prod
from typing import Any, Concatenate, ParamSpec, TypeVar

from ...concurrency import cached_property
from ...dtypes import int32, keeps
from ...ir.builder import as_value, element_type, type_as, type_of
from ...ir.graph import Call, Const, For, Operand, Value
from ...ops.language.operators import binary
from ...ops.language.pointwise import where
from ...ops.language.promotion import convert, spread
from ...ops.language.sizes import size_of
from ...ops.memory.regions import region
from ...ops.memory.window import narrow_window
from ...ops.moves.copy_async.tma.selections import rows_of_array, take
from ...ops.tiles import elementwise as ew, generate
from ...ops.tiles.arrange import broadcast, reshape_, transpose_
from ...ops.tiles.casts import cast
from ...ops.tiles.generate import iota, splat
from ...ops.tiles.layout_change import convert_layout
from ...ops.tiles.slicing import slice_
from ...types import Buffer, Points, Region, Scalar, Sym, Tile
from .context import Context
from .index_tile_analysis import FOLLOWED, Ramp
from .integer_analysis import INDICES
from .writing import Writer

# the result's first element is the operand's
FIRST_ELEMENT_KEPT = frozenset((splat, broadcast, reshape_, transpose_, convert_layout))

# (smaller operand, larger operand, 1 if they may be equal)
COMPARISONS = {ew.lt: (0, 1, 0), ew.le: (0, 1, 1), ew.gt: (1, 0, 0), ew.ge: (1, 0, 1)}

P = ParamSpec("P")
R = TypeVar("R")

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


@dataclass(frozen=True)
class Source:
    """What a copy reads in place of a load: the operand `place`, of the extents `shape`. Its dimensions in order, the
    first one possibly divided into several, are the `axes` of the loaded tile."""

    place: Value
    shape: tuple[int, ...]
    axes: tuple[int, ...]


NOT_MADE_OF_SCALARS = "its index tiles are not made of tile.arange and scalars"


class PatternMismatch(Exception):
    """Why an access is neither a box nor rows; the message is shown to the kernel's author."""


def memoize(find: Callable[Concatenate[AccessPattern, P], R]) -> Callable[Concatenate[AccessPattern, P], R]:
    """Cache a method by its last argument. PatternMismatch where it recurses through too many operations."""
    @wraps(find)
    def find_once(self: AccessPattern, /, *args: P.args, **kwargs: P.kwargs) -> R:
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


class AccessPattern:
    """Which elements of an array a load or store accesses.

    Inside the bodies of `loops` they are expressed by the loops' indices and by values from before the loops: a
    carried value that grows by the same amount in every trip is an induction variable.
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
        if sorted(axes) != self.walked:
            raise PatternMismatch("its index tiles name elements that are neither a box of the array nor parts of rows")
        return axes

    @property
    def walked(self) -> list[int]:
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

    def source(self, g: Writer, masked: bool = True) -> Source:
        """What a copy that brings these elements reads; if it is not `masked`, also those that the mask excludes.
        PatternMismatch if no copy can."""
        terms = self.kept_terms if masked else []
        if all(i.consecutive for i in self.indices) and self.axes != () and all(map(self.mask_limits, terms)):
            return Source(self.box(g, self.window_of_mask(g, terms)), tuple(self.shape[a] for a in self.axes),
                          self.axes)
        return self.gathered_rows(g, terms)

    def in_tile_order(self, g: Writer, x: Value, axes: tuple[int, ...] | None = None) -> Value:
        """The tile, from one that has its `axes` in this order, by default that of the array's dimensions."""
        axes = self.axes if axes is None else axes
        extents = tuple(self.shape[a] for a in axes)
        if type_as(x, Tile).shape != extents:
            x = g.call(reshape_, x, shape=extents)
        if list(axes) != sorted(axes):
            x = g.call(transpose_, x, axes=tuple(map(axes.index, sorted(axes))))
        return x if type_as(x, Tile).shape == self.shape else as_value(g.call(reshape_, x, shape=self.shape))

    def in_array_order(self, g: Writer, x: Value) -> Value:
        """The inverse of `in_tile_order`."""
        order = sorted(self.axes)
        if len(order) < len(self.shape):
            x = g.call(reshape_, x, shape=tuple(self.shape[a] for a in order))
        if list(self.axes) == order:
            return x
        return as_value(g.call(transpose_, x, axes=tuple(map(order.index, self.axes))))

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

    # -- writing the access --------------------------------------------------------------------------------------------

    def box(self, g: Writer, buffer: Value) -> Value:
        """The region of `buffer` that is this box."""
        starts = [self.start(g, i) for i in self.indices]
        if (buffer, *starts) == self.call.args:
            return self.call.result
        extents = tuple(1 if i.axis is None else self.shape[i.axis] for i in self.indices)
        kept = self.call.attrs.get("kept", tuple(d for d, i in enumerate(self.indices) if i.axis is not None))
        return as_value(g.call(region, buffer, *starts, extents=extents, kept=kept))

    def window_of_mask(self, g: Writer, terms: Sequence[MaskTerm]) -> Value:
        """A window of the array that ends where the `terms` of the mask do."""
        buffer, rank = self.buffer, len(self.indices)
        strides, vector = self.array.strides or (), 16 // max(self.array.dtype.nbytes, 1)

        def divisor(d: int, x: Operand | int) -> int:
            self.context.definitions.update(g.definitions)
            if isinstance(x, int):
                return abs(x)
            wanted = vector if strides[d] == 1 else 1
            while wanted > 1 and self.context.asked_divisor(x, wanted) % wanted:
                wanted //= 2
            return self.context.asked_divisor(x, wanted)

        for d, stop in (limit for term in terms for limit in self.mask_limits(term)):
            extent = self.emit_sum(g, stop)
            extent = max(extent, 0) if isinstance(extent, int) else extent
            buffer = narrow_window(g, buffer, (0,) * rank, tuple(extent if k == d else None for k in range(rank)),
                                   divisor)
        return buffer

    def emit_sum(self, g: Writer, x: LinearSum) -> int | Operand:
        """A sum as a scalar operand."""
        total: int | Operand = x.get(1, 0)
        for key, n in x.items():
            if key != 1:
                if isinstance(key, Sym) and isinstance(key.arg, int):
                    value = g.call(size_of, self.context.graph.params[key.arg], sym=key)
                else:
                    value = self.first_element(g, key)
                total = _sum(g, value if n == 1 else binary(g, "*", value, n), total)
        return total

    def gathered_rows(self, g: Writer, terms: Sequence[MaskTerm]) -> Source:
        """Rows of the array, selected by tiles of their indices; -1 stands for a row that `terms` exclude."""
        along = next((d for d in self.contiguous_dimensions() if self.is_row(d)), None)
        if along is None:
            assert self.axes is not None  # or it says what is wrong with them
            raise PatternMismatch("elements that index tiles or a mask choose can be copied only as rows of an array, "
                                  "contiguous in each row")
        if self.array.narrowed is not None:
            raise PatternMismatch("rows that index tiles or a mask choose are copied from a whole array, and this is a "
                                  "window of one")
        column = self.indices[along].axis
        assert column is not None
        if not all(self.is_constant_along(term.value, column, term.placed) for term in terms):
            raise PatternMismatch("its mask keeps parts of rows")
        axes = tuple(a for a in self.walked if a != column)
        if not axes:
            raise PatternMismatch("elements of a single row that index tiles or a mask choose are not contiguous")
        numbers = [self.row_numbers(g, i, axes) for d, i in enumerate(self.indices) if d != along]
        chosen = next(n for n, x in enumerate(numbers) if isinstance(type_of(x), Tile))
        for term in terms:
            kept = self.flattened(g, term.value, axes, term.placed)
            numbers[chosen] = where.function(g, kept, numbers[chosen], -1)
        extents = prod(self.shape[a] for a in axes), self.shape[column]
        if len(numbers) == 1 and along == 1:
            taken = take(g, self.buffer, as_value(numbers[0]))
            place = as_value(taken.part(g, self.start(g, self.indices[along]), extents[1]))
        else:
            start = self.start(g, self.indices[along])
            place = g.call(rows_of_array, self.buffer, start, *numbers, extents=extents, along=along)
        return Source(place, extents, (*axes, column))

    def contiguous_dimensions(self) -> list[int]:
        """The dimensions of the array with stride 1, the last one first; the last dimension if there is none."""
        strides, last = self.array.strides or (), len(self.indices) - 1
        found = [d for d in range(last, -1, -1) if isinstance(strides[d], int) and strides[d] == 1]
        return found or [last]

    def is_row(self, d: int) -> bool:
        """Whether the indices of dimension `d` are consecutive along an axis of their own."""
        axis = self.indices[d].axis
        return (axis is not None and self.indices[d].consecutive
                and not any(axis in i.axes for k, i in enumerate(self.indices) if k != d))

    def row_numbers(self, g: Writer, index: Index, axes: tuple[int, ...]) -> Operand:
        """The indices of a dimension for the rows along `axes`: one for each, or a scalar for all."""
        return self.flattened(g, index.values, axes, index.axis) if index.axes else self.start(g, index)

    def flattened(self, g: Writer, values: Operand, axes: tuple[int, ...], axis: int | None = None) -> Value:
        """The elements along `axes` of a tile that varies along no other, as a one-dimensional tile. What has not the
        rank of the access, a tile or consecutive numbers from a scalar on, extends along `axis`."""
        if len(axes) == 1:
            return self.vector_along(g, values, axes[0])
        t, rank = type_of(values), len(self.shape)
        if not isinstance(t, Tile) or len(t.shape) != rank:
            assert axis is not None
            values = self.vector_along(g, values, axis)
            values = g.call(reshape_, values, shape=tuple(n if d == axis else 1 for d, n in enumerate(self.shape)))
        values = spread(g, values, self.shape)
        shape = tuple(n if d in axes else 1 for d, n in enumerate(self.shape))
        if shape != self.shape:
            values = g.call(slice_, values, starts=(0,) * len(shape), shape=shape, steps=(1,) * len(shape))
        return as_value(g.call(reshape_, values, shape=(prod(shape),)))

    def vector_along(self, g: Writer, values: Operand, axis: int) -> Value:
        """The elements along `axis` of a tile that varies along no other, as a one-dimensional tile; consecutive
        numbers from a scalar on."""
        count = self.shape[axis]
        if not isinstance(type_of(values), Tile):
            return as_value(binary(g, "+", g.call(iota, start=0, stop=count, axis=0), values))
        made = self.context.definitions
        if type_as(values, Tile).shape == (count,):
            return as_value(values)
        while (type_as(values, Tile).size != count and values in made and made[values].op is broadcast
               and type_as(made[values].args[0], Tile).shape[axis] == count):
            values = made[values].args[0]
        t = type_as(values, Tile)
        if t.size != count:
            shape = tuple(n if d == axis else 1 for d, n in enumerate(t.shape))
            values = g.call(slice_, values, starts=(0,) * len(shape), shape=shape, steps=(1,) * len(shape))
        if values in made and made[values].op is reshape_ and type_as(made[values].args[0], Tile).shape == (count,):
            return as_value(made[values].args[0])
        return as_value(g.call(reshape_, values, shape=(count,)))

    def start(self, g: Writer, index: Index) -> Operand:
        """The first index of a dimension, as an operand."""
        first = self.first_element(g, index.values)
        if isinstance(first, Value) and type_as(first, Scalar).uniform < self.context.scope.uniformity:
            raise PatternMismatch("its first element is not the same for all threads")
        if isinstance(first, int) or element_type(first) in INDICES:
            return g.operand(first)
        return convert(g, first, int32)

    @memoize
    def first_element(self, g: Writer, x: Operand) -> int | Operand:
        """The first element of a tile, computed from scalars; a scalar itself, in terms of the loops' indices."""
        if isinstance(x, Const):
            return int(x.value) if x.dtype in INDICES else x
        if x in self.carried:
            return self.induction_value(g, as_value(x))
        call, is_tile = self.context.definitions.get(x), isinstance(type_of(x), Tile)
        if not is_tile and (call is None or not self.depends_on_carried(x)):
            return x
        if call is None:
            raise PatternMismatch(NOT_MADE_OF_SCALARS)
        match call.op:
            case generate.iota:
                return int(call.attrs["start"])
            case generate.indices:
                return 0
            case op if op in FIRST_ELEMENT_KEPT or op is cast and is_tile and keeps(element_type(call.args[0]),
                                                                                    element_type(x)):
                return self.first_element(g, call.args[0])
            case ew.add if element_type(x) in INDICES:
                one, other = call.args
                return _sum(g, self.first_element(g, one), self.first_element(g, other))
            case _ if call.op.rules.element is not None or call.op is cast:
                operands = (convert(g, self.first_element(g, a), element_type(a)) for a in call.args)
                return as_value(g.call(call.op, *operands, **call.attrs))
        raise PatternMismatch(NOT_MADE_OF_SCALARS)

    def depends_on_carried(self, x: Operand) -> bool:
        """Whether a scalar is computed from a value that one of the loops carries."""
        seen, left = set(), [x]
        while left:
            x = left.pop()
            if x in self.carried:
                return True
            if x not in seen and x in self.context.definitions:
                seen.add(x)
                left += self.context.definitions[x].args
        return False

    def induction_value(self, g: Writer, x: Value) -> int | Operand:
        """A carried value in terms of its loop's index, if each trip adds a constant multiple of the
        loop's step to it."""
        carried, loop = self.context.carried[x], self.carried[x]
        step = self.context.constant(loop.step)
        by = self.sum((carried.following, 1), (x, -1))
        if step is None or set(by) - {1} or by.get(1, 0) % step:
            raise PatternMismatch(f"its place depends on {x.name}, which the loop changes")
        times, start = by.get(1, 0) // step, self.first_element(g, loop.start)
        gone = loop.index if start == 0 else binary(g, "-", loop.index, start)
        return _sum(g, self.first_element(g, carried.init), gone if times == 1 else binary(g, "*", gone, times))

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


def _sum(g: Writer, one: int | Operand, other: int | Operand) -> int | Operand:
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    if isinstance(one, int) and one == 0:
        return other
    if isinstance(other, int) and other == 0:
        return one
    return binary(g, "+", one, other)


__all__ = ["AccessPattern", "PatternMismatch", "Source"]
