"""Helpers for tests of matrix products: operands in every order and stride, error bounds, configurations for calls by name."""

import os
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import strategies as st
from tilejit import kernels
from tilejit.kernels.matmul.planning import plan_launch
from tilejit.kernels.matmul.problem import Request
from tilejit.kernels.matmul.scales import scale
from tilejit.runtime.arrays import describe

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
PLACES = {"float16": 11, "bfloat16": 8, "float32": 24, "float8_e4m3fn": 4}  # significant bits of the result's mantissa
TARGETS = ("sm_90a", "sm_100a")


@contextmanager
def multiplying_on(target: str):
    """Multiply NumPy arrays as on the target."""
    before = os.environ.get("TILEJIT_TARGET")
    os.environ["TILEJIT_TARGET"] = target
    try:
        yield
    finally:
        os.environ.pop("TILEJIT_TARGET")
        if before is not None:
            os.environ["TILEJIT_TARGET"] = before


def with_configs(hopper, blackwell):
    """Parametrize by target and configuration: None, and the given ones for each target."""
    return pytest.mark.parametrize("target,config", [*(("sm_90a", c) for c in (None, *hopper)), *(("sm_100a", c) for c in (None, *blackwell))])


def with_layout(x, how: str):
    """The same numbers with other strides: row-major or column-major, rows padded to 16 bytes, every second element, reversed."""
    *batch, m, n = x.shape
    if how == "columns":
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "padded":
        wide = np.zeros((*batch, m, -(-n // 16) * 16 + 16), x.dtype)
        wide[..., :n] = x
        return wide[..., :n]
    if how == "spaced":
        wide = np.zeros((*batch, m, 2 * n + 1), x.dtype)
        wide[..., 1::2] = x
        return wide[..., 1::2]
    if how == "reversed":
        return np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    return np.ascontiguousarray(x)


def as_multiplied(x, rounded=True):
    """float64 of the values that enter the multipliers: TF32 has 10 mantissa bits; TMA rounds to nearest even, and the tensor
    cores truncate."""
    if x.dtype == np.float32:
        bits = np.ascontiguousarray(x).view(np.uint32)
        bits = bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1)) if rounded else bits
        x = (bits & np.uint32(0xFFFFE000)).view(np.float32)
    return x.astype(np.float64)


def assert_close(got, a, b, scale=1.0, rounded=True):
    """Assert that integers are exact (they wrap), and floats within one rounding of the result plus the roundings of k float32
    additions."""
    x, y = as_multiplied(a, rounded), as_multiplied(b, rounded)
    exact = (x @ y) * scale
    if got.dtype.kind in "iu":
        np.testing.assert_array_equal(got, (a.astype(np.int64) @ b.astype(np.int64)).astype(got.dtype))
        return
    bound = np.abs(exact) * 2.0 ** -PLACES[got.dtype.name] + np.abs(x) @ np.abs(y) * scale * (a.shape[-1] + 2) * 2.0 ** -23 + 1e-6
    assert (np.abs(got.astype(np.float64) - exact) <= bound).all()


def product(a, b, out_dtype=None, **options):
    """The result, with `out` initially full of NaN (or of the largest integer)."""
    shape = (*(a.shape[:-2] or b.shape[:-2]), a.shape[-2], b.shape[-1])
    dtype = np.dtype(out_dtype or (np.int32 if a.dtype.kind in "iu" else BF16 if a.dtype.itemsize == 1 else a.dtype))
    out = np.full(shape, np.iinfo(dtype).max if dtype.kind in "iu" else np.nan, dtype)
    precision = "tf32" if a.dtype == np.float32 else None
    assert kernels.matmul(a, b, out, precision=precision, **options) is out
    return out


LAID = ("rows", "columns", "padded", "spaced", "reversed")
LAYOUTS = st.sampled_from(LAID)
EXTENT = st.one_of(st.integers(1, 40), st.sampled_from((63, 64, 65, 96, 128, 130, 200)))
OPERANDS = ((BF16, BF16), (np.float16, np.float16), (np.float32, np.float32), (E4M3, E4M3), (E5M2, E4M3), (np.int8, np.int8), (np.uint8, np.int8))


def planned(a, b, out, epilogue, tiles, config=None, fast_accum=False, scales=(), target="sm_90a"):
    """The launch planned for these arrays."""
    scaled = tuple(scale("a scale", s) for s in scales)
    return plan_launch(Request(*map(describe, (a, b, out)), None, scaled, fast_accum, epilogue, 0, tuple(map(describe, tiles))), config, target)


def planned_views(x, y, out, config, precision=None, fast_accum=True, target="sm_90a", choice=None):
    """The launch planned for a product without scales and epilogue."""
    return plan_launch(Request(x, y, out, precision, (), fast_accum, None, 0, ()), config, target, choice)


# -- epilogues ---------------------------------------------------------------------------------------------------------------

@tile.jit
def added(sums, row, column, beside):
    return sums + beside


@tile.jit
def plus_one(acc, row, column):
    return acc + 1


@tile.jit
def bias_gelu_residual(acc, row, column, bias, residual):
    rows, columns = acc.shape
    v = acc + tile.load(bias[column:column + columns])[None, :]
    v = 0.5 * v * (1 + tile.erf(v * 0.70710678))
    return v + tile.load(residual[row:row + rows, column:column + columns])


@tile.jit
def bias_gelu_added(acc, row, column, bias, residual):
    v = acc + tile.load(bias[column:column + acc.shape[1]])[None, :]
    return 0.5 * v * (1 + tile.tanh(v * (0.7978845608 + 0.0356774081 * v * v), fast=True)) + residual


@tile.jit
def of_many_values(acc, row, column):
    powers = tile.exp(acc), tile.tanh(acc), tile.erf(acc), acc * acc
    total = tile.sum(powers[0] + powers[1] + powers[2] + powers[3])  # all must stay alive until the end
    return powers[0] * total + powers[1] / total + powers[2] * acc + powers[3]
