"""The op behind ``tile.array``: an array that the kernel makes from an address."""

from __future__ import annotations

from ...dtypes import int32
from ...ir.builder import type_as
from ...ir.graph import Call, Const, Operand
from ...ir.op import op
from ...types import Addressed, Buffer, Scalar, Sym


@op("pure", attrs=("dtype", "align", "number", "label"))
def array_(address, *numbers, dtype, align, number, label):
    """The array that begins at `address`, a multiple of `align` bytes. `numbers` are its extents, then its strides in
    elements. It is the kernel's array `number`."""


@array_.infer
def _(g, address, *numbers, dtype, align, number, label):
    array = Addressed(number, align, label)
    rank = len(numbers) // 2
    shape = (_extent(n, Sym("size", array, d, name=f"{label}.shape[{d}]")) for d, n in enumerate(numbers[:rank]))
    strides = (_extent(n, Sym("stride", array, d, 64, f"{label}.strides[{d}]")) for d, n in enumerate(numbers[rank:]))
    return Buffer(dtype, tuple(shape), "global", strides=tuple(strides), arg=array)


def _extent(n: Operand, sym: Sym) -> int | Sym:
    """An extent or stride in a type: the constant `n`, or `sym`, which stands for it."""
    if isinstance(n, Const):
        return int(n.value)
    wide = sym.bits == 64 or type_as(n, Scalar).dtype != int32
    return Sym(sym.kind, sym.arg, sym.dim, 64 if wide else 32, sym.name)


def array_of(call: Call) -> Addressed:
    """What stands for the array of a call of `array_`."""
    array = type_as(call.result, Buffer).arg
    assert isinstance(array, Addressed)
    return array


def number_behind(call: Call, sym: Sym) -> Operand:
    """The operand of a call of `array_` that a size or stride of its array is."""
    rank = len(call.args) // 2
    return call.args[1 + sym.dim + (rank if sym.kind == "stride" else 0)]


@array_.simulate
def _(m, call, address, *numbers):
    return m.arrays.at(call.result, address, numbers)


@array_.emit
def _(e, call, address, *numbers):
    return e.make_array(call.result.type, address, numbers)
