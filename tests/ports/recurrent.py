"""Recurrences: linear attention and the gated delta rule in chunks, selective scans, SSD, causal convolutions."""

import numpy as np
import tilejit as tile

from tests.ports.ports import Machine, bfloat16, exact, normal, port, sigmoid, uniform

# Linear attention with a decay for each head (RetNet, Sun et al. 2023), a chunk at a time; the state stays in
# registers.

@tile.jit
def linear_attention(q, k, v, decays, o, state, C: tile.constexpr, DK: tile.constexpr, DV: tile.constexpr):
    head = tile.program_id(0)
    log_decay, i = tile.load(decays[head]), tile.arange(C)
    within = tile.where(i[:, None] >= i[None, :], tile.exp(log_decay * (i[:, None] - i[None, :])), 0.0)
    before = tile.exp(log_decay * (i + 1))
    h = tile.load(state[head, 0:DK, 0:DV])
    for t in tile.pipelined(range(0, q.shape[0], C), stages=2):
        qt, kt, vt = (tile.load(x[t:t + C, head, 0:D]) for x, D in ((q, DK), (k, DK), (v, DV)))
        s = tile.dot(qt, kt.T) * within
        out = tile.dot(s.to(vt.dtype), vt) + tile.dot(qt, h.to(qt.dtype)) * before[:, None]
        tile.store(o[t:t + C, head, 0:DV], out)
        n = min(C, q.shape[0] - t)
        after = tile.exp(log_decay * (n - 1 - i))[:, None]
        h = tile.dot((kt * after).to(kt.dtype).T, vt, h * tile.exp(log_decay * n))
    tile.store(state[head, 0:DK, 0:DV], h)


@port
def linear_attention_in_chunks(on: Machine):
    t, heads, dk, dv = 55, 2, 16, 40
    q, k = normal(t, heads, dk, dtype=bfloat16), normal(t, heads, dk, dtype=bfloat16)
    v = normal(t, heads, dv, dtype=bfloat16)
    decays, start = np.log(np.array([0.9, 0.97], np.float32)), normal(heads, dk, dv)
    o, state = on.empty(v.shape, bfloat16), on(start)
    linear_attention[heads,](on(q), on(k), on(v), on(decays), o, state, C=16, DK=dk, DV=dv)
    h, want = exact(start), np.empty(v.shape)
    for i in range(t):
        h = h * np.exp(decays)[:, None, None] + exact(k[i])[:, :, None] * exact(v[i])[:, None, :]
        want[i] = np.einsum("hd,hde->he", exact(q[i]), h)
    on.check(o, want)
    on.check(state, h, 2e-2)


# The gated delta rule (Yang et al. 2024): h = exp(g) (1 - b k k') h + b k v', in chunks. The new values u of a chunk
# solve a triangular system, whose inverse is a product of sums of powers.

@tile.jit
def gated_delta_rule(q, k, v, g, beta, o, C: tile.constexpr, DK: tile.constexpr, DV: tile.constexpr):
    head, i = tile.program_id(0), tile.arange(C)
    row, column = i[:, None], i[None, :]
    h = tile.zeros((DK, DV))
    for t in range(0, q.shape[0], C):
        qt, kt, vt = (tile.load(x[t:t + C, head, 0:D]) for x, D in ((q, DK), (k, DK), (v, DV)))
        b, gate = tile.load(beta[t:t + C, head]), tile.cumsum(tile.load(g[t:t + C, head]))
        decay = tile.where(row >= column, tile.exp(gate[:, None] - gate[None, :]), 0.0)
        power = tile.where(row > column, -b[:, None] * decay * tile.dot(kt, kt.T), 0.0)
        inverse = power + tile.where(row == column, 1.0, 0.0)
        for _ in tile.static_range((C - 1).bit_length() - 1):
            power = tile.dot(power, power)
            inverse = tile.dot(inverse, power, inverse)
        start = tile.exp(gate)[:, None]
        u = tile.dot(inverse, b[:, None] * (vt - start * tile.dot(kt, h.to(kt.dtype)))).to(vt.dtype)
        out = start * tile.dot(qt, h.to(qt.dtype)) + tile.dot((decay * tile.dot(qt, kt.T)).to(vt.dtype), u)
        tile.store(o[t:t + C, head, 0:DV], out)
        left = tile.exp(gate[C - 1] - gate)[:, None]
        h = tile.dot((kt * left).to(kt.dtype).T, u, h * tile.exp(gate[C - 1]))


@port
def gated_delta_rule_in_chunks(on: Machine):
    t, heads, dk, dv = 43, 2, 24, 16
    q, k, v = normal(t, heads, dk), normal(t, heads, dk), normal(t, heads, dv, dtype=bfloat16)
    q, k = ((x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(bfloat16) for x in (q, k))
    g, beta = np.log(sigmoid(normal(t, heads) + 2)), sigmoid(normal(t, heads))
    o = on.empty(v.shape, bfloat16)
    gated_delta_rule[heads,](on(q), on(k), on(v), on(g), on(beta), o, C=16, DK=dk, DV=dv)
    h, want = np.zeros((heads, dk, dv)), np.empty(v.shape)
    for i in range(t):
        h *= np.exp(g[i])[:, None, None]
        u = beta[i][:, None] * (exact(v[i]) - np.einsum("hd,hde->he", exact(k[i]), h))
        h += exact(k[i])[:, :, None] * u[:, None, :]
        want[i] = np.einsum("hd,hde->he", exact(q[i]), h)
    on.check(o, want, 2e-2)


# Mamba's selective scan (Gu and Dao 2023): h = exp(dt A) h + dt B x, y = C h + D x, gated by silu(z); a chunk of times
# is scanned at once.

@tile.jit
def then(first, second):
    """The affine map `second` after `first`, each as (factor, summand)."""
    return first[0] * second[0], first[1] * second[0] + second[1]


@tile.jit
def softplus(x):
    return tile.where(x > 20, x, tile.log1p(tile.exp(x)))


@tile.jit
def selective_scan(x, dt, dt_bias, A, B, C, D, z, y, CHUNK: tile.constexpr, BD: tile.constexpr, N: tile.constexpr):
    d = tile.program_id(0) * BD
    a, bias, skip = tile.load(A[d:d + BD, 0:N]), tile.load(dt_bias[d:d + BD]), tile.load(D[d:d + BD])
    h = tile.zeros((BD, N))
    for t in range(0, x.shape[0], CHUNK):
        v = tile.load(x[t:t + CHUNK, d:d + BD], other=0).to(tile.float32)
        step = softplus(tile.load(dt[t:t + CHUNK, d:d + BD], other=0).to(tile.float32) + bias)
        b, c = (tile.load(a[t:t + CHUNK, 0:N], other=0).to(tile.float32) for a in (B, C))
        factors, summands = tile.scan((tile.exp(step[:, :, None] * a), (step * v)[:, :, None] * b[:, None, :]), 0, then)
        states = factors * h + summands
        h = states[CHUNK - 1]
        gate = tile.load(z[t:t + CHUNK, d:d + BD]).to(tile.float32)
        out = tile.sum(states * c[:, None, :], axis=2) + skip * v
        tile.store(y[t:t + CHUNK, d:d + BD], out * gate * tile.sigmoid(gate))


@port
def mamba_selective_scan(on: Machine):
    t, d, n = 37, 20, 8
    x, z = normal(t, d, dtype=np.float16), normal(t, d, dtype=np.float16)
    dt, bias, skip = normal(t, d, dtype=np.float16), normal(d), normal(d)
    A, B, C = -1 - uniform(d, n), normal(t, n, dtype=np.float16), normal(t, n, dtype=np.float16)
    y = on.empty((t, d), np.float16)
    selective_scan[2,](on(x), on(dt), on(bias), on(A), on(B), on(C), on(skip), on(z), y, CHUNK=8, BD=16, N=n)
    step, h, want = np.log1p(np.exp(exact(dt) + bias)), np.zeros((d, n)), np.empty((t, d))
    for i in range(t):
        h = np.exp(step[i][:, None] * A) * h + (step[i] * exact(x[i]))[:, None] * exact(B[i])
        want[i] = h @ exact(C[i]) + skip * exact(x[i])
    on.check(y, want * exact(z) * sigmoid(exact(z)))


# SSD (Mamba-2, Dao and Gu 2024): the chunks' states at once, then passed from chunk to chunk, then the outputs of all
# chunks.

@tile.jit
def ssd_chunk_states(x, dt, A, B, cumulated, states, Q: tile.constexpr, P: tile.constexpr, N: tile.constexpr):
    chunk, head = tile.program_id(0), tile.program_id(1)
    t = chunk * Q
    step = tile.load(dt[t:t + Q, head])
    total = tile.cumsum(step * tile.load(A[head]))
    tile.store(cumulated[head, t:t + Q], total)
    left = step * tile.exp(total[Q - 1] - total)
    b = (tile.load(B[t:t + Q, 0:N]) * left[:, None]).to(B.dtype)
    tile.store(states[chunk, head, 0:N, 0:P], tile.dot(b.T, tile.load(x[t:t + Q, head, 0:P])))


@tile.jit
def ssd_pass_states(cumulated, states, Q: tile.constexpr, SIZE: tile.constexpr):
    """Replaces what a chunk adds to the state by the state before it."""
    head = tile.program_id(0)
    h = tile.zeros((SIZE,))
    for chunk in range(states.shape[0]):
        added = tile.load(states[chunk, head, 0:SIZE])
        tile.store(states[chunk, head, 0:SIZE], h)
        h = h * tile.exp(tile.load(cumulated[head, chunk * Q + Q - 1])) + added


@tile.jit
def ssd_outputs(x, dt, B, C, D, cumulated, states, y, Q: tile.constexpr, P: tile.constexpr, N: tile.constexpr):
    chunk, head, i = tile.program_id(0), tile.program_id(1), tile.arange(Q)
    t = chunk * Q
    v, c, total = tile.load(x[t:t + Q, head, 0:P]), tile.load(C[t:t + Q, 0:N]), tile.load(cumulated[head, t:t + Q])
    decay = tile.exp(total[:, None] - total[None, :]) * tile.load(dt[t:t + Q, head])[None, :]
    s = tile.dot(c, tile.load(B[t:t + Q, 0:N]).T) * decay
    s = tile.where(i[:, None] >= i[None, :], s, 0.0)
    out = tile.dot(c, tile.load(states[chunk, head, 0:N, 0:P]).to(c.dtype)) * tile.exp(total)[:, None]
    tile.store(y[t:t + Q, head, 0:P], tile.dot(s.to(v.dtype), v, out) + tile.load(D[head]) * v)


@port
def ssd(on: Machine):
    t, heads, p, n, q = 75, 3, 16, 24, 32
    x, B, C = normal(t, heads, p, dtype=bfloat16), normal(t, n, dtype=bfloat16), normal(t, n, dtype=bfloat16)
    dt, A, D = uniform(t, heads) / 4, -0.5 - uniform(heads), normal(heads)
    chunks = tile.cdiv(t, q)
    cumulated, states = on.empty((heads, chunks * q), "float32"), on.empty((chunks, heads, n, p), "float32")
    y, gx, gdt, gb = on.empty(x.shape, bfloat16), on(x), on(dt), on(B)
    ssd_chunk_states[chunks, heads](gx, gdt, on(A), gb, cumulated, states, Q=q, P=p, N=n)
    ssd_pass_states[heads,](cumulated, states.reshape(chunks, heads, n * p), Q=q, SIZE=n * p)
    ssd_outputs[chunks, heads](gx, gdt, gb, on(C), on(D), cumulated, states, y, Q=q, P=p, N=n)
    h, want = np.zeros((heads, n, p)), np.empty(x.shape)
    for i in range(t):
        h = np.exp(dt[i] * A)[:, None, None] * h + exact(B[i])[:, None] * (dt[i][:, None] * exact(x[i]))[:, None, :]
        want[i] = np.einsum("n,hnp->hp", exact(C[i]), h) + D[:, None] * exact(x[i])
    on.check(y, want, 2e-2)


# The short causal convolution before these layers, of several sequences one after the other.

@tile.jit
def causal_conv(x, weight, bias, starts, out, BT: tile.constexpr, BD: tile.constexpr, WIDTH: tile.constexpr):
    sequence, d = tile.program_id(0), tile.program_id(1) * BD
    start, stop = tile.load(starts[sequence]), tile.load(starts[sequence + 1])
    mine, results = (tile.window(a, (start, 0), (stop - start, None)) for a in (x, out))
    for t in range(0, stop - start, BT):
        acc = tile.broadcast_to(tile.load(bias[d:d + BD]), (BT, BD))
        for w in tile.static_range(WIDTH):
            acc += tile.load(mine[t - WIDTH + 1 + w:t - WIDTH + 1 + w + BT, d:d + BD]) * tile.load(weight[d:d + BD, w])
        tile.store(results[t:t + BT, d:d + BD], acc * tile.sigmoid(acc))


@port
def causal_conv1d(on: Machine):
    starts = np.array([0, 3, 3, 40, 61], np.int32)
    x, weight, bias = normal(61, 40, dtype=bfloat16), normal(40, 4), normal(40)
    out = on.empty(x.shape, bfloat16)
    causal_conv[4, 2](on(x), on(weight), on(bias), on(starts), out, BT=16, BD=32, WIDTH=4)
    want = np.empty(x.shape)
    for i, j in zip(starts, starts[1:]):
        padded = np.vstack([np.zeros((3, 40)), exact(x[i:j])])
        want[i:j] = sum(padded[w:w + j - i] * weight[:, w] for w in range(4)) + bias
    on.check(out, want * sigmoid(want))
