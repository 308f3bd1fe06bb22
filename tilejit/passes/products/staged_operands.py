"""Stage the operands of products in shared memory, where they come to registers from global memory.

The tensor cores of a warpgroup, or ``ldmatrix``, read them there, and the loads from global memory go by whole rows.
An `a` that a product has computed, or that is loaded from shared memory, stays in registers. An operand of several
products, or one that a loop uses in every trip, is stored once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...config import architecture
from ...ir.builder import Builder, as_value, element_type, extents_of, memory_type, type_as, type_of
from ...ir.graph import Block, Call, For, Node, Scope, Value, While, blocks, results
from ...ops.memory.access_ops import store_
from ...ops.memory.packed import as_bytes
from ...ops.memory.regions import index, whole_region
from ...ops.memory.shared import sync, widest_swizzle
from ...ops.mma.dot import dot_
from ...ops.mma.site import as_multiplied
from ...ops.mma.wgmma import division
from ...ops.structure.alloc import alloc
from ...ops.sync.barriers import fence_proxy_async
from ...ops.tiles.arrange import reshape_, transpose_
from ...ops.tiles.slicing import slice_
from ...types import Region, Tile
from ..analysis.context import Context, is_column_major, loads_behind
from ..analysis.staging import shared_memory_left

LEAST_BYTES = 2048                        # smaller operands are exchanged by shuffles between registers
ASYNC_PROXY_ARCHITECTURES = 90, 100, 103  # whose tensor cores read shared memory themselves


@dataclass(frozen=True)
class StagedOperand:
    """What is stored to shared memory for a product: `tile`, or its transpose, to `buffer`.

    `persistent` if the buffer holds nothing else, so that its contents stay valid. `nodes` make `region`, by which
    the product reads it.
    """

    tile: Value
    transposed: bool
    buffer: Value
    persistent: bool
    region: Value
    nodes: tuple[Node, ...]


class StagedOperands:
    """The staged operands of one graph. Operands that are used once share the buffer of their shape and dtype.

    Tiles are those of the graph before the pass; ``renewed([tile])`` gives what stands for them in the
    one that `g` builds.
    """

    def __init__(self, context: Context, g: Builder, renewed: Callable[[Iterable[Value]], tuple[Any, ...]]):
        self.context, self.g, self.renewed = context, g, renewed
        self.left = shared_memory_left(context)
        self.buffers: dict[tuple[Any, ...], Value] = {}
        self.staged_products: dict[Value, tuple[Call, tuple[StagedOperand, ...]]] = {}  # by the result of a product
        self.present: frozenset[Value] = frozenset()      # persistent buffers whose contents are valid at this point
        self.whole_batches = False                        # whether a batch of matrices is staged as a whole
        self.regions_written: set[Value] = set()          # regions whose nodes have been emitted
        self.home_block: dict[object, Block] = {}         # the block that defines each value
        self._note(context.graph.body)
        self.use_counts = Counter(self._strip_transpose(as_value(x))[0] for c in context.calls if c.op is dot_
                                  for x in c.args[1:3])

    def _note(self, block: Block) -> None:
        for node in block.nodes:
            self.home_block.update(dict.fromkeys(results(node), block))
            for inner in blocks(node):
                self.home_block.update((c.inner, inner) for c in getattr(node, "carried", ()))
                self._note(inner)

    def operands_of(self, call: Call) -> tuple[Call, tuple[StagedOperand, ...]]:
        """A product with its staged operands in place, and what must be stored before it."""
        if call.result not in self.staged_products:
            self.staged_products[call.result] = self._stage(call)
        return self.staged_products[call.result]

    def _stage(self, call: Call) -> tuple[Call, tuple[StagedOperand, ...]]:
        args, attrs = list(call.args), dict(call.attrs)
        stored: list[StagedOperand] = []
        for n, flag in ((2, "trans_b"), (1, "trans_a")):
            operand = as_value(args[n])
            if not isinstance(operand.type, Tile) or attrs["options"]["variant"] == "fma":
                continue
            x, transposed = self._strip_transpose(operand)
            x, at = self._batch_of(x)
            t = as_multiplied(x, call.attrs["options"], n - 1)
            assert isinstance(t, Tile)  # as the operand
            transposed ^= attrs[flag]
            by_threads = t.dtype.bits == 32 and attrs["precision"] != "tf32"  # from buffers that all of them share
            if (by_threads and loads_behind(self.context, x) is None
                or not self._belongs_in_memory(operand, n, transposed)):
                continue
            columns = self._is_column_major(x)
            transposed ^= columns
            if transposed == (n == 1) and (t.dtype.bits == 8 or attrs["precision"] == "tf32"):
                # wgmma takes only k-major operands of these types; transposing one took longer than mma.sync
                # from registers (H200)
                continue
            persistent = (bool(at) or self.use_counts[x] > 1
                          or self.home_block.get(x) is not self.home_block[call.result])
            parts = self._warpgroups_across(call) if n == 2 and not transposed else 1
            buffer = self._buffer(replace(t, shape=transposed_last(t.shape)) if columns else t,
                                  (self.context.scope, x if persistent else n), parts)
            if buffer is not None:
                with self.g.block() as nodes:
                    args[n] = region = as_value(index(self.g, buffer, at) if at else whole_region(self.g, buffer))
                attrs[flag] = transposed
                self.whole_batches |= bool(at)
                self.context.definitions |= {v: self.g.definitions[v] for v in (buffer, region)}
                stored.append(StagedOperand(x, columns, buffer, persistent, region, tuple(nodes)))
        return replace(call, args=tuple(args), attrs=attrs), tuple(stored)

    def _warpgroups_across(self, call: Call) -> int:
        """How many warpgroups divide the columns of a product, if it is one by wgmma: each reads its own part of b."""
        sums, scope = type_as(call.result, Tile), self.context.scope
        if self.context.target != "sm_90a" or scope.kind not in ("cta", "warpgroup") or scope.threads % 128:
            return 1
        divided = division(sums.dtype, (sums.shape[0], sums.shape[1]), scope.threads)
        return divided[1] if divided is not None else 1

    def reserve(self, t: Tile) -> bool:
        """Take the room for an operand from what is left of shared memory. False if there is none."""
        nbytes = t.size * t.dtype.bits // 8
        fits = nbytes <= self.left
        self.left -= nbytes if fits else 0
        return fits

    def _buffer(self, t: Tile, what: tuple[Any, ...], parts: int) -> Value | None:
        """The buffer for an operand, the same for equal `what`, which tensor cores read in `parts` of its columns. None
        if there is no room, or if the operand is too small to be worth one."""
        what = t.dtype, t.shape, *what, parts
        nbytes, layout = t.size * t.dtype.bits // 8, widest_swizzle(t.dtype, t.shape, parts)
        if what not in self.buffers and nbytes >= LEAST_BYTES and layout is not None and self.reserve(t):
            self.buffers[what] = alloc.function(self.g, t.shape, t.dtype, layout=layout)
        return self.buffers.get(what)

    def store(self, stored: tuple[StagedOperand, ...]) -> None:
        """Store operands for a product, unless they are in memory already, between two barriers: one after earlier
        reads of the buffers, one before the product's."""
        new = list({s.buffer: s for s in stored if s.buffer not in self.present}.values())
        if new:
            self.g.call(sync)
        for s in stored:
            if s.region not in self.regions_written:
                self.regions_written.add(s.region)
                self.g.blocks[-1].extend(s.nodes)
        for s in new:
            tile, = self.renewed([s.tile])
            if s.transposed:
                tile = self.g.call(transpose_, tile, axes=transposed_last(tuple(range(len(extents_of(tile))))))
            whole = s.region if extents_of(s.region) == extents_of(tile) else whole_region(self.g, s.buffer)
            whole = as_bytes(self.g, whole) if element_type(whole).padded else whole
            self.g.call(store_, whole, tile, None, cache=None, each_thread=False)
        self.present |= {s.buffer for s in new if s.persistent}
        if new:
            if architecture(self.context.target) in ASYNC_PROXY_ARCHITECTURES:
                self.g.call(fence_proxy_async)
            self.g.call(sync)

    def from_outside(self, node: For | While) -> tuple[StagedOperand, ...]:
        """What the products in a loop, of its own scope, use of tiles defined outside of it."""
        inside = {id(b) for b in _blocks_of_scope(node)}
        found = [s for b in _blocks_of_scope(node) for n in b.nodes if isinstance(n, Call) and n.op is dot_
                 for s in self.operands_of(n)[1]]
        return tuple(s for s in found if s.tile in self.home_block and id(self.home_block[s.tile]) not in inside)

    def _strip_transpose(self, x: Value) -> tuple[Value, bool]:
        """(operand, whether `x` is its transpose)."""
        made = self.context.definitions.get(x)
        if made is not None and made.op is transpose_ and made.attrs["axes"] == (1, 0):
            return as_value(made.args[0]), True
        return x, False

    def _batch_of(self, x: Value) -> tuple[Value, tuple[int, ...]]:
        """The batch of matrices that `x` is selected from, and its index there, if the batch is computed from loads:
        stored as a whole, it takes two barriers instead of some for each matrix. () for any other tile."""
        shape = type_as(x, Tile).shape
        made = self.context.definitions.get(x)
        cut = self.context.definitions.get(made.args[0]) if made is not None and made.op is reshape_ else None
        if cut is None or cut.op is not slice_:
            return x, ()
        batch, starts = as_value(cut.args[0]), cut.attrs["starts"]
        matrices = extents_of(batch)[-2:] == shape and starts[-2:] == (0, 0) and set(cut.attrs["steps"]) == {1}
        if not matrices or cut.attrs["shape"][:-2] != (1,) * (len(starts) - 2) or not loads_behind(self.context, batch):
            return x, ()
        t = type_as(batch, Tile)
        kept = (self.context.scope, batch)
        fits = any(key[2:4] == kept for key in self.buffers) or t.size * t.dtype.bits // 8 <= self.left
        return (batch, starts[:-2]) if fits and widest_swizzle(t.dtype, t.shape) is not None else (x, ())

    def _belongs_in_memory(self, x: Value, operand: int, turned: bool) -> bool:
        """Whether a tile is better read from shared memory.

        One that is computed from global memory is. One that is computed from shared memory, or by a product, is if it
        is a `b`, which warps share and the tensor cores of a warpgroup read only there. A product's result is also if
        it is transposed, which threads would do element by element. A tile that is merely loaded from shared memory
        is loaded as the product takes it. The loads that count are those of most bytes: a word may hold many elements
        of an operand, and what scales or shifts it is smaller.
        """
        loads = loads_behind(self.context, x)
        if loads is None:
            return operand == 2 or turned
        bits = {c: (t := type_as(c.result, Tile)).size * t.dtype.bits for c in loads}
        largest = [c for c in loads if 2 * bits[c] >= max(bits.values())]
        if largest and all(memory_type(self.context.buffer_of(c.args[0])).scope == "global" for c in largest):
            return True
        computed = self._strip_transpose(x)[0] not in {c.result for c in largest}
        return bool(largest) and computed and operand == 2

    def _is_column_major(self, x: Value) -> bool:
        """Whether a tile is computed from one whose array is column-major, so that its vectors lie along columns."""
        shape = type_as(x, Tile).shape
        like_it = [type_of(c.args[0]) for c in loads_behind(self.context, x) or ()
                   if type_as(c.result, Tile).shape == shape]
        return any(isinstance(t, Region) and is_column_major(t) for t in like_it[:1])


def transposed_last(dimensions: tuple[int, ...]) -> tuple[int, ...]:
    """The last two of some dimensions exchanged."""
    return *dimensions[:-2], dimensions[-1], dimensions[-2]


def _blocks_of_scope(node: Node) -> Iterator[Block]:
    """The blocks in a node that run in its own scope."""
    for block in blocks(node):
        yield block
        for n in block.nodes:
            if not isinstance(n, Scope):
                yield from _blocks_of_scope(n)


__all__ = ["StagedOperands"]
