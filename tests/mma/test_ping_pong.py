"""Consumers of a ring that take its tiles in turn (ping-pong): each skips the slots of the other's tiles with ``ring.skip(n)``."""

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError, SimulationError

from tests.chosen_cases import part
from tests.gpu import in_child, needs_gpu

TILES = 5  # of 64 rows: an odd number, so that one consumer has more of them


@tile.jit(num_warps=12)
def product(A, B, C, STAGES: tile.constexpr, STEPS: tile.constexpr, BEHIND: tile.constexpr):
    """C = A B^T with tiles of 64 x 64. The number of k-steps is STEPS, or (None) known at run time; with BEHIND a product stays in flight while
    the next slot is awaited."""
    ring, baton = tile.ring(STAGES, A=((64, 64), A.dtype), B=((64, 64), B.dtype)), tile.turns(2)
    tiles, steps = tile.cdiv(A.shape[0], 64), tile.cdiv(A.shape[1], 64) if STEPS is None else STEPS
    with tile.warpgroup(0):
        with tile.elect():
            for t in range(tiles):
                for k in range(steps):
                    with ring.produce() as slot:
                        tile.copy_async(slot.A, A[t * 64:t * 64 + 64, k * 64:k * 64 + 64], mbar=slot.full)
                        tile.copy_async(slot.B, B[0:64, k * 64:k * 64 + 64], mbar=slot.full)
    with tile.each_warpgroup(range(1, 3)) as w:
        for t in range(tiles):
            if t % 2 == w - 1:
                baton.take(w - 1)
                acc = tile.zeros((64, 64))
                for k in range(steps):
                    with ring.consume(behind=BEHIND) as slot:
                        acc = tile.mma_async(acc, slot.A, slot.B, trans_b=True)
                        tile.mma_commit()
                        tile.mma_wait(1 if BEHIND else 0)
                tile.mma_wait(0)
                ring.release()
                baton.pass_on(w - 1)
                tile.store(C[t * 64:t * 64 + 64, 0:64], acc)
            else:
                ring.skip(steps)


def operands(steps, seed=0):
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-4, 5, (rows, 64 * steps)).astype(np.float16) for rows in (64 * TILES, 64))
    return a, b, np.full((64 * TILES, 64), np.nan, np.float32)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("stages,steps", [(stages, steps) for stages in (2, 3, 4) for steps in sorted({0, 1, stages - 1, stages, stages + 1, 2 * stages + 1})])
def test_consumers_can_take_tiles_in_turn(stages, steps, constant, behind):
    a, b, c = operands(max(steps, 1))
    if steps == 0 and not constant:
        a, b = a[:, :0], b[:, :0]
    for seed in part(range(2), 2, steps + constant):
        product.simulate(1, a, b, c, STAGES=stages, STEPS=steps if constant else None, BEHIND=behind, seed=seed).raise_first()
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T if steps else np.zeros_like(c))


@pytest.mark.parametrize("steps", [None, 5])
def test_a_ping_pong_product_keeps_its_accumulators_in_registers(steps):
    compiled = product.compile(*[tile.ArraySpec((4096, 4096), "float16")] * 2, tile.ArraySpec((4096, 64), "float32"), STAGES=4, STEPS=steps, BEHIND=True,
                               target="sm_90a")
    assert compiled.spills == 0 and not compiled.warnings


@needs_gpu("sm_90a")
@in_child(timeout=60)
def test_consumers_can_take_tiles_in_turn_on_the_gpu():
    for stages in (2, 3, 4):
        for steps in (1, stages - 1, stages, stages + 1, 23):
            for constant in (None, steps):
                a, b, c = operands(steps)
                out = tile.to_device(c)
                product[1,](tile.to_device(a), tile.to_device(b), out, STAGES=stages, STEPS=constant, BEHIND=stages > 2)
                np.testing.assert_array_equal(out.numpy(), a.astype(np.float32) @ b.astype(np.float32).T)


@tile.jit(num_warps=12)
def sums(X, counts, Y, STAGES: tile.constexpr, IN_TURN: tile.constexpr):
    """Row t of Y is the sum of the next counts[t] rows of X, 8 at a time, by two warpgroups that take different rows of Y."""
    ring, baton = tile.ring(STAGES, rows=((8, 64), X.dtype)), tile.turns(2)
    with tile.warp(0):
        with tile.elect():
            for i in range(X.shape[0] // 8):
                with ring.produce() as slot:
                    tile.copy_async(slot.rows, X[i * 8:i * 8 + 8, 0:64], mbar=slot.full)
    with tile.each_warpgroup(range(1, 3)) as w:
        if w == 2:
            ring.skip(tile.load(counts[0]))
        for t in range(w - 1, counts.shape[0], 2):
            acc = tile.zeros((64,))
            if IN_TURN:
                baton.take(w - 1)
            for i in range(tile.load(counts[t])):
                with ring.consume() as slot:
                    acc = acc + tile.sum(tile.load(slot.rows), axis=0)
            if IN_TURN:
                baton.pass_on(w - 1)
            tile.store(Y[t, 0:64], acc)
            if t + 1 < counts.shape[0]:
                ring.skip(tile.load(counts[t + 1]))


def rows_of(counts, seed=0):
    x = np.random.default_rng(seed).integers(-8, 8, (8 * sum(counts), 64)).astype(np.float32)
    ends = np.cumsum(counts) * 8
    return x, np.array(counts, np.int32), np.stack([x[end - 8 * n:end].sum(axis=0) for end, n in zip(ends, counts)])


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("counts", [(1, 2, 3, 4, 5, 6), (0, 3, 0, 1, 0), (7, 0, 0, 7), (1, 13, 1)])
def test_the_number_of_skipped_slots_may_be_loaded_from_memory(stages, counts):
    x, n, want = rows_of(counts)
    y = np.full_like(want, np.nan)
    for seed in range(3):
        sums.simulate(1, x, n, y, STAGES=stages, IN_TURN=True, seed=seed).raise_first()
        np.testing.assert_array_equal(y, want)
    for target in ("sm_90a", "sm_100a", "sm_120a"):
        assert sums.compile(x, n, y, STAGES=stages, IN_TURN=True, target=target).spills == 0


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_a_consumer_that_is_not_ordered_after_the_others_slots_is_found(stages, seed):
    """It mistakes an earlier phase of a slot's barrier for its own, and reads or releases another's slot."""
    x, n, want = rows_of((5, 4, 3))
    report = sums.simulate(1, x, n, np.empty_like(want), STAGES=stages, IN_TURN=False, seed=seed)
    assert report.findings and {f.kind for f in report.findings} <= {"race", "missing-wait", "uninitialized-read", "barrier-phase"}


def test_a_negative_number_of_skipped_slots_is_found_by_the_simulator():
    x, n, want = rows_of((2, 2, 2))
    n[1] = -2
    with pytest.raises(SimulationError, match=r"tile.assume promises does not hold(?s:.*)ring.skip\(tile.load\(counts\[t \+ 1\]\)\)"):
        sums.simulate(1, x, n, np.empty_like(want), STAGES=2, IN_TURN=True).raise_first()


@pytest.mark.parametrize("skip,words", [
    ("ring.skip(-1)", "slots are skipped forwards: n is at least 0, not -1"),
    ("ring.skip(True)", "n is an integer, not the number True"),
    ("ring.skip(1.5)", "n is an integer, not the number 1.5"),
    ("ring.skip(tile.load(X[0, 0]))", "n is an integer, not a scalar float32"),
    ("ring.skip(tile.arange(4))", "n is an integer, not a tile int32[4]"),
    ("ring.skip(tile.thread_id())", "the number of slots that are skipped must be the same for all threads of the warpgroup, and thread_id"),
    ("if tile.thread_id() < 140: ring.skip(1)", "skip() of a ring needs all threads of the warpgroup"),
    ("with ring.consume() as slot: ring.skip(1)", "skip() cannot be called inside a block in which its scope holds a slot of the ring"),
    ("with ring.consume(behind=True) as slot: pass\n        ring.skip(1)", "may still hold a slot here: release it with release() first"),
])
def test_invalid_calls_of_skip_are_errors(skip, words):
    kernel = tile.jit(source=f"""
def kernel(X):
    ring = tile.ring(2, rows=((8, 64), X.dtype))
    with tile.warp(0):
        with tile.elect():
            with ring.produce() as slot:
                tile.copy_async(slot.rows, X[0:8, 0:64], mbar=slot.full)
    with tile.warpgroup(1):
        {skip}
""", num_warps=8)
    with pytest.raises(CompilationError) as caught:
        kernel.compile(tile.ArraySpec((8, 64), "float32"))
    assert words in str(caught.value) and "ring.skip(" in str(caught.value)
