"""Persistent copies by TMA and cp.async, compared with the fastest other copy of the same run; and the time to plan a copy.

    python tests/bench/copies.py [--gib 4] [--pairs 4] [--json FILE]
    python tests/bench/copies.py --planning          # needs no GPU

Prints GB/s (every byte read and written once) of each configuration of the TMA copy and of the cp.async copy, and the ratio
of the best of either to the fastest of: torch's copy_, cuMemcpyDtoDAsync, a vectorised element-wise kernel of torch, and this
package's copy through registers. All are measured in alternation. Each call takes the next of several pairs of arrays, so
that no call finds data of another in the L2 cache. The thresholds are 0.97 for TMA, 0.95 for cp.async, and 2 ms per plan.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

BARS = {"tma": 0.97, "ldgsts": 0.95}
COLUMNS = 256   # of 4 bytes: a row is 1 KB

#        rows, stages, loads ahead, CTAs per SM, L2 policy of the loads
TMA = ((16, 3, 2, 1, None), (16, 4, 3, 1, None), (24, 2, 1, 1, None), (8, 4, 3, 2, None),
       (16, 3, 2, 1, "evict_last"), (24, 2, 1, 1, "evict_last"), (32, 2, 1, 1, "evict_last"))
#        rows, stages, warps, CTAs per SM
LDGSTS = ((8, 2, 2, 4), (8, 3, 2, 4), (8, 2, 2, 6), (16, 2, 4, 2))
#         rows, warps
VECTORS = ((2, 4), (4, 4), (16, 4))


def candidates(pairs, processors: int) -> dict:
    """Calls by name, each of which copies the next pair of arrays: tma and ldgsts in several configurations, and the copies that
    they are compared with."""
    import torch
    from copy_kernels import by_vectors, through_ldgsts, through_tma
    from cuda.bindings import driver

    source = pairs[0][0]
    turns = itertools.cycle(pairs)
    counter = torch.zeros(1, dtype=torch.uint32, device=source.device)
    tiles = lambda rows: -(-source.shape[0] // rows)
    calls = {}
    for rows, stages, ahead, ctas, kept in TMA:
        launch = through_tma[min(processors * ctas, tiles(rows)),]
        options = {"ROWS": rows, "COLUMNS": COLUMNS, "STAGES": stages, "AHEAD": ahead, "KEPT": kept}
        name = f"tma, {rows} rows, {stages} stages, {ahead} ahead, {ctas} CTAs an SM" + (f", {kept}" if kept else "")
        calls[name] = lambda f=launch, o=options: f(*next(turns), counter, **o)
    for rows, stages, warps, ctas in LDGSTS:
        launch = through_ldgsts[min(processors * ctas, tiles(rows)),]
        options = {"ROWS": rows, "COLUMNS": COLUMNS, "STAGES": stages, "num_warps": warps}
        calls[f"ldgsts, {rows} rows, {stages} stages, {warps} warps, {ctas} CTAs an SM"] = lambda f=launch, o=options: f(*next(turns), counter, **o)
    nbytes = source.numel() * source.element_size()

    def memcpy():
        source, target = next(turns)
        (code,) = driver.cuMemcpyDtoDAsync(target.data_ptr(), source.data_ptr(), nbytes, torch.cuda.current_stream().cuda_stream)
        assert code == driver.CUresult.CUDA_SUCCESS, code

    def negated():
        source, target = next(turns)
        torch.bitwise_not(source, out=target)

    def copied():
        source, target = next(turns)
        target.copy_(source)

    calls |= {"copy_ of torch": copied, "cuMemcpyDtoDAsync": memcpy, "torch.bitwise_not": negated}
    for rows, warps in VECTORS:
        options = {"ROWS": rows, "COLUMNS": COLUMNS, "num_warps": warps}
        calls[f"copy through registers, {rows} rows, {warps} warps"] = lambda f=by_vectors[tiles(rows),], o=options: f(*next(turns), **o)
    return calls


def throughput(gib: float, count: int) -> dict:
    import torch
    from timing import rounds

    n = int(gib * (1 << 30)) // (4 * COLUMNS)
    pairs = [(torch.randint(-(1 << 31), (1 << 31) - 1, (n, COLUMNS), dtype=torch.int32, device="cuda"),
              torch.empty((n, COLUMNS), dtype=torch.int32, device="cuda")) for _ in range(count)]
    calls = candidates(pairs, torch.cuda.get_device_properties(0).multi_processor_count)
    for name, call in calls.items():
        for _, target in pairs:
            target.zero_()
        for _ in pairs:
            call()
        if name != "torch.bitwise_not":
            assert all(torch.equal(*pair) for pair in pairs), name
    seconds = rounds(calls, repeats=7, inner=2 * count)
    source = pairs[0][0]
    speed = {name: 2 * 4 * source.numel() / s / 1e9 for name, s in seconds.items()}
    for name, gbs in speed.items():
        print(f"{name:58} {gbs:7.0f} GB/s")
    own = tuple(BARS)
    best = max((name for name in speed if not name.startswith(own)), key=speed.get)
    print(f"\nfastest to compare with: {best}, {speed[best]:.0f} GB/s")
    result = {"speed": speed, "compared with": best}
    for kind, bar in BARS.items():
        mine = max((name for name in speed if name.startswith(kind)), key=speed.get)
        ratio = speed[mine] / speed[best]
        result[kind] = ratio
        print(f"{mine}: {ratio:.3f} of it, bar {bar}: {'met' if ratio >= bar else 'MISSED'}")
    return result


def planning() -> dict:
    """The milliseconds to plan each site: the reference cases, and layouts that are hard for the search."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "copy"))
    from test_planning_time import REFERENCE, WORST, attempt

    times = {}
    for name, plan in {**WORST, **REFERENCE}.items():
        best = float("inf")
        for _ in range(9):
            start = time.perf_counter()
            attempt(plan)
            best = min(best, time.perf_counter() - start)
        times[name] = 1e3 * best
    slowest = sorted(times, key=times.get)[::-1]
    for name in slowest[:8]:
        print(f"{name:52} {times[name]:7.2f} ms")
    print(f"{len(times)} sites: slowest {times[slowest[0]]:.2f} ms, bar 2 ms: {'met' if times[slowest[0]] < 2 else 'MISSED'}")
    return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=4, help="GiB of an array")
    parser.add_argument("--pairs", type=int, default=4, help="pairs of arrays that the calls take by turns")
    parser.add_argument("--planning", action="store_true", help="only the time of planning")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = {"planning ms": planning()}
    if not arguments.planning:
        print()
        results |= throughput(arguments.gib, arguments.pairs)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
