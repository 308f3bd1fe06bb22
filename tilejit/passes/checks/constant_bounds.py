"""Refuse constant indices outside of their buffer in shared and tensor memory, where nothing clips them."""

from __future__ import annotations

from ...dtypes import DType, count_elements
from ...errors import CompilationError
from ...ir.builder import Facts, as_value, element_type, type_as
from ...ir.graph import Call, Const, Graph, Operand, Value, number, walk
from ...ops.memory.access_ops import load_, store_
from ...ops.memory.atomics import atomic_
from ...ops.memory.packed import bytes_of
from ...types import Buffer, Points, Region


def check_constant_bounds(graph: Graph, facts: Facts) -> Graph:
    """The graph unchanged. CompilationError where a call accesses elements that its buffer surely does not have, and
    no mask excludes them."""
    made: dict[Value, Call] = {}
    for node in walk(graph.body):
        if isinstance(node, Call):
            made.update(dict.fromkeys(node.results, node))
            for operand in _accessed_operands(node):
                if (isinstance(operand, Value) and isinstance(operand.type, (Region, Points))
                    and operand.type.scope != "global"):
                    _check(made[operand], made)
    return graph


def _accessed_operands(call: Call) -> tuple[Operand, ...]:
    """The operands all of whose elements a call accesses. To an instruction called by its PTX name a place
    is only an address."""
    operands = dict(zip(call.op.signature.parameters, call.args))
    masked = call.op in (load_, store_, atomic_) and operands["mask"] is not None
    return () if masked or call.op.effect == "pure" or "form" in call.attrs else call.args


def _check(place: Call, made: dict[Value, Call]) -> None:
    buffer, dtype = type_as(place.args[0], Buffer), _dtype_in_the_kernel(as_value(place.args[0]), made)
    for d, (start, size) in enumerate(zip(place.args[1:], buffer.shape)):
        extent = place.result.type.extents[d] if isinstance(place.result.type, Region) else 1
        if not isinstance(start, Const) or 0 <= start.value <= size - extent:
            continue
        first, stop, end = number(start), number(start) + extent, size
        if dtype.packed and d == len(buffer.shape) - 1:
            first, stop, end = (count_elements(dtype, n) for n in (first, stop, end))
        which = f"elements {first} to {stop - 1}" if stop - first > 1 else f"element {first}"
        raise CompilationError(f"this names {which} of dimension {d}, in which the {buffer.scope} buffer has {end}, "
                               "and accesses to it are not clipped: stay inside it, make it larger, "
                               "or leave elements out of a load or a store by mask=", place.loc)


def _dtype_in_the_kernel(buffer: Value, made: dict[Value, Call]) -> DType:
    """The dtype that the kernel's author wrote: accesses of packed elements have become accesses of bytes."""
    call = made.get(buffer)
    return element_type(call.args[0] if call is not None and call.op is bytes_of else buffer)
