"""A tile in another layout: registers renamed when every thread has what it needs, scratch memory otherwise."""

from __future__ import annotations

from ..ir.builder import type_of
from ..ir.op import op
from ..types import Tile


@op("pure")
def convert_layout(x):
    """The same tile, held by other threads and registers."""


@convert_layout.infer
def _(g, x):
    return type_of(x)


@convert_layout.simulate
def _(m, call, x):
    return x


def local_moves(source: Tile, target: Tile) -> tuple[int, ...] | None:
    """For each register of the target the source register of the same thread that holds its element, the same in every
    thread; None when an element must cross threads."""
    import numpy as np

    from ..layout import thread_table
    threads = max(_threads(source), _threads(target))
    have, need = thread_table(source.layout, source.domain, threads), thread_table(target.layout, target.domain, threads)
    have, need = _flat(have, source), _flat(need, target)
    moves = []
    for column in range(need.shape[1]):
        wanted = need[:, column:column + 1]
        same = np.all((have == wanted) | (wanted < 0), axis=0)
        if not same.any():
            return None
        moves.append(int(np.argmax(same)))
    return tuple(moves)


def _threads(t: Tile) -> int:
    warps = 1 + sum((x - 1) * s for x, s, a in (*t.layout.shards, *t.layout.replicas) if a == "warpid")
    return 32 * warps


def _flat(table, t: Tile):
    """Indices over the domain as indices over the shape; -1 for the padding."""
    import numpy as np
    at = np.unravel_index(table, t.domain)
    inside = np.ones(table.shape, bool)
    flat = np.zeros(table.shape, np.int64)
    for c, extent in zip(at, t.shape):
        inside &= c < extent
        flat = flat * extent + c
    return np.where(inside, flat, -1)


@convert_layout.emit
def _(e, call, x):
    source, target = type_of(call.args[0]), call.result.type
    moves = local_moves(source, target)
    if moves is not None:
        return [x[m] for m in moves]
    e.scratch_store(call, x, source)
    return e.scratch_load(call, target, source.shape)


def _scratch(call) -> int:
    source, target = type_of(call.args[0]), call.results[0].type
    return 0 if local_moves(source, target) is not None else source.size * source.dtype.nbytes


convert_layout.rules["scratch"] = _scratch
