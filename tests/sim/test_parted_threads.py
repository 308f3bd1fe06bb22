"""Conditions that hold for some threads of a warp or a CTA: what these arrive at, wait for, fence or release counts for them alone."""

import numpy as np
import pytest
import tilejit as tile
from faulty import SEEDS
from tilejit.sim import launch
from tilejit.sim.program import Program

from tests.gpu import in_child, needs_gpu

A = np.arange(16 * 256, dtype=np.int32).reshape(16, 256)
B = np.zeros_like(A)
FLAG = np.zeros(1, np.int32)
ALL = np.ones(256, np.int32)


def kinds(kernel, *args, grid=(1,), seed=0, **meta):
    """The kinds of a run's findings, and its arguments as it leaves them."""
    args = [a.copy() for a in args]
    report = kernel.simulate(grid, *args, seed=seed, **meta)
    return {f.kind for f in report.findings}, args


def found(kernel, kind, *args, **meta):
    """Under every seed."""
    for seed in SEEDS:
        assert kinds(kernel, *args, seed=seed, **meta)[0] == {kind}, (kernel.name, meta, seed)


def silent(kernel, *args, **meta):
    """Under every seed. Returns the arguments as the last run leaves them."""
    for seed in SEEDS:
        what, left = kinds(kernel, *args, seed=seed, **meta)
        assert not what, (kernel.name, meta, seed, what)
    return left


# -- some threads, named by their ids, or by numbers that are read when the kernel runs

@tile.jit
def all_of_them(i, D):
    return i >= 0


@tile.jit
def all_but_one(i, D):
    return i != 97


@tile.jit
def the_first_half(i, D):
    return i < 64


@tile.jit
def first_lanes(i, D):
    return tile.lane_id() == 0


@tile.jit
def three_of_four(i, D):
    return i % 4 != 2


@tile.jit
def other_warps(i, D):
    return tile.warp_id() != 2


@tile.jit
def as_memory_says(i, D):
    return tile.load(D[i]) != 0


MOST = ALL.copy()
MOST[41] = 0
SOME = [all_but_one, the_first_half, first_lanes, three_of_four, other_warps, as_memory_says]
some_threads = pytest.mark.parametrize("who", SOME, ids=lambda w: w.name)


@tile.jit(num_warps=4)
def refilled(A, B, D, WHO: tile.constexpr, HOW: tile.constexpr):
    s, bar, i = tile.alloc((128,), A.dtype), tile.mbarrier(), tile.thread_id()
    tile.store(s[i], 0)
    tile.fence_proxy_async()
    tile.sync()
    if HOW == "load":
        tile.store(B[0, i], tile.load(s[i]))
    elif HOW == "shared load":
        tile.store(B[0, i], tile.load(s[i % 4]))
    elif HOW == "store":
        tile.store(s[i], 1)
    elif HOW == "atomic":
        tile.atomic_add(s[i], tile.load(A[0, i]))
    if WHO(i, D):
        tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        bar.arrive_expect_tx(512)
        tile.copy_async(s, A[1, 0:128], mbar=bar)
    bar.wait(phase=0)
    tile.store(B[1, i], tile.load(s[i]))


@pytest.mark.parametrize("how", ["load", "store", "atomic"])
@some_threads
def test_each_thread_that_accessed_a_buffer_needs_its_own_fence_before_a_refill(who, how):
    found(refilled, "missing-proxy-fence", A, B, MOST, WHO=who, HOW=how)
    np.testing.assert_array_equal(silent(refilled, A, B, ALL, WHO=all_of_them, HOW=how)[1][1, :128], A[1, :128])


def test_no_fence_of_others_counts_for_the_only_readers_of_an_element():
    found(refilled, "missing-proxy-fence", A, B, MOST, WHO=three_of_four, HOW="shared load")
    silent(refilled, A, B, ALL, WHO=all_of_them, HOW="shared load")


def test_a_condition_that_holds_for_all_threads_parts_none_of_their_fences():
    np.testing.assert_array_equal(silent(refilled, A, B, ALL, WHO=as_memory_says, HOW="load")[1][1, :128], A[1, :128])


@tile.jit(num_warps=5)
def handed_over(A, B, SYNC: tile.constexpr, ONE: tile.constexpr):
    s, bar, i = tile.alloc((128,), A.dtype), tile.mbarrier(count=4), tile.thread_id()
    if i < 128:
        tile.store(s[i], tile.load(A[0, i]))
        if SYNC:
            tile.ptx.bar.warp.sync(0xffffffff)
        if ONE:
            if i < 1:
                bar.arrive(n=4)
        elif tile.lane_id() == 0:
            bar.arrive()
    with tile.warp(4):
        bar.wait(phase=0)
        for k in tile.static_range(4):
            tile.store(B[0, 32 * k + tile.lane_id()], tile.load(s[32 * k + tile.lane_id()]))


def test_the_arrival_of_a_lane_releases_what_its_warp_wrote_only_after_a_barrier_of_the_warp():
    found(handed_over, "race", A, B, SYNC=False, ONE=False)
    found(handed_over, "race", A, B, SYNC=False, ONE=True)
    found(handed_over, "race", A, B, SYNC=True, ONE=True)  # the other warps' stores
    np.testing.assert_array_equal(silent(handed_over, A, B, SYNC=True, ONE=False)[1][0, :128], A[0, :128])


@tile.jit(num_warps=4)
def waited(A, B, D, WHO: tile.constexpr, HOW: tile.constexpr):
    s, bar, i = tile.alloc((128,), A.dtype), tile.mbarrier(), tile.thread_id()
    if HOW == "mbarrier":
        with tile.elect():
            bar.arrive_expect_tx(512)
            tile.copy_async(s, A[0, 0:128], mbar=bar)
        if WHO(i, D):
            bar.wait(phase=0)
    else:
        tile.copy_async(s, A[0, 0:128], variant="ldgsts")
        tile.cp_async_commit()
        if WHO(i, D):
            tile.cp_async_wait(0)
        tile.sync()
    tile.store(B[0, i], tile.load(s[127 - i]))
    tile.sync()
    if HOW == "mbarrier":
        bar.wait(phase=0)


@pytest.mark.parametrize("how", ["mbarrier", "cp.async"])
@some_threads
def test_a_thread_that_has_not_waited_may_not_read_what_a_copy_writes(who, how):
    found(waited, "missing-wait", A, B, MOST, WHO=who, HOW=how)
    np.testing.assert_array_equal(silent(waited, A, B, ALL, WHO=all_of_them, HOW=how)[1][0, :128], A[0, 127::-1])


@tile.jit(num_warps=4)
def sent(A, B, C, MINE: tile.constexpr):
    s, i = tile.alloc((128,), A.dtype), tile.thread_id()
    tile.store(s[i], tile.load(A[0, i]))
    tile.fence_proxy_async()
    tile.sync()
    if i == 5:
        tile.copy_async(B[0, 0:128], s)
        tile.bulk_commit()
        if MINE:
            tile.bulk_wait(0)
    if i != 5:
        tile.bulk_wait(0)
    tile.sync()
    tile.store(C[0, i], tile.load(B[0, i]))


def test_only_the_thread_that_issued_bulk_copies_can_wait_for_them():
    found(sent, "missing-wait", A, B, B, MINE=False)
    np.testing.assert_array_equal(silent(sent, A, B, B, MINE=True)[2][0, :128], A[0, :128])


@tile.jit(num_warps=4)
def published(A, B, C, flag, WHO: tile.constexpr, NEED: tile.constexpr, HOW: tile.constexpr, SYNC: tile.constexpr):
    i = tile.thread_id()
    if tile.program_id(0) == 0:
        tile.store(B[0, i], tile.load(A[0, i]))
        if HOW == "relaxed":
            tile.threadfence()
        if SYNC:
            tile.sync()
        if WHO(i, A):
            if HOW == "relaxed":
                tile.atomic_add(flag[0], 1)
            elif HOW == "release":
                tile.atomic_add(flag[0], 1, sem="release")
            else:
                tile.store(flag[0], NEED, sem="release")
    else:
        while tile.load(flag[0], sem="acquire") < NEED:
            pass
        tile.store(C[0, i], tile.load(B[0, 127 - i]))


@tile.jit
def one_thread(i, D):
    return i < 1


@tile.jit
def two_threads(i, D):
    return i < 2


@pytest.mark.parametrize("who, need, how", [(one_thread, 1, "release"), (two_threads, 2, "release"), (first_lanes, 4, "release"),
                                            (one_thread, 1, "store"), (one_thread, 1, "relaxed"), (first_lanes, 4, "relaxed")])
def test_a_thread_publishes_the_stores_of_others_only_after_a_barrier(who, need, how):
    meta = {"grid": (2,), "WHO": who, "NEED": need, "HOW": how}
    found(published, "race", A, B, B, FLAG, SYNC=False, **meta)
    np.testing.assert_array_equal(silent(published, A, B, B, FLAG, SYNC=True, **meta)[2][0, :128], A[0, 127::-1])


@tile.jit(num_warps=4)
def taken(A, B, C, flag, RELAXED: tile.constexpr, SYNC: tile.constexpr):
    i = tile.thread_id()
    if tile.program_id(0) == 0:
        tile.store(B[0, i], tile.load(A[0, i]))
        tile.sync()
        if i == 0:
            tile.store(flag[0], 1, sem="release")
    else:
        if i < 1:
            if RELAXED:
                while tile.atomic_add(flag[0], 0) == 0:
                    pass
                tile.threadfence()
            else:
                while tile.load(flag[0], sem="acquire") == 0:
                    pass
        if SYNC:
            tile.sync()
        tile.store(C[0, i], tile.load(B[0, 127 - i]))


@pytest.mark.parametrize("relaxed", [False, True])
def test_what_one_thread_acquires_others_know_after_a_barrier(relaxed):
    found(taken, "race", A, B, B, FLAG, grid=(2,), RELAXED=relaxed, SYNC=False)
    np.testing.assert_array_equal(silent(taken, A, B, B, FLAG, grid=(2,), RELAXED=relaxed, SYNC=True)[2][0, :128], A[0, 127::-1])


@tile.jit(num_warps=4)
def overwritten(A, B, D, WHO: tile.constexpr):
    """A copy engine overwrites global memory that threads have loaded."""
    s, i = tile.alloc((128,), A.dtype), tile.thread_id()
    tile.store(s[i], 1)
    tile.fence_proxy_async()
    tile.store(B[1, i], tile.load(A[0, i]))
    if WHO(i, D):
        tile.fence_proxy_async(space="global")
    tile.sync()
    with tile.elect():
        tile.copy_async(A[0, 0:128], s)
        tile.bulk_commit()
        tile.bulk_wait(0)


@some_threads
def test_each_thread_that_loaded_global_memory_needs_its_own_fence_before_a_copy_to_it(who):
    found(overwritten, "missing-proxy-fence", A, B, MOST, WHO=who)
    assert (silent(overwritten, A, B, ALL, WHO=all_of_them)[0][0, :128] == 1).all()


# -- CTAs that part differently ---------------------------------------------------------------------------------------------------

@tile.jit(num_warps=4)
def refilled_in_each(A, B, D, LOOP: tile.constexpr):
    s, bar, i, at = tile.alloc((128,), A.dtype), tile.mbarrier(), tile.thread_id(), tile.program_id(0)
    tile.store(s[i], at)
    n = tile.load(D[at, i])
    if LOOP:
        for _ in range(n):
            tile.fence_proxy_async()
    elif n != 0:
        tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        bar.arrive_expect_tx(512)
        tile.copy_async(s, A[1, 0:128], mbar=bar)
    bar.wait(phase=0)
    tile.store(B[at, i], tile.load(s[i]))


@pytest.mark.parametrize("loop", [False, True])
def test_the_cta_in_which_a_thread_has_no_fence_is_the_one_that_is_named(loop):
    d = np.ones((6, 128), np.int32)
    assert not kinds(refilled_in_each, A, B, d, grid=(6,), LOOP=loop)[0]
    d[4, 77] = 0
    d[2, :] = 2
    for seed in SEEDS:
        finding, = refilled_in_each.simulate((6,), A.copy(), B.copy(), d, LOOP=loop, seed=seed).findings
        assert (finding.kind, finding.ctas) == ("missing-proxy-fence", (4,)) and 77 in finding.threads, str(finding)


@tile.jit(num_warps=1)
def fenced_often(D, COUNTS: tile.constexpr):
    i, at, n = tile.thread_id(), tile.program_id(0), 0
    if COUNTS:
        for _ in range(tile.load(D[at, i])):
            tile.fence_proxy_async()
            n += 1
    else:
        while n < tile.load(D[at, i]):
            tile.fence_proxy_async()
            n += 1
    tile.store(D[at, i], n + 1)


@pytest.mark.parametrize("counts", [False, True])
def test_every_cta_may_part_in_another_way(counts):
    trips = (np.arange(3000)[:, None] >> np.arange(32) % 12 & 1).astype(np.int32)  # each row is another one
    d = trips.copy()
    assert not fenced_often.simulate((len(d),), d, COUNTS=counts).findings
    np.testing.assert_array_equal(d, trips + 1)


# -- atomics of shared memory -----------------------------------------------------------------------------------------------------

@tile.jit(num_warps=3)
def counted_by_two(A, B, FENCE: tile.constexpr, COPY: tile.constexpr):
    """Warps 0 and 1 count; what warp 1 does alone is not enough."""
    s, nb = tile.alloc((32,), A.dtype), tile.named_barrier(64)
    both = tile.named_barrier(96)
    with tile.warp(2):
        tile.store(s[tile.lane_id()], 0)
        tile.fence_proxy_async()
    tile.sync()
    with tile.warp(0):
        tile.atomic_add(s[tile.lane_id()], 1)
        if FENCE:
            tile.fence_proxy_async()
            both.arrive()
        elif COPY:
            both.arrive()
    with tile.warp(1):
        tile.atomic_add(s[tile.lane_id()], 1)
        tile.fence_proxy_async()
        if FENCE or COPY:
            both.arrive()
        else:
            nb.arrive()
    with tile.warp(2):
        if FENCE or COPY:
            both.sync()
        else:
            nb.sync()
        if COPY:
            with tile.elect():
                tile.copy_async(B[0, 0:32], s)
                tile.bulk_commit()
                tile.bulk_wait(0)
        else:
            tile.store(B[0, tile.lane_id()], tile.load(s[tile.lane_id()]))


def test_an_atomic_hides_no_earlier_one_from_a_load_or_a_copy():
    found(counted_by_two, "race", A, B, FENCE=False, COPY=False)
    found(counted_by_two, "missing-proxy-fence", A, B, FENCE=False, COPY=True)
    for copy in (False, True):
        assert (silent(counted_by_two, A, B, FENCE=True, COPY=copy)[1][0, :32] == 2).all()


@tile.jit(num_warps=2)
def its_own(A, B, HOW: tile.constexpr):
    s, i = tile.alloc((64,), A.dtype), tile.thread_id()
    if HOW == "load":
        tile.store(s[i], 0)
        tile.atomic_add(s[i], 5)
        tile.store(B[0, i], tile.load(s[i]))
    elif HOW == "store":
        tile.store(s[i], 0)
        tile.atomic_add(s[i], 5)
        tile.store(s[i], 5)
        tile.store(B[0, i], tile.load(s[i]))
    else:
        with tile.thread(5):
            for k in range(64):
                tile.store(s[k], 4)
                tile.atomic_add(s[k], 1)
            tile.fence_proxy_async()
            tile.copy_async(B[0, 0:64], s, variant="bulk")
            tile.bulk_commit()
            tile.bulk_wait(0)


@pytest.mark.parametrize("how", ["load", "store", "copy"])
def test_a_thread_s_atomics_are_in_order_with_its_other_accesses(how):
    assert (silent(its_own, A, B, HOW=how)[1][0, :64] == 5).all()


@tile.jit(num_warps=2)
def another_s(A, B, SYNC: tile.constexpr):
    s, i = tile.alloc((64,), A.dtype), tile.thread_id()
    tile.store(s[i], 0)
    tile.sync()
    tile.atomic_add(s[i], 5)
    if SYNC:
        tile.sync()
    tile.store(B[0, i], tile.load(s[63 - i]))


def test_a_load_of_what_another_thread_s_atomic_wrote_needs_a_barrier():
    found(another_s, "race", A, B, SYNC=False)
    assert (silent(another_s, A, B, SYNC=True)[1][0, :64] == 5).all()


# -- barriers in branches ---------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=4)
def met_in_a_branch(A, B, LAST: tile.constexpr):
    i, s = tile.thread_id(), tile.alloc((128,), A.dtype)
    tile.store(s[i], tile.load(A[0, i]))
    if i < LAST:
        tile.ptx.barrier.sync.threads(5, 64)
        tile.store(B[0, i], tile.load(s[63 - i]))


@tile.jit(num_warps=6)
def met_where_warps_branch(A, B, MEET: tile.constexpr):
    """Warps 1 and 2 meet, and 4 and 5: those hand over to 0 and 3, which wait, by an arrival."""
    i, s, w = tile.thread_id(), tile.alloc((192,), A.dtype), tile.warp_id()
    tile.store(s[i], tile.load(A[0, i]))
    if w % 3 != 0:
        if w > 3:
            if MEET:
                tile.ptx.bar.sync.threads(6, 64)
            tile.store(B[0, i], tile.load(s[2 * 160 - i - 1]))
            tile.ptx.bar.arrive(7, 128)
        else:
            if MEET:
                tile.ptx.bar.sync.threads(5, 64)
            tile.store(B[0, i], tile.load(s[2 * 64 - i - 1]))
    else:
        tile.ptx.bar.sync.threads(7, 128)
        tile.store(B[0, i], tile.load(s[i % 2 + 128]) + tile.load(s[i % 2 + 190]))


def test_warps_may_meet_at_a_barrier_in_a_branch_that_the_others_do_not_take():
    np.testing.assert_array_equal(silent(met_in_a_branch, A, B, LAST=64)[1][0, :64], A[0, 63::-1])
    assert "divergent-collective" in kinds(met_in_a_branch, A, B, LAST=50)[0]


def test_a_barrier_of_the_cta_may_be_reached_by_the_warps_that_a_condition_picks():
    found(met_where_warps_branch, "race", A, B, MEET=False)
    row, left = A[0, :192], silent(met_where_warps_branch, A, B, MEET=True)[1][0]
    np.testing.assert_array_equal(left[32:96], row[95:31:-1])
    np.testing.assert_array_equal(left[128:192], row[191:127:-1])
    np.testing.assert_array_equal(left[:32], np.tile(row[128:130] + row[190:192], 16))


# -- what parts threads -----------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=4)
def only_accesses(A, B, D):
    i = tile.thread_id()
    x = tile.load(A[0, i])
    if i % 2 == 0:
        x += 1
    if tile.load(D[i]) != 0:
        tile.store(B[0, i], x)


def bounds(monkeypatch, kernel, *args, **meta):
    """Where the threads of a kernel are parted."""
    made = []
    monkeypatch.setattr(launch, "Program", lambda graph: made.append(Program(graph)) or made[-1])
    kinds(kernel, *args, **meta)
    return made[-1].bounds


def test_threads_stay_together_in_branches_that_order_nothing(monkeypatch):
    assert bounds(monkeypatch, only_accesses, A, B, ALL) == [0, 128]


def test_threads_part_where_a_condition_of_their_ids_changes_and_else_wherever_it_may(monkeypatch):
    parted = {who: bounds(monkeypatch, refilled, A, B, ALL, WHO=who, HOW="load") for who in SOME}
    elected = {0, 1, 128}  # the scope that issues the copy
    assert set(parted[all_but_one]) == elected | {97, 98}
    assert set(parted[the_first_half]) == elected | {64}
    assert set(parted[first_lanes]) == elected | {n + lane for n in range(0, 128, 32) for lane in (0, 1)}
    assert set(parted[other_warps]) == elected | {64, 96}
    assert parted[as_memory_says] == list(range(129))


# -- on a GPU ---------------------------------------------------------------------------------------------------------------------

def same_on_the_gpu(kernel, *args, grid=(1,), **meta):
    """Without findings on the simulator, and with the same arrays on a GPU."""
    wanted, there = silent(kernel, *args, grid=grid, **meta), [tile.to_device(a) for a in args]
    kernel[grid](*there, **meta)
    for got, want in zip(there, wanted, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


TWO = dict(grid=(2,))
TWINS = [
    *((refilled, (A, B, ALL), dict(WHO=who, HOW=how)) for who in (all_of_them, as_memory_says) for how in ("load", "store", "atomic")),
    (handed_over, (A, B), dict(SYNC=True, ONE=False)),
    *((waited, (A, B, ALL), dict(WHO=as_memory_says, HOW=how)) for how in ("mbarrier", "cp.async")),
    (sent, (A, B, B), dict(MINE=True)),
    (published, (A, B, B, FLAG), dict(TWO, WHO=first_lanes, NEED=4, HOW="relaxed", SYNC=True)),
    (published, (A, B, B, FLAG), dict(TWO, WHO=two_threads, NEED=2, HOW="release", SYNC=True)),
    *((taken, (A, B, B, FLAG), dict(TWO, RELAXED=relaxed, SYNC=True)) for relaxed in (False, True)),
    (overwritten, (A, B, ALL), dict(WHO=as_memory_says)),
    *((counted_by_two, (A, B), dict(FENCE=True, COPY=copy)) for copy in (False, True)),
    *((its_own, (A, B), dict(HOW=how)) for how in ("load", "store", "copy")),
    (another_s, (A, B), dict(SYNC=True)),
    (met_in_a_branch, (A, B), dict(LAST=64)),
    (met_where_warps_branch, (A, B), dict(MEET=True)),
]


@pytest.mark.parametrize("kernel", [pytest.param(name, marks=[pytest.mark.misread_by_racecheck] if name == "handed_over" else [])
                                    for name in dict.fromkeys(kernel.name for kernel, _, _ in TWINS)])
@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_the_right_kernels_give_on_the_gpu_what_the_simulator_says(kernel):
    for right, arguments, constants in (twin for twin in TWINS if twin[0].name == kernel):
        same_on_the_gpu(right, *arguments, **constants)
