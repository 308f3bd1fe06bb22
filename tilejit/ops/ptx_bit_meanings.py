"""Simulation of the PTX instructions that count or move bits, and of mul.hi. PTX ISA, "popc", "clz", "brev", "mul"."""

from __future__ import annotations

import numpy as np

from .ptx_meanings import means


def _bits(a: np.ndarray) -> np.ndarray:
    """The bits of unsigned integers along an additional last dimension, least significant first."""
    return a[..., None] >> np.arange(8 * a.dtype.itemsize, dtype=a.dtype) & a.dtype.type(1)


@means(r"popc\.b(32|64)")
def count_of_ones(m, form, x):
    return _bits(x["a"]).sum(axis=-1).astype(np.uint32)


@means(r"clz\.b(32|64)")
def leading_zeros(m, form, x):
    bits = _bits(x["a"])[..., ::-1]
    return np.where(bits.any(axis=-1), bits.argmax(axis=-1), bits.shape[-1]).astype(np.uint32)


@means(r"brev\.b(32|64)")
def reversed_bits(m, form, x):
    a = x["a"]
    return (_bits(a)[..., ::-1] << np.arange(8 * a.dtype.itemsize, dtype=a.dtype)).sum(axis=-1, dtype=a.dtype)


@means(r"mul\.hi\.[us](32|64)")
def upper_half_of_product(m, form, x):
    a, b = x["a"], x["b"]
    return ((a.astype(object) * b.astype(object)) >> 8 * a.dtype.itemsize).astype(a.dtype)
