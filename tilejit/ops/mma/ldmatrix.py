"""ldmatrix: a tile in the layout of a fragment, loaded from shared memory in 8 by 8 matrices of 32-bit quarters of rows.

A plan of ``tile.load``: an instruction of a warp brings up to four matrices, whose rows of 16 bytes its lanes name. Elements
of 16 bits may lie in memory along either dimension (``.trans``), narrower and wider ones along k. PTX ISA, "Warp-level matrix
load instruction: ldmatrix".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...dtypes import int32
from ...errors import CompilationError
from ...ir.graph import Const
from ...layout import thread_table
from ...types import Region, Tile
from ..memory import load_
from ..partition import shared_runs


@dataclass(frozen=True)
class Group:
    """Words `word` on of the tile, a matrix each, by one instruction. `at` is where the first matrix begins in the tile,
    `odd` and `high` how far the second and the third begin after it. The address is that of the first group of these steps in a
    region whose constant starts are 0, so that regions of one buffer share it, XORed with `flip` and moved by `step` elements; where
    `flip` is None it is computed anew."""

    word: int
    count: int
    at: tuple[int, int]
    odd: tuple[int, int]
    high: tuple[int, int]
    flip: int | None = None
    step: int = 0


@dataclass(frozen=True)
class LdMatrix:
    """`row` is the tile's dimension along which lanes hold rows of a matrix; `transposed` where memory is contiguous along it."""

    row: int
    transposed: bool
    groups: tuple[Group, ...]

    @property
    def instructions(self) -> int:
        return len(self.groups)

    def matrix_rows(self, t: Tile, threads: int) -> list[np.ndarray]:
        """For each instruction of each warp the elements (row-major, in the tile) at which the rows of 16 bytes of its matrices
        begin: (matrices, 8)."""
        warps = thread_table(t.layout, t.domain, threads)[::32, 0]
        lanes = np.arange(32)
        found = []
        for group in self.groups:
            inside = _coordinates(group, self.row, self.transposed, lanes[:8 * group.count])
            at = sum((group.at[k] + inside[k]) * stride for k, stride in enumerate((t.shape[1], 1)))
            found += [(warp + at).reshape(group.count, 8) for warp in warps]
        return found


def plan_matrices(g, call) -> LdMatrix | None:
    """The plan of a load that ldmatrix can make; None for any other."""
    t, source = call.result.type, call.args[0].type
    if not isinstance(t, Tile) or not isinstance(source, Region) or source.scope != "shared" or call.args[2] is not None:
        return None
    if len(t.shape) != 2 or t.domain != t.shape or t.dtype.bits not in (8, 16, 32) or t.dtype.kind == "bool" or g.scope.threads % 32:
        return None
    row = _row_dimension(t)
    if row is None:
        return None
    along = 16 // t.dtype.nbytes  # elements of a matrix's row in memory
    starts = g.definition(call.args[0]).args[1:]
    lies = [d for d in (1 - row, row) if shared_runs(source.buffer.layout, source.buffer.shape, source.kept[d], along)
            and g.divisor(starts[source.kept[d]]) % along == 0]
    if not lies or not _inside(g, source, starts):
        return None
    transposed = lies[0] == row
    if transposed and t.dtype.bits != 16:
        return None
    table = thread_table(t.layout, t.domain, g.scope.threads)
    return LdMatrix(row, transposed, _steps(t, source, starts, row, transposed, table, _grouped(_matrices(t, table))))


def _inside(g, source: Region, starts) -> bool:
    for size, start, extent in zip(source.buffer.shape, starts, source.extents):
        low, high = g.bounds(start)
        if extent != size and (low is None or high is None or low < 0 or high + extent > size):
            return False
    return True


def _row_dimension(t: Tile) -> int | None:
    """The dimension with the eight rows of a matrix, if lanes hold the tile in matrices."""
    dims = [[(n, stride, str(axis)) for n, stride, axis in part if n > 1] for part in t.layout.dims(t.domain)]
    quarter = [(4, 1, "laneid")] + [(32 // t.dtype.bits, 1, "reg")] * (t.dtype.bits < 32)
    for row in (0, 1):
        rows, columns = dims[row], dims[1 - row]
        if rows[-1:] != [(8, 4, "laneid")] or columns[-len(quarter):] != quarter:
            continue
        if all(axis in ("reg", "warpid") for _, _, axis in rows[:-1] + columns[:-len(quarter)]):
            return row
    return None


def _matrices(t: Tile, table) -> list[tuple[int, int]]:
    """Where the matrix of each word of the first thread's registers begins."""
    return [tuple(int(c) for c in np.unravel_index(flat, t.domain)) for flat in table[0][::32 // t.dtype.bits]]


def _grouped(at: list[tuple[int, int]]) -> list[Group]:
    """Four words at once where the fourth begins after the third as the second after the first; else two, else one."""
    groups, word = [], 0
    apart = lambda x, y: (y[0] - x[0], y[1] - x[1])
    while word < len(at):
        four = at[word:word + 4]
        count = 4 if len(four) == 4 and apart(four[0], four[1]) == apart(four[2], four[3]) else min(len(four), 2)
        odd = apart(four[0], four[1]) if count > 1 else (0, 0)
        groups.append(Group(word, count, four[0], odd, apart(four[0], four[2]) if count == 4 else (0, 0)))
        word += count
    return groups


def _steps(t: Tile, source: Region, starts, row: int, transposed: bool, table, groups: list[Group]) -> tuple[Group, ...]:
    """The groups, with how their addresses come from the first's where all threads agree on that."""
    known = known_starts(source, starts)
    if known is None:
        return tuple(groups)
    thread = np.arange(len(table))
    warp = [c[thread // 32] for c in np.unravel_index(table[::32, 0], t.domain)]  # where each warp's own part begins

    def offsets(group: Group, starts: list[int]):
        inside = _coordinates(group, row, transposed, thread % 32)
        full = list(starts)
        for k, d in enumerate(source.kept):
            full[d] = full[d] + warp[k] + inside[k] + group.at[k]
        return np.asarray(source.buffer.layout.offset_of(*full, shape=source.buffer.shape)) + 0 * thread

    first, made = {}, []
    for group in groups:
        key = group.count, group.odd, group.high
        if key not in first:
            first[key] = offsets(group, [0] * len(known))
        way = moved(source.buffer.layout, first[key], offsets(group, known))
        made.append(group if way is None else replace(group, flip=way[0], step=way[1]))
    return tuple(made)


def known_starts(region: Region, starts) -> list[int] | None:
    """The starts of a shared region that are constants, 0 for the others; None where what the others add may change what a swizzle
    XORs, or carry."""
    layout, shape = region.buffer.layout, region.buffer.shape
    try:
        plain, at = layout.group(shape)
    except CompilationError:
        return None
    period, known = layout.swizzle.period if layout.swizzle is not None else 1, []
    for d, start in enumerate(starts):
        known.append(int(start.value) if isinstance(start, Const) else 0)
        if not isinstance(start, Const) and (region.extents[d] != 1 or any(s[1] % period for s in plain.shards[at[d]:at[d + 1]])):
            return None
    return known


def moved(layout, origin, target) -> tuple[int, int] | None:
    """How the threads' offsets `target` come from others: (flip, step), by ``(origin ^ flip) + step``, if by the same for all."""
    flip = int(origin[0] ^ target[0]) & (layout.swizzle.block - 1 if layout.swizzle is not None else 0)
    step = target - (origin ^ flip)
    return (flip, int(step[0])) if (step == step[0]).all() else None


def _coordinates(group: Group, row: int, transposed: bool, lane) -> list:
    """Where a lane's row of a matrix begins, after the group's `at`. Runs on arrays and emitted values."""
    inside = [0, 0]
    for d in (0, 1):
        if group.odd[d]:
            inside[d] = inside[d] + (lane >> 3 & 1) * group.odd[d]
        if group.high[d]:
            inside[d] = inside[d] + (lane >> 4 & 1) * group.high[d]
    along = 1 - row if transposed else row
    inside[along] = inside[along] + (lane & 7)
    return inside


def emit(e, plan: LdMatrix, source, t: Tile) -> list:
    """The tile's registers."""
    words, origins, buffer = [], {}, source.buffer
    nbytes, lane = buffer.type.dtype.nbytes, e.lane_id()

    def offset(group: Group, starts):
        inside = _coordinates(group, plan.row, plan.transposed, lane)
        full = list(starts)
        for k, d in enumerate(source.type.kept):
            full[d] = full[d] + e.warp_coordinate(t, k) + inside[k] + group.at[k]
        return buffer.type.layout.offset_of(*full, shape=buffer.type.shape) * nbytes

    for group in plan.groups:
        key = (group.count, group.odd, group.high)
        if group.flip is None:
            at, constant = offset(group, source.starts), 0
        else:
            if key not in origins:
                origins[key] = {0: offset(group, [0 if isinstance(start, int) else start for start in source.starts])}
            flipped = origins[key]
            if group.flip not in flipped:
                flipped[group.flip] = flipped[0] ^ (group.flip * nbytes)
            at, constant = flipped[group.flip], group.step * nbytes
        text = f"ldmatrix.sync.aligned.m8n8.x{group.count}{'.trans' if plan.transposed else ''}.shared.b16 "
        registers = ", ".join(f"${i}" for i in range(group.count))
        words += e.asm(f"{text}{{{registers}}}, [${group.count} + {buffer.offset + constant}];", [int32] * group.count,
                       [e.shared_base() + at], convergent=True)
    return e.unpacked_words(words, t.dtype)


_plain_plan, _plain_emit = load_.rules["plan"], load_.rules["emit"]
load_.rules["plan"] = lambda g, call: plan_matrices(g, call) or _plain_plan(g, call)


@load_.emit
def _(e, call, source, other, mask):
    if isinstance(call.choice.plan, LdMatrix):
        return emit(e, call.choice.plan, source, call.result.type)
    return _plain_emit(e, call, source, other, mask)
