"""Tensor memory: allocation, moves to and from registers, and the ordering of operations on it."""
