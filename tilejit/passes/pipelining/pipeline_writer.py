"""Write out one pipelined loop: the ring of its slots, the copies ahead, and the waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ...config import architecture
from ...dispatch import Choice
from ...dtypes import int32
from ...errors import CompilationError, at
from ...ir.builder import as_value, element_type, memory_type, type_as
from ...ir.graph import (
    Block,
    Call,
    Carry,
    Const,
    For,
    If,
    Node,
    Operand,
    Scope,
    Value,
    While,
    blocks,
    may_overlap,
    number,
    walk,
)
from ...ir.op import Op
from ...layout import TileLayout, axis
from ...ops.language.operators import binary, compare
from ...ops.language.pointwise import where
from ...ops.language.promotion import convert, short_of
from ...ops.memory.packed import AS_BYTES
from ...ops.memory.regions import points, region
from ...ops.memory.shared import alloc_shared, sync
from ...ops.structure.ring import ring_slot
from ...ops.sync import barriers as bars
from ...ops.sync.pipeline import flip_phase
from ...ops.sync.proxies import hand_over
from ...ops.tmem.slots import commit, products_of
from ...types import ArrayId, Barrier, Buffer, Points, Region, Scalar, Selected, layout_of
from ..analysis.context import Context
from ..analysis.program_slices import Copier
from ..analysis.staging import INDEXED, StagedLoop, copied_bytes, own_groups
from ..analysis.writing import Writer
from ..products.products_in_flight import deferrable_wait, with_deferred_wait


class PipelineWriter:
    """Rewrites a graph with its pipelined loops written out, without warp specialization."""

    def __init__(self, context: Context, loops: dict[For, StagedLoop], make: bool = True):
        self.context, self.loops = context, loops
        self.g = Writer.of(context)
        self.new: dict[Value, Operand] = {}
        # in the current loop: staged buffer -> (ring, slot of the trip)
        self.slot: dict[Operand, tuple[Value, Operand]] = {}
        self.made: dict[Operand, Value] = {}  # staged buffer -> its ring
        self.conditional = {call for staged in loops.values() for call in staged.conditional}
        for staged in loops.values() if make else ():
            self.allocate(staged)

    def allocate(self, staged: StagedLoop) -> None:
        """Make the rings and barriers of a loop, at the kernel's start. A buffer of several loops has one ring, with
        slots for each of them."""
        g, g.loc = self.g, staged.loop.loc
        for buffer in dict.fromkeys(map(self.context.buffer_of, (copy.args[0] for copy in staged.copies))):
            if buffer not in self.made:
                stages = max(s.stages for s in self.loops.values()
                             for c in s.copies if self.context.buffer_of(c.args[0]) is buffer)
                self.made[buffer] = self.ring(self.context.definition(buffer), stages)
            staged.rings[buffer] = self.made[buffer]
        if any(staged.by_bytes):
            staged.full = self.barriers(staged, 1)
        if self.arrivals(staged):
            staged.empty = self.barriers(staged, self.arrivals(staged))

    def arrivals(self, staged: StagedLoop) -> int:
        """How many arrivals on its empty barrier release a slot; 0 where the scope's barrier releases it."""
        return int(staged.by_commit)

    def ring(self, alloc: Call, stages: int) -> Value:
        """A buffer of `stages` slots, each aligned as the single buffer was."""
        t, attrs = type_as(alloc.result, Buffer), alloc.attrs
        layout, nbytes = layout_of(t), t.dtype.nbytes
        align = max(attrs["align"], 128)
        slot = -(-layout.span(axis.m) * nbytes // align) * align // nbytes
        layout = TileLayout([(stages, slot, axis.m), *layout.shards], layout.replicas, layout.offset, layout.swizzle)
        ring = Value("slots", Buffer(t.dtype, (stages, *t.shape), "shared", layout), alloc.loc)
        attrs = {**attrs, "shape": (stages, *t.shape), "layout": layout, "align": align, "slots": True}
        self.g.hoist(Call(alloc_shared, (), attrs, (ring,), alloc.loc))
        return ring

    def barriers(self, staged: StagedLoop, count: int) -> Value:
        made = Value("mbarrier", Barrier(staged.stages, count), staged.loop.loc)
        self.g.hoist(Call(bars.mbarrier_init, (), {"count": count, "n": staged.stages}, (made,), staged.loop.loc))
        return made

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def all(self, operands: Iterable[Operand]) -> tuple[Operand, ...]:
        return tuple(self.new.get(o, o) if isinstance(o, Value) else o for o in operands)

    def block(self, block: Block) -> Block:
        with self.g.block() as nodes:
            for node in block.nodes:
                self.node(node)
        return Block(tuple(nodes), self.all(block.yields))

    def node(self, node: Node) -> None:
        match node:
            case Call():
                self.call(node)
            case For() | While():
                carried = tuple(replace(c, init=self.all([c.init])[0]) for c in node.carried)
                if isinstance(node, For) and node in self.loops:
                    with at(node.loc):
                        self.loop(self.loops[node], carried)
                    return
                node = replace(node, carried=carried, body=self.block(node.body))
                self.g.append(replace(node, test=self.block(node.test)) if isinstance(node, While) else node)
            case If():
                self.g.append(replace(node, then=self.block(node.then), orelse=self.block(node.orelse)))
            case Scope():
                outer, self.g.scope = self.g.scope, self.context.scope_inside(node)
                self.context.scope = self.g.scope
                self.g.append(replace(node, body=self.block(node.body)))
                self.g.scope = self.context.scope = outer

    def call(self, call: Call) -> None:
        """A call. Regions and points of a staged buffer become those of the trip's slot; what runs ahead is issued
        apart."""
        self.g.loc = call.loc
        if call in self.conditional:
            return
        if call.op is alloc_shared and any(call.result in s.rings for s in self.loops.values()):
            return
        if call.op in AS_BYTES and call.args[0] in self.slot:
            ring, slot = self.slot[call.args[0]]
            self.slot[call.result] = self.g.call(call.op, ring), slot
            return
        if call.op in INDEXED and call.args[0] in self.slot:
            self.new[call.result] = view(self.g, call, *self.slot[call.args[0]], self.all(call.args[1:]))
            return
        self.g.append(replace(call, args=self.all(call.args)))

    # -- a loop --------------------------------------------------------------------------------------------------------

    def loop(self, staged: StagedLoop, carried: tuple[Carry, ...]) -> None:
        """The prologue, which issues the copies of the first trips, then the loop,
        in which each trip issues those of a later one."""
        g, loop, ahead = self.g, staged.loop, staged.stages - 1
        g.loc = loop.loc
        if staged.groups:
            refuse_other_groups(loop, self.context.target)
        self.hand_over(staged)
        if any(by_bytes and may_overlap(source_array(c), self.context.stored_arrays)
               for c, by_bytes in zip(staged.copies, staged.by_bytes)):
            # the kernel's threads may have stored what the copy engines load
            g.call(bars.fence_proxy_async, space="global")
        g.call(sync)  # threads may still read the slots, if the loop runs again or another one filled them
        first, parity = self.first_slot(staged, carried)
        for s in range(ahead):
            at_ = self.index_after(loop, loop.start, s)
            g.emit_if(self.trip_exists(loop, loop.start, s), lambda: self.refill(staged, at_, first, parity, s))
            self.close_group(staged)
        deferred = deferrable_wait_of(staged)
        with g.block() as nodes:
            stage, phase = self.all(staged.slot.args)
            self.hand_over(staged)
            if deferred is not None:
                self.await_copies(staged, stage, phase, staged.stages - 2, together=staged.groups)
                with g.block() as rest:
                    self.body_without_copies(staged, stage)
                nodes += with_deferred_wait(rest, deferred)
                g.call(sync)  # all threads are done with the previous trip: its product, and their loads from its slot
                self.issue_ahead(staged, stage, phase)
            else:
                self.trip_without_overlap(staged, stage, phase)
        g.append(replace(loop, carried=carried, body=Block(tuple(nodes), self.all(loop.body.yields)), pipeline=None))
        if deferred is not None:
            self.after_loop(staged, deferred)

    def trip_without_overlap(self, staged: StagedLoop, stage: Operand, phase: Operand) -> None:
        """One trip, which is over when the next one begins: it waits for its slot, issues a later trip's copies (its
        own if there is a single slot), and runs the body."""
        if staged.stages > 1:
            self.await_copies(staged, stage, phase, staged.stages - 2)
            self.issue_ahead(staged, stage, phase)
        else:
            self.g.call(sync)
            self.refill(staged, staged.loop.index, stage, phase, 0)
            self.close_group(staged)
            self.await_copies(staged, stage, phase, 0)
        self.body_without_copies(staged, stage)
        if staged.by_commit:
            self.commit_slot(staged, stage)

    def hand_over(self, staged: StagedLoop) -> None:
        """Mark that the next barrier frees a slot. The threads may have read it in the trip before or in another loop.
        Slots that cp.async fills need no mark."""
        filled = {staged.rings[self.context.buffer_of(c.args[0])]: None
                  for c, by_bytes in zip(staged.copies, staged.by_bytes) if by_bytes}
        if filled:
            self.g.call(hand_over, *filled, filled=False)

    def issue_ahead(self, staged: StagedLoop, stage: Operand, phase: Operand) -> None:
        """Issue the copies of the trip ``stages - 1`` later, into the slot of the trip before this one."""
        loop, ahead = staged.loop, staged.stages - 1
        at_ = self.index_after(loop, loop.index, ahead)
        self.g.emit_if(self.trip_exists(loop, loop.index, ahead), lambda: self.refill(staged, at_, stage, phase, ahead))
        self.close_group(staged)

    def after_loop(self, staged: StagedLoop, wait: Call) -> None:
        """After a loop that leaves a product in flight: the wait for it."""
        self.g.append(replace(wait, results=()))

    def first_slot(self, staged: StagedLoop, carried: tuple[Carry, ...]) -> tuple[Operand, Operand]:
        """The slot of the loop's first trip, and its phase."""
        slot, phase = (next((c.init for c in carried if c.inner is x), self.all([x])[0]) for x in staged.slot.args)
        return slot, phase

    def refill(self, staged: StagedLoop, index: Operand, stage: Operand, phase: Operand, later: int) -> None:
        """Issue the copies of the trip of `index` into the slot `later` places after `stage`, once the products that
        read it are over."""
        following = slot_after(self.g, stage, later, staged.stages)
        if staged.by_commit:
            self.await_empty(staged, following, phase_after(self.g, stage, phase, later, staged.stages))
        self.issue(staged, index, following)

    def await_empty(self, staged: StagedLoop, stage: Operand, phase: Operand) -> None:
        """Wait until slot `stage` is released. A new barrier counts as released."""
        slot = bounded_slot(self.g, stage, staged.stages)
        before = flip_phase(self.g, phase.value if isinstance(phase, Const) else phase)
        self.g.call(bars.mbarrier_wait, self.barrier(staged.empty, slot), self.g.operand(before, int32))

    def commit_slot(self, staged: StagedLoop, stage: Operand) -> None:
        """Commit the products that the elected thread has started: their completion releases the slot."""
        g, slot = self.g, bounded_slot(self.g, stage, staged.stages)
        scopes = {scopes for _, scopes in products_of(g, list(staged.loop.body.nodes), staged.rings)}
        if scopes != {("elect",)}:
            raise CompilationError("the products of a pipelined loop release its slots by a commit: "
                                   "start them in one thread (with tile.elect(), directly in the loop), "
                                   "or commit and wait in the loop yourself", staged.loop.loc)
        self.run_elected(staged, lambda: commit(g, self.barrier(staged.empty, slot), None))

    def run_elected(self, staged: StagedLoop, body: Callable[[], None]) -> None:
        """Run `body` by the scope's elected thread."""
        with self.g.block() as nodes:
            body()
        self.g.append(Scope("elect", None, 1, Block(tuple(nodes)), staged.loop.loc))

    def body_without_copies(self, staged: StagedLoop, stage: Operand) -> None:
        """The loop's body, without the copies that run ahead."""
        outer, slot = self.slot, bounded_slot(self.g, stage, staged.stages)
        self.slot = outer | {buffer: (ring, slot) for buffer, ring in staged.rings.items()}
        for node in staged.loop.body.nodes:
            if node is not staged.slot and node not in staged.copies:
                self.node(node)
        self.slot = outer

    def index_after(self, loop: For, index: Operand, trips: int) -> Operand:
        """The loop's index `trips` trips after `index`."""
        if not trips:
            return index
        by = trips * number(loop.step)
        if isinstance(index, Const):
            return Const(index.value + by, index.dtype)
        return convert(self.g, binary(self.g, "+", index, by), element_type(loop.index))

    def trip_exists(self, loop: For, index: Operand, later: int) -> Operand | bool:
        """Whether there is a trip `later` trips after that of `index`. Compares `index`,
        since a later index may wrap."""
        step = number(loop.step)
        by = later * step
        if isinstance(index, Const) and isinstance(loop.stop, Const):
            return index.value + by < loop.stop.value if step > 0 else index.value + by > loop.stop.value
        return compare(self.g, "<" if step > 0 else ">", index,
                       short_of(self.g, loop.stop, by) if by else loop.stop)

    def issue(self, staged: StagedLoop, index: Operand, stage: Operand) -> None:
        """Issue the copies of the trip of `index` into slot `stage`."""
        slot = bounded_slot(self.g, stage, staged.stages)
        full = None if staged.full is None else self.barrier(staged.full, slot)
        varies = any(staged.conditional.values())  # then the bytes are known once the copies in branches are issued
        if full is not None and not varies:
            self.g.call(bars.arrive_expect_tx_op, full, Const(staged.nbytes, int32))
        copier = Copier()
        copier.values.update({**self.new, staged.loop.index: index})
        nbytes = self.issue_nodes(staged, copier, staged.address_nodes, slot, full)
        for call, by_bytes in staged.unconditional:
            self.issue_copy(copier, call, full if by_bytes else None)
        if full is not None and varies:
            self.g.call(bars.arrive_expect_tx_op, full, self.sum_of(nbytes, Const(staged.nbytes, int32)))

    def issue_copy(self, copier: Copier, call: Call, full: Operand) -> None:
        dst, src, _, *rest = copier.all(call.args)
        self.g.append(replace(call, args=(dst, src, full, *rest)))

    def issue_nodes(self, staged: StagedLoop, copier: Copier, nodes: Iterable[Node], slot: Operand,
                    full: Operand) -> Operand:
        """Append copies of `nodes`: what computes the places of copies, and the branches that contain some, with these.
        Returns the number of bytes that these copies complete on the barrier."""
        total: Operand = Const(0, int32)
        for node in nodes:
            if isinstance(node, Call) and node in staged.conditional:
                by_bytes = staged.conditional[node]
                self.issue_copy(copier, node, full if by_bytes else None)
                total = self.sum_of(total, Const(copied_bytes(node.args[1]) if by_bytes else 0, int32))
            elif isinstance(node, Call) and node.op in INDEXED and node.args[0] in staged.rings:
                copier.values[node.result] = view(self.g, node, staged.rings[node.args[0]], slot,
                                                  copier.all(node.args[1:]))
            elif isinstance(node, If) and any(c in staged.conditional for b in blocks(node) for c in walk(b)):
                total = self.sum_of(total, self.issue_branch(staged, copier, node, slot, full))
            else:
                self.g.append(*copier.node(node))
        return total

    def issue_branch(self, staged: StagedLoop, copier: Copier, node: If, slot: Operand, full: Operand) -> Operand:
        """Append a branch of `issue_nodes`. Returns the number of bytes that its copies complete."""
        test, made = copier(node.test), []
        for block in (node.then, node.orelse):
            with self.g.block() as nodes:
                nbytes = self.issue_nodes(staged, copier, block.nodes, slot, full)
            made.append(Block(tuple(nodes), (*copier.all(block.yields), nbytes)))
        results = copier.copy_values(node.results)
        counted = Value("bytes", Scalar(int32, type_as(test, Scalar).uniform))
        if all(isinstance(b.yields[-1], Const) and b.yields[-1].value == 0 for b in made):
            made = [replace(b, yields=b.yields[:-1]) for b in made]
            self.g.append(replace(node, test=test, then=made[0], orelse=made[1], results=results))
            return Const(0, int32)
        self.g.append(replace(node, test=test, then=made[0], orelse=made[1], results=(*results, counted)))
        return counted

    def sum_of(self, one: Operand, other: Operand) -> Operand:
        """The sum of two numbers of bytes."""
        if isinstance(one, Const) and isinstance(other, Const):
            return Const(one.value + other.value, int32)
        if isinstance(one, Const) and one.value == 0:
            return other
        return one if isinstance(other, Const) and other.value == 0 else binary(self.g, "+", one, other)

    def barrier(self, barriers: Value | None, slot: Operand) -> Value:
        return as_value(self.g.call(bars.mbarrier_at, as_value(barriers), slot, peer=False))

    def close_group(self, staged: StagedLoop) -> None:
        """Close a group in every trip, even the empty groups of the last trips, so that counting groups counts
        trips."""
        if staged.groups:
            self.append_uncounted(bars.cp_async_commit)

    def await_copies(self, staged: StagedLoop, stage: Operand, phase: Operand, later: int,
                     together: bool = True) -> None:
        """Wait for the copies into slot `stage`, while those of `later` trips may be in flight. With `together` the
        threads then meet at a barrier, which also makes copies that complete by groups visible to all of them."""
        if staged.full is not None:
            self.await_full(staged, stage, phase)
        if staged.groups:
            self.append_uncounted(bars.cp_async_wait, n=later)
            if self.read_by_tensor_cores(staged):
                self.g.call(bars.fence_proxy_async)
        if together:
            self.g.call(sync)

    def await_full(self, staged: StagedLoop, stage: Operand, phase: Operand) -> None:
        self.g.call(bars.mbarrier_wait, self.barrier(staged.full, bounded_slot(self.g, stage, staged.stages)), phase)

    def append_uncounted(self, op: Op, **attrs: Any) -> None:
        """A commit or wait of groups that is not mistaken for one by the kernel's author."""
        self.g.append(Call(op, (), attrs, (), self.g.loc, Choice("pipeline", None)))

    @staticmethod
    def read_by_tensor_cores(staged: StagedLoop) -> bool:
        return any(isinstance(n, Call) and n.op.traits.product and n.op.traits.asynchronous
                   for n in walk(staged.loop.body))


def deferrable_wait_of(staged: StagedLoop) -> Call | None:
    """The wait for the loop's product if it can be deferred to the next trip,
    and the loop has slots enough for that."""
    if staged.stages < 2 or not any(c.inner is staged.slot.args[0] for c in staged.loop.carried):
        return None
    return deferrable_wait(staged.loop, {staged.slot, *staged.copies})


def refuse_other_groups(loop: For, target: str) -> None:
    """Raise CompilationError for the author's own cp.async groups in the loop, which would upset the count of the
    loop's groups."""
    if (node := own_groups(loop)) is not None:
        old = ""
        if architecture(target) < 90:
            old = f"; copies that complete by bytes need sm_90 or later, and the target is {target}"
        raise CompilationError("the pipelined loop around this counts the groups of its cp.async copies, "
                               "and no others may come between: commit and wait for other copies before or "
                               f"after the loop{old}", node.loc)


def source_array(copy: Call) -> ArrayId | None:
    """The array that a copy reads."""
    t = memory_type(copy.args[1])
    return t.buffer.arg if isinstance(t, (Region, Points, Selected)) else t.arg


def view(g: Writer, call: Call, ring: Value, slot: Operand, starts: tuple[Any, ...]) -> Value:
    """The region or points of a buffer that `call` makes, in one slot of the buffer's ring."""
    g.loc = call.loc
    if call.op is points:
        return as_value(g.call(points, ring, slot, *starts, shape=call.attrs["shape"]))
    extents, kept = call.attrs["extents"], call.attrs["kept"]
    return as_value(g.call(region, ring, slot, *starts, extents=(1, *extents), kept=tuple(d + 1 for d in kept)))


def bounded_slot(g: Writer, stage: Operand, stages: int) -> Operand:
    """A slot's number, with its bounds made known to integer analysis."""
    return stage if isinstance(stage, Const) else g.call(ring_slot, stage, stages=stages)


def slot_after(g: Writer, stage: Operand, by: int, stages: int) -> Operand:
    """The slot `by` places further on in the ring (`by` is less than the number of slots)."""
    if isinstance(stage, Const):
        return Const((stage.value + by) % stages, int32)
    if by % stages == 0:
        return stage
    return as_value(where.function(g, compare(g, "<", stage, stages - by), binary(g, "+", stage, by),
                                   binary(g, "-", stage, stages - by)))


def phase_after(g: Writer, stage: Operand, phase: Operand, by: int, stages: int) -> Operand:
    """The parity of the slot `by` places further on (at most the number of slots): it flips where the ring wraps
    around."""
    if by == 0:
        return phase
    if isinstance(stage, Const) and isinstance(phase, Const):
        return Const(number(phase) ^ (stage.value + by >= stages), int32)
    other = g.operand(flip_phase(g, phase.value if isinstance(phase, Const) else phase), int32)
    if by == stages:
        return other
    return as_value(where.function(g, compare(g, "<", stage, stages - by), phase, other))
