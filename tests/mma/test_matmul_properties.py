"""Random calls of `matmul` compared with float64: extents from 1 on, strides, dtypes, batches, epilogues,
scales; on the GPU if there is one."""

import numpy as np
import pytest
import tilejit as tile
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from tilejit import kernels
from tilejit.kernels.views import transpose

from tests.drawn import drawn
from tests.gpu import in_child, needs_gpu, some
from tests.mma.products import BF16, E4M3, E5M2
from tests.mma.test_block_scales import per_element, scales, up

DTYPES = ((BF16, BF16), (np.float16, np.float16), (np.float32, np.float32), (E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2), (E5M2, E5M2),
          (np.int8, np.int8),
          (np.uint8, np.int8), (np.int8, np.uint8), (np.uint8, np.uint8))
PLACES = {"float16": 11, "bfloat16": 8, "float32": 24}  # significant bits of the result's mantissa
STRIDES = st.sampled_from(("rows", "columns", "padded", "spaced", "reversed"))


@tile.jit
def moved(sums, row, column, factor, bias, beside):
    return sums * factor + tile.load(bias[column:column + sums.shape[1]])[None, :] + tile.cast(beside, tile.float32)


@tile.jit
def moved_matrix(sums, z, row, column, factor, bias, beside):
    return moved(sums, row, column, factor, bias, beside)


def extents(most: int):
    return st.one_of(st.just(1), st.integers(1, 40), st.sampled_from([n for n in (63, 64, 65, 127, 128, 129, 200, 331, 776, 1031) if n <= most]))


@st.composite
def products(draw, most: int):
    """(M, N, K, dtypes, leading extents of a and of b, strides of both, epilogue, the result's dtype, seed)."""
    dtypes = draw(st.sampled_from(DTYPES))
    kind = np.dtype(dtypes[0])
    float8, integer = kind.itemsize == 1 and kind.kind not in "iu", kind.kind in "iu"
    ways = ("alone", *(() if integer else ("factors", "epilogue")), *(("fast", "blocks", "blocks") if float8 else ()))
    way = draw(st.sampled_from(ways))
    batch = () if way == "blocks" else draw(st.sampled_from(((), (), (3,))))
    a_batch, b_batch = draw(st.sampled_from(((batch, batch), ((), batch), (batch, ()))))
    out = None if integer else draw(st.sampled_from((None, np.float32, np.float16, BF16)))
    return (*(draw(extents(most)) for _ in range(3)), dtypes, a_batch, b_batch, draw(STRIDES), draw(STRIDES), way, out, draw(st.integers(0, 1 << 16)))


def home_of(where: str):
    return tile.to_device if where == "gpu" else lambda x: x


def laid_at(home, x, how: str):
    """The same numbers with other strides; `home` moves them to a backend."""
    if how == "columns":
        return transpose(home(np.ascontiguousarray(x.swapaxes(-1, -2))))
    if how == "reversed":
        return home(np.ascontiguousarray(x[..., ::-1]))[..., ::-1]
    if how == "rows":
        return home(np.ascontiguousarray(x))
    n = x.shape[-1]
    wide = np.zeros((*x.shape[:-1], 2 * n + 1 if how == "spaced" else -(-n // 16) * 16 + 16), x.dtype)
    part = np.s_[..., 1:2 * n:2] if how == "spaced" else np.s_[..., :n]
    wide[part] = x
    return home(wide)[part]


def bits(x) -> np.ndarray:
    return np.ascontiguousarray(x if isinstance(x, np.ndarray) else x.numpy())


def checked(where: str, case) -> None:
    """One product, twice: the same bits, equal to float64 within the roundings; integers exactly."""
    m, n, k, dtypes, a_batch, b_batch, a_is, b_is, way, out, seed = case
    rng, home = np.random.default_rng(seed), home_of(where)
    a, b = drawn(rng, (*a_batch, m, k), dtypes[0]), drawn(rng, (*b_batch, k, n), dtypes[1])
    shape, options, spare = (*(a_batch or b_batch), m, n), {}, 0
    x, y, factor, more = a.astype(np.float64), b.astype(np.float64), 1.0, 0.0
    if way == "blocks":
        by_row, by_column = (bool(seed >> bit & 1) for bit in range(2))
        sa, sb = scales(rng, m, k, by_row), scales(rng, n, k, by_column)
        x, y, spare = x * per_element(sa, m, k), y * per_element(sb, n, k).T, up(k) + 4
        options = dict(scale_a=home(sa), scale_b=transpose(home(sb)))
    elif way == "factors":
        factor = 0.375
        options = dict(scale_a=home(np.full(1, 0.75, np.float32)), scale_b=0.5)
    elif way == "epilogue":
        bias, beside, factor = drawn(rng, (n,), np.float32), drawn(rng, shape, (np.float16, np.float32)[seed % 2]), -0.5
        more = bias.astype(np.float64) + beside
        options = dict(epilogue=moved if len(shape) == 2 else moved_matrix, arguments=(factor, home(bias)), tiles=(home(beside),))
    if np.dtype(dtypes[0]).itemsize == 1:
        options["fast_accum"] = way == "fast"
    left, right = laid_at(home, a, a_is), laid_at(home, b, b_is)
    precision = "tf32" if dtypes[0] is np.float32 else None
    got, again = (bits(kernels.matmul(left, right, None if out is None else home(np.full(shape, np.nan, out)), precision=precision, **options)) for _ in range(2))
    assert got.shape == shape and got.tobytes() == again.tobytes(), "other bits the second time"
    if got.dtype.kind in "iu":
        np.testing.assert_array_equal(got, (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32))
        return
    exact, terms = (x @ y) * factor + more, np.abs(x) @ np.abs(y) * abs(factor)
    # TF32 rounds both operands to 10 bits; float8 accumulation keeps 13 below the largest
    narrow = {4: 2.0 ** -10 + 2.0 ** -22, 1: 2.0 ** -12}.get(np.dtype(dtypes[0]).itemsize, 0.0)
    bound = np.abs(exact) * 2.0 ** -PLACES[got.dtype.name] + terms * ((k + 4 + spare) * 2.0 ** -23 + narrow) + (np.abs(more) + 1) * 2.0 ** -22
    assert (np.abs(got.astype(np.float64) - exact) <= bound).all(), np.abs((got.astype(np.float64) - exact) / bound).max()


def hold(where: str, most: int, examples: int) -> None:
    """Check this many random products, with at most one kernel each and one for each copy. Nothing is shrunk: each attempt
    would compile another one."""
    @settings(max_examples=examples, deadline=None, derandomize=True, database=None, phases=(Phase.generate,),
              suppress_health_check=list(HealthCheck))
    @given(products(most))
    def holds(case):
        checked(where, case)

    holds()


def test_random_products_are_right_on_the_simulator():
    """The same as on the GPU below, with small extents."""
    hold("host", 65, 6)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_random_products_with_an_epilogue_are_right_on_the_simulator(batch):
    checked("host", (40, 33, 50, (np.float16, np.float16), batch, batch, "rows", "columns", "epilogue", np.float32, 5))


@pytest.mark.parametrize("shape", [(40, 50, 33), (2, 40, 50, 33)])
def test_scaled_integer_accumulators_are_floats(shape):
    *batch, m, k, n = shape
    rng = np.random.default_rng(7)
    a, b = drawn(rng, (*batch, m, k), np.int8), drawn(rng, (k, n), np.int8)
    got = kernels.matmul(a, b, scale_a=0.375, scale_b=np.full(1, 0.5, np.float32))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, (a.astype(np.int64) @ b.astype(np.int64)) * 0.1875)  # below 2^24, and with few bits


@needs_gpu("sm_90a")
@in_child(timeout=150)
def test_random_products_are_right_on_the_gpu():
    hold("gpu", 1031, len(some(range(80), least=8)))
