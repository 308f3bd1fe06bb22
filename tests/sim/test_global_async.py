"""Global memory that asynchronous copies access: read, overwritten or published before they are over, and proxy fences."""

import numpy as np
import pytest
import tilejit as tile
from faulty import marks

from tests.chosen_cases import all_cases, examples

SEEDS = range(examples(40))
FEW = range(6 if all_cases() else 4)

X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)
ZEROS = np.zeros_like(X)
FLAG = np.zeros(1, np.int32)

# Copies from shared to global memory: (variant, reduce).
STORES = [("tma", None), ("bulk", None), ("tma", "add"), ("bulk", "add")]
stores = pytest.mark.parametrize("how, reduce", STORES, ids=[f"{v} {r or 'store'}" for v, r in STORES])
LOADS = ["tma", "bulk"]


def check(kernel, grid, *args, faulty, fine, result, expected, seeds=FEW, words=(), **meta):
    """With the options `faulty`, the findings are those marked in the kernel's source, and say `words`; with `fine`, there are none, and
    argument number `result` holds `expected` afterwards."""
    for seed in seeds:
        arrays = [a.copy() for a in args]
        report = kernel.simulate(grid, *arrays, seed=seed, **faulty, **meta)
        assert {(f.kind, f.line) for f in report.findings} == marks(kernel), f"seed {seed}: {report}"
        for word in words:
            assert word in report.findings[0].message
        arrays = [a.copy() for a in args]
        report = kernel.simulate(grid, *arrays, seed=seed, **fine, **meta)
        assert not report.findings, f"seed {seed}: {report}"
        np.testing.assert_array_equal(arrays[result], expected, err_msg=f"seed {seed}")


def line_of(kernel, text: str) -> int:
    """The line of a kernel's source that contains a text."""
    return next(n for n, line in enumerate(kernel.source.lines, kernel.source.first_line) if text in line)


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


# -- proxy fences ---------------------------------------------------------------------------------------------------------------------------

@tile.jit
def stored_then_loaded(x, y, out, LOAD: tile.constexpr, BEFORE: tile.constexpr, AFTER: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    bar = tile.mbarrier()
    tile.store(y[0:8, 0:128], tile.load(x[0:8, 0:128]))
    if BEFORE == "ptx":
        tile.ptx.fence.proxy.async_.global_()
    elif BEFORE == "ptx all":
        tile.ptx.fence.proxy.async_()
    elif BEFORE is not None:
        tile.fence_proxy_async(space=BEFORE)
    tile.sync()
    with tile.elect():
        if AFTER is not None:
            tile.fence_proxy_async(space=AFTER)
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, y[0:8, 0:128], mbar=bar, variant=LOAD)  # finds: missing-proxy-fence
    bar.wait(phase=0)
    tile.store(out[0:8, 0:128], tile.load(s))


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("before, after", [("global", None), ("all", None), ("ptx", None), ("ptx all", None), (None, "global"), ("shared", "all")])
def test_a_copy_reads_what_threads_of_its_cta_stored_after_a_proxy_fence_of_global_memory(load, before, after):
    """Before the barrier in the threads that stored, or after it. A fence of shared memory does not do."""
    words = ('through the async proxy; thread 0 at line', 'fence_proxy_async(space="global") between the two')
    check(stored_then_loaded, (1,), X, ZEROS, ZEROS, faulty={"BEFORE": "shared", "AFTER": None}, fine={"BEFORE": before, "AFTER": after}, result=2,
          expected=X, LOAD=load, words=words)


@tile.jit
def stored_then_overwritten(x, y, HOW: tile.constexpr, REDUCE: tile.constexpr, SPACE: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    tile.store(s, tile.load(x[0:8, 0:128]))
    tile.store(y[0:8, 0:128], tile.full((8, 128), 1, x.dtype))
    tile.fence_proxy_async(space=SPACE)
    tile.sync()
    with tile.elect():
        tile.copy_async(y[0:8, 0:128], s, variant=HOW, reduce=REDUCE)  # finds: missing-proxy-fence
        tile.bulk_commit()
        tile.bulk_wait(0)


@stores
def test_a_copy_overwrites_what_threads_stored_after_a_proxy_fence_of_global_memory(how, reduce):
    check(stored_then_overwritten, (1,), X, ZEROS, faulty={"SPACE": "shared"}, fine={"SPACE": "all"}, result=1, expected=X + 1 if reduce else X,
          HOW=how, REDUCE=reduce)


@tile.jit
def added_then_copied(x, y, out, HOW: tile.constexpr, COPY: tile.constexpr, SPACE: tile.constexpr, AFTER: tile.constexpr):
    s, i = tile.alloc((8, 128), x.dtype), tile.thread_id()
    bar = tile.mbarrier()
    tile.store(s, tile.load(x[0:8, 0:128]))
    if HOW == "a tile":
        tile.atomic_add(y[0:8, 0:128], tile.load(x[0:8, 0:128]), sem="relaxed")
    elif HOW == "each thread":
        for k in range(8):
            tile.atomic_add(y[k, i], tile.load(x[k, i]), sem="acq_rel", scope="cta")
    elif HOW == "ptx":
        for k in range(8):
            tile.ptx.red.global_.add.f32(y[k, i], tile.load(x[k, i]))
    elif HOW == "an ordered store":
        for k in range(8):
            tile.store(y[k, i], tile.load(x[k, i]), sem="relaxed")
    tile.fence_proxy_async(space=SPACE)
    tile.sync()
    with tile.elect():
        if AFTER:
            tile.fence_proxy_async(space="global")
        if COPY == "load":
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, y[0:8, 0:128], mbar=bar)  # finds: missing-proxy-fence
        else:
            tile.copy_async(y[0:8, 0:128], s, reduce=COPY)  # finds: missing-proxy-fence
            tile.bulk_commit()
            tile.bulk_wait(0)
    if COPY == "load":
        bar.wait(phase=0)
        tile.store(out[0:8, 0:128], tile.load(s))


@pytest.mark.parametrize("how", ["a tile", "each thread", "ptx", "an ordered store"])
@pytest.mark.parametrize("copy", ["load", None, "add"])
def test_a_copy_of_what_atomics_changed_needs_a_proxy_fence_of_global_memory(how, copy):
    """As after stores: before the barrier in the threads that executed the atomics, or after it."""
    meta = {"HOW": how, "COPY": copy}
    line = {text.split("if COPY")[0]: n for n, text in enumerate(added_then_copied.source.lines, added_then_copied.source.first_line)}
    copies = [n for text, n in line.items() if "finds:" in text]
    for seed in SEEDS:
        run = lambda space, after: added_then_copied.simulate((1,), X, ZEROS.copy(), ZEROS.copy(), SPACE=space, AFTER=after, seed=seed, **meta)
        found, = run("shared", False).findings
        assert (found.kind, found.line) == ("missing-proxy-fence", copies[copy != "load"])
        assert 'fence_proxy_async(space="global")' in found.message and found.other is not None
        assert not run("all", False).findings and not run("shared", True).findings


@tile.jit
def added_elsewhere(x, y, out, flag, READER: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    bar = tile.mbarrier()
    if tile.program_id(0) == 0:
        tile.atomic_add(y[0:8, 0:128], tile.load(x[0:8, 0:128]), sem="relaxed")
        tile.sync()
        with tile.elect():
            tile.store(flag[0], 1, sem="release")
    else:
        with tile.elect():
            while tile.load(flag[0], sem="acquire") == 0:
                pass
            if READER:
                tile.fence_proxy_async(space="global")
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, y[0:8, 0:128], mbar=bar)  # finds: missing-proxy-fence
        bar.wait(phase=0)
        tile.store(out[0:8, 0:128], tile.load(s))


def test_a_copy_of_what_another_cta_s_atomics_changed_needs_the_fence_after_the_acquire():
    check(added_elsewhere, (2,), X, ZEROS, ZEROS, FLAG, faulty={"READER": False}, fine={"READER": True}, result=2, expected=X, seeds=SEEDS,
          words=("of CTA 0 at line", "in CTA 1, between its synchronisation with CTA 0 and this copy"))


@tile.jit
def unordered_load(x, y, out, MEET: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    bar = tile.mbarrier()
    tile.store(y[0:8, 0:128], tile.load(x[0:8, 0:128]))
    tile.fence_proxy_async(space="global")
    if MEET:
        tile.sync()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, y[0:8, 0:128], mbar=bar)  # finds: race
    bar.wait(phase=0)
    tile.store(out[0:8, 0:128], tile.load(s))


def test_a_fence_without_a_barrier_does_not_order_a_copy_after_the_stores_of_others():
    check(unordered_load, (1,), X, ZEROS, ZEROS, faulty={"MEET": False}, fine={"MEET": True}, result=2, expected=X, seeds=SEEDS)


@tile.jit
def loaded_elsewhere(x, y, out, flag, BY_COPY: tile.constexpr, WRITER: tile.constexpr, READER: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    bar = tile.mbarrier()
    if tile.program_id(0) == 0:
        if BY_COPY:
            tile.store(s, tile.load(x[0:8, 0:128]))
            tile.fence_proxy_async()
            tile.sync()
            with tile.elect():
                tile.copy_async(y[0:8, 0:128], s)
                tile.bulk_commit()
                tile.bulk_wait(0)
        else:
            tile.store(y[0:8, 0:128], tile.load(x[0:8, 0:128]))
        if WRITER:
            tile.fence_proxy_async(space="global")
        tile.sync()
        with tile.elect():
            tile.store(flag[0], 1, sem="release")
    else:
        with tile.elect():
            while tile.load(flag[0], sem="acquire") == 0:
                pass
            if READER:
                tile.fence_proxy_async(space="global")
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, y[0:8, 0:128], mbar=bar)  # finds: missing-proxy-fence
        bar.wait(phase=0)
        tile.store(out[0:8, 0:128], tile.load(s))


@pytest.mark.parametrize("by_copy", [False, True])
@pytest.mark.parametrize("writer", [False, True])
def test_a_copy_of_what_another_cta_wrote_needs_a_proxy_fence_in_its_own_cta(by_copy, writer):
    """After the acquire. The proxy fence of the writing CTA, and that in the completion of its copy, order nothing for another CTA's engine."""
    check(loaded_elsewhere, (2,), X, ZEROS, ZEROS, FLAG, faulty={"READER": False}, fine={"READER": True}, result=2, expected=X, seeds=SEEDS,
          BY_COPY=by_copy, WRITER=writer, words=("of CTA 0 at line", "in CTA 1, between its synchronisation with CTA 0 and this copy"))


@tile.jit
def fenced_by_all(x, y, out, flag, EARLY: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    bar = tile.mbarrier()
    if tile.program_id(0) == 0:
        tile.store(y[0:8, 0:128], tile.load(x[0:8, 0:128]))
        tile.sync()
        with tile.elect():
            tile.store(flag[0], 1, sem="release")
    else:
        if EARLY:
            tile.fence_proxy_async(space="global")
        while tile.load(flag[0], sem="acquire") == 0:
            pass
        if not EARLY:
            tile.fence_proxy_async(space="global")
        tile.sync()
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, y[0:8, 0:128], mbar=bar)  # finds: missing-proxy-fence
        bar.wait(phase=0)
        tile.store(out[0:8, 0:128], tile.load(s))


def test_the_proxy_fence_stands_after_the_acquire():
    check(fenced_by_all, (2,), X, ZEROS, ZEROS, FLAG, faulty={"EARLY": True}, fine={"EARLY": False}, result=2, expected=X, seeds=SEEDS)


# -- what threads have loaded before a copy overwrites it --------------------------------------------------------------------------------------

@tile.jit
def loaded_then_overwritten(x, y, out, HOW: tile.constexpr, REDUCE: tile.constexpr, FIRST: tile.constexpr, BEFORE: tile.constexpr,
                            AFTER: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    tile.store(s, tile.load(x[0:8, 0:128]))
    tile.fence_proxy_async()
    tile.sync()
    if FIRST:
        tile.fence_proxy_async(space="all")
    v = tile.load(y[0:8, 0:128])
    if BEFORE == "ptx":
        tile.ptx.fence.proxy.async_.global_()
    elif BEFORE is not None:
        tile.fence_proxy_async(space=BEFORE)
    tile.sync()
    with tile.elect():
        if AFTER:
            tile.fence_proxy_async(space="global")
        tile.copy_async(y[0:8, 0:128], s, variant=HOW, reduce=REDUCE)  # finds: missing-proxy-fence
        tile.bulk_commit()
        tile.bulk_wait(0)
    tile.store(out[0:8, 0:128], v)


@stores
@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize("first, after, before", [(False, False, "global"), (True, False, "shared"), (False, True, "all"), (False, False, "ptx")])
def test_a_copy_overwrites_what_threads_loaded_after_a_proxy_fence_in_their_own_threads(how, reduce, warps, first, after, before):
    """A fence before the loads, or in the copying thread after the barrier, does not wait for them."""
    line = line_of(loaded_then_overwritten, "v = tile.load")
    check(loaded_then_overwritten, (1,), X, X + 1, ZEROS, faulty={"BEFORE": None}, fine={"BEFORE": before}, result=2, expected=X + 1, seeds=FEW,
          HOW=how, REDUCE=reduce, FIRST=first, AFTER=after, num_warps=warps,
          words=("writes y[0, ", f"at line {line} loaded it", 'no fence_proxy_async(space="global") in the loading threads'))


@tile.jit(num_warps=3)
def handed_over(x, y, out, OTHER: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    read = tile.mbarrier(count=2)
    tile.store(s, tile.load(x[0:8, 0:128]))
    tile.fence_proxy_async()
    tile.sync()
    for w in tile.static_range(2):
        with tile.warp(w):
            v = tile.load(y[4 * w:4 * w + 4, 0:128])
            if w == 0 or OTHER:
                tile.fence_proxy_async(space="global")
            read.arrive()
            tile.store(out[4 * w:4 * w + 4, 0:128], v)
    with tile.warp(2):
        with tile.elect():
            read.wait(phase=0)
            tile.copy_async(y[0:8, 0:128], s)  # finds: missing-proxy-fence
            tile.bulk_commit()
            tile.bulk_wait(0)


def test_every_warp_that_loads_needs_the_fence_before_its_arrival():
    check(handed_over, (1,), X, X + 1, ZEROS, faulty={"OTHER": False}, fine={"OTHER": True}, result=2, expected=X + 1, seeds=SEEDS,
          words=("writes y[4, 0]",))


@tile.jit(num_warps=2)
def loaded_by_every_thread(x, y, out, FENCE: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    tile.store(s, tile.load(x[0:8, 0:128]))
    tile.fence_proxy_async()
    tile.sync()
    v = tile.load(y[3, 5])
    if FENCE:
        tile.fence_proxy_async(space="global")
    tile.sync()
    with tile.elect():
        tile.copy_async(y[0:8, 0:128], s)  # finds: missing-proxy-fence
        tile.bulk_commit()
        tile.bulk_wait(0)
    tile.store(out[tile.arange(64)], tile.full((64,), v, x.dtype))


def test_scalars_that_every_thread_loads_need_the_fence_too():
    check(loaded_by_every_thread, (1,), X, X + 1, np.zeros(64, np.float32), faulty={"FENCE": False}, fine={"FENCE": True}, result=2,
          expected=X[3, 5] + 1, words=("writes y[3, 5]",))


def test_kernels_that_work_in_place_with_the_fence_of_their_staging_buffer_have_no_finding():
    """Read, compute, stage, fence, barrier, TMA store: the fence for shared memory waits for the loads, too."""
    @tile.jit
    def in_place(x, y):
        s = tile.alloc((8, 64), x.dtype)
        for i in range(4):
            tile.store(s, tile.load(y[8 * i:8 * i + 8, 0:64]) + tile.load(x[8 * i:8 * i + 8, 0:64]))
            tile.fence_proxy_async()
            tile.sync()
            with tile.elect():
                tile.copy_async(y[8 * i:8 * i + 8, 0:64], s)
                tile.bulk_commit()
                tile.bulk_wait(0, read=True)
            tile.sync()
        with tile.elect():
            tile.bulk_wait(0)

    x = np.arange(32 * 64, dtype=np.float32).reshape(32, 64)
    for seed in FEW:
        for warps in (1, 4):
            y = 2 * x
            assert not in_place.simulate((1,), x, y, seed=seed, num_warps=warps).findings
            assert (y == 3 * x).all()


@tile.jit(num_warps=2)
def overwritten_by_threads_first(x, y):
    s = tile.alloc((8, 128), x.dtype)
    tile.store(s, tile.load(x[0:8, 0:128]))
    tile.fence_proxy_async()
    tile.sync()
    tile.store(y[0:8, 0:128], tile.load(y[0:8, 0:128]) + 1)
    tile.sync()
    with tile.elect():
        tile.fence_proxy_async(space="global")
        tile.copy_async(y[0:8, 0:128], s, reduce="add")
        tile.bulk_commit()
        tile.bulk_wait(0)


def test_loads_before_a_store_of_the_threads_need_no_fence_of_their_own():
    for seed in FEW:
        y = X.copy()
        assert not overwritten_by_threads_first.simulate((1,), X, y, seed=seed).findings
        assert (y == 2 * X + 1).all()


@tile.jit(num_warps=2)
def loaded_beside(x, y, out):
    s = tile.alloc((8, 64), x.dtype)
    tile.store(s, tile.load(x[0:8, 0:64]))
    tile.fence_proxy_async()
    tile.sync()
    v = tile.load(y[0:8, 64:128])
    tile.sync()
    with tile.elect():
        tile.copy_async(y[0:8, 0:64], s)
        tile.bulk_commit()
        tile.bulk_wait(0)
    tile.store(out[0:8, 64:128], v)


def test_loads_beside_a_copy_s_destination_need_no_fence():
    for seed in FEW:
        out = ZEROS.copy()
        assert not loaded_beside.simulate((1,), X, X + 1, out, seed=seed).findings
        assert (out[:, 64:] == X[:, 64:] + 1).all()


@tile.jit(num_warps=2)
def loaded_by_cp_async(x, y, out):
    s = tile.alloc((2, 8, 128), x.dtype)
    tile.store(s[0], tile.load(x[0:8, 0:128]))
    tile.copy_async(s[1], y[0:8, 0:128], variant="ldgsts")
    tile.cp_async_commit()
    tile.fence_proxy_async()
    tile.cp_async_wait(0)
    tile.sync()
    with tile.elect():
        tile.copy_async(y[0:8, 0:128], s[0])
        tile.bulk_commit()
        tile.bulk_wait(0)
    tile.store(out[0:8, 0:128], tile.load(s[1]))


def test_what_cp_async_has_read_needs_only_its_wait():
    for seed in FEW:
        out = ZEROS.copy()
        assert not loaded_by_cp_async.simulate((1,), X, X + 1, out, seed=seed).findings
        assert (out == X + 1).all()


@tile.jit(num_warps=2, cluster=(2, 1, 1))
def overwritten_by_a_peer(x, y, out, FENCE: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    r = tile.cta_rank()
    tile.store(s, tile.load(x[0:8, 0:128]))
    tile.fence_proxy_async()
    tile.sync()
    v = tile.load(y[8 * r:8 * r + 8, 0:128])
    if FENCE:
        tile.fence_proxy_async(space="global")
    tile.cluster_sync()
    with tile.elect():
        tile.copy_async(y[8 - 8 * r:16 - 8 * r, 0:128], s)  # finds: missing-proxy-fence
        tile.bulk_commit()
        tile.bulk_wait(0)
    tile.store(out[8 * r:8 * r + 8, 0:128], v)


def test_a_copy_of_another_cta_of_the_cluster_needs_the_fence_in_the_loading_threads():
    y = np.arange(16 * 128, dtype=np.float32).reshape(16, 128)
    check(overwritten_by_a_peer, (2,), X, y, np.zeros_like(y), faulty={"FENCE": False}, fine={"FENCE": True}, result=2, expected=y,
          words=(" of CTA ",))


@tile.jit(num_warps=2)
def overwritten_elsewhere(x, y, out, flag, READER: tile.constexpr, COPIER: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    if tile.program_id(0) == 0:
        v = tile.load(y[0:8, 0:128])
        if READER:
            tile.fence_proxy_async(space="global")
        tile.sync()
        with tile.elect():
            tile.store(flag[0], 1, sem="release")
        tile.store(out[0:8, 0:128], v)
    else:
        tile.store(s, tile.load(x[0:8, 0:128]))
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            while tile.load(flag[0], sem="acquire") == 0:
                pass
            if COPIER:
                tile.fence_proxy_async(space="global")
            tile.copy_async(y[0:8, 0:128], s)  # finds: missing-proxy-fence
            tile.bulk_commit()
            tile.bulk_wait(0)


@pytest.mark.parametrize("copier", [False, True])
def test_a_copy_of_another_cta_needs_the_fence_in_the_threads_that_have_loaded(copier):
    check(overwritten_elsewhere, (2,), X, X + 1, ZEROS, FLAG, faulty={"READER": False}, fine={"READER": True}, result=2, expected=X + 1, seeds=SEEDS,
          COPIER=copier, words=("of CTA 0 at line",))


@tile.jit(num_warps=2)
def stored_by_token(x, y, out):
    s = tile.alloc((64, 64), x.dtype)
    tile.store(s, tile.load(x[0:64, 0:64]))
    v = tile.load(y[0:64, 0:64])
    tile.copy_async(y[0:64, 0:64], s).wait()
    tile.store(out[0:64, 0:64], v)


def test_tokens_contain_the_fence_after_loads_of_what_their_copy_overwrites():
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    for seed in FEW:
        for warps in (1, 4):
            y, out = x + 1, np.zeros_like(x)
            assert not stored_by_token.simulate((1,), x, y, out, seed=seed, target="sm_90a", num_warps=warps).findings
            assert (y == x).all() and (out == x + 1).all()


# -- the source of a load ---------------------------------------------------------------------------------------------------------------------

@tile.jit
def source_overwritten(x, out, LOAD: tile.constexpr, EARLY: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    bar = tile.mbarrier()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, x[0:8, 0:128], mbar=bar, variant=LOAD)
    if EARLY:
        tile.sync()
        tile.store(x[0:8, 0:128], tile.zeros((8, 128), x.dtype))  # finds: missing-wait
    bar.wait(phase=0)
    if not EARLY:
        tile.store(x[0:8, 0:128], tile.zeros((8, 128), x.dtype))
    tile.store(out[0:8, 0:128], tile.load(s))


@pytest.mark.parametrize("load", LOADS)
def test_the_source_of_a_load_is_not_overwritten_before_its_wait(load):
    words = (f"writes x[0, 0] before the {'tensor load' if load == 'tma' else 'bulk copy'} at line", "which reads it")
    check(source_overwritten, (1,), X, ZEROS, faulty={"EARLY": True}, fine={"EARLY": False}, result=1, expected=X, seeds=SEEDS,
          LOAD=load, words=words)


@tile.jit
def source_of_cp_async(x, out, EARLY: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    tile.copy_async(s, x[0:8, 0:128], variant="ldgsts")
    tile.cp_async_commit()
    if EARLY:
        tile.sync()
        tile.store(x[0:8, 0:128], tile.zeros((8, 128), x.dtype))  # finds: missing-wait
    tile.cp_async_wait(0)
    tile.sync()
    if not EARLY:
        tile.store(x[0:8, 0:128], tile.zeros((8, 128), x.dtype))
    tile.store(out[0:8, 0:128], tile.load(s))


def test_the_source_of_a_cp_async_is_not_overwritten_before_its_wait():
    """A barrier before the wait does not help."""
    check(source_of_cp_async, (1,), X, ZEROS, faulty={"EARLY": True}, fine={"EARLY": False}, result=1, expected=X, seeds=SEEDS,
          words=("before copy_async by cp.async at line",))


@tile.jit
def source_of_cp_async_on_a_barrier(x, out, EARLY: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    bar = tile.mbarrier(count=128)
    tile.copy_async(s, x[0:8, 0:128], variant="ldgsts")
    bar.arrive_on_copies(noinc=True)
    if EARLY:
        tile.sync()
        tile.store(x[0:8, 0:128], tile.zeros((8, 128), x.dtype))  # finds: missing-wait
    bar.wait(phase=0)
    if not EARLY:
        tile.store(x[0:8, 0:128], tile.zeros((8, 128), x.dtype))
    tile.store(out[0:8, 0:128], tile.load(s))


def test_the_source_of_a_cp_async_that_completes_on_a_barrier_is_not_overwritten_before_its_wait():
    check(source_of_cp_async_on_a_barrier, (1,), X, ZEROS, faulty={"EARLY": True}, fine={"EARLY": False}, result=1, expected=X, seeds=SEEDS)


@tile.jit
def source_stored_by_copy(x, out, LOAD: tile.constexpr, STORE: tile.constexpr, EARLY: tile.constexpr):
    s = tile.alloc((8, 128), x.dtype)
    t = tile.alloc((8, 128), x.dtype)
    bar = tile.mbarrier()
    tile.store(t, tile.full((8, 128), 1, x.dtype))
    tile.fence_proxy_async()
    tile.sync()
    with tile.elect():
        bar.arrive_expect_tx(s.nbytes)
        tile.copy_async(s, x[0:8, 0:128], mbar=bar, variant=LOAD)
        if not EARLY:
            bar.wait(phase=0)
        tile.copy_async(x[0:8, 0:128], t, variant=STORE)  # finds: missing-wait
        tile.bulk_commit()
        tile.bulk_wait(0)
    bar.wait(phase=0)
    tile.store(out[0:8, 0:128], tile.load(s))


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("store", LOADS)
def test_a_copy_does_not_overwrite_the_source_of_a_load_before_its_wait(load, store):
    check(source_stored_by_copy, (1,), X, ZEROS, faulty={"EARLY": True}, fine={"EARLY": False}, result=1, expected=X, LOAD=load, STORE=store)


@tile.jit
def source_given_away(x, out, flag, EARLY: tile.constexpr):
    if tile.program_id(0) == 0:
        s = tile.alloc((8, 128), x.dtype)
        bar = tile.mbarrier()
        with tile.elect():
            bar.arrive_expect_tx(s.nbytes)
            tile.copy_async(s, x[0:8, 0:128], mbar=bar)
            if not EARLY:
                bar.wait(phase=0)
            tile.store(flag[0], 1, sem="release")
        bar.wait(phase=0)
        tile.store(out[0:8, 0:128], tile.load(s))
    else:
        while tile.load(flag[0], sem="acquire") == 0:
            pass
        tile.store(x[0:8, 0:128], tile.zeros((8, 128), x.dtype))  # finds: missing-wait


def test_another_cta_does_not_overwrite_the_source_of_a_load_before_its_wait():
    check(source_given_away, (2,), X, ZEROS, FLAG, faulty={"EARLY": True}, fine={"EARLY": False}, result=1, expected=X, seeds=SEEDS)


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


# -- what the compiler makes ------------------------------------------------------------------------------------------------------------------

@tile.jit
def two_phases(x, y, out, ROLES: tile.constexpr):
    for i in range(4):
        tile.store(y[64 * i:64 * i + 64, 0:64], tile.load(x[64 * i:64 * i + 64, 0:64]) * 2)
    tile.sync()
    total = tile.zeros((64, 64))
    for i in tile.pipelined(range(0, 256, 64), stages=2, warp_specialize=ROLES):
        s = tile.alloc((64, 64), y.dtype)
        tile.copy_async(s, y[i:i + 64, 0:64])
        total += tile.load(s)
    tile.store(out[0:64, 0:64], total)


@tile.jit
def stored_then_loaded_by_token(x, y, out):
    s = tile.alloc((64, 64), y.dtype)
    tile.store(y[0:64, 0:64], tile.load(x[0:64, 0:64]) * 2)
    tile.copy_async(s, y[0:64, 0:64], variant="tma").wait()
    tile.store(out[0:64, 0:64], tile.load(s))


def test_pipelined_loops_and_tokens_contain_the_proxy_fence_of_arrays_that_the_kernel_stores():
    x = np.random.default_rng(0).integers(0, 9, (256, 64)).astype(np.float32)
    for seed in FEW:
        out = np.zeros((64, 64), np.float32)
        assert not two_phases.simulate((1,), x, np.zeros_like(x), out, ROLES=False, seed=seed, target="sm_90a").findings
        assert (out == 2 * x.reshape(4, 64, 64).sum(0)).all()
        assert not stored_then_loaded_by_token.simulate((1,), x, np.zeros_like(x), out, seed=seed, target="sm_90a").findings
        assert (out == 2 * x[:64]).all()
    assert "fence.proxy.async.global" in two_phases.compile(x, x, x, ROLES=False, target="sm_90a").ptx
    assert "fence.proxy" not in two_phases.compile(x, x, x, ROLES=False, target="sm_80").ptx


def test_a_producer_does_not_run_ahead_of_stores_to_what_it_loads():
    x = np.zeros((256, 64), np.float32)
    with pytest.raises(tile.CompilationError, match="this store writes y, which the pipelined loop at line .* loads"):
        two_phases.compile(x, x, x, ROLES=True, target="sm_90a")


@tile.jit
def fenced(x, SPACE: tile.constexpr):
    tile.fence_proxy_async(space=SPACE)
    tile.store(x[0, 0], 1)


@pytest.mark.parametrize("space, text", [("shared", "fence.proxy.async.shared::cta;"), ("global", "fence.proxy.async.global;"),
                                         ("all", "fence.proxy.async;"), (None, "fence.proxy.async.shared::cta;")])
def test_the_space_of_a_proxy_fence_is_that_of_its_instruction(space, text):
    assert text in fenced.compile(X, SPACE=space, target="sm_90a").ptx


def test_another_space_is_refused():
    with pytest.raises(tile.CompilationError, match="space is 'shared', 'global' or 'all', not str 'local'"):
        fenced.compile(X, SPACE="local", target="sm_90a")
