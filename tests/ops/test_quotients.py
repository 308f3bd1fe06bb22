"""Quotients by a divisor that elements of a thread share are correctly rounded; see `ops/tiles/quotients.py`."""

import re

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile

from tests.emitted_code import run_emitted
from tests.gpu import in_child, needs_gpu

HALVES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3e-42, 1.2e-38, 3.4e38, -3.4e38, 1.0, -1.0, 2.0 ** -63, 2.0 ** 65, 2.0 ** -60, 2.0 ** 61],
                   np.float32)


def fma(x, y, z):
    """``x * y + z`` of float32: an exact product, and a sum in 64 bits that is rounded again, which seldom matters."""
    return (x.astype(np.longdouble) * y.astype(np.longdouble) + z.astype(np.longdouble)).astype(np.float32)


def hard_cases(count: int, seed: int):
    """Dividends and divisors with quotients as near to the middle between two numbers as there are. With integers x and y of 24
    bits and an odd m of 25, ``x * 2**k - m * y`` is a small odd number d if m is -d / y modulo 2**k."""
    rng, found = np.random.default_rng(seed), []
    y = rng.integers(1 << 22, 1 << 23, count, dtype=np.uint64) * 2 + 1
    inverse = y.copy()
    for _ in range(6):
        inverse *= 2 - y * inverse
    for k in (24, 25):
        for d in range(-31, 32, 2):
            m = (np.uint64(-d % 2**64) * inverse) % np.uint64(1 << k)
            m = np.where(m < 1 << 24, m + np.uint64(1 << 24), m) if k == 24 else m
            x = (m * y).astype(np.int64) + d >> k
            fits = (m >= 1 << 24) & (x >= 1 << 23) & (x < 1 << 24) & (x << k == (m * y).astype(np.int64) + d)
            found.append(np.stack([x[fits], y[fits].astype(np.int64)]))
    return np.concatenate(found, axis=1).astype(np.float32)


def test_a_product_with_the_reciprocal_is_corrected_to_the_nearest_number():
    x, y = hard_cases(20_000, seed=0)
    assert len(x) > 400_000
    r = np.float32(1) / y
    q = x * r
    np.testing.assert_array_equal(fma(fma(q, -y, x), r, q), x / y)
    assert (q != x / y).mean() > 0.1  # else the test would not need the correction


@tile.jit(num_warps=1)
def by_rows(x, y, out, N: tile.constexpr):
    row = tile.program_id(0)
    tile.store(out[row, 0:N], tile.load(x[row, 0:N]) / tile.load(y[row]))


@tile.jit(num_warps=1)
def by_row_of_matrix(x, y, out, M: tile.constexpr, N: tile.constexpr):
    tile.store(out[0:M, 0:N], tile.load(x[0:M, 0:N]) / tile.load(y[0:M])[:, None])


def rows_of_numbers(kind: str, rows: int = 64, columns: int = 1024):
    """Dividends and a divisor for each row: hard ones, all exponents, and in most rows some special numbers."""
    rng = np.random.default_rng(3)
    far = np.where(np.arange(rows) % 4, 20, 80)  # exponents: of three rows in four no quotient is special
    x = np.ldexp(rng.uniform(1, 2, (rows, columns)), rng.integers(-far[:, None], far[:, None], (rows, columns))).astype(np.float32)
    y = np.ldexp(rng.uniform(-2, 2, rows), rng.integers(-far, far)).astype(np.float32)
    x[:16] = np.ldexp(rng.uniform(-2, 2, (16, columns)), rng.integers(-60, 60, (16, 1)))
    y[:16] = rng.uniform(-1000, 1000, 16)
    for sign, at in ((-1, slice(8, 12)), (1, slice(12, 16))):  # quotients beyond the normal numbers, and near their ends
        x[at] = np.ldexp(rng.uniform(1, 2, (4, columns)), sign * rng.integers(64, 105, (4, 1)))
        y[at] = np.ldexp(rng.uniform(1, 2, 4), -sign * rng.integers(30, 60, 4))
    y[16:32] = SPECIAL
    x[32:48, ::7] = SPECIAL[:, None]
    hard = hard_cases(2000, seed=1)
    for row in range(48, min(rows, 150)):  # a divisor and all of its dividends
        own = hard[:, hard[1] == hard[1, row * 100]]
        x[row], y[row] = np.resize(own[0], columns), own[1, 0]
    with np.errstate(all="ignore"):
        return (x.astype(HALVES[kind]), y.astype(HALVES[kind])) if kind in HALVES else (x, y)


def quotients(x, y):
    with np.errstate(all="ignore"):
        return (x.astype(np.float32) / y.astype(np.float32)[:, None]).astype(x.dtype)


def assert_same_bits(got, want):
    nan = np.isnan(want.astype(np.float32))
    assert (np.isnan(got.astype(np.float32)) == nan).all()
    assert (got.view(f"u{got.itemsize}")[~nan] == want.view(f"u{want.itemsize}")[~nan]).all()


@pytest.mark.parametrize("kind", ["float32", *HALVES])
def test_emitted_quotients_have_numpy_s_bits(kind):
    x, y = rows_of_numbers(kind)
    out = np.zeros_like(x)
    for row in range(0, len(x), 2):
        own = x[row:row + 2], y[row:row + 2], out[row:row + 2]
        made = by_row_of_matrix.compile(*own, M=2, N=1024, target="sm_90a")
        run_emitted(made, list(own), threads=32, seed=row)
    assert_same_bits(out, quotients(x, y))


@pytest.mark.parametrize("kind, ways", [("float32", 3), ("float16", 1), ("float64", 1)])
def test_one_branch_and_one_reciprocal_serve_a_thread_s_elements_of_a_row(kind, ways):
    """Each of 32 threads has 32 elements. Their quotients are on one side of the branch, for the rare cases; on the other is the reciprocal."""
    spec = tile.ArraySpec((4, 1024), kind)
    ptx = by_rows.compile(spec, tile.ArraySpec((4,), kind), spec, N=1024, target="sm_90a").ptx
    divisions = len(re.findall(r"\bdiv\.rn\.f(?:32|64)|\brcp\.rn\.f32", ptx))
    assert divisions == (32 if ways == 1 else 33) and ptx.count("fma.rn.f32") == (0 if ways == 1 else 64)


def test_few_elements_constants_and_approximations_are_divided_one_by_one():
    @tile.jit(num_warps=1)
    def each(x, y, out):
        tile.store(out[0:1024], tile.load(x[0:1024]) / tile.load(y[0:1024]) + tile.load(x[0:1024]) / 3.0)

    spec = tile.ArraySpec((4, 1024), "float32")
    few = by_rows.compile(spec, tile.ArraySpec((4,), "float32"), spec, N=256, target="sm_90a").ptx
    line = tile.ArraySpec((1024,), "float32")
    for ptx in (few, each.compile(line, line, line, target="sm_90a").ptx,
                by_rows.compile(spec, tile.ArraySpec((4,), "float32"), spec, N=1024, target="sm_90a", fast_math=True).ptx):
        assert "fma.rn.f32" not in ptx


def test_the_simulator_divides_as_numpy_does():
    x, y = rows_of_numbers("float32")
    out = np.zeros_like(x)
    by_rows[len(x),](x, y, out, N=1024)
    assert_same_bits(out, quotients(x, y))


@needs_gpu()
@in_child(timeout=120)
def test_a_gpu_divides_as_numpy_does():
    for kind in ("float32", *HALVES):
        x, y = rows_of_numbers(kind, rows=4096)
        out = np.zeros_like(x)
        by_rows[len(x),](x, y, out, N=1024, backend="cuda")
        assert_same_bits(out, quotients(x, y))
        out[:] = 0
        for row in range(0, 256, 64):
            by_row_of_matrix[1,](x[row:row + 64], y[row:row + 64], out[row:row + 64], M=64, N=1024, num_warps=16, backend="cuda")
        assert_same_bits(out[:256], quotients(x, y)[:256])
