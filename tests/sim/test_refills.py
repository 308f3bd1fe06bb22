"""Shared memory that threads read or write by ordinary instructions and the async proxy then fills again: each kernel lacks a fence,
and its twin, the same kernel with FENCE, has it."""

import numpy as np
import pytest
import tilejit as tile
from faulty import SEEDS

A = np.arange(16 * 256, dtype=np.float32).reshape(16, 256)


def line_of(kernel, mark: str) -> int:
    """The only line of a kernel that ends with ``# mark``."""
    found = [n for n, text in enumerate(kernel.source.lines, kernel.source.first_line) if text.rstrip().endswith(f"# {mark}")]
    assert len(found) == 1, (kernel.name, mark, found)
    return found[0]


def lacks_a_fence(kernel, grid, *args, first: str = "reads", seeds=SEEDS, **meta):
    """Without FENCE, the only finding is the missing fence, at the line marked ``# refills``, and its other line is marked with `first`; with
    FENCE there is none. Returns the last faulty report."""
    for seed in seeds:
        for fence in (True, False):
            arrays = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
            report = kernel.simulate(grid, *arrays, FENCE=fence, seed=seed, **meta)
            found = [(f.kind, f.line, f.other.line if f.other else None) for f in report.findings]
            wanted = [] if fence else [("missing-proxy-fence", line_of(kernel, "refills"), line_of(kernel, first))]
            assert found == wanted, f"seed {seed}, FENCE={fence}: {report}"
    return report


def silent(kernel, grid, *args, seeds=SEEDS, **meta):
    """No findings, under every seed."""
    for seed in seeds:
        report = kernel.simulate(grid, *(a.copy() if isinstance(a, np.ndarray) else a for a in args), seed=seed, **meta)
        assert not report.findings, f"seed {seed}: {report}"


# -- barriers of every form ------------------------------------------------------------------------------------------------------

@tile.jit
def one_buffer(A, B, n, VARIANT: tile.constexpr, FENCE: tile.constexpr):
    s, bar, v = tile.alloc((256,), A.dtype), tile.mbarrier(), tile.zeros((256,))
    with tile.elect():
        bar.arrive_expect_tx(1024)
        tile.copy_async(s, A[0, 0:256], mbar=bar, variant=VARIANT)
    bar.wait(phase=0)
    for k in range(1, n):
        v += tile.load(s)  # reads
        if FENCE:
            tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            bar.arrive_expect_tx(1024)
            tile.copy_async(s, A[0, 0:256], mbar=bar, variant=VARIANT)  # refills
        bar.wait(phase=k)
    tile.store(B[tile.program_id(0), 0:256], v)


@pytest.mark.parametrize("num_warps", [1, 2, 4, 8])
@pytest.mark.parametrize("variant", ["tma", "bulk"])
def test_a_barrier_of_the_cta_does_not_order_loads_before_a_refill(variant, num_warps):
    report = lacks_a_fence(one_buffer, (2,), A, np.zeros_like(A), 5, VARIANT=variant, num_warps=num_warps)
    finding, = report.findings
    assert finding.threads == (0, 0) and finding.count == 4
    assert f"at line {line_of(one_buffer, 'reads')} without fence_proxy_async()" in finding.message
    silent(one_buffer, (1,), A, np.zeros_like(A), 2, VARIANT=variant, num_warps=num_warps, FENCE=True)


@tile.jit(num_warps=9)
def full_and_empty(A, B, n, WARPS: tile.constexpr, FENCE: tile.constexpr):
    """A slot is released by one arrival of the consumers, behind their own barrier."""
    s, full, empty = tile.alloc((2, 256), A.dtype), tile.mbarrier(n=2), tile.mbarrier(n=2)
    with tile.warp(8), tile.elect():
        for k in range(n):
            empty[k % 2].wait(phase=k // 2 + 1)
            full[k % 2].arrive_expect_tx(1024)
            tile.copy_async(s[k % 2], A[k, 0:256], mbar=full[k % 2])  # refills
    with tile.warp(range(0, WARPS)):
        for k in range(n):
            full[k % 2].wait(phase=k // 2)
            tile.store(B[k, 0:256], tile.load(s[k % 2]))  # reads
            if FENCE:
                tile.fence_proxy_async()
            tile.sync()
            with tile.elect():
                empty[k % 2].arrive()


@tile.jit(num_warps=9)
def an_arrival_of_each_warp(A, B, n, WARPS: tile.constexpr, FENCE: tile.constexpr, LAST: tile.constexpr):
    """The warps share the rows, and each releases the slot; LAST is the warp without a fence, or -1 for all of them."""
    s, full, empty = tile.alloc((8, 256), A.dtype), tile.mbarrier(), tile.mbarrier(count=WARPS)
    with tile.warp(8), tile.elect():
        for k in range(n):
            empty.wait(phase=k + 1)
            full.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, A[k:k + 8, 0:256], mbar=full)  # refills
    for w in tile.static_range(WARPS):
        with tile.warp(w):
            for k in range(n):
                full.wait(phase=k)
                tile.store(B[w, 0:256], tile.load(s[w]))  # reads
                if FENCE or LAST != -1 and LAST != w:
                    tile.fence_proxy_async()
                empty.arrive()


@pytest.mark.parametrize("warps", [1, 4])
def test_an_mbarrier_does_not_order_loads_before_a_refill(warps):
    lacks_a_fence(full_and_empty, (1,), A, np.zeros_like(A), 5, WARPS=warps)
    lacks_a_fence(an_arrival_of_each_warp, (1,), A, np.zeros_like(A), 5, WARPS=warps, LAST=-1)
    silent(full_and_empty, (1,), A, np.zeros_like(A), 2, WARPS=warps, FENCE=False)  # no slot is filled twice


@pytest.mark.parametrize("last", [0, 2, 3])
def test_each_warp_that_reads_needs_its_own_fence(last):
    report = lacks_a_fence(an_arrival_of_each_warp, (1,), A, np.zeros_like(A), 5, WARPS=4, LAST=last)
    assert 32 * last <= report.findings[0].threads[-1] < 32 * last + 32


@tile.jit(num_warps=4)
def fenced_elsewhere(A, B, WHERE: tile.constexpr):
    s, bar = tile.alloc((256,), A.dtype), tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(1024)
        tile.copy_async(s, A[0, 0:256], mbar=bar)
    bar.wait(phase=0)
    if WHERE == "before the reads":
        tile.fence_proxy_async()
    tile.store(B[0, 0:256], tile.load(s))  # reads
    if WHERE == "in one thread":
        with tile.elect():
            tile.fence_proxy_async()
    if WHERE == "in one warp":
        with tile.warp(0):
            tile.fence_proxy_async()
    if WHERE == "for global memory":
        tile.ptx.fence.proxy.async_.global_()
    tile.sync()
    with tile.elect():
        if WHERE == "in the issuing thread":
            tile.fence_proxy_async()
        bar.arrive_expect_tx(1024)
        tile.copy_async(s, A[1, 0:256], mbar=bar)  # refills
    bar.wait(phase=1)
    tile.store(B[1, 0:256], tile.load(s))


@pytest.mark.parametrize("where", ["before the reads", "in one thread", "in one warp", "for global memory", "in the issuing thread"])
def test_the_fence_stands_after_the_reads_in_every_reading_thread(where):
    for seed in SEEDS:
        finding, = fenced_elsewhere.simulate((1,), A, np.zeros_like(A), where, seed=seed).findings
        lines = line_of(fenced_elsewhere, "refills"), line_of(fenced_elsewhere, "reads")
        assert (finding.kind, finding.line, finding.other.line) == ("missing-proxy-fence", *lines)


@tile.jit(num_warps=8)
def by_turns(A, B, n, FENCE: tile.constexpr):
    """Two warpgroups take turns: one fills the slot, the other reads it."""
    s, bar, t = tile.alloc((256,), A.dtype), tile.mbarrier(), tile.turns(2)
    with tile.warpgroup(0):
        for k in range(n):
            t.take(0)
            with tile.elect():
                bar.arrive_expect_tx(1024)
                tile.copy_async(s, A[k, 0:256], mbar=bar)  # refills
            bar.wait(phase=k)
            t.pass_on(0)
    with tile.warpgroup(1):
        for k in range(n):
            t.take(1)
            tile.store(B[k, 0:256], tile.load(s))  # reads
            if FENCE:
                tile.fence_proxy_async()
            t.pass_on(1)


@tile.jit(num_warps=8)
def by_named_barriers(A, B, n, FENCE: tile.constexpr):
    s, bar, filled, free = tile.alloc((256,), A.dtype), tile.mbarrier(), tile.named_barrier(256), tile.named_barrier(256)
    with tile.warpgroup(0):
        for k in range(n):
            if k > 0:
                free.sync()
            with tile.elect():
                bar.arrive_expect_tx(1024)
                tile.copy_async(s, A[k, 0:256], mbar=bar)  # refills
            bar.wait(phase=k)
            filled.arrive()
    with tile.warpgroup(1):
        for k in range(n):
            filled.sync()
            tile.store(B[k, 0:256], tile.load(s))  # reads
            if FENCE:
                tile.fence_proxy_async()
            if k < n - 1:
                free.arrive()


def test_turns_and_named_barriers_do_not_order_loads_before_a_refill():
    lacks_a_fence(by_turns, (1,), A, np.zeros_like(A), 4)
    lacks_a_fence(by_named_barriers, (1,), A, np.zeros_like(A), 4)


@tile.jit(num_warps=4)
def by_instructions(A, B, n, FENCE: tile.constexpr):
    s, bar, i = tile.alloc((256,), A.dtype), tile.mbarrier(), tile.thread_id()
    for k in range(n):
        with tile.elect():
            bar.arrive_expect_tx(1024)
            tile.copy_async(s, A[k, 0:256], mbar=bar)  # refills
        bar.wait(phase=k)
        tile.store(B[k, i], tile.ptx.ld.shared.b32(s[i]))  # reads
        if FENCE == "all":
            tile.ptx.fence.proxy.async_()
        elif FENCE:
            tile.ptx.fence.proxy.async_.shared_cta()
        tile.ptx.bar.sync(1)


def test_instructions_of_ptx_are_checked_as_their_short_forms():
    lacks_a_fence(by_instructions, (1,), A, np.zeros_like(A), 4)
    silent(by_instructions, (1,), A, np.zeros_like(A), 4, FENCE="all")


# -- clusters --------------------------------------------------------------------------------------------------------------------

@tile.jit(cluster=2, num_warps=4)
def multicast(A, B, n, FENCE: tile.constexpr):
    """CTA 0 fills the slot of both; the reader of the finding may be either."""
    s, full, empty, rank = tile.alloc((256,), A.dtype), tile.mbarrier(), tile.mbarrier(count=2), tile.cta_rank()
    for k in range(n):
        with tile.elect():
            full.arrive_expect_tx(1024)
            if rank == 0:
                empty.wait(phase=k + 1)
                tile.copy_async(s, A[k, 0:256], mbar=full, multicast=3)  # refills
        full.wait(phase=k)
        tile.store(B[rank, 0:256], tile.load(s))  # reads
        if FENCE == "all" or FENCE == rank:
            tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            empty.peer(0).arrive()


def test_every_cta_of_a_multicast_needs_the_fence():
    """Also where only the CTA that does not issue the copy lacks it."""
    a, b = A, np.zeros_like(A)
    silent(multicast, (2,), a, b, 4, FENCE="all")
    for lacking in (0, 1):
        for seed in SEEDS:
            finding, = multicast.simulate((2,), a, b.copy(), 4, FENCE=1 - lacking, seed=seed).findings
            lines = line_of(multicast, "refills"), line_of(multicast, "reads")
            assert (finding.kind, finding.line, finding.other.line) == ("missing-proxy-fence", *lines)
            assert ("of CTA rank 1" in finding.message) == (lacking == 1)


@tile.jit(cluster=2, num_warps=4)
def sent_by_the_peer(A, B, n, HOW: tile.constexpr, FENCE: tile.constexpr):
    """CTA 0 sends to CTA 1, whose readers release the inbox by an arrival at CTA 0: by a bulk copy, or by a reduction."""
    own, inbox = tile.alloc((256,), A.dtype), tile.alloc((256,), A.dtype)
    full, free, rank = tile.mbarrier(), tile.mbarrier(), tile.cta_rank()
    tile.store(own, tile.load(A[0, 0:256]))
    tile.store(inbox, 0)
    tile.fence_proxy_async()
    tile.cluster_sync()
    if rank == 0:
        with tile.elect():
            for k in range(n):
                free.wait(phase=k + 1)
                tile.copy_async(inbox.peer(1), own, mbar=full, reduce=HOW)  # refills
    else:
        for k in range(n):
            with tile.elect():
                full.arrive_expect_tx(1024)
            full.wait(phase=k)
            tile.store(B[k, 0:256], tile.load(inbox))  # reads
            if FENCE:
                tile.fence_proxy_async()
            tile.sync()
            with tile.elect():
                free.peer(0).arrive()


@pytest.mark.parametrize("how", [None, "add"])
def test_a_copy_or_reduction_from_a_peer_may_overtake_the_reads_before_a_remote_arrival(how):
    a = np.arange(16 * 256, dtype=np.int32).reshape(16, 256)
    report = lacks_a_fence(sent_by_the_peer, (2,), a, np.zeros_like(a), 4, HOW=how)
    assert "of CTA rank 1 read them" in report.findings[0].message


@tile.jit(cluster=2, num_warps=4)
def read_by_the_peer(A, B, n, FENCE: tile.constexpr):
    """The peer reads the slot where it lies; its owner fills it again after the cluster's barrier."""
    s, bar, rank, i = tile.alloc((256,), A.dtype), tile.mbarrier(), tile.cta_rank(), tile.thread_id()
    for k in range(n):
        if rank == 0:
            with tile.elect():
                bar.arrive_expect_tx(1024)
                tile.copy_async(s, A[k, 0:256], mbar=bar)  # refills
            bar.wait(phase=k)
        tile.cluster_sync()
        if rank == 1:
            tile.store(B[k, i], tile.ptx.ld.shared_cluster.b32(s.peer(0)[i]))  # reads
        if FENCE == "of the CTA":
            tile.fence_proxy_async()
        elif FENCE == "of any memory":
            tile.ptx.fence.proxy.async_()
        elif FENCE == "of global memory":
            tile.fence_proxy_async(space="global")
        elif FENCE:
            tile.ptx.fence.proxy.async_.shared_cluster()
        tile.cluster_sync()


def test_loads_of_a_peer_s_memory_need_the_fence_before_its_owner_fills_it():
    report = lacks_a_fence(read_by_the_peer, (2,), A, np.zeros_like(A), 3)
    assert "of CTA rank 1 read them" in report.findings[0].message


@pytest.mark.parametrize("fence", ["of the CTA", "of global memory"])
def test_a_fence_of_the_cta_s_own_memory_does_not_order_accesses_to_a_peer_s(fence):
    """PTX ISA, "membar / fence": a state space restricts a proxy fence to it, and shared::cta is the executing CTA's memory."""
    for seed in SEEDS:
        report = read_by_the_peer.simulate((2,), A, np.zeros_like(A), 3, fence, seed=seed)
        found, = report.findings
        assert found.kind == "missing-proxy-fence" and "without ptx.fence.proxy.async_.shared_cluster()" in found.message
        assert not read_by_the_peer.simulate((2,), A, np.zeros_like(A), 3, "of any memory", seed=seed).findings


# -- accesses of every kind ------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=4)
def touched(A, B, HOW: tile.constexpr, FENCE: tile.constexpr):
    s, bar, i = tile.alloc((16, 16), A.dtype), tile.mbarrier(), tile.thread_id()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[0:16, 0:16], mbar=bar)
    bar.wait(phase=0)
    if HOW == "a tile": tile.store(B[0:16, 0:16], tile.load(s))  # reads: a tile
    if HOW == "a column": tile.store(B[0:16, 0], tile.load(s[0:16, 3]))  # reads: a column
    if HOW == "a scalar": tile.store(B[0, i], tile.load(s[3, 4]))  # reads: a scalar
    if HOW == "each its own": tile.store(B[0, i], tile.load(s[3, i % 16]))  # reads: each its own
    if HOW == "a gather": tile.store(B[0, 0:16], tile.load(s[tile.arange(16), 15 - tile.arange(16)]))  # reads: a gather
    if HOW == "under a mask": tile.store(B[0, 0:16], tile.load(s[3, tile.arange(16)], mask=tile.arange(16) > 8))  # reads: under a mask
    if HOW == "ld": tile.store(B[0, i % 16], tile.ptx.ld.shared.b32(s[3, i % 16]))  # reads: ld
    if HOW == "a wide ld": tile.store(B[0, i % 4], tile.ptx.ld.shared.v4.b32(s[3, i % 4 * 4])[0])  # reads: a wide ld
    if HOW == "an atomic": tile.atomic_add(s[3, i % 16], 1)  # reads: an atomic
    if HOW == "atom": tile.ptx.red.shared_cta.add.u32(s[3, i % 16], 1)  # reads: atom
    if HOW == "a store": tile.store(s[3, i % 16], 1)  # reads: a store
    if HOW == "a copy": tile.copy(B[0:16, 0:16], s)  # reads: a copy
    if FENCE:
        tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, A[0:16, 0:16], mbar=bar)  # refills
    bar.wait(phase=1)


HOW = ["a tile", "a column", "a scalar", "each its own", "a gather", "under a mask", "ld", "a wide ld", "an atomic", "atom", "a store", "a copy"]


@pytest.mark.parametrize("how", HOW)
def test_every_ordinary_access_needs_a_fence_before_a_refill(how):
    a = np.arange(16 * 256, dtype=np.int32).reshape(16, 256)
    report = lacks_a_fence(touched, (1,), a, np.zeros_like(a), HOW=how, first=f"reads: {how}", seeds=range(2))
    wrote = "wrote them" if how in ("an atomic", "atom", "a store") else "read them"
    assert wrote in report.findings[0].message


@tile.jit(num_warps=4)
def multiplied(A, B, n, FENCE: tile.constexpr):
    """Products by mma_sync, whose operands are loaded by ldmatrix."""
    s, bar, acc = tile.alloc((64, 64), A.dtype, layout=tile.swizzled(A.dtype, (64, 64), 128)), tile.mbarrier(), tile.zeros((64, 64))
    for k in range(n):
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, A[0:64, 0:64], mbar=bar)  # refills
        bar.wait(phase=k)
        acc = tile.mma(acc, s, s, variant="mma_sync")  # reads
        if FENCE:
            tile.fence_proxy_async()
        tile.sync()
    tile.store(B[0:64, 0:64], acc)


@tile.jit(num_warps=4)
def multiplied_by_threads(A, B, n, FENCE: tile.constexpr):
    s, bar, acc = tile.alloc((16, 16), A.dtype), tile.mbarrier(), tile.zeros((16, 16))
    for k in range(n):
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, A[0:16, 0:16], mbar=bar)  # refills
        bar.wait(phase=k)
        acc = tile.mma(acc, s, s)  # reads
        if FENCE:
            tile.fence_proxy_async()
        tile.sync()
    tile.store(B[0:16, 0:16], acc)


def test_operands_of_products_by_threads_and_by_mma_sync_are_ordinary_reads():
    lacks_a_fence(multiplied, (1,), np.ones((64, 64), np.float16), np.zeros((64, 64), np.float32), 3, seeds=range(2))
    lacks_a_fence(multiplied_by_threads, (1,), A, np.zeros_like(A), 3, seeds=range(2))


@tile.jit(num_warps=4)
def counted_by_warps(A, B, FENCED: tile.constexpr):
    """Each warp counts in the same element, and those of FENCED fence."""
    s, bar = tile.alloc((32,), A.dtype), tile.mbarrier()
    tile.store(s, 0)
    tile.fence_proxy_async()
    tile.sync()
    for w in tile.static_range(4):
        with tile.warp(w):
            tile.atomic_add(s[0], 1)
            if w in FENCED:
                tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        bar.arrive_expect_tx(128)
        tile.copy_async(s, A[0, 0:32], mbar=bar)  # refills
    bar.wait(phase=0)
    tile.store(B[0, 0:32], tile.load(s))


def test_an_atomic_does_not_hide_that_of_another_warp():
    a = np.arange(64, dtype=np.int32).reshape(2, 32)
    for seed in SEEDS:
        assert not counted_by_warps.simulate((1,), a, np.zeros_like(a), (0, 1, 2, 3), seed=seed).findings
        for lacking in range(4):
            fenced = tuple(w for w in range(4) if w != lacking)
            finding, = counted_by_warps.simulate((1,), a, np.zeros_like(a), fenced, seed=seed).findings
            assert (finding.kind, finding.line) == ("missing-proxy-fence", line_of(counted_by_warps, "refills")), (lacking, seed)


@tile.jit(num_warps=4)
def counted_and_overwritten(A, B, SYNC: tile.constexpr):
    s = tile.alloc((32,), A.dtype)
    tile.store(s, 0)
    tile.sync()
    with tile.warp(1):
        tile.atomic_add(s[0], 1)
    with tile.warp(2):
        tile.atomic_add(s[0], 1)
    if SYNC:
        tile.sync()
    with tile.warp(2):
        tile.store(s[0], 7)  # overwrites
    tile.sync()
    tile.store(B[0, 0:32], tile.load(s))


def test_a_store_after_the_atomics_of_several_warps_races_with_each_of_them():
    a = np.arange(64, dtype=np.int32).reshape(2, 32)
    silent(counted_and_overwritten, (1,), a, np.zeros_like(a), SYNC=True)
    for seed in SEEDS:
        finding, = counted_and_overwritten.simulate((1,), a, np.zeros_like(a), SYNC=False, seed=seed).findings
        assert (finding.kind, finding.line) == ("race", line_of(counted_and_overwritten, "overwrites"))


# -- asynchronous accesses -------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=4)
def brought_by_cp_async(A, B, FENCE: tile.constexpr):
    """cp.async writes through the generic proxy, and TMA overwrites it."""
    s, bar = tile.alloc((256,), A.dtype), tile.mbarrier()
    tile.copy_async(s, A[0, 0:256], variant="ldgsts")  # writes
    tile.cp_async_commit()
    tile.cp_async_wait(0)
    if FENCE:
        tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        bar.arrive_expect_tx(1024)
        tile.copy_async(s, A[1, 0:256], mbar=bar)  # refills
    bar.wait(phase=0)
    tile.store(B[0, 0:256], tile.load(s))


@tile.jit(cluster=2, num_warps=4)
def brought_by_st_async(A, B, REDUCES: tile.constexpr, FENCE: tile.constexpr):
    """So do st.async and red.async of a peer."""
    s, bar, other = tile.alloc((256,), A.dtype), tile.mbarrier(n=2), 1 - tile.cta_rank()
    tile.store(s, 0)
    if REDUCES:
        tile.fence_proxy_async()
    tile.cluster_sync()
    bar[0].arrive_expect_tx(1024)
    if REDUCES:
        tile.reduce_async(s.peer(other), tile.load(A[0, 0:256]), "add", mbar=bar[0])
    else:
        tile.store_async(s.peer(other), tile.load(A[0, 0:256]), mbar=bar[0])
    bar[0].wait(phase=0)
    if FENCE:
        tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        bar[1].arrive_expect_tx(1024)
        tile.copy_async(s, A[1, 0:256], mbar=bar[1])  # refills
    bar[1].wait(phase=0)
    tile.store(B[tile.cta_rank(), 0:256], tile.load(s))


def test_asynchronous_writes_of_the_generic_proxy_need_a_fence_before_a_refill():
    lacks_a_fence(brought_by_cp_async, (1,), A, np.zeros_like(A), first="writes")
    a = np.arange(512, dtype=np.int32).reshape(2, 256)
    for reduces in (False, True):
        for seed in SEEDS:
            silent(brought_by_st_async, (2,), a, np.zeros_like(a), REDUCES=reduces, FENCE=True, seeds=[seed])
            finding, = brought_by_st_async.simulate((2,), a, np.zeros_like(a), REDUCES=reduces, FENCE=False, seed=seed).findings
            assert (finding.kind, finding.line) == ("missing-proxy-fence", line_of(brought_by_st_async, "refills"))


@tile.jit(num_warps=4)
def filled_by_cp_async(A, B, n):
    """cp.async is in the generic proxy, as the loads are: the barrier orders them."""
    s = tile.alloc((256,), A.dtype)
    for k in range(n):
        tile.copy_async(s, A[k, 0:256], variant="ldgsts")
        tile.cp_async_commit()
        tile.cp_async_wait(0)
        tile.sync()
        tile.store(B[k, 0:256], tile.load(s))
        tile.sync()


@tile.jit(num_warps=4)
def sent_and_overwritten(A, B, n):
    """The copy's reads are over when its group is; what TMA wrote, its wait makes visible to loads and stores."""
    s, bar = tile.alloc((256,), A.dtype), tile.mbarrier()
    for k in range(n):
        with tile.elect():
            bar.arrive_expect_tx(1024)
            tile.copy_async(s, A[k, 0:256], mbar=bar)
        bar.wait(phase=k)
        with tile.elect():
            tile.copy_async(B[k, 0:256], s)
            tile.bulk_commit()
            tile.bulk_wait(0, read=True)
        tile.sync()
        if k + 1 < n:
            tile.store(s, 1)  # generic write after an asynchronous read
        tile.fence_proxy_async()
        tile.sync()
    with tile.elect():
        tile.bulk_wait(0)


@tile.jit(num_warps=4)
def read_by_wgmma(A, B, n, LOADED: tile.constexpr, FENCE: tile.constexpr):
    """Reads by wgmma and by a TMA store are in the async proxy; with LOADED, threads read the slot before."""
    s, bar = tile.alloc((64, 64), A.dtype, layout=tile.swizzled(A.dtype, (64, 64), 128)), tile.mbarrier()
    acc = tile.zeros((64, 64))
    for k in range(n):
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, A[0:64, 0:64], mbar=bar)  # refills
        bar.wait(phase=k)
        if LOADED:
            acc += tile.cast(tile.load(s), tile.float32)  # reads
            if FENCE:
                tile.fence_proxy_async()
        acc = tile.mma_async(acc, s, s)
        tile.mma_commit()
        tile.mma_wait(0)
        with tile.elect():
            tile.copy_async(B[0:64, 0:64], s)
            tile.bulk_commit()
            tile.bulk_wait(0)
        tile.sync()


def test_reads_of_the_async_proxy_need_no_fence_and_hide_no_load():
    a = np.ones((64, 64), np.float16)
    silent(read_by_wgmma, (1,), a, np.zeros_like(a), 3, LOADED=False, FENCE=False)
    lacks_a_fence(read_by_wgmma, (1,), a, np.zeros_like(a), 3, LOADED=True)


def test_a_wait_alone_orders_what_the_async_proxy_did_before_ordinary_accesses():
    silent(filled_by_cp_async, (1,), A, np.zeros_like(A), 4)
    silent(sent_and_overwritten, (1,), A, np.zeros_like(A), 4)


@tile.jit(num_warps=4)
def between_tokens(A, B, FENCE: tile.constexpr):
    """The slot goes from a token to a barrier of the kernel's own."""
    s, bar = tile.alloc((256,), A.dtype), tile.mbarrier()
    with tile.elect():
        done = tile.copy_async(s, A[0, 0:256], variant="tma")
    done.wait()
    tile.store(B[0, 0:256], tile.load(s))  # reads
    if FENCE:
        tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        bar.arrive_expect_tx(1024)
        tile.copy_async(s, A[1, 0:256], mbar=bar)  # refills
    bar.wait(phase=0)
    tile.store(B[1, 0:256], tile.load(s))


def test_reads_after_a_token_need_a_fence_before_a_refill_on_a_barrier():
    lacks_a_fence(between_tokens, (1,), A, np.zeros_like(A))


@tile.jit(num_warps=4)
def by_some_threads(A, B, READERS: tile.constexpr, FENCING: tile.constexpr):
    """The first READERS threads read, and the first FENCING fence."""
    s, bar, i = tile.alloc((256,), A.dtype), tile.mbarrier(), tile.thread_id()
    with tile.elect():
        bar.arrive_expect_tx(1024)
        tile.copy_async(s, A[0, 0:256], mbar=bar)
    bar.wait(phase=0)
    if i < READERS:
        tile.store(B[0, i], tile.load(s[i]))  # reads
    if i < FENCING:
        tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        bar.arrive_expect_tx(1024)
        tile.copy_async(s, A[1, 0:256], mbar=bar)  # refills
    bar.wait(phase=1)


@tile.jit(num_warps=4)
def by_both_branches(A, B, n):
    s, bar, i = tile.alloc((256,), A.dtype), tile.mbarrier(), tile.thread_id()
    for k in range(n):
        with tile.elect():
            bar.arrive_expect_tx(1024)
            tile.copy_async(s, A[k, 0:256], mbar=bar)
        bar.wait(phase=k)
        tile.store(B[k, 0:256], tile.load(s))
        if i % 3 == tile.program_id(0):
            tile.fence_proxy_async()
        else:
            tile.fence_proxy_async()
        tile.sync()


def test_threads_of_a_condition_fence_for_themselves_only():
    silent(by_both_branches, (1,), A, np.zeros_like(A), 4)
    for readers, fencing in ((64, 64), (40, 64), (128, 128), (33, 33)):
        silent(by_some_threads, (1,), A, np.zeros_like(A), readers, fencing)
    for readers, fencing in ((64, 32), (128, 127), (33, 1), (128, 0)):
        for seed in SEEDS:
            finding, = by_some_threads.simulate((1,), A, np.zeros_like(A), readers, fencing, seed=seed).findings
            assert (finding.kind, finding.other.line) == ("missing-proxy-fence", line_of(by_some_threads, "reads")), (readers, fencing)


@tile.jit(num_warps=4)
def through_one_proxy(A, B, WHAT: tile.constexpr, WAIT: tile.constexpr):
    """Two copies of one slot, and between them only the wait for the first, or nothing."""
    s, bar = tile.alloc((256,), A.dtype), tile.mbarrier(n=2)
    with tile.elect():
        bar[0].arrive_expect_tx(1024)
        tile.copy_async(s, A[0, 0:256], mbar=bar[0])
        if WHAT == "read, then write" or WAIT:
            bar[0].wait(phase=0)
        if WHAT == "write, then read":
            tile.copy_async(B[0, 0:256], s)  # reads what is written
            tile.bulk_commit()
            tile.bulk_wait(0)
        else:
            if WHAT == "read, then write":
                tile.copy_async(B[0, 0:256], s)
                tile.bulk_commit()
                if WAIT:
                    tile.bulk_wait(0, read=True)
            bar[1].arrive_expect_tx(1024)
            tile.copy_async(s, A[1, 0:256], mbar=bar[1])  # writes again
            bar[1].wait(phase=0)
        bar[0].wait(phase=0)
        tile.bulk_wait(0)


@pytest.mark.parametrize("what", ["read, then write", "write, then read", "write, then write"])
def test_copies_of_one_slot_need_the_wait_for_the_first_and_no_fence(what):
    silent(through_one_proxy, (1,), A, np.zeros_like(A), what, True)
    line = line_of(through_one_proxy, "reads what is written" if what == "write, then read" else "writes again")
    for seed in SEEDS:
        found = through_one_proxy.simulate((1,), A, np.zeros_like(A), what, False, seed=seed).findings
        assert [(f.kind, f.line) for f in found] == [("missing-wait", line)], seed


@tile.jit(num_warps=4)
def read_side_by_side(A, B):
    """Threads, a store by TMA and a second one read one slot, and threads and TMA read one row of global memory."""
    s, bar = tile.alloc((256,), A.dtype), tile.mbarrier(n=2)
    other = tile.alloc((256,), A.dtype)
    with tile.elect():
        for k in tile.static_range(2):
            bar[k].arrive_expect_tx(1024)
        tile.copy_async(s, A[0, 0:256], mbar=bar[0])
        tile.copy_async(other, A[0, 0:256], mbar=bar[1])
    v = tile.load(A[0, 0:256])
    bar[0].wait(phase=0)
    with tile.elect():
        for k in tile.static_range(2):
            tile.copy_async(B[k, 0:256], s)
        tile.bulk_commit()
    tile.store(B[2, 0:256], tile.load(s) + v)
    with tile.elect():
        tile.bulk_wait(0)
    bar[1].wait(phase=0)


def test_reads_need_no_order():
    silent(read_side_by_side, (1,), A, np.zeros_like(A))
