"""Faults made for the GPU: kernels with as many CTAs as fit and enough data that the fault shows there. FAULTY leaves out one wait, fence or
barrier; "some fence" and "some wait" leave it to some of the threads. Here they are simulated; `jitter_gpu.py` runs them on a GPU."""

import numpy as np
import pytest
import tilejit as tile

ROWS, BLOCKS = 64, 9
A = (np.repeat(np.arange(1, BLOCKS + 1), ROWS)[:, None] * np.ones((1, 64))).astype(np.float16)  # block i has the number i + 1
OUT = np.zeros((1, ROWS, 64), np.float32)


@tile.jit
def one_buffer(A, O, N, SWIZZLE: tile.constexpr, FAULTY: tile.constexpr):
    s, bar, v = tile.alloc((64, 64), A.dtype, layout=tile.swizzled(A.dtype, (64, 64), SWIZZLE)), tile.mbarrier(), tile.zeros((64, 64))
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[0:64, 0:64], mbar=bar)
    bar.wait(phase=0)
    for i in range(1, N):
        v = v + tile.cast(tile.load(s), tile.float32)
        if FAULTY == "" or FAULTY == "some fence" and tile.warp_id() == 3:
            tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, A[i * 64:i * 64 + 64, 0:64], mbar=bar)
        bar.wait(phase=i)
    tile.store(O[tile.program_id(0), 0:64, 0:64], v)


@tile.jit(num_warps=8)
def slots(A, O, N, SWIZZLE: tile.constexpr, FAULTY: tile.constexpr):
    """FAULTY: "fence" leaves out the fence after the reads, "parity" waits for the wrong phase, "release" releases a slot before it is read,
    "empty" does not wait until a slot is free."""
    layout = tile.swizzled(A.dtype, (2, 64, 64), SWIZZLE)
    s, full, empty = tile.alloc((2, 64, 64), A.dtype, layout=layout), tile.mbarrier(n=2), tile.mbarrier(n=2)
    with tile.warp(0), tile.elect():
        for i in range(N - 1):
            if FAULTY != "empty":
                empty[i % 2].wait(phase=i // 2 + 1)
            full[i % 2].arrive_expect_tx(64 * 64 * 2)
            tile.copy_async(s[i % 2], A[i * 64:i * 64 + 64, 0:64], mbar=full[i % 2])
    with tile.warpgroup(1):
        v = tile.zeros((64, 64))
        for i in range(N - 1):
            if FAULTY != "some wait" or tile.thread_id() % 32 < 8:
                full[i % 2].wait(phase=0 if FAULTY == "parity" else i // 2)
            if FAULTY == "release":
                tile.sync()
                with tile.elect():
                    empty[i % 2].arrive()
            v = v + tile.cast(tile.load(s[i % 2]), tile.float32)
            if FAULTY != "release":
                if FAULTY != "fence" and (FAULTY != "some fence" or tile.warp_id() == 7):
                    tile.fence_proxy_async()
                tile.sync()
                with tile.elect():
                    empty[i % 2].arrive()
        tile.store(O[tile.program_id(0), 0:64, 0:64], v)


@tile.jit
def by_cp_async(A, O, N, FAULTY: tile.constexpr):
    """FAULTY: "wait" does not wait for the copies, "sync" reads before other threads' copies are there, "reuse" refills what others still read."""
    s, v = tile.alloc((2, 64, 64), A.dtype), tile.zeros((64, 64))
    tile.copy_async(s[0], A[0:64, 0:64])
    tile.cp_async_commit()
    for i in range(1, N):
        tile.copy_async(s[i % 2], A[i * 64:i * 64 + 64, 0:64])
        tile.cp_async_commit()
        if FAULTY != "wait" and (FAULTY != "some wait" or tile.warp_id() != 2):  # the lanes of a warp wait together there
            tile.cp_async_wait(1)
        if FAULTY != "sync":
            tile.sync()
        v = v + tile.cast(tile.transpose(tile.load(s[(i - 1) % 2])), tile.float32)
        if FAULTY != "reuse":
            tile.sync()
    tile.store(O[tile.program_id(0), 0:64, 0:64], tile.transpose(v))
    tile.cp_async_wait(0)


@tile.jit
def through_threads(A, O, N, FAULTY: tile.constexpr):
    """FAULTY: "written" reads before the barrier, "read" overwrites before the other barrier."""
    s, v = tile.alloc((64, 64), A.dtype), tile.zeros((64, 64))
    for i in range(N - 1):
        tile.store(s, tile.load(A[i * 64:i * 64 + 64, 0:64]))
        if FAULTY != "written":
            tile.sync()
        v = v + tile.cast(tile.load(s[tile.arange(64)[:, None], 63 - tile.arange(64)[None, :]]), tile.float32)
        if FAULTY != "read":
            tile.sync()
    tile.store(O[tile.program_id(0), 0:64, 0:64], v)


@tile.jit
def stored_by_tma(A, O, N, FAULTY: tile.constexpr):
    """Every CTA writes its blocks one below the other. FAULTY: "fence" leaves out the fence before a store, "wait" overwrites its source before
    it has been read, "sync" issues it before all threads have written."""
    s, p = tile.alloc((64, 64), tile.float32), tile.program_id(0)
    for i in range(N - 1):
        tile.store(s, tile.cast(tile.load(A[i * 64:i * 64 + 64, 0:64]), tile.float32))
        if FAULTY != "fence" and (FAULTY != "some fence" or tile.lane_id() == 0):
            tile.fence_proxy_async()
        if FAULTY != "sync":
            tile.sync()
        with tile.elect():
            tile.copy_async(O[p, i * 64:i * 64 + 64, 0:64], s)
            tile.bulk_commit()
            if FAULTY != "wait" and FAULTY != "some wait":
                tile.bulk_wait(0, read=True)
        if FAULTY == "some wait" and tile.thread_id() > 0:
            tile.bulk_wait(0, read=True)
        tile.sync()
    with tile.elect():
        tile.bulk_wait(0)


@tile.jit
def multiplied(A, O, N, FAULTY: tile.constexpr):
    """Sums blocks by products with the unit matrix. FAULTY: "wait" overwrites an operand that the products still read, "fence" leaves out the fence
    between the stores of an operand and the products."""
    layout = tile.swizzled(A.dtype, (64, 64), 128)
    s, unit = tile.alloc((64, 64), A.dtype, layout=layout), tile.alloc((64, 64), A.dtype, layout=layout)
    tile.store(unit, tile.cast(tile.arange(64)[:, None] == tile.arange(64)[None, :], A.dtype))
    acc = tile.zeros((64, 64))
    for i in range(N - 1):
        tile.store(s, tile.load(A[i * 64:i * 64 + 64, 0:64]))
        if FAULTY != "fence" and (FAULTY != "some fence" or tile.warp_id() == 0):
            tile.fence_proxy_async()
        tile.sync()
        acc = tile.mma_async(acc, s, unit)
        tile.mma_commit()
        if FAULTY != "wait":
            tile.mma_wait(0)
        tile.sync()
    tile.mma_wait(0)
    tile.store(O[tile.program_id(0), 0:64, 0:64], acc)


@tile.jit(cluster=2)
def from_the_peer(A, O, N, FAULTY: tile.constexpr):
    """Each CTA sends blocks into the other's inbox. FAULTY: "fence" leaves out the fence after the reads, "free" sends before the inbox is free,
    "arm" reads without a wait."""
    own, inbox, v = tile.alloc((64, 64), A.dtype), tile.alloc((64, 64), A.dtype), tile.zeros((64, 64))
    full, free, other = tile.mbarrier(), tile.mbarrier(), 1 - tile.cta_rank()
    tile.cluster_sync()
    for i in range(N - 1):
        if FAULTY != "free":
            free.wait(phase=i + 1)
        tile.store(own, tile.load(A[i * 64:i * 64 + 64, 0:64]))
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            full.arrive_expect_tx(own.nbytes)
            tile.copy_async(inbox.peer(other), own, mbar=full)
        if FAULTY != "arm":
            full.wait(phase=i)
        v = v + tile.cast(tile.load(inbox), tile.float32)
        if FAULTY == "arm":
            full.wait(phase=i)
        if FAULTY != "fence" and (FAULTY != "some fence" or tile.warp_id() == 3):
            tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            free.peer(other).arrive()
    tile.store(O[tile.program_id(0), 0:64, 0:64], v)


FAULTS = [
    *((kernel, dict(SWIZZLE=swizzle, FAULTY=how), dict(FAULTY=""), "missing-proxy-fence")
      for kernel in (one_buffer, slots) for how in ("fence", "some fence") for swizzle in (0, 32, 64, 128)),
    *((slots, dict(SWIZZLE=128, FAULTY=how), dict(FAULTY=""), kinds) for how, kinds in (
        ("some wait", "missing-wait race"), ("parity", "barrier-phase"), ("release", "race missing-proxy-fence missing-wait"), ("empty", "race missing-wait barrier-phase"))),
    *((by_cp_async, dict(FAULTY=how), dict(FAULTY=""), kinds) for how, kinds in (
        ("wait", "missing-wait"), ("some wait", "missing-wait"), ("sync", "race missing-wait"), ("reuse", "race missing-wait"))),
    *((through_threads, dict(FAULTY=how), dict(FAULTY=""), "race") for how in ("written", "read")),
    *((stored_by_tma, dict(FAULTY=how), dict(FAULTY=""), kinds) for how, kinds in (
        ("fence", "missing-proxy-fence"), ("some fence", "missing-proxy-fence"), ("wait", "missing-wait"), ("some wait", "missing-wait"),
        ("sync", "race"))),
    *((multiplied, dict(FAULTY=how), dict(FAULTY=""), kinds) for how, kinds in (
        ("wait", "missing-wait wgmma-order"), ("fence", "missing-proxy-fence"), ("some fence", "missing-proxy-fence"))),
    *((from_the_peer, dict(FAULTY=how), dict(FAULTY=""), kinds) for how, kinds in (
        ("fence", "missing-proxy-fence"), ("some fence", "missing-proxy-fence"), ("free", "race missing-wait missing-proxy-fence"), ("arm", "race missing-wait"))),
]


def output_of(kernel) -> np.ndarray:
    """An array of zeros for the output of one CTA (of a cluster's two)."""
    return np.zeros((2 if kernel is from_the_peer else 1, ROWS * (BLOCKS - 1) if kernel is stored_by_tma else ROWS, 64), np.float32)


def _ident(x) -> str:
    return getattr(x, "name", None) or "-".join(map(str, x.values() if isinstance(x, dict) else []))


@pytest.mark.parametrize("kernel, faulty, repaired, kinds", FAULTS, ids=_ident)
def test_the_faulty_kernels_are_found_and_their_twins_are_right(kernel, faulty, repaired, kinds):
    want = A[:-ROWS] if kernel is stored_by_tma else np.full((ROWS, 64), sum(range(1, BLOCKS)))
    for seed in range(2):
        out = output_of(kernel)
        report = kernel.simulate((len(out),), A, out, BLOCKS, seed=seed, **{**faulty, **repaired})
        assert not report.findings and (out == want).all(), report
        found = {f.kind for f in kernel.simulate((len(out),), A, out, BLOCKS, seed=seed, **faulty).findings}
        assert found and found <= set(kinds.split()), found
