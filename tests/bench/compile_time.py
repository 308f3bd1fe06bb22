"""Cold compile times, with the imports done and the caches empty, beside Triton's where it is installed.

    python tests/bench/compile_time.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

TILEJIT = """
import time, llvmlite.binding, numpy
import tilejit as tile, tilejit.compile, tilejit.frontend.building
import tilejit.toolchain.llvm, tilejit.toolchain.assembler
from tilejit.demo import {kernel}
spec = [tile.ArraySpec(s, "float32") for s in {shapes}]
start = time.perf_counter()
{kernel}.compile(*spec, BLOCK=1024)
print(time.perf_counter() - start)
"""

TRITON = """
import time, triton, triton.language as tl
from triton.compiler import ASTSource
from triton.backends.compiler import GPUTarget
@triton.jit
def vector_add(x, y, o, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)
@triton.jit
def softmax(x, o, s, n, B: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, B)
    v = tl.load(x + r * s + i, mask=i < n, other=-float("inf"))
    v = tl.exp(v - tl.max(v, axis=0))
    tl.store(o + r * s + i, v / tl.sum(v, axis=0), mask=i < n)
signature = {signature}
source = ASTSource({kernel}, signature=signature, constexprs={{"B": 1024}})
start = time.perf_counter()
triton.compile(source, target=GPUTarget("cuda", 90, 32))
print(time.perf_counter() - start)
"""

CASES = {
    "vector_add": ("[(1 << 20,)] * 3", '{"x": "*fp32", "y": "*fp32", "o": "*fp32", "n": "i32", "B": "constexpr"}'),
    "softmax": ("[(1024, 1000)] * 2", '{"x": "*fp32", "o": "*fp32", "s": "i32", "n": "i32", "B": "constexpr"}'),
}


def run(code: str) -> float | None:
    """The seconds that a fresh process with empty caches prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bench.py")
        with open(path, "w") as file:
            file.write(code)
        env = {**os.environ, "TILEJIT_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
        done = subprocess.run([sys.executable, path], capture_output=True, text=True, env=env, timeout=300)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def main() -> None:
    for kernel, (shapes, signature) in CASES.items():
        ours, theirs = [], []
        for _ in range(5):
            ours.append(run(TILEJIT.format(kernel=kernel, shapes=shapes)))
            theirs.append(run(TRITON.format(kernel=kernel, signature=signature)))
        line = f"{kernel}: tilejit {statistics.median(ours):.3f} s"
        if None not in theirs:
            line += f", triton {statistics.median(theirs):.3f} s, ratio {statistics.median(ours) / statistics.median(theirs):.2f}"
        print(line)


if __name__ == "__main__":
    main()
