"""Printing from a kernel: scalars by the threads that hold them, tiles element by element in order."""

from __future__ import annotations

from math import prod

import numpy as np

from ...dtypes import DType, bool_, float32, float64, int32, uint32
from ...ir.builder import Builder, describe, type_as, type_of
from ...ir.builtin import builtin
from ...ir.op import op
from ...ir.op_traits import Registers
from ...types import Scalar, Tile, Uniformity
from ..language.promotion import collective, convert, number

IN_A_LINE = 8  # elements of a tile that the GPU prints at once: lines of several CTAs mix, and vprintf takes 32 values


# -- the line's beginning ----------------------------------------------------------------------------------------------

def _prefix(e, by_thread: bool) -> list:
    """The parts of a line that name the CTA by its number in the grid, and with `by_thread`, or in a scope that is
    narrower than the CTA, the thread."""
    x, y, z = (e.sreg(f"ctaid.{axis}") for axis in "xyz")
    parts = ["cta ", x + e.sreg("nctaid.x") * (y + e.sreg("nctaid.y") * z)]
    if by_thread or e.threads < e.graph.launch.threads:
        parts += [" thread ", e.absolute_thread()]
    return [*parts, ": "]


def _promoted_dtype(dtype: DType) -> DType:
    """The dtype to which C promotes a variadic argument: integers to 32 or 64 bits, floats to double."""
    if dtype.is_float:
        return float64
    if dtype.bits == 64:
        return dtype
    return uint32 if dtype == uint32 else int32


def _as_argument(e, v):
    """A value as an argument of ``vprintf``."""
    return e.cast(v if v.dtype.bits > 16 or not v.dtype.is_float else e.cast(v, float32), _promoted_dtype(v.dtype))


# -- scalars -----------------------------------------------------------------------------------------------------------

@op("syncs", attrs=("text", "once"))
def print_(*values: Registers, text, once):
    """Print a line from every active thread of the scope, or with `once` from its first one."""


@print_.infer
def _(g, *values, text, once):
    return None


@print_.simulate
def _(m, call, *values):
    m.print(call.attrs["text"], values, call.attrs["once"])


@print_.emit
def _(e, call, *values):
    """Call ``vprintf``, which the driver links, with the format and a pointer to the packed, aligned values."""
    once = call.attrs["once"]

    def print_line() -> None:
        parts = [*_prefix(e, not once), call.attrs["text"]]
        for v in values:
            parts += [" ", _as_argument(e, v)]
        e.vprintf(parts)

    if once:
        e.control.by_first_thread(print_line)
    else:
        print_line()


# -- tiles -------------------------------------------------------------------------------------------------------------

@op("syncs", attrs=("text",))
def print_tile(value: Registers, text):
    """Print all elements of a tile, once for the scope. The result is their number; it names the call's scratch."""


@print_tile.infer
def _(g, value, text):
    return Scalar(int32, Uniformity.GRID)


def _scratch(call) -> int:
    t = type_of(call.args[0])
    return t.size * t.dtype.nbytes


print_tile.rules.scratch = _scratch


@print_tile.simulate
def _(m, call, value):
    m.print_tile(call.attrs["text"], value)
    return np.full((1, 1), type_of(call.args[0]).size, np.int32)


@print_tile.emit
def _(e, call, value):
    """The threads put their elements together in scratch memory, and the scope's first thread prints them in order,
    some of a row in each line, with their indices."""
    t = type_of(call.args[0])
    if not t.size:
        e.control.by_first_thread(lambda: e.vprintf([*_prefix(e, False), call.attrs["text"], " []"]))
        return e.const(0, int32)
    e.tiles.scratch_store(call, value, t)
    *outer, width = t.shape
    whole, rest = divmod(width, IN_A_LINE)

    def print_row(row, carried):
        if whole:
            e.control.emit_loop(0, whole, [], lambda n, c: _print_part(e, call, row, n * IN_A_LINE, IN_A_LINE) or c)
        if rest:
            _print_part(e, call, row, whole * IN_A_LINE, rest)
        return carried

    e.control.by_first_thread(lambda: e.control.emit_loop(0, prod(outer), [], print_row))
    return e.const(t.size, int32)


def _print_part(e, call, row, first, count: int) -> None:
    """Print `count` elements of a row of the tile in scratch, from column `first` on."""
    t = type_of(call.args[0])
    *outer, width = t.shape
    parts, left = [], prod(outer)
    for n in outer:
        left //= n
        parts += [row // left % n, ", "]
    parts = [*_prefix(e, False), call.attrs["text"], "[", *parts, first, ":", first + count, "]"]
    zero = e.const(False if t.dtype == bool_ else 0, t.dtype)
    for c in range(count):
        address, offset = e.scratch_address(call, (row * width + first + c) * t.dtype.nbytes)
        parts += [" ", _as_argument(e, e.vector_load("shared", address, offset, t.dtype, [zero], None, None)[0])]
    e.vprintf(parts)


# -- the function that kernels call ------------------------------------------------------------------------------------

@builtin
def device_print(g: Builder, text, *values):
    """Print a line: `text`, followed by the scalars `values`. Each tile among the values is printed after it.

    A line begins with the number of the CTA. If all threads of the scope have the same scalars, it is printed once;
    otherwise each thread prints its own and its id in the CTA. A tile is printed as NumPy prints it; on the GPU each
    line has at most 8 elements, after their indices. The GPU prints when the host next synchronises, at most what its
    buffer of 1 MB holds, and lines of CTAs mix; the simulator prints at once.
    """
    if not isinstance(text, str):
        raise g.error(f"device_print starts with a plain string, not {describe(text)}")
    operands = [convert(g, v, number(g, v).dtype) for v in values]
    tiles = [v for v in operands if isinstance(type_of(v), Tile)]
    if tiles:
        collective(g, "device_print of a tile")
    scalars = [v for v in operands if isinstance(type_of(v), Scalar)]
    if scalars or not tiles:
        least = g.scope.uniformity
        same = g.scope.partial is None and all(type_as(v, Scalar).uniform >= least for v in scalars)
        g.call(print_, *scalars, text=text, once=same or g.scope.threads == 1)
    for tile in tiles:
        g.call(print_tile, tile, text=text)
