"""What the launch is asked of an array's extents, so that an integer that is computed of them is a multiple of what a vector or a box needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir.builder import Facts, type_of
from ..ir.graph import Const, Graph, Operand
from ..types import Scalar, Sym, Tile
from .promises import Promise
from .ramps import Ramps

PARTS = (1, 2, 4, 8)  # by which an extent may be divided on the way, as in ``half = x.shape[1] // 2``


class Extents(Ramps):
    """The integers of one graph, and the facts of its launch."""

    def __init__(self, graph: Graph, facts: Facts, wrapping: bool = False):
        super().__init__(graph, wrapping)
        self.facts = facts
        self._behind: dict[Operand, tuple[Sym, ...]] = {}

    def asked_divisor(self, operand: Operand, wanted: int, divisor: Callable[[Operand], int] | None = None) -> int:
        """What provably divides an integer, or what `divisor` tells of another operand; where that is no multiple of `wanted`, the launch is
        asked whether the extents behind it make it one."""
        divisor = divisor or self.divisor
        found = divisor(operand)
        behind = self._extents_behind(operand) if found % wanted else ()
        for n in (wanted * part for part in PARTS if behind):
            supposed = lambda extents: self._supposing(extents, n, lambda: divisor(operand))
            if supposed(behind) % wanted == 0:
                needed = behind
                for extent in behind:
                    fewer = tuple(e for e in needed if e != extent)
                    needed = fewer if supposed(fewer) % wanted == 0 else needed
                return supposed(needed) if all(self.facts.ask("size_multiple", e.arg, e.dim, n) for e in needed) else found
        return found

    def _supposing(self, extents: Sequence[Sym], n: int, question: Callable[[], int]) -> int:
        """The answer where the extents are multiples of `n`."""
        known, multiple = self._known, Promise(divisor=n)
        promised = known.promised | {(e, False): known.promised.get((e, False), Promise()) & multiple for e in extents}
        with self._knowing(type(known)(promised)):
            return question()

    def _extents_behind(self, operand: Operand) -> tuple[Sym, ...]:
        """The extents of arrays that an integer, or the integers of a tile, are computed of."""
        if operand not in self._behind:
            found, seen, todo = {}, set(), [operand]
            while todo:
                x = todo.pop()
                if x in seen or x is None or isinstance(x, Const) or not isinstance(type_of(x), (Scalar, Tile)) or type_of(x).dtype.is_float:
                    continue
                seen.add(x)
                key = self.key(x)
                if isinstance(key, Sym):
                    found |= {key: None} if key.kind == "size" else {}
                elif x in self.loops:
                    todo += self.loops[x].start, self.loops[x].step
                elif x in self.ways:
                    todo += self.ways[x]
                elif x in self.carried:
                    todo += self.carried[x].init, self.carried[x].following
                elif x in self.made and self.made[x].op.effect == "pure":
                    todo += self.made[x].args
            self._behind[operand] = tuple(found)
        return self._behind[operand]
