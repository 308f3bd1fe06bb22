"""What a call of `attention` runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tilejit as tile

from ...concurrency import cached_property
from ...runtime.arrays import ArrayView
from ..matmul.workspace import zeros
from ..operands import NOTHING
from ..views import new, swapped


@dataclass(frozen=True)
class Launch:
    """What a call with such extents, strides and dtypes runs: the kernel (None: there is nothing to launch) with its
    grid and constants, and the result's shape and dtype. `by_rows`: a new result has the rows of all heads beside each
    other, as Q has. `bounds`: how many columns a row sees to the left and to the right of its position. `counted`: the
    kernel takes tiles from a counter. `spans`: the bytes, relative to their addresses, that Q, K, V and the result
    occupy."""

    shape: tuple[int, ...]
    dtype: str
    kernel: tile.Kernel | None = None
    grid: tuple[int, ...] = ()
    constants: dict[str, Any] = field(default_factory=dict)
    by_rows: bool = False
    bounds: tuple[int, int] = (0, 0)
    counted: bool = False
    spans: tuple[tuple[int, int], ...] = ()

    @cached_property
    def prepared(self):
        """The kernel on its grid with its constants: a function of what `given` returns."""
        return self.kernel.prepared(self.grid, **self.constants)

    def given(self, q, k, v, out, lse, sinks, scale: float, softcap: float, arguments: tuple) -> tuple:
        """All arguments of the kernel."""
        counter = (zeros(q, (1,), "uint32"),) if self.counted else ()
        return (q, k, v, out, 0 if lse is None else lse, 0 if sinks is None else sinks, *counter, scale, *self.bounds,
                softcap, *arguments, *NOTHING[len(arguments):])

    def new_result(self, q):
        """A new array for the result, in the memory order of Q."""
        if not self.by_rows:
            return new(q, self.shape, self.dtype)
        *batch, heads, rows, columns = self.shape
        return swapped(new(q, (*batch, rows, heads, columns), self.dtype), -2, -3)

    def new_sums(self, q):
        """A new array for the logarithms of the sums."""
        return new(q, self.shape[:-1], "float32")


def ordered_by_rows(view: ArrayView) -> bool:
    """Whether the rows of Q lie before its heads in memory."""
    return view.strides[-2] > view.strides[-3] and view.shape[-3] > 1 and view.shape[-2] > 1


__all__ = ["Launch", "ordered_by_rows"]
