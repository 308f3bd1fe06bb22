"""Kernels with several configurations: ``tile.autotune``."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from ..config import checked_target, config
from ..errors import CompilationError, LaunchError, SlowCodeError, TileError, ToolchainError, warn
from ..frames import hide_own_frames
from ..frontend.captures import Capture
from ..jit import Kernel
from ..lazy import Lazy
from ..runtime import driver
from ..runtime.arguments import ArraySpec, Bound, is_host
from ..runtime.groups import parts_of
from ..runtime.options import checked_grid, make_launch
from .progress import Progress, say
from .reporting import TunedCall, TuningReport
from .space import apply_constraints, complete_configs, config_text, key_names, listed_configs
from .trials import Resources, Trial, Trials, call_text, is_settled

if TYPE_CHECKING:
    import tilejit as tile

    from ..compiled import CompiledKernel
    from ..sim.report import Report

futures = Lazy("concurrent.futures")
launching = Lazy("tilejit.runtime.launch")
in_place = Lazy("tilejit.tuning.kept")
measuring = Lazy("tilejit.tuning.measuring")  # a process that finds all results needs neither this nor the workers
workers_of = Lazy("tilejit.tuning.workers")

Times = tuple[dict[int, float], dict[int, TileError]]  # milliseconds, and the errors of the others

RECENT = 4096       # size of the table of choices by the signatures of calls (`_looks`)
LIMIT = 10.0        # seconds for a burst of launches, by default


@dataclass(frozen=True)
class How:
    """How configurations are tried: the parameters of `autotune`."""

    accept: Callable[[Resources], Any] | None = None
    limit: float | None = LIMIT
    budget: float | None = None
    workers: Any = None
    shuffled: bool = False  # whether a budget takes a sample of the configurations, not the first of them

    def check(self) -> None:
        """LaunchError for what does not fit."""
        if self.accept is not None and not callable(self.accept):
            raise LaunchError("accept is a function of tile.tuning.Resources, as in accept=lambda r: r.spills == 0, "
                              f"not {self.accept!r}")
        for name, seconds in (("limit", self.limit), ("budget", self.budget)):
            wrong = isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf
            if seconds is not None and wrong:
                raise LaunchError(f"{name} is a number of seconds above 0, or None, not {seconds!r}")
        if self.workers is not None:
            workers_of.check_workers(self.workers)
        if self.workers is not None and self.limit is None:
            raise LaunchError("limit=None times in this process, and workers= in others: give one of them")


@dataclass
class _Task:
    """A configuration of one call: its arguments, launch options, grid, and the key of its result."""

    config: dict[str, Any]
    bound: Bound
    options: dict[str, Any]
    grid: tuple[int, ...]
    place: str | None
    compiled: CompiledKernel | None = None
    captured: tuple[Capture, ...] | None = None


class Tuned:
    """A kernel with several configurations, launched like a kernel. The first call of each kind times them all.

    By kind of call: `chosen` has the chosen configuration, `timings` the milliseconds of those that have a time,
    `rejected` why the others have none, both by index in `configs`.
    """

    def __init__(self, kernel: Kernel, configs: list[dict[str, Any]], key: tuple[str, ...] | None,
                 prune: Callable[..., Any] | None, how: How):
        self.kernel, self.configs, self.key, self.prune, self.how = kernel, configs, key, prune, how
        self.__name__, self.__qualname__, self.__module__, self.__doc__ = (kernel.__name__, kernel.__qualname__,
                                                                           kernel.__module__, kernel.__doc__)
        self.recent: dict[Any, dict[str, Any]] = {}  # choices by `_looks`, which avoids binding arguments
        self.chosen: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.tried: dict[tuple[Any, ...], dict[int, Trial]] = {}
        self.calls: dict[tuple[Any, ...], tuple[str, str]] = {}  # a kind of call in words, and its GPU
        self.known = Trials(kernel)

    def __repr__(self) -> str:
        return f"<{self.kernel.name}, tuned over {len(self.configs)} configurations>"

    def __reduce__(self) -> str:
        return self.__qualname__

    @hide_own_frames
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.kernel(*args, **kwargs)  # raises an error that says how to launch it

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        @hide_own_frames
        def launch(*args: Any, **kwargs: Any) -> None:
            looks = _looks(args, kwargs)
            chosen = self.recent.get(looks)
            if chosen is None:
                chosen = self.config(grid, *args, **{k: v for k, v in kwargs.items() if k != "stream"})
                if len(self.recent) >= RECENT:
                    self.recent.clear()
                if looks is not None:
                    self.recent[looks] = chosen
            self.kernel[grid](*args, **kwargs, **chosen)
        return launch

    __iter__ = None  # otherwise Python would iterate by indices, without end: every number is a grid

    @property
    def timings(self) -> dict[tuple[Any, ...], dict[int, float]]:
        """The milliseconds of the configurations that have a time, by kind of call and index in `configs`."""
        found = {kind: {i: t.ms for i, t in trials.items() if t.ms is not None} for kind, trials in self.tried.items()}
        return {kind: times for kind, times in found.items() if times}

    def _reasons(self) -> dict[tuple[Any, ...], dict[int, str]]:
        """Why the other configurations have none, by kind of call and index in `configs`."""
        found = {kind: {i: t.reason for i, t in trials.items() if t.reason} for kind, trials in self.tried.items()}
        return {kind: reasons for kind, reasons in found.items() if reasons}

    rejected = property(_reasons)

    @hide_own_frames
    def compile(self, *specs: Any, target: str | None = None, **kwargs: Any) -> list[CompiledKernel]:
        """Compile all configurations for `target`, without a launch;
        returns the compiled kernels in the order of `configs`."""
        self._check_free(kwargs)
        return [self.kernel.compile(*specs, **kwargs, **chosen, target=target) for chosen in self.configs]

    @hide_own_frames
    def simulate(self, grid: Any, /, *args: Any, seed: int | None = None, checks: bool = True,
                 target: str | None = None, **kwargs: Any) -> Report:
        """Run the first configuration that compiles for `target` on the simulator; returns its report."""
        chosen = self._first_config(*self._bound(args, kwargs), args, kwargs, target)
        report: Report = self.kernel.simulate(grid, *args, **kwargs, **chosen, seed=seed, checks=checks, target=target)
        return report

    @hide_own_frames
    def config(self, grid: Any, /, *args: Any, backend: str | None = None, device: int | None = None,
               **kwargs: Any) -> dict[str, Any]:
        """The configuration for a call: chosen earlier (in this process, or in another one for the same GPU),
        or by timing now.

        On the simulator, which measures no time, it is the first configuration that compiles. The arrays' contents stay
        as they are. Raises the first configuration's error if none runs.
        """
        bound, options = self._bound(args, kwargs)
        if (backend or config().backend or ("sim" if is_host(bound) else "cuda")) == "sim":
            return self._first_config(bound, options, args, kwargs, None)
        kind = (False, device, *self._kind(bound, options))
        if kind not in self.chosen:
            configs = self._candidates(bound)
            if 0 in checked_grid(grid, bound):
                return next(iter(configs.values()))  # nothing to launch, so nothing to time
            self.chosen[kind] = self._fastest_config(kind, configs, bound, grid, args, kwargs, device)
        return self.chosen[kind]

    def report(self) -> TuningReport:
        """What tuning found in this process: for each kind of call a table of all configurations, with the times, the
        resources, and why some were not timed. Notebooks show a picture too."""
        calls = []
        for kind, (call, gpu) in self.calls.items():
            order = sorted(self.tried[kind].values(), key=lambda t: (t.ms is None, t.ms or 0.0))
            calls.append(TunedCall(call, gpu, tuple(order)))
        return TuningReport(self.kernel.name, tuple(calls))

    @hide_own_frames
    def save_results(self, path: str | os.PathLike[str]) -> int:
        """Write the results for this kernel, of this process and of the on-disk cache, to a file of JSON; returns how
        many there are. LaunchError if the file cannot be written."""
        return self.known.save(path)

    @hide_own_frames
    def load_results(self, *paths: str | os.PathLike[str]) -> int:
        """Add the results in files of `save_results`, perhaps of other machines; returns how many fit this kernel and
        these versions of tilejit and its tools. They count on GPUs of the same name. Where two are for the same, the
        newer counts. LaunchError if a file has none that fits."""
        count = self.known.load(paths)
        self.chosen.clear()
        self.recent.clear()
        return count

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Bound, dict[str, Any]]:
        """Bind a call's arguments, together with the values of the first configuration; and the launch options of the
        call itself. LaunchError if the call sets one of them itself."""
        self._check_free(kwargs)
        bound, options, _ = self.kernel.bind(args, {**kwargs, **self.configs[0]})
        return bound, {name: value for name, value in options.items() if name not in self.configs[0]}

    def _check_free(self, kwargs: dict[str, Any]) -> None:
        for name in self.configs[0]:
            if name in kwargs:
                raise LaunchError(f"{self.kernel.name}: {name!r} is given, and the configurations set it")

    def _kind(self, bound: Bound, options: dict[str, Any]) -> tuple[Any, ...]:
        """The kind of a call, for which one configuration is chosen: the numbers, and dtypes, shapes and strides of
        arrays, in `key`; and the launch options."""
        names = self._told_by(bound)
        kinds = tuple(_kind_of_argument(bound.values[name]) for name in names)
        kinds += tuple(sorted(options.items())) if options else ()
        return (*kinds, tuple(names)) if bound.groups else kinds

    def _told_by(self, bound: Bound) -> list[str]:
        """The names of the arguments that tell kinds of calls apart."""
        return [n for n in (bound.values if self.key is None else bound.parts(self.key)) if n not in self.configs[0]]

    def _candidates(self, bound: Bound) -> dict[int, dict[str, Any]]:
        configs = dict(enumerate(self.configs))
        if self.prune is None:
            return configs
        kept = self.prune(list(self.configs), bound.meta())
        if not isinstance(kept, Iterable):
            raise LaunchError(f"{self.kernel.name}: prune= returns a list of the configurations worth timing, "
                              f"not {type(kept).__name__}")
        kept = list(kept)
        configs = {i: c for i, c in configs.items() if c in kept}
        if not configs:
            raise LaunchError(f"{self.kernel.name}: prune= keeps none of the {len(self.configs)} "
                              "configurations for this call")
        return configs

    def _first_config(self, bound: Bound, options: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any],
                      target: str | None) -> dict[str, Any]:
        """The first configuration that compiles for a target, for the simulator."""
        target = checked_target(target or config().target or "sm_90a")
        kind = (True, target, *self._kind(bound, options))
        if kind in self.chosen:
            return self.chosen[kind]
        first: TileError | None = None
        for i, chosen in self._candidates(bound).items():
            try:
                bound, options, _ = self.kernel.bind(args, {**kwargs, **chosen})
                self.kernel.version(bound, options, target)
                self.chosen[kind] = chosen
                return chosen
            except CompilationError as error:
                first = first or error
                self.tried.setdefault(kind, {})[i] = Trial(chosen, reason=str(error))
        assert first is not None  # there is a configuration
        raise first

    # -- what is fastest -----------------------------------------------------------------------------------------------

    def _fastest_config(self, kind: tuple[Any, ...], configs: dict[int, dict[str, Any]], bound: Bound, grid: Any,
                        args: tuple[Any, ...], kwargs: dict[str, Any], device: int | None) -> dict[str, Any]:
        device = launching.device_of(bound, {} if device is None else {"device": device})
        gpu = driver.name(device)
        names = self._told_by(bound)
        there, copies = launching.on_device(bound, device)
        uploaded = {name: there.values[name] for name in copies}
        tasks = {i: self._task(c, uploaded, grid, args, kwargs, names, gpu) for i, c in configs.items()}
        self.calls[kind] = call_text(bound, names), gpu
        trials = self.tried[kind] = {}
        _Session(self, tasks, trials, device, self.calls[kind]).run()
        times = {i: t.ms for i, t in trials.items() if t.ms is not None and not t.reason}
        if not times:
            raise LaunchError(f"{self.kernel.name}: none of {len(tasks)} configurations can be launched; the first: "
                              f"{next(iter(trials.values())).reason}")
        best = min(times, key=lambda i: times[i])
        say(f"{self.kernel.name}: the fastest of {len(times)} is {config_text(configs[best])}, "
            f"{1000 * times[best]:.2f} us")
        return configs[best]

    def _task(self, chosen: dict[str, Any], uploaded: dict[str, Any], grid: Any, args: tuple[Any, ...],
              kwargs: dict[str, Any], names: list[str], gpu: str) -> _Task:
        bound, options, _ = self.kernel.bind(args, {**kwargs, **chosen})
        bound = replace(bound, values={**bound.values, **uploaded})
        cells = checked_grid(grid, bound)
        place = self.known.place(bound, names, make_launch({**self.kernel.options, **options}), cells, gpu)
        return _Task(chosen, bound, options, cells, place)


class _Session:
    """One round of tuning: fills `trials` for the configurations of a call."""

    def __init__(self, tuned: Tuned, tasks: dict[int, _Task], trials: dict[int, Trial], device: int,
                 call: tuple[str, str]):
        self.kernel, self.known, self.how = tuned.kernel, tuned.known, tuned.how
        self.tasks, self.trials, self.device, self.call = tasks, trials, device, call
        self.began = monotonic()

    def run(self) -> None:
        """Find or make the trial of each configuration."""
        order = list(self.tasks)
        if self.how.budget is not None and self.how.shuffled:
            random.Random(0).shuffle(order)
        for i in order:
            task = self.tasks[i]
            self.trials[i] = (self.known.find(task.place, task.config, task.bound)
                              or Trial(task.config, reason="it has not been tried", lasting=False))
        untried = [i for i in order if self._is_to_try(self.trials[i])]
        if len(untried) < len(order):
            say(f"{self.kernel.name}: {len(order) - len(untried)} of {len(order)} configurations are known")
        self._compile(untried)
        accepted = [i for i in untried if self.tasks[i].compiled is not None and self._accepts(self.trials[i])]
        if accepted:
            self._time(accepted)
        for i in order:
            trial = self.trials[i]
            if (trial.ms or not trial.reason) and not self._accepts(trial):
                self.trials[i] = replace(trial, ms=None, reason=f"accept= turns it down: {trial.resources}")

    def _is_to_try(self, trial: Trial) -> bool:
        if is_settled(trial, self.how.limit, self.how.budget):
            return False
        return self._accepts(trial)

    def _accepts(self, trial: Trial) -> bool:
        """Whether `accept` takes a configuration, of which it is asked if that is compiled."""
        if self.how.accept is None or trial.resources is None:
            return True
        try:
            return bool(self.how.accept(trial.resources))
        except Exception as error:
            raise LaunchError(f"accept= raised {type(error).__name__}: {error}; "
                              f"it was called with {trial.resources!r}") from error

    def _settle(self, i: int, trial: Trial) -> None:
        """Have a result, in memory and on disk."""
        self.trials[i] = trial
        task = self.tasks[i]
        self.known.keep(task.place, trial, task.bound, task.captured, *self.call)

    def _out_of_budget(self) -> Trial:
        budget = self.how.budget
        assert budget is not None
        return Trial({}, reason=f"the budget of {budget:g} s was used up", budget=budget)

    # -- what compiles -------------------------------------------------------------------------------------------------

    def _compile(self, untried: list[int]) -> None:
        """Compile configurations in threads, half of the budget at most; and reject those that do not, and those that
        do not fit the device."""
        target, done = driver.target(self.device), 0

        def attempt(i: int) -> TileError | None:
            nonlocal done
            budget, task = self.how.budget, self.tasks[i]
            if budget is not None and done and monotonic() - self.began > budget / 2:
                return None
            try:
                task.compiled = self.kernel.compiled(task.bound, task.options, target)
                task.captured = self.kernel.captures(task.bound, task.options, target)
                done += 1
            except (CompilationError, ToolchainError) as error:
                return error
            return None

        with futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            errors = dict(zip(untried, pool.map(attempt, untried)))
        for i, error in errors.items():
            task = self.tasks[i]
            if error is not None:
                task.captured = error.captured
                lasting = isinstance(error, (CompilationError, SlowCodeError))
                self._settle(i, Trial(task.config, reason=str(error), lasting=lasting))
            elif task.compiled is None:
                self.trials[i] = replace(self._out_of_budget(), config=task.config)  # what it depends on is unknown
            else:
                self._settle(i, self._fit(task))
                if self.trials[i].reason:
                    task.compiled = None

    def _fit(self, task: _Task) -> Trial:
        """The trial of a compiled configuration, with its resources; with a reason if it does not fit the device."""
        compiled = task.compiled
        assert compiled is not None
        taken = Resources(compiled.registers, compiled.spills, compiled.shared_bytes, compiled.recipe["threads"])
        try:
            taken = replace(taken, active_ctas=compiled.active_ctas(self.device))
        except LaunchError as error:
            return Trial(task.config, reason=str(error), resources=taken)
        reason = "" if taken.active_ctas else f"not one CTA fits on a multiprocessor: {taken}"
        return Trial(task.config, reason=reason, resources=taken)

    # -- how long it takes ---------------------------------------------------------------------------------------------

    def _time(self, accepted: list[int]) -> None:
        """Time configurations that are compiled."""
        progress = Progress(self.kernel.name, {i: config_text(self.tasks[i].config) for i in accepted})
        try:
            times, failed = self._times(accepted, progress)
        finally:
            progress.close()
        for i in accepted:
            trial = self.trials[i]
            if i in times:
                self._settle(i, replace(trial, ms=times[i]))
            elif i in failed:
                error = failed[i]
                self._settle(i, replace(trial, reason=str(error), limit=getattr(error, "limit", None),
                                        lasting=not isinstance(error, measuring.NotStarted)))
            else:
                spent = self._out_of_budget()
                self._settle(i, replace(trial, reason=spent.reason, budget=spent.budget))

    def _times(self, accepted: list[int], progress: Progress) -> Times:
        left = None if self.how.budget is None else max(0.0, self.began + self.how.budget - monotonic())
        tasks = {i: self.tasks[i] for i in accepted}
        problem = self._problem_of_a_child(tasks)
        if problem and self.how.workers is not None:
            raise LaunchError(f"{self.kernel.name} cannot be timed by workers: {problem}")
        if not problem:
            assert self.how.limit is not None
            call = measuring.Call.copy(tasks[accepted[0]].bound, self.device)
            try:
                candidates = {i: measuring.Candidate(t.compiled.recipe, t.compiled.cubin or t.compiled.ptx, t.grid)
                              for i, t in tasks.items() if t.compiled is not None}
                found: Times = workers_of.time_on(self.how.workers, candidates, call, self.device, self.how.limit, left,
                                                  progress.step)
                return found
            except measuring.NotStarted as error:
                if self.how.workers is not None:
                    raise
                problem = str(error)
            finally:
                call.contents.close()
        if self.how.limit is not None:
            warn(f"{self.kernel.name} is tuned in this process, where a candidate that hangs or faults ends more than "
                 f"itself: {problem}")
        return self._times_here(tasks, progress, left)

    def _problem_of_a_child(self, tasks: dict[int, _Task]) -> str:
        """Why a child process cannot time candidates; "" if it may."""
        if self.how.limit is None:
            return "limit is None"
        if any(t.compiled is not None and t.compiled.recipe.get("by_address") for t in tasks.values()):
            return "it makes arrays from addresses, which mean nothing in another process"
        bound = next(iter(tasks.values())).bound
        spans = measuring.merge_spans([measuring.span_of(v) for v in bound.runtime if isinstance(v, ArraySpec)])
        nbytes = sum(high - low for low, high in spans)
        if self.how.workers is None and not measuring.room_for(nbytes, self.device):
            return f"the GPU has no memory left for a copy of its arrays, {nbytes / 1e9:.1f} GB"
        return ""

    def _times_here(self, tasks: dict[int, _Task], progress: Progress,
                    left: float | None) -> Times:
        """The times on the call's own arrays, in this process."""
        timed, end = False, None if left is None else monotonic() + left

        def go_on(i: int, first: float | None) -> bool:
            nonlocal timed
            progress.step(i, first)
            timed = timed or first is not None
            return end is None or not timed or monotonic() < end

        written = {n for t in tasks.values() if t.compiled is not None for n in t.compiled.written}
        bound = next(iter(tasks.values())).bound
        spans = [measuring.span_of(v) for n, v in enumerate(bound.runtime) if n in written and isinstance(v, ArraySpec)]
        kept = [(low, high - low) for low, high in measuring.merge_spans(spans)]
        launches = {i: self._launch(t) for i, t in tasks.items()}
        found: Times = in_place.time_here(launches, kept, self.device, go_on)
        return found

    def _launch(self, task: _Task) -> Callable[[int], None]:
        """A function of a stream that launches a configuration."""
        assert task.compiled is not None
        launcher = task.compiled.launcher(self.device)
        arguments = launching.launch_arguments(task.bound)

        def launch(stream: int) -> None:
            if not launcher(task.grid, stream, arguments):
                raise LaunchError("the call does not fit what was compiled for it: "
                                  f"{'; '.join(launcher.mismatch(arguments, task.bound.names))}")
        return launch


def _looks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """A cheap signature of a call: the types, values, shapes, dtypes and strides of its arguments. None if an
    argument has none."""
    try:
        looks = tuple(map(_look, args)), tuple((k, _look(v)) for k, v in kwargs.items() if k != "stream")
        hash(looks)
        return looks
    except (AttributeError, TypeError):
        return None


def _kind_of_argument(value: Any) -> Any:
    """An argument in the kind of a call: the dtype, shape and strides of an array, or a number as text."""
    return (str(value.dtype), value.shape, value.strides) if isinstance(value, ArraySpec) else repr(value)


def _look(x: Any) -> tuple[Any, ...]:
    if x is None or isinstance(x, (bool, int, float, str)):
        return type(x), repr(x)
    found = parts_of(x)
    if found is not None:
        return type(x), found[0], tuple(map(_look, found[1]))
    strides = x.stride() if hasattr(x, "stride") else x.strides
    return type(x), tuple(x.shape), x.dtype, strides, getattr(x, "device", None)


@hide_own_frames
def autotune(configs: dict[str, Any] | Iterable[dict[str, Any]], key: Iterable[str] | None = None,
             prune: Callable[..., Any] | None = None, *,
             where: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
             accept: Callable[[Resources], Any] | None = None, limit: float | None = LIMIT, budget: float | None = None,
             workers: Any = None) -> Callable[[tile.Kernel[..., Any]], Tuned]:
    """Decorate a kernel with configurations: dicts of constexpr arguments and launch options, or a search space, a dict
    in which a value is a `choice` of several.

    What a configuration does not set, but others do, has its value from the kernel's decorator or the
    parameter's default. `where` is a constraint on configurations or a list of them, each a function whose parameters
    are what they set: ``where=lambda BM, BN: BM * BN <= 128 * 256``.

    The first call of each kind compiles all configurations in parallel, times those that compile and fit the device
    in bursts, and takes the fastest. The kind of a call is given by the parameters named in `key`, by default all:
    their values if they are numbers, and shapes, strides and dtypes of arrays. Each result is kept on disk under a key
    of its own, so that another process, or a further configuration, times only what is new.

    ``prune(configs, arguments)`` returns the configurations worth compiling for a call. `accept`, a function of
    its `Resources`, is asked for each that is compiled, and turns down what is not worth timing:
    ``accept=lambda r: r.spills == 0 and r.active_ctas >= 2``. Limits such as ``spills=0`` in a configuration make its
    compilation fail.

    Candidates are timed in a process of their own, on copies of the arrays. One that takes longer than `limit`
    seconds, faults or crashes costs a process; with ``limit=None``, this process times them, on the arrays themselves,
    which have their contents again afterwards. After `budget` seconds no other candidate is begun, and of a search
    space a random sample is timed. `workers` are GPUs of this host by number, a ``dask.distributed.Client`` or the
    module ``ray``: they share the candidates. All GPUs must be of one name. Raises LaunchError for what does not fit.
    """
    listed, shuffled = listed_configs(configs)
    if prune is not None and not callable(prune):
        raise LaunchError(f"prune is a function of the configurations and the arguments, not {type(prune).__name__}")
    how = How(accept, limit, budget, workers, shuffled)
    how.check()

    @hide_own_frames
    def decorate(kernel: Any) -> Tuned:
        if not isinstance(kernel, Kernel):
            raise LaunchError(f"autotune decorates a kernel under @tile.jit, not {type(kernel).__name__}")
        complete = apply_constraints(complete_configs(listed, kernel), where, kernel)
        return Tuned(kernel, complete, key_names(key, kernel), prune, how)

    return decorate
