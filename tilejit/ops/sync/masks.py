"""Masks of the CTAs of a cluster."""

from __future__ import annotations

from ...errors import CompilationError


def check_mask(mask: int, ranks: int = 16) -> None:
    """CompilationError for a multicast mask that is 0 or names CTAs beyond a cluster of `ranks`."""
    if isinstance(mask, bool) or not 0 < mask < 1 << 16:
        raise CompilationError(f"multicast is a mask of the cluster's ranks, 1 to 65535, not {mask!r}")
    if mask >> ranks:
        raise CompilationError(f"the multicast mask {mask:#b} names CTAs beyond the cluster's {ranks}: "
                               "give cluster=(n, 1, 1) to @tile.jit or at the launch")
