"""Kernels whose CTAs run several programs, so that the producer loads for the next one while the others still compute.

A kernel with roles for 8 or 12 warps takes all registers of a Hopper multiprocessor. So its CTAs follow each other,
and each begins with a wait for its first loads, and ends with its stores, while the tensor cores idle: 1.5 us of the
14 us that a CTA of attention takes for 8 blocks of 128 by 128. If nothing in such a kernel tells CTAs from programs,
the launch starts one CTA for each multiprocessor, and these take the programs in turn. The producer asks for a program
(`take_program`) and hands its number to the consumers, through a slot of shared memory; its copies for that program
begin at once.

The order is that in which the hardware would start the programs' CTAs. But where the number of iterations is known to
grow or fall with an index of the program, those with the most come first, and at the end those of several slices of
the grid together: else some CTAs would begin a long program while the others end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...dtypes import int32
from ...errors import line_of
from ...ir.builder import Facts, as_value
from ...ir.graph import (
    Block,
    Call,
    Carry,
    Const,
    For,
    Graph,
    Node,
    Operand,
    Value,
    While,
    operands,
    pipeline_of,
    walk,
    written_arrays,
)
from ...layout import TileLayout
from ...ops.language import ids
from ...ops.language.operators import binary, compare
from ...ops.language.pointwise import assumed
from ...ops.language.programs import ProgramOrder, program_at, program_in_order, same_in_warps, take_program
from ...ops.memory.access_ops import load_, store_
from ...ops.memory.regions import region
from ...ops.memory.shared import alloc_shared
from ...ops.mma.dot import dot_
from ...ops.structure.ring import ring_slot
from ...ops.structure.ring_release import arrivals, ring_release
from ...ops.sync import barriers as bars
from ...ops.sync.pipeline import flip_phase, pipeline_slot
from ...records import PersistenceRecord
from ...types import Buffer, Scalar, Uniformity
from ..analysis.access_patterns import PatternMismatch
from ..analysis.context import Context
from ..analysis.program_directions import ProgramDirections
from ..analysis.program_slices import Copier
from ..analysis.writing import Writer
from .program_tiles import ProgramTile, find_program_tiles

WARPS = 8, 12  # of consumers: with the producer's registers, these CTAs have a multiprocessor to themselves
SLOTS = 1      # of programs' numbers: as far ahead is the producer at most, so that no CTA has several to itself
OF_CTAS = ids.cta_rank, ids.cluster_id
ORDER_NOTHING = dot_, load_, store_, pipeline_slot, assumed


def judge_persistence(graph: Graph, facts: Facts) -> Graph:
    """The graph with a record that says whether its CTAs may run several programs, if it is one of those kernels."""
    loops = [n for n in walk(graph.body) if isinstance(n, For) and n.pipeline]
    if (graph.target != "sm_90a" or graph.launch.num_warps not in WARPS
        or not loops or not all(pipeline_of(loop).warp_specialize for loop in loops)):
        return graph
    return replace(graph, persistence=(persistence_record(why_single(graph)),))


def persistence_record(why: str, order: ProgramOrder | None = None) -> PersistenceRecord:
    """What `.explain()` tells: that CTAs run several programs, in an order of their own or that of the grid, or why
    not."""
    how = why or ("one CTA on each multiprocessor takes programs in turn, and the producer loads for the next one "
                  "while the others still compute")
    if order is not None:
        most, least = ("last", "first") if order.last else ("first", "last")
        how += (f"; programs go from the {most} program_id({order.axis}) to the {least}, since the {most} have the "
                "most iterations")
    return PersistenceRecord(not why, how)


def why_single(graph: Graph) -> str:
    """Why each CTA of a kernel runs a single program; "" if it may run several."""
    launch = graph.launch
    if not launch.persistent:
        return "persistent=False"
    for option in ("cluster", "min_ctas", "max_registers", "pdl", "profile"):
        if getattr(launch, option) not in (None, False):
            return f"{option}= says how its CTAs run"
    calls = [n for n in walk(graph.body) if isinstance(n, Call)]
    for call in calls:
        if why := _tells_ctas_apart(call):
            return f"{why} at line {line_of(call.loc)}"
    for node in walk(graph.body):
        if isinstance(node, For) and node.pipeline and node not in graph.body.nodes:
            return f"the pipelined loop at line {line_of(node.loc)} is inside of another loop or branch"
        if isinstance(node, For) and node.pipeline and pipeline_of(node).regs != (None, None):
            return f"the loop at line {line_of(node.loc)} gives its roles registers, which may leave room for others"
    stored = written_arrays(calls)
    if None in stored or not all(isinstance(array, int) for array in stored):
        return "it stores to an array that it makes from an address"
    return ""


def _tells_ctas_apart(call: Call) -> str:
    """What in a call may depend on which CTA runs a program, or on what other CTAs do; "" if nothing."""
    name = call.attrs["form"] if call.op.traits.instruction else call.op.traits.shown or call.op.name
    if call.op.traits.allocates:
        return f"{name} makes memory or barriers, which a next program would find as the last one has left them,"
    if call.op in OF_CTAS or call.op.traits.instruction:
        return f"{name} may depend on the CTA"
    if call.op.effect == "pure" or call.op in ORDER_NOTHING:
        return ""
    return f"{name} may order CTAs or depend on them"


# -- the loop ----------------------------------------------------------------------------------------------------------

def loop_over_programs(graph: Graph, facts: Facts) -> Graph:
    """The graph with its body in a loop over programs. PatternMismatch says why it cannot be."""
    context = Context(graph, facts)
    g = Writer.of(context)
    fixed = tuple(n for n in graph.body.nodes if isinstance(n, Call) and n.op.traits.allocates)
    nodes = tuple(n for n in graph.body.nodes if n not in fixed)
    cursors = _cursors(nodes)
    order = longest_first(g, context, [n for n in nodes if isinstance(n, For) and n.pipeline])
    tiles = find_program_tiles(context, nodes)
    for tile in tiles:
        tile.allocate(g)
    inner = {c: _per_cta(c.inner) for c in cursors}
    program, turn = (Value(name, Scalar(int32, Uniformity.CTA), graph.loc) for name in ("program", "turn"))
    with g.block() as before:
        programs = as_value(g.call(ids.num_programs, axis=0))
        for axis in (1, 2):
            programs = as_value(binary(g, "*", programs, g.call(ids.num_programs, axis=axis)))
        first = as_value(g.call(ids.program_id, axis=0))
        if order is not None:
            first = as_value(g.call(program_in_order, first, order=order))
    with g.block() as test:
        more = compare(g, "<", program, programs)
    copier = _PerCta(lambda call: (_of_program(call, program),))
    with g.block() as body:
        _write_program(g, copier, [_begun_at(node, inner) for node in nodes], tiles, turn)
        following = g.call(take_program, programs, turn, order=order)
        turns = binary(g, "+", turn, 1)
    carried = [Carry(first, program, replace(program)), Carry(Const(0, int32), turn, replace(turn)),
               *(Carry(c.init, v, replace(v)) for c, v in inner.items())]
    ends = (following, turns, *(copier(c.result) for c in cursors))
    loop = While(Block(tuple(test), (more,)), tuple(carried), Block(tuple(body), ends), graph.loc)
    fixed = tuple(n for n in fixed if n not in [tile.buffer for tile in tiles])
    return replace(graph, persistent=True, persistence=(persistence_record("", order),),
                   body=g.with_hoisted(Block((*fixed, *before, loop))))


def longest_first(g: Writer, context: Context, loops: Sequence[For]) -> ProgramOrder | None:
    """The order in which the programs with the most iterations come first; None if it is not known. Of several indices
    that the number of iterations depends on, the one that varies fastest decides."""
    for axis in range(3):
        if direction := ProgramDirections(g, context, axis).of_iterations(loops):
            return ProgramOrder(axis, direction > 0)
    return None


def _write_program(g: Writer, copier: Copier, nodes: Sequence[Node], tiles: Sequence[ProgramTile],
                   turn: Value) -> None:
    """Append the nodes of a program, which bring its tiles by the producer."""
    slots = {tile: tile.slot(g, turn) for tile in tiles}
    gone = {n for tile in tiles for n in (tile.load, tile.place, *tile.fenced)}
    stores = {tile.store: tile for tile in tiles}
    last: dict[Node, list[ProgramTile]] = {}
    for tile in tiles:
        last.setdefault(_last_user(nodes, tile), []).append(tile)
    for node in nodes:
        g.loc = node.loc
        if isinstance(node, Call) and node in stores:
            tile = stores[node]
            slot, phase = slots[tile]
            copier.values[tile.place.result] = place = tile.view(g, slot)
            tile.bring(g, place, copier(tile.load.args[0]), slot, phase)
        elif node not in gone:
            g.append(*copier.node(node))
        for tile in last.get(node, ()):
            tile.release(g, slots[tile][0])


def _last_user(nodes: Sequence[Node], tile: ProgramTile) -> Node:
    """The last of a program's nodes in which its products read a tile; its store if none does."""
    return [n for n in nodes if n is tile.store
            or any(tile.place.result in operands(inner) for inner in walk(Block((n,))))][-1]


class _PerCta(Copier):
    """Copies nodes into a loop that CTAs run at different times: no scalar there is the same in the whole grid."""

    def _copy_value(self, value: Value) -> Value:
        self.values[value] = new = _per_cta(value)
        return new


def _per_cta(value: Value) -> Value:
    """A copy of a value, if it is a scalar one that differs between CTAs."""
    t = value.type
    if isinstance(t, Scalar) and t.uniform > Uniformity.CTA:
        return replace(value, type=replace(t, uniform=Uniformity.CTA))
    return replace(value)


def _cursors(nodes: Sequence[Node]) -> list[Carry]:
    """The slots and phases of pipelined loops, which run on from program to program."""
    found: list[Carry] = []
    for loop in nodes:
        if not isinstance(loop, For) or not loop.pipeline:
            continue
        slot = next(n for n in loop.body.nodes if isinstance(n, Call) and n.op is pipeline_slot)
        cursors = [c for c in loop.carried if c.inner in slot.args]
        if not all(isinstance(c.init, Const) for c in cursors):
            raise PatternMismatch(f"the loop at line {line_of(loop.loc)} goes on in the slots of another one")
        found += cursors
    return found


def _begun_at(node: Node, inner: dict[Carry, Value]) -> Node:
    """A node whose cursors begin where those of the program before ended."""
    if not isinstance(node, For):
        return node
    return replace(node, carried=tuple(replace(c, init=inner[c]) if c in inner else c for c in node.carried))


def _of_program(call: Call, program: Value) -> Call:
    """A call of the kernel for a program: an index in the grid is that of the program."""
    return replace(call, op=program_at, args=(program,)) if call.op is ids.program_id else call


class ProgramNumbers:
    """Slots of shared memory by which the producer hands the numbers of programs to the consumers."""

    def __init__(self, g: Writer, consumers: int):
        """`consumers` is the number of their threads; each of their warps releases a slot for itself."""
        layout = TileLayout.row_major((SLOTS,))
        self.buffer = Value("numbers", Buffer(int32, (SLOTS,), "shared", layout), g.loc)
        attrs = {"dtype": int32, "shape": (SLOTS,), "layout": layout, "align": 128}
        g.hoist(Call(alloc_shared, (), attrs, (self.buffer,), g.loc))
        self.full = bars.initialise_barriers(g, 1, SLOTS, "full")
        self.empty = bars.initialise_barriers(g, arrivals(consumers, by_warp=True), SLOTS, "empty")

    @property
    def values(self) -> tuple[Value, ...]:
        """What the producer uses of them."""
        return self.buffer, self.full, self.empty

    def _slot(self, g: Writer, turn: Operand) -> tuple[Value, Operand]:
        """The place of a CTA's number `turn`, counted from 0, and the phase of its slot."""
        slot = g.call(ring_slot, binary(g, "&", turn, SLOTS - 1), stages=SLOTS)
        return slot, binary(g, "&", binary(g, ">>", turn, SLOTS.bit_length() - 1), 1)

    def _place(self, g: Writer, slot: Value) -> Value:
        return as_value(g.call(region, self.buffer, slot, extents=(1,), kept=()))

    def send(self, g: Writer, order: ProgramOrder | None, programs: Operand, turn: Operand) -> Value:
        """Take the next program in this order, once the consumers have begun with the last one, and hand its number
        over. Returns it."""
        slot, phase = self._slot(g, turn)
        g.call(bars.mbarrier_wait, g.call(bars.mbarrier_at, self.empty, slot, peer=False), flip_phase(g, phase))
        program = as_value(g.call(take_program, programs, turn, order=order))
        g.call(store_, self._place(g, slot), program, None, cache=None, each_thread=False)
        g.call(bars.arrive_op, g.call(bars.mbarrier_at, self.full, slot, peer=False), Const(1, int32))
        return program

    def receive(self, g: Writer, turn: Operand) -> Value:
        """Wait for the next program's number. Returns it."""
        slot, phase = self._slot(g, turn)
        g.call(bars.mbarrier_wait, g.call(bars.mbarrier_at, self.full, slot, peer=False), phase)
        program = g.call(load_, self._place(g, slot), Const(0, int32), None, cache=None)
        program = g.call(same_in_warps, program)
        g.call(ring_release, g.call(bars.mbarrier_at, self.empty, slot, peer=False), None, self.buffer, ranks=1,
               met=True, by_warp=True)
        return as_value(program)


__all__ = ["ProgramNumbers", "judge_persistence", "loop_over_programs", "persistence_record"]
