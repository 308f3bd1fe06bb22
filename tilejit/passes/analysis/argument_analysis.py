"""Divisibility that depends on launch arguments.

May an extent or a scalar argument be a multiple of what a vector or a box needs?

The launch is asked, and the answer becomes a guard of the compiled kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

from ...ir.builder import Facts, element_type, type_of
from ...ir.graph import Block, Call, Const, Graph, Operand, Value, blocks
from ...ops.language.addressed import array_, array_of, number_behind
from ...types import Addressed, Scalar, Sym, Tile
from .constraints import Constraint
from .index_tile_analysis import IndexTileAnalysis
from .integer_analysis import Knowledge, LazyConstraint

PARTS = (1, 2, 4, 8)  # divisions on the way that are allowed for, as in ``half = x.shape[1] // 2``

Number = Sym | Value  # an extent of an array, or a scalar argument


class GraphFacts(Facts):
    """The facts of the launch, and those that a graph tells of the arrays that its kernel makes from addresses."""

    def __init__(self, launch: Facts, analysis: ArgumentAnalysis):
        self.launch: Facts = launch.launch if isinstance(launch, GraphFacts) else launch
        self.values, self.analysis = launch.values, analysis

    def ask(self, kind: str, array: Any, *rest: Any) -> bool:
        if isinstance(array, Addressed) and kind != "no_overlap":
            return self.analysis.knows_of_array(kind, array, *rest)
        return self.launch.ask(kind, array, *rest)

    @contextmanager
    def without_recording(self) -> Iterator[None]:
        with self.launch.without_recording():
            yield


class ArgumentAnalysis(IndexTileAnalysis):
    """The integers of one graph, and the facts of its launch."""

    def __init__(self, graph: Graph, facts: Facts, wrapping: bool = False):
        super().__init__(graph, wrapping)
        self.facts = GraphFacts(facts, self) if self.arrays else facts
        self._behind: dict[Operand, tuple[Number, ...]] = {}
        # (knowledge, the same under the assumption)
        self._assumed: dict[tuple[Any, ...], tuple[Knowledge, Knowledge]] = {}

    def knows_of_array(self, kind: str, array: Addressed, *rest: Any) -> bool:
        """Whether a fact about an array that the kernel makes from an address follows from the operands of
        ``tile.array``, with what is known here or where the array is made. A pass may have copied the call, to make
        the array of a later trip: what is known of one copy holds for all."""
        if kind == "aligned" and array.align % rest[0] == 0:
            return True
        what, _, fact = kind.partition("_")
        if kind != "aligned" and fact not in ("multiple", "at_least"):
            return False

        def holds(call: Call) -> bool:
            operand = call.args[0] if kind == "aligned" else number_behind(call, Sym(what, array, rest[0]))
            n: int = rest[-1]
            if fact == "at_least":
                low, _ = self.bounds(operand)
                return low is not None and low >= n
            return self.asked_divisor(operand, n) % n == 0

        if holds(self.arrays[array]):
            return True
        for call, around in self._array_calls.get(array, ()):
            with ExitStack() as stack:
                stack.enter_context(self._with_knowledge(self._at_top))
                for block in around:
                    stack.enter_context(self.in_block(block))
                if holds(call):
                    return True
        return False

    @cached_property
    def _array_calls(self) -> dict[Addressed, list[tuple[Call, tuple[Block, ...]]]]:
        """The calls that make arrays from addresses, each with the blocks around it, the outermost first."""
        found: dict[Addressed, list[tuple[Call, tuple[Block, ...]]]] = {}

        def visit(block: Block, around: tuple[Block, ...]) -> None:
            for node in block.nodes:
                if isinstance(node, Call) and node.op is array_:
                    found.setdefault(array_of(node), []).append((node, around))
                for inner in blocks(node):
                    visit(inner, (*around, inner))

        visit(self.graph.body, (self.graph.body,))
        return found

    def asked_divisor(self, operand: Operand, wanted: int, divisor: Callable[[Operand], int] | None = None) -> int:
        """A divisor of `operand`, as `divisor` finds it (by default ``self.divisor``).

        Where it is no multiple of `wanted`, the launch is asked whether the arguments that `operand` is
        computed from make it one.
        """
        divisor = divisor or self.divisor
        n, numbers = self._arguments_to_ask(operand, wanted, divisor) or (1, ())
        asked = all(self._ask_multiple(x, n) for x in numbers)
        if numbers and asked:
            return self._assuming_multiples(numbers, n, lambda: divisor(operand))
        return divisor(operand)

    def may_divide(self, operand: Operand, wanted: int, divisor: Callable[[Operand], int]) -> bool:
        """Whether there are launches for which `asked_divisor` would return a multiple of `wanted`. Asks no fact."""
        return self._arguments_to_ask(operand, wanted, divisor) is not None

    def _arguments_to_ask(self, operand: Operand, wanted: int,
                          divisor: Callable[[Operand], int]) -> tuple[int, tuple[Number, ...]] | None:
        """(n, arguments): if these are multiples of n, `divisor` returns a multiple of `wanted`.

        No arguments where it does so anyway; None where no arguments suffice.
        """
        behind = self._arguments_behind(operand) if divisor(operand) % wanted else None
        if behind is None:
            return 1, ()
        for n in (wanted * part for part in PARTS if behind):
            def holds(numbers: tuple[Number, ...]) -> bool:
                return self._assuming_multiples(numbers, n, lambda: divisor(operand)) % wanted == 0
            if holds(behind):
                needed = behind
                for number in behind:
                    fewer = tuple(x for x in needed if x != number)
                    needed = fewer if holds(fewer) else needed
                return n, needed
        return None

    def is_one(self, operand: Operand) -> bool:
        """Whether an integer is a scalar argument that is 1 (the stride of a contiguous dimension, for one);
        asks the launch."""
        number = self.key(self.source_of_broadcast(operand))
        if number not in self.graph.params or not element_type(number).is_int:
            return False
        return self.facts.ask("scalar_between", self.graph.params.index(number), 1, 1)

    def _ask_multiple(self, number: Number, n: int) -> bool:
        if isinstance(number, Sym):
            return self.facts.ask("size_multiple", number.arg, number.dim, n)
        return self.facts.ask("scalar_multiple", self.graph.params.index(number), n)

    def _assuming_multiples(self, numbers: tuple[Number, ...], n: int, question: Callable[[], int]) -> int:
        """The answer to `question` under the assumption that the arguments are multiples of `n` and not negative."""
        known, key = self._known, (id(self._known), numbers, n)
        if key not in self._assumed:
            def multiple() -> Constraint:
                return Constraint(low=0, divisor=n)
            constraints = known.constraints | {(x, False): LazyConstraint(known.constraints.get((x, False)), known,
                                                                          [multiple]) for x in numbers}
            self._assumed[key] = known, replace(known, constraints=constraints, kept={}, divisors={}, intervals={},
                                                growths={}, ramps={})
        with self._with_knowledge(self._assumed[key][1]):
            return question()

    def _arguments_behind(self, operand: Operand) -> tuple[Number, ...]:
        """The extents and scalar arguments that an integer, or the integers of a tile, are computed from."""
        if operand not in self._behind:
            found: dict[Number, None] = {}
            seen: set[Operand] = set()
            todo = [operand]
            while todo:
                x = todo.pop()
                if (x in seen or x is None or isinstance(x, Const) or not isinstance(type_of(x), (Scalar, Tile))
                    or element_type(x).is_float):
                    continue
                seen.add(x)
                key = self.key(x)
                if isinstance(key, Sym):
                    found |= {key: None} if key.kind == "size" else {}
                elif key in self.graph.params:
                    found |= {key: None} if element_type(key).is_int else {}
                elif x in self.loops:
                    todo += self.loops[x].start, self.loops[x].step
                elif x in self.branch_values:
                    todo += self.branch_values[x]
                elif x in self.carried:
                    todo += self.carried[x].init, self.carried[x].following
                elif x in self.definitions and self.definitions[x].op.effect == "pure":
                    todo += self.definitions[x].args
            self._behind[operand] = tuple(found)
        return self._behind[operand]
