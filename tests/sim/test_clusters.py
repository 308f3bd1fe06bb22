"""CTAs of a cluster: each other's shared memory and barriers, and the cluster barrier."""

import numpy as np
import pytest
import tilejit as tile
from faulty import check

A = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)
B = np.zeros_like(A)


@tile.jit(cluster=(2, 1, 1))
def read_a_peer(A, B):
    p, i = tile.program_id(0), tile.thread_id()
    s = tile.alloc((128,), A.dtype)
    tile.store(s, tile.load(A[p, 0:128]))
    tile.cluster_sync()
    if tile.cta_rank() == 0:
        tile.store(B[p, i], tile.bitcast(tile.ptx.ld.shared_cluster.b32(s.peer(1)[i]), B.dtype))
    else:
        tile.store(B[p, i], tile.bitcast(tile.ptx.ld.shared_cluster.b32(s.peer(0)[i]), B.dtype))


@tile.jit(cluster=(2, 1, 1))
def read_a_peer_unsynced(A, B):
    p, i = tile.program_id(0), tile.thread_id()
    s = tile.alloc((128,), A.dtype)
    tile.store(s, tile.load(A[p, 0:128]))
    tile.sync()
    if tile.cta_rank() == 0:
        tile.store(B[p, i], tile.bitcast(tile.ptx.ld.shared_cluster.b32(s.peer(1)[i]), B.dtype))  # finds: race


def test_a_peer_s_shared_memory_may_be_read_after_the_cluster_barrier():
    """The CTA's own barrier does not order the other CTA."""
    check(read_a_peer, (4,), A, B, result=1, expected=np.where(np.arange(16)[:, None] < 4, A[np.arange(16) ^ 1], 0))
    check(read_a_peer_unsynced, (2,), A, B)


@tile.jit(cluster=(2, 1, 1), num_warps=1)
def peers_by_instructions(A, B, SYNC: tile.constexpr):
    p, i, other = tile.program_id(0), tile.thread_id(), 1 - tile.cta_rank()
    s = tile.alloc((3, 32), A.dtype)
    tile.store(s[0:2], tile.load(A[p:p + 1, 0:32]) + tile.zeros((2, 32)))
    tile.cluster_sync()
    tile.ptx.st.shared_cluster.b32(s.peer(other)[2, i], tile.ptx.ld.shared_cluster.b32(s.peer(other)[0, i]))
    tile.ptx.atom.shared_cluster.add.f32(s.peer(other)[1, i], 1.0)
    if SYNC:
        tile.cluster_sync()
    else:
        tile.sync()
    tile.store(B[p, 0:32], tile.load(s[1]))
    tile.store(B[p, 32:64], tile.load(s[2]))


def test_ptx_instructions_read_write_and_reduce_into_a_peer_s_shared_memory():
    """Only the cluster barrier orders CTAs; each CTA gets its own row back, and the sums."""
    want = np.zeros_like(B)
    want[:4, 0:32], want[:4, 32:64] = A[:4, 0:32] + 1, A[:4, 0:32]
    check(peers_by_instructions, (4,), A, B, SYNC=True, result=1, expected=want)
    kinds = {f.kind for f in peers_by_instructions.simulate((2,), A, B.copy(), SYNC=False).findings}
    assert kinds == {"race"}


@tile.jit(cluster=(2, 1, 1))
def push(A, B):
    p = tile.program_id(0)
    s = tile.alloc((128,), A.dtype)
    inbox = tile.alloc((128,), A.dtype)
    bar = tile.mbarrier()
    if tile.cta_rank() == 0:
        tile.store(s, tile.load(A[p, 0:128]))
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(inbox.peer(1), s, mbar=bar)
    else:
        with tile.elect():
            bar.arrive_expect_tx(512)
        bar.wait(phase=0)
        tile.store(B[p, 0:128], tile.load(inbox))


@tile.jit(cluster=(2, 1, 1))
def push_twice(A, B):
    p = tile.program_id(0)
    s = tile.alloc((128,), A.dtype)
    inbox = tile.alloc((128,), A.dtype)
    bar = tile.mbarrier()
    free = tile.mbarrier()
    if tile.cta_rank() == 0:
        tile.store(s, tile.load(A[p, 0:128]))
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            for k in range(3):
                free.wait(phase=k + 1)
                tile.copy_async(inbox.peer(1), s, mbar=bar)
    else:
        for k in range(3):
            with tile.elect():
                bar.arrive_expect_tx(512)
            bar.wait(phase=k)
            tile.store(B[p + k, 0:128], tile.load(inbox))
            tile.fence_proxy_async()
            tile.sync()
            with tile.elect():
                free.peer(0).arrive()


@tile.jit(cluster=(2, 1, 1))
def push_to_the_wrong_barrier(A, B):
    s = tile.alloc((128,), A.dtype)
    inbox = tile.alloc((128,), A.dtype)
    bar = tile.mbarrier()
    if tile.cta_rank() == 0:
        tile.store(s, tile.load(A[0, 0:128]))
        tile.sync()
        with tile.elect():
            bar.arrive()
    else:
        bar.wait(phase=0)  # finds: deadlock
        tile.store(B[1, 0:128], tile.load(inbox))


def test_a_bulk_copy_to_a_peer_signals_the_peer_s_barrier():
    """The destination arms its own barrier; slots are released by a remote arrival."""
    want = np.zeros_like(A)
    want[1] = A[0]
    check(push, (2,), A, B, result=1, expected=want)
    want[1:4] = A[0]
    check(push_twice, (2,), A, B, result=1, expected=want)
    check(push_to_the_wrong_barrier, (2,), A, B)


@tile.jit(cluster=(2, 1, 1))
def multicast_ring(A, B):
    p = tile.cta_rank()
    s = tile.alloc((4, 128), A.dtype)
    full = tile.mbarrier()
    empty = tile.mbarrier(count=2)
    for k in range(3):
        with tile.warp(0):
            with tile.elect():
                full.arrive_expect_tx(4 * 128 * 4)
                if p == 0:
                    empty.wait(phase=k + 1)
                    tile.copy_async(s, A[k * 4:k * 4 + 4, 0:128], mbar=full, multicast=3)
        full.wait(phase=k)
        tile.store(B[p, k, 0:4, 0:128], tile.load(s))
        tile.fence_proxy_async()
        tile.sync()
        with tile.warp(0):
            with tile.elect():
                empty.peer(0).arrive()


@tile.jit(cluster=(2, 1, 1))
def multicast_ring_for_itself(A, B):
    p = tile.cta_rank()
    s = tile.alloc((4, 128), A.dtype)
    full = tile.mbarrier()
    empty = tile.mbarrier()
    for k in range(3):
        with tile.warp(0):
            with tile.elect():
                full.arrive_expect_tx(4 * 128 * 4)
                if p == 0:
                    empty.wait(phase=k + 1)
                    tile.copy_async(s, A[k * 4:k * 4 + 4, 0:128], mbar=full, multicast=3)  # may find: race, missing-wait
        full.wait(phase=k)
        tile.store(B[p, k, 0:4, 0:128], tile.load(s))
        tile.fence_proxy_async()
        tile.sync()
        with tile.warp(0):
            with tile.elect():
                empty.arrive()


def test_a_multicast_slot_may_be_refilled_only_after_every_cta_has_released_it():
    """The issuer must also wait for the peer's slot."""
    B = np.zeros((2, 3, 4, 128), np.float32)
    want = np.broadcast_to(A[:12].reshape(3, 4, 128), B.shape)
    check(multicast_ring, (2,), A, B, result=1, expected=want)
    check(multicast_ring_for_itself, (2,), A, B)


@tile.jit(cluster=(2, 1, 1))
def one_cta_stays_away(A):
    if tile.cta_rank() == 0:
        tile.cluster_sync()
        tile.cluster_sync()  # finds: deadlock


def test_the_cluster_barrier_needs_all_ctas():
    """The other CTA leaves by the barrier at the end of the kernel, which matches the first of these two."""
    check(one_cta_stays_away, (4,), A)


@tile.jit(cluster=(2, 1, 1))
def arrives_again(B):
    tile.cluster_arrive()
    tile.cluster_arrive()  # finds: barrier-phase
    tile.cluster_wait()


@tile.jit(cluster=(2, 1, 1))
def ends_without_a_wait(B):
    tile.cluster_arrive()  # finds: barrier-phase


@tile.jit(cluster=(2, 1, 1))
def meets_by_warps(B, ARRIVE: tile.constexpr, WAIT: tile.constexpr):
    """All warps arrive and wait, separately or together, a number of times."""
    for _ in range(3):
        if ARRIVE:
            for w in tile.static_range(4):
                with tile.warp(w):
                    tile.cluster_arrive()
        else:
            tile.cluster_arrive()
        if WAIT:
            for w in tile.static_range(4):
                with tile.warp(w):
                    tile.cluster_wait()
        else:
            tile.cluster_wait()


def test_threads_must_wait_at_the_cluster_barrier_before_they_arrive_again():
    """Also before the kernel's end, where all threads of the cluster synchronise; who arrives together with whom does not matter."""
    B = np.zeros((2, 128), np.float32)
    check(arrives_again, (2,), B)
    check(ends_without_a_wait, (2,), B)
    for arrive in (False, True):
        for wait in (False, True):
            check(meets_by_warps, (2,), B, arrive, wait, seeds=range(3))


@tile.jit(cluster=(2, 1, 1))
def sends_what_the_peer_s_engine_stores(A, B):
    rank, s, bar = tile.cta_rank(), tile.alloc((128,), A.dtype), tile.mbarrier()
    bar.arrive_expect_tx(s.nbytes)
    tile.store_async(s.peer(1 - rank), tile.load(A[rank, 0:128]), mbar=bar)
    with tile.elect():
        bar.wait(phase=0)
        tile.fence_proxy_async()
        tile.copy_async(B[rank, 0:128], s)
        tile.bulk_commit()
        tile.bulk_wait(0)


@tile.jit(cluster=(2, 1, 1))
def sends_unfenced(A, B):
    rank, s, bar = tile.cta_rank(), tile.alloc((128,), A.dtype), tile.mbarrier()
    bar.arrive_expect_tx(s.nbytes)
    tile.store_async(s.peer(1 - rank), tile.load(A[rank, 0:128]), mbar=bar)
    with tile.elect():
        tile.fence_proxy_async()
        bar.wait(phase=0)
        tile.copy_async(B[rank, 0:128], s)  # finds: missing-proxy-fence
        tile.bulk_commit()
        tile.bulk_wait(0)


def test_the_async_proxy_may_read_what_st_async_wrote_after_the_wait_and_a_fence():
    """Like cp.async it writes asynchronously, but through the generic proxy."""
    check(sends_what_the_peer_s_engine_stores, (2,), A[:2], B[:2], result=1, expected=A[1::-1])
    report = check(sends_unfenced, (2,), A[:2], B[:2])
    message = report.findings[0].message
    assert "store_async at line" in message and "no fence_proxy_async() between the wait for that copy and this operation" in message


@tile.jit(cluster=(2, 1, 1))
def adds_at_one_cta(A, B, CLEARED: tile.constexpr, WAITS: tile.constexpr, HOW: tile.constexpr):
    """Rank 0 has the sum of both CTAs."""
    rank, own, total, bar = tile.cta_rank(), tile.alloc((128,), A.dtype), tile.alloc((128,), A.dtype), tile.mbarrier()
    tile.store(own, tile.load(A[rank, 0:128]))
    if CLEARED != "never":
        tile.store(total, 0)
    tile.fence_proxy_async()
    if rank == 0:
        bar.arrive_expect_tx(2 * total.nbytes if CLEARED != "beside" else total.nbytes)
    if CLEARED == "beside":
        tile.sync()
    else:
        tile.cluster_sync()
    if CLEARED != "beside" or rank == 1:
        if HOW == "red.async":
            tile.reduce_async(total.peer(0), tile.load(own), "add", mbar=bar)
        else:
            with tile.elect():
                tile.copy_async(total.peer(0), own, mbar=bar, reduce="add")
    if rank == 0:
        if WAITS:
            bar.wait(phase=0)
        tile.store(B[0, 0:128], tile.load(total))
        bar.wait(phase=0)


@pytest.mark.parametrize("how", ["red.async", "bulk"])
def test_asynchronous_reductions_into_a_peer_s_memory_need_a_wait_as_copies_do(how):
    """They may be concurrent with each other, and with nothing else."""
    A, B = np.arange(256, dtype=np.int32).reshape(2, 128), np.zeros((1, 128), np.int32)
    check(adds_at_one_cta, (2,), A, B, "before", True, how, result=1, expected=A.sum(axis=0, keepdims=True))
    for cleared, waits, kinds in (("before", False, {"missing-wait"}), ("beside", True, {"race", "missing-wait"}), ("never", True, {"uninitialized-read"})):
        for seed in range(8):
            report = adds_at_one_cta.simulate((2,), A, B, cleared, waits, how, seed=seed)
            assert report.findings and {f.kind for f in report.findings} <= kinds, (cleared, seed, report)
