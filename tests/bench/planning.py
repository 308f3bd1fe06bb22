"""CPU time to plan a tensor copy (tensor map, boxes, instructions); needs no GPU.

    python tests/bench/planning.py

For each site the fastest of nine attempts counts, since other processes share the machine. The reference sites are those of
`tests/copy/data/tma_cases.json`; the worst sites were found among 100 000 random layouts. `tests/copy/test_planning_time.py`
asserts that each stays below `LIMIT`.
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
YARDSTICK = 0.00037  # seconds that `yardstick` takes on an idle core at full clock (3.6 of it plan the slowest site)


def permuted(dtype, digits, order, sizes) -> Callable:
    """A copy from a region of an array to a buffer whose layout splits dimension d into digits of extents `digits[d]` and stores
    them in `order`, pairs (dimension, digit) from the innermost on."""
    strides, step = {}, 1
    for d, j in order:
        strides[d, j] = step
        step *= digits[d][j]
    shape = tuple(prod(parts) for parts in digits)
    layout = TileLayout(tuple((n, strides[d, j], "m") for d, parts in enumerate(digits) for j, n in enumerate(parts)))
    array = BufferSpec(sizes, dtype, "global", region=tuple(slice(0, n) for n in shape))
    return lambda: plan_copy(BufferSpec(shape, dtype, "shared", layout=layout), array, variant="tma")


# The worst sites by the number of boxes examined, of tensor maps tried without success, and of dimensions.
WORST = {
    "most boxes": permuted("int8", [(12,), (2,), (8, 45), (32,)], [(3, 0), (2, 1), (2, 0), (1, 0), (0, 0)], (36, 4, 376, 32)),
    "most maps": permuted("int8", [(6,), (3,), (2,), (6,), (2,), (32,)], [(5, 0), (1, 0), (3, 0), (0, 0), (4, 0), (2, 0)], (7, 4, 3, 12, 4, 48)),
    "ten dimensions": permuted("int8", [(3,), (2,), (2,), (2,), (2,), (6,), (2,), (2,), (2,), (96,)],
                               [(9, 0), (5, 0), (0, 0), (6, 0), (4, 0), (7, 0), (1, 0), (3, 0), (2, 0), (8, 0)], (3, 4, 2, 2, 2, 7, 4, 3, 4, 96)),
}
REFERENCE = {c["id"]: planned(c)[2] for c in cases("tma")}


def attempt(plan: Callable) -> None:
    """Plan a site. A site without a plan counts too."""
    try:
        plan()
    except TileError:
        pass


def yardstick() -> int:
    """Work of the planner's kind (calls, tuples, dicts), always the same."""
    found: dict = {}
    for n in range(900):
        key = (n % 30, isinstance(n, int), divmod(n, 7))
        found[key] = found.get(key, 0) + max(key[2])
    return len(found)


def fastest(plan: Callable, attempts: int = 9) -> float:
    """The seconds of CPU time to plan a site. A core that other processes slow down, or that runs at a lower clock, takes
    longer for the yardstick too, right after the plan; the plan's time is then reduced by as much."""
    times = []
    for _ in range(attempts):
        start = time.process_time()
        attempt(plan)
        middle = time.process_time()
        yardstick()
        end = time.process_time()
        times.append((middle - start) / max(1.0, (end - middle) / YARDSTICK))
    return min(times)


def main() -> None:
    for what, plans in (("reference", REFERENCE), ("worst", WORST)):
        times = {name: fastest(plan) * 1e3 for name, plan in plans.items()}
        slowest = max(times, key=times.get)
        print(f"{what}: {len(times)} sites, median {statistics.median(times.values()):.2f} ms, slowest {times[slowest]:.2f} ms ({slowest}); "
              f"allowed {LIMIT * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
