"""Scans compared with NumPy, along any axis, in both directions, on the simulator."""

from functools import cache

import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st
from tilejit.dispatch import Choice
from tilejit.dtypes import int32
from tilejit.ir.graph import Call, Value
from tilejit.layout import blocked_layout, mma_fragment, wgmma_accumulator
from tilejit.ops.reduce.combine import Combine, Known
from tilejit.ops.reduce.scan import plan_scan, scan_
from tilejit.types import Tile

from tests.emitted_code import run_emitted


@cache
def kernel_of(function):
    """A kernel that stores the result of `function` (a builtin or a helper) on a two-dimensional tile."""
    if isinstance(function, str):
        named = getattr(tile, function)

        @tile.jit
        def kernel(x, y, N: tile.constexpr, M: tile.constexpr, AXIS: tile.constexpr, REVERSE: tile.constexpr):
            tile.store(y[0:N, 0:M], named(tile.load(x[0:N, 0:M], other=0), axis=AXIS, reverse=REVERSE))
    else:
        @tile.jit
        def kernel(x, y, N: tile.constexpr, M: tile.constexpr, AXIS: tile.constexpr, REVERSE: tile.constexpr):
            v = tile.load(x[0:N, 0:M], other=0)
            tile.store(y[0:N, 0:M], tile.scan(v, AXIS, function, reverse=REVERSE))
    return kernel


def run(function, x: np.ndarray, axis: int, reverse: bool, dtype, num_warps: int) -> np.ndarray:
    y = np.empty(x.shape, dtype)
    num_warps = max(num_warps, -(-x.nbytes // 8192))  # that fit in the registers
    kernel_of(function)[(1,)](x, y, N=x.shape[0], M=x.shape[1], AXIS=axis, REVERSE=reverse, num_warps=num_warps)
    return y


def flipped(x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    return np.flip(x, axis) if reverse else x


SHAPES = st.tuples(st.sampled_from([1, 2, 3, 7, 16, 33]), st.sampled_from([1, 5, 8, 31, 64, 100]))
WARPS = st.sampled_from([1, 2, 3, 4, 8])


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.integers(-2, 1), st.booleans(), st.sampled_from(["int8", "uint16", "int32", "uint64"]), WARPS,
       st.sampled_from(["cumsum", "cumprod"]), st.integers(0, 99))
def test_cumulative_sums_and_products_of_integers_are_exact(shape, axis, reverse, dtype, num_warps, name, seed):
    """They wrap in at least 32 bits."""
    info = np.iinfo(dtype)
    x = np.random.default_rng(seed).integers(info.min, info.max, shape, dtype, endpoint=True)
    out = dtype if info.bits >= 32 else ("u" if dtype[0] == "u" else "") + "int32"
    want = flipped(getattr(np, name)(flipped(x, axis, reverse), axis=axis, dtype=out), axis, reverse)
    np.testing.assert_array_equal(run(name, x, axis, reverse, out, num_warps), want)


@pytest.mark.parametrize("shape, axis, num_warps", [((1, 128), 1, 4), ((2, 100), 1, 4), ((16, 8), 0, 4), ((33, 5), 0, 3)])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_the_emitted_code_of_a_cumulative_sum_agrees_with_numpy(shape, axis, reverse, dtype, num_warps):
    """Across the lanes of a warp, and across warps."""
    x = np.random.default_rng(0).integers(0, 1 << 31, shape, dtype)
    y = np.zeros(shape, dtype)
    compiled = kernel_of("cumsum").compile(x, y, N=shape[0], M=shape[1], AXIS=axis, REVERSE=reverse, num_warps=num_warps,
                                           target="sm_90a")
    assert "shfl.sync" in compiled.ptx
    run_emitted(compiled, [x, y], 32 * num_warps)
    want = flipped(np.cumsum(flipped(x, axis, reverse), axis=axis, dtype=dtype), axis, reverse)
    np.testing.assert_array_equal(y, want)


@settings(max_examples=30, deadline=None)
@given(SHAPES, st.integers(0, 1), st.booleans(), st.sampled_from(["float16", "float32", "float64"]), WARPS, st.integers(0, 99))
def test_cumulative_sums_of_floats_have_the_accuracy_of_float32(shape, axis, reverse, dtype, num_warps, seed):
    """Each element is rounded to float16 once, from a float32 sum."""
    x = np.random.default_rng(seed).random(shape).astype(dtype)
    exact = flipped(np.cumsum(flipped(x, axis, reverse).astype(np.float64), axis=axis), axis, reverse)
    got = run("cumsum", x, axis, reverse, dtype, num_warps)
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=1e-5 + (5e-4 if dtype == "float16" else 0))


class Affine(Combine):
    """Composition of maps ``x -> a * x + b``: associative, and not commutative."""

    name = "affine"

    def simulate(self, m, a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]


@st.composite
def layouts(draw):
    kind = draw(st.sampled_from(["blocked", "blocked", "wgmma", "mma"]))
    if kind == "blocked":
        shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 7, 8, 16, 33, 64, 100]), min_size=1, max_size=3)))
        while np.prod(shape) > 8000:
            shape = shape[1:]
        threads = 32 * draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
        layout, domain = blocked_layout(shape, threads, draw(st.sampled_from([1, 2, 4])), draw(st.permutations(range(len(shape)))))
    elif kind == "wgmma":
        shape = (64, draw(st.sampled_from([8, 24, 64])))
        layout, domain = wgmma_accumulator(*shape)
    else:
        shape = draw(st.sampled_from([(32, 32), (30, 20), (16, 64)]))
        layout, domain = mma_fragment("m16n8k16", "c", shape, (2, 2))
    return Tile(int32, shape, layout, domain)


@settings(max_examples=120, deadline=None)
@given(layouts(), st.data(), st.booleans(), st.integers(0, 2**32))
def test_a_scan_keeps_the_order_of_elements_in_any_layout(t, data, reverse, seed):
    """A non-commutative function shows if two parts are swapped; leading padding does not count."""
    axis = data.draw(st.integers(0, len(t.shape) - 1))
    rng, combine = np.random.default_rng(seed), Affine()
    xs = tuple(rng.integers(-9, 9, (2, *t.shape)).astype(np.int32) for _ in range(2))
    values = tuple(Value(n, t) for n in "ab")
    attrs = {"axis": axis, "reverse": reverse, "combine": combine}
    call = Call(scan_, values, attrs, values, None, Choice("scan", plan_scan(t, axis, reverse, combine)))
    got = scan_.rules.simulate(None, call, *xs)
    ordered = [np.moveaxis(flipped(x, axis + 1, reverse), axis + 1, 0).copy() for x in xs]
    for i in range(1, t.shape[axis]):
        a, b = combine.simulate(None, tuple(x[i - 1] for x in ordered), tuple(x[i] for x in ordered))
        ordered[0][i], ordered[1][i] = a, b
    for x, want in zip(got, ordered):
        np.testing.assert_array_equal(np.moveaxis(flipped(x, axis + 1, reverse), axis + 1, 0), want)


@tile.jit
def later(a, b):
    if b != 0:
        return b
    return a


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.integers(0, 1), st.booleans(), WARPS, st.integers(0, 99))
def test_a_scan_by_a_user_function_propagates_the_last_mark(shape, axis, reverse, num_warps, seed):
    """``combine(earlier, later)`` with a branch and without an identity; reversed, a padded tile starts with its padding."""
    rng = np.random.default_rng(seed)
    x = (rng.integers(1, 100, shape) * (rng.random(shape) < 0.2)).astype(np.int32)
    marks = flipped(np.moveaxis(x, axis, 0), 0, reverse)
    want = marks.copy()
    for i in range(1, len(want)):
        want[i] = np.where(marks[i] != 0, marks[i], want[i - 1])
    want = np.moveaxis(flipped(want, 0, reverse), 0, axis)
    np.testing.assert_array_equal(run(later, x, axis, reverse, np.int32, num_warps), want)


@tile.jit
def recurrence(a, b):
    return a[0] * b[0], a[1] * b[0] + b[1]


@tile.jit
def filtered(decay, x, y, N: tile.constexpr):
    d, v = tile.load(decay[0:N], other=0), tile.load(x[0:N], other=0)
    _, state = tile.scan((d, v), 0, recurrence)
    tile.store(y[0:N], state)
    tile.store(y[N:2 * N], v.cumsum())


@pytest.mark.parametrize("n", [1, 37, 500])
def test_a_linear_recurrence_is_a_scan_of_pairs(n):
    """``h[i] = decay[i] * h[i - 1] + x[i]``, two tiles together."""
    rng = np.random.default_rng(n)
    decay, x, y = rng.random(n).astype(np.float32), rng.normal(size=n).astype(np.float32), np.empty(2 * n, np.float32)
    filtered[(1,)](decay, x, y, N=n)
    h, want = 0.0, []
    for d, v in zip(decay.tolist(), x.tolist()):
        h = d * h + v
        want.append(h)
    np.testing.assert_allclose(y[:n], want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(y[n:], np.cumsum(x, dtype=np.float64), rtol=1e-4, atol=1e-4)


def test_a_scan_within_each_thread_needs_no_other_threads():
    """If a thread holds the whole axis, the plan has registers only."""
    layout, domain = blocked_layout((128, 16), 128, 1, (0, 1))
    plan = plan_scan(Tile(int32, (128, 16), layout, domain), 1, False, Known("sum", int32))
    assert [d.axis for d in plan.digits] == ["reg"]


# Of x[30, 128] rows exceed the array, of w[100] elements do; y is [30, 100], z is [60, 128]. Whether elements out of bounds affect what is stored.
REACHED = {
    "tile.store(y[i:i + 16, 0:128], tile.cumprod(v, axis=0))": False,
    "tile.store(y[i:i + 16, 0:128], tile.cumprod(v, axis=0, reverse=True))": True,
    "tile.store(z[i:i + 16, 0:128], tile.cumprod(v, axis=0))": True,
    "tile.store(y[i + 1:i + 17, 0:128], tile.cumprod(v, axis=0))": True,
    "tile.store(y[0, 0:128], tile.cumprod(u) * 2)": False,
    "tile.store(y[0, 0:128], tile.cumsum(tile.exp(u)).to(tile.float16).to(tile.float32))": False,
    "tile.store(z[0, 0:128], tile.cumsum(tile.exp(u)))": True,
    "tile.store(y[0, 0:128], tile.cumsum(tile.scan(u, 0, tile.maximum)))": False,
    "tile.store(y[0, 0:128], tile.cumsum(tile.scan(u, 0, tile.maximum), reverse=True))": True,
    "tile.store(y[i:i + 16, 0:128], tile.cumprod(v.T, axis=1).T)": False,
    "tile.store(y[i:i + 16, 0:128], tile.cumprod(v.reshape(1, 16, 128), axis=1).reshape(16, 128))": False,
    "tile.store(y[i:i + 16, 0:128], tile.cumprod(v.reshape(2048)).reshape(16, 128))": True,
    "tile.store(y[i:i + 16, 0], tile.max(tile.cumprod(v, axis=0), axis=1))": False,
    "tile.store(y[0, 0:128], tile.max(tile.cumprod(v, axis=0), axis=0))": True,
    "tile.store(y[0, 0], tile.max(tile.cumprod(u)))": True,
    "c = tile.cumprod(u); tile.store(y[0, 0:128], c); tile.store(y[1, 0], tile.max(c))": True,
    "s = tile.alloc((128,), w.dtype); tile.store(s, tile.cumprod(u)); tile.sync(); tile.store(y[0, 0], tile.load(s[127]))": True,
    "tile.store(y[0, 127 - tile.arange(128)], tile.cumprod(u))": True,
    "tile.store(tile.window(y, (0, 0), (1, n))[0, 0:128], tile.cumprod(u))": True,
    "tile.atomic_add(y[0, 0:128], tile.cumprod(u))": False,
    "tile.store(y[0, 0:128], tile.where(u > 0, tile.cumprod(u), 0), mask=tile.cumprod(u) > 3)": False,
    "tile.store(y[0, n:n + 128], tile.cumprod(tile.load(w[n:n + 128])))": True,
    "tile.assume(n >= 0); tile.store(y[0, n:n + 128], tile.cumprod(tile.load(w[n:n + 128])))": False,
    "a, b = tile.scan((u, u), 0, both); tile.store(y[0, 0:128], a); tile.store(y[1, 0:128], b)": False,
    "a, b = tile.scan((u, u), 0, both); tile.store(y[0, 0:128], a); tile.store(y[1, 0], tile.max(b))": True,
    "a = tile.zeros((128,))\n    for k in range(n):\n        a += tile.cumprod(u)\n    tile.store(y[0, 0:128], a)": False,
    "a = tile.zeros((128,))\n    for k in range(n):\n        a += tile.cumprod(u)\n    tile.store(y[0, 0], tile.max(a))": True,
    "a = u\n    if n > 3:\n        a = tile.cumprod(u)\n    tile.store(y[0, 0:128], a)": False,
    "p = q = tile.program_id(1)\n    for _ in tile.static_range(60):\n        p, q = (p + p) & 63, (q + q) & 63\n"
    "    tile.store(y[0, p:p + 128], tile.cumprod(tile.load(w[q:q + 128])))": False,
    "p, q = tile.reduce((tile.arange(4) + n, tile.arange(4)), 0, both); tile.assume(p >= 0 and q >= 0)\n"
    "    tile.store(y[0, p:p + 128], tile.cumprod(tile.load(w[q:q + 128])))": True,
    "a = u\n    while n > 3:\n        a = tile.cumprod(u)\n        n -= 1\n    tile.store(y[0, 0], tile.min(a))": True,
}


@tile.jit
def both(a, b):
    return a[0] * b[0], a[1] + b[1]


@pytest.mark.usefixtures("assembled_later")
@pytest.mark.parametrize("text", REACHED)
def test_a_scan_warns_if_elements_out_of_bounds_affect_a_stored_result(text):
    kernel = tile.jit(source="def k(x, w, y, z, n, both: tile.constexpr):\n    i = 16 * tile.program_id(0)\n"
                             f"    v, u = tile.load(x[i:i + 16, 0:128]), tile.load(w[0:128])\n    {text}\n")
    specs = [tile.ArraySpec(shape, "float32") for shape in ((30, 128), (100,), (30, 100), (60, 128))]
    warnings = kernel.compile(*specs, 3, both=both).warnings
    assert any("over a load that may read out of bounds of" in w for w in warnings) == REACHED[text], warnings


@pytest.mark.parametrize("text", [text for text, reached in REACHED.items() if not reached and "w[" not in text])
def test_without_that_warning_other_values_out_of_bounds_change_nothing(text):
    kernel = tile.jit(source="def k(x, w, y, z, n, both: tile.constexpr, OTHER: tile.constexpr):\n    i = 16 * tile.program_id(0)\n"
                             f"    v, u = tile.load(x[i:i + 16, 0:128], other=OTHER), tile.load(w[0:128], other=OTHER)\n    {text}\n")
    rng = np.random.default_rng(0)
    x, w = (rng.uniform(0.5, 2, shape).astype(np.float32) for shape in ((30, 128), (100,)))
    found = []
    for other in (0, 3):
        y, z = np.zeros((30, 100), np.float32), np.zeros((60, 128), np.float32)
        kernel.simulate(2 if "y[i:" in text else 1, x, w, y, z, 4, both=both, OTHER=other).raise_first()
        found += [y, z]
    assert (found[0] == found[2]).all() and (found[1] == found[3]).all() and found[0].any()
