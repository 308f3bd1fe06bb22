"""Kernels written in the language, with plain calls."""

from .matmul import matmul

__all__ = ["matmul"]
