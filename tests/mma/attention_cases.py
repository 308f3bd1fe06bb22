"""What the tests of `kernels.attention` compare with: the result in float64, and inputs."""

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16


def _probabilities(q, k, causal, scale, window, softcap, seen, change, sinks, derivative=None):
    """(probabilities with a last column for the sinks if there are some, logarithms of the sums, derivative of the
    scores by the scaled products) of q and k of equal heads, in float64. `derivative` is that of `change`."""
    with np.errstate(invalid="ignore", over="ignore"):
        s, slope = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale), 1.0
        if softcap is not None:
            slope = 1 - np.tanh(s / softcap) ** 2
            s = softcap * np.tanh(s / softcap)
        if derivative is not None:
            slope = slope * derivative(s)
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
            s = np.concatenate([s, more], -1)
        top = s.max(axis=-1, keepdims=True, initial=-np.inf)
        p = np.exp(s - np.where(top == -np.inf, 0, top))
        total = p.sum(axis=-1, keepdims=True)
        empty = total == 0
        p /= np.where(empty, 1, total)
        return p, np.where(empty, -np.inf, np.log(np.where(empty, 1, total)) + top)[..., 0], slope


def _of_all_heads(q, *others):
    """Each head of the others as often as heads of q have it, in float64."""
    return [np.repeat(np.asarray(x).astype(np.float64), q.shape[-3] // x.shape[-3], axis=-3) for x in others]


def reference(q, k, v, *, causal=False, scale=None, window=None, softcap=None, seen=None, change=None, sinks=None):
    """(result, logarithms of the sums) in float64. `seen` is an array of bools, `change` a function of the scores."""
    q, k, v = _of_all_heads(q, q, k, v)
    p, sums, _ = _probabilities(q, k, causal, scale, window, softcap, seen, change, sinks)
    with np.errstate(invalid="ignore"):
        return p[..., :k.shape[-2]] @ v, sums


def gradients(do, dlse, q, k, v, *, causal=False, scale=None, window=None, softcap=None, seen=None, change=None, derivative=None,
              sinks=None):
    """The gradients of q, k, v, and the sinks if there are some, in float64, from those of the results. `derivative` is
    that of `change`, a function of the scores, 1 by default."""
    heads, wide = (k.shape[-3], q.shape[-3] // k.shape[-3]), _of_all_heads(q, q, k, v)
    do = np.asarray(do).astype(np.float64)
    p, _, slope = _probabilities(*wide[:2], causal, scale, window, softcap, seen, change, sinks, derivative)
    sink, p = p[..., k.shape[-2]:], p[..., :k.shape[-2]]
    delta = (do * (p @ wide[2])).sum(-1, keepdims=True) - np.asarray(dlse, np.float64)[..., None]
    ds = p * (do @ wide[2].swapaxes(-1, -2) - delta) * slope * (q.shape[-1] ** -0.5 if scale is None else scale)
    found = [ds @ wide[1]]
    for x in (ds.swapaxes(-1, -2) @ wide[0], p.swapaxes(-1, -2) @ do):
        found.append(x.reshape(*x.shape[:-3], *heads, *x.shape[-2:]).sum(-3))
    if sinks is not None:
        each = -(sink * delta)[..., 0].sum(-1)
        found.append(each if each.ndim == 1 else each.sum(0))
    return found


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
