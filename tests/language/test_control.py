"""Control flow agrees with Python, per thread, per CTA and on tiles, on the simulator."""

import control_cases
import numpy as np
import on_host
import pytest
import tilejit as tile
from hypothesis import assume, given, settings, strategies as st
from language_cases import check_on_simulator
from tilejit.dtypes import int8, integer_range, uint8
from tilejit.ir.graph import Const, leaves_its_range


@pytest.mark.parametrize("level", ["threads", "CTAs", "tiles"])
def test_functions_agree_with_python(level):
    check_on_simulator(control_cases.control(name, level) for name in control_cases.FUNCTIONS)


def test_helpers_are_inlined_with_their_own_variables():
    check_on_simulator([control_cases.helpers()])


@pytest.mark.parametrize("name", control_cases.APART)
def test_a_load_by_some_threads_does_not_wait_for_others(name):
    """A loaded loop condition is broadcast by a shuffle only where all threads of the warp execute the load."""
    case = control_cases.loads_apart(name)
    check_on_simulator([case])
    kernel = tile.jit(source=case.source)
    assert "shfl" not in kernel.compile(**case.args, **case.expected, **case.options, target="sm_90a").ptx


def test_tiles_are_carried_by_loops():
    check_on_simulator(control_cases.loops_of_tiles())


def test_loops_may_need_64_bits():
    check_on_simulator([*control_cases.wide_loops(), *control_cases.constant_wide_loops()])


def test_loops_with_unsigned_bounds_compare_unsigned():
    cases = list(control_cases.unsigned_loops())
    check_on_simulator(cases)
    for case in cases:
        ir = tile.jit(source=case.source).compile(**case.args, **case.expected).llvm_ir
        assert not [line for line in ir.splitlines() if "icmp s" in line and "%p" not in line]


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("name", control_cases.FALLING)
def test_a_loop_down_from_the_upper_half_of_uint64_has_python_s_trip_count(name):
    check_on_simulator(control_cases.falling_loops(name))
    for case in control_cases.falling_loops(name):
        y = np.zeros_like(case.expected["y"])
        on_host.run(case.compile("sm_90a"), *case.args.values(), y)
        assert (y == case.expected["y"]).all(), case.name


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("name", control_cases.ENDINGS)
def test_a_loop_ends_where_its_index_would_leave_the_range_of_its_dtype(name):
    check_on_simulator(control_cases.loops_at_the_ends(name))
    for case in control_cases.loops_at_the_ends(name):
        y = np.zeros_like(case.expected["y"])
        on_host.run(case.compile("sm_90a"), case.args["x"], y)
        assert (y == case.expected["y"]).all(), case.name


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("left", [False, True])
def test_a_loop_with_step_num_programs_ends_as_in_python(dtype, left):
    """Also at the last index of its dtype, over its whole range, with no iteration, and left early."""
    def strided(x, y):
        first, last, trips = tile.load(x[0]), tile.load(x[1]), 0
        if tile.program_id(0) == 0:
            for t in range(first, last, tile.num_programs(0)):
                tile.store(y[trips], t)
                trips += 1
                if trips == 4:
                    break
            tile.store(y[5], trips)

    def short(x, y):
        first, last, trips = tile.load(x[0]), tile.load(x[1]), 0
        if tile.program_id(0) == 0:
            for t in range(first, last, tile.num_programs(0)):
                tile.store(y[min(max(trips, 0), 4)], t)
                trips += 1
            tile.store(y[5], trips)

    kernel, (least, most) = tile.jit(strided if left else short), (np.iinfo(dtype).min, np.iinfo(dtype).max)
    for first, last in ((0, 22), (0, 21), (3, 3), (5, -5), (most - 8, most), (most - 7, most), (most - 1, most), (least, least + 9), (most, least)):
        x, step = np.array([first, last], dtype), on_host.CTAS
        numbers = list(range(first, last, step))
        expected = np.array([*numbers, *[0] * (5 - len(numbers)), len(numbers)], dtype)
        for run in (lambda y: kernel.simulate((step,), x, y).raise_first(), lambda y: on_host.run(kernel.compile(x, y, target="sm_90a"), x, y)):
            y = np.zeros(6, dtype)
            run(y)
            assert (y == expected).all(), (first, last)


BOUNDS = st.sampled_from(["int32", "int64", "constant", "constant of 64 bits"])


@settings(max_examples=120, deadline=None)
@given(first=BOUNDS, last=BOUNDS, step=st.sampled_from(["int32", "int64", "number of CTAs"]), left=st.booleans(), data=st.data())
def test_a_loop_with_a_runtime_step_has_python_s_trip_count(first, last, step, left, data):
    """With constant and runtime bounds of 32 and 64 bits, near and at the limits of their dtypes."""
    def drawn(kind, around):
        info = np.iinfo("int64" if "64" in kind else "int32")
        near = [n for n in (info.min, -9, 0, 2**33, info.max, *around) if info.min <= n <= info.max]
        return int(np.clip(data.draw(st.sampled_from(near)) + data.draw(st.integers(-30, 30)), info.min, info.max))

    a = drawn(first, ())
    b = drawn(last, (a,))
    least = abs(b - a) // 6 + 1  # so that there are few iterations
    info = np.iinfo("int64" if step == "int64" else "int32")
    assume(least <= (7 if step == "number of CTAs" else info.max))
    by = 7 if step == "number of CTAs" else data.draw(st.sampled_from((least, min(least + 3, info.max), info.max))) * data.draw(st.sampled_from((1, -1)))
    head = ", ".join((str(a) if "constant" in first else "tile.load(x[0])", str(b) if "constant" in last else "tile.load(z[0])",
                      "tile.num_programs(0)" if step == "number of CTAs" else "tile.load(w[0])"))
    source = (f"def strided(x, z, w, y):\n    n = 0\n    if tile.program_id(0) == 0:\n        for t in range({head}):\n            tile.store(y[n], t)\n"
              "            n += 1\n" + ("            if n == 7:\n                break\n" if left else "") + "        tile.store(y[7], n)\n")
    x, z, w = (np.array([n], kind) if kind.startswith("int") else np.zeros(1, np.int32)
               for n, kind in ((a, first), (b, last), (by, step)))
    numbers, y = list(range(a, b, by)), np.zeros(8, np.int64)
    tile.jit(source=source).simulate(7, x, z, w, y).raise_first()
    assert y.tolist() == [*numbers, *[0] * (7 - len(numbers)), len(numbers)], (source, a, b, by)


def test_a_loop_with_step_num_programs_needs_no_division():
    @tile.jit
    def strided(x, n):
        for t in range(tile.program_id(0), n, tile.num_programs(0)):
            tile.store(x[t], t)
    ptx = strided.compile(tile.ArraySpec((64,), "int32"), 64, target="sm_90a").ptx
    assert "div." not in ptx and "nounroll" not in ptx


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_loop_with_a_large_step_is_not_unrolled(dtype):
    """ptxas 13.0 unrolls such loops by four and then compares numbers that have wrapped, unless told not to: the loop might not end."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    for step in (most // 8 + 1, most // 2, most, least // 8 - 2, least):
        first, last = (least, most) if step > 0 else (most, least)
        source = (f"def far(x, y):\n    n = 0\n    s = tile.load(x[0]) * 0\n    for i in range(tile.load(x[0]), tile.load(x[1]), {step}):\n"
                  "        n += 1\n        s = s * 5 + i\n    tile.store(y[0], n)\n    tile.store(y[1], s)\n")
        numbers, s = range(first, last, step), 0
        for i in numbers:
            s = s * 5 + i
        x, y = np.array([first, last], dtype), np.zeros(2, dtype)
        kernel = tile.jit(source=source)
        compiled = kernel.compile(x, y, target="sm_90a")
        on_host.run(compiled, x, y)
        expected = np.array([len(numbers), s % 2 ** np.iinfo(dtype).bits], np.uint64).astype(dtype)
        assert (y == expected).all()
        assert '.pragma "nounroll";' in compiled.ptx
        kernel.simulate(1, x, y := np.zeros(2, dtype)).raise_first()
        assert (y == expected).all()


@pytest.mark.parametrize("roles", [False, True])
@pytest.mark.parametrize("first,last,step", [(2**31 - 70, 2**31 - 1, 16), (-2**31, -2**31 + 10, 16), (2**31 - 9, 2**31 - 1, 8),
                                             (-2**31 + 65, -2**31, -16)])
def test_prefetching_loops_end_where_the_index_would_leave_the_range_of_its_dtype(first, last, step, roles):
    @tile.jit
    def ahead(x, y, first, last, step: tile.constexpr, roles: tile.constexpr):
        buffer, total = tile.alloc((16,), x.dtype), tile.zeros((16,), x.dtype)
        for i in tile.pipelined(range(first, last, step), stages=4, warp_specialize=roles):
            at = (i - first) * (1 if step > 0 else -1)
            tile.copy_async(buffer, x[at:at + 16])
            total += tile.load(buffer)
        tile.store(y[0:16], total)

    x, y = np.arange(96, dtype=np.int32), np.zeros(16, np.int32)
    report = ahead.simulate(1, x, y, first, last, step, roles, target="sm_90a")
    assert not report.findings
    assert (y == sum(np.arange(abs(i - first), abs(i - first) + 16) for i in range(first, last, step))).all()


@pytest.mark.parametrize("start,stop,asked", [("0", "n", "icmp ult i32"), ("m", "n", "icmp ne i32"), ("m", "2**30", "icmp slt i32")])
def test_a_loop_has_one_comparison_per_iteration_and_ptxas_unrolls_it_whether_or_not_its_index_may_wrap(start, stop, asked):
    """ptxas unrolls loops whose trip count it can compute: four loads at a time, then two, then one."""
    kernel = tile.jit(source=f"def by_64(x, y, m, n):\n    total = 0.0\n    for i in range({start}, {stop}, 64):\n"
                             "        total += tile.load(x[i])\n    tile.store(y[0], total)\n")
    made = kernel.compile(np.zeros(9000, np.float32), np.zeros(1, np.float32), 5, 6, target="sm_90a")
    loop = made.llvm_ir[made.llvm_ir.index("\nfor"):made.llvm_ir.index("\ndone")]
    assert [line for line in loop.splitlines() if asked in line] and loop.count("icmp") == 2  # the other one is the bounds check
    assert made.sass().count("LDG") >= 7 or stop != "n"


def test_a_scope_given_by_an_argument_is_empty_in_ctas_without_such_threads():
    cases = list(control_cases.absent_scopes())
    check_on_simulator(cases)
    for case in cases:
        ptx = tile.jit(source=case.source).compile(**case.args, **case.expected, **case.options, target="sm_90a").ptx
        assert "shfl.sync" in ptx and "setp.ne" in ptx   # the warp's index and the argument that it is compared with


def test_a_runtime_step_of_zero_is_a_finding():
    kernel = tile.jit(source="def k(y, step):\n    for i in range(0, 5, step):\n        tile.store(y[i], i)\n")
    finding, = kernel.simulate(1, np.zeros(5, np.int32), 0).findings
    assert finding.kind == "assertion" and "the step of a range is 0" in finding.message


def test_a_loop_ends_at_the_end_of_an_array_of_almost_2_to_the_31_elements():
    """The last index plus the step exceeds the largest int32."""
    @tile.jit
    def last_trips(x, y):
        n = 0
        for i in range(x.shape[0] - 5000, x.shape[0], 1024):
            n += tile.sum(tile.load(x[i:i + 1024]))
        tile.store(y[0], n)

    y = np.zeros(1, np.int32)
    last_trips[1](np.broadcast_to(np.int8(1), (2**31 - 5,)), y)
    assert y[0] == 5000


@pytest.mark.parametrize("dtype", [int8, uint8])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 100, -1, -2, -3, -7, -100])
def test_a_loop_index_leaves_its_range_exactly_if_that_of_some_start_does(dtype, step):
    """For every stop: the last index may be each that is short of it."""
    least, most = integer_range(dtype)
    for stop in range(least, most + 1):
        lasts = range(least, stop) if step > 0 else range(stop + 1, most + 1)
        if lasts:
            leaves = not all(least <= last + step <= most for last in lasts)
            assert leaves_its_range(Const(stop, dtype), step, dtype) == leaves, stop
