"""Whether an epilogue computes in 16 bits from its accumulators on: those that wait for it then wait in that dtype."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import tilejit as tile

from ...errors import TileError
from ...frontend.building import Built
from ...frontend.captures import Watch
from ...ir.graph import Block, Call, Const, Node, Value, blocks, operands, walk
from ...ops.memory.access_ops import load_
from ...ops.tiles.casts import cast
from ...runtime.arguments import ArraySpec
from ...types import Scalar, Tile
from ..operands import NOTHING
from .constants import Epilogue
from .epilogue import PIECE, Finishing, finish_sums

ROWS = 64  # of the accumulators that a consumer defers


@tile.jit
def apply_to_waiting(S, z, m, n, E0, E1, E2, E3, EPILOGUE: tile.constexpr, COLUMNS: tile.constexpr,
                     WAITING: tile.constexpr):
    """Apply the epilogue to the accumulators in S, those of matrix `z` from row `m` and column `n` on, which have
    waited in dtype WAITING."""
    place = S[0:ROWS, 0:COLUMNS]
    made = finish_sums(tile.cast(tile.load(place), WAITING), z, m, n,
                       Finishing(1, 1, (E0, E1, E2, E3)[:EPILOGUE.extras], EPILOGUE))
    tile.store(place, tile.cast(made, S.dtype))


class Taken(NamedTuple):
    """A dtype, which an epilogue takes deferred accumulators in, also in staging buffers of `width` columns, as long
    as none of the `watched` globals that it reads has changed."""

    dtype: tile.dtypes.DType
    width: int
    watched: tuple[Watch, ...]


def dtype_taken(finish: Epilogue, sums, extras: tuple, target: str, width: int) -> Taken | None:
    """The 16-bit float dtype to which an epilogue casts its accumulators, of dtype `sums`, before it does anything
    else with them; None for other epilogues, and for those that cast them back to compute in a wider dtype: so much
    work is slower under other products. It is the same for a `PIECE` of columns, as they are finished under other
    products, and for `width`, as those of a CTA's last tile are; and what is done with accumulators that have that
    dtype already is the same too. `extras` are the arguments and tiles of the epilogue `finish`. Invalid ones give
    None: the call of the kernel reports them."""
    first = _dtype_and_uses(PIECE, finish, sums, extras, target)
    other = first if first is None or width == PIECE else _dtype_and_uses(width, finish, sums, extras, target)
    if first is None or other is None or other[0] != first[0]:
        return None
    return Taken(first[0], width, tuple(map(Watch, dict.fromkeys((*first[1], *other[1])))))


def _dtype_and_uses(columns: int, finish: Epilogue, sums, extras: tuple, target: str) -> tuple | None:
    """(the dtype to which an epilogue casts so many columns of accumulators, what it depends on), or None."""
    built = _build_epilogue(columns, finish, sums, sums, extras, target)
    if built is None:
        return None
    body, uses = built.graph.body, _uses_of_accumulators(built.graph.body)
    dtypes = {_cast_to(use) for use in uses}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    if dtype is None or not dtype.is_float or dtype.nbytes != 2:
        return None
    # each is a cast
    later = {_cast_to(use) for first in uses if isinstance(first, Call) for use in _uses(body, first.result)}
    if any(d is not None and d.nbytes > dtype.nbytes for d in later):
        return None
    already = _build_epilogue(columns, finish, sums, dtype, extras, target)
    if already is None or _work(already.graph.body) != _work(body):
        return None
    return dtype, tuple(c for c in built.captured if c.may_change)


def _build_epilogue(columns: int, finish: Epilogue, sums, waiting, extras: tuple, target: str) -> Built | None:
    """The epilogue of so many columns that have waited in dtype `waiting`, before the passes; None if it is invalid."""
    given = ArraySpec((ROWS, columns), sums.name), 0, 0, 0, *extras, *NOTHING[len(extras):]
    kernel: Any = apply_to_waiting  # whose public type does not have the parts of a compilation
    try:
        bound, options, _ = kernel.bind(given, dict(EPILOGUE=replace(finish, extras=len(extras)), COLUMNS=columns,
                                                    WAITING=waiting))
        return kernel.build(bound.without_data(), options, target)
    except TileError:
        return None


def _work(body: Block) -> Counter:
    """What is done besides casts of the accumulators: how often which operation, on which constants,
    of which result."""
    casts = _uses_of_accumulators(body)
    done = (n for n in walk(body) if isinstance(n, Call) and n not in casts)
    return Counter(
        (n.op.name, repr(sorted(n.attrs.items(), key=str)), *(x.value for x in n.args if isinstance(x, Const)),
         *((r.type.dtype, getattr(r.type, "shape", ())) for r in n.results if isinstance(r.type, (Scalar, Tile))))
        for n in done)


def _uses_of_accumulators(body: Block) -> list[Node | None]:
    loaded = next((n.result for n in walk(body) if isinstance(n, Call) and n.op is load_), None)
    return [] if loaded is None else _uses(body, loaded)


def _uses(body: Block, value: Value) -> list[Node | None]:
    """The nodes that read a value; None for a loop or branch that yields it."""
    found: list[Node | None] = []
    for node in walk(body):
        if value in operands(node):
            found.append(node)
        found += [None for block in blocks(node) if value in block.yields]
    return found


def _cast_to(node: Node | None):
    """The dtype of a cast, None for any other use."""
    return node.attrs["dtype"] if isinstance(node, Call) and node.op is cast else None


def bind_dtype_taken(epilogue, extras: Sequence[Any], target: str):
    """``dtype_taken(finish, sums, width)`` with such tiles; None without an epilogue."""
    if epilogue is None:
        return None
    return lambda finish, sums, width: dtype_taken(finish, sums, tuple(extras), target, width)


__all__ = ["bind_dtype_taken", "dtype_taken"]
