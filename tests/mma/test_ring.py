"""Rings: the cursors of producers and consumers through loops, with any number of slots, consumers and iterations."""

import re

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError

from tests.gpu import in_child, needs_gpu


@tile.jit(num_warps=8)
def total(X, Y, STAGES: tile.constexpr, OUTER: tile.constexpr):
    """The sum of the rows of X, 8 at a time, that a producer thread sends to a consumer warpgroup."""
    ring = tile.ring(STAGES, rows=((8, 64), X.dtype))
    trips = X.shape[0] // (8 * OUTER)
    with tile.warp(0):
        with tile.elect():
            for o in range(OUTER):
                for i in range(trips):
                    with ring.produce() as slot:
                        at = (o * trips + i) * 8
                        tile.copy_async(slot.rows, X[at:at + 8, 0:64], mbar=slot.full)
    with tile.warpgroup(1):
        acc = tile.zeros((64,))
        for o in range(OUTER):
            for i in range(trips):
                with ring.consume() as slot:
                    acc = acc + tile.sum(tile.load(slot.rows), axis=0)
        tile.store(Y[0:64], acc)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("trips", [0, 1, 2, 3, 4, 7])
def test_a_ring_works_for_any_trip_count(stages, trips):
    """0, 1, stages - 1, stages, stages + 1 and more iterations; the slots are read by threads."""
    x = np.random.default_rng(trips).integers(-8, 8, (8 * trips, 64)).astype(np.float32)
    x = x if trips else np.zeros((8, 64), np.float32)[:0].reshape(0, 64)
    if trips == 0:
        x = np.zeros((7, 64), np.float32)  # fewer rows than a slot holds: no iteration
    y = np.full(64, np.nan, np.float32)
    total[1](x, y, STAGES=stages, OUTER=1)
    np.testing.assert_array_equal(y, x[:8 * trips].sum(axis=0))


@pytest.mark.parametrize("seed", range(4))
def test_nested_loops_carry_one_cursor(seed):
    """The ring continues where the inner loop ended, in any order in which the copies complete."""
    x = np.random.default_rng(seed).integers(-8, 8, (8 * 10, 64)).astype(np.float32)
    y = np.full(64, np.nan, np.float32)
    total.simulate(1, x, y, STAGES=3, OUTER=2, seed=seed).raise_first()
    np.testing.assert_array_equal(y, x.sum(axis=0))


def test_a_ring_assembles_with_a_barrier_before_the_release_of_read_slots():
    """Ordinary reads end with a barrier of the warpgroup before its single arrival."""
    compiled = total.compile(tile.ArraySpec((80, 64), "float32"), tile.ArraySpec((64,), "float32"), STAGES=3, OUTER=2)
    assert [c.variant for c in compiled.copies] == ["tma"]
    assert "bar.sync" in compiled.ptx


def test_several_warpgroups_release_each_slot():
    """`consumers` counts warpgroups: two scopes with the same source, each with its own cursor."""
    @tile.jit(num_warps=12)
    def kernel(X, Y):
        ring = tile.ring(2, rows=((8, 64), X.dtype), consumers=2)
        with tile.warpgroup(0):
            with tile.elect():
                for i in range(5):
                    with ring.produce() as slot:
                        tile.copy_async(slot.rows, X[i * 8:i * 8 + 8, 0:64], mbar=slot.full)
        with tile.each_warpgroup(range(1, 3)) as w:
            acc = tile.zeros((64,))
            for i in range(5):
                with ring.consume() as slot:
                    acc = acc + tile.sum(tile.load(slot.rows), axis=0)
            tile.store(Y[w - 1, 0:64], acc * tile.float32(w))
    x = np.random.default_rng(1).integers(-8, 8, (40, 64)).astype(np.float32)
    y = np.full((2, 64), np.nan, np.float32)
    kernel[1](x, y)
    np.testing.assert_array_equal(y, np.stack([x.sum(axis=0), 2 * x.sum(axis=0)]))
    assert kernel.compile(x, y).ptx.count("mbarrier.try_wait") == 2


@tile.jit(num_warps=8)
def in_pairs(X, Y, STAGES: tile.constexpr):
    """Slots in pairs with their rows, then one after the other: producer and consumer hold them in nested blocks."""
    ring = tile.ring(STAGES, rows=((8, 64), X.dtype))
    pairs = X.shape[0] // 24
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(pairs):
                with ring.produce() as a:
                    tile.copy_async(a.rows, X[i * 24:i * 24 + 8, 0:64], mbar=a.full)
                    with ring.produce() as b:
                        tile.copy_async(b.rows, X[i * 24 + 8:i * 24 + 16, 0:64], mbar=b.full)
                with ring.produce() as c:
                    tile.copy_async(c.rows, X[i * 24 + 16:i * 24 + 24, 0:64], mbar=c.full)
    with tile.warpgroup(1):
        for i in range(pairs):
            with ring.consume() as a:
                with ring.consume() as b:
                    tile.store(Y[i * 24:i * 24 + 8, 0:64], tile.load(b.rows) - tile.load(a.rows))
                tile.store(Y[i * 24 + 8:i * 24 + 16, 0:64], tile.load(a.rows))
                with ring.consume() as c:
                    tile.store(Y[i * 24 + 16:i * 24 + 24, 0:64], tile.load(c.rows) + tile.load(a.rows))


def in_pairs_done(home, stages):
    x = np.random.default_rng(4).integers(-8, 8, (24 * 7, 64)).astype(np.float32)
    y = home(np.full_like(x, np.nan))
    in_pairs[1](home(x), y, STAGES=stages)
    a, b, c = np.moveaxis(x.reshape(7, 3, 8, 64), 1, 0)
    np.testing.assert_array_equal(y if isinstance(y, np.ndarray) else y.numpy(), np.stack([b - a, a, c + a], axis=1).reshape(x.shape))


@pytest.mark.parametrize("stages", [3, 4, 5])
def test_several_slots_can_be_held_at_once(stages):
    in_pairs_done(np.asarray, stages)


@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_several_slots_can_be_held_at_once_on_the_gpu():
    for stages in (3, 4, 5):
        in_pairs_done(tile.to_device, stages)


def test_holding_more_slots_than_the_ring_has_and_nested_blocks_with_release_previous_are_errors():
    @tile.jit(num_warps=8)
    def kernel(X, AROUND: tile.constexpr, WITHIN: tile.constexpr):
        ring = tile.ring(2, rows=((8, 64), X.dtype))
        with tile.warpgroup(1):
            with ring.consume(behind=AROUND):
                with ring.consume(behind=WITHIN):
                    with ring.consume():
                        pass
    x = np.zeros((16, 64), np.float32)
    with pytest.raises(CompilationError, match="3 slots are held at once here, and the ring has 2"):
        kernel.simulate(1, x, AROUND=False, WITHIN=False)
    for around, within in ((False, True), (True, False), (True, True)):
        with pytest.raises(CompilationError, match="cannot enclose or be inside another block of its ring"):
            kernel.simulate(1, x, AROUND=around, WITHIN=within)


def test_a_slot_can_be_released_only_once_and_in_the_scope_that_acquired_it():
    @tile.jit(num_warps=8)
    def kernel(X, twice: tile.constexpr):
        ring = tile.ring(2, rows=((8, 64), X.dtype))
        with tile.warpgroup(1):
            with ring.consume() as slot:
                if twice:
                    slot.release()
                    slot.release()
                else:
                    for i in range(X.shape[0]):
                        slot.release()
    x = np.zeros((16, 64), np.float32)
    with pytest.raises(CompilationError, match="released already"):
        kernel.simulate(1, x, twice=True)
    with pytest.raises(CompilationError, match="in the block that took it"):
        kernel.simulate(1, x, twice=False)


def test_more_consumers_than_the_ring_declares_are_found():
    @tile.jit(num_warps=12)
    def kernel(X):
        ring = tile.ring(2, rows=((8, 64), X.dtype))
        with tile.warpgroup(range(1, 3)):
            with ring.consume() as slot:
                pass
    with pytest.raises(CompilationError, match=r"2 warpgroups release each slot here, and consumers=1: give tile.ring\(..., consumers=2\)"):
        kernel.simulate(1, np.zeros((16, 64), np.float32))


def test_a_missing_copy_is_found():
    """A slot is full when all its buffers have been filled."""
    @tile.jit(num_warps=8)
    def kernel(X, Y):
        ring = tile.ring(2, a=((8, 64), X.dtype), b=((8, 64), X.dtype))
        with tile.warp(0):
            with tile.elect():
                with ring.produce() as slot:
                    tile.copy_async(slot.a, X[0:8, 0:64], mbar=slot.full)
        with tile.warpgroup(1):
            with ring.consume() as slot:
                tile.store(Y[0:8, 0:64], tile.load(slot.a))
    with pytest.raises(CompilationError, match="4096 bytes are announced, and the copies on this barrier transfer 2048"):
        kernel.simulate(1, np.zeros((8, 64), np.float32), np.zeros((8, 64), np.float32))


def test_a_ring_chooses_automatic_layouts_and_accepts_tile_auto():
    made = []
    for layout in ("", ", tile.auto", ", tile.swizzled(tile.float16, (8, 64), 128)"):
        kernel = tile.jit(source=f"def k(X):\n    ring = tile.ring(2, filled='stores', rows=((8, 64), tile.float16{layout}))\n"
                                 "    with ring.produce() as slot:\n        tile.store(slot.rows, tile.load(X[0:8, 0:64]))\n")
        kernel.source.globals["tile"] = tile
        graph = kernel.compile(tile.ArraySpec((8, 64), "float16")).graph
        made.append([line.split(" in ")[-1] for line in graph.splitlines() if "alloc_shared" in line])
    assert made[0] == made[1] and "Swizzle" in made[0][0] and "Swizzle" in made[2][0]


@pytest.mark.parametrize("extent", [20, 64, 80])
def test_one_dimensional_slots_are_aligned_for_tma_and_can_be_viewed(extent):
    @tile.jit(num_warps=8)
    def summed(X, Y, N: tile.constexpr):
        ring = tile.ring(2, row=((N,), X.dtype))
        with tile.warpgroup(0):
            with tile.elect():
                for i in range(X.shape[0]):
                    with ring.produce() as slot:
                        tile.copy_async(slot.row, X[i, 0:N], mbar=slot.full, variant="tma")
        with tile.warpgroup(1):
            total = tile.zeros((N // 4, 4))
            for i in range(X.shape[0]):
                with ring.consume() as slot:
                    total += tile.load(slot.row.view(shape=(N // 4, 4)))
            tile.store(Y[0:N], tile.reshape(total, (N,)))

    X = np.random.default_rng(0).random((5, 68), np.float32)
    Y = np.empty(extent, np.float32)
    summed.simulate(1, X, Y, N=extent, target="sm_90a").raise_first()
    np.testing.assert_allclose(Y[:68], X[:, :extent].sum(0), rtol=1e-6)


def test_invalid_arguments_of_a_ring_are_errors():
    @tile.jit(num_warps=4)
    def nothing(X):
        tile.ring(2)

    @tile.jit(num_warps=4)
    def wrong(X):
        tile.ring(2, full=((8, 64), X.dtype))
    with pytest.raises(CompilationError, match="at least one buffer"):
        nothing.simulate(1, np.zeros(4, np.float32))
    with pytest.raises(CompilationError, match="has a 'full' of its own"):
        wrong.simulate(1, np.zeros(4, np.float32))


@tile.jit(num_warps=8)
def behind(X, Y, STAGES: tile.constexpr, OUTER: tile.constexpr):
    """The product of the rows of X with themselves, 64 of k at a time; a slot is released one iteration late."""
    ring = tile.ring(STAGES, rows=((64, 64), X.dtype))
    trips = X.shape[1] // (64 * OUTER)
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(trips * OUTER):
                with ring.produce() as slot:
                    tile.copy_async(slot.rows, X[0:64, i * 64:i * 64 + 64], mbar=slot.full)
    with tile.warpgroup(1):
        for o in range(OUTER):
            acc = tile.zeros((64, 64))
            for i in range(trips):
                with ring.consume(behind=True) as slot:
                    acc = tile.mma_async(acc, slot.rows, slot.rows, trans_b=True)
                    tile.mma_commit()
                    tile.mma_wait(1)
            tile.mma_wait(0)
            ring.release()
            tile.store(Y[o, 0:64, 0:64], acc)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("trips", [0, 1, 2, 3, 4, 7])
def test_a_slot_may_be_released_one_iteration_late(stages, trips):
    """0, 1, stages - 1, stages, stages + 1 and more iterations, several times."""
    x = np.random.default_rng(trips).integers(-4, 5, (64, max(128 * trips, 64))).astype(np.float16)
    y = np.full((2, 64, 64), np.nan, np.float32)
    behind.simulate(1, x, y, STAGES=stages, OUTER=2).raise_first()
    parts = [x[:, o * 64 * trips:(o + 1) * 64 * trips].astype(np.float32) for o in range(2)]
    np.testing.assert_array_equal(y, np.stack([p @ p.T for p in parts]))


def test_a_held_slot_must_be_released_before_slots_are_acquired_in_another_way():
    @tile.jit(num_warps=8)
    def kernel(X, STAGES: tile.constexpr):
        ring = tile.ring(STAGES, rows=((8, 64), X.dtype))
        with tile.warpgroup(1):
            with ring.consume(behind=True) as slot:
                pass
            with ring.consume() as slot:
                pass
    with pytest.raises(CompilationError, match="release it with release"):
        kernel.simulate(1, np.zeros((16, 64), np.float32), STAGES=2)
    with pytest.raises(CompilationError, match="needs a ring of two stages or more"):
        kernel.simulate(1, np.zeros((16, 64), np.float32), STAGES=1)


@tile.jit(num_warps=8)
def passed_over(A, out, n, READ: tile.constexpr, ONE_WARP: tile.constexpr):
    """A consumer that only uses every third slot, or none."""
    ring = tile.ring(2, A=((64,), A.dtype), consumers=1)
    with tile.warpgroup(0):
        with tile.elect():
            for i in range(n):
                with ring.produce() as slot:
                    tile.copy_async(slot.A, A[i, 0:64], mbar=slot.full)
    with tile.warp(4) if ONE_WARP else tile.warpgroup(1):
        total = tile.zeros((64,))
        for i in range(n):
            with ring.consume() as slot:
                if READ:
                    if i % 3 == 0:
                        total = total + tile.load(slot.A)
        tile.store(out[0:64], total)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("one_warp", [False, True])
def test_warps_synchronise_in_a_slot_that_they_skip_before_it_is_released(read, one_warp):
    """A warp that lags would find the phase of a later round, and wait for ever. A single warp needs no barrier for that."""
    A, out = np.arange(7 * 64, dtype=np.float32).reshape(7, 64), np.full(64, np.nan, np.float32)
    passed_over[1, ](A, out, 7, read, one_warp)
    np.testing.assert_array_equal(out, A[::3].sum(axis=0) if read else 0)
    ptx = passed_over.compile(A, out, 7, read, one_warp, target="sm_90a").ptx
    assert len(re.findall(r"bar(?:rier)?\.sync\s+\S+, 128;", ptx)) == (not one_warp)


@tile.jit
def filled(ring, A, B, n):
    for i in range(n):
        with ring.produce() as slot:
            tile.copy_async(slot.A, A[0:64, i * 64:i * 64 + 64], mbar=slot.full)
            tile.copy_async(slot.B, B[0:64, i * 64:i * 64 + 64], mbar=slot.full)


@tile.jit
def multiplied_once(acc, slot):
    acc = tile.mma_async(acc, slot.A, slot.B, trans_b=True)
    tile.mma_commit()
    tile.mma_wait(0)
    return acc


@tile.jit(num_warps=8)
def multiplied_at_times(A, B, C, n, BEHIND: tile.constexpr, WHEN: tile.constexpr):
    """A consumer that multiplies in each slot, or in every second one by a condition or by a loop."""
    ring = tile.ring(2, A=((64, 64), A.dtype), B=((64, 64), B.dtype), consumers=1)
    with tile.warpgroup(0):
        with tile.elect():
            filled(ring, A, B, n)
    with tile.warpgroup(1):
        acc = tile.zeros((64, 64))
        for i in range(n):
            with ring.consume(behind=BEHIND) as slot:
                if WHEN == "always":
                    acc = multiplied_once(acc, slot)
                elif WHEN == "if":
                    if i % 2 == 0:
                        acc = multiplied_once(acc, slot)
                else:
                    for j in range(1 - i % 2):
                        acc = multiplied_once(acc, slot)
        if BEHIND:
            ring.release()
        tile.store(C[0:64, 0:64], acc)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("when", ["always", "if", "loop"])
def test_a_product_that_not_every_slot_executes_does_not_synchronise_its_warps(behind, when):
    """One that every slot executes does: then no barrier is needed."""
    rng = np.random.default_rng(0)
    A, B = (rng.integers(-2, 3, (64, 5, 64)).astype(np.float16) for _ in range(2))
    C, taken = np.full((64, 64), np.nan, np.float32), slice(None, None, 1 if when == "always" else 2)
    multiplied_at_times[1, ](A.reshape(64, 320), B.reshape(64, 320), C, 5, behind, when)
    np.testing.assert_array_equal(C, np.einsum("msk,nsk->mn", A[:, taken].astype(np.float32), B[:, taken].astype(np.float32)))
    ptx = multiplied_at_times.compile(A.reshape(64, 320), B.reshape(64, 320), C, 5, behind, when, target="sm_90a").ptx
    assert bool(re.search(r"bar(?:rier)?\.sync\s+\S+, 128;", ptx)) == (when != "always")


@tile.jit(num_warps=12)
def multiplied_by_one(A, B, C, n):
    """Two warpgroups form one consumer, and only the first of them multiplies."""
    ring = tile.ring(2, A=((64, 64), A.dtype), B=((64, 64), B.dtype), consumers=2)
    with tile.warpgroup(0):
        with tile.elect():
            filled(ring, A, B, n)
    with tile.warpgroup(range(1, 3)):
        for i in range(n):
            with ring.consume() as slot:
                with tile.warpgroup(1):
                    tile.store(C[i, 0:64, 0:64], multiplied_once(tile.zeros((64, 64)), slot))


def test_a_product_of_one_warpgroup_does_not_synchronise_the_others():
    rng = np.random.default_rng(0)
    A, B = (rng.integers(-2, 3, (64, 5, 64)).astype(np.float16) for _ in range(2))
    C = np.full((5, 64, 64), np.nan, np.float32)
    multiplied_by_one[1, ](A.reshape(64, 320), B.reshape(64, 320), C, 5)
    np.testing.assert_array_equal(C, np.einsum("msk,nsk->smn", A.astype(np.float32), B.astype(np.float32)))
    ptx = multiplied_by_one.compile(A.reshape(64, 320), B.reshape(64, 320), C, 5, target="sm_90a").ptx
    assert re.search(r"bar(?:rier)?\.sync\s+\S+, 256;", ptx)
