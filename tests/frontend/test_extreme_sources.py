"""No source text and no constant ends in an error of Python's own inside the compiler."""

import io
import sys
import time

import numpy as np
import pytest
import tilejit as tile
from tilejit.dtypes import MAX_BITS


def kernel(body: str):
    return tile.jit(source=f"def k(o, n, N: tile.constexpr = 3):\n{body}")


def launched(body: str, n=2, **constants):
    out = np.zeros(1, np.int32)
    kernel(body)[1,](out, n, **constants)
    return out[0]


@pytest.mark.parametrize("operator, value", [("+", 5000), ("-", -4996), ("|", 2)])
def test_an_expression_of_2500_terms_compiles(operator, value):
    assert launched(f"    tile.store(o[0], {f' {operator} '.join(['n'] * 2500)})\n") == value


@pytest.mark.parametrize("text", [" + ".join(["n"] * 100_000), "- " * 900 + "n", " ** ".join(["n"] * 900), "o" + ".shape" * 900,
                                  "(" * 180 + "n" + ",)" * 180, "n" + "[0]" * 900])
def test_an_expression_that_nests_too_deeply_is_a_compilation_error(text):
    with pytest.raises(tile.TileError):
        launched(f"    tile.store(o[0], {text})\n")


def test_an_elif_chain_that_is_too_long_is_a_compilation_error():
    chain = "".join(f"    elif n == {i}:\n        a = {i}\n" for i in range(1, 1500))
    with pytest.raises(tile.CompilationError, match="nests too deeply"):
        launched(f"    if n == 0:\n        a = 0\n{chain}    else:\n        a = 1\n    tile.store(o[0], a)\n")


@pytest.mark.parametrize("text", ["'\ud800'", "'\0'"])
def test_a_text_that_python_cannot_encode_is_a_compilation_error(text):
    with pytest.raises(tile.CompilationError, match="not Python"):
        kernel(f"    tile.static_print({text})\n")


def test_lone_surrogates_are_printed_as_escapes(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr(sys, "stdout", output)
    assert launched("    tile.static_print('\\ud800')\n    with tile.thread(0):\n        tile.device_print('\\ud801', n)\n"
                    "    tile.store(o[0], n)\n") == 2
    output.flush()
    assert output.buffer.getvalue() == b"\\ud800\ncta 0 thread 0: \\ud801 2\n"


def test_a_kernel_with_lone_surrogates_compiles():
    made = kernel("    tile.device_print('\\ud800', n)\n    assert n == 2, '\\udc80'\n    tile.store(o[0], N == '\\udfff')\n").compile(
        np.zeros(1, np.int32), 2, N="\ud800", target="sm_90a")
    assert "\\5Cud800" in made.llvm_ir


@pytest.mark.parametrize("constant", ["1 << 10**12", "3 ** 3 ** 3 ** 3 ** 3", "(1 << 8000) * (1 << 8000)", "0x" + "f" * 9000, "10 ** 4000", "N ** N"])
def test_a_constant_of_thousands_of_digits_is_a_compilation_error(constant):
    with pytest.raises(tile.CompilationError, match="bits"):
        launched(f"    tile.store(o[0], {constant})\n", N=5000)


def test_huge_arguments_and_captured_values_are_refused_by_name():
    with pytest.raises(tile.LaunchError, match=f"'N' has 16610 bits, and a constant has at most {MAX_BITS}"):
        launched("    tile.store(o[0], N)\n", N=10**5000)
    with pytest.raises(tile.LaunchError, match="n = an integer of 16610 bits does not fit in 64 bits"):
        launched("    tile.store(o[0], n)\n", n=10**5000)
    captured = tile.jit(source="def k(o):\n    tile.store(o[0], HUGE)\n")
    captured.source.globals["HUGE"] = 10**5000
    with pytest.raises(tile.CompilationError, match="HUGE has 16610 bits"):
        captured[1,](np.zeros(1, np.int32))
    captured.source.globals.pop("HUGE")


def test_shifts_and_powers_of_moderate_size_are_computed():
    assert launched("    tile.store(o[0], ((1 << 4000) >> 3998) + (2 ** 4097 >> 4096) + 1 ** 10**9 + 0 ** 10**9)\n") == 7


def test_a_constant_that_nests_too_deeply_is_a_launch_error():
    nested = ()
    for _ in range(5 * sys.getrecursionlimit()):
        nested = (nested,)
    with pytest.raises(tile.TileError, match="nests too deeply"):
        launched("    tile.store(o[0], len(N))\n", N=nested)


@pytest.mark.parametrize("launch", [lambda k, grid, o: k[grid](o, 2), lambda k, grid, o: k.simulate(grid, o, 2)])
def test_a_grid_function_s_own_exception_is_shown_as_its_own(launch):
    def wrong_name(arguments):
        return (arguments["NN"],)

    def fails(arguments):
        return (1 // (arguments["n"] - 2),)

    k, out = kernel("    tile.store(o[0], n)\n"), np.zeros(1, np.int32)
    with pytest.raises(tile.LaunchError, match=r"the grid function raised KeyError: 'NN' \(did you mean 'N'\?\); .* by name: o, n, N") as caught:
        launch(k, wrong_name, out)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(tile.LaunchError, match="the grid function raised ZeroDivisionError"):
        launch(k, fails, out)


def test_a_grid_function_that_raises_in_a_later_launch_is_shown_as_its_own():
    k, out = kernel("    tile.store(o[0], n)\n"), np.zeros(1, np.int32)
    grid = lambda arguments: (1 // arguments["n"],)
    k[grid](out, 1)
    with pytest.raises(tile.LaunchError, match="the grid function raised ZeroDivisionError"):
        k[grid](out, 0)


def test_ten_thousand_lines_compile_in_20_seconds(kernels, monkeypatch):
    """The passes' time grows with the number of lines, not with its square. It is that of the processor, which other processes may share."""
    monkeypatch.setattr(kernels, "watching", False)  # assembled for one target, since four take 20 seconds more
    lines = "    v = v * 2 + n\n" * 9997
    k = tile.jit(source=f"def k(o, n):\n    v = tile.load(o[0:64])\n{lines}    tile.store(o[0:64], v)\n")
    start = time.process_time()
    k.compile(np.zeros(64, np.float32), 2.0, target="sm_90a")
    assert time.process_time() - start < 20


def test_the_search_for_ragged_loads_visits_each_value_of_a_chain_of_reductions_a_few_times(monkeypatch):
    from tilejit.ops.reduce import ragged_warnings
    asked = []
    real = ragged_warnings._reads_outside
    monkeypatch.setattr(ragged_warnings, "_reads_outside", lambda g, value, axes: asked.append(value) or real(g, value, axes))
    lines = "    v = v - tile.sum(v, axis=0)\n" * 300
    tile.jit(source=f"def k(o):\n    v = tile.load(o[0:64], other=0)\n{lines}    tile.store(o[0:64], v)\n").compile(
        np.zeros(64, np.float32), target="sm_90a")
    assert len(asked) < 10 * 300
