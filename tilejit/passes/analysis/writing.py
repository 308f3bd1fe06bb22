"""The builder by which passes add nodes to a finished graph, with loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...dtypes import int32
from ...ir.builder import Builder, number_type, type_as
from ...ir.graph import Block, Carry, Const, For, If, Operand, Value
from ...types import Scalar
from .context import Context


class Writer(Builder):
    """A builder whose outermost block collects the nodes hoisted to the kernel's start."""

    @staticmethod
    def of(context: Context) -> Writer:
        g = Writer(context.graph.target, context.graph.launch, context.facts, loc=context.graph.loc)
        g.definitions = dict(context.definitions)
        return g

    def with_hoisted(self, body: Block) -> Block:
        """`body` with the hoisted nodes before it."""
        return Block((*self.blocks[0], *body.nodes), body.yields)

    def loop(self, start: Operand, stop: Operand, step: int, inits: Sequence[Operand], body: Callable[..., Any],
             name: str = "i") -> list[Value]:
        """Append ``for i in range(start, stop, step)``; ``body(i, carried)`` returns what a trip yields. Returns the
        values after the loop."""
        uniform = min([type_as(x, Scalar).uniform for x in (start, stop)])
        index = Value(name, Scalar(int32, uniform), self.loc)
        inner = [Value(getattr(x, "name", "carried"), number_type(x), self.loc) for x in inits]
        with self.block() as nodes:
            yields = tuple(body(index, inner))
        results = [Value(v.name, v.type, self.loc) for v in inner]
        carried = tuple(map(Carry, inits, inner, results))
        self.append(For(index, start, stop, Const(step, int32), carried, Block(tuple(nodes), yields), self.loc))
        return results

    def emit_if(self, test: Operand | bool, then: Callable[[], None]) -> None:
        """Append ``if test: then()``; a test known at compile time leaves no branch."""
        if isinstance(test, bool):
            if test:
                then()
            return
        with self.block() as nodes:
            then()
        self.append(If(test, Block(tuple(nodes)), Block(), (), self.loc))
