"""Shared memory: its allocation, sync, the buffers of other CTAs, and attributes of memory."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ...dtypes import DType, dtype_of
from ...errors import CompilationError
from ...frames import hide_own_frames
from ...ir.builder import Builder, describe, source_text
from ...ir.builtin import attribute, method
from ...ir.graph import Call, Value
from ...ir.op import op
from ...ir.op_traits import Traits
from ...layout import Auto, TileLayout, axis, standard_layout
from ...types import Buffer, Points, Region
from ..language.creation import checked_shape
from ..language.promotion import uniform_scalar
from ..language.sizes import bytes_to_elements, elements_value, extent_value
from .packed import in_memory, shape_of
from .regions import parts


@hide_own_frames
def swizzled(dtype, shape, mode_bytes: int) -> TileLayout:
    """The standard shared-memory layout of a tile whose rows are swizzled in spans of `mode_bytes`: 32,
    64 or 128 bytes.

    It consists of atoms of 8 rows by `mode_bytes`, ordered first down the rows, then across the columns. Inside an
    atom, the number of each 16-byte chunk in row i is XORed with ``i * mode_bytes // 128``. 0 is the unswizzled form,
    with columns of 16 bytes. CompilationError if the number of rows is not a multiple of 8, or a row not a multiple
    of the span. (PTX ISA, "Shared Memory Matrix Layout".)
    """
    dtype = dtype_of(dtype)
    return standard_layout(8 * dtype.packing[1] // dtype.packing[0] if dtype.packed else dtype.bits,
                           tuple(shape) if isinstance(shape, (tuple, list)) else (shape,), mode_bytes)


def widest_swizzle(dtype, shape: tuple[int, ...], parts: int = 1) -> TileLayout | None:
    """The standard layout with the widest swizzle that the shape allows, with the columns in equal `parts` that each
    begin a row of the swizzle; None (row-major) if it allows none."""
    if len(shape) < 2 or shape[-2] % 8:
        return None
    span = next((n for n in (128, 64, 32) if shape[-1] * dtype.nbytes % (n * parts) == 0), None)
    return standard_layout(dtype.bits, shape, span) if span else None


def check_in_memory(layout: TileLayout) -> None:
    """CompilationError for a layout that is impossible in shared memory: each element has one address, which is not
    before the buffer."""
    if layout.replicas or any(along != axis.m for along in layout.axes):
        raise CompilationError(f"a layout of shared memory is over axis.m alone, without replicas, and {layout} is not")
    before = -layout.offset.get(axis.m, 0) - sum(min(0, (extent - 1) * stride) for extent, stride, _ in layout.shards)
    if before > 0:
        raise CompilationError(f"{layout} puts an element {before} before the first of the buffer: add an offset, "
                               f"as in layout + {before}")


def default_align(layout: TileLayout) -> int:
    """The default alignment of a buffer, in bytes."""
    return 1024 if layout.swizzle is not None else 128


@op("writes", attrs=("dtype", "shape", "layout", "align", "auto", "slots"), traits=Traits(allocates=True))
def alloc_shared(dtype, shape, layout, align, auto=None, slots=None):
    """Allocate shared memory for the whole kernel, at the same offset in every CTA.

    If `auto` is not None, a pass replaces the layout by one that it chooses from the buffer's uses; `auto` is the
    requested alignment, or 0. If `slots` is True (otherwise None), the first dimension is that of a ring's slots.
    """


@alloc_shared.infer
def _(g, dtype, shape, layout, align, auto=None, slots=None):
    return Buffer(dtype, shape, "shared", layout)


@alloc_shared.simulate
def _(m, call):
    return m.alloc_shared(call.result, call.result.type)


@alloc_shared.emit
def _(e, call):
    return e.shared_buffer(call.result)


def checked_allocation(g: Builder, shape, dtype, layout) -> tuple[tuple[int, ...], DType, TileLayout | Auto | None]:
    dtype = dtype_of(dtype)
    shape, layout = laid_out(g, shape, dtype, layout)
    if prod(shape) == 0:
        raise g.error(f"an allocation has at least one element, not shape {list(shape)}")
    return shape, dtype, layout


def allocate_shared(g: Builder, shape, dtype, layout=None, align=None, buffer_of_ring: str | None = None) -> Value:
    """`alloc` in shared memory. With `buffer_of_ring`, the slots of a ring's buffer of this name."""
    shape, dtype, layout = checked_allocation(g, shape, dtype, layout)
    auto = (align or 0) if isinstance(layout, Auto) else None
    if auto is not None:
        layout = widest_swizzle(dtype, shape)
    if layout is None:
        layout = TileLayout.row_major(shape)
    check_in_memory(layout)
    if align is None:
        align = default_align(layout)
    if not isinstance(align, int) or align & (align - 1) or align < dtype.nbytes:
        raise g.error(f"an alignment is a power of two of at least the element's {dtype.nbytes} bytes, "
                      f"not {describe(align)}"
                      + g.declared_constant(align))
    buffer = Value(buffer_of_ring or "alloc", Buffer(dtype, shape, "shared", layout), g.loc)
    attrs = dict(dtype=dtype, shape=shape, layout=layout, align=align, auto=auto,
                 slots=None if buffer_of_ring is None else True)
    g.hoist(Call(alloc_shared, (), attrs, (buffer,), g.loc))
    return buffer


def laid_out(g: Builder, shape, dtype: DType, layout) -> tuple[tuple[int, ...], TileLayout | Auto | None]:
    """The shape and layout that a kernel gives, checked, and converted to bytes if the elements are packed."""
    shape = checked_shape(g, shape)
    if layout is not None and not isinstance(layout, (Auto, TileLayout)):
        raise g.error("a layout is a tile.TileLayout, as tile.swizzled(dtype, shape, 128) makes, "
                      f"not {describe(layout)}")
    if isinstance(layout, TileLayout) and layout.size() != prod(shape):
        raise g.error(f"the layout {layout} has {layout.size()} elements, the shape {list(shape)} has {prod(shape)}")
    plain = layout if isinstance(layout, TileLayout) else None
    shape, plain = in_memory(dtype, shape, plain)
    return shape, layout if plain is None else plain


@op("syncs", collective=True)
def sync():
    """The barrier of the current execution scope: wait until all its threads have arrived. Their earlier writes are
    then visible to all.

    It is ``bar.sync`` for the CTA, a hardware barrier assigned by the compiler for other groups of warps,
    ``bar.warp.sync`` for a warp, and nothing for a thread. Where lanes of a warp loop or wait on their own, it is
    ``barrier.sync`` instead of ``bar.sync``, for which the warp need not have converged.
    """


@sync.infer
def _(g):
    if g.scope.partial is not None:
        raise g.error(f"sync() is reached by only some threads of the {g.scope.kind}: "
                      f"the condition {source_text(g.scope.partial)} differs between them")


@sync.simulate
def _(m, call):
    return m.sync.scope()


@sync.emit
def _(e, call):
    e.sync.scope()


# -- the shared memory of the cluster ----------------------------------------------------------------------------------

@op("pure")
def peer_buffer(buffer, rank):
    """The shared buffer at the same offset in CTA `rank` of the cluster (PTX ISA, ``mapa``)."""


@peer_buffer.infer
def _(g, buffer, rank):
    g.need("another CTA's shared memory (mapa)", 90)
    return replace(buffer.type, peer=True)


@peer_buffer.simulate
def _(m, call, buffer, rank):
    return m.bulk.peer_buffer(call.result.type, buffer, rank)


@peer_buffer.emit
def _(e, call, buffer, rank):
    return replace(buffer, type=call.result.type, rank=rank)


@method(Buffer, name="peer")
def _peer(g, x, rank):
    """The buffer at the same offset in CTA `rank` of the cluster, a destination for ``copy_async``."""
    if x.type.scope != "shared" or x.type.peer:
        raise g.error(f"the CTA's own shared buffers have peers, and this is {describe(x)}")
    ranks = 1
    for n in g.launch.cluster or ():
        ranks *= n
    if isinstance(rank, int) and not 0 <= rank < ranks:
        raise g.error(f"rank {rank} does not exist in a cluster of {ranks}: "
                      "give cluster=(n, 1, 1) to @tile.jit or at the launch")
    return g.call(peer_buffer, x, uniform_scalar(g, rank, "a rank"))


# -- attributes of memory ----------------------------------------------------------------------------------------------

@attribute(Buffer, name="shape")
def _shape(g, x):
    """The extents in elements: constants, or for an array numbers that are known at the launch."""
    if x.type.narrowed is not None:
        return parts(g, x)[1]
    return tuple(elements_value(g, x, n, d) for d, n in enumerate(x.type.shape))


@attribute(Region, Points, name="shape")
def _region_shape(g, x):
    """The extents in elements, constants."""
    return shape_of(x.type.dtype, x.type.shape)


@attribute(Buffer, Region, Points, name="dtype")
def _dtype(g, x):
    """The element type."""
    return x.type.dtype


@attribute(Buffer, name="ndim")
def _ndim(g, x):
    """The number of dimensions."""
    return len(x.type.shape)


@attribute(Buffer, name="strides")
def _strides(g, x):
    """The strides of an array, in elements. CompilationError for an allocation, which has a layout."""
    if x.type.strides is None:
        raise g.error(f"{describe(x)} has a layout, not strides")
    strides, (elements, per) = [extent_value(g, x, s) for s in x.type.strides], x.type.dtype.packing
    return tuple(s if elements == per or d == len(strides) - 1 else bytes_to_elements(g, s, elements, per)
                 for d, s in enumerate(strides))


@attribute(Buffer, Region, name="nbytes")
def _nbytes(g, x):
    """The size in bytes, of an allocation with the gaps in its layout. CompilationError for an array."""
    if x.type.scope == "global" and isinstance(x.type, Buffer):
        raise g.error("a global array's size is known at launch only; nbytes is for allocations and regions")
    return x.type.nbytes


