"""Grouped products on the GPU, compared with a loop of cuBLAS calls (torch.mm), a grouped kernel in Triton, and torch._grouped_mm.

    python tests/bench/grouped.py [--cases mixed-2048,ragged,...] [--tiles] [--host] [--rounds 5] [--json FILE]

64 groups in bfloat16, b as [N, K]. Each candidate is a CUDA graph of one call (for cuBLAS of the loop), replayed in bursts
after a pause, in alternation with the others; the median of the rounds counts. For Triton it is the best of several tile
configurations, with pointers and with tensor descriptors made on the device. Prints the microseconds per call, and the times of
the others relative to it. `--tiles` measures all tiles, `--host` the time that a call without a graph takes on the host.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace

import numpy as np
import torch
from tilejit import kernels
from tilejit.kernels.grouped.choice import REGISTERS, choose_grouped
from tilejit.kernels.matmul.choice import TILES, Config

PAUSE, BURST = 0.1, 1.5e12


def mixed(n: int, k: int, low: int = 16, high: int = 4096):
    """64 groups with M from `low` to `high`, log-uniform."""
    return [(int(m), n, k) for m in np.random.default_rng(0).permutation(np.geomspace(low, high, 64).round())]


def ragged():
    """64 groups with different M, N and K."""
    rng = np.random.default_rng(1)
    return [tuple(int(x) for x in np.exp(rng.uniform(np.log((16, 256, 256)), np.log((4096, 4096, 4096))))) for _ in range(64)]


CASES = {"mixed-1024": mixed(1024, 1024), "mixed-2048": mixed(2048, 2048), "mixed-4096": mixed(4096, 4096), "ragged": ragged(),
         "small": mixed(2048, 2048, 16, 128), "rows of 16": mixed(2048, 2048, 16, 16), "stacked-2048": mixed(2048, 2048)}


def matrix(rows: int, columns: int):
    """A matrix whose rows are a multiple of 16 bytes apart."""
    return torch.randn(rows, -(-columns // 8) * 8, device="cuda").bfloat16()[:, :columns]


# -- timing ----------------------------------------------------------------------------------------------------------------

def captured(call):
    """The call as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def burst(run, times: int) -> float:
    """Seconds per run, of `times` runs back to back after a pause."""
    torch.cuda.synchronize()
    time.sleep(PAUSE)
    torch.cuda._sleep(1_000_000)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / times


def host_time(call) -> float:
    """Seconds that the host spends on a call."""
    call()
    torch.cuda.synchronize()
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
    return min(times)


def candidates(name: str, a, b, outs, arguments) -> dict:
    """The calls to compare, by name; tilejit's is first."""
    ctas = torch.cuda.get_device_properties(0).multi_processor_count
    loop = [(x, y.t(), z) for x, y, z in zip(a, b, outs)]
    found = {}
    if name.startswith("stacked"):
        rows, stack = torch.cat(a), torch.stack(b).transpose(1, 2)
        offs = torch.tensor(np.cumsum([len(x) for x in a]), device="cuda", dtype=torch.int32)
        whole = torch.empty(len(rows), stack.shape[2], device="cuda", dtype=rows.dtype)
        found["tilejit"] = lambda: kernels.grouped_matmul(rows, stack, whole, offs=offs)
        if hasattr(torch, "_grouped_mm"):
            found["torch._grouped_mm"] = lambda: torch._grouped_mm(rows, stack, offs=offs)
    else:
        transposed = [y.t() for y in b]
        given = outs if all(n.shape[1] % 8 == 0 for n in outs) else None  # else rows need padding; the call allocates padded results
        found["tilejit"] = lambda: kernels.grouped_matmul(a, transposed, given)
        if arguments.tiles:
            for shape in TILES:
                config = replace(Config.of(*shape), regs=REGISTERS[shape[0]])
                if shape[1] >= 32:
                    found[f"tilejit {shape[0]}x{shape[1]}"] = lambda config=config: kernels.grouped_matmul(a, transposed, given, config=config)
    found["cuBLAS"] = lambda: [torch.mm(x, y, out=z) for x, y, z in loop]
    if not arguments.no_triton:
        from grouped_triton import triton_candidates
        found |= triton_candidates(a, b, outs, ctas)
    return found


def checked(found: dict, a, b, outs) -> None:
    """Assert that all candidates give cuBLAS's results."""
    found["cuBLAS"]()
    expected = [x.clone() for x in outs]
    for name, call in found.items():
        for x in outs:
            x.fill_(float("nan"))
        made = call()
        results = made if isinstance(made, list) else made.split([len(x) for x in a]) if isinstance(made, torch.Tensor) else outs
        for x, y in zip(results, expected):
            error = ((x.float() - y.float()).norm() / y.float().norm()).item()
            assert error < 4e-3, (name, x.shape, error)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", help=f"some of {', '.join(CASES)}")
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiles", action="store_true", help="measure every tile")
    parser.add_argument("--host", action="store_true", help="measure the host's time of a call")
    parser.add_argument("--no-triton", action="store_true")
    arguments = parser.parse_args()
    results = {}
    for name in arguments.cases.split(",") if arguments.cases else CASES:
        torch.manual_seed(0)
        groups = CASES[name]
        a, b, outs = [matrix(m, k) for m, n, k in groups], [matrix(n, k) for m, n, k in groups], [matrix(m, n) for m, n, k in groups]
        flop = sum(2.0 * m * n * k for m, n, k in groups)
        found = candidates(name, a, b, outs, arguments)
        checked(found, a, b, outs)
        runs = {title: captured(call) for title, call in found.items()}
        times = {title: [] for title in runs}
        for _ in range(arguments.rounds):
            for title, run in runs.items():
                times[title].append(burst(run, max(3, int(BURST / flop))))
        seconds = {title: statistics.median(t) for title, t in times.items()}
        best = min((t for t in seconds if t.startswith("Triton")), key=seconds.get, default=None)
        tile = choose_grouped(tuple(sorted(groups, key=lambda g: -g[2])), 2, 2, torch.cuda.get_device_properties(0).multi_processor_count)
        results[name] = {title: seconds[title] / seconds["tilejit"] for title in seconds}
        print(f"{name:13} {tile} {seconds['tilejit'] * 1e6:8.1f} us {flop / seconds['tilejit'] / 1e12:6.1f} TFLOP/s", end="")
        for title in seconds:
            if title != "tilejit" and (title == best or not title.startswith("Triton")):
                print(f"; {title} {results[name][title]:.3f}", end="")
        print(flush=True)
        if arguments.host:
            print("  host, us:", ", ".join(f"{title} {host_time(found[title]) * 1e6:.0f}" for title in ("tilejit", "cuBLAS", best) if title), flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
