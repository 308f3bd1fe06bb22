"""A Python number takes the dtype of the other operand, or it is an error that it does not fit; explicit casts convert."""

import math

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile

x8 = np.arange(32, dtype=np.int8)


def kernel(body: str, parameters: str = "x, y, n"):
    return tile.jit(source=f"def k({parameters}):\n    " + body.replace("\n", "\n    ") + "\n", num_warps=1)


def run(body: str, dtype="int8", n=0, x=x8):
    y = np.zeros(32, dtype)
    kernel(body)[1](x, y, n)
    return y


ADD = "tile.store(y[0:32], tile.load(x[0:32]) + n)"


@pytest.mark.parametrize("dtype, low, high", [("int8", -2**7, 2**7 - 1), ("uint8", 0, 255), ("int16", -2**15, 2**15 - 1), ("uint16", 0, 65535),
                                              ("uint32", 0, 2**31 - 1), ("uint64", 0, 2**31 - 1)])
def test_a_number_argument_takes_the_dtype_of_a_tile_only_if_it_fits(dtype, low, high):
    k, x = kernel(ADD), np.arange(32).astype(dtype)
    for n in (low, high):
        y = np.zeros(32, dtype)
        k[1](x, y, n)
        np.testing.assert_array_equal(y, x + np.array(n, dtype))
    beyond = [n for n in (low - 1, high + 1) if -2**31 <= n < 2**31]
    for n in beyond:
        with pytest.raises(tile.LaunchError, match=rf"n does not fit in {dtype} \(.*to which it is converted here: n = {n};"):
            k[1](x, y, n)
    assert beyond


def test_an_argument_plus_a_constant_must_fit_too():
    np.testing.assert_array_equal(run("tile.store(y[0:32], 2 + n - 3)", n=128), 127)
    with pytest.raises(tile.LaunchError, match=r"n - 1 does not fit in int8 .* n = 129"):
        run("tile.store(y[0:32], 2 + n - 3)", n=129)


def test_a_number_in_range_is_served_by_the_version_compiled_for_another():
    k = kernel(ADD)
    for n in (1, 2, -3, 127):
        k[1](x8, np.zeros(32, np.int8), n)
    (versions,) = k.versions.values()
    assert len(versions) == 1


def test_an_argument_that_needs_64_bits_does_not_fit_in_an_8_bit_tile():
    with pytest.raises(tile.LaunchError, match=rf"n = {2**40}"):
        run(ADD, n=2**40)
    np.testing.assert_array_equal(run(ADD, "int64", 2**40, np.arange(32, dtype=np.int32)), np.arange(32) + 2**40)


@pytest.mark.parametrize("body, lost", [("for i in range(n):\n    tile.store(y[0:32], i)", 128),
                                        ("tile.store(y[0:32], tile.load(x[0:32]) + n * 2)", 258)])
def test_the_simulator_finds_a_computed_number_that_does_not_fit(body, lost):
    k = kernel(body)
    report = k.simulate(1, x8, np.zeros(32, np.int8), 129)
    (finding,) = report.findings
    assert finding.kind == "assertion" and f"{lost} does not fit in int8 (-128 to 127)" in finding.message
    assert not k.simulate(1, x8, np.zeros(32, np.int8), 63).findings


def test_a_launch_with_a_number_out_of_range_names_it_and_the_range():
    with pytest.raises(tile.LaunchError, match=rf"n = {2**63} does not fit in 64 bits \(int64 holds -{2**63} to {2**63 - 1}\)"):
        run(ADD, n=2**63)
    with pytest.raises(tile.LaunchError, match=r"n = 1e\+39 does not fit in float32"):
        run("tile.store(y[0:32], n)", "float32", 1e39)
    assert run("tile.store(y[0:32], n)", "float32", math.inf)[0] == math.inf


def test_a_literal_that_fits_in_uint32_keeps_the_dtype_uint32():
    x = np.arange(32, dtype=np.uint32)
    np.testing.assert_array_equal(run("v = tile.load(x[0:32]) * 2654435761\ntile.static_assert(v.dtype == "
                                      "tile.uint32)\ntile.store(y[0:32], v)", "uint32", x=x),
                                  x * np.uint32(2654435761))


@pytest.mark.parametrize("number, dtype, result", [
    (2.7, "int32", 2), (-2.7, "int32", -2), (-1, "uint32", 2**32 - 1), (300, "int8", 44), (-1, "uint64", 2**64 - 1), (1e10, "int32", 2**31 - 1),
    (-1e300, "int16", -2**15), (-0.5, "uint8", 0), (-3.0, "uint8", 0), (2**63, "int64", -2**63), (2.5, "bool", True), (0.0, "bool", False),
    (1e9, "float8_e4m3fn", 448),
    (0.1, "float16", np.float16(0.1)), (3, "float32", 3)])
@pytest.mark.parametrize("spelled", ["tile.cast({}, tile.{})", "tile.{1}({0})", "({}).to(tile.{})", "({}).astype(tile.{})"])
def test_an_explicit_cast_of_a_literal_converts_like_that_of_a_tile(spelled, number, dtype, result):
    name = dtype + "_" * (dtype == "bool")
    y = run(f"tile.store(y[0:32], {spelled.format(number, name)})", getattr(ml_dtypes, dtype, dtype))
    assert (y == np.array(result).astype(y.dtype)).all()


def test_a_compile_time_number_is_cast_and_typed_like_a_launch_argument():
    body = ("wide = tile.uint32(0xFFFFFFFF)\n"
            "tile.static_assert(wide.dtype == tile.uint32 and (5).dtype == tile.int32 and 0.5.dtype == tile.float32 and n.dtype == tile.int32)\n"
            "tile.store(y[0:32], wide.to(tile.uint64) * wide.to(tile.uint64) >> 32)")
    assert (run(body, "int64", 5) == 0xFFFFFFFE).all()


def test_casts_of_infinite_literals_saturate_and_nan_is_zero():
    body = "tile.store(y[0:32], tile.cast(float('{}'), tile.int32))"
    assert [run(body.format(x), "int32")[0] for x in ("inf", "-inf", "nan")] == [2**31 - 1, -2**31, 0]


def test_an_explicit_cast_of_an_argument_keeps_its_low_bits():
    for cast in ("tile.cast(n, tile.int8)", "n.to(tile.int8)", "n.astype(tile.int8)", "tile.int8(n)"):
        assert (run(f"tile.store(y[0:32], tile.load(x[0:32]) * 0 + {cast})", n=300) == 44).all()


def test_int_of_a_64_bit_integer_keeps_its_value():
    assert run("tile.store(y[0:32], int(n))", "int64", 2**40)[0] == 2**40


@pytest.mark.parametrize("dtype, result", [("float16", np.inf), ("bfloat16", np.inf), ("float8_e4m3fn", 448.0), ("float8_e5m2", 57344.0)])
@pytest.mark.parametrize("number", ["10**18", "3.4e39", "float('inf')"])
def test_a_literal_beyond_the_range_of_a_float_dtype_equals_its_cast(dtype, result, number):
    if (dtype, number) == ("bfloat16", "10**18"):
        result = float(ml_dtypes.bfloat16(10**18))
    if (dtype, number) == ("float8_e5m2", "float('inf')"):
        result = np.inf
    for value in (f"tile.where(v > 0, v, {number})", f"tile.full((32,), {number}, v.dtype)", f"tile.cast({number}, v.dtype) + tile.zeros((32,))"):
        assert (run(f"v = tile.zeros((32,), tile.{dtype})\ntile.store(y[0:32], {value})", "float32") == np.float32(result)).all()
