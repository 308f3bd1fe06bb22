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
from .ldmatrix import known_starts, moved


@dataclass(frozen=True)
class StMatrix:
    """`tiles` blocks of 64 rows for each warpgroup of the scope, `pairs` times 16 columns. `ways` has for each of these blocks how its
    addresses come from those of the first in a region whose constant starts are 0, so that regions of one buffer share them: XORed
    with so many elements, then moved by so many; None where they are computed anew."""

    tiles: int
    pairs: int
    ways: tuple[tuple[int, int] | None, ...]

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
    tiles, pairs = t.shape[0] // (g.scope.threads // 2), t.shape[1] // 16
    return StMatrix(tiles, pairs, _ways(target, starts, g.scope.threads, tiles, pairs))


def _ways(target: Region, starts, threads: int, tiles: int, pairs: int) -> tuple:
    known, thread = known_starts(target, starts), np.arange(threads)
    if known is None:
        return (None,) * (tiles * pairs)

    def offsets(starts: list[int], tile: int, pair: int):
        at = _coordinates(target, starts, _rows(thread // 32, thread % 32, threads, tiles), (64 * tile, 16 * pair))
        return np.asarray(target.buffer.layout.offset_of(*at, shape=target.buffer.shape))

    origin = offsets([0] * len(known), 0, 0)
    return tuple(moved(target.buffer.layout, origin, offsets(known, tile, pair)) for tile in range(tiles) for pair in range(pairs))


def _rows(warp, lane, threads: int, tiles: int) -> tuple:
    """Where the row of 16 bytes that a lane gives the address of begins: of its warp's 16 rows, of the first or second 8 columns. Runs on
    arrays and emitted values."""
    row = (lane & 15) + (warp & 3) * 16
    return (row + (warp >> 2) * (64 * tiles) if threads > 128 else row), (lane >> 4) * 8


def _coordinates(target: Region, starts, inside: tuple, block: tuple[int, int]) -> list:
    """An element of the region's buffer, so far from `starts`."""
    found = list(starts)
    for d, c, at in zip(target.kept, inside, block):
        found[d] = found[d] + c + at
    return found


def emit(e, plan: StMatrix, target, values: list) -> None:
    words, buffer = e.packed_words(values), target.buffer
    layout, shape, nbytes = buffer.type.layout, buffer.type.shape, buffer.type.dtype.nbytes
    rows, flipped = _rows(e.thread_warp(), e.lane_id(), e.threads, plan.tiles), {}

    def offset(starts, block: tuple[int, int]):
        return layout.offset_of(*_coordinates(target.type, starts, rows, block), shape=shape) * nbytes

    for i, way in enumerate(plan.ways):
        if way is None:
            at, constant = offset(target.starts, (64 * (i // plan.pairs), 16 * (i % plan.pairs))), 0
        else:
            flip, step = way
            if not flipped:
                flipped[0] = offset([0 if isinstance(start, int) else start for start in target.starts], (0, 0))
            if flip not in flipped:
                flipped[flip] = flipped[0] ^ (flip * nbytes)
            at, constant = flipped[flip], step * nbytes
        e.asm(f"stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0 + {buffer.offset + constant}], {{$1, $2, $3, $4}};", [],
              [e.shared_base() + at, *words[4 * i:4 * i + 4]], convergent=True)


_plain_plan, _plain_emit = store_.rules["plan"], store_.rules["emit"]
store_.rules["plan"] = lambda g, call: plan_matrices(g, call) or _plain_plan(g, call)


@store_.emit
def _(e, call, target, value, mask):
    plan = call.choice.plan
    if isinstance(plan, StMatrix):
        emit(e, plan, target, value)
    else:
        _plain_emit(e, call, target, value, mask)
