"""Ready-made kernels, written in the language and called like functions."""

from .grouped import grouped_matmul
from .matmul import matmul
from .tune import tune

__all__ = ["grouped_matmul", "matmul", "tune"]
