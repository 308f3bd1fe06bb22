"""Products in clusters: the CTAs of a row share its rows of A, those of a column its columns of B; each loads a part of them for all."""

import ml_dtypes
import numpy as np
import tilejit as tile
from hypothesis import HealthCheck, example, given, settings, strategies as st

from tests.drawn import drawn
from tests.gpu import in_child, needs_gpu
from tests.mma.products import BF16, assert_close


@tile.jit
def clustered(A, B, C, DOWN: tile.constexpr, ACROSS: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr,
              CONSUMERS: tile.constexpr,
              SUMS: tile.constexpr, ORDER: tile.constexpr):
    """``C = A @ B.T`` of A [M, K] and B [N, K]: clusters of DOWN by ACROSS CTAs, 64 rows for each consumer warpgroup, persistent."""
    BM: tile.constexpr = 64 * CONSUMERS
    CTAS: tile.constexpr = DOWN * ACROSS
    ring = tile.ring(STAGES, A=((BM, BK), A.dtype), B=((BN, BK), B.dtype), consumers=CONSUMERS, multicast=True)
    rank = tile.cta_rank()
    i, j = rank // ACROSS, rank % ACROSS
    steps, down, across = tile.cdiv(A.shape[1], BK), tile.cdiv(C.shape[0], BM * DOWN), tile.cdiv(C.shape[1], BN * ACROSS)
    first, stride = tile.program_id(0) // CTAS, tile.num_programs(0) // CTAS
    with tile.warpgroup(0):
        with tile.elect():
            row, column = ((1 << ACROSS) - 1) << (i * ACROSS), 0  # the CTAs with the same rows, and those with the same columns
            for r in tile.static_range(DOWN):
                column |= 1 << (r * ACROSS + j)
            a_part: tile.constexpr = BM // ACROSS
            b_part: tile.constexpr = BN // DOWN
            for tm, tn in tile.tile_order(down, across, ORDER, 2, first=first, stride=stride):
                m, n = (tm * DOWN + i) * BM + j * a_part, (tn * ACROSS + j) * BN + i * b_part
                for s in range(steps):
                    with ring.produce() as slot:
                        tile.copy_async(slot.A[j * a_part:j * a_part + a_part, :], A[m:m + a_part, s * BK:s * BK + BK], mbar=slot.full, multicast=row)
                        tile.copy_async(slot.B[i * b_part:i * b_part + b_part, :], B[n:n + b_part, s * BK:s * BK + BK], mbar=slot.full,
                                        multicast=column)
    with tile.each_warpgroup(range(1, 1 + CONSUMERS)) as w:
        at = (w - 1) * 64
        for tm, tn in tile.tile_order(down, across, ORDER, 2, first=first, stride=stride):
            acc = tile.zeros((64, BN), SUMS)
            for s in range(steps):
                with ring.consume() as slot:
                    acc = tile.mma_async(acc, slot.A[at:at + 64, :], slot.B, trans_b=True)
                    tile.mma_commit()
                    tile.mma_wait(0)
            m, n = (tm * DOWN + i) * BM + at, (tn * ACROSS + j) * BN
            tile.store(C[m:m + 64, n:n + BN], acc)


# (operands, BK, accumulator)
TYPES = ((BF16, 64, tile.float32), (np.float16, 32, tile.float32), (np.int8, 128, tile.int32), (ml_dtypes.float8_e5m2, 64, tile.float32))


def case(m, n, k, types, down, across, stages, consumers, order, grid=None, place=None, seed=0):
    """One product. `place` puts arrays on the GPU, where `grid` None queries the driver for the number of resident clusters."""
    dtype, bk, sums = types
    rng, unit = np.random.default_rng(seed), 16 // np.dtype(dtype).itemsize
    padded = -(-max(k, 1) // unit) * unit  # rows that TMA can read
    a, b = (drawn(rng, (rows, padded), dtype) for rows in (m, n))
    if place is not None and dtype is ml_dtypes.float8_e5m2:  # accumulation keeps 13 bits below the largest term: these are exact
        a, b = (rng.integers(-2, 3, x.shape).astype(dtype) for x in (a, b))
    c = np.full((m, n), np.iinfo(np.int32).max if sums == tile.int32 else np.nan, sums.np)
    constants = dict(DOWN=down, ACROSS=across, BN=64, BK=bk, STAGES=stages, CONSUMERS=consumers, SUMS=sums, ORDER=order, cluster=down * across,
                     num_warps=4 * (1 + consumers))
    if place is None:
        clustered.simulate(grid * down * across, a[:, :k], b[:, :k], c, seed=seed, **constants).raise_first()
    else:
        there = [place(a)[:, :k], place(b)[:, :k], place(c)]
        at_once = clustered.compile(*there, **constants).active_clusters()
        assert at_once > 0
        clustered[at_once * down * across,](*there, **constants)
        c = there[2].numpy()
    assert_close(c, a[:, :k], b[:, :k].T)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(m=st.integers(1, 300), n=st.integers(1, 150), stages=st.integers(1, 4), which=st.integers(0, 4), less=st.sampled_from((0, 0, 1, 5)),
       types=st.sampled_from(TYPES),
       shape=st.sampled_from(((2, 1), (1, 2), (2, 2), (4, 1))), consumers=st.sampled_from((1, 2)),
       order=st.sampled_from(("grouped", "snake", "hilbert")),
       grid=st.integers(1, 3), seed=st.integers(0, 99))
@example(1, 129, 1, 1, 0, TYPES[0], (2, 2), 1, "grouped", 1, 0)  # a CTA is ordered with those that it shares nothing with through others
def test_a_product_whose_operands_are_shared_by_a_cluster_is_right(m, n, stages, which, less, types, shape, consumers, order, grid, seed):
    """0, 1, stages - 1, stages and stages + 1 iterations, several tiles for each cluster, CTAs whose tile is outside the matrix."""
    k = max((0, 1, stages - 1, stages, stages + 1)[which] * types[1] - less, 0)
    case(m, n, k, types, *shape, stages, consumers, order, grid, seed=seed)


def test_the_bytes_of_all_ctas_are_announced_and_every_consumer_of_the_cluster_releases_a_slot():
    """A slot receives the bytes that all CTAs multicast; if consumers released it only to their own CTA, a producer would
    overwrite what others read."""
    shape = tile.ArraySpec((512, 512), "bfloat16")
    made = clustered.compile(shape, shape, tile.ArraySpec((512, 512), "float32"), DOWN=2, ACROSS=2, BN=64, BK=64, STAGES=3, CONSUMERS=2,
                             SUMS=tile.float32,
                             ORDER="grouped", cluster=4, num_warps=12)
    assert [c.variant for c in made.copies] == ["tma", "tma"] and made.spills == 0
    assert made.ptx.count(".multicast::cluster") == 2 and "mapa.shared::cluster" in made.ptx
    assert "mbarrier.arrive.expect_tx.shared::cta.b64" in made.ptx and str((128 + 64) * 64 * 2) in made.ptx


@needs_gpu("sm_90a")
@in_child(timeout=100)
def test_products_of_clusters_are_right_on_the_gpu():
    """As many clusters as the driver reports to fit, iterations around the number of stages, every way of sharing."""
    place = lambda x: tile.to_device(x, 0)
    for number, (shape, consumers, stages) in enumerate((((2, 1), 2, 4), ((1, 2), 1, 2), ((2, 2), 2, 3), ((4, 1), 1, 3), ((1, 4), 2, 2),
                                                         ((2, 4), 1, 3))):
        types = TYPES[number % len(TYPES)]
        for trips in sorted({0, 1, stages - 1, stages, stages + 1, 9}):
            for m, n in ((64, 64), (1000, 777), (3001, 2050)):
                case(m, n, max(trips * types[1] - (number % 2) * 3, 0), types, *shape, stages, consumers,
                     ("grouped", "snake", "hilbert")[number % 3], place=place, seed=number)
