"""Atomic operations on an array of elements, in the order in which they are listed."""

from __future__ import annotations

import numpy as np

_UFUNC = {"add": np.add, "sub": np.subtract, "min": np.fmin, "max": np.fmax,
          "maximum": np.maximum, "minimum": np.minimum,  # of floats: NaN wins; min and max ignore it
          "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def apply_atomic(memory: np.ndarray, index: np.ndarray, kind: str, values: np.ndarray, compare: np.ndarray | None,
                 need_old: bool = True) -> tuple[np.ndarray | None, bool]:
    """Apply ``memory[index[i]] op= values[i]`` for each i in order: (the old values, whether memory has changed)."""
    if not need_old and kind in _UFUNC and memory.dtype.isbuiltin == 1:
        with np.errstate(all="ignore"):
            _UFUNC[kind].at(memory, index, values)
        return None, True
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[starts, len(ordered)])
    old = np.empty(len(index), memory.dtype)
    if counts.max() > 256:
        return old, _one_by_one(memory, index, kind, values, compare, old)
    changed = False
    for turn in range(counts.max()):
        now = order[starts[counts > turn] + turn]
        at = index[now]
        before = memory[at]
        with np.errstate(all="ignore"):
            after = combine(kind, before, values[now], None if compare is None else compare[now])
        old[now] = before
        memory[at] = after
        changed = changed or bool((after != before).any())
    return old, changed


def _one_by_one(memory, index, kind, values, compare, old) -> bool:
    changed = False
    with np.errstate(all="ignore"):
        for i in range(len(index)):
            at = index[i]
            before = memory[at:at + 1].copy()
            after = combine(kind, before, values[i:i + 1], None if compare is None else compare[i:i + 1])
            old[i] = before[0]
            memory[at:at + 1] = after
            changed = changed or bool(after[0] != before[0])
    return changed


def combine(kind: str, old: np.ndarray, x: np.ndarray, compare: np.ndarray | None = None) -> np.ndarray:
    """The new value of each element. min and max of floats prefer a number to NaN, minimum and maximum keep NaN."""
    if kind in ("min", "max") and old.dtype.kind not in "iu":
        ignoring_nan = np.fmin if kind == "min" else np.fmax
        return ignoring_nan(old, x).astype(old.dtype)
    if kind in _UFUNC:
        return _UFUNC[kind](old, x).astype(old.dtype, copy=False)
    if kind == "exch":
        return x
    if kind == "cas":
        return np.where(old == compare, x, old)
    if kind == "inc":
        return np.where(old >= x, 0, old + 1).astype(old.dtype)
    if kind == "dec":
        return np.where((old == 0) | (old > x), x, old - 1).astype(old.dtype)
    raise ValueError(f"no atomic operation {kind!r}")
