"""Warp specialization of pipelined loops: a producer thread issues the copies, consumer warps compute.

The producer is one thread of added warps; the consumers are the kernel's own warps.

The consumers run the kernel's body, with waits for full slots in place of the copies, and release each slot. The
producer runs what decides where the copies go: the same loops and branches, with waits for empty slots. Its warps
come after the consumers', so that these keep their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ...dtypes import int32
from ...errors import CompilationError, line_of
from ...ir.builder import memory_type
from ...ir.graph import (
    Block,
    Call,
    Carry,
    Const,
    For,
    Graph,
    If,
    Launch,
    Node,
    Operand,
    Scope,
    Value,
    While,
    blocks,
    number,
    operands,
    pipeline_of,
    walk,
    written_arrays,
    written_values,
)
from ...ops.language.operators import compare
from ...ops.language.programs import load_for_program, take_program
from ...ops.memory.ordered import ordered_load
from ...ops.memory.packed import AS_BYTES
from ...ops.memory.shared import sync
from ...ops.moves.copy_async import copy_async_
from ...ops.structure.ring_release import arrivals, ring_release
from ...ops.sync import barriers as bars
from ...ops.sync.pipeline import flip_phase
from ...ops.sync.proxies import accessed_by_threads
from ...ops.tmem.slots import met_in, reads_late
from ..analysis.context import Context
from ..analysis.program_slices import (
    Copier,
    defined_values,
    has_effect,
    has_effect_or_waits,
    live_values,
    without_dead_code,
)
from ..analysis.staging import VIEWS, StagedLoop, StagedLoopFinder, copied_bytes
from ..products.products_in_flight import with_deferred_wait
from .persistent_programs import ProgramNumbers
from .pipeline_writer import (
    PipelineWriter,
    bounded_slot,
    deferrable_wait_of,
    phase_after,
    slot_after,
    source_array,
)
from .rotated_loops import RotatedLoop
from .rotations import Lane, Rotation

# {number of consumer warpgroups: registers of a thread of (the producer, a consumer)} on Hopper, where accumulators
# take most of the 64 K registers of a multiprocessor.
REGISTERS = {2: (40, 232), 3: (32, 160)}


def specialize_warps(context: Context, found: StagedLoopFinder, rotations: dict[For, Rotation]) -> Graph:
    """The graph as two scopes side by side, and a launch with the producer's warps added. Of the loops in `rotations`,
    those that can be are rotated."""
    graph, loops = context.graph, found.loops
    launch, first = graph.launch, next(iter(loops))
    warps, loc = launch.num_warps, first.loc
    groups = warps % 4 == 0
    if not groups and warps not in (1, 2):
        raise CompilationError("warp_specialize takes 1, 2 or a multiple of 4 warps, "
                               f"since whole warpgroups release the slots, and num_warps is {warps}", loc)
    added = 4 if groups else 1
    if warps + added > 32:
        raise CompilationError(f"warp_specialize adds {added} warps to the {warps} of num_warps, "
                               "and a CTA has at most 32", loc)
    meets = next((c for c in context.calls if launch.cluster and _synchronises_cluster(c)), None)
    if meets is not None:
        raise CompilationError("all threads of the cluster synchronise here, and the producer's threads run ahead: "
                               "assign the roles by hand (tile.warpgroup, tile.ring)", meets.loc)
    if groups:
        regs = _registers(graph.target, launch, warps, [pipeline_of(s.loop).regs for s in loops.values()])
    else:
        regs = None, None
    made = replace(launch, num_warps=warps + added)
    why_not = {loop: r.why_not(regs[1] or made.registers) for loop, r in rotations.items()}
    rotated = {loop: rotations[loop] for loop, why in why_not.items() if not why}
    consumer = Consumer(context, loops, rotated)
    body = consumer.block(graph.body)
    producer = Producer(context, loops, rotated, consumer.numbers).body_of(graph.body)
    fixed = tuple(n for n in body.nodes if isinstance(n, Call) and n.op.traits.allocates)
    spared = unused_reads(context)
    rest = without_dead_code(Block(tuple(n for n in body.nodes if n not in fixed)),
                             lambda call: has_effect_or_waits(call) or not spared.isdisjoint(call.results))
    kind, unit = ("warpgroup", 4) if groups else ("warp", 1)
    consumes = Scope(kind, Const(0, int32), warps // unit, rest, loc, regs[1])
    issues = Scope("elect", None, 1, producer, loc)
    produces = Scope(kind, Const(warps // unit, int32), 1, Block((issues,)), loc, regs[0])
    body = consumer.g.with_hoisted(Block((*fixed, produces, consumes)))
    return replace(graph, body=body, launch=made,
                   rotations=tuple(r.record(why_not[loop]) for loop, r in rotations.items()))


def unused_reads(context: Context) -> set[Value]:
    """The results of reads and products that the kernel does not use. They stay: the release of a slot relies on its
    warps having met where they read it."""
    return {r for c in context.calls if c.op.effect == "reads" for r in c.results} - live_values(context.graph.body)


def _synchronises_cluster(call: Call) -> bool:
    """Whether all threads of the cluster meet at a call: its barrier, or a multicast whose token is waited for."""
    options = call.attrs.get("options") or {}
    return (call.op in (bars.cluster_arrive, bars.cluster_wait)
            or bool(options.get("multicast") and options.get("token")))


def _registers(target: str, launch: Launch, warps: int,
               asked: list[tuple[int | None, int | None]]) -> tuple[int | None, int | None]:
    """The registers of a producer's and of a consumer's thread (None: what the launch gives)."""
    given = next((a for a in asked if a != (None, None)), None)
    if given is not None:
        return given
    alone = target == "sm_90a" and launch.max_registers is None and launch.min_ctas in (None, 1)
    return REGISTERS.get(warps // 4, (None, None)) if alone else (None, None)


class Consumer(PipelineWriter):
    """The kernel's own warps: each trip waits for its slot to be full and releases it."""

    def __init__(self, context: Context, loops: dict[For, StagedLoop], rotations: dict[For, Rotation]):
        self.rotations = rotations
        super().__init__(context, loops)
        graph = context.graph
        self.numbers = ProgramNumbers(self.g, graph.launch.threads) if graph.persistent else None

    def allocate(self, staged: StagedLoop) -> None:
        """Make the rings and barriers of a loop; of a rotated one, for each lane."""
        if staged.loop not in self.rotations:
            super().allocate(staged)
            return
        for lane in self.rotations[staged.loop].lanes:
            super().allocate(lane.staged)
            staged.rings |= lane.staged.rings

    def call(self, call: Call) -> None:
        if call.op is take_program and self.numbers is not None:
            self.g.loc = call.loc
            self.new[call.result] = self.numbers.receive(self.g, self.all(call.args)[1])
            return
        if call.op is load_for_program:
            return
        super().call(call)

    def arrivals(self, staged: StagedLoop) -> int:
        threads = self.context.graph.launch.threads
        return staged.by_commit + (arrivals(threads, self.by_warp(staged)) if self.threads_release(staged) else 0)

    def by_warp(self, staged: StagedLoop) -> bool:
        """Whether each warp releases a slot for itself: where the threads read it, which takes a proxy fence."""
        rings = set(staged.rings)
        return any(self.context.buffer_of(place) in rings
                   for n in walk(staged.loop.body) if isinstance(n, Call) and n not in staged.copies
                   for place in accessed_by_threads(n) if isinstance(place, Value))

    def threads_release(self, staged: StagedLoop) -> bool:
        """Whether threads arrive on the empty barriers. Where products into tensor memory alone read the slots,
        their commits do."""
        return not staged.by_commit or any(self.reads(n, staged) for n in walk(staged.loop.body))

    def reads(self, node: Node, staged: StagedLoop) -> bool:
        """Whether the threads themselves read a slot at a node, synchronously."""
        if not isinstance(node, Call) or node.op in VIEWS or node in staged.copies or reads_late(node):
            return False
        return any(self.context.buffer_of(a) in staged.rings for a in node.args if isinstance(a, Value))

    def loop(self, staged: StagedLoop, carried: tuple[Carry, ...]) -> None:
        g, loop = self.g, staged.loop
        if loop in self.rotations:
            RotatedLoop(self, self.rotations[loop]).write(carried)
            return
        deferred = deferrable_wait_of(staged)
        with g.block() as nodes:
            stage, phase = self.all(staged.slot.args)
            slot = bounded_slot(g, stage, staged.stages)

            def await_full() -> None:
                g.call(bars.mbarrier_wait, self.barrier(staged.full, slot), phase)

            alone = staged.by_commit and only_elected_thread(staged)
            if alone:
                self.run_elected(staged, await_full)
            else:
                await_full()
            self.body_without_copies(staged, stage)
            if staged.by_commit:
                if not alone and not self.threads_release(staged):
                    g.call(sync)  # else a slow warp could miss this phase of the full barrier and wait on a later one
                self.commit_slot(staged, stage)
            if deferred is None and self.threads_release(staged):
                self.release(staged, slot)
            elif deferred is not None:
                nodes[:] = with_deferred_wait(nodes, deferred)
                before = slot_after(g, stage, staged.stages - 1, staged.stages)
                g.emit_if(compare(g, "!=", loop.index, loop.start),
                          lambda: self.release(staged, bounded_slot(g, before, staged.stages)))
        g.append(replace(loop, carried=carried, body=Block(tuple(nodes), self.all(loop.body.yields)), pipeline=None))
        if deferred is not None:
            self.after_loop(staged, deferred)

    def after_loop(self, staged: StagedLoop, wait: Call) -> None:
        """After the loop: wait for the last product, then release its slot."""
        super().after_loop(staged, wait)
        g, loop = self.g, staged.loop
        after = next(c.result for c in loop.carried if c.inner is staged.slot.args[0])
        before = slot_after(g, after, staged.stages - 1, staged.stages)
        any_trip = compare(g, "<" if number(loop.step) > 0 else ">", loop.start, loop.stop)
        g.emit_if(any_trip, lambda: self.release(staged, bounded_slot(g, before, staged.stages)))

    def release(self, staged: StagedLoop, slot: Operand) -> None:
        """Arrive on a slot's empty barrier."""
        met = met_in(self.g, list(staged.loop.body.nodes), staged.rings)
        by_warp: dict[str, Any] = dict(by_warp=True) if self.by_warp(staged) else {}
        self.g.call(ring_release, self.barrier(staged.empty, slot), None, *staged.rings.values(), ranks=1, met=met,
                    **by_warp)


def only_elected_thread(staged: StagedLoop) -> bool:
    """Whether the elected thread does all of a trip but its arithmetic."""
    rest = (n for n in staged.loop.body.nodes if n is not staged.slot and n not in staged.copies)
    return all(isinstance(n, Scope) and n.kind == "elect" or isinstance(n, Call) and n.op.effect == "pure"
               for n in rest)


class Producer:
    """The thread that issues the copies of all loops: it runs the kernel's control flow,
    and of the rest only what they need."""

    def __init__(self, context: Context, loops: dict[For, StagedLoop], rotations: dict[For, Rotation],
                 numbers: ProgramNumbers | None):
        self.context, self.loops, self.numbers = context, loops, numbers
        # of each loop, the copies whose slots are filled and released together
        self.lanes = {loop: rotations[loop].lanes if loop in rotations else [Lane(staged, False, "trip")]
                      for loop, staged in loops.items()}
        self.writer = PipelineWriter(context, loops, make=False)

    def body_of(self, body: Block) -> Block:
        """The producer's part of a kernel. Raises CompilationError where it would be wrong to run it ahead of the other
        warps."""
        for call in self.calls_before_loops(body, False):
            if call.op is ordered_load:
                raise CompilationError(f"this load (sem={call.attrs['sem']!r}) orders what follows it after other "
                                       "threads' writes, and the producer, which runs ahead of the other warps, "
                                       "would not wait for it: assign the roles by hand (tile.warpgroup, tile.ring)",
                                       call.loc)
        self.check_stores(body)
        copier = Copier(self.kept_nodes)
        sliced = without_dead_code(self.slice_block(copier, body), has_effect)  # such as what comes after the last copy
        self.check_dependencies(sliced)
        return sliced

    def check_stores(self, block: Block) -> None:
        """Raise CompilationError for a store of the kernel to an array that a later pipelined loop loads: the producer
        would not wait for it."""
        for n, node in enumerate(block.nodes):
            later = [self.loops[loop] for loop in walk(Block(block.nodes[n + 1:])) if loop in self.loops]
            loaded = {source_array(copy): staged.loop for staged in later for copy in staged.copies}
            for call in walk(Block((node,))):
                if not isinstance(call, Call):
                    continue
                for array in written_arrays([call]) & loaded.keys():
                    name, line = self.context.name_of(array), line_of(loaded[array].loc)
                    raise CompilationError(f"this {call.op.name} writes {name}, which the pipelined loop at line "
                                           f"{line} loads, and the producer, which runs ahead of the other warps, "
                                           "would not wait for it: leave out warp_specialize, "
                                           "or assign the roles by hand (tile.warpgroup, tile.ring)", call.loc)
            for inner in blocks(node):
                self.check_stores(inner)

    def calls_before_loops(self, block: Block, again: bool) -> Iterator[Call]:
        """The calls at CTA scope that run before a pipelined loop,
        perhaps in an earlier trip of a loop around both (`again`)."""
        holds = [any(n in self.loops for n in walk(Block((node,)))) for node in block.nodes]
        for n, node in enumerate(block.nodes):
            before = again or any(holds[n + 1:])
            if isinstance(node, Call) and before:
                yield node
            elif isinstance(node, (For, While, If)):
                for inner in blocks(node):
                    yield from self.calls_before_loops(inner, before or holds[n] and not isinstance(node, If))

    def kept_nodes(self, call: Call) -> tuple[Call, ...]:
        """The nodes for a call in the producer: it computes and loads,
        and waits for the preceding grids as the others do."""
        computes = call.op.effect in ("pure", "reads") and not call.op.traits.product
        return (call,) if computes or bars.waits_for_grids(call) else ()

    def slice_block(self, copier: Copier, block: Block) -> Block:
        """The producer's part of a block, before dead code is removed."""
        nodes: list[Node] = []
        for node in block.nodes:
            match node:
                case For() if node in self.loops:
                    nodes += self.loop(copier, self.loops[node])
                case For() | While() | If():
                    nodes += _with_blocks(copier, node, lambda b: self.slice_block(copier, b))
                case Scope():
                    pass
                case Call() if node.op is take_program and self.numbers is not None:
                    with self.writer.g.block() as made:
                        copier.values[node.result] = self.numbers.send(self.writer.g, node.attrs["order"],
                                                                      *copier.all(node.args))
                    nodes += made
                case Call() if node.op is load_for_program:
                    with self.writer.g.block() as made:
                        self.load_for_program(node, *copier.all(node.args))
                    nodes += made
                case Call():
                    nodes += copier.node(node)
        return Block(tuple(nodes), copier.all(block.yields))

    def load_for_program(self, call: Call, target: Operand, source: Operand, full: Operand, empty: Operand,
                         phase: Operand) -> None:
        """Load a tile into its slot, once that is empty."""
        g, g.loc = self.writer.g, call.loc
        g.call(bars.mbarrier_wait, empty, flip_phase(g, phase))
        g.call(bars.arrive_expect_tx_op, full, Const(copied_bytes(source), int32))
        g.append(Call(copy_async_, (target, source, full), {"options": {}, "partial": None}, (), call.loc))

    def loop(self, copier: Copier, staged: StagedLoop) -> list[Node]:
        """The loop with, in each trip, a wait for the slot to be empty and the copies into it.

        Those of a rotated loop that the first half reads are a trip ahead of the others, as they are needed: else they
        would wait for the second half to release its slots. With one slot, they have to.
        """
        loop, g, writer = staged.loop, self.writer.g, self.writer
        ahead = [lane.staged for lane in self.lanes[loop] if lane.early and staged.stages > 1]
        rest = [lane.staged for lane in self.lanes[loop] if lane.staged not in ahead]
        bounds = replace(loop, start=copier(loop.start), stop=copier(loop.stop))
        writer.new = copier.values
        with g.block() as before:
            if ahead:
                inits = {c.inner: copier(c.init) for c in loop.carried}
                first = tuple(inits[x] if isinstance(x, Value) and x in inits else x for x in staged.slot.args)
                g.emit_if(writer.trip_exists(bounds, bounds.start, 0), lambda: self.fill(ahead, bounds.start, *first))

        def body(block: Block) -> Block:
            with g.block() as nodes:
                g.loc = loop.loc
                for node in block.nodes:
                    if isinstance(node, Call) and node.op.effect == "pure" and node not in staged.address_nodes:
                        g.append(copier.call(node))
                writer.new = copier.values
                stage, phase = copier.all(staged.slot.args)
                index = copier(loop.index)
                if ahead:
                    following = slot_after(g, stage, 1, staged.stages)
                    its_phase = phase_after(g, stage, phase, 1, staged.stages)
                    g.emit_if(writer.trip_exists(bounds, index, 1),
                              lambda: self.fill(ahead, writer.index_after(loop, index, 1), following, its_phase))
                self.fill(rest, index, stage, phase)
            return Block(tuple(nodes), copier.all(block.yields))

        made, = _with_blocks(copier, loop, body)
        assert isinstance(made, For)
        return [*before, replace(made, pipeline=None)]

    def fill(self, lanes: list[StagedLoop], index: Operand, stage: Operand, phase: Operand) -> None:
        """Wait until slot `stage` of these copies is empty, and issue those of the trip of `index`."""
        for lane in lanes:
            self.writer.await_empty(lane, stage, phase)
            self.writer.issue(lane, index, stage)

    def check_dependencies(self, body: Block) -> None:
        """Raise CompilationError where the copies depend on something that the producer does not run."""
        self._check_reads(body)
        defined = self._names_of_producer() | {r for n in walk(body) for r in defined_values(n)}
        for node in walk(body):
            for o in (*operands(node), *(y for block in blocks(node) for y in block.yields)):
                if isinstance(o, Value) and o not in defined:
                    raise CompilationError(f"the loops around the copies depend on {self._describe(o)}: "
                                           "the producer runs ahead of the other warps and cannot wait for it; "
                                           "assign the roles by hand (tile.warpgroup, tile.ring)", node.loc)

    def _describe(self, value: Value) -> str:
        """A value's name, and where it is computed."""
        made = self.context.definitions.get(value)
        if made is None:
            return value.name
        return f"{value.name}, which {made.op.name} computes at line {line_of(made.loc)}"

    def _names_of_producer(self) -> set[Value]:
        """What the producer shares with the kernel: its parameters, its allocations, and the slots and their
        barriers."""
        allocated = {r for n in self.context.graph.body.nodes if isinstance(n, Call) and n.op.traits.allocates
                     for r in n.results}
        staged = [lane.staged for lanes in self.lanes.values() for lane in lanes]
        slots = {v for s in staged for v in (*s.rings.values(), s.full, s.empty) if v is not None}
        numbers = () if self.numbers is None else self.numbers.values
        return allocated | set(self.context.graph.params) | slots | set(numbers)

    def _check_reads(self, body: Block) -> None:
        """Raise CompilationError where the producer reads memory that the kernel writes."""
        changed = {self.context.buffer_of(place) for place in written_values(self.context.calls)}
        made: dict[Operand, Call] = {r: n for n in walk(body) if isinstance(n, Call) for r in n.results}
        for node in walk(body):
            if not isinstance(node, Call) or node.op.effect != "reads":
                continue
            place = node.args[0]
            array = made[place].args[0]
            while array in made and made[array].op in AS_BYTES:
                array = made[array].args[0]
            if memory_type(place).scope != "global" or array in changed:
                raise CompilationError("the producer, which runs ahead of the other warps, depends on this "
                                       f"{node.op.name}, and the kernel writes the memory that it reads; "
                                       "assign the roles by hand (tile.warpgroup, tile.ring)", node.loc)


def _with_blocks(copier: Copier, node: Node, block: Callable[[Block], Block]) -> list[Node]:
    """A copy of `node` with each of its blocks `b` replaced by ``block(b)``."""
    outer, copier.copy_block = copier.copy_block, block
    try:
        return copier.node(node)
    finally:
        copier.copy_block = outer
