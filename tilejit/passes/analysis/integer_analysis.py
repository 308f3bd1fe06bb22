"""Flow-sensitive range and divisibility analysis of scalar integers.

Bounds, divisors, and how loops change what they carry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from math import gcd, lcm, prod
from typing import Any

from ...dtypes import DType, count_units, int32, int64, integer_range, keeps
from ...ir.builder import element_type, type_of
from ...ir.graph import Block, Call, Const, For, Graph, If, Node, Operand, Value, While, rises, walk
from ...ir.op import Op
from ...ops.language import ids
from ...ops.language.addressed import array_, array_of, number_behind
from ...ops.language.pointwise import assumed
from ...ops.language.programs import program_at
from ...ops.language.sizes import size_of
from ...ops.memory import packed
from ...ops.structure.ring import ring_slot
from ...ops.tiles import arrange, casts, division, elementwise as ew, generate
from ...ops.tiles.casts import cast
from ...ops.tiles.layout_change import convert_layout
from ...types import Addressed, Scalar, Sym
from .constraints import Constraint, Constraints, constraints_of_condition, constraints_of_loop, intersection
from .intervals import Bounds, divisor_in, hull, interval, wraps

# dtypes of index arithmetic, which is assumed not to wrap: an index that wraps is an error of the kernel
INDICES = int32, int64

# Ops whose results are tiles that repeat the operand's elements.
REPEATS = frozenset((generate.splat, arrange.broadcast, arrange.reshape_, convert_layout))

# How many different ids threads of a CTA have, given its number of threads.
IDS: dict[Op, Callable[[int], int]] = {ids.absolute_thread_id: lambda threads: threads,
                                       ids.warp_id: lambda threads: threads // 32,
                                       ids.warpgroup_id: lambda threads: max(threads // 128, 1),
                                       ids.lane_id: lambda threads: 32}

# Ops whose bounds `interval` computes from those of their operands.
ARITHMETIC = frozenset((ew.add, ew.sub, ew.mul, division.mod, division.floordiv, ew.minimum, ew.maximum, ew.shl, ew.shr,
                        ew.bit_and))

UNCONSTRAINED = Constraint()


@dataclass(frozen=True)
class CarriedValue:
    """A loop-carried value: `inner` is its name in the body, `init` its first value,
    `following` the one that a trip yields."""

    inner: Value
    init: Operand
    following: Operand
    body: Block


@dataclass
class LazyConstraint:
    """The constraint on an integer inside a block, found when it is first asked for.

    `finders` are evaluated with what is `known` around the block; `before` is the constraint that held there already.
    """

    before: LazyConstraint | None
    known: Knowledge
    finders: list[Callable[[], Constraint]] = field(default_factory=list)
    found: Constraint | None = None


@dataclass(frozen=True)
class Knowledge:
    """What is known at one place in the graph: the constraints in force, and a cache of what was derived from them.

    `constraints` are by (key of an integer, whether it may wrap). `growths` are bounds of how much a number exceeds
    the carried value that it is computed from. `supposed` (divisors of carried values) and `alike` (ramps of carried
    tiles) are the hypotheses of an induction over a loop's trips; `kept` are the divisors for which it succeeded.
    """

    constraints: dict[tuple[object, bool], LazyConstraint]
    supposed: dict[Operand, int] | None = None
    alike: dict[Any, Any] = field(default_factory=dict)
    kept: dict[Operand, int] = field(default_factory=dict)
    divisors: dict[Operand, int] = field(default_factory=dict)
    intervals: dict[tuple[Operand, bool], Bounds] = field(default_factory=dict)
    growths: dict[tuple[Operand, Value], Bounds | None] = field(default_factory=dict)
    ramps: dict[tuple[Operand, int, int], tuple[int, int] | None] = field(default_factory=dict)


class IntegerAnalysis:
    """The analysis of one graph. With `wrapping`, constraints are also collected for the bounds of
    integers that may wrap."""

    def __init__(self, graph: Graph, wrapping: bool = False):
        self.graph = graph
        self.kinds = (False, True) if wrapping else (False,)
        # Of values; any operand may be looked up.
        self.definitions: dict[Operand, Call] = {}
        self.arrays: dict[Addressed, Call] = {}  # the arrays that the kernel makes from addresses -> the calls
        self.loops: dict[Operand, For] = {}
        self.branch_values: dict[Operand, tuple[Operand, Operand]] = {}  # result of a branch -> what either side yields
        self.branch_conditions: dict[Operand, Operand] = {}              # result of a branch -> the branch's condition
        # by the value in the body and by the one after the loop
        self.carried: dict[Operand, CarriedValue] = {}
        self._conditions: dict[Block, Callable[[bool], Constraints]] = {}  # the constraints that hold in a block
        for node in walk(graph.body):
            self._note(node)
        self._at_top = self._known = Knowledge({})
        self._inside: dict[Block, tuple[Knowledge, Knowledge]] = {}  # block -> (knowledge around it, knowledge in it)

    def _note(self, node: Node) -> None:
        match node:
            case Call():
                self.definitions.update((r, node) for r in node.results)
                if node.op is array_:
                    self.arrays.setdefault(array_of(node), node)
            case If(test=test, then=then, orelse=orelse, results=results):
                self.branch_values.update(zip(results, zip(then.yields, orelse.yields)))
                self.branch_conditions.update(dict.fromkeys(results, test))
                self._conditions[then] = partial(constraints_of_condition, self, test, True)
                self._conditions[orelse] = partial(constraints_of_condition, self, test, False)
            case For(index=index, body=body):
                self.loops[index] = node
                self._conditions[body] = partial(constraints_of_loop, self, node)
            case While(test=test, body=body):
                self._conditions[body] = partial(constraints_of_condition, self, test.yields[0], True)
        if isinstance(node, (For, While)):
            for carry, following in zip(node.carried, node.body.yields):
                self.carried[carry.inner] = self.carried[carry.result] = CarriedValue(carry.inner, carry.init,
                                                                                      following, node.body)

    @contextmanager
    def in_block(self, block: Block) -> Iterator[None]:
        """In the ``with`` block, the constraints that hold inside `block` are in force: of its branch or loop, and of
        ``tile.assume`` in it."""
        outer = self._known
        if self._inside.get(block, (None,))[0] is not outer:
            self._inside[block] = outer, self._knowledge_in(block)
        with self._with_knowledge(self._inside[block][1]):
            yield

    def _knowledge_in(self, block: Block) -> Knowledge:
        """What is known in `block`, given what is known around it."""
        conditions = [n.args[0] for n in block.nodes if isinstance(n, Call) and n.op is assumed]
        found = [((key, wrapping), finder) for wrapping in self.kinds for key, finder in (
            *self._conditions.get(block, lambda wrapping: ())(wrapping),
            *(p for c in conditions for p in constraints_of_condition(self, c, True, wrapping)))]
        if not found:
            return self._known
        lazy: dict[tuple[object, bool], LazyConstraint] = {}
        for key, finder in found:
            lazy.setdefault(key, LazyConstraint(self._known.constraints.get(key), self._known)).finders.append(finder)
        return Knowledge(self._known.constraints | lazy)

    @contextmanager
    def _with_knowledge(self, known: Knowledge) -> Iterator[None]:
        outer, self._known = self._known, known
        try:
            yield
        finally:
            self._known = outer

    def _constraint(self, key: object, wrapping: bool = False) -> Constraint:
        lazy = self._known.constraints.get((key, wrapping))
        return UNCONSTRAINED if lazy is None else self._force(lazy)

    def _force(self, lazy: LazyConstraint) -> Constraint:
        if lazy.found is None:
            # so far: a finder may ask for it
            lazy.found = UNCONSTRAINED if lazy.before is None else self._force(lazy.before)
            with self._with_knowledge(lazy.known):
                for finder in lazy.finders:
                    lazy.found &= finder()
        return lazy.found

    def key(self, operand: Operand) -> Any:
        """The identity under which constraints on an integer are kept.

        An extent is a new value wherever the kernel names it, and a widening cast is the same integer:
        each has one key.
        """
        call = self.definitions.get(operand)
        if call is not None and call.op is cast and keeps(element_type(call.args[0]), element_type(operand)):
            return self.key(call.args[0])
        return call.attrs["sym"] if call is not None and call.op is size_of else operand

    def sum_of(self, operand: Operand) -> tuple[object, int]:
        """An integer as (key, constant): their sum. The key of a constant is None, which stands for 0."""
        total = 0
        while True:
            operand = self.key(operand)
            if isinstance(operand, Const):
                return None, total + int(operand.value)
            call = self.definitions.get(operand)
            if (call is None or call.op not in (ew.add, ew.sub) or not isinstance(call.args[1], Const)
                or element_type(operand) not in INDICES):
                return operand, total
            total += int(call.args[1].value) * (1 if call.op is ew.add else -1)
            operand = call.args[0]

    def constant(self, operand: Operand) -> int | None:
        """The constant that a scalar, or every element of a tile, is known to be; None where it is not constant."""
        call, dtype = self.definitions.get(operand), element_type(operand)
        if not dtype.is_int:
            return None
        if isinstance(operand, Const):
            return int(operand.value)
        if call is None or call.op not in REPEATS and call.op is not cast:
            return None
        held, (least, most) = self.constant(call.args[0]), integer_range(dtype)
        return held if held is not None and least <= held <= most else None

    def divisor(self, operand: Operand) -> int:
        """The largest number known to divide an integer (for 0, which everything divides, a large power of two)."""
        if isinstance(operand, Const):
            return (abs(int(operand.value)) or 1 << 62) if operand.dtype.is_int else 1
        known = self._known
        if known.supposed and operand in known.supposed:
            return known.supposed[operand]
        if operand not in known.divisors:
            dtype = element_type(operand)
            constraints = self._constraint(self.key(operand)).divisor
            known.divisors[operand] = divisor_in(dtype, lcm(self._divisor(operand), constraints)) if dtype.is_int else 1
        return known.divisors[operand]

    def _divisor(self, value: Operand) -> int:
        if value in self.loops:
            loop = self.loops[value]
            return gcd(self.divisor(loop.start), self.divisor(loop.step))
        if value in self.branch_values:
            return gcd(*map(self.divisor, self.branch_values[value]))
        if value in self.carried:
            return self._carried_divisor(value)
        call, t = self.definitions.get(value), type_of(value)
        if call is None or not isinstance(t, Scalar) or not t.dtype.is_int:
            return 1
        divisor = self._divisor_of(call, [self.divisor(a)
                                          for a in call.args if a is not None and isinstance(type_of(a), Scalar)])
        if divisor & divisor - 1 == 0:  # wrapping preserves powers of two
            return divisor_in(t.dtype, divisor)
        known = t.dtype in INDICES and not wraps(t.dtype, *self._from_definition(value, False))
        return divisor_in(t.dtype, divisor) if known else gcd(divisor, 1 << t.dtype.bits)

    def _divisor_of(self, call: Call, parts: Sequence[int]) -> int:
        """The divisor of the result of a call whose operands have the divisors `parts`."""
        by = self.constant(call.args[1]) if len(call.args) == 2 else None
        match call.op:
            case ew.mul:
                return parts[0] * parts[1]
            case ew.add | ew.sub:
                return gcd(*parts)
            case ew.bit_or | ew.bit_xor:
                return gcd(*parts, 1 << 62)
            case ew.neg | casts.cast | generate.constant:
                return parts[0]
            case packed.byte_of:
                return count_units(call.attrs["dtype"], parts[0]) or 1
            case ew.minimum | ew.maximum | division.mod:
                return gcd(*parts)
            case ew.select:
                return gcd(*parts[1:])
            case ew.shl if by is not None and by >= 0:
                return parts[0] << min(by, 62)
            case division.floordiv | ew.shr if by is not None:
                if call.op is ew.shr:
                    by = 1 << min(by, 62) if by >= 0 else 0
                return parts[0] // abs(by) if by and parts[0] % by == 0 else 1
            case ew.bit_and:
                return max(part & -part for part in parts)
        return 1

    def bounds(self, operand: Operand, wrapping: bool = False) -> tuple[int | None, int | None]:
        """The least and the largest value that an integer can have; None where no bound is known.

        Index arithmetic is assumed not to wrap, because an index that wraps is an error of the kernel. With
        `wrapping` nothing is assumed: every integer is one of its dtype, so both bounds are known.
        """
        if isinstance(operand, Const):
            return (None, None) if operand.dtype.is_float else (int(operand.value), int(operand.value))
        key, intervals = (operand, wrapping), self._known.intervals
        if key not in intervals:
            dtype = element_type(operand)
            intervals[key] = None, None  # preliminary, for a carried value that depends on itself
            intervals[key] = (None, None) if dtype.is_float else self._interval(operand, dtype, wrapping)
        return intervals[key]

    def fits(self, start: Operand, extent: int, size: int | Sym) -> bool:
        """Whether the indices ``start .. start + extent - 1`` are all inside an array dimension of `size` (a
        number or a symbol)."""
        low, high = self.bounds(start)
        end = self.extent_behind(size)
        least = end if isinstance(end, int) else self._constraint(end).low
        if isinstance(end, Value):
            least = self.bounds(end)[0]
        if low is None or low < 0:
            return False
        if high is not None and least is not None and high + extent <= least:
            return True
        base, plus = self.sum_of(start)
        return self._provably_under(base, plus + extent, end, frozenset())

    def extent_behind(self, size: int | Sym) -> int | Sym | Value:
        """An extent of an array as a number, or as the key of an integer: for an array that the kernel makes from an
        address, that of the operand which gives the extent."""
        if isinstance(size, int) or isinstance(size.arg, int):
            return size
        found = self.key(number_behind(self.arrays[size.arg], size))
        return int(found.value) if isinstance(found, Const) else found

    def _provably_under(self, base: Any, n: int, size: int | Sym | Value, seen: frozenset[Any]) -> bool:
        """Whether ``base + n <= size`` follows from the constraints and from what loops carry,
        applied one after the other."""
        known = set(self._constraint(base).under)
        if base in self.carried and self._falls(base):
            init, plus = self.sum_of(self.carried[base].init)
            known.add((init, -plus))
        return any(other == size and apart >= n or other not in seen
                   and self._provably_under(other, n - apart, size, seen | {base}) for other, apart in known)

    def _interval(self, operand: Operand, dtype: DType, wrapping: bool) -> tuple[int | None, int | None]:
        low, high = self._from_definition(operand, wrapping)
        least, most = integer_range(dtype) if dtype.is_int else (0, 1)
        if wraps(dtype, low, high) or dtype not in INDICES and None in (low, high):
            low, high = least, most
        if wrapping:
            low, high = least if low is None else low, most if high is None else high
        if self._known.constraints:
            promise = self._constraint(self.key(operand), wrapping)
            return intersection((low, high), (promise.low, promise.high))
        return low, high

    def _from_definition(self, operand: Operand, wrapping: bool) -> tuple[int | None, int | None]:
        if operand in self.loops:
            loop = self.loops[operand]
            (low, _), (_, high) = self.bounds(loop.start, wrapping), self.bounds(loop.stop, wrapping)
            if not rises(loop):
                (_, high), (low, _) = self.bounds(loop.start, wrapping), self.bounds(loop.stop, wrapping)
                return (None if low is None else low + 1), high
            return low, (None if high is None else max(high - 1, low or 0))
        if operand in self.branch_values:
            return hull(*(self.bounds(side, wrapping) for side in self.branch_values[operand]))
        if operand in self.carried and not wrapping:
            return self._carried_bounds(operand)
        call = self.definitions.get(operand)
        if call is None or not isinstance(type_of(operand), Scalar):
            return None, None
        return self._bounds(call, wrapping)

    # -- loop-carried values -------------------------------------------------------------------------------------------

    def _knowledge_around(self, value: Operand) -> Knowledge:
        """What is known around the loop that carries a value. It holds in every trip,
        unlike what is known inside one."""
        return self._inside.get(self.carried[value].body, (self._at_top,))[0]

    def _carried_divisor(self, value: Operand) -> int:
        """The largest divisor of a carried value: it divides the initial value, and every trip preserves it.

        By induction, for all carried values that depend on each other at once: each is supposed to keep the divisor
        of its initial value, and the suppositions are weakened until they confirm themselves.
        """
        kept, supposed = self._knowledge_around(value).kept, self._known.supposed
        if value in kept:
            return kept[value]
        first = self.divisor(self.carried[value].init)
        if supposed is not None:
            return supposed.setdefault(value, first)
        found: dict[Operand, int] = {}
        supposed = {value: first}
        while found != supposed:
            found = dict(supposed)
            memos: dict[int, dict[Operand, int]] = {}
            for x in found:
                around = self._knowledge_around(x)
                with self._with_knowledge(replace(around, supposed=supposed,
                                                  divisors=memos.setdefault(id(around), {}))):
                    supposed[x] = gcd(found[x], self.divisor(self.carried[x].init),
                                      self.divisor(self.carried[x].following))
        for x, divisor in found.items():
            self._knowledge_around(x).kept[x] = divisor
        return found[value]

    def _carried_bounds(self, value: Operand) -> Bounds:
        low, high = self.bounds(self.carried[value].init)
        return low if self._rises(value) else None, high if self._falls(value) else None

    def _rises(self, value: Operand) -> bool:
        """Whether no trip of its loop decreases a carried value."""
        low, _ = self._change_per_trip(value)
        return low is not None and low >= 0

    def _falls(self, value: Operand) -> bool:
        """Whether no trip of its loop increases a carried value."""
        _, high = self._change_per_trip(value)
        return high is not None and high <= 0

    def _change_per_trip(self, value: Operand) -> Bounds:
        """Bounds of what one trip adds to a carried value."""
        carried = self.carried[value]
        return element_type(value) in INDICES and self._growth_since(carried.following, carried.inner) or (None, None)

    def _growth_since(self, operand: Operand, inner: Value) -> Bounds | None:
        """Bounds of ``operand - inner``, where the loop's body starts with `inner`; None where `operand` is not
        `inner` plus something."""
        around = self._knowledge_around(inner)
        if (operand, inner) not in around.growths:
            around.growths[operand, inner] = None
            with self._with_knowledge(around):
                around.growths[operand, inner] = self._growth_from_definition(operand, inner)
        return around.growths[operand, inner]

    def _growth_from_definition(self, operand: Operand, inner: Value) -> Bounds | None:
        if operand is inner:
            return 0, 0
        if operand in self.branch_values:
            one, other = (self._growth_since(side, inner) for side in self.branch_values[operand])
            return one and other and hull(one, other)
        if operand in self.carried:
            first = self._growth_since(self.carried[operand].init, inner)
            return first and (first[0] if self._rises(operand) else None, first[1] if self._falls(operand) else None)
        call = self.definitions.get(operand)
        if call is None:
            return None
        op = call.op
        if op is cast and keeps(element_type(call.args[0]), element_type(operand)):
            return self._growth_since(call.args[0], inner)
        if op not in (ew.add, ew.sub):
            return None
        for x, y in (call.args, call.args[::-1])[:2 if op is ew.add else 1]:
            before = self._growth_since(x, inner)
            if before is not None:
                return interval(op, before, self.bounds(y))
        return None

    def _bounds(self, call: Call, wrapping: bool) -> tuple[int | None, int | None]:
        op = call.op
        if op in IDS:
            return 0, IDS[op](self.graph.launch.threads) - 1
        if op is ids.cta_rank:
            return 0, prod(self.graph.launch.cluster or (1,)) - 1
        if op in (ids.program_id, program_at, ids.cluster_id, ids.relative_thread_id):
            return 0, None
        if op is ids.num_programs or (op is size_of and call.attrs["sym"].kind == "size"):
            return int(op is ids.num_programs), None
        if op is ring_slot:
            return 0, call.attrs["stages"] - 1
        if op in (cast, generate.constant):
            return self.bounds(call.args[0], wrapping)
        if op is packed.byte_of:
            (low, high), (elements, per) = self.bounds(call.args[0], wrapping), call.attrs["dtype"].packing
            return None if low is None else low // elements * per, None if high is None else high // elements * per
        if op is ew.select:
            return hull(self.bounds(call.args[1], wrapping), self.bounds(call.args[2], wrapping))
        if op not in ARITHMETIC:
            return None, None
        one, other = (self.bounds(x, wrapping) for x in call.args)
        return interval(op, one, other)
