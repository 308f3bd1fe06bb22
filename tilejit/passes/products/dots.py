"""Choose the lowering of every ``dot`` and write it out in the operations of that lowering.

By wgmma it is an asynchronous product that is started, committed and awaited; through tensor memory
(passes/products/tensor_dots.py) one that a single thread starts and commits. By mma.sync it is products of register
tiles, which are loaded from shared memory a few instructions' worth of k at a time; by threads (fma), sums over k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ...dispatch import Choice
from ...dtypes import DType, int32
from ...errors import CompilationError, at
from ...ir.builder import ExecScope, Facts, as_value, element_type, extents_of, type_as, type_of
from ...ir.graph import Block, Call, Const, For, Graph, If, Node, Operand, Scope, Value, While, walk
from ...layout import reg_count
from ...ops.language.operators import binary
from ...ops.language.promotion import convert
from ...ops.memory.access_ops import load_, store_
from ...ops.memory.packed import as_bytes, unpack
from ...ops.memory.regions import whole_region
from ...ops.memory.shared import sync, widest_swizzle
from ...ops.mma import mma_async_, mma_commit, mma_wait, warp
from ...ops.mma.dot import dot_
from ...ops.mma.dot_scaled import times_factors
from ...ops.mma.tcgen05_kinds import PADDED
from ...ops.mma.thread import WRITTEN_OUT, thread_product
from ...ops.mma.warp import SHAPES, arrangement, fragment, mma_
from ...ops.mma.wgmma import OTHER_REGISTERS, a_registers, division
from ...ops.structure.alloc import alloc
from ...ops.structure.subscripts import getitem
from ...ops.sync.barriers import fence_proxy_async
from ...ops.tiles.generate import splat
from ...ops.tmem.alloc import LANES
from ...types import Tile, layout_of
from ..analysis.context import Context, written_by_threads
from ..analysis.program_slices import without_dead_code
from ..analysis.writing import Writer
from ..layouts.layout_choice import reduced_axes
from .products_in_flight import defer_waits
from .staged_operands import StagedOperand, StagedOperands
from .tensor_dots import WITH_FACTORS, TensorDots

OPERAND_REGISTERS = 64  # the most registers of a thread for operands that are loaded at a time


def write_dots(graph: Graph, facts: Facts) -> Graph:
    """The graph without `dot` calls. Each product that comes of one carries the record of its choice."""
    products = [n for n in walk(graph.body) if isinstance(n, Call) and n.op is dot_]
    if not products:
        return graph
    pass_ = _Dots(Context(graph, facts))
    body = defer_waits(pass_.block(graph.body))
    # nothing takes the matrices that batches were cut into, nor the elements where a product takes packed bytes
    if pass_.operands.whole_batches or any("kind" in c.attrs["options"] for c in products):
        body = without_dead_code(body)
    return replace(graph, body=pass_.g.with_hoisted(body))


class _Dots(TensorDots):
    """The walk that replaces every `dot`. `new` maps the values of the old graph to the operands that replace them."""

    def __init__(self, context: Context):
        self.context = context
        self.g = Writer.of(context)
        self.new: dict[Value, Operand] = {}
        self.by_rows = {shape for shape, axes in reduced_axes(context).items() if 1 in axes}
        self.by_rows |= {t.shape for c in context.calls
                         if c.op is dot_ and isinstance(t := type_of(c.args[1]), Tile) and not c.attrs["trans_a"]}
        self.written = written_by_threads(context)
        self.operands = StagedOperands(context, self.g, self.all)
        # of operands that a product of the threads takes from memory, by (operand, dtype, shape, scope)
        self.buffers: dict[tuple[Any, ...], Value] = {}
        self.prepare()

    def block(self, block: Block) -> Block:
        there = self.operands.present
        with self.g.block() as nodes:
            for node in block.nodes:
                self.node(node)
        self.operands.present = there
        return Block(tuple(nodes), self.all(block.yields))

    def all(self, operands: Iterable[Operand]) -> tuple[Operand, ...]:
        return tuple(self.new.get(o, o) if isinstance(o, Value) else o for o in operands)

    def node(self, node: Node) -> None:
        match node:
            case Call() if node.op is dot_:
                with at(node.loc):
                    self.g.loc = node.loc
                    self.new[node.result] = self.dot(node)
            case Call():
                self.g.append(replace(node, args=self.all(node.args)))
            case For() | While():
                self.g.loc = node.loc
                if not self.unknown_place() and self.context.scope.threads % 32 == 0:
                    self.operands.store(self.operands.from_outside(node))
                self.loop(node)
            case If():
                self.g.append(replace(node, then=self.block(node.then), orelse=self.block(node.orelse)))
            case Scope():
                with self.context.in_scope_of(node):
                    self.g.scope = self.context.scope
                    self.g.append(replace(node, body=self.block(node.body)))
                self.g.scope = self.context.scope

    # -- one product ---------------------------------------------------------------------------------------------------

    def dot(self, call: Call) -> Operand:
        made, stored = self.stage_operands(call)
        call = replace(made, args=self.all(made.args))
        choice = self.chosen_for(call)
        self.operands.store(stored)
        lowerings: dict[str, Callable[[Call, Choice], Operand]] = {
            "wgmma": self.by_warpgroups, "tcgen05": self.by_tensor_memory, "mma_sync": self.by_warps,
            "fma": self.by_threads}
        if len(call.args) > 3 and any(name == WITH_FACTORS for name, _ in choice.declined):
            call = self.dequantise(call)
        return lowerings[choice.variant](call, choice)

    def dequantise(self, call: Call) -> Call:
        """A product with scale factors as one of bfloat16 (`dequantised_site`)."""
        t = call.attrs["options"]
        operands: list[Value] = []
        for name, x, named, scale, k_first in zip("ab", call.args[1:3], t["types"], call.args[3:],
                                                  (call.attrs["trans_a"], not call.attrs["trans_b"])):
            x = as_value(x)
            if not isinstance(x.type, Tile):
                x = as_bytes(self.g, x) if element_type(x).padded else x
                x = self.g.call(load_, x, Const(0, element_type(x)), None, cache=None)
            if named in PADDED:
                x = unpack(self.g, x, PADDED[named].element)
            operands.append(times_factors(self.g, name, x, scale, k_first, t["block"], "plain"))
        kept = [] if call.attrs["trans_a"] or extents_of(operands[0])[0] > LANES else operands[:1]
        stored = self.in_memory("dequantised", *operands[len(kept):], fence=True)
        for x in stored:
            region = self.g.definitions[x]
            self.context.definitions |= {x: region, region.args[0]: self.g.definitions[as_value(region.args[0])]}
        return replace(call, args=(call.args[0], *kept, *stored),
                       attrs={**call.attrs, "options": {"variant": None}})

    def stage_operands(self, call: Call) -> tuple[Call, tuple[StagedOperand, ...]]:
        """A product with its operands staged in shared memory, and what must be stored before it."""
        if self.unknown_place() or self.context.scope.threads % 32:
            return call, ()
        return self.operands.operands_of(call)

    def by_warpgroups(self, call: Call, choice: Choice) -> Value:
        acc, a, b = call.args[0], as_value(call.args[1]), as_value(call.args[2])
        t, sums = call.attrs, type_as(call.result, Tile)
        if isinstance(a.type, Tile) and self.is_shared_among_warpgroups(call, a.type):
            a, = self.in_memory(call.result, a, fence=True)
        else:
            moved = self.exceeds_registers(sums, a)
            if moved:
                a, = self.in_memory(call.result, a)
                self.g.call(fence_proxy_async)
            if self.order_operands(as_value(call.args[1]), b) or moved:
                self.g.call(sync)
        result: Value = self.g.call(mma_async_, acc, a, b, name=call.result.name, trans_a=t["trans_a"],
                                    trans_b=t["trans_b"], dtype=t["dtype"], precision=t["precision"],
                                    options={"variant": "wgmma"})
        self.set_origin(choice)
        self.g.call(mma_commit)
        self.g.call(mma_wait, n=0)
        return result

    def is_shared_among_warpgroups(self, call: Call, a: Tile) -> bool:
        """Whether warpgroups that divide the columns of a product need the same rows of an `a` in registers, and shared
        memory has room for it. Its tensor cores read it there; otherwise each thread exchanges elements with others
        until each of these warpgroups has a copy in registers."""
        sums = type_as(call.result, Tile)
        divided = division(sums.dtype, (sums.shape[0], sums.shape[1]), self.context.scope.threads)
        return divided is not None and divided[1] > 1 and not self.unknown_place() and self.operands.reserve(a)

    def exceeds_registers(self, sums: Tile, a: Value) -> bool:
        """Whether a thread's registers cannot hold the accumulators of a wgmma and an `a` operand at once."""
        if not isinstance(a.type, Tile) or self.unknown_place():
            return False
        threads = self.context.scope.threads
        held = a_registers(a.type.dtype, a.type.shape, sums, threads)
        copies = 1 if held is None else reg_count(layout_of(held)) * threads // a.type.size
        words = (sums.size * sums.dtype.bits + a.type.size * copies * a.type.dtype.bits) // (32 * threads)
        return words + OTHER_REGISTERS >= self.context.registers

    def set_origin(self, choice: Choice) -> None:
        """Say of the call written last that it comes of this choice."""
        nodes = self.g.blocks[-1]
        product = nodes[-1]
        assert isinstance(product, Call)
        nodes[-1] = replace(product, origin=choice)

    def by_warps(self, call: Call, choice: Choice) -> Operand:
        """By mma.sync: both operands in registers at once, or a step of k at a time from shared memory."""
        acc, a, b = call.args[0], as_value(call.args[1]), as_value(call.args[2])
        t, result = call.attrs, type_as(call.result, Tile)
        k = extents_of(a)[0 if t["trans_a"] else 1]
        warps = self.warps(call)
        kinds = self.multiplied_as(call)
        a, b = (as_value(convert(self.g, x, kind)) if isinstance(x.type, Tile) else x for x, kind in zip((a, b), kinds))
        a, b = self.unless_large("a", a, t["trans_a"], warps), self.unless_large("b", b, t["trans_b"], warps)
        both = isinstance(a.type, Tile) and isinstance(b.type, Tile)
        step = k if both else self.k_of_a_step(call, warps)
        for first in range(0, k, step):
            width = min(step, k - first)
            x = a if isinstance(a.type, Tile) else self.load_operand("a", a, t["trans_a"], first, width, kinds[0])
            y = b if isinstance(b.type, Tile) else self.load_operand("b", b, t["trans_b"], first, width, kinds[1])
            acc = self.g.call(mma_, acc, x, y, name=call.result.name, trans_a=t["trans_a"], trans_b=t["trans_b"],
                              dtype=result.dtype, k=width, a_at=first if x is a else 0, b_at=first if y is b else 0,
                              warps=warps)
            self.set_origin(choice)
        return acc

    def warps(self, call: Call) -> tuple[int, int]:
        """How many warps divide the rows and the columns of the result.

        Warps make whole rows where `a` comes row by row from registers, or where the result is reduced along rows or
        is itself shaped like such an `a`.
        """
        shape = type_as(call.result, Tile).shape
        rows = isinstance(type_of(call.args[1]), Tile) or shape in self.by_rows
        warps, bits = self.context.scope.threads // 32, self.multiplied_as(call)[0].bits
        return arrangement((shape[0], shape[1]), warps, bits, rows)

    def multiplied_as(self, call: Call) -> tuple[DType, DType]:
        """The dtypes in which the target's instructions multiply a and b."""
        a, b = (element_type(x) for x in call.args[1:])
        return warp.multiplied_as(a, b, self.context.target), warp.multiplied_as(b, a, self.context.target)

    def unless_large(self, operand: str, x: Value, transposed: bool, warps: tuple[int, int]) -> Value:
        """An operand as it is, or in shared memory if a thread would have to hold too much of it at once."""
        if not isinstance(x.type, Tile) or self.unknown_place():
            return x
        held = fragment(x.type, operand, x.type.dtype.bits, warps, transposed)
        if reg_count(layout_of(held)) * x.type.dtype.bits // 32 > 2 * OPERAND_REGISTERS:
            return self.in_memory(operand, x)[0]
        return x

    def k_of_a_step(self, call: Call, warps: tuple[int, int]) -> int:
        """How much of k is loaded at a time: for two instructions, if that leaves registers for the rest."""
        bits, shape = self.multiplied_as(call)[0].bits, type_as(call.result, Tile).shape
        _, m, n, k = SHAPES[bits]
        elements = (-(-shape[0] // (m * warps[0])) * m + -(-shape[1] // (n * warps[1])) * n) * k // 32
        return 2 * k if 2 * elements * bits // 32 <= OPERAND_REGISTERS else k

    def load_operand(self, operand: str, matrix: Value, transposed: bool, first: int, width: int, kind: DType) -> Value:
        """Part of a matrix in shared memory, `width` of its k from `first` on,
        loaded as an instruction's operand "a" or "b"."""
        region = self.part(matrix, (operand == "a") != transposed, first, width)
        loaded = self.g.call(load_, region, Const(0, element_type(matrix)), None, cache=None)
        return as_value(convert(self.g, loaded, kind))

    # -- by threads ----------------------------------------------------------------------------------------------------

    def by_threads(self, call: Call, choice: Choice) -> Operand:
        """By multiplications and additions of the threads, a step of k at a time from shared memory."""
        acc = call.args[0]
        g, t, result = self.g, call.attrs, type_as(call.result, Tile)
        a, b = self.in_memory("a", as_value(call.args[1]), as_value(call.args[2]))
        if acc is None:
            acc = g.call(splat, Const(0, result.dtype), name=call.result.name, shape=result.shape)
        k = extents_of(a)[0 if t["trans_a"] else 1]
        each = -(-result.size // self.context.scope.threads)
        step = max(1, min(k, WRITTEN_OUT // each))

        def product(acc: Operand, first: int | Operand, width: int) -> Operand:
            x, y = self.part(a, not t["trans_a"], first, width), self.part(b, t["trans_b"], first, width)
            acc = g.call(thread_product, acc, x, y, name=call.result.name, trans_a=t["trans_a"], trans_b=t["trans_b"],
                         dtype=result.dtype)
            self.set_origin(choice)
            return acc

        whole_steps = k // step * step
        if whole_steps > step:
            acc, = g.loop(Const(0, int32), Const(whole_steps, int32), step, [acc], lambda i,
                          c: [product(c[0], i, step)], name="k")
        elif whole_steps:
            acc = product(acc, 0, step)
        return product(acc, whole_steps, k - whole_steps) if k > whole_steps else acc

    def part(self, matrix: Value, k_last: bool, first: int | Operand, width: int) -> Value:
        """`width` of a matrix's k from `first` on; k is its last dimension (`k_last`) or its first."""
        stop = first + width if isinstance(first, int) else binary(self.g, "+", first, width)
        part = slice(first, stop)
        return as_value(getitem(self.g, matrix, (slice(None), part) if k_last else (part, slice(None))))

    def in_memory(self, first: object, *operands: Value, fence: bool = False,
                  held: Mapping[Value, Tile] | None = None) -> list[Value]:
        """Operands in shared memory, where all threads of the scope can read them, and with a `fence` the tensor cores.
        Register tiles are stored to it between two barriers, each in the buffer of all operands of its shape that are
        stored for the same `first`: what reads them is over at the next one's barrier. `held` says of packed bytes as
        which padded elements the buffer holds them."""
        new = list(dict.fromkeys(x for x in operands if isinstance(x.type, Tile)))
        if new and self.unknown_place():
            raise CompilationError("threads make this product from operands in shared memory, "
                                   "and a scope whose place is known at run time only has none to itself: "
                                   "store them to a buffer of its own, and multiply that", self.g.loc)
        regions = {x: whole_region(self.g, self.buffer((first, n), (held or {}).get(x, type_as(x, Tile))))
                   for n, x in enumerate(new)}
        if new:
            self.g.call(sync)
            for x in new:
                place = as_bytes(self.g, regions[x]) if element_type(regions[x]).padded else regions[x]
                self.g.call(store_, place, x, None, cache=None, each_thread=False)
            if fence:
                self.g.call(fence_proxy_async)
            self.g.call(sync)
        return [regions.get(x, x) for x in operands]

    def buffer(self, of: tuple[Any, ...], t: Tile) -> Value:
        """The buffer for a tile of this shape and dtype, the same for equal `of` in a scope."""
        key = of, t.dtype, t.shape, self.context.scope
        if key not in self.buffers:
            self.buffers[key] = alloc.function(self.g, t.shape, t.dtype, layout=widest_swizzle(t.dtype, t.shape))
        return self.buffers[key]

    def unknown_place(self) -> bool:
        """Whether it is only known at run time which threads run this scope."""
        scope: ExecScope | None = self.context.scope
        while scope is not None and not isinstance(scope.first, Value):
            scope = scope.parent
        return scope is not None


__all__ = ["write_dots"]
