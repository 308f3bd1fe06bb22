"""The cases of this folder on the GPU, in a few processes: the same results as NumPy's. ``pytest -rP`` shows the summaries."""

import control_cases
import memory_cases
import operator_cases
import shape_cases
from language_cases import launched

from tests.gpu import needs_gpu, run_child


def operators():
    launched(operator_cases.elementwise_cases())


def functions():
    """Elementary functions at 100 000 arguments each."""
    launched(operator_cases.function_case(dtype, rows=200) for dtype in ("float32", "float64", "float16", "bfloat16"))
    found = operator_cases.fast_functions_differ()
    assert not found, "\n".join(found)


def memory():
    launched([*shape_cases.shape_cases(), *memory_cases.memory_cases()])


def host_arrays():
    """Host arrays, strided ones too, are copied to the GPU and back."""
    launched(list(memory_cases.memory_cases(few=True)), copies=True)


def control():
    launched(control_cases.control_cases())


@needs_gpu()
def test_operators_and_casts_on_the_gpu():
    print(run_child(operators, timeout=300))


@needs_gpu()
def test_functions_keep_their_stated_accuracy_on_the_gpu():
    print(run_child(functions, timeout=120))


@needs_gpu()
def test_shapes_loads_and_stores_on_the_gpu():
    print(run_child(memory, timeout=120))


@needs_gpu()
def test_host_arrays_are_copied_to_the_gpu_and_back():
    print(run_child(host_arrays, timeout=120))


@needs_gpu()
def test_control_flow_on_the_gpu():
    print(run_child(control, timeout=120))
