"""Copies of arrays without elements: loads give the fill, stores do nothing, and the barrier's bytes complete."""

import empty_kernels as kernels
import numpy as np
import pytest
import tilejit as tile
from hypothesis import given, settings, strategies as st

pytestmark = pytest.mark.usefixtures("assembled_later")

DTYPES = ("uint8", "float16", "float32", "int64")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(kernels.SHAPES), st.sampled_from(DTYPES), st.sampled_from((0, 32, 64, 128)), st.sampled_from((8, 16)), st.booleans(),
       st.sampled_from((0, -3, 5)))
def test_a_load_of_an_empty_array_gives_the_fill_and_completes(shape, dtype, mode, units, nan, start):
    columns = units * 16 // np.dtype(dtype).itemsize
    nan = nan and dtype.startswith("float")
    A, B = np.ones(shape, dtype), np.ones((24, columns), dtype)
    options = dict(SHAPE=(8, columns), MODE=mode, FILL="nan" if nan else 0)
    report = kernels.loaded.simulate((2,), A, B, start, **options)
    got = B[max(start, 0):start + 16]
    assert not report.findings and (np.isnan(got).all() if nan else (got == 0).all()), report
    assert (B[:max(start, 0)] == 1).all() and (B[start + 16:] == 1).all()
    compiled = kernels.loaded.compile(A, B, start, **options)
    assert [c.variant for c in compiled.copies if c.op == "copy_async"] == ["tma"]


@pytest.mark.parametrize("kind", [None, "add"])
@pytest.mark.parametrize("shape", kernels.SHAPES)
def test_a_store_to_an_empty_array_does_nothing(shape, kind):
    A, B = np.ones(shape, "float32"), np.ones((16, 64), "float32")
    report = kernels.stored.simulate((2,), A, B, SHAPE=(8, 64), KIND=kind)
    assert not report.findings, report
    assert kernels.stored.compile(A, B, SHAPE=(8, 64), KIND=kind).copies[-1].variant == "tma"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_a_copy_by_any_path_accepts_an_empty_array_on_every_target(target):
    B = np.ones((16, 64), "float16")
    report = kernels.any_way.simulate((1,), np.ones((0, 64), "float16"), B, target=target)
    assert not report.findings and (B == 0).all(), report


def test_a_multicast_of_an_empty_array_completes_in_every_cta():
    B = np.ones((2, 16, 64), "float16")
    report = kernels.to_both.simulate((2,), np.ones((0, 64), "float16"), B)
    assert not report.findings and (B == 0).all(), report


@pytest.mark.parametrize("along", [None, "w", "w128"])
@pytest.mark.parametrize("shape", [(0, 5, 6, 64), (2, 0, 6, 64), (2, 5, 0, 64), (2, 5, 6, 0)])
def test_im2col_loads_of_empty_images_give_zeros(shape, along):
    X, Y = np.ones(shape, "float16"), np.ones((128, 64), "float16")
    options = dict(ALONG=along, target="sm_100a")
    report = kernels.patch.simulate((1,), X, Y, **options)
    assert not report.findings and (Y == 0).all(), report
    m = kernels.patch.compile(X, Y, **options).tensor_maps[0]
    assert m.lower and m.global_dim[0] == 16 and min(m.global_dim) >= 1


@pytest.mark.parametrize("shape", kernels.SHAPES)
def test_rows_gathered_from_an_empty_matrix_are_zero_and_scattered_ones_are_dropped(shape):
    X, I, Y = np.ones(shape, "float16"), np.array([0, 1, -1, 2**31 - 1, 5, 0, 0, 3], "int32"), np.ones((8, 64), "float16")
    report = kernels.rows.simulate((1,), X, I, Y, target="sm_100a")
    assert not report.findings and (Y == 0).all(), report


def test_the_address_and_the_strides_of_an_empty_array_do_not_matter():
    """Libraries may give any of them to an array without elements; the map points to the launcher's own memory."""
    A, B = kernels.odd((0, 64), "float32"), np.ones((16, 64), "float32")
    report = kernels.loaded.simulate((2,), A, B, 0, SHAPE=(8, 64), MODE=0, FILL=0)
    assert not report.findings and (B == 0).all(), report
    (m,) = kernels.loaded.compile(A, B, 0, SHAPE=(8, 64), MODE=0, FILL=0).recipe["maps"]
    assert m["nowhere"] and m["dims"] == [16, 1] and m["strides"] == [16]


def test_empty_and_nonempty_arrays_have_separate_compilations():
    A, B = np.full((16, 64), 3, "float32"), np.ones((16, 64), "float32")
    options = dict(SHAPE=(8, 64), MODE=0, FILL=0)
    for array, want in ((A[:0], 0), (A, 3), (A[:, :0], 0), (A[:3], None)):
        kernels.loaded[2,](array, B, 0, **options)
        assert (B == want).all() if want is not None else (B[:3] == 3).all() and (B[3:] == 0).all()


def test_an_explicit_map_of_an_empty_array_is_an_error_that_says_so():
    @tile.jit(num_warps=1)
    def named(A):
        tile.tensor_map(A[0:8, 0:64])

    with pytest.raises(tile.CompilationError, match="dimension 0 of this one is empty"):
        named.compile(np.ones((0, 64), "float32"))
