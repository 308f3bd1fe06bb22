"""Runs the catalogue of faulty kernels and their twins on a GPU under jitter, and prints which show their fault.

    python tests/sim/jitter_gpu.py                        all kernels under 100 seeds, in as many processes as there are cores
    python tests/sim/jitter_gpu.py --seeds 40 --only slots,one_buffer --out table.txt

A kernel shows its fault under a seed if a launch gives other values than it should, fails, or does not end within the time limit. A faulty kernel is
done once some seeds have shown it; its twin runs under all of them. Each process has one kernel at a time; one that hangs is ended. The exit code is
1 if a twin shows anything, or if fewer than 80 % of the faulty kernels do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

HERE = Path(__file__).resolve().parent
ENOUGH = 3  # seeds that show a fault, after which a faulty kernel is done
LEAST = 0.8


@dataclass
class Outcome:
    """What one kernel did: the seeds that showed a fault, with how (None stands for no jitter), and the number of seeds that ran."""

    shown: dict[int | None, str] = field(default_factory=dict)
    ran: int = 0
    error: str = ""


# -- in the children -------------------------------------------------------------------------------------------------------

def child(name: str, side: str, seeds: list[int | None], launches: int) -> None:
    """Launch one kernel under some seeds; a line on stdout before and after each."""
    sys.path[:0] = [str(HERE), str(HERE.parent.parent)]
    import warnings

    warnings.simplefilter("ignore")
    from catalogue import FAULTS
    from tilejit.runtime import driver

    if not driver.available():
        raise SystemExit("there is no GPU")
    fault = next(f for f in FAULTS if f.name == name)
    kernel = getattr(fault, side)
    if kernel.expect is None:
        fault.from_twin
    shown = 0
    for seed in seeds:
        print(json.dumps({"begins": seed}), flush=True)
        compiled = kernel.kernel.compile(*fault.on_gpu, **kernel.constants, jitter=seed)  # not counted in the time of the launches
        print(json.dumps({"launches": seed, "key": compiled.key}), flush=True)
        wrong = sum(fault.wrong(kernel, seed) for _ in range(launches))
        print(json.dumps({"ends": seed, "wrong": wrong, "of": launches}), flush=True)
        shown += bool(wrong)
        if side == "faulty" and shown >= ENOUGH:
            return


# -- in the parent ---------------------------------------------------------------------------------------------------------

def run(name: str, side: str, seeds: list[int | None], launches: int, limit: float, until: float) -> Outcome:
    """One kernel under all seeds, in as many child processes as it takes: one that hangs or fails is replaced."""
    def command(left: list[int | None]) -> list[str]:
        return [sys.executable, str(Path(__file__).resolve()), "--child", json.dumps([name, side, left, launches])]

    return in_children(command, seeds, limit, until, faulty=side == "faulty")


def in_children(command, seeds: list[int | None], limit: float, until: float, faulty: bool,
                environment: dict[str, str] | None = None) -> Outcome:
    """As `run`, of any program: `command(seeds)` starts one that prints lines as `child` does."""
    outcome, left = Outcome(), list(seeds)
    while left and monotonic() < until and not (faulty and len(outcome.shown) >= ENOUGH):
        seed, stage, text = _one_child(command(left), limit, until, outcome, environment or {})
        if stage == "done" or monotonic() >= until - 0.5:  # a child is ended just before the time is over
            break
        failed = "CUDA_ERROR" in text  # the kernel itself: an address that it computed from wrong bytes, or a barrier that it misused
        if stage != "launches" or "CompilationError" in text or "LaunchError" in text and not failed:  # of the compiler or of this program
            outcome.error = text
            break
        outcome.shown[seed] = text
        outcome.ran += 1
        if faulty:  # a kernel that hangs under one seed hangs under most
            break
        left = left[left.index(seed) + 1:]
    return outcome


def _one_child(command, limit, until, outcome, environment) -> tuple[int | None, str, str]:
    """(the last seed, the stage that it reached, what went wrong) of a child."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=dict(os.environ, OPENBLAS_NUM_THREADS="1", **environment), cwd=HERE.parent.parent)
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read()), daemon=True)
    reader.start()
    seed, stage, timer = None, "starts", _killer(process, 120)
    for line in process.stdout:
        timer.cancel()
        said = json.loads(line) if line.startswith("{") else {}
        if "ends" in said:
            outcome.ran += 1
            if said["wrong"]:
                outcome.shown[said["ends"]] = f"{said['wrong']}/{said['of']}"
            stage = "done"
        elif said:
            seed, stage = next(iter(said.values())), next(iter(said))
        timer = _killer(process, max(min(limit if stage == "launches" else 120, until - monotonic()), 0.1))
    timer.cancel()
    process.wait()
    reader.join(10)
    if process.returncode == 0:
        return seed, "done", ""
    last = ("".join(errors).strip().splitlines() or ["?"])[-1]
    return seed, stage if stage != "done" else "starts", "hangs" if process.returncode < 0 else f"fails: {last[:100]}"


def _killer(process, seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    return timer


def run_all(names: list[str], seeds: int, launches: int, limit: float, budget: float, jobs: int) -> dict[str, dict[str, Outcome | None]]:
    """The outcomes of the faulty kernels and of their twins, by the kernels' names."""
    sys.path[:0] = [str(HERE), str(HERE.parent.parent)]
    from catalogue import FAULTS

    faults = [f for f in FAULTS if not names or any(f.name.startswith(n) for n in names)]
    until = monotonic() + budget
    with ThreadPoolExecutor(jobs) as pool:
        running = {(f.name, side): pool.submit(run, f.name, side, [None, *range(seeds)], launches, limit, until)
                   for side in ("faulty", "twin") for f in faults if getattr(f, side) is not None}
        done = {key: future.result() for key, future in running.items()}
    return {f.name: {side: done.get((f.name, side)) for side in ("faulty", "twin")} for f in faults}


def table(outcomes: dict[str, dict[str, Outcome | None]]) -> str:
    """A line for each kernel: whether the fault shows without jitter, the seeds that show it, and the twin."""
    lines = []
    for name, sides in outcomes.items():
        faulty, twin = sides["faulty"], sides["twin"]
        shown = ", ".join(f"{'no jitter' if s is None else s} ({how})" for s, how in faulty.shown.items())
        words = [shown or f"under none of {faulty.ran}", faulty.error]
        if twin is None:
            clean = "no twin"
        else:
            clean = f"TWIN {twin.shown} {twin.error}" if twin.shown or twin.error else f"twin clean in {twin.ran}"
        lines.append(f"{'shown ' if faulty.shown else 'HIDDEN'} {name}: {' '.join(filter(None, words))}; {clean}")
    found = sum(bool(s["faulty"].shown) for s in outcomes.values())
    lines.append(f"{found} of {len(outcomes)} faulty kernels show their fault ({found / max(len(outcomes), 1):.0%}); "
                 f"twins that show one or did not run: {len(bad_twins(outcomes))}")
    return "\n".join(lines)


def bad_twins(outcomes) -> list[str]:
    """The names of kernels whose twin showed a fault, or did not run."""
    twins = {name: sides["twin"] for name, sides in outcomes.items() if sides["twin"] is not None}
    return [name for name, twin in twins.items() if twin.shown or twin.error or not twin.ran]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--launches", type=int, default=4, help="launches per seed")
    parser.add_argument("--only", default="", help="beginnings of the names of kernels, separated by commas")
    parser.add_argument("--limit", type=float, default=10, help="seconds for the launches of one seed")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds for everything; what has not run by then is left out")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", default="")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*json.loads(options.child))
        return 0
    outcomes = run_all(list(filter(None, options.only.split(","))), options.seeds, options.launches, options.limit,
                       options.budget, options.jobs)
    text = table(outcomes)
    print(text)
    if options.out:
        Path(options.out).write_text(text + "\n")
    found = sum(bool(s["faulty"].shown) for s in outcomes.values())
    return int(bool(bad_twins(outcomes)) or found < LEAST * len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
