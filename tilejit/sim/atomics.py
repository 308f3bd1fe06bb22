"""Atomic operations on an array of elements, in the order in which they are listed."""

from __future__ import annotations

import numpy as np

from . import element_loops as loops
from .compile_loops import as_loops_take_it, compiled

_UFUNC = {"add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum,
          "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
EXTREMES = {"min": np.minimum, "max": np.maximum, "minimum": np.minimum, "maximum": np.maximum}

#: A float32 sum that is NaN has these bits, whatever NaNs the operands are (measured on an H200).
NAN_SUM = np.array(0x7fffffff, np.uint32).view(np.float32)


# seconds that NumPy takes for an atomic among sorted ones, and for one by one
SORTED, ALONE = 1e-7, 2.5e-6


def apply_atomic(memory: np.ndarray, index: np.ndarray, kind: str, values: np.ndarray, compare: np.ndarray | None,
                 need_old: bool = True) -> tuple[np.ndarray | None, bool]:
    """Apply ``memory[index[i]] op= values[i]`` for each i in order. Returns (the old values, whether memory has
    changed); without `need_old`, the old values may be None, and memory then counts as changed."""
    if need_old or memory.dtype.isbuiltin != 1 or kind in EXTREMES and memory.dtype.kind == "f":
        found = _by_loops(memory, index, kind, values, compare, len(index) * SORTED)
        if found is not None:
            return found
    return _by_numpy(memory, index, kind, values, compare, need_old)


def _by_loops(memory, index, kind, values, compare, seconds: float) -> tuple[np.ndarray, bool] | None:
    """`apply_atomic` by a compiled loop; None if NumPy is to do it, in about `seconds`, or no loop can."""
    dtype, count = memory.dtype, len(index)
    index, values, old = as_loops_take_it(index), as_loops_take_it(values), np.empty(count, dtype)
    if dtype.kind in "iu" or kind == "exch" and dtype.isbuiltin == 1:
        run, unsigned = compiled(loops.apply_integers, seconds), dtype if dtype.kind in "iu" else f"u{dtype.itemsize}"
        if run is None:
            return None
        data, values, given = (x.view(unsigned) for x in (memory, values, old))
        compare = values if compare is None else as_loops_take_it(compare).view(unsigned)
        return old, bool(run(data, index, loops.KINDS[kind], values, compare, given))
    if kind in EXTREMES:
        run, bits = compiled(loops.apply_extremes, seconds), np.dtype(f"i{dtype.itemsize}")
        if run is None:
            return None
        nan, infinity = ordered_bits(np.array([np.nan, np.inf], dtype), kind)
        last = bits.type(np.iinfo(bits).max)
        return old, bool(run(memory.view(bits), index, ordered_bits(values, kind), "max" in kind, last, infinity, nan,
                             old.view(bits)))
    if kind == "add" and dtype in (np.float32, np.float64):
        run, unsigned = compiled(loops.add_floats, seconds), f"u{dtype.itemsize}"
        if run is None:
            return None
        nan = NAN_SUM.view(np.uint32).astype(unsigned)[()]
        return old, bool(run(memory, memory.view(unsigned), index, values, nan, dtype == np.float32, old))
    return None


def _by_numpy(memory, index, kind, values, compare, need_old: bool) -> tuple[np.ndarray | None, bool]:
    floats = memory.dtype.kind not in "iu"
    if not need_old and kind in EXTREMES and floats:
        cells, at = np.unique(index, return_inverse=True)
        keys = ordered_bits(memory[cells], kind)
        EXTREMES[kind].at(keys, at, ordered_bits(values, kind))
        memory[cells] = from_ordered_bits(keys, memory.dtype)
        return None, True
    if not need_old and kind in _UFUNC and memory.dtype.isbuiltin == 1:
        _UFUNC[kind].at(memory, index, values)
        if kind == "add" and memory.dtype == np.float32:
            memory[index[np.isnan(memory[index])]] = NAN_SUM
        return None, True
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[starts, len(ordered)])
    old = np.empty(len(index), memory.dtype)
    if counts.max() > 256:
        found = _by_loops(memory, index, kind, values, compare, len(index) * ALONE)
        if found is not None:
            return found
        return old, _one_by_one(memory, index, kind, values, compare, old)
    changed = False
    for turn in range(counts.max()):
        now = order[starts[counts > turn] + turn]
        at = index[now]
        before = memory[at]
        after = combine(kind, before, values[now], None if compare is None else compare[now])
        old[now] = before
        memory[at] = after
        changed = changed or after.tobytes() != before.tobytes()
    return old, changed


def _one_by_one(memory, index, kind, values, compare, old) -> bool:
    changed = False
    for i in range(len(index)):
        at = index[i]
        before = memory[at:at + 1].copy()
        after = combine(kind, before, values[i:i + 1], None if compare is None else compare[i:i + 1])
        old[i] = before[0]
        memory[at:at + 1] = after
        changed = changed or after.tobytes() != before.tobytes()
    return changed


def ordered_bits(x: np.ndarray, kind: str) -> np.ndarray:
    """Floats as integers that compare in the same order, with -0.0 below 0.0.

    For 'min' and 'max', NaN maps to the integer that loses against every number. For 'minimum' and 'maximum' it wins,
    and converts back to the NaN with all bits set (for 'maximum', all but the sign).
    """
    bits = np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}")
    last = np.iinfo(bits.dtype).max
    keys = bits ^ (bits >> 8 * x.dtype.itemsize - 1 & last)
    return np.where(np.isnan(x), last if kind in ("min", "maximum") else ~last, keys)


def from_ordered_bits(keys: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return (keys ^ (keys >> 8 * dtype.itemsize - 1 & np.iinfo(keys.dtype).max)).view(dtype)


def combine(kind: str, old: np.ndarray, x: np.ndarray, compare: np.ndarray | None = None) -> np.ndarray:
    """The new value of each element. For floats, 'min' and 'max' prefer a number to NaN;
    'minimum' and 'maximum' propagate NaN."""
    if kind in EXTREMES and old.dtype.kind not in "iu":
        return from_ordered_bits(EXTREMES[kind](ordered_bits(old, kind), ordered_bits(x, kind)), old.dtype)
    if kind in _UFUNC:
        made = _UFUNC[kind](old, x).astype(old.dtype, copy=False)
        return np.where(np.isnan(made), NAN_SUM, made) if kind == "add" and made.dtype == np.float32 else made
    if kind == "exch":
        return x
    if kind == "cas":
        return np.where(old == compare, x, old)
    if kind == "inc":
        return np.where(old >= x, 0, old + 1).astype(old.dtype)
    if kind == "dec":
        return np.where((old == 0) | (old > x), x, old - 1).astype(old.dtype)
    raise ValueError(f"no atomic operation {kind!r}")
