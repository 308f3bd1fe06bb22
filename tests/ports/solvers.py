"""Small systems and recurrences along one axis: Cholesky and triangular solves of batches, CTC, edit distance."""

import numpy as np
import tilejit as tile

from tests.ports.ports import Machine, exact, integers, normal, port, softmax

# One matrix for each CTA, in registers: column after column, by outer products.

@tile.jit
def cholesky(a, lower, N: tile.constexpr):
    matrix = tile.program_id(0)
    m, result, i = tile.load(a[matrix, 0:N, 0:N]), tile.zeros((N, N)), tile.arange(N)
    for k in range(N):
        column = tile.where(i >= k, m.T[k], 0.0) * tile.rsqrt(m[k, k])
        result = tile.where((i == k)[None, :], column[:, None], result)
        m -= column[:, None] * column[None, :]
    tile.store(lower[matrix, 0:N, 0:N], result)


@tile.jit
def solve_lower(lower, b, x, N: tile.constexpr, BC: tile.constexpr):
    matrix, c = tile.program_id(0), tile.program_id(1) * BC
    m, rest, i = tile.load(lower[matrix, 0:N, 0:N]), tile.load(b[matrix, 0:N, c:c + BC]), tile.arange(N)
    for k in range(N):
        row = rest[k] / m[k, k]
        tile.store(x[matrix, k, c:c + BC], row)
        rest -= tile.where(i > k, m.T[k], 0.0)[:, None] * row[None, :]


@port
def batched_cholesky_solve(on: Machine):
    g, b = normal(3, 13, 13), normal(3, 13, 20)
    a = g @ g.transpose(0, 2, 1) + 13 * np.eye(13, dtype=np.float32)
    lower, x = on.empty(a.shape, "float32"), on.empty(b.shape, "float32")
    cholesky[3,](on(a), lower, N=13)
    solve_lower[3, 2](lower, on(b), x, N=13, BC=16)
    want = np.linalg.cholesky(exact(a))
    on.check(lower, want)
    on.check(x, np.linalg.solve(want, exact(b)))


# Connectionist temporal classification (Graves et al. 2006): the states are blanks and labels by turns; each time, a
# state is reached from itself, the one before, and the second before if that is another label.

@tile.jit
def log_add(a, b):
    most = tile.maximum(a, b)
    return tile.where(most == -float("inf"), most, most + tile.log1p(tile.exp(-tile.abs(a - b))))


@tile.jit
def ctc_forward(log_p, labels, loss, STATES: tile.constexpr):
    sequence, i = tile.program_id(0), tile.arange(STATES)
    none = tile.full((STATES,), -float("inf"))
    label = tile.where(i % 2 == 1, tile.load(labels[sequence, i // 2]), 0)
    again = label[i - 2] == label
    alpha = tile.where(i < 2, tile.load(log_p[0, sequence, label]), none)
    for t in range(1, log_p.shape[0]):
        one = tile.where(i >= 1, alpha[i - 1], none)
        two = tile.where((i >= 2) & ~again, alpha[i - 2], none)
        alpha = log_add(log_add(alpha, one), two) + tile.load(log_p[t, sequence, label])
    n = 2 * labels.shape[1]
    tile.store(loss[sequence], -log_add(alpha[n], alpha[n - 1]))


@port
def ctc_loss(on: Machine):
    times, batch, words, length = 12, 3, 7, 4
    log_p, labels = np.log(softmax(normal(times, batch, words))), integers(1, 4, batch, length)
    loss = on.empty(batch, "float32")
    ctc_forward[batch,](on(log_p), on(labels), loss, STATES=2 * length + 1)
    want = []
    for s in range(batch):
        states = np.zeros(2 * length + 1, int)
        states[1::2] = labels[s]
        p = np.exp(exact(log_p[:, s]))
        alpha = np.where(np.arange(len(states)) < 2, p[0, states], 0)
        for t in range(1, times):
            two = np.where(states[2:] != states[:-2], alpha[:-2], 0)
            alpha = (alpha + np.append(0, alpha[:-1]) + np.append([0, 0], two)) * p[t, states]
        want.append(-np.log(alpha[-2:].sum()))
    on.check(loss, want)


# The distance of two sequences (Wagner and Fischer 1974), a diagonal of the table at a time; the last two stay in
# registers.

@tile.jit
def edit_distance(a, b, distance, N: tile.constexpr):
    pair, i = tile.program_id(0), tile.arange(N)
    rows, columns = a.shape[1], b.shape[1]
    letters = tile.load(a[pair, i - 1], other=-1)
    before, last = tile.zeros((N,), tile.int32), tile.zeros((N,), tile.int32)
    for d in range(rows + columns + 1):
        j = d - i
        other = tile.load(b[pair, j - 1], other=-2)
        change = before[i - 1] + (letters != other).to(tile.int32)
        step = tile.minimum(last, last[i - 1]) + 1
        new = tile.where((i == 0) | (j == 0), d, tile.minimum(change, step))
        before, last = last, new
    tile.store(distance[pair], last[rows])


@port
def levenshtein(on: Machine):
    a, b = integers(0, 3, 4, 13), integers(0, 3, 4, 17)
    distance = on.empty(4, "int32")
    edit_distance[4,](on(a), on(b), distance, N=16)
    want = []
    for x, y in zip(a, b):
        table = np.add.outer(np.arange(14), np.arange(18))
        for i, j in np.ndindex(13, 17):
            table[i + 1, j + 1] = min(table[i, j] + (x[i] != y[j]), table[i, j + 1] + 1, table[i + 1, j] + 1)
        want.append(table[-1, -1])
    on.check(distance, want)
