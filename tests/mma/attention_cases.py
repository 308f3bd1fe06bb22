"""What the tests of `kernels.attention` compare with: the result in float64, and inputs."""

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16


def reference(q, k, v, *, causal=False, scale=None, window=None, softcap=None, seen=None, change=None, sinks=None):
    """(result, logarithms of the sums) in float64. `seen` is an array of bools, `change` a function of the scores."""
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    group = q.shape[-3] // k.shape[-3]
    k, v = np.repeat(k, group, axis=-3), np.repeat(v, group, axis=-3)
    with np.errstate(invalid="ignore", over="ignore"):
        s = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
        if softcap is not None:
            s = softcap * np.tanh(s / softcap)
        if change is not None:
            s = change(s)
        rows, keys = s.shape[-2:]
        at, columns = np.arange(rows)[:, None] + keys - rows, np.arange(keys)[None, :]
        left, right = window or (None, None)
        hidden = np.zeros((rows, keys), bool)
        if causal:
            hidden |= columns > at
        if right is not None:
            hidden |= columns > at + right
        if left is not None:
            hidden |= columns < at - left
        if seen is not None:
            hidden = hidden | ~seen
        s = np.where(hidden, -np.inf, s)
        if sinks is not None:
            more = np.broadcast_to(np.asarray(sinks, np.float64)[:, None, None], (*s.shape[:-1], 1))
            s, v = np.concatenate([s, more], -1), np.concatenate([v, np.zeros((*v.shape[:-2], 1, v.shape[-1]))], -2)
        top = s.max(axis=-1, keepdims=True, initial=-np.inf)
        p = np.exp(s - np.where(top == -np.inf, 0, top))
        total = p.sum(axis=-1, keepdims=True)
        empty = total == 0
        out = (p / np.where(empty, 1, total)) @ v
        return np.where(empty, 0, out), np.where(empty, -np.inf, np.log(np.where(empty, 1, total)) + top)[..., 0]


def inputs(batch, heads, kv_heads, rows, keys, d=64, dv=None, dtype=BF16, by_rows=False, seed=0):
    """q, k and v; `by_rows`: in memory the rows come before the heads. `batch` may be None."""
    rng = np.random.default_rng(seed)
    made = []
    for h, n, columns in ((heads, rows, d), (kv_heads, keys, d), (kv_heads, keys, dv or d)):
        x = rng.standard_normal((batch or 1, *((n, h) if by_rows else (h, n)), columns)).astype(dtype)
        x = x.swapaxes(1, 2) if by_rows else x
        made.append(x[0] if batch is None else x)
    return made


def check(got, lse, q, k, v, **options):
    """Assert closeness: probabilities and the result round to the dtype once each."""
    want, sums = reference(q, k, v, **options)
    eps = float(ml_dtypes.finfo(v.dtype).eps)
    assert got.dtype == v.dtype and got.shape == want.shape
    values = np.abs(np.where(np.isfinite(v), v, 0).astype(np.float64)).max(initial=0)
    with np.errstate(invalid="ignore"):
        error, bound = np.abs(got.astype(np.float64) - want), eps * (np.abs(want) + values)
    same = (want == got) | np.isnan(want) & np.isnan(got.astype(np.float64))
    assert ((error <= bound) | same).all(), np.nanmax(error - bound)
    if lse is not None:
        assert lse.dtype == np.float32 and lse.shape == sums.shape
        with np.errstate(invalid="ignore"):
            close = np.abs(lse - sums) <= 1e-5 * (1 + np.abs(sums))
        assert (close | (lse == sums) | np.isnan(lse) & np.isnan(sums)).all(), np.nanmax(np.abs(lse - sums))
