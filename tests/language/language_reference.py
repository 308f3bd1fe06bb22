"""The expected results of operators, casts and functions, computed with NumPy and exact fractions, without tilejit."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import ml_dtypes
import numpy as np

INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
DTYPES = ("bool", *INTS, *FLOATS, *FLOAT8)


@lru_cache(None)
def np_dtype(name: str) -> np.dtype:
    """The NumPy dtype of an element type."""
    return np.dtype(getattr(ml_dtypes, name)) if name == "bfloat16" or name.startswith("float8") else np.dtype(name)


def name_of(array: np.ndarray) -> str:
    return array.dtype.name


def is_float(name: str) -> bool:
    return name in FLOATS or name in FLOAT8


def bits(name: str) -> int:
    return 8 * np_dtype(name).itemsize


def tile_name(name: str) -> str:
    """The dtype as written in a kernel's source."""
    return "tile.bool_" if name == "bool" else f"tile.{name}"


# -- values that show what rounds, wraps and saturates --------------------------------------------------------------------

def special(name: str, seed: int = 0, count: int = 24) -> np.ndarray:
    """Special values of a dtype, then random ones; `count` in all."""
    rng = np.random.default_rng([seed, DTYPES.index(name)])
    if name == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if is_float(name):
        info = ml_dtypes.finfo(np_dtype(name))
        tiny, eps = float(info.smallest_subnormal), float(info.eps)
        edges = [0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.5, 3.0, float(info.max), -float(info.max), tiny, -3 * tiny,
                 float(info.smallest_normal), 1 + eps, 1 - eps / 2, 100.0, np.nan]
        if name != "float8_e4m3fn":
            edges += [np.inf, -np.inf]
        edges = np.array(edges[:count], np.float64)
        rest = rng.normal(size=count - len(edges)) * 2.0 ** rng.integers(-6, 7, count - len(edges))
        with np.errstate(all="ignore"):
            return np.concatenate([edges, rest]).astype(np_dtype(name))
    info = np.iinfo(name)
    edges = [0, 1, 2, 3, 7, int(info.max), int(info.max) - 1, int(info.min), int(info.min) + 1, 8, 31, 33, 64, 100]
    edges += [-1, -2, -3, -7, -100] if info.min < 0 else [255, 200]
    edges = [e for e in edges if info.min <= e <= info.max][:count]
    return np.concatenate([np.array(edges, name), rng.integers(info.min, info.max, count - len(edges), name, endpoint=True)])


def pairs(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every value of `a` paired with every value of `b`, flattened."""
    return np.repeat(a, len(b)), np.tile(b, len(a))


# -- casts ----------------------------------------------------------------------------------------------------------------

def cast(x: np.ndarray, target: str) -> np.ndarray:
    """`exact_cast`, using NumPy where NumPy rounds once."""
    source = name_of(x)
    with np.errstate(all="ignore"):
        if is_float(source) and (target in ("float16", "float32", "float64") or target == "bfloat16" and source != "float64"):
            return (x.astype(np.float32) if bits(source) < 32 else x).astype(np_dtype(target))
        if source in INTS and (target in ("float32", "float64") or target in ("float16", "bfloat16") and bits(source) <= 16):
            return (x.astype(np.float32) if target == "bfloat16" else x.astype(np.float64) if target == "float16" else x).astype(np_dtype(target))
    return exact_cast(x, target)


def exact_cast(x: np.ndarray, target: str) -> np.ndarray:
    """`x` as `target`. Floats round to nearest even, float8 saturates (an infinity of float8_e5m2 stays one); casts to integers
    truncate and saturate, and NaN gives 0; integers keep the low bits; a cast to bool tests whether the number is not 0."""
    with np.errstate(all="ignore"):
        return _exact_cast(x, name_of(x), target)


def _exact_cast(x: np.ndarray, source: str, target: str) -> np.ndarray:
    if source == target:
        return x
    if target == "bool":
        return x != 0
    if source == "bool":
        return exact_cast(x.astype(np.int32), target)
    if not is_float(source) and not is_float(target):
        return x.astype(target)
    if is_float(target):
        numbers, at = np.unique(x.ravel().view(f"u{x.itemsize}"), return_inverse=True)  # compare the bits: 0 and -0 differ
        found = np.array([rounded(v, target) for v in _exact(numbers.view(x.dtype))], object).astype(np.float64).astype(np_dtype(target))
        return found[at].reshape(x.shape)
    info = np.iinfo(target)
    whole = [0 if v != v else v if v in (np.inf, -np.inf) else int(v) for v in _exact(x)]
    return np.array([int(min(max(v, int(info.min)), int(info.max))) for v in whole], target).reshape(x.shape)


def _exact(x: np.ndarray) -> list:
    """The numbers as fractions; infinities, NaN and -0 as floats."""
    if x.dtype.kind in "iu":
        return [Fraction(int(v)) for v in x.ravel()]
    return [v if v != v or v in (np.inf, -np.inf) or v == 0 else Fraction(v) for v in map(float, x.ravel().astype(np.float64))]


def rounded(value, target: str) -> float:
    """An exact number rounded once to a float dtype."""
    info = ml_dtypes.finfo(np_dtype(target))
    largest = float(info.max)
    if value != value or value == 0:
        return float(value)
    if value in (np.inf, -np.inf):
        return float(value) if target not in FLOAT8 or target == "float8_e5m2" else float(np.sign(value)) * largest
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent += (Fraction(2) ** (exponent + 1) <= magnitude) - (Fraction(2) ** exponent > magnitude)
    quantum = Fraction(2) ** (max(exponent, int(info.minexp)) - int(info.nmant))
    result = round(magnitude / quantum) * quantum
    if result > Fraction(largest):
        result = Fraction(largest) if target in FLOAT8 else np.inf
    return float(result) * (-1.0 if value < 0 else 1.0)


# -- promotion ----------------------------------------------------------------------------------------------------------

def promoted(a: str, b: str) -> str:
    """NumPy's promotion, except that an int with a float gives that float's dtype, and int64 with uint64 stays an integer."""
    if a == b or b == "bool":
        return a
    if a == "bool":
        return b
    if is_float(a) != is_float(b):
        return a if is_float(a) else b
    if is_float(a):
        return (a if bits(a) > bits(b) else b) if bits(a) != bits(b) else "float32"
    common = np.promote_types(a, b).name
    return "int64" if common == "float64" else common


def computed_in(dtype: str, symbol: str) -> str:
    """The dtype in which an operator computes: bools are ints, float8 computes in float32, quotients are floats."""
    if dtype == "bool" and symbol not in ("&", "|", "^"):
        dtype = "int32"
    if dtype in FLOAT8:
        return "float32"
    return "float32" if symbol == "/" and not is_float(dtype) else dtype


ARITHMETIC = ("+", "-", "*", "/", "//", "%")
BITWISE = ("&", "|", "^", "<<", ">>")
COMPARE = ("==", "!=", "<", "<=", ">", ">=")


def symbols_for(a: str, b: str) -> tuple[str, ...]:
    return ARITHMETIC + COMPARE + (BITWISE if not is_float(a) and not is_float(b) else ())


_NUMPY = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.true_divide, "//": np.floor_divide, "%": np.remainder,
          "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor, "<<": np.left_shift, ">>": np.right_shift,
          "==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}


def binary(symbol: str, x: np.ndarray, y: np.ndarray, dtype: str | None = None) -> np.ndarray:
    """``x symbol y``; `dtype` is the promoted dtype of the operands, if it is not that of two strong ones."""
    if symbol in COMPARE:
        if dtype is None and not is_float(name_of(x)) and not is_float(name_of(y)):
            return _NUMPY[symbol](x.astype(object), y.astype(object)).astype(bool)
        common = dtype or promoted(name_of(x), name_of(y))
        common = "float32" if common in FLOAT8 else common
        with np.errstate(invalid="ignore"):
            return _NUMPY[symbol](cast(x, common), cast(y, common))
    common = computed_in(dtype or promoted(name_of(x), name_of(y)), symbol)
    a, b = cast(x, common), cast(y, common)
    with np.errstate(all="ignore"):
        if is_float(common) and bits(common) == 16:
            return cast(_NUMPY[symbol](a.astype(np.float32), b.astype(np.float32)), common)
        return _NUMPY[symbol](a, b).astype(np_dtype(common))


# -- comparing ----------------------------------------------------------------------------------------------------------

def ulps(got: np.ndarray, want: np.ndarray) -> float:
    """The largest distance between `got` and `want` (float64), in units in the last place of `got`'s dtype."""
    info = ml_dtypes.finfo(got.dtype)
    got64, want = got.astype(np.float64), np.asarray(want, np.float64)
    with np.errstate(all="ignore"):
        target = want.astype(got.dtype).astype(np.float64)
        special_ = ~np.isfinite(target) | ~np.isfinite(got64)
        exponent = np.floor(np.log2(np.maximum(np.abs(want), float(info.smallest_normal))))
        distance = np.abs(got64 - want) / 2.0 ** (exponent - info.nmant)
        same = (got64 == target) | (np.isnan(got64) & np.isnan(target))
        near_overflow = np.isfinite(got64) != np.isfinite(target)
        edge = near_overflow & (np.minimum(np.abs(got64), np.abs(target)) >= float(info.max) * (1 - 8 * float(info.eps))) & (np.sign(got64) == np.sign(target))
        distance = np.where(special_, np.where(same, 0.0, np.where(edge, 1.0, np.inf)), distance)
    return float(distance.max(initial=0.0))


def difference(got: np.ndarray, want: np.ndarray, how) -> str:
    """Empty if `got` equals `want`: bit for bit (all NaNs are equal), with how="value" except for the sign of 0, or with a number
    within that many ulp. Otherwise describes the first difference."""
    if got.shape != want.shape:
        return f"shape {got.shape}, not {want.shape}"
    if isinstance(how, (int, float)):
        found = ulps(got, want)
        if found <= how:
            return ""
        per = [ulps(g.reshape(1), w.reshape(1)) for g, w in zip(got.ravel(), np.asarray(want).ravel())]
        n = int(np.argmax(per))
        return f"{found:.3g} ulp, more than {how}: element {n} is {got.ravel()[n]!r}, not {np.asarray(want).ravel()[n]!r}"
    if got.dtype != want.dtype:
        return f"dtype {got.dtype}, not {want.dtype}"
    with np.errstate(invalid="ignore"):
        equal = _equal(got, want, how)
    if equal.all():
        return ""
    n = int(np.argmin(equal.ravel()))
    return f"{int((~equal).sum())} of {equal.size} elements differ: element {n} is {got.ravel()[n]!r}, not {want.ravel()[n]!r}"


def _equal(got: np.ndarray, want: np.ndarray, how) -> np.ndarray:
    equal = got == want
    if got.dtype.kind not in "biu":
        if how != "value":
            equal &= np.signbit(got.astype(np.float64)) == np.signbit(want.astype(np.float64))
        equal |= np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64))
    return equal
