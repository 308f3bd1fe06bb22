"""A ring of buffers with full and empty barriers, which the producers and consumers of a pipeline share.

Each execution scope that uses a ring has its own cursor: the next slot, and the parity of its barriers' phase. Loops
carry the cursor. A slot is full when all its bytes have arrived. It is empty when every consumer has released it;
with ``multicast=True``, the consumers of every CTA of the cluster, so that each producer may write into the slots of
all CTAs. Slots that ``tcgen05`` products read are released by the commit of the products. Slots in tensor memory are
filled by products, and are full when their commit arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm, prod
from typing import Any

from ...dtypes import DType, dtype_of, int32, transaction_bytes
from ...errors import CompilationError
from ...ir.builder import Builder, ExecScope, describe, extents_of, type_as, type_of
from ...ir.builtin import MEMBERS, builtin
from ...ir.graph import Const, Value
from ...ir.op import op
from ...layout import Auto, TileLayout, auto, axis
from ...names import suggest_nearest
from ...types import Buffer, Scalar
from ..language.creation import checked_shape
from ..language.operators import binary, compare
from ..language.pointwise import assume, where
from ..language.promotion import collective, uniform_scalar
from ..memory.shared import allocate_shared, sync
from ..sync import barriers
from ..sync.pipeline import advance_cursor, flip_phase
from ..sync.proxies import hand_over
from ..tmem.alloc import LANES, allocate, columns_of, default_layout
from ..tmem.order import tcgen05_fence
from ..tmem.slots import commit, leader, met_in, pair_mask, products_of, read_by_threads, release_by_commit
from ..tmem.targets import needs_tensor_memory
from .ring_release import arrivals, ring_release
from .subscripts import getitem

START = (0, 0)  # the initial cursor: slot, parity of its phase
FILLED = ("copies", "stores", "products")
OPTIONS = ("consumers", "filled", "multicast", "cta_group")


class Ring:
    """The buffers of a ring, each with `stages` slots, and the full and empty barriers of the slots."""

    def __init__(self, number: int, stages: int, consumers: int, filled: str, ranks: int, cta_group: int,
                 buffers: dict[str, Value], full: Value, empty: Value):
        self.number, self.stages, self.consumers, self.filled, self.ranks, self.cta_group = (number, stages, consumers,
                                                                                             filled, ranks, cta_group)
        self.buffers, self.full, self.empty = buffers, full, empty
        self.used: dict[str, Any] = {}  # "produce" and "consume" -> location of the first use
        # cursors with which consume(behind=True) may keep a slot before the scope's warps have synchronised
        self.passed: set[tuple] = set()
        # cursors of scopes that look at slots, each with the location of the first time; those of scopes that consume
        self.peeked: dict[tuple, Any] = {}
        self.consuming: set[tuple] = set()

    def check(self) -> None:
        """CompilationError if slots are consumed that no producer fills, or looked at by a scope that consumes
        none."""
        if "consume" in self.used and "produce" not in self.used:
            raise CompilationError("nothing fills this ring's slots, so waiting for a full one would never end: "
                                   "fill them in `with ring.produce() as slot:`",
                                   self.used["consume"])
        for cursor, loc in self.peeked.items():
            if cursor not in self.consuming:
                raise CompilationError("peek() looks at the slot that its scope consumes next, and this scope consumes "
                                       "none of the ring: call it where consume() is called", loc)

    @property
    def slot_bytes(self) -> int:
        """The bytes of a slot that its full barrier counts."""
        types = [type_as(b, Buffer) for b in self.buffers.values()]
        return sum(transaction_bytes(t.dtype, prod(t.shape[1:]) * t.dtype.nbytes) for t in types)


@dataclass(eq=False)
class Slot:
    """A slot that a scope holds. Its attributes are a region for each buffer of the ring, by name,
    and the barrier `full`."""

    ring: Ring
    stage: Any
    full: Value
    block: list
    entered: int
    released: bool = False

    @property
    def tile_names(self) -> list[str]:
        return [*self.ring.buffers, "full"]


@dataclass(eq=False)
class Turn:
    """The context manager of ``with ring.produce()`` and ``with ring.consume()``."""

    ring: Ring
    role: str
    behind: bool = False
    slot: Slot | None = None
    cursor: tuple = ()
    tile_expires = "was a ring's slot, which is held inside its `with` block only"
    tile_hint = ": `with ring.produce() as slot:` and `with ring.consume() as slot:` give the slot"

    def tile_enter(self, g: Builder) -> Slot:
        """Wait for the next slot after those that enclosing blocks hold. A producer of copies also makes its full
        barrier expect them."""
        collective(g, f"{self.role}() of a ring")
        self.ring.used.setdefault(self.role, g.loc)
        self.cursor = _cursor(g, self.ring, self.role)
        ring, around = self.ring, _blocks_around(g, self.cursor)
        if around and any(turn.behind for turn in (*around, self)):
            raise g.error("consume(behind=True) releases the slot before its own, "
                          "so it cannot enclose or be inside another block of its ring")
        if len(around) >= ring.stages:
            raise g.error(f"{len(around) + 1} slots are held at once here, and the ring has {ring.stages}")
        stage, phase, full = _slot_after(g, ring, self.cursor, len(around))
        if self.role == "produce":
            empty = g.call(barriers.mbarrier_at, ring.empty, _operand(g, stage), peer=False)
            barriers.wait(g, empty, flip_phase(g, phase))
            if ring.filled == "copies":
                full = _of_leader(g, ring, full)
                barriers.arrive_expect_tx(g, full, ring.slot_bytes)
        else:
            ring.consuming.add(self.cursor)
            if not self.behind and g.cells.get(_cursor(g, ring, "held"), 0) != 0:
                raise g.error("consume(behind=True) may still hold a slot here: release it with release() first")
            barriers.wait_unless_seen(g, full, phase, _take_seen(g, ring))
        if ring.filled == "products":
            g.call(tcgen05_fence, side="after_thread_sync")
        self.slot = Slot(ring, stage, full, g.blocks[-1], len(g.blocks[-1]))
        for name, buffer in ring.buffers.items():
            setattr(self.slot, name, _part(g, buffer, stage))
        return self.slot

    def tile_exit(self, g: Builder) -> None:
        """Release a consumed slot (with `behind`, the one kept before), or signal that a produced one is full;
        advance the cursor."""
        slot = self.slot
        assert slot is not None  # since it has been entered
        if self.role == "consume" and self.behind:
            if _products(g, slot):
                raise g.error("products into tensor memory release their slot when they complete: leave behind= out")
            if not _warps_have_met(g, slot):
                self.ring.passed.add(self.cursor)
            _release_held(g, self.ring)
            g.cells[_cursor(g, self.ring, "held")] = 1
        elif self.role == "consume" and not slot.released:
            _release(g, slot)
        if self.role == "produce" and self.ring.filled == "stores":
            g.call(hand_over, *self.ring.buffers.values(), filled=True)
            barriers.arrive(g, slot.full)
        if self.role == "produce" and self.ring.filled == "products":
            commit(g, slot.full, pair_mask(g) if self.ring.cta_group == 2 else None)
        g.cells[self.cursor] = advance_cursor(g, self.ring.stages, *g.cells[self.cursor])


def _blocks_around(g: Builder, cursor: tuple) -> list[Turn]:
    """The enclosing blocks, which hold the slots from the `cursor` on."""
    return [turn for turn in g.entered if isinstance(turn, Turn) and turn.cursor == cursor]


def _slot_after(g: Builder, ring: Ring, cursor: tuple, held: int) -> tuple:
    """(The number, phase and full barrier) of the slot after `held` slots from the `cursor` on."""
    stage, phase = g.cells.setdefault(cursor, START)
    for _ in range(held):
        stage, phase = advance_cursor(g, ring.stages, stage, phase)
    return stage, phase, g.call(barriers.mbarrier_at, ring.full, _operand(g, stage), peer=False)


def _of_leader(g: Builder, ring: Ring, barrier: Value) -> Value:
    """The barrier itself; with cta_group=2, the one at the same address in the even CTA of the pair."""
    return barriers.peer(g, barrier, leader(g)) if ring.cta_group == 2 else barrier


def _products(g: Builder, slot: Slot) -> list:
    """The tcgen05 products in the block so far that read the slot."""
    return products_of(g, slot.block[slot.entered:], slot.ring.buffers.values())


def _warps_have_met(g: Builder, slot: Slot) -> bool:
    """Whether the scope's warps have synchronised since they entered the slot."""
    return g.scope.threads <= 32 or met_in(g, slot.block[slot.entered:], slot.ring.buffers.values())


def _part(g: Builder, buffer: Value, stage) -> Value:
    stage = stage if isinstance(stage, int) else g.call(ring_slot, stage, stages=extents_of(buffer)[0])
    return getitem(g, buffer, (stage, *(slice(None) for _ in extents_of(buffer)[1:])))


@op("pure", attrs=("stages",))
def ring_slot(stage, stages):
    """The number of a slot, which is known to be less than `stages`."""


@ring_slot.infer
def _(g, stage, stages):
    return type_of(stage)


@ring_slot.simulate
def _(m, call, stage):
    return stage


@ring_slot.emit
def _(e, call, stage):
    return stage


def _operand(g: Builder, x):
    return Const(x, int32) if isinstance(x, int) else x


def cursors(g: Builder) -> list[tuple[tuple, tuple[int, int]]]:
    """The names of this scope's cursors of all rings so far, each with its initial value."""
    return [(_cursor(g, ring, role), START) for ring in g.state.get("rings", ()) for role in ("produce", "consume")]


def _cursor(g: Builder, ring: Ring, role: str) -> tuple:
    """The name of the current scope's cursor in a ring."""
    def place(scope: ExecScope | None) -> tuple:
        if scope is None:
            return ()
        return scope.kind, scope.first, scope.threads, scope.elected, *place(scope.parent)
    return "ring", ring.number, role, place(g.scope)


# -- user functions ----------------------------------------------------------------------------------------------------

@builtin
def ring(g: Builder, stages, *, consumers=1, filled="copies", multicast=False, cta_group=1, **buffers):
    """A ring of `stages` slots. ``A=(shape, dtype)`` or ``A=(shape, dtype, layout)`` gives each slot a buffer `A`.

    ``with r.produce() as slot:`` waits for an empty slot and makes its barrier ``slot.full`` expect the bytes of all
    its buffers; copies with ``mbar=slot.full`` then fill it. ``with r.consume() as slot:`` waits for a full slot. The
    slot is released at the end of the block or by ``slot.release()``, when the scope has read it; the proxy fence
    that reads by threads need before copies refill the slot is part of that. ``r.consume(behind=True)`` releases the
    previous slot instead, and ``r.release()`` the last one, so that a product may run during the wait for the next
    slot. ``r.skip(n)`` skips `n` slots that another scope consumes. ``r.peek()`` tests early whether the next slot is
    full, in which case the next ``consume()`` does not wait. `consumers` is the number of warpgroups (or
    narrower scopes) that release each slot.

    With ``filled="stores"``, the producer writes the slot by ordinary stores, and it is full at the end of the
    producer's block; in this way a scope passes values to others.
    With `multicast`, the CTAs of a cluster use their rings in step: a slot is empty when the consumers of all CTAs
    have released it, and copies with ``multicast=`` may fill it in several CTAs. The slot's bytes are then those from
    all producers together. Without a layout, or with ``tile.auto``, a buffer's layout is chosen by its uses.

    On sm_100a and sm_103a, products into tensor memory that read a slot release it by their commit when they are
    done, and the thread that starts them does not wait. With ``filled="products"``, the buffers are in tensor memory:
    the producer is the thread that starts products into a slot, which is full when they are done. With
    ``cta_group=2``, a pair of CTAs uses its rings in step: both CTAs produce their parts, on the barrier of the even
    CTA (``slot.full``, for copies with ``cta_group=2``), where one thread consumes them. In a ring of accumulators,
    that thread is the producer, and both CTAs consume.
    """
    for what, n in (("stages", stages), ("consumers", consumers)):
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise g.error(f"{what} is a constant of at least 1, not {describe(n)}" + g.declared_constant(n))
    if filled not in FILLED:
        raise g.error(f"filled is one of {', '.join(map(repr, FILLED))}, not {filled!r}")
    if not isinstance(multicast, bool) or (multicast and filled != "copies"):
        raise g.error("multicast is True where copies fill a ring's slots across the cluster, "
                      f"not {describe(multicast)}"
                      + (f" with filled={filled!r}" if filled != "copies" else ""))
    _check_pair(g, cta_group, filled, multicast)
    if not buffers:
        raise g.error("a ring has at least one buffer, as in ring(4, A=((128, 64), A.dtype))")
    made = g.state.setdefault("rings", [])
    held = {name: _buffer(g, name, stages, spec, filled, cta_group) for name, spec in buffers.items()}
    ranks = prod(g.launch.cluster or (1,)) if multicast else 1
    arming, releasing = (cta_group, consumers) if filled == "copies" else (1, consumers * cta_group)
    full, empty = (barriers.initialise_barriers(g, count, stages, name)
                   for name, count in (("full", arming), ("empty", releasing * ranks)))
    made.append(Ring(len(made) + 1, stages, consumers, filled, ranks, cta_group, held, full, empty))
    return made[-1]


def _check_pair(g: Builder, cta_group, filled: str, multicast: bool) -> None:
    if cta_group not in (1, 2) or isinstance(cta_group, bool):
        raise g.error(f"cta_group is 1 or 2, not {describe(cta_group)}")
    if cta_group == 2 and (filled == "stores" or multicast):
        raise g.error("cta_group=2 is for the products of a pair of CTAs, "
                      f"not {'multicast=True' if multicast else 'filled=' + repr(filled)}")
    if cta_group == 2 and (g.launch.cluster or (1, 1, 1))[0] % 2:
        raise g.error("cta_group=2 works on pairs of CTAs: give cluster=(2, 1, 1), "
                      "or another even number of CTAs along x")
    if cta_group == 2:
        needs_tensor_memory(g, "cta_group=2")


def _buffer(g: Builder, name: str, stages: int, spec, filled: str, cta_group: int) -> Value:
    if name in Slot.__dataclass_fields__ or name == "release":
        raise g.error(f"a slot has a {name!r} of its own; give the buffer another name")
    if not isinstance(spec, tuple) or not 2 <= len(spec) <= 3 or isinstance(spec[1], int):
        raise g.error(f"{name} is given as (shape, dtype) or (shape, dtype, layout), "
                      f"not {describe(spec)}{suggest_nearest(name, OPTIONS)}")
    shape, dtype, layout = (*spec, None)[:3]
    shape = checked_shape(g, shape)
    if filled == "products":
        return _accumulators(g, stages, shape, dtype_of(dtype), layout, cta_group)
    if (layout is None or isinstance(layout, Auto)) and len(shape) == 1 and filled == "copies":
        slots: TileLayout | Auto | None = _lines(stages, shape[0], dtype_of(dtype))
    elif layout is None or isinstance(layout, Auto):
        slots = auto if len(shape) > 1 else None
    elif isinstance(layout, TileLayout):
        slots = TileLayout([(stages, layout.span(), axis.m), *layout.shards], layout.replicas, layout.offset,
                           layout.swizzle)
    else:
        raise g.error(f"the layout of {name} is a tile.TileLayout, as tile.swizzled(dtype, shape, 128) makes, "
                      f"not {describe(layout)}")
    return allocate_shared(g, (stages, *shape), dtype, slots, buffer_of_ring=name)


def _lines(stages: int, extent: int, dtype: DType) -> TileLayout:
    """The layout of one-dimensional slots, each at a multiple of 128 bytes, as TMA boxes require. Unlike with `auto`,
    views are possible."""
    elements, units = dtype.packing
    step = lcm(128, units * dtype.nbytes) // (units * dtype.nbytes) * elements
    return TileLayout([(stages, -(-extent // step) * step, axis.m), (extent, 1, axis.m)])


def _accumulators(g: Builder, stages: int, shape: tuple[int, ...], dtype, layout, cta_group: int) -> Value:
    """Allocate the slots next to each other in tensor memory."""
    needs_tensor_memory(g, "filled='products'")
    layout = default_layout(shape) if layout is None or isinstance(layout, Auto) else layout
    if not isinstance(layout, TileLayout):
        raise g.error(f"an accumulator is [rows, columns] of at most {LANES} rows, "
                      f"or has a layout over axis.TLane and axis.TCol, not {list(shape)}")
    step = columns_of(layout, dtype) * 32 // dtype.bits
    slots = TileLayout([(stages, step, axis.TCol), *layout.shards], layout.replicas, layout.offset)
    return allocate(g, (stages, *shape), dtype, slots, cta_group)


def _produce(g: Builder, ring: Ring) -> Turn:
    """``with r.produce() as slot``: wait for the next empty slot, and make its full barrier expect the slot's bytes."""
    return Turn(ring, "produce")


def _consume(g: Builder, ring: Ring, behind=False) -> Turn:
    """``with r.consume() as slot``: wait for the next full slot. The end of the block releases it; with `behind`, it
    releases the previous slot, and this one is released with the next or by ``r.release()``."""
    if not isinstance(behind, bool):
        raise g.error(f"behind is True or False, known at compile time, not {describe(behind)}")
    if behind and ring.stages == 1:
        raise g.error("consume(behind=True) releases the slot before its own: it needs a ring of two stages or more")
    return Turn(ring, "consume", behind)


def _skip(g: Builder, ring: Ring, n) -> None:
    """Advance the scope's cursor past `n` slots, which other scopes consume. This does not wait: the kernel must
    ensure (`tile.turns`) that the others have seen these slots full."""
    collective(g, "skip() of a ring")
    place = _cursor(g, ring, "consume")
    if _blocks_around(g, place):
        raise g.error("skip() cannot be called inside a block in which its scope holds a slot of the ring")
    if g.cells.get(_cursor(g, ring, "held"), 0) != 0:
        raise g.error("consume(behind=True) may still hold a slot here: release it with release() first")
    n, t = n.value if isinstance(n, Const) else n, type_of(n)
    if not isinstance(t, Scalar) or not t.dtype.is_int:
        raise g.error(f"n is an integer, not {describe(n)}")
    if isinstance(n, int) and n < 0:
        raise g.error(f"slots are skipped forwards: n is at least 0, not {n}")
    if not isinstance(n, int):
        n = uniform_scalar(g, n, "the number of slots that are skipped")
        assume.function(g, compare(g, ">=", n, 0))
    stage, phase = g.cells.setdefault(place, START)
    g.cells[place] = advance_cursor(g, ring.stages, stage, phase, n)
    _take_seen(g, ring)


def _take_seen(g: Builder, ring: Ring):
    """Whether the last peek() saw the scope's next slot full, which then is not the next one any more."""
    place = _cursor(g, ring, "seen")
    seen = g.cells.setdefault(place, False)
    if seen is not False:
        g.cells[place] = False
    return seen


def _peek(g: Builder, ring: Ring) -> None:
    """Test whether the slot that the scope consumes next is full. If it is, the next ``consume()`` does not wait, and
    the latency of the test is under what runs between the two; if not, it waits as ever. Where the scope holds all
    slots and has released none, there is none to look at, and this does nothing. After ``skip()``, other scopes must
    have seen the skipped slots full, as for ``consume()``."""
    collective(g, "peek() of a ring")
    place, seen = _cursor(g, ring, "consume"), _cursor(g, ring, "seen")
    ring.peeked.setdefault(place, g.loc)
    held = _blocks_around(g, place)
    # the next slot's place is that of the first one held; with `behind`, the one before that is held as well
    if len(held) + any(turn.behind for turn in held) == ring.stages and not (held[0].slot and held[0].slot.released):
        return
    _, phase, full = _slot_after(g, ring, place, len(held))
    g.cells.setdefault(seen, False)
    g.cells[seen] = barriers.peek(g, full, phase)


def _check_releases(g: Builder, ring: Ring) -> None:
    """CompilationError if the scope has more warpgroups than the `consumers` that each slot counts."""
    releases = arrivals(g.scope.threads)
    if releases > ring.consumers:
        raise g.error(f"{releases} warpgroups release each slot here, and consumers={ring.consumers}: "
                      f"give tile.ring(..., consumers={releases})")


def _release_held(g: Builder, ring: Ring) -> None:
    """Release the slot that ``consume(behind=True)`` has kept, if there is one. The scope has read it."""
    held = g.cells.setdefault(_cursor(g, ring, "held"), 0)
    if isinstance(held, int) and not held:
        return
    place = _cursor(g, ring, "consume")
    _check_releases(g, ring)
    stage, _ = g.cells[place]
    empty = g.call(barriers.mbarrier_at, ring.empty, _operand(g, _previous_stage(g, ring, stage)), peer=False)
    g.call(ring_release, empty, None if isinstance(held, int) else held, *ring.buffers.values(), ranks=ring.ranks,
           met=place not in ring.passed)
    g.cells[_cursor(g, ring, "held")] = 0


def _previous_stage(g: Builder, ring: Ring, stage):
    """The number of the slot before `stage`."""
    if isinstance(stage, int):
        return (stage - 1) % ring.stages
    return where.function(g, compare(g, "==", stage, 0), ring.stages - 1, binary(g, "-", stage, 1))


def _release(g: Builder, slot: Slot) -> None:
    """Release the slot. The scope has read it (and waited for the products that read it)."""
    if slot.released:
        raise g.error("this slot has been released already")
    if g.blocks[-1] is not slot.block:
        raise g.error("a slot is released in the block that took it, not in a branch or loop inside it")
    _check_releases(g, slot.ring)
    slot.released, ring, found = True, slot.ring, _products(g, slot)
    empty = g.call(barriers.mbarrier_at, ring.empty, _operand(g, slot.stage), peer=False)
    if ring.filled == "products":
        g.call(tcgen05_fence, side="before_thread_sync")
        barriers.arrive(g, _of_leader(g, ring, empty), arrivals(g.scope.threads))
    elif found and read_by_threads(g, slot.block[slot.entered:], ring.buffers.values()):
        raise g.error("products and threads read this slot, and the products' commit does not cover the threads: "
                      "let another scope consume it as well (consumers=2)")
    elif found:
        everywhere = (1 << ring.ranks) - 1 if ring.ranks > 1 else None
        if not _warps_have_met(g, slot):
            # a warp that has not passed the wait yet might miss this phase, and see a later one of the same parity
            g.call(sync)
        release_by_commit(g, empty, found, pair_mask(g) if ring.cta_group == 2 else everywhere)
    elif ring.cta_group == 2:
        raise g.error("with cta_group=2 the pair's products must read a slot and release it: no product reads this one")
    else:
        g.call(ring_release, empty, None, *ring.buffers.values(), ranks=ring.ranks, met=_warps_have_met(g, slot))


MEMBERS[Ring, "produce"] = (_produce, True)
MEMBERS[Ring, "consume"] = (_consume, True)
MEMBERS[Ring, "skip"] = (_skip, True)
MEMBERS[Ring, "peek"] = (_peek, True)
MEMBERS[Ring, "release"] = (_release_held, True)
MEMBERS[Slot, "release"] = (_release, True)
