"""Losses of language models: cross entropy, the one fused with the last product, KL and Jensen-Shannon divergence."""

import numpy as np
import tilejit as tile

from tests.ports.ports import Machine, bfloat16, exact, integers, normal, port, softmax as softmax_in_numpy

# Cross entropy with the gradient written over the logits (Liger, Hsu et al. 2024): one pass for the running maximum and
# sum of exponentials (Milakov and Gimelshein 2018), one for the gradient. Labels of `ignored` have neither.

@tile.jit
def cross_entropy_of_rows(logits, targets, loss, weight, smoothing, ignored, scale, BLOCK: tile.constexpr,
                          GRADIENT: tile.constexpr):
    row, n = tile.program_id(0), logits.shape[1]
    target = tile.load(targets[row])
    if target == ignored:
        tile.store(loss[row], 0.0)
        if GRADIENT:
            for i in range(0, n, BLOCK):
                tile.store(logits[row, i:i + BLOCK], tile.zeros((BLOCK,)))
        return
    w = 1.0
    if weight is not None:
        w = tile.load(weight[target])
    at_target = tile.load(logits[row, target]).to(tile.float32)
    most, total, summed = -float("inf"), 0.0, 0.0
    for i in range(0, n, BLOCK):
        x = tile.load(logits[row, i:i + BLOCK], other=-float("inf")).to(tile.float32)
        new = tile.maximum(most, tile.max(x))
        total = total * tile.exp(most - new) + tile.sum(tile.exp(x - new))
        summed += tile.sum(tile.where(tile.isinf(x), 0.0, x))
        most = new
    log_sum = most + tile.log(total)
    smooth = smoothing / n
    tile.store(loss[row], w * ((1 - smoothing) * (log_sum - at_target) + smoothing * log_sum - smooth * summed))
    if GRADIENT:
        for i in range(0, n, BLOCK):
            p = tile.exp(tile.load(logits[row, i:i + BLOCK]).to(tile.float32) - log_sum) - smooth
            p -= tile.where(i + tile.arange(BLOCK) == target, 1 - smoothing, 0.0)
            tile.store(logits[row, i:i + BLOCK], p * w * scale)


def cross_entropy_in_numpy(x, targets, weight, smoothing, scale):
    n, rows = x.shape[1], np.arange(len(x))
    log_p = np.log(softmax_in_numpy(x))
    want = np.full_like(x, smoothing / n)
    want[rows, targets] += 1 - smoothing
    kept = (targets >= 0) * weight[targets]
    return -(want * log_p).sum(1) * kept, (np.exp(log_p) - want) * kept[:, None] * scale


@port
def cross_entropy(on: Machine):
    x, targets = 3 * normal(9, 300), integers(0, 300, 9, dtype=np.int64)
    targets[4] = -100
    weight = (1 + np.arange(300) % 3).astype(np.float32)
    for dtype, w, smoothing in ((np.float32, None, 0.0), (bfloat16, weight, 0.1)):
        logits, loss = on(x.astype(dtype)), on.empty(9, "float32")
        cross_entropy_of_rows[9,](logits, on(targets), loss, None if w is None else on(w), smoothing, -100, 1 / 8,
                                  BLOCK=128, GRADIENT=True)
        want, gradient = cross_entropy_in_numpy(exact(x.astype(dtype)), targets, np.ones(300) if w is None else w,
                                                smoothing, 1 / 8)
        on.check(loss, want)
        on.check(logits, gradient)


# The loss of the last layer without its logits in memory (Liger's fused linear cross entropy): chunk by chunk of the
# rows, a product, the loss, which leaves the gradient of the logits, and the products for the gradients of input and
# weight.

@tile.jit
def product(a, b, c, BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, ADD: tile.constexpr = False):
    m, n = tile.program_id(0) * BM, tile.program_id(1) * BN
    acc = tile.zeros((BM, BN))
    for k in tile.pipelined(range(0, a.shape[1], BK), stages=2):
        acc = tile.dot(tile.load(a[m:m + BM, k:k + BK]), tile.load(b[k:k + BK, n:n + BN]), acc)
    if ADD:
        acc += tile.load(c[m:m + BM, n:n + BN])
    tile.store(c[m:m + BM, n:n + BN], acc)


@port
def fused_linear_cross_entropy(on: Machine):
    tokens, width, words, chunk = 22, 40, 72, 12
    x, weight = normal(tokens, width, dtype=bfloat16), normal(words, width, dtype=bfloat16)
    targets = integers(0, words, tokens)
    gx, gw, gt = on(x), on(weight), on(targets)
    loss, dx, dw = on.empty(tokens, "float32"), on.empty((tokens, width), bfloat16), on.zeros((words, width), "float32")
    blocks = dict(BM=32, BN=32, BK=32)
    for first in range(0, tokens, chunk):
        rows = min(chunk, tokens - first)
        part, logits = slice(first, first + rows), on.empty((rows, words), bfloat16)
        product[1, 3](gx[part], gw.transpose(1, 0), logits, **blocks)
        cross_entropy_of_rows[rows,](logits, gt[part], loss[part], None, 0.0, -100, 1 / tokens, BLOCK=64, GRADIENT=True)
        product[1, 2](logits, gw, dx[part], **blocks)
        product[3, 2](logits.transpose(1, 0), gx[part], dw, **blocks, ADD=True)
    logits = (exact(x) @ exact(weight).T).astype(bfloat16)
    want, gradient = cross_entropy_in_numpy(exact(logits), targets, np.ones(words), 0.0, 1 / tokens)
    on.check(loss, want, 2e-2)
    on.check(dx, gradient @ exact(weight), 2e-2)
    on.check(dw, gradient.T @ exact(x), 2e-2)


# Divergences of distributions given as logarithms: KL(y | x), and Jensen and Shannon's, a mean of two towards a
# mixture.

@tile.jit
def kl_of_rows(log_p, truth, loss, dlog_p, eps, LOG: tile.constexpr, BLOCK: tile.constexpr):
    row, n = tile.program_id(0), log_p.shape[1]
    total = tile.zeros((BLOCK,))
    for i in range(0, n, BLOCK):
        lp = tile.load(log_p[row, i:i + BLOCK])
        if LOG:
            lt = tile.load(truth[row, i:i + BLOCK], other=-float("inf"))
            t = tile.exp(lt)
        else:
            t = tile.load(truth[row, i:i + BLOCK])
            lt = tile.log(tile.maximum(t, eps))
        total += tile.where(t > 0, t * (lt - lp), 0.0)
        tile.store(dlog_p[row, i:i + BLOCK], -t)
    tile.store(loss[row], tile.sum(total))


@port
def kl_divergence(on: Machine):
    x, y = normal(5, 150), 2 * normal(5, 150)
    p, t = softmax_in_numpy(exact(x)), softmax_in_numpy(exact(y))
    for truth, is_log in ((t, False), (np.log(t), True)):
        loss, gradient = on.empty(5, "float32"), on.empty((5, 150), "float32")
        kl_of_rows[5,](on(np.log(p).astype(np.float32)), on(truth.astype(np.float32)), loss, gradient, 1e-10,
                       LOG=is_log, BLOCK=64)
        on.check(loss, (t * np.log(t / p)).sum(1))
        on.check(gradient, -t)


@tile.jit
def jsd_of_rows(log_p, log_q, labels, loss, dlog_q, beta, ignored, BLOCK: tile.constexpr):
    row, n = tile.program_id(0), log_p.shape[1]
    kept = 1.0 if tile.load(labels[row]) != ignored else 0.0
    total = tile.zeros((BLOCK,))
    for i in range(0, n, BLOCK):
        lp = tile.load(log_p[row, i:i + BLOCK], other=-float("inf"))
        lq = tile.load(log_q[row, i:i + BLOCK], other=-float("inf"))
        p, q = tile.exp(lp), tile.exp(lq)
        lm = tile.log(tile.maximum(beta * p + (1 - beta) * q, 1e-30))
        total += tile.where(p > 0, beta * p * (lp - lm), 0.0) + tile.where(q > 0, (1 - beta) * q * (lq - lm), 0.0)
        tile.store(dlog_q[row, i:i + BLOCK], tile.where(q > 0, (1 - beta) * q * (lq - lm), 0.0) * kept)
    tile.store(loss[row], tile.sum(total) * kept)


@port
def jensen_shannon_divergence(on: Machine):
    p, q = softmax_in_numpy(exact(normal(4, 100))), softmax_in_numpy(exact(2 * normal(4, 100)))
    labels, beta = np.array([3, -100, 0, 7], np.int32), 0.3
    loss, gradient = on.empty(4, "float32"), on.empty((4, 100), "float32")
    lp, lq = (on(np.log(x).astype(np.float32)) for x in (p, q))
    jsd_of_rows[4,](lp, lq, on(labels), loss, gradient, beta, -100, BLOCK=64)
    kept, m = labels != -100, beta * p + (1 - beta) * q
    on.check(loss, (beta * p * np.log(p / m) + (1 - beta) * q * np.log(q / m)).sum(1) * kept)
    on.check(gradient, (1 - beta) * q * np.log(q / m) * kept[:, None])
