"""Kernels written in the language, with plain calls."""

from .grouped import grouped_matmul
from .matmul import matmul
from .tune import tune

__all__ = ["grouped_matmul", "matmul", "tune"]
