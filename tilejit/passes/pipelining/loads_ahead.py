"""Loads in pipelined loops become asynchronous copies that run ahead, where they can.

The data goes by ``copy_async`` to a shared buffer of the compiler's own, whose layout is chosen by its uses. Products
read it there; for all other uses it is loaded from there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from ...config import architecture
from ...dispatch import reasons, variants_at
from ...dtypes import DType
from ...errors import line_of
from ...ir.builder import Facts, Warning_, as_value, element_type, memory_type, type_as, type_of
from ...ir.graph import (
    Block,
    Call,
    For,
    Graph,
    If,
    Node,
    Operand,
    Scope,
    Value,
    While,
    blocks,
    pipeline_of,
    walk,
    with_blocks,
)
from ...ir.op_rules import require_rule
from ...ops.memory.access_ops import load_
from ...ops.memory.atomics import atomic_, used_values
from ...ops.memory.ordered import ordered_load
from ...ops.mma.dot import dot_
from ...ops.mma.site import types_as_multiplied
from ...ops.moves.copy_async.tma.view import PADDED
from ...ops.ptx.escape import asm_
from ...ops.sync.barriers import waits_for_grids
from ...ops.sync.pipeline import pipeline_slot
from ...ops.tiles.arrange import transpose_
from ...records import LoadRecord
from ...types import Region, RowsOfArray, Tile
from ..analysis.access_patterns import PatternMismatch
from ..analysis.context import Context, is_column_major, loads_behind
from ..analysis.program_slices import live_values, more_than_arithmetic, slice_around, without_dead_code
from ..analysis.staging import (
    completes_by_bytes,
    is_staged_copy,
    missed_copy_warnings,
    own_groups,
    shared_memory_left,
    site_with_barrier,
    why_not_ahead,
)
from ..layouts.shared_layouts import column_major_candidates, with_layout
from .ahead_copies import AheadCopies, AheadCopy


def send_loads_ahead(graph: Graph, facts: Facts) -> Graph:
    """The graph with copies in place of the loads that can run ahead of their pipelined loop."""
    loops = [n for n in walk(graph.body) if isinstance(n, For) and n.pipeline]
    if all(any(map(is_staged_copy, loop.body.nodes)) and not loads_in(loop.body) for loop in loops):
        return graph
    pass_ = _LoadsAhead(Context(graph, facts))
    body = pass_.block(graph.body)
    body = without_dead_code(Block((*pass_.allocations, *body.nodes)), pass_.has_effect)
    return replace(graph, body=body, warnings=(*graph.warnings, *pass_.warnings), loads=tuple(pass_.records))


def is_load(node: Node) -> bool:
    """Whether a node loads a tile from global memory."""
    return (isinstance(node, Call) and node.op is load_ and isinstance(node.result.type, Tile)
            and memory_type(node.args[0]).scope == "global")


def loads_in(block: Block, branches: tuple[If, ...] = ()) -> dict[Call, tuple[If, ...]]:
    """The loads directly in a block and in its branches, each with the branches that contain it, the outermost
    first."""
    found: dict[Call, tuple[If, ...]] = {}
    for node in block.nodes:
        if isinstance(node, Call) and is_load(node):
            found[node] = branches
        elif isinstance(node, If):
            found |= loads_in(node.then, (*branches, node)) | loads_in(node.orelse, (*branches, node))
    return found


def loads_below(block: Block) -> Iterator[tuple[Call, str]]:
    """The loads in inner loops and narrower scopes of a block, each with the reason why it does not run ahead. Those in
    pipelined loops are left out."""
    for node in block.nodes:
        match node:
            case For() | While() if not (isinstance(node, For) and node.pipeline):
                why = (f"it is in the inner loop at line {line_of(node.loc)}, and only loads of the pipelined loop's "
                       "own body and of its branches run ahead: make the inner loop the pipelined one")
            case Scope():
                why = (f"it is in the narrower scope at line {line_of(node.loc)}, and the whole scope of the loop "
                       "makes the copies: load outside of the scope")
            case If():
                for inner in blocks(node):
                    yield from loads_below(inner)
                continue
            case _:
                continue
        yield from ((load, why) for inner in blocks(node) for load in loads_outside_pipelined_loops(inner))


def loads_outside_pipelined_loops(block: Block) -> Iterator[Call]:
    """The loads at any depth in a block, without those in pipelined loops."""
    for node in block.nodes:
        if isinstance(node, Call) and is_load(node):
            yield node
        elif not (isinstance(node, For) and node.pipeline):
            for inner in blocks(node):
                yield from loads_outside_pipelined_loops(inner)


def loads_behind_places(loop: For, accesses: Collection[Call]) -> set[Call]:
    """The loads of a loop's body on which the places of `accesses`, or the conditions of their branches, depend."""
    live = live_values(replace(loop.body, yields=()), accesses.__contains__)
    return {c for c in loads_in(loop.body) if c.result in live}


def with_nodes_in_place(block: Block, call: Call, nodes: tuple[Node, ...]) -> Block:
    """The block with `nodes` in place of a call."""
    made: list[Node] = []
    for node in block.nodes:
        if node is call:
            made += nodes
        else:
            made.append(with_blocks(node, lambda b: with_nodes_in_place(b, call, nodes)))
    return replace(block, nodes=tuple(made))


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


def padded_operands(context: Context) -> dict[Operand, DType]:
    """The tiles of packed bytes that nothing but products take, and these as padded elements, with the dtype of
    those."""
    taken = [(x, read) for c in context.calls if c.op is dot_ for x, read in zip(c.args[1:3], types_as_multiplied(c))]
    if all(read == type_of(x) for x, read in taken):
        return {}
    calls = [n for n in walk(without_dead_code(context.graph.body)) if isinstance(n, Call)]
    others = {a for c in calls for n, a in enumerate(c.args) if c.op is not dot_ or n not in (1, 2)}
    others |= {x for x, read in taken if read == type_of(x)}
    return {x: read.dtype for x, read in taken if x not in others}


class _LoadsAhead:
    """The walk that plans each pipelined loop when it comes to it, and rewrites the loads and products in it."""

    def __init__(self, context: Context):
        self.context = context
        self.left = shared_memory_left(context)
        self.allocations: list[Node] = []
        self.copies = AheadCopies(context)
        self.ahead_copies: dict[Operand, AheadCopy] = {}  # keyed by the loaded tile
        # values that products no longer use; they are dead unless something else uses them
        self.taken_by_products: set[Value] = set()
        self.padded = padded_operands(context)
        self.packed: dict[Operand, str] = {}  # those of them that no copy pads, with the reason
        self.warnings: list[Warning_] = []
        self.records: list[LoadRecord] = []

    # -- choosing ------------------------------------------------------------------------------------------------------

    def plan(self, loop: For) -> bool:
        """Choose the loads of a loop that run ahead, while shared memory lasts; those that feed products come first.

        A load on which the place of another one depends stays: it is done ahead with that one, and again in its own
        trip for other uses. False if nothing runs ahead: then the loop is not pipelined.
        """
        multiplied, loads = self.multiplied_loads(loop), loads_in(loop.body)
        staying = self.reasons_to_stay(loop, loads, multiplied)
        ahead = any(is_staged_copy(n) for n in loop.body.nodes) or any(self.ahead_copy_of(c) for c in loads)
        nested = {c: why for c, why in loads_below(loop.body) if c in multiplied or not ahead}
        self.warnings += (Warning_("this load does not run ahead of the pipelined loop at line "
                                   f"{line_of(loop.loc)}: {why}", load.loc)
                          for load, why in (staying | nested).items() if load in multiplied or not ahead)
        if not ahead and not staying:
            self.warnings.append(Warning_("nothing runs ahead of this pipelined loop, so it is an ordinary one: "
                                          "directly in its body is neither a load of a tile of an array nor a "
                                          "tile.copy_async from global to shared memory without mbar=",
                                          loop.loc))
        if not ahead:
            self.warnings += missed_copy_warnings(self.context, loop, ())
        self.records += (record for c in loads if (record := self.record(c, loop, staying.get(c, ""))))
        return ahead

    def record(self, load: Call, loop: For, why: str) -> LoadRecord | None:
        """What `.explain()` tells about a load of a loop; None for one that simply runs ahead."""
        ahead = self.ahead_copy_of(load)
        told = [why] if why else []
        if ahead is not None and ahead.branches:
            told.append(f"under the condition of its branch at line {line_of(ahead.branches[-1].loc)}")
        if ahead is not None and ahead.repair is not None:
            told.append(f"the copy fills in zeros or what the array holds there, and where the tile is read, about "
                        f"{ahead.repair.instructions} instructions of each thread put in other= for what is "
                        f"{ahead.repair.what}")
        if ahead is not None and load.result in self.packed:
            told.append("its elements are stored again in each trip, padded as the tensor cores read them, since TMA "
                        f"cannot pad them on their way: {self.packed[load.result]}")
        if not told or load.loc is None:
            return None
        return LoadRecord(line_of(load.loc), load.loc.source_line.strip(), line_of(loop.loc), ahead is not None,
                          "; ".join(told))

    def multiplied_loads(self, loop: For) -> set[Call]:
        """The loads whose tiles the products in a loop multiply."""
        products = [n for n in walk(loop.body) if isinstance(n, Call) and n.op.traits.product]
        return {c for p in products for x in p.args[1:3] for c in loads_behind(self.context, x) or ()}

    def reasons_to_stay(self, loop: For, loads: dict[Call, tuple[If, ...]], multiplied: set[Call]) -> dict[Call, str]:
        """The `loads` of a loop that do not run ahead, with the reason; copies of the others are recorded."""
        waits = next((n for n in walk(loop.body) if observes_other_kernels(self.context, n)), None)
        copies = {n for n in loop.body.nodes if isinstance(n, Call) and is_staged_copy(n)}
        places = loads_behind_places(loop, {*loads, *copies})
        tables = [c for c in reversed(loads) if c in places]
        others = sorted((c for c in loads if c not in tables), key=lambda c: c not in multiplied)
        staying: dict[Call, str] = {}
        placing = loads_behind_places(loop, copies)
        for load in (*others, *tables):  # users come before what they use
            if load in placing:
                continue
            if isinstance(waits, Call):
                staying[load] = (f"the loop waits for other threads' writes, by {waits.op.name} at line "
                                 f"{line_of(waits.loc)}")
            elif why := self.why_stays(loop, load, loads[load], load in multiplied):
                staying[load] = why
            else:
                placing |= loads_behind_places(loop, {load})
        return staying

    def why_stays(self, loop: For, load: Call, branches: tuple[If, ...], multiplied: bool) -> str:
        """Why a load cannot run ahead. Returns "" if it can, and records its copy."""
        if load.attrs["cache"] is not None:
            return "the copy that would bring its tile cannot apply cache=: leave it out"
        if load.args[2] is None:
            return self.why_not_by(loop, load, branches, multiplied, True)
        # what the mask excludes need not be left out: it can be replaced when the slot is read
        return (self.why_not_by(loop, load, branches, multiplied, True)
                and self.why_not_by(loop, load, branches, multiplied, False))

    def why_not_by(self, loop: For, load: Call, branches: tuple[If, ...], multiplied: bool, masked: bool) -> str:
        """Why a load cannot run ahead by a copy that leaves out what its mask excludes (`masked`), or that does not.
        Returns "" if it can, and records the copy."""
        try:
            ahead = self.copies.make(load, loop, branches, masked, False)
            if pipeline_of(loop).warp_specialize and isinstance(type_of(ahead.copy.args[1]), RowsOfArray):
                ahead = self.by_engine(load, loop, branches, masked) or ahead
            elif load.result in self.padded:
                ahead = self.by_padding(load, loop, branches) or ahead
        except PatternMismatch as mismatch:
            return str(mismatch)
        if why := self.why_depends(loop, load, ahead):
            return why
        pipeline = pipeline_of(loop)
        nbytes = type_as(ahead.region, Region).nbytes * max(0, pipeline.stages - ahead.to.stages)
        if nbytes > self.left:
            return (f"its {pipeline.stages} slots take {nbytes} bytes of shared memory, "
                    f"of which {max(self.left, 0)} are left")
        if why := self.why_slow(self.with_likely_layout(ahead.copy),
                                for_roles=pipeline.warp_specialize and not multiplied):
            return why
        groups = own_groups(loop)
        if groups is not None and not completes_by_bytes(self.context, self.with_likely_layout(ahead.copy),
                                                         self.context.scope.kind):
            return (f"its copy would complete by groups of cp.async, which {groups.op.name} at line "
                    f"{line_of(groups.loc)} counts too")
        if ahead.repair is not None and (why := self.copies.why_costly(ahead.repair, loop)):
            return why
        self.left -= nbytes
        self.allocations += ahead.to.allocations if not ahead.to.loops else ()
        ahead.to.stages = max(ahead.to.stages, pipeline.stages)
        ahead.to.loops.append(loop)
        self.ahead_copies[load.result] = ahead
        return ""

    def by_engine(self, load: Call, loop: For, branches: tuple[If, ...], masked: bool) -> AheadCopy | None:
        """The copy of rows that TMA gathers for a producer, where the target has that mode; None if it cannot."""
        if architecture(self.context.target) < 100:
            return None
        try:
            ahead = self.copies.make(load, loop, branches, masked, True)
        except PatternMismatch:
            return None
        return ahead if completes_by_bytes(self.context, self.with_likely_layout(ahead.copy), "thread") else None

    def by_padding(self, load: Call, loop: For, branches: tuple[If, ...]) -> AheadCopy | None:
        """The copy by which TMA pads packed elements as the products read them; None if it cannot, for a reason that
        `packed` then has."""
        try:
            ahead = self.copies.make(load, loop, branches, True, False, self.padded[load.result])
        except PatternMismatch as mismatch:
            self.packed[load.result] = str(mismatch)
            return None
        pipeline, slot = pipeline_of(loop), type_as(ahead.region, Region)
        kind = "thread" if pipeline.warp_specialize else self.context.scope.kind
        nbytes = slot.nbytes * max(0, pipeline.stages - ahead.to.stages)
        if slot.shape[-1] % PADDED:
            why = f"it pads rows of {PADDED} elements, and these have {slot.shape[-1]}"
        elif ahead.repair is not None:
            why = f"other= is put in place of what is {ahead.repair.what}"
        elif nbytes > self.left:
            why = f"padded, its {pipeline.stages} slots take {nbytes} bytes of shared memory"
        elif not completes_by_bytes(self.context, ahead.copy, kind):
            site = site_with_barrier(self.context, ahead.copy, kind)
            tma = next(v for v in ahead.copy.op.variants if v.name == "tma")
            why = "; ".join(miss.words for miss in reasons(tma, site)) or "no copy of it completes by bytes"
        else:
            return ahead
        self.packed[load.result] = why
        return None

    def why_depends(self, loop: For, load: Call, ahead: AheadCopy) -> str:
        """Why the place of a copy, or the condition of a branch around it, is not known iterations ahead; "" if it
        is."""
        places, outside = slice_around(with_nodes_in_place(loop.body, load, ahead.nodes), {ahead.copy})
        changed = next((c.inner for c in loop.carried if c.inner in outside), None)
        if changed is not None:
            steered = next((b for b in ahead.branches if self.depends_on(b.test, changed)), None)
            what = "its place" if steered is None else f"the condition of its branch at line {line_of(steered.loc)}"
            return f"{what} depends on {changed.name}, which the loop changes"
        for call in (load, *(c for c in walk(Block(places)) if isinstance(c, Call))):
            if call is not ahead.copy and call.op.effect != "pure" and (why := why_not_ahead(self.context, call, loop)):
                return why if call is load else f"it depends on this {call.op.name} at line {line_of(call.loc)}: {why}"
        return ""

    def depends_on(self, x: Operand, value: Value) -> bool:
        """Whether an operand is computed from a value, also through the results of branches."""
        seen: set[Operand] = set()
        left: list[Operand] = [x]
        while left:
            x = left.pop()
            if x is value:
                return True
            if isinstance(x, Value) and x not in seen:
                seen.add(x)
                made = self.context.definitions.get(x)
                left += self.context.branch_values.get(x, ()) if made is None else filter(None, made.args)
        return False

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
            if ahead is None or ahead.repair is not None or sorted(ahead.axes) != [0, 1]:
                continue
            if types_as_multiplied(call)[n - 1] != type_of(x) and not element_type(ahead.region).padded:
                continue  # stored padded in each trip
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
