"""The result of a simulation: findings with their lines, and counts of what was moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from ..errors import LaunchError, Loc, SimulationError, warn
from ..frames import hide_own_frames
from ..ir.graph import Call, Node
from ..roofline import Counts, Gpu, Roofline
from ..timeline import Timeline
from .counts import count as count_work

KINDS = (
    "race", "missing-wait", "missing-proxy-fence", "uninitialized-read", "out-of-bounds", "misaligned", "deadlock",
    "barrier-phase", "barrier-lifecycle", "transaction-count", "descriptor", "wgmma-order", "tmem",
    "divergent-collective", "assertion", "layout-dependent",
)
WARNINGS = ("layout-dependent",)  # the kinds that a plain launch warns of and does not raise


@dataclass
class Finding:
    """A fault of the kernel: its kind (one of KINDS), its line and a message.

    `threads` are ids in the CTA, `ctas` linear ids in the grid, and `bytes` is (first, one past the last) of the
    memory accessed. `loc` and `other`, the location of the other access, are None if they are not known. `count` says
    how often this kind was found at this line.
    """

    kind: str
    line: int
    message: str
    loc: Loc | Any = None
    threads: tuple[int, ...] = ()
    ctas: tuple[int, ...] = ()
    bytes: tuple[int, int] | None = None
    other: Loc | Any = None
    count: int = 1

    def __str__(self) -> str:
        text = f"{self.kind} at line {self.line}: {self.message}"
        if self.ctas:
            text += f" (first in CTA {self.ctas[0]})"
        if self.count > 1:
            text += f" [{self.count} times]"
        return text if self.loc is None else f"{text}\n{self.loc.render()}"


@dataclass(frozen=True)
class Writer:
    """Who wrote an element: the location in the kernel, the CTA's linear id in the grid, and the thread's id in the
    CTA (None for an asynchronous copy, or if every thread of a scope wrote it)."""

    loc: Loc | None
    cta: int
    thread: int | None

    def __str__(self) -> str:
        who = f"thread {self.thread} of CTA {self.cta}" if self.thread is not None else f"CTA {self.cta}"
        return who if self.loc is None else f"{who}, at line {self.loc.line}\n{self.loc.render()}"


class Report:
    """The findings of a simulation, in the order in which they were found, and its statistics.

    `stats` counts ``"bytes"`` by path (such as ``"global -> registers"``), ``"calls"`` by operation, ``"global
    requests"`` and ``"global sectors"``, ``"shared requests"`` and ``"bank conflicts"`` (passes beyond the first),
    and the ``"waits"`` that blocked.
    """

    LAUNCHES = count(1)

    def __init__(self, max_findings: int = 100):
        self.max_findings = max_findings
        self.launch = next(self.LAUNCHES)   # unique in this process
        self._findings: dict[tuple[str, int], Finding] = {}
        self.writer: Writer | None = None
        self.executed: Counter[int] = Counter()  # the id of each call of the graph -> how often it ran, in all CTAs
        self._count: Callable[[], Counts] | None = None
        self.recording: Any = None  # a `timed.Recording`, if one was asked for
        # for each line and array that it stores to: the finding that all of it is out of bounds, None if it is not
        self.dropped: dict[tuple[int, str], Finding | None] = {}
        self.stats: dict[str, Any] = {  # counters and numbers
            "bytes": Counter(), "calls": Counter(), "global requests": 0, "global sectors": 0,
            "shared requests": 0, "bank conflicts": 0, "waits": 0}

    @property
    def findings(self) -> list[Finding]:
        """The findings, one per kind and line."""
        return list(self._findings.values())

    def add(self, finding: Finding) -> None:
        """Record a finding. If there is one of the same kind at the same line, only its count is raised."""
        if finding.kind not in KINDS:
            raise ValueError(f"{finding.kind!r} is no kind of finding; the kinds are {', '.join(KINDS)}")
        key = finding.kind, finding.line
        if key in self._findings:
            self._findings[key].count += 1
        elif len(self._findings) < self.max_findings:
            self._findings[key] = finding

    @property
    def warnings(self) -> list[Finding]:
        """What is no fault, and rarely meant: of the kind ``"dropped-store"``, lines whose stores are far out of bounds
        in every CTA. A launch warns of them."""
        return [finding for finding in self.dropped.values() if finding is not None]

    @hide_own_frames
    def timeline(self, ctas: Iterable[int] | int | None = None) -> Timeline:
        """Who did what when: of each CTA in `ctas` (linear numbers in the grid; by default of the first one), a row for
        the threads of each scope, and one for each agent of asynchronous operations. Time is in steps, not in cycles:
        an operation of the lowered kernel takes its threads one step, an asynchronous one 20, and a wait ends when what
        it waits for has happened. Raises LaunchError if ``simulate(..., timeline=True)`` was not asked to record it.
        """
        if self.recording is None:
            raise LaunchError("no timeline was recorded: ask for it with simulate(grid, ..., timeline=True)")
        recorded: Timeline = self.recording.timeline(ctas)
        return recorded

    def close(self, nodes: Iterable[Node], sizes: dict[int, int], ctas: int) -> None:
        """Complete the statistics when the launch is over: `nodes` are those of its graph, and `sizes` the bytes of its
        arrays, by number of argument."""
        calls = [n for n in nodes if isinstance(n, Call) and self.executed[id(n)]]
        for call in calls:
            self.stats["calls"][call.op.name] += self.executed[id(call)]
        self._count = partial(count_work, calls, self.executed, self.stats["bytes"], sizes, ctas)

    @property
    def counts(self) -> Counts:
        """The bytes moved, by path, and the floating-point operations, by unit: see `tilejit.roofline.Counts`."""
        assert self._count is not None  # the simulation is over
        return self._count()

    @hide_own_frames
    def roofline(self, gpu: str | Gpu) -> Roofline:
        """The least time that the launch takes on a GPU ("H100", "H200", "B200", or a `tilejit.roofline.Gpu`), by the
        peaks of its memory and units, and which of these is the bound. Prints as a table. Raises LaunchError for a GPU
        whose peaks are not known.
        """
        return self.counts.roofline(gpu)

    def retract(self, kind: str, line: int) -> None:
        """Withdraw a finding that a later one explains better."""
        self._findings.pop((kind, line), None)

    @hide_own_frames
    def raise_first(self) -> None:
        """Raise the first finding, if there is one, as a SimulationError.
        Findings of the kinds WARNINGS are warnings instead."""
        found = tuple(self.faults())
        for finding in found:
            raise SimulationError(f"{finding.kind}: {finding.message}", finding.loc, finding, found)

    def faults(self) -> list[Finding]:
        """The findings that a launch raises. It warns of the others."""
        for finding in self.findings:
            if finding.kind in WARNINGS:
                warn(str(finding))
        for finding in self.warnings:
            warn(str(finding))
        return [finding for finding in self.findings if finding.kind not in WARNINGS]

    def __str__(self) -> str:
        found = self.findings
        head = {0: "no findings", 1: "1 finding"}.get(len(found), f"{len(found)} findings")
        lines = [head, *map(str, found), *map(str, self.warnings)]
        lines += [f"{path}: {n} bytes" for path, n in sorted(self.stats["bytes"].items())]
        lines += [f"{name}: {n}" for name, n in self.stats.items() if isinstance(n, int) and n]
        return "\n".join(lines)

    __repr__ = __str__
