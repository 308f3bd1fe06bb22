"""Ready-made kernels, written in the language and called like functions."""

from .grouped.call import grouped_matmul
from .matmul.call import matmul
from .matmul.tune import tune

__all__ = ["grouped_matmul", "matmul", "tune"]
