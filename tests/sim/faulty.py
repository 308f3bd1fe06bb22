"""Runs kernels on the simulator and compares the findings with the marks in their source.

A line that ends in ``# finds: kind`` must have exactly that finding; no other line may have any. If a fault can appear in
one of several ways, depending on the order of execution, the lines end in ``# may find: kind``: each run finds exactly one.
"""

from __future__ import annotations

import numpy as np

from tests.chosen_cases import all_cases

SEEDS = range(8 if all_cases() else 5)


def marks(kernel, word: str = "finds") -> set[tuple[str, int]]:
    """(kind, line) of every mark in the kernel's source."""
    found = set()
    for n, text in enumerate(kernel.source.lines, kernel.source.first_line):
        if f"# {word}:" in text:
            found |= {(kind.strip(), n) for kind in text.split(f"# {word}:")[1].split(",")}
    return found


def check(kernel, grid, *args, seeds=SEEDS, result=None, expected=None, **meta):
    """Simulate under several seeds, and assert that the findings are those marked in the source under every seed. If nothing is
    marked, argument number `result` must hold `expected` afterwards."""
    wanted, ways = marks(kernel), marks(kernel, "may find")
    for seed in seeds:
        arrays = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        report = kernel.simulate(grid, *arrays, seed=seed, **meta)
        found = {(f.kind, f.line) for f in report.findings}
        if ways:
            assert len(found) == 1 and found <= ways, f"seed {seed}: found {found}, one of {ways} is wanted\n{report}"
            continue
        assert found == wanted, f"seed {seed}: found {found}, marked {wanted}\n{report}"
        if not wanted and result is not None:
            np.testing.assert_array_equal(arrays[result], expected, err_msg=f"seed {seed}")
    return report
