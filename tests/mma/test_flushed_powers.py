"""Powers of 2 that only products and sums take flush subnormal results, which saves three of their four instructions."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile

pytestmark = pytest.mark.usefixtures("assembled_later")


@tile.jit
def attend(S, V, OUT, LAST: tile.constexpr):
    """softmax(S) @ V, in blocks of 32 columns; LAST says what else becomes of the powers."""
    most, total, acc = tile.full((32,), -1e30, tile.float32), tile.zeros((32,)), tile.zeros((32, 16))
    for n in range(0, 64, 32):
        s = tile.load(S[0:32, n:n + 32])
        new = tile.maximum(most, tile.max(s, axis=1))
        p = tile.where(s > -100.0, tile.exp2(s - new[:, None]), 0.0)
        by = tile.exp2(most - new)
        total, most = total * by + tile.sum(p, axis=1), new
        weights = p * 2.0 if LAST == "multiplied" else p
        acc = tile.dot(weights.to(tile.bfloat16), tile.load(V[n:n + 32, 0:16]), acc * by[:, None])
        if LAST == "stored":
            tile.store(S[0:32, n:n + 32], p)
    tile.store(OUT[0:32, 0:16], acc / total[:, None])


@tile.jit
def softmax(S, OUT):
    p = tile.exp2(tile.load(S[0:32, 0:64]))
    tile.store(OUT[0:32, 0:64], p / tile.sum(p, axis=1, keepdims=True))


def arrays():
    rng = np.random.default_rng(0)
    s = (rng.standard_normal((32, 64)) * 60).astype(np.float32)
    v = rng.integers(-3, 4, (64, 16)).astype(ml_dtypes.bfloat16)
    return s, v, np.zeros((32, 16), np.float32)


def test_powers_of_an_attention_are_flushed_and_its_result_is_right():
    s, v, out = arrays()
    powers = np.exp2(s.astype(np.float64) - s.max(axis=1, keepdims=True))
    powers[s <= -100] = 0
    want = powers @ v.astype(np.float64) / powers.sum(axis=1, keepdims=True)
    made = attend.compile(s, v, out, LAST="", target="sm_90a")
    assert made.graph.count(" exp2_fast(") == 1 and made.graph.count(" exp2(") == 1  # that of a row's maximum stays
    attend.simulate(1, s, v, out, LAST="", target="sm_90a").raise_first()
    assert np.abs(out - want).max() < 2e-2


@pytest.mark.parametrize("last", ["stored", "multiplied"])
def test_powers_that_anything_else_takes_keep_subnormal_results(last):
    made = attend.compile(*arrays(), LAST=last, target="sm_90a")
    assert "exp2_fast(" not in made.graph and made.graph.count(" exp2(") == 2


def test_powers_without_a_product_keep_subnormal_results():
    s = np.full((32, 64), -140, np.float32)
    out = np.zeros((32, 64), np.float32)
    assert "exp2_fast(" not in softmax.compile(s, out, target="sm_90a").graph
    softmax[1,](s, out)
    assert (out == 1 / 64).all()
