"""Loads in pipelined loops: where they can, they become copies that run ahead.

What is loaded goes by ``copy_async`` to a buffer of the compiler's own, whose layout is chosen by its uses. Products read it there; all else is
loaded from there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..dispatch import reasons
from ..ir.builder import Facts, Warning_
from ..ir.graph import Block, Call, Const, For, Graph, Node, Value, walk, with_blocks
from ..layout import auto
from ..ops.barriers import waits_for_grids
from ..ops.copy_async import copy_async_
from ..ops.memory import load_
from ..ops.mma.dot import dot_
from ..ops.pipeline import pipeline_slot
from ..ops.regions import whole
from ..ops.shape import transpose_
from ..ops.shared import allocated
from ..types import Tile
from .boxes import Named, Unlike
from .context import Context, lies_by_columns, loads_behind
from .shared_layouts import by_columns, with_layout
from .slices import more_than_arithmetic, needed, without_unused
from .staging import completes_by_bytes, is_copy, not_ahead, shared_left, site_ahead
from .writing import Writer


def send_loads_ahead(graph: Graph, facts: Facts) -> Graph:
    """The graph with copies in place of the loads that may run ahead of their pipelined loop."""
    loops = [n for n in walk(graph.body) if isinstance(n, For) and n.pipeline]
    if not any(is_load(n) for loop in loops for n in loop.body.nodes):
        return graph
    pass_ = _LoadsAhead(Context(graph, facts))
    body = pass_.block(graph.body)
    body = without_unused(Block((*pass_.allocations, *body.nodes)), pass_.acts)
    return replace(graph, body=body, warnings=(*graph.warnings, *pass_.warnings))


def is_load(node: Node) -> bool:
    """Whether a node loads a tile of global memory."""
    return isinstance(node, Call) and node.op is load_ and isinstance(node.result.type, Tile) and node.args[0].type.scope == "global"


def is_slot(node: Node) -> bool:
    return isinstance(node, Call) and node.op is pipeline_slot


def sees_others(node: Node) -> bool:
    """Whether what comes after a node may see what other kernels have written meanwhile."""
    if not isinstance(node, Call):
        return False
    unknown = node.op.name == "asm" or node.op.name.startswith("ptx_") and node.op.effect != "pure"
    return unknown or node.op.name in ("ordered_load", "atomic") or waits_for_grids(node)


@dataclass(frozen=True)
class Coming:
    """What stands for a load that runs ahead: `nodes`, of which `copy` is one, and allocations. `axes` of its tile are the buffer's dimensions."""

    nodes: tuple[Node, ...]
    copy: Call
    allocations: list[Node]
    axes: tuple[int, ...]

    @property
    def region(self) -> Value:
        return self.copy.args[0]

    @property
    def read(self) -> set[Value]:
        """What is loaded from there, and on the way to what the load gave."""
        return {r for n in self.nodes[self.nodes.index(self.copy):] for r in n.results}


class _LoadsAhead:
    def __init__(self, context: Context):
        self.context = context
        self.left = shared_left(context)
        self.allocations: list[Node] = []
        self.coming_ahead: dict[Value, Coming] = {}  # by what is loaded
        self.taken_by_products: set[Value] = set()   # what nothing else may need
        self.warnings: list[Warning_] = []

    # -- which ---------------------------------------------------------------------------------------------------------------

    def plan(self, loop: For) -> bool:
        """Choose the loads of a loop that run ahead, as far as there is room: first those that products take. False where all stay, and
        nothing else can run ahead."""
        products = [n for n in walk(loop.body) if isinstance(n, Call) and (n.op is dot_ or "mma" in n.op.name)]
        multiplied = {c for p in products for x in p.args[1:3] for c in loads_behind(self.context, x) or ()}
        waits = "the loop waits for other threads' writes" if any(map(sees_others, walk(loop.body))) else ""
        staying = {}
        for load in sorted(filter(is_load, loop.body.nodes), key=lambda c: c not in multiplied):
            if why := waits or self.stays(loop, load, load in multiplied):
                staying[load] = why
        ahead = any(is_copy(n) or isinstance(n, Call) and self.of(n) for n in loop.body.nodes)
        self.warnings += (Warning_(f"this load does not run ahead of the pipelined loop at line {loop.loc.line}: {why}", load.loc)
                          for load, why in staying.items() if load in multiplied or not ahead)
        return ahead or not staying

    def stays(self, loop: For, load: Call, multiplied: bool) -> str:
        """Why a load stays where it is. If nothing keeps it there, its copy is noted."""
        other = load.args[1]
        if not (isinstance(other, Const) and other.value == 0) or load.attrs["cache"] is not None:
            return "a copy fills what is out of bounds or masked off with zeros, and cannot apply cache=: use other=0, without cache="
        try:
            came = self.coming(load, loop)
        except Unlike as why:
            return str(why)
        places, outside = needed(Block((*loop.body.nodes, *came.nodes)), [came.copy])
        changed = next((v.name for v in outside & {c.inner for c in loop.carried}), None)
        if changed is not None:
            return f"its place depends on {changed}, which the loop changes"
        for call in (load, *(c for c in walk(Block(places)) if isinstance(c, Call) and c.op.effect != "pure")):
            if why := not_ahead(self.context, call):
                return why
        nbytes = load.result.type.size * load.result.type.dtype.nbytes * loop.pipeline.stages
        if nbytes > self.left:
            return f"its {loop.pipeline.stages} slots take {nbytes} bytes of shared memory, of which {max(self.left, 0)} are left"
        if why := self.slow(self.as_it_may_lie(came.copy), for_roles=loop.pipeline.warp_specialize and not multiplied):
            return why
        self.left -= nbytes
        self.allocations += came.allocations
        self.coming_ahead[load.result] = came
        return ""

    def coming(self, load: Call, loop: For) -> "Coming":
        """What stands for a load that runs ahead."""
        g, t = Writer.of(self.context), load.result.type
        g.loc, g.scope = load.loc, self.context.scope
        place = Named(self.context, load, (loop,))
        with g.block() as nodes:
            source = place.source(g)
            region = whole(g, allocated(g, tuple(t.shape[a] for a in place.axes), t.dtype, auto))
            g.call(copy_async_, region, source, None, options={}, partial=None)
            copy = nodes[-1]
            place.in_order(g, g.call(load_, region, load.args[1], None, cache=None))
        self.context.made.update(g.definitions)
        return Coming((*nodes[:-1], replace(nodes[-1], results=load.results)), copy, list(g.blocks[0]), place.axes)

    def as_it_may_lie(self, copy: Call) -> Call:
        """The copy to a buffer by columns, if the array lies so; else by rows."""
        region, source = copy.args[:2]
        if not lies_by_columns(source.type):
            return copy
        layout = next(iter(by_columns(region.type.dtype, region.type.shape).values()))
        turned = replace(region, type=with_layout(region.type, layout))
        self.context.made[turned] = self.context.made[region]
        return replace(copy, args=(turned, *copy.args[1:]))

    def slow(self, copy: Call, for_roles: bool) -> str:
        """Why a copy gains nothing: threads would make it by loads and stores, or roles cannot make it."""
        kind = "thread" if for_roles else self.context.scope.kind
        if completes_by_bytes(self.context, copy, kind):
            return ""
        variants, site = copy.op.rules["variants"](copy), copy.op.rules["site"](self.context, copy)
        if not for_roles and any(v.name != "vector" and not reasons(v, site) for v in variants):
            return ""
        sites = {"ldgsts": site} if not for_roles else {}
        sites |= {"tma": site_ahead(self.context, copy, kind)} if self.context.target != "sm_80" else {}
        return "; ".join(f"{v.name} {'; '.join(miss.words for miss in reasons(v, sites[v.name]))}" for v in variants if v.name in sites)

    # -- written out -----------------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> Block:
        with self.context.inside(block):
            return replace(block, nodes=tuple(n for node in block.nodes for n in self.node(node)))

    def node(self, node: Node) -> tuple[Node, ...]:
        match node:
            case Call() if self.of(node):
                return self.of(node).nodes
            case Call() if node.op is dot_:
                return self.dot(node),
            case For():
                if node.pipeline and not self.plan(node):
                    node = replace(node, pipeline=None, body=replace(node.body, nodes=tuple(n for n in node.body.nodes if not is_slot(n))))
        with self.context.within(node):
            return with_blocks(node, self.block),

    def acts(self, call: Call) -> bool:
        """Whether a call stays though nothing uses it: places that copies have are not needed for the loads that they stand for."""
        return more_than_arithmetic(call) and self.taken_by_products.isdisjoint(call.results)

    def of(self, call: Call) -> Coming | None:
        return self.coming_ahead.get(call.results[0]) if call.results else None

    def dot(self, call: Call) -> Call:
        """A product that takes what runs ahead, transposed or not, in shared memory."""
        args, attrs = list(call.args), dict(call.attrs)
        for n, flag in ((1, "trans_a"), (2, "trans_b")):
            x, made = args[n], self.context.made.get(args[n])
            turned = made is not None and made.op is transpose_ and made.attrs["axes"] == (1, 0)
            loaded = made.args[0] if turned else x
            came = self.coming_ahead.get(loaded)
            if came is None or sorted(came.axes) != [0, 1]:
                continue
            turned ^= came.axes == (1, 0)
            if n == 1 and self.across_k(call, came, turned):
                continue
            self.taken_by_products |= {x, *came.read}
            args[n], attrs[flag] = came.region, attrs[flag] ^ turned
        return replace(call, args=tuple(args), attrs=attrs)

    def across_k(self, call: Call, came: Coming, turned: bool) -> bool:
        """Whether an `a` lies in memory as `wgmma` takes no elements of its kind, which it takes from registers."""
        narrow = came.region.type.dtype.bits == 8 or call.attrs["precision"] == "tf32"
        k_last = call.attrs["trans_a"] == turned
        return self.context.target == "sm_90a" and narrow and k_last == lies_by_columns(came.copy.args[1].type)


__all__ = ["send_loads_ahead"]
