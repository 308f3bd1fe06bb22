"""The order of asynchronous products: nobody reads a result, or writes registers that a product reads, before the wait."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import CompilationError
from ..ir.builder import Facts, type_of
from ..ir.graph import Block, Call, For, Graph, If, Operand, Scope, Value, While, walk
from ..types import Tile
from .accumulators import Pinned, is_product

ROUNDS = 12  # a loop's body is followed until what is pending at its start no longer changes


@dataclass
class _State:
    """How many groups have been closed since a pending tile's product was started (0: its own is still open), with the
    call that did: `results` are tiles being made, `operands` tiles in registers being read. `moves` are tiles on their way
    from tensor memory."""

    results: dict[Value, tuple[int, Call]] = field(default_factory=dict)
    operands: dict[Value, tuple[int, Call]] = field(default_factory=dict)
    moves: dict[Value, Call] = field(default_factory=dict)

    def copy(self) -> "_State":
        return _State(dict(self.results), dict(self.operands), dict(self.moves))

    def join(self, other: "_State") -> "_State":
        """What may be pending where two ways meet."""
        new = self.copy()
        new.moves.update(other.moves)
        for mine, theirs in ((new.results, other.results), (new.operands, other.operands)):
            for value, held in theirs.items():
                mine[value] = min(mine.get(value, held), held, key=lambda h: h[0])
        return new

    def ages(self) -> dict:
        return {v: age for table in (self.results, self.operands) for v, (age, _) in table.items()} | dict.fromkeys(self.moves, 0)


def check_products(graph: Graph, facts: Facts) -> Graph:
    """The graph as it is. CompilationError where a product's registers are touched before they may be, or the kernel ends before."""
    if any(is_product(node) or _moves(node) for node in walk(graph.body)):
        left = _Checker(Pinned(graph)).block(graph.body, _State())
        for _, product in left.results.values():
            raise CompilationError("this product may still be in flight where the kernel ends: call tile.mma_wait(0) after it on every path "
                                   "through the kernel", product.loc)
    return graph


def _moves(node) -> bool:
    """Whether a node starts a move from tensor memory that a later wait completes."""
    return isinstance(node, Call) and node.op.name == "tmem_load" and not node.attrs["wait"]


class _Checker:
    def __init__(self, pinned: Pinned):
        self.sets = pinned.sets

    def block(self, block: Block, state: _State) -> _State:
        for node in block.nodes:
            match node:
                case Call():
                    self.call(node, state)
                case For() | While():
                    state = self.loop(node, state)
                case If(then=then, orelse=orelse, results=results):
                    ways = []
                    for inner in (then, orelse):
                        way = self.block(inner, state.copy())
                        self.hand(inner.yields, results, way, f"the branch at line {node.loc.line} passes it on")
                        ways.append(way)
                    state = ways[0].join(ways[1])
                case Scope(body=body):
                    state = state.join(self.block(body, state.copy()))
        return state

    def call(self, call: Call, state: _State) -> None:
        name = call.op.name
        for result in call.results:
            if result in state.operands:
                other = state.operands[result][1]
                raise CompilationError(f"this writes registers that the mma_async at line {other.loc.line} may still read: it was started in "
                                       f"the previous iteration, and no mma_wait has waited for it since", call.loc)
        if is_product(call):
            acc, a, b = call.args[:3]
            self.read((a, b), state, call)
            if acc in state.results:
                if self.sets.get(acc) != self.sets[call.result]:
                    self.copied(acc, state, "this product adds to it", call.loc)
                del state.results[acc]
            state.results[call.result] = 0, call
            if isinstance(type_of(a), Tile):
                state.operands[a] = 0, call
        elif name == "mma_commit":
            for table in (state.results, state.operands):
                table.update({v: (age + 1, c) for v, (age, c) in table.items()})
        elif name == "mma_wait":
            for table in (state.results, state.operands):
                for v in [v for v, (age, _) in table.items() if age > call.attrs["n"]]:
                    del table[v]
        elif name == "tcgen05_wait" and call.attrs["what"] == "ld":
            state.moves.clear()
        else:
            self.read(call.args, state, call)
            if _moves(call):
                state.moves[call.result] = call

    def read(self, operands: tuple[Operand, ...], state: _State, node) -> None:
        for o in operands:
            if o in state.moves:
                raise CompilationError(f"the tile that line {state.moves[o].loc.line} loads from tensor memory is used before "
                                       'tcgen05_wait("ld")', node.loc)
            if o in state.results:
                age, call = state.results[o]
                raise CompilationError(f"the result of the mma_async at line {call.loc.line} is read before it is complete; {_missing(age)}",
                                       node.loc)

    def copied(self, result: Operand, state: _State, where: str, loc=None) -> None:
        """CompilationError for a pending result that moves to other registers."""
        age, call = state.results[result]
        raise CompilationError(f"the result of the mma_async at line {call.loc.line} is copied before it is complete: {where}, in other "
                               f"registers, since its own are still needed; {_missing(age)}. A name needs no copy if it is assigned its own "
                               "product and its previous value is not read again", loc or call.loc)

    def hand(self, operands, targets, state: _State, where: str) -> None:
        """Control flow hands operands on under other names."""
        for o, target in zip(operands, targets):
            if o in state.moves:
                state.moves[target] = state.moves[o]
            if o in state.results:
                if self.sets.get(o) != self.sets.get(target):
                    self.copied(o, state, f"{where} as {target.name}")
                state.results[target] = state.results[o]

    def loop(self, node: For | While, state: _State) -> _State:
        inner, results = [c.inner for c in node.carried], [c.result for c in node.carried]
        loop = f"the loop at line {node.loc.line}"
        self.hand([c.init for c in node.carried], inner, state, f"{loop} starts with it")
        head = state
        for _ in range(ROUNDS):
            way = head.copy()
            if isinstance(node, While):
                way = self.block(node.test, way)
            left = way.copy()
            way = self.block(node.body, way)
            self.hand(node.body.yields, inner, way, f"{loop} passes it to its next iteration")
            following = head.join(way)
            if following.ages() == head.ages():
                break
            head = following
        self.hand(inner, results, left, f"{loop} ends with it")
        return left


def _missing(age: int) -> str:
    """What would await a group that was closed so many groups ago."""
    return "its group is still open: call mma_commit(), then mma_wait(0)" if age == 0 else f"mma_wait({age - 1}) or less would wait for its group"
