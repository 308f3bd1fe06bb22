"""Timing on the GPU: rounds in turn over all candidates, so that ratios hold when the clock drifts; medians are quoted."""

from __future__ import annotations

import statistics

import torch


def flush_buffer() -> torch.Tensor:
    """Larger than the L2 cache: writing it between launches leaves nothing of the inputs there."""
    return torch.empty(256 << 20, dtype=torch.uint8, device="cuda")


def rounds(candidates: dict, repeats: int = 9, inner: int = 20) -> dict[str, float]:
    """Median seconds of one call of each candidate: `repeats` rounds in turn, `inner` calls a round in one CUDA graph
    where the candidate can be captured, else in a loop."""
    runs = {name: _prepared(call, inner) for name, call in candidates.items()}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, run in runs.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
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
