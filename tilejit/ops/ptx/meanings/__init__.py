"""Simulation of PTX instructions called by ``tile.ptx``. PTX ISA, "Instruction Set".

A meaning is a function of (machine, form, operands by name) that returns the results. Registers are arrays (B or 1, T
or 1), of B CTAs and T threads, with the operand's dtype; vectors are tuples of them, immediates ints, and places
simulated regions and barriers. Forms without a meaning are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np

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


@cache
def _meaning(name: str) -> Callable | None:
    return next((function for pattern, function in _MEANINGS.items() if re.fullmatch(pattern, name)), None)


# -- special registers -------------------------------------------------------------------------------------------------

@means(
    r"mov\.\w+\.(tid|ntid|ctaid|nctaid|laneid|warpid|nwarpid|lanemask_\w+|cluster\w*|nclusterid|"
    r"is_explicit_cluster)(\.[xyz])?")
def special_register(m, form, x):
    name, _, axis = form.name.split(".", 2)[2].partition(".")
    axis = "xyz".index(axis) if axis else 0
    def as_array(n):
        return np.full((1, 1), n)
    lanes, cluster = m.thread_ids() % 32, m.sim.cluster or (1, 1, 1)
    inside = (m.rank % cluster[0], m.rank // cluster[0] % cluster[1], m.rank // (cluster[0] * cluster[1]))
    masks = {"eq": lambda n: 1 << n, "lt": lambda n: (1 << n) - 1, "le": lambda n: (2 << n) - 1,
             "gt": lambda n: 0xFFFFFFFF & ~((2 << n) - 1), "ge": lambda n: 0xFFFFFFFF & ~((1 << n) - 1)}
    if name.startswith("lanemask_"):
        return masks[name[9:]](lanes.astype(np.int64))
    values = {
        "tid": lambda: m.thread_ids() if axis == 0 else as_array(0),
        "ntid": lambda: as_array(m.sim.program.threads if axis == 0 else 1),
        "ctaid": lambda: m.program_id(axis), "nctaid": lambda: as_array(m.grid[axis]), "laneid": lambda: lanes,
        "warpid": lambda: m.thread_ids() // 32, "nwarpid": lambda: as_array(-(-m.sim.program.threads // 32)),
        "cluster_ctaid": lambda: as_array(inside[axis]), "cluster_nctaid": lambda: as_array(cluster[axis]),
        "cluster_ctarank": lambda: m.cluster_rank, "cluster_nctarank": lambda: as_array(m.cluster_size),
        "clusterid": lambda: m.cluster_id(axis), "nclusterid": lambda: as_array(m.grid[axis] // cluster[axis]),
        "is_explicit_cluster": lambda: as_array(bool(m.sim.graph.launch.cluster)),
    }
    return values[name]()


# -- registers ---------------------------------------------------------------------------------------------------------

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


# -- instructions without an effect in the simulator -------------------------------------------------------------------

@means(r"prefetch\..*|prefetchu\..*|applypriority\..*|nanosleep\.u32|cp\.async\.bulk\.prefetch\.L2\..*|pmevent|"
       r"griddepcontrol\.\w+")
def do_nothing(m, form, x):
    """Hints, and instructions that control the hardware and have no result."""


@means(r"createpolicy\..*")
def policy(m, form, x):
    """A cache policy, which only cache hints use; the simulator ignores them."""
    return np.zeros((1, 1), np.uint64)


__all__ = ["meaning", "means"]
