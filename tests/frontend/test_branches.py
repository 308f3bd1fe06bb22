"""Conditions: which are decided at compile time, which become If nodes, and what names hold afterwards."""

import numpy as np
import pytest
import tilejit as tile
from graphs import body, built, error, expect, marked


def test_only_the_branch_taken_of_a_compile_time_condition_is_compiled():
    def kernel(y, FAST: tile.constexpr):
        if FAST:
            tile.store(y[0], 1.0)
        else:
            this_name_does_not_exist()

    expect(kernel, """
        %region = region(%y, 0, extents=(1,), kept=()) : region [] of global float32[64]:(1)
        store(%region, 1.0, none, each_thread=False)
        """, FAST=True)


def test_a_name_assigned_in_both_branches_becomes_a_result_of_the_if():
    def kernel(y, n):
        if n > 3:
            v = 1.0
        elif n > 1:
            v = 2
        else:
            v = 3.5
        tile.store(y[0], v)

    expect(kernel, """
        %gt = gt(%n, 3) : bool@grid
        if %gt
          yield 1.0
        else
          %gt.1 = gt(%n, 1) : bool@grid
          if %gt.1
            yield 2.0
          else
            yield 3.5
          -> %v: float32@grid
          yield %v
        -> %v.1: float32@grid
        %region = region(%y, 0, extents=(1,), kept=()) : region [] of global float32[64]:(1)
        store(%region, %v.1, none, each_thread=False)
        """)


def test_equal_constants_from_both_branches_stay_constants():
    def kernel(y, n):
        if n > 3:
            k = 8
            tile.store(y[0], 1.0)
        else:
            k = 8
        tile.store(y[0:k], tile.zeros((k,), tile.float32))

    assert "->" not in body(kernel)


def test_results_of_an_if_that_nothing_reads_are_omitted():
    def kernel(y, n):
        if n > 3:
            scratch = n + 1
            tile.store(y[0], scratch)
        else:
            scratch = n + 2
            tile.store(y[1], scratch)

    assert "->" not in body(kernel)


def test_tuples_merge_element_by_element():
    def kernel(y, n):
        pair = (1, (2.0, 3))
        if n > 3:
            pair = (1, (n * 0.5, 3))
        a, (b, c) = pair
        tile.store(y[a + c], b)

    expect(kernel, """
        %gt = gt(%n, 3) : bool@grid
        if %gt
          %cast = cast(%n, dtype=float32) : float32@grid
          %mul = mul(%cast, 0.5) : float32@grid
          yield %mul
        else
          yield 2.0
        -> %pair: float32@grid
        %region = region(%y, 4, extents=(1,), kept=()) : region [] of global float32[64]:(1)
        store(%region, %pair, none, each_thread=False)
        """)


def test_a_result_is_no_more_uniform_than_its_condition():
    def kernel(y):
        k = 0
        if tile.warp_id() > 1:
            k = 1
        tile.store(y[k], 1.0)

    assert "%k: int32@warp" in body(kernel)


def test_a_name_assigned_in_only_one_branch_may_be_undefined_afterwards():
    def kernel(y, n):
        if n > 3:
            v = 1.0
        tile.store(y[0], v)

    text = error(kernel)
    assert text.startswith("v may be undefined: only one branch of a run-time condition assigns it; assign it before\nassigned here:")
    assert marked(text) == "v"


def test_branches_that_disagree_about_a_type_show_both_lines():
    def kernel(x, y, n):
        v = tile.load(x[0:16])
        if n > 3:
            v = tile.load(x[0:32])
        tile.store(y[0:16], v)

    text = error(kernel)
    assert text.startswith("v is a tile float32[32] or a tile float32[16], after a condition that is decided at run time")
    assert "v = tile.load(x[0:16])" in text and "v = tile.load(x[0:32])" in text


def test_names_with_different_types_in_the_branches_are_no_error_unless_read():
    def kernel(x, y, n):
        if n > 3:
            v = tile.load(x[0:16])
            tile.store(y[0:16], v)
        else:
            v = tile.load(x[0:32])
            tile.store(y[0:32], v)

    built(kernel)


def test_a_buffer_can_only_be_selected_by_a_compile_time_condition():
    def kernel(x, y, n):
        target = x
        if n > 3:
            target = y
        tile.store(target[0], 1.0)

    assert "which only a compile-time condition can choose" in error(kernel)


def test_a_tile_cannot_be_selected_by_a_condition_that_differs_between_threads():
    def chosen(x, y):
        t, u = tile.load(x[0:16]), tile.load(x[16:32])
        if tile.thread_id() < 3:
            t = u
        tile.store(y[0:16], t)

    def computed(x, y):
        t = tile.load(x[0:16])
        if tile.thread_id() < 3:
            t = -t
        tile.store(y[0:16], t)

    text = error(chosen)
    assert "t is a register tile of the CTA, and the condition on lt that changes it differs between its threads" in text
    assert "tile.where" in text
    assert "neg of a tile needs all threads of the cta, and the condition `tile.thread_id() < 3` differs between them" in error(computed)


def test_a_tile_cannot_be_a_condition():
    def kernel(x):
        if tile.load(x[0:16]) > 0:
            pass

    assert error(kernel).startswith("a condition is one scalar, not a tile bool[16]; choose element by element with tile.where")


def test_a_conditional_expression_with_a_runtime_condition_becomes_an_if():
    def kernel(y, n):
        tile.store(y[0], 1.0 if n == 2 else n)

    expect(kernel, """
        %region = region(%y, 0, extents=(1,), kept=()) : region [] of global float32[64]:(1)
        %eq = eq(%n, 2) : bool@grid
        if %eq
          yield 1.0
        else
          %cast = cast(%n, dtype=float32) : float32@grid
          yield %cast
        -> %chosen: float32@grid
        store(%region, %chosen, none, each_thread=False)
        """)


def test_and_or_evaluate_both_sides_if_that_has_no_visible_effect():
    def kernel(y, n, m):
        if n > 1 and m < 2 or False:
            tile.store(y[0], 1.0)

    assert body(kernel).splitlines()[:4] == [
        "  %gt = gt(%n, 1) : bool@grid", "  %lt = lt(%m, 2) : bool@grid",
        "  %bit_and = bit_and(%gt, %lt) : bool@grid", "  if %bit_and"]


def test_the_right_side_of_and_reads_memory_only_if_the_left_side_is_true():
    def kernel(x, y, n):
        if n > 1 and tile.load(x[n]) > 0:
            tile.store(y[0], 1.0)

    lines = body(kernel).splitlines()
    assert lines[1] == "  if %gt" and lines[3].startswith("    %load = load(")
    assert "    yield False" in lines


def test_and_or_of_two_numbers_return_the_operand_that_decides():
    def kernel(y, n):
        m = tile.int32(n)
        tile.store(y[0], n or 5)
        tile.store(y[1], m and tile.int32(7))
        tile.store(y[2], tile.int32(3) or m)
        tile.store(y[3], n or y.shape[0] and 2.5)
        if m and n:                       # only its truth value matters
            tile.store(y[4], m and n > 2)  # also next to a bool

    for n, want in ((0, [5, 0, 3, 2.5, -1]), (4, [4, 7, 3, 4, 1]), (2, [2, 7, 3, 2, 0])):
        y = np.full(5, -1.0, np.float32)
        tile.jit(kernel)[1,](y, n)
        assert y.tolist() == want


def test_and_or_of_two_dtypes_return_the_deciding_operand_in_the_promoted_dtype():
    def kernel(x, b, y, n):
        tile.store(y[0], tile.load(b[0]) and tile.load(x[0]))    # loads: the right one only if the left one is true
        tile.store(y[1], tile.int32(n) or 1.5)
        tile.store(y[2], tile.load(x[0]) or tile.load(b[1]))
        tile.store(y[3], tile.int8(n) and tile.int64(n) and 2**40)
        tile.static_assert((tile.load(b[0]) and tile.load(x[0])).dtype == tile.int32)
        tile.static_assert((tile.int32(n) or 1.5).dtype == tile.float32)
        tile.static_assert((tile.int8(n) and tile.int64(n)).dtype == tile.int64)

    for n, x, b, want in ((0, 7, (-3, 2), [7, 1.5, 7, 0]), (4, 0, (0, 2), [0, 4, 2, 2**40]), (4, -9, (0, 2), [0, 4, -9, 2**40])):
        y = np.full(4, -1.0, np.float64)
        tile.jit(kernel)[1,](np.array([x], np.int32), np.array(b, np.int8), y, n)
        assert y.tolist() == want


def test_and_or_reduce_to_truth_values_below_not_and_in_conditions():
    def kernel(y, n, m):
        i, f = tile.int32(n), tile.float32(m)
        if not (i and f):
            tile.store(y[0], 1.0)
        while not (i or f):
            i += 1
        tile.store(y[1], i)
        tile.store(y[2], bool(n and f))
        tile.store(y[3], tile.where(i and f, 5.0, 6.0))
        tile.device_assert(i or f)
        tile.assume(i or f)

    for n, m, want in ((0, 0, [1, 1, 0, 6]), (0, 2, [1, 0, 0, 6]), (3, 2, [-1, 3, 1, 5])):
        y = np.full(4, -1.0, np.float32)
        tile.jit(kernel)[1,](y, n, m)
        assert y.tolist() == want

    def computed(y, n, m):
        tile.store(y[0], not (n and m))
        tile.store(y[1], tile.where(n or tile.float32(m), 1.0, 2.0))

    text = body(computed)
    assert "bit_and(" in text and "bit_or(" in text and "if " not in text


def test_an_operand_of_another_dtype_is_evaluated_only_if_it_is_needed():
    def kernel(count, y, n):
        tile.store(y[0], tile.int8(n) and tile.atomic_add(count[0], 1))
        tile.store(y[1], tile.float32(n) or tile.atomic_add(count[0], 10))

    for n, counted, want in ((0, 15, [0, 5]), (3, 6, [5, 3])):
        count, y = np.array([5], np.int32), np.full(2, -1.0, np.float32)
        tile.jit(kernel)[1,](count, y, n)
        assert count[0] == counted and y.tolist() == want


def test_and_or_of_a_number_and_a_bool_give_a_bool_unless_decided_at_compile_time():
    def kernel(y, n):
        tile.static_assert((n or n > 3).dtype == tile.bool_)
        tile.static_assert((5 or n > 3) == 5)
        tile.static_assert((5 and n).dtype == tile.int32)

    built(kernel)


def test_and_or_refuse_tiles():
    for line in ("n and v", "v or n", "n and tile.load(y[0:4])"):
        kernel = tile.jit(source=f"def kernel(y, n):\n    v = tile.arange(4)\n    w = {line}\n")
        with pytest.raises(tile.CompilationError, match="takes scalars; for tiles write a"):
            kernel.compile(tile.ArraySpec((4,), "float32"), 3)


def test_a_compile_time_operand_of_and_or_can_decide_without_evaluating_the_other():
    def kernel(y, n, FAST: tile.constexpr):
        if FAST or this_name_does_not_exist():
            tile.store(y[0], 1.0)
        if not FAST and n > 0:
            this_name_does_not_exist()

    built(kernel, FAST=True)


def test_comparisons_may_be_chained():
    def kernel(y, n):
        if 0 < n < 5 <= 7:
            tile.store(y[0], 1.0)

    assert body(kernel).splitlines()[:4] == [
        "  %lt = lt(0, %n) : bool@grid", "  %lt.1 = lt(%n, 5) : bool@grid",
        "  %bit_and = bit_and(%lt, %lt.1) : bool@grid", "  if %bit_and"]


def test_code_after_an_early_return_moves_to_the_other_branch():
    def kernel(y, n):
        if n > 3:
            return
        tile.store(y[0], 1.0)

    expect(kernel, """
        %gt = gt(%n, 3) : bool@grid
        if %gt
        else
          %region = region(%y, 0, extents=(1,), kept=()) : region [] of global float32[64]:(1)
          store(%region, 1.0, none, each_thread=False)
        """)


def test_code_after_a_return_in_a_nested_branch_is_guarded():
    def kernel(y, n, m):
        if n > 3:
            tile.store(y[1], 1.0)
            if m > 3:
                return
        tile.store(y[0], 1.0)

    expect(kernel, """
        %gt = gt(%n, 3) : bool@grid
        if %gt
          %region = region(%y, 1, extents=(1,), kept=()) : region [] of global float32[64]:(1)
          store(%region, 1.0, none, each_thread=False)
          %gt.1 = gt(%m, 3) : bool@grid
          if %gt.1
            yield True
          else
            yield False
          -> %return: bool@grid
          yield %return
        else
          yield False
        -> %return.1: bool@grid
        %bit_not = bit_not(%return.1) : bool@grid
        if %bit_not
          %region.1 = region(%y, 0, extents=(1,), kept=()) : region [] of global float32[64]:(1)
          store(%region.1, 1.0, none, each_thread=False)
        """)


def test_a_barrier_after_some_threads_returned_is_an_error():
    def kernel(y):
        if tile.thread_id() > 31:
            return
        tile.sync()

    text = error(kernel)
    assert "sync() is reached by only some threads" in text and marked(text) == "tile.sync()"


def test_unreachable_code_is_not_compiled():
    def kernel(y):
        return
        this_name_does_not_exist()

    assert body(kernel) == ""
