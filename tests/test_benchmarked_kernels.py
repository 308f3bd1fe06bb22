"""The kernels of benchmarks that no other test runs are right on the simulator."""

import sys
from pathlib import Path

import numpy as np
import pytest
import tilejit as tile
from tilejit import kernels

sys.path.insert(0, str(Path(__file__).parent / "bench"))
import attention_kernels
import simulator


def test_the_simulator_s_benchmarks_compute_what_they_say():
    rng = np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (64, 64)).astype(np.float16), rng.integers(-3, 4, (64, 64)).astype(np.float16)
    c = np.zeros((64, 64), np.float32)
    simulator.product.simulate((1, 1), a, b, c, BLOCK=64).raise_first()
    assert (c == a.astype(np.float32) @ b).all()
    keys, bins, place = rng.integers(0, 5, 128).astype(np.int32), np.zeros(5, np.int32), np.zeros(128, np.int32)
    simulator.ranks.simulate(1, keys, bins, place, BLOCK=128).raise_first()
    assert (bins == np.bincount(keys, minlength=5)).all()
    x, steps = np.arange(1, 129, dtype=np.int32), np.zeros(128, np.int32)
    simulator.collatz.simulate(1, x, steps).raise_first()
    assert steps[0] == 0 and steps[26] == 111
    at, out = rng.permutation(128).astype(np.int32), np.zeros(128, np.int32)
    simulator.scatter.simulate(1, x, at, out, BLOCK=128).raise_first()
    assert (out[at] == x).all()
    simulator.twice.simulate(1, out, at, BLOCK=128).raise_first()
    assert (out[at] == 2 * x).all()
    rows, sorted_rows = rng.integers(0, 99, (2, 64)).astype(np.int32), np.zeros((2, 64), np.int32)
    simulator.sort_rows.simulate(2, rows, sorted_rows, N=64).raise_first()
    assert (sorted_rows == np.sort(rows)).all()


def test_the_functions_of_attention_s_benchmark_change_scores_and_hide_keys():
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 16, 64)).astype(np.float16) for _ in range(3))
    slopes, ids = np.zeros(2, np.float32), np.zeros(16, np.int32)
    plain = kernels.attention(q, k, v)
    assert np.allclose(kernels.attention(q, k, v, score=attention_kernels.alibi, arguments=(slopes,)), plain, atol=1e-2)
    assert np.allclose(kernels.attention(q, k, v, mask=attention_kernels.same_document, arguments=(ids,)), plain, atol=1e-2)
    assert isinstance(attention_kernels.alibi, tile.Kernel)


@pytest.mark.parametrize("causal", [False, True])
def test_the_attention_that_users_write_is_right(causal):
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, 256, 64)).astype(np.float16) for _ in range(3))
    out, want = np.empty_like(q), kernels.attention(q, k, v, causal=causal)
    config = attention_kernels.simple_configs(causal)[1]
    attention_kernels.simple_attention.simulate((2, 2), q, k, v, out, 1.442695 / 8, CAUSAL=causal, D=64, **config).raise_first()
    assert np.allclose(out, want, atol=1e-2)
