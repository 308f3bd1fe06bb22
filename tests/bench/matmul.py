r"""Matrix products on the GPU, compared with cuBLAS (torch.mm, torch._scaled_mm, torch._int_mm).

    python tests/bench/matmul.py [--shapes large|small|rows|ragged|other|4096x4096x4096,...] [--dtype bfloat16] [--sustained] [--tiles]
    [--epilogue] [--blocks] [--triton] [--once]

The candidates run in alternation, in bursts: about 4e12 flop back to back after a pause of 120 ms, so short that the power limit
does not reduce the clock. The median of the rounds counts. Inputs are normally distributed, and several sets take turns; strides
are padded to 16 bytes. Prints TFLOP/s of both and the ratio of their times (above 1: faster than cuBLAS).

`--tiles` measures all tiles on each shape, `--sustained` runs without pauses, `--epilogue` compares products with bias and GELU, and
also with a residual, with the plain product. `--triton` also measures Triton's persistent product (the best of its configurations;
B K-major); the ratio is then relative to the faster of cuBLAS and Triton. `--blocks` measures float8 with scales of 1 x 128 for A and
128 x 128 for B, and float8 without fast accumulation.

dtypes: bfloat16, float16, float32 (TF32), float8_e4m3fn (one scale per operand, fast accumulation), int8. For the last two, cuBLAS
takes only a K-major B; it gets one that was copied before, while for an N-major B our time includes the copy.

`--once` does not measure: it runs each candidate three times, for a profiler:

    ncu --clock-control none --cache-control none -k regex:"persistent|stream|nvjet" --metrics \
    sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active,sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed \
    python tests/bench/matmul.py --shapes large --once
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time

import torch
from product_kernels import bias_gelu, bias_gelu_residual, narrow_bias_gelu_residual
from tilejit import kernels
from tilejit.kernels.matmul.choice import TILES, Config, Problem, choose
from tilejit.kernels.pack import alignment
from tilejit.runtime.arrays import describe

LARGE = ((4096, 4096, 4096), (8192, 8192, 8192), (16384, 16384, 16384), (4096, 4096, 16384), (8192, 28672, 4096))
SMALL = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (3072, 3072, 3072), (8192, 8192, 512), (256, 8192, 8192), (64, 4096, 4096),
         (16, 8192, 8192), (4097, 4095, 4100))
WEIGHTS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (10240, 8192), (8192, 28672))  # of language models, (N, K)
ROWS = tuple((m, *weight) for m in (1, 16, 64, 128, 512) for weight in WEIGHTS)
RAGGED = tuple((m, *weight) for m in (100, 222, 333, 577, 777, 1500) for weight in WEIGHTS)
OTHER = ((1000, 1000, 1000), (3000, 3000, 3000), (5000, 5000, 5000), (6000, 6000, 6000), (100, 104, 20000), (256, 256, 65536), (512, 512, 32768),
         (1024, 1024, 16384), (1536, 1536, 1536), (2048, 2048, 8192), (2560, 2560, 2560), (5120, 5120, 5120), (4096, 1024, 4096),
         (1024, 16384, 1024), (32768, 512, 512))
BURST, PAUSE, SETS = 4e12, 0.12, 2  # flop, seconds, sets of operands
AHEAD = 1_000_000  # cycles that the GPU sleeps at the start of a burst, while the host issues the first calls
RESULTS = {torch.float8_e4m3fn: torch.bfloat16, torch.int8: torch.int32}


def matrix(rows: int, columns: int, dtype, random: bool = True):
    """A matrix whose rows are a multiple of 16 bytes apart."""
    unit = 16 // dtype.itemsize
    wide = torch.empty(rows, -(-columns // unit) * unit, device="cuda", dtype=dtype)
    if random and dtype == torch.int8:
        wide.random_(-127, 128)
    elif random:
        wide.copy_(torch.randn(wide.shape, device="cuda"))
    return wide[:, :columns]


def operands(m: int, n: int, k: int, b_nk: bool, dtype) -> list[tuple]:
    """`SETS` sets of inputs and results."""
    return [(matrix(m, k, dtype), matrix(n, k, dtype).t() if b_nk else matrix(k, n, dtype), matrix(m, n, RESULTS.get(dtype, dtype), random=False))
            for _ in range(SETS)]


def burst(call, sets, times: int, pause: float) -> float:
    """Seconds per call, of `times` calls back to back after a pause."""
    torch.cuda.synchronize()
    time.sleep(pause)
    torch.cuda._sleep(AHEAD)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for i in range(times):
        call(*sets[i % len(sets)])
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / times


def graphed(call, sets):
    """Ten calls on each set as a CUDA graph, so that launches of small products cost the same for all candidates."""
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
    """Median seconds per call of each candidate, measured in alternation."""
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


def ran(candidates: dict, sets) -> None:
    """Run each candidate three times."""
    for call in candidates.values():
        for i in range(3):
            call(*sets[i % len(sets)])
    torch.cuda.synchronize()


def k_major():
    """A function that gives B in the form that cuBLAS takes, K-major: a copy, made at the first call, if B is not."""
    copies = {}

    def taken(b):
        if b.stride(0) != 1 and b.data_ptr() not in copies:
            copies[b.data_ptr()] = b.t().contiguous().t()
        return copies.get(b.data_ptr(), b)
    return taken


def cublas(dtype):
    """The function that computes the product by cuBLAS, for operands of `dtype`."""
    taken = k_major()
    if dtype == torch.float8_e4m3fn:
        one = torch.ones((), device="cuda")
        return lambda a, b, out: torch._scaled_mm(a, taken(b), one, one, out_dtype=out.dtype, use_fast_accum=True, out=out)
    if dtype == torch.int8:
        return lambda a, b, out: torch._int_mm(a, taken(b), out=out)
    torch.backends.cuda.matmul.allow_tf32 = True
    return lambda a, b, out: torch.mm(a, b, out=out)


def ours(dtype, config=None, **options):
    precision = "tf32" if dtype == torch.float32 else None
    if dtype == torch.float8_e4m3fn:
        one = torch.ones(1, device="cuda")
        options = dict(scale_a=one, scale_b=one, fast_accum=True) | options
    return lambda a, b, out: kernels.matmul(a, b, out, precision=precision, config=config, **options)


def block_scaled(m: int, n: int, k: int) -> dict[str, dict]:
    """Calls of cuBLAS and ours for float8 with a scale for each 1 x 128 of A and 128 x 128 of B, and for float8 without scales, summed in
    float32."""
    up = lambda extent: -(-extent // 128)
    a = torch.rand(up(k), m, device="cuda").t() + 0.5                        # adjacent along m, as cuBLAS requires
    b = (torch.rand(up(n), -(-up(k) // 4) * 4, device="cuda") + 0.5)[:, :up(k)].t()
    one = torch.ones((), device="cuda")
    scaled = lambda x, y: lambda left, right, out: torch._scaled_mm(left, right, x, y, out_dtype=out.dtype, use_fast_accum=False, out=out)
    dtype = torch.float8_e4m3fn
    return {"blocks": {"cuBLAS": scaled(a, b), "tilejit": ours(dtype, scale_a=a, scale_b=b)},
            "float32 sums": {"cuBLAS": scaled(one, one), "tilejit": ours(dtype, fast_accum=False)}}


def block_table(shape, arguments) -> list[float]:
    """Measure and print products with block scales and with sums in float32; returns the ratios of the times."""
    m, n, k = shape
    flop, sets, ratios = 2.0 * m * n * k, operands(*shape, True, torch.float8_e4m3fn), []
    for name, calls in block_scaled(*shape).items():
        results = []
        for call in calls.values():
            a, b, out = sets[0]
            call(a, b, out)
            results.append(out.float())
        error = ((results[0] - results[1]).norm() / results[0].norm()).item()
        assert error < 4e-3, (shape, name, error)
        seconds = measured(calls, sets, flop, arguments.rounds, arguments.sustained)
        ratios.append(seconds["cuBLAS"] / seconds["tilejit"])
        print(f"{'x'.join(map(str, shape)):22} {'N,K':5} {name:26} {flop / seconds['cuBLAS'] / 1e12:8.1f} {flop / seconds['tilejit'] / 1e12:8.1f} "
              f"{ratios[-1]:7.3f}", flush=True)
    return ratios


def checked(shape, sets, dtype) -> None:
    a, b, out = sets[0]
    out.fill_(float("nan") if out.dtype.is_floating_point else -1)
    ours(dtype)(a, b, out)
    expected = a.double() @ b.double() if a.shape[0] * b.shape[1] < 1 << 26 else a.to(torch.float16).float() @ b.to(torch.float16).float()
    error = ((out.double() - expected.double()).norm() / expected.double().norm()).item()
    assert error < 4e-3, (shape, error)


def table(shape, b_nk: bool, dtype, arguments, processors: int) -> dict[str, tuple[float, bool]]:
    """Measure and print the candidates for one shape; returns for each the ratio of the times, and whether it counts in the mean."""
    m, n, k = shape
    flop, sets = 2.0 * m * n * k, operands(*shape, b_nk, dtype)
    checked(shape, sets, dtype)
    copied = (n * k * dtype.itemsize, 0) if dtype == torch.float32 and not b_nk else (0, 0)
    across = False, not b_nk and dtype.itemsize == 2
    aligned = alignment(describe(sets[0][0]), (2, 4)), alignment(describe(sets[0][1].t()), (2,))
    chosen = choose(Problem(m, n, k, 1, dtype.itemsize, sets[0][2].element_size(), across=across, copied=copied, aligned=aligned), processors)
    bases, candidates = ["cuBLAS"], {"cuBLAS": cublas(dtype), str(chosen): ours(dtype)}
    if arguments.triton and b_nk:
        import triton_product
        best = triton_product.best(sets, lambda call: measured({"": call}, sets, flop, 1, False)[""])
        bases, candidates = ["cuBLAS", "triton"], {"triton": lambda a, b, out: triton_product.product(a, b, out, best), **candidates}
    if arguments.tiles:
        candidates |= {str(c): ours(dtype, c) for t in TILES
                       if (c := Config.of(*t, itemsize=dtype.itemsize, stored=sets[0][2].element_size())).stages > 1}
    if arguments.epilogue:
        bias, residual = torch.randn(n, device="cuda"), matrix(m, n, sets[0][2].dtype)
        bases = ["plain"]
        candidates = {"plain": ours(dtype), "bias+GELU": ours(dtype, epilogue=bias_gelu, tiles=(bias,)),
                      "bias+GELU+residual": ours(dtype, epilogue=bias_gelu_residual, tiles=(bias, residual)),
                      "the same in bfloat16": ours(dtype, epilogue=narrow_bias_gelu_residual, tiles=(bias, residual))}
    if arguments.once:
        ran(candidates, sets)
        return {}
    seconds = measured(candidates, sets, flop, arguments.rounds, arguments.sustained)
    found = {}
    base = min(bases, key=seconds.get)
    if len(bases) > 1:
        print(f"{'x'.join(map(str, shape)):22} {'N,K':5} triton {best!s:45} {flop / seconds['triton'] / 1e12:8.1f}", flush=True)
    for name in [c for c in candidates if c not in bases]:
        ratio = seconds[base] / seconds[name]
        found[name] = ratio, name == str(chosen) or arguments.epilogue
        print(f"{'x'.join(map(str, shape)):22} {'N,K' if b_nk else 'K,N':5} {name:26} {flop / seconds[base] / 1e12:8.1f} "
              f"{flop / seconds[name] / 1e12:8.1f} {ratio:7.3f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tiles", action="store_true", help="measure every tile on each shape")
    parser.add_argument("--epilogue", action="store_true", help="measure a fused epilogue against the plain product")
    parser.add_argument("--blocks", action="store_true", help="measure float8 with block scales, and summed in float32")
    parser.add_argument("--triton", action="store_true", help="compare with Triton too")
    parser.add_argument("--sustained", action="store_true", help="back to back, without pauses")
    parser.add_argument("--once", action="store_true", help="run everything three times, for a profiler, and time nothing")
    parser.add_argument("--shapes", help="such as 4096x4096x4096,512x512x512; 'large', 'small', 'rows', 'ragged' or 'other'")
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    named = {"large": LARGE, "small": SMALL, "rows": ROWS, "ragged": RAGGED, "other": OTHER, None: LARGE + SMALL}
    shapes = named.get(arguments.shapes) or tuple(tuple(map(int, s.split("x"))) for s in arguments.shapes.split(","))
    dtype = getattr(torch, arguments.dtype)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    results, ratios = {}, []
    print(f"{'shape':22} {'B':5} {'tile x k / slots':26} {'plain' if arguments.epilogue else 'cuBLAS':>8} {'tilejit':>8} {'ratio':>7}")
    for shape in shapes:
        if arguments.blocks:
            ratios += block_table(shape, arguments)
            continue
        for b_nk in (True, False):
            for name, (ratio, counts) in table(shape, b_nk, dtype, arguments, processors).items():
                results[f"{'x'.join(map(str, shape))} {'NK' if b_nk else 'KN'} {name}"] = ratio
                ratios += [ratio] if counts else []
    if ratios:
        print(f"geometric mean: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}, least {min(ratios):.3f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
