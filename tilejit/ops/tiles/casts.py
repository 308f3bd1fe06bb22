"""Conversion between dtypes: casts, which convert the number, and bitcasts, which keep the bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...dtypes import DType, float32, int32, int64, integer_range, keeps
from ...ir.builder import element_type, type_of
from ...ir.op import op
from ...ir.op_traits import Traits
from ...layout import register_table
from ...lazy import Lazy
from ...types import Tile, layout_of
from .elementwise import result_type

ml_dtypes = Lazy("ml_dtypes")

MOST = 1 << 24  # up to which float32 holds all integers
FEWEST = 4  # different elements of a thread from which on one conversion is for all


@op("pure", attrs=("dtype", "exact"), traits=Traits(elementwise=True, conversion=True))
def cast(x, dtype, exact):
    """Convert `x` to `dtype`.

    - Float to narrower float rounds to nearest even. Floats of 8 bits and less saturate at the largest finite value
      (PTX ISA ``cvt.satfinite``), except that an infinity stays one in float8_e5m2. NaN stays NaN; floats of 4 and 6
      bits have no NaN, and get their largest value.
    - float8_e8m0fnu holds powers of two. It gets the nearest one, of two equally near the larger. 0 becomes the
      smallest one, and a negative number NaN.
    - Float to integer truncates and saturates; NaN becomes 0 (PTX ISA ``cvt.rzi``).
    - Integer to narrower integer keeps the low bits.
    - To bool: whether the number is not 0.

    An `exact` cast, of a weak integer that adapts to another dtype, must not change the value.
    The simulator checks this.
    """


@cast.infer
def _(g, x, dtype, exact=None):
    return result_type(g, dtype, x)


def cast_array(x: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """`x` converted from `source` to `target`, with the same results as the hardware's conversions."""
    with np.errstate(all="ignore"):
        if target.kind == "bool":
            return x != 0
        if source.is_float and target.is_int:
            info = np.iinfo(target.np)
            wide = np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
            inside = np.clip(np.trunc(wide), float(info.min), float(info.max))
            top = inside >= float(info.max)
            return np.where(top, info.max, np.where(top, 0, inside).astype(target.np)).astype(target.np)
        if target.is_float and target.bits == 8:
            once = source.bits == 64 and source.is_float or source.bits >= 32 and source.is_int
            return _to_narrow(_rounded_to_odd(_keep_sticky_bit(x)) if once else x.astype(np.float32), target)
        if target.is_float and target.bits <= 16 and (source.bits == 64 or source.is_int and source.bits == 32):
            return _round_once(x, target)
        return x.astype(target.np)


def _to_narrow(x: np.ndarray, target: DType) -> np.ndarray:
    """Convert float32 to a float of at most 8 bits."""
    largest = float(ml_dtypes.finfo(target.np).max)
    if target.name == "float8_e8m0fnu":
        bits = np.abs(x).view(np.uint32)
        code = np.where(bits < 1 << 23, bits >= 3 << 21, np.minimum(bits + (1 << 22) >> 23, 254))
        return np.where((x < 0) | np.isnan(x), 255, code).astype(np.uint8).view(target.np)
    clipped = np.clip(x, -largest, largest)
    if target.name == "float8_e5m2":
        clipped = np.where(np.isinf(x), x, clipped)
    return (clipped if target.codes == 256 else np.where(np.isnan(x), np.float32(largest), clipped)).astype(target.np)


def cast_number(x: bool | int | float, source: DType, target: DType) -> bool | int | float:
    """`cast_array` of one constant."""
    with np.errstate(all="ignore"):
        result = cast_array(np.asarray(x).astype(source.np), source, target)
    if target.kind == "bool":
        return bool(result)
    return int(result) if target.is_int else float(result)


def _round_once(x: np.ndarray, target: DType) -> np.ndarray:
    """Convert a 64-bit number or a 32-bit integer to a 16-bit float.

    It goes through float32 with rounding to odd, which does not affect the second rounding.
    """
    if target.name == "float16" and x.dtype == np.float64:
        return x.astype(np.float16)
    return _rounded_to_odd(_keep_sticky_bit(x)).astype(target.np)


def _keep_sticky_bit(x: np.ndarray) -> np.ndarray:
    """`x` with the low 12 bits of large 64-bit integers folded into the next bit (a sticky bit),
    so that float64 holds them exactly.

    That bit is far below the last one that a 16-bit float keeps, and only says that the number is inexact.
    """
    if x.dtype.kind not in "iu" or x.dtype.itemsize < 8:
        return x
    low = x & 4095
    return np.where((x > 2**32) | (x < -2**32), x - low | (low != 0).astype(x.dtype) << 12, x)


def _rounded_to_odd(x: np.ndarray) -> np.ndarray:
    """`x` rounded to float32 by round-to-odd: an inexact result is truncated, and its last bit set. A number beyond
    float32 becomes its largest one."""
    wide = x.astype(np.float64)
    near = wide.astype(np.float32)
    bits = near.view(np.uint32)
    inexact = near.astype(np.float64) != wide
    toward_zero = np.where(np.abs(near.astype(np.float64)) > np.abs(wide), bits - 1, bits)
    odd = np.where(inexact & ~np.isnan(wide), toward_zero | 1, bits).astype(np.uint32)
    return odd.view(np.float32)


@cast.linear
def _(g, call):
    return g.linear_form(call.args[0]) if keeps(type_of(call.args[0]).dtype, call.result.type.dtype) else None


@cast.simulate
def _(m, call, x):
    target = call.attrs["dtype"]
    if call.attrs.get("exact"):
        low, high = integer_range(target)
        fits = (x >= low) & (x <= high) | ~m.active
        if not fits.all():
            value = np.broadcast_to(x, fits.shape)[~fits][0]
            m.assertion(f"{value} does not fit in {target} ({low} to {high}), the dtype that this Python number takes "
                        "here; tile.cast keeps its low bits", ~fits.all(axis=1))
    return cast_array(x, type_of(call.args[0]).dtype, target)


@dataclass(frozen=True)
class SharedConversion:
    """How the elements of a tile of integers in a thread's registers exceed the first: `apart`, in order. float32 holds
    all of them and all differences, so the others are the first as float32 plus constants, exactly."""

    apart: tuple[int, ...]


@cast.plan
def _(context, call) -> SharedConversion | None:
    """The plan of a cast of an index tile to float32. An addition takes the place of a conversion, which is as slow as
    an exponential on some targets and half as fast as an addition on others, and of the integer addition before it."""
    x, t = call.args[0], call.result.type
    if not isinstance(t, Tile) or t.dtype != float32 or element_type(x) not in (int32, int64):
        return None
    table = register_table(layout_of(t), t.domain)
    found = context.progression(x) if len(table) >= FEWEST else None
    if found is None or not -MOST <= found.low <= found.high <= MOST:
        return None
    apart = tuple(sum(step * c for step, c in zip(found.steps, at)) for at in table)  # the first is at 0
    return SharedConversion(apart) if len(set(apart)) >= FEWEST and max(map(abs, apart)) <= MOST else None


def _convert_once(e, first, apart):
    """The elements of an index tile as float32, from the `first` one."""
    # in assembly, since LLVM makes a conversion plus a constant an integer addition and a conversion
    base = e.asm(f"cvt.rn.f32.s{first.dtype.bits} $0, $1;", [float32], [first], pure=True)[0]
    made = {n: e.ins(f"fadd float {base.text}, {e.const(n, float32).text}", float32) for n in dict.fromkeys(apart) if n}
    return [made.get(n, base) for n in apart]


@cast.emit
def _(e, call, x):
    target = call.attrs["dtype"]
    if call.choice is not None:
        return _convert_once(e, x[0], call.choice.plan.apart)
    if isinstance(x, list):
        return e.cast_many(x, target)
    return e.cast(x, target)


@op("pure", attrs=("dtype", "hidden"))
def bitcast(x, dtype, hidden):
    """Reinterpret the bits of `x` as another dtype of the same width. Those of integers that the assembler may know
    to be 0 or 1 are `hidden` from it (`hidden` in `emit/instructions.py`)."""


@bitcast.infer
def _(g, x, dtype, hidden=None):
    source = type_of(x).dtype
    if "bool" in (source.kind, dtype.kind) or source.packed or dtype.packed or source.bits != dtype.bits:
        raise g.error(f"bitcast keeps the bits: {source} and {dtype} do not have the same number of bits, "
                      "in whole bytes; tile.cast converts the number")
    return result_type(g, dtype, x)


@bitcast.simulate
def _(m, call, x):
    return np.ascontiguousarray(x).view(call.attrs["dtype"].np)


def _emit_bitcast(e, call, x):
    dtype = call.attrs["dtype"]
    return e.ins(f"bitcast {(e.hide(x) if call.attrs.get('hidden') else x).typed_text} to {dtype.llvm}", dtype)


@bitcast.emit
def _(e, call, x):
    return [_emit_bitcast(e, call, v) for v in x] if isinstance(x, list) else _emit_bitcast(e, call, x)
