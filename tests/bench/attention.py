"""Attention against torch's cuDNN backend and FlashAttention-3 (the package fa3-fwd, if it is there), on one GPU.

python tests/bench/attention.py [--backward] [--deterministic] [--rounds 7] [--d 64 128 256] [--rows 1024 4096 16384]

With --backward, the backward alone, against cuDNN (2.5 times the operations of the forward). 16k tokens and 2048 / D heads. Rounds are interleaved; a measurement is a burst of some launches in a CUDA graph. Prints TFLOP/s (causal
counted half), the median over rounds of each peer's time divided by ours, and the geometric mean over cells of the better peer's.
"""

from __future__ import annotations

import argparse
import math
import statistics

import torch
import torch.nn.functional as F
from tilejit import kernels
from torch.nn.attention import SDPBackend, sdpa_kernel


def fa3():
    """FlashAttention-3's forward as a function of [batch, rows, heads, D], or None."""
    for name in ("flash_attn_interface", "fa3_fwd_interface", "fa3_fwd", "flash_attn_3.flash_attn_interface"):
        try:
            module = __import__(name, fromlist=["flash_attn_func"])
        except ImportError:
            continue
        if hasattr(module, "flash_attn_func"):
            return module.flash_attn_func
    return None


def calls(d, rows, causal, flash):
    """The function of each library, on the same numbers."""
    heads, batch = max(2048 // d, 1), max(16384 // rows, 1)
    q, k, v = (torch.randn(batch, heads, rows, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out = torch.empty_like(q)

    def cudnn():
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    found = {"ours": lambda: kernels.attention(q, k, v, causal=causal, out=out), "cudnn": cudnn}
    if flash is not None:
        by_rows = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        found["fa3"] = lambda: flash(*by_rows, causal=causal)
    return found, 4.0 * batch * heads * rows * rows * d * (0.5 if causal else 1)


def backward_calls(d, rows, causal, deterministic):
    """The backward of each library, of the same numbers. cuDNN's is torch's operator, without autograd around it."""
    heads, batch = max(2048 // d, 1), max(16384 // rows, 1)
    q, k, v, do = (torch.randn(batch, heads, rows, d, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    out, lse = kernels.attention(q, k, v, causal=causal, lse=True)
    made = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False)
    theirs, sums, starts, stops, most_q, most_k, seed, offset = made[:8]

    def cudnn():
        return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(do, q, k, v, theirs, sums, seed, offset, None, starts, stops, most_q, most_k,
                                                                           0.0, causal)
    for x, y in zip(kernels.attention_backward(do, q, k, v, out, lse, causal=causal, deterministic=deterministic), cudnn()):
        assert (x - y).abs().max() <= 0.03 * y.abs().max(), "other gradients than cuDNN's"
    found = {"ours": lambda: kernels.attention_backward(do, q, k, v, out, lse, causal=causal, deterministic=deterministic), "cudnn": cudnn}
    return found, 10.0 * batch * heads * rows * rows * d * (0.5 if causal else 1)


def timed(found, rounds, burst_ms=15.0):
    """Milliseconds of each function in each round, interleaved."""
    graphs = {}
    for name, call in found.items():
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        call()
        b.record()
        b.synchronize()
        times = max(2, min(50, int(burst_ms / max(a.elapsed_time(b), 1e-3))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(times):
                call()
        graphs[name] = graph, times
    took = {name: [] for name in found}
    for turn in range(rounds + 1):
        for name, (graph, times) in graphs.items():
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            a.record()
            graph.replay()
            b.record()
            b.synchronize()
            if turn:  # the first round warms up
                took[name].append(a.elapsed_time(b) / times)
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--d", type=int, nargs="*", default=[64, 128, 256])
    parser.add_argument("--rows", type=int, nargs="*", default=[1024, 4096, 16384])
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--deterministic", action="store_true", help="dQ in a fixed order, with --backward")
    options = parser.parse_args()
    flash, cells = None if options.backward else fa3(), []
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "cuDNN", torch.backends.cudnn.version(), "fa3" if flash else "no fa3")
    for d in options.d:
        for causal in (False, True):
            for rows in options.rows:
                found, flops = backward_calls(d, rows, causal, options.deterministic) if options.backward else calls(d, rows, causal, flash)
                took = timed(found, options.rounds)
                ratios = {name: statistics.median(x / y for x, y in zip(took[name], took["ours"])) for name in took if name != "ours"}
                cells.append(min(ratios.values()))
                print(f"D={d} {'causal' if causal else 'full'} {rows}: {flops / statistics.median(took['ours']) / 1e9:.0f} TFLOP/s  "
                      + "  ".join(f"{name}/ours {ratio:.3f}" for name, ratio in ratios.items()), flush=True)
    print(f"cells {len(cells)}, least {min(cells):.3f}, geometric mean {math.exp(statistics.mean(map(math.log, cells))):.3f}")


if __name__ == "__main__":
    main()
