"""Global memory that asynchronous copies write: read, overwritten or published before they are over."""

import numpy as np
import pytest
import tilejit as tile
from faulty import marks
from global_copies import FEW, FLAG, LOADS, SEEDS, ZEROS, X, check, line_of, stores

# -- one CTA: the destination of a copy before it is over -----------------------------------------------------------------------------

@tile.jit
def read_back(x, y, out, HOW: tile.constexpr, REDUCE: tile.constexpr, READ: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    tile.store(s, tile.load(x[0:8, 0:128]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(y[0:8, 0:128], s, variant=HOW, reduce=REDUCE)
        tile.bulk_commit()
        tile.bulk_wait(0, read=READ)
    tile.sync()
    tile.store(out[0:8, 0:128], tile.load(y[0:8, 0:128]))  # finds: missing-wait


@stores
def test_the_read_side_wait_does_not_complete_what_a_copy_writes(how, reduce):
    words = (f"thread 0 reads y[0, 0] before the {'tensor' if how == 'tma' else 'bulk'} ", f"at line {line_of(read_back, 'HOW, red')}", "read=True")
    check(read_back, (1,), X, ZEROS, ZEROS, faulty={"READ": True}, fine={"READ": False}, result=2, expected=X, seeds=SEEDS, words=words,
          HOW=how, REDUCE=reduce)


@tile.jit
def overwritten(x, y, HOW: tile.constexpr, REDUCE: tile.constexpr, READ: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    tile.store(s, tile.load(x[0:8, 0:128]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(y[0:8, 0:128], s, variant=HOW, reduce=REDUCE)
        tile.bulk_commit()
        tile.bulk_wait(0, read=READ)
    tile.sync()
    tile.store(y[0:4, 0:128], tile.load(x[4:8, 0:128]))  # finds: missing-wait


@stores
def test_a_destination_is_not_overwritten_before_the_copy_is_over(how, reduce):
    check(overwritten, (1,), X, ZEROS, faulty={"READ": True}, fine={"READ": False}, result=1, expected=np.concatenate([X[4:], X[4:]]),
          HOW=how, REDUCE=reduce)


@tile.jit
def counted(x, y, HOW: tile.constexpr, REDUCE: tile.constexpr, READ: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    tile.store(s, tile.load(x[0:8, 0:128]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(y[0:8, 0:128], s, variant=HOW, reduce=REDUCE)
        tile.bulk_commit()
        tile.bulk_wait(0, read=READ)
    tile.sync()
    tile.atomic_add(y[0:8, 0:128], tile.full((8, 128), 1, x.dtype))  # finds: missing-wait


@pytest.mark.parametrize("how", ["tma", "bulk"])
def test_atomics_need_order_after_stores_and_none_after_reductions(how):
    check(counted, (1,), X, ZEROS, faulty={"READ": True}, fine={"READ": False}, result=1, expected=X + 1, HOW=how, REDUCE=None)
    for seed in FEW:
        y = ZEROS.copy()
        assert not counted.simulate((1,), X, y, HOW=how, REDUCE="add", READ=True, seed=seed).findings
        assert (y == X + 1).all()


@tile.jit
def stored_twice(x, y, HOW: tile.constexpr, FIRST: tile.constexpr, SECOND: tile.constexpr, READ: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    t = tile.alloc((8, 128), x.dtype)
    v = tile.load(x[0:8, 0:128])
    tile.store(s, v)
    tile.store(t, v + 1)
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(y[0:8, 0:128], s, variant=HOW, reduce=FIRST)
        tile.bulk_commit()
        tile.bulk_wait(0, read=READ)
        tile.copy_async(y[0:8, 0:128], t, variant=HOW, reduce=SECOND)  # finds: missing-wait
        tile.bulk_commit()
        tile.bulk_wait(0)


@pytest.mark.parametrize("how", ["tma", "bulk"])
@pytest.mark.parametrize("first, second, expected", [(None, None, X + 1), (None, "add", 2 * X + 1), ("add", None, X + 1)])
def test_two_copies_of_a_thread_to_one_place_have_no_order_unless_the_first_is_over(how, first, second, expected):
    check(stored_twice, (1,), X, ZEROS, faulty={"READ": True}, fine={"READ": False}, result=1, expected=expected, HOW=how, FIRST=first, SECOND=second)


@pytest.mark.parametrize("how", ["tma", "bulk"])
def test_two_reductions_to_one_place_need_no_order(how):
    for seed in SEEDS:
        y = ZEROS.copy()
        assert not stored_twice.simulate((1,), X, y, HOW=how, FIRST="add", SECOND="add", READ=True, seed=seed).findings
        assert (y == 2 * X + 1).all()


@tile.jit(num_warps=2)
def stored_by_two_warps(x, y, HOW: tile.constexpr, SPLIT: tile.constexpr):
    s = tile.alloc((2, 8, 128), x.dtype)
    for w in tile.static_range(2):
        tile.store(s[w], tile.load(x[0:8, 0:128]))
    tile.fence_proxy_async()
    tile.sync()
    for w in tile.static_range(2):
        with tile.warp(w):
            with tile.elect():
                tile.copy_async(y[8 * w * SPLIT:8 * w * SPLIT + 8, 0:128], s[w], variant=HOW)  # finds: race
                tile.bulk_commit()
                tile.bulk_wait(0)


@pytest.mark.parametrize("how", ["tma", "bulk"])
def test_stores_of_two_warps_to_one_place_race(how):
    both = np.concatenate([X, X])
    check(stored_by_two_warps, (1,), X, np.zeros_like(both), faulty={"SPLIT": 0}, fine={"SPLIT": 1}, result=1, expected=both, seeds=SEEDS, HOW=how)


@tile.jit
def stored_by_every_cta(x, y, HOW: tile.constexpr, SPLIT: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    i = min(tile.program_id(0), 1) * SPLIT
    tile.store(s, tile.load(x[0:8, 0:128]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        for _ in range(2):
            tile.copy_async(y[8 * i:8 * i + 8, 0:128], s, variant=HOW)  # finds: race
            tile.bulk_commit()
            tile.bulk_wait(0)


@pytest.mark.parametrize("how", ["tma", "bulk"])
def test_stores_of_two_ctas_to_one_place_race(how):
    both = np.concatenate([X, X])
    check(stored_by_every_cta, (2,), X, np.zeros_like(both), faulty={"SPLIT": 0}, fine={"SPLIT": 1}, result=1, expected=both, HOW=how)


@tile.jit(num_warps=2)
def unordered_read(x, y, out, HOW: tile.constexpr, REDUCE: tile.constexpr, MEET: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    done = tile.named_barrier(64)
    tile.store(s, tile.load(x[0:8, 0:128]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.warp(0):
        with tile.elect():
            tile.copy_async(y[0:8, 0:128], s, variant=HOW, reduce=REDUCE)
            tile.bulk_commit()
            tile.bulk_wait(0)
        if MEET:
            done.sync()
    with tile.warp(1):
        if MEET:
            done.sync()
        tile.store(out[0:8, 0:128], tile.load(y[0:8, 0:128]))  # finds: race


@stores
def test_a_wait_in_another_warp_orders_nothing_without_a_barrier(how, reduce):
    check(unordered_read, (1,), X, ZEROS, ZEROS, faulty={"MEET": False}, fine={"MEET": True}, result=2, expected=X, seeds=SEEDS,
          HOW=how, REDUCE=reduce)


@tile.jit
def tokens(x, y, out, READ: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    tile.store(s, tile.load(x[0:8, 0:128]))
    done = tile.copy_async(y[0:8, 0:128], s, variant="tma")
    done.wait(read=READ)
    tile.store(out[0:8, 0:128], tile.load(y[0:8, 0:128]))  # finds: missing-wait


def test_the_token_of_a_store_waits_for_what_it_writes_unless_told_to_wait_for_its_source():
    check(tokens, (1,), X, ZEROS, ZEROS, faulty={"READ": True}, fine={"READ": False}, result=2, expected=X, seeds=SEEDS)


# -- a copy that loads what a copy has stored -------------------------------------------------------------------------------------------

@tile.jit
def loaded_back(x, y, out, HOW: tile.constexpr, REDUCE: tile.constexpr, LOAD: tile.constexpr, READ: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    t = tile.alloc((8, 128), x.dtype)
    bar = tile.mbarrier()
    tile.store(s, tile.load(x[0:8, 0:128]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(y[0:8, 0:128], s, variant=HOW, reduce=REDUCE)
        tile.bulk_commit()
        tile.bulk_wait(0, read=READ)
        bar.arrive_expect_tx(t.nbytes)
        tile.copy_async(t, y[0:8, 0:128], mbar=bar, variant=LOAD)  # finds: missing-wait
    bar.wait(phase=0)
    tile.store(out[0:8, 0:128], tile.load(t))


@stores
@pytest.mark.parametrize("load", LOADS)
def test_a_copy_may_load_what_a_copy_of_the_same_cta_stored_once_that_is_over(how, reduce, load):
    """No proxy fence is needed: both are in the async proxy."""
    check(loaded_back, (1,), X, ZEROS, ZEROS, faulty={"READ": True}, fine={"READ": False}, result=2, expected=X, HOW=how, REDUCE=reduce, LOAD=load)


# -- several CTAs ---------------------------------------------------------------------------------------------------------------------------

@tile.jit
def published(x, y, out, flag, HOW: tile.constexpr, REDUCE: tile.constexpr, BY: tile.constexpr, READ: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    if tile.program_id(0) == 0:
        tile.store(s, tile.load(x[0:8, 0:128]))
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(y[0:8, 0:128], s, variant=HOW, reduce=REDUCE)
            tile.bulk_commit()
            tile.bulk_wait(0, read=READ)
            if BY == "store":
                tile.store(flag[0], 1, sem="release")
            elif BY == "atomic":
                tile.atomic_add(flag[0], 1, sem="release")
            elif BY == "fence":
                tile.threadfence()
                tile.store(flag[0], 1, sem="relaxed")
            tile.bulk_wait(0)
    else:
        while tile.load(flag[0], sem="acquire") == 0:
            pass
        tile.store(out[0:8, 0:128], tile.load(y[0:8, 0:128]))  # finds: missing-wait


@stores
@pytest.mark.parametrize("by", ["store", "atomic", "fence"])
def test_a_copy_is_over_before_its_destination_is_published(how, reduce, by):
    """A later wait, after the release, helps nobody."""
    check(published, (2,), X, ZEROS, ZEROS, FLAG, faulty={"READ": True}, fine={"READ": False}, result=2, expected=X, HOW=how, REDUCE=reduce, BY=by,
          words=("of CTA 1 reads y[0, 0] before", "in CTA 0"))


def test_a_destination_published_too_early_is_found_under_every_seed():
    check(published, (2,), X, ZEROS, ZEROS, FLAG, faulty={"READ": True}, fine={"READ": False}, result=2, expected=X, HOW="tma",
          REDUCE=None, BY="store", seeds=SEEDS)


@tile.jit
def published_after_a_barrier(x, y, out, flag, READ: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    if tile.program_id(0) == 0:
        tile.store(s, tile.load(x[0:8, 0:128]))
        tile.fence_proxy_async()
        tile.sync()
        with tile.warp(0):
            with tile.elect():
                tile.copy_async(y[0:8, 0:128], s)
                tile.bulk_commit()
                tile.bulk_wait(0, read=READ)
        tile.sync()
        with tile.thread(40):
            tile.store(flag[0], 1, sem="release")
    else:
        while tile.load(flag[0], sem="acquire") == 0:
            pass
        tile.store(out[0:8, 0:128], tile.load(y[0:8, 0:128]))  # finds: missing-wait


def test_another_thread_may_publish_a_copy_after_a_barrier_with_the_one_that_waited():
    check(published_after_a_barrier, (2,), X, ZEROS, ZEROS, FLAG, faulty={"READ": True}, fine={"READ": False}, result=2, expected=X, seeds=SEEDS)


@tile.jit(num_warps=2)
def published_by_another_warp(x, y, out, flag):
    s = tile.alloc((8, 128), x.dtype)
    if tile.program_id(0) == 0:
        tile.store(s, tile.load(x[0:8, 0:128]))
        tile.fence_proxy_async()
        tile.sync()
        with tile.warp(0):
            with tile.elect():
                tile.copy_async(y[0:8, 0:128], s)
                tile.bulk_commit()
                tile.bulk_wait(0)
        with tile.warp(1):
            with tile.elect():
                tile.store(flag[0], 1, sem="release")
    else:
        while tile.load(flag[0], sem="acquire") == 0:
            pass
        tile.store(out[0:8, 0:128], tile.load(y[0:8, 0:128]))  # finds: race


def test_a_warp_that_did_not_wait_for_a_copy_does_not_publish_it():
    for seed in SEEDS:
        report = published_by_another_warp.simulate((2,), X, ZEROS.copy(), ZEROS.copy(), FLAG.copy(), seed=seed)
        assert {(f.kind, f.line) for f in report.findings} == marks(published_by_another_warp), f"seed {seed}: {report}"


@tile.jit
def split_sums(x, y, out, flag, HOW: tile.constexpr, READ: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    last = tile.alloc((1,), tile.int32)
    tile.store(s, tile.load(x[0:8, 0:128]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(y[0:8, 0:128], s, variant=HOW, reduce="add")
        tile.bulk_commit()
        tile.bulk_wait(0, read=READ)
        tile.store(last[0], tile.atomic_add(flag[0], 1, sem="acq_rel"))
    tile.sync()
    if tile.load(last[0]) == tile.num_programs(0) - 1:
        tile.store(out[0:8, 0:128], tile.load(y[0:8, 0:128]))  # finds: missing-wait


@pytest.mark.parametrize("how", ["tma", "bulk"])
def test_the_last_of_several_ctas_reads_their_sums_once_all_reductions_are_over(how):
    check(split_sums, (4,), X, ZEROS, ZEROS, FLAG, faulty={"READ": True}, fine={"READ": False}, result=2, expected=4 * X, seeds=SEEDS, HOW=how)


# -- other copies -----------------------------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=1)
def scattered(x, y, out, READ: tile.constexpr):
    s = tile.alloc((4, 64), x.dtype)
    tile.store(s, tile.load(x[0:4, 0:64]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(y.take((5, 1, 2, 7))[:, 0:64], s, variant="tma")
        tile.bulk_commit()
        tile.bulk_wait(0, read=READ)
    tile.sync()
    tile.store(out[0:3, 0:64], tile.load(y[2:5, 0:64]))  # finds: missing-wait


def test_rows_that_are_scattered_are_read_once_that_is_over():
    expected = np.zeros((3, 128), np.float32)
    expected[0, :64] = X[2, :64]
    check(scattered, (1,), X, ZEROS, np.zeros((3, 128), np.float32), faulty={"READ": True}, fine={"READ": False}, result=2, expected=expected,
          target="sm_100a", words=("thread 0 reads y[2, 0]",))


@tile.jit(num_warps=1)
def gathered(x, out, EARLY: tile.constexpr, ROW: tile.constexpr):
    s = tile.alloc((4, 64), x.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, x.take((5, 1, 2, 7))[:, 0:64], mbar=bar, variant="tma")
    if EARLY:
        tile.sync()
        tile.store(x[ROW, 0:64], tile.zeros((64,), x.dtype))  # finds: missing-wait
    bar.wait(phase=0)
    tile.store(out[0:4, 0:64], tile.load(s))


def test_rows_that_are_gathered_are_not_overwritten_before_the_wait_and_others_may_be():
    expected = np.zeros((4, 128), np.float32)
    expected[:, :64] = X[[5, 1, 2, 7], :64]
    args = X, np.zeros((4, 128), np.float32)
    check(gathered, (1,), *args, faulty={"EARLY": True, "ROW": 7}, fine={"EARLY": True, "ROW": 6}, result=1, expected=expected, target="sm_100a")


@tile.jit(num_warps=1)
def patches(x, y, out, READ: tile.constexpr):
    s = tile.alloc((32, 16), x.dtype)
    tile.store(s, tile.load(x[0:32, 0:16]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(tile.im2col(y, (1, 1))[0:32, 0, 0, 0:16], s, variant="tma")
        tile.bulk_commit()
        tile.bulk_wait(0, read=READ)
    tile.sync()
    tile.store(out[0:4, 0:8, 0:16], tile.load(y[0, 0:4, 0:8, 0:16]))  # finds: missing-wait


def test_pixels_that_are_stored_are_read_once_that_is_over():
    x, y = np.arange(32 * 16, dtype=np.float32).reshape(32, 16), np.zeros((1, 4, 8, 16), np.float32)
    check(patches, (1,), x, y, np.zeros((4, 8, 16), np.float32), faulty={"READ": True}, fine={"READ": False}, result=2, expected=x.reshape(4, 8, 16))


@tile.jit(num_warps=1)
def by_a_map_of_the_kernel(x, y, slots, out, READ: tile.constexpr):
    s = tile.alloc((8, 32), x.dtype)
    m = tile.tensor_map(y[0:8, 0:32], slot=slots[0, 0:128])
    tile.store(s, tile.load(x[0:8, 0:32]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        m.seed()
        m.rebind(y[0, 0], shape=(8, 32), strides=(64, 1))
        m.fence_release("cta")
        m.fence_acquire("cta")
        tile.copy_async(m[0:8, 0:32], s)
        tile.bulk_commit()
        tile.bulk_wait(0, read=READ)
    tile.sync()
    tile.store(out[0:8, 0:32], tile.load(y[0:8, 0:32]))  # finds: missing-wait


def test_a_store_by_a_map_that_the_kernel_makes_is_over_before_its_destination_is_read():
    room = np.zeros(256, np.uint8)
    slots = room[-room.ctypes.data % 128:][:128].reshape(1, 128)
    y = np.zeros((8, 64), np.float32)
    for read in (True, False):
        for seed in FEW:
            out = np.zeros((8, 32), np.float32)
            report = by_a_map_of_the_kernel.simulate((1,), X, y.copy(), slots, out, READ=read, seed=seed)
            assert {(f.kind, f.line) for f in report.findings} == (marks(by_a_map_of_the_kernel) if read else set()), str(report)


# -- what is right ----------------------------------------------------------------------------------------------------------------------------

@tile.jit
def stored_through_two_buffers(x, y, N: tile.constexpr):
    s = tile.alloc((2, 8, 128), x.dtype)
    for i in range(N):
        with tile.elect():
            tile.bulk_wait(1, read=True)
        tile.sync()
        tile.store(s[i % 2], tile.load(x[8 * i:8 * i + 8, 0:128]))
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(y[8 * i:8 * i + 8, 0:128], s[i % 2])
            tile.bulk_commit()
    with tile.elect():
        tile.bulk_wait(0, read=True)


@pytest.mark.parametrize("rows", [1, 7, 8, 64, 61])
def test_stores_to_different_places_through_two_buffers_are_right(rows):
    """The kernel's end completes what they write."""
    x = np.random.default_rng(0).random((rows, 128), np.float32)
    for seed in FEW:
        y = np.zeros_like(x)
        assert not stored_through_two_buffers.simulate((1,), x, y, seed=seed, N=-(-rows // 8)).findings
        assert (y == x).all()


@tile.jit
def read_beside(x, y, out):
    s = tile.alloc((8, 64), x.dtype)
    tile.store(s, tile.load(x[0:8, 0:64]))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        tile.copy_async(y[0:8, 0:64], s)
        tile.bulk_commit()
        tile.bulk_wait(0, read=True)
    tile.sync()
    tile.store(out[0:8, 0:64], tile.load(y[0:8, 64:128]))


def test_what_lies_beside_a_copy_s_destination_is_free():
    for seed in FEW:
        out = ZEROS.copy()
        assert not read_beside.simulate((1,), X, X.copy(), out, seed=seed).findings
        assert (out[:, :64] == X[:, 64:]).all()
