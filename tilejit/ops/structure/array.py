"""``array``: a global buffer that a kernel makes from an address."""

from __future__ import annotations

from ...dtypes import dtype_of, int32, int64
from ...ir.builder import Builder, describe, type_of
from ...ir.builtin import builtin
from ...ir.graph import Const, Operand
from ...names import assigned_name
from ...types import MEMORY_TYPES, Buffer, Scalar, Tile
from ..language.addressed import array_
from ..language.operators import binary
from ..language.promotion import convert, uniform_scalar
from ..memory.packed import refuse_packed


@builtin
def array(g: Builder, address, dtype, shape, strides=None, align=None):
    """The array in global memory that begins at `address`, for accesses like those of an array argument.

    `address` is a 64-bit integer: an argument, or an element of a table that the kernel loads. `shape` and `strides`
    (in elements; row-major by default) may be numbers that are known at run time, and are the same for all threads of
    the scope. `align` promises that the address is a multiple of so many bytes, by default of an element's. As much as
    the vectors of loads and stores need is also found out, from the arguments that the address is computed from and
    from ``tile.assume``. The array may lie over any other, and only the host knows its end: the simulator checks it
    against the arrays of the launch and those whose address ``tile.address_of`` has given.

    Copies by TMA need a tensor map that the kernel binds to it (``tile.tensor_map(..., slot=...).rebind(array)``).
    """
    dtype = dtype_of(dtype)
    refuse_packed(g, "an array made from an address (of uint8, for such memory)", dtype)
    place = _address(g, address)
    extents = tuple(_number(g, n, "an extent", int32) for n in _numbers(g, "shape", shape))
    if any(isinstance(n, Const) and n.value < 0 for n in extents):
        raise g.error(f"an extent is at least 0, and the shape is {_format_operands(extents)}")
    steps = _row_major(g, extents)
    if strides is not None:
        steps = tuple(_number(g, s, "a stride", int64) for s in _numbers(g, "strides", strides))
        if len(steps) != len(extents):
            raise g.error(f"an array has a stride for each dimension: {len(extents)}, not {len(steps)}")
    align = dtype.nbytes if align is None else align
    if isinstance(align, bool) or not isinstance(align, int) or align < dtype.nbytes or align & (align - 1):
        raise g.error(f"align is a power of two, of at least the {dtype.nbytes} bytes of an element, "
                      f"not {_format_operand(align)}" + g.declared_constant(align))
    number = g.state.get("arrays", 0)
    g.state["arrays"] = number + 1
    label = assigned_name(g.loc) if g.loc is not None else ""
    return g.call(array_, place, *extents, *steps, dtype=dtype, align=align, number=number, label=label or "array",
                  name=label or None)


def _address(g: Builder, x) -> Operand:
    """An address as an operand. CompilationError for what is none."""
    t = type_of(x)
    if isinstance(t, MEMORY_TYPES):
        hint = "; an array argument is an array already"
        if t.dtype.is_int:
            element = f"{x.name}[i]" if isinstance(t, Buffer) else ".."
            hint = f": load it, as in tile.load({element})"
        raise g.error(f"an address is a 64-bit integer, not {describe(x)}{hint}")
    if isinstance(t, Tile):
        raise g.error(f"an array has one address, a scalar, and this is {describe(x)}")
    if not isinstance(t, Scalar) or not t.dtype.is_int or isinstance(x, bool):
        raise g.error(f"an address is a 64-bit integer, not {describe(x)}")
    if t.dtype.bits < 64 and not (t.weak or isinstance(x, int)):
        raise g.error(f"an address has 64 bits, and this is {describe(x)}: keep addresses in an int64 or uint64 array")
    return uniform_scalar(g, x, "the address of an array", int64)


def _numbers(g: Builder, what: str, given) -> tuple:
    """The entries of `shape` or `strides`, which may be one number."""
    given = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    for n in given:
        t = type_of(n)
        if not isinstance(t, Scalar) or not t.dtype.is_int or isinstance(n, bool):
            hint = "; // divides integers" if isinstance(t, Scalar) and t.dtype.is_float else ""
            raise g.error(f"{what} has an integer for each dimension, as in (rows, 64), not {describe(n)}{hint}")
    return given


def _number(g: Builder, n, what: str, least) -> Operand:
    """An extent or a stride as an operand, in `least` or, where that does not hold it, int64."""
    if isinstance(n, int):
        return Const(n, least if -2**31 <= n < 2**31 else int64)
    t = type_of(n)
    narrow = t.dtype.bits < 32 or t.dtype == int32
    return uniform_scalar(g, n, f"{what} of an array", least if narrow else int64)


def _row_major(g: Builder, extents: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """The strides of a row-major array, products in 64 bits."""
    strides: list[Operand] = [Const(1, int64)]
    for n in reversed(extents[1:]):
        inner = strides[0]
        if isinstance(n, Const) and isinstance(inner, Const):
            strides.insert(0, Const(n.value * inner.value, int64))
        elif isinstance(inner, Const) and inner.value == 1:
            strides.insert(0, convert(g, n, int64))
        else:
            strides.insert(0, binary(g, "*", convert(g, n, int64), inner))
    return tuple(strides[:len(extents)])


def _format_operands(operands: tuple[Operand, ...]) -> str:
    return f"({', '.join(map(_format_operand, operands))}{',' if len(operands) == 1 else ''})"


def _format_operand(x) -> str:
    return str(x.value) if isinstance(x, Const) else getattr(x, "name", None) or repr(x)
