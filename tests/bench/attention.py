"""Attention against torch's cuDNN backend, FlashAttention-3 (the package fa3-fwd, if it is there) and flex_attention, on one GPU.

    python tests/bench/attention.py [--backward] [--deterministic] [--rounds 7] [--d 64 128 256] [--rows 1024 4096 16384]
    python tests/bench/attention.py --decode      one row of q for each head, 8 heads to one of k and v, D = 128
    python tests/bench/attention.py --packed      sequences of 64 to 8192 rows, drawn evenly, one after the other
    python tests/bench/attention.py --scores      ALiBi and documents, by functions
    python tests/bench/attention.py --float8      the forward of float8 with factors of each head, and plainly in bfloat16
    python tests/bench/attention.py --simple      the kernel that users write, tuned over 18 configurations, and the package's

The forward and the backward have 16k tokens and 2048 / D heads; the backward alone is timed, with 2.5 times the operations of
the forward. Rounds are interleaved, in random orders; a measurement is a burst of launches in a CUDA graph. Prints TFLOP/s
(causal counted half), or for decoding GB/s and the part of a copy's, then the median over rounds of each peer's time divided
by ours, and at the end the geometric mean over cells of the better peer's.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tilejit as tile
import torch
import torch.nn.functional as F
from attention_kernels import alibi, same_document, simple_attention, simple_configs
from tilejit import kernels
from timing import orders
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclass
class Cell:
    """One line: the calls by name, ours first, and what they compute. `same` are peers whose results are compared, and
    may differ by `most` of the norm."""

    title: str
    calls: dict[str, Callable[[], Any]]
    flops: float = 0
    nbytes: float = 0
    same: dict[str, Callable[[], Any]] = field(default_factory=dict)
    most: float = 0.02


def fa3() -> Any:
    """The module of FlashAttention-3, or None."""
    for name in ("flash_attn_interface", "fa3_fwd_interface"):
        try:
            return __import__(name)
        except ImportError:
            continue
    return None


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def shapes(options: argparse.Namespace) -> Iterator[tuple[str, int, int, int, int, bool, float]]:
    """Title, batch, heads, rows, D, causal, and the operations of a forward."""
    for d in options.d:
        for causal in (False, True):
            for rows in options.rows:
                heads, batch = max(2048 // d, 1), max(16384 // rows, 1)
                flops = 4.0 * batch * heads * rows * rows * d * (0.5 if causal else 1)
                yield f"D={d} {'causal' if causal else 'full'} {rows}", batch, heads, rows, d, causal, flops


def forward(options: argparse.Namespace) -> Iterator[Cell]:
    flash = fa3()
    for title, batch, heads, rows, d, causal, flops in shapes(options):
        q, k, v = (randn(batch, heads, rows, d) for _ in range(3))
        out = torch.empty_like(q)

        def cudnn(q=q, k=k, v=v, causal=causal):
            with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        calls = {"ours": functools.partial(kernels.attention, q, k, v, causal=causal, out=out), "cudnn": cudnn}
        if flash is not None:
            by_rows = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
            calls["fa3"] = functools.partial(flash.flash_attn_func, *by_rows, causal=causal)
        yield Cell(title, calls, flops, same={"cudnn": cudnn})


def backward(options: argparse.Namespace) -> Iterator[Cell]:
    """cuDNN's is torch's operator, without autograd around it."""
    for title, batch, heads, rows, d, causal, flops in shapes(options):
        q, k, v, do = (randn(batch, heads, rows, d) for _ in range(4))
        out, lse = kernels.attention(q, k, v, causal=causal, lse=True)
        made = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False)
        theirs, sums, starts, stops, most_q, most_k, seed, offset = made[:8]
        peer = functools.partial(torch.ops.aten._scaled_dot_product_cudnn_attention_backward, do, q, k, v, theirs, sums,
                                 seed, offset, None, starts, stops, most_q, most_k, 0.0, causal)
        ours = functools.partial(kernels.attention_backward, do, q, k, v, out, lse, causal=causal,
                                 deterministic=options.deterministic)
        yield Cell(title, {"ours": ours, "cudnn": peer}, 2.5 * flops, same={"cudnn": peer})


def decode(options: argparse.Namespace) -> Iterator[Cell]:
    """Page 0 is one array for each sequence; only there FlashAttention-3 is timed, whose package has no pages."""
    flash, heads, kv, d = fa3(), 32, 4, 128
    for batch, keys in ((1, 1024), (1, 8192), (1, 131072), (16, 1024), (16, 8192), (128, 1024), (128, 8192)):
        for page in (0, 16, 64, 256):
            q, lengths = randn(batch, heads, 1, d), torch.full((batch,), keys, device="cuda", dtype=torch.int32)
            if page:
                k, v = (randn(batch * keys // page, page, kv, d) for _ in range(2))
                table = torch.randperm(batch * keys // page, device="cuda").int().view(batch, -1)
                ours = functools.partial(kernels.attention, q, k.transpose(1, 2), v.transpose(1, 2), lengths=lengths,
                                         block_table=table)
            else:
                k, v = (randn(batch, keys, kv, d) for _ in range(2))
                ours = functools.partial(kernels.attention, q, k.transpose(1, 2), v.transpose(1, 2))
            calls, same = {"ours": ours}, {}
            if flash is not None and not page:
                calls["fa3"] = functools.partial(flash.flash_attn_with_kvcache, q.transpose(1, 2), k, v,
                                                 cache_seqlens=lengths)
                same = {"fa3": lambda call=calls["fa3"]: call().transpose(1, 2)}
            yield Cell(f"batch {batch} keys {keys} page {page}", calls, nbytes=2.0 * k.nbytes, same=same)


def packed(options: argparse.Namespace) -> Iterator[Cell]:
    flash, heads = fa3(), 16
    for d in (64, 128):
        for causal in (False, True):
            lengths = torch.randint(64, 8193, (8,), generator=torch.Generator().manual_seed(d), dtype=torch.int32)
            total, most = int(lengths.sum()), int(lengths.max())
            starts = F.pad(lengths.cumsum(0), (1, 0)).int().cuda()
            q, k, v = (randn(total, heads, d) for _ in range(3))
            there = lengths.cuda()
            calls = {"ours": functools.partial(kernels.attention, *(x.transpose(0, 1) for x in (q, k, v)), lengths=there,
                                               causal=causal)}
            same = {}
            if flash is not None:
                calls["fa3"] = functools.partial(flash.flash_attn_varlen_func, q, k, v, starts, starts, most, most,
                                                 causal=causal)
                same = {"fa3": lambda call=calls["fa3"]: call().transpose(0, 1)}
            flops = 4.0 * heads * d * float((lengths.double() ** 2).sum()) * (0.5 if causal else 1)
            yield Cell(f"D={d} {'causal' if causal else 'full'} packed {total}", calls, flops, same=same)


def scores(options: argparse.Namespace) -> Iterator[Cell]:
    """Beside flex_attention, the plain call, to which a function should add little."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    flex, batch, heads, rows, d = torch.compile(flex_attention), 4, 16, 4096, 128
    q, k, v = (randn(batch, heads, rows, d) for _ in range(3))
    slopes = 2.0 ** -(torch.arange(1, heads + 1, device="cuda") / 2)
    ids = torch.arange(rows, device="cuda", dtype=torch.int32) // 1000
    flops = 4.0 * batch * heads * rows * rows * d
    for causal in (False, True):
        visible = create_block_mask(lambda b, h, i, j: i >= j, None, None, rows, rows) if causal else None
        bias = lambda s, b, h, i, j: s + slopes[h] * (j - i)
        peer = functools.partial(flex, q, k, v, score_mod=bias, block_mask=visible)
        calls = {"ours": functools.partial(kernels.attention, q, k, v, causal=causal, score=alibi, arguments=(slopes,)),
                 "flex": peer, "plain": functools.partial(kernels.attention, q, k, v, causal=causal)}
        yield Cell(f"ALiBi {'causal' if causal else 'full'}", calls, flops * (0.5 if causal else 1), same={"flex": peer})
    documents = create_block_mask(lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j), None, None, rows, rows)
    peer = functools.partial(flex, q, k, v, block_mask=documents)
    listed = kernels.block_mask(same_document, q, k, arguments=(ids,), causal=True, by_batch=False, by_head=False)
    calls = {"ours": functools.partial(kernels.attention, q, k, v, mask=listed), "flex": peer, "plain": functools.partial(kernels.attention, q, k, v, causal=True)}
    yield Cell("documents of 1000, causal", calls, flops / 2, same={"flex": peer})


def float8(options: argparse.Namespace) -> Iterator[Cell]:
    flash = fa3()
    for title, batch, heads, rows, d, causal, flops in shapes(options):
        wide = [randn(batch, heads, rows, d) for _ in range(3)]
        factors = [x.abs().amax((2, 3)).float() / 448 for x in wide]
        narrow = [(x / f[..., None, None]).to(torch.float8_e4m3fn) for x, f in zip(wide, factors)]
        ours = functools.partial(kernels.attention, *narrow, causal=causal, q_scale=factors[0], k_scale=factors[1],
                                 v_scale=factors[2])
        plain = functools.partial(kernels.attention, *wide, causal=causal)
        calls = {"ours": ours, "plain": plain}
        if flash is not None:
            by_rows = [x.transpose(1, 2).contiguous() for x in narrow]
            calls["fa3"] = functools.partial(flash.flash_attn_func, *by_rows, causal=causal, q_descale=factors[0],
                                             k_descale=factors[1], v_descale=factors[2])
        yield Cell(title, calls, flops, same={"plain": plain}, most=0.08)


def simple(options: argparse.Namespace) -> Iterator[Cell]:
    """The peer's time is `kernels.attention`'s."""
    for title, batch, heads, rows, d, causal, flops in shapes(options):
        q, k, v = (randn(batch * heads, rows, d) for _ in range(3))
        out, tuned = torch.empty_like(q), tile.autotune(simple_configs(causal))(simple_attention)
        grid = lambda meta, rows=rows, heads=batch * heads: (tile.cdiv(rows, meta["BM"]), heads)
        scale = math.log2(math.e) / math.sqrt(d)
        arguments = dict(CAUSAL=causal, D=d, **tuned.config(grid, q, k, v, out, scale, CAUSAL=causal, D=d))
        ours = functools.partial(simple_attention[grid(arguments)], q, k, v, out, scale, **arguments)
        library = functools.partial(kernels.attention, q, k, v, causal=causal)
        chosen = " ".join(f"{name}={value}" for name, value in arguments.items() if name not in ("CAUSAL", "D"))
        yield Cell(f"{title} ({chosen})", {"ours": lambda ours=ours, out=out: (ours(), out)[1], "library": library}, flops,
                   same={"library": library})


def captured(call: Callable[[], Any], burst_ms: float = 15.0) -> tuple[torch.cuda.CUDAGraph, int]:
    """A graph of launches that take about so long together, and their number."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times = max(2, min(50, int(burst_ms / max(elapsed_ms(call), 1e-3))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph, times


def elapsed_ms(call: Callable[[], Any]) -> float:
    a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    a.record()
    call()
    b.record()
    b.synchronize()
    return a.elapsed_time(b)


def timed_graphs(graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a launch of each graph in each round, interleaved."""
    took: dict[str, list[float]] = {name: [] for name in graphs}
    for turn, order in enumerate(orders(graphs, rounds + 1)):
        for name in order:
            graph, times = graphs[name]
            ms = elapsed_ms(graph.replay)
            if turn:  # the first round warms up
                took[name].append(ms / times)
    return took


def timed(found: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each function in each round, interleaved."""
    return timed_graphs({name: captured(call) for name, call in found.items()}, rounds)


def check_same(cell: Cell) -> None:
    """Our results are those of the peers, up to the rounding of either."""
    ours = cell.calls["ours"]()
    for name, call in cell.same.items():
        theirs = call()
        for x, y in zip(ours, theirs) if isinstance(ours, tuple) else [(ours, theirs)]:
            error = (x.float() - y.float()).norm() / y.float().norm()
            assert error < cell.most, f"{cell.title}: other numbers than {name}'s, by {error:.3f}"


def copy_bandwidth() -> float:
    """GB/s of a copy of 256 MB in GPU memory, counting bytes read and written."""
    x = randn(1 << 27)
    y = torch.empty_like(x)
    return 2e-6 * x.nbytes / statistics.median(timed({"copy": lambda: y.copy_(x)}, 5)["copy"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--d", type=int, nargs="*", default=[64, 128, 256])
    parser.add_argument("--rows", type=int, nargs="*", default=[1024, 4096, 16384])
    parser.add_argument("--deterministic", action="store_true", help="dQ in a fixed order, with --backward")
    for mode in (backward, decode, packed, scores, float8, simple):
        parser.add_argument(f"--{mode.__name__}", action="store_const", const=mode, dest="mode", default=forward)
    options, cells = parser.parse_args(), []
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "cuDNN", torch.backends.cudnn.version(),
          "fa3" if fa3() else "no fa3")
    copy = copy_bandwidth() if options.mode is decode else 0
    for cell in options.mode(options):
        check_same(cell)
        took = timed(cell.calls, options.rounds)
        ratios = {name: statistics.median(x / y for x, y in zip(took[name], took["ours"])) for name in took}
        del ratios["ours"]
        cells.append(min((r for name, r in ratios.items() if name != "plain"), default=1.0))
        ms = statistics.median(took["ours"])
        speed = f"{cell.flops / ms / 1e9:.0f} TFLOP/s"
        if cell.nbytes:
            speed = f"{ms * 1e3:.1f} us, {cell.nbytes / ms / 1e6:.0f} GB/s, {cell.nbytes / ms / 1e6 / copy:.2f} of a copy"
        print(f"{cell.title}: {speed}  " + "  ".join(f"{name}/ours {r:.3f}" for name, r in ratios.items()), flush=True)
    print(f"cells {len(cells)}, least {min(cells):.3f}, geometric mean {math.exp(statistics.mean(map(math.log, cells))):.3f}")


if __name__ == "__main__":
    main()
