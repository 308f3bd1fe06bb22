"""Tensor memory: allocations, moves between it and registers, and the order of the operations on it."""
