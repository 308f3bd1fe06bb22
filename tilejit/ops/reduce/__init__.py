"""Reductions and scans of register tiles."""
