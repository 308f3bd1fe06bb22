"""Which names have a value where control flow meets, if a branch or a trip has left by return, break or continue."""

import numpy as np
import pytest
import tilejit as tile
from graphs import body, error, marked


def outputs(kernel, *arguments, size=4, **constants) -> list:
    y = np.full(size, -1, np.float32)
    kernel = kernel if isinstance(kernel, tile.Kernel) else tile.jit(kernel)
    kernel[1,](y, *arguments, **constants)
    return y.tolist()


def first(kernel, *arguments, **constants) -> float:
    return outputs(kernel, *arguments, **constants)[0]


# -- return ------------------------------------------------------------------------------------------------------------

def test_a_branch_that_returns_need_not_assign_the_name():
    def middle(y, n):
        if n == 1:
            v = 10
        elif n == 2:
            return
        else:
            v = n * 2
        tile.store(y[0], v)

    def deeper(y, n):
        if n > 4:
            if n > 8:
                return
            elif n > 6:
                v = 7
            else:
                for j in range(n):
                    if j == 4:
                        return
                v = 5
        else:
            v = 3
        tile.store(y[0], v)

    assert [first(middle, n) for n in (1, 2, 7)] == [10, -1, 14]
    assert [first(deeper, n) for n in (1, 5, 7, 9)] == [3, -1, 7, -1]


def test_a_branch_that_returns_does_not_count_for_the_type_or_constant_after_it():
    def kernel(y, n):
        SIZE = 4
        if n == 1:
            t = tile.zeros((4,))
        elif n == 2:
            SIZE = 2
            t = tile.full((SIZE,), 9.0)
            tile.store(y[0:SIZE], t)
            return
        else:
            t = tile.full((4,), 3.0)
        tile.store(y[0:SIZE], t)

    assert [outputs(kernel, n) for n in (1, 2, 3)] == [[0] * 4, [9, 9, -1, -1], [3] * 4]


def test_in_a_helper_the_branch_that_returned_leaves_the_names_of_the_others():
    @tile.jit
    def chosen(n):
        if n < 0:
            return 0, tile.zeros((4,))
        elif n == 0:
            scale, t = 5, tile.full((4,), 1.0)
        elif n == 1:
            return 1, tile.full((4,), 2.0)
        else:
            scale, t = n, tile.full((4,), 4.0)
        return scale, t * 10

    def kernel(y, n):
        scale, t = chosen(n)
        tile.store(y[0:4], t + scale)

    assert [first(kernel, n) for n in (-1, 0, 1, 2)] == [0, 15, 3, 42]


def test_the_fillers_of_dtypes_without_a_zero_are_values_of_them():
    @tile.jit
    def scale(n):
        while True:
            t = tile.full((4,), 2.0, tile.float8_e8m0fnu)
            n -= 1
            if n < 0:
                return t

    def kernel(y, n):
        tile.store(y[0:4], tile.float32(scale(n)))

    assert outputs(kernel, 3) == [2] * 4


# -- break and continue ------------------------------------------------------------------------------------------------

def test_after_a_branch_that_leaves_the_trip_the_rest_of_the_trip_has_the_name():
    def kernel(y, n, m):
        total = 0
        for i in range(n):
            if i == m:
                if n > 5:
                    continue
                else:
                    break
            elif i == 1:
                v = 100
            else:
                v = i
            total += v
        tile.store(y[0], total)

    assert [first(kernel, n, m) for n, m in ((4, 9), (4, 2), (7, 3), (7, 1))] == [105, 100, 0 + 100 + 2 + 4 + 5 + 6, 20]


def test_past_a_break_or_continue_the_name_may_be_undefined():
    def broken(y, n):
        for i in range(4):
            if i == n:
                break
            v = i
        tile.store(y[0], v)

    def continued(y, n):
        for i in range(4):
            if i == n:
                continue
            v = i
        tile.store(y[0], v)

    def unrolled(y, n):
        for i in tile.static_range(3):
            if i == n:
                continue
            v = i
        tile.store(y[0], v)

    def carried(y, n):
        v = 1
        for i in range(n):
            if i == 2:
                v = y
                break
        tile.store(y[0], v)

    for kernel in (broken, continued, unrolled):
        text = error(kernel)
        assert text.startswith("v may be undefined: only one branch of a run-time condition assigns it; assign it before\nassigned here:")
        assert marked(text) == "v"
    assert error(carried).startswith("v is a global buffer float32[64] or the number 1, which only a compile-time condition can choose")


def test_a_name_that_clashes_past_a_continue_is_not_read_in_the_next_trip():
    def kernel(x, y, n):
        v = 1.0
        while True:
            tile.store(y[0], v)
            n -= 1
            if n == 3:
                v = x
                continue
            if n < 0:
                break

    assert error(kernel).startswith("v is a global buffer float32[64] or ")


# -- loops that run at least once --------------------------------------------------------------------------------------

def test_names_of_the_last_trip_of_while_true_are_defined_after_it():
    def kernel(y, n):
        while True:
            n -= 1
            if n == 3:
                continue
            last, t, SIZE = n * 2, tile.arange(4) + n, 4
            if n < 0:
                break
        tile.store(y[0:SIZE], t + last)

    assert outputs(kernel, 7) == [-3, -2, -1, 0]


def test_names_assigned_before_each_break_of_while_true_are_defined_after_it():
    def once(y, n):
        while True:
            if n > 5:
                last, t, SIZE = n, tile.arange(4) + n, 4
                break
            n += 2
        tile.store(y[0:SIZE], t + last)

    def twice(y, n):
        while True:
            n += 1
            if n == 5:
                v = 1
                break
            elif n % 7 == 0:
                v = 2
                break
            elif n == 10:
                return
            if n == 11:
                continue
        tile.store(y[0], v)

    def deeper(y, n):
        while True:
            n += 1
            if n > 3:
                if n % 4 == 0:
                    v = n
                    break
                tile.store(y[1], n)
        tile.store(y[0], v)

    def nested(y, n):
        while True:
            while True:
                n += 1
                if n % 3 == 0:
                    v = n
                    break
            if v > 10:
                w = v * 2
                break
        tile.store(y[0], w)

    assert outputs(once, 2) == [12, 13, 14, 15]
    assert [first(twice, n) for n in (2, 5, 8, 10)] == [1, 2, -1, 2]
    assert outputs(deeper, 4) == [8, 7, -1, -1]
    assert first(nested, 2) == 24


def test_names_assigned_before_some_breaks_of_while_true_only_may_be_undefined_after_it():
    def later(y, n):
        while True:
            n += 1
            if n == 5:
                v = 1
                break
            if n == 7:
                break
        tile.store(y[0], v)

    def beside(y, n):
        while True:
            n += 1
            if n == 5:
                v = 1
                break
            else:
                if n == 4:
                    break
        tile.store(y[0], v)

    def deeper(y, n):
        while True:
            n += 1
            if n > 2:
                if n == 5:
                    v = 1
                    break
            if n == 8:
                break
        tile.store(y[0], v)

    def next_trip(y, n):
        while True:
            n += 1
            if n == 5:
                v = 1
                continue
            if n == 9:
                break
        tile.store(y[0], v)

    def unrolled(y, n):
        for i in tile.static_range(3):
            if n == i:
                v = i
                break
        tile.store(y[0], v)

    def buffer(y, n):
        while True:
            n += 1
            if n == 5:
                v = y
                break
            if n == 7:
                break
        tile.store(v[0], n)

    for kernel in (later, beside, deeper, next_trip, unrolled, buffer):
        assert error(kernel).startswith("v may be undefined: ")


def test_buffers_assigned_before_each_break_of_while_true_are_defined_after_it():
    """A buffer is made once, ahead of the loop, wherever the kernel makes it."""
    def made(y, n):
        while True:
            s = tile.alloc((4,), tile.float32)
            tile.sync()
            tile.store(s, tile.arange(4) + n)
            n += 1
            if n > 5:
                break
        tile.sync()
        tile.store(y[0:4], tile.load(s))

    def beside_exits(y, n):
        while True:
            n += 1
            if n == 10:
                return
            if n % 3 != 0:
                continue
            s, scale = tile.alloc((4,), tile.float32), n * 10
            tile.sync()
            tile.store(s, tile.arange(4) + n)
            if n == 6:
                break
            tile.sync()
            if n == 12:
                break
        tile.sync()
        tile.store(y[0:4], tile.load(s) + scale)

    def by_the_break(y, n):
        while True:
            n += 1
            if n == 5:
                v = y
                break
            elif n == 9:
                v = y
                break
        tile.store(v[0], n)

    def nested(y, n):
        while True:
            while True:
                s = tile.alloc((4,), tile.float32)
                tile.sync()
                tile.store(s, tile.arange(4) + n)
                n += 1
                if n % 3 == 0:
                    break
            if n > 7:
                t = s[1:3]
                tile.sync()
                u = tile.load(t)
                break
        tile.store(y[0:4], tile.load(s))
        tile.store(y[0:2], u)

    def over_a_range(y, n):
        for i in range(4):
            s = tile.alloc((4,), tile.float32)
            tile.sync()
            tile.store(s, tile.arange(4) + i)
            if i == n:
                break
        tile.sync()
        tile.store(y[0:4], tile.load(s))

    assert outputs(made, 2) == [5, 6, 7, 8]
    assert [outputs(beside_exits, n) for n in (0, 6, 10)] == [[66, 67, 68, 69], [-1] * 4, [132, 133, 134, 135]]
    assert [first(by_the_break, n) for n in (2, 7)] == [5, 9]
    assert outputs(nested, 1) == [9, 10, 10, 11]
    assert [outputs(over_a_range, n)[0] for n in (2, 9)] == [2, 3]


def test_a_buffer_of_one_break_and_another_of_the_next_are_a_choice_at_run_time():
    def two(y, n):
        a, b = tile.alloc((4,), tile.float32), tile.alloc((4,), tile.float32)
        while True:
            n += 1
            if n == 5:
                s = a
                break
            if n == 7:
                s = b
                break
        tile.store(y[0:4], tile.load(s))

    def place(y, n):
        a = tile.alloc((4, 4), tile.float32)
        while True:
            s = a[n, 0:4]
            n += 1
            if n > 3:
                break
        tile.store(y[0:4], tile.load(s))

    @tile.jit
    def found(n):
        for i in range(n):
            s = tile.alloc((4,), tile.float32)
            if i == 2:
                return s
        return tile.alloc((4,), tile.float32)

    def returned(y, n):
        tile.store(y[0:4], tile.load(found(n)))

    assert "which only a compile-time condition can choose" in error(two)
    assert "returned under a run-time condition; return it at the function's end" in error(returned)
    assert "made under a run-time condition or in a loop; make it where it is used" in error(place)


def test_while_true_may_end_by_returns_in_nested_loops_only():
    @tile.jit
    def reached(n):
        while True:
            while True:
                n -= 1
                if n < 10:
                    return n, tile.arange(4)
                if n % 5 == 0:
                    break
            n -= 100

    def kernel(y, n):
        at, t = reached(n)
        tile.store(y[0:4], t + at)

    assert [first(kernel, n) for n in (333, 12)] == [-86, -91]


def test_code_after_a_while_true_without_a_break_is_not_compiled():
    def kernel(y, n):
        while True:
            n -= 1
            if n < 0:
                tile.store(y[0], n)
                return
        this_name_does_not_exist()

    assert first(kernel, 3) == -1 and "this_name" not in body(kernel)


def test_a_value_that_some_paths_return_and_the_end_does_not_is_still_an_error():
    @tile.jit
    def helper(n):
        while True:
            n -= 1
            if n < 0:
                return n
            if n == 5:
                break

    def kernel(y, n):
        tile.store(y[0], helper(n))

    assert error(kernel).startswith("helper returns a value on one path and none on another")


def test_names_of_a_for_with_constant_bounds_are_defined_after_it():
    def kernel(y, n):
        for i in range(1, 4):
            v, t, SIZE = i * n, tile.arange(4) * i, 4
        tile.store(y[0:SIZE], t + v)

    def left(y, n):
        for i in range(6, 0, -2):
            v = i
            if i == n:
                break
        tile.store(y[0], v)

    def unsure(y, n):
        for i in range(n):
            v = i
        tile.store(y[0], v)

    def never(y, N: tile.constexpr):
        for i in range(N):
            v = i
        tile.store(y[0], v)

    assert outputs(kernel, 10) == [30, 33, 36, 39]
    assert [first(left, n) for n in (4, 5)] == [4, 2]
    assert error(unsure).startswith("v may be undefined: only the loop's body assigns it, and the loop may run zero times")
    assert error(never, N=0).startswith("v is read before it is assigned")


def test_names_of_a_loop_that_nothing_reads_after_it_are_not_carried():
    def kernel(x, y):
        total = tile.zeros((16,))
        for i in range(4):
            v = tile.load(x[i * 16:i * 16 + 16])
            total += v
        tile.store(y[0:16], total)

    text = body(kernel)
    assert "carry %total: float32[16] = %splat\n" in text and text.count("splat(") == 1


@pytest.mark.parametrize("defined", [False, True])
def test_a_tile_cannot_come_out_of_a_loop_whose_trips_differ_between_threads(defined):
    def carried(y):
        t, u = tile.zeros((16,)), tile.ones((16,))
        k = tile.thread_id()
        while k < 3:
            t = u
            k += 1
        tile.store(y[0:16], t)

    def assigned(y):
        u = tile.ones((16,))
        k = tile.thread_id()
        while True:
            t = u
            k += 1
            if k > 3:
                break
        tile.store(y[0:16], t)

    text = error(carried if defined else assigned)
    assert "t is a register tile of the CTA, and the loop that changes it does not run the same trips in all its threads" in text
