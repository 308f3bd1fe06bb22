"""Random kernels: the simulator agrees with NumPy, and the GPU agrees with the simulator.

TILEJIT_FUZZ is the number of additional seeds, from 1000 on, for the GPU (and for the simulator, if it is set).
"""

import os
import subprocess
import sys
import time
from collections import Counter
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import tilejit as tile
from fuzz_memory import SHARED
from fuzz_program import Program, compare
from fuzz_turns import Turns
from fuzz_variants import ALL, used
from kernel_fuzz import generate

from tests.assembled_together import later
from tests.gpu import in_child, needs_gpu, run_child, some

pytestmark = pytest.mark.filterwarnings("ignore::tilejit.TileWarning")
SEEDS = range(20)
DRAWN = range(400)      # seeds whose kernels must contain everything that sm_90a has
MORE = int(os.environ.get("TILEJIT_FUZZ", "0"))
FAILED = sorted((Path(__file__).parent / "failed").glob("*.npz"))   # programs that once failed
#: Calls for which tools report errors, though they are right (tests/sanitizer.py has kernels that show it)
MISREAD = {"noinc=False": pytest.mark.misread_by_synccheck, "reduce='add'": pytest.mark.misread_by_memcheck}


@pytest.mark.parametrize("seed", SEEDS)
def test_random_kernels_agree_with_numpy(seed):
    """Bit for bit where operations are exact or correctly rounded, otherwise within the sum of the documented ulp."""
    program = generate(seed)
    found = program.differences(program.simulate())
    assert not found, program.source + "\n".join(found)


def test_a_seed_always_generates_the_same_kernel():
    assert generate(3).source == generate(3).source != generate(4).source


@lru_cache
def drawn() -> list[Program]:
    return [generate(seed) for seed in DRAWN]


def test_every_way_of_copying_and_multiplying_is_in_two_percent_of_the_kernels():
    counts = Counter(name for program in drawn() for name in program.draws)
    assert set(counts) == ALL
    rare = {name: count for name, count in counts.items() if count < 0.02 * len(DRAWN)}
    assert not rare


def test_ctas_run_several_programs_in_two_percent_of_the_kernels(monkeypatch):
    """Of these, one in three is simulated with a CTA for each program, one with a single CTA, and one with two."""
    monkeypatch.setattr("tilejit.toolchain.assembler.start_assembler", later)
    made = [program for program in drawn() if Turns.drawn_for(program.seed)]
    assert len(made) >= 0.02 * len(DRAWN)
    for turn in range(3):
        program = next(program for program in made if program.seed % 3 == turn)
        records = program.compiled_kernel().compile(**program.arguments(), **program.outputs(), target="sm_90a").persistence
        assert [record.persistent for record in records] == [True], program.source
        assert not program.differences(program.simulate()), program.source


def test_what_a_kernel_is_drawn_to_use_is_in_its_records_and_its_code(monkeypatch):
    """The counts above are of draws. The compiled kernels of a few seeds that together draw everything use what they draw."""
    monkeypatch.setattr("tilejit.toolchain.assembler.start_assembler", later)
    monkeypatch.setenv("TILEJIT_NO_CACHE", "1")
    missing = set(ALL)
    while missing:
        program = max(drawn(), key=lambda program: len(program.draws & missing))
        assert program.draws & missing
        missing -= program.draws
        compiled = program.compiled_kernel().compile(**program.arguments(), **program.outputs(), target="sm_90a")
        assert program.draws <= used(compiled), f"seed {program.seed}\n{program.source}"


@pytest.mark.parametrize("seed", [97014040, 97014222])
def test_a_contracted_product_of_subnormal_numbers_has_an_error_bound(seed):
    """A GPU adds to the product before it is rounded: the last bit of o3 differs."""
    assert (generate(seed).slack["o3"] > 0).any()


@pytest.mark.parametrize("seed", [52002775, 52003587, 61002324, 61010424])
def test_kernels_are_drawn_within_the_shared_memory_and_registers_of_the_target(seed, monkeypatch):
    """Of these seeds, kernels were once drawn that the compiler rightly refuses: with too much shared memory, tiles too large for the registers of a
    narrow scope, and tokens that a loop in a scope counts."""
    monkeypatch.setattr("tilejit.toolchain.assembler.start_assembler", later)
    monkeypatch.setenv("TILEJIT_NO_CACHE", "1")
    program = generate(seed)
    compiled = program.compiled_kernel().compile(**program.arguments(), **program.outputs(), target="sm_90a")
    assert 0 < compiled.shared_bytes <= SHARED


def test_a_program_comes_back_from_its_file(tmp_path):
    for seed in range(12):
        program = generate(seed)
        program.save(tmp_path / "program.npz")
        again = Program.read(tmp_path / "program.npz")
        assert (again.source, again.grid, again.options, again.scratch, again.same_bits) == (program.source, program.grid, program.options,
                                                                                            program.scratch, program.same_bits)
        for name, array in {**program.expected, **program.slack}.items():
            kept = again.expected[name]
            assert (kept.tobytes(), kept.dtype, kept.shape) == (program.expected[name].tobytes(), program.expected[name].dtype, array.shape), name
            assert np.array_equal(again.slack[name], program.slack[name]), name
        for name, value in program.args.items():
            got = again.args[name]
            same = got == value if not hasattr(value, "shape") else (got.data == value.data).all() if isinstance(value, tile.Packed) else \
                got.dtype == value.dtype and got.strides == value.strides and got.tobytes() == value.tobytes()
            assert same and type(got) is type(value), name


@pytest.mark.parametrize("path", FAILED, ids=lambda path: path.stem)
def test_kernels_that_failed_once_are_right(path):
    program = Program.read(path)
    for seed in (0, 1):
        found = program.differences(program.simulate(seed=seed))
        assert not found, program.source + "\n".join(found)


@pytest.mark.parametrize("dtype, row", [("uint32", 3000), ("uint8", 1001)])
def test_the_first_byte_that_one_of_many_launches_changes_is_found(dtype, row):
    x = np.arange(5 * row).reshape(5, row).astype(dtype) * 0 + np.arange(row).astype(dtype)
    found = np.full(1, 1 << 62, np.int64)
    compare[(5, -(-row // 1024))](x, x[0].copy(), found, BLOCK=1024)
    assert found[0] == 1 << 62
    x[4, 7], x[3, row - 2] = 77, 99
    compare[(5, -(-row // 1024))](x, x[0].copy(), found, BLOCK=1024)
    assert found[0] == 3 * row + row - 2


# -- many at once ----------------------------------------------------------------------------------------------------------------

def run_many(tmp_path, *arguments: str, **environment: str) -> tuple[int, str]:
    """The exit status and the log of `run.py`."""
    log = tmp_path / "fuzz.log"
    command = [sys.executable, str(Path(__file__).parent / "run.py"), "--log", str(log), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, **environment})
    return done.returncode, log.read_text() + done.stderr


def test_many_kernels_run_on_the_simulator_by_one_command(tmp_path):
    status, log = run_many(tmp_path, "--backend", "sim", "--count", "4", "--seed", "4", "--processes", "2")
    assert status == 0 and "4 of 4 kernels" in log and "4 right" in log, log


PLANTED = '''
import os, time, kernel_fuzz
def generate(seed, made=kernel_fuzz.generate):
    program = made(seed)
    if seed == 1:
        name = next(iter(program.expected))
        program.expected[name] = program.expected[name] + 1
    if seed == 2:
        time.sleep(600)
    if seed == 3:
        os._exit(7)
    return program
kernel_fuzz.generate = generate
'''


def test_kernels_that_differ_hang_or_end_their_process_are_logged_and_saved(tmp_path):
    planted = tmp_path / "planted.py"
    planted.write_text(PLANTED)
    status, log = run_many(tmp_path, "--backend", "sim", "--count", "4", "--seed", "0", "--processes", "2", "--limit", "6", "--plant", str(planted))
    lines = {line.split(":")[0]: line for line in log.splitlines() if line.startswith("seed ")}
    assert status == 1 and "1 right" in log, log
    assert "differs" in lines["seed 1"] and "hang" in lines["seed 2"] and "fault" in lines["seed 3"] and len(lines) == 3, log
    assert {path.name for path in (tmp_path / "fuzz").iterdir()} == {f"{seed}.{end}" for seed in (1, 2, 3) for end in ("py", "npz")}
    assert Program.read(tmp_path / "fuzz" / "2.npz").source == generate(2).source


@pytest.mark.unsanitized  # its processes do not run under a tool
@needs_gpu("sm_90a")
def test_many_kernels_run_on_the_gpu_by_one_command(tmp_path):
    limit = 60 * float(os.environ.get("TILEJIT_SLOWER", "1"))
    status, log = run_many(tmp_path, "--count", "40", "--seed", "0", "--processes", "4", "--simulate", "0.2", "--limit", str(limit))
    assert status == 0 and "40 of 40 kernels" in log, log


# -- more seeds ------------------------------------------------------------------------------------------------------------------

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


def on_gpu(seeds: list[int], seconds: float):
    found = failures(seeds, on_gpu=True, seconds=seconds)
    assert not found, f"{len(found)} seeds\n" + "\n".join(found[:30])


@needs_gpu("sm_90a")
def test_random_kernels_agree_on_the_gpu_and_the_simulator():
    print(run_child(on_gpu, timeout=120, seeds=[seed for seed in SEEDS if not Turns.drawn_for(seed)], seconds=100))


def marked(path: Path):
    source = Program.read(path).source
    return pytest.param(str(path), id=path.stem, marks=[mark for call, mark in MISREAD.items() if call in source])


@pytest.mark.misread_by_racecheck  # numbers of programs are passed between threads through slots
@needs_gpu("sm_90a")
@in_child(timeout=60)
@pytest.mark.parametrize("path", [marked(path) for path in FAILED])
def test_kernels_that_failed_once_are_right_on_the_gpu(path):
    program = Program.read(Path(path))
    found = program.differences(program.launch(replicas=2, times=3))
    assert not found, "\n".join(found[:5])


@pytest.mark.misread_by_racecheck  # numbers of programs are passed between threads through slots
@needs_gpu("sm_90a")
def test_random_kernels_of_programs_in_turn_agree_on_the_gpu_and_the_simulator():
    print(run_child(on_gpu, timeout=120, seeds=[seed for seed in range(100) if Turns.drawn_for(seed)], seconds=100))


@needs_gpu("sm_90a")
@pytest.mark.skipif(not MORE, reason="TILEJIT_FUZZ is the number of further seeds")
def test_more_random_kernels_agree_on_the_gpu_and_the_simulator():
    """As many as TILEJIT_FUZZ says, for at most eight minutes."""
    print(run_child(on_gpu, timeout=560, seeds=list(range(1000, 1000 + MORE)), seconds=480))
