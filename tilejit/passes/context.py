"""What passes and planners may ask: facts of the launch, where values come from, divisors and bounds of integers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd, lcm, prod

from ..dtypes import int32, int64, integer_range, keeps, stored
from ..ir.builder import ExecScope, Facts, type_of
from ..ir.graph import Block, Call, Const, For, Graph, If, Node, Operand, Scope, Value, While, rises, walk, written
from ..types import Points, Region, Scalar, Selected, Tile


@dataclass(frozen=True)
class Promise:
    """What ``tile.assume`` says of an integer: bounds (None: none), a divisor, and (size, n) of each size of an array that it is
    less than by at least n."""

    low: int | None = None
    high: int | None = None
    divisor: int = 1
    under: frozenset = frozenset()

    def __and__(self, other: "Promise") -> "Promise":
        return Promise(max((x for x in (self.low, other.low) if x is not None), default=None),
                       min((x for x in (self.high, other.high) if x is not None), default=None), lcm(self.divisor, other.divisor),
                       self.under | other.under)

PLACES = (Region, Points, Selected)


class Context:
    """The questions of one graph. Made anew by each pass that needs it; promises count for bounds of what wraps if it asks for `wrapping` ones."""

    def __init__(self, graph: Graph, facts: Facts, wrapping: bool = False):
        self.graph, self.facts, self.target = graph, facts, graph.target
        self.kinds = (False, True) if wrapping else (False,)
        self.scope = ExecScope("cta", graph.launch.threads)
        self.made: dict[Value, Call] = {}
        self.loops: dict[Value, For] = {}
        self.ways: dict[Value, tuple[Operand, Operand]] = {}  # what a branch chooses -> the one or the other
        self.carried: dict[Value, tuple[Operand, Operand]] = {}  # what a loop carries or leaves -> how it begins, and what a trip makes of it
        self.calls: list[Call] = []
        for node in walk(graph.body):
            if isinstance(node, Call):
                self.calls.append(node)
                self.made.update((r, node) for r in node.results)
            if isinstance(node, For):
                self.loops[node.index] = node
            if isinstance(node, If):
                self.ways.update(zip(node.results, zip(node.then.yields, node.orelse.yields)))
            if isinstance(node, (For, While)):
                for carry, following in zip(node.carried, node.body.yields):
                    self.carried[carry.inner] = self.carried[carry.result] = carry.init, following
        self.tensor_room: Callable = lambda site: True  # whether tensor memory is left for a product: passes/tensor_dots.py counts it
        self._divisors: dict[Value, int] = {}
        self._supposed: dict[Value, int] = {}  # divisors of carried values, while it is found out whether a trip keeps them
        self._intervals: dict[tuple[Value, bool], tuple[int | None, int | None]] = {}
        self._promised: dict[tuple[object, bool], Promise] = {}

    @contextmanager
    def inside(self, block: Block):
        """In a block and those inside it, what ``tile.assume`` promises there is known."""
        found = [((key, wrapping), promise) for n in block.nodes if isinstance(n, Call) and n.op.name == "assumed" for wrapping in self.kinds
                 for key, promise in self._promises(n.args[0], wrapping)]
        if not found:
            yield
            return
        outer = self._promised, self._divisors, self._intervals
        self._promised, self._divisors, self._intervals = dict(self._promised), {}, {}
        for key, promise in found:
            self._promised[key] = self._promised.get(key, Promise()) & promise
        try:
            yield
        finally:
            self._promised, self._divisors, self._intervals = outer

    def _promises(self, condition: Operand, wrapping: bool):
        """(what, Promise) of each integer that a condition which holds tells of; `wrapping` as in `bounds`."""
        call = self.made.get(condition)
        name = call.op.name if call is not None else None
        if name == "bit_and":
            for part in call.args:
                yield from self._promises(part, wrapping)
        if name not in ("eq", "ge", "gt", "le", "lt"):
            return
        one, other = call.args if name not in ("le", "lt") else call.args[::-1]
        apart = name in ("gt", "lt")  # one > other
        for x, y in ((one, other), (other, one)) if name == "eq" else ():
            low, high = self.bounds(y, wrapping)
            yield self._key(x), Promise(low, high)
            rest = self.made.get(x)
            if low == high == 0 and rest is not None and rest.op.name == "mod" and isinstance(rest.args[1], Const):
                yield self._key(rest.args[0]), Promise(divisor=abs(int(rest.args[1].value)) or 1)
        if name != "eq":
            low, high = self.bounds(other, wrapping)[0], self.bounds(one, wrapping)[1]
            yield self._key(one), Promise(low=None if low is None else low + apart)
            yield self._key(other), Promise(high=None if high is None else high - apart, under=frozenset([(self._key(one), int(apart))]))
            part = self.made.get(other)
            if part is not None and part.op.name == "add" and isinstance(part.args[1], Const):  # x + n <= size
                yield self._key(part.args[0]), Promise(under=frozenset([(self._key(one), int(part.args[1].value) + apart)]))

    def _key(self, operand: Operand):
        """What stands for an integer in promises: sizes are asked anew where they are named, and wider integers are the same."""
        call = self.made.get(operand)
        if call is not None and call.op.name == "cast" and keeps(type_of(call.args[0]).dtype, type_of(operand).dtype):
            return self._key(call.args[0])
        return call.attrs["sym"] if call is not None and call.op.name == "size_of" else operand

    def definition(self, value: Value) -> Call:
        """The call that made a value."""
        return self.made[value]

    def buffer_of(self, operand: Operand) -> Operand:
        """The buffer behind a place in memory; any other operand is itself."""
        while isinstance(type_of(operand), PLACES) and operand in self.made:
            operand = self.made[operand].args[0]
        return operand

    def bytes_of(self, operand: Operand) -> tuple[Operand, range]:
        """The allocation behind a place in memory, and the bytes of it that the place's buffer, which may be a view, can have."""
        buffer = self.buffer_of(operand)
        made = self.made.get(buffer)
        if made is None or made.op.name != "buffer_view":
            return buffer, range(1 << 62)
        first = made.attrs["offset"]
        return made.args[0], range(first, first + buffer.type.nbytes)

    def divisor(self, operand: Operand) -> int:
        """The largest number that provably divides an integer operand (0 divides by everything: a large power of two)."""
        if not type_of(operand).dtype.is_int:
            return 1
        if isinstance(operand, Const):
            return abs(operand.value) or 1 << 62
        if operand not in self._divisors:
            promised = self._promised.get((self._key(operand), False), Promise()).divisor
            self._divisors[operand] = held_by(type_of(operand).dtype, lcm(self._divisor(operand), promised))
        return self._divisors[operand]

    def _divisor(self, value: Value) -> int:
        if value in self.loops:
            loop = self.loops[value]
            return gcd(self.divisor(loop.start), self.divisor(loop.step))
        if value in self.ways:
            return gcd(*map(self.divisor, self.ways[value]))
        if value in self.carried:
            return self._divisor_of_carried(value)
        call, t = self.made.get(value), type_of(value)
        if call is None or not isinstance(t, Scalar) or not t.dtype.is_int:
            return 1
        divisor = self._divisor_of(call)
        known = t.dtype in (int32, int64) and not wraps(t.dtype, *self._from_definition(value, False))
        return held_by(t.dtype, divisor) if known else gcd(divisor, 1 << t.dtype.bits)

    def _divisor_of_carried(self, value: Value) -> int:
        """The largest number that divides what a loop begins with, and that every trip keeps so."""
        init, following = self.carried[value]
        divisors, supposed, kept = self._divisors, self._supposed, self.divisor(init)
        while True:
            found, self._supposed = kept, supposed | {value: kept}
            self._divisors = dict(self._supposed)
            kept = gcd(found, self.divisor(following))
            if kept == found:
                self._divisors, self._supposed = divisors, supposed
                return found

    def _divisor_of(self, call: Call) -> int:
        parts = [self.divisor(a) for a in call.args if a is not None and isinstance(type_of(a), Scalar)]
        match call.op.name:
            case "mul":
                return parts[0] * parts[1]
            case "add" | "sub":
                return gcd(*parts)
            case "bit_or" | "bit_xor":
                return gcd(*parts, 1 << 62)
            case "neg" | "cast" | "constant":
                return parts[0]
            case "byte_of":
                return stored(call.attrs["dtype"], parts[0]) or 1
            case "minimum" | "maximum" | "mod":
                return gcd(*parts)
            case "select":
                return gcd(self.divisor(call.args[1]), self.divisor(call.args[2]))
            case "shl" if isinstance(call.args[1], Const) and call.args[1].value >= 0:
                return parts[0] << min(int(call.args[1].value), 62)
            case "floordiv" | "shr" if isinstance(call.args[1], Const):
                by = int(call.args[1].value)
                if call.op.name == "shr":
                    by = 1 << min(by, 62) if by >= 0 else 0
                return parts[0] // abs(by) if by and parts[0] % by == 0 else 1
            case "bit_and":
                return max(part & -part for part in parts)
        return 1

    def bounds(self, operand: Operand, wrapping: bool = False) -> tuple[int | None, int | None]:
        """The least and the largest value that an integer operand provably has; None where nothing is known.

        Index arithmetic that wraps is an error of the kernel, so it is taken not to; but `wrapping`, integers are those of their
        dtypes, whatever they stand for, and nothing is unknown.
        """
        dtype = type_of(operand).dtype
        if dtype.is_float:
            return None, None
        if isinstance(operand, Const):
            return int(operand.value), int(operand.value)
        if (operand, wrapping) not in self._intervals:
            self._intervals[operand, wrapping] = self._interval(operand, dtype, wrapping)
        return self._intervals[operand, wrapping]

    def fits(self, start: Operand, extent: int, size) -> bool:
        """Whether `extent` indices from `start` on are provably those of an array's `size`, a number or a symbol."""
        low, high = self.bounds(start)
        least = size if isinstance(size, int) else self._promised.get((size, False), Promise()).low
        if low is None or low < 0:
            return False
        if None not in (high, least) and high + extent <= least:
            return True
        return any(known == size and n >= extent for known, n in self._promised.get((self._key(start), False), Promise()).under)

    def _interval(self, operand: Operand, dtype, wrapping: bool) -> tuple[int | None, int | None]:
        low, high = self._from_definition(operand, wrapping)
        least, most = integer_range(dtype) if dtype.is_int else (0, 1)
        if wraps(dtype, low, high) or dtype not in (int32, int64) and None in (low, high):
            low, high = least, most
        if wrapping:
            low, high = least if low is None else low, most if high is None else high
        if self._promised:
            promise = self._promised.get((self._key(operand), wrapping), Promise()) & Promise(low, high)
            return promise.low, promise.high
        return low, high

    def _from_definition(self, operand: Operand, wrapping: bool) -> tuple[int | None, int | None]:
        if operand in self.loops:
            loop = self.loops[operand]
            (low, _), (_, high) = self.bounds(loop.start, wrapping), self.bounds(loop.stop, wrapping)
            if not rises(loop):
                (_, high), (low, _) = self.bounds(loop.start, wrapping), self.bounds(loop.stop, wrapping)
                return (None if low is None else low + 1), high
            return low, (None if high is None else max(high - 1, low or 0))
        if operand in self.ways:
            return joint(*(self.bounds(way, wrapping) for way in self.ways[operand]))
        call = self.made.get(operand)
        if call is None or not isinstance(type_of(operand), Scalar):
            return None, None
        return self._bounds(call, wrapping)

    def _bounds(self, call: Call, wrapping: bool) -> tuple[int | None, int | None]:
        name = call.op.name
        threads = self.graph.launch.threads
        if name in ("thread_id", "warp_id", "warpgroup_id", "lane_id"):
            return 0, {"thread_id": threads, "warp_id": threads // 32, "warpgroup_id": max(threads // 128, 1), "lane_id": 32}[name] - 1
        if name == "cta_rank":
            return 0, prod(self.graph.launch.cluster or (1,)) - 1
        if name in ("program_id", "cluster_id", "thread_id_in_scope"):
            return 0, None
        if name == "num_programs" or (name == "size_of" and call.attrs["sym"].kind == "size"):
            return int(name == "num_programs"), None
        if name == "ring_slot":
            return 0, call.attrs["stages"] - 1
        if name in ("cast", "constant"):
            return self.bounds(call.args[0], wrapping)
        if name == "byte_of":
            (low, high), (elements, per) = self.bounds(call.args[0], wrapping), call.attrs["dtype"].packing
            return tuple(None if n is None else n // elements * per for n in (low, high))
        if name == "select":
            return joint(self.bounds(call.args[1], wrapping), self.bounds(call.args[2], wrapping))
        if name not in ("add", "sub", "mul", "mod", "floordiv", "minimum", "maximum", "shl", "shr", "bit_and"):
            return None, None
        one, other = (self.bounds(x, wrapping) for x in call.args)
        return interval(name, one, other)

    def register_run(self, tile: Tile, axis: int) -> int:
        """How many consecutive elements along `axis` a thread holds in consecutive registers."""
        shards = [s for s in tile.layout.dims(tile.domain)[axis] if s[0] > 1]
        run = shards[-1][0] if shards and str(shards[-1][2]) == "reg" else 1
        while run > 1 and tile.shape[axis] % run:
            run //= 2
        return run if run & (run - 1) == 0 else run & -run

    def narrowed(self, node: Scope) -> ExecScope:
        """The execution scope inside a Scope node."""
        kind = "thread" if node.kind == "elect" else node.kind
        first = node.first.value if isinstance(node.first, Const) else node.first
        return ExecScope(kind, node.threads, first, elected=node.kind == "elect", parent=self.scope)

    @contextmanager
    def within(self, node: Node):
        """In the blocks of a Scope node, `scope` is its own; those of other nodes run where they stand."""
        outer = self.scope
        self.scope = self.narrowed(node) if isinstance(node, Scope) else outer
        try:
            yield
        finally:
            self.scope = outer


def written_by_threads(context: Context) -> Callable[[Operand], bool]:
    """Whether threads may themselves write what a place in shared memory is part of, or copies that do not complete on a barrier, through
    whichever view. What a pipelined loop's copies bring is ordered by the loop, what has a token by its wait."""
    ahead = {n for loop in walk(context.graph.body) if isinstance(loop, For) and loop.pipeline for n in loop.body.nodes}
    found: dict[Operand, list[range]] = {}
    for call in context.calls:
        ordered = call.op.name == "copy_async" and (call.args[2] is not None or call in ahead or call.attrs["options"].get("token"))
        if (call.op.effect == "writes" or "written" in call.op.rules) and not ordered:
            for place in written([call]):
                if getattr(place.type, "scope", None) == "shared":
                    buffer, part = context.bytes_of(place)
                    found.setdefault(buffer, []).append(part)

    def touches(operand: Operand) -> bool:
        if getattr(type_of(operand), "scope", None) != "shared":
            return False
        buffer, part = context.bytes_of(operand)
        return any(part.start < other.stop and other.start < part.stop for other in found.get(buffer, ()))

    return touches


def wraps(dtype, low: int | None, high: int | None) -> bool:
    """Whether bounds show that an integer is computed which its dtype does not hold."""
    least, most = integer_range(dtype) if dtype.is_int else (0, 1)
    return low is not None and low < least or high is not None and high > most


def held_by(dtype, divisor: int) -> int:
    """What is left of a divisor that is larger than any number of a dtype: a multiple of it has wrapped, and kept the powers of two."""
    most = 1 << min(dtype.bits - 2, 62)
    return divisor if divisor <= most else min(divisor & -divisor, most)


def joint(one: tuple, other: tuple) -> tuple[int | None, int | None]:
    """Bounds of a number that lies in one interval or in the other."""
    (a, b), (c, d) = one, other
    return (None if None in (a, c) else min(a, c)), (None if None in (b, d) else max(b, d))


def interval(name: str, one: tuple, other: tuple) -> tuple[int | None, int | None]:
    """Bounds of an operation on integers that lie in two intervals; None where an end is not known.

    Index arithmetic that wraps is an error of the kernel, so it is taken not to.
    """
    (a, b), (c, d) = one, other
    both = lambda f, x, y: None if None in (x, y) else f(x, y)
    if name == "add":
        return both(lambda x, y: x + y, a, c), both(lambda x, y: x + y, b, d)
    if name == "sub":
        return both(lambda x, y: x - y, a, d), both(lambda x, y: x - y, b, c)
    if name == "minimum":
        return both(min, a, c), min((x for x in (b, d) if x is not None), default=None)
    if name == "maximum":
        return max((x for x in (a, c) if x is not None), default=None), both(max, b, d)
    if name == "mul":
        if None not in (a, b, c, d):
            corners = (a * c, a * d, b * c, b * d)
            return min(corners), max(corners)
        return (a * c, None) if None not in (a, c) and a >= 0 and c >= 0 else (None, None)
    if name == "bit_and":
        tops = [high for low, high in (one, other) if low is not None and low >= 0]
        return (0, min((x for x in tops if x is not None), default=None)) if tops else (None, None)
    if c is None or c != d:
        if name == "mod" and c is not None and c >= 0:
            rest = 0, None if d is None else max(d - 1, 0)
            return rest if c else joint(rest, one)  # x % 0 is x
        return (0, b) if name in ("floordiv", "shr") and None not in (a, c) and min(a, c) >= 0 else (None, None)  # x // 0 is 0
    if name == "mod" and c > 0:
        return 0, c - 1 if b is None or a is None or a < 0 else min(b, c - 1)
    step = {"floordiv": c, "shr": 1 << c if 0 <= c < 63 else 0, "shl": 1 << c if 0 <= c < 63 else 0}.get(name, 0)
    if step <= 0:
        return None, None
    if name == "shl":
        return both(lambda x, y: x * y, a, step), both(lambda x, y: x * y, b, step)
    return both(lambda x, y: x // y, a, step), both(lambda x, y: x // y, b, step)
