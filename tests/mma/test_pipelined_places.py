"""Copy positions in pipelined loops that depend on runtime steps, tile orders, branches and loops of the body, and tables in memory."""

import numpy as np
import pytest
import tilejit as tile

from tests.chosen_cases import part
from tests.language.test_schedules import sequence
from tests.mma.chosen_kernels import boxes, expected_order, rows_in_computed_order
from tests.mma.test_pipelined import TARGETS


@tile.jit
def shares(A, out, step, ORDER: tile.constexpr, ROLES: tile.constexpr):
    s, t, u = tile.alloc((64,), A.dtype), tile.alloc((64,), A.dtype), tile.alloc((64,), A.dtype)
    total = tile.zeros((64,))
    for i in tile.pipelined(range(tile.program_id(0), A.shape[0], tile.num_programs(0)), stages=3, warp_specialize=ROLES):
        tile.copy_async(s, A[i, 0:64])
        total = total * 0.5 + tile.load(s)
    for i in tile.pipelined(range(A.shape[0] - 1 if step < 0 else 0, -1 if step < 0 else A.shape[0], step), stages=2, warp_specialize=ROLES):
        tile.copy_async(t, A[i, 0:64])
        total = total * 0.5 + tile.load(t)
    for m, n in tile.pipelined(tile.tile_order(3, A.shape[0] // 3, order=ORDER, group=2), stages=4, warp_specialize=ROLES):
        tile.copy_async(u, A[m * (A.shape[0] // 3) + n, 0:64])
        total = total * 0.5 + tile.load(u) * (m + 1)
    tile.store(out[tile.program_id(0), 0:64], total)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("order", ["row", "grouped", "hilbert"])
def test_loops_with_a_runtime_step_and_over_an_order_of_tiles_are_right(order, roles, target):
    """Each CTA's share of rows and of tiles; a step given by an argument, positive or negative, also beyond the range."""
    tiles = sequence(3, 5, order, 2)
    for step in part((1, -2, 7, 40), 2, len(order) + roles):
        a = np.random.default_rng(0).standard_normal((15, 64)).astype(np.float32)
        out, want = np.zeros((4, 64), np.float32), np.zeros((4, 64), np.float32)
        shares.simulate(4, a, out, step, ORDER=order, ROLES=roles, target=target).raise_first()
        for p, total in enumerate(want):
            terms = [a[i] for i in (*range(p, 15, 4), *(range(14, -1, step) if step < 0 else range(0, 15, step)))]
            for term in (*terms, *(a[m * 5 + n] * np.float32(m + 1) for m, n in tiles[p::4])):
                total[:] = total * np.float32(0.5) + term
        np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-6)
    assert shares.compile(a, out, 2, ORDER=order, ROLES=roles, target=target).cubin


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("roles", [False, True])
def test_copy_positions_may_depend_on_branches_and_loops_of_the_body(roles, target):
    """A conditional expression, an `if` that the rest of the body shares, a nested `while` and `for`."""
    a = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    for n, turn in ((0, 0), (1, 1), (7, 0), (8, 1), (9, 2), (5, 3)):
        out, total = np.zeros(64, np.float32), np.zeros(64, np.float32)
        rows_in_computed_order.simulate(1, a, out, n, turn, ROLES=roles, target=target).raise_first()
        for row, more in expected_order(n, turn):
            total = (total + np.float32(more)) * np.float32(0.5) + a[row]
        np.testing.assert_allclose(out, total, rtol=1e-6, atol=1e-6)


@tile.jit(num_warps=4)
def by_table(A, table, out, n, STAGES: tile.constexpr, ROLES: tile.constexpr):
    s = tile.alloc((64, 64), A.dtype, layout=tile.auto)
    for i in tile.pipelined(range(n), stages=STAGES, warp_specialize=ROLES):
        at = tile.load(table[i])
        if at < 0:
            at = tile.load(table[i + 1])
        tile.copy_async(s, A[at, 0:64, 0:64])
        tile.store(out[i, 0:64, 0:64], tile.load(s) + at)


@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_copy_positions_may_be_loaded_from_a_table_in_memory(stages, roles, target):
    """Whoever issues the copies loads them iterations ahead; the kernel does not write the table, and also reads it in the body."""
    a = np.random.default_rng(0).integers(-9, 9, (5, 64, 64)).astype(np.float16)
    table = np.array([3, -1, 4, 0, 0, 2, -5, 1, 3], np.int32)
    at = np.where(table[:8] < 0, table[1:], table[:8])
    for n in (0, 1, 3, 8):
        out = np.zeros((8, 64, 64), np.float16)
        by_table.simulate(1, a, table, out, n, STAGES=stages, ROLES=roles, target=target, seed=n).raise_first()
        np.testing.assert_array_equal(out[:n], a[at[:n]] + at[:n, None, None])
    made = by_table.compile(a, table, out, 8, STAGES=stages, ROLES=roles, target=target)
    assert made.spills == 0 and {c.variant for c in made.copies} == {"ldgsts" if target == "sm_80" else "tma"}


@tile.jit
def by_table_in_memory_that_is_written(A, table, out, log):
    s = tile.alloc((64,), A.dtype)
    for i in tile.pipelined(range(3), stages=3):
        tile.copy_async(s, A[tile.load(table[i]), 0:64])
        tile.store(out[i, 0:64], tile.load(s))
        tile.store(log[i + 1], 2)


def test_a_table_of_copy_positions_must_not_overlap_what_the_kernel_writes():
    """With overlapping arguments, the kernel would write what was loaded iterations ahead."""
    a, table, out, log = np.eye(5, 64, dtype=np.float32), np.zeros(4, np.int32), np.zeros((3, 64), np.float32), np.zeros(4, np.int32)
    by_table_in_memory_that_is_written.simulate(1, a, table, out, log).raise_first()
    assert (out == a[0]).all() and log.tolist() == [0, 2, 2, 2]
    with pytest.raises(tile.CompilationError, match="the kernel writes the memory that it reads"):
        by_table_in_memory_that_is_written.simulate(1, a, log, out, log)
    specs = [tile.ArraySpec(x.shape, x.dtype) for x in (a, table, out, log)]
    assert by_table_in_memory_that_is_written.compile(*specs, target="sm_90a").cubin


def test_the_producer_computes_only_what_the_copies_need_of_a_branch():
    """Of the shared `if`, the producer only computes the row, and the consumers only the sums."""
    made = rows_in_computed_order.compile(tile.ArraySpec((16, 64), "float32"), tile.ArraySpec((64,), "float32"), 8, 1, ROLES=True)
    producer, consumers = made.graph.split("  warpgroup ")[1:]
    assert "copy_async" in producer and "float32[64]:" not in producer and producer.count("while") == 1
    assert "copy_async" not in consumers and "while" not in consumers and "float32[64]" in consumers


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("turn", [0, 1])
def test_a_value_selected_by_a_branch_has_the_divisors_of_both_branches(turn, target):
    """A box begins at a multiple of its columns in either branch, as bulk copies and TMA need."""
    a = np.random.default_rng(turn).standard_normal((16, 5 * 64)).astype(np.float16)
    for roles in (False, True):
        out, total = np.zeros((16, 64), np.float32), np.zeros((16, 64), np.float32)
        boxes.simulate(1, a, out, 5, turn, ROLES=roles, target=target).raise_first()
        for j in range(5)[::-1 if turn else 1]:
            total = total * np.float32(0.5) + a[:, j * 64:j * 64 + 64]
        np.testing.assert_allclose(out, total, rtol=1e-6, atol=1e-6)
    assert {c.variant for c in boxes.compile(a, out, 5, turn, ROLES=True, target=target).copies} == {"ldgsts" if target == "sm_80" else "tma"}
