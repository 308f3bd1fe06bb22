"""Loads in pipelined loops become asynchronous copies that run ahead, where they can.

The data goes by ``copy_async`` to a shared buffer of the compiler's own, whose layout is chosen by its uses. Products
read it there; for all other uses it is loaded from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from operator import is_
from typing import Any

from ...config import architecture
from ...dispatch import reasons, variants_at
from ...errors import line_of
from ...ir.builder import Facts, Warning_, as_value, element_type, memory_type, type_as, type_of
from ...ir.graph import Block, Call, Const, For, Graph, Node, Operand, Value, pipeline_of, results, walk, with_blocks
from ...ir.op_rules import require_rule
from ...layout import auto
from ...ops.memory.access_ops import load_
from ...ops.memory.atomics import atomic_, used_values
from ...ops.memory.ordered import ordered_load
from ...ops.memory.regions import whole_region
from ...ops.memory.shared import allocate_shared
from ...ops.mma.dot import dot_
from ...ops.moves.copy_async import copy_async_
from ...ops.ptx.escape import asm_
from ...ops.sync.barriers import waits_for_grids
from ...ops.sync.pipeline import pipeline_slot
from ...ops.tiles.arrange import transpose_
from ...types import Region, Tile
from ..analysis.access_patterns import AccessPattern, PatternMismatch
from ..analysis.context import Context, is_column_major, loads_behind
from ..analysis.program_slices import backward_slice, more_than_arithmetic, without_dead_code
from ..analysis.staging import (
    completes_by_bytes,
    is_staged_copy,
    missed_copy_warnings,
    shared_memory_left,
    site_with_barrier,
    why_not_ahead,
)
from ..analysis.writing import Writer
from ..layouts.shared_layouts import column_major_candidates, with_layout


def send_loads_ahead(graph: Graph, facts: Facts) -> Graph:
    """The graph with copies in place of the loads that can run ahead of their pipelined loop."""
    loops = [n for n in walk(graph.body) if isinstance(n, For) and n.pipeline]
    if all(any(map(is_staged_copy, loop.body.nodes)) and not any(map(is_load, loop.body.nodes)) for loop in loops):
        return graph
    pass_ = _LoadsAhead(Context(graph, facts))
    body = pass_.block(graph.body)
    body = without_dead_code(Block((*pass_.allocations, *body.nodes)), pass_.has_effect)
    return replace(graph, body=body, warnings=(*graph.warnings, *pass_.warnings))


def is_load(node: Node) -> bool:
    """Whether a node loads a tile from global memory."""
    return (isinstance(node, Call) and node.op is load_ and isinstance(node.result.type, Tile)
            and memory_type(node.args[0]).scope == "global")


def is_slot(node: Node) -> bool:
    return isinstance(node, Call) and node.op is pipeline_slot


def observes_other_kernels(context: Context, node: Node) -> bool:
    """Whether accesses after a node may see what other kernels have written meanwhile, so that loads must not move
    across it.

    An atomic operation tells nothing of others whose old value nothing uses, unless it acquires.
    """
    if not isinstance(node, Call):
        return False
    if node.op is atomic_:
        return node.attrs["sem"] in ("acquire", "acq_rel") or node.result in used_values(context)
    unknown = node.op is asm_ or node.op.traits.instruction and node.op.effect != "pure"
    return unknown or node.op is ordered_load or waits_for_grids(node)


@dataclass(eq=False)
class AheadBuffer:
    """A buffer that the copies of `loops` fill, one loop after the other, with slots for each of them.
    `allocations` make it."""

    buffer: Value
    allocations: list[Node]
    stages: int = 0
    loops: list[For] = field(default_factory=list)

    def free_for(self, loop: For) -> bool:
        """Whether a loop may fill the buffer too: it neither is nor contains one that does, nor is it inside one."""
        return not any(loop is other or loop in walk(other.body) or other in walk(loop.body) for other in self.loops)


@dataclass(frozen=True)
class AheadCopy:
    """What replaces a load that runs ahead: `nodes`, which include the copy `copy`, and the buffer that it fills.

    `axes` are the axes of the loaded tile in the order of the buffer's dimensions.
    """

    nodes: tuple[Node, ...]
    copy: Call
    to: AheadBuffer
    axes: tuple[int, ...]

    @property
    def region(self) -> Value:
        """The region of shared memory that the copy fills."""
        return as_value(self.copy.args[0])

    @property
    def read(self) -> set[Value]:
        """The values from the copy on, up to the tile that the load gave."""
        return {r for n in self.nodes[self.nodes.index(self.copy):] for r in results(n)}


class _LoadsAhead:
    """The walk that plans each pipelined loop when it comes to it, and rewrites the loads and products in it."""

    def __init__(self, context: Context):
        self.context = context
        self.left = shared_memory_left(context)
        self.allocations: list[Node] = []
        self.buffers: dict[tuple[Any, ...], list[AheadBuffer]] = {}  # keyed by contents and scope
        self.ahead_copies: dict[Operand, AheadCopy] = {}  # keyed by the loaded tile
        # values that products no longer use; they are dead unless something else uses them
        self.taken_by_products: set[Value] = set()
        self.warnings: list[Warning_] = []

    # -- choosing ------------------------------------------------------------------------------------------------------

    def plan(self, loop: For) -> bool:
        """Choose the loads of a loop that run ahead, while shared memory lasts; those that feed products come first.

        A load on which the place of another one depends stays: it is done ahead with that one, and again in its own
        trip for other uses. False if nothing runs ahead: then the loop is not pipelined.
        """
        multiplied = self.multiplied_loads(loop)
        staying = self.reasons_to_stay(loop, multiplied)
        ahead = any(is_staged_copy(n) or isinstance(n, Call) and self.ahead_copy_of(n) for n in loop.body.nodes)
        self.warnings += (Warning_("this load does not run ahead of the pipelined loop at line "
                                   f"{line_of(loop.loc)}: {why}", load.loc)
                          for load, why in staying.items() if load in multiplied or not ahead)
        if not ahead and not staying:
            self.warnings.append(Warning_("nothing runs ahead of this pipelined loop, so it is an ordinary one: "
                                          "directly in its body is neither a load of a tile of an array nor a "
                                          "tile.copy_async from global to shared memory without mbar=",
                                          loop.loc))
        if not ahead:
            self.warnings += missed_copy_warnings(self.context, loop, ())
        return ahead

    def multiplied_loads(self, loop: For) -> set[Call]:
        """The loads whose tiles the products in a loop multiply."""
        products = [n for n in walk(loop.body) if isinstance(n, Call) and n.op.traits.product]
        return {c for p in products for x in p.args[1:3] for c in loads_behind(self.context, x) or ()}

    def reasons_to_stay(self, loop: For, multiplied: set[Call]) -> dict[Call, str]:
        """The loads directly in a loop that do not run ahead, with the reason; copies of the others are recorded."""
        waits = any(observes_other_kernels(self.context, n) for n in walk(loop.body))
        loads = [n for n in loop.body.nodes if isinstance(n, Call) and is_load(n)]
        places = self.loads_of_places(loop)
        tables = [c for c in reversed(loads) if c in places]
        others = sorted((c for c in loads if c not in tables), key=lambda c: c not in multiplied)
        staying: dict[Call, str] = {}
        placing = self.loads_of_places(loop, is_staged_copy)
        for load in (*others, *tables):  # users come before what they use
            if load in placing:
                continue
            if waits:
                staying[load] = "the loop waits for other threads' writes"
            elif why := self.why_stays(loop, load, load in multiplied):
                staying[load] = why
            else:
                placing |= self.loads_of_places(loop, partial(is_, load))
        return staying

    @staticmethod
    def loads_of_places(loop: For, of: Callable[[Node], bool] = lambda n: is_load(n) or is_staged_copy(n)) -> set[Node]:
        """The loads directly in a loop's body on which the places of the loads and copies `of` depend."""
        places, _ = backward_slice(loop.body, [n for n in loop.body.nodes if isinstance(n, Call) and of(n)])
        return set(filter(is_load, places))

    def why_stays(self, loop: For, load: Call, multiplied: bool) -> str:
        """Why a load cannot run ahead. Returns "" if it can, and records its copy."""
        other = load.args[1]
        if not (isinstance(other, Const) and other.value == 0) or load.attrs["cache"] is not None:
            return ("a copy fills what is out of bounds or masked off with zeros, and cannot apply cache=: "
                    "use other=0, without cache=")
        try:
            ahead = self.ahead_copy(load, loop)
        except PatternMismatch as mismatch:
            return str(mismatch)
        places, outside = backward_slice(Block((*loop.body.nodes, *ahead.nodes)), [ahead.copy])
        changed = next((v.name for v in outside & {c.inner for c in loop.carried}), None)
        if changed is not None:
            return f"its place depends on {changed}, which the loop changes"
        for call in (load, *(c for c in walk(Block(places)) if isinstance(c, Call) and c.op.effect != "pure")):
            if why := why_not_ahead(self.context, call, loop):
                return why
        t, pipeline = type_as(load.result, Tile), pipeline_of(loop)
        nbytes = t.size * t.dtype.nbytes * max(0, pipeline.stages - ahead.to.stages)
        if nbytes > self.left:
            return (f"its {pipeline.stages} slots take {nbytes} bytes of shared memory, "
                    f"of which {max(self.left, 0)} are left")
        if why := self.why_slow(self.with_likely_layout(ahead.copy),
                                for_roles=pipeline.warp_specialize and not multiplied):
            return why
        self.left -= nbytes
        self.allocations += ahead.to.allocations if not ahead.to.loops else ()
        ahead.to.stages = max(ahead.to.stages, pipeline.stages)
        ahead.to.loops.append(loop)
        self.ahead_copies[load.result] = ahead
        return ""

    def ahead_copy(self, load: Call, loop: For) -> AheadCopy:
        """The copy that stands for a load."""
        g, t = Writer.of(self.context), type_as(load.result, Tile)
        g.loc, g.scope = load.loc, self.context.scope
        place = AccessPattern(self.context, load, (loop,))
        with g.block() as nodes:
            source = place.source(g)
            to = self.buffer(g, tuple(t.shape[a] for a in place.axes), source, loop)
            region = whole_region(g, to.buffer)
            g.call(copy_async_, region, source, None, options={}, partial=None)
            copy = nodes[-1]
            place.in_tile_order(g, g.call(load_, region, load.args[1], None, cache=None))
        self.context.definitions.update(g.definitions)
        last = nodes[-1]
        assert isinstance(copy, Call) and isinstance(last, Call)  # as they have just been called
        return AheadCopy((*nodes[:-1], replace(last, results=load.results)), copy, to, place.axes)

    def buffer(self, g: Writer, shape: tuple[int, ...], source: Value, loop: For) -> AheadBuffer:
        """A buffer for a copy of `source`: that of a loop before, unless a producer may copy ahead of the loops,
        or a new one."""
        dtype = element_type(source)
        alike = self.buffers.setdefault((shape, dtype, is_column_major(source.type), self.context.scope), [])
        own = pipeline_of(loop).warp_specialize and architecture(self.context.target) >= 90
        found = next((b for b in alike if b.loops and b.free_for(loop) and not own), None)
        if found is None:
            buffer = allocate_shared(g, shape, dtype, auto)
            found = AheadBuffer(buffer, list(g.blocks[0]))
            alike += () if own else (found,)
        return found

    def with_likely_layout(self, copy: Call) -> Call:
        """The copy with its buffer column-major if the array is, as the layout of its buffer will
        probably be chosen."""
        region, source = as_value(copy.args[0]), as_value(copy.args[1])
        if not is_column_major(source.type):
            return copy
        t = type_as(region, Region)
        layout = next(iter(column_major_candidates(t.dtype, t.shape).values()))
        turned = replace(region, type=with_layout(t, layout))
        self.context.definitions[turned] = self.context.definitions[region]
        return replace(copy, args=(turned, *copy.args[1:]))

    def why_slow(self, copy: Call, for_roles: bool) -> str:
        """Why a copy would gain nothing: threads would make it by loads and stores, or a producer could not make it. ""
        if it gains."""
        kind = "thread" if for_roles else self.context.scope.kind
        if completes_by_bytes(self.context, copy, kind):
            return ""
        site = require_rule(copy.op.rules.site)(self.context, copy)
        variants = variants_at(copy.op.variants, site)
        if not for_roles and any(v.name != "vector" and not reasons(v, site) for v in variants):
            return ""
        sites = {"ldgsts": site} if not for_roles else {}
        sites |= {"tma": site_with_barrier(self.context, copy, kind)} if self.context.target != "sm_80" else {}
        return "; ".join(f"{v.name} {'; '.join(miss.words for miss in reasons(v, sites[v.name]))}"
                         for v in variants if v.name in sites)

    # -- rewriting -----------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> Block:
        with self.context.in_block(block):
            return replace(block, nodes=tuple(n for node in block.nodes for n in self.node(node)))

    def node(self, node: Node) -> tuple[Node, ...]:
        match node:
            case Call() if ahead := self.ahead_copy_of(node):
                return ahead.nodes
            case Call() if node.op is dot_:
                return self.dot(node),
            case For():
                if node.pipeline and not self.plan(node):
                    node = replace(node, pipeline=None,
                                   body=replace(node.body, nodes=tuple(n for n in node.body.nodes if not is_slot(n))))
        with self.context.in_scope_of(node):
            return with_blocks(node, self.block),

    def has_effect(self, call: Call) -> bool:
        """Whether a call stays although its result is unused. What a product reads through its copy need not be
        loaded."""
        return more_than_arithmetic(call) and self.taken_by_products.isdisjoint(call.results)

    def ahead_copy_of(self, call: Call) -> AheadCopy | None:
        return self.ahead_copies.get(call.results[0]) if call.results else None

    def dot(self, call: Call) -> Call:
        """A product that reads operands which run ahead, transposed or not, from shared memory."""
        args, attrs = list(call.args), dict(call.attrs)
        for n, flag in ((1, "trans_a"), (2, "trans_b")):
            x, made, turned = args[n], self.context.definitions.get(args[n]), False
            loaded = x
            if made is not None and made.op is transpose_ and made.attrs["axes"] == (1, 0):
                loaded, turned = made.args[0], True
            ahead = self.ahead_copies.get(loaded)
            if ahead is None or sorted(ahead.axes) != [0, 1]:
                continue
            turned ^= ahead.axes == (1, 0)
            if n == 1 and self.needs_registers(call, ahead, turned):
                continue
            self.taken_by_products |= {as_value(x), *ahead.read}
            args[n], attrs[flag] = ahead.region, attrs[flag] ^ turned
        return replace(call, args=tuple(args), attrs=attrs)

    def needs_registers(self, call: Call, ahead: AheadCopy, turned: bool) -> bool:
        """Whether wgmma cannot read an `a` of this dtype from shared memory as it lies there, and takes it from
        registers instead."""
        narrow = element_type(ahead.region).bits == 8 or call.attrs["precision"] == "tf32"
        k_last = call.attrs["trans_a"] == turned
        return self.context.target == "sm_90a" and narrow and k_last == is_column_major(type_of(ahead.copy.args[1]))


__all__ = ["send_loads_ahead"]
