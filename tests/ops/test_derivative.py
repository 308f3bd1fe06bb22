"""The derivative of a function by a tile, element by element, on the simulator: compared with float64, and what has none."""

import math

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import CompilationError
from tilejit.ops.language import math as elementary
from tilejit.ops.language.derivative import is_linear, with_derivative, with_slope

X = np.concatenate([np.linspace(-0.9, 0.9, 12), [-3.0, -1.5, 1.5, 3.0]]).astype(np.float32)
N = len(X)


@tile.jit
def differentiate(X, Y, D, A, F: tile.constexpr):
    """Y and D [functions, N]: the functions F of X [N], and their derivatives."""
    x = tile.load(X[0:16])
    for i in tile.static_range(len(F)):
        y, slope = with_derivative(F[i], x, A)
        tile.store(Y[i, 0:16], y)
        tile.store(D[i, 0:16], tile.full((16,), 1.0) if slope is None else tile.broadcast_to(slope, (16,)))


def found(functions, a=(2.0, 0.5)):
    """(Values, derivatives) of functions of X."""
    y, d = (np.full((len(functions), N), 9, np.float32) for _ in range(2))
    differentiate[1](X, y, d, np.array(a, np.float32), F=tuple(functions), num_warps=1)
    return y.astype(np.float64), d.astype(np.float64)


@tile.jit
def sums(x, A):
    return (3 - x) + tile.load(A[0]) - (-x) * 4


@tile.jit
def products(x, A):
    return x * x * tile.load(A[1]) + x ** 3 + tile.fma(x, x, x)


@tile.jit
def quotients(x, A):
    return x / tile.load(A[0]) + 1 / (x + 5) + (x + 1) / (x * x + 2)


@tile.jit
def extremes(x, A):
    return tile.maximum(x, 0.5) + tile.minimum(x * 2, -0.2) + abs(x - 0.2)


@tile.jit
def chosen(x, A):
    return tile.where(x > 0, x * 3, tile.where(x > -1, 7.0, x))


@tile.jit
def rounded(x, A):
    return tile.floor(x) * x + tile.cast(tile.cast(x * 2, tile.float64), tile.float32) + tile.cast(tile.cast(x, tile.int32), tile.float32)


@tile.jit
def powers(x, A):
    return abs(x) ** tile.load(A[1]) + 2.0 ** x + tile.hypot(x, x * 2) + tile.atan2(x, 2.0)


@tile.jit
def capped(x, A):
    """A cap whose number is loaded, with a helper and a loop that is unrolled."""
    for _ in tile.static_range(2):
        x = tile.load(A[0]) * tile.tanh(x / tile.load(A[0]))
    return doubled(x)


@tile.jit
def doubled(x):
    return x + x


@tile.jit
def branched(x, A):
    if tile.load(A[1]) > 1:
        return x + 1
    if tile.load(A[0]) > 1:
        x = tile.exp(x) * x
    return x * 2


@tile.jit
def shifted(x, A):
    """The derivative of all branches is 1."""
    if tile.load(A[0]) > 1:
        x = x + tile.load(A[1])
    return x


@tile.jit
def independent(x, A):
    return tile.zeros((16,)) + tile.load(A[0])


EXACT = {
    sums: lambda x: np.full(N, 3.0),
    products: lambda x: x + 3 * x * x + 2 * x + 1,
    quotients: lambda x: 0.5 - 1 / (x + 5) ** 2 + 1 / (x * x + 2) - (x + 1) * 2 * x / (x * x + 2) ** 2,
    extremes: lambda x: (x >= 0.5) + 2.0 * (x * 2 <= -0.2) + np.sign(x - 0.2),
    chosen: lambda x: np.where(x > 0, 3.0, np.where(x > -1, 0, 1)),
    rounded: lambda x: np.floor(x) + 2,
    powers: lambda x: 0.5 * np.sign(x) / np.sqrt(abs(x)) + math.log(2) * 2 ** x + np.sign(x) * math.sqrt(5) + 2 / (x * x + 4),
    capped: lambda x: 2 * (1 - np.tanh(x / 2) ** 2) * (1 - np.tanh(np.tanh(x / 2)) ** 2),
    branched: lambda x: 2 * np.exp(x) * (x + 1),
    shifted: lambda x: np.ones(N),
    independent: lambda x: np.zeros(N),
}


NAMES = ("exp exp2 exp10 expm1 log log2 log10 log1p sqrt rsqrt cbrt sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
         "erf erfc erfinv sigmoid").split()


@tile.jit
def sines(x, A):
    sine, cosine = tile.sincos(x)
    return sine * 2 + cosine


def of_name(name, fast):
    """A function under @tile.jit that calls the elementary function `name`, within its domain."""
    function = getattr(tile, name)
    if name == "acosh":
        return tile.jit(_above(function))
    return tile.jit(_fast(function) if fast else _plain(function))


def _plain(function):
    def plain(x, A):
        return function(abs(x) * 0.3 + 0.02)
    return plain


def _fast(function):
    def quick(x, A):
        return function(abs(x) * 0.3 + 0.02, fast=True)
    return quick


def _above(function):
    def above(x, A):
        return function(abs(x) * 0.3 + 1.02)
    return above


@tile.jit
def normalized(x, A):
    return x - tile.max(x, axis=0)


@tile.jit
def looped(x, A):
    for _ in range(3):
        x = x * tile.load(A[0])
    return x


@tile.jit
def reversed_(x, A):
    if tile.load(A[0]) > 0:
        x = tile.exp(tile.flip(x, 0))
    return x


@tile.jit
def bits(x, A):
    return tile.bitcast(tile.bitcast(x, tile.int32) & -2, tile.float32)


@tile.jit
def stored(x, A):
    tile.atomic_add(A[0:2], x[0:2])
    return x + tile.load(A[0])


@tile.jit
def gamma(x, A):
    return tile.tgamma(x)


@pytest.mark.parametrize("function, words, line", [
    (normalized, "normalized has no derivative by its first argument, since reduce here depends on it", "tile.max(x, axis=0)"),
    (looped, "since a loop here depends on it", "for _ in range(3):"),
    (reversed_, "depends on it; elementwise functions of the language have one", "tile.flip(x, 0)"),
    (bits, "since bitcast here depends on it", "tile.bitcast(x, tile.int32)"),
    (stored, "since atomic here depends on it", "tile.atomic_add(A[0:2], x[0:2])"),
    (gamma, "since tgamma here depends on it", "tile.tgamma(x)")])
def test_what_has_no_derivative_is_named_with_its_line(function, words, line):
    with pytest.raises(CompilationError, match=words) as raised:
        found([function])
    assert line in str(raised.value)


@tile.jit
def beside(x, A):
    """What has no derivative matters only where the result depends on it."""
    loudest = tile.max(x, axis=0)
    return x * 2 + tile.where(loudest > 1, 1.0, 0.0)


def of_operators():
    """Operators, branches, helpers and unrolled loops, in float64."""
    _, got = found(EXACT)
    for function, d in zip(EXACT, got):
        assert np.allclose(d, EXACT[function](X.astype(np.float64)), rtol=2e-5, atol=2e-6), function.source.name


def of_elementary_functions():
    """Compared with quotients of differences of NumPy's functions in float64."""
    exact = {f.name: f.numpy for f in elementary._TABLE}
    functions = [of_name(name, False) for name in NAMES] + [of_name(n, True) for n in ("exp", "sin", "tanh")] + [sines]
    _, got = found(functions)
    x, h = X.astype(np.float64), 1e-6
    for name, d in zip([*NAMES, "exp", "sin", "tanh"], got):
        at = np.abs(x) * 0.3 + (1.02 if name == "acosh" else 0.02)
        want = (exact[name](at + h) - exact[name](at - h)) / (2 * h) * 0.3 * np.sign(x)
        assert np.allclose(d, want, rtol=2e-3, atol=1e-5), (name, d - want)
    assert np.allclose(got[-1], 2 * np.cos(x) - np.sin(x), atol=1e-5)
    assert set(NAMES) | {"floor", "ceil", "trunc", "round", "hypot", "atan2", "lgamma", "tgamma", "fmod"} == set(elementary.FUNCTIONS)


def of_what_it_depends_on():
    assert np.array_equal(found([beside])[1], np.full((1, N), 2.0))


@pytest.mark.parametrize("check", [of_what_it_depends_on, of_operators, of_elementary_functions], ids=lambda f: f.__name__)
def test_derivatives_are_right(check):
    """They are one test, so that only the kernel of the first is assembled for every target."""
    check()


# -- functions that are linear in an index -------------------------------------------------------------------------------

@tile.jit
def step_by_step(X, S, A, F: tile.constexpr):
    """S [functions]: by how much each of F rises from one column to the next, 99 for those that are not linear in it."""
    x, rows, columns = tile.load(X[0:4, 0:16]), tile.arange(4)[:, None] + 5, tile.arange(16)[None, :] + 7
    for i in tile.static_range(len(F)):
        if is_linear(F[i], x, columns, rows, columns, A):
            y, slope = with_slope(F[i], x, columns, rows, columns, A)
            tile.store(S[i], slope)
            tile.store(X[0:4, 0:16], y - slope * tile.cast(columns, tile.float32))
        else:
            tile.store(S[i], 99.0)


@tile.jit
def by_distance(x, rows, columns, A):
    return x + tile.load(A[0]) * (columns - rows).to(tile.float32)


@tile.jit
def by_number(x, rows, columns, A):
    return 0.25 * tile.cast(3 + columns, tile.float32) + x - 1


@tile.jit
def falling(x, rows, columns, A):
    return tile.load(A[1]) * tile.cast(tile.cast(-(columns + rows), tile.int64), tile.float32) - (-x) * 1 + tile.load(A[rows % 2])


@tile.jit
def twice(x, rows, columns, A):
    return 2 * x + columns.to(tile.float32)


@tile.jit
def by_row(x, rows, columns, A):
    return x + columns.to(tile.float32) * rows.to(tile.float32)


@tile.jit
def of_rows(x, rows, columns, A):
    return x + rows.to(tile.float32)


@tile.jit
def in_halves(x, rows, columns, A):
    return x + columns.to(tile.float16)


@tile.jit
def with_floor(x, rows, columns, A):
    return tile.floor(x) + columns.to(tile.float32)


@tile.jit
def squares(x, rows, columns, A):
    return x + (columns * columns).to(tile.float32)


@tile.jit
def wrapping(x, rows, columns, A):
    return x + (columns + 2 ** 31 - 1 - 16).to(tile.float32) + (columns * 3).to(tile.float32)


@tile.jit
def apart(x, rows, columns, A):
    return x + tile.abs((columns - rows).to(tile.float32))


@tile.jit
def where_later(x, rows, columns, A):
    if tile.load(A[0]) > 1:
        x = x + columns.to(tile.float32)
    return x


@tile.jit
def looked_up(x, rows, columns, A):
    return x + tile.load(A[columns % 2]) + columns.to(tile.float32)


@tile.jit
def truncated(x, rows, columns, A):
    return tile.cast(tile.cast(x, tile.int32), tile.float32) + columns.to(tile.float32)


@tile.jit
def by_thirds(x, rows, columns, A):
    return x + (columns.to(tile.float32) * 0.3).to(tile.int32).to(tile.float32)


@tile.jit
def doubled_columns(x, rows, columns, A):
    for _ in tile.static_range(8):
        columns = columns + columns
    return x + columns.to(tile.float32)


@tile.jit
def beyond_a_number(x, rows, columns, A):
    return x + (columns + tile.load(A[0]).to(tile.int32)).to(tile.float32)


@tile.jit
def in_a_list(x, rows, columns, A):
    return [x + columns.to(tile.float32)]


@tile.jit
def by_place(x, rows, columns, A):
    return x + tile.load(A[tile.arange(16) % 2]) + columns.to(tile.float32)


@tile.jit
def of_many_terms(x, rows, columns, A):
    for i in tile.static_range(40):
        x = x + tile.load(A[0]) * (columns - rows).to(tile.float32)
    return x


def test_the_slope_by_an_index_is_that_of_functions_that_are_linear_in_it():
    """No sum of integers may wrap, and none is truncated."""
    linear = {by_distance: 2.0, by_number: 0.25, falling: -0.5}
    others = (twice, by_row, of_rows, in_halves, with_floor, squares, wrapping, apart, where_later, looked_up,
              truncated, by_thirds, doubled_columns, beyond_a_number, in_a_list, by_place, of_many_terms)
    steps = np.zeros(len(linear) + len(others), np.float32)
    step_by_step[1](np.zeros((4, 16), np.float32), steps, np.array([2.0, 0.5], np.float32), F=(*linear, *others), num_warps=1)
    assert steps.tolist() == [*linear.values(), *[99.0] * len(others)]


@pytest.mark.parametrize("function", [by_distance, by_number, falling])
def test_what_a_linear_function_adds_beside_its_steps_is_the_same_in_all_columns(function):
    x, a = np.broadcast_to(np.arange(4, dtype=np.float32)[:, None], (4, 16)).copy(), np.array([2.0, 0.5], np.float32)
    step_by_step[1](x, np.zeros(1, np.float32), a, F=(function,), num_warps=1)
    assert np.ptp(x, axis=1).max() < 1e-5 and np.ptp(x) > 0


@tile.jit
def looked_at(X, S, A, F: tile.constexpr):
    x, columns = tile.load(X[0:4, 0:16]), tile.arange(16)[None, :]
    tile.store(S[0], 1.0 if is_linear(F, x, columns, columns, columns, A) else 2.0)
    tile.store(X[0:4, 0:16], x)


@pytest.mark.parametrize("function, much", [(looked_up, 2), (by_distance, 1)])
def test_a_function_that_is_only_looked_at_adds_nothing_to_a_kernel(function, much):
    """Nor a warning of a load that is not used."""
    x, s = np.zeros((4, 16), np.float32), np.zeros(1, np.float32)
    looked_at[1](x, s, x[0, :2], F=function, num_warps=1)
    made = looked_at.compile(x, s, x[0, :2], F=function, num_warps=1, target="sm_90a")
    assert s[0] == much and not made.warnings and str(made.graph).count(" load(") == 1
