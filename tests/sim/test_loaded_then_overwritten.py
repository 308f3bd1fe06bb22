"""Global memory that threads have loaded before an asynchronous copy overwrites it."""

import numpy as np
import pytest
import tilejit as tile
from global_copies import FEW, FLAG, SEEDS, ZEROS, X, check, line_of, stores


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
