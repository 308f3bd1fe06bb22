"""Operators, casts and elementary functions of every dtype agree with NumPy, on the simulator."""

import re
from fractions import Fraction

import numpy as np
import on_host
import operator_cases as cases
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from language_cases import Case, check_on_simulator
from language_reference import DTYPES, FLOATS, cast, difference, exact_cast, np_dtype, rounded, special, tile_name

pytestmark = pytest.mark.usefixtures("assembled_later")

few = settings(max_examples=25, deadline=None)


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_promote_and_compute_like_numpy(dtype):
    """With every other dtype: special values, NaN in either operand, infinities, wrapping, zero."""
    check_on_simulator(cases.operators(dtype, other) for other in DTYPES)


def test_scalars_that_differ_between_threads_compute_like_tiles():
    check_on_simulator(cases.scalar_operators())


@pytest.mark.parametrize("dtype", DTYPES)
def test_python_numbers_adapt_to_the_dtype_of_the_tile(dtype):
    check_on_simulator([cases.weak_operators(dtype)])


def test_integer_division_by_zero_has_a_defined_result():
    check_on_simulator(map(cases.divisions_by_zero, cases.INTS))


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("known", ["", "    y = tile.maximum(y, 0)\n", "    x = tile.maximum(x, 0)\n    y = tile.maximum(y, 0)\n"])
def test_emitted_integer_division_agrees_with_the_simulator_also_by_zero(dtype, known):
    source = ("def divided(a, b, o):\n    x = tile.load(a[0])\n    y = tile.load(b[0])\n" + known +
              "    tile.store(o[0], x // y)\n    tile.store(o[1], x % y)\n")
    for x, y in ((7, 0), (0, 0), (-7, 0), (7, 2), (-7, 2), (7, -2)):
        a, b, o = (np.array(values).astype(dtype) for values in ([x], [y], [0, 0]))
        case = Case(f"{x} by {y} in {dtype}", source, {"a": a, "b": b}, {"o": o})
        on_host.run(case.compile("sm_90a"), a, b, o)
        check_on_simulator([case])  # the value that was emitted as a constant


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("by", ["y", "tile.minimum(y, -1)", "-1"])
def test_emitted_division_of_the_least_integer_by_minus_1_wraps(dtype, by):
    """As in NumPy, whatever is known of the divisor, and as for any other number."""
    cast = f".to(tile.{dtype})"
    source = (f"def divided(a, b, o):\n    x = tile.load(a[0]){cast}\n    y = tile.load(b[0]){cast}\n"
              f"    tile.store(o[0], (x // {by}).to(o.dtype))\n    tile.store(o[1], (x % {by}).to(o.dtype))\n")
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    for x, answer in ((least, least), (least + 1, most), (most, -most), (0, 0), (7, -7)):
        a, b, o = (np.array(values, "int64" if dtype == "int64" else "int32") for values in ([x], [-1], [answer, 0]))
        case = Case(f"{x} by -1 in {dtype}", source, {"a": a, "b": b}, {"o": o})
        got = np.ones_like(o)
        on_host.run(case.compile("sm_90a"), a, b, got)
        assert got.tolist() == [answer, 0]
        check_on_simulator([case])


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("by", [1, 2, 8, 1 << 30, 3, 12])
def test_emitted_division_by_a_constant_rounds_down(dtype, by):
    source = f"def divided(a, o):\n    x = tile.load(a[0])\n    tile.store(o[0], x // {by})\n    tile.store(o[1], x % {by})\n"
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    for x in {least, least + 1, max(least, -by - 1), max(least, -1), 0, by - 1, by, most}:
        a, o = np.array([x], dtype), np.zeros(2, dtype)
        case = Case(f"{x} by {by} in {dtype}", source, {"a": a}, {"o": np.array([x // by, x % by], dtype)})
        on_host.run(case.compile("sm_90a"), a, o)
        assert o.tolist() == [x // by, x % by]
        check_on_simulator([case])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_cdiv_of_tiles_rounds_up_for_all_signs_and_at_the_limits_of_the_dtype(dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    values, divisors = [low + 1, 0, 1, 7, 16, high - 1, high] + [-7] * (low < 0), [1, 3, 16, high] + [-1, -3] * (low < 0)
    x, y = (np.array(column, dtype) for column in zip(*((a, b) for a in values for b in divisors)))
    out = np.zeros((2, len(x)), dtype)
    kernel = tile.jit(source="""def k(x, y, out, N: tile.constexpr):
    a, b = tile.load(x[0:N]), tile.load(y[0:N])
    tile.store(out[0, 0:N], tile.cdiv(a, b))
    tile.store(out[1, 0:N], tile.cdiv(a, 16))
""")
    kernel[1,](x, y, out, N=len(x))
    assert out.tolist() == [[-(-int(a) // int(b)) for a, b in zip(x, y)], [-(-int(a) // 16) for a in x]]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_cdiv_by_a_runtime_divisor_is_the_same_for_scalars_and_tiles_and_0_by_0(dtype):
    """The least value of the dtype divided by -1 wraps, as with //."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    divisors = [0, 1, 2, 3, high] + [-1, -2, low] * (low < 0)
    source = """def divided(a, b, o):
    x, y = tile.load(a[0]), tile.load(b[0])
    tile.store(o[0], tile.cdiv(x, y))
    tile.store(o[1], tile.cdiv(7, y))
    tile.store(o[2:4], tile.cdiv(tile.load(a[0:2]), y))
    tile.store(o[4:6], tile.cdiv(tile.load(a[0:2]), tile.load(b[0:2])))
"""
    for x, y in ((x, y) for x in (low, 0, 7, high) for y in divisors):
        answer, of_7 = (np.array(-(-n // y) if y else 0).astype(dtype) for n in (x, 7))
        a, b, o = np.array([x, x], dtype), np.array([y, y], dtype), np.array([answer, of_7, *[answer] * 4], dtype)
        check_on_simulator([Case(f"{x} by {y} in {dtype}", source, {"a": a, "b": b}, {"o": o})])


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_emitted_cdiv_rounds_up_and_is_0_by_0(dtype):
    source = "def divided(a, b, o):\n    tile.store(o[0], tile.cdiv(tile.load(a[0]), tile.load(b[0])))\n"
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    for x, y in [(7, 0), (low, 0), (7, 2), (low, 3), (high, high), (high, 2)] + [(7, -2), (-7, 2), (7, low), (low, low)] * (low < 0):
        a, b, o = np.array([x], dtype), np.array([y], dtype), np.array([-(-x // y) if y else 0], dtype)
        case, got = Case(f"{x} by {y} in {dtype}", source, {"a": a, "b": b}, {"o": o}), np.ones_like(o)
        on_host.run(case.compile("sm_90a"), a, b, got)
        assert got.tolist() == o.tolist()


def test_cdiv_of_weak_arguments_adapts_their_dtype():
    kernel = tile.jit(source="""def k(n, m, out):
    v = tile.load(out[0:4]) * tile.cdiv(n, m)
    tile.static_assert(v.dtype == tile.int8)
    tile.store(out[0:4], v)
""")
    for n, m, answer in ((7, 2, 4), (7, -2, -3), (-7, 2, -3), (7, 0, 0)):
        out = np.ones(4, np.int8)
        kernel[1,](n, m, out)
        assert out.tolist() == [answer] * 4


def test_cdiv_outside_kernels_accepts_integers_of_any_kind_and_refuses_floats():
    assert tile.cdiv(7, 2) == tile.cdiv(np.uint8(7), np.int64(2)) == 4 and tile.cdiv(7, -2) == -3
    for a, b in ((7.5, 2), (7, 2.0), (np.float32(7), 2)):
        with pytest.raises(tile.CompilationError, match="cdiv divides integers, not .*; divide with / and round up with math.ceil"):
            tile.cdiv(a, b)
    for b in (0, np.int32(0)):
        with pytest.raises(tile.CompilationError, match="cdiv divides by zero"):
            tile.cdiv(7, b)


def test_cdiv_refuses_floats_and_a_divisor_of_0():
    for line, words in (("tile.cdiv(tile.load(x[0:4]), 3)", "cdiv divides integers, not a tile float32[4] and the number 3; "),
                        ("tile.cdiv(n, 0)", "cdiv divides by zero")):
        kernel = tile.jit(source=f"def k(x, n):\n    v = {line}\n")
        with pytest.raises(tile.CompilationError, match=re.escape(words)):
            kernel.compile(tile.ArraySpec((4,), "float32"), 3)


def test_unary_operators_keep_the_dtype():
    check_on_simulator(map(cases.unary_operators, DTYPES))


@pytest.mark.parametrize("style", ["tile", "scalar"])
def test_casts_round_once_saturate_and_wrap(style):
    check_on_simulator(cases.casts(dtype, style) for dtype in DTYPES)


def test_integers_that_float32_would_round_to_a_midpoint_of_bfloat16_are_rounded_once():
    for dtype in ("int32", "uint32"):
        x = np.array([236 * 2**23 + 2**22 + n for n in (-1, 0, 1)], dtype)
        check_on_simulator([Case(dtype, "def once(a, o):\n    for i in range(3):\n        tile.store(o[i], tile.load(a[i]).to(tile.bfloat16))\n", {"a": x},
                        {"o": np.array([236 * 2.0**23, 236 * 2.0**23, 237 * 2.0**23]).astype(np_dtype("bfloat16"))})])


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_integers_near_a_midpoint_of_bfloat16_are_rounded_once_by_the_simulator_and_the_emitted_code(dtype):
    """Of every size: float64 does not hold all 64-bit integers either."""
    info = np.iinfo(dtype)
    middles = [(m << e) + (1 << e - 1) for m in (128, 129, 200, 255) for e in range(1, info.bits - 9)]
    near = [n * sign for m in middles for n in (m - 1, m, m + 1) for sign in (1, -1)]
    x = np.array([n for n in near if info.min <= n <= info.max] + [info.min, info.max, info.max - 1, 0], dtype)
    want = np.array([float(rounded(Fraction(int(n)), "bfloat16")) for n in x], np.float32)
    source = (f"def once(a, o):\n    for i in range({len(x)}):\n        v = tile.load(a[i]).to(tile.bfloat16)\n        "
              "tile.store(o[i], tile.bitcast(v.to(tile.float32), tile.int32))\n")
    case, emitted = Case(dtype, source, {"a": x}, {"o": want.view(np.int32)}), np.zeros(len(x), np.int32)
    check_on_simulator([case])
    on_host.run(case.compile("sm_90a"), x, emitted)
    np.testing.assert_array_equal(emitted.view(np.float32), want)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_integers_are_rounded_once_to_the_nearest_power_of_two_by_the_simulator_and_the_emitted_code(dtype):
    """The larger one of two equally near, but not because float32 rounded a smaller integer to their midpoint."""
    info = np.iinfo(dtype)
    middles = [3 << e for e in range(1, info.bits - 2)]
    x = np.array([n for m in middles for n in (m - 1, m, m + 1)] + [0, 1, 2, 3, info.max, info.max - 1, info.min, *[-5] * (info.min < 0)], dtype)
    code = lambda n: 255 if n < 0 else 0 if n == 0 else 127 + n.bit_length() - 1 + (n >= 3 << n.bit_length() - 2 if n > 1 else 0)
    want = np.array([code(int(n)) for n in x], np.int32)
    source = (f"def power(a, o):\n    for i in range({len(x)}):\n        v = tile.load(a[i]).to(tile.float8_e8m0fnu)\n        "
              "tile.store(o[i], tile.cast(tile.bitcast(v, tile.uint8), tile.int32))\n")
    case, emitted = Case(dtype, source, {"a": x}, {"o": want}), np.zeros(len(x), np.int32)
    check_on_simulator([case])
    on_host.run(case.compile("sm_90a"), x, emitted)
    np.testing.assert_array_equal(emitted, want)


@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_have_their_documented_accuracy(dtype):
    check_on_simulator([cases.function_case(dtype), cases.fused(dtype)])


def test_an_fma_of_bfloat16_that_float32_would_round_to_a_midpoint_rounds_once():
    x, y, z = (np.array([v, v], np_dtype("bfloat16")) for v in (1.5, 1.1328125, 2.0**-28))
    check_on_simulator([Case("fma", "def once(a, b, c, o):\n    for i in range(2):\n        tile.store(o[i], tile.fma(tile.load(a[i]), tile.load(b[i]), "
                           "tile.load(c[i])))\n", {"a": np.array([x[0], -x[0]]), "b": y, "c": z},
                    {"o": np.array([1.703125, -1.6953125]).astype(np_dtype("bfloat16"))})])


def test_minimum_maximum_and_where_propagate_nan():
    check_on_simulator(cases.selections(a, b) for a, b in [*zip(DTYPES, DTYPES), ("int8", "uint16"), ("int64", "uint64"), ("float16", "bfloat16"),
                                                  ("bool", "float32"), ("float8_e4m3fn", "float16")])


@few
@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.sampled_from(("tile", "scalar")), st.integers(1, 2**31))
def test_operators_agree_with_numpy_on_random_operands(a, b, style, seed):
    check_on_simulator([cases.operators(a, b, style, seed)])


@few
@given(st.sampled_from(DTYPES), st.integers(0, 2**31))
def test_casts_agree_with_the_reference_on_random_bits(source, seed):
    """Any bit pattern, including subnormals and NaNs."""
    rng = np.random.default_rng(seed)
    dtype = np_dtype(source)
    x = rng.integers(0, 256, 64 * dtype.itemsize, np.uint8).view(dtype) if source != "bool" else special("bool", seed, 64)
    expected = {f"o{i}": cast(x, target) for i, target in enumerate(DTYPES)}
    lines = [f"tile.store(o{i}[0:64], tile.load(a[0:64]).to({tile_name(t)}))" for i, t in enumerate(DTYPES)]
    check_on_simulator([Case(f"bits as {source}", f"def bits(a, {', '.join(expected)}):\n    " + "\n    ".join(lines) + "\n", {"a": x}, expected)])


def test_the_reference_rounds_like_numpy():
    """The exact rounding of the reference agrees with NumPy where NumPy rounds once."""
    for source in DTYPES:
        for target in DTYPES:
            x = special(source, 1, 200)
            x = np.concatenate([x, (special(source, 2, 100) * 1e-6).astype(x.dtype)]) if source in FLOATS else x
            assert not difference(cast(x, target), exact_cast(x, target), "bits"), (source, target)
