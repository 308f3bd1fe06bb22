"""``tile.profile``: the time of the named ranges of kernels, on the GPU's clock or in steps of the simulator.

    timeline = tile.profile(lambda: kernel[grid](x, y))
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .errors import LaunchError
from .frames import hide_own_frames
from .jit import KERNELS, profiler
from .lazy import Lazy
from .runtime import driver
from .timeline import Span, Timeline

if TYPE_CHECKING:
    from .sim.report import Report

numpy = Lazy("numpy")

RECORD = 16           # bytes of a record: see emit/marks.py
BUFFER = 64 << 20     # bytes of records of a launch at most, unless `ctas` asks for more


@hide_own_frames
def profile(call: Callable[[], Any], *, warmup: int = 1, records: int = 256, ctas: int | None = None) -> Timeline:
    """Run a function without arguments that launches kernels under ``@tile.jit``, and return the `Timeline` of their
    ``with tile.named_range("name"):`` blocks: a row for each warp of each CTA. It prints as text, shows itself in a
    notebook, and `.save("trace.json")` writes a trace for Perfetto; `.ranges()` has the durations by name.

    On the GPU, time is in nanoseconds of ``%globaltimer``, which advances by steps of some tens of nanoseconds or more;
    CTAs carry the number of their multiprocessor. On the simulator (host arrays), time is in its steps. The kernels are
    compiled once more, with the marks, each of which takes a warp some tens of nanoseconds; the launches wait for their
    end. The function first runs `warmup` times; the operands are not restored. Each warp has room for `records` marks,
    two for each range that it runs, and the first `ctas` CTAs of a grid record, by default as many as fit in 64 MiB.

    Raises LaunchError if no launch has a named range, and what the function raises.
    """
    _check(call, warmup, records, ctas)
    for _ in range(warmup):
        with _context(records, ctas):
            call()
    with _context(records, ctas) as seen:
        call()
    return seen.timeline()


def _check(call: Any, warmup: Any, records: Any, ctas: Any) -> None:
    if not callable(call):
        raise LaunchError("profile takes a function without arguments, as in "
                          f"tile.profile(lambda: kernel[grid](x, y)), not {type(call).__name__}")
    for name, value, least in (("warmup", warmup, 0), ("records", records, 2), ("ctas", ctas, 1)):
        if value is None and name == "ctas":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise LaunchError(f"{name} is a number from {least}, not {value!r}")


@contextmanager
def _context(records: int, ctas: int | None) -> Iterator[_Profiler]:
    """Launches in this context are recorded."""
    seen = _Profiler(records, ctas)
    for kernel in list(KERNELS.values()):
        kernel.warm.clear()  # the next launch of each passes the place where launches are profiled
    token = profiler.set(seen)
    try:
        yield seen
    finally:
        profiler.reset(token)


@dataclass
class _Profiler:
    """Records the launches that pass by: see `jit.profiler`."""

    records: int
    ctas: int | None
    launches: list[tuple[str, str, list[Span], list[str]]] = field(default_factory=list)  # name, unit, spans, notes

    def note_simulation(self, name: str, report: Report) -> None:
        """A launch on the simulator, with its timeline."""
        known = report.recording.ctas()
        timeline = report.timeline(known[:self.ctas])
        self.launches.append((name, "steps", [s for s in timeline.spans if s.kind == "range"], list(timeline.notes)))

    def launch(self, name: str, compiled: Any, device: int, grid: tuple[int, ...], run: Callable[[], Any]) -> Any:
        """Run a launch on a device; returns what `run` does."""
        names = compiled.recipe.get("ranges") or []
        if not names:
            return run()
        warps = compiled.recipe["threads"] // 32
        ctas = grid[0] * grid[1] * grid[2]
        ctas = min(ctas, self.ctas or max(1, BUFFER // (warps * self.records * RECORD)))
        nbytes = ctas * warps * self.records * RECORD
        variable = compiled.launcher(device).profile
        buffer = driver.allocate(nbytes, device)
        try:
            driver.fill(buffer, 0, nbytes, device)
            self._point(variable, (buffer, self.records, ctas), device)
            launched = run()
            driver.synchronize(device)
            marks = numpy.empty((ctas, warps, self.records), RECORD_TYPE)
            driver.copy_to_host(marks.ctypes.data, buffer, nbytes, device)
        finally:
            driver.synchronize(device)
            self._point(variable, (0, 0, 0), device)
            driver.free(buffer, device)
        spans, notes = decode(marks, names)
        self.launches.append((name, "ns", spans, notes))
        return launched

    def _point(self, variable: int, values: tuple[int, int, int], device: int) -> None:
        """Set the module's variable: the buffer, the records of each warp, and the CTAs that record."""
        data = ctypes.create_string_buffer(struct.pack("<QII", *values), 16)
        driver.copy_to_device(variable, ctypes.addressof(data), 16, device)

    def timeline(self) -> Timeline:
        """All launches, one after the other."""
        found = [launch for launch in self.launches if launch[2]]
        if not found:
            raise LaunchError("nothing was recorded: the function launched no kernel that runs a "
                              "`with tile.named_range(\"name\"):` block")
        unit = found[0][1]
        if any(launch[1] != unit for launch in found):
            raise LaunchError("profile measures launches on the GPU or on the simulator, and the function did both")
        spans, at = [], 0.0
        first = min(s.start for _, _, own, _ in found for s in own)
        for number, (name, _, own, _) in enumerate(found):
            shift = at if unit == "steps" else -first
            head = f"{number + 1}. {name}, " if len(found) > 1 else ""
            spans += [replace(s, process=head + s.process, start=s.start + shift, end=s.end + shift) for s in own]
            at = max(at, *(s.end for s in spans))
        names = list(dict.fromkeys(name for name, *_ in found))
        notes = list(dict.fromkeys(note for *_, told in found for note in told))
        return Timeline(", ".join(names), spans, unit, notes)


# see emit/marks.py
RECORD_TYPE = [("time", "<u8"), ("tag", "<u4"), ("multiprocessor", "<u4")]


def decode(marks: Any, names: list[str]) -> tuple[list[Span], list[str]]:
    """The ranges in the records of a launch, (CTAs, warps, records) of RECORD_TYPE, and notes about missing ones.
    Ranges that roles of one warp run at the same time may overlap."""
    spans, full = [], 0
    for cta, warp in numpy.argwhere(marks["tag"][:, :, 0] != 0).tolist():
        log = marks[cta, warp]
        used = int(numpy.count_nonzero(log["tag"]))
        full += used == len(log)
        open_: list[tuple[int, int]] = []  # (range, time) of those that have begun
        process = f"CTA {cta} on SM {int(log['multiprocessor'][0])}"
        for time, tag, _ in log[:used].tolist():
            number, ends = divmod(tag - 1, 2)
            if not ends:
                open_.append((number, time))
                continue
            at = next((i for i in reversed(range(len(open_))) if open_[i][0] == number), None)
            if at is not None:
                spans.append(Span(process, f"warp {warp}", names[number], open_.pop(at)[1], time, "range"))
    if not full:
        return spans, []
    return spans, [f"The room for marks is full in {full} warps, whose later ranges are missing: profile(call, "
                   f"records={2 * marks.shape[2]})."]
