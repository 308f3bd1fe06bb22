"""Launches the kernels of a planned call of `attention_backward`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tilejit as tile

from ....concurrency import cached_property
from ...matmul.workspace import zeros
from ...operands import NOTHING
from ...views import new_array, swap_axes, temporary


@dataclass(frozen=True)
class Step:
    """A kernel with its grid and constants."""

    kernel: tile.Kernel
    grid: tuple[int, ...]
    constants: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def run(self):
        """The kernel on its grid, as a function of its arrays and numbers."""
        return self.kernel.prepared(self.grid, **self.constants)


@dataclass(frozen=True)
class BackwardLaunch:
    """What a call with such extents, strides and dtypes runs; steps that it does not need are None. `shapes`: those of
    Q, K, V and the sinks, which the gradients have; `by_rows`: whether new ones have the rows of all heads beside each
    other; `lines`, `summed`: the shapes of the workspaces of rows, and of dQ, with rows up to a whole block. `bounds`:
    how many columns a row sees to each side of its position. `lengths`: the main kernel takes lengths of sequences,
    which are `packed`; `listed`: it takes the lists of a mask's blocks; `group`: it takes blocks of keys from a
    counter, those of so many heads together, or 0.
    `clears`: what fills each gradient with zeros."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    by_rows: tuple[bool, ...]
    lines: tuple[int, ...]
    summed: tuple[int, ...]
    bounds: tuple[int, int]
    lengths: bool
    packed: bool
    listed: bool
    group: int
    clears: tuple[Step | None, ...]
    prepare: Step | None = None
    main: Step | None = None
    queries: Step | None = None
    finish: Step | None = None
    sinks: Step | None = None

    def run(self, arrays: tuple, sequences: tuple, numbers: tuple[float, float], arguments: tuple,
            into: Sequence[Any] | None) -> list[Any]:
        """The gradients of Q, K, V, and the sinks if there are some. `arrays` are dO, Q, K, V, the result, the
        logarithms, their gradients and the sinks, of which the last two may be None; `sequences` are the lengths of
        rows and of keys, and the lists of a mask's blocks, by keys and by rows; `numbers` are the scale and the cap.
        They are stored to the arrays `into`, or new ones."""
        do, q, k, v, out, lse, dlse, sinks = arrays
        if into is None:
            into = [self._make_gradient(x, i) for i, x in enumerate((q, k, v, sinks)) if x is not None]
        made = list(into)
        for clear, x in zip(self.clears, made):
            if clear is not None:
                clear.run(x)
        if self.prepare is None:
            return made
        sums, delta = (temporary(q, self.lines, "float32") for _ in range(2))
        summed = temporary(q, self.summed, "float32") if self.finish is not None else None
        self.prepare.run(out, do, lse, dlse, sums, delta, summed, sequences[0] if self.packed else None)
        scale, cap = numbers
        rest = scale, *self.bounds, cap, *arguments, *NOTHING[len(arguments):]
        taken = lengths = sequences[:2] if self.lengths else (0, 0)
        if self.listed:
            taken, lengths = ((0, table) for table in sequences[2:])
        if self.group:
            taken = zeros(q, (1,), "uint32"), (self.group, taken[1]) if self.listed else self.group
        if self.main is not None:
            self.main.run(do, q, k, v, sums, delta, 0 if summed is None else summed, made[1], made[2], *taken, *rest)
        if self.queries is not None:
            self.queries.run(do, q, k, v, sums, delta, made[0], *lengths, *rest)
        if self.finish is not None:
            self.finish.run(summed, made[0], scale)
        if self.sinks is not None:
            self.sinks.run(sinks, sums, delta, made[3])
        return made

    def _make_gradient(self, like, i: int):
        """A new array for a gradient, in the memory order of the array whose it is."""
        shape, dtype = self.shapes[i], self.dtypes[i]
        if not self.by_rows[i]:
            return new_array(like, shape, dtype)
        *batch, heads, rows, columns = shape
        return swap_axes(new_array(like, (*batch, rows, heads, columns), dtype), -2, -3)


__all__ = ["BackwardLaunch", "Step"]
