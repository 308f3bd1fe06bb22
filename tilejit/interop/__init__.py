"""Kernels as operators of other libraries, which are loaded at their first use."""
