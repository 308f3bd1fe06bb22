"""Loops left early by break, continue and return, and while loops."""

import numpy as np
import tilejit as tile
from graphs import body, error, expect


def test_continue_becomes_a_branch():
    def kernel(x, y, n):
        acc = 0.0
        for i in range(n):
            v = tile.load(x[i])
            if v < 0:
                continue
            acc += v
        tile.store(y[0], acc)

    expect(kernel, """
        for %i in range(0, %n, 1) carry %acc: float32@cta = 0.0
          %region = region(%x, %i, extents=(1,), kept=()) : region [] of global float32[64]:(1)
          %load = load(%region, 0.0, none) : float32@cta
          %lt = lt(%load, 0.0) : bool@cta
          if %lt
            yield %acc
          else
            %add = add(%acc, %load) : float32@cta
            yield %add
          -> %acc.1: float32@cta
          yield %acc.1
        -> %acc.2
        %region.1 = region(%y, 0, extents=(1,), kept=()) : region [] of global float32[64]:(1)
        store(%region.1, %acc.2, none, each_thread=False)
        """)


def test_a_for_with_break_becomes_a_while_that_carries_the_index_and_a_flag():
    def kernel(y, n, m):
        for i in range(n):
            if i == m:
                break
            tile.store(y[i], 1.0)

    expect(kernel, """
        while carry %index: int32@grid = 0, %break: bool@grid = False
          %bit_not = bit_not(%break) : bool@grid
          %lt = lt(%index, %n) : bool@grid
          %bit_and = bit_and(%bit_not, %lt) : bool@grid
          yield %bit_and
        do
          %eq = eq(%index, %m) : bool@grid
          if %eq
            yield True
          else
            %region = region(%y, %index, extents=(1,), kept=()) : region [] of global float32[64]:(1)
            store(%region, 1.0, none, each_thread=False)
            yield False
          -> %break.1: bool@grid
          %add = add(%index, 1) : int32@grid
          yield %add, %break.1
        -> %index.1, %break.2
        """)


def test_a_break_in_a_branch_that_is_not_compiled_keeps_the_loop_a_for():
    def kernel(y, n, DEBUG: tile.constexpr):
        for i in range(n):
            if DEBUG:
                break
            tile.store(y[i], 1.0)

    assert "for %i" in body(kernel, DEBUG=False) and "while" in body(kernel, DEBUG=True)


def test_break_leaves_only_the_innermost_loop():
    def kernel(y, n):
        for i in range(n):
            for j in range(n):
                if j == i:
                    break
                tile.store(y[j], 1.0)

    lines = body(kernel).splitlines()
    assert lines[0].startswith("  for %i") and lines[1].startswith("    while carry %index")


def test_a_return_leaves_every_loop_and_guards_the_code_after_them():
    def kernel(y, n):
        for i in range(n):
            while tile.load(y[i]) > 0:
                if i == 3:
                    return
        tile.store(y[0], 1.0)

    text = body(kernel)
    assert text.count("while carry") == 2
    assert text.count("%return") > 4 and text.splitlines()[-3].startswith("  if %bit_not")


def test_a_while_evaluates_its_condition_on_each_iteration():
    def kernel(x, y, n):
        i = 0
        while i < n:
            i += 1
        tile.store(y[0], i)

    assert body(kernel).splitlines()[:7] == [
        "  while carry %i: int32@grid = 0", "    %lt = lt(%i, %n) : bool@grid", "    yield %lt", "  do",
        "    %add = add(%i, 1) : int32@grid", "    yield %add", "  -> %i.1"]


def test_a_while_with_a_constant_false_condition_is_not_compiled():
    def kernel(y, DEBUG: tile.constexpr):
        k = 1
        while DEBUG:
            k = this_name_does_not_exist()
        tile.store(y[k], 1.0)

    assert "while" not in body(kernel, DEBUG=False)


def test_a_loop_that_cannot_end_is_an_error():
    def kernel(y, n):
        while True:
            tile.store(y[0], 1.0)

    assert error(kernel).startswith("this loop never ends: its condition is always true")


def test_while_true_ends_by_a_break():
    def kernel(y, n):
        i = 0
        while True:
            if i >= n:
                break
            i += 1
        tile.store(y[0], i)

    assert "    %bit_not = bit_not(%break) : bool@grid\n    yield %bit_not" in body(kernel)


def test_a_break_taken_by_some_threads_makes_the_loop_a_partial_scope():
    def kernel(y, n):
        for i in range(n):
            tile.sync()
            if tile.thread_id() == i:
                break

    assert "sync() is reached by only some threads" in error(kernel)


def test_else_of_a_loop_is_an_error():
    def with_for(y, n):
        for i in range(n):
            pass
        else:
            tile.store(y[0], 1.0)

    def with_while(y, n):
        while n > 0:
            pass
        else:
            tile.store(y[0], 1.0)

    assert error(with_for).startswith("`for ... else` is not supported; set a flag before `break`")
    assert error(with_while).startswith("`while ... else` is not supported")


def test_a_buffer_of_a_scope_may_have_its_name_again_in_later_trips_and_scopes_past_a_break():
    """The name came out of the scope that ended, so the next scope may assign it: with it, no thread outside sees another value."""
    @tile.jit
    def kernel(y, n):
        for i in tile.static_range(4):
            if i == n:
                break
            with tile.elect():
                for j in range(1, 3):
                    s = tile.alloc((2,), tile.int32)
                    tile.store(s[0:2], i * 10 + j)
                    tile.store(y[i, 0:2], tile.load(s))
            tile.sync()
        for i in range(n):
            with tile.elect():
                s = tile.alloc((2,), tile.int32)
                tile.store(s[0:2], i)
        with tile.elect():
            s = tile.alloc((2,), tile.int32)
            tile.store(s[0:2], 7)
            tile.store(y[4, 0:2], tile.load(s))

    y = np.zeros((5, 2), np.int32)
    kernel.simulate(1, y, 3).raise_first()
    np.testing.assert_array_equal(y[:, 0], [2, 12, 22, 0, 7])
