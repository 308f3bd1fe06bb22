"""The source of an asynchronous load, which is not to be overwritten before the load has been waited for."""

import pytest
import tilejit as tile
from global_copies import FLAG, LOADS, SEEDS, ZEROS, X, check


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
