"""What an index of a kernel value selects: ``value[index]``, and boxes of a grid, ``A.tiles(extents)[m, k]``."""

from __future__ import annotations

from ...ir.builder import Builder, describe, extents_of
from ...ir.builtin import method
from ...ir.graph import Value
from ...types import Barrier, Buffer, Region, TensorMap, Tile
from ..language.creation import checked_shape
from ..language.operators import binary
from ..memory import regions
from ..moves.copy_async.tma import tensor_map
from ..sync import barriers
from ..tiles import slicing


def getitem(g: Builder, value: Value, index) -> Value:
    """``value[index]``: a region or points of memory, a slice of a tile, one of several barriers,
    a box of a tensor map."""
    index = index if isinstance(index, tuple) else (index,)
    match value.type:
        case Buffer() | Region():
            return regions.index(g, value, index)
        case Tile():
            return slicing.index(g, value, index)
        case Barrier():
            return barriers.index(g, value, index)
        case TensorMap():
            return tensor_map.index(g, value, index)
    raise g.error(f"{describe(value)} cannot be indexed")


@method(Buffer, name="tiles")
def _tiles(g, x, extents):
    """The buffer as a grid of boxes of `extents`: ``A.tiles((BM, BK))[m, k]`` is the region of box (m, k)."""
    return Tiles(x, checked_shape(g, extents))


class Tiles:
    """A buffer as a grid of boxes, which an index selects. Exists at compile time only."""

    def __init__(self, buffer: Value, extents: tuple[int, ...]):
        self.buffer, self.extents = buffer, extents

    def tile_getitem(self, g: Builder, index):
        index = index if isinstance(index, tuple) else (index,)
        rank = len(extents_of(self.buffer))
        if not rank == len(index) == len(self.extents):
            raise g.error(f"tiles of {describe(self.buffer)} have {rank} extents and {rank} indices, "
                          f"not {len(self.extents)} and {len(index)}")
        def place(i):
            return i if isinstance(i, int) else None
        slices = []
        for i, n in zip(index, self.extents):
            start = place(i) * n if place(i) is not None else binary(g, "*", i, n)
            stop = start + n if isinstance(start, int) else binary(g, "+", start, n)
            slices.append(slice(start, stop))
        return getitem(g, self.buffer, tuple(slices))
