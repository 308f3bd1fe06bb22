"""Elementwise kernels: additions, gated activations, rotary positions, dropout, stochastic rounding, transposition."""

from math import erf

import numpy as np
import tilejit as tile

from tests.ports.ports import Machine, bfloat16, exact, normal, port, sigmoid, uniform


@tile.jit
def add(x, y, out, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK
    tile.store(out[i:i + BLOCK], tile.load(x[i:i + BLOCK]) + tile.load(y[i:i + BLOCK]))


@port
def vector_add(on: Machine):
    x, y = normal(2001), normal(1000)
    out = on.empty(2000, "float32")
    add[4,](on(x)[1::2], on(y), out[::2], BLOCK=256)
    on.check(out[::2], x[1::2] + y)
    on.check(on.get(out).view(np.int32)[1::2], np.full(1000, 0xA5A5A5A5, np.uint32).view(np.int32))


# Gated activations (Shazeer 2020): the forward and the backward pass of silu(gate) * up, and of gelu(gate) * up.

@tile.jit
def swiglu_forward(gate, up, out, N: tile.constexpr):
    row = tile.program_id(0)
    g = tile.load(gate[row, 0:N]).to(tile.float32)
    tile.store(out[row, 0:N], g * tile.sigmoid(g) * tile.load(up[row, 0:N]))


@tile.jit
def swiglu_backward(dout, gate, up, N: tile.constexpr):
    """Writes the gradients over the inputs."""
    row = tile.program_id(0)
    d = tile.load(dout[row, 0:N]).to(tile.float32)
    g, u = tile.load(gate[row, 0:N]).to(tile.float32), tile.load(up[row, 0:N]).to(tile.float32)
    s = tile.sigmoid(g)
    tile.store(up[row, 0:N], d * g * s)
    tile.store(gate[row, 0:N], d * u * s * (1 + g * (1 - s)))


@port
def swiglu(on: Machine):
    both, dout = normal(5, 2 * 77, dtype=bfloat16), normal(5, 77, dtype=bfloat16)
    g, u, d = exact(both[:, :77]), exact(both[:, 77:]), exact(dout)
    packed, out = on(both), on.empty((5, 77), bfloat16)
    swiglu_forward[5,](packed[:, :77], packed[:, 77:], out, N=128)
    on.check(out, g * sigmoid(g) * u)
    swiglu_backward[5,](on(dout), packed[:, :77], packed[:, 77:], N=128)
    on.check(packed, np.hstack([d * u * sigmoid(g) * (1 + g * (1 - sigmoid(g))), d * g * sigmoid(g)]))


@tile.jit
def gelu(x):
    return 0.5 * x * (1 + tile.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


@tile.jit
def gelu_exactly(x):
    return 0.5 * x * (1 + tile.erf(x * 0.70710678))


@tile.jit
def gated(gate, up, out, ACTIVATION: tile.constexpr, BM: tile.constexpr, BN: tile.constexpr):
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    g = ACTIVATION(tile.load(gate[m:m + BM, n:n + BN]).to(tile.float32))
    tile.store(out[m:m + BM, n:n + BN], g * tile.load(up[m:m + BM, n:n + BN]))


@port
def geglu(on: Machine):
    gate, up = normal(21, 50, dtype=np.float16), normal(21, 50, dtype=np.float16)
    g = exact(gate)
    tanh = 0.5 * g * (1 + np.tanh(0.7978845608 * (g + 0.044715 * g ** 3)))
    for activation, want in ((gelu, tanh), (gelu_exactly, 0.5 * g * (1 + np.vectorize(erf)(g / 2 ** 0.5)))):
        out = on.empty((21, 50), np.float16)
        gated[2, 2](on(gate), on(up), out, ACTIVATION=activation, BM=16, BN=32)
        on.check(out, want * exact(up))


# Rotary position embedding (Su et al. 2021), of queries and keys in one launch, in place.

@tile.jit
def rotate(x, row, c, s, HEADS: tile.constexpr, HALF: tile.constexpr):
    low = tile.load(x[row, 0:HEADS, 0:HALF]).to(tile.float32)
    high = tile.load(x[row, 0:HEADS, HALF:2 * HALF]).to(tile.float32)
    tile.store(x[row, 0:HEADS, 0:HALF], low * c - high * s)
    tile.store(x[row, 0:HEADS, HALF:2 * HALF], high * c + low * s)


@tile.jit
def rotary(q, k, cos, sin, positions, Q_HEADS: tile.constexpr, K_HEADS: tile.constexpr, HALF: tile.constexpr):
    row = tile.program_id(0)
    at = tile.load(positions[row])
    c, s = tile.load(cos[at, 0:HALF])[None, :], tile.load(sin[at, 0:HALF])[None, :]
    rotate(q, row, c, s, Q_HEADS, HALF)
    rotate(k, row, c, s, K_HEADS, HALF)


@port
def rope(on: Machine):
    q, k = normal(7, 6, 40, dtype=bfloat16), normal(7, 2, 40, dtype=bfloat16)
    positions = np.array([0, 1, 2, 9, 10, 3, 4], np.int64)
    angles = np.arange(16)[:, None] * 10000.0 ** (-np.arange(20) / 20)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    got = on(q), on(k)
    rotary[7,](*got, on(cos), on(sin), on(positions), Q_HEADS=6, K_HEADS=2, HALF=20)
    for x, result in zip((q, k), got):
        turned = (exact(x[..., :20]) + 1j * exact(x[..., 20:])) * np.exp(1j * angles[positions])[:, None]
        on.check(result, np.concatenate([turned.real, turned.imag], -1))


# Random numbers: the mask of a dropout comes from its seed again in the backward pass.

@tile.jit
def dropout_of(x, out, seed, p, BLOCK: tile.constexpr):
    at = tile.program_id(0) * BLOCK + tile.arange(BLOCK)
    keep = tile.rand(seed, at) >= p
    tile.store(out[at], tile.where(keep, tile.load(x[at]) / (1 - p), 0))


@port
def dropout(on: Machine):
    x, grad = 1 + uniform(3000), normal(3000)
    out, back = on.empty(3000, "float32"), on.empty(3000, "float32")
    dropout_of[6,](on(x), out, 2 ** 40 + 7, 0.3, BLOCK=512)
    dropout_of[24,](on(grad), back, 2 ** 40 + 7, 0.3, BLOCK=128)
    kept = on.get(out) != 0
    assert 0.27 < 1 - kept.mean() < 0.33
    on.check(out, np.where(kept, x / 0.7, 0))
    on.check(back, np.where(kept, grad / 0.7, 0))


@tile.jit
def round_to_bfloat16(x, out, seed, BLOCK: tile.constexpr):
    at = tile.program_id(0) * BLOCK + tile.arange(BLOCK)
    v = tile.load(x[at])
    bits = tile.bitcast(v, tile.uint32) + (tile.randint(seed, at) & 0xffff)
    rounded = tile.bitcast(bits & 0xffff0000, tile.float32)
    tile.store(out[at], tile.where(tile.isfinite(v), rounded, v))


@port
def stochastic_rounding(on: Machine):
    x = np.concatenate([np.full(4000, 1 + 2.0 ** -9), [np.inf, -np.inf, np.nan, 3.0]]).astype(np.float32)
    out = on.empty(4004, bfloat16)
    round_to_bfloat16[4,](on(x), out, 11, BLOCK=1024)
    got = exact(on.get(out)[:4000])
    assert set(got) == {1, 1 + 2.0 ** -7} and 0.23 < (got > 1).mean() < 0.27
    on.check(out[4000:], x[4000:])


@tile.jit
def transposed(x, out, BM: tile.constexpr, BN: tile.constexpr):
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    tile.store(out[n:n + BN, m:m + BM], tile.load(x[m:m + BM, n:n + BN]).T)


@port
def transpose(on: Machine):
    for dtype, shape in ((np.int8, (45, 70)), (np.float64, (33, 35))):
        x = normal(*shape).astype(dtype)
        out = on.empty(shape[::-1], dtype)
        transposed[tile.cdiv(shape[0], 32), tile.cdiv(shape[1], 32)](on(x), out, BM=32, BN=32)
        on.check(out, x.T)
