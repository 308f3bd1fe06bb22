"""Kernels outside the tests (the demo's, the benchmarks') agree with NumPy on the simulator.

Like all kernels in tests, they are then assembled for each target (`tests/every_kernel.py`); here with the shapes that are benchmarked.
"""

import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import tilejit as tile
import tilejit.demo

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "bench"))
import copy_kernels  # noqa: E402
import launch_kernels  # noqa: E402
import product_kernels  # noqa: E402
import row_kernels  # noqa: E402
import softmax_kernels  # noqa: E402


def test_the_demo_checks_all_of_its_kernels(monkeypatch, capsys):
    monkeypatch.setattr("tilejit.runtime.driver.available", lambda: False)
    assert tilejit.demo.run() == 0
    assert capsys.readouterr().out.count("ok:") == len(tilejit.demo._cases())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [1024, 2048, 4096, 8192, 16384, 32768])
def test_the_benchmarked_softmax_agrees_with_numpy(columns, dtype):
    import ml_dtypes
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = np.random.default_rng(0).standard_normal((2, columns)).astype(kind)
    out = np.zeros_like(x)
    softmax_kernels.softmax(x, out, 2, columns, kind.itemsize)()
    e = np.exp(x.astype(np.float64) - x.astype(np.float64).max(axis=1, keepdims=True))
    want = e / e.sum(axis=1, keepdims=True)
    assert np.abs(out.astype(np.float64) - want).max() <= want.max() * (1e-2 if kind.itemsize == 2 else 2e-6)


def test_the_benchmarked_row_gathers_and_scatters_agree_with_numpy():
    rng = np.random.default_rng(0)
    W, y, numbers = rng.standard_normal((40, 256)).astype(np.float32), np.zeros((32, 256), np.float32), rng.permutation(40)[:32]
    row_kernels.taken[2](W, numbers, y, R=16, C=256)
    np.testing.assert_array_equal(y, W[numbers])
    row_kernels.put[2](W, numbers, y + 1, R=16, C=256)
    np.testing.assert_array_equal(W[numbers], y + 1)


@pytest.mark.parametrize("name, options", [
    ("through_tma", {"STAGES": 4, "AHEAD": 2}), ("through_ldgsts", {"STAGES": 3}), ("by_vectors", {})])
def test_the_benchmarked_copies_agree_with_numpy(name, options):
    a = np.random.default_rng(0).standard_normal((100, 256)).astype(np.float32)
    b = np.zeros_like(a)
    if name == "by_vectors":
        copy_kernels.by_vectors[7,](a, b, ROWS=16, COLUMNS=256)
    else:
        # In `through_ldgsts`, threads read without a barrier what they copied themselves.
        with pytest.warns(tile.TileWarning, match="layout-dependent") if name == "through_ldgsts" else nullcontext():
            getattr(copy_kernels, name)[3,](a, b, np.zeros(1, np.uint32), ROWS=16, COLUMNS=256, **options)
    assert (a == b).all()


def test_the_benchmarked_epilogues_agree_with_numpy():
    from tilejit.kernels import matmul
    rng = np.random.default_rng(0)
    a, b, residual = (rng.standard_normal(shape).astype(np.float16) for shape in ((100, 64), (64, 72), (100, 72)))
    bias = rng.standard_normal(72).astype(np.float16)
    v = a.astype(np.float64) @ b.astype(np.float64) + bias
    gelu = 0.5 * v * (1 + np.tanh(v * (0.7978845608 + 0.0356774081 * v * v)))
    for function, tiles, want, roundings in ((product_kernels.bias_gelu, (bias,), gelu, 1),
                                             (product_kernels.bias_gelu_residual, (bias, residual), gelu + residual, 1),
                                             (product_kernels.narrow_bias_gelu_residual, (bias, residual), gelu + residual, 7)):
        got = matmul(a, b, epilogue=function, tiles=tiles)
        assert (np.abs(got - want) <= (1 + roundings) * 2.0**-11 * (np.abs(want) + np.abs(v) + 1)).all()  # the error of fast tanh is up to 2**-11


def test_the_kernel_of_the_launch_benchmark_runs():
    a, b, c, d = (np.full(4, n, np.float32) for n in range(4))
    launch_kernels.tiny[1,](a, b, c, d, 0, 1, 2)
    assert a.tolist() == [6, 0, 0, 0]
