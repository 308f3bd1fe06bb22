"""Proxy fences between what threads store to global memory and the asynchronous copies of it."""

import numpy as np
import pytest
import tilejit as tile
from global_copies import FEW, FLAG, LOADS, SEEDS, ZEROS, X, check, stores

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
