"""Copies between the CTAs of two- and three-dimensional clusters: the first dimension of the rank is the fastest."""

import numpy as np
import tilejit as tile
from receivers import awaited
from values import any_bits

from tests.cases import Case, on_gpu, on_simulator
from tests.gpu import in_child, needs_gpu

CLUSTERED = ("sm_90a", "sm_100a", "sm_103a")
SHAPES = ((2, 2, 1), (1, 3, 1), (1, 2, 4), (3, 1, 2), (2, 2, 4))


@tile.jit
def own(X, N):
    """The CTA's row of an array with as many dimensions as the grid."""
    return X[tile.program_id(0), tile.program_id(1), tile.program_id(2), 0:N]


@tile.jit(num_warps=1)
def passed_around(A, B, C, D, E, sender, mask):
    """A row of `A` from one CTA to those of the mask, by TMA to `B` and in runs to `C`; each CTA's `D` to the rank after it by a copy,
    and to the one before it from registers."""
    s, t = tile.alloc((64,), A.dtype), tile.alloc((64,), A.dtype)
    boxes, runs = awaited(s, mask), awaited(t, mask)
    rank, size = tile.cta_rank(), tile.cluster_size()
    if rank == sender:
        with tile.elect():
            tile.copy_async(s, A[0:64], mbar=boxes, multicast=mask, variant="tma")
            tile.copy_async(t, A[64:128], mbar=runs, multicast=mask, variant="bulk")
    boxes.wait(phase=0)
    runs.wait(phase=0)
    tile.copy(own(B, 64), s)
    tile.copy(own(C, 64), t)
    mine, got, stored = tile.alloc((64,), D.dtype), tile.alloc((64,), D.dtype), tile.alloc((64,), D.dtype)
    bar = tile.mbarrier()
    tile.store(mine, tile.load(own(D, 64)))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        bar.arrive_expect_tx(got.nbytes + stored.nbytes)
        tile.copy_async(got.peer((rank + 1) % size), mine, mbar=bar)
    tile.store_async(stored.peer((rank + size - 1) % size), tile.load(mine), mbar=bar)
    bar.wait(phase=0)
    tile.store(own(D, 64), tile.load(got))
    tile.store(own(E, 64), tile.load(stored))


def cases():
    for n, cluster in enumerate(SHAPES):
        grid = tuple(k * c for k, c in zip((2, 1, 2), cluster))
        size = int(np.prod(cluster))
        mask, sender = (0b110101101101 + n) & (1 << size) - 1 | 1 << size - 1, n % size
        a, d = any_bits("uint32", (128,), n), any_bits("uint32", (*grid, 64), n + 1)
        b = np.zeros_like(d)
        c, nexts, lasts = b.copy(), b.copy(), b.copy()
        for x, y, z in np.ndindex(*grid):
            first = (x // cluster[0] * cluster[0], y // cluster[1] * cluster[1], z // cluster[2] * cluster[2])
            rank = x % cluster[0] + cluster[0] * (y % cluster[1] + cluster[1] * (z % cluster[2]))
            place = lambda r: tuple(f + k for f, k in zip(first, (r % cluster[0], r // cluster[0] % cluster[1], r // (cluster[0] * cluster[1]))))
            if mask >> rank & 1:
                b[x, y, z], c[x, y, z] = a[:64], a[64:]
            nexts[place((rank + 1) % size)] = lasts[place((rank - 1) % size)] = d[x, y, z]
        ones = np.ones_like(d)
        yield Case(f"{cluster}, mask {mask:b}", passed_around, grid, (a, ones, ones, d, ones, sender, mask),
                   {1: b, 2: c, 3: nexts, 4: lasts}, dict(cluster=cluster))


def test_the_first_dimension_of_a_multidimensional_cluster_is_the_fastest_in_the_rank():
    on_simulator(cases())


@needs_gpu(*CLUSTERED)
@in_child(timeout=120)
def test_the_first_dimension_of_a_multidimensional_cluster_is_the_fastest_in_the_rank_on_the_gpu():
    on_gpu(cases())
