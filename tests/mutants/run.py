"""Judges every mutant on the simulator and prints those that the checks miss.

    python -m tests.mutants.run [--seeds 200] [--processes N] [--problem NAME] [--table FILE]

The exit code is 1 if `unfound.txt` lacks one of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

from tests.mutants import kernels, kernels_across_ctas
from tests.mutants.judge import Verdict, all_mutants, judge
from tests.mutants.unfound import unfound

problems = {p.name: p for p in (*kernels.PROBLEMS, *kernels_across_ctas.PROBLEMS)}


@cache
def mutants_of(name: str):
    return all_mutants(problems[name])


def judged(task: tuple[str, int, int]) -> Verdict:
    name, number, seeds = task
    warnings.simplefilter("ignore")
    return judge(problems[name], mutants_of(name)[number], range(seeds))


def table(verdicts: list[Verdict]) -> str:
    """A row for each problem: how many mutants there are, are wrong without checks, and of those are found; and
    the ones that are not."""
    rows = [f"{'problem':32} mutants  wrong  found"]
    for name in dict.fromkeys(v.problem for v in verdicts):
        mine = [v for v in verdicts if v.problem == name]
        wrong = [v for v in mine if v.wrong is not None]
        rows.append(f"{name:32} {len(mine):7} {len(wrong):6} {sum(bool(v.found) for v in wrong):6}")
    wrong = [v for v in verdicts if v.wrong is not None]
    found = sum(bool(v.found) for v in wrong)
    rows.append(f"{'all':32} {len(verdicts):7} {len(wrong):6} {found:6}   {100 * found / max(len(wrong), 1):.1f} %")
    kinds = Counter(kind for v in verdicts for kind in v.found)
    rows += ["", "kinds of findings: " + ", ".join(f"{kind} {n}" for kind, n in kinds.most_common())]
    rows += ["", "wrong and not found:"] + [f"  {v}, seed {v.wrong}" for v in wrong if v.missed]
    rows += ["", "neither wrong nor found:"] + [f"  {v}" for v in verdicts if v.wrong is None and not v.found]
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--problem", default="")
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    tasks = [(name, n, given.seeds) for name in problems if given.problem in name
             for n in range(len(mutants_of(name)))]
    with multiprocessing.get_context("fork").Pool(given.processes) as pool:
        verdicts = pool.map(judged, tasks, chunksize=4)
    listed = {(u.problem, u.mutant): u.wrong for u in unfound()}
    new = [v for v in verdicts if not v.found and listed.get((v.problem, v.mutant)) not in (True, v.missed)]
    text = "\n".join((table(verdicts), "", "not in unfound.txt, or not as wrong:", *(f"  {v}" for v in new)))
    print(text)
    if given.table:
        given.table.write_text(text + "\n")
    return int(bool(new))


if __name__ == "__main__":
    sys.exit(main())
