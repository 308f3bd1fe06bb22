"""GPU tests run in child processes with a time limit, so that a hang or a corrupted context does not affect other tests.

    from tests.gpu import in_child, needs_gpu

    @needs_gpu()
    @in_child(timeout=60)
    def test_a_copy_comes_back_unchanged():
        ...
"""

from __future__ import annotations

import faulthandler
import functools
import importlib.util
import inspect
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import tilejit.compile
from tilejit.emit import jitter
from tilejit.jit import KERNELS

from tests.sanitizer import under_tool

ROOT = Path(__file__).resolve().parent.parent
CALLED: set[str] = set()                  # tests whose call passed
UNORDERED = {"entry", "global", "shared"}  # kinds of sites that order nothing among threads

_CALL = """
import json, sys
from tests.gpu import _load, jitter_seeds
path, name, arguments = json.loads(sys.argv[1])
function = getattr(_load(path), name)
for _ in jitter_seeds():
    getattr(function, "body", function)(**arguments)
"""


def jitter_seeds():
    """The seeds from TILEJIT_JITTER on, as many as TILEJIT_JITTER_SEEDS says (one by default); without TILEJIT_JITTER one time
    without jitter. The setting stands while its turn lasts. Kernels that were launched before are compiled anew. If no kernel that the
    first turn compiled synchronises or copies asynchronously, there is nothing to perturb, and the other turns are left out."""
    first, number = os.environ.get("TILEJIT_JITTER", ""), int(os.environ.get("TILEJIT_JITTER_SEEDS", "1"))
    if not first:
        yield None
        return
    kinds: set[str] = set()

    def watched(ptx: str, seed: int) -> str:
        kinds.update(site.kind for site in jitter.sites(ptx.split("\n")))
        return jitter.add_jitter(ptx, seed)
    # the turns differ in what follows LLVM, which takes half of a compilation
    to_ptx = functools.cache(tilejit.compile.llvm.to_ptx)
    with mock.patch.object(tilejit.compile, "add_jitter", watched), mock.patch.object(tilejit.compile.llvm, "to_ptx", to_ptx):
        for seed in range(int(first), int(first) + number):
            os.environ["TILEJIT_JITTER"] = str(seed)
            for kernel in list(KERNELS.values()):
                kernel.warm.clear()
            yield seed
            if kinds and not kinds - UNORDERED:
                return


def run_child(work, timeout: float = 60.0, **arguments) -> str:
    """Run `work` in a fresh Python process and return its output.

    `work` is a program's text, or a module-level function, which is called with the JSON-serializable `arguments`. The test
    fails, with the end of the child's output, if the child exits with an error or takes longer than `timeout` seconds; in the
    latter case its process group is killed.

    With TILEJIT_FORK=1 and without a sanitizer, a function runs in a fork of this process instead.
    """
    if forks(work):
        return _run_fork(work, timeout, arguments)
    if isinstance(work, str):
        command = [sys.executable, "-c", inspect.cleandoc(work)]
    else:
        place = [inspect.getsourcefile(inspect.unwrap(work)), work.__name__, arguments]
        command = [sys.executable, "-c", _CALL, json.dumps(place)]
    environment = _environment()
    command, timeout = under_tool(command, environment), timeout * float(environment.get("TILEJIT_SLOWER", "1"))
    timeout *= int(environment.get("TILEJIT_JITTER_SEEDS", "1"))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=environment, start_new_session=True)
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        pytest.fail(f"the child took longer than {timeout} s and was killed\n{output[-2000:]}{errors[-2000:]}", pytrace=False)
    if process.returncode:
        pytest.fail(f"the child ended with {process.returncode}\n{output[-3000:]}{errors[-6000:]}", pytrace=False)
    return output


def forks(work) -> bool:
    """Whether `run_child` forks for this work."""
    return os.environ.get("TILEJIT_FORK") == "1" and not isinstance(work, str) and not os.environ.get("TILEJIT_SANITIZER")


def _run_fork(work, timeout: float, arguments: dict) -> str:
    """As `run_child`, in a fork of this process, which has imported torch: that takes longer than most tests do, above all with 20
    jitter seeds whose kernels are in the cache. This process must not use a GPU itself."""
    if importlib.util.find_spec("torch"):
        importlib.import_module("torch")
    timeout *= float(os.environ.get("TILEJIT_SLOWER", "1")) * int(os.environ.get("TILEJIT_JITTER_SEEDS", "1"))
    with tempfile.TemporaryFile() as file:
        child = multiprocessing.get_context("fork").Process(target=_call_in_fork, args=(work, arguments, file.fileno()))
        child.start()
        child.join(timeout)
        late = child.exitcode is None
        if late:
            os.killpg(child.pid, signal.SIGKILL)
            child.join()
        file.seek(0)
        output = file.read().decode(errors="replace")
    if late or child.exitcode:
        why = f"took longer than {timeout} s and was killed" if late else f"ended with {child.exitcode}"
        pytest.fail(f"the child {why}\n{output[-9000:]}", pytrace=False)
    return output


def _call_in_fork(work, arguments: dict, output: int) -> None:
    """What a fork does: call the function under each jitter seed, with its output to a file."""
    os.setsid()
    for number in (1, 2):
        os.dup2(output, number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    faulthandler.enable(sys.stderr)
    for _ in jitter_seeds():
        getattr(work, "body", work)(**arguments)


def _environment() -> dict[str, str]:
    """The environment of a child, with which it has the same import path as this process, and says where it crashes."""
    return dict(os.environ, PYTHONFAULTHANDLER="1", PYTHONPATH=os.pathsep.join([*filter(None, sys.path), os.getcwd(), str(ROOT)]))


def note_failure(report: pytest.TestReport) -> None:
    """Append a failed test's name and the end of its output, with that of its child, to the file that TILEJIT_FAILURES
    names: it is there at once, also if the run is cut off before pytest prints it."""
    path = os.environ.get("TILEJIT_FAILURES")
    if path and report.failed and "PYTEST_XDIST_WORKER" not in os.environ:  # the main process has the workers' reports
        with open(path, "a") as file:
            file.write(f"== {report.nodeid} ({report.when}, {report.duration:.0f} s)\n{report.longreprtext[-4000:]}\n\n")


def note_passed(report: pytest.TestReport) -> None:
    """Append the name of a test that passed, its teardown too, to the file that TILEJIT_PASSED names."""
    path = os.environ.get("TILEJIT_PASSED")
    if not path or not report.passed or "PYTEST_XDIST_WORKER" in os.environ:
        return
    if report.when == "call":
        CALLED.add(report.nodeid)
    elif report.when == "teardown" and report.nodeid in CALLED:
        with open(path, "a") as file:
            file.write(f"{report.nodeid}\n")


def in_child(timeout: float = 60.0):
    """Decorator: the test's body is run by `run_child`. Its arguments (from parametrize) must be JSON-serializable."""
    def decorate(function):
        @functools.wraps(function)
        def test(**arguments):
            run_child(test, timeout=timeout, **arguments)

        test.body = function
        return test
    return decorate


def _load(path: str):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@functools.cache
def gpu_targets() -> tuple[str, ...]:
    """The target of each GPU, such as ("sm_90a",). A child process finds them out, so that this one has no CUDA context."""
    if not any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")):
        return ()
    program = ("from tilejit.runtime import driver\n"
               "print(*(driver.target(i) for i in range(driver.device_count())) if driver.available() else ())")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120,
                          env=_environment())
    return tuple(done.stdout.split()) if done.returncode == 0 else ()


def needs_gpu(*targets: str, count: int = 1):
    """Decorator: skip the test unless there are `count` GPUs, the first of one of `targets` (by default any)."""
    found = gpu_targets()
    fits = len(found) >= count and (not targets or found[0] in targets)
    wanted = " or ".join(targets) or "any"
    skip = pytest.mark.skipif(not fits, reason=f"needs {count} GPU(s) ({wanted}); there are: {', '.join(found) or 'none'}")
    return lambda test: pytest.mark.gpu(skip(test))


def some(cases, least: int = 1) -> list:
    """All cases of a long list, or one in TILEJIT_EVERY, but at least `least` (under compute-sanitizer, all would take hours)."""
    cases = list(cases)
    return cases[::max(min(int(os.environ.get("TILEJIT_EVERY", "1")), len(cases) // least), 1)]


def launches(count: int) -> list[int]:
    """The numbers of a kernel's launches, or a fiftieth of them under compute-sanitizer: to a tool one is as good as the next, and racecheck keeps
    records of each in the host's memory."""
    return some(range(count))[::50 if os.environ.get("TILEJIT_SANITIZER") else 1]


def for_references() -> str:
    """The torch device on which expected results are computed: the CPU under compute-sanitizer, where a library's kernels would take minutes."""
    return "cpu" if os.environ.get("TILEJIT_SANITIZER") else "cuda"


def needs_module(name: str):
    """Decorator: skip the test unless the module is installed. Does not import it."""
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}")
