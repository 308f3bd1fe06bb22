"""Arrays of random numbers: integers of the whole range of their dtype, normal floats."""

import numpy as np


def drawn(rng: np.random.Generator, shape, dtype) -> np.ndarray:
    """The next numbers of a generator."""
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


def numbers(shape, dtype, seed: int) -> np.ndarray:
    """The numbers of a seed."""
    return drawn(np.random.default_rng(seed), shape, dtype)
