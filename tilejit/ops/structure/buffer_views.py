"""Views of a buffer's memory: as another dtype, shape and layout, or with permuted dimensions."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ...dtypes import dtype_of
from ...ir.builder import Builder, as_value, describe, element_type, extents_of, memory_type, type_as
from ...ir.builtin import method
from ...ir.graph import Const, Value
from ...ir.op import op
from ...ir.op_traits import Traits
from ...layout import TileLayout, axis
from ...types import Buffer, Region, layout_of
from ..language.shape import as_tuple, complete_shape
from ..memory.packed import refuse_packed, shape_of
from ..memory.shared import check_in_memory, laid_out
from ..tmem.alloc import columns_of, tensor_layout
from .subscripts import getitem


@op("pure", attrs=("dtype", "shape", "layout", "offset"), traits=Traits(view=True))
def buffer_view(buffer, dtype, shape, layout, offset):
    """The memory of a buffer, from byte `offset` on, with another dtype, shape and layout."""


@buffer_view.infer
def _(g, buffer, dtype, shape, layout, offset):
    return Buffer(dtype, shape, buffer.type.scope, layout)


@buffer_view.simulate
def _(m, call, buffer):
    t = call.result.type
    return replace(buffer, type=t, base=buffer.base + call.attrs["offset"], shape=t.shape)


@buffer_view.emit
def _(e, call, buffer):
    t = call.result.type
    return replace(buffer, type=t, sizes=t.shape, offset=buffer.offset + call.attrs["offset"])


@method(Buffer, Region, name="view")
def _view(g: Builder, x: Value, dtype=None, shape=None, layout=None):
    """The same bytes as another `dtype`, `shape` and `layout`.

    By default the dtype and shape are those of `x` (with the last extent adapted to another element size), and the
    layout is row-major.

    `x` is a shared buffer, or a contiguous region of one that starts at constant indices; thus one allocation can
    serve several purposes, one after the other. It may also be one of a buffer's parts along its first dimension,
    such as a slot of a ring. The view must not be larger than `x`, and must begin at a multiple of 128 bytes (1024 if
    it is swizzled), as TMA and the tensor cores require. A barrier must separate writes through one view from other
    threads' reads through another.

    In tensor memory, `x` is a whole buffer. The view starts at its first column, and `layout` says in which lanes the
    rows are (by default as in `x`, or one row in each lane if the shape differs).
    """
    if memory_type(x).scope == "tmem":
        return _tensor_view(g, x, dtype, shape, layout)
    slot = _slot(g, x)
    buffer, start, nbytes = _piece(g, x) if slot is None else (slot[0], 0, slot[2])
    dtype = element_type(x) if dtype is None else dtype_of(dtype)
    if shape is None:
        shape = shape_of(dtype, _recast(g, x, dtype) if dtype.bits != element_type(x).bits else extents_of(x))
    shape, layout = laid_out(g, shape, dtype, layout)
    if layout is None:
        layout = TileLayout.row_major(shape)
    if not isinstance(layout, TileLayout):
        raise g.error("a layout is a tile.TileLayout, as tile.swizzled(dtype, shape, 128) makes, "
                      f"not {describe(layout)}")
    check_in_memory(layout)
    view = Buffer(dtype, shape, "shared", layout)
    if view.nbytes > nbytes:
        raise g.error(f"the view takes {view.nbytes} bytes, and {describe(x)} has {nbytes}")
    if slot is not None:
        view = _of_all_slots(g, slot, view)
    root, offset = _root(g, buffer)
    needed, align = 1024 if layout.swizzle is not None else 128, g.definitions[root].attrs["align"]
    if (offset + start) % needed or align % needed:
        raise g.error(f"a{' swizzled' if layout.swizzle is not None else ''} view begins at a multiple of {needed} "
                      f"bytes, and this one at byte {offset + start} of an allocation aligned to {align}"
                      + (f": give align={needed}" if align % needed else ""))
    made = g.call(buffer_view, root, dtype=dtype, shape=view.shape, layout=view.layout, offset=offset + start)
    return made if slot is None else getitem(g, made, (slot[1], *(slice(None) for _ in shape)))


def _tensor_view(g: Builder, x: Value, dtype, shape, layout) -> Value:
    if not isinstance(x.type, Buffer):
        raise g.error("a view of tensor memory must be of a whole buffer: take the view of that, "
                      f"and a region of the view, not {describe(x)}")
    t = x.type
    dtype = t.dtype if dtype is None else dtype_of(dtype)
    if shape is None and layout is None and dtype.bits == t.dtype.bits:
        layout = t.layout
    shape, layout = laid_out(g, shape_of(dtype, t.shape) if shape is None else shape, dtype, layout)
    layout = tensor_layout(g, shape, dtype, layout)
    taken, there = columns_of(layout, dtype), columns_of(layout_of(t), t.dtype)
    if taken > there:
        raise g.error(f"the view takes {taken} columns, and {describe(x)} has {there}")
    return g.call(buffer_view, _root(g, x)[0], dtype=dtype, shape=shape, layout=layout, offset=0)


def _slot(g: Builder, x: Value) -> tuple[Value, Value, int] | None:
    """(buffer, index, bytes from one part to the next) if `x` is one part of a shared buffer along its first
    dimension, with a run-time index.

    None for anything else, and for a layout in which the parts are not apart from each other.
    """
    if isinstance(x.type, Buffer):
        return None
    buffer, which, *starts = g.definitions[x].args
    t = type_as(buffer, Buffer)
    whole = (all(isinstance(s, Const) and s.value == 0 for s in starts)
             and type_as(x, Region).extents == (1, *t.shape[1:]))
    if isinstance(which, Const) or not whole or t.scope != "shared" or t.peer:
        return None
    grouped, at = layout_of(t).group(t.shape)
    outer, inner = grouped.shards[:at[1]], TileLayout(grouped.shards[at[1]:])
    step = outer[0][1] if len(outer) == 1 and not grouped.replicas else 0
    return (as_value(buffer), as_value(which), step * t.dtype.nbytes) if step >= inner.span() else None


def _of_all_slots(g: Builder, slot: tuple, view: Buffer) -> Buffer:
    """The type of the view of all parts of the buffer: `view` with the parts as an additional first dimension."""
    buffer, _, nbytes = slot
    t = layout_of(view)
    needed = 1024 if t.swizzle is not None else 128
    if nbytes % needed:
        raise g.error(f"a{' swizzled' if t.swizzle is not None else ''} view begins at a multiple of {needed} bytes, "
                      f"and the buffer's parts are {nbytes} apart")
    parts = buffer.type.shape[0]
    layout = TileLayout([(parts, nbytes // view.dtype.nbytes, axis.m), *t.shards], t.replicas, t.offset, t.swizzle)
    return replace(view, shape=(parts, *view.shape), layout=layout)


@method(Buffer, name="reshape")
def _reshape(g: Builder, x: Value, shape, *more):
    """The same elements of shared memory, in row-major order of their indices, with another shape.
    One extent may be -1."""
    _own_shared(g, x, "reshape")
    t = type_as(x, Buffer)
    shape = complete_shape(g, as_tuple((shape, *more)), prod(shape_of(t.dtype, t.shape)))
    shape, _ = laid_out(g, shape, t.dtype, None)
    if prod(shape) != prod(t.shape):
        raise g.error(f"a buffer of {prod(t.shape)} elements has no shape {list(shape)}")
    root, offset = _root(g, x)
    return g.call(buffer_view, root, dtype=t.dtype, shape=shape, layout=t.layout, offset=offset)


@method(Buffer, name="permute")
def _permute(g: Builder, x: Value, dims, *more):
    """The same elements of shared memory with permuted dimensions:
    dimension i of the result is dimension ``dims[i]`` of the buffer."""
    _own_shared(g, x, "permute")
    t = type_as(x, Buffer)
    rank, dims = len(t.shape), as_tuple((dims, *more))
    if not all(isinstance(d, int) for d in dims) or sorted(dims) != list(range(rank)):
        raise g.error(f"{describe(dims)} is no order of {rank} dimensions" + g.declared_constant(dims))
    if t.dtype.packed and dims[-1] != rank - 1:
        refuse_packed(g, "permute of the last dimension", t.dtype)
    root, offset = _root(g, x)
    return g.call(buffer_view, root, dtype=t.dtype, shape=tuple(t.shape[d] for d in dims),
                  layout=layout_of(t).permute(dims, t.shape), offset=offset)


def _own_shared(g: Builder, x: Value, what: str) -> None:
    t = memory_type(x)
    if t.scope != "shared" or getattr(t, "peer", False):
        array = ""
        if t.scope == "global":
            array = "; arrays are reshaped, permuted and viewed by their library, before the launch"
        raise g.error(f"{what} is for the CTA's own shared memory, not {describe(x)}{array}")
    if g.definitions[_root(g, x)[0]].attrs.get("auto") is not None:
        raise g.error(f"{what} needs the buffer's layout, which tile.auto chooses later by the buffer's uses: "
                      "give a layout in place of tile.auto, as tile.swizzled(dtype, shape, 128) makes")


def _root(g: Builder, x: Value) -> tuple[Value, int]:
    """The allocation that a buffer is a view of (or is), and the byte at which the buffer begins in it."""
    call = g.definitions[x]
    return (as_value(call.args[0]), call.attrs["offset"]) if call.op is buffer_view else (x, 0)


def _piece(g: Builder, x: Value) -> tuple[Value, int, int]:
    """The buffer that `x` is a region of (or is), the byte at which `x` begins in it, and the bytes of `x`. An error
    unless it is contiguous."""
    if isinstance(x.type, Buffer):
        _own_shared(g, x, "view")
        return x, 0, x.type.nbytes
    starts = g.definitions[x].args[1:]
    buffer, part = as_value(g.definitions[x].args[0]), type_as(x, Region)
    _own_shared(g, buffer, "view")
    t, places = type_as(buffer, Buffer), []
    for start in starts:
        if not isinstance(start, Const):
            raise g.error("a view begins at a place known at compile time; "
                          "take a view of the whole buffer, and index that")
        places.append(int(start.value))
    if t.layout != TileLayout.row_major(t.shape):
        raise g.error(f"a part of {describe(buffer)} is not contiguous, unless its layout is row-major")
    inner = [d for d, n in enumerate(part.extents) if n != 1]
    first = inner[0] if inner else len(t.shape)
    if any(part.extents[d] != t.shape[d] for d in range(first + 1, len(t.shape))):
        raise g.error(f"{describe(x)} is not contiguous: take the whole of every dimension but the first")
    if any(not 0 <= p <= n - e for p, n, e in zip(places, t.shape, part.extents)):
        raise g.error(f"{describe(x)} reaches out of its buffer")
    at = sum(p * int(prod(t.shape[d + 1:])) for d, p in enumerate(places))
    return buffer, at * t.dtype.nbytes, part.nbytes


def _recast(g: Builder, x: Value, dtype) -> tuple[int, ...]:
    """The shape of `x` seen as elements of another size, which changes the last extent."""
    *outer, last = extents_of(x) or (1,)
    bits = last * element_type(x).bits
    if bits % dtype.bits:
        raise g.error(f"rows of {last} elements of {element_type(x)} are no whole number of {dtype}; give shape=")
    return (*outer, bits // dtype.bits)
