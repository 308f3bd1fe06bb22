"""Cold compile times, with empty caches and without the imports, compared with Triton's if it is installed.

    python tests/bench/compile_time.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")

TILEJIT = """
import time, llvmlite.binding, numpy
import tilejit as tile, tilejit.api, tilejit.compile, tilejit.frontend.building, tilejit.passes.pipelining.warp_specialization, tilejit.ptx.lookup
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

IMPORTS = """
import time, llvmlite.binding, numpy, ml_dtypes
import tilejit as tile, tilejit.api, tilejit.compile, tilejit.frontend.building, tilejit.passes.pipelining.warp_specialization, tilejit.ptx.lookup
import tilejit.toolchain.llvm, tilejit.toolchain.assembler
square = tile.ArraySpec(({n}, {n}), "bfloat16")
"""
PRODUCT = IMPORTS + """
from tests.mma.products import planned
from tilejit.kernels.plan import Problem, choose
array = numpy.lib.stride_tricks.as_strided(numpy.zeros(1, ml_dtypes.bfloat16), ({n}, {n}), (2 * {n}, 2))
launch = planned(array, array, array, None, (), choose(Problem({n}, {n}, {n}), 132))
rest = [*launch.shares, tile.ArraySpec(*launch.room), tile.ArraySpec((1024, 3), "int32")] if launch.shares else []
kernel, rest, options = launch.kernel, [1.0, 1.0, 0, 0, 0, 0, *rest], launch.constants
assert kernel.__name__ == "{kernel}" and options["KEPT"]
"""
SHORT = IMPORTS + """
from tests.mma.pipelined_product import {kernel}
kernel, rest, options = {kernel}, [], dict()
"""
TIMED = """
start = time.perf_counter()
kernel.compile(square, square, square, *rest, **options)
print(time.perf_counter() - start)
"""
PRODUCTS = {
    "persistent matrix product": (PRODUCT, 4096, "persistent"),
    "the same with its last round shared": (PRODUCT, 8192, "stream"),
    "the same in the short form": (SHORT, 8192, "product"),
}

TRITON_PRODUCT = """
import time, triton, triton.language as tl
from triton.compiler import ASTSource
from triton.backends.compiler import GPUTarget
@triton.jit
def persistent(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, CTAS: tl.constexpr):
    tiles_m, tiles_n, steps = tl.cdiv(M, BM), tl.cdiv(N, BN), tl.cdiv(K, BK)
    for t in tl.range(tl.program_id(0), tiles_m * tiles_n, CTAS, flatten=True):
        above = t // (GROUP * tiles_n) * GROUP
        rows = min(tiles_m - above, GROUP)
        m, n = above + t % (GROUP * tiles_n) % rows, t % (GROUP * tiles_n) // rows
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(steps):
            acc = tl.dot(a.load([m * BM, k * BK]), b.load([n * BN, k * BK]).T, acc)
        c.store([m * BM, n * BN], acc.to(tl.bfloat16))
constants = {"BM": 128, "BN": 256, "BK": 64, "GROUP": 8, "CTAS": 132}
signature = {"a": "tensordesc<bf16[128, 64]>", "b": "tensordesc<bf16[256, 64]>", "c": "tensordesc<bf16[128, 256]>",
             "M": "i32", "N": "i32", "K": "i32", **{name: "constexpr" for name in constants}}
source = ASTSource(persistent, signature=signature, constexprs=constants)
start = time.perf_counter()
triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8, "num_stages": 3})
print(time.perf_counter() - start)
"""

CASES = {
    "vector_add": ("[(1 << 20,)] * 3", '{"x": "*fp32", "y": "*fp32", "o": "*fp32", "n": "i32", "B": "constexpr"}'),
    "softmax": ("[(1024, 1000)] * 2", '{"x": "*fp32", "o": "*fp32", "s": "i32", "n": "i32", "B": "constexpr"}'),
}


def run(code: str) -> float | None:
    """Run `code` in a fresh process with empty caches; returns the seconds that it prints, None if Triton is missing."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bench.py")
        with open(path, "w") as file:
            file.write(code)
        paths = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "TILEJIT_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder, "PYTHONPATH": paths}
        done = subprocess.run([sys.executable, path], capture_output=True, text=True, env=env, timeout=300)
    if done.returncode and "triton" not in done.stderr:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def main() -> None:
    pairs = {kernel: (TILEJIT.format(kernel=kernel, shapes=shapes), TRITON.format(kernel=kernel, signature=signature))
             for kernel, (shapes, signature) in CASES.items()}
    pairs |= {name: ((how + TIMED).format(n=n, kernel=kernel), TRITON_PRODUCT) for name, (how, n, kernel) in PRODUCTS.items()}
    for kernel, programs in pairs.items():
        ours, theirs = [], []
        for _ in range(5):
            ours.append(run(programs[0]))
            theirs.append(run(programs[1]))
        line = f"{kernel}: tilejit {statistics.median(ours):.3f} s"
        if None not in theirs:
            line += f", triton {statistics.median(theirs):.3f} s, ratio {statistics.median(ours) / statistics.median(theirs):.2f}"
        print(line)


if __name__ == "__main__":
    main()
