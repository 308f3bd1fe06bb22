"""Rotated loops: the first products of the next iteration run ahead, and threads work while the second products of this one run."""

import random

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile

pytestmark = pytest.mark.usefixtures("assembled_later")

BF16 = ml_dtypes.bfloat16


@tile.jit
def attend(Q, K, V, BIAS, OUT, SUMS, start, stop, BM: tile.constexpr, BN: tile.constexpr, D: tile.constexpr, STAGES: tile.constexpr,
           FORM: tile.constexpr, ROLES: tile.constexpr = True):
    """The weighted sums of V, and the sums of the weights 2^(s - most), of keys from `start` to `stop`. FORM has the ways in which it differs."""
    m = tile.program_id(0) * BM
    q = tile.load(Q[m:m + BM, 0:D])
    most, total, acc = tile.full((BM,), -1e30, tile.float32), tile.zeros((BM,)), tile.zeros((BM, D))
    rows = m + tile.arange(0, BM)
    for i in tile.pipelined(range(start, stop, BN), stages=STAGES, warp_specialize=ROLES):
        n = start + stop - BN - i if "turned" in FORM else i
        k = tile.load(K[n:n + BN, 0:D])
        s = tile.dot(q, k.T, tile.dot(q, tile.load(V[n:n + BN, 0:D]).T) if "split" in FORM else None) * 0.25
        if "bias" in FORM:
            s += tile.load(BIAS[m:m + BM, n:n + BN])
        if "causal" in FORM:
            s = tile.where(rows[:, None] >= (n + tile.arange(0, BN))[None, :], s, -float("inf"))
        if "branch" in FORM:
            if n + BN > stop:
                s = tile.where((n + tile.arange(0, BN))[None, :] < stop, s, -float("inf"))
        new = tile.maximum(most, tile.max(s, axis=1))
        p, by = tile.exp2(s - new[:, None]), tile.exp2(most - new)
        total, most = total * by + tile.sum(p, axis=1), new
        v = k if "shared" in FORM else tile.load(V[n:n + BN, 0:D])
        if "added" in FORM:
            acc = acc * by[:, None] + tile.dot(p.to(tile.bfloat16), v)
        else:
            acc = tile.dot(p.to(tile.bfloat16), v, acc * by[:, None])
    tile.store(OUT[m:m + BM, 0:D], acc)
    tile.store(SUMS[m:m + BM], total)


def arrays(rows, keys, d, seed=0):
    rng = np.random.default_rng(seed)
    q, k, v = (rng.integers(-4, 5, (n, d)).astype(BF16) for n in (rows, max(keys, 8), max(keys, 8)))
    bias = rng.integers(-3, 4, (rows, max(keys, 8))).astype(np.float32)
    return [q, k, v, bias, np.full((rows, d), np.nan, np.float32), np.full(rows, np.nan, np.float32)]


def check(made, start, stop, form):
    q, k, v, bias, out, sums = (x.astype(np.float64) for x in made)
    s = q @ (k + v if "split" in form else k).T * 0.25 + ("bias" in form) * bias
    at = np.arange(k.shape[0])
    s[:, (at < start) | (at >= stop)] = -np.inf
    if "causal" in form:
        s = np.where(np.arange(q.shape[0])[:, None] >= at, s, -np.inf)
    p = np.exp2(s - np.maximum(s.max(axis=1, keepdims=True), -1e30))
    np.testing.assert_allclose(sums, p.sum(axis=1), rtol=1e-5)
    want = p @ (k if "shared" in form else v)
    assert np.abs(out - want).max() <= 2.0 ** -8 * (p @ np.abs(k if "shared" in form else v)).max() + 1e-6


def run(rows, start, stop, form, **constants):
    """Check one launch on the simulator against NumPy. Returns whether the loop was rotated."""
    made = arrays(rows, stop, constants["D"])
    options = dict(constants, FORM=form, num_warps=constants["BM"] // 16, target="sm_90a")
    attend.simulate(rows // constants["BM"], *made, start, stop, **options).raise_first()
    check(made, start, stop, form)
    rotation, = attend.compile(*made, start, stop, **options).rotations
    return rotation.rotated


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_rotated_loops_of_no_one_and_more_trips_are_right(stages):
    for trips in (0, 1, 2, 5):
        assert run(64, 0, 16 * trips, (), BM=64, BN=16, D=32, STAGES=stages)


FORMS = ("causal", "bias", "added", "shared", "split", "turned", "branch")


@pytest.mark.parametrize("number", range(8))
def test_drawn_rotated_loops_are_right(number):
    r = random.Random(number)
    form = tuple(sorted({FORMS[number % len(FORMS)], *r.sample(FORMS, r.randint(0, 2))}))
    bm, bn, d = r.choice((64, 128, 192)), r.choice((16, 32)), r.choice((16, 32))
    trips = r.randint(1, 4)
    start = bn * r.randint(0, 1)
    stop = start + bn * trips - (r.randrange(bn) if "branch" in form and "turned" not in form else 0)
    assert run(2 * bm if r.random() < 0.3 else bm, start, stop, form, BM=bm, BN=bn, D=d, STAGES=r.randint(2, 4))
