"""Reductions compared with NumPy: dtypes, shapes, axes and numbers of warps, on the simulator."""

from functools import cache

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st

pytestmark = pytest.mark.usefixtures("assembled_later")


@cache
def kernel_of(name: str, rank: int):
    """A kernel that stores ``tile.<name>(x, axis=AXIS, keepdims=True)`` of an array of `rank` dimensions."""
    op = getattr(tile, name)
    if rank == 1:
        @tile.jit
        def kernel(x, y, AXIS: tile.constexpr, S: tile.constexpr, R: tile.constexpr):
            tile.store(y[0:R[0]], op(tile.load(x[0:S[0]], other=0), axis=AXIS, keepdims=True))
    elif rank == 2:
        @tile.jit
        def kernel(x, y, AXIS: tile.constexpr, S: tile.constexpr, R: tile.constexpr):
            v = tile.load(x[0:S[0], 0:S[1]], other=0)
            tile.store(y[0:R[0], 0:R[1]], op(v, axis=AXIS, keepdims=True))
    else:
        @tile.jit
        def kernel(x, y, AXIS: tile.constexpr, S: tile.constexpr, R: tile.constexpr):
            v = tile.load(x[0:S[0], 0:S[1], 0:S[2]], other=0)
            tile.store(y[0:R[0], 0:R[1], 0:R[2]], op(v, axis=AXIS, keepdims=True))
    return kernel


def run(name: str, x: np.ndarray, axis, dtype, num_warps: int = 4) -> np.ndarray:
    """The simulator's result of ``tile.<name>`` with keepdims."""
    axes = range(x.ndim) if axis is None else [a % x.ndim for a in (axis if isinstance(axis, tuple) else (axis,))]
    shape = tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    y = np.empty(shape, dtype)
    num_warps = max(num_warps, -(-x.nbytes // 8192))  # that fit in the registers
    kernel_of(name, x.ndim)[(1,)](x, y, AXIS=axis, S=x.shape, R=shape, num_warps=num_warps)
    return y


EXTENTS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 33, 64, 100, 128, 250])
WARPS = st.sampled_from([1, 2, 3, 4, 6, 8])


@st.composite
def shaped(draw):
    """A shape of at most 4000 elements, and axes of it."""
    shape = tuple(draw(st.lists(EXTENTS, min_size=1, max_size=3)))
    while np.prod(shape) > 4000:
        shape = shape[1:]
    rank = len(shape)
    some = st.lists(st.integers(-rank, rank - 1), min_size=1, max_size=rank, unique_by=lambda a: a % rank).map(tuple)
    return shape, draw(st.one_of(st.none(), st.integers(-rank, rank - 1), some))


INTS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@settings(max_examples=60, deadline=None)
@given(shaped(), st.sampled_from(INTS), WARPS, st.sampled_from(["sum", "prod", "max", "min", "any", "all"]), st.integers(0, 2**32))
def test_integers_are_reduced_exactly(shape, dtype, num_warps, name, seed):
    """Sums and products wrap in at least 32 bits; max and min keep the dtype; any and all return a bool."""
    (shape, axis), rng = shape, np.random.default_rng(seed)
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    if name in ("any", "all"):
        x *= rng.random(shape) < (0.02 if name == "any" else 0.98)
    wide = {"sum": True, "prod": True}.get(name) and (("u" if dtype[0] == "u" else "") + "int32" if info.bits < 32 else dtype)
    out = wide or (bool if name in ("any", "all") else dtype)
    want = getattr(np, name)(x, axis=axis, keepdims=True, **({"dtype": wide} if wide else {}))
    np.testing.assert_array_equal(run(name, x, axis, out, num_warps), want)


@settings(max_examples=40, deadline=None)
@given(shaped(), st.sampled_from(["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]), WARPS, st.integers(0, 2**32))
def test_sums_of_narrow_floats_are_accumulated_in_float32_and_rounded_once(shape, dtype, num_warps, seed):
    """The error is that of float32 additions plus one rounding."""
    (shape, axis), rng = shape, np.random.default_rng(seed)
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = rng.normal(size=shape).astype(np.float32).astype(dtype)
    exact = x.astype(np.float64).sum(axis=axis, keepdims=True)
    got = run("sum", x, axis, dtype, num_warps)
    magnitude = np.abs(x.astype(np.float64)).sum(axis=axis, keepdims=True)
    accumulated = 16 * magnitude * np.finfo(np.float64 if dtype == np.float64 else np.float32).eps
    rounded = np.maximum(np.abs(exact) + accumulated, float(ml_dtypes.finfo(dtype).smallest_subnormal)) * float(ml_dtypes.finfo(dtype).eps)
    limit = float(ml_dtypes.finfo(dtype).max)
    inside = np.abs(exact) < limit * 0.9
    assert (np.abs(got.astype(np.float64) - exact) <= accumulated + rounded)[inside].all()


@settings(max_examples=40, deadline=None)
@given(shaped(), st.sampled_from(["float32", "float64", "float16", "bfloat16"]), WARPS,
       st.sampled_from(["max", "min", "argmax", "argmin"]), st.booleans(), st.integers(0, 2**32))
def test_max_min_argmax_and_argmin_of_floats_propagate_nan(shape, dtype, num_warps, name, nan, seed):
    """argmax returns the first of equal elements, or the first NaN."""
    (shape, axis), rng = shape, np.random.default_rng(seed)
    x = rng.integers(-5, 5, shape).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    if nan:
        x[rng.random(shape) < 0.05] = np.nan
    if name.startswith("arg"):
        axis = axis[0] if isinstance(axis, tuple) else axis
        want = getattr(np, name)(x.astype(np.float64), axis=axis, keepdims=True)
        np.testing.assert_array_equal(run(name, x, axis, np.int32, num_warps), want)
    else:
        want = getattr(np, name)(x.astype(np.float64), axis=axis, keepdims=True)
        np.testing.assert_array_equal(run(name, x, axis, x.dtype, num_warps).astype(np.float64), want)


def test_argmax_over_all_axes_returns_a_row_major_index():
    """``axis=None`` counts as in NumPy, also over padded dimensions."""
    x = np.zeros((5, 7, 9), np.float32)
    x[3, 2, 6] = x[4, 0, 0] = 2
    assert run("argmax", x, None, np.int32).item() == 3 * 63 + 2 * 9 + 6
    assert run("argmin", x, None, np.int32).item() == 0


@tile.jit
def scalars(x, f, i, N: tile.constexpr):
    v = tile.load(x[0:N], other=0)
    tile.store(f[0], tile.sum(v))
    tile.store(f[1], v.max())
    tile.store(f[2], tile.mean(v))
    tile.store(f[3], v.prod(axis=0))
    tile.store(i[0], tile.argmin(v))
    if tile.any(v > 2.0) and tile.all(v < 3.0):
        tile.store(i[1], 7)
    tile.store(f[4], tile.sum(v, axis=())[2])
    tile.store(f[5], tile.max(1) + tile.sum(2.5))


def test_reductions_over_all_axes_are_scalars_that_conditions_may_use():
    """The result is uniform over the whole scope, so a branch on it remains collective."""
    x = np.random.default_rng(1).random(37).astype(np.float32) * 2.9
    x[5], x[20] = 2.95, 0.001
    f, i = np.zeros(6, np.float32), np.zeros(2, np.int32)
    scalars[(1,)](x, f, i, N=37)
    np.testing.assert_allclose(f, [x.sum(), x.max(), x.mean(), x.prod(), x[2], 3.5], rtol=1e-5)
    assert i.tolist() == [20, 7]


@tile.jit
def means(x, y, N: tile.constexpr, M: tile.constexpr):
    v = tile.load(x[0:N, 0:M], other=0)
    tile.store(y[0, 0:M], tile.mean(v, axis=0))
    tile.store(y[1, 0:M], tile.mean(v, axis=0, dtype=tile.float32))


@pytest.mark.parametrize("dtype", ["int16", "float16", "float32"])
def test_a_mean_divides_once(dtype):
    """Of ints in float32, of float16 in float32 with one rounding."""
    x = np.arange(60).reshape(12, 5).astype(dtype)
    out = "float32" if dtype == "int16" else dtype
    y = np.empty((2, 5), "float32")
    means[(1,)](x, y, N=12, M=5)
    want = x.astype(np.float32).mean(axis=0)
    np.testing.assert_array_equal(y[0], want.astype(out).astype(np.float32))
    np.testing.assert_array_equal(y[1], want)


@tile.jit
def nothing(y):
    v = tile.zeros((0, 3))
    tile.store(y[0, 0:3], tile.sum(v, axis=0))
    tile.store(y[1, 0:3], tile.prod(v, axis=0))
    tile.store(y[2, 0], tile.where(tile.any(v), 1.0, 0.0))
    tile.store(y[2, 1], tile.where(tile.all(v), 1.0, 0.0))
    tile.store(y[2, 2], tile.sum(v))


def test_reductions_over_no_elements_give_the_identity():
    """0 for sums, 1 for products, False for any, True for all."""
    y = np.full((3, 3), 9, np.float32)
    nothing[(1,)](y)
    assert y.tolist() == [[0, 0, 0], [1, 1, 1], [0, 1, 0]]


def _refused(body: str):
    """The error message of a kernel with this body over ``v``, a float tile (4, 0), and ``w``, one of (4, 8)."""
    kernel = tile.jit(source=f"def k(y):\n    v = tile.zeros((4, 0))\n    w = tile.zeros((4, 8))\n    {body}\n")
    kernel.source.globals["tile"] = tile
    with pytest.raises(tile.CompilationError) as error:
        kernel.compile(tile.ArraySpec((4,), "float32"))
    return str(error.value)


def test_invalid_reductions_are_errors():
    """Max and min of nothing, axes out of range or repeated, regions, several axes of argmax, partial scopes."""
    assert "without elements has no value" in _refused("tile.max(v, axis=1)")
    assert "without elements has no value" in _refused("tile.argmin(v, axis=1)")
    assert "out of range" in _refused("tile.sum(w, axis=2)")
    assert "named twice" in _refused("tile.sum(w, axis=(0, -2))")
    assert "load it first" in _refused("tile.sum(y[0:4])")
    assert "takes one axis" in _refused("tile.argmax(w, axis=(0, 1))")
    assert "differs between them" in _refused("if tile.thread_id() < 7:\n        tile.sum(tile.zeros((8,)))")
    assert "a mean is a float" in _refused("tile.mean(w, dtype=tile.int32)")


@tile.jit
def ragged(x, y, N: tile.constexpr, EXPLICIT: tile.constexpr):
    i = tile.program_id(0)
    v = tile.load(x[i * N:(i + 1) * N], other=0 if EXPLICIT else None)
    tile.store(y[i], tile.max(tile.exp(v)))


@tile.jit
def whole_array(x, y, N: tile.constexpr):
    tile.store(y[0], tile.max(tile.load(x[0:N])))


@pytest.mark.parametrize("size, explicit, warns", [(100, False, True), (100, True, False), (128, False, False)])
def test_a_reduction_over_a_ragged_load_without_other_is_a_warning(size, explicit, warns):
    """Only if the load may be out of bounds as far as is known, and `other` is not given."""
    compiled = ragged.compile(tile.ArraySpec((size,), "float32"), tile.ArraySpec((4,), "float32"), N=32, EXPLICIT=explicit)
    assert bool(compiled.warnings) == warns
    inside = whole_array.compile(tile.ArraySpec((size,), "float32"), tile.ArraySpec((4,), "float32"), N=128)
    assert bool(inside.warnings) == (size < 128)
    if warns:
        assert "out of bounds of x" in str(compiled.warnings[0]) and "other" in str(compiled.warnings[0])


REMEDIES = {
    "tile.max(v)": 'tile.load(..., other=-float("inf"))', "tile.argmin(v)": 'tile.load(..., other=float("inf"))',
    "tile.prod(v)": "tile.load(..., other=1)",
    "tile.max(v.to(tile.int16))": "tile.load(..., other=-32768)", "tile.mean(v)": "divide tile.sum(...) by how many there are",
    "tile.sum(tile.exp(v))": "give them a value by tile.load(..., other=...)",
    "tile.min(tile.abs(v))": "give them a value by tile.load(..., other=...)",
    "tile.max(tile.abs(v) - 1)": "give them a value by tile.load(..., other=...)",
    "tile.max(tile.abs(v.to(tile.int32)))": "give them a value by tile.load(..., other=...)",
    "tile.max(tile.abs(v).to(tile.int8))": "give them a value by tile.load(..., other=...)",
    "tile.any(v + 1)": "give them a value by tile.load(..., other=...)",
    "tile.sum(v / v)": "give them a value by tile.load(..., other=...)",
    "tile.sum(v.to(tile.int32) | 1)": "give them a value by tile.load(..., other=...)",
    "tile.sum(v >= 0)": "give them a value by tile.load(..., other=...)",
    "tile.sum(v * tile.where(v > 0, v, 1.0) + 1)": "give them a value by tile.load(..., other=...)",
    "tile.max(tile.maximum(v, -1))": "give them a value by tile.load(..., other=...)",
    "tile.reduce(v, 0, tile.maximum)": "a value that changes nothing, as in tile.load(..., other=...)",
    "tile.sum(v + tile.full((128,), 2.0) * tile.full((128,), 3.0))": "give them a value by tile.load(..., other=...)",
    "tile.sum((v + tile.full((128,), 2.0) * 3).to(tile.int32))": "give them a value by tile.load(..., other=...)",
    "tile.sum(v.to(tile.int32) | tile.full((128,), 6) & tile.full((128,), 3))": "give them a value by tile.load(..., other=...)",
    "tile.sum(v / 0.0)": "give them a value by tile.load(..., other=...)",
    "tile.sum(v / 0)": "give them a value by tile.load(..., other=...)",
    "tile.sum(v / tile.full((128,), 0.3).to(tile.int32))": "give them a value by tile.load(..., other=...)",
    "tile.sum(v * float('inf'))": "give them a value by tile.load(..., other=...)",
}


@pytest.mark.parametrize("text", REMEDIES)
def test_the_warning_about_a_ragged_load_suggests_other(text):
    kernel = tile.jit(source=f"def k(x, y):\n    v = tile.load(x[0:128])\n    tile.store(y[0], {text})\n")
    warning, = kernel.compile(tile.ArraySpec((100,), "float32"), tile.ArraySpec((4,), "float32")).warnings
    assert "out of bounds of x, where its elements are 0" in str(warning) and REMEDIES[text] in str(warning), warning


def test_the_search_for_a_ragged_load_visits_each_value_once():
    """From a power by repeated squaring there are 2**60 paths back to the load."""
    squared = "    v, u = v * v, u * u\n" * 60
    kernel = tile.jit(source="def k(x, y):\n    v, u = tile.load(x[0:128]), tile.full((128,), tile.load(y[1]))\n"
                             f"{squared}    tile.store(y[0], tile.sum(v * u))\n")
    assert not kernel.compile(tile.ArraySpec((100,), "float32"), tile.ArraySpec((4,), "float32")).warnings


@pytest.mark.parametrize("text", ["tile.sum(v)", "tile.sum(v.to(tile.float64) * v * 3)", "tile.sum(tile.cumsum(-v))",
                                  "tile.sum(v[None, :] * v[:, None])", "tile.sum(abs(v))",
                                  "tile.sum(v * (v + 1))", "tile.sum(v > 0)", "tile.sum((v > 0).to(tile.int32))", "tile.cumsum(v != 0).sum()",
                                  "tile.sum(v * tile.sigmoid(v) * v)", "tile.sum(v * tile.arange(128) / tile.load(y[0:128], other=1))", "tile.sum(tile.maximum(v, 0))", "tile.sum(tile.where(v > 0, v, 0.01 * v) + v)",
                                  "tile.sum(v + tile.where(tile.load(y[0:128], other=0) > 0, v, 0.0))", "tile.sum(tile.sqrt(v))", "tile.sum(tile.exp(v) - 1)",
                                  "tile.sum(tile.bitcast(v, tile.int32) & 7)", "tile.sum(tile.fma(v, v, v))", "tile.prod(tile.exp(v))", "tile.all(v < 1)",
                                  "tile.sum(v / 3)", "tile.sum(v / tile.load(y[1]))", "tile.sum(v / (tile.full((128,), 2.0) + 3))",
                                  "tile.sum(v * (tile.full((128,), 2.0) * tile.full((128,), 3.0)))",
                                  "tile.cumsum((v + v * 2) * (v - tile.sqrt(2.0) * v)).sum()",
                                  "tile.sum((v.to(tile.int32) << 2 | v.to(tile.int32) >> 1) & 7)"])
def test_a_sum_of_values_that_are_0_out_of_bounds_does_not_warn(text):
    kernel = tile.jit(source=f"def k(x, y):\n    v = tile.load(x[0:128])\n    tile.store(y[0], {text})\n")
    assert kernel.compile(tile.ArraySpec((100,), "float32"), tile.ArraySpec((4,), "float32")).warnings == ()


@pytest.mark.parametrize("text", ["tile.max(tile.abs(v))", "tile.max(v * v / 127)", "tile.max(tile.max(abs(v).reshape(4, 32), axis=1))", "tile.any(v)",
                                  "tile.max(tile.sum(v * v + abs(v).to(tile.float64), axis=0, keepdims=True))", "tile.max(v.to(tile.uint8))",
                                  "tile.max(v.to(tile.uint8).to(tile.int32)[None, :])", "tile.max(abs(v * tile.sigmoid(v)))",
                                  "tile.max(tile.maximum(v, 0))", "tile.max(v > 0)"])
def test_a_maximum_of_values_that_are_never_below_the_0_out_of_bounds_does_not_warn(text):
    kernel = tile.jit(source=f"def k(x, y):\n    v = tile.load(x[0:128])\n    tile.store(y[0], {text})\n")
    assert kernel.compile(tile.ArraySpec((100,), "float32"), tile.ArraySpec((4,), "float32")).warnings == ()


# Of x[30, 128] rows leave the array, columns do not; of w[100] elements do.
ALONG_AN_AXIS = {
    "tile.max(v, axis=1)": False, "tile.max(v, axis=0)": True, "tile.max(v)": True, "tile.max(v.T, axis=0)": False, "tile.max(v.T, axis=1)": True,
    "tile.mean(tile.exp(v - tile.max(v, axis=1)[:, None]), axis=1)": False,
    "tile.max(tile.max(v, axis=1), axis=0)": True, "tile.max(tile.max(v, axis=1, keepdims=True), axis=0)": True,
    "tile.sum(tile.max(v, axis=1))": False, "tile.sum(tile.sum(tile.exp(v), axis=1))": True,
    "tile.sum(tile.sum(v, axis=1, keepdims=True) * 2)": False,
    "tile.max(v.reshape(16, 4, 32), axis=(1, 2))": False, "tile.max(v.reshape(4, 4, 128), axis=2)": False, "tile.max(v.reshape(4, 4, 128), axis=1)": True,
    "tile.max(v.reshape(4, 512), axis=1)": True, "tile.max(v.reshape(1, 16, 128), axis=0)": False, "tile.max(v.reshape(32, 64), axis=0)": True,
    "tile.prod(tile.broadcast_to(u[:, None], (128, 4)), axis=1)": False, "tile.prod(tile.broadcast_to(u[:, None], (128, 4)), axis=0)": True,
    "tile.sum(v * tile.load(y[0:16])[:, None], axis=1)": False, "tile.sum(u[None, :] * tile.load(y[0:16])[:, None], axis=1)": False,
    "tile.argmax(v, axis=1)": False, "tile.cumprod(v, axis=1)": False, "tile.cumprod(v, axis=0)": True,
    "tile.reduce(v, 1, tile.maximum)": False, "tile.reduce(v, 0, tile.maximum)": True,
    "tile.scan(v, 1, tile.maximum)": False, "tile.scan(v, 0, tile.maximum)": True,
}


@pytest.mark.parametrize("text", ALONG_AN_AXIS)
def test_only_loads_out_of_bounds_along_the_reduced_axes_warn(text):
    """Elements out of bounds along another axis give separate results, which a further reduction may include."""
    kernel = tile.jit(source="def k(x, w, y):\n    i = 16 * tile.program_id(0)\n    v, u = tile.load(x[i:i + 16, 0:128]), tile.load(w[0:128])\n"
                             f"    result = {text}\n")
    specs = tile.ArraySpec((30, 128), "float32"), tile.ArraySpec((100,), "float32"), tile.ArraySpec((16,), "float32")
    assert bool(kernel.compile(*specs).warnings) == ALONG_AN_AXIS[text]
