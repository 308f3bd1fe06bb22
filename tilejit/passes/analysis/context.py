"""What passes and planners ask about a graph: launch facts, definitions, buffers, integer analysis,
the execution scope at hand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from functools import cached_property
from itertools import takewhile
from math import prod
from typing import Any

from ...ir.builder import ExecScope, Facts, type_of
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
    walk,
    written_arguments,
    written_values,
)
from ...ops.memory.access_ops import load_
from ...ops.moves.copy_async import copy_async_
from ...ops.structure.buffer_views import buffer_view
from ...ops.sync.proxies import ON_ENGINES
from ...types import Points, Region, Selected, Tile
from .argument_analysis import ArgumentAnalysis

PLACES = (Region, Points, Selected)


class Context(ArgumentAnalysis):
    """The queries about one graph. Each pass that needs them makes its own; `wrapping` as in ``IntegerAnalysis``."""

    def __init__(self, graph: Graph, facts: Facts, wrapping: bool = False):
        super().__init__(graph, facts, wrapping)
        self.target = graph.target
        self.scope = ExecScope("cta", graph.launch.threads)
        self.calls: list[Call] = [node for node in walk(graph.body) if isinstance(node, Call)]
        # whether tensor memory has room for a product; passes/products/tensor_dots.py sets it
        self.tensor_room: Callable[..., Any] = lambda site: True

    @cached_property
    def stored(self) -> frozenset[int]:
        """The numbers of the arguments that threads of the kernel may write. Before copy engines access these, a
        proxy fence is needed."""
        return written_arguments(c for c in self.calls
                                 if c.op is not copy_async_ or c.choice and c.choice.plan.completion not in ON_ENGINES)

    def definition(self, value: Value) -> Call:
        """The call that defines a value."""
        return self.definitions[value]

    def buffer_of(self, operand: Operand) -> Operand:
        """The buffer that a region, points or selected rows are part of; any other operand is itself."""
        while isinstance(type_of(operand), PLACES) and operand in self.definitions:
            operand = self.definitions[operand].args[0]
        return operand

    def bytes_of(self, operand: Operand) -> tuple[Operand, range]:
        """The allocation behind a place in memory, and the range of its bytes that the place's buffer,
        possibly a view, covers."""
        buffer = self.buffer_of(operand)
        made = self.definitions.get(buffer)
        if made is None or made.op is not buffer_view:
            return buffer, range(1 << 62)
        first = made.attrs["offset"]
        return made.args[0], range(first, first + buffer.type.nbytes)

    def register_run(self, tile: Tile, axis: int) -> int:
        """How many consecutive elements along `axis` a thread holds side by side: a power of two."""
        shards = [s for s in tile.layout.dims(tile.domain)[axis] if s[0] > 1]
        run = prod(s[0] for s in takewhile(lambda s: str(s[2]) == "reg", reversed(shards)))
        while run > 1 and tile.shape[axis] % run:
            run //= 2
        return run if run & (run - 1) == 0 else run & -run

    def narrowed(self, node: Scope) -> ExecScope:
        """The execution scope inside a Scope node."""
        kind = "thread" if node.kind == "elect" else node.kind
        first = node.first.value if isinstance(node.first, Const) else node.first
        return ExecScope(kind, node.threads, first, elected=node.kind == "elect", parent=self.scope)

    @contextmanager
    def in_scope_of(self, node: Node):
        """In the ``with`` block, `scope` is the one inside `node`: that of a Scope node,
        for other nodes the current one."""
        outer = self.scope
        self.scope = self.narrowed(node) if isinstance(node, Scope) else outer
        try:
            yield
        finally:
            self.scope = outer


def written_by_threads(context: Context) -> Callable[[Operand], bool]:
    """A predicate of operands: whether threads may have written a place in shared memory, through whichever view.

    Copies that complete on no barrier count as well. Those of a pipelined loop do not, which the loop orders, nor
    those with a token, which its wait orders.
    """
    ahead = {n for loop in walk(context.graph.body) if isinstance(loop, For) and loop.pipeline for n in loop.body.nodes}
    found: dict[Operand, list[range]] = {}
    for call in context.calls:
        ordered = (call.op is copy_async_
                   and (call.args[2] is not None or call in ahead or call.attrs["options"].get("token")))
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


def is_column_major(t: Region | Selected) -> bool:
    """Whether the first of a region's last two dimensions is the contiguous one in its array, as in ``w.T``."""
    strides = [t.buffer.strides[d] for d in t.kept[-2:]] if isinstance(t, Region) and t.scope == "global" else []
    return len(strides) == 2 and strides[0] == 1 != strides[1]


def loads_behind(context: Context, x: Value) -> list[Call] | None:
    """The loads that a tile is computed from; None where it is also computed from a product."""
    found, seen, left = [], set(), [x]
    while left:
        x = left.pop()
        if not isinstance(type_of(x), Tile) or x in seen:
            continue
        seen.add(x)
        call, carried = context.definitions.get(x), context.carried.get(x)
        if call is not None and call.op.traits.product:
            return None
        if call is not None and call.op is load_:
            found.append(call)
        elif carried:
            left += carried.init, carried.following
        elif call is None:
            left += context.branch_values.get(x, ())
        else:
            left += filter(None, call.args)
    return found
