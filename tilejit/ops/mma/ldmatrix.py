"""ldmatrix: a tile in the layout of a fragment, loaded from shared memory in 8 by 8 matrices of 32-bit quarters of rows.

A plan of ``tile.load``: an instruction of a warp brings up to four matrices, whose rows of 16 bytes its lanes name. Elements
of 16 bits may lie in memory along either dimension (``.trans``), narrower and wider ones along k. PTX ISA, "Warp-level matrix
load instruction: ldmatrix".
"""

from __future__ import annotations

from ...dtypes import int32
from ...types import Region, Tile
from ..memory import load_
from ..partition import shared_runs
from .matrices import Matrices, groups_of


class LdMatrix(Matrices):
    """A tile that ldmatrix loads."""


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
    return LdMatrix(row, transposed, groups_of(t, source, starts, row, transposed, g.scope.threads))


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


def emit(e, plan: LdMatrix, source, t: Tile) -> list:
    """The tile's registers."""
    words = []
    for group, (address, constant) in zip(plan.groups, plan.addresses(e, source, t)):
        text = f"ldmatrix.sync.aligned.m8n8.x{group.count}{'.trans' if plan.transposed else ''}.shared.b16 "
        registers = ", ".join(f"${i}" for i in range(group.count))
        words += e.asm(f"{text}{{{registers}}}, [${group.count} + {constant}];", [int32] * group.count, [address], convergent=True)
    return e.unpacked_words(words, t.dtype)


_plain_plan, _plain_emit = load_.rules["plan"], load_.rules["emit"]
load_.rules["plan"] = lambda g, call: plan_matrices(g, call) or _plain_plan(g, call)


@load_.emit
def _(e, call, source, other, mask):
    if isinstance(call.choice.plan, LdMatrix):
        return emit(e, call.choice.plan, source, call.result.type)
    return _plain_emit(e, call, source, other, mask)
