"""The matrix product in the short form (``tile.pipelined``) on the GPU, compared with the kernels of `matmul` and with torch.mm.

    PYTHONPATH=. python tests/bench/pipelined.py [--shapes 8192x8192x8192,...] [--rounds 7]

Measured in bursts, as in matmul.py. Prints TFLOP/s of each, and the speed of the short form relative to the others.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", ".."))
from matmul import measured, operands  # noqa: E402 - beside this file
from tilejit import kernels  # noqa: E402

from tests.mma.pipelined_product import product  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default="4096x4096x4096,8192x8192x8192")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    print(f"{'shape':22} {'torch':>8} {'by hand':>8} {'short':>8} {'/ torch':>8} {'/ hand':>8}")
    for m, n, k in (tuple(map(int, s.split("x"))) for s in arguments.shapes.split(",")):
        sets = operands(m, n, k, True, torch.bfloat16)
        tiles = -(-m // 128) * -(-n // 256)
        ctas = -(-tiles // -(-tiles // processors))  # the fewest CTAs with the same number of waves
        short = lambda a, b, out: product[(ctas,)](a, b.T, out)  # b is the transposed view of an [n, k] array
        a, b, out = sets[0]
        short(a, b, out)
        expected = torch.mm(a, b)
        error = ((out.float() - expected.float()).norm() / expected.float().norm()).item()
        assert error < 3e-3, (m, n, k, error)
        flop = 2.0 * m * n * k
        seconds = measured({"torch": lambda a, b, out: torch.mm(a, b, out=out), "by hand": lambda a, b,
                            out: kernels.matmul(a, b, out), "short": short},
                           sets, flop, arguments.rounds, False)
        speed = {name: flop / s / 1e12 for name, s in seconds.items()}
        print(f"{f'{m}x{n}x{k}':22} {speed['torch']:8.1f} {speed['by hand']:8.1f} {speed['short']:8.1f} {speed['short'] / speed['torch']:8.3f} "
              f"{speed['short'] / speed['by hand']:8.3f}", flush=True)


if __name__ == "__main__":
    main()
