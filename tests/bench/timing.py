"""Timing on the GPU: medians of rounds that alternate over all candidates, so that ratios hold when the clock drifts."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Iterator

import torch


def flush_buffer() -> torch.Tensor:
    """A buffer larger than the L2 cache; writing it between launches evicts their inputs."""
    return torch.empty(256 << 20, dtype=torch.uint8, device="cuda")


def orders(names: Iterable[str], count: int) -> Iterator[list[str]]:
    """`count` random orders of the names, the same in every run. A card at its power limit may run faster behind a kernel
    that takes less power, so in a fixed order one call would always have that advantage."""
    draw, all_names = random.Random(0), list(names)
    for _ in range(count):
        yield draw.sample(all_names, len(all_names))


def rounds(candidates: dict, repeats: int = 9, inner: int = 20) -> dict[str, float]:
    """Median seconds per call of each candidate, over `repeats` alternating rounds of `inner` calls: in one CUDA graph if the
    candidate can be captured, else in a loop."""
    runs = {name: _prepared(call, inner) for name, call in candidates.items()}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for order in orders(runs, repeats):
        for name in order:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            runs[name]()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) / 1e3 / inner)
    return {name: statistics.median(t) for name, t in times.items()}


def _prepared(call, inner: int):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(inner):
                call()
        graph.replay()
        torch.cuda.synchronize()
        return graph.replay
    except Exception:
        torch.cuda.synchronize()

        def loop():
            for _ in range(inner):
                call()
        return loop
