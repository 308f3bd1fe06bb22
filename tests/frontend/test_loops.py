"""Loops: the values that they carry, and their types."""

import tilejit as tile
from graphs import body, built, error, expect, marked


def test_a_weak_number_takes_the_type_of_the_value_assigned_in_the_body():
    def kernel(x, y, n):
        acc = 0.0
        for i in range(n):
            acc = acc + tile.load(x[0:16])
        tile.store(y[0:16], acc)

    expect(kernel, """
        %splat = splat(0.0, shape=(16,)) : float32[16]
        for %i in range(0, %n, 1) carry %acc: float32[16] = %splat
          %region = region(%x, 0, extents=(16,), kept=(0,)) : region [16] of global float32[64]:(1)
          %load = load(%region, 0.0, none) : float32[16]
          %add = add(%acc, %load) : float32[16]
          yield %add
        -> %acc.1
        %region.1 = region(%y, 0, extents=(16,), kept=(0,)) : region [16] of global float32[64]:(1)
        store(%region.1, %acc.1, none, each_thread=False)
        """)


def test_a_weak_number_takes_the_dtype_assigned_in_the_body():
    def kernel(x, y, n):
        acc = 0.0
        for i in range(n):
            acc += tile.float16(1.5)
        tile.store(y[0], acc)

    assert "carry %acc: float16@grid = 0.0" in body(kernel)


def test_a_counter_becomes_a_runtime_value():
    def kernel(y, n):
        phase = 0
        for i in range(n):
            phase ^= 1
        tile.store(y[0], phase)

    assert body(kernel).splitlines()[:3] == [
        "  for %i in range(0, %n, 1) carry %phase: int32@grid = 0",
        "    %bit_xor = bit_xor(%phase, 1) : int32@grid",
        "    yield %bit_xor"]


def test_a_carried_scalar_has_the_uniformity_of_its_value_at_the_end_of_the_body():
    def kernel(y, n):
        k = 0
        last = 0
        for i in range(n):
            last = k
            k = k + tile.lane_id()
        tile.store(y[0:16], tile.full((16,), n))
        tile.store(y[last], 1.0)

    assert "carry %last: int32@thread = 0, %k: int32@thread = 0" in body(kernel)


def test_a_carried_scalar_is_no_more_uniform_than_the_trip_count():
    def kernel(y):
        k = 0
        for i in range(tile.warp_id()):
            k += 1
        tile.store(y[k], 1.0)

    assert "carry %k: int32@warp = 0" in body(kernel)


def test_a_barrier_in_a_loop_whose_trip_count_differs_between_threads_is_an_error():
    def kernel(y):
        for i in range(tile.thread_id()):
            tile.sync()

    assert "sync() is reached by only some threads" in error(kernel)


def test_values_that_the_body_does_not_change_stay_constants():
    def kernel(y, n, DEBUG: tile.constexpr):
        size = 16
        half = 8
        for i in range(n):
            if DEBUG:
                size = size + 1
            half = 8
            tile.store(y[0:size], tile.zeros((size,), tile.float32))
            tile.store(y[0:half], tile.zeros((half,), tile.float32))
        tile.store(y[0:half], tile.zeros((half,), tile.float32))

    assert "carry" not in body(kernel, DEBUG=False)


def test_tuple_elements_that_the_body_does_not_change_stay_constants():
    def kernel(y, n):
        state = (0, 16)
        for i in range(n):
            tile.store(y[0:state[1]], tile.full((state[1],), state[0]))
            state = (state[0] + 1, state[1])
        tile.store(y[0], state[0])

    assert "carry %state: int32@grid = 0\n" in body(kernel)


def test_nested_loops_carry_values_through_each_other():
    def kernel(x, y, n):
        acc = 0.0
        for i in range(n):
            for j in tile.range(0, 4, 2, unroll=2):
                acc += tile.load(x[j:j + 8])
        tile.store(y[0:8], acc)

    expect(kernel, """
        %splat = splat(0.0, shape=(8,)) : float32[8]
        for %i in range(0, %n, 1) carry %acc: float32[8] = %splat
          for %j in range(0, 4, 2) unroll 2 carry %acc.1: float32[8] = %acc
            %add = add(%j, 8) : int32@grid
            %region = region(%x, %j, extents=(8,), kept=(0,)) : region [8] of global float32[64]:(1)
            %load = load(%region, 0.0, none) : float32[8]
            %add.1 = add(%acc.1, %load) : float32[8]
            yield %add.1
          -> %acc.2
          yield %acc.2
        -> %acc.3
        %region.1 = region(%y, 0, extents=(8,), kept=(0,)) : region [8] of global float32[64]:(1)
        store(%region.1, %acc.3, none, each_thread=False)
        """)


def test_a_loop_with_a_constant_trip_count_of_zero_is_omitted():
    def kernel(y):
        i = 3
        for i in range(5, 5):
            tile.store(y[0], 1.0)
        for i in range(0, 5, -1):
            tile.store(y[0], 1.0)
        tile.store(y[i], 1.0)

    assert body(kernel).startswith("  %region = region(%y, 3,") and "for" not in body(kernel)


def test_a_range_may_count_down():
    def kernel(y, n):
        for i in range(n, 0, -2):
            tile.store(y[i], 1.0)

    assert "for %i in range(%n, 0, -2)" in body(kernel)


def test_a_constant_step_of_zero_is_an_error():
    def zero(y, n):
        for i in range(0, n, 0):
            pass

    assert error(zero).startswith("the step of range is not 0")


def test_a_loop_with_step_num_programs_counts_up_and_needs_no_assertion():
    def persistent(y, n):
        for i in range(tile.program_id(0), n, tile.num_programs(0)):
            tile.store(y[i], 1.0)

    assert "select" not in body(persistent) and "assert" not in body(persistent)


def test_an_unrolled_loop_needs_constant_bounds_and_a_limited_trip_count():
    def of_any_length(y, n):
        for i in tile.range(n, unroll=True):
            tile.store(y[i], 1.0)

    def by_any_step(y, n):
        for i in tile.range(0, 8, n, unroll=True):
            tile.store(y[i], 1.0)

    def of_many_trips(y):
        for i in tile.range(0, 1 << 20, 2, unroll=True):
            tile.store(y[i], 1.0)

    def of_many_copies(y, n):
        for i in tile.range(n, unroll=1 << 20):
            tile.store(y[i], 1.0)

    def of_none(y):
        for i in tile.range(8, unroll=0):
            tile.store(y[i], 1.0)

    assert "unroll=True unrolls all iterations" in error(of_any_length) and "unroll=True unrolls all iterations" in error(by_any_step)
    assert f"{1 << 19} copies of its body (at most 4096)" in error(of_many_trips)
    assert f"{1 << 20} copies of its body (at most 4096)" in error(of_many_copies)
    assert "unroll is True or a positive number of copies, not the number 0" in error(of_none)


def test_a_range_needs_integers():
    def kernel(y, n):
        for i in range(n / 2):
            pass

    text = error(kernel)
    assert text.startswith("the stop of range is an integer, not a scalar float32; // divides integers")
    assert marked(text) == "range(n / 2)"


def test_a_carried_tile_that_changes_type_is_an_error_that_shows_both_lines():
    def kernel(x, y, n):
        w = tile.load(x[0:16])
        for i in range(n):
            tile.store(y[0:16], w)
            w = tile.load(x[0:32])

    text = error(kernel)
    assert text.startswith("w is a tile float32[16], and the loop makes it a tile float32[32]; a name keeps its type in a loop")
    assert "w = tile.load(x[0:16])" in text and "w = tile.load(x[0:32])" in text
    assert marked(text) == "for i in range(n):"


def test_a_name_that_is_reassigned_before_use_in_the_body_may_change_its_type():
    def kernel(x, y, n):
        w = tile.load(x[0:16])
        tile.store(y[0:16], w)
        for i in range(n):
            w = tile.load(x[0:32])
            tile.store(y[0:32], w)

    assert "carry" not in body(kernel)


def test_such_a_name_is_undefined_after_the_loop():
    def kernel(x, y, n):
        w = tile.load(x[0:16])
        for i in range(n):
            w = tile.load(x[0:32])
        tile.store(y[0:16], w)

    text = error(kernel)
    assert "so it holds nothing after the loop" in text and "read here:" in text


def test_a_loop_cannot_swap_buffers():
    def kernel(x, y, n):
        a, b = x, y
        for i in range(n):
            tile.store(a[i], 1.0)
            a, b = b, a

    assert "a loop that runs on the device cannot change it" in error(kernel)


def test_a_name_assigned_only_in_the_body_may_be_undefined_after_it():
    def kernel(x, y, n):
        for i in range(n):
            v = tile.load(x[i])
        tile.store(y[0], v)

    assert error(kernel).startswith("v may be undefined: only the loop's body assigns it, and the loop may run zero times")


def test_the_index_is_undefined_after_the_loop():
    def kernel(y, n):
        for i in range(n):
            pass
        tile.store(y[i], 1.0)

    assert error(kernel).startswith("i is the index of a loop that has ended")


def test_allocations_in_a_body_that_is_traced_twice_are_made_once():
    def kernel(x, n):
        acc = 0.0
        for i in range(n):
            s = tile.alloc((16,), tile.float32)
            tile.store(s[0:16], tile.load(x[0:16]))
            acc = acc + tile.load(s[0:16])
            tile.static_print("walked")
        tile.store(x[0:16], acc)

    assert body(kernel).count("alloc_shared(") == 1


def test_static_prints_in_a_body_that_is_traced_twice_print_once(capsys):
    def kernel(x, n):
        acc = 0.0
        for i in range(n):
            acc = acc + tile.load(x[0:16])
            tile.static_print("size", 16, acc)
        tile.store(x[0:16], acc)

    built(kernel)
    assert capsys.readouterr().out == "size 16 float32[16]\n"
