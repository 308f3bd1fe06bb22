"""Plans ldmatrix and stmatrix: the 8x8 matrices of a tile, their registers and shared-memory addresses.

A matrix has 8 rows of 16 bytes, of which each lane holds 32 bits in one register. Lane ``8 j + i`` gives the address
of row i of matrix j. PTX ISA, "Warp-level matrix instructions: ldmatrix" and "stmatrix".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import CompilationError
from ...ir.graph import Const, Value
from ...layout import thread_table
from ...types import Region, Tile, domain_of, layout_of
from .access import plan_access
from .partition import shared_runs


@dataclass(frozen=True)
class Group:
    """One instruction, which moves `count` 32-bit registers of a thread from number `word` on, one per matrix.

    The first matrix starts at coordinates `at` of the tile; the second and the third start `odd` and `high` after it.
    The address is derived from that of the first group with equal `count`, `odd` and `high`, computed as if the
    constant starts of the region were 0 (so that regions of one buffer share it): XORed with `flip`, then advanced by
    `step` elements. With `flip` None it is computed from scratch.
    """

    word: int
    count: int
    at: tuple[int, int]
    odd: tuple[int, int]
    high: tuple[int, int]
    flip: int | None = None
    step: int = 0

    def inside(self, row: int, transposed: bool, lane) -> list:
        """The coordinates, relative to `at`, of the matrix row that a lane addresses.
        Runs on arrays and emitted values."""
        found = [0, 0]
        for d in (0, 1):
            if self.odd[d]:
                found[d] = found[d] + (lane >> 3 & 1) * self.odd[d]
            if self.high[d]:
                found[d] = found[d] + (lane >> 4 & 1) * self.high[d]
        along = 1 - row if transposed else row
        found[along] = found[along] + (lane & 7)
        return found


@dataclass(frozen=True)
class Matrices:
    """How a tile is divided into matrices.

    `row` is the dimension of the tile along which the eight rows of a matrix are; `transposed` if memory is
    contiguous along it.
    """

    row: int
    transposed: bool
    groups: tuple[Group, ...]

    @classmethod
    def plan_for(cls, g, t, place: Value) -> Matrices | None:
        """The plan for tile type `t` and the region `place` of shared memory.

        None if the tile's layout or the region is not made of such matrices,
        or if accesses to the region need bounds checks.
        """
        region = place.type
        if (not isinstance(t, Tile) or not isinstance(region, Region) or region.scope != "shared"
            or g.scope.threads % 32):
            return None
        if len(t.shape) != 2 or t.domain != t.shape or t.dtype.bits not in (8, 16, 32) or t.dtype.kind == "bool":
            return None
        # `along`: elements per matrix row
        row, along, starts = _row_dimension(t), 16 // t.dtype.nbytes, g.definition(place).args[1:]
        lies = [d for d in (0, 1) if shared_runs(region.buffer.layout, region.buffer.shape, region.kept[d], along)
                and g.divisor(starts[region.kept[d]]) % along == 0]
        if row is None or not lies or plan_access(g, place, t).checked:
            return None
        transposed = 1 - row not in lies
        if transposed and t.dtype.bits != 16:
            return None
        return cls(row, transposed, _groups(t, region, starts, row, transposed, g.scope.threads))

    @property
    def instructions(self) -> int:
        return len(self.groups)

    def matrix_rows(self, t: Tile, threads: int) -> list[np.ndarray]:
        """For each instruction of each warp, the row-major tile indices [matrices,
        8] of the first elements of its matrix rows."""
        warps = thread_table(layout_of(t), domain_of(t), threads)[::32, 0]
        lanes = np.arange(32)
        found = []
        for group in self.groups:
            inside = group.inside(self.row, self.transposed, lanes[:8 * group.count])
            at = sum((group.at[k] + inside[k]) * stride for k, stride in enumerate((t.shape[1], 1)))
            found += [(warp + at).reshape(group.count, 8) for warp in warps]
        return found

    def addresses(self, e, region, t: Tile) -> list:
        """For each group, (address of the calling lane's matrix row, constant byte offset to add to it)."""
        origins: dict[Any, Any] = {}
        found, buffer, lane = [], region.buffer, e.lane_id()
        nbytes = buffer.type.dtype.nbytes

        def offset(group: Group, starts):
            inside, full = group.inside(self.row, self.transposed, lane), list(starts)
            for k, d in enumerate(region.type.kept):
                full[d] = full[d] + e.tiles.warp_coordinate(t, k) + inside[k] + group.at[k]
            return buffer.type.layout.offset_of(*full, shape=buffer.type.shape) * nbytes

        for group in self.groups:
            first, flipped = origins.setdefault((group.count, group.odd, group.high), (group, {}))
            if group.flip is None:
                at, constant = offset(group, region.starts), 0
            else:
                if not flipped:
                    flipped[0] = offset(first, [0 if isinstance(start, int) else start for start in region.starts])
                if group.flip not in flipped:
                    flipped[group.flip] = flipped[0] ^ (group.flip * nbytes)
                at, constant = flipped[group.flip], group.step * nbytes
            found.append((e.shared_base() + at, buffer.offset + constant))
        return found


def _row_dimension(t: Tile) -> int | None:
    """The tile's dimension along which the eight rows of a matrix are;
    None if lanes do not hold the tile in matrices."""
    dims = [[(n, stride, str(axis)) for n, stride, axis in part if n > 1] for part in layout_of(t).dims(domain_of(t))]
    quarter = [(4, 1, "laneid")] + [(32 // t.dtype.bits, 1, "reg")] * (t.dtype.bits < 32)
    for row in (0, 1):
        rows, columns = dims[row], dims[1 - row]
        if rows[-1:] != [(8, 4, "laneid")] or columns[-len(quarter):] != quarter:
            continue
        if all(axis in ("reg", "warpid") for _, _, axis in rows[:-1] + columns[:-len(quarter)]):
            return row
    return None


def _groups(t: Tile, region: Region, starts, row: int, transposed: bool, threads: int) -> tuple[Group, ...]:
    """The groups of a tile with matrix rows along `row`, with their addresses in the region at `starts` derived from
    each other where the derivation is the same for all threads."""
    table, domain = thread_table(layout_of(t), domain_of(t), threads), domain_of(t)
    # start of each word's matrix
    at = [(int(i), int(j)) for i, j in (np.unravel_index(flat, domain) for flat in table[0][::32 // t.dtype.bits])]
    return _steps(t, region, starts, row, transposed, table, _group_matrices(at))


def _group_matrices(at: list[tuple[int, int]]) -> list[Group]:
    """Group the words (matrices at `at`): four, if the fourth is displaced from the third as the second is from the
    first; else two, or one."""
    def displacement(x, y):
        return (y[0] - x[0], y[1] - x[1])

    groups, word = [], 0
    while word < len(at):
        four = at[word:word + 4]
        square = len(four) == 4 and displacement(four[0], four[1]) == displacement(four[2], four[3])
        count = 4 if square else min(len(four), 2)
        odd = displacement(four[0], four[1]) if count > 1 else (0, 0)
        groups.append(Group(word, count, four[0], odd, displacement(four[0], four[2]) if count == 4 else (0, 0)))
        word += count
    return groups


def _steps(t: Tile, region: Region, starts, row: int, transposed: bool, table,
           groups: list[Group]) -> tuple[Group, ...]:
    """The groups with `flip` and `step` set where all threads derive their addresses alike,
    found from the offsets of every thread."""
    known = _known_starts(region, starts)
    if known is None:
        return tuple(groups)
    thread = np.arange(len(table))
    # start of each warp's part of the tile
    warp = [np.asarray(c)[thread // 32] for c in np.unravel_index(table[::32, 0], domain_of(t))]

    def offsets(group: Group, starts: list[int]):
        inside, full = group.inside(row, transposed, thread % 32), list(starts)
        for k, d in enumerate(region.kept):
            full[d] = full[d] + warp[k] + inside[k] + group.at[k]
        return np.asarray(layout_of(region.buffer).offset_of(*full, shape=region.buffer.shape)) + 0 * thread

    first, made = {}, []
    for group in groups:
        key = group.count, group.odd, group.high
        if key not in first:
            first[key] = offsets(group, [0] * len(known))
        way = _flip_and_step(region.buffer.layout, first[key], offsets(group, known))
        made.append(group if way is None else replace(group, flip=way[0], step=way[1]))
    return tuple(made)


def _known_starts(region: Region, starts) -> list[int] | None:
    """The constant starts of a shared region, with 0 for the run-time ones.

    None if a run-time start could change the bits that the swizzle XORs, or carry into them.
    """
    layout, shape = layout_of(region.buffer), region.buffer.shape
    try:
        plain, at = layout.group(shape)
    except CompilationError:
        return None
    period, known = layout.swizzle.period if layout.swizzle is not None else 1, []
    for d, start in enumerate(starts):
        known.append(int(start.value) if isinstance(start, Const) else 0)
        if (not isinstance(start, Const)
            and (region.extents[d] != 1 or any(s[1] % period for s in plain.shards[at[d]:at[d + 1]]))):
            return None
    return known


def _flip_and_step(layout, origin, target) -> tuple[int, int] | None:
    """(flip, step) such that ``target == (origin ^ flip) + step`` for the offsets of all threads;
    None if there are none."""
    flip = int(origin[0] ^ target[0]) & (layout.swizzle.block - 1 if layout.swizzle is not None else 0)
    step = target - (origin ^ flip)
    return (flip, int(step[0])) if (step == step[0]).all() else None
