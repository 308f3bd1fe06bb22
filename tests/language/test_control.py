"""Control flow does what Python does, thread by thread, CTA by CTA and on tiles, on the simulator."""

import control_cases
import numpy as np
import pytest
import tilejit as tile
from language_cases import simulated


@pytest.mark.parametrize("level", ["threads", "CTAs", "tiles"])
def test_functions_do_what_python_does(level):
    simulated(control_cases.control(name, level) for name in control_cases.FUNCTIONS)


def test_helpers_are_inlined_with_their_own_names():
    simulated([control_cases.helpers()])


@pytest.mark.parametrize("name", control_cases.APART)
def test_a_load_by_some_threads_waits_for_no_others(name):
    """What steers loops is shuffled through the warp where all of its threads load it, and only there."""
    case = control_cases.loads_apart(name)
    simulated([case])
    kernel = tile.jit(source=case.source)
    assert "shfl" not in kernel.compile(**case.args, **case.expected, **case.options, target="sm_90a").ptx


def test_tiles_are_carried_around_loops():
    simulated(control_cases.loops_of_tiles())


def test_loops_may_need_64_bits():
    simulated(control_cases.wide_loops())


def test_loops_of_unsigned_bounds_compare_them_as_such():
    cases = list(control_cases.unsigned_loops())
    simulated(cases)
    for case in cases:
        ir = tile.jit(source=case.source).compile(**case.args, **case.expected).llvm_ir
        assert not [line for line in ir.splitlines() if "icmp s" in line and "%p" not in line]


def test_a_scope_that_the_launch_names_is_empty_where_the_cta_has_no_such_threads():
    cases = list(control_cases.absent_scopes())
    simulated(cases)
    for case in cases:
        ptx = tile.jit(source=case.source).compile(**case.args, **case.expected, **case.options, target="sm_90a").ptx
        assert "shfl.sync" in ptx and "setp.ne" in ptx   # the warp's id, and what it is compared with


def test_a_run_time_step_of_zero_is_a_finding():
    kernel = tile.jit(source="def k(y, step):\n    for i in range(0, 5, step):\n        tile.store(y[i], i)\n")
    finding, = kernel.simulate(1, np.zeros(5, np.int32), 0).findings
    assert finding.kind == "assertion" and "the step of a range is 0" in finding.message


def test_a_loop_ends_at_the_end_of_an_array_of_almost_2_to_the_31():
    """The index of the last trip and a step together pass the largest int32."""
    @tile.jit
    def last_trips(x, y):
        n = 0
        for i in range(x.shape[0] - 5000, x.shape[0], 1024):
            n += tile.sum(tile.load(x[i:i + 1024]))
        tile.store(y[0], n)

    y = np.zeros(1, np.int32)
    last_trips[1](np.broadcast_to(np.int8(1), (2**31 - 5,)), y)
    assert y[0] == 5000
