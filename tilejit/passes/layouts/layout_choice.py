"""The candidate register layouts: blocked ones, with vectors that suit the memory accesses of a tile."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from ...config import architecture
from ...dtypes import DType
from ...errors import CompilationError
from ...ir.builder import ExecScope, Facts, memory_type, type_as, type_of
from ...ir.graph import Call, Graph, Operand
from ...layout import blocked_layout, exchange_registers
from ...ops.memory.shared import alloc_shared
from ...ops.mma.thread import thread_product
from ...ops.reduce.reduce import reduce_
from ...ops.reduce.scan import scan_
from ...types import Buffer, Region, Tile, domain_of, layout_of
from ..analysis.context import Context
from ..placement.shared_memory import SHARED_LIMIT
from .vector_widths import (
    cost_of_change,
    cost_of_load,
    vector_and_order,
    vector_axis,
    vector_widths,
    worth_changing_layout,
)


def in_layout_of(t: Tile, dtype: DType) -> Tile:
    """A tile of `dtype` in the shape and layout of `t`."""
    return replace(t, dtype=dtype)


def same_layout(a: Tile, b: Tile) -> bool:
    """Whether two tiles have the same layout."""
    return (a.layout, a.domain) == (b.layout, b.domain)


class LayoutChoice:
    """What the `layout` rules of ops may use: the graph's `context`, the current `scope`, and `default` layouts."""

    def __init__(self, graph: Graph, facts: Facts):
        self.context = Context(graph, facts)
        self.vectors = vector_widths(graph, self.context, derived_from_products(self.context, stored=True))
        self.reduced = reduced_axes(self.context)
        self.from_products = derived_from_products(self.context)
        self.room = _spare_shared_memory(graph, self.context)

    @property
    def scope(self) -> ExecScope:
        return self.context.scope

    def default(self, shape: tuple[int, ...], dtype: DType) -> Tile:
        """The blocked layout of a shape: vectors as wide as suits its memory accesses, spread over all threads."""
        vector, order = self.vectors.get(shape, (max(1, 16 // dtype.nbytes), None))
        return self.blocked_tile(shape, dtype, vector, order, self.reduced.get(shape, ()))

    def blocked_tile(self, shape: tuple[int, ...], dtype: DType, vector: int, order: tuple[Any, ...] | None,
                     reduced: tuple[Any, ...] = ()) -> Tile:
        """A blocked layout over the threads of the scope, with shorter vectors where the tile is too small
        to occupy them all."""
        threads, first = self.scope.threads, self.scope.first
        while vector > 1 and vector * threads > prod(shape):
            vector //= 2
        if self.scope.kind == "thread" and isinstance(first, int) and first % min(threads, 32):
            raise CompilationError("a register tile belongs to whole warps, or to 1, 2, 4, 8 or 16 lanes that begin "
                                   f"at a multiple of their number, found {threads} threads from thread {first} on")
        return Tile(dtype, shape, *blocked_layout(shape, threads, vector, order, reduced))

    def better_stored(self, store: Call, have: Tile) -> Tile | None:
        """A layout to which to change a tile before it is stored to an array, if the change costs less than it
        saves; else None."""
        place, threads = type_of(store.args[0]), self.scope.threads
        if not isinstance(place, Region) or place.scope != "global" or not place.shape:
            return None
        axis = vector_axis(self.context, store)
        layout = None
        if axis is not None and threads % 32 == 0:
            layout = exchange_registers(layout_of(have), domain_of(have), axis)
        if (layout is not None
            and worth_changing_layout(self.context, store, have, longer := replace(have, layout=layout), threads)):
            return longer
        want = self.blocked_tile(have.shape, have.dtype, *vector_and_order(self.context, store))
        spare = self.scope.kind == "cta" and have.size * have.dtype.nbytes <= self.room
        return want if spare and worth_changing_layout(self.context, store, have, want, threads) else None

    def better_loaded(self, load: Call, types: tuple[Tile, Tile], change: tuple[Tile, Tile]) -> bool:
        """Whether to load a region in the second of two layouts, instead of in the first with the layout
        change `change` later on.

        From shared memory always; from global memory if the loads then cost no more.
        """
        if memory_type(load.args[0]).scope != "global":
            return True
        before, after = (cost_of_load(self.context, load, t, self.scope.threads) for t in types)
        return after <= before + cost_of_change(*change)


def reduced_axes(context: Context) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """For each shape the axes along which tiles of it are reduced or scanned."""
    found: dict[tuple[Any, ...], set[int]] = {}
    for call in context.definitions.values():
        axes = call.attrs.get("axes", call.attrs.get("axis"))
        if call.op in (reduce_, scan_) and isinstance(t := type_of(call.args[0]), Tile):
            found.setdefault(t.shape, set()).update(axes if isinstance(axes, tuple) else (axes,))
    return {shape: tuple(sorted(axes)) for shape, axes in found.items()}


def derived_from_products(context: Context, stored: bool = False) -> set[Operand]:
    """The tiles computed from results of tensor cores, each element from those of its own place or row.

    With `stored`, for tiles that are stored in the layout of the tensor cores: they may come out of a loop too, and
    products made by threads, which have no layout of their own, do not count.
    """
    found: set[Operand] = set()

    def reaches(a: Operand, *followed: Operand) -> bool:
        left = (stored and a in context.carried and a not in followed
                and reaches(context.carried[a].following, a, *followed))
        return a in found or left or any(reaches(side, *followed) for side in context.branch_values.get(a, ()))

    for call in context.calls:
        goes_on = is_elementwise(call) or call.op.rules.layout_backward is not None or call.op is reduce_
        made = call.op.traits.anchor and not (stored and call.op is thread_product)
        if made or goes_on and any(map(reaches, call.args)):
            found.update(call.results)
    if stored:
        found.update([*filter(reaches, (*context.carried, *context.branch_values))])
    return found


def is_elementwise(call: Call) -> bool:
    return call.op.traits.elementwise


def _spare_shared_memory(graph: Graph, context: Context) -> int:
    """The bytes of shared memory that the kernel's buffers leave for optional changes of layout (a
    cautious estimate)."""
    most = SHARED_LIMIT[architecture(graph.target)]
    used = sum(type_as(r, Buffer).nbytes for call in context.calls if call.op is alloc_shared for r in call.results)
    return max(0, min(most, graph.launch.max_shared or most) - used - 8192) * 7 // 8
