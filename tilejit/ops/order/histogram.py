"""``histogram``: how often each integer occurs in a tile, counted by atomic additions in shared memory."""

from __future__ import annotations

import numpy as np

from ...dtypes import bool_, int32
from ...ir.builder import Builder, describe, type_of
from ...ir.builtin import builtin
from ...ir.op import op
from ...types import Tile
from ..language.creation import zeros
from ..language.promotion import collective
from ..language.shape import tile_operand
from ..reduce.ragged_warnings import warn_if_ragged
from ..tiles.casts import cast
from ..tiles.gather import as_index


@op("pure", attrs=("bins",), collective=True)
def histogram_(x, bins):
    """How many elements of the int32 tile `x` are 0, 1, ..., ``bins - 1``. Others are not counted."""


@histogram_.infer
def _(g, x, bins):
    collective(g, "a histogram")
    return Tile(int32, (bins,))


@histogram_.simulate
def _(m, call, x):
    bins, batch = call.attrs["bins"], x.shape[0]
    x = x.reshape(batch, -1)
    counted = np.where((x >= 0) & (x < bins), x, bins) + np.arange(batch)[:, None] * (bins + 1)
    found = np.bincount(counted.ravel(), minlength=batch * (bins + 1))
    return found.reshape(batch, bins + 1)[:, :bins].astype(np.int32)


@histogram_.emit
def _(e, call, x):
    source, target, bins = type_of(call.args[0]), call.result.type, call.attrs["bins"]
    own = e.thread_id()
    e.begin_scratch(call)
    for first in range(0, bins, e.threads):
        inside = e.in_bounds(own + first, bins)
        address, offset = e.scratch_address(call, own * 4)
        e.vector_store("shared", address, offset + first * 4, int32, [e.const(0, int32)], e.all_of([inside]), None)
    e.sync.scope()
    for r, value in enumerate(x):
        counted = e.all_of([e.in_bounds(value, bins), e.tiles.is_element(source, r), e.tiles.first_replica(source)])
        address, offset = e.scratch_address(call, value * 4)
        e.asm(f"@$2 red.relaxed.cta.shared.add.s32 [$0 + {offset}], $1;", [], [address, e.const(1, int32), counted])
    e.sync.scope()
    return e.tiles.scratch_load(call, target, (bins,))


def _histogram_layout(assigner, call, types):
    t = call.args[0].type
    return (types[0] or assigner.default(t.shape, t.dtype),), (assigner.default((call.attrs["bins"],), int32),)


histogram_.rules.layout = _histogram_layout
histogram_.rules.scratch = lambda call: call.attrs["bins"] * 4


@builtin
def histogram(g: Builder, x, bins):
    """How often each of the integers 0, 1, ..., ``bins - 1`` occurs in the integer tile `x`, of any shape: an int32
    tile of `bins` elements. Other integers are not counted, so ``tile.where(mask, x, -1)`` leaves elements out.

    As ``numpy.histogram(x, bins, (0, bins))[0]``, but for `bins` itself, which NumPy counts in the last bin. For bins
    of another width, compute each element's bin first. `bins` is a constant. The threads count in shared memory, by
    atomic additions.
    """
    x = tile_operand(g, x, "histogram")
    if not x.type.dtype.is_int and x.type.dtype != bool_:
        raise g.error(f"histogram counts integers, not {describe(x)}; compute the bins of floats first, as in "
                      "tile.int32(tile.floor((x - low) / width))")
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise g.error(f"bins is a constant integer above 0, not {describe(bins)}" + g.declared_constant(bins))
    warn_if_ragged(g, x, "histogram", range(len(x.type.shape)))
    if not x.type.size:
        return zeros.function(g, (bins,), int32)
    x = g.call(cast, x, dtype=int32) if x.type.dtype == bool_ else as_index(g, x, bins)
    return g.call(histogram_, x, bins=bins)
