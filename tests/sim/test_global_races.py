"""Global memory shared by CTAs: writes to the same element, reads of another CTA's writes, and atomics that order them."""

import numpy as np
import pytest
import tilejit as tile
from engine_ops import test_tma_store as tma_store
from faulty import check

X = np.arange(1024, dtype=np.float32)
Y = np.zeros_like(X)


@tile.jit
def overlapping_writes(x, y):
    i = tile.program_id(0)
    tile.store(y[i * 128:i * 128 + 129], tile.load(x[i * 128:i * 128 + 129]))  # finds: race


@tile.jit
def all_write_one(y):
    tile.store(y[0], 1.0)  # finds: race


@tile.jit
def read_of_anothers_write(x, y):
    i = tile.program_id(0)
    tile.store(y[i * 128:(i + 1) * 128], tile.load(x[i * 128:(i + 1) * 128]))
    v = tile.load(y[i * 128 + 128:i * 128 + 256])  # finds: race
    tile.store(x[i * 128:(i + 1) * 128], v)


@tile.jit
def in_place(x):
    i = tile.program_id(0)
    v = tile.load(x[i * 128:(i + 1) * 128])
    tile.store(x[i * 128:(i + 1) * 128], v + 1)


@tile.jit
def in_place_with_halo(x):
    i = tile.program_id(0)
    v = tile.load(x[i * 128:(i + 1) * 128]) + tile.load(x[i * 128 + 1:i * 128 + 129])
    tile.store(x[i * 128:(i + 1) * 128], v)  # finds: race


def test_ctas_that_access_the_same_element_without_atomics_race():
    """Write and write, write and read, read and write."""
    check(overlapping_writes, (4,), X, Y)
    check(all_write_one, (4,), Y)
    check(read_of_anothers_write, (4,), X, Y)
    check(in_place_with_halo, (4,), X)
    check(in_place, (8,), X, result=0, expected=X + 1)


@tile.jit
def overwritten_by_a_reader(x, at, y):
    """All CTAs read the same elements of x, and the last one of them writes these."""
    i = tile.program_id(0)
    tile.store(y[i * 128:(i + 1) * 128], tile.load(x[tile.load(at[i * 128:(i + 1) * 128])]))
    tile.store(x[0:128], 1, mask=i == 3)  # finds: race


def test_an_element_that_several_ctas_have_gathered_may_be_overwritten_by_none_of_them():
    check(overwritten_by_a_reader, (4,), X, np.tile(np.arange(128, dtype=np.int32), 4), Y)


@tile.jit
def other_sizes(x, y, HOW: tile.constexpr, AT: tile.constexpr):
    """CTA 0 writes two bytes of y, CTA 1 32 bytes of x."""
    if tile.program_id(0) == 0:
        tile.store(y[AT:AT + 1], 2)
    else:
        if HOW == "box":
            tile.store(x[0:8], 1)
        elif HOW == "points":
            tile.store(x[tile.arange(8)], 1, mask=tile.arange(8) < 8)
        elif HOW == "atomics":
            tile.atomic_add(x[0:8], 1)
        else:
            s = tile.alloc((8,), x.dtype)
            tile.store(s[0:8], 1)
            tile.fence_proxy_async()
            tile.sync()
            with tile.elect():
                tile.copy_async(x[0:8], s, variant="bulk")
                tile.bulk_commit()
                tile.bulk_wait(0)


@pytest.mark.parametrize("how", ["box", "points", "atomics", "bulk"])
def test_every_byte_of_an_element_counts_where_arrays_of_other_element_sizes_overlap(how):
    x = np.zeros(40, np.int32)
    x = x[-x.ctypes.data % 16 // 4:]
    for at in (0, 3, 15, 16):
        report = other_sizes.simulate((2,), x, x.view(np.int16), HOW=how, AT=at)
        assert [f.kind for f in report.findings] == ["race"] * (at < 16), at


@tile.jit
def copied_ahead(x, y, FIRST: tile.constexpr, SIZE: tile.constexpr):
    i = tile.program_id(0)
    s = tile.alloc((64,), x.dtype)
    tile.copy_async(s, x[0:64])  # finds: race
    tile.cp_async_commit()
    tile.cp_async_wait(0)
    tile.sync()
    tile.store(y[i, 0:64], tile.load(s))
    tile.store(x[i * 64 + FIRST:i * 64 + FIRST + SIZE], tile.zeros((SIZE,), x.dtype))  # finds: race


@pytest.mark.parametrize("first", [0, 1, 3, 7, 62, 63])
def test_a_cp_async_reads_every_element_of_its_bytes(first):
    """Each CTA copies the first elements, 16 bytes per thread; CTA 0 writes one of them."""
    x, y = np.arange(128, dtype=np.int16), np.zeros((2, 64), np.int16)
    report = copied_ahead.simulate((2,), x, y, FIRST=first, SIZE=1)
    assert [f.kind for f in report.findings] == ["race"]
    assert copied_ahead.compile(x, y, FIRST=0, SIZE=1).copies[0].plan.vec_bytes == 16
    assert not copied_ahead.simulate((2,), x, y, FIRST=64 + first, SIZE=1).findings


@tile.jit
def copied_behind(x, y, BARRIER: tile.constexpr):
    s = tile.alloc((64,), x.dtype)
    tile.store(x[tile.arange(64)], tile.full((64,), 1, x.dtype))
    if BARRIER:
        tile.sync()
    tile.copy_async(s, x[0:64])
    tile.cp_async_commit()
    tile.cp_async_wait(0)
    tile.sync()
    tile.store(y[0:64], tile.load(s))


def test_a_cp_async_may_read_what_other_threads_wrote_before_a_barrier():
    """A thread copies 8 elements, which 8 threads have written."""
    x, y = np.zeros(64, np.int16), np.zeros(64, np.int16)
    finding, = copied_behind.simulate((1,), x, y, BARRIER=False).findings
    assert finding.kind == "race" and "thread 0 reads an element of x, written by thread 1" in finding.message
    assert not copied_behind.simulate((1,), x, y, BARRIER=True).findings and (y == 1).all()


def test_arguments_that_alias_share_their_memory():
    """x and y are views of one array, shifted by an element."""
    @tile.jit
    def copy(x, y):
        i = tile.program_id(0)
        tile.store(y[i * 128:(i + 1) * 128], tile.load(x[i * 128:(i + 1) * 128]))

    whole = np.arange(1025, dtype=np.float32)
    assert [f.kind for f in copy.simulate((8,), whole[:1024], whole[1:]).findings] == ["race"]
    assert not copy.simulate((8,), whole[:1024], whole[:1024]).findings


@tile.jit
def last_block(x, part, counter, y):
    i = tile.program_id(0)
    tile.store(part[i], tile.load(x[i]) * 2)
    tile.sync()
    if tile.atomic_add(counter[0], 1, sem="acq_rel") == 7:
        total = 0.0
        for k in range(8):
            total += tile.load(part[k])
        tile.store(y[0], total)


@tile.jit
def last_block_fenced(x, part, counter, y):
    i = tile.program_id(0)
    tile.store(part[i], tile.load(x[i]) * 2)
    tile.sync()
    tile.threadfence()
    n = tile.atomic_add(counter[0], 1)
    tile.threadfence()
    if n == 7:
        total = 0.0
        for k in range(8):
            total += tile.load(part[k])
        tile.store(y[0], total)


@tile.jit
def last_block_unfenced(x, part, counter, y):
    i = tile.program_id(0)
    tile.store(part[i], tile.load(x[i]) * 2)
    tile.sync()
    n = tile.atomic_add(counter[0], 1)
    tile.threadfence()
    if n == 7:
        total = 0.0
        for k in range(8):
            total += tile.load(part[k])  # finds: race
        tile.store(y[0], total)


@tile.jit
def last_block_without_counter(x, part, counter, y):
    i = tile.program_id(0)
    tile.store(part[i], tile.load(x[i]) * 2)
    if i == 7:
        total = 0.0
        for k in range(8):
            total += tile.load(part[k])  # finds: race
        tile.store(y[0], total)


def test_the_last_cta_may_add_up_what_the_others_wrote():
    """An atomic counter orders the CTAs that use it, by its own semantics or together with fences."""
    x, part, counter, y = X[:8], np.zeros(8, np.float32), np.zeros(1, np.int32), np.zeros(1, np.float32)
    check(last_block, (8,), x, part, counter, y, result=3, expected=[56.0])
    check(last_block_fenced, (8,), x, part, counter, y, result=3, expected=[56.0])
    check(last_block_unfenced, (8,), x, part, counter, y)
    check(last_block_without_counter, (8,), x, part, counter, y)


@tile.jit
def handed_on(flag, y):
    i = tile.program_id(0)
    while tile.atomic_add(flag[0], 0, sem="acquire") != i:
        pass
    tile.store(y[0], tile.load(y[0]) * 2 + i)
    tile.atomic_add(flag[0], 1, sem="release")


def test_ctas_that_spin_for_each_other_make_progress():
    """A chain through the whole grid: every CTA waits for the previous one."""
    want = 0.0
    for i in range(20):
        want = want * 2 + i
    check(handed_on, (20,), np.zeros(1, np.int32), np.zeros(1, np.float32), result=1, expected=[want], seeds=range(3))


@tile.jit
def spins_for_ever(flag, y):
    while tile.atomic_add(flag[0], 0, sem="acquire") == 0:  # finds: deadlock
        pass
    tile.store(y[0], 1.0)


def test_a_spin_loop_that_nothing_will_end_is_a_deadlock():
    """Spinning without an effect counts as waiting."""
    check(spins_for_ever, (2,), np.zeros(1, np.int32), np.zeros(1, np.float32), seeds=range(2))


@tile.jit
def histogram(x, bins):
    i = tile.program_id(0)
    tile.atomic_add(bins[tile.load(x[i * 128:(i + 1) * 128])], 1)


def test_atomics_of_many_threads_count_exactly():
    """With duplicate addresses within and between CTAs."""
    x = np.random.default_rng(0).integers(0, 10, 4096).astype(np.int32)
    check(histogram, (32,), x, np.zeros(10, np.int32), result=1, expected=np.bincount(x, minlength=10), seeds=[0, 1])


@tile.jit
def tensor_stores_that_overlap(A, B):
    s = tile.alloc((8, 16), A.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(8 * 16 * 4)
        tile.copy_async(s, A[0:8, 0:16], mbar=bar)
        bar.wait(phase=0)
        tma_store(B, s, 0, tile.program_id(0) * 7, box=(16, 8))  # finds: race
        tile.bulk_commit()
        tile.bulk_wait(0)


def test_tensor_stores_race_like_other_stores():
    """The boxes of two CTAs share a row."""
    A = np.ones((8, 16), np.float32)
    check(tensor_stores_that_overlap, (2,), A, np.zeros((32, 16), np.float32))


@tile.jit(num_warps=2)
def released_by_one_thread(x, part, flag, out, ATOMIC: tile.constexpr, FENCE: tile.constexpr, MEET: tile.constexpr):
    if tile.program_id(0) == 0:
        tile.store(part[0:64], tile.load(x[0:64]))
        if MEET:
            tile.sync()
        with tile.elect():
            if FENCE:
                tile.threadfence()
            if ATOMIC:
                tile.atomic_add(flag[0], 1, sem="relaxed" if FENCE else "release")
            else:
                tile.store(flag[0], 1, sem="relaxed" if FENCE else "release")
    else:
        while tile.load(flag[0], sem="acquire") == 0:
            pass
        tile.store(out[0:64], tile.load(part[0:64]) + 1)  # finds: race


@pytest.mark.parametrize("fence", [False, True])
@pytest.mark.parametrize("atomic", [False, True])
def test_one_thread_releases_what_others_wrote_only_after_a_barrier(atomic, fence):
    """By a release store, an atomic, or a fence before a relaxed store; after a barrier it releases the writes of all threads."""
    args = X[:64], np.zeros(64, np.float32), np.zeros(1, np.int32), np.zeros(64, np.float32)
    options = dict(ATOMIC=atomic, FENCE=fence)
    check(released_by_one_thread, (2,), *args, MEET=False, **options)
    released_by_one_thread[2,](*args, MEET=True, **options)
    assert (args[3] == X[:64] + 1).all()


@tile.jit(num_warps=2)
def each_warp_releases_its_own(x, part, flag, out):
    if tile.program_id(0) == 0:
        for w in tile.static_range(2):
            with tile.warp(w):
                tile.store(part[w, 0:32], tile.load(x[32 * w:32 * w + 32]))
                tile.store(flag[w], 1, sem="release")
    else:
        for w in tile.static_range(2):
            with tile.warp(w):
                while tile.load(flag[w], sem="acquire") == 0:
                    pass
                tile.store(out[32 * w:32 * w + 32], tile.load(part[w, 0:32]) + 1)


def test_warps_that_release_their_own_writes_do_not_wait_for_each_other():
    """The other warp's release comes before or after, depending on the seed."""
    args = X[:64], np.zeros((2, 32), np.float32), np.zeros(2, np.int32), np.zeros(64, np.float32)
    check(each_warp_releases_its_own, (2,), *args, result=3, expected=X[:64] + 1, seeds=range(6))


@tile.jit(num_warps=2)
def released_twice(x, part, flag, out):
    if tile.program_id(0) == 0:
        tile.store(part[0:64], tile.load(x[0:64]))
        with tile.elect():
            tile.store(flag[0], 1, sem="release")
        tile.sync()
        with tile.elect():
            tile.store(flag[0], 2, sem="release")
    else:
        while tile.load(flag[0], sem="acquire") != 2:
            pass
        tile.store(out[0:64], tile.load(part[0:64]) + 1)


def test_writes_that_a_release_did_not_cover_are_covered_by_the_next_one_after_a_barrier():
    args = X[:64], np.zeros(64, np.float32), np.zeros(1, np.int32), np.zeros(64, np.float32)
    check(released_twice, (2,), *args, result=3, expected=X[:64] + 1, seeds=range(3))


@tile.jit(num_warps=2)
def acquired_by_one_thread(x, part, flag, out, HOW: tile.constexpr, MEET: tile.constexpr):
    if tile.program_id(0) == 0:
        tile.store(part[0:64], tile.load(x[0:64]))
        tile.store(flag[0], 1, sem="release")
    else:
        with tile.elect():
            if HOW == "atomic":
                while tile.atomic_cas(flag[0], 1, 2, sem="acquire") == 0:
                    pass
            else:
                while tile.load(flag[0], sem="relaxed" if HOW == "fence" else "acquire") == 0:
                    pass
            if HOW == "fence":
                tile.threadfence()
            first = tile.load(part[0])
            tile.store(out[64], first)
        if MEET:
            tile.sync()
        tile.store(out[0:64], tile.load(part[0:64]) + 1)  # finds: race


@pytest.mark.parametrize("how", ["load", "atomic", "fence"])
def test_what_one_thread_acquires_the_others_see_only_after_a_barrier(how):
    """The thread itself sees it immediately."""
    args = X[:64], np.zeros(64, np.float32), np.zeros(1, np.int32), np.zeros(65, np.float32)
    check(acquired_by_one_thread, (2,), *args, HOW=how, MEET=False)
    acquired_by_one_thread[2,](*args, HOW=how, MEET=True)
    assert (args[3][:64] == X[:64] + 1).all() and args[3][64] == X[0]


@tile.jit(num_warps=8)
def acquired_and_handed_on(x, part, flag, out, N: tile.constexpr):
    if tile.program_id(0) == 0:
        for i in range(N):
            tile.store(part[i, 0:128], tile.load(x[i, 0:128]))
            tile.store(flag[i], 1, sem="release")
    else:
        told = tile.mbarrier()
        with tile.warpgroup(0):
            with tile.elect():
                for i in range(N):
                    while tile.load(flag[i], sem="acquire") == 0:
                        pass
                told.arrive()
        with tile.warpgroup(1):
            told.wait(phase=0)
            for i in range(N):
                tile.store(out[i, 0:128], tile.load(part[i, 0:128]))


def test_what_one_thread_acquired_in_many_steps_is_passed_on_by_an_mbarrier():
    """More acquires than the simulator distinguishes."""
    x = np.arange(40 * 128, dtype=np.float32).reshape(40, 128)
    check(acquired_and_handed_on, (2,), x, np.zeros_like(x), np.zeros(40, np.int32), np.zeros_like(x), result=3, expected=x, seeds=range(3), N=40)


@tile.jit(cluster=2, num_warps=2)
def leaders_meet(x, part, flag, out, BEFORE: tile.constexpr, BEHIND: tile.constexpr):
    rank = tile.cta_rank()
    if tile.cluster_id(0) == 0:
        tile.store(part[rank, 0:64], tile.load(x[0:64]) + rank)
        if BEFORE:
            tile.cluster_sync()
        if rank == 0:
            tile.store(flag[0], 1, sem="release")
    else:
        if rank == 0:
            with tile.elect():
                while tile.load(flag[0], sem="acquire") == 0:
                    pass
        if BEHIND:
            tile.cluster_sync()
        tile.store(out[rank, 0:64], tile.load(part[1 - rank, 0:64]))


@pytest.mark.parametrize("before, behind", [(True, True), (False, True), (True, False)])
def test_a_release_or_acquire_by_one_cta_orders_its_cluster_together_with_the_cluster_barrier(before, behind):
    args = X[:64], np.zeros((2, 64), np.float32), np.zeros(1, np.int32), np.zeros((2, 64), np.float32)
    if before and behind:
        leaders_meet[4,](*args, BEFORE=True, BEHIND=True)
        assert (args[3] == np.stack([X[:64] + 1, X[:64]])).all()
    else:
        found = leaders_meet.simulate((4,), *args, BEFORE=before, BEHIND=behind).findings
        assert {f.kind for f in found} == {"race"} and any("tile.load(part" in f.loc.source_line for f in found)
