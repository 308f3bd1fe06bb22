"""Matrix products against torch.mm (cuBLAS), on the GPU.

    python tests/bench/matmul.py [--tiles] [--sustained] [--shapes 4096x4096x4096,...]

Bursts: after a pause of 120 ms about 4e12 flop at once, the candidates in turn, the median of the rounds; in such bursts
the clock does not fall under the power limit. Inputs are random normal and rotate. Prints TFLOP/s of both and the ratio
of their times (above 1: faster than torch.mm). `--tiles` measures every tile on each shape, `--sustained` blocks of 40 ms
back to back.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time

import torch

from tilejit import kernels
from tilejit.kernels.matmul import TILES, Config, choose

LARGE = ((4096, 4096, 4096), (8192, 8192, 8192), (16384, 16384, 16384), (4096, 4096, 16384), (8192, 28672, 4096))
SMALL = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (3072, 3072, 3072), (8192, 8192, 512), (256, 8192, 8192), (64, 4096, 4096),
         (16, 8192, 8192))
BURST, PAUSE, SETS = 4e12, 0.12, 2


def operands(m: int, n: int, k: int, b_nk: bool, dtype) -> list[tuple]:
    """`SETS` sets of inputs and results."""
    made = []
    for _ in range(SETS):
        a = torch.randn(m, k, device="cuda", dtype=dtype)
        b = torch.randn(n, k, device="cuda", dtype=dtype).t() if b_nk else torch.randn(k, n, device="cuda", dtype=dtype)
        made.append((a, b, torch.empty(m, n, device="cuda", dtype=dtype)))
    return made


def burst(call, sets, times: int, pause: float) -> float:
    """Seconds of one call out of `times` of them at once, after a pause."""
    torch.cuda.synchronize()
    time.sleep(pause)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for i in range(times):
        call(*sets[i % len(sets)])
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / times


def graphed(call, sets):
    """The call on each set as a CUDA graph, so that launches of small products cost the same for everybody."""
    graphs = {}
    for a, b, out in sets:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                call(a, b, out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(10):
                call(a, b, out)
        graphs[out.data_ptr()] = graph
    return lambda a, b, out: graphs[out.data_ptr()].replay()


def measured(candidates: dict, sets, flop: float, rounds: int, sustained: bool) -> dict[str, float]:
    """Median seconds of a call of each candidate, in turn."""
    small = flop < 1e11
    calls, each = (candidates, 1) if not small else ({name: graphed(call, sets) for name, call in candidates.items()}, 10)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for s in sets:
            call(*s)
    count = max(2, math.ceil(min(BURST / flop, 4000) / each))
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(burst(call, sets, count, 0.0 if sustained else PAUSE) / each)
    return {name: statistics.median(t) for name, t in times.items()}


def checked(m: int, n: int, k: int, sets) -> None:
    a, b, out = sets[0]
    out.fill_(float("nan"))
    kernels.matmul(a, b, out)
    expected = torch.mm(a, b)
    error = ((out.float() - expected.float()).norm() / expected.float().norm()).item()
    assert error < 3e-3, (m, n, k, error)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tiles", action="store_true", help="measure every tile on each shape")
    parser.add_argument("--sustained", action="store_true", help="back to back, without pauses")
    parser.add_argument("--shapes", help="such as 4096x4096x4096,512x512x512; 'large' or 'small'")
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    named = {"large": LARGE, "small": SMALL, None: LARGE + SMALL}
    shapes = named.get(arguments.shapes) or tuple(tuple(map(int, s.split("x"))) for s in arguments.shapes.split(","))
    dtype = getattr(torch, arguments.dtype)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    results, ratios = {}, []
    print(f"{'shape':22} {'B':5} {'tile':9} {'torch':>8} {'tilejit':>8} {'ratio':>7}")
    for m, n, k in shapes:
        for b_nk in (True, False):
            flop = 2.0 * m * n * k
            sets = operands(m, n, k, b_nk, dtype)
            checked(m, n, k, sets)
            chosen = choose(m, n, k, processors)
            configs = [Config.of(*t) for t in TILES] if arguments.tiles else [chosen]
            candidates = {"torch": lambda a, b, out: torch.mm(a, b, out=out)}
            for c in configs:
                candidates[f"{c.bm}x{c.bn}"] = lambda a, b, out, c=c: kernels.matmul(a, b, out, c)
            seconds = measured(candidates, sets, flop, arguments.rounds, arguments.sustained)
            for c in configs:
                name = f"{c.bm}x{c.bn}"
                ratio = seconds["torch"] / seconds[name]
                marked = "*" if arguments.tiles and (c.bm, c.bn) == (chosen.bm, chosen.bn) else ""
                print(f"{f'{m}x{n}x{k}':22} {'N,K' if b_nk else 'K,N':5} {name + marked:9} {flop / seconds['torch'] / 1e12:8.1f} "
                      f"{flop / seconds[name] / 1e12:8.1f} {ratio:7.3f}", flush=True)
                results[f"{m}x{n}x{k} {'NK' if b_nk else 'KN'} {name}"] = ratio
                if (c.bm, c.bn) == (chosen.bm, chosen.bn):
                    ratios.append(ratio)
            del sets
    print(f"geometric mean of the chosen tiles: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
