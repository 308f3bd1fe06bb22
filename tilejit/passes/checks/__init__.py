"""Passes that reject a kernel or warn about it."""
