"""Products of quantised matrices: GPTQ with groups in any order, AWQ, int8 with computed scales, float8 in blocks."""

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
    for k in range(0, x.shape[1], GROUP):
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
