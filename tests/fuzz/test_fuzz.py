"""Random kernels: the simulator agrees with NumPy, and the GPU agrees with the simulator.

TILEJIT_FUZZ is the number of additional seeds, from 1000 on, for the GPU (and for the simulator, if it is set).
"""

import os
import time

import pytest
import tilejit as tile
from kernel_fuzz import generate

from tests.gpu import needs_gpu, run_child, some

pytestmark = pytest.mark.filterwarnings("ignore::tilejit.TileWarning")
SEEDS = range(20)
MORE = int(os.environ.get("TILEJIT_FUZZ", "0"))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_kernels_agree_with_numpy(seed):
    """Bit for bit where operations are exact or correctly rounded, otherwise within the sum of the documented ulp."""
    program = generate(seed)
    found = program.differences(program.simulate())
    assert not found, program.source + "\n".join(found)


def test_a_seed_always_generates_the_same_kernel():
    assert generate(3).source == generate(3).source != generate(4).source


@pytest.mark.skipif(not MORE, reason="TILEJIT_FUZZ is the number of further seeds")
def test_more_random_kernels_agree_with_numpy():
    assert not (found := failures(range(1000, 1000 + MORE), on_gpu=False)), "\n".join(found[:20])


def failures(seeds, on_gpu: bool, seconds: float = float("inf")) -> list[str]:
    """The differences between the GPU and the simulator, or between the simulator and NumPy."""
    begin, found, count = time.perf_counter(), [], 0
    for seed in some(seeds):
        if time.perf_counter() - begin > seconds:
            break
        count += 1
        program = generate(seed)
        try:
            simulated = program.simulate(side_by_side=on_gpu)
            wrong = program.differences(program.launch(), simulated) if on_gpu else program.differences(simulated)
        except tile.TileError as error:
            wrong = [f"seed {seed}: {type(error).__name__}: {str(error)[:500]}"]
        if wrong:
            found.append("\n".join(wrong[:3]))
    print(f"{count} random kernels in {time.perf_counter() - begin:.1f} s, {len(found)} differ")
    return found


def on_gpu(first: int, count: int, seconds: float):
    found = failures(range(first, first + count), on_gpu=True, seconds=seconds)
    assert not found, f"{len(found)} seeds\n" + "\n".join(found[:30])


@needs_gpu()
def test_random_kernels_agree_on_the_gpu_and_the_simulator():
    print(run_child(on_gpu, timeout=120, first=0, count=len(SEEDS), seconds=100))


@needs_gpu()
@pytest.mark.skipif(not MORE, reason="TILEJIT_FUZZ is the number of further seeds")
def test_more_random_kernels_agree_on_the_gpu_and_the_simulator():
    """As many as TILEJIT_FUZZ says, for at most eight minutes."""
    print(run_child(on_gpu, timeout=560, first=1000, count=MORE, seconds=480))
