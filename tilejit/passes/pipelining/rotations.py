"""Which pipelined loops are rotated, so that threads work while the tensor cores multiply.

A trip of such a loop, of attention for example, has two halves. Products of what the copies bring (the scores) come
first, then work of the threads on their results (softmax), then products that take what the threads made (with the
values). In order, the tensor cores idle while the threads work. In the rotated loop, a trip is the second half of one
iteration and the first half of the next: it starts the next iteration's first products, then this one's second
products, and the threads work on the results of the former while the latter run. The copies of the two halves have
rings and barriers of their own, since those of the first are read one iteration ahead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...concurrency import cached_property
from ...errors import line_of
from ...ir.builder import type_of
from ...ir.graph import Block, Call, Node, Operand, Value, blocks, operands, pipeline_of, results, walk
from ...ops.memory.access_ops import load_
from ...ops.mma import mma_async_, mma_commit, mma_wait
from ...records import RotationRecord
from ...types import Scalar, Tile
from ..analysis.context import Context
from ..analysis.program_slices import live_values
from ..analysis.staging import INDEXED, StagedLoop
from ..products.accumulators import is_product

# Registers that ptxas 13.0 needs in a rotated loop beside its tiles; with fewer it serialises the products (C7512).
OTHER_REGISTERS = 28


@dataclass(eq=False)
class Lane:
    """Copies of a rotated loop whose slots are filled, and released, together.

    `early`: the first half reads the slot, one iteration ahead of the second. The slot is released once the first
    half's products are done ("products"), at the first half's end ("half"), or at the second's ("trip").
    """

    staged: StagedLoop
    early: bool
    until: str


class Rotation:
    """The halves of a pipelined loop's body: the nodes of each in order.

    Of the first: `ahead` is what the products `first` need, `between` is done while the products `second` of the
    iteration before run, and `last` after them: what takes results of these, or writes registers that they read. Of
    the second half: `tail` follows its products. Nodes of `anew` follow from the index and carried numbers alone, and
    each half computes those that it needs. `carried` are the values of an iteration that its second half takes. The
    carried values in `late` are not known before the iteration's second half is over.
    """

    def __init__(self, context: Context, staged: StagedLoop):
        self.context, self.staged, self.loop = context, staged, staged.loop
        nodes = [n for n in self.loop.body.nodes
                 if n is not staged.slot and n not in staged.copies and not _orders_products(n)]
        products = [n for n in nodes if is_product(n)]
        levels = _levels(nodes)
        self.first = [p for p in products if levels[p.result] == 1]
        self.second = [p for p in products if levels[p.result] == 2]
        self.deeper = [p for p in products if levels[p.result] > 2]
        self.chained = bool(self.first and self.second)
        if self.chained:
            self._divide(nodes)

    def _divide(self, nodes: list[Node]) -> None:
        """Assign the nodes to the halves."""
        products = {*self.first, *self.second, *self.deeper}
        handed = dict(zip((c.inner for c in self.loop.carried), self.loop.body.yields))
        of_second = _dependents(nodes, {p.result for p in self.second})
        self.late = [inner for inner, following in handed.items() if following in of_second]
        of_late = _dependents(nodes, set(self.late))
        self.depends_on = next((v for p in self.first for v in p.args if v in of_late), None)
        self.tail = [n for n in _those_that_define(nodes, of_second) if n not in products]
        self.of_second = [n for n in nodes if n in self.second or n in self.tail]
        numbers = {inner for inner in handed if isinstance(inner.type, Scalar)}
        self.anew = _computed_anew(nodes, of_late | (set(handed) - numbers))
        divided = {*products, *self.tail, *self.anew}
        rest = [n for n in nodes if n not in divided]
        self.ahead = _nodes_behind(rest, self.first)
        rest = [n for n in rest if n not in self.ahead]
        self.last = _those_that_define(rest, _dependents(rest, of_late | self._converted_operands(rest)))
        self.between = [n for n in rest if n not in self.last]
        self.carried = self._values_from_first({*handed, self.loop.index})

    def _converted_operands(self, nodes: list[Node]) -> set[Operand]:
        """The operands of the second products in registers that a conversion makes. Its result has the registers of
        the iteration before, once its products have read them."""
        converted = {v for n in nodes if isinstance(n, Call) and n.op.traits.conversion for v in n.results}
        return converted & {p.args[1] for p in self.second}

    def _values_from_first(self, outer: set[Value]) -> list[Value]:
        """The values that the second half takes of the first, of the loop (`outer`), or hands on."""
        wanted = [*self.staged.slot.args, *self.loop.body.yields, *(v for n in self.of_second for v in _uses(n))]
        wanted += [v for n in self.anew_for(wanted) for v in _uses(n)]
        first = (*self.ahead, *self.first, *self.between, *self.last)
        made = {v for n in first for v in results(n)} | outer
        return [v for v in dict.fromkeys(wanted) if isinstance(v, Value) and v in made]

    def anew_for(self, values: Iterable[Operand]) -> list[Call]:
        """The nodes of `anew` that these values need."""
        wanted, found = set(values), []
        for node in reversed(self.anew):
            if not wanted.isdisjoint(node.results):
                wanted.update(node.args)
                found.append(node)
        return found[::-1]

    def anew_in_first(self) -> list[Call]:
        """The nodes of `anew` that the first half needs."""
        return self.anew_for(v for n in (*self.ahead, *self.first, *self.between, *self.last) for v in _uses(n))

    def anew_in_second(self) -> list[Call]:
        """The nodes of `anew` that the second half and the following iteration need."""
        return self.anew_for((*self.loop.body.yields, *(v for n in self.of_second for v in _uses(n))))

    @cached_property
    def lanes(self) -> list[Lane]:
        """The loop's copies, in the order in which the halves need them."""
        found: dict[tuple[bool, str], list[Call]] = {}
        for copy in self.staged.copies:
            readers = self._readers(self.context.buffer_of(copy.args[0]))
            early = not readers or not readers <= set(self.of_second)
            until = "trip" if readers & set(self.of_second) else "half"
            if readers <= set(self.first):
                until = "products"
            found.setdefault((not early, until), []).append(copy)
        return [Lane(self.staged.with_copies(copies), not late, until)
                for (late, until), copies in sorted(found.items(), key=lambda item: item[0])]

    def _readers(self, buffer: Operand) -> set[Node]:
        """The nodes of the loop's body that read a staged buffer, directly or in their blocks."""
        return {n for n in self.loop.body.nodes if n not in self.staged.copies and n is not self.staged.slot
                for c in walk(Block((n,))) if isinstance(c, Call) and c.op not in INDEXED
                and any(isinstance(a, Value) and self.context.buffer_of(a) is buffer for a in c.args)}

    # -- when ----------------------------------------------------------------------------------------------------------

    def why_not(self, registers: int) -> str:
        """Why the loop is not rotated, where its threads may have that many registers; "" if it is."""
        return self._why_unordered() or self._why_dependent() or self._why_not_staged() or self._why_full(registers)

    def _why_unordered(self) -> str:
        """Why the order of the body's effects does not allow it."""
        steps: list[Call] = []
        for node in self.loop.body.nodes:
            if node is self.staged.slot or node in self.staged.copies:
                continue
            if isinstance(node, Call) and (is_product(node) or _orders_products(node)):
                steps.append(node)
                continue
            for call in walk(Block((node,))):
                if isinstance(call, Call) and (call.op.effect != "pure" and call.op is not load_
                                               or call in self.staged.copies):
                    return (f"{call.op.name} at line {line_of(call.loc)} would change its place among the products: "
                            "beside these, only loads and arithmetic can")
        ops = [c.op for c in steps]
        waits = all(c.attrs["n"] == 0 for c in steps if c.op is mma_wait)
        if ops != [mma_async_, mma_commit, mma_wait] * (len(ops) // 3) or not waits:
            return "the kernel orders its products itself, by mma_commit and mma_wait"
        unread = live_values(self.context.graph.body)
        for call in walk(self.loop.body):
            if isinstance(call, Call) and call.op.effect == "reads" and unread.isdisjoint(call.results):
                return f"nothing uses the result of {call.op.name} at line {line_of(call.loc)}"
        return ""

    def _why_dependent(self) -> str:
        """Why what depends on what does not allow it."""
        if self.deeper:
            return (f"the product at line {line_of(self.deeper[0].loc)} takes what follows from "
                    f"{_lines(self.second)}, and that from {_lines(self.first)}: two in a row can overlap")
        if self.depends_on is not None:
            return (f"{_lines(self.first)} depends on what {_lines(self.second)} of the iteration before computes, "
                    "so it cannot be started earlier")
        first = {p.result for p in self.first}
        for product in self.second:
            if product.args[0] in first:
                return f"the product at line {line_of(product.loc)} adds to the result of the one before"
        for value in self.carried:
            if not isinstance(value.type, (Tile, Scalar)):
                return f"{_lines(self.second)} reads a place that depends on loaded values"
        return ""

    def _why_not_staged(self) -> str:
        """Why the loop's slots do not allow it."""
        if not pipeline_of(self.loop).warp_specialize or not all(self.staged.by_bytes):
            return ("all threads meet in every iteration, since they issue the copies themselves: "
                    "warp_specialize=True gives these to a producer")
        if self.staged.by_commit:
            return "products into tensor memory release its slots"
        if self.staged.stages < 2 and any(lane.early and lane.until == "trip" for lane in self.lanes):
            return f"{_lines(self.first)} and {_lines(self.second)} read the same buffer, which takes 2 stages"
        return ""

    def _why_full(self, registers: int) -> str:
        """Why the threads' registers do not suffice. Counts the tiles that are held while the second products run."""
        threads = self.context.graph.launch.threads
        zeros = {None, *(v for n in self.anew for v in n.results)}
        tiles: list[Operand] = [p.result for p in self.first]
        tiles += [p.result for p in self.second if p.args[0] in zeros]
        tiles += [p.args[1] for p in (*self.first, *self.second)]
        tiles += self.carried
        words = sum(_registers(t, threads) for t in dict.fromkeys(tiles))
        if words + OTHER_REGISTERS > registers:
            return (f"the results of both products and what the threads make of them take {words} of a thread's "
                    f"{registers} registers, and {OTHER_REGISTERS} more are needed: use smaller tiles")
        return ""

    def record(self, why: str) -> RotationRecord:
        """What `.explain()` tells of the loop."""
        how = why or (f"{_lines(self.first)} of the next iteration is started before {_lines(self.second)} of "
                      "this one, and the threads work on its result while the latter runs")
        loc = self.loop.loc
        return RotationRecord(line_of(loc), loc.source_line.strip() if loc else "", not why, how)


def _orders_products(node: Node) -> bool:
    return isinstance(node, Call) and node.op in (mma_commit, mma_wait)


def _uses(node: Node) -> Iterator[Operand]:
    """All that a node takes, also in its blocks."""
    yield from operands(node)
    for block in blocks(node):
        for inner in block.nodes:
            yield from _uses(inner)
        yield from block.yields


def _levels(nodes: list[Node]) -> dict[Operand, int]:
    """How many products, one taking what follows from the other, are behind each value that `nodes` define. Products
    that add to one another's results count once."""
    levels: dict[Operand, int] = {}
    made: dict[Operand, Node] = {v: n for n in nodes for v in results(n)}
    for node in nodes:
        level = max((levels.get(v, 0) for v in _uses(node)), default=0)
        if is_product(node):
            acc, *rest = node.args
            level = max((levels.get(v, 0) for v in rest), default=0)
            summed = levels.get(acc, 0)
            level = max(level, summed - (acc in made and is_product(made[acc]))) + 1
        levels |= dict.fromkeys(results(node), level)
    return levels


def _dependents(nodes: Iterable[Node], values: Collection[Operand]) -> set[Operand]:
    """These values, and those that `nodes` compute from them."""
    found = set(values)
    for node in nodes:
        if any(v in found for v in _uses(node)):
            found.update(results(node))
    return found


def _computed_anew(nodes: list[Node], held: set[Operand]) -> list[Call]:
    """The arithmetic and the views that depend neither on `held` nor on other nodes than these."""
    found: list[Call] = []
    kept: set[Operand] = {*held, *(v for n in nodes for v in results(n))}
    for node in nodes:
        if isinstance(node, Call) and node.op.effect == "pure" and kept.isdisjoint(node.args):
            kept.difference_update(node.results)
            found.append(node)
    return found


def _those_that_define(nodes: Iterable[Node], values: Collection[Operand]) -> list[Node]:
    return [n for n in nodes if any(v in values for v in results(n))]


def _nodes_behind(nodes: Sequence[Node], users: Iterable[Node]) -> list[Node]:
    """Those of `nodes` that `users` depend on."""
    wanted = {v for n in users for v in _uses(n)}
    found: list[Node] = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(results(node)):
            wanted.update(_uses(node))
            found.append(node)
    return found[::-1]


def _bits(value: Operand) -> int:
    t = type_of(value)
    return t.size * t.dtype.bits if isinstance(t, Tile) else 0


def _registers(value: Operand, threads: int) -> int:
    """The registers of a thread that hold a tile."""
    return -(-_bits(value) // (32 * threads))


def _lines(products: Collection[Call]) -> str:
    """Products in words."""
    lines = list(dict.fromkeys(line_of(p.loc) for p in products))
    if len(lines) == 1:
        return f"the product at line {lines[0]}"
    return f"the products at lines {', '.join(map(str, lines[:-1]))} and {lines[-1]}"


__all__ = ["Lane", "Rotation"]
