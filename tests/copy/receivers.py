"""What the tests of multicasts share: masks of clusters of every size, and a buffer that the CTAs of a mask await."""

import tilejit as tile

#: CTAs of a cluster; more than 8 are not portable, and more than 16 there are none.
SIZES = range(2, 17)


def masks(ranks: int):
    """(sender, mask): to all of a cluster, to the last one alone from another one, to every other one."""
    whole = (1 << ranks) - 1
    return (ranks - 1, whole), (0, 1 << ranks - 1), (ranks // 2, 0x5555 & whole)


@tile.jit
def awaited(s, mask):
    """The barrier on which the CTAs of a mask await `s`. Every CTA's `s` is zeros by then, and all of them are here."""
    bar = tile.mbarrier()
    tile.store(s, tile.zeros(s.shape, s.dtype))
    tile.fence_proxy_async()
    with tile.elect():
        bar.arrive_expect_tx(tile.where((mask >> tile.cta_rank()) & 1 == 1, s.nbytes, 0))
    tile.cluster_sync()
    return bar
