"""Allocation of tensor memory, of which each CTA can have 128 lanes x 512 columns of 32 bits.

PTX ISA, "Tensor Memory Allocation and Management Instructions".
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from ...dtypes import DType
from ...ir.builder import Builder, describe, memory_type
from ...ir.builtin import method
from ...ir.graph import Call, Operand, Value
from ...ir.op import op
from ...ir.op_traits import Traits, Writes
from ...layout import TileLayout, axis
from ...types import Buffer
from ..memory.shared import sync
from ..sync.barriers import cluster_arrive, cluster_wait
from .order import tcgen05_fence
from .targets import needs_tensor_memory

LANES, COLUMNS = 128, 512


@op("writes", attrs=("dtype", "shape", "layout", "cta_group"), traits=Traits(allocates=True))
def alloc_tmem(dtype, shape, layout, cta_group):
    """Allocate columns of tensor memory; they live from the start of the kernel to its end or to
    their `dealloc_tmem`."""


@alloc_tmem.infer
def _(g, dtype, shape, layout, cta_group):
    return Buffer(dtype, shape, "tmem", layout)


@alloc_tmem.simulate
def _(m, call):
    return m.tmem.buffer(call.result)


@alloc_tmem.emit
def _(e, call):
    return e.tmem.buffer(call.result)


def default_layout(shape: tuple[int, ...]) -> TileLayout | None:
    """Row i in lane i, the elements of a row in consecutive columns;
    None unless the shape is 2-D with at most 128 rows."""
    if len(shape) != 2 or shape[0] > LANES:
        return None
    return TileLayout([(shape[0], 1, axis.TLane), (shape[1], 1, axis.TCol)])


def columns_of(layout: TileLayout, dtype: DType) -> int:
    """The number of 32-bit columns that a layout spans (the layout itself counts columns in elements)."""
    return -(-layout.span("TCol") * dtype.bits // 32)


def allocate(g: Builder, shape: tuple[int, ...], dtype: DType, layout, cta_group) -> Value:
    """Implement ``tile.alloc(..., scope="tmem")``: check the request and place the allocation at the kernel's entry."""
    needs_tensor_memory(g, "tensor memory")
    layout = tensor_layout(g, shape, dtype, layout)
    if cta_group not in (1, 2) or isinstance(cta_group, bool):
        raise g.error(f"cta_group is 1 or 2, not {describe(cta_group)}")
    pairs = (g.launch.cluster or (1, 1, 1))[0] % 2 == 0
    if cta_group == 2 and not pairs:
        raise g.error("cta_group=2 works on pairs of CTAs: give cluster=(2, 1, 1), "
                      "or another even number of CTAs along x")
    known = g.state.setdefault("cta_group", cta_group)
    if known != cta_group:
        raise g.error(f"all tensor memory of a kernel must have one cta_group, and another allocation has {known}")
    buffer = Value("tmem", Buffer(dtype, shape, "tmem", layout), g.loc)
    g.hoist(Call(alloc_tmem, (), dict(dtype=dtype, shape=shape, layout=layout, cta_group=cta_group), (buffer,), g.loc))
    return buffer


def allocation(made: Mapping[Operand, Call], buffer: Value) -> Call:
    """The `alloc_tmem` call behind a buffer in tensor memory or a view of one;
    `made` maps a value to the call that defines it."""
    call = made[buffer]
    return call if call.op is alloc_tmem else made[call.args[0]]


def tensor_layout(g: Builder, shape, dtype: DType, layout) -> TileLayout:
    """`layout`, or the default layout if it is None. CompilationError if it does not suit tensor memory,
    the shape or the dtype."""
    if layout is None:
        layout = default_layout(shape)
    if layout is None:
        raise g.error(f"the shape {list(shape)} is not [rows, columns] of at most {LANES} rows: "
                      "give a layout over axis.TLane and axis.TCol")
    if not isinstance(layout, TileLayout):
        raise g.error("a layout is a tile.TileLayout, as tile.tmem_datapath('D', columns) makes, "
                      f"not {describe(layout)}")
    if dtype.bits not in (8, 16, 32):
        raise g.error(f"tensor memory holds elements of 8, 16 and 32 bits, and {dtype} has {dtype.bits}")
    if any(along not in (axis.TLane, axis.TCol) for along in layout.axes) or layout.swizzle is not None:
        raise g.error(f"a layout of tensor memory is over axis.TLane and axis.TCol, and {layout} is not")
    size = 1
    for n in shape:
        size *= n
    if layout.size() != size or size == 0:
        raise g.error(f"the layout {layout} has {layout.size()} elements, the shape {list(shape)} has {size}")
    if layout.span("TLane") > LANES or columns_of(layout, dtype) > COLUMNS:
        raise g.error(f"tensor memory has {LANES} lanes and {COLUMNS} columns, and {layout} of {dtype} takes "
                      f"{layout.span('TLane')} lanes and {columns_of(layout, dtype)} columns")
    if not _is_injective(layout, size):
        raise g.error(f"{layout} puts two elements at one place")
    return layout


@cache
def _is_injective(layout: TileLayout, size: int) -> bool:
    at = layout.without_offset().apply(np.arange(size), shape=(size,))
    places = np.broadcast_to(np.asarray(at.get(axis.TLane, 0)) * (1 << 16) + np.asarray(at.get(axis.TCol, 0)), (size,))
    return bool(np.diff(np.sort(places)).all())


# -- deallocation ------------------------------------------------------------------------------------------------------

@op("syncs", collective=True)
def dealloc_tmem(buffer: Writes):
    """Free the columns of `buffer` before the kernel ends (PTX ISA, ``tcgen05.dealloc``)."""


@dealloc_tmem.infer
def _(g, buffer):
    return None


@dealloc_tmem.simulate
def _(m, call, buffer):
    m.tmem.deallocate(buffer)


@dealloc_tmem.emit
def _(e, call, buffer):
    e.tmem.deallocate(call.args[0])


@method(Buffer, name="dealloc")
def _dealloc(g: Builder, x: Value):
    """Free the columns of a buffer in tensor memory before the kernel ends,
    so that a CTA waiting to allocate them can start.

    The buffer then has an allocation of its own. All threads of the CTA must make the call, and no operation on the
    buffer may still be pending.
    """
    if memory_type(x).scope != "tmem":
        raise g.error(f"only tensor memory can be deallocated, not {describe(x)}")
    if g.scope.kind != "cta" or g.scope.partial is not None or g.state.get("loops", 0):
        raise g.error("tensor memory must be deallocated once, at CTA scope and outside loops")
    if g.definitions[x].op is not alloc_tmem:
        raise g.error("tensor memory must be deallocated by the buffer that was allocated, and this is a view of it")
    freed = g.state.setdefault("freed tmem", set())
    if x in freed and len(g.blocks) == 1:
        raise g.error(f"{x.name} has been deallocated before")
    if len(g.blocks) == 1:
        freed.add(x)
    g.call(tcgen05_fence, side="before_thread_sync")
    for meeting in (cluster_arrive, cluster_wait) if g.definitions[x].attrs["cta_group"] == 2 else (sync,):
        g.call(meeting)
    g.call(dealloc_tmem, x)


__all__ = ["COLUMNS", "LANES", "alloc_tmem", "allocate", "allocation", "columns_of", "dealloc_tmem",
           "tensor_layout"]
