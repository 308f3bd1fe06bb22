"""Operands of products that come to registers from global memory: to the products they come through shared memory.

There the tensor cores of a warpgroup, or ``ldmatrix``, read them, and the loads go by whole rows. An `a` that a product made, or
that is loaded from shared memory, stays in registers. What several products take, or a loop takes again and again, is stored once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..config import architecture
from ..ir.builder import Builder
from ..ir.graph import Block, Call, For, Node, Scope, Value, While, blocks
from ..ops.barriers import fence_proxy_async
from ..ops.memory import store_
from ..ops.mma.dot import dot_
from ..ops.regions import whole
from ..ops.shape import transpose_
from ..ops.shared import alloc, sync, widest_swizzle
from ..types import Region, Tile
from .context import Context, is_column_major, loads_behind
from .staging import shared_memory_left

LEAST_BYTES = 2048              # bytes of an operand below which registers and shuffles do
ASYNC_PROXY_ARCHITECTURES = 90, 100, 103    # architectures whose tensor cores read shared memory themselves


@dataclass(frozen=True)
class StagedOperand:
    """What is stored for a product: a tile, or its transpose, to a room, which it may have as its `own`. The nodes name the room's region."""

    tile: Value
    transposed: bool
    buffer: Value
    persistent: bool
    region: Value
    nodes: tuple[Node, ...]


class StagedOperands:
    """The operands of one graph's products in shared memory: what is taken once has room together with what is like it."""

    def __init__(self, context: Context, g: Builder):
        self.context, self.g = context, g
        self.left = shared_memory_left(context)
        self.buffers: dict[tuple, Value] = {}
        self.made: dict[Value, tuple[Call, tuple[StagedOperand, ...]]] = {}   # by the result of a product
        self.present: frozenset[Value] = frozenset()                     # rooms that hold, where the pass is, what they are for
        self.regions_written: set[Value] = set()                                 # regions whose nodes are written
        self.home_block: dict[object, Block] = {}                            # the block of each value, and of each product by its result
        self._note(context.graph.body)
        self.use_counts = Counter(self._untransposed(x)[0] for c in context.calls if c.op is dot_ for x in c.args[1:])

    def _note(self, block: Block) -> None:
        for node in block.nodes:
            self.home_block.update(dict.fromkeys(getattr(node, "results", ()), block))
            for inner in blocks(node):
                self._note(inner)

    def of(self, call: Call) -> tuple[Call, tuple[StagedOperand, ...]]:
        """A product as it is made, and what is stored for it before."""
        if call.result not in self.made:
            self.made[call.result] = self._staged(call)
        return self.made[call.result]

    def _staged(self, call: Call) -> tuple[Call, tuple[StagedOperand, ...]]:
        args, attrs, stored = list(call.args), dict(call.attrs), []
        for n, flag in ((2, "trans_b"), (1, "trans_a")):
            if not isinstance(args[n].type, Tile) or attrs["options"]["variant"] == "fma":
                continue
            x, transposed = self._untransposed(args[n])
            transposed ^= attrs[flag]
            if not self._belongs_in_memory(args[n], n, transposed):
                continue
            columns = self._is_column_major(x)
            transposed ^= columns
            if transposed == (n == 1) and (x.type.dtype.bits == 8 or attrs["precision"] == "tf32"):
                continue  # of which instructions take rows along k only: to turn it took longer than mma.sync with it in registers (H200)
            persistent = self.use_counts[x] > 1 or self.home_block.get(x) is not self.home_block[call.result]
            buffer = self._buffer(replace(x.type, shape=x.type.shape[::-1]) if columns else x.type, (self.context.scope, x if persistent else n))
            if buffer is not None:
                with self.g.block() as nodes:
                    args[n] = whole(self.g, buffer)
                attrs[flag] = transposed
                self.context.made |= {v: self.g.definitions[v] for v in (buffer, args[n])}
                stored.append(StagedOperand(x, columns, buffer, persistent, args[n], tuple(nodes)))
        return replace(call, args=tuple(args), attrs=attrs), tuple(stored)

    def _buffer(self, t: Tile, what: tuple) -> Value | None:
        """Shared memory for what is stored, the same each time; None where there is no room, or where registers do."""
        what = t.dtype, t.shape, *what
        nbytes, layout = t.size * t.dtype.bits // 8, widest_swizzle(t.dtype, t.shape)
        if what not in self.buffers and nbytes >= LEAST_BYTES and layout is not None and nbytes <= self.left:
            self.left -= nbytes
            self.buffers[what] = alloc.function(self.g, t.shape, t.dtype, layout=layout)
        return self.buffers.get(what)

    def store(self, stored: tuple[StagedOperand, ...]) -> None:
        """Store operands where products read them, unless they are there, once all threads have come and before any goes on."""
        new = [s for s in stored if s.buffer not in self.present]
        if new:
            self.g.call(sync)
        for s in stored:
            if s.region not in self.regions_written:
                self.regions_written.add(s.region)
                self.g.blocks[-1].extend(s.nodes)
        for s in new:
            tile = self.g.call(transpose_, s.tile, axes=(1, 0)) if s.transposed else s.tile
            self.g.call(store_, s.region, tile, None, cache=None, each_thread=False)
        self.present |= {s.buffer for s in new if s.persistent}
        if new:
            if architecture(self.context.target) in ASYNC_PROXY_ARCHITECTURES:
                self.g.call(fence_proxy_async)
            self.g.call(sync)

    def from_outside(self, node: For | While) -> tuple[StagedOperand, ...]:
        """What the products in a loop, those of its scope, take of what is there before it."""
        inside = {id(b) for b in _inside(node)}
        found = [s for b in _inside(node) for n in b.nodes if isinstance(n, Call) and n.op is dot_ for s in self.of(n)[1]]
        return tuple(s for s in found if s.tile in self.home_block and id(self.home_block[s.tile]) not in inside)

    def _untransposed(self, x: Value) -> tuple[Value, bool]:
        made = self.context.made.get(x)
        return (made.args[0], True) if made is not None and made.op is transpose_ and made.attrs["axes"] == (1, 0) else (x, False)

    def _belongs_in_memory(self, x: Value, operand: int, turned: bool) -> bool:
        """Whether a tile is better read from shared memory: one that is computed of what is in global memory. Of what is in shared memory, or what
        a product has made, if it is a `b`, which warps take in turn and the tensor cores of a warpgroup only there, or made by a product and turned,
        which threads would do element by element. Else such a one is loaded, or stays, as the product takes it."""
        loads = loads_behind(self.context, x)
        if loads is None:
            return operand == 2 or turned
        whole_ones = [c for c in loads if 2 * c.result.type.size >= x.type.size]
        if whole_ones and all(self.context.buffer_of(c.args[0]).type.scope == "global" for c in whole_ones):
            return True
        computed = self._untransposed(x)[0] not in {c.result for c in whole_ones}
        return bool(whole_ones) and computed and operand == 2


    def _is_column_major(self, x: Value) -> bool:
        """Whether a tile is computed of one whose columns lie side by side in its array: its vectors lie along them."""
        like_it = [c.args[0].type for c in loads_behind(self.context, x) or () if c.result.type.shape == x.type.shape]
        return any(isinstance(t, Region) and is_column_major(t) for t in like_it[:1])


def _inside(node: Node) -> Iterator[Block]:
    """The blocks of a node that run in its scope."""
    for block in blocks(node):
        yield block
        for n in block.nodes:
            if not isinstance(n, Scope):
                yield from _inside(n)


__all__ = ["StagedOperands"]
