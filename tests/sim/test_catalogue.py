"""The catalogue of faulty kernels for the GPU is complete, and right."""

import os

import pytest
from catalogue import FAULTS, HIDDEN, MODULES
from faulty import marks
from jitter_gpu import LEAST, bad_twins, run_all, table
from tilejit.jit import Kernel

from tests.gpu import needs_gpu


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_every_faulty_kernel_is_in_the_catalogue_or_has_a_reason_why_not(module):
    faulty = {k for k in vars(module).values() if isinstance(k, Kernel) and (marks(k) or marks(k, "may find"))}
    listed = {f.faulty.kernel for f in FAULTS}
    assert {k.name for k in faulty - listed - set(HIDDEN)} == set()
    assert not listed & set(HIDDEN)


def test_names_of_the_catalogue_differ():
    assert len({f.name for f in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.twin is not None], ids=lambda f: f.name)
def test_twins_compile_with_jitter_and_are_right_on_the_simulator(fault):
    assert fault.from_twin
    for side in (fault.faulty, fault.twin):
        assert side.kernel.compile(*fault.on_gpu, **side.constants, jitter=1).cubin


@pytest.mark.unperturbed  # it sets the option itself
@pytest.mark.unsanitized
@needs_gpu("sm_90a")
def test_most_faults_show_on_the_gpu_under_jitter_and_no_twin_shows_any():
    slower = float(os.environ.get("TILEJIT_SLOWER", "1"))
    outcomes = run_all([], seeds=40, launches=4, limit=10 * slower, budget=1500, jobs=os.cpu_count() or 1)
    shown = [name for name, sides in outcomes.items() if sides["faulty"].shown]
    assert not bad_twins(outcomes) and len(shown) >= LEAST * len(FAULTS), table(outcomes)
