"""Extents and strides of arrays that are known at launch."""

from __future__ import annotations

import numpy as np

from ...dtypes import count_elements, int32, int64
from ...ir.builder import Builder, element_type, extents_of, type_of
from ...ir.graph import Call, Operand, Value
from ...ir.op import op
from ...types import Addressed, Scalar, Sym, Uniformity
from .addressed import array_, number_behind
from .operators import binary
from .promotion import convert


@op("pure", attrs=("sym",))
def size_of(buffer, sym):
    """The size or stride `sym` of a global buffer, which is known at launch."""


@size_of.infer
def _(g, buffer, sym):
    return Scalar(int64 if sym.bits == 64 else int32, Uniformity.GRID, weak=True)


@size_of.simulate
def _(m, call, buffer):
    sym = call.attrs["sym"]
    return np.full((1, 1), m.resolve(sym), dtype=type_of(call.result).dtype.np)


@size_of.emit
def _(e, call, buffer):
    return e.resolve(call.attrs["sym"])


def extent_value(g: Builder, buffer: Value, n: int | Sym):
    """An extent or stride (in bytes, if the dtype is packed) as a constant or a run-time scalar."""
    if isinstance(n, int):
        return n
    if isinstance(n.arg, Addressed):
        return number_behind(array_call(g, buffer), n)
    return g.call(size_of, buffer, sym=n, name=n.name or None)


def array_call(g: Builder, buffer: Operand) -> Call:
    """The call of ``tile.array`` that makes an array, of which `buffer` may be a window."""
    call = g.definitions[buffer]
    while call.op is not array_:
        call = g.definitions[call.args[0]]
    return call


def elements_value(g: Builder, buffer: Value, n: int | Sym, d: int):
    """The extent of dimension `d` in elements, also if the dtype is packed."""
    dtype, value = element_type(buffer), extent_value(g, buffer, n)
    if not dtype.packed or d != len(extents_of(buffer)) - 1:
        return value
    if isinstance(n, int):
        return count_elements(dtype, n)
    elements, per = dtype.packing
    if n.bits == 32 and g.facts.ask("size_at_least", n.arg, n.dim, 2**31 * per // elements):
        value = convert(g, value, int64)
    return bytes_to_elements(g, value, elements, per)


def bytes_to_elements(g: Builder, value, elements: int, per: int):
    """Convert a number of bytes to the number of elements in them: `elements` for each `per` bytes."""
    if isinstance(value, int):
        return value // per * elements
    return binary(g, "*", binary(g, "//", value, per) if per > 1 else value, elements)
