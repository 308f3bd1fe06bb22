"""tile.verify: what it compares, and what its errors name."""

import ml_dtypes
import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import LaunchError, VerificationError

from tests.gpu import in_child, needs_gpu

X = np.random.default_rng(0).standard_normal((8, 100)).astype(np.float32)


@tile.jit
def scaled(x, y, by, BLOCK: tile.constexpr = 128):
    p = tile.program_id(0)
    v = tile.load(x[p, 0:BLOCK]) * by
    v = tile.where(tile.arange(BLOCK) == 70, v + 1, v) if by == 3 else v
    tile.store(y[p, 0:BLOCK], v)


def reference(x, y, by):
    y[...] = x * by


def test_a_correct_kernel_passes_and_its_arrays_are_unchanged():
    y = np.full_like(X, 7)
    result = tile.verify(scaled, 8, X, y, 2.0, reference=reference)
    assert result.passed and "as the reference" in str(result)
    result.raise_first()
    assert (y == 7).all()


class Foreign:
    """An array of another library that only supports DLPack, over NumPy's memory."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("returns", [False, True])
def test_arrays_of_other_libraries_are_copied_and_unchanged(returns):
    x, y = Foreign(X.copy()), Foreign(np.full_like(X, 7))

    def twice(x, y, by):
        assert type(x) is type(y) is Foreign
        if returns:
            return Foreign(x.array * by)
        y.array[...] = x.array * by
    tile.verify(scaled, 8, x, y, 2.0, reference=twice).raise_first()
    found = tile.verify(scaled, 8, x, y, 3, reference=twice).differences
    assert [d.argument for d in found] == ["y"] * len({d.backend for d in found}) != []
    assert (x.array == X).all() and (y.array == 7).all()


def test_an_array_without_dimensions_is_unchanged():
    @tile.jit
    def counted(x, y):
        tile.store(y[()], tile.sum(tile.load(x[0:128])))

    x, y = np.ones(100, np.float32), np.array(7, np.float32)
    tile.verify(counted, 1, x, y, reference=lambda x, y: x.sum()).raise_first()
    assert y == 7


@tile.jit
def doubled(x, y, WRONG: tile.constexpr = False):
    p = tile.program_id(0)
    v = tile.cast(tile.load(x[p, 0:64]), tile.float32) * 2.0
    tile.store(y[p, 0:64], tile.cast(tile.where(tile.arange(64) == 37, 3.0, v) if WRONG else v, y.dtype))


@pytest.mark.parametrize("dtype", [tile.float4_e2m1fn, tile.float6_e2m3fn, tile.float6_e3m2fn], ids=str)
@pytest.mark.parametrize("returns", [False, True])
def test_packed_arrays_are_compared_element_by_element(dtype, returns):
    x = tile.pack(np.tile(np.float32([0, 0.5, 1, 1.5]), (4, 16)), dtype)
    y = tile.pack(np.full((4, 64), 1, np.float32), dtype)
    before = y.data.copy()

    def twice(x, y):
        new = tile.pack(x.unpack().astype(np.float32) * 2, dtype)
        if returns:
            return new
        y.data[...] = new.data
    tile.verify(doubled, 4, x, y, reference=twice).raise_first()
    found = tile.verify(doubled, 4, x, y, WRONG=True, reference=twice).differences[0]
    assert (found.argument, found.index, found.count, found.size) == ("y", (0, 37), 4, 256)
    assert (float(found.got), float(found.expected)) == (3, 1) and found.writer.loc is not None
    assert (y.data == before).all()


@tile.jit
def cast(x, y):
    tile.store(y[0:128], tile.cast(tile.load(x[0:128]), y.dtype))


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu])
def test_8_bit_floats_may_differ_by_one_step(dtype):
    x = np.exp2(np.random.default_rng(1).uniform(-5, 5, 128)).astype(np.float32)
    x[7] = np.nan

    def given(by):
        def reference(x, y):
            codes = x.astype(dtype).view(np.uint8) + np.uint8(by)
            return np.where(np.isnan(x), x, codes.view(dtype).astype(np.float32))
        return tile.verify(cast, 1, x, np.zeros(128, dtype), reference=reference)
    assert given(0).passed and given(1).passed == (dtype != ml_dtypes.float8_e8m0fnu) and not given(3).passed


def wrong_result(**kwargs):
    return tile.verify(scaled, 8, X, np.zeros_like(X), 3, reference=reference, **kwargs)


def test_a_mismatch_names_the_element_the_line_and_the_thread():
    result = wrong_result()
    found = result.differences[0]
    assert (found.argument, found.index, found.count, found.size) == ("y", (0, 70), 8, 800)
    assert found.writer.loc.source_line.strip() == "tile.store(y[p, 0:BLOCK], v)"
    assert found.writer.cta == 0
    thread = found.writer.thread
    assert thread is not None and 0 <= thread < 128
    with pytest.raises(VerificationError, match=r"y\[0, 70\] is") as caught:
        result.raise_first()
    assert caught.value.loc.line == found.writer.loc.line


def test_tolerances_can_be_given():
    assert wrong_result(atol=1.0).passed


def test_a_reference_may_return_the_result():
    assert tile.verify(scaled, 8, X, np.zeros_like(X), 2.0, reference=lambda x, y, by: x * by).passed


def test_strided_views_keep_their_strides():
    wide = np.zeros((8, 200), np.float32)
    x, y = wide[:, ::2], wide.T.copy().T[::-1, :100]
    x[...] = X
    assert tile.verify(scaled, 8, x, y, 2.0, reference=reference).passed


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.bool_, np.float16, ml_dtypes.bfloat16, np.float64])
def test_every_dtype_is_compared(dtype):
    @tile.jit
    def copied(x, y, FLIP: tile.constexpr):
        v = tile.load(x[0:64])
        tile.store(y[0:64], tile.where(tile.arange(64) == FLIP, tile.load(x[1]), v))
    x = (np.arange(64) % 2).astype(dtype)
    same = lambda x, y: x
    assert tile.verify(copied, 1, x, np.zeros_like(x), FLIP=64, reference=same).passed
    assert tile.verify(copied, 1, x, np.zeros_like(x), FLIP=10, reference=same).differences[0].index == (10,)


def test_elements_that_nothing_wrote_are_reported_as_such():
    @tile.jit
    def half(x):
        tile.store(x[0:4], 1.0)
    found = tile.verify(half, 1, np.zeros(8, np.float32), reference=lambda x: np.ones(8, np.float32)).differences[0]
    assert found.index == (4,) and found.writer is None


def test_a_mismatch_in_a_tma_store_names_its_line():
    @tile.jit
    def doubled_by_tma(x):
        s = tile.alloc((64, 64), x.dtype)
        tile.store(s, 2.0)
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(x[0:64, 0:64], s)
            tile.bulk_commit()
            tile.bulk_wait(0)
    found = tile.verify(doubled_by_tma, 1, np.zeros((64, 64), np.float32), reference=lambda x: x).differences[0]
    assert "copy_async" in found.writer.loc.source_line and (found.writer.cta, found.writer.thread) == (0, None)


@pytest.mark.parametrize("last, line", [("ordinary", "tile.store(x[0:64]"), ("bulk", "copy_async"), ("atomic", None), ("reduction", None)])
def test_a_mismatch_names_the_last_of_several_kinds_of_writes(last, line):
    @tile.jit
    def written_twice(x, LAST: tile.constexpr):
        s = tile.alloc(64, x.dtype)
        tile.store(s, 2.0)
        if LAST == "bulk":
            tile.store(x[0:64], 1.0)
            tile.fence_proxy_async(space="global")
        tile.fence_proxy_async()
        tile.sync()
        with tile.elect():
            tile.copy_async(x[0:64], s)
            tile.bulk_commit()
            tile.bulk_wait(0)
        tile.sync()
        if LAST == "ordinary":
            tile.store(x[0:64], 3.0)
        elif LAST == "atomic":
            tile.atomic_add(x[0], 1.0)
        elif LAST == "reduction":
            with tile.elect():
                tile.copy_async(x[0:64], s, reduce="add")
                tile.bulk_commit()
                tile.bulk_wait(0)
    writer = tile.verify(written_twice, 1, np.zeros(64, np.float32), LAST=last, reference=lambda x: x).differences[0].writer
    assert writer is None if line is None else line in writer.loc.source_line


def test_findings_of_the_simulator_are_failures():
    @tile.jit(num_warps=2)
    def racing(x):
        s = tile.alloc((64,), x.dtype)
        with tile.warp(0):
            tile.store(s, 1.0)
        with tile.warp(1):
            tile.store(x[0:64], tile.load(s))
    result = tile.verify(racing, 1, np.ones(64, np.float32), reference=lambda x: x)
    assert result.findings and not result.passed
    with pytest.raises(VerificationError):
        result.raise_first()


def test_invalid_calls_of_verify_are_errors():
    with pytest.raises(LaunchError, match="'backend' is not for it"):
        tile.verify(scaled, 8, X, X.copy(), 2.0, reference=reference, backend="sim")
    with pytest.raises(LaunchError, match="reference is a function of the arguments, not ndarray"):
        tile.verify(scaled, 8, X, X.copy(), 2.0, reference=X)
    for name, value in (("rtol", "1e-3"), ("atol", -1), ("rtol", float("nan")), ("atol", True)):
        with pytest.raises(LaunchError, match=f"{name} is a number of at least 0, not "):
            tile.verify(scaled, 8, X, X.copy(), 2.0, reference=reference, **{name: value})
    with pytest.raises(LaunchError, match="the kernel writes y, and its reference returns 2 arrays"):
        tile.verify(scaled, 8, X, X.copy(), 2.0, reference=lambda *a: (X, X))
    with pytest.raises(LaunchError, match="has the shape"):
        tile.verify(scaled, 8, X, X.copy(), 2.0, reference=lambda *a: X[0])
    y = np.full_like(X, 7)
    with pytest.raises(LaunchError, match="given by position, and y is given by keyword"):
        tile.verify(scaled, 8, X, y=y, by=2.0, reference=reference)
    assert (y == 7).all()


@needs_gpu()
@in_child(timeout=60)
def test_the_gpu_s_results_are_compared_too():
    result = wrong_result()
    assert result.backends == ("simulator", "gpu")
    assert [d.backend for d in result.differences] == ["simulator", "gpu"]
    assert result.differences[1].writer == result.differences[0].writer
    assert tile.verify(scaled, 8, X, np.zeros_like(X), 2.0, reference=reference).passed
