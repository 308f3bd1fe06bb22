"""Timelines: who did what when, as text, as a picture, and as a trace file for Perfetto and Chrome."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from textwrap import wrap
from typing import Any

from .errors import LaunchError
from .frames import hide_own_frames
from .svg import CHARACTER, FAINT, cell, colour, label, page

# the kinds of spans: what it is called in the legend, its colour, and its character in text
KINDS = {
    "compute": ("arithmetic", colour(212, 0.72), "="),
    "memory": ("loads and stores", colour(150, 0.68, 0.45), "m"),
    "sync": ("issues, arrivals, barriers", colour(45, 0.70), "s"),
    "wait": ("waits", colour(0, 0.88, 0.6), "~"),
    "async": ("asynchronous operations", colour(275, 0.78), "#"),
    "range": ("named ranges", colour(190, 0.75, 0.5), "-"),
}
LABEL, ROW, WIDTH, TOP = 165, 18, 960, 60   # pixels; notebooks have columns of about 960
MOST_ROWS = 200                              # rows of a picture, and of a text
TEXT_LABEL = 26


@dataclass(frozen=True)
class Span:
    """Something that lasted from `start` to `end`: on the `track` (such as a warp or TMA) of a `process` (such as a
    CTA). `kind` is one of KINDS. `line` is the kernel's, 0 if it is unknown, and `note` says more."""

    process: str
    track: str
    name: str
    start: float
    end: float
    kind: str
    line: int = 0
    note: str = ""

    @property
    def title(self) -> str:
        """The span in words."""
        where = f", line {self.line}" if self.line else ""
        return f"{self.name}{where}, {self.start:g} to {self.end:g}" + (f": {self.note}" if self.note else "")


@dataclass(frozen=True)
class Row:
    """Spans of one track that do not overlap, or that lie one above the other (`depth`)."""

    process: str
    track: str
    depth: int
    spans: list[Span]


class Timeline:
    """Spans of several tracks over time, in `unit` ("steps" or "ns"). Prints as text, shows itself in a notebook as a
    picture, and `.save(path)` writes a trace file that https://ui.perfetto.dev and chrome://tracing open, or, for a
    path that ends with .svg, the picture. `notes` say what a reader should know."""

    def __init__(self, name: str, spans: Iterable[Span], unit: str, notes: Sequence[str] = ()):
        self.name, self.unit, self.notes = name, unit, tuple(notes)
        self.spans = sorted(spans, key=lambda s: (s.start, -s.end))

    # -- what is in it -------------------------------------------------------------------------------------------------

    @property
    def start(self) -> float:
        return min((s.start for s in self.spans), default=0)

    @property
    def end(self) -> float:
        return max((s.end for s in self.spans), default=0)

    def rows(self) -> list[Row]:
        """The spans by track, in the order in which tracks begin; overlapping spans of a track in several rows."""
        tracks: dict[tuple[str, str], list[list[Span]]] = {}
        for span in self.spans:
            lanes = tracks.setdefault((span.process, span.track), [])
            lane = next((lane for lane in lanes if lane[-1].end <= span.start and _share_a_row(lane[-1], span)), None)
            if lane is None:
                lane = []
                lanes.append(lane)
            lane.append(span)
        order = {process: n for n, process in enumerate(dict.fromkeys(process for process, _ in tracks))}
        rank = {key: (order[key[0]], _is_engine(lanes), n) for n, (key, lanes) in enumerate(tracks.items())}
        return [Row(*key, depth, lane) for key in sorted(tracks, key=rank.__getitem__)
                for depth, lane in enumerate(sorted(tracks[key], key=lambda lane: lane[0].kind == "range"))]

    def waits(self) -> list[tuple[str, str, int, str, float]]:
        """(process, track, line, name, time) of the waits, those of a line together, longest first."""
        total: dict[tuple[str, str, int, str], float] = {}
        for s in self.spans:
            if s.kind == "wait":
                key = s.process, s.track, s.line, s.name
                total[key] = total.get(key, 0) + s.end - s.start
        return sorted(((*key, time) for key, time in total.items()), key=lambda w: -w[-1])

    def ranges(self) -> dict[str, list[float]]:
        """The durations of the named ranges, by name."""
        found: dict[str, list[float]] = {}
        for s in self.spans:
            if s.kind == "range":
                found.setdefault(s.name, []).append(s.end - s.start)
        return found

    # -- text ----------------------------------------------------------------------------------------------------------

    def text(self, width: int = 100) -> str:
        """The timeline in lines of `width` columns: each character is the kind of span that lasts longest there."""
        start, end = self.start, self.end
        columns = max(10, width - TEXT_LABEL - 2)
        rows = self.rows()
        lines = [f"{self.name}: {end - start:g} {self.unit}, {(end - start) / columns:.3g} a column",
                 *(line for note in self.notes for line in wrap(note, width))]
        process = None
        for row in rows[:MOST_ROWS]:
            if row.process != process:
                process = row.process
                lines.append(process)
            title = f"  {row.track}" if not row.depth else ""
            lines.append(f"{title[:TEXT_LABEL]:{TEXT_LABEL}}|{_characters(row.spans, start, end, columns)}|")
        if len(rows) > MOST_ROWS:
            lines.append(f"... and {len(rows) - MOST_ROWS} more rows")
        used = {s.kind for s in self.spans}
        lines += wrap("; ".join(f"{mark} {words}" for kind, (words, _, mark) in KINDS.items() if kind in used), width)
        for _, track, line, name, time in [w for w in self.waits() if not rows or w[0] == rows[0].process][:5]:
            lines.append(f"  {track} wait {time:g} {self.unit} at line {line}: {name}")
        for name, times in self.ranges().items():
            ordered = sorted(times)
            lines.append(f"  {name}: {len(times)} x {ordered[len(ordered) // 2]:g} {self.unit} (median; "
                         f"{ordered[0]:g} to {ordered[-1]:g})")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    # -- picture -------------------------------------------------------------------------------------------------------

    def svg(self) -> str:
        """The timeline as an SVG picture. Where the pointer is, browsers say what a span is."""
        rows, start, end = self.rows(), self.start, self.end
        scale = (WIDTH - LABEL - 20) / ((end - start) or 1)
        parts = [label(6, 16, f"{self.name}: {end - start:g} {self.unit}", "start", size=12),
                 *_legend({s.kind for s in self.spans}), *_ticks(start, end, scale, self.unit)]
        y, process = TOP, None
        for row in rows[:MOST_ROWS]:
            if row.process != process:
                process = row.process
                parts.append(label(6, y + 13, process, "start", size=11))
                y += ROW
            if not row.depth:
                parts.append(label(LABEL - 6, y + 13, row.track, "end", FAINT))
            parts += [_bar(together, y, start, scale) for together in _runs_of_one_kind(row.spans)]
            y += ROW
        for note in [*self.notes, *([f"and {len(rows) - MOST_ROWS} more rows"] if len(rows) > MOST_ROWS else [])]:
            parts.append(label(6, y + 16, note, "start", FAINT))
            y += 15
        return page(parts, WIDTH, y + 12)

    def _repr_svg_(self) -> str:
        return self.svg()

    # -- trace file ----------------------------------------------------------------------------------------------------

    def trace(self) -> dict[str, Any]:
        """The timeline in the Trace Event Format of Chrome and Perfetto, as for `json.dump`. Its unit of time is the
        microsecond; a step is written as one."""
        per_unit = 1e-3 if self.unit == "ns" else 1.0
        pids: dict[str, int] = {}
        events: list[dict[str, Any]] = []
        for tid, row in enumerate(self.rows(), 1):
            pid = pids.setdefault(row.process, len(pids) + 1)
            name = row.track if not row.depth else f"{row.track} ({row.depth + 1})"
            events += [{"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}},
                       {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}]
            events += [{"ph": "X", "name": s.name, "cat": s.kind, "pid": pid, "tid": tid, "ts": s.start * per_unit,
                        "dur": (s.end - s.start) * per_unit, "args": {"line": s.line, "note": s.note}}
                       for s in row.spans]
        events += [{"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
                   for name, pid in pids.items()]
        return {"traceEvents": events, "displayTimeUnit": "ns",
                "otherData": {"name": self.name, "unit": self.unit, "notes": " ".join(self.notes)}}

    @hide_own_frames
    def save(self, path: str | PathLike[str]) -> Path:
        """Write the trace (.json) or the picture (.svg), by the ending of `path`; returns the path. LaunchError for
        another ending."""
        path = Path(path)
        if path.suffix not in (".json", ".svg"):
            raise LaunchError(f"a timeline is saved as a trace (.json) or as a picture (.svg), not as {path.name!r}")
        path.write_text(self.svg() if path.suffix == ".svg" else json.dumps(self.trace()), encoding="utf-8")
        return path


def _share_a_row(one: Span, other: Span) -> bool:
    """Whether two spans may share a row: named ranges have rows of their own."""
    return (one.kind == "range") == (other.kind == "range")


def _is_engine(lanes: list[list[Span]]) -> bool:
    return lanes[0][0].kind == "async"


def _characters(spans: list[Span], start: float, end: float, columns: int) -> str:
    """A row of text: for each column the kind of span that lasts longest in it."""
    scale = columns / ((end - start) or 1)
    shares: list[dict[str, float]] = [{} for _ in range(columns)]
    for span in spans:
        first, last = (span.start - start) * scale, (span.end - start) * scale
        for column in range(int(first), min(columns, int(last) + 1)):
            share = min(last, column + 1) - max(first, column)
            if share > 0:
                shares[column][span.kind] = shares[column].get(span.kind, 0) + share
    return "".join(KINDS[max(s, key=s.__getitem__)][2] if s else " " for s in shares)


def _runs_of_one_kind(spans: list[Span]) -> list[list[Span]]:
    """The spans that are drawn as one: those of one kind that follow each other without a gap, but for waits,
    asynchronous operations and ranges, which stand for themselves."""
    joined: list[list[Span]] = []
    for span in spans:
        last = joined[-1][-1] if joined else None
        if last is not None and last.kind == span.kind and last.end == span.start and span.kind in ("compute", "memory",
                                                                                                    "sync"):
            joined[-1].append(span)
        else:
            joined.append([span])
    return joined


def _bar(spans: list[Span], y: float, start: float, scale: float) -> str:
    first, last = spans[0], spans[-1]
    x, width = LABEL + (first.start - start) * scale, max(0.5, (last.end - first.start) * scale)
    fits = int((width - 4) / CHARACTER)
    text = first.name if len(spans) == 1 else ""
    title = first.title
    if len(spans) > 1:
        title = (f"{KINDS[first.kind][0]}, {first.start:g} to {last.end:g}: "
                 + ", ".join(dict.fromkeys(f"{s.name} at line {s.line}" for s in spans)))
    fill = KINDS[first.kind][1] if first.kind != "range" else colour(47 * sum(first.name.encode()), 0.78, 0.5)
    return cell(x, y + 1, width, ROW - 2, fill, text if len(text) <= fits else "", title[:400])


def _legend(used: set[str]) -> list[str]:
    parts, x = [], LABEL
    for kind, (words, fill, _) in KINDS.items():
        if kind in used:
            parts += [cell(x, 24, 12, 12, fill), label(x + 17, 34, words, "start", FAINT)]
            x += int(30 + CHARACTER * len(words))
    return parts


def _ticks(start: float, end: float, scale: float, unit: str) -> list[str]:
    """The axis: about ten round numbers."""
    step = 1.0
    while (end - start) / step > 12:
        step *= 2.5 if str(step).startswith("2") else 2
    parts, at = [], 0.0
    while at <= end - start:
        parts.append(label(LABEL + at * scale, TOP - 6, f"{at:g}" + (f" {unit}" if not at else ""), "middle",
                               FAINT))
        at += step
    return parts
