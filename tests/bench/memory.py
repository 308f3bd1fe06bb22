"""Vector add, row softmax, and gather and scatter of rows on the GPU, compared with the speed of memory and with torch.compile.

    python tests/bench/memory.py

Prints for each case GB/s (every byte read and written once), the ratio to a copy-like kernel (torch.neg into a preallocated
output of the same size), and the ratio to torch.compile, or for rows to torch's own function. All are measured in alternation.
"""

from __future__ import annotations

import argparse
import json

import torch
from row_kernels import put, taken
from softmax_kernels import softmax
from tilejit.demo import vector_add
from timing import rounds


def vadd_case(dtype):
    n = 1 << 28
    x, y = (torch.randn(n, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(x)
    block = 512
    grid = (n // block,)
    compiled = torch.compile(torch.add)
    vector_add[grid](x, y, out, BLOCK=block)
    torch.testing.assert_close(out, x + y, rtol=0, atol=0)
    launch = vector_add[grid]
    calls = {"tilejit": lambda: launch(x, y, out, BLOCK=block), "torch.compile": lambda: compiled(x, y)}
    return calls, 3 * n * x.element_size(), x


def softmax_case(rows: int, columns: int, dtype):
    x = torch.randn(rows, columns, device="cuda", dtype=dtype)
    out = torch.empty_like(x)
    launch = softmax(x, out, rows, columns, x.element_size())
    launch()
    expected = torch.softmax(x.double(), dim=1)
    error = ((out.double() - expected).norm() / expected.norm()).item()
    assert error < (4e-3 if dtype == torch.bfloat16 else 2e-6), error
    compiled = torch.compile(lambda t: torch.softmax(t, dim=1))
    calls = {"tilejit": launch, "torch.compile": lambda: compiled(x)}
    return calls, 2 * x.numel() * x.element_size(), x


def rows_case(is_put: bool, dtype):
    table, rows, columns, each = 100000, 65536, 1024, 16
    W, y = (torch.randn(n, columns, device="cuda", dtype=dtype) for n in (table, rows))
    numbers = torch.randperm(table, device="cuda")[:rows]
    launch, other = (put if is_put else taken)[rows // each], torch.empty_like(W if is_put else y)
    library = (lambda: other.index_copy_(0, numbers, y)) if is_put else (lambda: torch.index_select(W, 0, numbers, out=other))
    launch(W, numbers, y, R=each, C=columns)
    library()
    assert torch.equal(W[numbers], other[numbers]) if is_put else torch.equal(y, other)
    return {"tilejit": lambda: launch(W, numbers, y, R=each, C=columns), "torch.compile": library}, 2 * y.numel() * y.element_size(), y


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    cases = [("vadd 2^28 " + str(d)[6:], lambda d=d: vadd_case(d)) for d in (torch.float32, torch.bfloat16)]
    for rows, columns in ((32768, 1024), (32768, 2048), (16384, 4096), (16384, 8192), (8192, 16384), (8192, 32768)):
        for d in (torch.float32, torch.bfloat16):
            cases.append((f"softmax {rows}x{columns} {str(d)[6:]}", lambda r=rows, c=columns, d=d: softmax_case(r, c, d)))
    cases += [(f"rows {'put' if is_put else 'taken'} by number {str(d)[6:]}", lambda p=is_put, d=d: rows_case(p, d))
              for is_put in (False, True) for d in (torch.float32, torch.bfloat16)]
    results = {}
    print(f"{'case':34} {'GB/s':>7} {'of copy':>8} {'to torch':>17}")
    for name, make in cases:
        calls, nbytes, x = make()
        if arguments.no_compile:
            calls.pop("torch.compile")
        out = torch.empty_like(x)
        calls["copy"] = lambda: torch.neg(x, out=out)
        seconds = rounds(calls)
        speed = nbytes / seconds["tilejit"] / 1e9
        ceiling = 2 * x.numel() * x.element_size() / seconds["copy"] / 1e9
        ratio = seconds.get("torch.compile", float("nan")) / seconds["tilejit"]
        results[name] = {"GB/s": speed, "of copy": speed / ceiling, "to torch": ratio}
        print(f"{name:34} {speed:7.0f} {speed / ceiling:8.3f} {ratio:17.3f}", flush=True)
        del calls, x, out
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
