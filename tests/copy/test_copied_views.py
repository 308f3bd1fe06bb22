"""Copies of views with steps or offsets, reversed or transposed."""

from contextlib import nullcontext

import numpy as np
import pytest
import tilejit as tile
from tilejit.errors import DispatchError
from view_kernels import column_major, other_cases, tensor_cases, there_and_back, view_case

from tests.cases import compiled, on_gpu, on_simulator
from tests.gpu import in_child, needs_gpu

pytestmark = pytest.mark.usefixtures("assembled_later")


def test_views_with_steps_or_transposed_are_copied_in_and_out_by_tma():
    """The elements between and beside the view's are unchanged; boxes that exceed the view end with it."""
    on_simulator(tensor_cases())


def test_views_of_any_kind_are_copied_in_and_out_by_copies_of_all_threads():
    """Steps, transposed and reversed arrays."""
    on_simulator(other_cases())


def test_a_map_of_a_view_has_the_view_s_extents_and_strides():
    """Innermost first; the launch adds the view's offset."""
    m = compiled(view_case("every second row", "float32", "tma")).tensor_maps[0]
    assert (m.global_dim, m.global_strides, m.box, m.base_offset) == ((24, 10), (192,), (16, 8), 0)
    m = compiled(view_case("transposed planes", "float32", "tma")).tensor_maps[0]
    assert (m.global_dim, m.global_strides, m.box) == ((16, 8, 3), (80, 720), (8, 8, 2))


def test_a_reversed_view_has_no_tensor_map():
    """tma declines with the reason."""
    with pytest.raises(DispatchError, match="an array without negative strides"):
        compiled(view_case("backwards", "float32", "tma"))


@pytest.mark.parametrize("dtype, way", [("float32", "ldgsts"), ("float64", "ldgsts"), ("int8", None), ("float16", None), ("float32", None)])
def test_every_second_column_is_copied_element_by_element(dtype, way):
    """No tensor map can express it. Elements of 4 and 8 bytes use cp.async, narrower ones ordinary loads."""
    x, y = np.arange(24 * 64).reshape(24, 64).astype(dtype), np.zeros((24, 64), dtype)
    options = dict(AT=(16, 24), N=(16, 16), WAY=way, LAYOUT=None)
    with pytest.raises(DispatchError, match="contiguous elements innermost"):
        there_and_back.compile(x[:, 1::2], y[:, 1::2], **options | {"WAY": "tma"})
    with pytest.warns(tile.TileWarning, match="ordinary loads and stores") if x.itemsize < 4 else nullcontext():
        assert not there_and_back.simulate((1,), x[:, 1::2], y[:, 1::2], **options).findings
    want = np.zeros_like(y)
    want[16:, 49::2] = x[16:, 49::2]
    assert (y == want).all()


@pytest.mark.parametrize("way", ["tma", "ldgsts", None])
def test_a_broadcast_row_has_a_stride_of_zero_in_the_map(way):
    """``numpy.broadcast_to``: a source whose rows are all the same memory."""
    row, y = np.arange(64, dtype=np.float32), np.zeros((20, 64), np.float32)
    assert not there_and_back.simulate((1,), np.broadcast_to(row, (20, 64)), y, AT=(8, 16), N=(8, 32), WAY=way, LAYOUT=None).findings
    want = np.zeros_like(y)
    want[8:16, 16:48] = row[16:48]
    assert (y == want).all()


def test_a_transposed_view_needs_a_transposed_buffer_and_the_error_says_so():
    """TMA does not transpose."""
    case = view_case("transposed", "float32", "tma")
    with pytest.raises(DispatchError, match="the same contiguous elements innermost in both memories"):
        there_and_back.compile(*case.copies(np.copy)[1], **case.options | {"LAYOUT": None})
    assert column_major((4, 8)) == tile.S[(4, 8):(1, 4)]


@needs_gpu()
@in_child(timeout=240)
def test_views_with_steps_or_transposed_are_copied_in_and_out_by_tma_on_the_gpu():
    """Every view, every dtype."""
    on_gpu(tensor_cases())


@needs_gpu()
@in_child(timeout=240)
def test_views_of_any_kind_are_copied_in_and_out_by_copies_of_all_threads_on_the_gpu():
    """Steps, transposed and reversed arrays."""
    on_gpu(other_cases())
