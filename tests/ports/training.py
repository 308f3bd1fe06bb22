"""Steps of training: embeddings with their gradients, Adam of one array and of many at once."""

import numpy as np
import tilejit as tile

from tests.ports.ports import Machine, bfloat16, exact, integers, normal, port, uniform


@tile.jit
def look_up(table, tokens, out, padding, BT: tile.constexpr, BD: tile.constexpr):
    t, d = tile.program_id(0) * BT, tile.program_id(1) * BD
    token = tile.load(tokens[t:t + BT])
    rows = tile.load(table[token, d:d + BD])
    tile.store(out[t:t + BT, d:d + BD], tile.where((token == padding)[:, None], 0, rows))


@tile.jit
def add_gradients(dout, tokens, dtable, padding, BT: tile.constexpr, BD: tile.constexpr):
    t, d = tile.program_id(0) * BT, tile.program_id(1) * BD
    token = tile.load(tokens[t:t + BT], other=padding)
    tile.atomic_add(dtable[token, d:d + BD], tile.load(dout[t:t + BT, d:d + BD]), mask=(token != padding)[:, None])


@port
def embedding(on: Machine):
    words, width, tokens = 30, 70, integers(0, 30, 45, dtype=np.int64)
    table, dout = normal(words, width, dtype=bfloat16), normal(45, width, dtype=bfloat16)
    out, dtable = on.empty((45, width), bfloat16), on.zeros((words, width), "float32")
    look_up[3, 3](on(table), on(tokens), out, 3, BT=16, BD=32)
    add_gradients[3, 3](on(dout), on(tokens), dtable, 3, BT=16, BD=32)
    kept = (tokens != 3)[:, None]
    on.check(out, np.where(kept, table[tokens].astype(np.float32), 0), 0)
    want = np.zeros((words, width))
    np.add.at(want, tokens, exact(dout) * kept)
    on.check(dtable, want)


# AdamW (Loshchilov and Hutter 2019), with the weights in bfloat16 and a master copy in float32.

@tile.jit
def adam_step(master, grad, m, v, lr, beta1, beta2, eps, decay, step):
    m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad * grad
    m_hat, v_hat = m / (1 - beta1 ** step), v / (1 - beta2 ** step)
    return master - lr * (m_hat / (tile.sqrt(v_hat) + eps) + decay * master), m, v


@tile.jit
def adam_of_one(weight, master, grad, m, v, lr, beta1, beta2, eps, decay, step, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK
    state = (tile.load(x[i:i + BLOCK]).to(tile.float32) for x in (master, grad, m, v))
    new = adam_step(*state, lr, beta1, beta2, eps, decay, step)
    for x, value in zip((master, m, v), new):
        tile.store(x[i:i + BLOCK], value)
    if weight is not None:
        tile.store(weight[i:i + BLOCK], new[0])


def adam_in_numpy(master, grad, m, v, lr, beta1, beta2, eps, decay, step):
    m, v = beta1 * m + (1 - beta1) * grad, beta2 * v + (1 - beta2) * grad * grad
    return master - lr * (m / (1 - beta1 ** step) / (np.sqrt(v / (1 - beta2 ** step)) + eps) + decay * master), m, v


HYPER = 1e-2, 0.9, 0.99, 1e-8, 0.1, 3


@port
def adam(on: Machine):
    for dtype in (np.float32, bfloat16):
        master, grad, m, v = normal(1001), normal(1001, dtype=dtype), normal(1001), uniform(1001)
        weight = None if dtype == np.float32 else on.empty(1001, dtype)
        given = on(master), on(grad), on(m), on(v)
        adam_of_one[4,](weight, *given, *HYPER, BLOCK=256)
        want = adam_in_numpy(exact(master), exact(grad), exact(m), exact(v), *HYPER)
        for x, w in zip((given[0], *given[2:]), want):
            on.check(x, w)
        if weight is not None:
            on.check(weight, want[0])


@tile.jit
def adam_of_many(masters, grads, ms, vs, lr, beta1, beta2, eps, decay, step, BLOCK: tile.constexpr):
    """One launch for a list of arrays of any lengths: CTA j takes blocks j, j + n, ... of each."""
    for master, grad, m, v in zip(masters, grads, ms, vs):
        for i in range(tile.program_id(0) * BLOCK, master.shape[0], tile.num_programs(0) * BLOCK):
            state = [tile.load(x[i:i + BLOCK]) for x in (master, grad, m, v)]
            for x, value in zip((master, m, v), adam_step(*state, lr, beta1, beta2, eps, decay, step)):
                tile.store(x[i:i + BLOCK], value)


@port
def multi_tensor_adam(on: Machine):
    lengths = 300, 1, 77
    lists = [[normal(n) for n in lengths] for _ in range(3)] + [[uniform(n) for n in lengths]]
    given = [[on(x) for x in one] for one in lists]
    adam_of_many[2,](*given, *HYPER, BLOCK=64)
    for i in range(len(lengths)):
        want = adam_in_numpy(*(exact(one[i]) for one in lists), *HYPER)
        for one, w in zip((given[0], *given[2:]), want):
            on.check(one[i], w)
