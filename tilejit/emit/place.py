"""Emits the ids of thread, CTA and cluster; the execution scope at hand, and a memo of emitted values."""

from __future__ import annotations

from ..concurrency import cached_property
from ..dtypes import int32
from ..ir.builder import type_as
from ..ir.graph import Block, Call, Const, For, If, Operand, Scope, Value, While, blocks, walk
from ..types import Scalar, Uniformity
from .parts import EmitterParts
from .value import V

# Ranges of the grid's special registers, for LLVM: half-open, the upper bound wrapped to i32 (CUDA C++ Programming
# Guide, "Compute Capabilities", the largest grid).
GRID = {"ctaid.x": (0, 2**31 - 1), "ctaid.y": (0, 65535), "ctaid.z": (0, 65535),
        "nctaid.x": (1, -2**31), "nctaid.y": (1, 65536), "nctaid.z": (1, 65536)}


def has_lane_loops(body: Block) -> bool:
    """Whether a thread may stay somewhere in `body`, in a loop or at a wait, while others of its warp have left."""
    return any(_divides_warp(node)
               and any(_may_stay(n) for n in (node, *(n for inner in blocks(node) for n in walk(inner))))
               for node in walk(body))


def _may_stay(node) -> bool:
    return isinstance(node, (For, While)) or isinstance(node, Call) and node.op.traits.waits


def _divides_warp(node) -> bool:
    """Whether only some lanes of a warp may run the node, or run it as often as others."""
    match node:
        case Scope(kind=kind):
            return kind in ("elect", "thread")
        case If(test=test):
            conditions: tuple[Operand, ...] = (test,)
        case For(start=start, stop=stop, step=step):
            conditions = (start, stop, step)
        case While(test=test):
            conditions = test.yields
        case _:
            conditions = ()
    return any(isinstance(c, Value) and type_as(c, Scalar).uniform < Uniformity.WARP for c in conditions)


class PlaceMixin(EmitterParts):
    """The part of the emitter that knows the thread and its execution scope."""

    lane_loops = False  # whether the current scope of warps has such a loop (see `cta_barrier`)

    @cached_property
    def kernel_lane_loops(self) -> bool:
        return has_lane_loops(self.graph.body)

    def scope_key(self):
        return id(self.scope)

    def memoize_for_region(self, key, make):
        """The value of ``make()``, memoised under `key` for the region of code that its first use dominates."""
        for memo in self.memo:
            if key in memo:
                return memo[key]
        value = make()
        self.memo[-1][key] = value
        return value

    def entry(self, key, make):
        """The value of ``make()``, emitted once, in the function's entry block."""
        if key not in self.memo[0]:
            body, self.lines = self.lines, self.entry_lines
            self.memo[0][key] = make()
            self.lines = body
        return self.memo[0][key]

    def sreg(self, name: str) -> V:
        """A special register (PTX ISA, "Special Registers")."""
        if name.startswith("cluster"):
            text = f"mov.u32 $0, %{name.replace('cluster.', 'cluster_')};"
            return self.entry(name, lambda: self.asm(text, [int32], pure=True)[0])
        low, stop = (0, self.graph.launch.threads) if name == "tid.x" else GRID.get(name, (0, 0))
        known = f"range(i32 {low}, {stop}) " if stop else ""
        return self.entry(name, lambda: self.ins(f"call {known}i32 @llvm.nvvm.read.ptx.sreg.{name}()", int32))

    def absolute_thread(self) -> V:
        return self.sreg("tid.x")

    def lane_id(self) -> V:
        return self.entry("lane", lambda: self.absolute_thread() & 31)

    def warp_id(self) -> V:
        """The warp's id in the CTA, passed through a shuffle so that the assembler can prove it
        uniform across the warp."""
        text = "shfl.sync.idx.b32 $0, $1, 0, 31, -1;"
        return self.entry("warp", lambda: self.asm(text, [int32], [self.absolute_thread() >> 5], convergent=True)[0])

    def warpgroup_id(self) -> V:
        return self.entry("warpgroup", lambda: self.warp_id() >> 2)

    @property
    def threads(self) -> int:
        return self.scope.threads

    def scope_first_warp(self):
        """The id in the CTA of the current scope's first warp (an int or a value)."""
        scope = self.scope
        first = self.operand(scope.first) if isinstance(scope.first, (Value, Const)) else scope.first
        return {"cta": 0, "warpgroup": first * 4, "warp": first,
                "thread": first // 32 if not scope.elected else 0}[scope.kind]

    def thread_warp(self):
        """The warp's id in the current scope, for addresses: computed without the shuffle of `warp_id`."""
        if self.threads <= 32:
            return 0
        return self.memoize_for_region(("thread_warp", self.scope_key()), lambda: self.thread_id() >> 5)

    def scope_warp(self):
        """The warp's id in the current scope, provably uniform (see `warp_id`)."""
        first = self.scope_first_warp()
        if self.threads <= 32:
            return 0
        return self.warp_id() - first

    def thread_id(self):
        """The thread's id in the current scope."""
        if self.threads == 1:
            return 0
        if self.threads == 32:
            return self.lane_id()
        if self.threads < 32:
            return self.absolute_thread() - self.scope.first
        first = self.scope_first_warp()
        return self.absolute_thread() - first * 32

    def scope_lanes(self) -> int:
        """The mask, as an i32, of the lanes that run the current scope: all 32, unless the scope is part of a warp."""
        if self.threads >= 32:
            return -1
        assert isinstance(self.scope.first, int)  # lanes of a warp are named by constants
        mask = ((1 << self.threads) - 1) << self.scope.first % 32
        return mask - (mask >> 31 << 32)

    def first_thread(self) -> V | None:
        """Whether this is the first thread of the scope. None in a scope of one thread and in divergent code, where
        each thread acts for itself."""
        if self.threads == 1 or self.partial:
            return None
        return self.memoize_for_region(("first", self.scope_key()),
                                       lambda: self.as_value(self.thread_id(), int32).equals(0))
