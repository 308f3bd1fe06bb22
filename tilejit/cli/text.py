"""Text for a terminal of at most 100 columns, and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import fold_lines

COLUMNS = 100


def wrap(text: str) -> str:
    """The lines of `text`, those of more than 100 columns folded."""
    return fold_lines(text, columns=COLUMNS)


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` columns, with dots where it was cut."""
    return text if len(text) <= width else text[:max(width - 3, 0)] + "..."


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], right: str = "") -> str:
    """A table with a heading, whose last column is cut where the line would have more than 100 columns. `right` has an
    "r" for each column that is aligned at its right."""
    cells = [[str(x) for x in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        parts = [cell.rjust(w) if side == "r" else cell.ljust(w)
                 for cell, w, side in zip(row, widths, right.ljust(len(head)))]
        return shorten("  ".join(parts).rstrip(), COLUMNS)

    return "\n".join(map(line, cells))


def print_json(data: Any) -> None:
    """Print `data` as indented JSON; what JSON has no form for is printed as text."""
    print(json.dumps(data, indent=1, default=str))


def count(n: int, noun: str, nouns: str = "") -> str:
    """A number with its noun: "1 kernel", "2 kernels"."""
    return f"{n} {noun}" if n == 1 else f"{n} {nouns or noun + 's'}"
