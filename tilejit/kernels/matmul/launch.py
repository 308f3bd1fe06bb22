"""Launches the kernels of a planned call of `matmul`, and manages their workspace."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import tilejit as tile

from ...concurrency import cached_property
from ...runtime.arrays import describe
from ..operands import NOTHING
from ..pack import as_readable, copy_readable
from ..views import transpose
from .scales import in_units, one_factor
from .workspace import workspace


@dataclass(frozen=True)
class Launch:
    """What a call with such extents, strides and dtypes runs: the kernel (None: there is nothing to launch) with its
    grid and constants, which are its record PLAN and launch options, and the result's shape and dtype. `swapped`: the
    operands change places. `turned`: which of A, B and C are then passed transposed. `copied`: which of A and B are
    copied first; `either`: the element sizes of A and of B that need not be contiguous along k. `rows`: the rows of
    all matrices of A together, where they share one B. `shares`: how CTAs share tiles; `room`: shape and dtype of the
    sums that they write for each other. `spans`: the bytes, relative to their addresses, that the operands, the tiles
    and the result occupy. `watched`: what must not change meanwhile."""

    shape: tuple[int, ...]
    dtype: str
    kernel: tile.Kernel | None = None
    grid: tuple[int, ...] = ()
    constants: dict[str, Any] = field(default_factory=dict)
    swapped: bool = False
    turned: tuple[bool, bool, bool] = (False, False, False)
    copied: tuple[bool, bool] = (False, False)
    either: tuple[tuple[int, ...], ...] = ()
    rows: int | None = None
    shares: tuple[int, ...] = ()
    room: tuple | None = None
    spans: tuple[tuple[int, int], ...] = ()
    watched: tuple = ()

    @property
    def plan(self) -> Any:
        """The record of the kernel's constants."""
        return self.constants["PLAN"]

    def with_plan(self, **changed: Any) -> Launch:
        """The same launch with other values of these constants."""
        return replace(self, constants=self.constants | {"PLAN": replace(self.plan, **changed)})

    @cached_property
    def bound_kernel(self):
        """The kernel on its grid with its constants: a function of what `arguments` returns."""
        return self.kernel.prepared(self.grid, **self.constants)

    def arguments(self, a, b, c, scale_a, scale_b, extra: tuple) -> tuple:
        """All arguments of the kernel; `extra` are the epilogue's arguments and tiles."""
        room = () if self.room is None else workspace(c, *self.room)
        return (*self.operands(a, b, c), *self.scales(scale_a, scale_b), *extra, *NOTHING[len(extra):], *self.shares,
                *room)

    def operands(self, a, b, c) -> tuple:
        """The arrays as the kernel takes them."""
        if self.rows is not None:
            a, c = a.reshape((self.rows, a.shape[-1])), c.reshape((self.rows, c.shape[-1]))
        if self.swapped:
            a, b = b, a
        if self.copied[0]:
            a = as_readable(transpose(a) if self.swapped else a, self.either[0])
        if self.copied[1]:
            b = as_readable(b if self.swapped else transpose(b), self.either[1])
        turn_a, turn_b, turn_c = self.turned
        return transpose(a) if turn_a else a, transpose(b) if turn_b else b, transpose(c) if turn_c else c

    def scales(self, a, b) -> tuple:
        """The scales as the kernel takes them. Block scales are in the operands' places: [k, rows] if each row has
        its own, else [rows, k]; on Blackwell in units. A thread has the scales of many columns, which must be
        contiguous, and of two rows."""
        if blocks := getattr(self.plan, "blocks", ()):
            x, y = (transpose(b), a) if self.swapped else (a, transpose(b))
            y = transpose(y) if blocks[1] else y
            return (transpose(x) if blocks[0] else x,
                    copy_readable(y) if blocks[1] and describe(y).strides[1] != 1 else y)
        if getattr(self.plan, "block", 0):
            rows = self.shape[::-1] if self.swapped else self.shape
            return tuple(in_units(s, n) for s, n in zip((b, a) if self.swapped else (a, b), rows))
        return one_factor(a), one_factor(b)


def earlier_plan(plans: dict, key: tuple):
    """The plan of an earlier call with this key. None if there is none, or if the key cannot be hashed: planning then
    explains what is wrong with the options."""
    try:
        return plans.get(key)
    except TypeError:  # no hash
        return None


def remember(plans: dict, key: tuple, plan, most: int = 4096) -> None:
    """Keep a plan for later calls; beyond `most` plans the oldest is dropped."""
    if len(plans) >= most:
        plans.pop(next(iter(plans)), None)
    plans[key] = plan


__all__ = ["Launch", "earlier_plan", "remember"]
