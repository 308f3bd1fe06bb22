"""What a release publishes and an acquire learns, thread by thread, and accesses that atomics and ordered accesses of other CTAs conflict with."""

import numpy as np
import pytest
import tilejit as tile
from faulty import SEEDS
from test_parted_threads import found, kinds, same_on_the_gpu, silent

from tests.gpu import in_child, needs_gpu

A = np.arange(16 * 256, dtype=np.int32).reshape(16, 256)
B = np.zeros_like(A)
FLAGS = np.zeros(256, np.int32)
TWO, THREE, FOUR = ({"grid": (n,)} for n in (2, 3, 4))


# -- what is released, and by whom -----------------------------------------------------------------------------------------------

@tile.jit(num_warps=2)
def passed_on(A, B, C, flags, SYNC: tile.constexpr):
    """CTA 1 acquires in warp 1, and releases in warp 0."""
    i, p = tile.thread_id(), tile.program_id(0)
    if p == 0:
        tile.store(B[0, i], tile.load(A[0, i]))
        tile.store(flags[0], 1, sem="release")
    elif p == 1:
        if i == 32:
            while tile.load(flags[0], sem="acquire") == 0:
                pass
        if SYNC:
            tile.sync()
        if i == 0:
            tile.store(flags[1], 1, sem="release")
    else:
        while tile.load(flags[1], sem="acquire") == 0:
            pass
        tile.store(C[0, i], tile.load(B[0, 63 - i]))


def test_a_thread_passes_on_what_another_has_acquired_only_after_a_barrier():
    found(passed_on, "race", A, B, B, FLAGS, **THREE, SYNC=False)
    np.testing.assert_array_equal(silent(passed_on, A, B, B, FLAGS, **THREE, SYNC=True)[2][0, :64], A[0, 63::-1])


@tile.jit(num_warps=2)
def fenced_by(A, B, C, flags, READER: tile.constexpr):
    i = tile.thread_id()
    if tile.program_id(0) == 0:
        tile.store(B[0, i], tile.load(A[0, i]))
        tile.store(flags[0], 1, sem="release")
    else:
        if i == 0:
            while tile.load(flags[0], sem="relaxed") == 0:
                pass
        if (i == 0) == READER:
            tile.threadfence()
        tile.sync()
        tile.store(C[0, i], tile.load(B[0, 63 - i]))


def test_a_fence_acquires_what_its_own_thread_has_read():
    found(fenced_by, "race", A, B, B, FLAGS, **TWO, READER=False)
    silent(fenced_by, A, B, B, FLAGS, **TWO, READER=True)


@tile.jit(num_warps=2)
def loaded_behind(A, B, C, flags, AFTER: tile.constexpr):
    s, bar, i = tile.alloc((64,), A.dtype), tile.mbarrier(), tile.thread_id()
    if tile.program_id(0) == 0:
        tile.store(B[0, i], tile.load(A[0, i]))
        tile.store(flags[0], 1, sem="release")
    else:
        if i == 40:
            while tile.load(flags[0], sem="acquire") == 0:
                pass
        if AFTER:
            tile.sync()
        if i == 0:
            tile.fence_proxy_async(space="global")
        if not AFTER:
            tile.sync()
        if i == 0:
            bar.arrive_expect_tx(256)
            tile.copy_async(s, B[0, 0:64], mbar=bar)
        bar.wait(phase=0)
        tile.store(C[0, i], tile.load(s[i]))


def test_a_proxy_fence_comes_after_its_own_thread_knows_of_the_acquire():
    found(loaded_behind, "missing-proxy-fence", A, B, B, FLAGS, **TWO, AFTER=False)
    silent(loaded_behind, A, B, B, FLAGS, **TWO, AFTER=True)


@tile.jit(num_warps=2)
def released_in_parts(B, C, flags, BOTH: tile.constexpr):
    """Warp 0 releases what it wrote by one flag; warp 1 knows nothing of that, and releases another."""
    i = tile.thread_id()
    if tile.program_id(0) == 0:
        if i < 32:
            tile.store(B[0, i], 7)
            tile.ptx.bar.warp.sync(0xffffffff)
            if i == 0:
                tile.store(flags[0], 1, sem="release")
        elif i == 32:
            tile.store(flags[1], 1, sem="release")
    else:
        if BOTH:
            while tile.load(flags[0], sem="acquire") == 0:
                pass
        while tile.load(flags[1], sem="acquire") == 0:
            pass
        tile.store(C[0, i], tile.load(B[0, i % 32]))


def test_what_one_flag_has_released_another_need_not_release():
    found(released_in_parts, "race", B, B, FLAGS, **TWO, BOTH=False)
    silent(released_in_parts, B, B, FLAGS, **TWO, BOTH=True)


@tile.jit(num_warps=4)
def flags_of_threads(A, B, C, flags, SHIFT: tile.constexpr, EACH: tile.constexpr):
    """Every thread has a flag (EACH), or every CTA."""
    i, p = tile.thread_id(), tile.program_id(0)
    if EACH:
        if p == 0:
            tile.store(B[0, i], tile.load(A[0, i]))
            tile.ptx.st.release.gpu.global_.b32(flags[i], 1)
        elif p == 1:
            while tile.ptx.ld.acquire.gpu.global_.b32(flags[i]) == 0:
                pass
            tile.store(C[0, i], tile.load(B[0, (i + SHIFT) % 128]))
    elif p < 4:
        if i == 0:
            tile.store(B[p, 0], tile.load(A[p, 0]))
            tile.store(flags[p], 1, sem="release")
    elif i < 4:
        while tile.load(flags[i], sem="acquire") == 0:
            pass
        tile.store(C[0, i], tile.load(B[(i + SHIFT) % 4, 0]))


@pytest.mark.parametrize("each", [False, True])
def test_threads_that_acquire_together_know_what_each_has_acquired(each):
    found(flags_of_threads, "race", A, B, B, FLAGS, grid=(5,), EACH=each, SHIFT=1)
    silent(flags_of_threads, A, B, B, FLAGS, grid=(5,), EACH=each, SHIFT=0)


@tile.jit(num_warps=1)
def one_of_sixteen(A, B, C, flags, SYNC: tile.constexpr):
    i = tile.thread_id()
    if tile.program_id(0) == 0:
        tile.store(B[0, i], tile.load(A[0, i]))
        if SYNC:
            tile.ptx.bar.warp.sync(0xffffffff)
        if i < 16:
            tile.store(flags[0], 1, sem="release")
    else:
        while tile.load(flags[0], sem="acquire") == 0:
            pass
        if i < 16:
            tile.store(C[0, i], tile.load(B[0, 15 - i]))


def test_of_several_stores_to_one_flag_only_one_is_seen():
    found(one_of_sixteen, "race", A, B, B, FLAGS, **TWO, SYNC=False)
    silent(one_of_sixteen, A, B, B, FLAGS, **TWO, SYNC=True)


@tile.jit(num_warps=4)
def polled_by_warps(A, B, C, flags, HOW: tile.constexpr, ROUNDS: tile.constexpr):
    """Lane 0 of each warp polls; then the warp's barrier."""
    i = tile.thread_id()
    for k in tile.static_range(ROUNDS):
        if tile.program_id(0) == 0:
            tile.store(B[k, i], tile.load(A[k, i]))
            tile.sync()
            if i == 0:
                tile.store(flags[0], k + 1, sem="release")
        else:
            if tile.lane_id() == 0:
                if HOW == "acquire":
                    while tile.load(flags[0], sem="acquire") <= k:
                        pass
                else:
                    while tile.load(flags[0], sem="relaxed") <= k:
                        pass
                    tile.threadfence()
            if HOW != "no barrier":
                tile.ptx.bar.warp.sync(0xffffffff)
            tile.store(C[k, i], tile.load(B[k, 127 - i]))


@pytest.mark.parametrize("rounds", [1, 12])
def test_each_warp_knows_what_its_own_lane_has_acquired(rounds):
    for how in ("acquire", "relaxed"):
        left = silent(polled_by_warps, A, B, B, FLAGS, **TWO, HOW=how, ROUNDS=rounds)
        np.testing.assert_array_equal(left[2][:rounds, :128], A[:rounds, 127::-1])
    found(polled_by_warps, "race", A, B, B, FLAGS, **TWO, HOW="no barrier", ROUNDS=rounds)


@tile.jit(num_warps=1)
def changed_on_the_way(A, B, C, flags, MODIFY: tile.constexpr):
    """CTA 1 changes the flag between the release and the acquire, and orders nothing itself."""
    i, p = tile.thread_id(), tile.program_id(0)
    if p == 0:
        tile.store(B[0, i], tile.load(A[0, i]))
        tile.store(flags[0], 1, sem="release")
    elif p == 1:
        if MODIFY:
            while tile.atomic_cas(flags[0], 1, 2) != 1:
                pass
        else:
            while tile.load(flags[0], sem="relaxed") != 1:
                pass
            tile.store(flags[0], 2, sem="relaxed")
    else:
        while tile.load(flags[0], sem="acquire") != 2:
            pass
        tile.store(C[0, i], tile.load(B[0, 31 - i]))


def test_an_atomic_continues_a_release_sequence_and_a_store_ends_it():
    silent(changed_on_the_way, A, B, B, FLAGS, **THREE, MODIFY=True)
    assert kinds(changed_on_the_way, A, B, B, FLAGS, **THREE, MODIFY=False)[0] == {"race"}


@tile.jit(num_warps=1, cluster=2)
def fenced_for_the_cluster(A, B, C, flags, SCOPE: tile.constexpr):
    i = tile.thread_id()
    if tile.cta_rank() == 0:
        tile.store(B[0, i], tile.load(A[0, i]))
        tile.sync()
        if i == 0:
            tile.threadfence(SCOPE)
            tile.atomic_add(flags[0], 1, scope="cluster")
    else:
        if i == 0:
            while tile.atomic_add(flags[0], 0, scope="cluster") == 0:
                pass
            tile.threadfence(SCOPE)
        tile.sync()
        tile.store(C[0, i], tile.load(B[0, 31 - i]))
    tile.cluster_sync()


def test_a_fence_orders_within_its_scope():
    for scope in ("cluster", "gpu"):
        silent(fenced_for_the_cluster, A, B, B, FLAGS, **TWO, SCOPE=scope)
    found(fenced_for_the_cluster, "race", A, B, B, FLAGS, **TWO, SCOPE="cta")


# -- polls -----------------------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=2)
def met_by_the_grid(A, B, C, flags, MISSING: tile.constexpr, HOW: tile.constexpr):
    i, p, n = tile.thread_id(), tile.program_id(0), tile.num_programs(0)
    tile.store(B[p, i], tile.load(A[p, i]))
    tile.sync()
    if i == 0:
        tile.atomic_add(flags[0], 1, sem="release")
        if HOW == "load":
            while tile.load(flags[0], sem="acquire") < n - MISSING:
                pass
        else:
            while tile.load(flags[0], sem="relaxed") < n - MISSING:
                pass
            tile.threadfence()
    tile.sync()
    tile.store(C[p, i], tile.load(B[(p + 1) % n, i]))


@pytest.mark.parametrize("how", ["load", "fence"])
def test_a_wait_for_too_few_arrivals_is_found_by_seed_0_and_most_others(how):
    for missing in (1, 3):
        all_kinds = [kinds(met_by_the_grid, A, B, B, FLAGS, grid=(8,), MISSING=missing, HOW=how, seed=seed)[0] for seed in range(16)]
        assert all_kinds[0] == {"race"} and all_kinds.count({"race"}) > 8 and set().union(*all_kinds) == {"race"}
    np.testing.assert_array_equal(silent(met_by_the_grid, A, B, B, FLAGS, grid=(8,), MISSING=0, HOW=how)[2][:8, :64],
                                  np.roll(A[:8, :64], -1, axis=0))


@tile.jit(num_warps=1)
def reset_and_read(flags, C):
    """What a thread knows of it reads: CTA 0 resets the flag before it releases the other one."""
    if tile.program_id(0) == 0:
        tile.store(flags[0], 5, sem="relaxed")
        tile.store(flags[0], 0, sem="relaxed")
        tile.store(flags[1], 1, sem="release")
    else:
        while tile.load(flags[1], sem="acquire") == 0:
            pass
        tile.store(C[0, 0], tile.load(flags[0], sem="relaxed") + 1)


def test_a_poll_returns_nothing_older_than_what_its_thread_knows_of():
    assert silent(reset_and_read, FLAGS, B, **TWO)[1][0, 0] == 1


@tile.jit(num_warps=2)
def read_again(flags, C, HOW: tile.constexpr):
    """A value that has been seen is seen again: by the same thread, by another behind a barrier, and by another CTA."""
    i, p = tile.thread_id(), tile.program_id(0)
    if p == 0:
        if i == 0:
            for k in tile.static_range(1, 5):
                tile.store(flags[0], k, sem="relaxed")
    elif HOW == "thread":
        if i < 8:
            seen = 0
            for k in tile.static_range(6):
                v = tile.load(flags[0], sem="relaxed")
                tile.store(C[p, 8 * i + k], tile.cast(v < seen, tile.int32))
                seen = tile.maximum(v, seen)
    elif HOW == "barrier":
        if i == 40:
            while tile.load(flags[0], sem="relaxed") < 4:
                pass
        tile.sync()
        tile.store(C[p, i], 4 - tile.load(flags[i * 0], sem="relaxed"))
    elif HOW == "cas":
        if i == 0:
            v = tile.atomic_cas(flags[0], 77, 78)
            tile.store(C[p, 0], tile.cast(tile.load(flags[0], sem="relaxed") < v, tile.int32))
    elif p == 1:
        if i == 0:
            while tile.load(flags[0], sem="relaxed") < 4:
                pass
            tile.store(flags[1], 1, sem="release")
    elif i == 0:
        while tile.load(flags[1], sem="acquire") == 0:
            pass
        tile.store(C[p, 0], 4 - tile.load(flags[0], sem="relaxed"))


@pytest.mark.parametrize("how", ["thread", "barrier", "cas", "cta"])
def test_no_poll_returns_a_value_older_than_one_that_has_been_seen(how):
    for seed in range(24):
        what, (_, C) = kinds(read_again, FLAGS, B, grid=(4,), seed=seed, HOW=how)
        assert not what and not C.any(), (seed, what, C)


@tile.jit(num_warps=2)
def acquired_on_the_way(A, B, C, flags):
    """CTA 1 may see 1, which CTA 0 has released, or 2, by which CTA 0 has counted again without an order; its own atomic comes behind."""
    i = tile.thread_id()
    if tile.program_id(0) == 0:
        tile.store(B[0, i], tile.load(A[0, i]))
        tile.sync()
        if i == 0:
            tile.atomic_add(flags[0], 1, sem="release")
            tile.atomic_add(flags[0], 1)
    else:
        if i == 0:
            while tile.load(flags[0], sem="acquire") == 0:
                pass
            tile.atomic_add(flags[0], 5)
        tile.sync()
        tile.store(C[0, i], tile.load(B[0, 63 - i]))


def test_what_a_poll_has_acquired_stays_with_a_thread_that_goes_on():
    for seed in range(12):
        what, (_, _, C, _) = kinds(acquired_on_the_way, A, B, B, FLAGS, **TWO, seed=seed)
        assert not what and (C[0, :64] == A[0, 63::-1]).all(), (seed, what)


@tile.jit(num_warps=1)
def takes_a_ticket(flags, C):
    if tile.thread_id() == 0:
        mine = tile.atomic_add(flags[0], 1)
        while tile.load(flags[1], sem="relaxed") != mine:
            pass
        tile.threadfence()
        tile.store(C[0, 0], tile.load(C[0, 0]) + 1)
        tile.threadfence()
        tile.store(flags[1], tile.load(flags[1], sem="relaxed") + 1, sem="relaxed")


def test_a_lock_by_tickets_goes_from_hand_to_hand():
    for seed in range(12):
        what, (_, C) = kinds(takes_a_ticket, FLAGS, B, grid=(8,), seed=seed)
        assert not what and C[0, 0] == 8, (seed, what)


@tile.jit(num_warps=1)
def sleeps_or_wakes(flags, C, FENCE: tile.constexpr):
    """Each CTA says something, and then looks at what the other one has said: at least one of them sees it."""
    p = tile.program_id(0)
    if tile.thread_id() == 0:
        tile.store(flags[p], 1, sem="relaxed")
        if FENCE == "sc":
            tile.ptx.fence.sc.gpu()
        else:
            tile.ptx.membar.gl()
        tile.store(C[p, 0], tile.load(flags[1 - p], sem="relaxed"))


@pytest.mark.parametrize("fence", ["sc", "membar"])
def test_of_two_threads_with_sequentially_consistent_fences_one_sees_the_other_s_store(fence):
    for seed in range(12):
        what, (_, C) = kinds(sleeps_or_wakes, FLAGS, B, **TWO, seed=seed, FENCE=fence)
        assert not what and C[:2, 0].any(), (seed, what)


@tile.jit(num_warps=2)
def fences_often(A, B, C, flags):
    i = tile.thread_id()
    if tile.program_id(0) == 0:
        tile.store(B[0, i], tile.load(A[0, i]))
        tile.threadfence()
        tile.sync()
        if i == 0:
            for _ in range(40):
                tile.threadfence()
        if i == 32:
            tile.store(flags[0], 1, sem="relaxed")
    else:
        while tile.load(flags[0], sem="acquire") == 0:
            pass
        tile.store(C[0, i], tile.load(B[0, 63 - i]))


def test_later_fences_do_not_hide_one_that_others_have_met():
    silent(fences_often, A, B, B, FLAGS, **TWO)


@tile.jit(num_warps=1)
def polls_a_view(flags, floats, C):
    """The same bytes as integers and as floats."""
    if tile.thread_id() == 0:
        if tile.program_id(0) == 0:
            tile.store(flags[0], 5, sem="relaxed")
            tile.store(flags[0], 0, sem="relaxed")
        else:
            tile.store(C[0, 0], tile.bitcast(tile.load(floats[0], sem="relaxed"), tile.int32))


def test_an_older_value_has_the_bits_of_its_type():
    for seed in range(8):
        flags, C = FLAGS.copy(), B.copy()
        report = polls_a_view.simulate((2,), flags, flags.view(np.float32), C, seed=seed)
        assert not report.findings and C[0, 0] in (0, 5), (seed, C[0, 0])


@tile.jit(num_warps=1)
def tickets(flags, C):
    p = tile.program_id(0)
    tile.store(C[p, 0], tile.atomic_add(flags[0], 1))


def test_the_order_in_which_ctas_have_their_turns_depends_on_the_seed():
    orders = [tuple(kinds(tickets, FLAGS, B, grid=(8,), seed=seed)[1][1][:8, 0].tolist()) for seed in range(6)]
    assert orders[0] == tuple(range(8)) and all(sorted(o) == list(range(8)) for o in orders) and len(set(orders)) > 3


@tile.jit(num_warps=2)
def read_and_ignored(A, B, C, flags, USED: tile.constexpr):
    i = tile.thread_id()
    if tile.program_id(0) == 0:
        tile.store(B[0, i], tile.load(A[0, i]))
        tile.store(flags[0], 1, sem="release")
    else:
        if USED:
            while tile.load(flags[0], sem="acquire") == 0:
                pass
        else:
            tile.load(flags[0], sem="acquire")
        tile.store(C[0, i], tile.load(B[0, 63 - i]))


@pytest.mark.filterwarnings("ignore:.*never used")
def test_a_load_whose_result_nothing_reads_acquires_nothing():
    found(read_and_ignored, "race", A, B, B, FLAGS, **TWO, USED=False)
    silent(read_and_ignored, A, B, B, FLAGS, **TWO, USED=True)


# -- ordinary accesses beside atomics --------------------------------------------------------------------------------------------

@tile.jit(num_warps=4)
def counts(A, flags, C):
    i, p = tile.thread_id(), tile.program_id(0)
    tile.atomic_add(flags[tile.load(A[p, i])], 1)
    tile.store(C[p, i], tile.load(flags[i]))


@tile.jit(num_warps=1)
def polls_plainly(A, flags, C):
    if tile.program_id(0) == 0:
        tile.store(flags[0], 1, sem="release")
    else:
        while tile.load(flags[0]) == 0:
            pass


@tile.jit(num_warps=1)
def resets_among_counts(A, flags, C):
    with tile.elect():
        tile.atomic_add(flags[0], 1)
        if tile.program_id(0) == 2:
            tile.store(flags[0], 0)


@tile.jit(num_warps=4)
def read_by_the_last(A, flags, C, FENCE: tile.constexpr = False):
    """The last CTA to count reads the sums of all."""
    last, i = tile.alloc((1,), tile.int32), tile.thread_id()
    tile.atomic_add(flags[i], tile.load(A[tile.program_id(0), i]))
    if FENCE:
        tile.threadfence()
        tile.sync()
    with tile.elect():
        tile.store(last[0], tile.atomic_add(flags[200], 1))
        if FENCE:
            tile.threadfence()
    tile.sync()
    if tile.load(last[0]) == tile.num_programs(0) - 1:
        tile.store(C[0, i], tile.load(flags[i]))


@pytest.mark.parametrize("kernel", [counts, polls_plainly, resets_among_counts, read_by_the_last], ids=lambda k: k.name)
def test_an_ordinary_access_needs_order_with_the_atomics_of_other_ctas(kernel):
    found(kernel, "race", A[:, :128] % 128, FLAGS, B, **FOUR)


def test_sums_by_atomics_are_read_after_fences():
    left = silent(read_by_the_last, A, FLAGS, B, **FOUR, FENCE=True)
    np.testing.assert_array_equal(left[2][0, :128], A[:4, :128].sum(axis=0))


@tile.jit(num_warps=1)
def counts_within(flags, SCOPE: tile.constexpr, HOW: tile.constexpr):
    if HOW == "add":
        tile.atomic_add(flags[0], 1, scope=SCOPE)
    elif tile.program_id(0) == 0:
        tile.store(flags[0], 1, sem="release", scope=SCOPE)
    else:
        while tile.load(flags[0], sem="acquire", scope=SCOPE) == 0:
            pass


@pytest.mark.parametrize("how", ["add", "flag"])
def test_the_scope_of_an_atomic_includes_those_that_access_the_element(how):
    found(counts_within, "race", FLAGS, **TWO, SCOPE="cta", HOW=how)
    found(counts_within, "race", FLAGS, **TWO, SCOPE="cluster", HOW=how)
    silent(counts_within, FLAGS, **TWO, SCOPE="gpu", HOW=how)
    silent(counts_within, FLAGS, **TWO, SCOPE="cluster", HOW=how, cluster=2)
    found(counts_within, "race", FLAGS, **TWO, SCOPE="cta", HOW=how, cluster=2)


# -- overwriting what others have read ---------------------------------------------------------------------------------------------

@tile.jit(num_warps=1)
def in_place_with_halo(A, flags, ATOMIC: tile.constexpr):
    i = tile.program_id(0) * 32 + tile.arange(32)
    if ATOMIC:
        tile.atomic_add(flags[0], 1, sem=ATOMIC)  # of nothing else
    v = tile.load(A[0, i]) + tile.load(A[0, i + 1]) + tile.load(A[0, i + 2])
    tile.sync()
    tile.store(A[0, i + 1], v)


@tile.jit(num_warps=4)
def read_beside_the_release(A, C, flags, SYNC: tile.constexpr):
    i = tile.thread_id()
    if tile.program_id(0) == 0:
        tile.store(C[0, i], tile.load(A[0, i]))
        if SYNC:
            tile.sync()
        if i == 0:
            tile.store(flags[0], 1, sem="release")
    else:
        while tile.load(flags[0], sem="acquire") == 0:
            pass
        tile.store(A[0, i], 3)


def test_what_other_ctas_have_read_is_overwritten_in_order():
    for atomic in (None, "relaxed", "release"):
        found(in_place_with_halo, "race", A, FLAGS, **FOUR, ATOMIC=atomic)
    found(read_beside_the_release, "race", A, B, FLAGS, **TWO, SYNC=False)
    silent(read_beside_the_release, A, B, FLAGS, **TWO, SYNC=True)


def test_what_other_clusters_have_read_is_overwritten_in_order():
    found(read_beside_the_release, "race", A, B, FLAGS, grid=(4,), SYNC=False, cluster=2)


# -- threads of one CTA in kernels with ordered accesses ---------------------------------------------------------------------------

@tile.jit(num_warps=4)
def beside_a_flag(A, B, flags, COND: tile.constexpr, SYNC: tile.constexpr):
    i = tile.thread_id()
    tile.atomic_add(flags[i], 1, sem="acq_rel")
    tile.store(B[0, i], tile.load(A[0, i]))
    if COND:
        if i < 64:
            tile.fence_proxy_async()
    if SYNC:
        tile.sync()
    tile.store(B[1, i], tile.load(B[0, 127 - i]))


@tile.jit(num_warps=4)
def swapped_behind_a_flag(A, flags, SYNC: tile.constexpr):
    i = tile.thread_id()
    if i % 32 == 0:
        while tile.load(flags[0], sem="acquire") != 0:
            pass
    tile.sync()
    v = tile.load(A[0, i ^ 32])
    if SYNC:
        tile.sync()
    tile.store(A[0, i], v)


@tile.jit(num_warps=2)
def handed_over_by_a_flag(A, B, C, flags, HOW: tile.constexpr):
    """From warp 0 to warp 1 of one CTA."""
    i = tile.thread_id()
    if i < 32:
        tile.store(B[0, i], tile.load(A[0, i]))
        tile.ptx.bar.warp.sync(0xffffffff)
        if i == 0:
            tile.store(flags[0], 1, sem="release" if HOW != "relaxed" else "relaxed", scope="cta")
    else:
        while tile.load(flags[0], sem="acquire", scope="cta") == 0:
            pass
        tile.store(C[0, i], tile.load(B[0, 63 - i]))


@tile.jit(num_warps=2)
def counted_in_between(A, flags, SYNC: tile.constexpr):
    i = tile.thread_id()
    v = tile.load(A[0, i ^ 32])
    tile.atomic_add(flags[0], 1)  # by one thread, without a barrier
    if SYNC:
        tile.sync()
    tile.store(A[0, i], v)


def test_threads_of_a_cta_need_order_in_kernels_with_ordered_accesses_too():
    for cond in (False, True):
        found(beside_a_flag, "race", A, B, FLAGS, COND=cond, SYNC=False)
        silent(beside_a_flag, A, B, FLAGS, COND=cond, SYNC=True)
    found(swapped_behind_a_flag, "race", A, FLAGS, SYNC=False)
    silent(swapped_behind_a_flag, A, FLAGS, SYNC=True)
    found(handed_over_by_a_flag, "race", A, B, B, FLAGS, HOW="relaxed")
    silent(handed_over_by_a_flag, A, B, B, FLAGS, HOW="release")
    found(counted_in_between, "race", A, FLAGS, SYNC=False)
    silent(counted_in_between, A, FLAGS, SYNC=True)


@tile.jit(num_warps=4)
def stored_twice(A, WHO: tile.constexpr):
    i = tile.thread_id()
    if WHO == "all":
        tile.store(A[0, i // 2], i)
    elif WHO == "mask":
        tile.store(A[0, i // 2], i, mask=i < 100)
    elif i < 100:
        tile.store(A[0, i // 2], i)


@pytest.mark.parametrize("who", ["all", "mask", "branch"])
def test_two_threads_that_store_different_values_to_an_element_race(who):
    found(stored_twice, "race", A, WHO=who)


# -- mbarriers and the cluster's barrier in branches -------------------------------------------------------------------------------

@tile.jit(num_warps=1)
def announced_by_two(A, B, BYTES: tile.constexpr):
    s, bar, i = tile.alloc((32,), A.dtype), tile.mbarrier(count=2), tile.thread_id()
    if i < 2:
        bar.arrive_expect_tx(BYTES)
    tile.sync()
    with tile.elect():
        tile.copy_async(s, A[0, 0:32], mbar=bar)
    bar.wait(phase=0)
    tile.store(B[0, i], tile.load(s[i]))


def test_each_active_thread_announces_its_bytes():
    found(announced_by_two, "transaction-count", A, B, BYTES=128)
    np.testing.assert_array_equal(silent(announced_by_two, A, B, BYTES=64)[1][0, :32], A[0, :32])


@tile.jit(num_warps=2)
def each_its_parity(A, B, PARITY: tile.constexpr):
    s, bar, i = tile.alloc((64,), A.dtype), tile.mbarrier(), tile.thread_id()
    with tile.elect():
        bar.arrive_expect_tx(256)
        tile.copy_async(s, A[0, 0:64], mbar=bar)
    while not tile.ptx.mbarrier.try_wait.parity.shared_cta.b64(bar, tile.where(i == 50, PARITY, 0)):
        pass
    tile.store(B[0, i], tile.load(s[i]))
    tile.sync()
    bar.wait(phase=0)


def test_each_thread_waits_for_the_parity_that_it_asks_for():
    for seed in SEEDS:
        assert kinds(each_its_parity, A, B, PARITY=1, seed=seed)[0] <= {"barrier-phase", "deadlock"} != set()
    silent(each_its_parity, A, B, PARITY=0)


@tile.jit(num_warps=2)
def asked_once(A, B, WAIT: tile.constexpr):
    s, bar, i = tile.alloc((32,), A.dtype), tile.mbarrier(count=32), tile.thread_id()
    if i < 32:
        tile.store(s[i], i)
        tile.ptx.mbarrier.arrive.shared_cta.b64(bar)
    if i >= 32:
        if WAIT:
            bar.wait(phase=0)
        else:
            tile.ptx.mbarrier.try_wait.parity.shared_cta.b64(bar, 0)
        tile.store(B[0, i], tile.load(s[i - 32]))


def test_a_test_whose_answer_nothing_reads_waits_for_nothing():
    found(asked_once, "race", A, B, WAIT=False)
    silent(asked_once, A, B, WAIT=True)


@tile.jit(num_warps=2, cluster=2)
def met_in_branches(A, B, WHERE: tile.constexpr, ALL: tile.constexpr):
    s, i, r = tile.alloc((64,), A.dtype), tile.thread_id(), tile.cta_rank()
    tile.store(s[i], tile.load(A[r, i]))
    if WHERE == "arrive":
        if i < 32:
            tile.ptx.barrier.cluster.arrive.release()
        elif ALL:
            tile.ptx.barrier.cluster.arrive.release()
        else:
            tile.ptx.barrier.cluster.arrive.relaxed()
        tile.ptx.barrier.cluster.wait.acquire()
    else:
        tile.ptx.barrier.cluster.arrive.release()
        if i < 32:
            tile.ptx.barrier.cluster.wait.acquire()
        else:
            tile.ptx.barrier.cluster.wait.acquire()
    tile.store(B[r, i], tile.bitcast(tile.ptx.ld.shared_cluster.b32(s.peer(1 - r)[i]), tile.int32))
    tile.cluster_sync()


@pytest.mark.parametrize("where", ["arrive", "wait"])
def test_warps_may_reach_the_cluster_s_barrier_in_branches(where):
    np.testing.assert_array_equal(silent(met_in_branches, A, B, **TWO, WHERE=where, ALL=True)[1][:2, :64], A[1::-1, :64])


def test_a_relaxed_arrival_of_some_warps_releases_nothing_of_theirs():
    found(met_in_branches, "race", A, B, **TWO, WHERE="arrive", ALL=False)


@tile.jit(num_warps=1, cluster=2)
def initialised(A, FENCE: tile.constexpr):
    m, i, r = tile.alloc((1,), tile.uint64), tile.thread_id(), tile.cta_rank()
    if i == 0:
        tile.ptx.mbarrier.init.shared_cta.b64(m[0], 32)
        if FENCE:
            tile.fence_mbarrier_init()
    tile.ptx.barrier.cluster.arrive.relaxed()
    tile.ptx.barrier.cluster.wait.acquire()
    tile.ptx.mbarrier.arrive.release.cluster.shared_cluster.b64(m.peer(1 - r)[0])
    while not tile.ptx.mbarrier.try_wait.parity.acquire.cluster.shared_cta.b64(m[0], 0):
        pass
    tile.cluster_sync()


def test_a_fence_of_initialisations_publishes_mbarriers_by_a_relaxed_arrival():
    found(initialised, "barrier-lifecycle", A, **TWO, FENCE=False)
    silent(initialised, A, **TWO, FENCE=True)


@tile.jit(num_warps=2)
def armed(A, B, FENCE: tile.constexpr):
    m, s, i = tile.alloc((2,), tile.uint64), tile.alloc((64,), A.dtype), tile.thread_id()
    with tile.thread(0):
        tile.ptx.mbarrier.init.shared_cta.b64(m[0], 1)
        if FENCE == "init":
            tile.fence_mbarrier_init()
        elif FENCE == "proxy":
            tile.fence_proxy_async()
    tile.sync()
    with tile.thread(0):
        tile.ptx.mbarrier.arrive.expect_tx.shared_cta.b64(m[0], 256)
        tile.ptx.cp_async.bulk.shared_cta.global_.mbarrier_complete_tx_bytes(s, A[0, 0], 256, m[0])
    while not tile.ptx.mbarrier.try_wait.parity.shared_cta.b64(m[0], 0):
        pass
    tile.store(B[0, i], tile.load(s[i]))


def test_a_copy_completes_on_an_mbarrier_whose_initialisation_a_fence_made_visible():
    found(armed, "missing-proxy-fence", A, B, FENCE="")
    for fence in ("init", "proxy"):
        np.testing.assert_array_equal(silent(armed, A, B, FENCE=fence)[1][0, :64], A[0, :64])


# -- on a GPU ---------------------------------------------------------------------------------------------------------------------

TWINS = [
    (passed_on, (A, B, B, FLAGS), dict(THREE, SYNC=True)),
    (fenced_by, (A, B, B, FLAGS), dict(TWO, READER=True)),
    (loaded_behind, (A, B, B, FLAGS), dict(TWO, AFTER=True)),
    (released_in_parts, (B, B, FLAGS), dict(TWO, BOTH=True)),
    *((flags_of_threads, (A, B, B, FLAGS), dict(grid=(5,), EACH=each, SHIFT=0)) for each in (False, True)),
    (one_of_sixteen, (A, B, B, FLAGS), dict(TWO, SYNC=True)),
    *((polled_by_warps, (A, B, B, FLAGS), dict(TWO, HOW=how, ROUNDS=12)) for how in ("acquire", "relaxed")),
    (changed_on_the_way, (A, B, B, FLAGS), dict(THREE, MODIFY=True)),
    *((fenced_for_the_cluster, (A, B, B, FLAGS), dict(TWO, SCOPE=scope)) for scope in ("cluster", "gpu")),
    *((met_by_the_grid, (A, B, B, FLAGS), dict(grid=(8,), MISSING=0, HOW=how)) for how in ("load", "fence")),
    (reset_and_read, (FLAGS, B), TWO),
    *((read_again, (FLAGS, B), dict(FOUR, HOW=how)) for how in ("thread", "barrier", "cas", "cta")),
    (takes_a_ticket, (FLAGS, B), dict(grid=(8,))),
    (fences_often, (A, B, B, FLAGS), TWO),
    (acquired_on_the_way, (A, B, B, FLAGS), TWO),
    (read_beside_the_release, (A, B, FLAGS), dict(TWO, SYNC=True)),
    *((beside_a_flag, (A, B, FLAGS), dict(COND=cond, SYNC=True)) for cond in (False, True)),
    (swapped_behind_a_flag, (A, FLAGS), dict(SYNC=True)),
    (handed_over_by_a_flag, (A, B, B, FLAGS), dict(HOW="release")),
    (counted_in_between, (A, FLAGS), dict(SYNC=True)),
    (announced_by_two, (A, B), dict(BYTES=64)),
    (each_its_parity, (A, B), dict(PARITY=0)),
    (asked_once, (A, B), dict(WAIT=True)),
    *((met_in_branches, (A, B), dict(TWO, WHERE=where, ALL=True)) for where in ("arrive", "wait")),
    (initialised, (A,), dict(TWO, FENCE=True)),
    *((armed, (A, B), dict(FENCE=fence)) for fence in ("init", "proxy")),
]
MISREAD = ("asked_once", "armed")  # racecheck does not follow what mbarriers hand over


@pytest.mark.parametrize("kernel", [pytest.param(name, marks=[pytest.mark.misread_by_racecheck] if name in MISREAD else [])
                                    for name in dict.fromkeys(kernel.name for kernel, _, _ in TWINS)])
@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_the_right_kernels_give_on_the_gpu_what_the_simulator_says(kernel):
    for right, arguments, constants in (twin for twin in TWINS if twin[0].name == kernel):
        same_on_the_gpu(right, *arguments, **constants)
