"""What passes and planners ask about a graph.

Launch facts, definitions, buffers, integer analysis, and the execution scope at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import takewhile
from math import prod
from typing import Any

from ...ir.builder import ExecScope, Facts, type_as, type_of
from ...ir.graph import (
    Call,
    Const,
    For,
    Graph,
    Node,
    Operand,
    Scope,
    Value,
    is_writer,
    number,
    walk,
    written_arrays,
    written_values,
)
from ...ops.memory.access_ops import load_
from ...ops.memory.packed import AS_BYTES
from ...ops.moves.copy_async import copy_async_
from ...ops.structure.buffer_views import buffer_view
from ...ops.sync.proxies import ON_ENGINES
from ...types import ArrayId, Buffer, Points, Region, Selected, Tile, Type, domain_of, layout_of
from .argument_analysis import ArgumentAnalysis
from .progressions import Progression, progression

PLACES = (Region, Points, Selected)


class Context(ArgumentAnalysis):
    """The queries about one graph. Each pass that needs them makes its own; `wrapping` as in ``IntegerAnalysis``."""

    def __init__(self, graph: Graph, facts: Facts, wrapping: bool = False):
        super().__init__(graph, facts, wrapping)
        self.target = graph.target
        self.scope = ExecScope("cta", graph.launch.threads)
        self.registers = graph.launch.registers  # that a thread of the scope may have
        self.calls: list[Call] = [node for node in walk(graph.body) if isinstance(node, Call)]
        # whether tensor memory has room for a product; passes/products/tensor_dots.py sets it
        self.tensor_room: Callable[..., Any] = lambda site: True

    @cached_property
    def stored_arrays(self) -> frozenset[ArrayId]:
        """The arrays that threads of the kernel may write. Before copy engines access them, a proxy fence is needed."""
        return written_arrays(c for c in self.calls
                                 if c.op is not copy_async_ or c.choice and c.choice.plan.completion not in ON_ENGINES)

    def name_of(self, array: ArrayId | None) -> str:
        """The kernel's name of an array."""
        return self.graph.params[array].name if isinstance(array, int) else str(array)

    def definition(self, value: Operand) -> Call:
        """The call that defines a value."""
        return self.definitions[value]

    def progression(self, tile: Operand) -> Progression | None:
        """The progression that a tile of integers is; None where none is known."""
        return progression(self, tile)

    def buffer_of(self, operand: Operand) -> Operand:
        """The buffer that a region, points or selected rows are part of, also as bytes; any other operand is itself."""
        while isinstance(type_of(operand), (*PLACES, Buffer)) and operand in self.definitions:
            made = self.definitions[operand]
            if not isinstance(type_of(operand), PLACES) and made.op not in AS_BYTES:
                break
            operand = made.args[0]
        return operand

    def bytes_of(self, operand: Operand) -> tuple[Operand, range]:
        """The allocation behind a place in memory, and the range of its bytes that the place's buffer,
        possibly a view, covers."""
        buffer = self.buffer_of(operand)
        made = self.definitions.get(buffer)
        if made is None or made.op is not buffer_view:
            return buffer, range(1 << 62)
        first = made.attrs["offset"]
        return made.args[0], range(first, first + type_as(buffer, Buffer).nbytes)

    def register_run(self, tile: Tile, axis: int) -> int:
        """How many consecutive elements along `axis` a thread holds side by side: a power of two."""
        shards = [s for s in layout_of(tile).dims(domain_of(tile))[axis] if s[0] > 1]
        run: int = prod(s[0] for s in takewhile(lambda s: str(s[2]) == "reg", reversed(shards)))
        while run > 1 and tile.shape[axis] % run:
            run //= 2
        return run if run & (run - 1) == 0 else run & -run

    def scope_inside(self, node: Scope) -> ExecScope:
        """The execution scope inside a Scope node."""
        kind = "thread" if node.kind == "elect" else node.kind
        first: int | Value | None = number(node.first) if isinstance(node.first, Const) else node.first
        return ExecScope(kind, node.threads, first, elected=node.kind == "elect", parent=self.scope)

    @contextmanager
    def in_scope_of(self, node: Node) -> Iterator[None]:
        """In the ``with`` block, `scope` and `registers` are those inside `node`, if that is a Scope node."""
        outer = self.scope, self.registers
        if isinstance(node, Scope):
            self.scope, self.registers = self.scope_inside(node), node.regs or self.registers
        try:
            yield
        finally:
            self.scope, self.registers = outer


def written_by_threads(context: Context) -> Callable[[Operand], bool]:
    """A predicate of operands: whether threads may have written a place in shared memory, through whichever view.

    Copies that complete on no barrier count as well. Those of a pipelined loop do not, which the loop orders, nor
    those with a token, which its wait orders.
    """
    ahead = {n for loop in walk(context.graph.body) if isinstance(loop, For) and loop.pipeline for n in loop.body.nodes}
    found: dict[Operand, list[range]] = {}
    for call in context.calls:
        ordered = (call.op is copy_async_
                   and (call.args[2] is not None or call in ahead or call.attrs["options"].get("token")
                        or call.attrs["options"].get("ahead")))
        if is_writer(call) and not ordered:
            for place in written_values([call]):
                if getattr(place.type, "scope", None) == "shared":
                    buffer, part = context.bytes_of(place)
                    found.setdefault(buffer, []).append(part)

    def touches(operand: Operand) -> bool:
        if getattr(type_of(operand), "scope", None) != "shared":
            return False
        buffer, part = context.bytes_of(operand)
        return any(part.start < other.stop and other.start < part.stop for other in found.get(buffer, ()))

    return touches


def is_column_major(t: Type | None) -> bool:
    """Whether the first of a region's last two dimensions is the contiguous one in its array, as in ``w.T``."""
    if not isinstance(t, Region) or t.buffer.strides is None:
        return False
    strides = [t.buffer.strides[d] for d in t.kept[-2:]]
    return len(strides) == 2 and strides[0] == 1 != strides[1]


def loads_behind(context: Context, x: Operand) -> list[Call] | None:
    """The loads that a tile is computed from; None where it is also computed from a product."""
    found: list[Call] = []
    seen: set[Operand] = set()
    left: list[Operand] = [x]
    while left:
        value = left.pop()
        if not isinstance(type_of(value), Tile) or value in seen:
            continue
        seen.add(value)
        call, carried = context.definitions.get(value), context.carried.get(value)
        if call is not None and call.op.traits.product:
            return None
        if call is not None and call.op is load_:
            found.append(call)
        elif carried:
            left += carried.init, carried.following
        elif call is None:
            left += context.branch_values.get(value, ())
        else:
            left += filter(None, call.args)
    return found
