"""Write out the products of ``dot`` that go through tensor memory.

One thread of the scope issues the product and commits it; the commit arrives on a barrier of the scope, and all
threads load the accumulator once they have waited for that. An accumulator that a loop only hands from product to
product stays in tensor memory until the loop is over. A pipelined loop that does nothing but multiply waits only at
its end; passes/pipelining/pipeline.py adds the commits that release its slots. PTX ISA, "tcgen05.mma".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from ...dispatch import Choice, choose, reasons
from ...dtypes import DType, bfloat16, bool_, int32
from ...ir.builder import ExecScope, as_value, element_type, extents_of, memory_type, type_as
from ...ir.graph import (
    Block,
    Call,
    Carry,
    Const,
    For,
    If,
    Node,
    Operand,
    Scope,
    Value,
    While,
    blocks,
    number,
    operands,
    rises,
    walk,
)
from ...ir.op_rules import require_rule
from ...layout import TileLayout
from ...ops.language.operators import compare
from ...ops.language.promotion import coerce, convert
from ...ops.memory.access_ops import store_
from ...ops.memory.regions import whole_region
from ...ops.memory.shared import sync, widest_swizzle
from ...ops.mma.dot import dot_
from ...ops.mma.dot_tensor import (
    DOT,
    factors_in_shared,
    factors_shape,
    kind_of,
    left_layout,
    left_shape,
    sums_layout,
    units,
)
from ...ops.mma.site import MmaSite, types_as_multiplied
from ...ops.mma.tcgen05 import tensor_mma
from ...ops.mma.tcgen05_kinds import KINDS
from ...ops.mma.tcgen05_operands import scale_layout
from ...ops.moves.copy_async import copy_async_
from ...ops.structure.alloc import alloc
from ...ops.structure.subscripts import getitem
from ...ops.sync import barriers as bars
from ...ops.sync.barriers import fence_proxy_async
from ...ops.sync.pipeline import pipeline_slot
from ...ops.tiles.generate import splat
from ...ops.tmem.alloc import COLUMNS, LANES, alloc_tmem, allocate, dealloc_tmem
from ...ops.tmem.ldst import tmem_load, tmem_store
from ...ops.tmem.order import tcgen05_commit_, tcgen05_fence
from ...types import Barrier, Buffer, Region, Scalar, Tile, layout_of
from ..analysis.context import Context
from ..analysis.writing import Writer
from ..placement.tensor_memory import columns_needed
from .staged_operands import StagedOperand

WITH_FACTORS = "tcgen05 with scale factors"  # what a choice without them names as declined
MOVE: dict[str, Any] = {"shape": None, "pack": None, "wait": True}


@dataclass(eq=False)
class KeptAccumulator:
    """An accumulator that stays in tensor memory over a loop: its `place`, whether the product at hand adds to what
    is there (`adds`), and whether the loop waits for it."""

    place: Value
    adds: Callable[[], Operand]
    waits: bool = True


@dataclass(frozen=True)
class FactorPlaces:
    """The buffers of an operand's scale factors in shared and in tensor memory."""

    shared: Value
    tensor: Value


if TYPE_CHECKING:
    class _Walk(Protocol):
        """What passes/products/dots.py sets up."""

        context: Context
        g: Writer
        new: dict[Value, Operand]
        written: Callable[[Operand], bool]

        buffers: dict[tuple[Any, ...], Value]

        def all(self, operands: Iterable[Operand]) -> tuple[Operand, ...]: ...
        def in_memory(self, first: object, *operands: Value, fence: bool = False,
                      held: Mapping[Value, Tile] | None = None) -> list[Value]: ...
        def block(self, block: Block) -> Block: ...
        def node(self, node: Node) -> None: ...
        def set_origin(self, choice: Choice) -> None: ...
        def stage_operands(self, call: Call) -> tuple[Call, tuple[StagedOperand, ...]]: ...
else:
    _Walk = object


class TensorDots(_Walk):
    """The part of passes/products/dots.py that uses tensor memory."""

    def prepare(self) -> None:
        self.context.tensor_room = self.room
        self.allocations = [c for c in self.context.calls if c.op is alloc_tmem]
        self.freed = {c.args[0] for c in self.context.calls if c.op is dealloc_tmem}
        # the compiler's own allocations, by scope and (role, dtype, shape, layout)
        self.places: dict[tuple[Any, ...], list[Value]] = {}
        self.in_use: set[Value] = set()                # those that hold the accumulator of a loop around
        self.commit_barriers: dict[tuple[Any, ...], Value] = {}  # by scope
        self.kept: dict[Value, KeptAccumulator] = {}   # by the result of a product
        self.choices: dict[Value, Choice] = {}
        self.uses = Counter(o for n in walk(self.context.graph.body) for o in _read(n) if isinstance(o, Value))

    # -- tensor memory -------------------------------------------------------------------------------------------------

    def room(self, s: MmaSite) -> bool | str:
        """Whether tensor memory has room for a product; if not, a string that says why."""
        if any(c.attrs["cta_group"] == 2 for c in self.allocations):
            return "the kernel allocates tensor memory for pairs of CTAs (cta_group=2)"
        wanted: list[tuple[str, DType, tuple[int, ...], TileLayout]] = [
            ("sums", s.dtype, (s.m, s.n), sums_layout(s.m, s.n, s.dtype))]
        if s.factors is not None:
            wanted += [factors_place(n, rows, s) for n, rows in enumerate((s.m, s.n))]
        elif isinstance(s.a, Tile):
            wanted.append(("a", s.a.dtype, s.a.shape, left_layout(s.m, s.k)))
        new = [w for w in wanted if self.unused_allocation(w) is None]
        columns = columns_needed(
            [(c.attrs["dtype"], layout_of(type_as(c.result, Buffer)), c.result in self.freed)
             for c in self.allocations]
            + [(dtype, layout, False) for _, dtype, _, layout in new])
        return columns <= COLUMNS or f"{columns} columns together with the kernel's own, of {COLUMNS}"

    def unused_allocation(self, what: tuple[Any, ...]) -> Value | None:
        """An allocation of the compiler's in this scope that nothing uses."""
        return next((v for v in self.places.get((_place(self.context.scope), what), ()) if v not in self.in_use), None)

    def allocation_for(self, role: str, dtype: DType, shape: tuple[int, ...], layout: TileLayout) -> Value:
        """An unused allocation of this role and shape, made if there is none."""
        what = role, dtype, shape, layout
        found = self.unused_allocation(what)
        if found is None:
            found = allocate(self.g, shape, dtype, layout, 1)
            self.allocations.append(self.g.definitions[found])
            self.places.setdefault((_place(self.context.scope), what), []).append(found)
        return found

    def sums(self, t: Tile) -> Value:
        rows, columns = t.shape
        return self.allocation_for("sums", t.dtype, t.shape, sums_layout(rows, columns, t.dtype))

    def load(self, place: Value, name: str) -> Value:
        loaded: Value = self.g.call(tmem_load, whole_region(self.g, place), name=name, **MOVE)
        self.set_origin(Choice("dot", None))  # copy records leave it out: it is not the kernel's own
        return loaded

    def store(self, place: Value, tile: Operand, shape: str | None = None) -> None:
        self.g.call(tmem_store, whole_region(self.g, place), tile, **{**MOVE, "shape": shape})
        self.set_origin(Choice("dot", None))

    # -- order ---------------------------------------------------------------------------------------------------------

    def scope_barrier(self) -> tuple[Value, Operand]:
        """The barrier on which the scope's commits arrive, and the parity of the phase that the next commit completes.

        No commit is outstanding, so the barrier itself tells the parity:
        it is 1 if the last completed phase has parity 0.
        """
        place = _place(self.context.scope)
        if place not in self.commit_barriers:
            made = Value("products", Barrier(1, 1), self.g.loc)
            self.g.hoist(Call(bars.mbarrier_init, (), {"count": 1, "n": 1}, (made,), self.g.loc))
            self.commit_barriers[place] = made
        barrier: Value = self.g.call(bars.mbarrier_at, self.commit_barriers[place], Const(0, int32), peer=False)
        return barrier, convert(self.g, self.g.call(bars.test_op, barrier, Const(0, int32)), int32)

    def run_elected(self, body: Callable[[], None]) -> None:
        """Run `body` by one thread of the scope, always the same."""
        with self.g.block() as nodes:
            body()
        self.g.append(Scope("elect", None, 1, Block(tuple(nodes)), self.g.loc))

    def after_the_threads(self) -> None:
        """Order what the elected thread issues after what all threads of the scope have done."""
        self.g.call(tcgen05_fence, side="before_thread_sync")
        self.g.call(sync)

    def await_commit(self, barrier: Value, parity: Operand) -> None:
        """Wait for all that the commit on `barrier` covers."""
        self.g.call(bars.mbarrier_wait, barrier, parity)
        self.g.call(tcgen05_fence, side="after_thread_sync")

    def order_operands(self, *matrices: Value) -> bool:
        """Fence what threads have written for the tensor cores, before the scope's next barrier.
        Whether that was needed."""
        if any(map(self.written, matrices)):
            self.g.call(fence_proxy_async)
            return True
        return False

    # -- one product ---------------------------------------------------------------------------------------------------

    def by_tensor_memory(self, call: Call, choice: Choice) -> Value | None:
        """Issue a product and wait for it. Returns the accumulator in registers,
        or None where a loop keeps it in tensor memory."""
        acc, a, b = call.args[0], as_value(call.args[1]), as_value(call.args[2])
        kept = self.kept.get(call.result)
        if kept is not None and not kept.waits:
            self.run_elected(lambda: self.issue(call, choice, kept.place, a, b, kept.adds()))
            return None
        place = kept.place if kept is not None else self.sums(type_as(call.result, Tile))
        self.order_operands(a, b)
        factors: list[FactorPlaces] = []
        if len(call.args) > 3:
            held = {x: t for x, t in zip((a, b), types_as_multiplied(call)) if isinstance(t, Tile)}
            a, b = self.in_memory("scaled", a, b, held=held)
            factors = self.store_factors(call)
        elif isinstance(a.type, Tile):
            a = self.in_tensor_memory(a)
        if kept is None and acc is not None:
            self.store(place, acc)
        adds = kept.adds() if kept is not None else Const(acc is not None, bool_)
        barrier, parity = self.scope_barrier()
        self.after_the_threads()

        def issue() -> None:
            self.g.call(tcgen05_fence, side="after_thread_sync")
            for scales in factors:
                self.g.call(copy_async_, whole_region(self.g, scales.tensor), whole_region(self.g, scales.shared), None,
                            options={})
            self.issue(call, choice, place, a, b, adds, factors)
            self.g.call(tcgen05_commit_, barrier, cta_group=1)
        self.run_elected(issue)
        self.await_commit(barrier, parity)
        return self.load(place, call.result.name) if kept is None else None

    def in_tensor_memory(self, a: Value) -> Value:
        """An `a` operand in registers, stored to tensor memory."""
        t = type_as(a, Tile)
        rows, k = t.shape
        place = self.allocation_for("a", t.dtype, t.shape, left_layout(rows, k))
        self.store(place, a, left_shape(rows, t.dtype.bits))
        return whole_region(self.g, place)

    def store_factors(self, call: Call) -> list[FactorPlaces]:
        """Store the scale factors of a and b to shared memory, from where the thread that multiplies copies them to
        tensor memory. Earlier copies are over, since all threads have waited for the products after them."""
        site, places = require_rule(dot_.rules.site)(self.context, call), []
        for n, (rows, factors) in enumerate(zip((site.m, site.n), map(as_value, call.args[3:]))):
            _, dtype, shape, layout = what = factors_place(n, rows, site)
            key = "factors", n, dtype, shape, _place(self.context.scope)
            if key not in self.buffers:
                self.buffers[key] = alloc.function(self.g, shape, dtype, layout=factors_in_shared(shape))
            made = FactorPlaces(self.buffers[key], self.allocation_for(*what))
            rows, blocks = extents_of(factors)
            self.store_part(made.shared, (slice(0, rows), slice(0, blocks)), factors)
            self.store_part(made.shared, (slice(0, rows), slice(blocks, shape[1])))
            self.store_part(made.shared, (slice(rows, shape[0]), slice(0, shape[1])))
            places.append(made)
        self.g.call(fence_proxy_async)
        return places

    def store_part(self, buffer: Value, part: tuple[slice, slice], tile: Value | None = None) -> None:
        """Store a tile, by default of zeros, to a part of a buffer that may be empty."""
        shape = tuple(s.stop - s.start for s in part)
        if 0 in shape:
            return
        if tile is None:
            tile = self.g.call(splat, coerce(self.g, 0, Scalar(element_type(buffer))), shape=shape)
        self.g.call(store_, getitem(self.g, buffer, part), tile, None, cache=None, each_thread=False)

    def issue(self, call: Call, choice: Choice, place: Value, a: Value, b: Value, adds: Operand,
              factors: Sequence[FactorPlaces] = ()) -> None:
        """Issue the instructions of a product, for each 128 rows, or for 64, and for each unit of scale factors."""
        t, m = call.attrs, type_as(call.result, Tile).shape[0]
        site = require_rule(dot_.rules.site)(self.context, call)
        named = kind_of(site)
        assert not isinstance(named, str), named
        kind, types = named
        for first in range(0, m, LANES):
            rows = slice(first, first + LANES) if m > LANES else slice(None)
            part = self.cut(a, rows, slice(None), t["trans_a"])
            sums = getitem(self.g, place, (rows, slice(None)))
            if not factors:
                self.g.call(tensor_mma, sums, part, b, adds, trans_a=t["trans_a"], trans_b=t["trans_b"], kind=kind,
                            types=types, block=None, options={"variant": "tcgen05"})
                self.set_origin(choice)
                continue
            for unit in units(site):
                along = slice(unit.first, unit.first + unit.extent)
                x = self.cut(part, slice(None), along, t["trans_a"])
                y = self.cut(b, slice(None), along, not t["trans_b"])
                blocks = slice(unit.block, unit.block + unit.blocks)
                scales = [getitem(self.g, f.tensor, (slice(begin, begin + extent), blocks)) for f, begin, extent
                          in zip(factors, (first, 0), (min(m, LANES), -(-site.n // 32) * 32))]
                self.g.call(tensor_mma, sums, x, y, adds if unit.first == 0 else Const(True, bool_), *scales,
                            trans_a=t["trans_a"], trans_b=t["trans_b"], kind=kind, types=types,
                            block=site.factors.block, options={"variant": "tcgen05"})
                self.set_origin(choice)

    def cut(self, matrix: Value, rows: slice, along: slice, turned: bool) -> Value:
        """Part of an operand's rows (columns of b), and of k."""
        if rows == along == slice(None):
            return matrix
        return as_value(getitem(self.g, matrix, (along, rows) if turned else (rows, along)))

    def chosen_for(self, call: Call) -> Choice:
        """The lowering of a `dot`."""
        if call.result in self.choices:
            return self.choices[call.result]
        site = require_rule(dot_.rules.site)(self.context, self.stage_operands(call)[0])
        if site.factors is not None and (missing := reasons(DOT, site)):
            choice = choose("dot", dot_.variants, dequantised_site(site), loc=call.loc)
            why = WITH_FACTORS, "; ".join(miss.words for miss in missing)
            return replace(choice, declined=(why, *choice.declined))
        choice = choose("dot", dot_.variants, site, only=call.attrs["options"]["variant"], loc=call.loc)
        missing = call.attrs["options"].get("without_factors")
        return replace(choice, declined=((WITH_FACTORS, missing), *choice.declined)) if missing else choice

    # -- accumulators that stay over a loop ----------------------------------------------------------------------------

    def loop(self, node: For | While) -> None:
        """A loop. Accumulators that it only hands from product to product stay in tensor memory,
        instead of being carried."""
        self.g.loc = node.loc
        kept: dict[int, Value] = {}
        adds: dict[int, bool] = {}
        for n, dots in self.chains(node).items():
            choices = [self.chosen_for(d) for d in dots]
            if any(c.variant != "tcgen05" for c in choices):
                continue
            self.choices.update((d.result, c) for d, c in zip(dots, choices))
            kept[n] = place = self.sums(type_as(dots[0].result, Tile))
            self.in_use.add(place)
            begins = isinstance(node, For) and self.is_zero(node.carried[n].init)
            if not begins:
                self.store(place, self.all([node.carried[n].init])[0])

            def constant_true() -> Operand:
                return Const(True, bool_)

            self.kept.update((d.result, KeptAccumulator(place, constant_true)) for d in dots)
            if begins and isinstance(node, For):
                self.kept[dots[0].result].adds = lambda: compare(self.g, "!=", node.index, node.start)
            adds[n] = not begins
        after = self.without_waits(node) if kept else None
        rest = [n for n in range(len(node.carried)) if n not in kept]
        carried = tuple(Carry(self.all([node.carried[n].init])[0], node.carried[n].inner, node.carried[n].result)
                        for n in rest)
        self.g.append(self.with_body(node, carried, rest))
        if after is not None:
            after()
        for n, place in kept.items():
            self.new[node.carried[n].result] = self.loop_result(node, node.carried[n], place, adds[n])
            self.in_use.discard(place)

    def with_body(self, node: For | While, carried: tuple[Carry, ...], rest: list[int]) -> For | While:
        with self.g.block() as nodes:
            for inner in node.body.nodes:
                self.node(inner)
        body = Block(tuple(nodes), self.all(node.body.yields[n] for n in rest))
        node = replace(node, carried=carried, body=body)
        return replace(node, test=self.block(node.test)) if isinstance(node, While) else node

    def chains(self, node: For | While) -> dict[int, list[Call]]:
        """{number of a carried value: products}, for values that the loop only hands from product to product.

        Those products stand directly in its body, each consumes the result of the one before,
        and the last one's is yielded.
        """
        by_acc = {n.args[0]: n for n in node.body.nodes
                  if isinstance(n, Call) and n.op is dot_ and isinstance(n.args[0], Value)}
        found: dict[int, list[Call]] = {}
        for n, (c, following) in enumerate(zip(node.carried, node.body.yields)):
            dots: list[Call] = []
            at = c.inner
            while self.uses[at] == 1 and at in by_acc:
                dots.append(by_acc[at])
                at = dots[-1].result
            if dots and at is following and self.uses[at] == 1:
                found[n] = dots
        return found

    def is_zero(self, x: Operand) -> bool:
        call = self.context.definitions.get(x)
        return call is not None and call.op is splat and isinstance(call.args[0], Const) and call.args[0].value == 0

    def without_waits(self, node: For | While) -> Callable[[], None] | None:
        """Let a pipelined loop that does nothing but multiply matrices in shared memory wait for its
        products at its end only.

        Returns what writes that wait behind the loop; None for any other loop.
        """
        dots = [n for n in node.body.nodes if isinstance(n, Call) and n.op is dot_]
        def is_allowed(n: Node) -> bool:
            return isinstance(n, Call) and (n.op.effect == "pure" or n.op in (dot_, pipeline_slot) or _is_staged(n))
        if not isinstance(node, For) or node.pipeline is None or not all(map(is_allowed, node.body.nodes)):
            return None
        if any(d.result not in self.kept or len(d.args) > 3 for d in dots):
            return None
        matrices = [as_value(x) for d in dots for x in d.args[1:]]
        if any(not isinstance(x.type, Region) for x in matrices):
            return None
        for d in dots:
            self.kept[d.result].waits = False
        self.order_operands(*matrices)
        barrier, parity = self.scope_barrier()
        self.after_the_threads()
        self.run_elected(lambda: self.g.call(tcgen05_fence, side="after_thread_sync"))

        def await_products() -> None:
            self.g.loc = node.loc
            self.run_elected(lambda: self.g.call(tcgen05_commit_, barrier, cta_group=1))
            self.await_commit(barrier, parity)
        return await_products

    def loop_result(self, node: For | While, c: Carry, place: Value, stored: bool) -> Operand:
        """The accumulator that a loop leaves in tensor memory. If the initial value is not `stored` there and the
        loop runs no trip, it is that."""
        g = self.g
        if stored:
            return self.load(place, c.result.name)
        assert isinstance(node, For)
        bounds = node.start, node.stop, node.step
        if all(isinstance(x, Const) for x in bounds) and len(range(*map(number, bounds))):
            return self.load(place, c.result.name)
        trips = compare(g, "<" if rises(node) else ">", node.start, node.stop)
        if isinstance(trips, bool):
            return self.load(place, c.result.name) if trips else c.init
        with g.block() as nodes:
            loaded = self.load(place, c.result.name)
        made = Value(c.result.name, c.result.type, g.loc)
        g.append(If(trips, Block(tuple(nodes), (loaded,)), Block((), self.all([c.init])), (made,), g.loc))
        return made


def dequantised_site(s: MmaSite) -> MmaSite:
    """The site of a product with scale factors if its elements are multiplied by them first, in bfloat16."""
    operands: list[Tile | Region] = []
    for x, stored in ((s.a, s.m > LANES or s.trans_a), (s.b, True)):
        packed = s.factors is not None and KINDS[s.factors.kind].k == 64
        shape = (x.shape[0], x.shape[1] * 2) if packed else (x.shape[0], x.shape[1])
        buffer = Buffer(bfloat16, shape, "shared", widest_swizzle(bfloat16, shape))
        operands.append(Region(buffer, shape, (0, 1)) if stored else Tile(bfloat16, shape))
    starts = tuple((0, 0) if isinstance(x, Region) else () for x in operands)
    return replace(s, a=operands[0], b=operands[1], a_starts=starts[0], b_starts=starts[1], a_align=1024, b_align=1024,
                   factors=None)


def factors_place(operand: int, rows: int, s: MmaSite) -> tuple[str, DType, tuple[int, int], TileLayout]:
    """(role, dtype, shape, layout) of the allocation in tensor memory for the scale factors of an operand."""
    assert s.factors is not None
    shape = factors_shape(rows, sum(u.blocks for u in units(s)))
    return f"factors of {'ab'[operand]}", s.factors.dtype, shape, scale_layout(*shape)


def _is_staged(call: Call) -> bool:
    """Whether a call is a copy that its pipelined loop issues ahead."""
    return (call.op is copy_async_ and call.args[2] is None and not call.attrs["options"].get("token")
            and memory_type(call.args[1]).scope == "global")


def _read(node: Node) -> list[Operand]:
    """The operands of a node, and what its blocks yield."""
    return [*operands(node), *(y for b in blocks(node) for y in b.yields)]


def _place(scope: ExecScope | None) -> tuple[Any, ...]:
    """A key of the scope: its kind, place and size, and those of the scopes around it."""
    if scope is None:
        return ()
    return scope.kind, scope.first, scope.threads, scope.elected, *_place(scope.parent)


__all__ = ["TensorDots"]
