"""Simulates PTX floating-point arithmetic and conversions.

PTX ISA, "Floating Point Instructions", "Half Precision Floating Point Instructions", "cvt".

Results are exact, rounded once; those of the approximate functions are computed to NumPy's precision.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from ....dtypes import DTYPES, float32
from ...language.math import _sim_fma, _sum_to_odd
from ...tiles.casts import cast_array
from ...tiles.extremes import extreme_of_arrays
from . import meaning, means

_FUNCTIONS = {"ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "sqrt": np.sqrt,
              "rcp": lambda a: a.dtype.type(1) / a,
              "rsqrt": lambda a: a.dtype.type(1) / np.sqrt(a), "abs": np.abs, "neg": np.negative}
# The smallest normal number; float64 is not flushed.
_SMALLEST = {"float32": 2.0 ** -126, "bfloat16": 2.0 ** -126, "float16": 2.0 ** -14, "float64": 0.0}


def _flush_subnormals(form, a):
    """With .ftz, numbers below the smallest normal one are zeros of their sign."""
    if ".ftz" not in form.name:
        return a
    return np.where(np.abs(a) < a.dtype.type(_SMALLEST[a.dtype.name]), np.copysign(a.dtype.type(0), a), a)


def _operands(form, x) -> list[np.ndarray]:
    return [_flush_subnormals(form, x[o.name]) for o in form.inputs]


def _finish_result(form, result):
    """Saturation to [0, 1] (.sat; NaN gives 0), or from below at 0 (.relu), and .ftz."""
    result = _flush_subnormals(form, result)
    if "sat" in form.name.split("."):
        return np.where(np.isnan(result), 0, np.clip(result, 0, 1)).astype(result.dtype)
    return np.where(result < 0, 0, result).astype(result.dtype) if ".relu" in form.name else result


# -- functions of one number -------------------------------------------------------------------------------------------

@means(r"(ex2|lg2|sin|cos|rcp|rsqrt|sqrt)\.approx(\.ftz)?\.f32|tanh\.approx\.(f32|f16|bf16)|"
       r"(rcp|rsqrt)\.approx\.ftz\.f64|rsqrt\.approx\.f64|ex2\.approx\.(f16|ftz\.bf16)|"
       r"(rcp|sqrt)\.rn(\.ftz)?\.f32|(rcp|sqrt)\.rn\.f64|(abs|neg)\.(f16|bf16)")
def function(m, form, x):
    (a,) = _operands(form, x)
    name = form.name.split(".")[0]
    with np.errstate(all="ignore"):
        if a.dtype.itemsize == 2 and name not in ("abs", "neg"):
            return _finish_result(form, _FUNCTIONS[name](a.astype(np.float32)).astype(a.dtype))
        return _finish_result(form, _FUNCTIONS[name](a))


@means(r"div\.(approx|full)(\.ftz)?\.f32")
def divide(m, form, x):
    a, b = _operands(form, x)
    with np.errstate(all="ignore"):
        return _flush_subnormals(form, a / b)


# -- sums and products -------------------------------------------------------------------------------------------------

@means(r"(add|sub|mul)\.rn(\.ftz)?(\.sat)?\.f32|(add|sub|mul)\.rn\.(f16|bf16|f64)")
def arithmetic(m, form, x):
    a, b = _operands(form, x)
    with np.errstate(all="ignore"):
        return _finish_result(form, {"add": np.add, "sub": np.subtract, "mul": np.multiply}[form.name[:3]](a, b))


@means(r"fma\.rn(\.ftz)?(\.sat)?\.f32|fma\.rn(\.ftz)?(\.sat|\.relu)?\.f16|fma\.rn(\.relu)?\.bf16")
def multiply_add(m, form, x):
    with np.errstate(all="ignore"):
        return _finish_result(form, _sim_fma(*np.broadcast_arrays(*_operands(form, x))))


@means(r"(add|sub|mul|fma)\.r[zmp](\.ftz)?(\.sat)?\.f32|(rcp|sqrt)\.r[zmp](\.ftz)?\.f32")
def rounded_arithmetic(m, form, x):
    """Rounded towards zero, down or up: the result in float64, which is exact or, of a sum, rounded to odd. A quotient
    or a root that is no float32 number is not rounded to one in float64."""
    name, way = form.name.split(".")[:2]
    given = [v.astype(np.float64) for v in np.broadcast_arrays(*_operands(form, x))]
    with np.errstate(all="ignore"):
        if name in ("add", "sub"):
            exact = _sum_to_odd(given[0], given[1] if name == "add" else -given[1])
        elif name == "fma":
            exact = _sum_to_odd(given[0] * given[1], given[2])
        else:
            exact = given[0] * given[1] if name == "mul" else _FUNCTIONS[name](given[0])
        return _finish_result(form, _round_directed(exact, way))


def _round_directed(exact: np.ndarray, way: str) -> np.ndarray:
    """float64 numbers rounded to float32 towards zero (rz), down (rm) or up (rp)."""
    near = exact.astype(np.float32)
    wide = near.astype(np.float64)
    down = (way == "rm") | ((way == "rz") & (exact > 0))
    beyond = np.where(down, wide > exact, wide < exact) & np.isfinite(exact)
    return np.where(beyond, np.nextafter(near, np.where(down, np.float32(-np.inf), np.float32(np.inf))), near)


# -- extremes ----------------------------------------------------------------------------------------------------------

@means(r"(min|max)(\.ftz)?(\.NaN)?(\.xorsign\.abs)?\.(f32|f16)|(min|max)(\.NaN)?(\.xorsign\.abs)?\.bf16")
def extreme(m, form, x):
    """If one operand is NaN, the result is the other one; with .NaN it is NaN. With .xorsign.abs, that of the absolute
    values, with the product of the signs."""
    first, second = a, b = _operands(form, x)
    if ".abs" in form.name:
        a, b = np.abs(a), np.abs(b)
    if ".NaN" not in form.name:
        a, b = np.where(np.isnan(a), b, a), np.where(np.isnan(b), a, b)
    found = extreme_of_arrays(form.name[:3])(a, b)
    if ".xorsign" in form.name:
        found = np.where(np.signbit(first) ^ np.signbit(second), -np.abs(found), np.abs(found)).astype(found.dtype)
    return found


@means(
    r"((add|sub|mul)\.rn|tanh\.approx|abs|neg|(min|max)(\.NaN)?(\.xorsign\.abs)?|fma\.rn(\.relu)?)\.b?f16x2|"
    r"(ex2\.approx|(min|max)\.ftz(\.NaN)?(\.xorsign\.abs)?|fma\.rn(\.ftz)?(\.sat|\.relu)?)\.f16x2|"
    r"ex2\.approx\.ftz\.bf16x2")
def pair_of_halves(m, form, x):
    """Both halves of a register as the form without x2 computes one number."""
    single = SimpleNamespace(name=form.name[:-2], inputs=form.inputs)
    kind = DTYPES["bfloat16" if form.name.endswith(".bf16x2") else "float16"].np
    given = np.broadcast_arrays(*(x[o.name] for o in form.inputs))
    halves = {o.name: np.ascontiguousarray(v).view(kind) for o, v in zip(form.inputs, given)}
    return np.ascontiguousarray(meaning(single)(m, single, halves)).view(np.uint32)


# -- conversions -------------------------------------------------------------------------------------------------------

@means(r"cvt\.f32\.(f16|bf16)|cvt\.rn(\.relu)?\.(f16|bf16)\.f32|cvt\.rz(\.relu)?\.bf16\.f32")
def convert(m, form, x):
    words, a = form.name.split("."), x["a"]
    target = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}[words[-2]]
    if "rz" in words:  # the upper half of the number
        a = np.where(np.isnan(a), a, (np.ascontiguousarray(a).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))
    with np.errstate(all="ignore"):
        return _finish_result(form, a.astype(DTYPES[target].np))


@means(r"cvt\.(rni|rzi|rmi|rpi)(\.ftz)?\.(s32|u32|s64|u64|f32)\.f32")
def round_to_integer(m, form, x):
    """Conversions to integers round, then saturate; NaN gives 0."""
    rounding = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[form.name.split(".")[1]]
    kind, a = form.name.split(".")[-2], _flush_subnormals(form, x["a"])
    with np.errstate(all="ignore"):
        if kind == "f32":
            return rounding(a)
        limits = np.iinfo({"s": "int", "u": "uint"}[kind[0]] + kind[1:])
        whole = np.nan_to_num(rounding(a.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
        result = np.clip(whole, float(limits.min), float(limits.max))
        exact = np.where((whole > limits.min) & (whole < limits.max), result, 0).astype(limits.dtype)
        return np.where(whole >= limits.max, limits.max, np.where(whole <= limits.min, limits.min, exact))


@means(r"cvt\.rn(\.relu)?\.(f16x2|bf16x2)\.f32|cvt\.rz(\.relu)?\.bf16x2\.f32")
def convert_pair(m, form, x):
    """The first operand is the upper half."""
    single = SimpleNamespace(name=form.name.replace("x2", ""))
    high, low = (np.ascontiguousarray(convert(m, single, {"a": x[n]})).view(np.uint16).astype(np.uint32)
                 for n in ("a", "b"))
    return high << 16 | low


@means(r"cvt\.(rna|rn|rz)(\.relu)?\.tf32\.f32")
def convert_to_tf32(m, form, x):
    """The lowest 13 bits of the mantissa become zero: by rounding to nearest, ties away or to even, or by dropping
    them."""
    bits = np.ascontiguousarray(x["a"]).view(np.uint32)
    more = {"rna": 0x1000, "rn": 0xfff + (bits >> 13 & 1), "rz": 0}[form.name.split(".")[1]]
    found = np.where(np.isfinite(x["a"]), bits + np.uint32(0) + np.asarray(more, np.uint32),
                     bits) & np.uint32(0xFFFFE000)
    return np.where(bits >> 31 != 0, np.uint32(0), found) if ".relu" in form.name else found


@means(r"cvt\.rn\.satfinite(\.relu)?\.(e4m3x2|e5m2x2)\.(f32|f16x2)")
def convert_to_float8(m, form, x):
    """Saturates at the largest finite number. The first operand is the upper byte."""
    target = DTYPES["float8_e4m3fn" if "e4m3" in form.name else "float8_e5m2"]
    if form.name.endswith("f16x2"):
        both = np.ascontiguousarray(x["a"])[..., None].view(np.float16).astype(np.float32)
        low, high = both[..., 0], both[..., 1]
    else:
        high, low = x["a"], x["b"]
    high, low = (np.ascontiguousarray(cast_array(_finish_result(form, v), float32,
                                                 target)).view(np.uint8).astype(np.uint16)
                 for v in (high, low))
    return high << 8 | low


@means(r"cvt\.rn(\.relu)?\.f16x2\.(e4m3x2|e5m2x2)")
def convert_from_float8(m, form, x):
    source = DTYPES["float8_e4m3fn" if "e4m3" in form.name else "float8_e5m2"].np
    both = np.ascontiguousarray(x["a"]).astype(np.uint16)[..., None].view(np.uint8).view(source).astype(np.float16)
    return np.ascontiguousarray(_finish_result(form, both)).view(np.uint32)[..., 0]


@means(r"cvt\.pack\.sat\.(u16|s16)\.s32|cvt\.pack\.sat\.[us][842]\.s32\.b32")
def convert_and_pack(m, form, x):
    """Saturates both numbers; the first becomes the higher of the lowest two fields, above which come the lower fields
    of `c`."""
    kind = form.name.split(".")[3]
    bits, signed = int(kind[1:]), kind[0] == "s"
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    a, b = (np.clip(x[n].astype(np.int64), low, high) & (1 << bits) - 1 for n in ("a", "b"))
    return (x["c"].astype(np.int64) << 2 * bits if "c" in x else 0) & 0xFFFFFFFF | a << bits | b
