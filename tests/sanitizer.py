"""Runs the GPU tests with all child processes under compute-sanitizer, and reports what was checked.

    python tests/sanitizer.py                               memcheck, then racecheck and synccheck for the tests that use shared memory
    python tests/sanitizer.py --every 10 tests/ops          one in ten cases of long lists, only tests/ops
    python tests/sanitizer.py --tool racecheck -- -k scan   one tool, with further options for pytest

Each child counts the kernels that it launches. `LOG/<tool>.txt` has a line per child: kernels launched, how many of them use
shared memory, errors. `LOG/<tool>-failed.txt` gets the name of each failing test, and the end of its output, as soon as it fails.
The run fails on any error, on a child that launched nothing or whose report is missing, on a failing test, and if the tool does
not find a fault that is planted first. Tests marked `unsanitized` (they fail on purpose, launch nothing or compare times) are excluded.
A tool also excludes those marked `misread_by_<tool>`, and first checks, with small kernels that are right, that it still reports errors
there; otherwise it asks to remove the mark. What the tools of version 2025.3.1 do not model, and report in textbook CUDA C too:

racecheck: the order of threads that only arrive at a barrier (`bar.arrive`, in turns in a loop), and that an mbarrier arrival also orders the
accesses of threads that the arriving thread synchronised with before.
synccheck: that cp.async.mbarrier.arrive without noinc raises the count of its phase, that mbarrier.arrive_drop.expect_tx arrives, and that
threads which have ended are not awaited at a barrier of the others.
memcheck: that bulk copies and reductions may go to the CTA's own shared memory by its address in the cluster's window.

Needs a GPU and compute-sanitizer (of the CUDA toolkit).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tilejit as tile

ROOT = Path(__file__).resolve().parent.parent
TOOLS = {"memcheck": ["--report-api-errors", "no"], "racecheck": [], "synccheck": []}
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")
MISREAD = {"racecheck": ("misread_handing",), "synccheck": ("misread_counting", "misread_dropping", "misread_meeting"),
           "memcheck": ("misread_adding",)}
SLOWER = 8  # factor for the time limit of a child


@dataclass(frozen=True)
class Child:
    """One child process: its test, the kernels launched, how many of them use shared memory, and the tool's errors (None: no report)."""

    test: str
    launches: int
    shared: int
    errors: int | None

    @property
    def verdict(self) -> str:
        """Why the child fails the run; empty if it does not."""
        if self.errors is None:
            return "the tool gave no report"
        return f"{self.errors} errors" if self.errors else "" if self.launches else "no kernel was launched"


# -- in the children -------------------------------------------------------------------------------------------------------

def count_launches() -> None:
    """Count the launches in this process, and write the counts to the file TILEJIT_LAUNCHES at its end."""
    import atexit

    from tilejit.runtime.launcher import Launcher

    counts, launch = {"launches": 0, "shared": 0}, Launcher.__call__

    def counted(self, grid, stream, args):
        done = launch(self, grid, stream, args)
        if done and all(grid if isinstance(grid, tuple) else (grid,)):
            counts["launches"] += 1
            counts["shared"] += bool(self.recipe.shared)
        return done

    Launcher.__call__ = counted
    atexit.register(lambda: write_counts(os.environ["TILEJIT_LAUNCHES"], **counts))


def write_counts(path: str, launches: int = 0, shared: int = 0) -> None:
    """Write the counts of the current test's child. The parent writes zeros first: those of a child that does not reach its end."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    Path(path).write_text(json.dumps({"test": test, "launches": launches, "shared": shared}))


def under_tool(command: list[str], environment: dict[str, str]) -> list[str]:
    """A child's command, wrapped by the tool if this run has one; used by `tests.gpu.run_child`."""
    tool = environment.get("TILEJIT_SANITIZER")
    if not tool:
        return command
    name = Path(environment["TILEJIT_SANITIZER_LOG"]) / f"{time.time_ns()}-{os.getpid()}"
    environment["TILEJIT_LAUNCHES"] = f"{name}.json"
    write_counts(f"{name}.json")
    python, flag, program, *rest = command
    return [*json.loads(tool), "--log-file", f"{name}.%p.log", python, flag, f"import tests.sanitizer as s; s.count_launches()\n{program}", *rest]


# -- planted faults ----------------------------------------------------------------------------------------------------------

@tile.jit(num_warps=4)
def racing(y):
    s = tile.alloc((128,), tile.int32)
    t = tile.thread_id()
    tile.store(s[t], t)
    tile.store(y[t], tile.load(s[127 - t]))  # without a barrier


@tile.jit(num_warps=4)
def writing(y):
    tile.store(y[tile.program_id(0) * 128 + tile.thread_id()], 1)


@tile.jit(num_warps=8)
def handing(x, y, ROUNDS: tile.constexpr):
    """Half of the threads write and arrive, the others wait and read, in alternation. It is correct, but racecheck reports hazards."""
    s, full, empty = tile.alloc((128,), tile.int32), tile.named_barrier(256), tile.named_barrier(256)
    with tile.warpgroup(0):
        for i in range(ROUNDS):
            if i > 0:
                empty.sync()
            tile.store(s, tile.load(x[i, 0:128]))
            full.arrive()
    with tile.warpgroup(1):
        for i in range(ROUNDS):
            full.sync()
            tile.store(y[i, 0:128], tile.load(s))
            if i < ROUNDS - 1:
                empty.arrive()


@tile.jit(num_warps=2)
def counting(x, y):
    """Copies arrive at a barrier, whose count they raise themselves. It is correct, but synccheck reports an overflow."""
    s, bar = tile.alloc((8, 256), x.dtype), tile.mbarrier(count=1)
    with tile.warp(0):
        tile.copy_async(s, x[0:8, 0:256])
        bar.arrive_on_copies()
        bar.arrive()
    with tile.warp(1):
        bar.wait(phase=0)
        tile.store(y[0:8, 0:256], tile.load(s))


@tile.jit(num_warps=1)
def dropping(y):
    """Half of the threads arrive for the last time. It is correct, but synccheck reports a missing wait."""
    t, s = tile.thread_id(), tile.alloc((1,), tile.uint64)
    with tile.elect():
        tile.ptx.mbarrier.init.shared_cta.b64(s[0], 32)
    tile.sync()
    if t >= 16:
        tile.ptx.mbarrier.arrive_drop.expect_tx.shared_cta.b64(s[0], 16)
    if t < 16:
        tile.ptx.mbarrier.arrive.shared_cta.b64.count(s[0], 1)
    if t >= 16:
        tile.ptx.mbarrier.complete_tx.relaxed.cta.shared_cta.b64(s[0], 16)
    while not tile.ptx.mbarrier.try_wait.parity.shared_cta.b64(s[0], 0):
        pass
    tile.store(y[t], 1)


@tile.jit(num_warps=1, cluster=(2, 1, 1))
def adding(y):
    """Each CTA of a cluster adds its values to those of the first, the first to its own. It is correct, but memcheck reports an invalid write."""
    rank, mine, total, bar = tile.cta_rank(), tile.alloc((64,), y.dtype), tile.alloc((64,), y.dtype), tile.mbarrier()
    tile.store(mine, tile.full((64,), rank + 1, y.dtype))
    tile.store(total, tile.full((64,), 10, y.dtype))
    tile.fence_proxy_async()
    if rank == 0:
        with tile.elect():
            bar.arrive_expect_tx(2 * mine.nbytes)
    tile.cluster_sync()
    with tile.elect():
        tile.copy_async(total.peer(0), mine, mbar=bar, reduce="add")
    if rank == 0:
        bar.wait(phase=0)
        tile.store(y[0:64], tile.load(total))
    tile.cluster_sync()


@tile.jit(num_warps=12)
def meeting(y, ROUNDS: tile.constexpr):
    """Two of three warpgroups meet at a barrier of theirs. It is correct, but synccheck reports divergent threads."""
    both = tile.named_barrier(256)
    with tile.warpgroup(1):
        for _ in range(ROUNDS):
            both.sync()
        tile.store(y[tile.thread_id()], 1)
    with tile.warpgroup(2):
        for _ in range(ROUNDS):
            both.sync()
        tile.store(y[tile.thread_id()], 1)


def misread_handing():
    x = tile.to_device(np.arange(64 * 128, dtype=np.int32).reshape(64, 128))
    y = tile.to_device(np.zeros((64, 128), np.int32))
    handing[(1,)](x, y, ROUNDS=64)
    np.testing.assert_array_equal(y.numpy(), x.numpy())


def misread_counting():
    x = tile.to_device(np.arange(2048, dtype=np.int32).reshape(8, 256))
    y = tile.to_device(np.zeros((8, 256), np.int32))
    counting[1,](x, y)
    np.testing.assert_array_equal(y.numpy(), x.numpy())


def misread_dropping():
    y = tile.to_device(np.zeros(32, np.int32))
    dropping[1,](y)
    assert y.numpy().all()


def misread_meeting():
    y = tile.to_device(np.zeros(384, np.int32))
    meeting[1,](y, ROUNDS=50)
    np.testing.assert_array_equal(y.numpy(), np.arange(384) >= 128)


def misread_adding():
    y = tile.to_device(np.zeros(64, np.uint64))
    adding[2,](y)
    np.testing.assert_array_equal(y.numpy(), 13)


def planted_racecheck():
    y = tile.to_device([0] * 128)
    racing[(1,)](y)
    y.numpy()


@tile.jit(num_warps=1)
def diverging(y):
    if tile.thread_id() < 16:
        tile.asm("bar.sync 1, 32;", None)  # half of a warp
    tile.store(y[tile.thread_id()], 1)


def planted_synccheck():
    y = tile.to_device([0] * 32)
    diverging[(1,)](y)
    y.numpy()


def planted_memcheck():
    """Stores to an array whose shape exceeds its memory."""
    y = tile.to_device([0] * 32)
    y.shape = (128 * 64,)
    writing[(64,)](y)
    y[:32].numpy()


def finds_what(function: str, command: list[str], log: Path) -> bool:
    """Whether the tool reports errors for a function of this file."""
    shutil.rmtree(log, ignore_errors=True)
    log.mkdir(parents=True)
    environment = dict(os.environ, TILEJIT_SANITIZER=json.dumps(command), TILEJIT_SANITIZER_LOG=str(log), PYTHONPATH=str(ROOT))
    child = under_tool([sys.executable, "-c", f"import tests.sanitizer as s; s.{function}()"], environment)
    subprocess.run(child, env=environment, cwd=ROOT, timeout=300, capture_output=True)
    return any(child.launches and child.errors for child in children(log))


# -- a run -----------------------------------------------------------------------------------------------------------------

def children(log: Path) -> list[Child]:
    """The children, from the reports in a folder."""
    found = []
    for path in sorted(log.glob("*.json")):
        texts = [other.read_text(errors="replace") for other in log.glob(f"{path.stem}.*.log")]
        errors = [int(one or two) for text in texts for one, two in SUMMARY.findall(text)]
        found.append(Child(**json.loads(path.read_text()), errors=sum(errors) if errors else None))
    return found


def run_tool(tool: str, options, tests: list[str]) -> tuple[bool, list[Child]]:
    """Run one tool on `tests` (pytest's arguments); returns whether the run passed, and the children."""
    program = shutil.which("compute-sanitizer") or str(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "compute-sanitizer")
    log = options.log / tool
    shutil.rmtree(log, ignore_errors=True)
    log.mkdir(parents=True)
    command = [program, "--tool", tool, "--target-processes", "all", "--error-exitcode", "66", *TOOLS[tool]]
    if not finds_what(f"planted_{tool}", command, options.log / f"planted-{tool}"):
        print(f"{tool} did not find the planted fault: see {options.log}")
        return False, []
    for name in MISREAD[tool]:
        if not finds_what(name, command, options.log / name):
            print(f"this {tool} reports nothing in {name} of {__file__}: take the mark misread_by_{tool} from the tests with such kernels")
            return False, []
    failures = options.log.resolve() / f"{tool}-failed.txt"
    failures.unlink(missing_ok=True)
    environment = dict(os.environ, TILEJIT_SANITIZER=json.dumps(command), TILEJIT_SANITIZER_LOG=str(log.resolve()),
                       TILEJIT_EVERY=str(options.every), TILEJIT_SLOWER=str(SLOWER), PYTHONPATH=str(ROOT), TILEJIT_FAILURES=str(failures))
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "pytest", "-m", f"gpu and not unsanitized and not misread_by_{tool}", *options.pytest, *tests], env=environment, cwd=ROOT)
    ran = children(log)
    lines = [f"{c.launches:6} kernels, {c.shared:6} with shared memory, {c.errors} errors  "
             f"{c.test}{'  FAILED: ' + c.verdict if c.verdict else ''}" for c in ran]
    lines.append(f"{tool}: {len(ran)} children, {sum(c.launches for c in ran)} kernels launched, {sum(c.shared for c in ran)} with shared memory, "
                 f"{sum(c.errors or 0 for c in ran)} errors, {time.perf_counter() - begin:.0f} s; pytest ended with {done.returncode}")
    (options.log / f"{tool}.txt").write_text("\n".join(lines) + "\n")
    print("\n".join([line for line in lines[:-1] if "FAILED" in line] + lines[-1:]))
    keep_passed({c.test for c in ran if c.verdict})
    if done.returncode == 5 and passed_before():  # no test was left
        return True, ran
    return done.returncode == 0 and bool(ran) and not any(c.verdict for c in ran), ran


def passed_before() -> set[str]:
    """The tests in the file that TILEJIT_PASSED names, which a run leaves out, so that it goes on where one was cut off."""
    path = Path(os.environ.get("TILEJIT_PASSED") or os.devnull)
    return set(path.read_text().splitlines()) if path.exists() else set()


def keep_passed(faulty: set[str]) -> None:
    """Take the tests with a fault out of the file that TILEJIT_PASSED names, so that the next run has them again."""
    path = os.environ.get("TILEJIT_PASSED")
    if path and (passed := passed_before()):
        Path(path).write_text("".join(f"{name}\n" for name in sorted(passed - faulty)))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", choices=TOOLS, help="one of the tools; all by default")
    parser.add_argument("--every", type=int, default=1, help="run one in so many of long lists of cases")
    parser.add_argument("--log", type=Path, default=Path("sanitizer-log"), help="folder for the reports")
    parser.add_argument("tests", nargs="*", default=["tests"])
    own, options = (arguments, []) if "--" not in arguments else (arguments[:arguments.index("--")], arguments[arguments.index("--") + 1:])
    options = argparse.Namespace(**vars(parser.parse_args(own)), pytest=options)
    tests, well = options.tests, True
    for tool in [options.tool] if options.tool else TOOLS:
        fine, ran = run_tool(tool, options, tests)
        well &= fine
        if tool == "memcheck" and not options.tool:
            tests = sorted({c.test for c in ran if c.shared})
            if not tests:
                print("no test launched a kernel that uses shared memory: racecheck and synccheck have nothing to check")
                return 1
    return 0 if well else 1


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
