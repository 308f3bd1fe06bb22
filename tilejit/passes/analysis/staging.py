"""What a pipelined loop stages in shared memory.

Which copies run ahead, into which buffers, and how they complete.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from ...config import architecture
from ...dispatch import choose
from ...errors import CompilationError, DispatchError, at, line_of
from ...ir.builder import ExecScope, Warning_, as_value, memory_type, type_as, type_of
from ...ir.graph import (
    Block,
    Call,
    For,
    If,
    Node,
    Operand,
    Scope,
    Value,
    blocks,
    is_writer,
    may_overlap,
    pipeline_of,
    walk,
    written_arrays,
    written_values,
)
from ...names import allocation_name
from ...ops.memory.access_ops import load_
from ...ops.memory.packed import AS_BYTES
from ...ops.memory.regions import points, region
from ...ops.memory.shared import alloc_shared
from ...ops.moves.copy_async import copy_async_
from ...ops.moves.copy_async.site import CopySite
from ...ops.sync.barriers import awaits_copies, cp_async_commit, cp_async_wait
from ...ops.sync.pipeline import pipeline_slot
from ...ops.tmem.order import tcgen05_commit_
from ...ops.tmem.slots import reads_late
from ...types import Addressed, ArrayId, Barrier, BarrierRef, Buffer, Points, Region, Selected
from ..placement.shared_memory import SHARED_LIMIT
from .context import Context
from .program_slices import slice_around

INDEXED = (region, points)  # ops by which a loop indexes what it stages
VIEWS = (*INDEXED, *AS_BYTES)
RESERVED = 16384  # bytes of shared memory set aside for barriers and the compiler's scratch


@dataclass(eq=False)
class StagedLoop:
    """A pipelined loop, and what the compiler makes for it.

    `slot` is the call that marks a trip's slot, `copies` run ahead, `address_nodes` compute where they go, and are the
    branches around those of `copies` that stand in one. `by_bytes` says for each copy whether it completes by bytes on
    an mbarrier. `rings` has a ring of slots for each buffer that
    they fill; `full` and `empty` are the slots' barriers, None where none are needed.
    """

    loop: For
    slot: Call
    copies: list[Call]
    address_nodes: tuple[Node, ...]
    by_bytes: list[bool]
    rings: dict[Operand, Value] = field(default_factory=dict)
    full: Value | None = None
    empty: Value | None = None
    # slots are released by the commits of products into tensor memory, since nothing in the loop waits for these
    by_commit: bool = False

    def with_copies(self, copies: list[Call]) -> StagedLoop:
        """The same loop with some of its copies alone."""
        nodes, _ = slice_around(self.loop.body, set(copies))
        by_bytes = [by_bytes for c, by_bytes in zip(self.copies, self.by_bytes) if c in copies]
        return StagedLoop(self.loop, self.slot, copies, tuple(n for n in nodes if n not in copies), by_bytes)

    @property
    def stages(self) -> int:
        return pipeline_of(self.loop).stages

    @property
    def unconditional(self) -> list[tuple[Call, bool]]:
        """The copies that each trip makes, with their `by_bytes`."""
        return [(c, by_bytes) for c, by_bytes in zip(self.copies, self.by_bytes) if not in_branch(c)]

    @property
    def conditional(self) -> dict[Call, bool]:
        """The copies in branches, with their `by_bytes`."""
        return {c: by_bytes for c, by_bytes in zip(self.copies, self.by_bytes) if in_branch(c)}

    @property
    def nbytes(self) -> int:
        """The bytes of the copies that each trip makes and that complete by bytes."""
        return sum(copied_bytes(c.args[1]) for c, by_bytes in self.unconditional if by_bytes)

    @property
    def groups(self) -> bool:
        """Whether copies complete by groups of cp.async."""
        return not all(self.by_bytes)


def copied_bytes(place: Operand) -> int:
    """The bytes of a region that a copy moves."""
    t = type_of(place)
    assert isinstance(t, (Region, Selected))
    return t.nbytes


class StagedLoopFinder:
    """Finds the pipelined loops of a graph, and refuses what cannot run ahead."""

    def __init__(self, context: Context):
        self.context = context
        self.loops: dict[For, StagedLoop] = {}
        self.owners: dict[Operand, list[For]] = {}  # a staged buffer -> its loops, which run one after the other
        self.scopes: dict[For, ExecScope] = {}
        self.at_cta_scope = True            # whether every loop stands at CTA scope

    def block(self, block: Block) -> None:
        for node in block.nodes:
            if isinstance(node, For) and node.pipeline:
                with at(node.loc):
                    self.loops[node] = self.find_staged(node)
            with self.context.in_scope_of(node):
                for inner in blocks(node):
                    self.block(inner)

    def find_staged(self, loop: For) -> StagedLoop:
        """What a pipelined loop stages. CompilationError where its copies cannot run ahead."""
        scope: ExecScope | None = self.context.scope
        self.scopes[loop] = self.context.scope
        self.at_cta_scope = self.at_cta_scope and self.context.scope.kind == "cta"
        while scope is not None:
            if isinstance(scope.first, Value):
                raise CompilationError("a pipelined loop has its own buffers and barriers, which a scope whose index "
                                       "is known at run time only would share with other scopes: "
                                       "write the ring by hand (tile.ring)", loop.loc)
            scope = scope.parent
        slot = next(n for n in loop.body.nodes if isinstance(n, Call) and n.op is pipeline_slot)
        copies = staged_copies(loop.body)
        for c in copies:
            if c.attrs["options"].get("multicast"):
                raise CompilationError("a pipelined loop fills the slots of its own CTA only, and this multicast also "
                                       "writes to those of other CTAs, which may still be read: "
                                       "write the ring by hand (tile.ring(..., multicast=True))", c.loc)
        nodes, outside = slice_around(loop.body, set(copies))
        address_nodes = tuple(n for n in nodes if n not in copies)
        for n in walk(Block(address_nodes)):
            if (isinstance(n, Call) and n not in copies and n.op.effect != "pure"
                and (why := why_not_ahead(self.context, n, loop))):
                raise CompilationError("the loop's copies are issued iterations ahead, and their places depend on "
                                       f"this {n.op.name}, but {why}; otherwise write the ring by hand (tile.ring)",
                                       n.loc)
        carried = {carry.inner: carry for carry in loop.carried}
        for value in outside & set(carried):
            raise CompilationError(f"the places of this loop's copies depend on {value.name}, which the loop changes: "
                                   "the copies are issued iterations ahead, so their places may depend only on the "
                                   "index and on values from before the loop", copies[0].loc)
        staged = StagedLoop(loop, slot, copies, address_nodes, [])
        for copy in copies:
            buffer = as_value(self.context.definition(copy.args[0]).args[0])
            if self.context.definition(buffer).op is not alloc_shared:
                raise CompilationError("this copy fills a view of a buffer, and a pipelined loop makes a ring of slots "
                                       "of each buffer that its copies fill: "
                                       "copy to the buffer that tile.alloc returned, or to regions of it", copy.loc)
            owners = self.owners.setdefault(buffer, [])
            if any(loop in walk(other.body) or self.scopes[other] != self.scopes[loop] for other in owners):
                raise CompilationError(f"{buffer_name(buffer)} is filled by two pipelined loops that do not run one "
                                       "after the other in the same scope; give each a buffer of its own", copy.loc)
            owners += () if loop in owners else (loop,)
        staged.by_commit = self.by_commit(loop)
        return staged

    def by_commit(self, loop: For) -> bool:
        """Whether tensor memory operations (products, copies) read the loop's slots and nothing in the
        loop commits them."""
        calls = [n for n in walk(loop.body) if isinstance(n, Call)]
        def reads(c: Call) -> bool:
            return any(loop in self.owners.get(self.context.buffer_of(a), ()) for a in c.args if isinstance(a, Value))
        return any(reads_late(c) and reads(c) for c in calls) and not any(c.op is tcgen05_commit_ for c in calls)

    @property
    def warp_specialized(self) -> bool:
        """Whether warps of their own issue the copies: it is asked for, and all copies complete by bytes."""
        asked = [s for s in self.loops.values() if pipeline_of(s.loop).warp_specialize]
        if asked and not self.at_cta_scope:
            raise CompilationError("warp_specialize gives roles to the warps of the whole CTA, "
                                   "and a pipelined loop of this kernel is in a narrower scope", asked[0].loop.loc)
        # a producer runs nothing of a trip but its copies
        nested = any(n in self.loops for loop in self.loops for n in walk(loop.body))
        if len(asked) != len(self.loops) or nested or self.context.target == "sm_80":
            self.choose_completion("cta")
            return False
        self.choose_completion("thread")
        if all(all(s.by_bytes) for s in self.loops.values()):
            for buffer, (_, *others) in self.owners.items():
                if others:
                    raise CompilationError(f"{buffer_name(as_value(buffer))} is filled by two pipelined loops, "
                                           "and with warp_specialize the copies of the second begin while the first "
                                           "still runs; give each a buffer of its own", others[0].loc)
            return True
        self.choose_completion("cta")
        return False

    def choose_completion(self, kind: str) -> None:
        """Decide which copies complete by bytes: those that have such a path when they are given a barrier."""
        for staged in self.loops.values():
            staged.by_bytes = [completes_by_bytes(self.context, c, kind) for c in staged.copies]

    def check_uses(self) -> None:
        """CompilationError for a use of a staged buffer outside its loop, and for a write in it."""
        inside: dict[Value, For] = {}
        for loop in self.loops:
            for node in walk(loop.body):
                if isinstance(node, Call) and node.results and any(loop in self.owners.get(o, ()) for o in node.args):
                    inside[node.results[0]] = loop
        copies = {c for s in self.loops.values() for c in s.copies}
        for call in self.context.calls:
            for o in call.args:
                if not isinstance(o, Value):
                    continue
                if o in self.owners and call.op not in VIEWS:
                    raise CompilationError(f"{buffer_name(o)} is staged by the pipelined loop at line "
                                           f"{line_of(self.owners[o][0].loc)}, and can only be indexed there", call.loc)
                if o in self.owners and inside.get(call.results[0]) not in self.owners[o]:
                    raise CompilationError(f"{buffer_name(o)} is staged by the pipelined loop at line "
                                           f"{line_of(self.owners[o][0].loc)}: outside that loop it holds no data",
                                           call.loc)
            if not is_writer(call) or call in copies:
                continue
            for buffer in {self.context.buffer_of(place) for place in written_values([call])} & set(self.owners):
                raise CompilationError(f"{buffer_name(as_value(buffer))} is staged by a pipelined loop: "
                                       "only the copies directly in the loop's body may write it", call.loc)


def own_groups(loop: For) -> Call | None:
    """The first call in a loop that commits or waits for groups of cp.async of the author's own, or may do so for a
    token."""
    return next((n for n in walk(loop.body) if isinstance(n, Call)
                 and (n.op in (cp_async_commit, cp_async_wait)
                      or n.op is copy_async_ and n.attrs["options"].get("token"))), None)


def missed_copy_warnings(context: Context, loop: For, pipelined: Collection[For],
                         groups: bool = False) -> Iterator[Warning_]:
    """Warnings of copies nested inside a loop that look as if they ran ahead of it but do not.

    These are copies whose buffer the loop reads, without a wait of the author's for them. Those in `pipelined` loops
    are left out; `groups` says whether the loop counts groups of copies, so that no others can be waited for.
    """
    calls = [n for n in walk(loop.body) if isinstance(n, Call)]
    if any(map(awaits_copies, calls)):
        return
    uses = (a for c in calls if c.op not in VIEWS
            for a in c.args if isinstance(a, Value) and a not in written_values([c]))
    read = {context.buffer_of(a) for a in uses}
    wait = "" if groups else "; or wait for it here, by tile.copy_async(...).wait()"
    for copy, (where, cure) in _copies_below(loop.body, pipelined):
        if context.buffer_of(copy.args[0]) in read:
            yield Warning_(f"this copy_async is in {where} inside the pipelined loop at line {line_of(loop.loc)}, "
                           f"and only copies directly in that loop's body run ahead: {cure}{wait}", copy.loc)


def _copies_below(block: Block, pipelined: Collection[For]) -> Iterator[tuple[Call, tuple[str, str]]]:
    """The copies in blocks inside `block`, `pipelined` loops left out, each with (what it stands in,
    what to do instead)."""
    for node in block.nodes:
        for inner in () if node in pipelined else blocks(node):
            yield from ((n, BELOW.get(type(node), BELOW[For])) for n in inner.nodes
                        if isinstance(n, Call) and is_staged_copy(n) and not in_branch(n))
            yield from _copies_below(inner, pipelined)


def staged_copies(block: Block) -> list[Call]:
    """The copies that run ahead of the pipelined loop with this body: directly in it and, where loads of the author's
    have become copies, in its branches."""
    found: list[Call] = []
    for node in block.nodes:
        if isinstance(node, If):
            found += (c for inner in blocks(node) for c in staged_copies(inner) if in_branch(c))
        elif isinstance(node, Call) and is_staged_copy(node):
            found.append(node)
    return found


def in_branch(copy: Call) -> bool:
    """Whether a copy stands for a load in a branch of its pipelined loop."""
    return bool(copy.attrs["options"].get("ahead"))


def is_staged_copy(node: Node) -> bool:
    """Whether a node directly in the body of a pipelined loop is a copy that runs ahead."""
    if not isinstance(node, Call) or node.op is not copy_async_:
        return False
    dst, src, mbar = node.args[:3]
    to, of = memory_type(dst), memory_type(src)
    incoming = (to.scope, of.scope) == ("shared", "global") and isinstance(to, Region) and not to.buffer.peer
    return incoming and mbar is None and not node.attrs["options"].get("token") and node.attrs["partial"] is None


def completes_by_bytes(context: Context, copy: Call, kind: str) -> bool:
    """Whether a copy that is given a barrier has a path that completes by bytes.

    It is made by the scope at hand or, where `kind` is "thread", by a single thread.
    """
    if context.target == "sm_80":
        return False
    only = copy.attrs["options"].get("variant")
    try:
        choice = choose("copy_async", copy.op.variants, site_with_barrier(context, copy, kind), only=only, loc=copy.loc)
    except DispatchError:
        return False
    return bool(choice.plan.completion == "bytes")


def site_with_barrier(context: Context, copy: Call, kind: str) -> CopySite:
    """The site of a copy that is given a barrier."""
    site = CopySite.of_call(context, replace(copy, args=(*copy.args[:2], Value("mbarrier", BarrierRef(Barrier(1, 1))))))
    return replace(site, scope="thread", threads=1) if kind == "thread" else site


def why_not_ahead(context: Context, call: Call, loop: For) -> str:
    """Why a call that is not pure arithmetic could give another result if it ran trips of a loop early; empty if it
    could not."""
    if call.op is not load_:
        return "only a plain load of an array argument that the kernel does not write may run ahead"
    place = memory_type(call.args[0])
    arg = place.buffer.arg if isinstance(place, (Region, Points, Selected)) else None
    if arg is None:
        return (f"it loads from {place.scope} memory that is no array argument, and only a plain load of an array "
                "argument that the kernel does not write may run ahead")
    if (write := _write_of_unknown_place(context, arg, loop)) is not None:
        return (f"{write.op.name} at line {line_of(write.loc)} may write what it reads from {context.name_of(arg)}, "
                "since nobody knows what an array from an address lies over")
    writes = (c for c in context.calls if arg in written_arrays([c]))
    if (write := next(writes, None)) is not None:
        return (f"the kernel writes the memory that it reads: {write.op.name} at line {line_of(write.loc)} writes "
                f"{context.name_of(arg)}")
    if isinstance(arg, Addressed):
        return ""
    for other in sorted(array for array in written_arrays(context.calls) if isinstance(array, int)):
        if not context.facts.ask("no_overlap", arg, other):
            name = context.name_of(arg)
            return f"the kernel writes the memory that it reads: {context.name_of(other)} overlaps {name}"
    return ""


def _write_of_unknown_place(context: Context, array: ArrayId, loop: For) -> Call | None:
    """The first call that a load of `array` would pass if it ran trips of a loop early, and that may write what it
    reads since one of the two arrays is made from an address. Loads by a producer pass all that the kernel writes."""
    calls = context.calls
    if not pipeline_of(loop).warp_specialize:
        calls = [n for n in walk(loop.body) if isinstance(n, Call)]
    def may_write(call: Call) -> bool:
        return any(other != array and may_overlap(array, (other,)) for other in written_arrays([call]))
    return next(filter(may_write, calls), None)


def shared_memory_left(context: Context) -> int:
    """The bytes of shared memory that a graph's buffers leave, pipelined ones counted once per slot,
    with `RESERVED` set aside."""
    launch, most = context.graph.launch, SHARED_LIMIT[architecture(context.target)]
    loops = [n for n in walk(context.graph.body) if isinstance(n, For) and n.pipeline]
    slots = {context.buffer_of(n.args[0]): pipeline_of(loop).stages
             for loop in sorted(loops, key=lambda loop: pipeline_of(loop).stages)
             for n in staged_copies(loop.body)}
    buffers = sum(type_as(c.result, Buffer).nbytes * slots.get(c.result, 1)
                  for c in context.calls if c.op is alloc_shared)
    return min(most if launch.max_shared is None else launch.max_shared,
               (most + 1024) // (launch.min_ctas or 1) - 1024) - RESERVED - buffers


def buffer_name(buffer: Value) -> str:
    """The kernel's name for a buffer, for messages."""
    return allocation_name(buffer.name, buffer.loc) or "this buffer"


BELOW = {If: ("a branch", "copy in every iteration, from a place that the condition chooses (tile.where)"),
         For: ("a loop",
               "copy before the inner loop what all its iterations read, or make that loop a pipelined one too"),
         Scope: ("a narrower scope", "copy outside of the scope")}


__all__ = ["INDEXED", "VIEWS", "StagedLoop", "StagedLoopFinder", "completes_by_bytes", "copied_bytes", "in_branch",
           "is_staged_copy", "missed_copy_warnings", "own_groups", "shared_memory_left", "site_with_barrier",
           "why_not_ahead"]
