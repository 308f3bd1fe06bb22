"""Bounds of the difference of two counters that loops and branches carry along.

It tells how many copies lie between an issue and its wait.
"""

from __future__ import annotations

from typing import Any

from ...ir.graph import Call, Const, For, Graph, If, Operand, Value, While, walk
from ...ops.tiles.casts import cast
from ...ops.tiles.elementwise import add


class DifferenceBounds:
    """Bounds of ``a - b`` for values of one graph; None where they are not known."""

    def __init__(self, graph: Graph):
        self.definitions: dict[Value, tuple[Any, ...]] = {}
        for node in walk(graph.body):
            match node:
                case Call():
                    self.definitions.update((r, ("call", node)) for r in node.results)
                case For() | While():
                    for n, c in enumerate(node.carried):
                        self.definitions[c.inner] = self.definitions[c.result] = ("loop", node, c.init,
                                                                                  node.body.yields[n])
                case If():
                    for n, r in enumerate(node.results):
                        self.definitions[r] = ("if", node, node.then.yields[n], node.orelse.yields[n])
        self.assumed: dict[tuple[Any, ...], tuple[int, int]] = {}

    def __call__(self, a: Operand, b: Operand) -> tuple[int, int] | None:
        (a, i), (b, j) = self.peel(a), self.peel(b)
        apart = self._difference(a, b)
        return None if apart is None else (apart[0] + i - j, apart[1] + i - j)

    def peel(self, x: Operand) -> tuple[Operand, int]:
        """`x` as (value, constant to add), with casts and additions of constants taken off."""
        total = 0
        while isinstance(x, Value) and self.definitions.get(x, ("", None))[0] == "call":
            call = self.definitions[x][1]
            if call.op is cast:
                x = call.args[0]
            elif call.op is add and isinstance(call.args[1], Const):
                x, total = call.args[0], total + int(call.args[1].value)
            else:
                break
        return (None, total + int(x.value)) if isinstance(x, Const) else (x, total)

    def _difference(self, a: Any, b: Any) -> tuple[int, int] | None:
        """Bounds of ``a - b`` for values without constants to add: both of one branch or loop, or one of a branch."""
        if a is b:
            return 0, 0
        if (a, b) in self.assumed:
            return self.assumed[a, b]
        one, other = self.definitions.get(a), self.definitions.get(b)
        if one and other and one[0] == other[0] == "if" and one[1] is other[1]:
            return union(self(one[2], other[2]), self(one[3], other[3]))
        if one and other and one[0] == other[0] == "loop" and one[1] is other[1]:
            return self._difference_of_carried(a, b, one, other)
        for x, (kind, *_), turn in ((a, one or ("",), 0), (b, other or ("",), 1)):
            if kind == "if":
                sides = self.definitions[x][2:]
                return union(*(self(w, b) if turn == 0 else self(a, w) for w in sides))
        return None

    def _difference_of_carried(self, a: Any, b: Any, one: Any, other: Any) -> tuple[int, int] | None:
        """The difference of two values that one loop carries: that of their initial values, widened until a trip no
        longer changes it."""
        start = self(one[2], other[2])
        guess = start
        for _ in range(4):
            if guess is None:
                return None
            before = dict(self.assumed)
            self.assumed[a, b] = guess
            inner = self.assumed.copy()
            for x in _twins(one[1], a):
                for y in _twins(one[1], b):
                    inner[x, y] = guess
            self.assumed = inner
            after = self(one[3], other[3])
            self.assumed = before
            wider = union(start, after)
            if wider == guess:
                return guess
            guess = wider
        return None


def _twins(loop: For | While, value: Value) -> tuple[Value, ...]:
    """A carried value under both its names: inside the body and after the loop."""
    for c in loop.carried:
        if value in (c.inner, c.result):
            return c.inner, c.result
    return (value,)


def union(a: tuple[int, int] | None, b: tuple[int, int] | None) -> tuple[int, int] | None:
    """The bounds of a number that lies within either."""
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


__all__ = ["DifferenceBounds"]
