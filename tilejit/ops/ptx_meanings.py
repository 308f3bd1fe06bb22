"""Simulation of PTX instructions called by ``tile.ptx``. PTX ISA, "Instruction Set".

A meaning is a function of (machine, form, operands by name) that returns the results. Registers are arrays (B or 1, T or 1),
of B CTAs and T threads, with the operand's dtype; vectors are tuples of them, immediates ints, and places simulated regions
and barriers. Forms without a meaning are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from ..dtypes import DTYPES
from ..errors import SimulationError
from .extremes import extreme_of_arrays

_MEANINGS: dict[str, Callable] = {}


def means(pattern: str):
    """Decorator that registers a function as the meaning of all forms whose whole name matches `pattern`."""
    def register(function: Callable) -> Callable:
        _MEANINGS[pattern] = function
        return function
    return register


def meaning(form) -> Callable | None:
    """The meaning of a form, or None if the simulator has none for it."""
    return _meaning(form.name)


@lru_cache(maxsize=None)
def _meaning(name: str) -> Callable | None:
    return next((function for pattern, function in _MEANINGS.items() if re.fullmatch(pattern, name)), None)


# -- special registers -----------------------------------------------------------------------------------------------------

@means(r"mov\.\w+\.(tid|ntid|ctaid|nctaid|laneid|warpid|nwarpid|lanemask_\w+|cluster\w*|nclusterid|is_explicit_cluster)(\.[xyz])?")
def special_register(m, form, x):
    name, _, axis = form.name.split(".", 2)[2].partition(".")
    axis = "xyz".index(axis) if axis else 0
    whole = lambda n: np.full((1, 1), n)
    lanes, cluster = m.thread_ids() % 32, m.sim.cluster or (1, 1, 1)
    inside = (m.rank % cluster[0], m.rank // cluster[0] % cluster[1], m.rank // (cluster[0] * cluster[1]))
    masks = {"eq": lambda n: 1 << n, "lt": lambda n: (1 << n) - 1, "le": lambda n: (2 << n) - 1,
             "gt": lambda n: 0xFFFFFFFF & ~((2 << n) - 1), "ge": lambda n: 0xFFFFFFFF & ~((1 << n) - 1)}
    if name.startswith("lanemask_"):
        return masks[name[9:]](lanes.astype(np.int64))
    values = {
        "tid": lambda: m.thread_ids() if axis == 0 else whole(0), "ntid": lambda: whole(m.sim.program.threads if axis == 0 else 1),
        "ctaid": lambda: m.program_id(axis), "nctaid": lambda: whole(m.grid[axis]), "laneid": lambda: lanes,
        "warpid": lambda: m.thread_ids() // 32, "nwarpid": lambda: whole(-(-m.sim.program.threads // 32)),
        "cluster_ctaid": lambda: whole(inside[axis]), "cluster_nctaid": lambda: whole(cluster[axis]),
        "cluster_ctarank": lambda: m.cluster_rank, "cluster_nctarank": lambda: whole(m.cluster_size),
        "clusterid": lambda: m.cluster_id(axis), "nclusterid": lambda: whole(m.grid[axis] // cluster[axis]),
        "is_explicit_cluster": lambda: whole(bool(m.sim.graph.launch.cluster)),
    }
    return values[name]()


# -- arithmetic ------------------------------------------------------------------------------------------------------------

_OPERATIONS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "abs": np.abs, "neg": np.negative, "rcp": lambda a: np.float32(1) / a,
               "sqrt": np.sqrt, "rsqrt": lambda a: np.float32(1) / np.sqrt(a), "ex2": np.exp2, "lg2": np.log2, "sin": np.sin,
               "cos": np.cos, "tanh": np.tanh}


@means(r"(add|sub|mul)\.rn(\.sat)?\.(f32|f64|f16|bf16)|(ex2|lg2|sin|cos|rcp|rsqrt|sqrt|tanh)\.approx\.f32|(abs|neg)\.(f16|bf16)|"
       r"(rcp|sqrt)\.rn\.f(32|64)")
def arithmetic(m, form, x):
    """Arithmetic. The approximate functions are computed to NumPy's precision."""
    operands = [x[o.name] for o in form.inputs]
    with np.errstate(all="ignore"):
        result = _OPERATIONS[form.name.split(".")[0]](*operands)
        return np.where(np.isnan(result), 0, np.clip(result, 0, 1)) if ".sat" in form.name else result


@means(r"div\.(approx|full)\.f32")
def divide(m, form, x):
    with np.errstate(all="ignore"):
        return x["a"] / x["b"]


@means(r"(min|max)(\.NaN)?\.(f32|f16|bf16)")
def extreme(m, form, x):
    """If one operand is NaN, the result is the other one; with .NaN it is NaN."""
    a, b = x["a"], x["b"]
    if ".NaN" not in form.name:
        a, b = np.where(np.isnan(a), b, a), np.where(np.isnan(b), a, b)
    return extreme_of_arrays(form.name[:3])(a, b)


@means(r"cvt\.(rn\.)?(f16|bf16|f32)\.(f16|bf16|f32)|cvt\.(rni|rzi|rmi|rpi)\.(s32|u32|s64|u64|f32)\.f32")
def convert(m, form, x):
    """Conversions to integers round, then saturate; NaN gives 0."""
    rounding = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}.get(form.name.split(".")[1])
    kind = form.name.split(".")[-2]
    with np.errstate(all="ignore"):
        if rounding is None or kind == "f32":
            wanted = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}[kind]
            return (rounding(x["a"]) if rounding else x["a"]).astype(DTYPES[wanted].np)
        limits = np.iinfo({"s": "int", "u": "uint"}[kind[0]] + kind[1:])
        whole = np.nan_to_num(rounding(x["a"].astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
        result = np.clip(whole, float(limits.min), float(limits.max))
        exact = np.where((whole > limits.min) & (whole < limits.max), result, 0).astype(limits.dtype)
        return np.where(whole >= limits.max, limits.max, np.where(whole <= limits.min, limits.min, exact))


@means(r"cvt\.rn\.(f16x2|bf16x2)\.f32")
def convert_pair(m, form, x):
    """The first operand is the upper half."""
    kind = DTYPES["float16" if form.name.endswith("f16x2.f32") and "bf16" not in form.name else "bfloat16"].np
    high, low = (np.ascontiguousarray(x[n].astype(kind)).view(np.uint16).astype(np.uint32) for n in ("a", "b"))
    return high << 16 | low


@means(r"mov\.(b16|b32|b64|f32|f64)")
def move(m, form, x):
    return x["a"]


@means(r"mov\.b(32|64)\.pack")
def pack(m, form, x):
    low, high = x["a"]
    wide = np.uint64 if low.dtype == np.uint32 else np.uint32
    return high.astype(wide) << wide(8 * low.dtype.itemsize) | low.astype(wide)


@means(r"mov\.b(32|64)\.unpack")
def unpack(m, form, x):
    half = np.uint32 if x["a"].dtype == np.uint64 else np.uint16
    return x["a"].astype(half), (x["a"] >> x["a"].dtype.type(8 * np.dtype(half).itemsize)).astype(half)


@means(r"lop3\.b32")
def lop3(m, form, x):
    """Where the bits of a, b and c, read as a number of three bits, are k, the result is bit k of the table."""
    result = np.uint32(0)
    for k in range(8):
        if x["table"] >> k & 1:
            term = np.uint32(0xFFFFFFFF)
            for name, bit in (("a", 4), ("b", 2), ("c", 1)):
                term = term & (x[name] if k & bit else ~x[name])
            result = result | term
    return result + np.zeros_like(x["a"])


@means(r"prmt\.b32")
def permute_bytes(m, form, x):
    """Each nibble of the selector picks one of eight bytes; if its top bit is set, the byte's sign bit is replicated instead."""
    pool = x["b"].astype(np.uint64) << np.uint64(32) | x["a"].astype(np.uint64)
    result = np.uint32(0)
    for i in range(4):
        nibble = (x["selector"] >> np.uint32(4 * i)) & np.uint32(15)
        byte = (pool >> ((nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8))).astype(np.uint32) & np.uint32(255)
        byte = np.where(nibble & np.uint32(8), np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0)), byte)
        result = result | byte << np.uint32(8 * i)
    return result


@means(r"shf\.(l|r)\.(clamp|wrap)\.b32")
def funnel_shift(m, form, x):
    count = x["count"] & np.uint32(31) if ".wrap" in form.name else np.minimum(x["count"], np.uint32(32))
    both, count = x["high"].astype(np.uint64) << np.uint64(32) | x["low"].astype(np.uint64), count.astype(np.uint64)
    return (both << count) >> np.uint64(32) if ".l." in form.name else both >> count


@means(r"dp4a\.(u32|s32)\.(u32|s32)")
def dot_of_bytes(m, form, x):
    a, b = (np.ascontiguousarray(np.broadcast_arrays(x["a"], x["b"])[i])[..., None].view(np.int8 if t == "s32" else np.uint8).astype(np.int64)
            for i, t in enumerate(form.name.split(".")[1:]))
    return ((a * b).sum(axis=-1) + x["c"].astype(np.int64)).astype(np.uint32)


# -- instructions without an effect in the simulator ------------------------------------------------------------------------

@means(r"prefetch\..*|prefetchu\..*|applypriority\..*|nanosleep\.u32|cp\.async\.bulk\.prefetch\.L2\..*|pmevent|griddepcontrol\.\w+")
def unseen(m, form, x):
    """Hints, and instructions that control the hardware and have no result."""


@means(r"createpolicy\..*")
def policy(m, form, x):
    """A cache policy, which only cache hints use; the simulator ignores them."""
    return np.zeros((1, 1), np.uint64)


__all__ = ["meaning", "means"]
