"""Elementary functions have the accuracy that their docstrings state, with C's results at the special values and at the edges of the domain;
functions of a float's parts are exact. References are the C library's functions in long double."""

import ctypes
import ctypes.util
import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import on_host
import pytest
import tilejit as tile
from language_cases import Case, check_on_gpu, check_on_simulator
from language_reference import FLOATS, np_dtype, pairs, special

from tests.gpu import in_child, needs_gpu

pytestmark = pytest.mark.usefixtures("assembled_later")

LIBM = ctypes.CDLL(ctypes.util.find_library("m"))


def of_c(name: str, count: int = 1):
    """A function of the C library, of each element, in long double, rounded to float64."""
    function = getattr(LIBM, f"{name}l")
    function.argtypes, function.restype = [ctypes.c_longdouble] * count, ctypes.c_longdouble

    def run(*arrays):
        with np.errstate(all="ignore"):
            return np.vectorize(lambda *values: float(function(*values)), otypes=[np.float64])(*arrays)
    return run


def inverse_of_erf(x: np.ndarray) -> np.ndarray:
    """By bisection; where |x| > 1/2, of erfc."""
    def one(x: float) -> float:
        size, low, high = abs(x), 0.0, 7.0
        if not size < 1:
            return math.copysign(math.inf, x) if size == 1 else math.nan
        if size < 1e-150:
            return x * math.sqrt(math.pi) / 2
        while low < (middle := (low + high) / 2) < high:
            above = math.erf(middle) > size if size < 0.5 else math.erfc(middle) < 1 - size
            low, high = (low, middle) if above else (middle, high)
        return math.copysign(high, x)
    with np.errstate(all="ignore"):
        return np.vectorize(one, otypes=[np.float64])(x)


# name -> (reference, stated ulp in float32, in float64, range of arguments)
UNARY = {
    "exp10": (of_c("exp10"), 2, 1, (-45, 40)), "expm1": (of_c("expm1"), 2, 1, (-20, 80)), "log1p": (of_c("log1p"), 2, 1, (-0.99, 1e10)),
    "cbrt": (of_c("cbrt"), 1, 1, (-1e30, 1e30)), "asinh": (of_c("asinh"), 3, 3, (-1e5, 1e5)), "acosh": (of_c("acosh"), 4, 3, (1, 1e5)),
    "atanh": (of_c("atanh"), 3, 2, (-1, 1)), "erfc": (of_c("erfc"), 4, 5, (-4, 9)), "erfinv": (inverse_of_erf, 2, 5, (-1, 1)),
    "lgamma": (of_c("lgamma"), 6, 4, (-2, 1e4)), "tgamma": (of_c("tgamma"), 5, 10, (-30, 34)),
}
BINARY = {"atan2": (of_c("atan2", 2), 3, 2), "hypot": (of_c("hypot", 2), 3, 2), "fmod": (of_c("fmod", 2), 0, 0)}
INTEGERS = np.array([-300, -149, -140, -24, -1, 0, 1, 2, 10, 127, 128, 300, 2**31 - 1, -2**31])


def arguments(dtype: str, low: float, high: float) -> np.ndarray:
    """Special values, neighbours of 1, 2 and -1, and random numbers: in the range, and near 0."""
    rng, eps = np.random.default_rng(5), float(ml_dtypes.finfo(np_dtype(dtype)).eps)
    near = [v * (1 + n * eps) for v in (1, 2, -1, 0.5) for n in (-2, -1, 1, 3)] + [-2.0, -3.0, -0.5, -1.5, 10.0, 30.0]
    dense = np.clip(rng.normal(size=150) * 2.0 ** rng.integers(-20, 2, 150), low, high)
    with np.errstate(all="ignore"):
        return np.concatenate([special(dtype, 3, 24), np.array([*near, *rng.uniform(low, high, 200), *dense]).astype(np_dtype(dtype))])


def tolerance(dtype: str, single: float, double: float, on_gpu: bool) -> float:
    """The simulator rounds float64 results; those of float64 itself are
    within what is stated. A chip may differ by that from the rounded result."""
    if dtype == "float64":
        return double + 0.5 if on_gpu and double else double
    if dtype == "float32":
        return single + 0.5 if on_gpu and single else 0.501
    return 0.51 if single else 0


def unary(name: str, dtype: str, on_gpu: bool = False) -> Case:
    reference, single, double, limits = UNARY[name]
    x = arguments(dtype, *limits)
    if name == "lgamma":  # between, it has zeros, near which only the absolute error is small
        x = x[~((x.astype(np.float64) < -2.2) & (x.astype(np.float64) > -30))]
    source = f"def function(a, o, N: tile.constexpr):\n    tile.store(o[0:N], tile.{name}(tile.load(a[0:N])))\n"
    made = Case(f"{name} of {dtype}", source, {"a": x}, {"o": reference(x.astype(np.float64))},
                {"o": tolerance(dtype, single, double, on_gpu)}, options={"N": len(x)})
    made.start = {"o": np.zeros_like(x)}
    return made


def binary(name: str, dtype: str, on_gpu: bool = False) -> Case:
    reference, single, double = BINARY[name]
    x, y = pairs(special(dtype, 3, 40), special(dtype, 4, 40))
    source = f"def function(a, b, o, N: tile.constexpr):\n    tile.store(o[0:N], tile.{name}(tile.load(a[0:N]), tile.load(b[0:N])))\n"
    made = Case(f"{name} of {dtype}", source, {"a": x, "b": y}, {"o": reference(x.astype(np.float64), y.astype(np.float64))},
                {"o": tolerance(dtype, single, double, on_gpu)}, options={"N": len(x)})
    made.start = {"o": np.zeros_like(x)}
    return made


def parts(dtype: str) -> Case:
    """copysign, nextafter, frexp and ldexp; all bits are compared."""
    x, y = pairs(special(dtype, 3, 40), special(dtype, 4, 40))
    n = np.resize(INTEGERS, len(x))
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        expected = {
            "c": np.copysign(x, y), "s": np.nextafter(x, y), "m": np.frexp(wide)[0].astype(x.dtype),
            "p": np.where(np.isfinite(wide), np.frexp(wide)[1], 0).astype(np.int32), "l": np.ldexp(wide, n).astype(x.dtype),
        }
    source = """def parts(a, b, n, c, s, m, p, l, N: tile.constexpr):
    x, y = tile.load(a[0:N]), tile.load(b[0:N])
    tile.store(c[0:N], tile.copysign(x, y))
    tile.store(s[0:N], tile.nextafter(x, y))
    mantissa, exponent = tile.frexp(x)
    tile.static_assert(mantissa.dtype == x.dtype and exponent.dtype == tile.int32)
    tile.store(m[0:N], mantissa)
    tile.store(p[0:N], exponent)
    tile.store(l[0:N], tile.ldexp(x, tile.load(n[0:N])))
"""
    return Case(f"parts of {dtype}", source, {"a": x, "b": y, "n": n}, expected, options={"N": len(x)})


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_of_one_number_agree_with_the_c_library_also_at_the_edges_of_their_domains(dtype):
    check_on_simulator(unary(name, dtype) for name in UNARY)


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_of_two_numbers_agree_with_the_c_library_for_all_pairs_of_special_values(dtype):
    check_on_simulator(binary(name, dtype) for name in BINARY)


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_of_a_floats_parts_are_exact(dtype):
    check_on_simulator([parts(dtype)])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_emitted_functions_of_a_floats_parts_are_exact(dtype):
    """The code that a thread executes, run on the host, to which floats go as bits in integers."""
    case, bits = parts(dtype), {"float32": "int32", "float64": "int64"}.get(dtype, "int16")
    word, count = np.dtype("int64" if dtype == "float64" else "int32"), len(case.args["a"])
    source = f"""def emitted(a, b, c, s, m, p):
    for i in range({count}):
        x, y = tile.bitcast(tile.cast(tile.load(a[i]), tile.{bits}), tile.{dtype}), tile.bitcast(tile.cast(tile.load(b[i]), tile.{bits}), tile.{dtype})
        mantissa, exponent = tile.frexp(x)
        tile.store(c[i], tile.cast(tile.bitcast(tile.copysign(x, y), tile.{bits}), tile.{word}))
        tile.store(s[i], tile.cast(tile.bitcast(tile.nextafter(x, y), tile.{bits}), tile.{word}))
        tile.store(m[i], tile.cast(tile.bitcast(mantissa, tile.{bits}), tile.{word}))
        tile.store(p[i], exponent)
"""
    x, y, *floats = (v.view(bits).astype(word) for v in (case.args["a"], case.args["b"], *(case.expected[n] for n in "csm")))
    emitted = Case(f"emitted parts of {dtype}", source, {"a": x, "b": y}, {**dict(zip("csm", floats)), "p": case.expected["p"]})
    got = {name: np.zeros_like(want) for name, want in emitted.expected.items()}
    on_host.run(emitted.compile("sm_90a"), x, y, *got.values())
    back = {name: v if name == "p" else v.astype(bits).view(np_dtype(dtype)) for name, v in got.items()}
    assert not replace(emitted, expected={name: case.expected[name] for name in "csmp"}).problems(back)


def test_the_sign_of_zeros_is_that_of_c():
    source = "def signs(x, y, out):\n    a, b = tile.load(x[0:4]), tile.load(y[0:4])\n"
    texts = [f"tile.{name}(a)" for name in ("cbrt", "asinh", "atanh", "erfinv", "expm1", "log1p", "sin")] + ["tile.fmod(a, b)", "tile.atan2(a, b)"]
    source += "".join(f"    tile.store(out[{i}, 0:4], {text})\n" for i, text in enumerate(texts))
    x, y, out = np.array([0.0, -0.0, 0.0, -0.0], np.float32), np.array([1, 1, -1, -1], np.float32), np.ones((len(texts), 4), np.float32)
    tile.jit(source=source)[1](x, y, out)
    assert (np.signbit(out) == np.signbit(x)).all() and not out[:-1].any()
    np.testing.assert_array_equal(out[-1], np.arctan2(x, y))


def test_numbers_integers_and_scalars_are_operands_and_shapes_broadcast():
    @tile.jit
    def mixed(x, n, out):
        a, i = tile.load(x[0:8]), tile.load(n[0:4])
        tile.static_assert(tile.hypot(i, 2).dtype == tile.float32 and tile.ldexp(i, 1).dtype == tile.float32)
        tile.store(out[0, 0:4, 0:8], tile.atan2(i[:, None], a[None, :]))
        tile.store(out[1, 0:4, 0:8], tile.ldexp(a[None, :], i[:, None]))
        tile.store(out[2, 0:4, 0:8], tile.fmod(5.5, tile.load(x[1])) + tile.hypot(3.0, 4.0))
        tile.store(out[3, 0:4, 0:8], tile.copysign(a, -1))
        tile.store(out[4, 0:4, 0:8], tile.ldexp(0.75, i)[:, None] + tile.ldexp(a, -1))

    x, n, out = np.arange(1, 9, dtype=np.float32), np.array([-3, 0, 2, 5], np.int32), np.zeros((5, 4, 8), np.float32)
    mixed[1](x, n, out)
    want = np.stack([np.arctan2(n[:, None].astype(np.float32), x), np.ldexp(x, n[:, None]), np.full((4, 8), 1.5 + 5), np.broadcast_to(-x, (4, 8)),
                     np.ldexp(np.float32(0.75), n)[:, None] + x / 2]).astype(np.float32)
    np.testing.assert_array_max_ulp(out, want, 1)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_exponents_of_ldexp_have_any_integer_dtype(dtype):
    """They are not wrapped to 32 bits."""
    info = np.iinfo(dtype)
    n = np.array([info.min, 0, 1, info.max], dtype)
    out = np.zeros(4, np.float32)
    tile.jit(source="def k(n, out):\n    tile.store(out[0:4], tile.ldexp(1.0, tile.load(n[0:4])))\n")[1](n, out)
    with np.errstate(over="ignore"):
        want = [float(np.ldexp(1.0, int(np.clip(int(v), -2000, 2000)))) for v in n]
        np.testing.assert_array_equal(out, np.array(want).astype(np.float32))


def both_source(pair: str) -> str:
    return (f"def both(x, out, N: tile.constexpr):\n    a = tile.load(x[0:N])\n    s, c = {pair}\n"
            "    tile.store(out[0, 0:N], s)\n    tile.store(out[1, 0:N], c)\n")


def sincos(dtype: str, on_gpu: bool = False) -> Case:
    x = arguments(dtype, -1e3, 1e3)
    exact = np.stack([of_c(name)(x.astype(np.float64)) for name in ("sin", "cos")])
    made = Case(f"sincos of {dtype}", both_source("tile.sincos(a)"), {"x": x}, {"out": exact},
                {"out": tolerance(dtype, 2, 2, on_gpu)}, options={"N": len(x)})
    made.start = {"out": np.zeros(exact.shape, x.dtype)}
    return made


@pytest.mark.parametrize("dtype", FLOATS)
def test_sincos_is_the_pair_of_sin_and_cos(dtype):
    check_on_simulator([sincos(dtype)])


@pytest.mark.parametrize("dtype", FLOATS)
def test_sincos_reduces_the_range_once(dtype):
    """Its code is hardly longer than that of the sine, and two functions' is much longer."""
    arrays = tile.ArraySpec((128,), dtype), tile.ArraySpec((2, 128), dtype)
    pairs_ = ("tile.sin(a), a", "tile.sincos(a)", "tile.sin(a), tile.cos(a)")
    sine, both, apart = (len(tile.jit(source=both_source(pair)).compile(*arrays, N=128, target="sm_90a").ptx.splitlines()) for pair in pairs_)
    assert both - sine < 0.25 * (apart - sine)


def test_sincos_has_the_fast_forms_of_sin_and_cos():
    arrays = tile.ArraySpec((128,), "float32"), tile.ArraySpec((2, 128), "float32")
    ptx = tile.jit(source=both_source("tile.sincos(a, fast=True)")).compile(*arrays, N=128, target="sm_90a").ptx
    assert ptx.count("sin.approx") == ptx.count("cos.approx") == 1 and "mad" not in ptx.partition("ld.global")[2].partition("st.global")[0]


@pytest.mark.parametrize("text, words", [("tile.ldexp(v, v)", "the exponent of ldexp is an integer, not a tile float32[32]"),
                                         ("tile.ldexp(v, 1.0)", "the exponent of ldexp is an integer, not the number 1.0"),
                                         ("tile.cbrt(v, fast=True)", "cbrt has no fast form"),
                                         ("tile.atan2(v, v[0:16])", "do not broadcast")])
def test_invalid_operands_of_functions_are_refused(text, words):
    with pytest.raises(tile.CompilationError) as caught:
        tile.jit(source=f"def k(x):\n    v = tile.load(x[0:32])\n    w = {text}\n").compile(tile.ArraySpec((32,), "float32"))
    assert words in str(caught.value)


@needs_gpu()
@in_child(timeout=120)
def test_functions_have_their_stated_accuracy_on_the_gpu():
    check_on_gpu([*(unary(name, dtype, True) for name in UNARY for dtype in FLOATS),
                  *(binary(name, dtype, True) for name in BINARY for dtype in FLOATS), *map(parts, FLOATS), *(sincos(dtype, True) for dtype in FLOATS)])
