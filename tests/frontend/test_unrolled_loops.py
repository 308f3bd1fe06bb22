"""Loops that are unrolled while the kernel is traced."""

import tilejit as tile
from graphs import body, error, marked


def test_static_range_traces_the_body_once_per_number():
    def kernel(y):
        for i in tile.static_range(1, 6, 2):
            if i == 3:
                continue
            tile.store(y[i], i)

    text = body(kernel)
    assert "region(%y, 1," in text and "region(%y, 3," not in text and "region(%y, 5," in text and "for" not in text


def test_tuples_zip_and_enumerate_are_unrolled():
    def kernel(y):
        for k, (a, b) in enumerate(zip((1, 2), (3.0, 4.0))):
            tile.store(y[a], b + k)

    assert "region(%y, 2," in body(kernel) and "store(%region.1, 5.0," in body(kernel)


def test_a_runtime_break_guards_the_remaining_copies_of_the_body():
    def kernel(y, n):
        for i in tile.static_range(3):
            if n == i:
                break
            tile.store(y[i], 1.0)

    text = body(kernel)
    assert text.count("if %bit_not") == 2 and text.count("store(") == 3


def test_static_range_needs_constant_bounds_and_a_limited_length():
    def runtime(y, n):
        for i in tile.static_range(n):
            pass

    def huge(y):
        for i in tile.static_range(10**9):
            pass

    assert error(runtime).startswith("static_range is unrolled while compiling, and a scalar int32 is known at run time only")
    assert error(huge).startswith("static_range would write 1000000000 copies of the loop's body (at most 4096); use range")


def test_a_loop_over_an_unsupported_object_lists_what_loops_accept():
    def kernel(x):
        for v in x:
            pass

    text = error(kernel)
    assert "a loop runs over range(...), tile.range(...), tile.static_range(...), a tuple, a list or a dict, not over a global buffer" in text
    assert marked(text) == "x"
