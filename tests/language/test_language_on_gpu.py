"""The cases of this folder on the GPU, in a few processes: the same results as NumPy's."""

import control_cases
import memory_cases
import operator_cases
import shape_cases
from language_cases import launched

from tests.gpu import in_child, needs_gpu


@needs_gpu()
@in_child(timeout=240)
def test_operators_casts_and_functions_on_the_gpu():
    launched(operator_cases.elementwise_cases())


@needs_gpu()
@in_child(timeout=120)
def test_shapes_loads_and_stores_on_the_gpu():
    launched([*shape_cases.shape_cases(), *memory_cases.memory_cases()])


@needs_gpu()
@in_child(timeout=120)
def test_control_flow_on_the_gpu():
    launched(control_cases.control_cases())
