"""A matrix product for Blackwell written by hand: TMA to shared memory, tcgen05 to tensor memory, registers, global memory."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile


@tile.jit(num_warps=4)
def matmul(A, B, C, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, STAGES: tile.constexpr):
    """C = A @ B^T, one CTA for each BM x BN tile of C: a producer, a thread that multiplies, and an epilogue by all threads."""
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    steps = tile.cdiv(A.shape[1], BK)
    sA = tile.alloc((STAGES, BM, BK), A.dtype, layout=tile.swizzled(A.dtype, (STAGES, BM, BK), 128))
    sB = tile.alloc((STAGES, BN, BK), B.dtype, layout=tile.swizzled(B.dtype, (STAGES, BN, BK), 128))
    acc = tile.alloc((BM, BN), "float32", scope="tmem")
    full, empty, done = tile.mbarrier(n=STAGES), tile.mbarrier(n=STAGES), tile.mbarrier()
    with tile.warp(0):
        with tile.elect():
            for k in range(steps):
                s = k % STAGES
                empty[s].wait(phase=k // STAGES + 1)
                full[s].arrive_expect_tx(sA[0].nbytes + sB[0].nbytes)
                tile.copy_async(sA[s], A[m:m + BM, k * BK:k * BK + BK], mbar=full[s])
                tile.copy_async(sB[s], B[n:n + BN, k * BK:k * BK + BK], mbar=full[s])
    with tile.warp(1):
        with tile.elect():
            for k in range(steps):
                s = k % STAGES
                full[s].wait(phase=k // STAGES)
                tile.mma_async(acc, sA[s], sB[s], trans_b=True, accumulate=k > 0)
                tile.tcgen05_commit(empty[s])
            tile.tcgen05_commit(done)
    done.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    part = BN // 2
    for i in range(2):
        tile.store(C[m:m + BM, n + part * i:n + part * i + part], tile.cast(tile.load(acc[:, part * i:part * i + part]), C.dtype))


def operands(m, n, k, dtype):
    rng = np.random.default_rng(m + n + k)
    return rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((n, k)).astype(dtype)


def close(got, a, b):
    """Whether the error is within one rounding of the result plus the roundings of k float32 additions."""
    x, y = a.astype(np.float64), b.astype(np.float64).T
    exact = x @ y
    bound = np.abs(exact) * (2.0 ** -8 if got.dtype.itemsize == 2 else 0) + np.abs(x) @ np.abs(y) * a.shape[1] * 2.0 ** -23 + 1e-6
    assert (np.abs(got.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("m,n,k", [(128, 64, 64), (256, 128, 320), (200, 136, 104), (1, 8, 8)])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_the_product_agrees_with_float64_within_its_roundings(m, n, k, dtype):
    """Several tiles, ragged edges, one row."""
    a, b = operands(m, n, k, dtype)
    for out in (np.float32, dtype):
        c = np.full((m, n), np.nan, out)
        matmul.simulate((-(-m // 128), -(-n // 64)), a, b, c, BM=128, BN=64, BK=64, STAGES=3, target="sm_100a").raise_first()
        close(c, a, b)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 5])
def test_the_product_is_right_for_every_trip_count_relative_to_the_stages(steps, seed):
    """1, stages - 1, stages, stages + 1 slots of k, on a ring of 3 stages, in several orders of events."""
    a, b = operands(64, 32, 64 * steps, np.float16)
    c = np.zeros((64, 32), np.float32)
    half.simulate(1, a, b, c, seed=seed, target="sm_103a").raise_first()
    close(c, a, b)


@tile.jit(num_warps=4)
def half(A, B, C):
    """A product with 64 rows, which uses half of the lanes of each warp."""
    steps = tile.cdiv(A.shape[1], 64)
    sA = tile.alloc((3, 64, 64), A.dtype, layout=tile.swizzled(A.dtype, (3, 64, 64), 128))
    sB = tile.alloc((3, 32, 64), B.dtype, layout=tile.swizzled(B.dtype, (3, 32, 64), 128))
    acc = tile.alloc((64, 32), "float32", scope="tmem", layout=LANES)
    full, empty, done = tile.mbarrier(n=3), tile.mbarrier(n=3), tile.mbarrier()
    with tile.warp(0):
        with tile.elect():
            for k in range(steps):
                empty[k % 3].wait(phase=k // 3 + 1)
                full[k % 3].arrive_expect_tx(sA[0].nbytes + sB[0].nbytes)
                tile.copy_async(sA[k % 3], A[0:64, k * 64:k * 64 + 64], mbar=full[k % 3])
                tile.copy_async(sB[k % 3], B[0:32, k * 64:k * 64 + 64], mbar=full[k % 3])
    with tile.warp(1):
        with tile.elect():
            for k in range(steps):
                full[k % 3].wait(phase=k // 3)
                tile.mma_async(acc, sA[k % 3], sB[k % 3], trans_b=True, accumulate=k > 0)
                tile.tcgen05_commit(empty[k % 3])
            tile.tcgen05_commit(done)
    done.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(C[0:64, 0:32], tile.load(acc))


LANES = tile.tmem_datapath("F", 32)


@tile.jit(num_warps=4, cluster=(2, 1, 1))
def paired(A, B, C, BN: tile.constexpr, STAGES: tile.constexpr):
    """256 rows by BN columns by a CTA pair: each CTA loads its half of A and of B, and the even one issues the products."""
    r, pair = tile.cta_rank(), tile.cluster_id(0)
    m, n, steps = pair * 256 + 128 * r, r * (BN // 2), tile.cdiv(A.shape[1], 64)
    sA = tile.alloc((STAGES, 128, 64), A.dtype, layout=tile.swizzled(A.dtype, (STAGES, 128, 64), 128))
    sB = tile.alloc((STAGES, BN // 2, 64), B.dtype, layout=tile.swizzled(B.dtype, (STAGES, BN // 2, 64), 128))
    acc = tile.alloc((128, BN), "float32", scope="tmem", cta_group=2)
    full, empty, done = tile.mbarrier(n=STAGES), tile.mbarrier(n=STAGES), tile.mbarrier()
    with tile.warp(0):
        with tile.elect():
            for k in range(steps):
                s = k % STAGES
                empty[s].wait(phase=k // STAGES + 1)
                if r == 0:
                    full[s].arrive_expect_tx(2 * (sA[0].nbytes + sB[0].nbytes))
                tile.copy_async(sA[s], A[m:m + 128, k * 64:k * 64 + 64], mbar=full[s].peer(0), cta_group=2)
                tile.copy_async(sB[s], B[n:n + BN // 2, k * 64:k * 64 + 64], mbar=full[s].peer(0), cta_group=2)
    if r == 0:
        with tile.warp(1):
            with tile.elect():
                for k in range(steps):
                    s = k % STAGES
                    full[s].wait(phase=k // STAGES)
                    tile.mma_async(acc, sA[s], sB[s], trans_b=True, accumulate=k > 0)
                    tile.tcgen05_commit(empty[s], multicast=3)
                tile.tcgen05_commit(done, multicast=3)
    done.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(C[m:m + 128, 0:BN], tile.load(acc))


@pytest.mark.parametrize("k", [64, 192, 328])
def test_a_cta_pair_shares_its_operands(k):
    """cta_group=2 in copies, products and commits."""
    a, b = operands(512, 64, k, np.float16)
    c = np.full((512, 64), np.nan, np.float32)
    for seed in range(2):
        paired.simulate(4, a, b, c, seed=seed, BN=64, STAGES=2, target="sm_100a").raise_first()
        close(c, a, b)


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_the_kernels_assemble_without_spills(target):
    """TMA both ways, one product per 32 bytes of k, and accumulators in registers only in the epilogue."""
    spec = [tile.ArraySpec((4096, 4096), "bfloat16") for _ in range(3)]
    compiled = matmul.compile(*spec, BM=128, BN=256, BK=64, STAGES=4, target=target)
    assert compiled.spills == 0 and compiled.ptx.count("tcgen05.mma.cta_group::1.kind::f16") == 4
    assert [c.variant for c in compiled.copies] == ["tma", "tma", "tcgen05_ldst"]
    pair = paired.compile(*spec[:2], tile.ArraySpec((4096, 4096), "float32"), BN=128, STAGES=4, target=target)
    assert pair.spills == 0 and "cta_group::2" in pair.ptx
