"""Give every register tile a layout: anchored at memory, carried through elementwise work, changed where it must.

A value that costs nothing to make anywhere (a splat, arange, and elementwise work on such) is made anew in each layout
that a use asks for, and so is a broadcast. Every other tile has one layout; a use that needs another gets a
`convert_layout`. A load takes the layout of its first use where that costs less than a change: casts and reshapes on the
way there go with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ..config import architecture
from ..errors import CompilationError, at
from ..ir.builder import ExecScope, Facts, type_of
from ..ir.graph import Block, Call, Carry, For, Graph, If, Operand, Rewriter, Scope, Value, While
from ..layout import blocked, collapse
from ..ops.layout_change import convert_layout
from ..types import Points, Region, Tile
from .context import Context
from .shared import SHARED_LIMIT
from .widths import cost_of_change, cost_of_load, vector_widths, wasteful, way_of


@dataclass(frozen=True)
class Fresh:
    """A load that nothing has used but calls of one tile beside free values: it and they in order, with their places in `nodes`.
    Or, with the value that a loop carries as `carried`, those that begin at it where the loop began with a load."""

    nodes: list | None
    calls: tuple[tuple[Call, int], ...]
    carried: Value | None = None

    def here(self, nodes: list) -> bool:
        return self.nodes is None or self.nodes is nodes


def assign_layouts(graph: Graph, facts: Facts) -> Graph:
    """The graph with a layout on every tile."""
    return replace(graph, body=_Assigner(graph, facts).top(graph.body))


class _Assigner:
    def __init__(self, graph: Graph, facts: Facts):
        self.context = Context(graph, facts)
        self.scope = ExecScope("cta", graph.launch.threads)
        self.new = Rewriter()
        self.deferred: dict[Value, Call] = {}
        self.guessed: set[Value] = set()  # carried values whose layout is a guess: what meets them decides
        self.fresh: dict[Value, Fresh] = {}   # by the last value
        self.passed: dict[Value, Value] = {}  # a value inside a fresh chain -> the last one
        self.hoped: dict[Value, Tile] = {}    # what the first use of a carried value, of a load at the start, asks for
        self.points: dict[Value, Tile] = {}  # the layout of the index tiles behind points
        self.copies: list[dict] = [{}]
        self.nodes: list[list] = []
        self.vectors = vector_widths(graph, self.context)
        self.reduced = reduced_axes(self.context)
        self.room = _spare_memory(graph, self.context)

    # -- layouts to choose from ----------------------------------------------------------------------------------------

    def default(self, shape: tuple[int, ...], dtype) -> Tile:
        """The blocked layout of a shape: vectors as wide as its memory accesses allow, every thread busy."""
        vector, order = self.vectors.get(shape, (max(1, 16 // dtype.nbytes), None))
        return self.blocked(dtype, shape, vector, order, self.reduced.get(shape, ()))

    def blocked(self, dtype, shape: tuple[int, ...], vector: int, order: tuple | None, reduced: tuple = ()) -> Tile:
        while vector > 1 and vector * self.scope.threads > prod(shape):
            vector //= 2
        if self.scope.kind == "thread" and isinstance(self.scope.first, int) and self.scope.first % min(self.scope.threads, 32):
            raise CompilationError(f"a register tile belongs to whole warps, or to 1, 2, 4, 8 or 16 lanes that begin at a multiple of their number, found "
                                   f"{self.scope.threads} threads from thread {self.scope.first} on")
        layout, domain = blocked(shape, self.scope.threads, vector, order, reduced)
        return Tile(dtype, shape, layout, domain)

    @staticmethod
    def like(t: Tile, dtype=None, shape=None) -> Tile:
        """A tile of another dtype in the same layout."""
        return replace(t, dtype=dtype or t.dtype, shape=shape or t.shape)

    def collapsed(self, t: Tile, dtype, shape: tuple[int, ...]) -> Tile:
        """The layout of a tile whose extents of 1 in `shape` are repeated to make `t`."""
        layout, domain = t.layout, t.domain
        for d, extent in enumerate(shape):
            if extent == 1 and t.shape[d] != 1:
                layout, domain = collapse(layout, domain, d)
        return Tile(dtype, shape, layout, domain)

    # -- values ----------------------------------------------------------------------------------------------------------

    def settled(self, operand: Operand) -> Tile | None:
        """The type with layout of a tile operand, or None while it is free."""
        if operand in self.deferred or not isinstance(operand, Value):
            return None
        return self.new(operand).type

    def use(self, operand: Operand, want: Tile | None) -> Operand:
        """The operand in the layout of `want` (None: not a tile)."""
        if want is None or not isinstance(type_of(operand), Tile):
            return self.new(operand)
        for copies in self.copies:
            if (operand, want.layout, want.domain) in copies:
                return copies[operand, want.layout, want.domain]
        if operand in self.deferred:
            made = self.remade(self.deferred[operand], want)
        else:
            made = self.new(operand)
            self.fresh.pop(self.passed.get(made), None)
            fresh = self.fresh.pop(made, None)
            if (made.type.layout, made.type.domain) == (want.layout, want.domain):
                return made
            if fresh is not None and fresh.here(self.nodes[-1]) and self.moved(fresh, want):
                return self.new(operand)
            made = self.converted(made, want, operand.loc)
        self.copies[-1][operand, want.layout, want.domain] = made
        return made

    def moved(self, fresh: Fresh, want: Tile) -> bool:
        """Whether a load is now in the layout of which its use makes `want`, which costs less than to change that. What was made
        of the load is made anew, here."""
        wants = [want]
        for call, _ in reversed(fresh.calls if fresh.carried is not None else fresh.calls[1:]):
            needs = call.op.rules.get("layout_backward", _same_backward)(self, call, wants[-1])
            if needs is None:
                return False
            wants.append(next(n for n, a in zip(needs, call.args) if n is not None and a not in self.deferred))
        if fresh.carried is not None:  # known to the loop's second walk
            self.hoped[fresh.carried] = self.like(wants[-1], fresh.carried.type.dtype)
            return False
        (load, at), have = fresh.calls[0], self.new(fresh.calls[-1][0].result).type
        if load.args[0].type.scope == "global":
            costs = [cost_of_load(self.context, load.args[0], t, self.scope.threads) for t in (wants[-1], self.new(load.result).type)]
            if costs[0] > costs[1] + cost_of_change(have, self.like(want, have.dtype)):
                return False
        made = self.new.retype(load.result, self.like(wants.pop(), load.result.type.dtype))
        fresh.nodes[at] = replace(fresh.nodes[at], results=(made,))
        for call, at in fresh.calls[1:]:
            fresh.nodes[at] = None
            needs = call.op.rules.get("layout_backward", _same_backward)(self, call, wants[-1])
            args = tuple(self.use(a, n) for a, n in zip(call.args, needs))
            made = self.new.retype(call.result, self.like(wants.pop(), call.result.type.dtype))
            fresh.nodes.append(replace(call, args=args, results=(made,)))
        return True

    def converted(self, value: Value, want: Tile, loc) -> Value:
        result = replace(value, type=Tile(value.type.dtype, value.type.shape, want.layout, want.domain))
        self.nodes[-1].append(Call(convert_layout, (value,), {}, (result,), loc))
        return result

    def remade(self, call: Call, want: Tile) -> Value:
        """A free value made in the layout that a use asks for."""
        needs = call.op.rules.get("layout_backward", _same_backward)(self, call, want)
        made = self.like(want, call.result.type.dtype)
        if needs is None:  # not to be had in that layout
            types = tuple(self.settled(a) if isinstance(type_of(a), Tile) else None for a in call.args)
            needs, (made,) = call.op.rules["layout"](self, call, types)
        args = tuple(self.use(a, n) for a, n in zip(call.args, needs))
        result = replace(call.result, type=made)
        self.nodes[-1].append(replace(call, args=args, results=(result,)))
        return result if (made.layout, made.domain) == (want.layout, want.domain) else self.converted(result, want, call.loc)

    # -- nodes -------------------------------------------------------------------------------------------------------------

    def top(self, body: Block) -> Block:
        return self.block(body, lambda: tuple(self.new.all(body.yields)))

    def block(self, body: Block, yields) -> Block:
        self.nodes.append([])
        self.copies.append({})
        with self.context.inside(body):
            for node in body.nodes:
                self.node(node)
        out = yields()
        self.copies.pop()
        return Block(tuple(n for n in self.nodes.pop() if n is not None), out)

    def node(self, node) -> None:
        match node:
            case Call():
                with at(node.loc):
                    self.call(node)
            case For() | While():
                self.loop(node)
            case If():
                self.branch(node)
            case Scope():
                outer = self.scope, self.context.scope
                self.scope = self.context.scope = self.context.narrowed(node)
                body = self.block(node.body, lambda: ())
                self.scope, self.context.scope = outer
                self.nodes[-1].append(replace(node, first=self.new(node.first), body=body))

    def call(self, call: Call) -> None:
        tiles = [a for a in call.args if isinstance(type_of(a), Tile)]
        lazy = "lazy" in call.op.rules
        free = call.op.effect == "pure" and all(a in self.deferred for a in tiles) and call.op.rules.get("free", _is_elementwise(call))
        if (free or lazy) and len(call.results) == 1 and isinstance(call.result.type, Tile):
            self.deferred[call.result] = call
            return
        types = tuple(self.settled(a) if isinstance(type_of(a), Tile) else None for a in call.args)
        needs, results = call.op.rules.get("layout", _same)(self, call, types)
        if call.op.name == "store":
            needs = self.stored(call, types, needs)
        bound = [self.new(a) for a in tiles if a not in self.deferred]
        before = self.fresh.get(bound[0]) if len(bound) == 1 else None
        args = tuple(self.use(a, n) for a, n in zip(call.args, needs))
        made = tuple(self.new.retype(r, t if t is not None else r.type) for r, t in zip(call.results, results))
        self.nodes[-1].append(replace(call, args=args, results=made))
        self.follow(call, tiles, before if before is not None and bound[0] in args else None)

    def stored(self, call: Call, types: tuple, needs: tuple) -> tuple:
        """What a store needs: its value as it lies, or in vectors along the array where a change of layout and these cost less."""
        place, have = call.args[0], types[1]
        if have is None or self.scope.kind != "cta" or not isinstance(place.type, Region) or place.type.scope != "global" or not place.type.shape:
            return needs
        want = self.blocked(have.dtype, have.shape, *way_of(self.context, place))
        if have.size * have.dtype.nbytes > self.room or not wasteful(self.context, place, have, want, self.scope.threads):
            return needs
        self.fresh.pop(self.new(call.args[1]), None)  # a load in that layout would touch the sectors that the store does not
        return tuple(self.like(want, a.type.dtype) if n is not None else None for n, a in zip(needs, call.args))

    def follow(self, call: Call, tiles: list, before: Fresh | None) -> None:
        """Keep what a call adds to the fresh values: a load of a region, or one call more on the way from a load."""
        nodes, at = self.nodes[-1], len(self.nodes[-1]) - 1
        if call.op.name == "load" and not tiles and isinstance(call.args[0].type, Region) and isinstance(call.result.type, Tile):
            fresh = Fresh(nodes, ((call, at),))
        elif before is not None and before.here(nodes) and (_is_elementwise(call) or "layout_backward" in call.op.rules):
            fresh = Fresh(nodes, (*before.calls, (call, at)), before.carried)
        else:
            return
        last = self.new(call.result)
        self.fresh[last] = fresh
        inside = [c.result for c, _ in fresh.calls[:-1]] + ([fresh.carried] if fresh.carried is not None else [])
        self.passed.update((self.new(value), last) for value in inside)

    def loop(self, node: For | While) -> None:
        """The layouts of carried tiles: their start's, or what the body makes of them when the start is free."""
        guesses = [(self.settled(c.init) or self.default(c.inner.type.shape, c.inner.type.dtype)) if isinstance(c.inner.type, Tile) else None
                   for c in node.carried]
        saved, before = [dict(x) for x in (self.new.values, self.deferred, self.copies[-1], self.fresh, self.passed)], list(self.nodes[-1])
        free = {c.inner for c in node.carried if c.init in self.deferred}
        loaded = {c.inner for c in node.carried if self.new(c.init) in self.fresh}
        self.guessed |= free
        wants = self._walk(node, guesses, loaded)[0]
        self.guessed -= free
        wants = [self.hoped.pop(c.inner, w) for c, w in zip(node.carried, wants)]
        moved = [w is not None and (c.init in self.deferred or c.inner in loaded or self._anchored(y)) and (w.layout, w.domain) != (g.layout, g.domain)
                 for w, g, c, y in zip(wants, guesses, node.carried, node.body.yields)]
        if any(moved):
            self.new.values, self.deferred, self.copies[-1], self.fresh, self.passed = saved
            self.nodes[-1][:] = before
            self._walk(node, [w if m else g for w, g, m in zip(wants, guesses, moved)])

    def _anchored(self, operand: Operand) -> bool:
        """Whether a value has the layout of a tensor core's result: what a loop carries is converted to it once, before."""
        call = self.context.made.get(operand)
        return call is not None and "anchor" in call.op.rules

    def _walk(self, node: For | While, types: list, loaded=frozenset()) -> tuple[list, object]:
        inits = tuple(self.use(c.init, t) for c, t in zip(node.carried, types))
        inner = tuple(self.new.retype(c.inner, t) if t is not None else c.inner for c, t in zip(node.carried, types))
        self.fresh.update((self.new(v), Fresh(None, (), v)) for v in loaded)
        made: list = []

        def yields():
            made.extend(self.settled(y) if isinstance(type_of(y), Tile) else None for y in node.body.yields)
            return tuple(self.use(y, t) for y, t in zip(node.body.yields, types))

        test = None
        if isinstance(node, While):
            test = self.block(node.test, lambda: self.new.all(node.test.yields))
        body = self.block(node.body, yields)
        results = tuple(self.new.retype(c.result, t) if t is not None else c.result for c, t in zip(node.carried, types))
        carried = tuple(Carry(i, n, r) for i, n, r in zip(inits, inner, results))
        if isinstance(node, While):
            out = replace(node, test=test, body=body, carried=carried)
        else:
            out = replace(node, start=self.new(node.start), stop=self.new(node.stop), step=self.new(node.step), body=body, carried=carried)
        self.nodes[-1].append(out)
        return made, out

    def branch(self, node: If) -> None:
        types: list = [None] * len(node.results)

        def yields(block):
            def out():
                for n, y in enumerate(block.yields):
                    if isinstance(type_of(y), Tile) and types[n] is None:
                        types[n] = self.settled(y) or self.default(y.type.shape, y.type.dtype)
                return tuple(self.use(y, t) for y, t in zip(block.yields, types))
            return out

        test = self.new(node.test)
        then = self.block(node.then, yields(node.then))
        orelse = self.block(node.orelse, yields(node.orelse))
        made = tuple(self.new.retype(r, t) if t is not None else r for r, t in zip(node.results, types))
        self.nodes[-1].append(replace(node, test=test, then=then, orelse=orelse, results=made))


def _is_elementwise(call: Call) -> bool:
    return "element" in call.op.rules or call.op.name in ("cast", "select")


def _same(assigner: _Assigner, call: Call, types: tuple) -> tuple[tuple, tuple]:
    """Elementwise: all tiles share one layout, that of the first operand that has one, and a load that nothing has used counts
    last. Points are where their indices are."""
    shapes = [a.type for a in (*call.args, *call.results) if isinstance(type_of(a), Tile)]
    if not shapes:
        return (None,) * len(call.args), (None,) * len(call.results)
    named = next((assigner.points[a] for a in call.args if a in assigner.points), None)
    known = [(t, a) for t, a in zip(types, call.args) if t is not None and a not in assigner.guessed]
    sure = next((t for t, a in known if assigner.new(a) not in assigner.fresh), known[0][0] if known else None)
    base = named or sure or next((t for t in types if t is not None), None) or assigner.default(shapes[0].shape, shapes[0].dtype)
    assigner.points.update((r, base) for r in call.results if isinstance(r.type, Points))
    needs = tuple(assigner.like(base, a.type.dtype) if isinstance(type_of(a), Tile) else None for a in call.args)
    made = tuple(assigner.like(base, r.type.dtype) if isinstance(r.type, Tile) else None for r in call.results)
    return needs, made


def _same_backward(assigner: _Assigner, call: Call, want: Tile) -> tuple:
    return tuple(assigner.like(want, a.type.dtype) if isinstance(type_of(a), Tile) else None for a in call.args)


def reduced_axes(context: Context) -> dict[tuple, tuple[int, ...]]:
    """For each shape the axes along which a tile of it is reduced or scanned."""
    found: dict[tuple, set[int]] = {}
    for call in context.made.values():
        axes = call.attrs.get("axes", call.attrs.get("axis"))
        if call.op.name in ("reduce", "scan") and isinstance(type_of(call.args[0]), Tile):
            found.setdefault(call.args[0].type.shape, set()).update(axes if isinstance(axes, tuple) else (axes,))
    return {shape: tuple(sorted(axes)) for shape, axes in found.items()}


def _spare_memory(graph: Graph, context: Context) -> int:
    """How many bytes of shared memory the kernel's buffers surely leave for changes of layout that it could do without."""
    most = SHARED_LIMIT[architecture(graph.target)]
    used = sum(r.type.nbytes for call in context.calls if call.op.name == "alloc_shared" for r in call.results)
    return max(0, min(most, graph.launch.max_shared or most) - used - 8192) * 7 // 8
