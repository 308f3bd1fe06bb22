"""What tuning found, as a table in terminals and with a picture in notebooks."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from .space import config_text
from .trials import Trial

BAR = 24                     # characters of the longest bar in a terminal
WIDTH, ROW, LABEL = 260, 20, 300  # pixels of the longest bar, of a row, and of the names beside the bars
MOST_BARS = 40


@dataclass(frozen=True)
class TunedCall:
    """What tuning found for one kind of call on one GPU: a `Trial` for each configuration, the fastest first and those
    without a time last."""

    call: str
    gpu: str
    trials: tuple[Trial, ...]

    @property
    def with_times(self) -> tuple[Trial, ...]:
        """The trials that have a time, the fastest first."""
        return tuple(t for t in self.trials if t.ms is not None)


@dataclass(frozen=True)
class TuningReport:
    """The result of ``kernel.report()``: a `TunedCall` for each kind of call that was tuned in this process. It prints
    as a table, and notebooks show it with a picture."""

    kernel: str
    calls: tuple[TunedCall, ...]

    def __str__(self) -> str:
        if not self.calls:
            return f"{self.kernel}: no call has been tuned in this process"
        return "\n\n".join("\n".join(_table(self.kernel, call)) for call in self.calls)

    def _repr_html_(self) -> str:
        if not self.calls:
            return f"<p>{escape(str(self))}</p>"
        return "".join(f"<p><b>{escape(self.kernel)}</b> ({escape(call.call)}) on {escape(call.gpu)}</p>"
                       f"{picture(call)}{_html_table(call)}" for call in self.calls)


HEAD = ("configuration", "us", "ratio", "registers", "spills", "shared", "CTAs/SM")


def _cells(trial: Trial, best: float | None) -> tuple[str, ...]:
    time = "-", "-"
    if trial.ms is not None and best is not None:
        time = f"{1000 * trial.ms:.2f}", f"{trial.ms / best:.3f}"
    held, r = ["-"] * 4, trial.resources
    if r is not None:
        held = list(map(str, (r.registers, r.spills, r.shared_bytes, r.active_ctas)))
    return (config_text(trial.config), *time, *held)


def _remark(trial: Trial) -> str:
    """What is to be said of a trial in one line."""
    return trial.reason.splitlines()[0] if trial.reason else ""


def _best(call: TunedCall) -> float | None:
    return min((t.ms for t in call.trials if t.ms is not None), default=None)


def _table(kernel: str, call: TunedCall) -> list[str]:
    best = _best(call)
    rows = [HEAD, *(_cells(t, best) for t in call.trials)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    slowest = max((t.ms for t in call.trials if t.ms is not None), default=0.0)
    ends = [""] + [_remark(t) if t.ms is None else "#" * max(1, round(BAR * t.ms / slowest)) for t in call.trials]
    lines = []
    for (name, *numbers), end in zip(rows, ends):
        cells = [name.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(numbers, widths[1:])), end]
        lines.append("  ".join(cells).rstrip())
    return [f"{kernel}({call.call}) on {call.gpu}", *lines]


def _html_table(call: TunedCall) -> str:
    best = _best(call)

    def row(cells: tuple[str, ...], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
    rows = [row((*_cells(t, best), _remark(t)), "td") for t in call.trials]
    return f"<table>{row((*HEAD, ''), 'th')}{''.join(rows)}</table>"


def picture(call: TunedCall) -> str:
    """An SVG picture of the times: a bar for each of the fastest configurations. Its text has the page's colour."""
    timed = call.with_times[:MOST_BARS]
    if not timed:
        return ""
    slowest = max(t.ms or 0.0 for t in timed)
    parts = []
    for n, t in enumerate(timed):
        width, y = WIDTH * (t.ms or 0.0) / slowest, n * ROW
        parts.append(f'<text x="{LABEL - 6}" y="{y + 14}" text-anchor="end">{escape(config_text(t.config))}</text>'
                     f'<rect x="{LABEL}" y="{y + 3}" width="{width:.1f}" height="{ROW - 6}" '
                     f'fill="{"#2a9d57" if n == 0 else "#7d93b2"}"/>'
                     f'<text x="{LABEL + width + 5:.1f}" y="{y + 14}">{1000 * (t.ms or 0.0):.2f} us</text>')
    longest = max(len(config_text(t.config)) for t in timed)
    left = min(0, LABEL - 12 - 7 * longest)  # names that are longer than their place begin further left
    width, height = LABEL + WIDTH + 90 - left, ROW * len(timed)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="{left} 0 {width} {height}" font-family="ui-monospace,monospace" font-size="11" '
            f'fill="currentColor">{"".join(parts)}</svg>')


__all__ = ["TunedCall", "TuningReport", "picture"]
