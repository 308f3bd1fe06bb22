"""Launches the kernel of a planned call of `attention`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tilejit as tile

from ...concurrency import cached_property
from ...runtime.arrays import describe
from ..matmul.workspace import zeros
from ..operands import NOTHING
from ..views import new_array, swap_axes, temporary
from .float8 import COLUMNS, KEYS, turn_values
from .sequences import combine
from .tile_table import FIELDS, list_tiles


@dataclass(frozen=True)
class Launch:
    """What a call with such extents, strides and dtypes runs: the kernel (None: there is nothing to launch) with its
    grid and constants, and the result's shape and dtype. `by_rows`: a new result has the rows of all heads beside each
    other, as Q has. `bounds`: how many columns a row sees to the left and to the right of its position. `group`: the
    kernel takes tiles from a counter, those of so many heads together; 0 if it does not. `listed`: (the sequences with
    lengths of their own, the most tiles that they have), if the kernel takes these from a table. `lengths`: it takes
    the lengths and pages of sequences. `splits`: it has so many parts of the keys, whose results `combine` puts
    together. `float8`: its scale comes with the factors of float8 (`rules_of`). `turned`: the shape of the values as
    `turn_values` makes them, if the kernel takes these. `spans`: the bytes, relative to their addresses, that Q, K, V
    and the result occupy."""

    shape: tuple[int, ...]
    dtype: str
    kernel: tile.Kernel | None = None
    grid: tuple[int, ...] = ()
    constants: dict[str, Any] = field(default_factory=dict)
    by_rows: bool = False
    bounds: tuple[int, int] = (0, 0)
    group: int = 0
    listed: tuple[int, int] | None = None
    lengths: bool = False
    splits: int = 1
    float8: bool = False
    turned: tuple[int, ...] | None = None
    spans: tuple[tuple[int, int], ...] = ()

    @cached_property
    def bound_kernel(self):
        """The kernel on its grid with its constants: a function of what `arguments` returns."""
        return self.kernel.prepared(self.grid, **self.constants)

    @cached_property
    def bound_combine(self):
        """The kernel that puts parts together, likewise."""
        lines = math.prod(self.shape[:-1])
        return combine.prepared((-(-lines // self.constants["PLAN"].lines),), PLAN=self.constants["PLAN"])

    @cached_property
    def bound_turn(self):
        """The kernel that transposes the values of float8, likewise."""
        *batch, heads, columns, keys = self.turned
        plan = self.constants["PLAN"]
        own = math.gcd(KEYS, plan.bn) if plan.packed else KEYS
        grid = keys // own * -(-columns // COLUMNS), heads, *(batch or (1,))
        return turn_values.prepared(grid, DV=columns, KEYS=own, COLUMNS=COLUMNS, CUT=plan.lengths,
                                    BN=plan.bn if plan.packed else 0)

    def run(self, q, k, v, out, lse, sinks, sequences: tuple, scale: float | tuple, softcap: float,
            arguments: tuple) -> None:
        """Launch. `sequences` are the lengths of rows and of keys, the pages, and the table of a `BlockMask`; each may
        be None."""
        more: tuple = ()
        if self.group:
            order = self.group if self.listed is None else self.list_tiles(q, k, *sequences[:2])
            if self.constants["PLAN"].scores.listed:
                order = self.group, sequences[3]
            more = zeros(q, (1,), "uint32"), order
        if self.turned:
            turned = temporary(q, self.turned, describe(q).dtype)
            self.bound_turn(v, turned, 0 if sequences[1] is None else sequences[1])
            v = turned
        lse, sinks = (0 if x is None else x for x in (lse, sinks))
        made, sums = out, lse
        if self.lengths:
            more = tuple(0 if x is None else x for x in sequences[:3])
            if sequences[2] is not None:
                plan = self.constants["PLAN"]
                k, v = (page_rows(x, plan.rows_first) for x in (k, k if plan.inner else v))
        if self.splits > 1:
            lines = math.prod(self.shape[:-1])
            made = temporary(q, (self.splits, lines, self.shape[-1]), "float32")
            sums = temporary(q, (self.splits, lines), "float32")
        self.bound_kernel(q, k, v, made, sums, sinks, *more, scale, *self.bounds, softcap, *arguments,
                          *NOTHING[len(arguments):])
        if self.splits > 1:
            self.bound_combine(made, sums, sinks, out, lse)

    @cached_property
    def bound_list(self):
        """The kernel that lists the tiles of sequences, likewise."""
        plan = self.constants["PLAN"]
        return list_tiles.prepared((self.listed[0],), BM=plan.bm, PACKED=plan.packed)

    def list_tiles(self, q, k, row_lengths, key_lengths):
        """The table of the tiles of sequences with lengths of their own."""
        table = temporary(q, (self.listed[1] + 1, FIELDS), "int32")
        rows = row_lengths if self.constants["PLAN"].packed else 0
        self.bound_list(table, rows, key_lengths, q.shape[-2], k.shape[-2], self.group)
        return table

    def new_result(self, q):
        """A new array for the result, in the memory order of Q."""
        if not self.by_rows:
            return new_array(q, self.shape, self.dtype)
        *batch, heads, rows, columns = self.shape
        return swap_axes(new_array(q, (*batch, rows, heads, columns), self.dtype), -2, -3)

    def new_sums(self, q):
        """A new array for the logarithms of the sums."""
        return new_array(q, self.shape[:-1], "float32")


def page_rows(x, rows_first: bool):
    """Pages [pages, heads, rows, columns] as a matrix of the rows of all heads of all pages, in their order. Where the
    heads of a key lie beside each other, its lines are the rows with all their heads."""
    if rows_first:
        return swap_axes(x, -2, -3).reshape((-1, x.shape[-3] * x.shape[-1]))
    return x.reshape((-1, x.shape[-1]))


def ordered_by_rows(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the rows of Q lie before its heads in memory."""
    return strides[-2] > strides[-3] and shape[-3] > 1 and shape[-2] > 1


__all__ = ["Launch", "ordered_by_rows"]
