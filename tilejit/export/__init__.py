"""Kernels in files: what ``kernel.export`` writes, and what ``tile.load_kernel`` and a C launcher make of it."""
