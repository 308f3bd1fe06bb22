"""``tile.bench``: times calls on the GPU, in turns; and the bursts of launches by which `autotune` chooses.

    tile.bench({"mine": lambda: add[grid](x, y, out, BLOCK=512),
                "torch": lambda: torch.add(x, y, out=out)})
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from .errors import LaunchError, TileError
from .frames import hide_own_frames
from .jit import KERNELS, launches_seen
from .lazy import Lazy
from .runtime import driver
from .runtime.streams import made_current

K = TypeVar("K", bound=Hashable)

work = Lazy("tilejit.work")  # lowers kernels, which only `bench` needs

ROUNDS = 5          # timings of each launch by `time_launches`, alternating with the others
BURST_MS = 1.0      # approximate duration of the launches between two events
LOST = 1.5          # a launch this many times slower than the best in a first timing is not timed again
LAUNCHES_AT_MOST = 200
FLUSHED = 2         # the bytes written between repetitions, as a multiple of the L2 cache
HOW = {"flushed": "L2 flushed before each", "warm": "L2 warm", "rotated": "operands rotated"}


# -- the loop ----------------------------------------------------------------------------------------------------------

def milliseconds(work: Callable[[], object], stream: int, device: int) -> float:
    """The milliseconds of what a function puts on a stream, between an event before and one after it."""
    start, end = driver.Event(device), driver.Event(device)
    start.record(stream)
    work()
    end.record(stream).wait()
    return end.milliseconds_since(start)


def burst(launch: Callable[[], object], count: int, stream: int, device: int) -> float:
    """The milliseconds of a launch, as the mean of `count` in a row."""
    def launches() -> None:
        for _ in range(count):
            launch()
    return milliseconds(launches, stream, device) / count


def count_in_burst(once: float) -> int:
    """The number of launches of `once` milliseconds in a burst."""
    return max(1, min(LAUNCHES_AT_MOST, int(BURST_MS / max(once, 1e-3))))


def alternate(measures: Mapping[K, Callable[[], float]], rounds: int) -> dict[K, list[float]]:
    """The results of each measure, in rounds that alternate over all of them, so that ratios hold when the clock
    drifts."""
    times: dict[K, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            times[name].append(measure())
    return times


def time_launches(launches: Mapping[K, Callable[[], Any]], stream: int,
                  device: int) -> tuple[dict[K, float], dict[K, TileError]]:
    """The milliseconds of each launch on a stream, as `time_bursts` has them, and the errors of launches that fail."""
    def of(launch: Callable[[], Any]) -> Callable[[int], float]:
        return lambda count: burst(launch, count, stream, device)
    return time_bursts({i: of(launch) for i, launch in launches.items()})


def time_bursts(bursts: Mapping[K, Callable[[int], float]],
                proceed: Callable[[K, float | None], bool] = lambda i, last: True
                ) -> tuple[dict[K, float], dict[K, TileError]]:
    """The milliseconds of each launch, as the median of bursts that alternate with the others'; and the errors of
    those that fail. A burst is a function that launches as often as it is told and returns the milliseconds of one.

    `proceed` is called with each name, and the milliseconds of its first timing (None if it failed), and returns
    whether to go on with the next; those after it have neither time nor error."""
    first: dict[K, float] = {}
    failed: dict[K, TileError] = {}
    for i, run in bursts.items():
        try:
            run(1)
            # the second launch compiles the launcher to machine code, while the GPU waits
            first[i] = min(run(2) for _ in range(3))
        except LaunchError as error:
            failed[i] = error
        if not proceed(i, first.get(i)):
            break
    near = [i for i in first if first[i] <= LOST * min(first.values())]
    samples: dict[K, list[float]] = {i: [] for i in near}
    for _ in range(ROUNDS):
        for i in near:
            if i not in failed:
                try:
                    samples[i].append(bursts[i](count_in_burst(first[i])))
                except LaunchError as error:
                    failed[i] = error
    return {i: median(samples.get(i, [once])) for i, once in first.items() if i not in failed}, failed


# -- results -----------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Timing:
    """The time of one call. `samples` are milliseconds per call, one for each round; each is the mean of `calls` in a
    row. `ratio` is the median of its time divided by the first call's in the same round. `captured` says whether a CUDA
    graph was timed; else the host's part of a call counts where the GPU waits for it.

    `nbytes` and `flops` are those of a call, None if unknown.
    """

    name: str
    samples: tuple[float, ...] = field(repr=False)
    ratio: float
    calls: int
    captured: bool
    nbytes: int | None = None
    flops: int | None = None

    @property
    def median(self) -> float:
        """Milliseconds per call: half of the rounds took less."""
        return median(self.samples)

    @property
    def p20(self) -> float:
        """Milliseconds per call that a fifth of the rounds took less than."""
        return quantile(self.samples, 0.2)

    @property
    def p80(self) -> float:
        """Milliseconds per call that four fifths of the rounds took less than."""
        return quantile(self.samples, 0.8)

    @property
    def gbs(self) -> float | None:
        """GB/s, of 10^9 bytes, at the median; None if the bytes are unknown."""
        return None if self.nbytes is None else self.nbytes / self.median / 1e6

    @property
    def tflops(self) -> float | None:
        """TFLOP/s at the median; None if the operations are unknown."""
        return None if self.flops is None else self.flops / self.median / 1e9


@dataclass(frozen=True)
class Comparison:
    """The result of `bench`: a `Timing` for each call, also by its name (``result["mine"]``), and how they were timed.
    As text it is a table."""

    timings: tuple[Timing, ...]
    device: str
    rounds: int
    warmup_ms: float
    cache: str  # "flushed", "warm" or "rotated"

    def __getitem__(self, name: str) -> Timing:
        return {t.name: t for t in self.timings}[name]

    def describe(self) -> dict[str, Any]:
        """The result as data for JSON, with the samples."""
        numbers = ("name", "median", "p20", "p80", "ratio", "gbs", "tflops", "nbytes", "flops", "calls", "captured",
                   "samples")
        return {"device": self.device, "rounds": self.rounds, "warmup_ms": self.warmup_ms, "cache": self.cache,
                "timings": [{n: getattr(t, n) for n in numbers} for t in self.timings]}

    def __str__(self) -> str:
        head = ("call", "median us", "p20", "p80", "ratio", "GB/s", "TFLOP/s", "timed as")
        rows = [head, *(_row(t) for t in self.timings)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(cell.rjust(w) if 0 < i < len(head) - 1 else cell.ljust(w)
                           for i, (cell, w) in enumerate(zip(row, widths))).rstrip() for row in rows]
        told = f"{self.device}; {self.rounds} rounds in turns after {self.warmup_ms:g} ms each, {HOW[self.cache]}"
        return "\n".join([*lines, told])


def _row(t: Timing) -> tuple[str, ...]:
    rates = ("-" if rate is None else f"{rate:.{digits}f}" for rate, digits in ((t.gbs, 0), (t.tflops, 1)))
    way = ("graph" if t.captured else "launches") + (f" of {t.calls}" if t.calls > 1 else "")
    return (t.name, *(f"{1000 * x:.2f}" for x in (t.median, t.p20, t.p80)), f"{t.ratio:.3f}", *rates, way)


def quantile(samples: Sequence[float], part: float) -> float:
    """The value below which a part (0 to 1) of the samples lies, by linear interpolation as in NumPy."""
    ordered = sorted(samples)
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def median(samples: Sequence[float]) -> float:
    """The value below which half of the samples lies."""
    return quantile(samples, 0.5)


# -- bench -------------------------------------------------------------------------------------------------------------

@hide_own_frames
def bench(calls: Callable[..., Any] | Sequence[Any] | Mapping[str, Any], *, rounds: int = 50,
          warmup_ms: float = 25.0, flush: bool | None = None, graph: bool = True,
          nbytes: int | None = None, flops: int | None = None, device: int | None = None) -> Comparison:
    """Time functions without arguments that work on the GPU: one, a list, or a dict by name. Returns a `Comparison`,
    which prints as a table.

    Each call first runs until it has kept the GPU busy for `warmup_ms`. Then `rounds` rounds alternate over the calls,
    each timed between two events. Before each timing a buffer of twice the L2 cache is written (``flush=True``, the
    default); with ``flush=False`` a timing is the mean of about 1 ms of calls in a row, which find their operands in L2
    if they fit. A sequence of functions instead of one, which do the same on other operands, is called in turns,
    and nothing is flushed unless it is asked for. The operands are not restored.

    A call is captured in a CUDA graph (unless ``graph=False``). It works on the current stream of torch or CuPy, which
    `bench` sets, or has a parameter `stream`, through which it gets the handle of a stream: ``lambda stream:
    add[grid](x, y, out, stream=stream)``. What cannot be captured, such as a launch on arrays of `to_device` without
    a stream, is launched by the host on the legacy default stream.

    GB/s and TFLOP/s are those of `nbytes` and `flops`, if given for a call. Otherwise, for calls that launch kernels
    under ``@tile.jit``: of the arrays that a kernel reads, and those that it writes, each counted once; and of its
    products of tiles, padding included. `device` is torch's current device, or 0. Raises LaunchError if there is no
    GPU, and what a call raises.
    """
    named = _functions_by_name(calls)
    _check(rounds, warmup_ms)
    if not driver.available():
        raise LaunchError("bench times calls on a GPU, and no CUDA driver or no GPU was found; on the simulator, "
                          "kernel.simulate(grid, ...).stats has counts instead")
    device = _current_device() if device is None else device
    flushes = flush if flush is not None else all(len(functions) == 1 for functions in named.values())
    stream = driver.create_stream(device, blocking=True)
    try:
        with made_current(0, device):
            counts = {name: _first_calls(functions) for name, functions in named.items()}
        driver.synchronize(device)
        timer = _Timer(stream, device, flushes, warmup_ms)
        prepared = {name: timer.prepare(functions, graph) for name, functions in named.items()}
        times = timer.run(prepared, rounds)
    finally:
        driver.synchronize(device)
        driver.destroy_stream(stream, device)
    first = next(iter(times.values()))
    timings = []
    for name, samples in times.items():
        own = counts[name]
        ratio = median([x / y for x, y in zip(samples, first)])
        timings.append(Timing(name, tuple(samples), ratio, prepared[name].calls, prepared[name].captured,
                              own.nbytes if nbytes is None else nbytes, own.flops if flops is None else flops))
    cache = "flushed" if flushes else "warm"
    if not flushes and all(len(functions) > 1 for functions in named.values()):
        cache = "rotated"
    return Comparison(tuple(timings), driver.name(device), rounds, warmup_ms, cache)


def _functions_by_name(calls: Any) -> dict[str, list[Callable[..., Any]]]:
    """The functions of each call by its name. LaunchError for what is no call."""
    if isinstance(calls, Mapping):
        named = {str(name): call for name, call in calls.items()}
    elif isinstance(calls, (list, tuple)):
        names = [getattr(call, "__name__", "call") for call in calls]
        named = {name if names.count(name) == 1 and name.isidentifier() else f"call {n}": call
                 for n, (name, call) in enumerate(zip(names, calls))}
    else:
        name = getattr(calls, "__name__", "call")
        named = {name if name.isidentifier() else "call": calls}
    lists = {name: list(call) if isinstance(call, (list, tuple)) else [call] for name, call in named.items()}
    if not lists or not all(functions and all(map(callable, functions)) for functions in lists.values()):
        raise LaunchError("bench takes a function without arguments, or a list or dict of them, as in "
                          "tile.bench(lambda: kernel[grid](x, y))")
    for name, functions in lists.items():
        for function in functions:
            needed = [p.name for p in _parameters(function) if p.default is p.empty and p.name != "stream"
                      and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
            if needed:
                raise LaunchError(f"bench calls functions without arguments, and {name} needs {', '.join(needed)}: "
                                  "give it with its arguments, as in lambda: kernel[grid](x, y)")
    return lists


def _check(rounds: Any, warmup_ms: Any) -> None:
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise LaunchError(f"rounds is a number from 1, not {rounds!r}")
    if isinstance(warmup_ms, bool) or not isinstance(warmup_ms, (int, float)) or not 0 <= warmup_ms < math.inf:
        raise LaunchError(f"warmup_ms are milliseconds from 0, not {warmup_ms!r}")


def _current_device() -> int:
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_available() else 0


def _on(function: Callable[..., Any], stream: int) -> Callable[[], Any]:
    """The function with the stream that it asks for, if it does."""
    asks = any(p.name == "stream" for p in _parameters(function))
    return partial(function, stream=stream) if asks else function


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # functions in C may have no signature
        return []


def _first_calls(functions: Sequence[Callable[..., Any]]) -> Any:
    """Call each function, which compiles and tunes; then the first again, and return the `Work` of its launches."""
    seen: list[Any] = []
    token = launches_seen.set(seen)
    try:
        for function in functions:
            _on(function, 0)()
        seen.clear()
        for kernel in list(KERNELS.values()):
            kernel.warm.clear()  # the next launch of each passes the place where launches are seen
        _on(functions[0], 0)()
    finally:
        launches_seen.reset(token)
    return work.total_work(seen)


@dataclass(frozen=True)
class _Prepared:
    """A call ready for timing: one launch for each of its functions, on `stream`; a timing is of `calls` of them."""

    launches: list[Callable[[], Any]]
    stream: int
    captured: bool
    calls: int
    once: float


class _Timer:
    """Times calls on a device: those that can be captured on a stream, others on the legacy default stream."""

    def __init__(self, stream: int, device: int, flushes: bool, warmup_ms: float):
        self.stream, self.device, self.flushes, self.warmup_ms = stream, device, flushes, warmup_ms
        self.flushed = FLUSHED * driver.attribute("L2_CACHE_SIZE", device) if flushes else 0

    def prepare(self, functions: list[Callable[..., Any]], graph: bool) -> _Prepared:
        """Capture the functions if that is wanted and possible, and see how long they take."""
        captured = self._capture(functions) if graph else None
        stream = 0 if captured is None else self.stream
        launches = captured or [_on(function, 0) for function in functions]
        with made_current(stream, self.device):
            turn = partial(_call_all, launches)
            turn()
            once = min(milliseconds(turn, stream, self.device) for _ in range(3)) / len(launches)
        if self.flushes:
            return _Prepared(launches, stream, captured is not None, 1, once)
        calls = -(-count_in_burst(once) // len(launches)) * len(launches)
        if captured is None:
            return _Prepared([partial(_call_all, calls // len(launches) * launches)], stream, False, calls, once)
        burst_graph = driver.WorkGraph(partial(self._all, functions, calls), self.stream, self.device)
        return _Prepared([partial(burst_graph.launch, stream)], stream, True, calls, once)

    def _capture(self, functions: list[Callable[..., Any]]) -> list[Callable[[], Any]] | None:
        """Launches of a graph for each function; None if one cannot be captured."""
        try:
            return [partial(driver.WorkGraph(partial(self._all, [f], 1), self.stream, self.device).launch, self.stream)
                    for f in functions]
        except Exception:  # the call has run outside of a capture, so only capturing it fails, in any library's way
            driver.synchronize(self.device)
            return None

    def _all(self, functions: list[Callable[..., Any]], calls: int) -> None:
        """Put calls of the functions, in turns, on the stream that is captured."""
        with made_current(self.stream, self.device):
            for n in range(calls):
                _on(functions[n % len(functions)], self.stream)()

    def run(self, prepared: dict[str, _Prepared], rounds: int) -> dict[str, list[float]]:
        """The milliseconds per call of each call in each round, after the warm-up."""
        buffer = driver.allocate(self.flushed, self.device) if self.flushed else 0
        try:
            for call in prepared.values():
                with made_current(call.stream, self.device):
                    for n in range(math.ceil(self.warmup_ms / max(call.once * call.calls, 1e-3))):
                        call.launches[n % len(call.launches)]()
                driver.synchronize(self.device)
            return alternate({name: self._measure(call, buffer) for name, call in prepared.items()}, rounds)
        finally:
            driver.synchronize(self.device)
            if buffer:
                driver.free(buffer, self.device)

    def _measure(self, call: _Prepared, buffer: int) -> Callable[[], float]:
        turn = 0

        def measure() -> float:
            nonlocal turn
            launch = call.launches[turn % len(call.launches)]
            turn += 1
            with made_current(call.stream, self.device):
                if buffer:
                    driver.fill(buffer, 0, self.flushed, self.device, call.stream)
                return milliseconds(launch, call.stream, self.device) / call.calls
        return measure


def _call_all(launches: Sequence[Callable[[], Any]]) -> None:
    for launch in launches:
        launch()
