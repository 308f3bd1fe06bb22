"""The cases of this folder on the GPU, in a few processes, compared with NumPy. ``pytest -rP`` shows the summaries."""

import control_cases
import memory_cases
import numpy as np
import operator_cases
import shape_cases
import tilejit as tile
from language_cases import check_on_gpu

from tests.gpu import needs_gpu, run_child


def operators():
    check_on_gpu(operator_cases.elementwise_cases())


def functions():
    """Elementary functions with 100 000 arguments each."""
    check_on_gpu(operator_cases.function_case(dtype, rows=200) for dtype in ("float32", "float64", "float16", "bfloat16"))
    found = operator_cases.fast_functions_differ()
    assert not found, "\n".join(found)


def memory():
    check_on_gpu([*shape_cases.shape_cases(), *memory_cases.memory_cases()])


def host_arrays():
    """Host arrays, also strided ones, are copied to the GPU and back."""
    check_on_gpu(list(memory_cases.memory_cases(few=True)), copies=True)


def control():
    check_on_gpu(control_cases.control_cases())


@needs_gpu()
def test_operators_and_casts_agree_with_numpy_on_the_gpu():
    print(run_child(operators, timeout=300))


@needs_gpu()
def test_functions_have_their_documented_accuracy_on_the_gpu():
    print(run_child(functions, timeout=120))


@needs_gpu()
def test_shapes_loads_and_stores_agree_with_numpy_on_the_gpu():
    print(run_child(memory, timeout=120))


@needs_gpu()
def test_host_arrays_are_copied_to_the_gpu_and_back():
    print(run_child(host_arrays, timeout=120))


@needs_gpu()
def test_control_flow_agrees_with_python_on_the_gpu():
    print(run_child(control, timeout=120))


@tile.jit
def grown(x, n, by=2, BLOCK: tile.constexpr = 128):
    i = tile.program_id(0) * BLOCK
    tile.store(x[i:i + BLOCK], tile.load(x[i:i + BLOCK]) + by)


def grids_of_every_kind(place=tile.to_device):
    """The second call takes the fast path; both get the same grid."""
    x = place(np.zeros(1000, np.float32))
    grids = [8, (8,), (8, 1), [8, 1, 1], lambda meta: tile.cdiv(meta["n"], meta["BLOCK"]),
             lambda meta: (tile.cdiv(meta["x"].shape[0], meta["BLOCK"]), meta["by"] // 2)]
    for grid in grids:
        for _ in range(3):
            grown[grid](x, 1000, 2)
    for _ in range(3):
        grown[grids[-1]](x, 1000, BLOCK=256)
    assert (np.asarray(x if isinstance(x, np.ndarray) else x.numpy()) == 2 * (3 * len(grids) + 3)).all()


def test_a_grid_may_be_given_in_every_form():
    grids_of_every_kind(place=lambda x: x)


@needs_gpu()
def test_a_grid_may_be_given_in_every_form_on_the_gpu():
    run_child(grids_of_every_kind, timeout=60)
