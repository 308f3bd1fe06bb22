"""Changes one line of the compiler at a time (`compiler_mutants.py`), and runs the tests that should notice.

    python -m tests.mutants.compiler --processes 16 --log mutants.log

Each mutant is made in a copy of the tree. Its tests run there in one process, until the first that fails, at most
`--limit` seconds: a run that takes longer counts as "slow", and is neither caught nor missed. With ``--both``, each
mutant's tests run twice, with the cases that usual runs take and with all of them (`tests/chosen_cases.py`); a mutant
that only all cases catch says what usual runs prove less. The record of digests, which notices all other code, is
left out. The same tests run without a change first; those that fail then, such as for want of a tool on this machine,
are left out.
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
COPIED = ("tilejit", "tests", "docs", "tutorials", "pyproject.toml", "README.md", "CONTRIBUTING.md")


@dataclass(frozen=True)
class Run:
    """One run of a mutant's tests. `outcome` is "caught", "missed" or "slow"; `failed` are the tests that failed."""

    mutant: Mutant | None
    tests: str
    all_cases: bool
    outcome: str
    failed: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        place = str(self.mutant.file(ROOT).relative_to(ROOT)) if self.mutant else f"no change: {self.tests}"
        change = f": {self.mutant.old[:50]!r}" if self.mutant else ""
        cases = "all " if self.all_cases else "some"
        return f"{cases} {self.outcome:6} {self.seconds:6.1f} s {place}{change} {' '.join(self.failed)[:200]}"


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


def run(mutant: Mutant | None, tests: str, all_cases: bool, limit: float, without: Sequence[str] = ()) -> Run:
    """Run the tests in a copy of the tree with the mutant's change, until one fails; without a change, all of them."""
    with tempfile.TemporaryDirectory(prefix="tilejit-mutant-") as folder:
        copy_tree(Path(folder))
        if mutant:
            mutant.apply(Path(folder))
        own = ["-m", "not gpu", *(f"tests/{test}" for test in tests.split())]
        chosen = ["-m", "quick", "tests"] if tests == QUICK else own
        command = [sys.executable, "-m", "pytest", *(["-x"] if mutant else []), "-p", "no:cacheprovider",
                   *(f"--deselect={test}" for test in without), *chosen]
        began = time.monotonic()
        with subprocess.Popen(command, cwd=folder, env=environment_of(folder, all_cases), text=True,
                              start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            try:
                output, _ = process.communicate(timeout=limit)
                outcome = {0: "missed"}.get(process.returncode, "caught")
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, outcome = process.communicate()[0], "slow"
        failed = re.findall(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", output, re.M)
        said = failed or output.strip().splitlines()[-1:] if outcome == "caught" else []
        return Run(mutant, tests, all_cases, outcome, tuple(said), time.monotonic() - began)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run tests with one line of the compiler changed at a time.")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="mutants at the same time")
    parser.add_argument("--limit", type=float, default=600, help="seconds for each run of tests")
    parser.add_argument("--log", type=Path, help="file for the lines that are printed")
    parser.add_argument("--only", default="", help="mutants whose file or text contains this")
    parser.add_argument("--quick", action="store_true", help="the quick tests instead of each mutant's own")
    parser.add_argument("--both", action="store_true", help="with all cases too")
    options = parser.parse_args(arguments)
    possible = applicable(MUTANTS)
    for mutant in MUTANTS:
        if mutant not in possible:
            print(f"the code has changed, give this mutant another text: {mutant.folder}: {mutant.old!r}")
    chosen = [m for m in possible if options.only in str(m.file(ROOT)) or options.only in m.old]
    modes = (False, True) if options.both else (False,)
    done: list[Run] = []

    def tests_of(mutant: Mutant) -> str:
        return QUICK if options.quick else mutant.tests

    def report(results: Iterable[Run]) -> None:
        for result in results:
            done.append(result)
            print(result, flush=True)
            if options.log:
                options.log.write_text("".join(f"{line}\n" for line in done))

    with ThreadPoolExecutor(options.processes) as pool:
        plain = sorted({tests_of(mutant) for mutant in chosen})
        report(pool.map(lambda tests: run(None, tests, modes[-1], options.limit), plain))
        without = {r.tests: [test for test in r.failed if test.startswith("tests/")] for r in done}
        report(pool.map(lambda job: run(job[0], tests_of(job[0]), job[1], options.limit, without[tests_of(job[0])]),
                        [(mutant, mode) for mutant in chosen for mode in modes]))
    summary = summary_lines(done)
    print(*summary, sep="\n")
    if options.log:
        options.log.write_text("".join(f"{line}\n" for line in (*done, *summary)))
    return 0


def summary_lines(done: Sequence[Run]) -> list[str]:
    """How many mutants each mode catches, and those that only one of them does."""
    lines = []
    for mode in sorted({r.all_cases for r in done}):
        ran = [r for r in done if r.mutant and r.all_cases == mode]
        counts = ", ".join(f"{sum(r.outcome == o for r in ran)} {o}" for o in ("caught", "missed", "slow"))
        lines.append(f"{'all cases' if mode else 'chosen cases'}: {counts}, of {len(ran)} mutants in "
                     f"{len({r.mutant.file(ROOT) for r in ran if r.mutant})} files")
    by_mutant = {(r.mutant, r.all_cases): r.outcome for r in done if r.mutant}
    lines += [f"only one of the two catches {m.file(ROOT).relative_to(ROOT)}: {m.old[:60]!r}" for m in MUTANTS
              if (m, True) in by_mutant and by_mutant[m, True] != by_mutant[m, False]]
    return lines


if __name__ == "__main__":
    sys.exit(main())
