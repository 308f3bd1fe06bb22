"""Elements smaller than a byte: packed into bytes in memory, one per register in tiles.

Buffers of a packed dtype count bytes along their last dimension, while kernels count elements. This module converts a
kernel's indices and shapes to bytes, and rejects those that do not fall on whole bytes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...dtypes import DType, count_elements, count_units, dtype_of, float32, int32, uint8, uint32, unit_name
from ...errors import CompilationError
from ...ir.builder import Builder, as_value, describe, element_type, extents_of, type_of
from ...ir.graph import Const, Value
from ...ir.op import op
from ...ir.op_traits import Traits
from ...layout import Swizzle, TileLayout
from ...types import Points, layout_of
from ..language.operators import binary
from ..language.promotion import convert, spread
from ..tiles import arrange, casts, elementwise as ew, generate, slicing

BY_ELEMENT = ("m", "TCol")  # the axes of a layout that count elements: bytes and columns of memory
UNPACKED = "bytes that tiles of packed elements were unpacked from"  # a builder's state

# -- indices and shapes ------------------------------------------------------------------------------------------------

@op("pure", attrs=("dtype",))
def byte_of(start, dtype):
    """The index of the byte at which element `start` of a packed row begins."""


@byte_of.infer
def _(g, start, dtype):
    return type_of(start)


@byte_of.simulate
def _(m, call, start):
    elements, per = call.attrs["dtype"].packing
    return start // elements * per


@byte_of.emit
def _(e, call, start):
    elements, per = call.attrs["dtype"].packing
    return e.as_value(e.exactly_divided(start, elements) * per, type_of(call.args[0]).dtype)


def _plan(context, call) -> None:
    dtype = call.attrs["dtype"]
    if context.asked_divisor(call.args[0], dtype.packing[0]) % dtype.packing[0]:
        raise CompilationError(f"regions of {dtype} begin at {_whole_bytes_message(dtype)}, "
                               f"and this start is not known to be at one: write it as {dtype.packing[0]} * i, "
                               f"or promise it by tile.assume(start % {dtype.packing[0]} == 0)", call.loc)


byte_of.rules.plan = _plan


def _whole_bytes_message(dtype: DType) -> str:
    if dtype.padded:
        return f"blocks of {dtype.packing[0]} elements"
    return f"whole bytes, multiples of {dtype.packing[0]} elements"


def bytes_along(g: Builder, item, start, extent: int, dropped: bool, dtype: DType) -> tuple:
    """A slice of the packed dimension as (start, extent) in bytes.
    CompilationError if it does not cover whole bytes."""
    if dropped:
        raise g.error(f"one element of {unit_name(dtype)} is no whole byte: "
                      f"take a slice of a multiple of {dtype.packing[0]}, not {describe(item)}")
    size = count_units(dtype, extent)
    if size is None or isinstance(start, int) and start % dtype.packing[0]:
        raise g.error(f"a region of {dtype} covers {_whole_bytes_message(dtype)}, and this one is {extent} elements "
                      f"from {start if isinstance(start, int) else 'a run-time start'} on")
    return start_byte(g, start, dtype), size


def start_byte(g: Builder, start, dtype: DType):
    """The byte at which element `start` begins. It is a number if `start` is one, otherwise a value."""
    if isinstance(start, int):
        return count_units(dtype, start)
    return g.call(byte_of, start, dtype=dtype) if dtype.packed else start


def shape_of(dtype: DType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in elements of a box of memory whose last extent is in bytes."""
    return (*shape[:-1], count_elements(dtype, shape[-1])) if dtype.packed and shape else shape


def in_memory(dtype: DType, shape: tuple[int, ...], layout: TileLayout | None = None) -> tuple:
    """A shape and a layout of elements, converted to those in memory (bytes, if packed).
    CompilationError unless rows are whole bytes."""
    if not dtype.packed:
        return shape, layout
    rows = count_units(dtype, shape[-1]) if shape else None
    if rows is None:
        raise CompilationError(f"rows of {dtype} are {_whole_bytes_message(dtype)}, and {list(shape)} has none")
    return (*shape[:-1], rows), layout if layout is None else recast(layout, shape, dtype)


def recast(layout: TileLayout, shape: tuple[int, ...], dtype: DType) -> TileLayout:
    """The layout of packed elements converted to one of bytes.
    CompilationError if the elements of a byte are not adjacent in it."""
    elements, per = dtype.packing
    if elements == per:
        return layout
    wrong = CompilationError(f"{elements} elements of {dtype} share {'a byte' if per == 1 else f'{per} bytes'}, "
                             f"and {layout} of {list(shape)} takes them apart: "
                             "its last dimension begins with steps of 1, and the others are whole bytes")
    grouped, at = layout.group(shape)
    inner = next((i for i in reversed(range(at[-2], at[-1])) if grouped.shards[i][0] != 1), None)
    if inner is None:
        raise wrong
    extent, stride, along = grouped.shards[inner]
    if stride != 1 or along not in BY_ELEMENT or extent % elements:
        raise wrong

    def in_bytes(n: int, along: str) -> int:
        if along not in BY_ELEMENT:
            return n
        if n % elements:
            raise wrong
        return n // elements * per

    def outer(shards):
        return [(n, 0 if n == 1 else in_bytes(s, along), along) for n, s, along in shards]

    shards = [*outer(grouped.shards[:inner]), (extent // elements * per, 1, along), *outer(grouped.shards[inner + 1:])]
    offset = {name: in_bytes(n, name) for name, n in layout.offset.items()}
    replicas = [(n, in_bytes(s, along), along) for n, s, along in layout.replicas]
    swizzle = layout.swizzle
    if swizzle is not None:
        shift = elements.bit_length() - 1
        if per != 1 or swizzle.per_element < shift:
            raise wrong
        swizzle = Swizzle(swizzle.per_element - shift, swizzle.swizzle_len, swizzle.atom_len, swizzle.inner)
    return TileLayout(shards, replicas, offset, swizzle)


def check_packed_access(g: Builder, what: str, dtype: DType, mask) -> None:
    """CompilationError for a mask, which loads and stores of packed elements do not support."""
    if mask is not None:
        raise g.error(f"{what} of {dtype} has no mask=: a byte holds several elements; "
                      "what is out of bounds is left out by itself")


def refuse_packed(g: Builder, what: str, dtype: DType) -> None:
    """CompilationError if `dtype` is packed, for an operation `what` that needs elements of whole bytes."""
    if dtype.packed:
        raise g.error(f"{what} works on elements of whole bytes, and {dtype} has {dtype.packing[0]} in "
                      f"{dtype.packing[1]}")


# -- memory as bytes ---------------------------------------------------------------------------------------------------

@op("pure", traits=Traits(view=True))
def bytes_of(buffer):
    """A buffer of packed elements as one of uint8."""


@bytes_of.infer
def _(g, buffer):
    return replace(type_of(buffer), dtype=uint8)


@bytes_of.simulate
def _(m, call, buffer):
    return replace(buffer, type=call.result.type)


@bytes_of.emit
def _(e, call, buffer):
    return replace(buffer, type=call.result.type)


@op("pure", traits=Traits(view=True))
def bytes_without_padding(buffer):
    """A buffer of padded elements as one of the bytes in which they are packed, without the padding between them."""


@bytes_without_padding.infer
def _(g, buffer):
    t = type_of(buffer)
    elements = dtype_of(t.dtype.padded)
    shape = (*t.shape[:-1], count_units(elements, t.shape[-1]))
    return replace(t, dtype=uint8, shape=shape, layout=without_padding(layout_of(t), t.shape, t.dtype))


@bytes_without_padding.simulate
def _(m, call, buffer):
    return replace(buffer, type=call.result.type, shape=call.result.type.shape)


@bytes_without_padding.emit
def _(e, call, buffer):
    return replace(buffer, type=call.result.type, sizes=call.result.type.shape)


AS_BYTES = (bytes_of, bytes_without_padding)  # ops whose result is all of a buffer, seen as bytes


def without_padding(layout: TileLayout, shape: tuple[int, ...], dtype: DType) -> TileLayout:
    """The layout of the bytes that hold the elements in a buffer of padded ones, which has this layout and shape.
    CompilationError if the 16 bytes of a group are not side by side in it."""
    group, _ = dtype.packing
    grouped, at = layout.group(shape)
    inner = next((i for i in reversed(range(at[-2], at[-1])) if grouped.shards[i][0] != 1), at[-1] - 1)
    extent, stride, along = grouped.shards[inner]
    whole = layout.swizzle is None or layout.swizzle.chunk % group == 0
    if stride != 1 or along != "m" or extent % group or not whole:
        raise CompilationError(f"{group} elements of {dtype} are {group} bytes side by side, "
                               f"and {layout} of {list(shape)} takes them apart")
    kept = count_units(dtype.element, group)
    parts = (extent // group, group, along), (kept, 1, along)
    return TileLayout([*grouped.shards[:inner], *parts, *grouped.shards[inner + 1:]], layout.replicas, layout.offset,
                      layout.swizzle)


def as_bytes(g: Builder, place: Value) -> Value:
    """A region or points of packed elements as a region or points of the bytes that they are packed in."""
    call = g.definitions[place]
    dtype = element_type(place)
    if not dtype.padded:
        return g.call(call.op, g.call(bytes_of, call.args[0]), *call.args[1:], **call.attrs)
    if isinstance(type_of(place), Points):
        raise g.error(f"rows of {dtype} that a tile chooses are no region: name a box, as in x[i:i + 8]")
    buffer, *starts, last = call.args
    last = start_byte(g, int(last.value) if isinstance(last, Const) else last, dtype.element)
    extents = *call.attrs["extents"][:-1], count_units(dtype.element, call.attrs["extents"][-1])
    return g.call(call.op, g.call(bytes_without_padding, buffer), *starts, g.operand(last, int32),
                  **{**call.attrs, "extents": extents})


@op("pure", attrs=("dtype",))
def same_bits(x, dtype):
    """Reinterpret the register values of `x` as another dtype whose values are held in registers of the same size."""


@same_bits.infer
def _(g, x, dtype):
    return ew.result_type(g, dtype, x)


@same_bits.simulate
def _(m, call, x):
    return x.view(call.attrs["dtype"].np)


@same_bits.emit
def _(e, call, x):
    if isinstance(x, list):
        return [v.with_dtype(call.attrs["dtype"]) for v in x]
    return x.with_dtype(call.attrs["dtype"])


# -- registers ---------------------------------------------------------------------------------------------------------

def _width(dtype: DType) -> int:
    return dtype.codes.bit_length() - 1


def fill_byte(g: Builder, dtype: DType, other) -> int:
    """The byte that out-of-bounds reads give, so that each of its elements is `other`."""
    if other is None:
        return 0
    if not isinstance(other, (int, float)) or isinstance(other, bool):
        raise g.error(f"`other` of {dtype} is a number known at compile time, not {describe(other)}")
    code = int(casts.cast_array(np.asarray([other], np.float32), float32, dtype).view(np.uint8)[0])
    elements, per = dtype.packing
    word = sum(code << _width(dtype) * i for i in range(elements))
    found = {word >> 8 * i & 255 for i in range(per)}
    if len(found) > 1:
        raise g.error(f"`other` of {dtype} must be 0, since its elements span bytes, "
                      f"and {other!r} would not fill each byte alike")
    return found.pop()


def unpack(g: Builder, raw: Value, dtype: DType) -> Value:
    """Unpack a tile of bytes to a tile of the elements in them."""
    elements, per = dtype.packing
    *before, last = extents_of(raw)
    outer = (*before, last // per)
    words = _words(g, raw, outer, per, 8)
    codes = _shift_words(g, words, outer, elements, _width(dtype))
    codes = g.call(ew.bit_and, codes, spread(g, Const(dtype.codes - 1, element_type(codes)), extents_of(codes)))
    codes = g.call(arrange.reshape_, convert(g, codes, uint8), shape=(*outer[:-1], outer[-1] * elements))
    made: Value = g.call(same_bits, codes, dtype=dtype)
    g.state.setdefault(UNPACKED, {})[made] = raw
    return made


def pack(g: Builder, x: Value) -> Value:
    """Pack a tile of elements to a tile of the bytes that hold them."""
    dtype = element_type(x)
    elements, per = dtype.packing
    *before, last = extents_of(x)
    outer = (*before, last // elements)
    words = _words(g, g.call(same_bits, x, dtype=uint8), outer, elements, _width(dtype))
    data = _shift_words(g, words, outer, per, 8)
    return g.call(arrange.reshape_, convert(g, data, uint8), shape=(*outer[:-1], outer[-1] * per))


def _words(g: Builder, x: Value, outer: tuple[int, ...], parts: int, width: int) -> Value:
    """Combine each `parts` neighbouring bytes of a tile to one integer, `width` bits apart.
    The result has shape (*outer, 1)."""
    if parts == 1:
        return g.call(arrange.reshape_, x, shape=(*outer, 1))
    x = g.call(arrange.reshape_, x, shape=(*outer, parts))
    x = as_value(convert(g, x, uint32)) if parts * width > 8 else x
    total: Value | None = None
    for i in range(parts):
        one = g.call(slicing.slice_, x, starts=(0,) * len(outer) + (i,), shape=(*outer, 1),
                     steps=(1,) * (len(outer) + 1))
        if i:
            one = g.call(ew.shl, one, spread(g, Const(i * width, one.type.dtype), one.type.shape))
        total = one if total is None else g.call(ew.bit_or, total, one)
    assert total is not None
    return total


def _shift_words(g: Builder, words: Value, outer: tuple[int, ...], parts: int, width: int) -> Value:
    """Shift `words` of shape (*outer, 1) right by 0, `width`, ... bits. The result has shape (*outer, parts)."""
    if parts == 1:
        return words
    wide = (*outer, parts)
    by = g.call(generate.indices, shape=wide, axis=len(outer))
    by = convert(g, binary(g, "*", by, width), element_type(words))
    return g.call(ew.shr, g.call(arrange.broadcast, words, shape=wide), by)


def packed_bytes(g: Builder, x: Value) -> Value:
    """The bytes of a tile of elements that share bytes: those that it was unpacked from, else packed ones."""
    return g.state.get(UNPACKED, {}).get(x) or pack(g, x)


__all__ = ["AS_BYTES", "as_bytes", "bytes_along", "bytes_of", "bytes_without_padding", "fill_byte", "in_memory", "pack",
           "packed_bytes", "recast", "refuse_packed", "shape_of", "start_byte", "unpack", "without_padding"]
