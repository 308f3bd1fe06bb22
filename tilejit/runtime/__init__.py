"""Devices, arguments, the on-disk cache and the launcher."""
