"""What planning a tensor copy costs at a site: descriptor, boxes, instructions. Processor time, no GPU.

    python tests/bench/planning.py

Of each site the fastest of nine attempts counts, since other processes share the machine. The reference sites are those of
`tests/copy/data/tma_cases.json`; the worst ones were found among 100 000 random layouts. `tests/copy/test_planning_time.py`
holds each of them to `LIMIT`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from math import prod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "copy"))

from copy_cases import cases, planned
from tilejit.errors import TileError
from tilejit.layout import TileLayout
from tilejit.plan import BufferSpec, plan_copy

LIMIT = 0.002  # seconds


def permuted(dtype, digits, order, sizes) -> Callable:
    """A region of an array into a buffer whose layout cuts dimension d into `digits[d]` and has them, innermost first, in
    `order`: (dimension, digit) pairs."""
    strides, step = {}, 1
    for d, j in order:
        strides[d, j] = step
        step *= digits[d][j]
    shape = tuple(prod(parts) for parts in digits)
    layout = TileLayout(tuple((n, strides[d, j], "m") for d, parts in enumerate(digits) for j, n in enumerate(parts)))
    array = BufferSpec(sizes, dtype, "global", region=tuple(slice(0, n) for n in shape))
    return lambda: plan_copy(BufferSpec(shape, dtype, "shared", layout=layout), array, variant="tma")


# By boxes looked at, by maps tried in vain, by dimensions.
WORST = {
    "most boxes": permuted("int8", [(12,), (2,), (8, 45), (32,)], [(3, 0), (2, 1), (2, 0), (1, 0), (0, 0)], (36, 4, 376, 32)),
    "most maps": permuted("int8", [(6,), (3,), (2,), (6,), (2,), (32,)], [(5, 0), (1, 0), (3, 0), (0, 0), (4, 0), (2, 0)], (7, 4, 3, 12, 4, 48)),
    "ten dimensions": permuted("int8", [(3,), (2,), (2,), (2,), (2,), (6,), (2,), (2,), (2,), (96,)],
                               [(9, 0), (5, 0), (0, 0), (6, 0), (4, 0), (7, 0), (1, 0), (3, 0), (2, 0), (8, 0)], (3, 4, 2, 2, 2, 7, 4, 3, 4, 96)),
}
REFERENCE = {c["id"]: planned(c)[2] for c in cases("tma")}


def attempt(plan: Callable) -> None:
    """Plan a site; that there is no plan is an answer too."""
    try:
        plan()
    except TileError:
        pass


def fastest(plan: Callable, attempts: int = 9) -> float:
    """Seconds of the processor's time that a site takes."""
    times = []
    for _ in range(attempts):
        start = time.process_time()
        attempt(plan)
        times.append(time.process_time() - start)
    return min(times)


def main() -> None:
    for what, plans in (("reference", REFERENCE), ("worst", WORST)):
        times = {name: fastest(plan) * 1e3 for name, plan in plans.items()}
        slowest = max(times, key=times.get)
        print(f"{what}: {len(times)} sites, median {statistics.median(times.values()):.2f} ms, slowest {times[slowest]:.2f} ms ({slowest}); "
              f"allowed {LIMIT * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
