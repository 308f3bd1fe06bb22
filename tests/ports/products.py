"""Matrix products: with an epilogue, with K split among CTAs, grouped products over separate matrices."""

from dataclasses import dataclass

import numpy as np
import tilejit as tile

from tests.ports.ports import Machine, bfloat16, exact, normal, port, sigmoid


@tile.jit
def leaky_relu(x):
    return tile.where(x >= 0, x, 0.01 * x)


@tile.jit
def silu(x):
    return x * tile.sigmoid(x)


@tile.jit
def product_with_epilogue(a, b, bias, residual, c, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr,
                          GROUP: tile.constexpr, ACTIVATION: tile.constexpr = None):
    """c = activation(a @ b + bias) + residual; neighbouring CTAs take `GROUP` rows of tiles at a time."""
    rows, columns = tile.cdiv(a.shape[0], BM), tile.cdiv(b.shape[1], BN)
    pid, width = tile.program_id(0), GROUP * tile.cdiv(b.shape[1], BN)
    first = pid // width * GROUP
    height = min(rows - first, GROUP)
    m, n = (first + pid % width % height) * BM, pid % width // height * BN
    acc = tile.zeros((BM, BN))
    for k in tile.pipelined(range(0, a.shape[1], BK), stages=3):
        acc = tile.dot(tile.load(a[m:m + BM, k:k + BK]), tile.load(b[k:k + BK, n:n + BN]), acc)
    if bias is not None:
        acc += tile.load(bias[n:n + BN])[None, :]
    if ACTIVATION is not None:
        acc = ACTIVATION(acc)
    if residual is not None:
        acc += tile.load(residual[m:m + BM, n:n + BN])
    tile.store(c[m:m + BM, n:n + BN], acc)


@port
def matmul_with_epilogue(on: Machine):
    cases = (
        (np.float16, 70, 45, 100, leaky_relu, lambda x: np.where(x >= 0, x, 0.01 * x), True),
        (bfloat16, 33, 130, 64, silu, lambda x: x * sigmoid(x), False),
        (np.float32, 17, 20, 33, None, lambda x: x, True),
    )
    for dtype, m, n, k, activation, in_numpy, more in cases:
        a, b = normal(m, k + 4, dtype=dtype), normal(n, k, dtype=dtype)
        bias, residual = normal(n), normal(m, n, dtype=dtype)
        extra, c = (on(bias), on(residual)) if more else (None, None), on.empty((m, n), dtype)
        grid = tile.cdiv(m, 32) * tile.cdiv(n, 32),
        product_with_epilogue[grid](on(a)[:, 4:], on(b).transpose(1, 0), *extra, c, BM=32, BN=32, BK=32, GROUP=2,
                                    ACTIVATION=activation)
        want = in_numpy(exact(a[:, 4:]) @ exact(b).T + (bias if more else 0)) + (exact(residual) if more else 0)
        on.check(c, want)


@tile.jit
def product_in_splits(a, b, c, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr):
    m, n, split = tile.program_id(0) * BM, tile.program_id(1) * BN, tile.program_id(2)
    acc = tile.zeros((BM, BN))
    for k in tile.pipelined(range(split * BK, a.shape[1], tile.num_programs(2) * BK), stages=2):
        acc = tile.dot(tile.load(a[m:m + BM, k:k + BK]), tile.load(b[k:k + BK, n:n + BN]), acc)
    tile.atomic_add(c[m:m + BM, n:n + BN], acc)


@port
def split_k(on: Machine):
    a, b = normal(20, 330, dtype=bfloat16), normal(330, 40, dtype=bfloat16)
    c = on.zeros((20, 40), "float32")
    product_in_splits[2, 2, 3](on(a), on(b), c, BM=16, BN=32, BK=64)
    on.check(c, exact(a) @ exact(b))


# Grouped products: a list of matrices, of which each CTA takes tiles in turn (as in Triton's tutorial and CUTLASS).

@dataclass
class Problem:
    a: tile.Array
    b: tile.Array
    c: tile.Array


@tile.jit
def grouped_products(problems: list[Problem], BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr):
    t, before = tile.program_id(0), 0
    for p in problems:
        columns = tile.cdiv(p.b.shape[1], BN)
        after = before + tile.cdiv(p.a.shape[0], BM) * columns
        while t < after:
            m, n = (t - before) // columns * BM, (t - before) % columns * BN
            acc = tile.zeros((BM, BN))
            for k in tile.pipelined(range(0, p.a.shape[1], BK), stages=2):
                acc = tile.dot(tile.load(p.a[m:m + BM, k:k + BK]), tile.load(p.b[k:k + BK, n:n + BN]), acc)
            tile.store(p.c[m:m + BM, n:n + BN], acc)
            t += tile.num_programs(0)
        before = after


@port
def grouped_gemm(on: Machine):
    problems, wants = [], []
    for m, n, k in ((40, 20, 72), (7, 66, 16), (64, 32, 40)):
        a, b = normal(m, k, dtype=np.float16), normal(k, n, dtype=np.float16)
        problems.append(Problem(on(a), on(b), on.empty((m, n), np.float16)))
        wants.append(exact(a) @ exact(b))
    grouped_products[3,](problems, BM=32, BN=32, BK=32)
    for p, want in zip(problems, wants):
        on.check(p.c, want)


@tile.jit
def products_of_segments(x, weights, offsets, out, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr):
    """The rows of each group lie one after the other in x, and are multiplied by their group's matrix."""
    group, n = tile.program_id(0), tile.program_id(1) * BN
    start, stop = tile.load(offsets[group]), tile.load(offsets[group + 1])
    rows, results = tile.window(x, (start, 0), (stop - start, None)), tile.window(out, (start, 0), (stop - start, None))
    for m in range(0, stop - start, BM):
        acc = tile.zeros((BM, BN))
        for k in range(0, x.shape[1], BK):
            acc = tile.dot(tile.load(rows[m:m + BM, k:k + BK]), tile.load(weights[group, n:n + BN, k:k + BK]).T, acc)
        tile.store(results[m:m + BM, n:n + BN], acc)


@port
def grouped_gemm_of_segments(on: Machine):
    offsets = np.array([0, 21, 21, 60, 63], np.int32)
    x, weights = normal(63, 50, dtype=bfloat16), normal(4, 44, 50, dtype=bfloat16)
    out = on.empty((63, 44), bfloat16)
    products_of_segments[4, 2](on(x), on(weights), on(offsets), out, BM=32, BN=32, BK=32)
    on.check(out, np.vstack([exact(x[i:j]) @ exact(w).T for i, j, w in zip(offsets, offsets[1:], weights)]))
