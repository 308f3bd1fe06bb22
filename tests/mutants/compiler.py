"""Changes one line of the compiler at a time (`compiler_mutants.py`), and runs the tests that should notice.

    python -m tests.mutants.compiler --processes 16 --log mutants.log

Each mutant is made in a copy of the tree. Its tests run there in one process, until the first that fails, at most
`--limit` seconds: a run that takes longer counts as "slow", and is neither caught nor missed. The test that failed
then runs without the change: if it fails there too, such as for want of a tool on this machine, the mutant's tests run
again without it. With ``--both``, the tests of the mutants that are not caught run with all cases too
(`tests/chosen_cases.py`), of which the usual runs take a part: a mutant that only all cases catch says what usual runs
prove less. The record of digests, which notices all other code, is left out.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.compiler_mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
QUICK = "quick"  # stands for the quick tests
COPIED = ("tilejit", "_tilejit_pytest.py", "tests", "docs", "tutorials", "pyproject.toml", "README.md", "CONTRIBUTING.md")


@dataclass(frozen=True)
class Run:
    """The run of a mutant's tests. `outcome` is "caught", "missed", "slow", or "broken" if pytest itself failed, such as for a
    module that cannot be imported; `said` names the test that failed."""

    mutant: Mutant
    all_cases: bool
    outcome: str
    said: str
    seconds: float

    def __str__(self) -> str:
        place = self.mutant.file(ROOT).relative_to(ROOT)
        cases = "all " if self.all_cases else "some"
        return f"{cases} {self.outcome:6} {self.seconds:6.1f} s {place}: {self.mutant.old[:50]!r} {self.said[:200]}"


def applicable(mutants: Iterable[Mutant]) -> list[Mutant]:
    """Those whose text the code still has, once."""
    found = []
    for mutant in mutants:
        try:
            mutant.file(ROOT)
        except ValueError:
            continue
        found.append(mutant)
    return found


def copy_tree(to: Path) -> None:
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__", "digests"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, to / name)


def environment_of(folder: str, all_cases: bool) -> dict[str, str]:
    own = ("TILEJIT_CACHE_DIR", "TILEJIT_FREEZE", "PYTHONPYCACHEPREFIX")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return {**kept, "TILEJIT_ALL_CASES": str(int(all_cases)), "PYTHONPATH": folder, "OPENBLAS_NUM_THREADS": "1"}


def pytest_in_copy(mutant: Mutant | None, all_cases: bool, limit: float, arguments: Sequence[str]) -> tuple[str, str]:
    """Run tests in a copy of the tree, with a mutant's change if one is given, until the first that fails. The outcome,
    and the name of the test that failed or the last line of the output."""
    with tempfile.TemporaryDirectory(prefix="tilejit-mutant-") as folder:
        copy_tree(Path(folder))
        if mutant:
            mutant.apply(Path(folder))
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *arguments]
        with subprocess.Popen(command, cwd=folder, env=environment_of(folder, all_cases), text=True,
                              start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            try:
                output, _ = process.communicate(timeout=max(limit, 1))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                return "slow", ""
    if process.returncode in (0, 5):  # 5: no test is left
        return "missed", ""
    last = (output.strip().splitlines() or [""])[-1]
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/.*?(?:\[.*?\])?)(?: - .*)?$", output, re.M)
    return ("caught", failed[0]) if process.returncode in (1, 2) and failed else ("broken", last)


def run(mutant: Mutant, tests: str, all_cases: bool, limit: float) -> Run:
    """Run a mutant's tests until one fails that passes without the change."""
    began, without = time.monotonic(), []
    own = ["-m", "not gpu", *(f"tests/{test}" for test in tests.split())]
    chosen = ["-m", "quick", "tests"] if tests == QUICK else own
    while True:
        left = limit - (time.monotonic() - began)
        outcome, said = pytest_in_copy(mutant, all_cases, left, [*(f"--deselect={t}" for t in without), *chosen])
        if said.startswith("tests/") and pytest_in_copy(None, all_cases, limit, [said.partition(" ")[0]])[0] != "missed":
            without.append(said)
            continue
        return Run(mutant, all_cases, outcome, said, time.monotonic() - began)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run tests with one line of the compiler changed at a time.")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="mutants at the same time")
    parser.add_argument("--limit", type=float, default=600, help="seconds for each run of tests")
    parser.add_argument("--log", type=Path, help="file for the lines that are printed")
    parser.add_argument("--only", default="", help="mutants whose file or text contains this")
    parser.add_argument("--quick", action="store_true", help="the quick tests instead of each mutant's own")
    parser.add_argument("--both", action="store_true", help="those that are not caught with all cases too")
    options = parser.parse_args(arguments)
    possible = applicable(MUTANTS)
    for mutant in MUTANTS:
        if mutant not in possible:
            print(f"the code has changed, give this mutant another text: {mutant.folder}: {mutant.old!r}")
    chosen = [m for m in possible if options.only in str(m.file(ROOT)) or options.only in m.old]
    done: list[Run] = []

    def run_all(mutants: Sequence[Mutant], all_cases: bool) -> None:
        jobs = pool.map(lambda m: run(m, QUICK if options.quick else m.tests, all_cases, options.limit), mutants)
        for result in jobs:
            done.append(result)
            print(result, flush=True)
            if options.log:
                options.log.write_text("".join(f"{line}\n" for line in done))

    with ThreadPoolExecutor(options.processes) as pool:
        run_all(chosen, False)
        if options.both:
            run_all([r.mutant for r in done if r.outcome != "caught"], True)
    summary = summary_lines(done)
    print(*summary, sep="\n")
    if options.log:
        options.log.write_text("".join(f"{line}\n" for line in (*done, *summary)))
    return 0


def summary_lines(done: Sequence[Run]) -> list[str]:
    """How many mutants the usual cases catch, how many more all cases do, and which."""
    lines = []
    for mode in sorted({r.all_cases for r in done}):
        ran = [r for r in done if r.all_cases == mode]
        counts = ", ".join(f"{sum(r.outcome == o for r in ran)} {o}" for o in ("caught", "missed", "slow", "broken"))
        lines.append(f"{'all cases, of the others' if mode else 'chosen cases'}: {counts}, of {len(ran)} mutants in "
                     f"{len({r.mutant.file(ROOT) for r in ran})} files")
    lines += [f"only all cases catch {r.mutant.file(ROOT).relative_to(ROOT)}: {r.mutant.old[:60]!r}"
              for r in done if r.all_cases and r.outcome == "caught"]
    return lines


if __name__ == "__main__":
    sys.exit(main())
