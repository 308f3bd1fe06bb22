"""Products of matrices without tensor cores, in the order and the roundings of a thread's own loop."""

from __future__ import annotations

import numpy as np

from . import element_loops as loops
from .compile_loops import as_loops_take_it, compiled

STEP = 1e-9   # seconds that NumPy takes for a product and its sum


def add_products(acc: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """See `Machine.add_products`."""
    total = np.empty((max(len(acc), len(x), len(y)), x.shape[1], y.shape[2]), x.dtype)
    if x.dtype in (np.float32, np.float64) and acc.dtype == x.dtype:
        run = compiled(loops.add_products, total.size * x.shape[2] * STEP)
        if run is not None:
            run(*map(as_loops_take_it, (acc, x, y)), total)
            return total
    term, before = np.empty_like(total), acc
    for k in range(x.shape[2]):
        np.multiply(x[:, :, k, None], y[:, None, k, :], out=term)
        before = np.add(before, term, out=total, casting="unsafe")
    if before is acc:  # there is no k
        total[...] = acc
    return total
