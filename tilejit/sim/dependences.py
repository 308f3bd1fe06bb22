"""Which reads of memory a call's operands are computed from, and which decide whether it is executed."""

from __future__ import annotations

from ..errors import Loc
from ..ir.graph import Block, Call, For, Graph, If, Node, Operand, Scope, Value, While
from ..types import MEMORY_TYPES

Reads = frozenset[Loc | None]
NONE: Reads = frozenset()


class Dependences:
    """For each line of a graph, the lines of the reads that its calls depend on. Found by walking the graph until
    nothing is added, since loops pass values back."""

    def __init__(self, graph: Graph):
        self._values: dict[Value, Reads] = {}
        self._calls: dict[Loc | None, Reads] = {}
        known = -1
        while known != (known := sum(map(len, (*self._values.values(), *self._calls.values())))):
            self._block(graph.body, NONE)

    def depends(self, call: Loc | None, read: Loc | None) -> bool:
        """Whether a call at one location depends on what was read at the other."""
        return read in self._calls.get(call, NONE)

    def _reads_of(self, *operands: Operand) -> Reads:
        return NONE.union(*(self._values.get(o, NONE) for o in operands if isinstance(o, Value)))

    def _add(self, value: Value, reads: Reads) -> None:
        self._values[value] = self._values.get(value, NONE) | reads

    def _block(self, block: Block, control: Reads) -> None:
        for node in block.nodes:
            self._node(node, control)

    def _node(self, node: Node, control: Reads) -> None:
        match node:
            case Call():
                self._call(node, control)
            case Scope():
                self._block(node.body, control | self._reads_of(node.first))
            case If():
                chosen = control | self._reads_of(node.test)
                self._block(node.then, chosen)
                self._block(node.orelse, chosen)
                for result, one, other in zip(node.results, node.then.yields, node.orelse.yields):
                    self._add(result, chosen | self._reads_of(one, other))
            case For() | While():
                self._loop(node, control)

    def _call(self, call: Call, control: Reads) -> None:
        reads = control | self._reads_of(*call.args)
        self._calls[call.loc] = self._calls.get(call.loc, NONE) | reads
        memory = any(isinstance(getattr(a, "type", None), MEMORY_TYPES) for a in call.args)
        for result in call.results:
            here = memory and not isinstance(result.type, MEMORY_TYPES)
            self._add(result, reads | {call.loc} if here else reads)

    def _loop(self, node: For | While, control: Reads) -> None:
        if isinstance(node, For):
            control |= self._reads_of(node.start, node.stop, node.step)
            self._add(node.index, control)
        else:
            self._block(node.test, control)
            control |= self._reads_of(*node.test.yields)
        self._block(node.body, control)
        for carry, end in zip(node.carried, node.body.yields):
            for value in (carry.inner, carry.result):
                self._add(value, control | self._reads_of(carry.init, end))
