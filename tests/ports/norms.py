"""Normalisations and statistics: softmax, layer, RMS, group and batch norm, Welford's variance."""

import numpy as np
import tilejit as tile

from tests.ports import ports
from tests.ports.ports import Machine, bfloat16, exact, integers, normal, port


@tile.jit
def softmax_of_rows(x, out, rows, BLOCK: tile.constexpr):
    for row in range(tile.program_id(0), rows, tile.num_programs(0)):
        v = tile.load(x[row, 0:BLOCK], other=-float("inf")).to(tile.float32)
        e = tile.exp(v - tile.max(v))
        tile.store(out[row, 0:BLOCK], e / tile.sum(e))


@port
def softmax(on: Machine):
    for dtype in (np.float32, np.float16):
        x, out = 3 * normal(13, 190).astype(dtype), on.empty((13, 187), dtype)
        softmax_of_rows[4,](on(x)[:, 3:], out, 13, BLOCK=256)
        on.check(out, ports.softmax(exact(x[:, 3:])))


# Layer norm (Ba et al. 2016). The backward pass adds the gradients of weight and bias to a few partial sums, under
# locks, and a second kernel adds those up.

@tile.jit
def layer_norm_forward(x, weight, bias, out, means, rstds, eps, BLOCK: tile.constexpr):
    row, n = tile.program_id(0), x.shape[1]
    total = tile.zeros((BLOCK,))
    for i in range(0, n, BLOCK):
        total += tile.load(x[row, i:i + BLOCK])
    mean = tile.sum(total) / n
    squares = tile.zeros((BLOCK,))
    for i in range(0, n, BLOCK):
        d = tile.load(x[row, i:i + BLOCK], other=mean) - mean
        squares += d * d
    rstd = tile.rsqrt(tile.sum(squares) / n + eps)
    tile.store(means[row], mean)
    tile.store(rstds[row], rstd)
    for i in range(0, n, BLOCK):
        v = (tile.load(x[row, i:i + BLOCK]) - mean) * rstd * tile.load(weight[i:i + BLOCK])
        if bias is not None:
            v += tile.load(bias[i:i + BLOCK])
        tile.store(out[row, i:i + BLOCK], v)


@tile.jit
def layer_norm_backward(dout, x, weight, means, rstds, dx, dweight, dbias, locks, counts, BLOCK: tile.constexpr):
    row, n, group = tile.program_id(0), x.shape[1], tile.program_id(0) % locks.shape[0]
    mean, rstd = tile.load(means[row]), tile.load(rstds[row])
    d = tile.load(dout[row, 0:BLOCK]).to(tile.float32)
    normed = (tile.load(x[row, 0:BLOCK], other=mean).to(tile.float32) - mean) * rstd
    wd = d * tile.load(weight[0:BLOCK])
    c1, c2 = tile.sum(normed * wd) / n, tile.sum(wd) / n
    tile.store(dx[row, 0:BLOCK], (wd - normed * c1 - c2) * rstd)
    dw, db = d * normed, d
    while tile.atomic_cas(locks[group], 0, 1, sem="acquire") == 1:
        pass
    if tile.atomic_exch(counts[group], 1) == 1:
        dw += tile.load(dweight[group, 0:BLOCK])
        db += tile.load(dbias[group, 0:BLOCK])
    tile.store(dweight[group, 0:BLOCK], dw)
    tile.store(dbias[group, 0:BLOCK], db)
    tile.atomic_exch(locks[group], 0, sem="release")


@tile.jit
def sum_of_rows(partial, out, ROWS: tile.constexpr, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK
    tile.store(out[i:i + BLOCK], tile.sum(tile.load(partial[0:ROWS, i:i + BLOCK]), axis=0))


@port
def layer_norm(on: Machine):
    rows, n, groups = 11, 75, 4
    x, dout = normal(rows, n, dtype=np.float16), normal(rows, n, dtype=np.float16)
    weight, bias = 1 + normal(n) / 4, normal(n)
    e = exact(x)
    rstd = 1 / np.sqrt(e.var(1) + 1e-5)
    normed, wd = (e - e.mean(1)[:, None]) * rstd[:, None], exact(dout) * weight
    means, rstds = on.empty(rows, "float32"), on.empty(rows, "float32")
    for b in (None, bias):
        out = on.empty((rows, n), "float16")
        layer_norm_forward[rows,](on(x), on(weight), None if b is None else on(b), out, means, rstds, 1e-5, BLOCK=32)
        on.check(out, normed * weight + (0 if b is None else b))
    on.check(rstds, rstd)
    dx, partial, sums = on.empty((rows, n), "float16"), on.empty((2, groups, n), "float32"), on.empty((2, n), "float32")
    locks, counts = on.zeros(groups, "int32"), on.zeros(groups, "int32")
    layer_norm_backward[rows,](on(dout), on(x), on(weight), means, rstds, dx, partial[0], partial[1], locks, counts,
                               BLOCK=128)
    for part, total in zip(partial, sums):
        sum_of_rows[2,](part, total, ROWS=groups, BLOCK=64)
    on.check(dx, (wd - normed * (normed * wd).mean(1, keepdims=True) - wd.mean(1, keepdims=True)) * rstd[:, None])
    on.check(sums, [(dout * normed).sum(0), exact(dout).sum(0)])
    on.check(locks, np.zeros(groups))


# RMS norm (Zhang and Sennrich 2019), after the addition of the residual, which it writes too.

@tile.jit
def add_rms_norm(x, residual, weight, out, eps, N: tile.constexpr, BLOCK: tile.constexpr):
    row = tile.program_id(0)
    v = tile.load(x[row, 0:BLOCK]).to(tile.float32) + tile.load(residual[row, 0:BLOCK])
    tile.store(residual[row, 0:BLOCK], v)
    rstd = tile.rsqrt(tile.sum(v * v) / N + eps)
    tile.store(out[row, 0:BLOCK], (v * rstd).to(out.dtype) * (1 + tile.load(weight[0:BLOCK])))


@port
def rms_norm(on: Machine):
    x, residual = normal(6, 100, dtype=bfloat16), normal(6, 100, dtype=bfloat16)
    weight = normal(100, dtype=bfloat16) / 4
    v = exact(x) + exact(residual)
    given, out = on(residual), on.empty((6, 100), bfloat16)
    add_rms_norm[6,](on(x), given, on(weight), out, 1e-6, N=100, BLOCK=128)
    on.check(given, v)
    on.check(out, v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-6) * (1 + exact(weight)))


# Group norm (Wu and He 2018) of a batch of images in the layout NCHW: the two passes over a group are one loop each.

@tile.jit
def group_norm_of_images(x, weight, bias, out, eps, PER_GROUP: tile.constexpr, PIXELS: tile.constexpr,
                         BLOCK: tile.constexpr):
    image, first = tile.program_id(1), tile.program_id(0) * PER_GROUP
    total, squares = tile.zeros((PER_GROUP, BLOCK)), tile.zeros((PER_GROUP, BLOCK))
    for i in range(0, PIXELS, BLOCK):
        v = tile.load(x[image, first:first + PER_GROUP, i:i + BLOCK])
        total += v
        squares += v * v
    n = PER_GROUP * PIXELS
    mean = tile.sum(total) / n
    rstd = tile.rsqrt(tile.sum(squares) / n - mean * mean + eps)
    scale = tile.load(weight[first:first + PER_GROUP]) * rstd
    shift = tile.load(bias[first:first + PER_GROUP]) - mean * scale
    for i in range(0, PIXELS, BLOCK):
        v = tile.load(x[image, first:first + PER_GROUP, i:i + BLOCK])
        v = v * scale[:, None] + shift[:, None]
        tile.store(out[image, first:first + PER_GROUP, i:i + BLOCK], v * tile.sigmoid(v))


@port
def group_norm(on: Machine):
    x, weight, bias = normal(2, 12, 7, 11), normal(12), normal(12)
    out = on.empty((2, 12, 77), "float32")
    group_norm_of_images[4, 2](on(x).reshape(2, 12, 77), on(weight), on(bias), out, 1e-5, PER_GROUP=3, PIXELS=77,
                               BLOCK=64)
    g = exact(x).reshape(2, 4, -1)
    normed = ((g - g.mean(2, keepdims=True)) / np.sqrt(g.var(2, keepdims=True) + 1e-5)).reshape(2, 12, 77)
    v = normed * weight[:, None] + bias[:, None]
    on.check(out, v * ports.sigmoid(v))


# Batch norm (Ioffe and Szegedy 2015) in training: the channels' statistics by Welford's method, whose partial results
# combine (Chan et al. 1983), with running means and variances.

@tile.jit
def merge(a, b):
    (n, mean, squares), (m, mean_b, squares_b) = a, b
    total, d = n + m, mean_b - mean
    part = tile.where(total > 0, m / total, 0.0)
    return total, mean + d * part, squares + squares_b + d * d * n * part


@tile.jit
def welford(x, mask):
    """The number, mean and sum of squared deviations of the elements that the mask names."""
    return tile.reduce((tile.where(mask, 1.0, 0.0), x, tile.zeros(x.shape)), (0, 1), merge, commutative=True)


@tile.jit
def batch_norm_forward(x, weight, bias, out, running_mean, running_var, momentum, eps, BN: tile.constexpr,
                       BP: tile.constexpr):
    channel = tile.program_id(0)
    images, pixels = x.shape[0], x.shape[2]
    found = 0.0, 0.0, 0.0
    for n in range(0, images, BN):
        for p in range(0, pixels, BP):
            inside = (n + tile.arange(BN) < images)[:, None] & (p + tile.arange(BP) < pixels)[None, :]
            found = merge(found, welford(tile.load(x[n:n + BN, channel, p:p + BP], other=0), inside))
    count, mean, squares = found
    rstd = tile.rsqrt(squares / count + eps)
    before = tile.load(running_mean[channel]), tile.load(running_var[channel])
    tile.store(running_mean[channel], before[0] + momentum * (mean - before[0]))
    tile.store(running_var[channel], before[1] + momentum * (squares / (count - 1) - before[1]))
    scale, shift = rstd * tile.load(weight[channel]), tile.load(bias[channel])
    for n in range(0, images, BN):
        for p in range(0, pixels, BP):
            v = (tile.load(x[n:n + BN, channel, p:p + BP]) - mean) * scale + shift
            tile.store(out[n:n + BN, channel, p:p + BP], tile.maximum(v, 0))


@port
def batch_norm(on: Machine):
    x, weight, bias = 100 + normal(5, 3, 37), normal(3), normal(3)
    mean, var, out = on.zeros(3, "float32"), on(np.ones(3, np.float32)), on.empty((5, 3, 37), "float32")
    batch_norm_forward[3,](on(x), on(weight), on(bias), out, mean, var, 0.1, 1e-5, BN=2, BP=32)
    e = exact(x)
    m, v = e.mean((0, 2)), e.var((0, 2))
    want = (e - m[:, None]) / np.sqrt(v[:, None] + 1e-5) * weight[:, None] + bias[:, None]
    on.check(out, np.maximum(want, 0), 2e-5)
    on.check(mean, 0.1 * m)
    on.check(var, 0.9 + 0.1 * e.var((0, 2), ddof=1))


@tile.jit
def variance_of_rows(x, counts, var, BLOCK: tile.constexpr):
    """Rows of several lengths; the mean of a row may be large."""
    row = tile.program_id(0)
    n = tile.load(counts[row])
    found = 0.0, 0.0, 0.0
    for i in range(0, n, BLOCK):
        v = tile.load(x[row, i:i + BLOCK], other=0)
        found = merge(found, welford(v[None, :], (i + tile.arange(BLOCK) < n)[None, :]))
    tile.store(var[row], found[2] / n)


@port
def welford_variance(on: Machine):
    x, counts = 1000 + normal(6, 150), integers(2, 150, 6)
    var = on.empty(6, "float32")
    variance_of_rows[6,](on(x), on(counts), var, BLOCK=64)
    on.check(var, [exact(row[:n]).var() for row, n in zip(x, counts)], 1e-4)
