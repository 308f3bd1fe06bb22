"""Rings with products into tensor memory: slots released by commits, and rings of accumulators."""

import re

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError, SimulationError


@tile.jit(num_warps=8)
def tiles_of(A, B, C, STAGES: tile.constexpr, PLACES: tile.constexpr, TWICE: tile.constexpr = False):
    """Multiplies each 128 rows of A by all of B, one after the other: a producer, a thread that multiplies, and a warpgroup that stores."""
    ring = tile.ring(STAGES, A=((128, 64), A.dtype), B=((64, 64), B.dtype))
    sums = tile.ring(PLACES, D=((128, 64), tile.float32), filled="products")
    down, steps = tile.cdiv(A.shape[0], 128), tile.cdiv(A.shape[1], 64)
    with tile.warp(4):
        with tile.elect():
            for m in range(down):
                for k in range(steps):
                    with ring.produce() as slot:
                        tile.copy_async(slot.A, A[m * 128:m * 128 + 128, k * 64:k * 64 + 64], mbar=slot.full)
                        tile.copy_async(slot.B, B[0:64, k * 64:k * 64 + 64], mbar=slot.full)
    with tile.warp(5):
        if TWICE:
            with tile.elect():
                with sums.produce() as acc:
                    for k in range(steps):
                        with ring.consume() as slot:
                            tile.mma_async(acc.D, slot.A, slot.B, trans_b=True, accumulate=k > 0)
                for m in range(1, down):
                    with sums.produce() as acc:
                        for k in range(steps):
                            with ring.consume() as slot:
                                tile.mma_async(acc.D, slot.A, slot.B, trans_b=True, accumulate=k > 0)
        else:
            with tile.elect():
                for m in range(down):
                    with sums.produce() as acc:
                        for k in range(steps):
                            with ring.consume() as slot:
                                tile.mma_async(acc.D, slot.A, slot.B, trans_b=True, accumulate=k > 0)
                                slot.release()
    with tile.warpgroup(0):
        for m in range(down):
            with sums.consume() as acc:
                tile.store(C[m * 128:m * 128 + 128, 0:64], tile.load(acc.D))


@pytest.mark.parametrize("stages,places", [(1, 1), (2, 1), (3, 2), (2, 3)])
@pytest.mark.parametrize("steps,down", [(1, 1), (3, 1), (2, 3), (4, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_rings_of_operands_and_accumulators_work_with_any_number_of_slots(stages, places, steps, down, seed):
    """Both rings wrap around any number of times, in any order of events, with one or two places in the code that take a slot."""
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-4, 5, (rows, 64 * steps)).astype(np.float16) for rows in (128 * down, 64))
    c = np.full((128 * down, 64), np.nan, np.float32)
    tiles_of.simulate(1, a, b, c, STAGES=stages, PLACES=places, TWICE=bool(seed % 2), seed=seed, target="sm_100a").raise_first()
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


def test_commits_are_emitted_where_slots_are_released():
    """One per slot and one per accumulator, instead of arrivals by the thread; the epilogue arrives itself."""
    spec = tile.ArraySpec((256, 128), "float16")
    compiled = tiles_of.compile(spec, spec, tile.ArraySpec((256, 64), "float32"), STAGES=3, PLACES=2, target="sm_100a")
    assert compiled.ptx.count("tcgen05.commit") == 2
    assert compiled.ptx.count("mbarrier.arrive.shared::cta.b64") == 1
    assert "tcgen05_commit" in compiled.graph and "ring_release" not in compiled.graph


@tile.jit(num_warps=12)
def wide(A, B, C, WARP: tile.constexpr):
    """A warp or a warpgroup consumes, and its elected thread multiplies."""
    ring = tile.ring(2, A=((128, 64), A.dtype), B=((64, 64), B.dtype))
    sums = tile.alloc((128, 64), tile.float32, scope="tmem")
    done = tile.mbarrier()
    with tile.warp(4):
        with tile.elect():
            for k in range(A.shape[1] // 64):
                with ring.produce() as slot:
                    tile.copy_async(slot.A, A[0:128, k * 64:k * 64 + 64], mbar=slot.full)
                    tile.copy_async(slot.B, B[0:64, k * 64:k * 64 + 64], mbar=slot.full)
    with tile.warp(5) if WARP else tile.warpgroup(2):
        for k in range(A.shape[1] // 64):
            with ring.consume() as slot:
                with tile.elect():
                    tile.mma_async(sums, slot.A, slot.B, trans_b=True, accumulate=k > 0)
        with tile.elect():
            tile.tcgen05_commit(done)
    with tile.warpgroup(0):
        done.wait(phase=0)
        tile.tcgen05_fence("after_thread_sync")
        tile.store(C[0:128, 0:64], tile.load(sums))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("warp", [True, False])
def test_a_warp_or_warpgroup_may_consume_slots_that_its_elected_thread_multiplies(seed, warp):
    """The warps of a warpgroup synchronise in each slot: a warp that missed its full phase could mistake a later one for it."""
    rng = np.random.default_rng(seed)
    a, b, c = rng.integers(-4, 5, (128, 320)).astype(np.float16), rng.integers(-4, 5, (64, 320)).astype(np.float16), np.zeros((128, 64), np.float32)
    wide.simulate(1, a, b, c, WARP=warp, seed=seed, target="sm_103a").raise_first()
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
    ptx = wide.compile(a, b, c, WARP=warp, target="sm_103a").ptx
    assert len(re.findall(r"bar(?:rier)?\.sync\s+\S+, 128;", ptx)) == (not warp)


@tile.jit(num_warps=4)
def watched(A, B, X, C, D, READ: tile.constexpr):
    """A pipelined loop in which an elected thread multiplies, while all threads read an array, or do nothing."""
    sA, sB = tile.alloc((128, 64), A.dtype, layout=tile.auto), tile.alloc((64, 64), B.dtype, layout=tile.auto)
    acc, done, total = tile.alloc((128, 64), "float32", scope="tmem"), tile.mbarrier(), tile.zeros((64,))
    for k in tile.pipelined(range(0, A.shape[1], 64), stages=2, warp_specialize=True):
        tile.copy_async(sA, A[0:128, k:k + 64])
        tile.copy_async(sB, B[0:64, k:k + 64])
        with tile.elect():
            tile.mma_async(acc, sA, sB, trans_b=True, accumulate=k > 0)
        if READ:
            total = total + tile.load(X[k // 64, 0:64], cache="ca")  # which keeps the load in its iteration
    with tile.elect():
        tile.tcgen05_commit(done)
    done.wait(phase=0)
    tile.tcgen05_fence("after_thread_sync")
    tile.store(C[0:128, 0:64], tile.load(acc))
    tile.store(D[0:64], total)


@pytest.mark.parametrize("read", [False, True])
def test_no_warp_waits_for_a_slot_that_the_elected_thread_may_have_released(read):
    """It could mistake a later phase for its own. If only the elected thread works, only it waits; otherwise the warps
    synchronise first."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (128, 320)).astype(np.float16), rng.integers(-3, 4, (64, 320)).astype(np.float16)
    x, c, d = rng.integers(-9, 9, (5, 64)).astype(np.float32), np.zeros((128, 64), np.float32), np.zeros(64, np.float32)
    for seed in range(3):
        watched.simulate(1, a, b, x, c, d, READ=read, seed=seed, target="sm_100a").raise_first()
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
        np.testing.assert_array_equal(d, x.sum(axis=0) if read else 0)
    loop = watched.compile(a, b, x, c, d, READ=read, target="sm_100a").graph.split("  warpgroup 0\n")[1].split("  for %k")[1].split("    ->")[0]
    order = re.findall(r"^ *(elect|sync|mbarrier_wait|tensor_mma|tcgen05_commit)\b", loop, re.MULTILINE)
    assert order == (["mbarrier_wait", "elect", "tensor_mma", "sync", "elect", "tcgen05_commit"] if read
                     else ["elect", "mbarrier_wait", "elect", "tensor_mma", "elect", "tcgen05_commit"])


def test_an_accumulator_read_before_its_slot_is_acquired_is_found():
    """The simulator reports the wait that the ring would have made."""
    @tile.jit(num_warps=8)
    def kernel(A, C):
        sums = tile.ring(1, D=((128, 64), tile.float32), filled="products")
        s = tile.alloc((128, 64), A.dtype, layout=tile.auto)
        tile.copy(s, A[0:128, 0:64])
        tile.fence_proxy_async()
        tile.sync()
        with tile.warp(4):
            with tile.elect():
                for i in range(2):
                    with sums.produce() as acc:
                        tile.mma_async(acc.D, s, s[0:64, :], trans_b=True, accumulate=False)
        with tile.warpgroup(0):
            with sums.consume() as acc:
                acc.release()
                tile.store(C[0:128, 0:64], tile.load(acc.D))
    with pytest.raises(SimulationError, match="tensor memory"):
        for seed in range(8):
            kernel.simulate(1, np.ones((128, 64), np.float16), np.zeros((128, 64), np.float32), seed=seed, target="sm_100a").raise_first()


def consuming(body: str, options: str = "", warps: int = 8):
    text = (f"def k(A):\n    ring = tile.ring(2, s=((64, 64), A.dtype){options})\n    d = tile.alloc((64, 64), 'float32', scope='tmem', "
            f"layout=tile.tmem_datapath('F', 64))\n{body}")
    kernel = tile.jit(source=text, num_warps=warps)
    kernel.source.globals["tile"] = tile
    return kernel


@pytest.mark.parametrize("body,options,match", [
    ("    with tile.warp(0):\n        with ring.consume(behind=True) as slot:\n            with tile.elect():\n                "
     "tile.mma_async(d, slot.s, slot.s, trans_b=True)\n", "", "leave behind= out"),
    ("    with tile.warp(0):\n        with ring.consume() as slot:\n            with tile.thread(3):\n                "
     "tile.mma_async(d, slot.s, slot.s, trans_b=True)\n", "", "start them all in one thread"),
    ("    with tile.warp(0):\n        with ring.consume() as slot:\n            tile.load(slot.s)\n            with tile.elect():\n                "
     "tile.mma_async(d, slot.s, slot.s, trans_b=True)\n", "", "let another scope consume it"),
    ("    with tile.warpgroup(0):\n        with ring.consume() as slot:\n            tile.load(slot.s)\n",
     ", filled='products', multicast=True", "multicast is True where"),
    ("    pass\n", ", cta_group=3", "cta_group is 1 or 2"),
    ("    pass\n", ", cta_group=2", "give cluster="),
    ("    pass\n", ", filled='moves'", "filled is one of 'copies', 'stores', 'products'"),
])
def test_unsupported_uses_of_a_ring_of_products_are_errors(body, options, match):
    with pytest.raises(CompilationError, match=match):
        consuming(body, options).compile(tile.ArraySpec((64, 64), "float16"), target="sm_100a")


def test_accumulator_rings_need_tensor_memory():
    with pytest.raises(CompilationError, match="filled='products' needs sm_100a or sm_103a"):
        kernel = tile.jit(source="def k(A):\n    ring = tile.ring(2, D=((128, 64), 'float32'), filled='products')\n")
        kernel.source.globals["tile"] = tile
        kernel.compile(tile.ArraySpec((64, 64), "float16"), target="sm_90a")
