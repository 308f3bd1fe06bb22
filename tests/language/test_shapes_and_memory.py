"""Shapes of tiles, loads and stores agree with NumPy, on the simulator."""

import memory_cases
import numpy as np
import pytest
import shape_cases
import tilejit as tile
from hypothesis import assume, given, settings, strategies as st
from language_cases import check_on_simulator
from language_reference import DTYPES, np_dtype

few = settings(max_examples=30, deadline=None)
warps = st.sampled_from((1, 2, 4, 8))
extents = st.lists(st.sampled_from((1, 2, 3, 4, 7, 8, 13, 16, 31, 32)), min_size=1, max_size=3).map(tuple)


def test_shapes_and_created_tiles_agree_with_numpy():
    check_on_simulator(shape_cases.shape_cases())


def test_loads_stores_gathers_and_arguments_agree_with_numpy():
    check_on_simulator(memory_cases.memory_cases())


@few
@given(extents, st.sampled_from([d for d in DTYPES if d != "bool"]), warps, st.integers(0, 1000))
def test_tiles_of_any_shape_agree_with_numpy(shape, dtype, num_warps, seed):
    padded = np.prod([1 << (n - 1).bit_length() for n in shape])
    assume(2 * padded * np_dtype(dtype).itemsize <= 4 * 128 * 32 * num_warps)  # two tiles in half of the registers
    check_on_simulator([shape_cases.shapes(shape, dtype, num_warps, seed), shape_cases.made(shape, num_warps)])


@st.composite
def box(draw):
    """An array, a tile that covers it raggedly, and the strides of both."""
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 20)) for _ in range(rank))
    tile_shape = tuple(draw(st.sampled_from((1, 2, 3, 4, 5, 8, 16))) for _ in range(rank))
    layouts = st.sampled_from(memory_cases.LAYOUTS)
    return memory_cases.boxes(shape, tile_shape, draw(st.sampled_from(DTYPES)), draw(layouts), draw(layouts), draw(warps),
                              draw(st.integers(0, 5)), draw(st.integers(0, 1000)))


@few
@given(box())
def test_boxes_are_clipped_element_by_element_whatever_the_strides(case):
    check_on_simulator([case])


@few
@given(st.sampled_from(DTYPES), st.integers(1, 70), st.integers(1, 70), st.sampled_from((4, 8, 16, 32)), warps)
def test_ragged_edges_are_clipped_with_vector_accesses(dtype, rows, columns, block, num_warps):
    check_on_simulator([memory_cases.plain((rows, columns), (8, block), dtype, num_warps)])


def test_a_slice_from_a_negative_literal_extends_to_the_end():
    kernel = tile.jit(source="""def k(x, y):
    tile.store(y[0, 0:3], tile.load(x[-3:]))
    tile.store(y[1, -3:], tile.load(tile.window(x, 1, 4)[-3:]))
""")
    y = np.zeros((2, 3), np.int32)
    kernel[1,](np.arange(7, dtype=np.int32)[::-1], y)
    assert y.tolist() == [[2, 1, 0], [4, 3, 2]]
    short = np.zeros((2, 3), np.int32)
    kernel[1,](np.ones(2, np.int32), short)
    assert short[0].tolist() == [0, 1, 1]  # elements before the array are out of bounds there


S, R, axis = tile.S, tile.R, tile.axis


@tile.jit
def through(x, LAYOUT: tile.constexpr, VIEWED: tile.constexpr):
    s = tile.alloc((4096,), tile.uint8).view(x.dtype, (8, 64), LAYOUT) if VIEWED else tile.alloc((8, 64), x.dtype, layout=LAYOUT)
    tile.store(s, tile.load(x[0:8, 0:64]))
    tile.sync()
    tile.store(x[0:8, 0:64], tile.load(s) + 1)


@pytest.mark.parametrize("viewed", [False, True])
@pytest.mark.parametrize("layout,words", [
    (S[(8, 64) : (64 @ axis.laneid, 1)], "over axis.m alone, without replicas"),
    (S[(8, 64):(64, 1)] + 1 @ axis.laneid, "over axis.m alone, without replicas"),
    (S[(8, 64):(64, 1)] + R[2:512], "over axis.m alone, without replicas"),
    (S[(8, 64):(64, 1)] + -7, "puts an element 7 before the first of the buffer: add an offset, as in layout . 7"),
    (S[(8, 64):(-64, 1)], "puts an element 448 before the first of the buffer"),
])
def test_a_layout_that_shared_memory_cannot_have_is_refused(layout, words, viewed):
    with pytest.raises(tile.CompilationError, match=words) as error:
        through.compile(np.zeros((8, 64), np.float32), layout, viewed)
    assert error.value.loc is not None
    with pytest.raises(tile.CompilationError, match=words):
        tile.plan_copy(tile.BufferSpec((8, 64), "float32", "shared", layout), tile.BufferSpec((8, 64), "float32", "global"))


@pytest.mark.parametrize("layout", [S[(8, 64):(-64, 1)] + 448, S[(8, 64):(64, 1)] + 7, S[(8, 64):(1, 8)], S[(8, 64):(65, 1)], S[(8, 64):(64, -1)] + 63])
def test_a_layout_may_have_negative_strides_an_offset_and_gaps(layout):
    x = np.arange(512, dtype=np.float32).reshape(8, 64)
    through[1,](x, layout, False)
    assert (x == np.arange(1, 513).reshape(8, 64)).all()
    for target in ("sm_80", "sm_90a"):
        through.compile(x, layout, False, target=target)
