"""Helpers for tests of multicasts: masks for clusters of every size, and a buffer that the CTAs of a mask wait for."""

import tilejit as tile

#: CTAs per cluster; more than 8 are not portable, and 16 is the maximum.
SIZES = range(2, 17)


def masks(ranks: int):
    """(sender, mask): to the whole cluster; from another CTA to the last one alone; to every other one."""
    whole = (1 << ranks) - 1
    return (ranks - 1, whole), (0, 1 << ranks - 1), (ranks // 2, 0x5555 & whole)


@tile.jit
def awaited(s, mask):
    """The barrier on which the CTAs of a mask wait for `s`. When it returns, every CTA's `s` is zeroed and all have synchronised."""
    bar = tile.mbarrier()
    tile.store(s, tile.zeros(s.shape, s.dtype))
    tile.fence_proxy_async()
    with tile.elect():
        bar.arrive_expect_tx(tile.where((mask >> tile.cta_rank()) & 1 == 1, s.nbytes, 0))
    tile.cluster_sync()
    return bar
