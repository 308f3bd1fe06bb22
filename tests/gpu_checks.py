"""Runs all checks that need a GPU side by side, on all GPUs of the machine:

    python -m tests.gpu_checks --log gpu-checks --seconds 3600

- the tests, plainly and under 20 jitter seeds (with one in 40 cases of long lists)
- the tests under memcheck, racecheck and synccheck (`tests/sanitizer.py`); these and the plain ones with one in `--every` cases
- 20,000 random kernels (`tests/fuzz/run.py`), which begin anew in each call

Nearly all the time is the compiler's, so the plain tests and the tools share a cache. After `--seconds`,
what still runs is cut off. The next call with the same `--log` leaves out the tests that passed, so a run can be
spread over several calls; delete the folder after a change of the code. The run fails if a test failed or a kernel
differs; `LOG/NAME-failed.txt`, of the sanitizers in `LOG/NAME/`, has the ends of the outputs. It needs
compute-sanitizer (of the CUDA toolkit).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Stream:
    """One of the checks. `share`: of all processes, in percent, so that the streams end at about the same time."""

    name: str
    share: int
    command: str
    environment: dict[str, str] = field(default_factory=dict)
    begin: float | None = None  # of those that share a cache, the part of the tests that comes last


def streams(seed: int) -> list[Stream]:
    """The checks by name; `{log}`, `{processes}` and `{seconds}` in a command are filled in."""
    pytest = "-m pytest tests -p no:cacheprovider -m gpu -n {processes}"
    tool = "tests/sanitizer.py --tool {} --every {{every}} --log {{log}}/{} -- -p no:cacheprovider -n {{processes}}"
    random = "tests/fuzz/run.py --count 20000 --seed {0} --processes {{processes}} --seconds {{seconds}} --log {{log}}/random-{0}.log"
    jitter = {"TILEJIT_JITTER": "1", "TILEJIT_JITTER_SEEDS": "20", "TILEJIT_EVERY": "40", "TILEJIT_SLOWER": "3", "TILEJIT_FORK": "1"}
    tools = (("memcheck", 14, 0.25), ("racecheck", 18, 0.5), ("synccheck", 8, 0.75))
    return [Stream("plain", 10, pytest, {"TILEJIT_SLOWER": "3", "TILEJIT_FORK": "1"}, 0.0), Stream("jitter", 32, pytest, jitter),
            *(Stream(name, share, tool.format(name, name), {}, begin) for name, share, begin in tools),
            Stream("random", 18, random.format(seed))]


def start(stream: Stream, number: int, gpus: list[str], options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start a stream on one of the GPUs, the random kernels and the plain tests on all."""
    log = options.log.resolve()
    processes = max(2 * options.cores * stream.share // 100, 1)  # two for each core: those of tests wait for the GPU, too
    seconds = max(options.seconds - 60, options.seconds / 2)  # so that a summary is written before all is cut off
    command = [word.format(log=log, processes=processes, seconds=seconds, every=options.every) for word in stream.command.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
                   "TILEJIT_FAILURES": str(log / f"{stream.name}-failed.txt"), "TILEJIT_PASSED": str(log / f"{stream.name}-passed.txt"),
                   "TILEJIT_EVERY": str(options.every), **stream.environment}
    if stream.begin is not None:
        environment |= {"TILEJIT_CACHE_DIR": str(log / "cache"), "TILEJIT_BEGIN": str(stream.begin)}
    if stream.name not in ("random", "plain"):  # plainly, there are tests of several GPUs
        environment["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    output = open(log / f"{stream.name}.txt", "ab")
    return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True)


def lines_of(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def summary(stream: Stream, status: int | None, log: Path, seed: int) -> str:
    """A line for a stream: how it ended, how many of its tests have passed, and how many failed and have not passed since."""
    state = "cut off" if status is None else "passed" if status in (0, 5) else f"ended with {status}"  # 5: no test was left
    if stream.name == "random":
        found = [line for line in lines_of(log / f"random-{seed}.log") if " kernels in " in line]
        return f"random: {state}; {found[0] if found else 'no summary'}"
    passed = set(lines_of(log / f"{stream.name}-passed.txt"))
    noted = lines_of(log / f"{stream.name}-failed.txt") + lines_of(log / stream.name / f"{stream.name}-failed.txt")
    failed = {line.split(" (")[0].removeprefix("== ") for line in noted if line.startswith("== ")} - passed
    return f"{stream.name}: {state}; {len(passed)} tests passed, {len(failed)} failed"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, default=Path("gpu-checks"), help="folder for reports and for what has passed")
    parser.add_argument("--seconds", type=float, default=3600, help="after which everything is cut off")
    parser.add_argument("--seed", type=int, default=int(time.time()) * 1000, help="of the first random kernel; by default the time")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="processor cores to use")
    parser.add_argument("--every", type=int, default=1, help="run one in so many of long lists of cases")
    parser.add_argument("--only", nargs="*", default=[], choices=[stream.name for stream in streams(0)], help="names of streams")
    options = parser.parse_args(arguments)
    from tests.gpu import gpu_targets
    gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(len(gpu_targets()))))).split(",")
    if not gpu_targets():
        sys.exit("there is no GPU here")
    options.log.mkdir(parents=True, exist_ok=True)
    chosen = [stream for stream in streams(options.seed) if not options.only or stream.name in options.only]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    running, ended = [], []
    try:
        running += [(stream, start(stream, number, gpus, options)) for number, stream in enumerate(chosen)]
        end = time.monotonic() + options.seconds
        while time.monotonic() < end and any(process.poll() is None for _, process in running):
            time.sleep(0.1)
        ended = [process.poll() for _, process in running]
    finally:
        for _, process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    for (stream, _), status in zip(running, ended):
        print(summary(stream, status, options.log, options.seed))
    return int(any(status not in (0, 5) for status in ended))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
