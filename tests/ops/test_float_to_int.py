"""Casts of floats to integers: toward zero, saturating, NaN to 0; and the few instructions that this takes."""

import re
from collections import Counter

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu

FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e5m2", "float8_e4m3fn"]
INTS = [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")]
N = 131   # several groups of four and a remainder


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def specials(name: str) -> np.ndarray:
    """NaNs of both signs, infinities, zeros, the limits of every integer dtype and their neighbours, fractions."""
    edges = [s * (2.0**b + d) for b in (0, 7, 8, 15, 16, 31, 32, 63, 64) for s in (1, -1) for d in (-1, -0.5, 0, 0.5, 1)]
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 0.49, -0.99, 1e-40, *edges], np.float64)
    with np.errstate(over="ignore"):
        x = values.astype(numpy_dtype(name))
    bits = x.view(f"i{x.itemsize}")
    around = np.concatenate([x, (bits + 1).view(x.dtype), (bits - 1).view(x.dtype)])
    return np.resize(around, -(-len(around) // N) * N).reshape(-1, N)


def converted(x: np.ndarray, name: str) -> np.ndarray:
    """The expected integers, computed exactly with Python integers."""
    info = np.iinfo(name)
    one = lambda v: 0 if np.isnan(v) else info.max if v > info.max else info.min if v < info.min else int(v)
    return np.array([one(float(v)) for v in x.reshape(-1)], name).reshape(x.shape)


@tile.jit
def cast(x, y, z, N: tile.constexpr):
    i = tile.program_id(0)
    tile.store(y[i, 0:N], tile.load(x[i, 0:N]).to(y.dtype))
    tile.store(z[i], tile.load(x[i, 5]).to(z.dtype))


def check(backend: str, source: str, target: str) -> None:
    x = specials(source)
    y, z = np.zeros(x.shape, target), np.zeros(len(x), target)
    cast[len(x),](x, y, z, N=N, backend=backend)
    want = converted(x, target)
    np.testing.assert_array_equal(y, want, err_msg=f"{source} to {target}")
    np.testing.assert_array_equal(z, want[:, 5])


@pytest.mark.parametrize("target", INTS)
@pytest.mark.parametrize("source", FLOATS)
def test_a_float_is_truncated_toward_zero_and_saturated(source, target):
    """For tiles and scalars."""
    check("sim", source, target)


@needs_gpu()
@in_child(timeout=300)
def test_floats_are_cast_to_the_same_integers_on_a_gpu():
    for source in FLOATS:
        for target in INTS:
            check("cuda", source, target)


@tile.jit
def cast_all(x, y, N: tile.constexpr):
    tile.store(y[0:N], tile.load(x[0:N]).to(y.dtype))


# Instructions per 16 elements of a thread, on Hopper and before: F2IP converts and packs two.
COUNTS = {("float32", "int32"): {"F2I": 16}, ("float32", "uint16"): {"F2I": 16, "PRMT": 8},
          ("float16", "int32"): {"F2I": 16}, ("float16", "uint8"): {"F2I": 16, "I2IP": 8},
          ("float32", "int64"): {"F2I": 16, "FSETP": 16, "FSEL": 16}, ("float64", "int32"): {"F2I": 16, "DSETP": 16, "SEL": 16}}
HOPPER = {("float32", "int8"): {"F2IP": 8}, ("float32", "uint8"): {"F2IP": 8}, ("bfloat16", "int32"): {"F2I": 16}}
AMPERE = {("float32", "int8"): {"F2I": 16, "I2IP": 8}}


@pytest.mark.parametrize("target, source, to, most", [("sm_90a", *k, v) for k, v in (COUNTS | HOPPER).items()]
                         + [("sm_80", *k, v) for k, v in (COUNTS | AMPERE).items()])
def test_a_cast_is_one_instruction_where_the_hardware_saturates(target, source, to, most):
    """No comparisons, clamps or selects, except for NaN with 64-bit integers, where the hardware does not return 0."""
    compiled = cast_all.compile(tile.ArraySpec((2048,), source), tile.ArraySpec((2048,), to), N=2048, target=target)
    words = re.findall(r"^\s*(?:/\*\w+\*/)?\s*(?:@!?U?P\w+ )?([A-Z]\w*)", compiled.sass(), re.MULTILINE)
    counted = Counter(w for w in words if w in ("F2I", "F2IP", "I2IP", "PRMT", "FSETP", "FSEL", "DSETP", "SEL", "VIMNMX", "IMNMX", "FMNMX"))
    assert counted == most
