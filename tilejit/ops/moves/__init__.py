"""Moves between memory and registers, and from memory to memory: load, store, copies, remote stores."""
