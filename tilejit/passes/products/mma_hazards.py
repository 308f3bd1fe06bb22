"""Checks hazards of asynchronous products, before their wait.

Until then nothing reads a result, or writes registers that a product still reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeGuard

from ...errors import CompilationError, Loc, line_of
from ...ir.builder import Facts, type_of
from ...ir.graph import Block, Call, For, Graph, If, Node, Operand, Scope, Value, While, walk
from ...ops.mma import mma_commit, mma_wait
from ...ops.ptx.on_simulator import breakpoint_
from ...ops.tmem.ldst import tmem_load
from ...ops.tmem.order import tcgen05_wait
from ...types import Tile
from .accumulators import PinnedRegisters, is_product

ROUNDS = 12  # the most iterations of a loop's analysis towards its fixed point


@dataclass
class _PendingState:
    """What is pending at one place in the program.

    `results` are tiles that products are writing, `operands` are tiles in registers that products are reading; both
    with (the number of groups closed since the product was issued, the product): 0 if its own group is still open.
    `moves` are tiles on their way from tensor memory.
    """

    results: dict[Operand, tuple[int, Call]] = field(default_factory=dict)
    operands: dict[Operand, tuple[int, Call]] = field(default_factory=dict)
    moves: dict[Operand, Call] = field(default_factory=dict)

    def copy(self) -> _PendingState:
        return _PendingState(dict(self.results), dict(self.operands), dict(self.moves))

    def join(self, other: _PendingState) -> _PendingState:
        """What may be pending where two paths of control flow merge."""
        new = self.copy()
        new.moves.update(other.moves)
        for mine, theirs in ((new.results, other.results), (new.operands, other.operands)):
            for value, held in theirs.items():
                mine[value] = min(mine.get(value, held), held, key=lambda h: h[0])
        return new

    def ages(self) -> dict[Operand, int]:
        """What the analysis of loops compares: the pending tiles and their ages."""
        return ({v: age for table in (self.results, self.operands) for v, (age, _) in table.items()}
                | dict.fromkeys(self.moves, 0))


def check_mma_hazards(graph: Graph, facts: Facts) -> Graph:
    """The graph unchanged. CompilationError where a product's registers are accessed too early, or where the kernel
    may end before its wait."""
    if any(is_product(node) or _moves(node) for node in walk(graph.body)):
        left = _HazardChecker(PinnedRegisters(graph)).block(graph.body, _PendingState())
        for _, product in left.results.values():
            raise CompilationError("this product may still be in flight where the kernel ends: "
                                   "call tile.mma_wait(0) after it on every path through the kernel", product.loc)
    return graph


def _moves(node: Node) -> TypeGuard[Call]:
    """Whether a node starts a load from tensor memory that a later wait completes."""
    return isinstance(node, Call) and node.op is tmem_load and not node.attrs["wait"]


class _HazardChecker:
    """Abstract interpretation of a graph: follows what is pending through blocks, branches and loops."""

    def __init__(self, pinned: PinnedRegisters):
        self.sets = pinned.sets

    def block(self, block: Block, state: _PendingState) -> _PendingState:
        for node in block.nodes:
            match node:
                case Call():
                    self.call(node, state)
                case For() | While():
                    state = self.loop(node, state)
                case If(then=then, orelse=orelse, results=results):
                    paths = []
                    for inner in (then, orelse):
                        path = self.block(inner, state.copy())
                        self.hand_over(inner.yields, results, path,
                                       f"the branch at line {line_of(node.loc)} passes it on")
                        paths.append(path)
                    state = paths[0].join(paths[1])
                case Scope(body=body):
                    state = state.join(self.block(body, state.copy()))
        return state

    def call(self, call: Call, state: _PendingState) -> None:
        for result in call.results:
            if result in state.operands:
                other = state.operands[result][1]
                raise CompilationError(f"this writes registers that the mma_async at line {line_of(other.loc)} may "
                                       "still read: it was started in the previous iteration, "
                                       "and no mma_wait has waited for it since", call.loc)
        if is_product(call):
            acc, a, b = call.args[:3]
            self.read((a, b), state, call)
            if acc in state.results:
                if self.sets.get(acc) != self.sets[call.result]:
                    self.refuse_copy(acc, state, "this product adds to it", call.loc)
                del state.results[acc]
            state.results[call.result] = 0, call
            if isinstance(type_of(a), Tile):
                state.operands[a] = 0, call
        elif call.op is mma_commit:
            for table in (state.results, state.operands):
                table.update({v: (age + 1, c) for v, (age, c) in table.items()})
        elif call.op is mma_wait:
            for table in (state.results, state.operands):
                for v in [v for v, (age, _) in table.items() if age > call.attrs["n"]]:
                    del table[v]
        elif call.op is tcgen05_wait and call.attrs["what"] == "ld":
            state.moves.clear()
        elif call.op is not breakpoint_:  # that shows all names, those of results in flight too
            self.read(call.args, state, call)
            if _moves(call):
                state.moves[call.result] = call

    def read(self, operands: tuple[Operand, ...], state: _PendingState, node: Call) -> None:
        for o in operands:
            if o in state.moves:
                raise CompilationError(f"the tile that line {line_of(state.moves[o].loc)} loads from tensor "
                                       "memory is used before "
                                       'tcgen05_wait("ld")', node.loc)
            if o in state.results:
                age, call = state.results[o]
                raise CompilationError(f"the result of the mma_async at line {line_of(call.loc)} is read before it is "
                                       f"complete; {_missing_wait(age)}",
                                       node.loc)

    def refuse_copy(self, result: Operand, state: _PendingState, where: str, loc: Loc | None = None) -> None:
        """CompilationError for a pending result that would be copied to other registers."""
        age, call = state.results[result]
        raise CompilationError(f"the result of the mma_async at line {line_of(call.loc)} is copied before it is "
                               f"complete: {where}, in other registers, since its own are still needed; "
                               f"{_missing_wait(age)}. A name needs no copy if it is assigned its own product and "
                               "its previous value is not read again", loc or call.loc)

    def hand_over(self, operands: Iterable[Operand], targets: Iterable[Value], state: _PendingState,
                  where: str) -> None:
        """Control flow passes `operands` on as `targets`."""
        for o, target in zip(operands, targets):
            if o in state.moves:
                state.moves[target] = state.moves[o]
            if o in state.results:
                if self.sets.get(o) != self.sets.get(target):
                    self.refuse_copy(o, state, f"{where} as {target.name}")
                state.results[target] = state.results[o]

    def loop(self, node: For | While, state: _PendingState) -> _PendingState:
        """A loop: its body is followed until what is pending at its start no longer changes."""
        inner, results = [c.inner for c in node.carried], [c.result for c in node.carried]
        loop = f"the loop at line {line_of(node.loc)}"
        self.hand_over([c.init for c in node.carried], inner, state, f"{loop} starts with it")
        head = state
        for _ in range(ROUNDS):
            path = head.copy()
            if isinstance(node, While):
                path = self.block(node.test, path)
            left = path.copy()
            path = self.block(node.body, path)
            self.hand_over(node.body.yields, inner, path, f"{loop} passes it to its next iteration")
            following = head.join(path)
            if following.ages() == head.ages():
                break
            head = following
        self.hand_over(inner, results, left, f"{loop} ends with it")
        return left


def _missing_wait(age: int) -> str:
    """What would wait for a group that was closed `age` groups ago."""
    if age == 0:
        return "its group is still open: call mma_commit(), then mma_wait(0)"
    return f"mma_wait({age - 1}) or less would wait for its group"
