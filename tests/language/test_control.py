"""Control flow does what Python does, thread by thread, CTA by CTA and on tiles, on the simulator."""

import control_cases
import pytest
from language_cases import simulated


@pytest.mark.parametrize("level", ["threads", "CTAs", "tiles"])
def test_functions_do_what_python_does(level):
    simulated(control_cases.control(name, level) for name in control_cases.FUNCTIONS)


def test_helpers_are_inlined_with_their_own_names():
    simulated([control_cases.helpers()])


def test_tiles_are_carried_around_loops():
    simulated(control_cases.loops_of_tiles())


def test_loops_may_need_64_bits():
    simulated(control_cases.wide_loops())
