"""Assigns a register layout to every tile.

Layouts are anchored at memory accesses, propagated through elementwise work, and converted where uses differ.

A value that costs nothing to compute anywhere (a splat, arange, elementwise work on these, a broadcast) is
rematerialised in each layout that a use asks for. Every other tile has one layout; a use that needs another gets a
`convert_layout`, hoisted out of the loops that the value enters from outside. A load takes the layout of its first
use, also across casts and reshapes and into a loop or a branch, if that costs less than converting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import Loc, at
from ...ir.builder import Facts, as_value, element_type, type_as, type_of
from ...ir.graph import (
    Block,
    Call,
    Carry,
    For,
    Graph,
    If,
    Node,
    Operand,
    Rewriter,
    Scope,
    Value,
    While,
    results as results_of,
)
from ...ir.op_rules import require_rule
from ...ops.memory.access_ops import load_, store_
from ...ops.tiles.arrange import reshape_
from ...ops.tiles.layout_change import convert_layout
from ...types import Points, Region, Tile
from .layout_choice import LayoutChoice, in_layout_of, is_elementwise, same_layout

Types = tuple[Tile | None, ...]  # types of operands or results with their layouts; None for what is no tile


def assign_layouts(graph: Graph, facts: Facts) -> Graph:
    """The graph with a layout on every tile."""
    assigner = Assigner(graph, facts)
    with assigner.rebuild_block(graph.body) as body:
        body.yields = assigner.new.all(graph.body.yields)
    return replace(graph, body=body.as_block)


@dataclass(eq=False)
class Rebuilt:
    """A block as far as it has been rebuilt.

    `copies` caches values made in it for uses by (value, layout, domain); `arguments` are the values that it starts
    with; `trip` marks a loop's body.
    """

    nodes: list[Node] = field(default_factory=list)
    yields: tuple[Operand, ...] = ()
    copies: dict[tuple[Any, ...], Value] = field(default_factory=dict)
    arguments: tuple[Value, ...] = ()
    trip: bool = False

    @property
    def as_block(self) -> Block:
        return Block(tuple(self.nodes), self.yields)


@dataclass(frozen=True, eq=False)
class Chain:
    """A load and the calls computed from it whose layouts are still open: each is used by the next alone,
    beside free values only.

    `start` is the load's result in the original graph; `first` and `end`, the results of the load and of the last
    call, have their present layouts. The load and the last `call` are (original call, rebuilt call) pairs; the latter
    stand in `block`. `shorter` is the chain without its last call. Where a loop starts with the end of a chain, its
    body sees the carried value as the `start` of a chain without a load.
    """

    start: Value
    first: Value
    end: Value
    load: tuple[Call, Call] | None = None
    block: Rebuilt | None = None
    call: tuple[Call, Call] | None = None
    shorter: Chain | None = None

    def calls(self) -> list[tuple[Call, Call]]:
        """The calls after the load, first to last."""
        calls, chain = [], self
        while chain.shorter is not None and chain.call is not None:
            calls.append(chain.call)
            chain = chain.shorter
        return calls[::-1]


class Assigner(LayoutChoice):
    """The walk that rebuilds a graph. Ops have two rules for it.

    ``layout(assigner, call, types)`` is given the types of the operands (None for a tile that is free) and returns
    the types that the call needs of its operands, and those of its results. ``layout_backward(assigner, call, want)``
    returns the operand types that give a result in the layout of `want`, or None if there are none.
    """

    def __init__(self, graph: Graph, facts: Facts):
        super().__init__(graph, facts)
        self.new = Rewriter()
        self.blocks: list[Rebuilt] = []       # the open blocks, outermost first
        self.free: dict[Operand, Call] = {}     # values that are rematerialised at each use, with their calls
        self.chains: dict[Operand, Chain] = {}  # the open chains, by their first values
        self.first: dict[Operand, Value] = {}   # a value of a chain -> the first one
        self.points: dict[Operand, Tile] = {}   # points -> a tile in the layout of their indices
        self.guessed: set[Operand] = set()      # carried values whose layout is a guess that any use may override
        self.anchored: dict[Operand, bool] = {}
        self.asked: dict[Value, Tile] = {}    # carried value that starts a chain -> the type that its first use wants

    @property
    def block(self) -> Rebuilt:
        return self.blocks[-1]

    # -- nodes ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def rebuild_block(self, block: Block, arguments: tuple[Value, ...] = (), trip: bool = False) -> Iterator[Rebuilt]:
        """Open a block: its nodes are rebuilt, then the context's body may add what it yields. `arguments` are values
        that it starts with."""
        self.blocks.append(Rebuilt(arguments=arguments, trip=trip))
        with self.context.in_block(block):
            for node in block.nodes:
                self.node(node)
        yield self.block
        self.blocks.pop()

    def rebuilt(self, block: Block) -> Rebuilt:
        """The block rebuilt, without its yields."""
        with self.rebuild_block(block) as rebuilt:
            return rebuilt

    def complete_block(self, rebuilt: Rebuilt, block: Block, types: Types) -> Block:
        """A rebuilt block completed by its yields, in these types."""
        self.blocks.append(rebuilt)
        with self.context.in_block(block):
            rebuilt.yields = self.use_all(block.yields, types)
        return self.blocks.pop().as_block

    def node(self, node: Node) -> None:
        with at(node.loc):
            match node:
                case Call():
                    self.call(node)
                case For() | While():
                    self.loop(node)
                case If():
                    self.branch(node)
                case Scope():
                    with self.context.in_scope_of(node), self.rebuild_block(node.body) as body:
                        pass
                    self.block.nodes.append(replace(node, first=self.new(node.first), body=body.as_block))

    def call(self, call: Call) -> None:
        tiles = [a for a in call.args if isinstance(a, Value) and isinstance(a.type, Tile)]
        if not tiles and call.op.rules.layout is None and not any(isinstance(r.type, Tile) for r in call.results):
            self.block.nodes.append(call)  # no tiles: no layouts
            return
        if self.is_free(call, tiles):
            self.free[call.result] = call
            return
        types: Types = tuple(map(self.settled_type, call.args))
        needs, results = (call.op.rules.layout or _share_layout)(self, call, types)
        if call.op is store_ and types[1] is not None:
            needs = self.needs_of_store(call, types[1], needs)
        with self.hoisted_to_home(call, tiles):
            chain = self.extensible_chain(call, tiles)
            new = self.append(call, needs, self.give_types(call.results, results))
        if (call.op is load_ and not tiles and isinstance(type_of(call.args[0]), Region)
            and isinstance(call.result.type, Tile)):
            self.open(Chain(call.result, new.result, new.result, load=(call, new), block=self.block))
        elif chain is not None and chain.end in new.args:
            self.open(replace(chain, end=new.result, call=(call, new), shorter=chain))

    @contextmanager
    def hoisted_to_home(self, call: Call, tiles: list[Value]) -> Iterator[None]:
        """A reshape of loaded or computed values is hoisted out of the loops that these enter from outside, with any
        change of its layout."""
        blocks, made = self.blocks, self.context.definitions.get(tiles[0]) if call.op is reshape_ else None
        if made is not None and (made.op is load_ or is_elementwise(made)):
            self.blocks = blocks[:blocks.index(self.home(as_value(self.new(tiles[0])))) + 1]
        yield
        self.blocks = blocks

    def is_free(self, call: Call, tiles: list[Value]) -> bool:
        """Whether a call's result is rematerialised wherever it is used."""
        if len(call.results) != 1 or not isinstance(call.result.type, Tile):
            return False
        if call.op.traits.lazy:
            return True
        return (call.op.effect == "pure" and all(a in self.free for a in tiles)
                and (call.op.traits.free or call.op.traits.elementwise))

    def needs_of_store(self, call: Call, have: Tile, needs: Types) -> Types:
        """The types that a store needs, where another layout than that of its rule makes it cheaper."""
        better = self.better_stored(call, have)
        if better is None:
            return needs
        # A load in that layout would waste the sectors that the store saves.
        self.close(as_value(self.new(call.args[1])))
        return tuple(in_layout_of(better, element_type(a)) if n is not None else None for n, a in zip(needs, call.args))

    def append(self, call: Call, needs: Types, results: tuple[Value, ...]) -> Call:
        new = replace(call, args=self.use_all(call.args, needs), results=results)
        self.block.nodes.append(new)
        return new

    def branch(self, node: If) -> None:
        """A branch's results get the layouts of its first block, or of the second where only that one's is
        anchored or not a guess."""
        test = self.new(node.test)
        begun = self.rebuilt(node.then), self.rebuilt(node.orelse)

        def doubt(x: Operand) -> int:
            if self.is_guess(x):
                return 2
            return 0 if self.is_anchored(x) else 1
        types = tuple(self.settled_or_default(min(sides, key=doubt))
                      for sides in zip(node.then.yields, node.orelse.yields))
        then, orelse = (self.complete_block(begun[0], node.then, types),
                        self.complete_block(begun[1], node.orelse, types))
        self.block.nodes.append(replace(node, test=test, then=then, orelse=orelse,
                                        results=self.give_types(node.results, types)))

    def is_guess(self, operand: Operand) -> bool:
        """Whether a tile has no layout of its own yet, and takes that of whatever it meets."""
        return operand in self.free or operand in self.guessed

    def loop(self, node: For | While) -> None:
        """A carried value keeps its initial layout, unless that is free, open or a guess, or the body computes it
        from a tensor core's result: then it takes the layout that the body gives it, converted once before the loop,
        and the body is walked again."""
        starts = tuple(self.settled_or_default(c.init) for c in node.carried)
        free = {c.inner for c, y in zip(node.carried, node.body.yields)
                if self.is_guess(c.init) or y in self.from_products and c.init not in self.from_products}
        open_ = {c.inner for c in node.carried if self.chain_ending_at(c.init) is not None}
        before = self.snapshot()
        self.guessed |= free
        made = self.rebuild_loop(node, starts, open_)
        self.guessed -= free
        made = tuple(self.asked.pop(c.inner, t) for c, t in zip(node.carried, made))
        follows = [c.inner in free or c.inner in open_ or self.is_anchored(y)
                   for c, y in zip(node.carried, node.body.yields)]
        types = tuple(m if f and m is not None else s for m, f, s in zip(made, follows, starts))
        if types != starts:
            self.restore(before)
            self.rebuild_loop(node, types)

    def is_anchored(self, operand: Operand) -> bool:
        """Whether the layout of a value is fixed by the instruction that makes it (a tensor core's), perhaps in one
        side of a branch."""
        if operand not in self.anchored:
            call = self.context.definitions.get(operand)
            sides = self.context.branch_values.get(operand, ())
            if sides:
                self.anchored[operand] = any(map(self.is_anchored, sides))
            else:
                self.anchored[operand] = call is not None and call.op.traits.anchor
        return self.anchored[operand]

    def snapshot(self) -> tuple[Any, ...]:
        """The state that the first walk of a loop changes."""
        return (tuple(map(copy, (self.new.values, self.free, self.chains, self.first))),
                [(copy(b.copies), copy(b.nodes)) for b in self.blocks])

    def restore(self, before: tuple[Any, ...]) -> None:
        (self.new.values, self.free, self.chains, self.first), blocks = before
        for block, (copies, nodes) in zip(self.blocks, blocks):
            block.copies, block.nodes = copies, nodes

    def rebuild_loop(self, node: For | While, types: Types, open_: Iterable[Value] = ()) -> Types:
        """Rebuild a loop that carries these types. Returns the types that its body yields. `open_` are carried values
        that start a chain."""
        inits = self.use_all((c.init for c in node.carried), types)
        inner = self.give_types((c.inner for c in node.carried), types)
        for value in open_:
            self.open(Chain(value, as_value(self.new(value)), as_value(self.new(value))))
        begun: For | While
        if isinstance(node, While):
            with self.rebuild_block(node.test) as test:
                test.yields = self.new.all(node.test.yields)
            begun = replace(node, test=test.as_block)
        else:
            begun = replace(node, start=self.new(node.start), stop=self.new(node.stop), step=self.new(node.step))
        with self.rebuild_block(node.body, inner, trip=True) as body:
            made = tuple(map(self.settled_type, node.body.yields))
            body.yields = self.use_all(node.body.yields, types)
        carried = tuple(map(Carry, inits, inner, self.give_types((c.result for c in node.carried), types)))
        self.block.nodes.append(replace(begun, body=body.as_block, carried=carried))
        return made

    # -- values --------------------------------------------------------------------------------------------------------

    def settled_type(self, operand: Operand) -> Tile | None:
        """The type of a tile with its layout; None for a free tile and for what is no tile."""
        held = isinstance(type_of(operand), Tile) and operand not in self.free
        return type_as(self.new(operand), Tile) if held else None

    def settled_or_default(self, operand: Operand) -> Tile | None:
        t = type_of(operand)
        return self.settled_type(operand) or self.default(t.shape, t.dtype) if isinstance(t, Tile) else None

    def give_types(self, values: Iterable[Value], types: Iterable[Tile | None]) -> tuple[Value, ...]:
        return tuple(v if t is None else self.new.retype(v, t) for v, t in zip(values, types))

    def use_all(self, operands: Iterable[Operand], wants: Types) -> tuple[Operand, ...]:
        return tuple(map(self.use, operands, wants))

    def use(self, operand: Operand, want: Tile | None) -> Operand:
        """The operand in the layout of `want`, converted or rematerialised if need be."""
        if want is None:
            return self.new(operand)
        key = operand, want.layout, want.domain
        for block in self.blocks:
            if key in block.copies:
                return block.copies[key]
        if operand in self.free:
            copied = self.rematerialise(self.free[operand], want)
        else:
            value = as_value(self.new(operand))
            chain = self.close(value)
            if same_layout(type_as(value, Tile), want):
                return value
            if chain is not None and chain.end is value and self.try_relayout(chain, want):
                return self.new(operand)
            home = self.home(value)
            home.copies[key] = copied = self.convert(value, want, as_value(operand).loc, home)
            return copied
        self.block.copies[key] = copied
        return copied

    def made_in(self, operand: Operand, want: Tile) -> None:
        """Convert a tile to a layout right where it is defined, so that loops below it find the converted copy."""
        if operand in self.free:
            return
        value = as_value(self.new(operand))
        home = next((b for b in reversed(self.blocks) if self.defines(b, value)), None)
        if home is not None:
            with self.appending_to(home):
                self.use_all((operand,), (want,))

    @contextmanager
    def appending_to(self, block: Rebuilt) -> Iterator[None]:
        """In the ``with`` block, append to the end of `block`, one of the open blocks."""
        blocks = self.blocks
        self.blocks = blocks[:blocks.index(block) + 1]
        yield
        self.blocks = blocks

    def home(self, value: Value) -> Rebuilt:
        """The block in which to convert a value: the current one, or outside of the loops that the value
        enters from outside."""
        for n in range(len(self.blocks) - 1, 0, -1):
            if not self.blocks[n].trip or self.defines(self.blocks[n], value):
                return self.blocks[n]
        return self.blocks[0]

    @staticmethod
    def defines(block: Rebuilt, value: Value) -> bool:
        return value in block.arguments or any(value in results_of(node) for node in block.nodes)

    def rematerialise(self, call: Call, want: Tile) -> Value:
        """A free value rematerialised in the layout that a use asks for."""
        needs, made = self.backward(call, want), in_layout_of(want, type_as(call.result, Tile).dtype)
        if needs is None:  # it cannot be computed in that layout
            needs, (own,) = require_rule(call.op.rules.layout)(self, call, tuple(map(self.settled_type, call.args)))
        value = replace(call.result, type=made)
        self.append(call, needs, (value,))
        return value if same_layout(made, want) else self.convert(value, want, call.loc)

    def convert(self, value: Value, want: Tile, loc: Loc | None, block: Rebuilt | None = None) -> Value:
        result = replace(value, type=in_layout_of(want, type_as(value, Tile).dtype))
        (block or self.block).nodes.append(Call(convert_layout, (value,), {}, (result,), loc))
        return result

    def backward(self, call: Call, want: Tile) -> Types | None:
        needs: Types | None = (call.op.rules.layout_backward or _same_backward)(self, call, want)
        return needs

    # -- loads whose layout is open ------------------------------------------------------------------------------------

    def open(self, chain: Chain) -> None:
        self.chains[chain.first], self.first[chain.end] = chain, chain.first

    def close(self, value: Value) -> Chain | None:
        """Remove and return the chain that a value is part of: its layouts are no longer open."""
        return self.chains.pop(self.first.get(value), None)

    def chain_ending_at(self, operand: Operand) -> Chain | None:
        """The chain that ends at an operand."""
        value = self.new(operand)
        chain = self.chains.get(self.first.get(value))
        return chain if chain is not None and chain.end is value else None

    def extensible_chain(self, call: Call, tiles: list[Value]) -> Chain | None:
        """The chain that a call can extend."""
        held = [a for a in tiles if a not in self.free]
        if len(held) != 1 or not (is_elementwise(call) or call.op.rules.layout_backward is not None):
            return None
        chain = self.chain_ending_at(held[0])
        return chain if chain is not None and chain.block in (None, self.block) else None

    def try_relayout(self, chain: Chain, want: Tile) -> bool:
        """Give a chain the layouts that end in `want`, if that costs less than a conversion. Its calls are appended
        anew to the end of their block, where the free values beside them are made."""
        types = self.types_along(chain, want)
        if types is None:
            return False
        if chain.load is None:  # applied in the loop's second walk
            self.asked[chain.start] = types[0]
            return False
        (load, loaded), block = chain.load, chain.block
        if not self.better_loaded(load, (type_as(chain.first, Tile), types[0]), (type_as(chain.end, Tile), types[-1])):
            return False
        assert block is not None  # a load has one
        nodes = block.nodes
        calls = chain.calls()
        nodes[nodes.index(loaded)] = replace(loaded, results=self.give_types(load.results, [types[0]]))
        moved = {id(made) for _, made in calls}
        nodes[:] = [node for node in nodes if id(node) not in moved]
        with self.appending_to(block):
            for (call, _), t in zip(calls, types[1:]):
                needs = self.backward(call, t)
                assert needs is not None
                self.append(call, needs, self.give_types(call.results, [t]))
        return True

    def types_along(self, chain: Chain, want: Tile) -> list[Tile] | None:
        """The types of a chain's values in the layouts that end in `want`;
        None if a call of the chain cannot have them."""
        types = [in_layout_of(want, type_as(chain.end, Tile).dtype)]
        for call, _ in reversed(chain.calls()):
            needs = self.backward(call, types[-1])
            if needs is None:
                return None
            types.append(next(n for n, a in zip(needs, call.args) if n is not None and a not in self.free))
        return types[::-1]


def _share_layout(assigner: Assigner, call: Call, types: Types) -> tuple[Types, Types]:
    """The rule of elementwise ops: all tiles share one layout, that of the first operand which has one; open ones are
    preferred less, guesses least. Points have the layout of their index tiles."""
    first = next((t for a in (*call.args, *call.results) if isinstance(t := type_of(a), Tile)), None)
    if first is None:
        return (None,) * len(call.args), (None,) * len(call.results)
    base = next((assigner.points[a] for a in call.args if a in assigner.points), None)
    if base is None:
        def doubt(a: Operand) -> int:
            if a in assigner.guessed:
                return 2
            return 0 if assigner.chain_ending_at(a) is None else 1
        held = [(doubt(a), n) for n, a in enumerate(call.args) if types[n] is not None]
        base = types[min(held)[1]] if held else assigner.default(first.shape, first.dtype)
    assert base is not None
    assigner.points.update((r, base) for r in call.results if isinstance(r.type, Points))

    def in_base(x: Operand) -> Tile | None:
        t = type_of(x)
        return in_layout_of(base, t.dtype) if isinstance(t, Tile) else None

    return tuple(map(in_base, call.args)), tuple(map(in_base, call.results))


def _same_backward(assigner: Assigner, call: Call, want: Tile) -> Types:
    types = map(type_of, call.args)
    return tuple(in_layout_of(want, t.dtype) if isinstance(t, Tile) else None for t in types)
