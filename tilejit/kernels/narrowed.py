"""Whether an epilogue begins by casting its accumulators to a narrower dtype: those that wait for it then wait in that dtype."""

from __future__ import annotations

import tilejit as tile

from ..errors import TileError
from ..ir.graph import Block, Call, Value, blocks, operands, walk
from ..ops.casts import cast
from ..ops.layout_change import convert_layout
from ..ops.memory import load_
from ..runtime.arguments import ArraySpec
from .finish import finished
from .operands import NOTHING

SIZE = 64  # rows and columns of the accumulators that the epilogue is traced with


@tile.jit
def applied(S, E0, E1, E2, E3, FINISH: tile.constexpr, EXTRAS: tile.constexpr):
    """Apply the epilogue to the accumulators in S."""
    place = S[0:SIZE, 0:SIZE]
    made = finished(tile.load(place), 0, 0, 0, 1, 1, (E0, E1, E2, E3)[:EXTRAS], FINISH)
    tile.store(place, tile.cast(made, S.dtype))


def dtype_taken(finish: tuple, sums, extras: tuple, target: str):
    """The 16-bit float dtype to which an epilogue casts its accumulators, of dtype `sums`, before it does anything else with them; None for other
    epilogues. `finish` is the kernels' FINISH, `extras` are the epilogue's arguments and tiles. Invalid ones give None: the call of
    the kernel reports them."""
    given = ArraySpec((SIZE, SIZE), sums.name), *extras, *NOTHING[len(extras):]
    try:
        bound, options, _ = applied._bind(given, dict(FINISH=finish, EXTRAS=len(extras)))
        graph = applied._lower(bound.without_data(), options, target).graph
    except TileError:
        return None
    loaded = next((n.result for n in walk(graph.body) if isinstance(n, Call) and n.op is load_), None)
    taken = set() if loaded is None else _casts(graph.body, loaded)
    dtype = taken.pop() if len(taken) == 1 else None
    return dtype if dtype is not None and dtype.is_float and dtype.nbytes == 2 else None


def _casts(body: Block, value: Value) -> set:
    """The dtypes that a value is cast to, with None for any other use."""
    found = set()
    for node in walk(body):
        if value in operands(node) and isinstance(node, Call) and node.op is convert_layout:
            found |= _casts(body, node.result)
        elif value in operands(node):
            found.add(node.attrs["dtype"] if isinstance(node, Call) and node.op is cast else None)
        if any(value in block.yields for block in blocks(node)):
            found.add(None)
    return found


def asked(epilogue, extras: tuple, target: str):
    """``dtype_taken(finish, sums)`` of such arguments and tiles; None without an epilogue."""
    return None if epilogue is None else lambda finish, sums: dtype_taken(finish, sums, extras, target)


__all__ = ["asked", "dtype_taken"]
