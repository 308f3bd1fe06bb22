"""Checks asynchronous reductions on the cells of one memory for races.

They need no order among each other. Each comes after all other accesses before it, and every other access after it
comes after all of them.

What a shadow knows of a cell is therefore kept as it was before the first reduction: every later reduction is checked
against that. Any other access is checked against each reduction, and a write ends the cell's series of reductions.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np

# Column -> epoch, thread and line of its last read of each cell.
Readers = dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]


@dataclass
class Reduction:
    """A reduction of `cells`: the `operation` in flight; once it has landed (None), the column and epoch that stand for
    it, and the kind of `thread`."""

    cells: np.ndarray
    operation: int | None
    line: int
    column: int = 0
    epoch: int = 0
    thread: int = 0


class Reductions:
    """The reductions of each cell since its last other write. `readers` holds the reads before the last of them: these
    precede other accesses by way of that reduction, but later reductions must come after them too."""

    def __init__(self, cells: int):
        self.covered = np.zeros(cells, bool)
        self.made: list[Reduction] = []
        self.readers: Readers = {}

    def copy(self) -> Reductions:
        new = copy.copy(self)
        new.covered, new.made = self.covered.copy(), [copy.copy(r) for r in self.made]
        new.readers = {c: tuple(a.copy() for a in r) for c, r in self.readers.items()}
        return new

    def begin(self, operation: int, cells: np.ndarray, line: int, readers: Readers) -> None:
        """A reduction of `cells` is issued. `readers` are the shadow's, from which the reads so far are taken over."""
        self.made.append(Reduction(np.unique(cells), operation, line))
        self.covered[cells] = True
        for column, found in readers.items():
            read = cells[found[0][cells] > 0]
            if len(read):
                seen, threads, lines = found
                kept = self.readers.setdefault(column,
                                               (np.zeros_like(seen), np.zeros_like(threads), np.zeros_like(lines)))
                for mine, theirs in zip(kept, found):
                    mine[read] = theirs[read]
                found[0][read] = 0

    def mark_landed(self, operation: int, column: int, epoch: int, thread: int) -> None:
        """A reduction has landed, unless a write ended its series before. Of those with the same column and cells, the
        last one is kept."""
        for reduction in self.made:
            if reduction.operation == operation:
                reduction.operation, reduction.column, reduction.epoch, reduction.thread = None, column, epoch, thread
                alike = [r for r in self.made if r is not reduction and r.operation is None
                         and (r.column, r.thread) == (column, thread)
                         and np.array_equal(r.cells, reduction.cells)]
                self.made = [r for r in self.made if not any(r is a for a in alike)]
                return

    def end(self, cells: np.ndarray | slice) -> None:
        """Other writes to `cells` end the series of their reductions."""
        if not self.made or not self.covered[cells].any():
            return
        self.covered[cells] = False
        for reduction in self.made:
            reduction.cells = reduction.cells[self.covered[reduction.cells]]
        self.made = [r for r in self.made if len(r.cells)]
        for epoch, _, _ in self.readers.values():
            epoch[cells] = 0

    def reductions_of(self, cells: np.ndarray | range):
        """(reduction, indices into `cells`) for each reduction of some of them."""
        place = np.full(len(self.covered), -1)
        place[np.asarray(cells)] = np.arange(len(cells))
        for reduction in self.made:
            at = place[reduction.cells]
            if (at >= 0).any():
                yield reduction, at[at >= 0]
