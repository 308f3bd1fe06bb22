"""Passes that choose layouts of registers and of shared memory, and the lowering of each call."""
