"""Operations that give one of their operands, on every code of every float of at most 16 bits: infinities, NaN and signed zeros too."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile

from tests.gpu import in_child, needs_gpu

PACKED = ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn")
NAMES = ("float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", *PACKED, "float16", "bfloat16")


@tile.jit
def chosen(x, y, o, N: tile.constexpr, M: tile.constexpr):
    """Eight results for M x N pairs of codes. A row of each is one code with all of a block's codes."""
    a, b = tile.load(x[0:M, 0:N]), tile.load(y[0:M, 0:N])
    tile.store(o[0, 0:M, 0:N], tile.cast(tile.maximum(a, b), o.dtype))
    tile.store(o[1, 0:M, 0:N], tile.cast(tile.minimum(a, b), o.dtype))
    tile.store(o[2, 0:M, 0:N], tile.cast(abs(a), o.dtype))
    tile.store(o[3, 0:M, 0:N], tile.cast(-a, o.dtype))
    tile.store(o[4, 0:M, 0:N], tile.cast(tile.where(b == b, a, b), o.dtype))
    tile.store(o[5, 0:M, 0:N], tile.cast(tile.cast(a, tile.float32), o.dtype))
    tile.store(o[6, 0:M, 0:N], tile.cast(tile.cast(a, tile.float64), o.dtype))
    tile.store(o[7, 0:M, 0], tile.max(a, axis=1))
    tile.store(o[7, 0:M, 1], tile.min(a, axis=1))


def codes_of(name: str) -> np.ndarray:
    """All codes of a dtype; for those of 16 bits, a quarter of them that has every exponent, NaN and infinities, and the last bits."""
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    if dtype.itemsize == 2:
        special = np.r_[0x7C00:0x7C03, 0xFC00:0xFC03, 0x7F80:0x7F83, 0xFF80:0xFF83, 0:64]
        return np.arange(1 << 16, dtype=np.uint16)[np.r_[0:65536:37, 65535, special]].view(dtype)
    return np.arange(16 if "4_" in name[:8] else 64 if "6_" in name[:8] else 256, dtype=np.uint8).view(dtype)


def operands(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of codes, in rows of 16: with their neighbours, NaN, infinities, zeros and the other sign."""
    codes = codes_of(name)
    size = len(codes) // 16 * 16
    x, rng = np.resize(codes, size), np.random.default_rng(0)
    first = np.concatenate([x] + [x] * 3).reshape(-1, 16)
    second = np.concatenate([x[::-1], *(rng.permutation(x) for _ in range(3))]).reshape(-1, 16)
    return first, second


def extreme(which: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    found = {"max": np.maximum, "min": np.minimum}[which](a, b)
    zero = (a == 0) & (b == 0)
    negative = np.signbit(a) & np.signbit(b) if which == "max" else np.signbit(a) | np.signbit(b)
    return np.where(zero, np.where(negative, -0.0, 0.0), found)


def whole(which: str, a: np.ndarray) -> np.ndarray:
    result = a[:, 0]
    for n in range(1, a.shape[1]):
        result = extreme(which, result, a[:, n])
    return result


def wanted(x: np.ndarray, y: np.ndarray, power: bool) -> list[np.ndarray]:
    a, b = x.astype(np.float64), y.astype(np.float64)
    minus = np.where(np.isnan(a) | power, np.nan, -a)
    return [extreme("max", a, b), extreme("min", a, b), np.abs(a), minus, np.where(np.isnan(b), b, a), a, a, None]


def check(name: str, backend: str) -> None:
    x, y = operands(name)
    for at in range(0, len(x), 128):
        a, b = x[at:at + 128], y[at:at + 128]
        packed = name in PACKED
        out = np.zeros((8, *a.shape), np.float32 if packed else a.dtype)
        given = (tile.pack(a), tile.pack(b)) if packed else (a, b)
        chosen[1,](*given, out, N=16, M=len(a), backend=backend)
        with np.errstate(invalid="ignore"):
            out = out.astype(np.float64)
            for n, want in enumerate(wanted(a, b, name == "float8_e8m0fnu")):
                if want is None:
                    extremes = [whole(which, a.astype(np.float64)) for which in ("max", "min")]
                    np.testing.assert_array_equal(out[n, :, :2], np.stack(extremes, 1), err_msg=f"{name}: row extremes")
                    continue
                np.testing.assert_array_equal(out[n], want, err_msg=f"{name}: result {n}")
                real = ~np.isnan(want)
                np.testing.assert_array_equal(np.signbit(out[n])[real], np.signbit(want)[real], err_msg=f"{name}: sign of result {n}")


@pytest.mark.parametrize("name", NAMES)
def test_every_code_keeps_its_number_through_choices_and_casts(name):
    check(name, "sim")


@needs_gpu()
@pytest.mark.parametrize("name", NAMES)
@in_child(timeout=300)
def test_on_a_gpu_every_code_keeps_its_number_through_choices_and_casts(name):
    check(name, "cuda")


@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_only_infinities_become_infinities_of_float8_e5m2(source):
    """Finite numbers beyond the largest saturate, those beyond float32 too."""
    @tile.jit
    def kernel(x, y):
        tile.store(y[0:8], tile.cast(tile.load(x[0:8]), y.dtype))

    beyond = {np.float16: 65504.0, np.float64: 1e300}.get(source, 3e38)
    x = np.array([np.inf, -np.inf, beyond, -beyond, 61440, -61440, 57344, np.nan]).astype(source)
    y = np.zeros(8, ml_dtypes.float8_e5m2)
    kernel[1,](x, y)
    np.testing.assert_array_equal(y.astype(np.float64), [np.inf, -np.inf, 57344, -57344, 57344, -57344, 57344, np.nan])
