"""Devices, arrays and arguments, tensor maps, the launcher, and the on-disk cache."""
