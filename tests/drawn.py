"""Random arrays: integers from the whole range of their dtype, floats from the normal distribution."""

import numpy as np


def drawn(rng: np.random.Generator, shape, dtype) -> np.ndarray:
    """A random array from a generator."""
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return rng.standard_normal(shape).astype(dtype)


def numbers(shape, dtype, seed: int) -> np.ndarray:
    """The random array of a seed."""
    return drawn(np.random.default_rng(seed), shape, dtype)
