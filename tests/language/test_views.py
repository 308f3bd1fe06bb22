"""Kernels on arrays of any dtype, shape, strides and offset agree with NumPy: on the simulator, and on the GPU."""

import os
import re

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from view_cases import KINDS, view_cases

from tests.gpu import needs_gpu, run_child

EXAMPLES = 40   # of each kind, on the simulator


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_arrays_may_lie_in_memory_in_any_way(kind):
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(view_cases([kind]))
    def agrees(case):
        assert not (found := case.simulate()), "\n".join(found)

    agrees()
