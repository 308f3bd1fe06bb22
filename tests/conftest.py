"""After each test, its kernels are assembled for every target; see `tests/every_kernel.py`."""

import atexit
import gc
import os
import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

# Set before NumPy is imported: OpenBLAS's threads wait for each other in a busy loop, which takes up to eight times the time of
# the products if several tests share the cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Tests do not use the user's settings or cache. A run has a cache of its own, which its processes share.
for setting in ("NO_CACHE", "DUMP", "OVERRIDE", "TARGET", "BACKEND", "LOG"):
    os.environ.pop(f"TILEJIT_{setting}", None)
os.environ["TILEJIT_COLUMNS"] = "0"  # tests quote phrases of messages, which would be folded elsewhere
OWN_CACHE = "TILEJIT_CACHE_DIR" not in os.environ or "PYTEST_XDIST_WORKER" in os.environ
if "TILEJIT_CACHE_DIR" not in os.environ:
    os.environ["TILEJIT_CACHE_DIR"] = tempfile.mkdtemp(prefix="tilejit-tests-")
    atexit.register(shutil.rmtree, os.environ["TILEJIT_CACHE_DIR"], ignore_errors=True)

# Tests start hundreds of Python processes. If no bytecode may be written beside the sources, each would compile all of
# the package: bytecode goes to pytest's own folder, where the next run finds it.
if sys.dont_write_bytecode and not sys.pycache_prefix:
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

import pytest

from tests import chosen_cases, frozen_digests
from tests.assembled_together import put_off
from tests.every_kernel import TESTS, Kernels, defined
from tests.frozen_digests import Digests
from tests.gpu import note_failure, note_passed
from tests.quick_tier import FILES, is_quick
from tests.sanitizer import passed_before

KERNELS = pytest.StashKey[Kernels]()
WALKED = pytest.StashKey[set]()   # the locations of lowered kernels, from all processes of the run
MET = pytest.StashKey[Digests]()  # the digests of lowered kernels, from all processes of the run


@pytest.fixture(scope="session")
def kernels(request, tmp_path_factory) -> Kernels:
    base = tmp_path_factory.getbasetemp()
    found = Kernels((base.parent if hasattr(request.config, "workerinput") else base) / "assembled")
    found.for_all = request.config.option.markexpr != "quick"
    request.config.stash[KERNELS] = found
    return found


@pytest.fixture(scope="session", autouse=True)
def every_kernel_of_the_run_assembles(kernels):
    yield
    fail_with(kernels.finish())


@pytest.fixture(scope="module", autouse=True)
def versions_end_with_their_file(kernels):
    yield
    kernels.forget_versions()


@pytest.fixture(autouse=True)
def every_kernel_assembles(kernels, request, every_kernel_of_the_run_assembles):
    """Set up before a test's other fixtures and therefore torn down last, when settings that the test changed are restored."""
    yield
    fail_with(kernels.judge(request.node.nodeid, drawn=getattr(request.function, "is_hypothesis_test", False)))


@pytest.fixture(autouse=True)
def only_tests_on_a_gpu_have_jitter(request, monkeypatch):
    """Other tests look at texts of code, and simulate."""
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.delenv("TILEJIT_JITTER", raising=False)


@pytest.fixture
def assembled_later(kernels, request, monkeypatch):
    """For tests that look only at texts and records of compiled kernels: kernels get no machine code and no register counts at once, and are
    assembled later together with others, when their `spills=` are checked too. Tests that launch kernels compile them as users do."""
    with put_off(monkeypatch) if request.node.get_closest_marker("gpu") is None else nullcontext():
        yield


def fail_with(problems: list[str]) -> None:
    if problems:
        pytest.fail("kernels that do not become machine code, or not what is recorded:\n" + "\n".join(problems), pytrace=False)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection(session):
    """Collect tests without garbage collection: nearly all that is made stays, and the passes over it take a quarter of the time."""
    gc.disable()
    yield
    gc.enable()


def pytest_collection_finish(session):
    """Exclude modules, tests and their objects, which stay alive, from garbage collection: a pass over them takes 0.2 s. Collecting the objects
    that tests create took 2 % of the time, so the thresholds are raised."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # most of these objects are freed by reference counting


def pytest_runtest_logreport(report):
    note_failure(report)
    note_passed(report)


# -- every kernel is lowered by some test ----------------------------------------------------------------------------------

def pytest_collection_modifyitems(config, items):
    for item in items:
        if is_quick(item.path, item.nodeid.partition("::")[2]):
            item.add_marker(pytest.mark.quick)
    chosen_cases.fewer_examples(items)
    if not chosen_cases.all_cases() and not any("[" in str(argument) for argument in config.args):
        gone = chosen_cases.left_out(items)
        leave_out(config, items, gone)
    if passed := passed_before():
        leave_out(config, items, {item for item in items if item.nodeid in passed})
    begin = int(len(items) * float(os.environ.get("TILEJIT_BEGIN", "0")))
    items[:] = items[begin:] + items[:begin]  # runs side by side that share a cache do not compile the same kernels at once
    if os.environ.get("TILEJIT_JITTER", "").strip():
        for item in items:
            if item.get_closest_marker("unperturbed"):
                item.add_marker(pytest.mark.skip(reason="measures times or looks at the machine code, and TILEJIT_JITTER is set"))


def leave_out(config, items, gone) -> None:
    config.hook.pytest_deselected(items=[item for item in items if item in gone])
    items[:] = [item for item in items if item not in gone]


def pytest_ignore_collect(collection_path, config):
    """With ``-m quick``, other test files are not imported."""
    if config.option.markexpr == "quick" and collection_path.suffix == ".py" and collection_path not in FILES:
        return True


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure(config):
    """Exclude all objects from garbage collection: passes over them, by pytest at the end, take seconds."""
    gc.freeze()


def pytest_configure(config):
    config.stash[WALKED], config.stash[MET] = set(), Digests()


def pytest_sessionfinish(session):
    """A worker process of xdist sends the kernels that it lowered to the main process. The main, or only, process checks that after a run of all
    tests every kernel was lowered."""
    config = session.config
    mine = config.stash[KERNELS] if KERNELS in config.stash else None
    if hasattr(config, "workeroutput"):
        config.workeroutput["kernels"] = [sorted(mine.walked), mine.frozen.met.lines()] if mine else [[], []]
        return
    if mine:
        collect(config, sorted(mine.walked), mine.frozen.met.lines())
    keep_digests(session)
    if of_everything(config) and not session.shouldstop and not session.testsfailed:
        config.forgotten = sorted(f"{name} at {Path(file).relative_to(TESTS)}:{line}" for (file, line), name in defined().items()
                                  if (file, line) not in config.stash[WALKED])
        if config.forgotten:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    if "kernels" in getattr(node, "workeroutput", {}):
        collect(node.config, *node.workeroutput["kernels"])


def collect(config, places, digests) -> None:
    config.stash[WALKED] |= {(file, line) for file, line in places}
    config.stash[MET].add(Digests.of_lines(digests))


def keep_digests(session) -> None:
    """Update the record of digests if the run is to, otherwise check that a run of all tests met the recorded kernels."""
    config, met = session.config, session.config.stash[MET]
    if session.shouldstop or frozen_digests.mode() not in ("check", "update"):
        return
    recorded = frozen_digests.read()
    if frozen_digests.mode() == "update":
        in_part = narrowed(config) or any("::" in str(a) for a in config.args)
        files = () if in_part else {key[0] for key in (recorded if of_everything(config) else met).versions}
        frozen_digests.write(frozen_digests.updated(recorded, met, files))
    config.frozen = frozen_digests.compared(recorded, met, of_everything(config))
    if frozen_digests.mode() == "check" and of_everything(config) and OWN_CACHE and not os.environ.get("TILEJIT_EVERY") and \
            frozen_digests.too_few(recorded, met, chosen_cases.all_cases()):
        config.frozen.append(frozen_digests.TOO_FEW)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def of_everything(config) -> bool:
    """Whether all tests are run."""
    return [Path(str(a)).resolve() for a in config.args] == [TESTS] and not narrowed(config)


def narrowed(config) -> bool:
    """Whether options leave out some of the tests that the arguments name."""
    options = config.option
    return bool(options.keyword or options.markexpr or options.deselect or getattr(options, "lf", False) or options.ignore or options.ignore_glob
                or passed_before())


def pytest_terminal_summary(terminalreporter, config):
    forgotten = getattr(config, "forgotten", None)
    if forgotten:
        terminalreporter.section("kernels that no test lowers")
        terminalreporter.write_line("\n".join(forgotten))
    frozen = getattr(config, "frozen", None)
    if frozen:
        terminalreporter.section("kernels that tests/digests records")
        terminalreporter.write_line("\n".join(frozen))
