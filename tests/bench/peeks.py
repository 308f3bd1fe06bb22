"""What it gains to test early whether the next slot of a ring is full: the same calls with `ring.peek()` and without, on this GPU.

    python tests/bench/peeks.py

Without, the call does nothing, and compiler-made loops test nothing. Both variants run in one process, in bursts of launches in CUDA
graphs and random orders. The printed ratio is the time without over the time with it, the median over the rounds; above 1 it gains.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import tilejit as tile
import torch
from attention import captured, randn, timed_graphs
from attention_kernels import simple_attention
from tilejit import kernels
from tilejit.dtypes import bool_
from tilejit.ir.builtin import MEMBERS
from tilejit.ir.graph import Const
from tilejit.jit import KERNELS
from tilejit.ops.structure.ring import Ring
from tilejit.passes.pipelining.rotated_loops import Half

KEPT: list[dict] = []


def sees_nothing(half, lanes, ahead=0):
    return ((lane, Const(False, bool_)) for lane in lanes)


@contextmanager
def without_peeks():
    """Kernels test nothing early."""
    forget()
    with mock.patch.dict(MEMBERS, {(Ring, "peek"): (lambda g, ring: None, True)}), mock.patch.object(Half, "peek", sees_nothing), \
            mock.patch.dict("os.environ", TILEJIT_NO_CACHE="1"):
        yield
    forget()


def forget() -> None:
    """Kernels compile anew. What they have compiled is kept, since graphs launch it."""
    for kernel in list(KERNELS.values()):
        KEPT.append(dict(kernel.versions))
        kernel.versions.clear()
        kernel.warm.clear()


def products() -> Iterator[tuple[str, Callable]]:
    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 1024), (2048, 2048, 2048), (1024, 8192, 8192)):
        a, b = randn(m, k), randn(k, n)
        yield f"bfloat16 {m} x {n} x {k}", functools.partial(kernels.matmul, a, b, randn(m, n))
    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 4096), (1000, 3000, 2048)):
        a, b = (randn(*s).to(torch.float8_e4m3fn) for s in ((m, k), (n, k)))
        yield f"float8 {m} x {n} x {k}", functools.partial(kernels.matmul, a, b.t(), randn(m, n))


def attention() -> Iterator[tuple[str, Callable]]:
    for d in (64, 128, 256):
        for causal in (False, True):
            for rows in (1024, 4096, 16384):
                q, k, v = (randn(16384 // rows, 2048 // d, rows, d) for _ in range(3))
                out = torch.empty_like(q)
                yield (f"attention D={d} {'causal' if causal else 'full'} {rows}",
                       functools.partial(kernels.attention, q, k, v, causal=causal, out=out))


def backward() -> Iterator[tuple[str, Callable]]:
    for d in (64, 128, 256):
        for causal in (False, True):
            q, k, v, do = (randn(4, 2048 // d, 4096, d) for _ in range(4))
            o, lse = kernels.attention(q, k, v, causal=causal, lse=True)
            yield (f"backward D={d} {'causal' if causal else 'full'}",
                   functools.partial(kernels.attention_backward, do, q, k, v, o, lse, causal=causal))


def users() -> Iterator[tuple[str, Callable]]:
    for d, causal, rows, columns in ((64, False, 192, 128), (64, True, 192, 128), (128, False, 128, 128), (128, True, 128, 96),
                                     (256, False, 128, 64), (256, True, 128, 64)):
        heads = 4 * 2048 // d
        q, k, v = (randn(heads, 4096, d) for _ in range(3))
        launch = simple_attention[tile.cdiv(4096, rows), heads]
        yield (f"a user's attention D={d} {'causal' if causal else 'full'}",
               functools.partial(launch, q, k, v, torch.empty_like(q), d ** -0.5, CAUSAL=causal, D=d, BM=rows, BN=columns, STAGES=2,
                                 ROLES=True, num_warps=rows // 16))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=13)
    parser.add_argument("--only", nargs="*", default=["products", "attention", "backward", "users"])
    options = parser.parse_args()
    print(torch.cuda.get_device_name())
    for cells in options.only:
        for title, call in globals()[cells]():
            graphs = {"with": captured(call)}
            with without_peeks():
                graphs["without"] = captured(call)
            took = timed_graphs(graphs, options.rounds)
            ratio = statistics.median(x / y for x, y in zip(took["without"], took["with"]))
            print(f"{title}: {1e3 * statistics.median(took['with']):.1f} us, without / with {ratio:.4f}", flush=True)


if __name__ == "__main__":
    main()
