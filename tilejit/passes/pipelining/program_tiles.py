"""Tiles that a persistent kernel loads once for each program, such as Q of attention: the producer loads them early.

Where a product takes such a tile from shared memory, the threads load it to registers and store it there, and wait a
microsecond for it. In a loop over programs, it becomes a copy by the producer, into one of two slots if there is room
for them: it arrives while the products of the program before still run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.builder import as_value, type_as
from ...ir.graph import Block, Call, Const, Node, Operand, Value, walk, written_arrays
from ...layout import TileLayout, axis
from ...ops.language.operators import binary
from ...ops.language.programs import load_for_program
from ...ops.memory.access_ops import load_, store_
from ...ops.memory.regions import region
from ...ops.memory.shared import alloc_shared, sync
from ...ops.moves.copy_async import copy_async_
from ...ops.structure.ring import ring_slot
from ...ops.structure.ring_release import arrivals, ring_release
from ...ops.sync import barriers as bars
from ...types import Buffer, Region, Tile, layout_of
from ..analysis.context import Context
from ..analysis.staging import completes_by_bytes, shared_memory_left
from ..analysis.writing import Writer


@dataclass(eq=False)
class ProgramTile:
    """A tile that is loaded at `load` and stored by `store` to all of `buffer`, which is there for this alone; `place`
    is the region by which it is stored and read, and `fenced` are the barriers around the store, which no other store
    needs. `slots` is how many programs' tiles there is room for."""

    load: Call
    store: Call
    place: Call
    buffer: Call
    fenced: tuple[Call, ...]
    slots: int = 1
    ring: Value | None = None
    full: Value | None = None
    empty: Value | None = None

    @property
    def nbytes(self) -> int:
        return type_as(self.buffer.result, Buffer).nbytes

    def allocate(self, g: Writer) -> None:
        """Make the slots and their barriers. Each of the consumers' warps releases a slot for itself."""
        t, attrs = type_as(self.buffer.result, Buffer), self.buffer.attrs
        layout = layout_of(t)
        align = max(attrs["align"], 128)
        step = -(-layout.span(axis.m) * t.dtype.nbytes // align) * align // t.dtype.nbytes
        layout = TileLayout([(self.slots, step, axis.m), *layout.shards], layout.replicas, layout.offset,
                            layout.swizzle)
        shape = (self.slots, *t.shape)
        self.ring = Value("tiles", Buffer(t.dtype, shape, "shared", layout), self.load.loc)
        g.hoist(Call(alloc_shared, (), {**attrs, "shape": shape, "layout": layout, "align": align, "slots": True},
                     (self.ring,), self.load.loc))
        self.full = bars.initialise_barriers(g, 1, self.slots, "full")
        self.empty = bars.initialise_barriers(g, arrivals(g.launch.threads, by_warp=True), self.slots, "empty")

    def slot(self, g: Writer, turn: Operand) -> tuple[Value, Operand]:
        """The slot of a CTA's program number `turn`, counted from 0, and its phase."""
        slot = as_value(g.call(ring_slot, binary(g, "&", turn, self.slots - 1), stages=self.slots))
        return slot, binary(g, "&", binary(g, ">>", turn, self.slots.bit_length() - 1), 1)

    def view(self, g: Writer, slot: Value) -> Value:
        """The region of one slot, in place of the region of the buffer."""
        _, *starts = self.place.args
        extents, kept = self.place.attrs["extents"], self.place.attrs["kept"]
        return as_value(g.call(region, self.ring, slot, *starts, extents=(1, *extents),
                               kept=tuple(d + 1 for d in kept)))

    def bring(self, g: Writer, place: Value, source: Operand, slot: Value, phase: Operand) -> None:
        """Have the producer load the tile, and wait for it."""
        full, empty = (g.call(bars.mbarrier_at, barriers, slot, peer=False) for barriers in (self.full, self.empty))
        g.call(load_for_program, place, source, full, empty, phase)
        g.call(bars.mbarrier_wait, full, phase)

    def release(self, g: Writer, slot: Value) -> None:
        g.call(ring_release, g.call(bars.mbarrier_at, self.empty, slot, peer=False), None, self.ring, ranks=1,
               met=True, by_warp=True)


def find_program_tiles(context: Context, nodes: Sequence[Node]) -> list[ProgramTile]:
    """The tiles that the producer can load, among those of `nodes`, which are a program's. All of these that are in
    two slots fit in shared memory; the others have one."""
    left, found = shared_memory_left(context), []
    for n, node in enumerate(nodes):
        tile = _tile_stored_at(context, nodes, n) if isinstance(node, Call) and node.op is store_ else None
        if tile is not None:
            tile.slots = 2 if tile.nbytes <= left else 1
            left -= (tile.slots - 1) * tile.nbytes
            found.append(tile)
    return found


def _tile_stored_at(context: Context, nodes: Sequence[Node], n: int) -> ProgramTile | None:
    """The tile that the store with number `n` puts in memory for products in loops, if the producer can load it."""
    store = nodes[n]
    assert isinstance(store, Call)
    place, load = (context.definitions.get(x) for x in store.args[:2])
    fenced = _barriers_around(nodes, n)
    if place is None or load is None or place.op is not region or not fenced:
        return None
    buffer = context.definitions.get(place.args[0])
    if buffer is None or buffer.op is not alloc_shared or not _covers(place, buffer):
        return None
    if not _is_plain_load(context, load, nodes):
        return None
    users = [c for c in context.calls if buffer.result in c.args]
    loops = {c for node in nodes if not isinstance(node, Call) for c in walk(Block((node,)))}
    readers = [c for c in context.calls if place.result in c.args and c is not store]
    if users != [place] or not loops.issuperset(readers):
        return None
    copy = Call(copy_async_, (place.result, load.args[0], None), {"options": {}, "partial": None}, (), load.loc)
    if not completes_by_bytes(context, copy, "thread"):
        return None
    return ProgramTile(load, store, place, buffer, fenced)


def _is_plain_load(context: Context, load: Call, nodes: Sequence[Node]) -> bool:
    """Whether a load brings a whole tile of an array that the kernel does not write, only to store it."""
    if load.op is not load_ or load not in nodes or not isinstance(load.result.type, Tile):
        return False
    source, other, mask = load.args
    t = as_value(source).type
    return (isinstance(t, Region) and t.buffer.scope == "global" and t.buffer.map is None and mask is None
            and isinstance(t.buffer.arg, int) and t.buffer.arg not in written_arrays(context.calls)
            and isinstance(other, Const) and other.value == 0 and load.attrs["cache"] is None
            and sum(load.result in c.args for c in context.calls) == 1)


def _covers(place: Call, buffer: Call) -> bool:
    """Whether a region is all of a buffer."""
    shape = type_as(buffer.result, Buffer).shape
    return (place.attrs["extents"] == shape and all(isinstance(s, Const) and s.value == 0 for s in place.args[1:]))


def _barriers_around(nodes: Sequence[Node], n: int) -> tuple[Call, ...]:
    """The barrier before the store with number `n`, and the proxy fence and the barrier after it; none if they may
    serve another store too."""
    before = n - 1
    while before >= 0 and isinstance(node := nodes[before], Call) and node.op.effect == "pure":
        before -= 1
    around = [nodes[before] if before >= 0 else None, *nodes[n + 1:n + 3]]
    calls = [node for node in around if isinstance(node, Call)]
    return tuple(calls) if [c.op for c in calls] == [sync, bars.fence_proxy_async, sync] else ()


__all__ = ["ProgramTile", "find_program_tiles"]
