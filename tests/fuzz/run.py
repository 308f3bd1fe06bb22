"""Runs many random kernels at once, in one process per core, on all GPUs of the machine:

    python tests/fuzz/run.py --count 20000 --seed 1000000 --seconds 540 --log fuzz.log

Each kernel is generated from its seed, compiled, and launched several times with a grid that fills the GPU more than once. Its
results are compared with NumPy's; all launches, and all copies of the grid in each, must give the same bytes. A kernel that
hangs or faults costs its worker, which is started again. Failing kernels are logged and saved next to the log, as source and as
a file that `fuzz_program.Program.read` reads. `--backend sim` runs on the simulator instead.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WAVE = 132               # CTAs of one wave of the smallest grid: the multiprocessors of an H100
MOST_BYTES = 192 << 20   # of the outputs of one launch


# -- a worker ------------------------------------------------------------------------------------------------------------------

def work(options: argparse.Namespace) -> None:
    """Answer each seed on the standard input with one line of JSON: the outcome, its message, the variants, seconds by stage."""
    import warnings
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
    import kernel_fuzz  # noqa: F401
    if options.plant:
        exec(Path(options.plant).read_text(), {})
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        answer = attempt(int(line), options)
        print(json.dumps(answer), file=answers, flush=True)
        if answer["outcome"] == "fault":
            os._exit(1)  # the CUDA context may be broken


def attempt(seed: int, options: argparse.Namespace) -> dict:
    """Generate and run the kernel of a seed. The outcome is "right", "refused" (too many registers), or what went wrong."""
    import tilejit as tile
    from fuzz_program import Unequal
    from kernel_fuzz import generate

    program, answer = None, {"seed": seed, "outcome": "right", "message": "", "variants": [], "seconds": {}}
    clock = Clock(answer["seconds"])
    try:
        program = generate(seed)
        clock.stop("generate")
        found = (on_simulator if options.backend == "sim" else on_gpu)(program, options, answer, clock)
        if found:
            answer |= {"outcome": "differs", "message": found[0]}
    except tile.CompilationError as error:
        refused = "registers of each thread" in str(error)
        answer |= {"outcome": "refused" if refused else "not compiled", "message": str(error)}
    except tile.ToolchainError as error:
        answer |= {"outcome": "crash of the assembler" if "crashed" in str(error) else "error", "message": str(error)}
    except Unequal as error:
        answer |= {"outcome": "differs", "message": str(error)}
    except AssertionError as error:
        answer |= {"outcome": "finding", "message": str(error)}
    except tile.LaunchError as error:
        answer |= {"outcome": "fault", "message": str(error)}
    except Exception as error:
        answer |= {"outcome": "error", "message": f"{type(error).__name__}: {error}"}
    if answer["outcome"] not in ("right", "refused"):
        save(program, seed, answer, options)
    return answer


@dataclass
class Clock:
    """Seconds by stage."""

    seconds: dict[str, float]
    last: float = field(default_factory=time.perf_counter)

    def stop(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + now - self.last, 4)
        self.last = now


def on_simulator(program, options, answer: dict, clock: Clock) -> list[str]:
    found = program.differences(program.simulate())
    clock.stop("simulate")
    return found


def on_gpu(program, options, answer: dict, clock: Clock) -> list[str]:
    """The differences of the GPU from NumPy, and for some programs from the simulator."""
    draw = random.Random(program.seed)
    replicas = -(-draw.randint(2 * WAVE, 4 * WAVE) // program.grid[0])
    nbytes = sum(w.nbytes for w in program.expected.values()) or 1
    replicas = max(1, min(replicas, MOST_BYTES // nbytes))
    asynchronous = any(word in program.source for word in ("async", "pipelined", "ring("))
    try:
        got = program.launch(replicas, options.times if asynchronous else 2)
    finally:
        clock.stop("compile and launch")
        note(program, answer)
        clock.stop("records")
    found = program.differences(got)
    if not found and draw.random() < options.simulate:
        found = program.differences(got, program.simulate(side_by_side=True))
        clock.stop("simulate")
    return found


def note(program, answer: dict) -> None:
    """Put what the compiled kernel uses, and how long each stage of its compilation took, into the answer."""
    from fuzz_variants import used

    for compiled in [v.compiled for versions in program.compiled_kernel().versions.values() for v in versions if v.compiled is not None]:
        answer["variants"] = sorted({*answer["variants"], *used(compiled)})
        for stage, seconds in compiled.compile_time.items():
            answer["seconds"][f"  {stage}"] = round(seconds, 4)


def save(program, seed: int, answer: dict, options: argparse.Namespace) -> None:
    """Write a failing program to the log's folder."""
    folder = Path(options.log).with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    if program is not None:
        quoted = "".join(f"# {line}\n" for line in answer["message"].splitlines()[:40])
        (folder / f"{seed}.py").write_text(f"# seed {seed}, {answer['outcome']}; {program.options}\n{quoted}{program.source}")
        program.save(folder / f"{seed}.npz")


# -- the parent ----------------------------------------------------------------------------------------------------------------

@dataclass
class Worker:
    """A child process, the seed that it works on, and since when."""

    process: subprocess.Popen
    number: int
    errors: object
    seed: int | None = None
    since: float = field(default_factory=time.perf_counter)

    def give(self, seed: int) -> None:
        self.seed, self.since = seed, time.perf_counter()
        self.process.stdin.write(f"{seed}\n".encode())
        self.process.stdin.flush()

    def last_words(self) -> str:
        self.errors.seek(0)
        return self.errors.read()[-1500:].decode(errors="replace").strip()

    def end(self) -> None:
        self.process.kill()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            pass  # the driver holds on to a process whose kernel does not end
        self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()


class Run:
    """Hands the seeds to the workers, and collects their answers."""

    def __init__(self, options: argparse.Namespace, devices: list[str]):
        self.options, self.devices = options, devices
        self.seeds = iter(range(options.seed, options.seed + options.count))
        self.outcomes, self.variants, self.failed_variants, self.seconds = Counter(), Counter(), Counter(), Counter()
        self.selector = selectors.DefaultSelector()
        self.begin = time.perf_counter()
        self.log = open(options.log, "w")

    def start(self, number: int) -> None:
        environment = {**os.environ, "TILEJIT_NO_CACHE": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices[number % len(self.devices)]
        errors = tempfile.TemporaryFile()
        passed = (f"--{name}={getattr(self.options, name)}" for name in ("backend", "times", "simulate", "log", "plant"))
        command = [sys.executable, __file__, "--worker", *passed]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=ROOT)
        self.selector.register(process.stdout, selectors.EVENT_READ, Worker(process, number, errors))

    def workers(self) -> list[Worker]:
        return [key.data for key in self.selector.get_map().values()]

    def drop(self, worker: Worker) -> None:
        self.selector.unregister(worker.process.stdout)
        worker.end()

    def take(self, answer: dict) -> None:
        self.outcomes[answer["outcome"]] += 1
        self.variants.update(answer["variants"])
        self.seconds.update(answer["seconds"])
        count = sum(self.outcomes.values())
        if count % 1000 == 0:
            self.say(f"{count} of {self.options.count} kernels after {time.perf_counter() - self.begin:.0f} s")
        if answer["outcome"] not in ("right", "refused"):
            self.failed_variants.update(answer["variants"])
            message = " ".join(str(answer["message"]).split())[:600]
            self.say(f"seed {answer['seed']}: {answer['outcome']}: {message}  [{', '.join(answer['variants'])}]")

    def say(self, line: str) -> None:
        print(line, file=self.log, flush=True)
        print(line[:300], flush=True)

    def lost(self, worker: Worker, outcome: str) -> None:
        """Log the seed of a worker that hangs or has ended, and start another one."""
        words = worker.last_words()
        self.drop(worker)
        if worker.seed is not None:
            self.take({"seed": worker.seed, "outcome": outcome, "message": words, "variants": [], "seconds": {}})
            self.regenerate(worker.seed, outcome)
        self.start(worker.number)

    def regenerate(self, seed: int, outcome: str) -> None:
        """Save the program of a seed whose worker could not."""
        sys.path[:0] = [p for p in (str(ROOT), str(Path(__file__).parent)) if p not in sys.path]
        from kernel_fuzz import generate
        try:
            save(generate(seed), seed, {"outcome": outcome, "message": ""}, self.options)
        except Exception as error:
            self.say(f"seed {seed}: cannot be generated: {type(error).__name__}: {error}")

    def answered(self, worker: Worker) -> None:
        line = worker.process.stdout.readline()
        if not line:
            return self.lost(worker, "fault")
        answer = json.loads(line)
        if "ready" not in answer:
            self.take(answer)
            worker.seed = None
            if answer["outcome"] == "fault":
                self.drop(worker)
                return self.start(worker.number)
        seed = next(self.seeds, None)
        if seed is None:
            return self.drop(worker)
        worker.give(seed)

    def all(self) -> bool:
        """Run until the seeds or the time are used up. Whether every kernel was right."""
        for number in range(self.options.processes):
            self.start(number)
        while self.workers() and time.perf_counter() - self.begin < self.options.seconds:
            for key, _ in self.selector.select(timeout=1.0):
                self.answered(key.data)
            for worker in self.workers():
                if time.perf_counter() - worker.since > self.options.limit * (1 if worker.seed is not None else 5):   # imports take time, too
                    self.lost(worker, "hang")
        for worker in self.workers():
            self.drop(worker)
        self.summary()
        return not set(self.outcomes) - {"right", "refused"}

    def summary(self) -> None:
        count, seconds = sum(self.outcomes.values()), time.perf_counter() - self.begin
        self.say(f"{count} of {self.options.count} kernels in {seconds:.0f} s by {self.options.processes} processes: "
                 + ", ".join(f"{n} {outcome}" for outcome, n in self.outcomes.most_common()))
        self.say("seconds per kernel: " + ", ".join(f"{stage} {total / max(count, 1):.3f}" for stage, total in self.seconds.most_common()))
        for name, n in sorted(self.variants.items()):
            self.say(f"  {name:28} {n:6} kernels, {100 * n / max(count, 1):5.1f} %, {self.failed_variants[name]} failed")


def visible_devices() -> list[str]:
    """The names for CUDA_VISIBLE_DEVICES of the GPUs that this process sees."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given:
        return given.split(",")
    program = "from tilejit.runtime import driver\nprint(driver.device_count() if driver.available() else 0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=ROOT)
    return [str(i) for i in range(int(done.stdout.strip() or 0))]


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20000, help="number of kernels")
    parser.add_argument("--seed", type=int, default=int(time.time()) * 1000, help="the first seed; by default the time")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=540, help="stop after this time")
    parser.add_argument("--limit", type=float, default=60, help="seconds after which a kernel counts as hanging")
    parser.add_argument("--times", type=int, default=10, help="launches of each kernel with asynchronous work")
    parser.add_argument("--simulate", type=float, default=0.0, help="fraction of the kernels that the simulator runs, too")
    parser.add_argument("--backend", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--log", default="fuzz.log")
    parser.add_argument("--plant", default="", help="a file of Python that each worker executes first, to test this program with")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.log = os.path.abspath(options.log)
    Path(options.log).parent.mkdir(parents=True, exist_ok=True)
    return options


def main() -> int:
    options = parsed()
    if options.worker:
        work(options)
        return 0
    devices = [] if options.backend == "sim" else visible_devices()
    if options.backend == "cuda" and not devices:
        sys.exit("there is no GPU here; --backend sim runs the kernels on the simulator")
    print(f"seeds {options.seed} to {options.seed + options.count - 1} by {options.processes} processes on "
          f"{f'{len(devices)} GPUs' if devices else 'the simulator'}", flush=True)
    return 0 if Run(options, devices).all() else 1


if __name__ == "__main__":
    sys.exit(main())
