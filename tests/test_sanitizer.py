"""The script that runs the GPU tests under compute-sanitizer: what it counts, and what it considers a failure."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tilejit as tile

from tests.gpu import run_child
from tests.sanitizer import (
    ROOT,
    Child,
    adding,
    children,
    counting,
    diverging,
    dropping,
    handing,
    main,
    meeting,
    racing,
    writing,
)

TOOL = """#!{python}
import os, sys
name = sys.argv[sys.argv.index("--log-file") + 1].replace("%p", str(os.getpid()))
open(name, "w").write("========= COMPUTE-SANITIZER\\n========= ERROR SUMMARY: {errors} errors\\n")
os.execv({python!r}, [{python!r}, *sys.argv[sys.argv.index({python!r}) + 1:]])
"""


@pytest.fixture
def tool(tmp_path):
    """A stand-in for compute-sanitizer that runs the child and reports this number of errors."""
    def make(errors: int = 0):
        path = tmp_path / "compute-sanitizer"
        path.write_text(TOOL.format(python=sys.executable, errors=errors))
        path.chmod(0o755)
        return path
    return make


def launches():
    """Three launches, two of them with shared memory; one with an empty grid; and one that is refused."""
    from tests.runtime.fakes import FakeArray, FakeDriver, make_recipe
    array = FakeArray(4096, (6, 8), (64, 4))
    for shared, grid in ((0, (1, 1, 1)), (64, (1, 1, 1)), (64, (2, 1, 1)), (64, (0, 1, 1))):
        FakeDriver().launcher(make_recipe(shared=shared))(grid, None, (array, 1, 1.0))
    FakeDriver().launcher(make_recipe())((1, 1, 1), None, (array, "no number", 1.0))


def nothing():
    pass


def dying():
    launches()
    os._exit(0)  # as if it was killed, but for the exit status


@pytest.mark.parametrize("work, count, shared", [(launches, 3, 2), (nothing, 0, 0), (dying, 0, 0)])
def test_a_child_under_the_tool_reports_how_many_kernels_it_launched(tool, tmp_path, monkeypatch, work, count, shared):
    log = tmp_path / "log"
    log.mkdir()
    monkeypatch.setenv("TILEJIT_SANITIZER", json.dumps([str(tool(2))]))
    monkeypatch.setenv("TILEJIT_SANITIZER_LOG", str(log))
    run_child(work)
    child, = children(log)
    assert (child.launches, child.shared, child.errors) == (count, shared, 2)
    assert child.test.endswith(f"test_a_child_under_the_tool_reports_how_many_kernels_it_launched[{work.__name__}-{count}-{shared}]")


@pytest.mark.parametrize("child, says", [
    (Child("t", 5, 1, 0), ""), (Child("t", 5, 1, 3), "3 errors"), (Child("t", 0, 0, 0), "no kernel was launched"),
    (Child("t", 5, 1, None), "no report")])
def test_errors_missing_reports_and_children_without_launches_are_failures(child, says):
    assert child.verdict == says or says and says in child.verdict


def test_the_summary_lines_of_the_tools_are_parsed(tmp_path):
    for name, text in (("a", "========= ERROR SUMMARY: 1 error\n"), ("b", "========= RACECHECK SUMMARY: 4 hazards displayed (4 errors, 0 "
                                                                          "warnings)\n"),
                       ("c", "========= Target application returned an error\n")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"test": name, "launches": 1, "shared": 0}))
        (tmp_path / f"{name}.77.log").write_text(text)
    assert [child.errors for child in children(tmp_path)] == [1, 4, None]


def test_a_tool_that_misses_the_planted_fault_fails_the_run(tool, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tool(0).parent))
    assert main(["--tool", "memcheck", "--log", str(tmp_path / "log")]) == 1
    assert "did not find the planted fault" in capsys.readouterr().out


FAILING = """
from tests.gpu import in_child

@in_child()
def test_one():
    raise ValueError("said by the child")

def test_other():
    import os
    assert "== " in open(os.environ["TILEJIT_FAILURES"]).read(), "the failure before is not in the file yet"
"""


def test_a_failing_test_and_the_end_of_its_child_s_output_are_in_a_file_at_once(tmp_path):
    (tmp_path / "test_failing.py").write_text(FAILING)
    failures = tmp_path / "failed.txt"
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    done = subprocess.run(command, cwd=ROOT, env=environment | {"TILEJIT_FAILURES": str(failures)}, capture_output=True, text=True)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    noted = failures.read_text()
    assert noted.startswith("== test_failing.py::test_one (call, ") and noted.count("== ") == 1 and "ValueError: said by the child" in noted


def test_tests_that_passed_before_are_left_out(tmp_path):
    (tmp_path / "test_failing.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    environment |= {"TILEJIT_FAILURES": str(tmp_path / "failed.txt"), "TILEJIT_PASSED": str(tmp_path / "passed.txt")}
    for said in ("1 failed, 1 passed", "1 failed, 1 deselected"):
        assert said in subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True).stdout
    assert (tmp_path / "passed.txt").read_text() == "test_failing.py::test_other\n"


def test_a_run_of_which_no_test_is_left_passes_and_faulty_tests_stay_for_the_next(tool, tmp_path, monkeypatch):
    passed = tmp_path / "passed.txt"
    passed.write_text("a\nb\nc\n")
    monkeypatch.setenv("TILEJIT_PASSED", str(passed))
    monkeypatch.setattr("tests.sanitizer.finds_what", lambda *_: True)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: subprocess.CompletedProcess([], 5))
    assert main(["--tool", "memcheck", "--log", str(tmp_path / "log")]) == 0
    monkeypatch.setattr("tests.sanitizer.children", lambda log: [Child("b", 0, 0, 0), Child("c", 1, 0, 0)])
    main(["--tool", "memcheck", "--log", str(tmp_path / "log")])
    assert passed.read_text() == "a\nc\n"
    passed.write_text("")
    monkeypatch.setattr("tests.sanitizer.children", lambda log: [])
    assert main(["--tool", "memcheck", "--log", str(tmp_path / "log")]) == 1, "nothing was selected"


def test_the_kernel_that_racecheck_misreads_has_no_race():
    x = np.arange(8 * 128, dtype=np.int32).reshape(8, 128)
    for seed in range(4):
        y = np.zeros_like(x)
        handing.simulate((1,), x, y, ROUNDS=8, seed=seed).raise_first()
        np.testing.assert_array_equal(y, x)


def test_the_kernels_that_synccheck_misreads_are_right():
    x, y, z = np.arange(2048, dtype=np.int32).reshape(8, 256), np.zeros((8, 256), np.int32), np.zeros(32, np.int32)
    counting.simulate((1,), x, y).raise_first()
    dropping.simulate((1,), z).raise_first()
    met = np.zeros(384, np.int32)
    meeting.simulate((1,), met, ROUNDS=3).raise_first()
    assert (x == y).all() and z.all() and (met == (np.arange(384) >= 128)).all()


def test_the_kernel_that_memcheck_misreads_is_right():
    total = np.zeros(64, np.uint64)
    adding.simulate((2,), total).raise_first()
    assert (total == 13).all()


def test_the_planted_race_is_a_race_and_the_planted_store_runs_within_bounds():
    report = racing.simulate((1,), np.zeros(128, np.int32))
    assert "race" in {finding.kind for finding in report.findings}
    y = np.zeros(64 * 128, np.int32)
    writing[(64,)](y)
    assert y.all()


def test_the_planted_barrier_of_half_a_warp_is_in_the_code():
    assert "bar.sync 1, 32;" in diverging.compile(tile.ArraySpec((32,), "int32"), target="sm_90a").ptx
