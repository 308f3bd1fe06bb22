"""Products of quantised matrices: GPTQ with groups in any order, AWQ, int8 with computed scales, float8 in blocks."""

import ml_dtypes
import numpy as np
import tilejit as tile

from tests.ports.ports import Machine, bfloat16, exact, float8, integers, normal, port, uniform

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the place in a word of each of eight neighbouring columns


# GPTQ (Frantar et al. 2022): four bits, eight rows of k in a word; `g_idx` names each row's group, in any order
# ("act-order").

@tile.jit
def product_gptq(x, words, zeros, scales, g_idx, out, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr):
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    columns, acc = n + tile.arange(BN), tile.zeros((BM, BN))
    for k in range(0, x.shape[1], BK):
        rows = k + tile.arange(BK)
        groups = tile.load(g_idx[k:k + BK])
        w = tile.load(words[rows[:, None] // 8, columns[None, :]]) >> (rows % 8 * 4)[:, None] & 15
        z = tile.load(zeros[groups[:, None], columns[None, :] // 8]) >> (columns % 8 * 4)[None, :] & 15
        s = tile.load(scales[groups[:, None], columns[None, :]])
        b = (w - z - 1).to(x.dtype) * s
        acc = tile.dot(tile.load(x[m:m + BM, k:k + BK]), b, acc)
    tile.store(out[m:m + BM, n:n + BN], acc)


def packed(x: np.ndarray, axis: int, order=tuple(range(8))) -> np.ndarray:
    """Eight numbers of four bits along an axis in each int32, number i at place `order[i]`."""
    parts = np.moveaxis(np.moveaxis(x, axis, -1).reshape(*np.moveaxis(x, axis, -1).shape[:-1], -1, 8), -1, 0)
    words = sum(part.astype(np.uint32) << np.uint32(4 * place) for place, part in zip(order, parts))
    return np.ascontiguousarray(np.moveaxis(words.view(np.int32), -1, axis))


@port
def gptq_with_g_idx(on: Machine):
    m, n, k, groups = 19, 40, 96, 3
    x, w, z = normal(m, k, dtype=np.float16), integers(0, 16, k, n), integers(0, 15, groups, n)
    scales, g_idx = (0.5 + uniform(groups, n)).astype(np.float16), integers(0, groups, k)
    out = on.empty((m, n), "float16")
    product_gptq[2, 2](on(x), on(packed(w, 0)), on(packed(z, 1)), on(scales), on(g_idx), out, BM=16, BN=32, BK=32)
    on.check(out, exact(x) @ (exact(w - z[g_idx] - 1) * exact(scales[g_idx])))


# AWQ (Lin et al. 2023): eight columns in a word, in an order that suits its first kernels; groups of rows in order.

@tile.jit
def product_awq(x, words, zeros, scales, out, ORDER: tile.constexpr, GROUP: tile.constexpr, BM: tile.constexpr,
                BN: tile.constexpr):
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    acc = tile.zeros((BM, BN))
    for k in tile.pipelined(range(0, x.shape[1], GROUP), stages=2):
        w = tile.load(words[k:k + GROUP, n // 8:n // 8 + BN // 8])
        z = tile.load(zeros[k // GROUP, n // 8:n // 8 + BN // 8])
        w = tile.stack([w >> 4 * place & 15 for place in ORDER], axis=-1).reshape(GROUP, BN)
        z = tile.stack([z >> 4 * place & 15 for place in ORDER], axis=-1).reshape(BN)
        b = (w - z[None, :]).to(x.dtype) * tile.load(scales[k // GROUP, n:n + BN])[None, :]
        acc = tile.dot(tile.load(x[m:m + BM, k:k + GROUP]), b, acc)
    tile.store(out[m:m + BM, n:n + BN], acc)


@port
def awq(on: Machine):
    m, n, k, group = 9, 56, 96, 32
    x, w, z = normal(m, k, dtype=bfloat16), integers(0, 16, k, n), integers(0, 16, k // group, n)
    scales = (0.5 + uniform(k // group, n)).astype(bfloat16)
    out = on.empty((m, n), bfloat16)
    words, zeros = packed(w, 1, AWQ_ORDER), packed(z, 1, AWQ_ORDER)
    product_awq[1, 2](on(x), on(words), on(zeros), on(scales), out, ORDER=AWQ_ORDER, GROUP=group, BM=16, BN=32)
    on.check(out, exact(x) @ (exact(w - np.repeat(z, group, 0)) * np.repeat(exact(scales), group, 0)))


# int8 with a scale for each row of x, computed by a first kernel, and one for each row of the weight.

@tile.jit
def quantise_rows(x, q, scales, BLOCK: tile.constexpr):
    row = tile.program_id(0)
    v = tile.load(x[row, 0:BLOCK]).to(tile.float32)
    scale = tile.maximum(tile.max(tile.abs(v)), 1e-10) / 127
    tile.store(q[row, 0:BLOCK], tile.clip(tile.round(v / scale), -127, 127))
    tile.store(scales[row], scale)


@tile.jit
def product_int8(a, b, scale_a, scale_b, bias, out, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr):
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    acc = tile.zeros((BM, BN), tile.int32)
    for k in tile.pipelined(range(0, a.shape[1], BK), stages=2):
        acc = tile.dot(tile.load(a[m:m + BM, k:k + BK]), tile.load(b[n:n + BN, k:k + BK]).T, acc)
    c = acc.to(tile.float32) * tile.load(scale_a[m:m + BM])[:, None] * tile.load(scale_b[n:n + BN])[None, :]
    tile.store(out[m:m + BM, n:n + BN], c + tile.load(bias[n:n + BN])[None, :])


@port
def int8_dynamic_quantisation(on: Machine):
    m, n, k = 35, 45, 144
    x, w, bias = normal(m, k, dtype=bfloat16), integers(-127, 128, n, k, dtype=np.int8), normal(n)
    x[3] = 0
    scale_w = uniform(n) / 100
    q, scales, out = on.empty((m, k), "int8"), on.empty(m, "float32"), on.empty((m, n), bfloat16)
    quantise_rows[m,](on(x), q, scales, BLOCK=256)
    product_int8[2, 2](q, on(w), scales, on(scale_w), on(bias), out, BM=32, BN=32, BK=64)
    s = np.maximum(np.abs(exact(x)).max(1), 1e-10) / 127
    on.check(scales, s)
    on.check(out, np.round(exact(x) / s[:, None]) @ exact(w).T * s[:, None] * scale_w + bias)


# float8 with a scale for each 1 x 32 of x and each 32 x 32 of the weight (DeepSeek-V3 2024, there 128).

@tile.jit
def quantise_blocks(x, q, scales, BLOCK: tile.constexpr):
    row, part = tile.program_id(0), tile.program_id(1)
    v = tile.load(x[row, part * BLOCK:part * BLOCK + BLOCK]).to(tile.float32)
    scale = tile.maximum(tile.max(tile.abs(v)), 1e-4) / 448
    tile.store(q[row, part * BLOCK:part * BLOCK + BLOCK], v / scale)
    tile.store(scales[row, part], scale)


@tile.jit
def product_float8(a, b, scale_a, scale_b, out, BM: tile.constexpr, BN: tile.constexpr, BLOCK: tile.constexpr):
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    acc = tile.zeros((BM, BN))
    for k in tile.pipelined(range(0, a.shape[1], BLOCK), stages=3):
        part = tile.dot(tile.load(a[m:m + BM, k:k + BLOCK]), tile.load(b[n:n + BN, k:k + BLOCK]).T)
        acc += part * tile.load(scale_a[m:m + BM, k // BLOCK])[:, None] * tile.load(scale_b[n // BLOCK, k // BLOCK])
    tile.store(out[m:m + BM, n:n + BN], acc)


@port
def float8_block_quantisation(on: Machine):
    m, n, k, block = 20, 64, 80, 32
    parts = tile.cdiv(k, block)
    x, w, scale_w = normal(m, k), normal(n, k).astype(float8), 0.5 + uniform(n // block, parts)
    q, scales, out = on.empty((m, k), float8), on.empty((m, parts), "float32"), on.empty((m, n), bfloat16)
    quantise_blocks[m, parts](on(x), q, scales, BLOCK=block)
    product_float8[2, 2](q, on(w), scales, on(scale_w), out, BM=16, BN=32, BLOCK=block)
    s = np.stack([np.abs(x[:, i:i + block]).max(1) for i in range(0, k, block)], 1) / 448
    wide = np.repeat(s, block, 1)[:, :k]
    on.check(scales, s)
    on.check(q, (x / wide).astype(np.float32), 7e-2)
    weight = exact(w) * np.repeat(np.repeat(scale_w, block, 0), block, 1)[:, :k]
    on.check(out, exact((x / wide).astype(float8)) * wide @ weight.T)


# NF4 (Dettmers et al. 2023): four bits index a table of sixteen numbers; a scale for each 64 of a row.

@tile.jit
def product_nf4(x, codes, scales, table, out, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr):
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    values, acc = tile.load(table[0:16]), tile.zeros((BM, BN))
    for k in tile.pipelined(range(0, x.shape[1], BK), stages=2):
        pairs = tile.load(codes[n:n + BN, k // 2:(k + BK) // 2])
        places = tile.stack([pairs >> 4, pairs & 15], axis=-1).reshape(BN, BK)
        w = values[places.to(tile.int32)] * tile.load(scales[n:n + BN, k // BK])[:, None]
        acc = tile.dot(tile.load(x[m:m + BM, k:k + BK]), w.to(x.dtype).T, acc)
    tile.store(out[m:m + BM, n:n + BN], acc)


@port
def nf4(on: Machine):
    m, n, k = 10, 40, 128
    x, codes, scales = normal(m, k, dtype=np.float16), integers(0, 256, n, k // 2, dtype=np.uint8), uniform(n, k // 64)
    table, out = np.sort(normal(16)), on.empty((m, n), np.float16)
    product_nf4[1, 2](on(x), on(codes), on(scales), on(table), out, BM=16, BN=32, BK=64)
    w = table[np.stack([codes >> 4, codes & 15], -1).reshape(n, k)] * np.repeat(scales, 64, 1)
    on.check(out, exact(x) @ exact(w.astype(np.float16)).T)


# MXFP8 (OCP 2023): a power of two for each 32 elements, rounded up so that none is too large. Before that the rows are
# rotated by the fast Hadamard transform, which spreads outliers.

@tile.jit
def hadamard(x, LOG: tile.constexpr):
    """The transform of the last axis of [rows, 2**LOG]: sums and differences of the elements at each distance."""
    rows, n = x.shape
    for i in tile.static_range(LOG):
        pairs = x.reshape(rows, n >> i + 1, 2, 1 << i)
        low, high = pairs[:, :, 0, :], pairs[:, :, 1, :]
        x = tile.stack((low + high, low - high), axis=2).reshape(rows, n)
    return x * 2.0 ** (-LOG / 2)


@tile.jit
def rotate_and_quantise(x, q, scales, BM: tile.constexpr, LOG: tile.constexpr):
    m, N = tile.program_id(0) * BM, 2 ** LOG
    v = hadamard(tile.load(x[m:m + BM, 0:N]).to(tile.float32), LOG).reshape(BM, N // 32, 32)
    _, exponent = tile.frexp(tile.max(tile.abs(v), axis=2) / 448)
    scale = tile.ldexp(tile.full(exponent.shape, 1.0), exponent)
    tile.store(q[m:m + BM, 0:N], (v / scale[:, :, None]).reshape(BM, N))
    tile.store(scales[m:m + BM, 0:N // 32], scale)


@port
def mxfp8_with_hadamard(on: Machine):
    x = normal(11, 128, dtype=bfloat16)
    x[:, 5] *= 50
    q, scales = on.empty((11, 128), float8), on.empty((11, 4), ml_dtypes.float8_e8m0fnu)
    rotate_and_quantise[2,](on(x), q, scales, BM=8, LOG=7)
    matrix = np.ones((1, 1))
    for _ in range(7):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    v = exact(x) @ matrix / 128 ** 0.5
    scale = 2.0 ** np.frexp(np.abs(v.reshape(11, 4, 32)).max(-1) / 448)[1]
    on.check(scales, scale, 0)
    on.check(q, v / np.repeat(scale, 32, 1))
