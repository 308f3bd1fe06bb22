"""The access pattern of a load or store by index tiles and a mask: a box of an array, or contiguous rows of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ...dtypes import int32, keeps
from ...ir.builder import as_value, element_type, type_as, type_of
from ...ir.graph import Const, Operand, Value
from ...ops.language.operators import binary, compare
from ...ops.language.pointwise import maximum, where
from ...ops.language.promotion import convert, spread
from ...ops.language.sizes import extent_value, size_of
from ...ops.memory.regions import region
from ...ops.memory.window import narrow_window
from ...ops.moves.copy_async.tma.selections import matrix_of, rows_of_array, take
from ...ops.tiles import elementwise as ew, generate
from ...ops.tiles.arrange import broadcast, reshape_, transpose_
from ...ops.tiles.casts import cast
from ...ops.tiles.generate import iota
from ...ops.tiles.slicing import slice_
from ...types import Scalar, Sym, Tile
from .indexed_access import FIRST_ELEMENT_KEPT, Index, IndexedAccess, LinearSum, MaskTerm, PatternMismatch, memoize
from .integer_analysis import INDICES
from .writing import Writer


@dataclass(frozen=True)
class Source:
    """What a copy reads in place of a load: the operand `place`, of the extents `shape`. Its dimensions in order, the
    first one possibly divided into several, are the `axes` of the loaded tile."""

    place: Value
    shape: tuple[int, ...]
    axes: tuple[int, ...]


NOT_MADE_OF_SCALARS = "its index tiles are not made of tile.arange and scalars"


class AccessPattern(IndexedAccess):
    """Which elements of an array a load or store accesses, as a box or as rows.

    Inside the bodies of `loops` they are expressed by the loops' indices and by values from before the loops: a
    carried value that grows by the same amount in every trip is an induction variable.
    """

    def source(self, g: Writer, masked: bool = True, by_engine: bool = False) -> Source:
        """What a copy that brings these elements reads; if it is not `masked`, also those that the mask excludes. With
        `by_engine`, rows of arrays of more than two dimensions are named as those of a matrix, as TMA takes them.
        PatternMismatch if no copy can."""
        terms = self.kept_terms if masked else []
        if all(i.consecutive for i in self.indices) and self.axes != () and all(map(self.mask_limits, terms)):
            return Source(self.box(g, self.window_of_mask(g, terms)), tuple(self.shape[a] for a in self.axes),
                          self.axes)
        return self.gathered_rows(g, terms, by_engine)

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

    def gathered_rows(self, g: Writer, terms: Sequence[MaskTerm], by_engine: bool) -> Source:
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
        axes = tuple(a for a in self.long_axes if a != column)
        if not axes:
            raise PatternMismatch("elements of a single row that index tiles or a mask choose are not contiguous")
        numbers = [self.row_numbers(g, i, axes) for d, i in enumerate(self.indices) if d != along]
        chosen = next(n for n, x in enumerate(numbers) if isinstance(type_of(x), Tile))
        for term in terms:
            kept = self.vector_of_rows(g, term.value, axes, term.placed)
            numbers[chosen] = where.function(g, kept, numbers[chosen], -1)
        extents = prod(self.shape[a] for a in axes), self.shape[column]
        matrix, is_matrix = self.buffer, len(numbers) == 1 and along == 1
        if by_engine and not is_matrix:
            matrix, numbers = self.matrix(g, numbers, along)
        if is_matrix or by_engine:
            taken = take(g, matrix, as_value(numbers[0]))
            place = as_value(taken.part(g, self.start(g, self.indices[along]), extents[1]))
        else:
            start = self.start(g, self.indices[along])
            place = g.call(rows_of_array, self.buffer, start, *numbers, extents=extents, along=along)
        return Source(place, extents, (*axes, column))

    def matrix(self, g: Writer, numbers: list[Operand], along: int) -> tuple[Value, list[Operand]]:
        """The array as a matrix of its rows along a dimension, and their numbers there, from the `numbers` in the other
        dimensions. PatternMismatch if the rows are not evenly spaced."""
        strides, dims = self.array.strides or (), [d for d in range(len(self.indices)) if d != along]
        row = dims[-1]
        total: Operand | int = 0
        inside: Operand | None = None
        for d, number in zip(dims, numbers):
            size = extent_value(g, self.buffer, self.array.shape[d])
            within = binary(g, "&", compare(g, ">=", number, 0), compare(g, "<", number, size))
            inside = within if inside is None else binary(g, "&", inside, within)
            rows = number if d == row else binary(g, "*", number, self.rows_between(g, strides, d, row))
            total = _sum(g, rows, total)
        return (g.call(matrix_of, self.buffer, along=along, row=row),
                [where.function(g, as_value(inside), total, -1)])

    def rows_between(self, g: Writer, strides: Sequence[int | Sym], d: int, row: int) -> int | Operand:
        """The number of rows from an element of dimension `d` to the next; those of dimension `row` are the rows."""
        outer, inner = strides[d], strides[row]
        if isinstance(outer, int) and isinstance(inner, int):
            found = inner > 0 and outer % inner == 0
        else:
            found = (isinstance(outer, Sym) and isinstance(inner, Sym) and isinstance(outer.arg, int)
                     and self.context.facts.ask("stride_ratio", outer.arg, outer.dim, inner.dim))
        if not found:
            raise PatternMismatch("its rows do not follow each other at even distances, as those of a matrix")
        if isinstance(outer, int) and isinstance(inner, int):
            return outer // inner
        return binary(g, "//", extent_value(g, self.buffer, outer), maximum.function(
            g, extent_value(g, self.buffer, inner), 1))

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
        return self.vector_of_rows(g, index.values, axes, index.axis) if index.axes else self.start(g, index)

    def vector_of_rows(self, g: Writer, values: Operand, axes: tuple[int, ...], axis: int | None = None) -> Value:
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


def _sum(g: Writer, one: int | Operand, other: int | Operand) -> int | Operand:
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    if isinstance(one, int) and one == 0:
        return other
    if isinstance(other, int) and other == 0:
        return one
    return binary(g, "+", one, other)


__all__ = ["AccessPattern", "PatternMismatch", "Source"]
