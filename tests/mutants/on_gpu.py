"""Launches mutants on a GPU under jitter, and prints those that go wrong there and are not found by the simulator.

    python -m tests.mutants.on_gpu                        those that the simulator does not find, under 20 seeds
    python -m tests.mutants.on_gpu --only all --seeds 5   every mutant
    python -m tests.mutants.on_gpu --dry                  compiles them for sm_90a, without a GPU

A mutant goes wrong under a seed if a launch gives other values than it should, fails, or does not end within the time
limit. Its problem is replicated to the whole GPU. The kernels without a change run under all seeds, too:
the exit code is 1 if one of them goes wrong, or if a mutant does that no finding names and that `unfound.txt` does not
call wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic

import numpy as np
import tilejit as tile
from tilejit.errors import LaunchError

from tests.fuzz.run import visible_devices
from tests.mutants.mutate import mutants
from tests.mutants.problem import Problem, right
from tests.mutants.run import mutants_of, problems
from tests.mutants.unfound import unfound
from tests.sim.jitter_gpu import Outcome, in_children

COPIES = 132  # of each problem, of one or two CTAs: one or two for each multiprocessor of an H100 or H200
TOGETHER = 7  # jitter seeds of a mutant in one process: importing and the context take as long as two kernels
NONE = ""     # the name of the mutant without a change


# -- in the children -------------------------------------------------------------------------------------------------

def compiled(problem: Problem, mutant: str, arguments: list, seed: int | None):
    """The mutant, compiled with jitter. It stays out of the cache, where it would have the right kernel's key."""
    from tilejit.manifest import Shelf

    bound, options = problem.bound(arguments)
    lowered = problem.kernel.version(bound, options, "sm_90a").lowered
    graph = lowered.graph
    if mutant != NONE:
        graph = next(m.graph for m in mutants(graph) if m.name == mutant)
    launch = replace(graph.launch, jitter=seed)
    shelf = Shelf(problem.kernel.source, bound, launch, "sm_90a")
    shelf.store = None
    return shelf.compile(replace(lowered, graph=replace(graph, launch=launch)), bound)


def on_device(arguments: list) -> list:
    return [tile.to_device(a) if isinstance(a, np.ndarray) else a for a in arguments]


def wrong(problem: Problem, code, given: list, expected: dict) -> bool:
    """Launch the code once, with copies of the arguments, and compare."""
    from tilejit.runtime.launch import launch_arguments

    there = on_device(given)
    bound, _ = problem.bound(there)
    if not code.launcher(0)((problem.grid * COPIES, 1, 1), None, launch_arguments(bound)):
        raise LaunchError(f"the arguments of {problem.name} do not fit its code")
    got = [x.numpy() if isinstance(a, np.ndarray) else a for a, x in zip(given, there)]  # this waits for the kernel
    return not right(problem, expected, got)


def child(name: str, mutant: str, seeds: list[int | None], launches: int) -> None:
    """Compile and launch one mutant under some seeds; a line on stdout before and after each, as `tests.sim.jitter_gpu`
    reads them. Without launches it needs no GPU."""
    from tilejit.runtime import driver

    warnings.simplefilter("ignore")
    if launches and not driver.available():
        raise SystemExit("there is no GPU")
    problem = problems[name]
    given = problem.make(COPIES)
    expected = problem.expected(given)
    for seed in seeds:
        print(json.dumps({"begins": seed}), flush=True)
        code = compiled(problem, mutant, on_device(given) if launches else given, seed)
        print(json.dumps({"launches": seed}), flush=True)
        times = sum(wrong(problem, code, given, expected) for _ in range(launches))
        print(json.dumps({"ends": seed, "wrong": times, "of": launches}), flush=True)


# -- in the parent ---------------------------------------------------------------------------------------------------

def chosen(only: str, part: str) -> list[tuple[str, str]]:
    """(problem, mutant) of the mutants to launch, and of the kernels without a change."""
    listed = {(u.problem, u.mutant) for u in unfound()}
    found = []
    for name in problems:
        if part in name:
            names = [m.name for m in mutants_of(name) if only == "all" or (name, m.name) in listed]
            found += [(name, mutant) for mutant in (NONE, *names)]
    return found


def run_all(tasks: list[tuple[str, str]], options) -> dict[tuple[str, str], Outcome]:
    """The outcome of each mutant. Seeds of one mutant are shared out among processes, and those among GPUs."""
    devices = [] if options.dry else visible_devices()
    if not devices and not options.dry:
        raise SystemExit("there is no GPU")
    until, launches = monotonic() + options.seconds, 0 if options.dry else options.launches
    seeds = [None, *range(options.seeds)]

    def one(number: int, task: tuple[str, str], few: list[int | None]) -> Outcome:
        def command(left: list[int | None]) -> list[str]:
            return [sys.executable, "-m", "tests.mutants.on_gpu", "--child", json.dumps([*task, left, launches])]

        environment = {"CUDA_VISIBLE_DEVICES": devices[number % len(devices)]} if devices else {}
        return in_children(command, few, options.limit, until, faulty=task[1] != NONE, environment=environment)

    outcomes: dict[tuple[str, str], Outcome] = {}
    with ThreadPoolExecutor(options.processes) as pool:
        parts = [(task, seeds[at:at + TOGETHER]) for at in range(0, len(seeds), TOGETHER) for task in tasks]
        running = [(task, pool.submit(one, n, task, few)) for n, (task, few) in enumerate(parts)]
        for task, future in running:
            outcome = outcomes.setdefault(task, Outcome())
            part = future.result()
            outcome.shown |= part.shown
            outcome.ran += part.ran
            outcome.error = outcome.error or part.error
    return outcomes


def table(outcomes: dict[tuple[str, str], Outcome]) -> str:
    """A row for each mutant that went wrong or could not run, and the numbers."""
    rows, listed = [], {(u.problem, u.mutant): u for u in unfound()}
    for (name, mutant), outcome in outcomes.items():
        shown = ", ".join(f"{'no jitter' if s is None else s} ({how})" for s, how in outcome.shown.items())
        if shown or outcome.error:
            known = listed.get((name, mutant))
            words = "UNCHANGED" if mutant == NONE else "not found" if known else "found"
            how = " ".join(filter(None, (shown, outcome.error)))
            rows.append(f"{words} {name}, {mutant}: {how}; {outcome.ran} seeds ran")
    ran = Counter(mutant == NONE for (_, mutant), outcome in outcomes.items() if outcome.ran)
    compilations = sum(o.ran for o in outcomes.values())
    rows.append(f"{ran[False]} mutants and {ran[True]} kernels without a change ran, compiled {compilations} times; "
                f"{len(new(outcomes))} go wrong and are not found")
    return "\n".join(rows)


def new(outcomes: dict[tuple[str, str], Outcome]) -> list[tuple[str, str]]:
    """The mutants that went wrong, and that no finding names and `unfound.txt` does not call wrong."""
    harmless = {(u.problem, u.mutant) for u in unfound() if not u.wrong}
    return [task for task, outcome in outcomes.items() if outcome.shown and task in harmless]


def parsed(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--launches", type=int, default=4, help="launches per seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=1e6, help="for everything; the rest is left out")
    parser.add_argument("--limit", type=float, default=10, help="seconds for the launches of one seed")
    parser.add_argument("--only", choices=("unfound", "all"), default="unfound")
    parser.add_argument("--problem", default="", help="a part of the names of problems")
    parser.add_argument("--dry", action="store_true", help="compile only")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    return parser.parse_args(given)


def main() -> int:
    options = parsed()
    if options.child:
        child(*json.loads(options.child))
        return 0
    outcomes = run_all(chosen(options.only, options.problem), options)
    print(table(outcomes))
    unchanged = [name for (name, mutant), o in outcomes.items() if mutant == NONE and (o.shown or o.error)]
    return int(bool(unchanged or new(outcomes) or any(o.error for o in outcomes.values())))


if __name__ == "__main__":
    sys.exit(main())
