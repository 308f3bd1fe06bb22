"""Kernels on arrays of any dtype, shape, strides and offset agree with NumPy, on the simulator and on the GPU."""

import os
import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from view_cases import KINDS, view_cases

from tests.gpu import needs_gpu, run_child

EXAMPLES = 40       # of each kind, on the simulator
ON_THE_GPU = 400    # of all kinds


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_arrays_may_have_any_strides_and_offset(kind):
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(view_cases([kind]))
    def agrees(case):
        assert not (found := case.simulate()), "\n".join(found)

    agrees()


def on_gpu(examples: int) -> None:
    """Draw cases; run each on the simulator and, if that agrees with NumPy, on the GPU."""
    ran = Counter()

    @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(view_cases(), st.booleans())
    def agrees(case, copies):
        """`copies`: with host arrays, which the launch copies to the GPU and back."""
        assert not (found := case.simulate()), "\n".join(found)
        assert not (found := case.launch(copies)), "on the GPU: " + "\n".join(found)
        ran[case.name.split(" in ")[0].split(",")[0]] += 1

    agrees()
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(ran.items())))
    print(f"{sum(ran.values())} examples agree on the GPU")


@needs_gpu()
def test_arrays_may_have_any_strides_and_offset_on_the_gpu():
    examples = max(ON_THE_GPU // int(os.environ.get("TILEJIT_EVERY", "1")), 20)
    output = run_child(on_gpu, timeout=300, examples=examples)
    print(output)
    assert int(re.search(r"(\d+) examples agree on the GPU", output)[1]) >= examples
