"""stmatrix: a tile of 16-bit elements in an accumulator's layout, stored to shared memory in 8 by 8 matrices.

A variant of ``tile.store``'s plan: a warp stores four matrices with an instruction, 16 rows by 16 columns, where plain
stores would take four. PTX ISA, "Warp-level matrix store instruction: stmatrix".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ir.builder import type_of
from ...types import Region, Tile
from ..access import AccessPlan, plan_access
from ..memory import store_
from ..partition import shared_runs
from . import wgmma


@dataclass(frozen=True)
class StMatrix:
    """`tiles` blocks of 64 rows for each warpgroup of the scope, `pairs` times 16 columns."""

    tiles: int
    pairs: int

    @property
    def instructions(self) -> int:
        return self.tiles * self.pairs

    def matrix_rows(self, t: Tile, threads: int) -> list[np.ndarray]:
        """For each instruction of each warp the elements (row-major, in the tile) at which the rows of 16 bytes of its matrices
        begin: (matrices, 8)."""
        lane, found = np.arange(32), []
        for warp in range(threads // 32):
            row, column = lane % 16 + warp % 4 * 16 + warp // 4 * 64 * self.tiles, lane // 16 * 8
            found += [((row + 64 * tile) * t.shape[1] + column + 16 * pair).reshape(4, 8)
                      for tile in range(self.tiles) for pair in range(self.pairs)]
        return found


def plan_matrices(g, call) -> StMatrix | None:
    """The plan of a store that stmatrix can make; None for any other."""
    t, target = type_of(call.args[1]), call.args[0].type
    if not isinstance(t, Tile) or not isinstance(target, Region) or target.scope != "shared" or call.args[2] is not None:
        return None
    if t.dtype.bits != 16 or len(t.shape) != 2 or g.scope.threads % 128 or t.shape[1] % 16 or g.target == "sm_80":
        return None
    held = wgmma.accumulator(t.dtype, t.shape, g.scope.threads)
    if held is None or (held.layout, held.domain) != (t.layout, t.domain):
        return None
    starts = g.definition(call.args[0]).args[1:]
    rows_of_16_bytes = shared_runs(target.buffer.layout, target.buffer.shape, target.kept[1], 8) and g.divisor(starts[target.kept[1]]) % 8 == 0
    access: AccessPlan = plan_access(g, call.args[0], t, False)
    if not rows_of_16_bytes or access.checked:
        return None
    return StMatrix(t.shape[0] // (g.scope.threads // 2), t.shape[1] // 16)


def emit(e, plan: StMatrix, target, values: list) -> None:
    """Lane l gives the address of row l % 16 of its warp's 16, and of the first or second 8 columns."""
    words = e.packed_words(values)
    places = Places(e, target, plan)
    for tile in range(plan.tiles):
        for pair in range(plan.pairs):
            address, offset = places.at(tile, pair)
            first = (tile * plan.pairs + pair) * 4
            e.asm(f"stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0 + {offset}], {{$1, $2, $3, $4}};", [], [address, *words[first:first + 4]],
                  convergent=True)


class Places:
    """Where the lanes' rows lie in shared memory: a few addresses that differ by the swizzle, and constant offsets."""

    def __init__(self, e, target, plan: StMatrix):
        self.e, self.target = e, target
        buffer = target.type.buffer
        self.layout, self.shape, self.nbytes = buffer.layout, buffer.shape, buffer.dtype.nbytes
        warp, lane = e.thread_warp(), e.lane_id()
        row = (lane & 15) + (warp & 3) * 16
        if e.threads > 128:
            row = row + (warp >> 2) * (64 * plan.tiles)
        self.thread = (row, (lane >> 4) * 8)
        self.swizzled: dict = {}

    def at(self, tile: int, pair: int):
        """(address, constant byte offset) of block `tile`, columns ``16 * pair`` on."""
        e, place = self.e, (64 * tile, 16 * pair)
        plain, swizzle = self.layout.without_swizzle(), self.layout.swizzle
        step = plain.offset_of(*self._coordinates((0,) * len(self.shape), place), shape=self.shape) - plain.offset_of(*(0,) * len(self.shape), shape=self.shape)
        # What is added below the swizzle's rows changes nothing that it XORs, and does not carry: it is XORed instead.
        low = step % swizzle.block if swizzle is not None else 0
        high = step - low
        if swizzle is not None and high % swizzle.period:
            offset = self.layout.offset_of(*self._coordinates(self._moved(self.thread), place), shape=self.shape) * self.nbytes
            return e.shared_base() + offset, self.target.buffer.offset
        if low not in self.swizzled:
            base = self._base()
            self.swizzled[low] = base if not low else base ^ (low * self.nbytes)
        return e.shared_base() + self.swizzled[low], self.target.buffer.offset + high * self.nbytes

    def _base(self):
        """The byte offset of the lane's first row."""
        if "base" not in self.swizzled:
            self.swizzled["base"] = self.layout.offset_of(*self._moved(self.thread), shape=self.shape) * self.nbytes
        return self.swizzled["base"]

    def _moved(self, at: tuple) -> tuple:
        return self._coordinates(self.target.starts, at)

    def _coordinates(self, starts, at: tuple) -> tuple:
        found = list(starts)
        for d, c in zip(self.target.type.kept, at):
            found[d] = c if isinstance(found[d], int) and found[d] == 0 else found[d] + c
        return tuple(found)


_plain_plan, _plain_emit = store_.rules["plan"], store_.rules["emit"]
store_.rules["plan"] = lambda g, call: plan_matrices(g, call) or _plain_plan(g, call)


@store_.emit
def _(e, call, target, value, mask):
    plan = call.choice.plan
    if isinstance(plan, StMatrix):
        emit(e, plan, target, value)
    else:
        _plain_emit(e, call, target, value, mask)
